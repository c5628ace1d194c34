"""Grouping: counts, sums, extremes and spreads, with groups kept or read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from impctl.data.keys import Grouping, group_normal
from impctl.data.vector import Ints, Vector, concat, from_stored
from impctl.engine.accumulators import (
    PARTIAL_ROWS,
    AggregateColumn,
    ChangedGroups,
    Count,
    DistinctValues,
    Extremes,
    Firsts,
    FloatSum,
    PartialColumn,
    Picked,
    Values,
    clear_empty,
    outputs_of,
    parts_of,
    takes_bounds,
)
from impctl.engine.accumulators import ROWS as _ROWS
from impctl.engine.batch import Batch, disagreement, empty_batch, never_held, stacked_batches
from impctl.engine.extremes import Extreme, OrderedCounts
from impctl.engine.lookups import DistantRows, KeyFilter, Refill
from impctl.engine.operator import Operator
from impctl.engine.range_counts import GroupTags, RangeCounts, numbered
from impctl.engine.tags import RowTags, Tags, no_ranges
from impctl.engine.trace import Arrangement, RowIndex, Run
from impctl.expr.error_bounds import refuse_unsure
from impctl.sketch.sketch import RangePartition
from impctl.types import AttributeId

if TYPE_CHECKING:
    from impctl.data.schema import SqlType

# Grouping with counts, sums, spreads, extremes, and counts and sums over distinct values. Identity:
# for every group whose input changed, the output's change is minus its old row plus its new row.
# State, per group: the row count and its accumulators; per (group, value): a count, for extremes
# and DISTINCT; per (group, range): the row count, unless the input is keyed (then all rows of a
# group carry the same range, which the batch gives). Cost: the batch's rows and changed groups, and
# the ranges of groups that enter or leave the result; never the state. NULL is a key. A group whose
# row count reaches zero is deleted; without keys there is always one group. Where MIN_BY has a
# choice, there is a row for every value that Spark may take. A count below zero is an error.

_GROUP = "group"
KeyRanges = tuple[AttributeId, RangePartition]


class AggregateOperator(Operator):
    """GROUP BY `keys` with `columns`; `is_keyed` says that a group has one range per access."""

    def __init__(
        self,
        name: str,
        keys: Sequence[tuple[AttributeId, SqlType]],
        columns: Sequence[AggregateColumn],
        *,
        accesses: int,
        is_keyed: bool,
        is_distinct: bool = False,
        distinct: Mapping[AttributeId, SqlType] | None = None,
        first_types: Mapping[AttributeId, SqlType] | None = None,
        key_ranges: KeyRanges | None = None,
    ) -> None:
        """`is_distinct`: without keys there is a row only where there is input. `key_ranges`: of
        keyed input, the key that determines a group's range, and how. `distinct` are the arguments
        of DISTINCT calls with their types; `first_types` the types of the arguments of every
        `First`."""
        self.piece = name
        self.keys = tuple(keys)
        self.group_keys = tuple(key for key, _ in self.keys)
        self.columns = tuple(columns)
        self.form = (self.keys, self.columns)
        self.is_keyed = is_keyed
        self.is_global = not keys and not is_distinct
        self.accesses = accesses
        parts = parts_of(self.columns)
        self.accumulators = tuple(part for part in parts if not isinstance(part, Extreme))
        """The accumulators, in the order of their slots."""
        self._extremes = Extremes(name, [part for part in parts if isinstance(part, Extreme)])
        self.buffered = [keeper.name for keeper in self._extremes.arrangements()]
        self._firsts = Firsts(name, self.columns, first_types or {})
        sums = any(isinstance(part, FloatSum) for part in self.accumulators)
        ties = any(kind.is_fractional for kind in (first_types or {}).values())
        self.is_deterministic = not (sums or ties)
        """Whether the output is a function of the bag of input rows to the bit: sums of doubles
        depend on the order of changes, and of tied 0.0 and -0.0 the first stands for both."""
        self._distinct = {
            argument: DistinctValues(f"{name}.distinct{position}", kind)
            for position, (argument, kind) in enumerate((distinct or {}).items())
        }
        self._has_numbers = not is_keyed or self.needs_rows
        self._groups = Arrangement(
            f"{name}.groups", [kind for _, kind in keys], _ROWS, lambda: self._stored_columns
        )
        counted = range(0 if is_keyed else accesses)
        self._ranges = tuple(RangeCounts(f"{name}.fragments{index}") for index in counted)
        self._next_group, self._counter = 1, f"{name}.next_group"
        self._key_ranges = key_ranges

    @property
    def is_bounded(self) -> bool:
        return any(part.size is not None for part in self._extremes.parts)

    def refill_from(self, refill: Refill) -> None:
        self._extremes.refill = refill

    def shed(self) -> None:
        run = self._groups.whole()
        # Kept whole they are without the edges of buffers: later ones would take them for theirs.
        self._groups.clear()
        if run is not None:
            state = self._state_of(run)
            state.update(self._extremes.settled(state[_GROUP], state))
            self._groups.put(run.codes, self._keys_of(run), state)

    def keep_all(self, rows: Iterable[Batch]) -> None:
        self._extremes.clear()
        for batch in rows:
            grouping, groups = self._known_groups(batch)
            self._extremes.count(batch, groups[grouping.index()])
        self.shed()

    @property
    def needs_rows(self) -> bool:
        """Whether only rows fill the state: partial aggregates do not give each value's count."""
        return bool(self._extremes.parts or self._distinct or self._firsts)

    def step(self, batch: Batch) -> Batch:
        """Minus the old rows, plus the new rows of the changed groups."""
        if len(batch) == 0:
            return empty_batch(self.accesses)
        parts = (*self.accumulators, *self._extremes.parts)
        arguments = [part.argument for part in parts if not takes_bounds(part)]
        arguments += [*self._firsts.arguments, *self._distinct, *(name for name, _ in self.keys)]
        refuse_unsure([batch.columns[argument] for argument in arguments])
        keys, grouping = batch.grouped_by([name for name, _ in self.keys])
        return self._apply(keys, grouping, batch.tags, batch.weights, batch)

    def _delta(self, batch: Batch, grouping: Grouping, groups: Ints) -> Values:
        delta: Values = {_ROWS: grouping.sums(batch.weights)}
        once: dict[AttributeId, Ints] = {}
        for argument, values in self._distinct.items():
            owners = groups[grouping.index()]
            once[argument] = values.crossings(owners, batch.columns[argument], batch.weights)
        for accumulator in self.accumulators:
            argument = accumulator.argument
            weights = once.get(argument, batch.weights)
            delta.update(accumulator.delta(batch.columns[argument], weights, grouping))
        return delta

    def absorb(
        self,
        keys: Sequence[Vector],
        partials: Mapping[PartialColumn, Any],
        tags: tuple[Tags, ...],
        sign: int = 1,
    ) -> Batch:
        """Count partial aggregates: one row per (group, range) or group. `partials` has `ROWS` and
        the accumulators' columns; `sign` is -1 for deleted rows. Returns the change of the
        output."""
        rows = partials[PARTIAL_ROWS] * sign
        if len(rows) == 0:
            return self.step(empty_batch(self.accesses))
        keys, grouping = group_normal(keys, len(rows))
        delta: Values = {_ROWS: np.add.reduceat(rows[grouping.order], grouping.starts)}
        for accumulator in self.accumulators:
            delta.update(accumulator.partial(partials, grouping, sign))
        return self._apply(keys, grouping, tags, rows, delta)

    def adopt(
        self,
        other: AggregateOperator,
        targets: Ints,
        recounted: Iterable[Batch],
        key_tags: Callable[[Sequence[Vector]], Tags] | None,
    ) -> Batch:
        """Fill the empty state from that of the same grouping under other ranges, one access.

        Groups stay the same, ranges map by `targets` (see `RangeCounts.adopt`); the rows of
        ranges at -1 come again in `recounted`, with their new tags. `key_tags` maps keys to ranges
        in a keyed grouping. Returns the output as one batch of insertions (without keys, the change
        from the empty input's row).
        """
        run = other._groups.whole()
        if run is None:
            return empty_batch(self.accesses)
        keys = self._keys_of(run)
        self._groups.put(run.codes, keys, run.values)
        self._next_group = other._next_group
        state = self._state_of(run)
        if key_tags is not None:
            tags = key_tags(keys)
        else:
            (left,), (right,) = self._ranges, other._ranges
            left.adopt(right, targets)
            for batch in recounted:
                grouping, groups = self._known_groups(batch)
                left.count(groups, batch.tags[0].expand(grouping.index(), batch.weights))
            tags = left.sets_of(state[_GROUP])
        now = self._inserted(keys, state, tags)
        return stacked_batches([self._empty_row().negated(), now]) if self.is_global else now

    @property
    def can_output(self) -> bool:
        return not self._firsts and (not self.is_keyed or self._key_ranges is not None)

    @property
    def can_refill(self) -> bool:
        # As releases before did: with a bound, what is above has other state.
        return self.can_output and bool(self.keys) and not self.is_keyed

    def output(self) -> Batch:
        """The rows of all groups. Cost: the groups, and their ranges."""
        run = self._groups.whole()
        if run is None:
            return self._empty_row() if self.is_global else empty_batch(self.accesses)
        keys, state = self._keys_of(run), self._state_of(run)
        if self._key_ranges is None:
            tags: tuple[Tags, ...] = tuple(c.sets_of(state[_GROUP]) for c in self._ranges)
        else:
            key, partition = self._key_ranges
            position = [name for name, _ in self.keys].index(key)
            tags = (RowTags(partition.range_ids_of(keys[position])),)
        return self._inserted(keys, state, *tags)

    def group_codes(self) -> Ints:
        run = self._groups.whole()
        return np.zeros(0, dtype=np.int64) if run is None else run.codes

    def group_bytes(self) -> int:
        return sum(part.bytes_held for part in self.arrangements())

    def keep_again(self, index: int, rows: Batch) -> None:
        assert index == 0, "a grouping has one input"
        self.step(rows)

    def _keys_of(self, run: Run) -> list[Vector]:
        kinds = [kind for _, kind in self.keys]
        return [from_stored(part, kind) for part, kind in zip(run.keys, kinds, strict=True)]

    def _state_of(self, run: Run) -> Values:
        return {
            name: run.values.get(name, np.zeros(len(run), dtype=kind))
            for name, kind in self._state_columns.items()
        }

    def _inserted(self, keys: Sequence[Vector], state: Values, *tags: Tags) -> Batch:
        columns = {name: key for (name, _), key in zip(self.keys, keys, strict=True)}
        columns.update(outputs_of(self.columns, state))
        return Batch(columns, np.ones(len(state[_ROWS]), dtype=np.int64), tags)

    def _known_groups(self, batch: Batch) -> tuple[Grouping, Ints]:
        keys, grouping = batch.grouped_by([name for name, _ in self.keys])
        leaders = [key.take(grouping.first) for key in keys]
        groups: Ints = self._groups.gather(self._groups.find(grouping.codes, leaders), _GROUP)
        if bool((groups == 0).any()):
            raise disagreement(
                "The table has rows of a group that the stored state never contained"
            )
        return grouping, groups

    def start(self) -> Batch | None:
        return self._empty_row() if self.is_global else None

    def _empty_row(self) -> Batch:
        empty = {name: np.zeros(1, dtype=kind) for name, kind in self._state_columns.items()}
        tags = tuple(no_ranges(1) for _ in range(self.accesses))
        batch = Batch(outputs_of(self.columns, empty), np.ones(1, np.int64), tags)
        return self._firsts.spread_out(batch, self._firsts.nothing())

    def _apply(
        self,
        keys: list[Vector],
        grouping: Grouping,
        tags: tuple[Tags, ...],
        weights: Ints,
        rows: Batch | Values,
    ) -> Batch:
        """Count grouped rows, as a batch or as their partial aggregates."""
        leaders = [key.take(grouping.first) for key in keys]
        located = self._groups.find(grouping.codes, leaders)
        old: Values = {
            name: self._groups.gather(located, name, dtype)
            for name, dtype in self._state_columns.items()
        }
        groups = old[_ROWS]
        if self._has_numbers:
            groups, self._next_group = numbered(old[_GROUP], self._next_group)
        delta = self._delta(rows, grouping, groups) if isinstance(rows, Batch) else rows
        new: Values = {_ROWS: old[_ROWS] + delta[_ROWS]}
        for accumulator in self.accumulators:
            new.update(accumulator.add(old, delta))
        self._check(new)
        picked = self._firsts.nothing()
        if isinstance(rows, Batch) and (self._extremes.parts or self._firsts):
            changed = ChangedGroups(groups, grouping.index(), leaders, self.group_keys)
            new.update(self._extremes.change(rows, changed, old, new))
            picked = self._firsts.step(rows, groups, grouping, old, new)
        clear_empty(new, (*self.accumulators, *self._extremes.parts))
        if self._has_numbers:
            new[_GROUP] = groups
        group_tags = self._retag(tags, grouping, weights, new)
        self._groups.put(grouping.codes, leaders, new)
        return self._emit(leaders, old, new, group_tags, picked)

    @cached_property
    def _state_columns(self) -> dict[str, Any]:
        names: dict[str, Any] = {_ROWS: np.int64}
        if self._has_numbers:
            names[_GROUP] = np.int64
        for part in (*self.accumulators, *self._extremes.parts):
            names.update(part.columns)
        return names

    @property
    def _stored_columns(self) -> dict[str, Any]:
        """The columns that stored groups may have, those of an earlier buffer included."""
        edges = dict.fromkeys((part.edge for part in self._extremes.parts), np.int64)
        return {**self._state_columns, **edges}

    def _check(self, state: Values) -> None:
        counts = [state[_ROWS]]
        counts += [state[f"count{a.slot}"] for a in self.accumulators if isinstance(a, Count)]
        if any(bool((count < 0).any()) for count in counts):
            raise never_held("rows")

    def _retag(
        self, tags: tuple[Tags, ...], grouping: Grouping, weights: Ints, new: Values
    ) -> tuple[Tags, ...]:
        twice = np.tile(np.arange(grouping.groups, dtype=np.int64), 2)
        if self.is_keyed or not tags:
            return tuple(tag.take(grouping.first[twice]) for tag in tags)
        index = grouping.index()
        is_new = np.arange(len(twice)) >= grouping.groups
        return tuple(
            GroupTags(counts.count(new[_GROUP], tag.expand(index, weights)), twice, is_new)
            for counts, tag in zip(self._ranges, tags, strict=True)
        )

    def _emit(
        self,
        leaders: Sequence[Vector],
        old: Values,
        new: Values,
        tags: tuple[Tags, ...],
        picked: Picked,
    ) -> Batch:
        """Old rows with weight -1 and new rows with +1, where the group exists."""
        both = {name: np.concatenate([old[name], new[name]]) for name in self._state_columns}
        columns = {
            name: concat([key, key]) for (name, _), key in zip(self.keys, leaders, strict=True)
        }
        columns.update(outputs_of(self.columns, both))
        weights = np.repeat(np.array([-1, 1], dtype=np.int64), len(old[_ROWS]))
        exists = np.ones(len(weights), np.bool_) if self.is_global else both[_ROWS] > 0
        if self._firsts:
            return self._firsts.spread_out(Batch(columns, weights, tags), picked, exists)
        return Batch(columns, weights, tags).keep(exists)

    def arrangements(self) -> tuple[Arrangement | OrderedCounts | RowIndex, ...]:
        return (
            self._groups,
            *(counts.arrangement for counts in self._ranges),
            *self._extremes.arrangements(),
            *(values.arrangement for values in self._distinct.values()),
            *self._firsts.arrangements,
        )

    def counters(self) -> Mapping[str, int]:
        return {self._counter: self._next_group}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._next_group = counters[self._counter]


# Grouping whose groups are not stored: the rows of changed groups are read from the tables.
# Identity: that of `AggregateOperator`, to the bit. A changed group's rows before the step are
# those read (as after it) minus the step's; a grouping of these, stepped by the change, gives the
# old and the new row. State: a filter of the groups' keys; a key that is not in it is new, and
# nothing is read. Cost: the reading, and the rows of the changed groups. NULL is a key. A group
# whose last row is deleted gives its old row only; its key stays in the filter. The output must be
# a function of the bag of the group's rows, so that a retracted row equals the emitted one: see
# `AggregateOperator.is_deterministic`.


class GroupsRead(Operator):
    """The grouping that `create` returns, over rows with these columns; it has keys."""

    def __init__(
        self,
        columns: Sequence[tuple[AttributeId, SqlType]],
        create: Callable[[], AggregateOperator],
    ) -> None:
        """`create` returns a new, empty grouping, which keeps all values of its extremes."""
        self._create = create
        form = create()
        self.form, self.group_keys, self._accesses = form.form, form.group_keys, form.accesses
        self._can_refill, self._counters = form.can_refill, form.counters()
        self.piece = form.piece
        self._rows = DistantRows(form.piece, columns, self.group_keys, form.accesses)
        self._filling: AggregateOperator | None = None
        self._filled_bytes = 0

    def fill(self, is_filling: bool) -> None:
        """Keep the groups while the circuit is filled, since all of its rows pass."""
        if is_filling:
            self._filling = self._create()
        elif self._filling is not None:
            codes = self._filling.group_codes()
            self.know(codes)
            self._rows.filled_rows = len(codes)
            self._filled_bytes = self._filling.group_bytes()
            self._filling = None

    def know(self, codes: Ints) -> None:
        self._rows.know(codes)

    def group_bytes(self) -> int:
        return self._filled_bytes

    def step(self, batch: Batch) -> Batch:
        if self._filling is not None:
            return self._filling.step(batch)
        if len(batch) == 0:
            return empty_batch(self._accesses)
        codes = self._rows.codes_of(batch)
        keys, grouping = batch.grouped_by(self.group_keys)
        self._rows.expect(batch, codes)
        before = self._rows.find(codes[grouping.first], [key.take(grouping.first) for key in keys])
        self._rows.add(batch, codes)
        groups = self._create()
        if len(before.rows):
            groups.step(before.rows)
        return groups.step(batch)

    @property
    def reads(self) -> tuple[DistantRows, ...]:
        return (self._rows,)

    @property
    def can_refill(self) -> bool:
        return self._can_refill

    def output(self) -> Batch:
        """The rows of all groups as after this step. Cost: reading all rows of the input."""
        if self._filling is not None:
            return self._filling.output()
        groups = self._create()
        for rows in self._rows.whole():
            groups.step(rows)
        return groups.output()

    def arrangements(self) -> tuple[KeyFilter, ...]:
        return self._rows.arrangements()

    def counters(self) -> Mapping[str, int]:
        """The first group number once groups are kept."""
        return self._counters
