"""A query whose sketch only grows: the fragments of all changed rows are added.

Law: sound for a plan keyed on its one sketched access, for any aggregate, because a change then
concerns the fragments of the changed rows only. So it does where conditions on rows moved with the
clock: rows that meet those before or those after, not both, are what changed above them. No state
but the rows per range, which show drift.
Out of scope: when this is allowed (`circuits.way`), reading such rows (`app.maintaining.move`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from impctl.circuits.checkpoint import Checkpoint, checkpoint_of
from impctl.circuits.flows import Source
from impctl.circuits.range_rows import RangeRows
from impctl.circuits.session import TableChange
from impctl.data.pages import StoredTable
from impctl.data.schema import Kind
from impctl.data.vector import Ints, from_arrow
from impctl.engine.batch import Batch
from impctl.engine.linear import Scan as ScanOperator
from impctl.expr.evaluate import find_condition_blocker
from impctl.expr.nodes import Expr, columns_of, conjuncts
from impctl.plan.moved_conditions import MovedConditions
from impctl.plan.nodes import Scan
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet


class TouchedQuery:
    """The sketch on `partition`, as it stands."""

    def __init__(self, partition: RangePartition, fragments: FragmentSet) -> None:
        self.partition = partition
        self.fragments = fragments
        self.range_rows = RangeRows([partition])

    def restore(self, runs: Mapping[str, Sequence[tuple[int, StoredTable]]]) -> None:
        """Take up the counts of a checkpoint."""
        self.range_rows.load(runs)

    def step(self, change: TableChange) -> FragmentSet:
        """Add the fragments of the changed rows; the sketch after that."""
        column = from_arrow(change.rows.column(self.partition.attribute), self.partition.type)
        result = self.partition.fragments_of(column).astype(np.int64)
        self.range_rows.count(0, result, change.weights)
        return self._added(result)

    def move(self, rows: Iterable[Batch]) -> int:
        """Add the fragments of rows that came or went with the clock; how many these are."""
        count = 0
        for batch in rows:
            count += len(batch)
            (tags,) = batch.tags
            slots = np.zeros(len(batch), dtype=np.int64)
            self._added(tags.expand(slots, batch.weights).fragments)
        return count

    def _added(self, result: Ints) -> FragmentSet:
        mask = np.zeros(self.partition.size, dtype=np.bool_)
        mask[result] = True
        self.fragments = self.fragments.union(FragmentSet.from_mask(mask))
        return self.fragments

    def checkpoint(self) -> Checkpoint:
        """What changed since the last `saved`."""
        return checkpoint_of(self.range_rows.arrangements(), {})

    def saved(self) -> None:
        """The last checkpoint is committed."""
        for arrangement in self.range_rows.arrangements():
            arrangement.saved()

    def state_bytes(self) -> int:
        """Bytes of keyed state held."""
        return sum(arrangement.bytes_held for arrangement in self.range_rows.arrangements())


def judged_alone(moved: MovedConditions) -> MovedConditions | None:
    """The conditions without those that only Spark can judge; None where one of these moved.

    Each row that meets all of the ones and not all of the others meets so the conditions left.
    """
    before, after = (_parts(predicates) for predicates in (moved.before, moved.after))
    left_out = {part for part in (*before, *after) if find_condition_blocker(part) is not None}
    if any((part in before) != (part in after) for part in left_out):
        return None
    sides = (tuple(p for p in parts if p not in left_out) for parts in (before, after))
    return MovedConditions(*sides)


def _parts(predicates: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(part for predicate in predicates for part in conjuncts(predicate))


def touched_source(scan: Scan, moved: MovedConditions, partition: RangePartition) -> Source | None:
    """What reads of a table what these conditions and the fragments ask for."""
    used = frozenset().union(*map(columns_of, (*moved.before, *moved.after)))
    columns = [(a.id, a.name, a.type) for a in scan.attributes if a.id in used]
    known = [(i, name, kind) for i, name, kind in columns if kind and kind.kind is not Kind.OTHER]
    if len(known) < len(columns):
        return None
    return Source(scan.access, scan.table, ScanOperator(known, (partition,)))
