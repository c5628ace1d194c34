"""The frontier of a fixpoint whose step is one join with one table.

Law: as `frontier` has it, without stepping the operators. The table rows that join deleted rows are
looked up once, and reused when these come in again; the derivations of such a row are emitted only
if it stays out. The join's rows of the fixpoint are updated at the end, by the changes. Small
fronts are followed row by row (`small_frontier`). Cost: a lookup per row that goes or comes for the
first time in this step, and the derivations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from impctl.data.keys import distinct_values, key_codes, normalise
from impctl.data.vector import Ints, Vector, slice_positions
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.fixpoint.frontier import (
    Admit,
    DeletedDerivations,
    DerivationTags,
    Derived,
    Dismiss,
    FixpointStep,
)
from impctl.engine.fixpoint.rows import FIRST, LAST, NAMES, IndexView, TouchedRows, Views
from impctl.engine.fixpoint.small_frontier import (
    ChangedRows,
    PlainStep,
    TableRuns,
    ThinFronts,
    table_runs,
)

if TYPE_CHECKING:
    from impctl.engine.tags import Tags
    from impctl.types import AttributeId


class CachedViews:
    """Views of the stored rows of the fixpoint, by their keys, and of the table's."""

    def __init__(self) -> None:
        self.stored, self.own, self.table = Views(), Views(), Views()


class JoinedMoves:
    """Moves front by front, by looking up the table's rows."""

    def __init__(
        self,
        plain: PlainStep,
        by_step: FixpointStep,
        rank: AttributeId,
        touched: TouchedRows,
        report: DerivationTags,
        seen: CachedViews,
        thin: int,
    ) -> None:
        """`by_step` handles large changes of the table; `thin` handles small ones."""
        self._plain = plain
        self._by_step = by_step
        self._rank = rank
        self._touched = touched
        self._report = report
        self._seen = seen
        self._most = thin
        self._partners = DeletedDerivations()
        self._tags: list[tuple[Tags, ...]] = []
        self._thin: ThinFronts | None = None
        self._pairs = self._spent = 0

    @cached_property
    def _runs(self) -> TableRuns | None:
        runs = table_runs(self._plain)
        self._tags = [] if runs is None else runs.tags
        return runs

    def changed(self, tables: Sequence[Batch | None]) -> Ints:
        (rows,) = tables
        assert rows is not None, "there is one table, which changed"
        columns = [rows.columns[name] for _, name in self._plain.heads if name is not None]
        keys = [rows.columns[name] for name in self._plain.table.keys]
        has_null = any(column.valid is not None for column in (*columns, *keys))
        result: Ints | None = None
        if self._plain.is_of_numbers and not has_null:
            if len(rows) <= self._most:
                result = self._few_changed(rows, keys[0], columns)
            if result is None and self._plain.is_by_rows and len(rows) <= self._held_rows:
                result = self._many_changed(rows, keys[0], columns[0])
        return self._by_step.changed(tables) if result is None else result

    @property
    def _held_rows(self) -> int:
        return self._touched.stored.arrangement.rows

    def _few_changed(self, rows: Batch, key: Vector, columns: Sequence[Vector]) -> Ints | None:
        """As `changed`, row by row; None where that does not apply."""
        plain, fronts = self._plain, self._one_by_one()
        if fronts is None:
            return None
        own: Sequence[IndexView] | None = ()
        if not plain.is_by_rows:
            names = {position: name for name, position in plain.rows.items()}
            wanted = [names[position] for position, name in plain.heads if name is None]
            own = self._seen.own.of_index(plain.own.runs(), [*wanted, names[-1]], len(rows))
        if own is None:
            return None
        values = [column.values.tolist() for column in columns]
        changed = ChangedRows(key.values.tolist(), values, rows.weights.tolist())
        result = fronts.changed(changed, own)
        if result is None:
            return None
        self._report.of_step(result.weights, [tag.take(result.owners) for tag in rows.tags])
        plain.join.take_in(1 - plain.side, rows, 0)
        return result.heads

    def _many_changed(self, rows: Batch, key: Vector, head: Vector) -> Ints:
        """As `changed`, where the rank of a row follows from its key: the join is not used."""
        kind, touched = self._touched.columns[0].type, self._touched
        both = Vector(kind, np.concatenate([key.values, head.values]))
        bodies, heads = np.split(touched.slots_for([both], len(both)), 2)
        ranks = touched.ranks[bodies]
        owners = ranks.nonzero()[0]
        heads, weights = heads[owners], rows.weights[owners]
        touched.count_in(heads, weights, ranks[owners] < touched.ranks[heads])
        self._report.of_step(weights, [tag.take(owners) for tag in rows.tags])
        self._plain.join.take_in(1 - self._plain.side, rows, len(owners))
        return heads

    def _one_by_one(self) -> ThinFronts | None:
        touched = self._touched
        if not self._plain.is_of_numbers or any(column.has_null for column in touched.columns):
            return None
        if self._thin is None:
            stored = self._seen.stored.of_rows(touched.stored.arrangement, NAMES, self._spent)
            if stored is not None:
                self._thin = ThinFronts(self._plain, touched, self._partners, stored, self._most)
        return self._thin

    def _fronts(self, slots: Ints) -> ThinFronts | None:
        self._spent += len(slots)
        fronts = self._one_by_one() if len(slots) <= self._most else None
        if fronts is None or fronts.has_table:
            return fronts
        runs = self._runs
        views = self._seen.table
        table = None if runs is None else views.of_index(runs.runs, runs.names, self._spent)
        if table is None:
            return None
        fronts.see(table)
        return fronts

    def out(self, slots: Ints, may_go: Dismiss) -> Ints:
        fronts = self._fronts(slots)
        left = None if fronts is None else fronts.out(slots, may_go)
        return self._all_out(slots, may_go) if left is None else left

    def come(self, slots: Ints, admit: Admit) -> Ints:
        fronts = self._fronts(slots)
        result = None if fronts is None else fronts.come(slots, admit)
        if result is None:
            return self._all_come(slots, admit)
        left, derived = result
        self._report_tags(derived.weights, derived.source, derived.place)
        return left

    def _all_out(self, slots: Ints, may_go: Dismiss) -> Ints:
        if not may_go(len(slots)):
            return slots
        touched, partners = self._touched, self._partners
        ranks = touched.ranks[slots]
        touched.leave(slots)
        result = self._derived(slots)
        sizes = np.bincount(result.owners, minlength=len(slots))
        ends = np.cumsum(sizes) + partners.count
        touched.values[FIRST, slots], touched.values[LAST, slots] = ends - sizes, ends
        partners.add(result, np.argsort(result.owners, kind="stable"))
        is_low = ranks[result.owners] < touched.ranks[result.heads]
        touched.count_in(result.heads, -result.weights, is_low)
        return distinct_values(touched.groundless(result.heads[is_low]))

    def _all_come(self, slots: Ints, admit: Admit) -> Ints:
        touched, partners = self._touched, self._partners
        touched.enter(slots, admit(len(slots)))
        first = touched.values[FIRST, slots]
        is_known = first >= 0
        known, others = slots[is_known], slots[~is_known]
        places, _ = slice_positions(first[is_known], touched.values[LAST, known])
        heads, weights = partners.heads[places], partners.weights[places]
        if len(others):
            result = self._derived(others)
            self._report_tags(result.weights, result.source, result.place)
            heads = np.concatenate([heads, result.heads])
            weights = np.concatenate([weights, result.weights])
        touched.count_in(heads, weights, None)
        return distinct_values(touched.derived(heads))

    def end(self) -> None:
        """Report the derivations of rows that stay deleted, and bring the join's rows up to
        date."""
        touched, partners = self._touched, self._partners
        join, side = self._plain.join, self._plain.side
        pairs = self._pairs + (0 if self._thin is None else self._thin.pairs)
        moved = touched.moved(self._rank) if self._spent else empty_batch(0)
        if not len(moved):
            join.take_in(side, moved, pairs)
            return
        gone = touched.gone()
        if len(gone):
            first, last = touched.values[FIRST, gone], touched.values[LAST, gone]
            places, _ = slice_positions(first, last)
            self._report_tags(
                -partners.weights[places], partners.source[places], partners.place[places]
            )
        columns = {
            name: moved.columns[self._rank if position < 0 else touched.stored.names[position]]
            for name, position in self._plain.rows.items()
        }
        join.take_in(side, Batch(columns, moved.weights, ()), pairs)

    def _report_tags(self, weights: Ints, source: Ints, position: Ints) -> None:
        if not len(weights) or not any(self._report.accesses):
            return
        if bool((source[1:] < source[:-1]).any()):
            order = np.argsort(source, kind="stable")
            weights, source, position = weights[order], source[order], position[order]
        borders = [0, *(np.flatnonzero(source[1:] != source[:-1]) + 1).tolist(), len(source)]
        for start, end in pairwise(borders):
            part = slice(start, end)
            result = [tag.take(position[part]) for tag in self._tags[source[start]]]
            self._report.of_step(weights[part], result)

    def _derived(self, slots: Ints) -> Derived:
        columns = self._touched.columns
        keys = [columns[position] for position in self._plain.key_places]
        if self._runs is not None and not keys[0].has_null:
            result = self._runs.find(keys[0].numbers[slots])
            theirs = {
                name: Vector(columns[index].type, result.columns[name])
                for index, (_, name) in enumerate(self._plain.heads)
                if name is not None
            }
            heads = self._heads(slots[result.owners], theirs)
            return Derived(result.owners, heads, result.weights, result.source, result.place)
        return self._of_any([key.take(slots) for key in keys], slots)

    def _of_any(self, keys: Sequence[Vector], slots: Ints) -> Derived:
        """The same of keys of any type, which may be NULL."""
        keys = [normalise(key) for key in keys]
        known = self._plain.join.known(keys)
        asking = np.arange(len(slots)) if known is None else known.nonzero()[0]
        if known is not None:
            keys = [key.take(asking) for key in keys]
        result = self._plain.table.find(key_codes(keys, len(asking)), keys)
        owners, rows = asking[result.owners], result.rows
        source = np.full(len(owners), len(self._tags))
        self._tags.append(rows.tags)
        heads = self._heads(slots[owners], rows.columns)
        return Derived(owners, heads, rows.weights, source, np.arange(len(owners)))

    def _heads(self, bodies: Ints, right: Mapping[AttributeId, Vector]) -> Ints:
        self._pairs += len(bodies)
        if not len(bodies):
            return bodies
        left = self._touched.columns
        columns = [
            left[position].take(bodies) if name is None else right[name]
            for position, name in self._plain.heads
        ]
        return self._touched.slots_for(columns, len(bodies))
