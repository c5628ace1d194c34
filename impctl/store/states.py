"""Runs of operator state: small ones inside the catalog, large ones as files beside it.

Law: a run is an Arrow stream whose length and checksums are in the catalog. A run inside the
catalog has one checksum, verified before any of its rows is used. A file has one per page
(`data.pages`), and a row is used only after its pages were verified. A file is written under a new
name, synced before anything refers to it, and never changed. Reading maps files and copies nothing.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from impctl.data.pages import CheckedPages, PagedTable, PageSums, StoredTable
from impctl.errors import OPEN_FILES, ImpctlError, StateCorruptError, pass_out_of_memory
from impctl.store.catalog import Transaction, digest_of, sealed
from impctl.store.disk import (
    CAREFUL,
    RUN_SUFFIX,
    OutputFile,
    RealDisk,
    StoreLayout,
    from_system,
    make_lasting_folder,
    translate_errors,
)
from impctl.store.records import Run

if TYPE_CHECKING:
    from impctl.types import QueryName

BLOB_LIMIT = 256 << 10
"""Runs up to this many bytes are stored in the transaction; measured: a file, with its own sync and
the folder's, costs more below and less above."""

_STORED = (
    "SELECT arrangement, sequence, file, seal FROM run WHERE query_id = ?"
    " ORDER BY arrangement, sequence"
)
_DROP = "DELETE FROM run WHERE query_id = ? AND arrangement = ? AND sequence = ?"
_FILES = "SELECT file FROM run WHERE file IS NOT NULL"
_MARK_BYTES = 8
"""Bytes before each message of an Arrow stream: a marker and the length of its head."""
NO_RUNS = digest_of(())


class StoredRun(Struct, frozen=True):
    """A run with its `content`, or whose bytes are synced on disk in `file`. `checksum` is that of
    the content, or of `sums`, the checksums of the file's pages."""

    arrangement: str
    sequence: int
    rows: int
    size: int
    checksum: int
    file: str | None
    content: pa.Buffer | bytes | None
    sums: bytes | None = None


def write_runs(runs: Iterable[Run], layout: StoreLayout, disk: RealDisk) -> tuple[StoredRun, ...]:
    """Encode the runs and write the large ones to disk, synced with their folder."""
    written: list[StoredRun] = []
    try:
        for arrangement, sequence, table in runs:
            # Runs have whole arrays, whose size is known at once.
            if table.get_total_buffer_size() <= BLOB_LIMIT:
                written.append(_encode(arrangement, sequence, table))
            else:
                written.append(_write_file(arrangement, sequence, table, layout, disk))
        if any(run.file is not None for run in written):
            with translate_errors(layout.state):
                disk.sync_folder(layout.state)
    except BaseException:
        discard_runs(written, layout, disk)
        raise
    return tuple(written)


def discard_runs(runs: Iterable[StoredRun], layout: StoreLayout, disk: RealDisk) -> None:
    """Remove files that no row will refer to."""
    remove_files([run.file for run in runs if run.file is not None], layout, disk)


def remove_files(names: Iterable[str], layout: StoreLayout, disk: RealDisk) -> set[str]:
    """Remove run files and report which; one that cannot be removed now is collected later."""
    removed = set()
    for name in names:
        try:
            disk.remove(layout.run_file(name))
        except OSError:
            continue
        removed.add(name)
    return removed


def move_runs(
    tx: Transaction,
    query_id: int,
    digest: int,
    drop: Iterable[tuple[str, int]],
    put: Iterable[StoredRun],
) -> tuple[int, list[str]]:
    """Remove `drop`, which must exist, then insert others, which may replace existing runs.
    `digest` is the expected digest before; returns the new one, and files without a reference."""
    stored = {row[:2]: row[2:] for row in tx.execute(_STORED, (query_id,))}
    _check_digest(tx, stored.values(), digest)
    unused: list[str | None] = []
    dropped = [(arrangement, int(sequence)) for arrangement, sequence in drop]
    for key in dropped:
        if key not in stored:
            raise ImpctlError(
                f"Run {key[1]} of `{key[0]}` is not in the store",
                code="run_unknown",
                hint="run `impctl capture` again",
            )
        unused.append(stored.pop(key)[0])
    tx.executemany(_DROP, [(query_id, *key) for key in dropped])
    for run in put:
        key = (run.arrangement, run.sequence)
        row = sealed(query_id, *key, run.rows, run.size, run.checksum, run.file)
        tx.insert("run", (*row, run.content, run.sums), "INSERT OR REPLACE")
        unused.append(stored[key][0] if key in stored else None)
        stored[key] = (run.file, row[-1])
    # As SQLite orders them: texts by code point.
    new_digest = digest_of(stored[key] for key in sorted(stored))
    return new_digest, [file for file in unused if file is not None]


def drop_all_runs(tx: Transaction, query_id: int) -> list[str]:
    """Remove every run of the query; returns the files they referred to."""
    files = [row[0] for row in tx.execute(f"{_FILES} AND query_id = ?", (query_id,))]
    tx.delete(query_id, "run")
    return files


def run_files(tx: Transaction) -> set[str]:
    return {row[0] for row in tx.execute(_FILES)}


def stored_runs(tx: Transaction, query_id: int, digest: int) -> tuple[StoredRun, ...]:
    """All runs of the query, by arrangement and sequence; they must match the digest."""
    rows = tx.execute(
        "SELECT query_id, arrangement, sequence, rows, bytes, checksum, file, seal, content, sums"
        " FROM run WHERE query_id = ? ORDER BY arrangement, sequence",
        (query_id,),
    ).fetchall()
    _check_digest(tx, (row[:-2] for row in rows), digest)
    return tuple(StoredRun(*tx.opened(row[:-2], "run")[1:], *row[-2:]) for row in rows)


def _check_digest(tx: Transaction, rows: Iterable[tuple[Any, ...]], digest: int) -> None:
    if digest_of(rows) != digest:
        raise tx.damaged("the runs of one version do not match each other")


def read_run(run: StoredRun, query: QueryName, layout: StoreLayout) -> StoredTable:
    """The rows of the run; one inside the catalog is verified in full."""
    path = layout.catalog if run.file is None else layout.run_file(run.file)

    corrupt = partial(corrupt_run, run, query, path)

    try:
        if run.file is None:
            content = pa.py_buffer(run.content or b"")
        else:
            content = _map(path, run.size)
    except OSError as error:
        pass_out_of_memory(error)
        if error.errno in OPEN_FILES:
            raise from_system(error, path) from error  # the file may be intact
        raise corrupt("cannot be read") from error
    if content is None or content.size != run.size:
        raise corrupt("has the wrong length")
    pages = None
    if run.file is None:
        if zlib.crc32(content) != run.checksum:
            raise corrupt("does not match its checksum")
    else:
        sums = run.sums or b""
        if zlib.crc32(sums) != run.checksum:
            raise corrupt("does not match the checksum of its checksums")
        pages = CheckedPages(content, sums, lambda: corrupt("does not match its checksums"))
        check_heads(content, pages, corrupt)
    try:
        stream = pa.ipc.open_stream(content)
        # A file has one batch, whose head was verified; nothing after it is read.
        batches = [stream.read_next_batch()] if pages is not None else list(stream)
        table = pa.Table.from_batches(batches, stream.schema)
    except (pa.ArrowException, OSError, StopIteration) as error:
        pass_out_of_memory(error)
        raise corrupt("is not an Arrow stream") from error
    if table.num_rows != run.rows:
        raise corrupt("has the wrong number of rows")
    return table if pages is None else PagedTable(table, pages)


def check_heads(
    content: pa.Buffer, pages: CheckedPages, corrupt: Callable[[str], StateCorruptError]
) -> None:
    """Verify what locates the columns of a stream: its schema and the head of its batch."""
    start = 0
    for _ in range(2):
        pages.check_span(start, min(start + _MARK_BYTES, content.size))
        mark = content.slice(start, _MARK_BYTES).to_pybytes()
        end = start + _MARK_BYTES + int.from_bytes(mark[4:], "little")
        if not start + _MARK_BYTES <= end <= content.size:
            raise corrupt("is not an Arrow stream")
        pages.check_span(start, end)
        start = end


def _encode(arrangement: str, sequence: int, table: pa.Table) -> StoredRun:
    sink = pa.BufferOutputStream()
    _stream(table, sink)
    content = sink.getvalue()
    checksum = zlib.crc32(content)
    return StoredRun(
        arrangement, int(sequence), table.num_rows, content.size, checksum, None, content
    )


def _write_file(
    arrangement: str, sequence: int, table: pa.Table, layout: StoreLayout, disk: RealDisk
) -> StoredRun:
    name = f"{uuid.uuid4().hex}{RUN_SUFFIX}"
    path = layout.run_file(name)
    with translate_errors(path):
        make_lasting_folder(layout.state, disk)
        file = disk.create(path)
        sink = _ChecksummedFile(file)
        try:
            _stream(table, pa.PythonFile(sink, mode="w"))
            file.sync()
        except BaseException:
            file.close()
            remove_files([name], layout, disk)
            raise
        file.close()
    sums = sink.sums.table()
    return StoredRun(
        arrangement, int(sequence), table.num_rows, sink.length, zlib.crc32(sums), name, None, sums
    )


def _stream(table: pa.Table, sink: pa.NativeFile) -> None:
    # One chunk per column: a reader that maps the run gets whole arrays without a copy.
    if len(table.to_batches()) > 1:
        table = table.combine_chunks()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


class _ChecksummedFile:
    """The file object to which Arrow writes a stream: counts bytes and checksums pages."""

    closed = False

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self.length = 0
        self.sums = PageSums()

    def write(self, data: pa.Buffer | bytes) -> int:
        view = memoryview(data).cast("B")
        self.sums.add(view)
        self._file.write(view)
        self.length += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """The opener closes the file."""


def _map(path: Path, length: int) -> pa.Buffer | None:
    """The file's bytes, mapped; None if it does not have `length` bytes."""
    descriptor = os.open(path, os.O_RDONLY | CAREFUL)
    try:
        if os.fstat(descriptor).st_size != length:
            return None
    finally:
        os.close(descriptor)
    return pa.memory_map(str(path)).read_buffer(length)


def corrupt_run(run: StoredRun, query: QueryName, path: Path, damage: str) -> StateCorruptError:
    """The error for a damaged run."""
    return StateCorruptError(
        f"State of query `{query}` {damage}: run {run.sequence} of `{run.arrangement}` in `{path}`",
        hint=f"run `impctl capture` for `{query}` again",
    )
