"""Keys and values of a fixpoint that keeps the best value of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from impctl.data.keys import distinct_values, key_codes, starts_in, when_many
from impctl.data.schema import Kind, SqlType
from impctl.data.vector import INT64_MAX, Bools, Ints, Vector, slice_positions
from impctl.engine.batch import Batch, consolidated, never_held, stacked_batches, stacked_or_empty
from impctl.engine.extremes import ranks_of
from impctl.engine.fixpoint.rows import (
    ALL,
    HAS_COLUMN,
    LOW,
    LOW_COLUMN,
    MORE,
    RANK,
    RANK_COLUMN,
    WAS,
    BestFixpointRows,
    Grouped,
    Slots,
    TouchedRows,
    with_room,
)
from impctl.engine.fixpoint.single_join import WHOLE_NUMBERS, JoinedStep, Projections, ends_of
from impctl.engine.trace import IndexRun, check_size
from impctl.expr.nodes import Arithmetic, ArithmeticOp, ColumnRef, Expr, Literal

if TYPE_CHECKING:
    from impctl.engine.circuit import Circuit
    from impctl.engine.tags import Tags
    from impctl.types import AttributeId

# A step that derives other keys' values from a key's value and a table. Law: only recognized where
# this is certain: rows are a key and its value, one per key; the step joins the key with a table,
# and a derived row has a key of the table and the value plus or minus a column of it, a constant,
# or both. `offset` is in the order of values, where the least is best: for MAX a falling value
# grows there.

_ADDED = frozenset({Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG})
_MOST = 1 << 50  # Constants lie within this: sums of a few of them are far from overflowing


class Offset(Struct, frozen=True):
    """What is added to a value: a column of the table times `sign` (None for none), and a
    constant."""

    column: AttributeId | None = None
    sign: int = 1
    constant: int = 0


class ValuedStep(JoinedStep, frozen=True):
    """The columns of a step by their roles. `key` and `value` are columns of the fixpoint, `rows`
    has for each column of that side the index of the fixpoint's column or its rank; `head` is the
    table's column with the derived key."""

    key: AttributeId
    value: AttributeId
    rows: Mapping[AttributeId, AttributeId]
    head: AttributeId
    offset: Offset
    is_greatest: bool


def valued_step(
    step: Circuit,
    columns: Sequence[tuple[AttributeId, SqlType]],
    grouped: Grouped,
    rank: AttributeId,
) -> ValuedStep | None:
    kinds = dict(columns)
    if len(grouped.keys) != 1 or len(grouped.values) != 1 or len(kinds) != 2:
        return None
    (key,), ((value, is_greatest),) = grouped.keys, grouped.values
    if kinds[key].kind not in WHOLE_NUMBERS or kinds[value].kind is not Kind.LONG:
        return None
    above = Projections(step, len(tuple(step)) - 1)
    join = above.join
    ends = None if join is None else ends_of(step, above, join)
    if join is None or ends is None:
        return None
    side, of_fixpoint = ends
    of_table = dict(join.sides[1 - side].columns)
    head, _ = above.below(ColumnRef(key, kinds[key]))
    body, _ = above.below(ColumnRef(rank, kinds[value]))
    sum_ = _sum_of(above, ColumnRef(value, kinds[value]), of_fixpoint, of_table)
    if not isinstance(head, ColumnRef) or not isinstance(body, ColumnRef) or sum_ is None:
        return None
    keys = (*join.sides[side].keys, *join.sides[1 - side].keys)
    if [of_fixpoint.get(name) for name in (*keys[:1], body.id, sum_.base)] != [key, rank, value]:
        return None
    if len(keys) != 2 or head.id not in of_table:
        return None
    if {of_table[head.id], of_table[keys[1]]} != {kinds[key]}:
        return None
    sign = -1 if is_greatest else 1
    offset = Offset(sum_.column, sign * sum_.sign, sign * sum_.constant)
    return ValuedStep(join, side, key, value, of_fixpoint, head.id, offset, is_greatest)


class _Sum(Struct, frozen=True):
    base: AttributeId
    column: AttributeId | None = None
    sign: int = 1
    constant: int = 0


def _sum_of(
    above: Projections,
    expr: Expr,
    of_fixpoint: Mapping[AttributeId, AttributeId],
    table: Mapping[AttributeId, SqlType],
    depth: int = 0,
) -> _Sum | None:
    """The expression as a column of the fixpoint plus an offset, if it is one."""
    expr, depth = above.below(expr, depth)
    if isinstance(expr, ColumnRef):
        return _Sum(expr.id) if expr.id in of_fixpoint else None
    if not isinstance(expr, Arithmetic):
        return None
    if expr.op not in (ArithmeticOp.ADD, ArithmeticOp.SUBTRACT):
        return None
    sign = 1 if expr.op is ArithmeticOp.ADD else -1
    sides = [(expr.left, expr.right), (expr.right, expr.left)]
    for mine, other in sides if sign > 0 else sides[:1]:
        result = _sum_of(above, mine, of_fixpoint, table, depth)
        if result is not None:
            return _more(result, above.below(other, depth)[0], sign, table)
    return None


def _more(
    result: _Sum, other: Expr, sign: int, table: Mapping[AttributeId, SqlType]
) -> _Sum | None:
    if isinstance(other, Literal):
        if other.type.kind not in _ADDED or other.value is None:
            return None
        more = result.constant + sign * int(other.value)
        if abs(int(other.value)) >= _MOST:
            return None
        return _Sum(result.base, result.column, result.sign, more)
    if not isinstance(other, ColumnRef) or other.id not in table or result.column is not None:
        return None
    if table[other.id].kind not in _ADDED:
        return None
    return _Sum(result.base, other.id, sign, result.constant)


# The keys that one step touches and their values, where a fixpoint keeps one value per key. Law: a
# key has one slot, from 0 up, with its value, rank and low as they are and as they were before the
# step, in the order of values (the least is best; `NONE` for an absent key). Stored state does not
# change meanwhile, so giving up leaves no trace. Only for integers that are not NULL and far from
# overflow, else `NotIntegerStepError`. Results may serve the next step only while nobody else
# changes the stored state, which the owner of these rows ensures. Memory: 116 bytes a key. Cost: a
# lookup per key, and another where its rank is needed.

# The links of keys through a table's rows, looked up once per step. Law: a link is a row of the
# table as after the step, from its key to its head's key, with its offset; changed rows are
# separate, and the table is as before. The links of a key are adjacent throughout the step. Of rows
# that are equal or cancel, one has their sum as `net`, the others 0. NULL or a negative offset:
# `NotIntegerStepError`. Memory: 56 bytes each.

_NOTHING = np.zeros(0, dtype=np.int64)
BODY, HEAD, OFFSET, NET, WEIGHT, SOURCE, PLACE = range(7)


class Links:
    def __init__(self, step: ValuedStep, rows: ValuedRows, changed: Batch | None) -> None:
        self._step, self._rows = step, rows
        self._changed = changed
        self._linked: list[Ints] = []
        self.count = 0
        self.columns: Ints = np.zeros((PLACE + 1, 0), dtype=np.int64)

    @cached_property
    def _runs(self) -> Sequence[IndexRun]:
        runs, changed = self._step.table.runs(), self._changed
        self._rows.of_runs(runs)
        if changed is None or not len(changed):
            return runs
        codes = numbers(changed.columns[self._step.table.keys[0]])
        if len(changed) > 1:
            order = np.argsort(codes, kind="stable")
            codes, changed = codes[order], changed.take(order)
        return (*runs, IndexRun(0, codes, changed))

    def tags(self, source: int) -> tuple[Tags, ...]:
        """The tags of these rows of one source, by position."""
        return self._runs[source].batch.tags

    @property
    def sources(self) -> int:
        return len(self._runs)

    @property
    def linked(self) -> Ints:
        return np.concatenate(self._linked) if self._linked else _NOTHING

    def offsets(self, rows: Batch) -> Ints:
        offset = self._step.offset
        if offset.column is None:
            return np.full(len(rows), offset.constant, dtype=np.int64)
        result = numbers(rows.columns[offset.column])
        if len(result) and (result.max() >= MOST or result.min() <= -MOST):
            raise NotIntegerStepError
        return offset.sign * result + offset.constant

    def heads(self, rows: Batch) -> Ints:
        return numbers(rows.columns[self._step.head])

    def of(self, slots: Ints) -> Ints:
        """Positions of the links of these keys in `columns`, each key once."""
        values = self._rows.values
        unknown = slots[values[FIRST, slots] < 0]
        if len(unknown):
            self._linked.append(unknown)
            self._look_up(unknown)
            values = self._rows.values
        first, last = values[FIRST, slots], values[LAST, slots]
        if len(unknown) == len(slots) and len(slots):
            # As they were looked up, one after the other.
            return np.arange(first.min(), last.max(), dtype=np.int64)
        return slice_positions(first, last)[0]

    def _look_up(self, slots: Ints) -> None:
        step, rows = self._step, self._rows
        order, codes = when_many(rows.codes[slots])
        slots = slots if order is None else slots[order]
        parts = []
        for source, run in enumerate(self._runs):
            asking, first, last = rows.spans(run, slots, codes)
            pairs = int((last - first).sum())
            if not pairs:
                continue
            check_size(pairs)
            places, owners = slice_positions(first, last)
            owners = asking[owners]
            batch = run.at(places)
            names = {step.head, *step.table.keys, *_column(step)}
            some = {name: batch.columns[name].take(places) for name in names}
            result = Batch(some, batch.weights[places], ())
            # NULL may have the code of a number.
            numbers(result.columns[step.table.keys[0]])
            part = np.empty((PLACE + 1, pairs), dtype=np.int64)
            part[BODY], part[HEAD], part[OFFSET] = owners, self.heads(result), self.offsets(result)
            part[NET] = part[WEIGHT] = result.weights
            part[SOURCE], part[PLACE] = source, places
            parts.append(part)
        self._add(slots, parts)

    def _add(self, slots: Ints, parts: Sequence[Ints]) -> None:
        values = self._rows.values
        if not parts:
            values[FIRST, slots] = values[LAST, slots] = self.count
            return
        result = parts[0]
        if len(parts) > 1:
            result = np.concatenate(parts, axis=1)
            result = result[:, np.argsort(result[BODY], kind="stable")]
        if result[OFFSET].min() < 0:
            raise NotIntegerStepError
        ends = self.count + np.cumsum(np.bincount(result[BODY], minlength=len(slots)))
        values[LAST, slots] = ends
        values[FIRST, slots[0]] = self.count
        values[FIRST, slots[1:]] = ends[:-1]
        _sum_up(result)
        result[HEAD] = self._rows.key_slots(result[HEAD])
        result[BODY] = slots[result[BODY]]
        start, self.count = self.count, self.count + result.shape[1]
        if not start:
            self.columns = result
            return
        if self.count > self.columns.shape[1]:
            self.columns = with_room(self.columns, 2 * self.count)
        self.columns[:, start : self.count] = result


def _column(step: ValuedStep) -> tuple[str, ...]:
    return () if step.offset.column is None else (step.offset.column,)


def _sum_up(result: Ints) -> None:
    """Add up equal rows of one key, where some are deleted."""
    if result[NET].min() >= 0:
        return
    goes = np.zeros(int(result[BODY].max()) + 1, dtype=np.bool_)
    goes[result[BODY, result[NET] < 0]] = True
    some = goes[result[BODY]].nonzero()[0]
    order = some[np.lexsort((result[OFFSET, some], result[HEAD, some], result[BODY, some]))]
    starts = starts_in(result[BODY, order], result[HEAD, order], result[OFFSET, order]).nonzero()[0]
    sums = np.add.reduceat(result[NET, order], starts)
    if sums.min() < 0:
        raise NotIntegerStepError
    result[NET, order] = 0
    result[NET, order[starts]] = sums


NONE = INT64_MAX  # The value of a key that has none
MOST = 1 << 60  # Bound on values and offsets: sums of both are exact
BEST, RANKED, COUNTED = range(3)
KNOWN, FIRST, LAST, _START, _END = range(6, 11)
"""Whether rank and low are looked up; start and end of its links, -1 if unknown; start and end of
its rows in the table's largest run, -1 if unknown."""
MOST_AT_HAND = 1 << 20  # Keys up to which all keys are kept between steps: some 120 MB
_MANY_ROWS = 1 << 16  # Rows of a run from which the positions of a key's rows are remembered
_DENSE = 4  # Numbers per key up to which keys count as dense
_FEW = 8  # New keys, per key, up to which they are searched before all are placed again


class NotIntegerStepError(Exception):
    """The step is not over integers alone: the caller must use the general path."""


class ValuedRows(Slots):
    """The keys of one step, each its own code; `values` has the rows named above, by slot."""

    def __init__(self, stored: BestFixpointRows, step: ValuedStep) -> None:
        super().__init__((), _END + 1)
        self._clear(0)
        self.stored, self.step = stored, step
        self._direct: npt.NDArray[np.int32] | None = None
        """Of dense keys: by key less `_least`, the slot, -1 for none."""
        self._least = self._placed = 0  # Of the keys placed so: the least, and how many
        self._run: IndexRun | None = None  # The run of the table whose row positions are remembered

    # Between steps.

    def end(self, touched: Ints, linked: Ints) -> bool:
        """End the step that touched these slots and looked up links; whether the next step may
        reuse the rows: not if there are too many keys."""
        values = self.values
        values[WAS : 2 * WAS, touched] = values[:WAS, touched]
        values[FIRST, linked] = -1
        if self.count - self._placed > self._placed // _FEW:
            self._direct, self._placed = self._by_key(), self.count
        return self.count <= MOST_AT_HAND

    def _by_key(self) -> npt.NDArray[np.int32] | None:
        """The slots of all keys by their distance from the least key, if that takes little
        memory."""
        keys = self.codes[: self.count]
        least, greatest = int(keys.min()), int(keys.max())
        if greatest - least >= _DENSE * len(keys) or not -MOST < least < MOST:
            return None
        self._least = least
        result = np.full(greatest - least + 1, -1, dtype=np.int32)
        result[keys - least] = np.arange(len(keys), dtype=np.int32)
        return result

    # Slots.

    def key_slots(self, keys: Ints) -> Ints:
        """The slots of keys in any order, with repetitions; shape (n,)."""
        if self._direct is None:
            return self.slots_for_codes(keys)
        positions = keys - self._least
        slots = self._direct.take(positions, mode="clip").astype(np.int64)
        # What lies below the least of them wraps to a place that is not there either.
        is_new = (slots < 0) | (positions.view(np.uint64) >= len(self._direct))
        if is_new.any():
            slots[is_new] = self.slots_for_codes(keys[is_new])
        return slots

    def make_room(self, rows: int) -> None:
        room = self.values.shape[1]
        super().make_room(rows)
        self._clear(room)

    def _clear(self, start: int) -> None:
        """Set the values of slots that no key has, from `start` on."""
        values = self.values[:, start:]
        values[BEST] = values[WAS + BEST] = NONE
        values[KNOWN] = 1
        values[FIRST] = values[_START] = -1

    def _look_up(
        self, start: int, codes: Ints, keys: Sequence[Vector], *, is_by_code: bool
    ) -> None:
        stored = self.stored
        located = stored.best.find(codes, self.key_columns(codes)) if stored.best.runs else None
        if located is None or not located.parts:
            return
        values = self.values[:, start : start + len(codes)]
        best = stored.best.gather(located, stored.best_names[0])
        is_there = stored.best.gather(located, HAS_COLUMN) > 0
        _check_values(best[is_there])
        values[BEST] = values[WAS + BEST] = np.where(is_there, best, NONE)
        values[KNOWN] = ~is_there

    def of_runs(self, runs: Sequence[IndexRun]) -> None:
        """Forget the positions in another run of the table, so that it can be freed."""
        if self._run is not None and not any(run is self._run for run in runs):
            self._run = None

    def spans(self, run: IndexRun, slots: Ints, codes: Ints) -> tuple[Ints, Ints, Ints]:
        """Which of these keys, by position, have rows in a run; start and end of each."""
        stored = 0 if self._run is None else len(self._run)
        if len(run) < _MANY_ROWS or (self._run is not run and len(run) < stored):
            return run.slices_of_known(codes)
        if self._run is not run:
            self._run, self.values[_START] = run, -1
        start, end = self.values[_START : _END + 1]
        new = (start[slots] < 0).nonzero()[0]
        if len(new):
            start[slots[new]] = end[slots[new]] = 0
            asking, first, last = run.slices_of_known(codes[new])
            asking = slots[new[asking]]
            start[asking], end[asking] = first, last
        first, last = start[slots], end[slots]
        asking = (last > first).nonzero()[0]
        return asking, first[asking], last[asking]

    def know_ranks(self, slots: Ints) -> None:
        """Look up the stored ranks and lows of these keys, with repetitions."""
        values = self.values
        slots = slots[values[KNOWN, slots] == 0]
        if not len(slots):
            return
        slots = distinct_values(slots)
        values[KNOWN, slots] = 1
        stored = self.stored
        codes, rows = self.rows(slots, values[WAS + BEST, slots])
        located = stored.arrangement.find(codes, rows)
        for index, name in ((RANKED, RANK_COLUMN), (COUNTED, LOW_COLUMN)):
            values[index, slots] = values[WAS + index, slots] = stored.arrangement.gather(
                located, name
            )

    def are_other(self, slots: Ints) -> Ints:
        """The keys whose value, rank or low changed in this step."""
        values = self.values
        is_other = (values[:WAS, slots] != values[WAS : 2 * WAS, slots]).any(axis=0)
        result: Ints = slots[is_other]
        return result

    def rows(self, slots: Ints, values: Ints) -> tuple[Ints, list[Vector]]:
        columns = self.row_columns(self.codes[slots], values)
        return key_codes(columns, len(slots)), columns

    def row_columns(self, keys: Ints, values: Ints) -> list[Vector]:
        stored, step = self.stored, self.step
        both = {step.key: keys, step.value: ~values if step.is_greatest else values}
        pairs = zip(stored.names, stored.kinds, strict=True)
        return [Vector(kind, both[name]) for name, kind in pairs]

    def key_columns(self, keys: Ints) -> list[Vector]:
        stored = self.stored
        return [Vector(stored.kinds[stored.names.index(self.step.key)], keys)]

    def in_order(self, column: Vector) -> Ints:
        """Values of the column that decides, mapped so that the least is best."""
        result = numbers(column)
        _check_values(result)
        return ~result if self.step.is_greatest else result


def numbers(column: Vector) -> Ints:
    """The integers of a column without NULL."""
    if column.valid is not None and not bool(column.valid.all()):
        raise NotIntegerStepError
    result: Ints = column.values.astype(np.int64, copy=False)
    return result


def _check_values(values: Ints) -> None:
    if len(values) and (values.max() >= MOST or values.min() <= -MOST):
        raise NotIntegerStepError


# The groups that one step of a fixpoint touches. Law: a row is *best* if it is derived and one of
# its values is its group's least (or greatest); NULL counts only where there is nothing else; ties
# are all best. Derivations of a beaten row wait uncounted until the better one is deleted; those
# from before the step are looked up once rows of the group may enter or leave. So all derivations
# of a row that may be best are counted. Cost: the changed derivations; groups whose rows change,
# with all rows derived in them.

_GROUP, _FIRST_VALUE = MORE, MORE + 1
_IS_LOADED, _HAS, _HAD, _FIRST_BEST = range(4)


class _Derived(Struct, frozen=True):
    """Derived rows, with their weights and tags, and their slots."""

    rows: Batch
    slots: Ints

    def keep(self, mask: Bools) -> _Derived:
        return _Derived(self.rows.keep(mask), self.slots[mask])


class _Groups(Slots):
    """The groups of a step; `values` has whether its derived rows are loaded, whether it has best
    rows, and had; and for each value that decides the order of the best one, new and old."""

    def __init__(self, stored: BestFixpointRows) -> None:
        super().__init__(stored.best.key_types, _FIRST_BEST + 2 * len(stored.best_names))
        self._stored = stored

    def _look_up(
        self, start: int, codes: Ints, keys: Sequence[Vector], *, is_by_code: bool
    ) -> None:
        del is_by_code
        stored, values = self._stored, self.values[:, start : start + len(codes)]
        located = stored.best.find(codes, keys)
        if located.parts:
            values[_HAS] = values[_HAD] = stored.best.gather(located, HAS_COLUMN)
            for position, name in enumerate(stored.best_names):
                index = _FIRST_BEST + 2 * position
                values[index] = values[index + 1] = stored.best.gather(located, name)


class TouchedGroups(TouchedRows):
    """The rows that may be in and that one step touches; `values` also has the slot of a row's
    group, and for each value that decides its order, and whether it is set."""

    stored: BestFixpointRows

    def __init__(self, stored: BestFixpointRows) -> None:
        super().__init__(stored, more=1 + 2 * len(stored.best_names))
        self._groups = _Groups(stored)
        self._loaded: list[_Derived] = []
        self._changed: list[_Derived] = []
        self._beaten: list[_Derived] = []
        """Changes of rows that a better one beats: with the slots of groups."""
        self._has_null = False

    @property
    def _bests(self) -> Ints:
        return self._groups.values

    # What is touched.

    def counted(self, derivations: Batch, rank: AttributeId) -> Ints:
        """The same; the slots of the derived rows as far as these may be in, now or before.
        CountBelowZeroError where more is deleted than there was."""
        names = self.stored.names
        ranks = derivations.columns[rank].values
        columns = {name: derivations.columns[name] for name in names}
        rows = Batch(columns, derivations.weights, derivations.tags)
        keys = [columns[name] for name in self.stored.grouped.keys]
        groups = self._groups.slots_for(keys, len(rows))
        counts = self._counts(rows, groups)
        if not counts.all():
            self._beaten.append(_Derived(rows, groups).keep(~counts))
            rows, groups, ranks = rows.keep(counts), groups[counts], ranks[counts]
            if not len(rows):
                return groups
        slots = self._slots_in(rows, groups)
        is_low = (ranks < self.ranks[slots]) & (self.ranks[slots] > 0)
        self.count_in(slots, rows.weights, is_low)
        self._changed.append(_Derived(rows, slots))
        return slots

    def check(self, slots: Ints) -> None:
        """Of groups that are not loaded only changes are counted."""
        is_loaded = self._bests[_IS_LOADED, self.values[_GROUP, slots]] > 0
        super().check(slots[is_loaded])

    def _counts(self, batch: Batch, groups: Ints) -> Bools:
        """Which of these derivations may concern rows that are in or come in: no row of their group
        beats them."""
        bests = self._bests
        counts: Bools = bests[_HAS, groups] == 0
        for position, (name, is_greatest) in enumerate(self.stored.grouped.values):
            column = batch.columns[name]
            ranks = ranks_of(column, reverse=is_greatest)
            is_first = ranks <= bests[_FIRST_BEST + 2 * position, groups]
            if column.valid is not None:
                # Where NULL is best there is nothing else.
                is_null = bests[_FIRST_BEST + 2 * position, groups] == INT64_MAX
                is_first = np.where(
                    column.valid, is_first, is_null | self.stored.grouped.keeps_null
                )
            counts |= is_first
        return counts

    def _slots_in(self, rows: Batch, groups: Ints) -> Ints:
        """The slots of rows of these groups, one for each row."""
        columns = [rows.columns[name] for name in self.stored.names]
        slots = self.slots_for(columns, len(rows))
        self.values[_GROUP, slots] = groups
        return slots

    def _load(self, groups: Ints) -> None:
        groups = groups[self._bests[_IS_LOADED, groups] == 0]
        if not len(groups):
            return
        stored = self.stored
        self._bests[_IS_LOADED, groups] = 1
        groups = self._groups.ordered(groups)
        result = stored.derived.find(self._groups.codes[groups], self._groups.keys(groups))
        if len(result.rows):
            self._loaded.append(self._counted(_Derived(result.rows, groups[result.owners])))
        values = self.values[:, : self.count]
        if (self._bests[_IS_LOADED, values[_GROUP, values[ALL] < 0]] > 0).any():
            raise never_held("ways to derive rows")

    def _count_beaten(self, is_asked: Bools) -> bool:
        """Count the waiting changes of these groups, by slot, since nothing surely beats them any
        more; whether there were any."""
        waiting, self._beaten = self._beaten, []
        has_any = False
        for one in waiting:
            is_counted = is_asked[one.slots]
            if not is_counted.any():
                self._beaten.append(one)
                continue
            has_any = True
            self._changed.append(self._counted(one.keep(is_counted)))
            self._beaten += [one.keep(~is_counted)] if not is_counted.all() else []
        return has_any

    def _counted(self, part: _Derived) -> _Derived:
        """Rows of groups, by group, as rows by row: their counts without those that are in."""
        slots = self._slots_in(part.rows, part.slots)
        np.add.at(self.values[ALL], slots, part.rows.weights)
        return _Derived(part.rows, slots)

    def _look_up(
        self, start: int, codes: Ints, keys: Sequence[Vector], *, is_by_code: bool
    ) -> None:
        super()._look_up(start, codes, keys, is_by_code=is_by_code)
        stored, values = self.stored, self.values[:, start : start + len(codes)]
        for position, (name, is_greatest) in enumerate(stored.grouped.values):
            column = keys[stored.names.index(name)]
            index = _FIRST_VALUE + 2 * position
            ranks = ranks_of(column, reverse=is_greatest)
            if column.valid is not None:
                ranks = np.where(column.valid, ranks, INT64_MAX)
                self._has_null = self._has_null or not bool(column.valid.all())
            values[index], values[index + 1] = ranks, column.validity()

    # Insertions and deletions.

    def unsettled(self, slots: Ints) -> tuple[Ints, Ints]:
        """Of the groups of these rows, which are all that were counted since: rows that are in and
        are not best or have no ground; and rows that are best and are not in or have no ground."""
        self._load(self._perhaps_unsettled(slots))
        values, count = self.values, self._groups.count
        is_asked = np.zeros(count, dtype=np.bool_)
        is_asked[values[_GROUP, slots]] = True
        is_asked &= self._bests[_IS_LOADED, :count] > 0
        before = self._bests[:, :count].copy()
        rows, is_best = self._evaluated(is_asked)
        after = self._bests[:, :count]
        has_lost = before[_HAS] > after[_HAS]
        for index in range(_FIRST_BEST, len(after), 2):
            has_lost |= after[index] > before[index]
        has_lost &= is_asked
        if has_lost.any() and self._count_beaten(has_lost):
            rows, is_best = self._evaluated(is_asked)
        values = self.values
        is_in = values[RANK, rows] > 0
        is_groundless = is_in & (values[LOW, rows] == 0)
        return rows[(is_in & ~is_best) | is_groundless], rows[is_best & (~is_in | is_groundless)]

    def _evaluated(self, is_asked: Bools) -> tuple[Ints, Bools]:
        """The rows of these groups, by slot, and which are best; the best values are recorded."""
        values, count = self.values, self._groups.count
        rows = is_asked[values[_GROUP, : self.count]].nonzero()[0]
        is_best = values[ALL, rows] > 0
        self._bests[_HAS, :count][is_asked] = 0
        derived = is_best.nonzero()[0]
        if len(derived):
            is_best[derived] = self._best(rows[derived])
        return rows, is_best

    def _perhaps_unsettled(self, slots: Ints) -> Ints:
        """The groups of the rows that may come in or have lost their ground."""
        values, bests = self.values, self._bests
        groups = values[_GROUP, slots]
        is_first = bests[_HAS, groups] == 0
        for position, _ in enumerate(self.stored.grouped.values):
            index = _FIRST_VALUE + 2 * position
            is_first |= values[index, slots] <= bests[_FIRST_BEST + 2 * position, groups]
            if self.stored.grouped.keeps_null:
                is_first |= values[index + 1, slots] == 0
        is_in = values[RANK, slots] > 0
        comes = ~is_in & is_first & (values[ALL, slots] > 0)
        has_gone = ~is_in & (values[WAS + RANK, slots] > 0)
        result = comes | has_gone | (is_in & (values[LOW, slots] == 0))
        return distinct_values(groups[result])

    def _best(self, rows: Ints) -> Bools:
        """Which of these rows, all that are derived in their groups, are best."""
        values = self.values
        groups = values[_GROUP, rows]
        order = np.argsort(groups, kind="stable")
        starts = starts_in(groups[order]).nonzero()[0]
        sizes = np.diff(starts, append=len(rows))
        is_best = np.zeros(len(rows), dtype=np.bool_)
        touched = groups[order][starts]
        self._bests[_HAS, touched] = 1
        for index in range(_FIRST_VALUE, len(values), 2):
            ranks = values[index, rows][order]
            least = np.minimum.reduceat(ranks, starts)
            self._bests[_FIRST_BEST + index - _FIRST_VALUE, touched] = least
            is_first = ranks == np.repeat(least, sizes)
            if self._has_null:
                known = values[index + 1, rows][order]
                some = np.repeat(np.maximum.reduceat(known, starts), sizes)
                is_first &= known == some
                if self.stored.grouped.keeps_null:
                    is_first |= known == 0
            is_best[order] |= is_first
        return is_best

    # The end of a step.

    def _keep_bests(self) -> None:
        stored, bests = self.stored, self._bests
        is_changed = bests[_HAS] != bests[_HAD]
        for index in range(_FIRST_BEST, len(bests), 2):
            is_changed |= (bests[index] != bests[index + 1]) & (bests[_HAS] > 0)
        slots = is_changed.nonzero()[0]
        if len(slots):
            slots = self._groups.ordered(slots)
            names = zip(stored.best_names, range(_FIRST_BEST, len(bests), 2), strict=True)
            result = {name: bests[index, slots] for name, index in names}
            codes, keys = self._groups.codes[slots], self._groups.keys(slots)
            stored.best.put(codes, keys, {HAS_COLUMN: bests[_HAS, slots], **result})

    def report(self) -> Batch:
        """What changed in the derivations of rows that are in: their tags."""
        is_in = (self.values[RANK] > 0).astype(np.int64)
        moved = is_in - (self.values[WAS + RANK] > 0)
        parts = [_signed(one, moved) for one in self._loaded]
        parts += [_signed(one, is_in) for one in self._changed]
        return stacked_or_empty(parts, self.stored.accesses)

    def kept(self, *, has_moved: bool = True) -> Batch:
        """End the step and store its changes; the rows inserted (+1) and deleted (-1). `has_moved`:
        derivations may have been deleted and inserted again."""
        derived = self.stored.derived
        parts = [part.rows for part in (*self._changed, *self._beaten)]
        if parts:
            changed = stacked_batches(parts)
            changed = consolidated(changed) if has_moved else changed
            derived.add(changed, derived.codes_of(changed))
        self._keep_bests()
        return super().kept()


def _signed(derived: _Derived, signs: Ints) -> Batch:
    """The tags of derivations with the signs of their rows; those of sign 0 are dropped."""
    weights = derived.rows.weights * signs[derived.slots]
    result = weights.nonzero()[0]
    tags = tuple(tag.take(result) for tag in derived.rows.tags)
    return Batch({}, weights[result], tags)
