"""Inner join on equal keys.

Identity: d(R join S) = dR join S + (R + dR) join dS; where both sides are distant dR join S + R
join dS + dR join dS, so that neither is asked for rows that came in this step. State: the rows of
both sides by their keys, with their tags; of a distant side a filter of its keys. Cost: the changed
rows and the partners they find, never the other side. A row
whose key holds a NULL has no partner and is not kept, unless that key compares NULL as a value.
Without keys every row is a partner (cross join). A joined row carries the tags of both rows. Where
both sides change and rows leave, pairs that cancel are left out.
Not to be confused with the outer, semi and anti joins, which are put together from this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.data.keys import normalise
from impctl.data.memory import reserve
from impctl.engine.batch import Batch, consolidated, empty_batch, stacked_batches
from impctl.engine.lookups import DistantRows, KeyFilter
from impctl.engine.operator import Operator
from impctl.engine.trace import RowIndex
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.data.vector import Bools, Ints, Vector
    from impctl.types import AttributeId


@dataclass(frozen=True, slots=True)
class Side:
    """One input: what is kept of its rows, its keys, and how many sketched accesses it has.

    The rows of a distant side are not kept but read when they are asked for; where it is `is_held`
    they are at hand while the circuit is filled, where not, pairs come from outside then.
    """

    columns: tuple[tuple[AttributeId, SqlType], ...]
    keys: tuple[AttributeId, ...]
    accesses: int
    is_distant: bool = False
    has_filter: bool = True
    is_held: bool = False
    room: int = 0
    """Bytes that rows may take which are held on to be kept (`keep_at_hand`)."""


class Join(Operator):
    """Rows of `left` and `right` whose keys are equal, place by place.

    `null_safe[i]` says that NULL equals NULL in the i-th key.
    """

    def __init__(self, name: str, left: Side, right: Side, null_safe: Sequence[bool]) -> None:
        self.sides = self.form = (left, right)
        self._plain = tuple(at for at, safe in enumerate(null_safe) if not safe)
        self._indexes = (_rows_of(f"{name}.left", left), _rows_of(f"{name}.right", right))
        self.held_sides = ((f"{name}.left", left.keys), (f"{name}.right", right.keys))
        self._is_filling = False
        self._joined_rows = 0

    @property
    def indexes(self) -> tuple[RowIndex | DistantRows, ...]:
        return self._indexes

    @property
    def reads(self) -> tuple[DistantRows, ...]:
        return tuple(index for index in self._indexes if isinstance(index, DistantRows))

    @property
    def joined_rows(self) -> int:
        return self._joined_rows

    def fill(self, is_filling: bool) -> None:
        # Pairs of sides that are at hand are found here, filling or not.
        are_outside = any(side.is_distant and not side.is_held for side in self.sides)
        self._is_filling = is_filling and are_outside
        for side in self.reads:
            side.fill(is_filling and not are_outside)

    def ended(self, inputs: Sequence[bool]) -> None:
        for has_ended, index in zip(inputs, reversed(self._indexes), strict=True):
            if has_ended and isinstance(index, DistantRows):
                index.let_go()

    def keep_at_hand(self) -> Sequence[str]:
        kept: list[str] = []
        for at, index in enumerate(self._indexes):
            rows = index.at_hand if isinstance(index, DistantRows) else None
            if rows is None:
                continue
            sides, indexes = list(self.sides), list(self._indexes)
            sides[at] = replace(sides[at], is_distant=False, is_held=False, room=0)
            indexes[at] = rows
            self.sides = self.form = (sides[0], sides[1])
            self._indexes = (indexes[0], indexes[1])
            kept.append(rows.name)
        return kept

    def keep_again(self, at: int, rows: Batch) -> None:
        """Keep those of all rows of a side that steps would have kept: not NULL in a plain key."""
        if len(rows):
            keyed = self._keyed(rows, at)
            self._indexes[at].add(keyed.rows, keyed.codes)

    def take_in(self, at: int, rows: Batch, pairs: int) -> None:
        """Keep what changed in a side whose pairs, so many, somebody else has found."""
        self._joined_rows += pairs
        if len(rows):
            self._add([self._keyed(rows, at) if side == at else None for side in (0, 1)], (at,))

    def step(self, *batches: Batch | None) -> Batch:
        """Pairs that came or went."""
        result = [
            None if batch is None or len(batch) == 0 else self._keyed(batch, at)
            for at, batch in enumerate(batches)
        ]
        parts = []
        if self._is_filling:
            self._add(result, (0, 1))
        else:
            self._expect(result)
            if len(self.reads) == len(self.sides):
                parts += [*self._pairs(result, (0, 1)), *self._of_both(result)]
                self._add(result, (0, 1))
            else:
                # The side that is read is asked before what it gets in this step is added.
                for at in (1, 0) if self.sides[0].is_distant else (0, 1):
                    parts += self._pairs(result, (at,))
                    self._add(result, (at,))
        if not parts:
            return empty_batch(sum(side.accesses for side in self.sides))
        pairs = stacked_batches(parts)
        self._joined_rows += len(pairs)
        # Rows that both sides exchange meet in pairs that cancel; a join above would multiply them.
        return consolidated(pairs) if len(parts) > 1 and _takes_away(result) else pairs

    def _expect(self, batches: Sequence[_Keyed | None]) -> None:
        for batch, index in zip(batches, self._indexes, strict=True):
            if batch is not None and isinstance(index, DistantRows):
                index.expect(batch.rows, batch.codes)

    def _add(self, batches: Sequence[_Keyed | None], sides: Sequence[int]) -> None:
        for at in sides:
            batch = batches[at]
            if batch is not None:
                self._indexes[at].add(batch.rows, batch.codes)

    def _pairs(self, batches: Sequence[_Keyed | None], sides: Sequence[int]) -> list[Batch]:
        """Rows of these sides' batches beside their partners of the other side."""
        parts = []
        for at in sides:
            batch = batches[at]
            if batch is not None:
                pairs = self._joined(batch, at, self._indexes[1 - at])
                parts += [pairs] if len(pairs) else []
        return parts

    def _of_both(self, batches: Sequence[_Keyed | None]) -> list[Batch]:
        """Pairs of rows that are both of this step."""
        left, right = batches
        if left is None or right is None:
            return []
        side = self.sides[1]
        index = RowIndex("both", side.columns, side.keys, side.accesses)
        index.add(right.rows, right.codes)
        pairs = self._joined(left, 0, index)
        return [pairs] if len(pairs) else []

    def _keyed(self, batch: Batch, at: int) -> _Keyed:
        """The rows that can have a partner at all, reduced to what is kept."""
        side = self.sides[at]
        columns = {name: batch.columns[name] for name, _ in side.columns}
        known = self.known([columns[key] for key in side.keys])
        rows = Batch(columns, batch.weights, batch.tags)
        rows = rows if known is None else rows.keep(known)
        return _Keyed(rows, self._indexes[at].codes_of(rows))

    def known(self, keys: Sequence[Vector]) -> Bools | None:
        """Which rows of these keys can have a partner at all; None for all of them."""
        result: Bools | None = None
        for place in self._plain:
            valid = keys[place].valid
            if valid is not None:
                result = valid if result is None else result & valid
        return result

    def _joined(self, batch: _Keyed, at: int, other: RowIndex | DistantRows) -> Batch:
        """The batch's rows beside their partners."""
        keys = [normalise(batch.rows.columns[key]) for key in self.sides[at].keys]
        result = other.find(batch.codes, keys)
        mine, theirs = batch.rows.take(result.owners), result.rows
        left, right = (mine, theirs) if at == 0 else (theirs, mine)
        columns = {**left.columns, **right.columns}
        reserve(mine.weights.nbytes)
        return Batch(columns, mine.weights * theirs.weights, (*left.tags, *right.tags))

    @property
    def can_output(self) -> bool:
        return not self.reads

    def output(self) -> Batch:
        """All pairs. Cost: the rows of one side, and the pairs."""
        left, right = self._indexes
        assert isinstance(left, RowIndex)
        rows = left.whole()
        if not len(rows):
            return empty_batch(sum(side.accesses for side in self.sides))
        pairs = self._joined(_Keyed(rows, left.codes_of(rows)), 0, right)
        return consolidated(pairs) if len(pairs) else pairs

    def arrangements(self) -> tuple[RowIndex | KeyFilter, ...]:
        held: list[RowIndex | KeyFilter] = []
        for index in self._indexes:
            held += index.arrangements() if isinstance(index, DistantRows) else [index]
        return tuple(held)


@dataclass(frozen=True, slots=True)
class _Keyed:
    """Rows with the codes of their join keys."""

    rows: Batch
    codes: Ints


def _rows_of(name: str, side: Side) -> RowIndex | DistantRows:
    if not side.is_distant:
        return RowIndex(name, side.columns, side.keys, side.accesses)
    return DistantRows(
        name,
        side.columns,
        side.keys,
        side.accesses,
        has_filter=side.has_filter,
        is_held=side.is_held,
        room=side.room,
    )


def _takes_away(batches: Sequence[_Keyed | None]) -> bool:
    return any(batch is not None and bool((batch.rows.weights < 0).any()) for batch in batches)
