"""Rows of a side of a join, or below a grouping, that are not kept but read when a key asks.

Law: `find` answers as of what was added, as `row_index` does, for every key that may be there: what
is read is as after the step, so the rows of this step that are still to be added (`expect`) are
taken off it. A key that was never added is never asked for, so rows that come in one step with the
first of their key ask nothing. Cost: the reading, once per step that has a key to ask for; of state
only the filter of keys. Rows that are held while the circuit is filled are held on, when nothing
will ask for them, while they take no more than `room`: who fills may keep them after all.
Out of scope: where the rows lie and are read (whoever sets `reader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from impctl.data.keys import group_rows, key_codes, normalise
from impctl.data.schema import SqlType
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.key_filter import KeyFilter
from impctl.engine.row_index import Found, RowIndex
from impctl.expr.nodes import Expr
from impctl.types import AttributeId


class RowReader(Protocol):
    """Reads rows of one side."""

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        """All rows of the side as after the step, with their tags, whose keys are among these.

        Rows of other keys may come too. `keys` are the side's key columns, each row of them once.
        """
        ...

    def whole(self, side: str) -> Iterator[Batch]:
        """All rows of the side as after the step, with their tags; in parts."""
        ...

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """The rows of the side as after the step that meet the one condition and not the other.

        Other rows may come too. Only of a side over one table; in parts.
        """
        ...


_WORTH_KEEPING = 2
"""Times `room` that rows may take which are there when all has come."""


class DistantRows:
    """Rows of `columns` by the key columns `keys`, with tags for so many accesses."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        keys: Sequence[AttributeId],
        accesses: int,
        *,
        has_filter: bool = True,
        is_held: bool = False,
        room: int = 0,
    ) -> None:
        """With `is_held` the rows are at hand while the circuit is filled; `room` is in bytes."""
        self.name = name
        self.columns = tuple(columns)
        self.keys = tuple(keys)
        self.reader: RowReader | None = None
        self._accesses = accesses
        self._is_held = is_held
        self._held: RowIndex | None = None
        self._room = room
        self._bytes = 0
        self._is_asked = False
        self.filled_rows = 0
        """Rows that came while the circuit was filled."""
        self._is_filling = False
        self._coming: list[tuple[Batch, Ints]] = []
        self._filter = KeyFilter(f"{name}.filter") if has_filter else None

    def codes_of(self, batch: Batch) -> Ints:
        """The codes of the batch's keys, as `add` and `find` want them."""
        return key_codes([normalise(batch.columns[key]) for key in self.keys], len(batch))

    def fill(self, is_filling: bool) -> None:
        """Hold the rows that come from now on, where that is asked; or no longer."""
        self._is_filling = is_filling
        self._held = self._index() if is_filling and self._is_held else None
        self._bytes, self._is_asked = 0, is_filling

    def let_go(self) -> None:
        """While the circuit is filled: nothing will ask for what it holds."""
        self._is_asked = False
        self._make_room(0)

    def _make_room(self, coming: int) -> None:
        """Let go what nothing asks for, where it takes too much with so many bytes that come."""
        self._bytes += coming
        if not self._is_asked and self._bytes > self._room:
            self._held = None

    @property
    def at_hand(self) -> RowIndex | None:
        """While the circuit is filled: all its rows, where these are few enough to be kept.

        What had to be held to the end was paid for, and may be larger.
        """
        largest = _WORTH_KEEPING * self._room if self._is_asked else self._room
        return self._held if self._bytes <= largest else None

    def _index(self) -> RowIndex:
        return RowIndex(self.name, self.columns, self.keys, self._accesses)

    def expect(self, batch: Batch, codes: Ints) -> None:
        """This step changes the side so; what is read has that already, and `add` will follow."""
        self._coming.append((batch.negated(), codes))

    def add(self, batch: Batch, codes: Ints) -> None:
        """From now on the keys of these rows may be there; of a deletion they already were."""
        self._coming.clear()
        self.filled_rows += len(batch) if self._is_filling else 0
        if self._held is not None:
            self._make_room(_bytes_of(batch))
        if self._held is not None:
            self._held.add(batch, codes)
        if self._filter is not None:
            self._filter.add(codes[batch.weights > 0])

    def know(self, codes: Ints) -> None:
        """From now on these keys may be there, by their codes."""
        if self._filter is not None:
            self._filter.add(codes)

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Found:
        """All rows with these keys; a row asked for finds none, one or many."""
        if self._held is not None:
            return self._held.find(codes, keys)
        asked = np.arange(len(codes), dtype=np.int64)
        if self._filter is not None:
            asked = np.flatnonzero(self._filter.may_hold(codes))
        if not len(asked):
            return Found(asked, empty_batch(self._accesses))
        assert self.reader is not None, "a session with distant sides is given a reader"
        wanted = [key.take(asked) for key in keys]
        grouping = group_rows(wanted, len(asked))
        rows = self.reader.rows(self.name, [key.take(grouping.first) for key in wanted])
        index = self._index()
        if len(rows):
            # Only what is asked for is worth putting in order.
            given = index.codes_of(rows)
            is_asked = _among(given, np.sort(codes[asked]))
            index.add(rows.keep(is_asked), given[is_asked])
        for part, of_part in self._coming:
            index.add(part, of_part)
        result = index.find(codes[asked], wanted)
        return Found(asked[result.owners], result.rows)

    def whole(self) -> Iterator[Batch]:
        """All rows as after the step; in parts."""
        assert self.reader is not None, "a session with distant sides is given a reader"
        return self.reader.whole(self.name)

    def moved(self, before: Expr, after: Expr) -> Iterator[Batch]:
        """The rows as after the step that meet the one condition and not the other, and perhaps
        more; in parts."""
        assert self.reader is not None, "a session with distant sides is given a reader"
        return self.reader.moved(self.name, before, after)

    def arrangements(self) -> tuple[KeyFilter, ...]:
        """The filter, if there is one."""
        return () if self._filter is None else (self._filter,)


def _among(codes: Ints, ordered: Ints) -> Bools:
    """Which codes are among these."""
    places = np.minimum(ordered.searchsorted(codes), len(ordered) - 1)
    result: Bools = ordered[places] == codes
    return result


def _bytes_of(batch: Batch) -> int:
    """About what the rows take in an index, in which codes, weights and fragments lie beside."""
    beside = 16 + 4 * len(batch.tags)
    return sum(int(one.values.nbytes) for one in batch.columns.values()) + beside * len(batch)
