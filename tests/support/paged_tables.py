"""Tables in the format of state files, and pages that are wrong until they are checked."""

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
    """The checksums of the content, which is added in pieces of `piece` bytes."""
    sums, size = pages.PageSums(), piece or len(content)
    for start in range(0, len(content), size):
        sums.add(memoryview(content)[start : start + size])
    return sums.table()


def table_in(content: pa.Buffer) -> pa.Table:
    """The table in the stream, whose columns are not copied."""
    stream = pa.ipc.open_stream(content)
    return pa.Table.from_batches([stream.read_next_batch()], stream.schema)


_PAGE = 8
_SEARCHED = ("code", "group")
_OTHER = 0x5A


class HiddenPages(pages.CheckedPages):
    """Memory in which a page has its real bytes only after it is checked."""

    def __init__(self, real: bytes) -> None:
        self._real = real
        self.shown = bytearray(byte ^ _OTHER for byte in real)
        self.content = pa.py_buffer(self.shown)
        super().__init__(self.content, sums_of(real), lambda: InvariantError("altered"))

    def show(self, address: int, size: int) -> None:
        """Restore real bytes that may be read unchecked."""
        start = address - self.content.address
        self.shown[start : start + size] = self._real[start : start + size]

    def _check(self, pages_: Ints) -> None:
        for page in pages_[self._is_open[pages_]].tolist():
            part = slice(page * pages.PAGE, (page + 1) * pages.PAGE)
            self.shown[part] = self._real[part]
        super()._check(pages_)


def hidden(table: pa.Table, *, are_codes_shown: bool) -> pages.PagedTable:
    """The table as if mapped from a file, with only the heads of its columns checked."""
    hidden_pages = HiddenPages(stream_of(table))
    check_heads(hidden_pages.content, hidden_pages, InvariantError)
    result = table_in(hidden_pages.content)
    if are_codes_shown:
        for name in set(_SEARCHED) & set(result.column_names):
            (chunk,) = result.column(name).chunks
            hidden_pages.show(chunk.buffers()[1].address, chunk.buffers()[1].size)
    return pages.PagedTable(result, hidden_pages)


@contextmanager
def hiding(*, are_codes_shown: bool) -> Iterator[list[pages.CheckedPages]]:
    """Hide all state that is loaded in this context; yield its pages."""
    loaded: list[pages.CheckedPages] = []

    def table_of(stored: Any) -> tuple[pa.Table, pages.CheckedPages | None]:
        if isinstance(stored, pages.PagedTable) or not stored.num_rows:
            return pages.table_of(stored)
        paged = hidden(stored, are_codes_shown=are_codes_shown)
        loaded.append(paged.pages)
        return paged.table, paged.pages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE", _PAGE)
        for module in (trace, extremes, lookups):
            patch.setattr(module, "table_of", table_of)
        yield loaded


def open_share(loaded: list[pages.CheckedPages]) -> float:
    """The share of these in which something was never checked."""
    return float(np.mean([one.is_open for one in loaded]))
