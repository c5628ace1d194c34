"""The rows that a step touches (`touched_rows`), seen and changed one by one.

Law: a session begins, finds slots, changes what is kept of them where that lies, notes derivations,
and ends: then others find all of it as if they had done it. Only of rows of whole numbers without
NULL. Cost: a search per run for a row that is not touched yet, and microseconds; a session, some
dozen views.
Out of scope: what is changed, and why (`engine.fixpoint.thin_fronts`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from impctl.data.keys import ascending, code_of
from impctl.engine.disagreement import never_held
from impctl.engine.fixpoint.partners import Derived, Partners
from impctl.engine.fixpoint.ranked_rows import NAMES
from impctl.engine.fixpoint.touched_rows import (
    ALL,
    CODE,
    FIRST,
    LAST,
    LOW,
    RANK,
    WAS,
    TouchedRows,
)
from impctl.engine.fixpoint.views import Numbers, RowsView, view_of


class RowByRow:
    """`held` are the rows as they were before the step."""

    def __init__(self, touched: TouchedRows, partners: Partners, held: Sequence[RowsView]) -> None:
        self._touched = touched
        self._partners = partners
        self._held = [(view, view.codes, len(view.codes)) for view in held]
        self._is_single = len(touched.columns) == 1
        self._known: dict[Any, int] = {}
        """The slots of rows: a number for rows of one column, else a tuple."""
        self._fresh: list[int] = []
        """Slots that are not found otherwise yet."""
        self._found: tuple[list[int], ...] = ([], [], [], [])
        """Heads, weights, and where the tags lie, of derivations of this session."""
        self._hit: list[int] = []
        """Slots that derivations were counted in by this session, where these are not kept."""
        self.pairs = 0

    def _known_slot(self, key: Any) -> int:
        """The slot of a row."""
        slot = self._known.get(key)
        return self._slot_of(key) if slot is None else slot

    def _slot_of(self, key: Any) -> int:
        """The slot of a row that is not known yet."""
        values = (key,) if self._is_single else key
        code = key if self._is_single else code_of(key)
        for codes, slots in self._parts:
            place = bisect_left(codes, code)
            while place < len(codes) and codes[place] == code:
                slot: int = slots[place]
                if self._is_single or self._is_at(slot, values):
                    self._known[key] = slot
                    return slot
                place += 1
        slot = self._known[key] = self._touched.count
        if slot == self._room:
            self._touched.make_room(slot + 1)
            self._view()
        self._touched.count += 1
        self._look_up(slot, code, values)
        self._code[slot] = code
        for held, one in zip(self._columns, values, strict=True):
            held[slot] = one
        self._fresh.append(slot)
        return slot

    def _is_at(self, slot: int, values: tuple[int, ...]) -> bool:
        return all(held[slot] == one for held, one in zip(self._columns, values, strict=True))

    def _look_up(self, slot: int, code: int, values: tuple[int, ...]) -> None:
        """Fill in what is kept of a row."""
        for view, codes, length in self._held:
            place = bisect_left(codes, code)
            if place == length or codes[place] != code:
                continue
            if not self._is_single:
                place = view.place(place, values)
                if place < 0:
                    continue
            for now, was, column in zip(self._now, self._was, view.values, strict=True):
                if column is not None:
                    now[slot] = was[slot] = column[place]
            return

    def _begin(self) -> None:
        """Look at what is there, which others may have changed."""
        self._view()
        self._parts = [(view_of(codes), view_of(at)) for codes, at in self._touched.parts]
        self._partner_heads = view_of(self._partners.heads)
        self._partner_weights = view_of(self._partners.weights)
        self._hit = []

    def _view(self) -> None:
        """See `values` and columns where they lie now."""
        touched = self._touched
        rows = [view_of(row) for row in touched.values]
        self._room = touched.values.shape[1]
        for column in touched.columns:
            column.make_room(self._room)
        self._columns: list[Numbers] = [view_of(column.numbers) for column in touched.columns]
        self._rank, self._every, self._low = rows[RANK], rows[ALL], rows[LOW]
        self._now, self._was = rows[: len(NAMES)], rows[WAS : WAS + len(NAMES)]
        self._first, self._last, self._code = rows[FIRST], rows[LAST], rows[CODE]

    def _end(self, hit: list[int] | None) -> Derived:
        """Leave what was found to others; these slots were counted in. None: what was found stands
        ready, and its heads are they."""
        touched = self._touched
        if self._fresh:
            slots = np.array(self._fresh, dtype=np.int64)
            if len(slots) > 1:
                slots = slots[ascending(touched.values[CODE, slots])]
            touched.add_part(touched.values[CODE, slots], slots)
        heads, weights, source, place = (np.array(p, dtype=np.int64) for p in self._found)
        counted = heads if hit is None else np.array(hit, dtype=np.int64)
        if len(counted) and touched.values[ALL : LOW + 1, counted].min() < 0:
            raise never_held("ways to derive rows")
        self.pairs += len(heads)
        result = Derived(heads, heads, weights, source, place)
        if hit is None:
            self._partners.add(result, None)
        self._fresh, self._found = [], ([], [], [], [])
        return result
