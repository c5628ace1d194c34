"""Operators whose output is linear in their input: scan, select, project, union, and the root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import same_keys
from impctl.data.vector import Bools, Ints, Once, Vector, from_arrow, once
from impctl.engine.batch import Batch, difference, identity_of, stacked_batches
from impctl.engine.operator import Operator
from impctl.engine.range_counts import DenseCounts
from impctl.engine.tags import RowTags, no_ranges
from impctl.errors import NotExactError
from impctl.expr.evaluate import Condition, Evaluator
from impctl.expr.nodes import ColumnRef, Expr
from impctl.sketch.sketch import RangeIds, RangePartition

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.data.schema import SqlType
    from impctl.engine.trace import Arrangement
    from impctl.expr.compare import Truth
    from impctl.types import AttributeId, ColumnName


# OneRow: one row without columns, present from the start. No input, no state.


class OneRowOperator(Operator):
    """A single row, emitted by `start`."""

    form = ()
    is_linear = True

    def step(self) -> Batch:
        return Batch({}, np.ones(1, dtype=np.int64), ())

    def start(self) -> Batch:
        return self.step()


# Scan: signed rows of a table, tagged with their range. Identity: d(scan(R)) = dR; linear, no
# state; cost: the change. A row's tag depends on the row alone, so a deletion carries the tag of
# the insertion it cancels.


class TableScan:
    """Turns rows of one table into batches; `columns` are (identity, table column, type)."""

    def __init__(
        self,
        columns: Sequence[tuple[AttributeId, ColumnName, SqlType]],
        partitions: Sequence[RangePartition],
    ) -> None:
        self.columns = tuple(columns)
        self.partitions = tuple(partitions)

    @property
    def table_columns(self) -> tuple[ColumnName, ...]:
        """The table columns to read: those the query uses and the partition attributes."""
        names = [column for _, column, _ in self.columns]
        names += [partition.attribute for partition in self.partitions]
        return tuple(dict.fromkeys(names))

    def read(self, rows: pa.Table, weights: Ints, shared: Once | None = None) -> Batch:
        """A batch of these rows; `rows` has at least `table_columns`, `weights` shape (n,). Equal
        scans read one batch of `shared` rows."""
        if shared is None:
            return self._read(rows, weights, None)
        question = (TableScan, self.columns, tuple(partition.id for partition in self.partitions))
        return shared.of(question, lambda: self._read(rows, weights, shared))

    def _read(self, rows: pa.Table, weights: Ints, shared: Once | None) -> Batch:
        vectors = {
            identity: from_arrow(rows.column(column), kind)
            for identity, column, kind in self.columns
        }
        by_column = {column: identity for identity, column, _ in self.columns}
        tags = []
        for partition in self.partitions:
            known = by_column.get(partition.attribute)
            vector = (
                vectors[known]
                if known is not None
                else from_arrow(rows.column(partition.attribute), partition.type)
            )
            tags.append(RowTags(range_ids_of(partition, vector, shared)))
        return Batch(vectors, weights, tuple(tags), None if shared is None else Once())


def range_ids_of(partition: RangePartition, column: Vector, shared: Once | None) -> RangeIds:
    """The range of each row by the partition's column, shape (n,); computed once for `shared` rows.
    Callers may not write into it."""
    return once(shared, (RangePartition, partition.id), lambda: partition.range_ids_of(column))


# Tags by a column: each row gets the range of its own value. Identity: d(tagged(R)) = tagged(dR);
# linear, no state; cost: the change. Rows arrive without tags, like those of a fixpoint, and leave
# with one for each access that shares the partition: where everything that derives a row has its
# value in this column, that is the range of all of it. A row's tags depend on the row alone, so a
# deletion carries those of the insertion it cancels.


class KeyTags(Operator):
    """Tags for `accesses` accesses, by the ranges of `column`; the column has its type."""

    is_rowwise = True

    def __init__(self, column: AttributeId, partition: RangePartition, accesses: int) -> None:
        self.column = column
        self.partition = partition
        self.accesses = accesses
        self.form = (column, partition.id, accesses)

    def step(self, batch: Batch) -> Batch:
        if not len(batch):
            none = tuple(no_ranges(0) for _ in range(self.accesses))
            return Batch(batch.columns, batch.weights, none)
        tag = RowTags(range_ids_of(self.partition, batch.columns[self.column], batch.shared))
        return Batch(batch.columns, batch.weights, (tag,) * self.accesses)

    def passes(self, column: AttributeId) -> AttributeId | None:
        return column


# Selection: rows whose predicate may be true. Identity: d(select(R)) = select(dR); linear, no
# state; cost: the batch. NULL and FALSE drop a row, an unsure predicate keeps it (a sketch may be
# too large, never too small). The decision depends on the row alone, so negative weights pass like
# positive ones. Below a grouping too many rows can make a sketch too small, so an unsure row is an
# error (`must_be_sure`).


class SelectOperator(Operator):
    """Keeps the rows for which `predicate` is true or, where that is sound, unsure."""

    is_rowwise = True

    unsure_rows = 0

    def __init__(self, predicate: Expr, *, must_be_sure: bool) -> None:
        self.predicate = predicate
        self.must_be_sure = must_be_sure
        self._condition = Condition(predicate)

    def step(self, batch: Batch) -> Batch:
        if len(batch) == 0:
            return batch
        question = (SelectOperator, self.predicate, self.must_be_sure)
        kept, unsure = once(batch.shared, question, lambda: self._kept(batch))
        self.unsure_rows += unsure
        return kept

    def _kept(self, batch: Batch) -> tuple[Batch, int]:
        outcome = self.outcome(batch)
        return batch.shares(batch.keep(outcome.may_true)), int(outcome.is_unsure.sum())

    def passing(self, batch: Batch) -> Bools:
        """Which rows pass a `step`, without counting any as unsure."""
        return self.outcome(batch).may_true

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, SelectOperator) and self.predicate == other.predicate

    def turned(self, rows: Batch, was: Operator) -> Batch:
        assert isinstance(was, SelectOperator)
        rows = rows.keep(was.passing(rows) != self.passing(rows))
        return difference(self.step(rows), was.step(rows))

    def outcome(self, batch: Batch) -> Truth:
        """The predicate's possible results per row; NotExactError where it must be exact and is
        not."""
        outcome = self._condition.truth(batch.columns, len(batch))
        if self.must_be_sure and bool(outcome.is_unsure.any()):
            raise NotExactError(
                "A condition below a grouping compares doubles that are too close to decide",
                hint="recapture with `impctl capture`, or compare with a decimal in the query",
            )
        return outcome

    def passes(self, column: AttributeId) -> AttributeId | None:
        return column


# Projection: computed columns, duplicates kept. Identity: d(project(R)) = project(dR); linear, no
# state; cost: the batch. Weights and tags pass unchanged.


class ProjectOperator(Operator):
    """Computes `outputs`, pairs of a column identity and its expression."""

    is_rowwise = True

    def __init__(self, outputs: Sequence[tuple[AttributeId, Expr]]) -> None:
        self.outputs = tuple(outputs)
        self._evaluators = [(name, Evaluator(expr)) for name, expr in self.outputs]
        self.form = tuple(name for name, _ in self.outputs)

    def step(self, batch: Batch) -> Batch:
        if len(batch) == 0:
            return Batch({}, batch.weights, batch.tags)
        return once(batch.shared, (ProjectOperator, self.outputs), lambda: self._computed(batch))

    def _computed(self, batch: Batch) -> Batch:
        columns = {
            name: evaluator.values(batch.columns, len(batch))
            for name, evaluator in self._evaluators
        }
        return batch.shares(Batch(columns, batch.weights, batch.tags))

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, ProjectOperator) and self.outputs == other.outputs

    def turned(self, rows: Batch, was: Operator) -> Batch:
        """The difference without most rows that are in both."""
        new, old = self.step(rows), was.step(rows)
        assert old is not None
        differs = np.zeros(len(rows), dtype=np.bool_)
        for name in new.columns:
            differs |= ~_is_same(old.columns[name], new.columns[name])
        return difference(new.keep(differs), old.keep(differs))

    def passes(self, column: AttributeId) -> AttributeId | None:
        expr = dict(self.outputs).get(column)
        return expr.id if isinstance(expr, ColumnRef) else None


def _is_same(left: Vector, right: Vector) -> Bools:
    """Where values and their bounds are the same to the bit."""
    same = same_keys([identity_of(left)], [identity_of(right)])
    assert same is not None, "there is one column"
    if left.error is None and right.error is None:
        return same
    none = np.zeros(len(left))
    mine, theirs = (none if v.error is None else v.error for v in (left, right))
    return np.asarray(same & ((mine == theirs) | (np.isnan(mine) & np.isnan(theirs))))


# Rows repeated by two of their columns: INTERSECT ALL and EXCEPT ALL. Identity: d(repeat(R)) =
# repeat(dR); linear, no state; cost: the change. The smaller number of `left` and `right` copies
# remains, or the surplus on the left; a row repeated zero times is dropped.


class Repeat(Operator):
    """min(left, right) copies of each row, or with `is_difference` max(left - right, 0)."""

    is_linear = True

    def __init__(self, left: AttributeId, right: AttributeId, *, is_difference: bool) -> None:
        self.left = left
        self.right = right
        self.is_difference = is_difference

    def step(self, batch: Batch) -> Batch:
        """The change, with the copies of a row as its weight."""
        if len(batch) == 0:
            return batch
        left, right = batch.columns[self.left].values, batch.columns[self.right].values
        copies = np.maximum(left - right, 0) if self.is_difference else np.minimum(left, right)
        repeated = Batch(batch.columns, batch.weights * copies, batch.tags)
        return repeated.keep(copies > 0)


# Union with duplicates, and difference of weights. Identity: d(R + S) = dR + dS; linear, no state;
# cost: the change. A subtracted input counts with reversed weights: an anti join is the left side
# minus its semi join. Columns are renamed to the output's. Each input has tags for some of the
# accesses; its rows carry no range of the others.


class UnionBranch(Struct, frozen=True):
    """One input: the column behind each output, its sign, and the tag behind each output tag."""

    columns: tuple[tuple[AttributeId, AttributeId], ...]  # Pairs of output and input column
    tags: tuple[int | None, ...]
    """Position among the input's tags; None for an access the branch does not have."""
    sign: int = 1


class Union(Operator):
    is_linear = True

    def __init__(self, branches: Sequence[UnionBranch]) -> None:
        self.branches = tuple(branches)

    def step(self, *batches: Batch | None) -> Batch:
        pairs = zip(self.branches, batches, strict=True)
        parts = [_moved(branch, batch) for branch, batch in pairs if batch is not None]
        filled = [part for part in parts if len(part)]
        return stacked_batches(filled) if filled else parts[0]


def _moved(branch: UnionBranch, batch: Batch) -> Batch:
    columns = {}
    if len(batch):
        columns = {output: batch.columns[name] for output, name in branch.columns}
    tags = tuple(
        no_ranges(len(batch)) if index is None else batch.tags[index] for index in branch.tags
    )
    return Batch(columns, batch.weights * np.int64(branch.sign), tags)


# Merge: the root, where tags of result rows become the sketch. Identity: count[f] = sum of the
# weights of result rows that carry range f; the sketch is {f : count[f] > 0}. State: one count per
# range and access, dense in memory, stored as runs of changed counts. Cost: the (row, range) pairs
# that reach the root, not the number of ranges. A count below zero means that the state never saw a
# row that is now deleted: an error.


class Merge:
    """Counts per range for each sketched access; `sizes` are the partitions' numbers of ranges."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._kept = [
            DenseCounts(f"merge.{access}", size, "result rows") for access, size in enumerate(sizes)
        ]

    @property
    def counts(self) -> list[Ints]:
        return [kept.counts for kept in self._kept]

    def step(self, batch: Batch) -> None:
        """Count a change of the result's rows."""
        slots = np.zeros(len(batch), dtype=np.int64)
        for kept, tags in zip(self._kept, batch.tags, strict=True):
            pairs = tags.expand(slots, batch.weights)
            kept.add(pairs.ranges, pairs.weights)

    def members(self, access: int) -> Bools:
        """The sketch as a mask over ranges."""
        return self._kept[access].counts > 0

    def arrangements(self) -> tuple[Arrangement, ...]:
        return tuple(kept.arrangement for kept in self._kept)

    def restore(self) -> None:
        """Fill the dense counts from the arrangements, after these were loaded."""
        for kept in self._kept:
            kept.restore()
