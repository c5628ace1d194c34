"""Tables as a file of state holds them: as a stream, with a checksum for each of its pages."""

from __future__ import annotations

import io

import pyarrow as pa

from impctl.data import pages


def stream_of(table: pa.Table) -> bytes:
    """The table as one batch of an Arrow stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def sums_of(content: bytes, piece: int | None = None) -> bytes:
    """The checksums, of bytes that come in pieces of so many."""
    sums, size = pages.PageSums(), piece or len(content)
    for at in range(0, len(content), size):
        sums.add(memoryview(content)[at : at + size])
    return sums.table()


def table_in(content: pa.Buffer) -> pa.Table:
    """The table whose columns lie in the stream."""
    stream = pa.ipc.open_stream(content)
    return pa.Table.from_batches([stream.read_next_batch()], stream.schema)
