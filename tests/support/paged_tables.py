"""Tables as a file of state holds them, and pages that are wrong until they are looked at."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data import pages
from impctl.data.vector import Ints
from impctl.engine import extremes, lookups, trace
from impctl.errors import InvariantError
from impctl.store.states import check_heads


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


_PAGE = 8
_SEARCHED = ("code", "group")
_OTHER = 0x5A


class HiddenPages(pages.CheckedPages):
    """Memory that shows its bytes page by page as they are looked at."""

    def __init__(self, real: bytes) -> None:
        self._real = real
        self.shown = bytearray(byte ^ _OTHER for byte in real)
        self.content = pa.py_buffer(self.shown)
        super().__init__(self.content, sums_of(real), lambda: InvariantError("altered"))

    def show(self, address: int, size: int) -> None:
        """Bytes that may be passed over."""
        at = address - self.content.address
        self.shown[at : at + size] = self._real[at : at + size]

    def _check(self, pages_: Ints) -> None:
        for page in pages_[self._is_open[pages_]].tolist():
            part = slice(page * pages.PAGE, (page + 1) * pages.PAGE)
            self.shown[part] = self._real[part]
        super()._check(pages_)


def hidden(table: pa.Table, *, are_codes_shown: bool) -> pages.PagedTable:
    """The table as it would be mapped, nothing of it looked at but where its columns lie."""
    held = HiddenPages(stream_of(table))
    check_heads(held.content, held, InvariantError)
    result = table_in(held.content)
    if are_codes_shown:
        for name in set(_SEARCHED) & set(result.column_names):
            (chunk,) = result.column(name).chunks
            held.show(chunk.buffers()[1].address, chunk.buffers()[1].size)
    return pages.PagedTable(result, held)


@contextmanager
def hiding(*, are_codes_shown: bool) -> Iterator[list[pages.CheckedPages]]:
    """All state that is loaded meanwhile is hidden; which there was."""
    loaded: list[pages.CheckedPages] = []

    def table_of(stored: Any) -> tuple[pa.Table, pages.CheckedPages | None]:
        if isinstance(stored, pages.PagedTable) or not stored.num_rows:
            return pages.table_of(stored)
        paged = hidden(stored, are_codes_shown=are_codes_shown)
        loaded.append(paged.pages)
        return paged.table, paged.pages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE", _PAGE)
        for module in (trace, trace, extremes, lookups):
            patch.setattr(module, "table_of", table_of)
        yield loaded


def open_share(loaded: list[pages.CheckedPages]) -> float:
    """Of how many of these something was never looked at."""
    return float(np.mean([one.is_open for one in loaded]))
