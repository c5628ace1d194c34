"""A step over keys and their values (`settling`), from the changes that it is of to what is kept.

Law: what is kept and told then is what the rounds of the step's operators would leave
(`operators.best_fixpoint`), but for the numbers of ranks: rows, derivations, best values, and both
sides of the join. Nothing is changed before the step is sure to be for numbers alone.
Cost: the derivations that came or went, and those of keys that have another value.
Out of scope: which values there are (`engine.fixpoint.settling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from impctl.data.keys import ascending
from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.fixpoint.best_rows import HAS, LOW, RANK
from impctl.engine.fixpoint.one_by_one import OneByOne
from impctl.engine.fixpoint.settling import Admission, Derivations, Settling
from impctl.engine.fixpoint.valued_links import BODY, OFFSET, PLACE, SOURCE, WEIGHT, Links
from impctl.engine.fixpoint.valued_rows import (
    BEST,
    COUNTED,
    KEY,
    NONE,
    RANKED,
    WAS,
    ValuedRows,
    numbers,
)
from impctl.engine.operators.recursion import NO_BODY
from impctl.engine.tags import Tags, no_fragments, stacked
from impctl.types import AttributeId


class ValuedChanges:
    """One step over `rows`; `accesses` are how many tags the base's rows carry, and the step's."""

    def __init__(self, rows: ValuedRows, rank: AttributeId, accesses: tuple[int, int]) -> None:
        self._rows, self._rank = rows, rank
        self._held, self._step = rows.held, rows.step
        self._accesses = accesses
        self._parts: list[tuple[Derivations, tuple[Tags, ...]]] = []
        """Derivations that came or went, with their tags."""

    def settle(
        self, base: Batch | None, table: Batch | None, admission: Admission, few: int
    ) -> None:
        """Find out what there is after these rows of the base and the table came or went; of few
        keys one by one.

        NotThisWayError where that is not for numbers alone: then all is as it was.
        """
        rows = self._rows
        self._table = table
        links = self._links = Links(self._step, rows, table)
        bodies = []
        if base is not None and len(base):
            bodies.append(self._of_base(base))
        if table is not None and len(table):
            bodies.append(self._of_table(table))
        result = _joined([part for part, _ in self._parts])
        every = np.concatenate([*bodies, _NOTHING])
        self.admitted = admission
        best = rows.values[BEST, result.heads]
        # As of most that comes or goes: another way is better.
        touched = None if (result.values <= best).any() else _NOTHING
        if touched is None and len(result.heads) <= few:
            self.admitted = copy(admission)
            touched = OneByOne(rows, links, few).settle(result, every, self.admitted)
        if touched is None:
            self.admitted = admission
            touched = Settling(rows, links, result, every).settle(admission)
        self._touched = touched

    def _of_base(self, base: Batch) -> Ints:
        rows = self._rows
        step = self._step
        values = rows.ordered(base.columns[step.value])
        heads = rows.slots_of(numbers(base.columns[step.key]))
        none = tuple(no_fragments(len(base)) for _ in range(self._accesses[1]))
        self._parts.append((Derivations(heads, values, base.weights), (*base.tags, *none)))
        return np.full(len(base), NO_BODY, dtype=np.int64)

    def _of_table(self, table: Batch) -> Ints:
        """What changed rows derive from the values as they were."""
        rows, links = self._rows, self._links
        bodies = rows.slots_of(numbers(table.columns[self._step.table.keys[0]]))
        has_body = rows.values[BEST, bodies] != NONE
        owners = has_body.nonzero()[0]
        heads, offsets = links.heads(table), links.offsets(table)
        bodies = bodies[owners]
        slots = rows.slots_of(heads[owners])
        rows.know_ranks(bodies)
        values = rows.values[BEST, bodies] + offsets[owners]
        derivations = Derivations(slots, values, table.weights[owners])
        tags = tuple(tag.take(owners) for tag in table.tags)
        self._parts.append((derivations, self._padded(len(owners), tags)))
        ranks: Ints = rows.values[RANKED, bodies]
        return ranks

    def _padded(self, rows: int, tags: tuple[Tags, ...]) -> tuple[Tags, ...]:
        return (*(no_fragments(rows) for _ in range(self._accesses[0])), *tags)

    # The end of the step.

    def keep(self) -> Batch:
        """The step is over: keep what changed; the rows that came (+1) and went (-1)."""
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
        parts = [
            Batch(self._columns(moved[mask], at), _weights(mask, sign), ())
            for at, sign in ((WAS + BEST, -1), (BEST, 1))
            if (mask := values[at, moved] != NONE).any()
        ]
        return stacked_batches(parts) if parts else empty_batch(0)

    def end(self) -> bool:
        """What was found out is left to the next step; whether that may begin from it."""
        return self._rows.end(self._touched, self._links.linked)

    def _columns(self, slots: Ints, at: int) -> dict[AttributeId, Vector]:
        """The rows of these keys with their values there."""
        values = self._rows.values
        columns = self._rows.columns(values[KEY, slots], values[at, slots])
        return dict(zip(self._held.names, columns, strict=True))

    def _move(self, moved: Ints) -> int:
        """What keys with other values derived, and derive now; how much that is."""
        rows, links = self._rows, self._links
        pairs = 0
        for at, sign in ((WAS + BEST, -1), (BEST, 1)):
            slots = moved[rows.values[at, moved] != NONE]
            if not len(slots):
                continue
            places = links.of(slots)
            if not len(places):
                continue
            pairs += len(places)
            body, head, offset = links.held[BODY : OFFSET + 1, places]
            result = rows.values[at, body] + offset
            weights = sign * links.held[WEIGHT, places]
            for part, tags in self._tagged(places):
                every = Derivations(head, result, weights)
                self._parts.append((every if part is None else every.keep(part), tags))
        return pairs

    def _tagged(self, places: Ints) -> Sequence[tuple[Ints | None, tuple[Tags, ...]]]:
        """Which of these links are of one source, None for all, and their tags."""
        links = self._links
        if not any(self._accesses):
            return [(None, ())]
        source, place = links.held[SOURCE, places], links.held[PLACE, places]
        result: list[tuple[Ints | None, tuple[Tags, ...]]] = []
        for number in range(links.sources):
            part = (source == number).nonzero()[0]
            if len(part):
                tags = tuple(tag.take(place[part]) for tag in links.tags(number))
                result.append((part, self._padded(len(part), tags)))
        return result

    def _keep_derived(self) -> None:
        parts = self._parts
        result = self._every = _joined([part for part, _ in parts])
        if not len(result.heads):
            return
        counts = range(sum(self._accesses))
        self._tags = tuple(stacked([tags[at] for _, tags in parts]) for at in counts)
        self._told = self._telling()
        keys = self._rows.values[KEY, result.heads]
        columns = self._rows.columns(keys, result.values)
        rows = Batch(dict(zip(self._held.names, columns, strict=True)), result.weights, self._tags)
        self._held.derived.add(rows, keys)

    def _telling(self) -> Batch | None:
        """What changed in the derivations of rows that are in: their tags."""
        if not any(self._accesses):
            return None
        rows, result, moved = self._rows, self._every, self._moved
        values = rows.values
        is_in = result.values == values[BEST, result.heads]
        parts = [Batch({}, result.weights, self._tags).keep(is_in)] if is_in.any() else []
        if len(moved) and self._held.best.runs:
            keys = values[KEY, moved]
            of_moved = self._held.derived.find(keys, rows.key_columns(keys))
            if len(of_moved.owners):
                column = of_moved.rows.columns[self._step.value]
                order = ~column.values if self._step.is_greatest else column.values
                of = moved[of_moved.owners]
                signs = (order == values[BEST, of]).astype(np.int64)
                signs -= order == values[WAS + BEST, of]
                # NULL is what no key has here.
                signs *= column.validity()
                told = Batch({}, of_moved.rows.weights * signs, of_moved.rows.tags)
                parts.append(told.keep(signs != 0))
        parts = [part for part in parts if len(part)]
        return stacked_batches(parts) if parts else None

    @property
    def told(self) -> Batch:
        """What changed in the derivations of rows that are in: their tags; after `keep`."""
        told = self._told if len(self._every.heads) else None
        return empty_batch(sum(self._accesses)) if told is None else told

    def _keep_best(self, moved: Ints) -> None:
        if not len(moved):
            return
        values, held = self._rows.values, self._held
        moved = moved[ascending(values[KEY, moved])]
        keys, best = values[KEY, moved], values[BEST, moved]
        has = (best != NONE).astype(np.int64)
        result = {HAS: has, held.best_names[0]: np.where(has > 0, best, 0)}
        held.best.put(keys, self._rows.key_columns(keys), result)

    def _keep_inside(self, touched: Ints, is_moved: Ints) -> None:
        values = self._rows.values
        gone = touched[is_moved & (values[WAS + BEST, touched] != NONE)]
        stay = touched[values[BEST, touched] != NONE]
        slots = np.concatenate([gone, stay])
        if not len(slots):
            return
        best = np.concatenate([values[WAS + BEST, gone], values[BEST, stay]])
        is_in = np.arange(len(slots)) >= len(gone)
        codes, columns = self._rows.rows(slots, best)
        order = ascending(codes)
        result = {
            name: np.where(is_in, values[at, slots], 0)[order]
            for name, at in ((RANK, RANKED), (LOW, COUNTED))
        }
        self._held.inside.put(codes[order], [column.take(order) for column in columns], result)

    def _keep_own(self, ranked: Ints, pairs: int) -> None:
        """Bring the join's rows up to date."""
        values, step = self._rows.values, self._step
        parts = []
        for at, sign in ((WAS, -1), (0, 1)):
            slots = ranked[values[at + BEST, ranked] != NONE]
            if len(slots):
                columns = self._columns(slots, at + BEST)
                columns[self._rank] = Vector(LONG, values[at + RANKED, slots])
                of_side = {name: columns[own] for name, own in step.rows.items()}
                parts.append(Batch(of_side, np.full(len(slots), sign, dtype=np.int64), ()))
        if parts:
            step.join.take_in(step.side, stacked_batches(parts), pairs)


def _joined(parts: Sequence[Derivations]) -> Derivations:
    if len(parts) == 1:
        return parts[0]
    heads = np.concatenate([_NOTHING, *(part.heads for part in parts)])
    values = np.concatenate([_NOTHING, *(part.values for part in parts)])
    return Derivations(heads, values, np.concatenate([_NOTHING, *(p.weights for p in parts)]))


def _weights(mask: Ints, sign: int) -> Ints:
    return np.full(int(np.count_nonzero(mask)), sign, dtype=np.int64)


_NOTHING = np.zeros(0, dtype=np.int64)
