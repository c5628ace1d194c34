"""A circuit over one table that its first grouping, or its root, can be filled at from outside.

Law: what partial aggregates of some rows put in leaves the circuit as if stepped with those rows.
That is so for plans of simple nodes over one table, where the state of the first grouping, or the
counts at the root, say all about the rows below. Everything here gives the change of the circuit's
output; whoever has the sketches counts it in.
Out of scope: the pass itself (`circuits.partials`), when a chain is filled (`circuits.compile`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from impctl.circuits.partials import FirstGrouping, Partials, grouped_pass, row_counts
from impctl.data.vector import Vector
from impctl.engine.accumulators import PARTIAL_ROWS
from impctl.engine.aggregate import Aggregate as AggregateOperator
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.tags import RowTags, Tags
from impctl.plan.nodes import (
    Aggregate,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    inputs_of,
)
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import Renumbering
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Chain:
    """The plan from `scan` up to its `top`, the circuit, and the first grouping, if there is one.

    `key` is the place of the grouping column that equals the partition attribute, where the groups
    have one fragment each for that reason.
    """

    scan: Scan
    top: Plan
    circuit: Circuit
    first: FirstGrouping | None
    key: int | None

    @property
    def is_keyed(self) -> bool:
        """Whether a group's fragment follows from its key; without a grouping there is none."""
        return self.key is not None

    @property
    def has_few_partials(self) -> bool:
        """Whether a pass gives a row per group, or per fragment without a grouping.

        The alternative is one per group and fragment.
        """
        return self.first is None or self.is_keyed

    def partials(self, *, counts_specials: bool = False) -> Partials:
        """The pass that fills the circuit."""
        if self.first is None:
            return row_counts(self.top, self.scan)
        return grouped_pass(self.first, self.scan, self.key, counts_specials=counts_specials)

    def start(self) -> Batch | None:
        """Bring the fresh circuit to where it stands over the empty table."""
        return None if self.first is None else self.circuit.start_from(self.first.operator)

    def absorb(
        self, pass_: Partials, table: pa.Table, partition: RangePartition, sign: int
    ) -> Batch | None:
        """Step with the pass's result over rows that came, or (`sign` -1) went."""
        values = pass_.values_of(table)
        tags = (RowTags(pass_.fragments_of(table, partition)),)
        if self.first is None:
            return Batch({}, values[PARTIAL_ROWS] * sign, tags)
        operator = self.first.operator
        output = operator.absorb(pass_.keys_of(table), values, tags, sign)
        return self.circuit.resume(output, operator)

    def adopt(
        self, held: Chain, renumbering: Renumbering, batches: Iterable[Batch]
    ) -> Batch | None:
        """Fill the circuit, which has started, from the same one under the old ranges.

        Only with a grouping. `batches` are the rows of split ranges, which come again.
        """
        assert self.first is not None
        assert held.first is not None
        operator = self.first.operator
        key_tags = None if self.key is None else _tags_by(self.key, renumbering.new)
        below = self._arriving(batches, operator)
        output = operator.adopt(held.first.operator, renumbering.targets, below, key_tags)
        return self.circuit.resume(output, operator)

    def _arriving(self, batches: Iterable[Batch], operator: AggregateOperator) -> Iterator[Batch]:
        """The batches as the first grouping gets them: what is below it remembers nothing."""
        for batch in batches:
            passed = self.circuit.arriving(batch, operator)
            if passed is not None and len(passed):
                yield passed


def _tags_by(place: int, partition: RangePartition) -> Callable[[Sequence[Vector]], Tags]:
    """The fragment of each group by the grouping column that equals the attribute."""
    return lambda keys: RowTags(partition.fragments_of(keys[place]))


def nodes_to(root: Plan) -> tuple[Plan, ...] | None:
    """The nodes from the scan to the root, where they are simple ones over one table."""
    nodes: list[Plan] = []
    node = root
    while not isinstance(node, Scan):
        if not isinstance(node, Select | Project | Aggregate | Sort):
            return None
        if isinstance(node, Aggregate) and node.grouping_sets is not None:
            return None
        nodes.append(node)
        node = inputs_of(node)[0]
    return (node, *reversed(nodes))
