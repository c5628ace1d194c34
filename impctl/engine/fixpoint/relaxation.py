"""The values of keys after a step, each settled about once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import ascending, distinct_values, starts_in
from impctl.data.schema import LONG
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches, stacked_or_empty
from impctl.engine.fixpoint.best_values import (
    BEST,
    BODY,
    COUNTED,
    MOST,
    NET,
    NONE,
    OFFSET,
    PLACE,
    RANKED,
    SOURCE,
    WEIGHT,
    Links,
    NotIntegerStepError,
    ValuedRows,
    numbers,
)
from impctl.engine.fixpoint.frontier import NO_BODY, tags_of_all
from impctl.engine.fixpoint.rows import HAS_COLUMN, LOW_COLUMN, RANK_COLUMN, WAS
from impctl.engine.tags import Tags, stacked

if TYPE_CHECKING:
    from impctl.engine.operator import Limits
    from impctl.types import AttributeId

# The values of keys after a step, each settled about once: deletions first, then by value. Law: a
# key has the least derived value, or none; its `low` is the weight of the derivations of that value
# that have a lower rank. First, keys without a derivation of lower rank are deleted, with their
# dependents; for each, the best remaining derivation is looked up once. Then values spread along
# links, least first, in rounds of a rank each. No link has a negative offset, so a value derived
# from an improved key is beaten by its new derivation. `links` are all links; changes of the base
# and of links are given first (`Derivations`). Cost: the changes and their derivations.

_AT_ONCE = 64  # Keys that are followed whatever their values: a round takes longer than they do
_PART = 4
"""The minimum share of the keys that is followed; and those that lie no further from the least than
a link adds on average."""


class Derivations(Struct, frozen=True):
    """Derivations: the heads' slots, values, and weights; shapes (n,)."""

    heads: Ints
    values: Ints
    weights: Ints

    def keep(self, some: Bools | Ints) -> Derivations:
        return Derivations(self.heads[some], self.values[some], self.weights[some])


class Admission:
    """The last rank, the number of keys with values, and the rounds of one step so far."""

    def __init__(self, stage: int, count: int, limits: Limits) -> None:
        self.stage, self.count, self._rounds = stage, count, 0
        self._limits = limits

    def admit(self, more: int) -> int:
        """The rank of so many more keys with values; called before they get them. Applies the
        limits."""
        self.stage, self.count, self._rounds = self.stage + 1, self.count + more, self._rounds + 1
        if self._rounds > self._limits.rounds or self.count > self._limits.rows:
            # The operators decide: they may need fewer rounds.
            raise NotIntegerStepError
        return self.stage


class Settling:
    """One step by changed derivations; `bodies` are the ranks of their source keys, -1 for the
    base."""

    def __init__(
        self, rows: ValuedRows, links: Links, derivations: Derivations, bodies: Ints
    ) -> None:
        self._rows, self._links = rows, links
        self._found, self._bodies = derivations, bodies
        self._lost: list[Derivations] = []
        self._counts: list[Ints] = []  # The slots of rows whose low was recounted
        self._counted: Derivations | None = None

    def settle(self, admission: Admission) -> Ints:
        """Run the step; the slots of keys whose value, rank or low may have changed."""
        out, result = self._send_out(), self._found
        values = self._rows.values
        if not len(out) and not (result.values < values[BEST, result.heads]).any():
            # The usual case of a change: another derivation is better.
            return self._of_touched(out)
        heads = self._improve(out, admission)
        return self._count(out, heads)

    # Deletions.

    def _send_out(self) -> Ints:
        """Withdraw deleted derivations; the slots of keys without ground, with those that depend on
        them."""
        rows, links = self._rows, self._links
        front = self._take(self._found, self._bodies)
        withdrawn = [front]
        while len(front):
            values = rows.values
            values[RANKED, front] = -values[RANKED, front]
            positions = links.of(front)
            body, head, offset, net = links.columns[BODY : NET + 1, positions]
            values = rows.values
            self._lost.append(Derivations(head, values[BEST, body] + offset, -net))
            front = self._take(self._lost[-1], -values[RANKED, body])
            withdrawn.append(front)
        return np.concatenate(withdrawn)

    def _take(self, derivations: Derivations, bodies: Ints) -> Ints:
        """Count derivations into the lows of their heads; the heads that are groundless then."""
        rows = self._rows
        tight: Ints = (derivations.values == rows.values[BEST, derivations.heads]).nonzero()[0]
        if not len(tight):
            return tight
        heads: Ints = derivations.heads[tight]
        rows.know_ranks(heads)
        values = rows.values
        is_low = bodies[tight] < values[RANKED, heads]
        heads, weights = heads[is_low], derivations.weights[tight][is_low]
        if not len(heads):
            return heads
        self._counts.append(heads)
        np.add.at(values[COUNTED], heads, weights)
        low: Ints = values[COUNTED, heads]
        if low.min() < 0:
            raise NotIntegerStepError
        return distinct_values(heads[low == 0])

    # Insertions.

    def _candidates(self, out: Ints) -> Derivations:
        """All derivations for deleted keys, except from such keys, and inserted ones that are
        better."""
        rows, values = self._rows, self._rows.values
        derived = rows.stored.derived
        is_out = np.zeros(rows.count, dtype=np.bool_)
        is_out[out] = True
        parts = []
        if len(out):
            keys = rows.codes[out]
            of_out = derived.find(keys, rows.key_columns(keys))
            if len(of_out.owners):
                result = rows.in_order(of_out.rows.columns[rows.step.value])
                parts.append(Derivations(out[of_out.owners], result, of_out.rows.weights))
        for part in (self._found, *self._lost):
            counts = is_out[part.heads] | (part.values < values[BEST, part.heads])
            parts.append(part.keep(counts))
        return _summed(parts)

    def _improve(self, out: Ints, admission: Admission) -> Ints:
        """Propagate values; the slots of all keys with another one, except deleted ones."""
        rows = self._rows
        counted = self._counted = self._candidates(out)
        values = rows.values
        values[BEST, out] = NONE
        is_first = starts_in(counted.heads)
        first = is_first.nonzero()[0]
        pending = counted.heads[first]
        is_better = counted.values[first] < values[BEST, pending]
        pending = pending[is_better]
        values[BEST, pending] = counted.values[first][is_better]
        entered = [pending]
        self._enter(pending, admission, -len(out))
        values[RANKED, out[values[BEST, out] == NONE]] = 0
        while len(pending):
            pending, heads = self._relaxed(pending)
            if len(heads):
                entered.append(heads)
                self._enter(heads, admission, 0)
                pending = distinct_values(np.append(pending, heads)) if len(pending) else heads
        return np.concatenate(entered)

    def _enter(self, slots: Ints, admission: Admission, more: int) -> None:
        rows = self._rows
        rows.know_ranks(slots)
        ranks = rows.values[RANKED]
        ranks[slots] = admission.admit(more + int((ranks[slots] <= 0).sum()))

    def _relaxed(self, pending: Ints) -> tuple[Ints, Ints]:
        """Follow the links of the least of these keys; the others, and the improved heads, whose
        ranks are unchanged."""
        rows, links = self._rows, self._links
        rest = pending[:0]
        if len(pending) > _AT_ONCE and links.count:
            values = rows.values[BEST, pending]
            width = int(links.columns[OFFSET, : links.count].mean())
            some = np.partition(values, len(values) // _PART)[len(values) // _PART]
            is_near = values <= max(int(values.min()) + width, int(some))
            pending, rest = pending[is_near], pending[~is_near]
        positions = links.of(pending)
        body, head, offset, net = links.columns[BODY : NET + 1, positions]
        best = rows.values[BEST]
        result = best[body] + offset
        if len(result) and result.max() >= MOST:
            raise NotIntegerStepError
        is_better = (result < best[head]) & (net > 0)
        head, result = head[is_better], result[is_better]
        np.minimum.at(best, head, result)
        return rest, distinct_values(head) if len(head) else head

    # What counts.

    def _count(self, out: Ints, heads: Ints) -> Ints:
        """Recount the lows of keys with other values or ranks; all touched slots."""
        rows, links, counted = self._rows, self._links, self._counted
        assert counted is not None
        changed = np.concatenate([out, heads])
        values = rows.values
        values[COUNTED, changed] = 0
        is_other = np.zeros(rows.count, dtype=np.bool_)
        is_other[changed] = True
        stays = counted.values == values[BEST, counted.heads]
        stays &= is_other[counted.heads]
        np.add.at(values[COUNTED], counted.heads[stays], counted.weights[stays])
        changed = is_other.nonzero()[0]
        inside = changed[values[BEST, changed] != NONE]
        positions = links.of(inside)
        body, head, offset, net = links.columns[BODY : NET + 1, positions]
        is_low = is_other[head] & (values[BEST, body] + offset == values[BEST, head])
        is_low &= values[RANKED, body] < values[RANKED, head]
        np.add.at(values[COUNTED], head[is_low], net[is_low])
        if len(inside) and values[COUNTED, inside].min() <= 0:
            raise NotIntegerStepError
        return self._of_touched(changed)

    def _of_touched(self, changed: Ints) -> Ints:
        if not len(self._counts):
            return changed
        touched = distinct_values(np.concatenate([changed, *self._counts]))
        return self._rows.are_other(touched)


def _summed(parts: list[Derivations]) -> Derivations:
    """Derivations by head and value, ascending, each once with its sum, without zero sums."""
    heads = np.concatenate([part.heads for part in parts])
    values = np.concatenate([part.values for part in parts])
    weights = np.concatenate([part.weights for part in parts])
    if not len(heads):
        return Derivations(heads, values, weights)
    order = np.lexsort((values, heads))
    heads, values, weights = heads[order], values[order], weights[order]
    starts = starts_in(heads, values).nonzero()[0]
    sums = np.add.reduceat(weights, starts)
    if sums.min() < 0:
        raise NotIntegerStepError
    kept = starts[sums > 0]
    return Derivations(heads[kept], values[kept], sums[sums > 0])


# A step over keys and their values, from its changes to stored state. Law: state and output are
# those of the rounds of the step's operators (`BestFixpoint`), except for the numbers of ranks:
# rows, derivations, best values, and both sides of the join. Nothing changes before the step is
# sure to consist of integers alone. Cost: the changed derivations, and those of keys whose value
# changed.


class ValuedChanges:
    """One step over `rows`; `accesses` is the number of tags of the base's and the step's rows."""

    def __init__(self, rows: ValuedRows, rank: AttributeId, accesses: tuple[int, int]) -> None:
        self._rows, self._rank = rows, rank
        self._stored, self._step = rows.stored, rows.step
        self._accesses = accesses
        self._parts: list[tuple[Derivations, tuple[Tags, ...]]] = []
        """Derivations inserted or deleted, with their tags."""

    def settle(self, base: Batch | None, table: Batch | None, admission: Admission) -> None:
        """Compute the result of these inserted and deleted rows of the base and the table.
        NotIntegerStepError where not everything is an integer; then nothing was changed."""
        rows = self._rows
        self._table = table
        links = self._links = Links(self._step, rows, table)
        bodies = []
        if base is not None and len(base):
            bodies.append(self._of_base(base))
        if table is not None and len(table):
            bodies.append(self._of_table(table))
        result = _joined([part for part, _ in self._parts])
        self._touched = _NOTHING
        # The usual case of a change: another derivation is better.
        if (result.values <= rows.values[BEST, result.heads]).any():
            settling = Settling(rows, links, result, np.concatenate(bodies))
            self._touched = settling.settle(admission)

    def _of_base(self, base: Batch) -> Ints:
        rows = self._rows
        step = self._step
        values = rows.in_order(base.columns[step.value])
        heads = rows.key_slots(numbers(base.columns[step.key]))
        tags = tags_of_all(self._accesses, len(base), base.tags, of_base=True)
        self._parts.append((Derivations(heads, values, base.weights), tags))
        return np.full(len(base), NO_BODY, dtype=np.int64)

    def _of_table(self, table: Batch) -> Ints:
        rows, links = self._rows, self._links
        bodies = rows.key_slots(numbers(table.columns[self._step.table.keys[0]]))
        has_body = rows.values[BEST, bodies] != NONE
        owners = has_body.nonzero()[0]
        heads, offsets = links.heads(table), links.offsets(table)
        bodies = bodies[owners]
        slots = rows.key_slots(heads[owners])
        rows.know_ranks(bodies)
        values = rows.values[BEST, bodies] + offsets[owners]
        derivations = Derivations(slots, values, table.weights[owners])
        tags = tuple(tag.take(owners) for tag in table.tags)
        self._parts.append((derivations, self._of_step(len(owners), tags)))
        ranks: Ints = rows.values[RANKED, bodies]
        return ranks

    def _of_step(self, rows: int, tags: tuple[Tags, ...]) -> tuple[Tags, ...]:
        return tags_of_all(self._accesses, rows, tags, of_base=False)

    # The end of the step.

    def keep(self) -> Batch:
        """End the step and store its changes; the rows inserted (+1) and deleted (-1)."""
        values, step, touched = self._rows.values, self._step, self._touched
        is_moved = values[BEST, touched] != values[WAS + BEST, touched]
        moved = self._moved = touched[is_moved]
        pairs = self._move(moved) if len(moved) else 0
        self._keep_derived()
        if self._table is not None and len(self._table):
            step.join.take_in(1 - step.side, self._table, 0)
        if not len(touched):
            return empty_batch(0)
        self._keep_best(moved)
        self._keep_inside(touched, is_moved)
        ranked = touched[is_moved | (values[RANKED, touched] != values[WAS + RANKED, touched])]
        self._keep_own(ranked, pairs)
        parts = []
        for index, sign in ((WAS + BEST, -1), (BEST, 1)):
            slots = moved[values[index, moved] != NONE]
            weights = np.full(len(slots), sign, dtype=np.int64)
            parts.append(Batch(self._columns(slots, index), weights, ()))
        return stacked_or_empty(parts, 0)

    def end(self) -> bool:
        """Leave the lookups to the next step; whether it may reuse them."""
        return self._rows.end(self._touched, self._links.linked)

    def _columns(self, slots: Ints, index: int) -> dict[AttributeId, Vector]:
        values = self._rows.values
        columns = self._rows.row_columns(self._rows.codes[slots], values[index, slots])
        return dict(zip(self._stored.names, columns, strict=True))

    def _move(self, moved: Ints) -> int:
        rows, links = self._rows, self._links
        pairs = 0
        for index, sign in ((WAS + BEST, -1), (BEST, 1)):
            slots = moved[rows.values[index, moved] != NONE]
            positions = links.of(slots) if len(slots) else slots
            if not len(positions):
                continue
            pairs += len(positions)
            body, head, offset = links.columns[BODY : OFFSET + 1, positions]
            result = rows.values[index, body] + offset
            weights = sign * links.columns[WEIGHT, positions]
            for part, tags in self._tagged(positions):
                every = Derivations(head, result, weights)
                self._parts.append((every if part is None else every.keep(part), tags))
        return pairs

    def _tagged(self, positions: Ints) -> Sequence[tuple[Ints | None, tuple[Tags, ...]]]:
        """Which of these links are of one source, None for all, and their tags."""
        links = self._links
        if not any(self._accesses):
            return [(None, ())]
        source, rows = links.columns[SOURCE, positions], links.columns[PLACE, positions]
        result: list[tuple[Ints | None, tuple[Tags, ...]]] = []
        for number in range(links.sources):
            part = (source == number).nonzero()[0]
            if len(part):
                tags = tuple(tag.take(rows[part]) for tag in links.tags(number))
                result.append((part, self._of_step(len(part), tags)))
        return result

    def _keep_derived(self) -> None:
        parts = self._parts
        result = self._every = _joined([part for part, _ in parts])
        if not len(result.heads):
            return
        counts = range(sum(self._accesses))
        self._tags = tuple(stacked([tags[index] for _, tags in parts]) for index in counts)
        self._report = self._tags_to_report()
        keys = self._rows.codes[result.heads]
        columns = self._rows.row_columns(keys, result.values)
        rows = Batch(
            dict(zip(self._stored.names, columns, strict=True)), result.weights, self._tags
        )
        self._stored.derived.add(rows, keys)

    def _tags_to_report(self) -> Batch:
        if not any(self._accesses):
            return empty_batch(0)
        rows, result, moved = self._rows, self._every, self._moved
        values = rows.values
        is_in = result.values == values[BEST, result.heads]
        parts = [Batch({}, result.weights, self._tags).keep(is_in)] if is_in.any() else []
        if len(moved) and self._stored.best.runs:
            keys = rows.codes[moved]
            of_moved = self._stored.derived.find(keys, rows.key_columns(keys))
            if len(of_moved.owners):
                column = of_moved.rows.columns[self._step.value]
                order = ~column.values if self._step.is_greatest else column.values
                of = moved[of_moved.owners]
                signs = (order == values[BEST, of]).astype(np.int64)
                signs -= order == values[WAS + BEST, of]
                # NULL is what no key has here.
                signs *= column.validity()
                derived = Batch({}, of_moved.rows.weights * signs, of_moved.rows.tags)
                parts.append(derived.keep(signs != 0))
        return stacked_or_empty(parts, sum(self._accesses))

    @property
    def report(self) -> Batch:
        """What changed in the derivations of rows that are in: their tags; after `keep`."""
        return self._report if len(self._every.heads) else empty_batch(sum(self._accesses))

    def _keep_best(self, moved: Ints) -> None:
        if not len(moved):
            return
        values, stored = self._rows.values, self._stored
        moved = self._rows.ordered(moved)
        keys, best = self._rows.codes[moved], values[BEST, moved]
        has = (best != NONE).astype(np.int64)
        result = {HAS_COLUMN: has, stored.best_names[0]: np.where(has > 0, best, 0)}
        stored.best.put(keys, self._rows.key_columns(keys), result)

    def _keep_inside(self, touched: Ints, is_moved: Ints) -> None:
        values = self._rows.values
        deleted = touched[is_moved & (values[WAS + BEST, touched] != NONE)]
        present = touched[values[BEST, touched] != NONE]
        slots = np.concatenate([deleted, present])
        if not len(slots):
            return
        best = np.concatenate([values[WAS + BEST, deleted], values[BEST, present]])
        is_in = np.arange(len(slots)) >= len(deleted)
        codes, columns = self._rows.rows(slots, best)
        order = ascending(codes)
        result = {
            name: np.where(is_in, values[index, slots], 0)[order]
            for name, index in ((RANK_COLUMN, RANKED), (LOW_COLUMN, COUNTED))
        }
        self._stored.arrangement.put(
            codes[order], [column.take(order) for column in columns], result
        )

    def _keep_own(self, ranked: Ints, pairs: int) -> None:
        values, step = self._rows.values, self._step
        parts = []
        for index, sign in ((WAS, -1), (0, 1)):
            slots = ranked[values[index + BEST, ranked] != NONE]
            if len(slots):
                columns = self._columns(slots, index + BEST)
                columns[self._rank] = Vector(LONG, values[index + RANKED, slots])
                of_side = {name: columns[source] for name, source in step.rows.items()}
                parts.append(Batch(of_side, np.full(len(slots), sign, dtype=np.int64), ()))
        if parts:
            step.join.take_in(step.side, stacked_batches(parts), pairs)


def _joined(parts: Sequence[Derivations]) -> Derivations:
    if len(parts) == 1:
        return parts[0]
    heads = np.concatenate([_NOTHING, *(part.heads for part in parts)])
    values = np.concatenate([_NOTHING, *(part.values for part in parts)])
    return Derivations(heads, values, np.concatenate([_NOTHING, *(p.weights for p in parts)]))


_NOTHING = np.zeros(0, dtype=np.int64)
