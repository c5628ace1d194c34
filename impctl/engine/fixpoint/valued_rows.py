"""The keys that one step touches and their values, where a fixpoint keeps one value of each.

Law: a key has one slot, from 0 on, for as long as the step lasts, and there its value, rank and low
as they are and as they were; all in the order of values, where the least is best, `NONE` for a key
that is not there. Nothing that is held changes meanwhile: who gives up leaves no trace. Only of
whole numbers that are not NULL and far from overflowing: else `NotThisWayError`. Cost: a look-up of
each key, and another where its rank is asked for.
Out of scope: which values there are (`engine.fixpoint.settling`), keeping them (`valued_changes`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.keys import key_codes
from impctl.data.sorted_rows import distinct_values
from impctl.data.vector import INT64_MAX, Ints, Vector
from impctl.engine.fixpoint.best_rows import HAS, LOW, RANK, BestRows
from impctl.engine.fixpoint.valued_step import ValuedStep

NONE = INT64_MAX
"""The value of a key that has none."""
MOST = 1 << 60
"""Values and what is added to them lie within this: sums of both are exact."""
BEST, RANKED, COUNTED = range(3)
WAS = 3
"""Where the same begins as it was: value, rank, low."""
KEY, KNOWN, FIRST, LAST = range(6, 10)
"""The key; whether rank and low are looked up; where links begin and end, -1 before."""
_ROOM = 16


class NotThisWayError(Exception):
    """The step is not for numbers alone: whoever asked goes on in another way."""


class ValuedRows:
    """The keys of one step; `values` of shape (10, room) has what is named above by slot."""

    def __init__(self, held: BestRows, step: ValuedStep) -> None:
        self.held, self.step = held, step
        self.count = 0
        self.values: Ints = _fresh(_ROOM)
        self._codes, self._slots = _NOTHING, _NOTHING
        """Keys, ascending, and their slots."""
        self._is_empty = not held.best.runs

    def slots_of(self, keys: Ints) -> Ints:
        """The slots of keys in any order, some perhaps often; shape (n,)."""
        places = self._codes.searchsorted(keys)
        if len(self._codes):
            slots = self._slots.take(places, mode="clip")
            is_new = self._codes.take(places, mode="clip") != keys
            if not is_new.any():
                return slots
        else:
            slots, is_new = places, np.ones(len(keys), dtype=np.bool_)
        asked = keys[is_new]
        if len(asked):
            new = distinct_values(asked)
            slots[is_new] = self._taken_up(new) + new.searchsorted(asked)
        return slots

    def _taken_up(self, keys: Ints) -> int:
        """Slots for keys that have none, ascending; the first one."""
        start, end = self.count, self.count + len(keys)
        room = self.values.shape[1]
        if end > room:
            grown = _fresh(2 * end)
            grown[:, :room] = self.values
            self.values = grown
        self.count = end
        self.values[KEY, start:end] = keys
        if not self._is_empty:
            self._look_up(keys, self.values[:, start:end])
        slots = np.arange(start, end, dtype=np.int64)
        if start:
            codes = np.concatenate([self._codes, keys])
            # Two sorted parts: NumPy merges them.
            order = np.argsort(codes, kind="stable")
            self._codes, self._slots = codes[order], np.concatenate([self._slots, slots])[order]
        else:
            self._codes, self._slots = keys, slots
        return start

    def _look_up(self, keys: Ints, values: Ints) -> None:
        held = self.held
        located = held.best.find(keys, [self._keys(keys)])
        if not located.parts:
            return
        best = held.best.gather(located, held.best_names[0])
        is_there = held.best.gather(located, HAS) > 0
        _check_values(best[is_there])
        values[BEST] = values[WAS + BEST] = np.where(is_there, best, NONE)
        values[KNOWN] = ~is_there

    def know_ranks(self, slots: Ints) -> None:
        """Look up ranks and lows of these keys, some perhaps often, as they were."""
        values = self.values
        slots = slots[values[KNOWN, slots] == 0]
        if not len(slots):
            return
        slots = distinct_values(slots)
        values[KNOWN, slots] = 1
        held = self.held
        codes, rows = self.rows(slots, values[WAS + BEST, slots])
        located = held.inside.find(codes, rows)
        for at, name in ((RANKED, RANK), (COUNTED, LOW)):
            values[at, slots] = values[WAS + at, slots] = held.inside.gather(located, name)

    def rows(self, slots: Ints, values: Ints) -> tuple[Ints, list[Vector]]:
        """Rows of these keys with such values: their codes and columns."""
        columns = self.columns(self.values[KEY, slots], values)
        return key_codes(columns, len(slots)), columns

    def columns(self, keys: Ints, values: Ints) -> list[Vector]:
        """Columns of rows of these keys and values."""
        held, step = self.held, self.step
        both = {step.key: keys, step.value: ~values if step.is_greatest else values}
        pairs = zip(held.names, held.kinds, strict=True)
        return [Vector(kind, both[name]) for name, kind in pairs]

    def _keys(self, keys: Ints) -> Vector:
        held = self.held
        return Vector(held.kinds[held.names.index(self.step.key)], keys)

    def key_columns(self, keys: Ints) -> list[Vector]:
        """The column that tells groups."""
        return [self._keys(keys)]

    def ordered(self, column: Vector) -> Ints:
        """Values of the column that decides, in the order where the least is best."""
        found = numbers(column)
        _check_values(found)
        return ~found if self.step.is_greatest else found


def numbers(column: Vector) -> Ints:
    """The whole numbers of a column without NULL."""
    if column.valid is not None and not bool(column.valid.all()):
        raise NotThisWayError
    found: Ints = column.values.astype(np.int64, copy=False)
    return found


def _check_values(values: Ints) -> None:
    if len(values) and (values.max() >= MOST or values.min() <= -MOST):
        raise NotThisWayError


def _fresh(room: int) -> Ints:
    found = np.zeros((LAST + 1, room), dtype=np.int64)
    found[BEST] = found[WAS + BEST] = NONE
    found[KNOWN] = 1
    found[FIRST] = -1
    return found


_NOTHING = np.zeros(0, dtype=np.int64)
