"""A pass of partial aggregates, which Spark computes and a circuit takes in.

Law: the pass is itself a plan: the query below its first grouping, grouped by the keys and, unless
the sketch is keyed, by the fragment. Sums of doubles are collected as if all values were finite;
should a group turn out otherwise (`needs_specials`), the pass is repeated with NaN and infinities
counted apart.
Out of scope: who takes it in (`circuits.chain`), writing the plan as SQL (`capture.render`),
running it (`spark`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.circuits.reading.readable import fragment_attribute, with_fragments
from impctl.data.schema import DOUBLE, INTEGER, LONG, SqlType
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.engine.accumulators import (
    PARTIAL_ROWS,
    Accumulator,
    Count,
    ExactSum,
    FloatSum,
    Meaning,
    PartialColumn,
)
from impctl.engine.aggregate import Aggregate as AggregateOperator
from impctl.expr.nodes import Call, Case, Cast, Compare, CompareOp, Expr, Literal, Or
from impctl.expr.types import type_of
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Plan,
    Project,
    Scan,
    nodes_of,
)
from impctl.sketch.partition import Fragments, RangePartition
from impctl.types import AttributeId
from impctl.values import dataclass

_Call = tuple[PartialColumn, SqlType, AggregateCall]


@dataclass(frozen=True, slots=True)
class Partials:
    """The pass: its plan, and what its result columns mean, in order.

    `columns` come after `keys` key columns and, if `has_fragment`, the fragment; the first of them
    counts rows. `key` is the place of the key column that tells the fragment where no column does.
    The scan of the plan reads `FRAGMENT_COLUMN` too if `has_fragment`.
    """

    plan: Plan
    key_types: tuple[SqlType, ...]
    key: int | None
    columns: tuple[tuple[PartialColumn, SqlType], ...]
    counts_specials: bool

    @property
    def has_fragment(self) -> bool:
        """Whether a column tells the fragment; else a grouping column does."""
        return self.key is None

    def keys_of(self, table: pa.Table) -> list[Vector]:
        """The key columns of the pass's result."""
        return [from_arrow(table.column(i), kind) for i, kind in enumerate(self.key_types)]

    def values_of(self, table: pa.Table) -> dict[PartialColumn, Any]:
        """The partial aggregates of the pass's result; zero for NULL."""
        return {
            column: _numbers(self._of(table, index), kind)
            for index, (column, kind) in enumerate(self.columns)
        }

    def fragments_of(self, table: pa.Table, partition: RangePartition) -> Fragments:
        """The fragment of every row of the pass's result."""
        if self.key is None:
            column = table.column(len(self.key_types))
            fragments: Fragments = from_arrow(column, INTEGER).values.astype(np.int32)
            return fragments
        return partition.fragments_of(from_arrow(table.column(self.key), self.key_types[self.key]))

    def needs_specials(self, table: pa.Table) -> bool:
        """Whether some double was NaN or infinite, so that the pass must count those apart."""
        if self.counts_specials:
            return False
        for index, (column, _) in enumerate(self.columns):
            if column.meaning is Meaning.SIZE:
                vector = from_arrow(self._of(table, index), DOUBLE)
                if not bool(np.isfinite(vector.values).all()):
                    return True
        return False

    def rows_told_by(self, table: pa.Table, partition: RangePartition) -> Ints | None:
        """Rows of the table per fragment, shape (size,), as the pass's result tells them.

        None where it does not count every row: where something below its grouping selects some.
        """
        assert isinstance(self.plan, Aggregate)
        if not all(isinstance(node, Scan | Project) for node in nodes_of(self.plan.child)):
            return None
        counts = np.zeros(partition.size, dtype=np.int64)
        np.add.at(counts, self.fragments_of(table, partition), _numbers(self._of(table, 0), LONG))
        return counts

    def _of(self, table: pa.Table, index: int) -> pa.ChunkedArray:
        return table.column(len(self.key_types) + int(self.has_fragment) + index)


@dataclass(frozen=True, slots=True)
class FirstGrouping:
    """The lowest grouping: its operator, its plan node, and what each argument is computed from."""

    operator: AggregateOperator
    node: Aggregate
    arguments: Mapping[AttributeId, Expr]


def grouped_pass(
    first: FirstGrouping, scan: Scan, key: int | None, *, counts_specials: bool
) -> Partials:
    """The pass for a grouping: a row per group, or per group and fragment without a `key`."""
    node = first.node
    child, keys = node.child, list(node.keys)
    if key is None:
        child = with_fragments(child, (scan.access,))
        keys.append(_fragment_output(scan))
    calls = [(PARTIAL_ROWS, LONG, AggregateCall("count"))]
    for accumulator in first.operator.accumulators:
        calls += _calls(accumulator, first.arguments[accumulator.argument], counts_specials)
    outputs = [AggregateOutput(_attribute(column, kind), call) for column, kind, call in calls]
    plan = Aggregate(child, tuple(keys), tuple(outputs), span=node.span)
    columns = tuple((column, kind) for column, kind, _ in calls)
    key_types = tuple(kind for _, kind in first.operator.keys)
    return Partials(plan, key_types, key, columns, counts_specials)


def row_counts(top: Plan, scan: Scan) -> Partials:
    """The pass without a grouping: qualifying rows per fragment."""
    child = with_fragments(top, (scan.access,))
    rows = AggregateOutput(_attribute(PARTIAL_ROWS, LONG), AggregateCall("count"))
    plan = Aggregate(child, (_fragment_output(scan),), (rows,))
    return Partials(plan, (), None, ((PARTIAL_ROWS, LONG),), counts_specials=False)


def _attribute(column: PartialColumn, kind: SqlType) -> Attribute:
    return Attribute(f"impctl/{column.name}", column.name, kind, True)


def _fragment_output(scan: Scan) -> ComputedColumn:
    attribute = fragment_attribute(scan.access)
    return ComputedColumn(replace(attribute, id="impctl/key"), attribute.ref())


def _calls(accumulator: Accumulator, expr: Expr, counts_specials: bool) -> list[_Call]:
    slot = accumulator.slot
    match accumulator:
        case Count():
            column = PartialColumn(Meaning.COUNT, slot)
            return [(column, LONG, AggregateCall("count", (expr,)))]
        case ExactSum():
            column = PartialColumn(Meaning.SUM, slot)
            return [(column, accumulator.result, AggregateCall("sum", (expr,)))]
        case FloatSum():
            return _float_calls(expr, slot, counts_specials)


def _float_calls(expr: Expr, slot: int, counts_specials: bool) -> list[_Call]:
    calls: list[_Call] = []
    if counts_specials:
        tests = {
            meaning: Compare(CompareOp.EQUAL, Cast(expr, DOUBLE), Literal(value, DOUBLE))
            for meaning, value in (
                (Meaning.NAN, float("nan")),
                (Meaning.PLUS_INFINITY, float("inf")),
                (Meaning.MINUS_INFINITY, float("-inf")),
            )
        }
        one, zero = Literal(1, LONG), Literal(0, LONG)
        for meaning, test in tests.items():
            marked = Case(((test, one),), zero)
            calls.append((PartialColumn(meaning, slot), LONG, AggregateCall("sum", (marked,))))
        nothing = Literal(0.0, type_of(expr) or DOUBLE)
        expr = Case(((Or(tuple(tests.values())), nothing),), expr)
    size = Call("abs", (expr,), type_of(expr))
    calls.append((PartialColumn(Meaning.SUM, slot), DOUBLE, AggregateCall("sum", (expr,))))
    calls.append((PartialColumn(Meaning.SIZE, slot), DOUBLE, AggregateCall("sum", (size,))))
    return calls


def _numbers(column: pa.ChunkedArray, kind: SqlType) -> Any:
    vector: Vector = from_arrow(column, kind)
    if vector.valid is None:
        return vector.values
    return np.where(vector.valid, vector.values, np.zeros(1, dtype=vector.values.dtype))
