"""A circuit filled from the rows of one table, or with rows for one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from impctl.compile.build import PlanBuilder
from impctl.compile.builder import FirstGrouping, Partials, grouped_pass, row_counts
from impctl.engine.accumulators import PARTIAL_ROWS
from impctl.engine.batch import Batch, consolidated, empty_batch, loading
from impctl.engine.circuit import Circuit
from impctl.engine.range_counts import DenseCounts
from impctl.engine.tags import RowTags
from impctl.plan.nodes import Aggregate as AggregateNode
from impctl.plan.nodes import Plan, Project, Scan, Select, Sort

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.flows import Flow, Readable
    from impctl.data.pages import StoredTable
    from impctl.data.vector import Ints
    from impctl.engine.aggregate import AggregateOperator
    from impctl.engine.trace import Arrangement
    from impctl.sketch.sketch import RangePartition, Renumbering
    from impctl.types import AccessId


class Chain(Struct, frozen=True):
    """A circuit over one table that can be filled with partial aggregates, at the first grouping or
    else at the root, as if stepped with their rows. That needs simple nodes from the `scan` up to
    the `top`, so that the state there determines everything above. `key` is the position of the
    grouping column that equals the partition attribute, if that gives each group one range. The
    methods return the change of the circuit's output, for the caller to count in the sketches."""

    scan: Scan
    top: Plan
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
        if self.first is None:
            return row_counts(self.top, self.scan)
        return grouped_pass(self.first, self.scan, self.key, counts_specials=counts_specials)

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


def nodes_to(root: Plan) -> tuple[Plan, ...] | None:
    """The nodes from the scan to the root, if they are simple ones over one table."""
    nodes = [root]
    while not isinstance(node := nodes[-1], Scan):
        if not isinstance(node, Select | Project | AggregateNode | Sort):
            return None
        if isinstance(node, AggregateNode) and node.grouping_sets is not None:
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
