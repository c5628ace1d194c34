"""The keys that one step touches and their values, where a fixpoint keeps one value of each.

Law: a key has one slot, from 0 on, and there its value, rank and low as they are and as they were
before the step; all in the order of values, where the least is best, `NONE` for a key that is not
there. Nothing that is held changes meanwhile: who gives up leaves no trace but here. Only of
whole numbers that are not NULL and far from overflowing: else `NotThisWayError`. What was found out
may serve the next step, for as long as nobody else changes what is held: whoever has these rows
sees to that. Memory: 116 bytes a key.
Cost: a look-up of each key, and another where its rank is asked for.
Out of scope: which values there are (`engine.fixpoint.settling`), keeping them (`valued_changes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from impctl.data.keys import distinct_values, key_codes
from impctl.data.pages import search
from impctl.data.vector import INT64_MAX, Ints, Vector
from impctl.engine.fixpoint.best_rows import HAS, LOW, RANK, BestRows
from impctl.engine.fixpoint.valued_step import ValuedStep
from impctl.engine.fixpoint.views import IndexView, Numbers, Views, view_of
from impctl.engine.row_index import IndexRun

NONE = INT64_MAX
"""The value of a key that has none."""
MOST = 1 << 60
"""Values and what is added to them lie within this: sums of both are exact."""
BEST, RANKED, COUNTED = range(3)
WAS = 3
"""Where the same begins as it was: value, rank, low."""
KEY, KNOWN, FIRST, LAST, _START, _END = range(6, 12)
"""The key; whether rank and low are looked up; where links begin and end, -1 before; where the
table's rows lie in its largest run, -1 before."""
MOST_AT_HAND = 1 << 20
"""Keys up to which all that were met are held on to between steps: some 120 MB."""
_MOST_WAITING = 64
"""Steps whose changes wait at most."""
_MANY_ROWS = 1 << 16
"""Rows of a run from which on it is remembered where those of a key lie."""
_ROOM = 16
_DENSE = 4
"""Numbers there are per key up to which keys lie close together."""
_FEW = 8
"""Of so many keys one may be looked for by itself before all are sorted together."""


class NotThisWayError(Exception):
    """The step is not for numbers alone: whoever asked goes on in another way."""


class ValuedRows:
    """The keys of one step; `values` of shape (12, room) has what is named above by slot."""

    def __init__(self, held: BestRows, step: ValuedStep) -> None:
        self.held, self.step = held, step
        self.count = 0
        self.values: Ints = _fresh(_ROOM)
        self._many, self._few = (_NOTHING, _NOTHING), (_NOTHING, _NOTHING)
        """Keys, ascending, and their slots: most of them, and those that came since."""
        self._direct: npt.NDArray[np.int32] | None = None
        """Where keys lie close together: by key less the `_least`, the slot, -1 for none."""
        self._places: Numbers | None = None
        self._least = 0
        self._derived, self.table_views = Views(), Views()
        self._run: IndexRun | None = None
        """The run of the table that it is known of where rows lie in it."""
        self._waiting = 0
        """Steps whose changes may wait to be sorted in."""

    # Between steps.

    def end(self, touched: Ints, linked: Ints) -> bool:
        """The step is over, in which these were touched, and links looked for; whether the next one
        may begin from here: of many keys not all are held on to."""
        values = self.values
        values[WAS : 2 * WAS, touched] = values[:WAS, touched]
        values[FIRST, linked] = -1
        if len(self._few[0]) > len(self._many[0]) // _FEW:
            self._many, self._few = _merged(self._many, self._few), (_NOTHING, _NOTHING)
            self._direct = self._placed()
            self._places = None if self._direct is None else view_of(self._direct)
        self._waiting += 1
        if self._waiting > _MOST_WAITING:
            # Nobody may ask for them for long, and each batch that waits takes room.
            for index in (self.held.derived, self.step.table, self.step.own):
                index.runs()
            self._waiting = 0
        return self.count <= MOST_AT_HAND

    def _placed(self) -> npt.NDArray[np.int32] | None:
        """The slots of most keys by what they are more than the least, if that takes little."""
        keys, slots = self._many
        least, greatest = int(keys[0]), int(keys[-1])
        if greatest - least >= _DENSE * len(keys) or not -MOST < least < MOST:
            return None
        self._least = least
        result = np.full(greatest - least + 1, -1, dtype=np.int32)
        result[keys - least] = slots
        return result

    def views(self) -> list[IndexView] | None:
        """What is derived, as it is looked up one by one; None where it is not to be."""
        return self._derived.of_index(self.held.derived.runs(), [self.step.value], 0)

    # Slots.

    def slots_of(self, keys: Ints) -> Ints:
        """The slots of keys in any order, some perhaps often; shape (n,)."""
        if self._direct is None:
            return self._sorted_slots(keys)
        places = keys - self._least
        slots = self._direct.take(places, mode="clip").astype(np.int64)
        # What lies below the least of them wraps to a place that is not there either.
        is_new = (slots < 0) | (places.view(np.uint64) >= len(self._direct))
        if is_new.any():
            slots[is_new] = self._sorted_slots(keys[is_new])
        return slots

    def slot_of(self, key: int) -> int:
        """The slot of one key."""
        if self._places is not None and 0 <= (place := key - self._least) < len(self._places):
            slot: int = self._places[place]
            if slot >= 0:
                return slot
        return int(self.slots_of(np.array([key], dtype=np.int64))[0])

    def _sorted_slots(self, keys: Ints) -> Ints:
        """The same by looking them up in sorted keys."""
        slots = np.empty(len(keys), dtype=np.int64)
        rest: Ints | None = None
        for codes, held in (self._many, self._few):
            if not len(codes):
                continue
            asked = keys if rest is None else keys[rest]
            places = codes.searchsorted(asked)
            result = held.take(places, mode="clip")
            is_new = codes.take(places, mode="clip") != asked
            if rest is None:
                slots = result
                rest = is_new.nonzero()[0]
            else:
                slots[rest] = result
                rest = rest[is_new]
            if not len(rest):
                return slots
        asked = keys if rest is None else keys[rest]
        if len(asked):
            new = distinct_values(asked)
            slots[slice(None) if rest is None else rest] = self._taken_up(new) + new.searchsorted(
                asked
            )
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
        if self.held.best.runs:
            self._look_up(keys, self.values[:, start:end])
        self._few = _merged(self._few, (keys, np.arange(start, end, dtype=np.int64)))
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

    def of_runs(self, runs: Sequence[IndexRun]) -> None:
        """These are the table's: what was known of another one is forgotten, and it may go."""
        if self._run is not None and not any(run is self._run for run in runs):
            self._run = None

    def spans(self, run: IndexRun, slots: Ints, codes: Ints) -> tuple[Ints, Ints, Ints]:
        """Which of these keys have rows in a run, by position; where each begins and ends."""
        held = 0 if self._run is None else len(self._run)
        if len(run) < _MANY_ROWS or (self._run is not run and len(run) < held):
            return _spans(run, codes)
        if self._run is not run:
            self._run, self.values[_START] = run, -1
        start, end = self.values[_START : _END + 1]
        new = (start[slots] < 0).nonzero()[0]
        if len(new):
            start[slots[new]] = end[slots[new]] = 0
            asking, first, last = _spans(run, codes[new])
            asking = slots[new[asking]]
            start[asking], end[asking] = first, last
        first, last = start[slots], end[slots]
        asking = (last > first).nonzero()[0]
        return asking, first[asking], last[asking]

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

    def are_other(self, slots: Ints) -> Ints:
        """Those of these keys whose value, rank or low is not what it was before the step."""
        values = self.values
        is_other = (values[:WAS, slots] != values[WAS : 2 * WAS, slots]).any(axis=0)
        result: Ints = slots[is_other]
        return result

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
        result = numbers(column)
        _check_values(result)
        return ~result if self.step.is_greatest else result


def numbers(column: Vector) -> Ints:
    """The whole numbers of a column without NULL."""
    if column.valid is not None and not bool(column.valid.all()):
        raise NotThisWayError
    result: Ints = column.values.astype(np.int64, copy=False)
    return result


def _check_values(values: Ints) -> None:
    if len(values) and (values.max() >= MOST or values.min() <= -MOST):
        raise NotThisWayError


def _spans(run: IndexRun, codes: Ints) -> tuple[Ints, Ints, Ints]:
    """The same by searching."""
    first = search(run.pages, run.codes, codes)
    asking = (run.codes.take(first, mode="clip") == codes).nonzero()[0]
    if not len(asking):
        return asking, asking, asking
    return asking, first[asking], search(run.pages, run.codes, codes[asking], "right")


def _merged(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Keys with their slots, ascending, of both."""
    if not len(one[0]) or not len(other[0]):
        return one if len(one[0]) else other
    keys = np.concatenate([one[0], other[0]])
    # Two sorted parts: NumPy merges them.
    order = np.argsort(keys, kind="stable")
    return keys[order], np.concatenate([one[1], other[1]])[order]


def _fresh(room: int) -> Ints:
    result = np.zeros((_END + 1, room), dtype=np.int64)
    result[BEST] = result[WAS + BEST] = NONE
    result[KNOWN] = 1
    result[FIRST] = result[_START] = -1
    return result


_NOTHING = np.zeros(0, dtype=np.int64)
