"""Memory whose pages have checksums, each verified before its first byte is used.

Law: no byte is used before its page was verified, once per mapping. A search may pass over
unverified pages: its end is verified, and that the neighbors there enclose the searched value,
which determines the position. An altered page is an error, never used.
Cost: the pages that are used, 4,096 bytes each; nothing once all are verified.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct

if TYPE_CHECKING:
    from impctl.data.vector import Ints

PAGE = 4096


class PageSums:
    """The CRC-32 of each page of a byte stream; the last page may be shorter."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._sum = self._filled = 0

    def add(self, data: memoryview) -> None:
        start = self._more(data) if self._filled else 0
        end = len(data) - (len(data) - start) % PAGE
        self._sums += [zlib.crc32(data[page : page + PAGE]) for page in range(start, end, PAGE)]
        self._more(data[max(start, end) :])

    def _more(self, data: memoryview) -> int:
        """Add what fits the current page; how many bytes."""
        size = min(PAGE - self._filled, len(data))
        self._sum = zlib.crc32(data[:size], self._sum)
        self._filled += size
        if self._filled == PAGE:
            self._close()
        return size

    def table(self) -> bytes:
        """The sums as they are stored; nothing may be added afterwards."""
        if self._filled:
            self._close()
        return np.array(self._sums, dtype="<u4").tobytes()

    def _close(self) -> None:
        self._sums.append(self._sum)
        self._sum = self._filled = 0


class CheckedPages:
    """Bytes in memory whose pages are verified on first use. Arrays outside this memory need no
    verification."""

    def __init__(self, content: pa.Buffer, sums: bytes, damaged: Callable[[], Exception]) -> None:
        """`sums` come from `PageSums.table`; `damaged` makes the error that is raised."""
        self._start, self._size = content.address, content.size
        self._view = memoryview(content)
        self._sums = np.frombuffer(sums, dtype="<u4")
        self._is_open = np.ones(len(self._sums), dtype=np.bool_)
        self._left = len(self._sums)
        self._damaged = damaged
        if len(self._sums) != -(-content.size // PAGE):
            raise damaged()

    @property
    def is_open(self) -> bool:
        """Whether some pages are not verified yet."""
        return self._left > 0

    def check_span(self, first: int, last: int) -> None:
        """Verify the bytes from `first` up to `last`, counted from the start."""
        if self._left and first < last:
            self._check(np.arange(first // PAGE, (last - 1) // PAGE + 1))

    def check_all(self) -> None:
        if self._left:
            self._check(self._is_open.nonzero()[0])

    def check_whole(self, array: Any) -> None:
        """Verify all memory of an Arrow or NumPy array."""
        if isinstance(array, np.ndarray):
            self._check_memory(_address(array), array.nbytes)
            return
        for buffer in array.buffers():
            if buffer is not None:
                self._check_memory(buffer.address, buffer.size)

    def check_rows(self, array: Any, rows: Ints) -> None:
        """Verify these rows of an Arrow or NumPy array."""
        if not self._left or not len(rows):
            return
        if isinstance(array, np.ndarray):
            self._check_items(_address(array), array.itemsize, rows)
            return
        width = _width_of(array.type)
        if width is None:
            self.check_whole(array)
            return
        valid, *buffers = array.buffers()
        rows = rows + array.offset
        if valid is not None:
            self._check_items(valid.address, 1, rows >> 3)
        self._check_items(buffers[0].address, width, rows)
        if len(buffers) > 1 and buffers[1] is not None:
            # Arrow reads the first and the last offset to size the result.
            all_ends = np.array([array.offset, array.offset + len(array)])
            self._check_items(buffers[0].address, width, np.concatenate([rows + 1, all_ends]))
            ends = np.frombuffer(buffers[0], dtype=f"i{width}")
            self._check_texts(buffers[1].address, ends[rows], ends[rows + 1])

    def _check_texts(self, address: int, first: Any, last: Any) -> None:
        offset = self._offset(address)
        if offset is None:
            return
        first = first.astype(np.int64) + offset
        last = last.astype(np.int64) + (offset - 1)
        is_text = first <= last
        low, high = first[is_text] // PAGE, last[is_text] // PAGE
        self._check(np.concatenate([low, high]))
        for index in (high - low > 1).nonzero()[0]:
            self._check(np.arange(low[index], high[index]))

    def _check_memory(self, address: int, size: int) -> None:
        offset = self._offset(address)
        if offset is not None:
            self.check_span(offset, offset + size)

    def _check_items(self, address: int, width: int, rows: Ints) -> None:
        offset = self._offset(address)
        if offset is None:
            return
        positions = rows * width + offset
        self._check(positions // PAGE)
        if PAGE % width or offset % width:
            # One item may lie in two pages.
            self._check((positions + (width - 1)) // PAGE)

    def _offset(self, address: int) -> int | None:
        """The offset from the start; None for memory elsewhere."""
        result = address - self._start
        return result if 0 <= result < self._size else None

    def _check(self, pages: Ints) -> None:
        from impctl.data.keys import distinct_values

        todo = pages[self._is_open[pages]]
        if not len(todo):
            return
        view, sums = self._view, self._sums
        for page in distinct_values(todo).tolist():
            if zlib.crc32(view[page * PAGE : (page + 1) * PAGE]) != sums[page]:
                raise self._damaged()
            self._is_open[page] = False
        # Counted again: two threads may have verified the same page.
        self._left = int(np.count_nonzero(self._is_open))


class PagedTable(Struct, frozen=True):
    table: pa.Table
    pages: CheckedPages


StoredTable: TypeAlias = pa.Table | PagedTable
"""A stored run as it is read: verified, or in pages to be verified."""


def table_of(stored: StoredTable) -> tuple[pa.Table, CheckedPages | None]:
    """The table, and its pages where some are not verified."""
    if isinstance(stored, PagedTable):
        return stored.table, stored.pages if stored.pages.is_open else None
    return stored, None


def whole_table(stored: StoredTable) -> pa.Table:
    table, pages = table_of(stored)
    if pages is not None:
        pages.check_all()
    return table


class InPages(Protocol):
    @property
    def pages(self) -> CheckedPages | None: ...


def check_each(runs: Iterable[InPages]) -> None:
    for run in runs:
        if run.pages is not None:
            run.pages.check_all()


def whole(pages: CheckedPages | None, values: Ints) -> Ints:
    """The values, after all of their memory was verified."""
    if pages is not None:
        pages.check_whole(values)
    return values


def search(
    pages: CheckedPages | None,
    codes: Ints,
    requested: Ints,
    side: Literal["left", "right"] = "left",
) -> Ints:
    """`codes.searchsorted(requested, side)`, after verifying the codes that it depends on."""
    return checked_places(pages, codes, requested, codes.searchsorted(requested, side), side)


def checked_places(
    pages: CheckedPages | None,
    codes: Ints,
    requested: Ints,
    positions: Ints,
    side: Literal["left", "right"] = "left",
) -> Ints:
    """Check the result of `codes.searchsorted(wanted, side)` after verifying what it depends on.
    Detects pages altered where the search only passed, so that it ended elsewhere."""
    if pages is None or not pages.is_open or not len(requested):
        return positions
    has_before, has_after = positions > 0, positions < len(codes)
    before, after = positions[has_before] - 1, positions[has_after]
    pages.check_rows(codes, before)
    pages.check_rows(codes, after)
    below = np.less if side == "left" else np.less_equal
    above = np.less_equal if side == "left" else np.less
    is_right = bool(below(codes[before], requested[has_before]).all())
    if not is_right or not bool(above(requested[has_after], codes[after]).all()):
        # A page that the search only passed was altered.
        pages.check_all()
        return codes.searchsorted(requested, side)
    return positions


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _width_of(kind: pa.DataType) -> int | None:
    """Bytes of a fixed-width value, or of a text's offsets; None for other types."""
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return 8
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    if pa.types.is_boolean(kind) or pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        return None
    try:
        width: int = kind.bit_width
    except ValueError:
        return None
    return width // 8 if width % 8 == 0 else None


def rows_of_code(stored: StoredTable, column: str, code: int) -> StoredTable:
    """The rows of a stored table with this code; they are contiguous."""
    table, pages = table_of(stored)
    codes, requested = table.column(column).to_numpy(), np.array([code])
    first, last = (int(search(pages, codes, requested, side)[0]) for side in ("left", "right"))
    some = table.slice(first, last - first)
    return some if pages is None else PagedTable(some, pages)
