"""Rows of a fixpoint that come and go a few at a time, followed one by one.

Law: what is left is what `joined_moves` would leave: slots, counts, and derivations, which are kept
for rows that go and told of rows that come. A front of few rows takes less this way than the
passes of NumPy over it take; a long chain of such fronts takes microseconds a row. Only of whole
numbers. Loops are over the rows of a front, fewer than `most`, and what they derive, fewer than
`_PAIRS` times that: where there are more of either, nothing is done with that front.
Out of scope: larger fronts, and what else a step does (`engine.fixpoint.joined_moves`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from impctl.data.vector import Ints
from impctl.engine.fixpoint.moves import Admit, Dismiss
from impctl.engine.fixpoint.partners import Derived, Partners
from impctl.engine.fixpoint.plain_step import PlainStep
from impctl.engine.fixpoint.row_by_row import RowByRow
from impctl.engine.fixpoint.touched_rows import TouchedRows
from impctl.engine.fixpoint.views import IndexView, Numbers, RowsView
from impctl.values import dataclass

THIN = 8
"""Rows of a front up to which it is followed row by row."""
_PAIRS = 8
"""Derivations per row of the largest such front, up to which it is."""

_Span = tuple[int, IndexView, int, int]
"""A run's number, the run, and where rows lie in it."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Changed rows of the table: their keys, the columns that heads take, and weights."""

    keys: list[int]
    columns: list[list[int]]
    weights: list[int]


class ThinFronts(RowByRow):
    """`held` are the rows as they were, `table` those of the table, seen once they are wanted;
    fronts have at most so many rows."""

    def __init__(
        self,
        plain: PlainStep,
        touched: TouchedRows,
        partners: Partners,
        held: Sequence[RowsView],
        most: int,
    ) -> None:
        super().__init__(touched, partners, held)
        self._table: list[tuple[int, IndexView, Numbers, int]] | None = None
        self._most = most
        self._key = plain.key_places[0]
        names = [name for _, name in plain.heads if name is not None]
        self._heads = [
            (place, -1 if name is None else names.index(name)) for place, name in plain.heads
        ]
        self._column = self._heads[0][1] if self._is_single else -1
        """The table's column that is all of a row, if one is."""

    @property
    def has_table(self) -> bool:
        """Whether the table's rows are seen."""
        return self._table is not None

    def see(self, table: Sequence[IndexView]) -> None:
        """Fronts look these up."""
        self._table = [(at, view, view.codes, len(view.codes)) for at, view in enumerate(table)]

    def changed(self, rows: ChangedRows, own: Sequence[IndexView]) -> Derived | None:
        """Count what changed rows of the table derive from those of the fixpoint as it was.

        `own` are the fixpoint's rows by their keys: the columns that heads take from them, then
        the rank; not asked where a row is its key. The owners are the changed rows. None where
        they are too many.
        """
        if self._column >= 0:
            return self._changed_by_rows(rows)
        spans = [[(view, *view.span(key)) for view in own] for key in rows.keys]
        if sum(end - start for places in spans for _, start, end in places) > _PAIRS * self._most:
            return None
        self._begin()
        heads, weights, owners, _ = self._found
        for owner, (weight, places) in enumerate(zip(rows.weights, spans, strict=True)):
            theirs = [column[owner] for column in rows.columns]
            for view, start, end in places:
                for place in range(start, end):
                    *mine, body = (column[place] for column in view.columns)
                    head = self._head(mine, theirs)
                    change = weight * view.weights[place]
                    self._every[head] += change
                    if body < self._rank[head]:
                        self._low[head] += change
                    heads.append(head)
                    weights.append(change)
                    owners.append(owner)
        result = self._end(heads)
        return Derived(result.source, result.heads, result.weights, result.source, result.place)

    def _changed_by_rows(self, rows: ChangedRows) -> Derived:
        """The same where a row is its key, and what it derives is of the table."""
        self._begin()
        heads, weights, owners, _ = self._found
        for owner, key in enumerate(rows.keys):
            slot = self._known_slot(key)
            body = self._rank[slot]
            if not body:
                continue
            head = self._known_slot(rows.columns[self._column][owner])
            self._every[head] += rows.weights[owner]
            if body < self._rank[head]:
                self._low[head] += rows.weights[owner]
            heads.append(head)
            weights.append(rows.weights[owner])
            owners.append(owner)
        result = self._end(heads)
        return Derived(result.source, result.heads, result.weights, result.source, result.place)

    def _head(self, mine: list[int], theirs: list[int]) -> int:
        """The slot of a row of these values, taken in turn."""
        ours = iter(mine)
        values = tuple(next(ours) if at < 0 else theirs[at] for _, at in self._heads)
        return self._known_slot(values[0] if self._is_single else values)

    def out(self, slots: Ints, may_go: Dismiss) -> Ints | None:
        """As `Moves.out`; None where the first front is too large."""
        front: list[int] = slots.tolist()
        self._begin()
        is_begun = False
        while front and len(front) <= self._most:
            if len(front) == 1 and self._column >= 0:
                begun = front[0]
                front = self._followed(begun, may_go)
                is_begun = is_begun or front != [begun]
                if not front:
                    break
            spans = self._spans(front)
            if spans is None or not may_go(len(front)):
                break
            is_begun = True
            front = self._went(front, spans)
        self._end(None)
        return np.array(front, dtype=np.int64) if is_begun else None

    def come(self, slots: Ints, admit: Admit) -> tuple[Ints, Derived] | None:
        """As `Moves.come`, and the derivations to be told; None where the first front is too
        large."""
        front: list[int] = slots.tolist()
        self._begin()
        is_begun = False
        while front and len(front) <= self._most:
            spans = self._spans(front)
            if spans is None:
                break
            is_begun = True
            front = self._came(front, spans, admit(len(front)))
        result = self._end(self._hit)
        return (np.array(front, dtype=np.int64), result) if is_begun else None

    def _spans(self, front: list[int]) -> list[list[_Span] | None] | None:
        """Where in the table the partners of these rows lie, None for those that are known; None
        where they are too many."""
        keys, first, last, table = (
            self._columns[self._key],
            self._first,
            self._last,
            self._table or [],
        )
        spans: list[list[_Span] | None] = []
        pairs = 0
        for slot in front:
            if first[slot] >= 0:
                pairs += last[slot] - first[slot]
                spans.append(None)
                continue
            result = []
            key = keys[slot]
            for number, view, codes, length in table:
                start = bisect_left(codes, key)
                if start < length and codes[start] == key:
                    end = start + 1
                    if end < length and codes[end] == key:
                        end = bisect_right(codes, key, end)
                    result.append((number, view, start, end))
                    pairs += end - start
            spans.append(result)
        return None if pairs > _PAIRS * self._most else spans

    def _went(self, front: list[int], spans: list[list[_Span] | None]) -> list[int]:
        """A front goes; the rows without ground then."""
        rank, low = self._rank, self._low
        ranks = [rank[slot] for slot in front]
        for slot in front:
            rank[slot] = low[slot] = 0
        heads, weights, _, _ = self._found
        suspects: list[int] = []
        for slot, body, result in zip(front, ranks, spans, strict=True):
            start = len(heads)
            for span in result or ():
                self._take(slot, span)
            rank, every, low = self._rank, self._every, self._low
            for at in range(start, len(heads)):
                head, weight = heads[at], weights[at]
                every[head] -= weight
                if body < rank[head]:
                    low[head] -= weight
                    suspects.append(head)
            before = self._partners.count
            self._first[slot], self._last[slot] = before + start, before + len(heads)
        some = suspects if len(suspects) < 2 else dict.fromkeys(suspects)
        return [head for head in some if not low[head] and rank[head]]

    def _followed(self, slot: int, may_go: Dismiss) -> list[int]:
        """As `_went` of a row that has one partner, and of what has no ground then while that is
        one such row; the front that is left. Of chains this is nearly all."""
        table, known, at, before = (
            self._table or [],
            self._known,
            self._column,
            self._partners.count,
        )
        heads, weights, source, places = self._found
        rank, every, low = self._rank, self._every, self._low
        while True:
            key, spot = self._columns[0][slot], None
            for number, view, codes, length in table:
                place = bisect_left(codes, key)
                if place < length and codes[place] == key:
                    if spot is not None or (place + 1 < length and codes[place + 1] == key):
                        return [slot]
                    spot = number, view, place
            if spot is None or not may_go(1):
                return [slot]
            number, view, place = spot
            key = view.columns[at][place]
            head = known.get(key)
            if head is None:
                head = self._slot_of(key)
                rank, every, low = self._rank, self._every, self._low
            body, weight = rank[slot], view.weights[place]
            rank[slot] = low[slot] = 0
            self._first[slot] = before + len(heads)
            self._last[slot] = before + len(heads) + 1
            heads.append(head)
            weights.append(weight)
            source.append(number)
            places.append(place)
            every[head] -= weight
            if body >= rank[head]:
                return []
            low[head] -= weight
            if low[head]:
                return []
            slot = head

    def _came(self, front: list[int], spans: list[list[_Span] | None], stage: int) -> list[int]:
        """A front comes; the rows that are derived then and are not there."""
        rank, every, low = self._rank, self._every, self._low
        for slot in front:
            rank[slot], low[slot] = stage, every[slot]
        heads, weights, _, _ = self._found
        known, of_known = self._partner_heads, self._partner_weights
        hit: list[int] = []
        for slot, result in zip(front, spans, strict=True):
            if result is None:
                for at in range(self._first[slot], self._last[slot]):
                    head = known[at]
                    every[head] += of_known[at]
                    hit.append(head)
                continue
            start = len(heads)
            for span in result:
                self._take(slot, span)
            every = self._every
            for at in range(start, len(heads)):
                every[heads[at]] += weights[at]
            hit += heads[start:]
        rank = self._rank
        self._hit += hit
        some = hit if len(hit) < 2 else dict.fromkeys(hit)
        return [head for head in some if not rank[head] and every[head] > 0]

    def _take(self, slot: int, span: _Span) -> None:
        """Note what a row derives by these rows of the table."""
        number, view, start, end = span
        heads, weights, source, place = self._found
        known = self._known
        if self._column >= 0 and end - start == 1:
            key = view.columns[self._column][start]
            head = known.get(key)
            heads.append(self._slot_of(key) if head is None else head)
            weights.append(view.weights[start])
            source.append(number)
            place.append(start)
            return
        for key in self._keys(slot, span):
            head = known.get(key)
            heads.append(self._slot_of(key) if head is None else head)
        weights += view.weights[start:end].tolist()
        source += repeat(number, end - start)
        place += range(start, end)

    def _keys(self, slot: int, span: _Span) -> Any:
        """The rows that a row derives by these of the table."""
        _, view, start, end = span
        columns = [
            repeat(self._columns[place][slot], end - start)
            if at < 0
            else view.columns[at][start:end].tolist()
            for place, at in self._heads
        ]
        return columns[0] if self._is_single else zip(*columns, strict=True)
