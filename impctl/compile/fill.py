"""A circuit filled from the rows of one table, or with rows for one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.build import PlanBuilder
from impctl.compile.flows import range_attribute, with_range_ids
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
from impctl.engine.batch import Batch, consolidated, empty_batch, loading
from impctl.engine.circuit import Circuit
from impctl.engine.range_counts import DenseCounts
from impctl.engine.tags import RowTags
from impctl.expr.nodes import Call, Case, Cast, Compare, CompareOp, Expr, Literal, Or
from impctl.expr.types import type_of
from impctl.plan import nodes as p

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.builder import FirstGrouping
    from impctl.compile.flows import Flow, Readable
    from impctl.data.pages import StoredTable
    from impctl.engine.aggregate import AggregateOperator
    from impctl.engine.trace import Arrangement
    from impctl.sketch.sketch import RangeIds, RangePartition, Renumbering
    from impctl.types import AccessId


# A pass of partial aggregates, which Spark computes and a circuit absorbs: the query below its
# first grouping, grouped by the keys and, unless the sketch is keyed, by the range. The pass first
# sums doubles as if all were finite; if some are not (`needs_specials`), it is repeated with NaN
# and infinities counted separately.

_Call = tuple[PartialColumn, SqlType, p.AggregateCall]


class Partials(Struct, frozen=True):
    """The pass: its plan, and what its result columns mean, in order. `columns` come after `keys`
    key columns and, if `has_range`, the range id; the first of them counts rows. `key` is the
    position of the key column that gives the range if no column does. The scan of the plan reads
    `RANGE_COLUMN` too if `has_range`."""

    plan: p.Plan
    key_types: tuple[SqlType, ...]
    key: int | None
    columns: tuple[tuple[PartialColumn, SqlType], ...]
    counts_specials: bool

    @property
    def has_range(self) -> bool:
        """Whether a column gives the range; else a grouping column does."""
        return self.key is None

    def keys_of(self, table: pa.Table) -> list[Vector]:
        return [from_arrow(table.column(i), kind) for i, kind in enumerate(self.key_types)]

    def values_of(self, table: pa.Table) -> dict[PartialColumn, Any]:
        """The partial aggregates of the pass's result; zero for NULL."""
        return {
            column: _numbers(self._of(table, index), kind)
            for index, (column, kind) in enumerate(self.columns)
        }

    def range_ids_of(self, table: pa.Table, partition: RangePartition) -> RangeIds:
        if self.key is None:
            column = table.column(len(self.key_types))
            ranges: RangeIds = from_arrow(column, INTEGER).values.astype(np.int32)
            return ranges
        return partition.range_ids_of(from_arrow(table.column(self.key), self.key_types[self.key]))

    def needs_specials(self, table: pa.Table) -> bool:
        """Whether some double was NaN or infinite, so that the pass must count those apart."""
        if self.counts_specials:
            return False
        sizes = (
            from_arrow(self._of(table, index), DOUBLE)
            for index, (column, _) in enumerate(self.columns)
            if column.meaning is Meaning.SIZE
        )
        return any(not bool(np.isfinite(size.values).all()) for size in sizes)

    def rows_per_range(self, table: pa.Table, partition: RangePartition) -> Ints | None:
        """Rows of the table per range, shape (size,), from the pass's result. None if a node below
        its grouping selects rows."""
        assert isinstance(self.plan, p.Aggregate)
        if not all(isinstance(node, p.Scan | p.Project) for node in self.plan.child.walk()):
            return None
        counts = np.zeros(partition.size, dtype=np.int64)
        np.add.at(counts, self.range_ids_of(table, partition), _numbers(self._of(table, 0), LONG))
        return counts

    def _of(self, table: pa.Table, index: int) -> pa.ChunkedArray:
        return table.column(len(self.key_types) + int(self.has_range) + index)


class Chain(Struct, frozen=True):
    """A circuit over one table that can be filled with partial aggregates, at the first grouping or
    else at the root, as if stepped with their rows. That needs simple nodes from the `scan` up to
    the `top`, so that the state there determines everything above. `key` is the position of the
    grouping column that equals the partition attribute, if that gives each group one range. The
    methods return the change of the circuit's output, for the caller to count in the sketches."""

    scan: p.Scan
    top: p.Plan
    circuit: Circuit
    first: FirstGrouping | None
    key: int | None

    @property
    def is_keyed(self) -> bool:
        """Whether a group's range follows from its key; without a grouping there is none."""
        return self.key is not None

    @property
    def has_few_partials(self) -> bool:
        """Whether a pass gives a row per group or per range, rather than per group and range."""
        return self.first is None or self.is_keyed

    def partials(self, *, counts_specials: bool = False) -> Partials:
        """The pass: a row per group, or per group and range without a `key`; without a grouping the
        qualifying rows per range."""
        child, keys, span = self.top, list[p.ComputedColumn](), None
        key_types: tuple[SqlType, ...] = ()
        calls = [(PARTIAL_ROWS, LONG, p.AggregateCall("count"))]
        if self.first is not None:
            first, node = self.first, self.first.node
            child, keys, span = node.child, list(node.keys), node.span
            key_types = tuple(kind for _, kind in first.operator.keys)
            for accumulator in first.operator.accumulators:
                calls += _calls(accumulator, first.arguments[accumulator.argument], counts_specials)
        if self.key is None:
            child = with_range_ids(child, (self.scan.access,))
            attribute = range_attribute(self.scan.access)
            keys.append(p.ComputedColumn(replace(attribute, id="impctl/key"), attribute.ref()))
        outputs = tuple(
            p.AggregateOutput(p.Attribute(f"impctl/{one.name}", one.name, kind, True), call)
            for one, kind, call in calls
        )
        plan = p.Aggregate(child, tuple(keys), outputs, span=span)
        columns = tuple((column, kind) for column, kind, _ in calls)
        specials = counts_specials and self.first is not None
        return Partials(plan, key_types, self.key, columns, specials)

    def start(self) -> Batch | None:
        """Bring the fresh circuit to its state over the empty table."""
        return None if self.first is None else self.circuit.start_from(self.first.operator)

    def absorb(
        self, pass_: Partials, table: pa.Table, partition: RangePartition, sign: int
    ) -> Batch | None:
        """Step with the pass's result over inserted (`sign` -1: deleted) rows."""
        values = pass_.values_of(table)
        tags = (RowTags(pass_.range_ids_of(table, partition)),)
        if self.first is None:
            return Batch({}, values[PARTIAL_ROWS] * sign, tags)
        operator = self.first.operator
        output = operator.absorb(pass_.keys_of(table), values, tags, sign)
        return self.circuit.resume(output, operator)

    def adopt(self, old: Chain, renumbering: Renumbering, batches: Iterable[Batch]) -> Batch | None:
        """Fill the started circuit from the same one under the old ranges. Only with a grouping.
        `batches` are the rows of split ranges, which come again."""
        assert self.first is not None
        assert old.first is not None
        operator = self.first.operator
        key, range_ids_of = self.key, renumbering.new.range_ids_of
        key_tags = None if key is None else lambda keys: RowTags(range_ids_of(keys[key]))
        below = self._arriving(batches, operator)
        output = operator.adopt(old.first.operator, renumbering.targets, below, key_tags)
        return self.circuit.resume(output, operator)

    def _arriving(self, batches: Iterable[Batch], operator: AggregateOperator) -> Iterator[Batch]:
        """The batches as the first grouping gets them: what is below it has no state."""
        for batch in batches:
            passed = self.circuit.arriving(batch, operator)
            if passed is not None and len(passed):
                yield passed


def _calls(accumulator: Accumulator, expr: Expr, counts_specials: bool) -> list[_Call]:
    slot = accumulator.slot
    match accumulator:
        case Count():
            column = PartialColumn(Meaning.COUNT, slot)
            return [(column, LONG, p.AggregateCall("count", (expr,)))]
        case ExactSum():
            column = PartialColumn(Meaning.SUM, slot)
            return [(column, accumulator.result, p.AggregateCall("sum", (expr,)))]
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
            calls.append((PartialColumn(meaning, slot), LONG, p.AggregateCall("sum", (marked,))))
        nothing = Literal(0.0, type_of(expr) or DOUBLE)
        expr = Case(((Or(tuple(tests.values())), nothing),), expr)
    magnitude = Call("abs", (expr,), type_of(expr))
    calls.append((PartialColumn(Meaning.SUM, slot), DOUBLE, p.AggregateCall("sum", (expr,))))
    calls.append((PartialColumn(Meaning.SIZE, slot), DOUBLE, p.AggregateCall("sum", (magnitude,))))
    return calls


def _numbers(column: pa.ChunkedArray, kind: SqlType) -> Any:
    vector: Vector = from_arrow(column, kind)
    if vector.valid is None:
        return vector.values
    return np.where(vector.valid, vector.values, np.zeros(1, dtype=vector.values.dtype))


def nodes_to(root: p.Plan) -> tuple[p.Plan, ...] | None:
    """The nodes from the scan to the root, if they are simple ones over one table."""
    nodes = [root]
    while not isinstance(node := nodes[-1], p.Scan):
        if not isinstance(node, p.Select | p.Project | p.Aggregate | p.Sort):
            return None
        if isinstance(node, p.Aggregate) and node.grouping_sets is not None:
            return None
        nodes.append(node.child)
    return tuple(reversed(nodes))


def counts_name(partition: RangePartition) -> str:
    """The prefix of the arrangement names of a partition's counts."""
    return f"rows.{partition.table}.{partition.attribute}"


class RangeRows:
    """Rows of the table per range, and for NULL, for each distinct partition; they show drift, and
    no sketch depends on them. Every row of a change is counted, before any selection, with the
    ranges that the scan computed. Counts are exact except for rows of files that the capture
    skipped: these are estimated and kept separately. No count is below zero."""

    def __init__(self, partitions: Iterable[RangePartition]) -> None:
        self.partitions = tuple(dict.fromkeys(partitions))
        used: Counter[str] = Counter()
        self._kept: list[DenseCounts] = []
        self._about: list[DenseCounts] = []
        for part in self.partitions:
            name = counts_name(part)
            full_name, subject = f"{name}.{used[name]}", f"rows of table `{part.table}`"
            self._kept.append(DenseCounts(full_name, part.size, subject))
            self._about.append(DenseCounts(f"{full_name}.about", part.size, subject))
            used[name] += 1

    def slot(self, partition: RangePartition) -> int:
        """The position of a partition's counts; ValueError for one that is not counted."""
        return self.partitions.index(partition)

    def count(self, slot: int, ranges: npt.NDArray[Any], weights: Ints) -> None:
        """Count rows; `ranges` and `weights` of shape (rows,)."""
        self._kept[slot].add(ranges, weights)

    def fill(self, partition: RangePartition, counts: Ints) -> None:
        """Set counts of shape (ranges,), where nothing was counted yet."""
        self.count(self.slot(partition), np.arange(len(counts), dtype=np.int64), counts)

    def estimate(self, partition: RangePartition, counts: Ints) -> None:
        """Set counts of rows that were not read, as `fill` does."""
        slot = self.slot(partition)
        self._about[slot].add(np.arange(len(counts), dtype=np.int64), counts)
        self._kept[slot].is_partial = True

    def is_estimate(self, partition: RangePartition) -> bool:
        """Whether the counts include rows that were never read."""
        return self._kept[self.slot(partition)].is_partial

    def counts(self, partition: RangePartition) -> Ints:
        """Rows per range, shape (ranges,)."""
        slot = self.slot(partition)
        counts: Ints = np.maximum(self._kept[slot].counts + self._about[slot].counts, 0)
        return counts

    def load(self, runs: Mapping[str, Sequence[tuple[int, StoredTable]]]) -> None:
        for kept, about in zip(self._kept, self._about, strict=True):
            for counts in (kept, about):
                with loading():
                    counts.arrangement.load(runs.get(counts.arrangement.name, ()))
                    counts.restore()
            kept.is_partial = bool(about.counts.any())

    def arrangements(self) -> tuple[Arrangement, ...]:
        return tuple(counts.arrangement for counts in (*self._kept, *self._about))


class Transient:
    """The rows of a side computed from rows of its tables, for one use: the same columns, weights
    and tags as in the side's flow."""

    def __init__(self, side: Readable, partitions: Mapping[AccessId, RangePartition]) -> None:
        sketched = {access: partitions[access] for access in side.accesses}
        builder = PlanBuilder(sketched)
        builder.prefix = "read/"  # No name of the circuit is that of a column in the plan
        self._flow: Flow = builder.root(side.rows)
        self._side = side
        self._circuit = Circuit(builder.operators, builder.inputs)
        self.sources = {source.access: source for source in builder.sources}

    def rows(self, tables: Mapping[AccessId, pa.Table]) -> Batch:
        """The rows of the side for these rows of each access."""
        batches = [self.sources[access].inserted(tables[access]) for access in self.sources]
        result = (
            batches[-1 - self._flow.wire] if self._flow.wire < 0 else self._circuit.step(*batches)
        )
        if result is None or not len(result):
            return empty_batch(len(self._side.accesses))
        columns = {name: result.columns[name] for name, _ in self._side.columns}
        positions = {access: index for index, access in enumerate(self._flow.accesses)}
        tags = tuple(result.tags[positions[access]] for access in self._side.accesses)
        rows = Batch(columns, result.weights.astype(np.int64, copy=False), tags)
        # Rows that joins take back must not be returned separately.
        return consolidated(rows) if bool((rows.weights < 0).any()) else rows
