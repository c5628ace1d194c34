"""Rows that are read while those before them are worked on, and cut for what they are joined to.

Law: the same items in the same order; one is made ahead, no more, so memory is that of two.
Out of scope: what is read (whoever fills a circuit), how (`tables.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.compile import Compiled

_FIRST_SLICE = 1_000
_LEAST_SLICE, _GROWTH = 100, 8
_JOINED_AT_ONCE = 8_000_000
"""Joined rows of a slice: some hundreds of MB, and many enough for NumPy."""
_ROOM = 1_600
"""Bytes of the limit for each joined row of a slice: it passes several operators, each of which
takes some copies, and all of that is to be a part of the limit."""

T = TypeVar("T")


def one_ahead(items: Iterator[T], reader: Executor) -> Iterator[T]:
    """The items, the next one being made by `reader` while one is worked on."""
    # The reader keeps to the same limit of memory.
    context = copy_context()

    def ahead() -> T | None:
        return next(items, None)

    following = reader.submit(context.run, ahead)
    while (item := following.result()) is not None:
        following = reader.submit(context.run, ahead)
        yield item


class Slices:
    """Rows of tables in turn, cut so that those of no slice are joined to more rows than are held
    with ease. How many that are is learnt from the slice before.

    `check` is called after each slice; `limit`: bytes that the run may take.
    """

    def __init__(self, compiled: Compiled, limit: int | None, check: Callable[[], None]) -> None:
        self._circuit, self._check = compiled.circuit, check
        self._most = _JOINED_AT_ONCE
        if limit is not None:
            self._most = min(self._most, limit // _ROOM)
        self._size = _FIRST_SLICE if compiled.writes_joins else None

    def of(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The rows; each slice has to be worked on before the next one is asked for."""
        at = 0
        while at < len(rows):
            # Of rows without a column a slice is as long as it is asked to be, rows or not.
            part = rows.slice(at, min(self._size or len(rows), len(rows) - at))
            before = self._circuit.joined_rows
            yield part
            self._check()
            joined = self._circuit.joined_rows - before
            at += len(part)
            if self._size is not None:
                size = self._most * len(part) // max(joined, len(part))
                # What was joined so far says little of far longer slices: sides fill meanwhile.
                self._size = max(_LEAST_SLICE, min(size, _GROWTH * len(part)))
