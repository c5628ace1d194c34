"""The groups of a fixpoint's rows that one step touches, as the step has made them so far.

Law: a row is *best* if it is derived and one of its values is the least of its group's (or
greatest), NULL left out, but where there is nothing else; ties are all best. What a better row
beats waits uncounted until that one goes, and what was derived before in a group is looked up once
a row may come in there or go out. So a row's derivations are all counted wherever it may be best.
Cost: the derivations that came or went; groups whose rows come or go, with all derived in them.
Out of scope: which rows come and go (`engine.operators.best_fixpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import Grouping, distinct_values, group_normal, starts_in
from impctl.data.schema import LONG
from impctl.data.vector import INT64_MAX, Bools, Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.consolidate import consolidated
from impctl.engine.disagreement import never_held
from impctl.engine.extremes import ranks_of
from impctl.engine.fixpoint.best_rows import HAS, LOW, RANK, BestRows
from impctl.engine.fixpoint.slots import Slots
from impctl.types import AttributeId
from impctl.values import dataclass

_NAMES = (RANK, LOW)
_ROOM = 16
"""Rows that there is room for at first."""
_IS_RANK, _IS_LOW, _WAS_RANK, _WAS_LOW, _ALL, _GROUP, _FIRST_VALUE = range(7)
_IS_HELD, _HAS, _HAD, _FIRST_BEST = range(4)


@dataclass(frozen=True, slots=True)
class _Derived:
    """Rows derived, with their weights and tags, and their slots."""

    rows: Batch
    slots: Ints

    def keep(self, mask: Bools) -> _Derived:
        """Those where `mask` is set."""
        return _Derived(self.rows.keep(mask), self.slots[mask])


class TouchedGroups:
    """The groups that one step touches; each has a slot, and each row that may be in."""

    def __init__(self, held: BestRows) -> None:
        self._held = held
        self._groups, self._rows = Slots(), Slots()
        self._values = np.zeros((_FIRST_VALUE + 2 * len(held.grouped.values), _ROOM), np.int64)
        """By row: rank and low as they are and as they were, weight of its derivations, slot of its
        group, and for each value its order and whether it is one."""
        self._bests = np.zeros((_FIRST_BEST + 2 * len(held.grouped.values), _ROOM), np.int64)
        """By group: whether what was derived in it is at hand, whether it has best rows, and had;
        and for each value the order of the best one, as it is and as it was."""
        self._found: list[_Derived] = []
        self._changed: list[_Derived] = []
        self._beaten: list[_Derived] = []
        """What changed in rows that a better one beats: with the slots of groups."""
        self._has_null = False

    # What is touched.

    def count(self, batch: Batch, rank: AttributeId) -> Ints:
        """Count derivations in, whose highest body ranks are in a column of that name; the slots of
        the rows that they derive, as far as these may be in, now or before.

        CountBelowZeroError where more goes than there was.
        """
        held = self._held
        groups = self._groups_of([batch.columns[name] for name in held.names])
        counts = self._counts(batch, groups)
        if not counts.all():
            names = {name: batch.columns[name] for name in held.names}
            every = _Derived(Batch(names, batch.weights, batch.tags), groups)
            self._beaten.append(every.keep(~counts))
            batch, groups = batch.keep(counts), groups[counts]
            if not len(batch):
                return groups
        keys, grouping = group_normal([batch.columns[n] for n in held.names], len(batch))
        slots = self._slots_of(grouping, grouping.leaders(keys), groups[grouping.first])
        index = grouping.index()
        of_rows = slots[index]
        ranks = self._values[_IS_RANK, of_rows]
        is_low = (batch.columns[rank].values < ranks) & (ranks > 0)
        low = np.where(is_low, batch.weights, 0)[grouping.order]
        every = self._values[_ALL, slots] + grouping.sums(batch.weights)
        lows = self._values[_IS_LOW, slots] + np.add.reduceat(low, grouping.starts)
        # Of groups that are not at hand only what changed is counted.
        is_held = self._bests[_IS_HELD, self._values[_GROUP, slots]] > 0
        if lows.min() < 0 or (every[is_held] < 0).any():
            raise never_held("ways to derive rows")
        self._values[_ALL, slots], self._values[_IS_LOW, slots] = every, lows
        columns = {name: batch.columns[name] for name in held.names}
        self._changed.append(_Derived(Batch(columns, batch.weights, batch.tags), of_rows))
        return slots

    def _counts(self, batch: Batch, groups: Ints) -> Bools:
        """Which of these derivations may be of rows that are in or come in: those that no row of
        their group beats."""
        bests = self._bests
        counts: Bools = bests[_HAS, groups] == 0
        for place, (name, is_greatest) in enumerate(self._held.grouped.values):
            column = batch.columns[name]
            ranks = ranks_of(column, reverse=is_greatest)
            is_first = ranks <= bests[_FIRST_BEST + 2 * place, groups]
            if column.valid is not None:
                # Where NULL is best there is nothing else.
                is_null = bests[_FIRST_BEST + 2 * place, groups] == INT64_MAX
                is_first = np.where(column.valid, is_first, is_null | self._held.grouped.keeps_null)
            counts |= is_first
        return counts

    def _slots_of(self, grouping: Grouping, leaders: Sequence[Vector], groups: Ints) -> Ints:
        """The slots of these rows, of these groups."""
        slots = self._rows.find(grouping.codes, leaders)
        new = (slots < 0).nonzero()[0]
        if len(new):
            rest = leaders if len(new) == len(slots) else [key.take(new) for key in leaders]
            slots[new] = self._taken_up(grouping.codes[new], rest, groups[new])
        return slots

    def _groups_of(self, rows: Sequence[Vector]) -> Ints:
        """The slots of the groups of these rows."""
        held = self._held
        own = [rows[held.names.index(key)] for key in held.grouped.keys]
        keys, grouping = group_normal(own, len(rows[0]))
        leaders = grouping.leaders(keys)
        slots = self._groups.find(grouping.codes, leaders)
        new = (slots < 0).nonzero()[0]
        if len(new):
            codes, rest = grouping.codes[new], [key.take(new) for key in leaders]
            slots[new] = self._groups.add(codes, rest)
            self._bests = _with_room(self._bests, len(self._groups))
            located = held.best.find(codes, rest)
            if located.parts:
                result = held.best.gather(located, HAS)
                self._bests[_HAS, slots[new]] = self._bests[_HAD, slots[new]] = result
                for place, name in enumerate(held.best_names):
                    at = _FIRST_BEST + 2 * place
                    result = held.best.gather(located, name)
                    self._bests[at, slots[new]] = self._bests[at + 1, slots[new]] = result
        of_rows: Ints = slots[grouping.index()]
        return of_rows

    def _hold(self, groups: Ints) -> None:
        """Have all at hand that is derived in these groups, each given once."""
        groups = groups[self._bests[_IS_HELD, groups] == 0]
        if not len(groups):
            return
        held = self._held
        self._bests[_IS_HELD, groups] = 1
        codes, groups = self._groups.ordered(groups)
        result = held.derived.find(codes, [key.take(groups) for key in self._groups.columns()])
        if len(result.rows):
            self._found.append(self._counted(_Derived(result.rows, groups[result.owners])))
        every = self._values[: _GROUP + 1, : len(self._rows)]
        if (self._bests[_IS_HELD, every[_GROUP, every[_ALL] < 0]] > 0).any():
            raise never_held("ways to derive rows")

    def _count_beaten(self, is_asked: Bools) -> bool:
        """Count in what waited of these groups, by slot, as nothing beats it for sure any more;
        whether there was any."""
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
        """Rows of groups, by group, as rows by row: count them, but for what is in."""
        rows = part.rows
        keys, grouping = group_normal([rows.columns[n] for n in self._held.names], len(rows))
        of_rows = part.slots[grouping.first]
        slots = self._slots_of(grouping, grouping.leaders(keys), of_rows)
        self._values[_ALL, slots] += grouping.sums(rows.weights)
        return _Derived(rows, slots[grouping.index()])

    def _taken_up(self, codes: Ints, keys: Sequence[Vector], groups: Ints) -> Ints:
        """Slots for rows that had none."""
        slots = self._rows.add(codes, keys)
        start, end = int(slots[0]), len(self._rows)
        self._values = _with_room(self._values, end)
        self._values[_GROUP, start:end] = groups
        held = self._held
        for place, (name, is_greatest) in enumerate(held.grouped.values):
            column = keys[held.names.index(name)]
            at = _FIRST_VALUE + 2 * place
            ranks = ranks_of(column, reverse=is_greatest)
            if column.valid is not None:
                ranks = np.where(column.valid, ranks, INT64_MAX)
                self._has_null = self._has_null or not bool(column.valid.all())
            self._values[at, start:end] = ranks
            self._values[at + 1, start:end] = column.validity()
        located = held.inside.find(codes, keys)
        if located.parts:
            for is_at, was_at, name in zip(
                (_IS_RANK, _IS_LOW), (_WAS_RANK, _WAS_LOW), _NAMES, strict=True
            ):
                result = held.inside.gather(located, name)
                self._values[is_at, slots] = self._values[was_at, slots] = result
        return slots

    # What comes and goes.

    def groundless(self, slots: Ints) -> Ints:
        """Those that are in, and that nothing of lower rank derives any more."""
        values = self._values
        result: Ints = slots[(values[_IS_LOW, slots] == 0) & (values[_IS_RANK, slots] > 0)]
        return result

    def every_row(self) -> Ints:
        """The slots of all rows."""
        return np.arange(len(self._rows), dtype=np.int64)

    def unsettled(self, slots: Ints) -> tuple[Ints, Ints]:
        """In the groups of these rows, which are all that were counted since: rows that are in and
        are not best, or stand on nothing; and rows that are best and are not in, or stand on
        nothing."""
        self._hold(self._perhaps_unsettled(slots))
        values, count = self._values, len(self._groups)
        is_asked = np.zeros(count, dtype=np.bool_)
        is_asked[values[_GROUP, slots]] = True
        is_asked &= self._bests[_IS_HELD, :count] > 0
        before = self._bests[:, :count].copy()
        rows, is_best = self._evaluated(is_asked)
        after = self._bests[:, :count]
        has_lost = before[_HAS] > after[_HAS]
        for at in range(_FIRST_BEST, len(after), 2):
            has_lost |= after[at] > before[at]
        has_lost &= is_asked
        if has_lost.any() and self._count_beaten(has_lost):
            rows, is_best = self._evaluated(is_asked)
        values = self._values
        is_in = values[_IS_RANK, rows] > 0
        is_groundless = is_in & (values[_IS_LOW, rows] == 0)
        return rows[(is_in & ~is_best) | is_groundless], rows[is_best & (~is_in | is_groundless)]

    def _evaluated(self, is_asked: Bools) -> tuple[Ints, Bools]:
        """The rows of these groups, by slot, and which are best; what is best is noted."""
        values, count = self._values, len(self._groups)
        rows = is_asked[values[_GROUP, : len(self._rows)]].nonzero()[0]
        is_best = values[_ALL, rows] > 0
        self._bests[_HAS, :count][is_asked] = 0
        derived = is_best.nonzero()[0]
        if len(derived):
            is_best[derived] = self._best(rows[derived])
        return rows, is_best

    def _perhaps_unsettled(self, slots: Ints) -> Ints:
        """The groups of those rows that may come in, or stand on nothing."""
        values, bests = self._values, self._bests
        groups = values[_GROUP, slots]
        is_first = bests[_HAS, groups] == 0
        for place, _ in enumerate(self._held.grouped.values):
            at = _FIRST_VALUE + 2 * place
            is_first |= values[at, slots] <= bests[_FIRST_BEST + 2 * place, groups]
            if self._held.grouped.keeps_null:
                is_first |= values[at + 1, slots] == 0
        is_in = values[_IS_RANK, slots] > 0
        comes = ~is_in & is_first & (values[_ALL, slots] > 0)
        has_gone = ~is_in & (values[_WAS_RANK, slots] > 0)
        result = comes | has_gone | (is_in & (values[_IS_LOW, slots] == 0))
        return distinct_values(groups[result])

    def _best(self, rows: Ints) -> Bools:
        """Which of these, all rows that are derived in their groups, are best."""
        values = self._values
        groups = values[_GROUP, rows]
        order = np.argsort(groups, kind="stable")
        starts = starts_in(groups[order]).nonzero()[0]
        sizes = np.diff(starts, append=len(rows))
        is_best = np.zeros(len(rows), dtype=np.bool_)
        touched = groups[order][starts]
        self._bests[_HAS, touched] = 1
        for at in range(_FIRST_VALUE, len(values), 2):
            ranks = values[at, rows][order]
            least = np.minimum.reduceat(ranks, starts)
            self._bests[_FIRST_BEST + at - _FIRST_VALUE, touched] = least
            is_first = ranks == np.repeat(least, sizes)
            if self._has_null:
                known = values[at + 1, rows][order]
                some = np.repeat(np.maximum.reduceat(known, starts), sizes)
                is_first &= known == some
                if self._held.grouped.keeps_null:
                    is_first |= known == 0
            is_best[order] |= is_first
        return is_best

    def leave(self, slots: Ints) -> None:
        """These go out."""
        self._values[_IS_RANK, slots] = 0
        self._values[_IS_LOW, slots] = 0

    def enter(self, slots: Ints, stage: int) -> None:
        """These come in: what derives them stands there at lower ranks."""
        self._values[_IS_RANK, slots] = stage
        self._values[_IS_LOW, slots] = self._values[_ALL, slots]

    def batch(self, slots: Ints, weight: int, rank: AttributeId) -> Batch:
        """These rows with their ranks in a column of that name."""
        weights = np.full(len(slots), weight, dtype=np.int64)
        rows = self._held.batch([key.take(slots) for key in self._rows.columns()], weights)
        ranks = Vector(LONG, self._values[_IS_RANK, slots])
        return Batch({**rows.columns, rank: ranks}, weights, ())

    # The end of a step.

    def _keep_bests(self) -> None:
        """Write what is best now in groups where that changed."""
        held, bests = self._held, self._bests
        is_changed = bests[_HAS] != bests[_HAD]
        for at in range(_FIRST_BEST, len(bests), 2):
            is_changed |= (bests[at] != bests[at + 1]) & (bests[_HAS] > 0)
        slots = is_changed.nonzero()[0]
        if len(slots):
            codes, slots = self._groups.ordered(slots)
            names = zip(held.best_names, range(_FIRST_BEST, len(bests), 2), strict=True)
            result = {name: bests[at, slots] for name, at in names}
            keys = [key.take(slots) for key in self._groups.columns()]
            held.best.put(codes, keys, {HAS: bests[_HAS, slots], **result})

    def told(self) -> Batch:
        """What changed in the derivations of rows that are in: their tags."""
        accesses = self._held.accesses
        is_in = (self._values[_IS_RANK] > 0).astype(np.int64)
        moved = is_in - (self._values[_WAS_RANK] > 0)
        parts = [_signed(one, moved) for one in self._found]
        parts += [_signed(one, is_in) for one in self._changed]
        parts = [part for part in parts if len(part)]
        return stacked_batches(parts) if parts else empty_batch(accesses)

    def kept(self, *, has_moved: bool) -> Batch:
        """The step is over: keep what changed; the rows that came (+1) and went (-1).

        `has_moved`: some derivations may have gone and come again.
        """
        held = self._held
        parts = [one.rows for one in (*self._changed, *self._beaten)]
        if parts:
            changed = stacked_batches(parts)
            changed = consolidated(changed) if has_moved else changed
            held.derived.add(changed, held.derived.codes_of(changed))
        self._keep_bests()
        count, values = len(self._rows), self._values
        is_changed = np.zeros(count, dtype=np.bool_)
        for one, other in ((_IS_RANK, _WAS_RANK), (_IS_LOW, _WAS_LOW)):
            is_changed |= values[one, :count] != values[other, :count]
        slots = is_changed.nonzero()[0]
        if not len(slots):
            return empty_batch(0)
        codes, slots = self._rows.ordered(slots)
        keys = [key.take(slots) for key in self._rows.columns()]
        result = {RANK: values[_IS_RANK, slots], LOW: values[_IS_LOW, slots]}
        held.inside.put(codes, keys, result)
        signs = (result[RANK] > 0).astype(np.int64) - (values[_WAS_RANK, slots] > 0)
        moved = signs.nonzero()[0]
        return held.batch([key.take(moved) for key in keys], signs[moved])


def _with_room(values: Ints, most: int) -> Ints:
    """The same by slot, with room for so many."""
    have = values.shape[1]
    if most <= have:
        return values
    grown = np.zeros((values.shape[0], 2 * most), dtype=np.int64)
    grown[:, :have] = values
    return grown


def _signed(derived: _Derived, signs: Ints) -> Batch:
    """The tags of derivations with the signs of their rows; those of sign 0 are left out."""
    weights = derived.rows.weights * signs[derived.slots]
    result = weights.nonzero()[0]
    tags = tuple(tag.take(result) for tag in derived.rows.tags)
    return Batch({}, weights[result], tags)
