"""Bounded buffers: which operators can have them, and where their rows come from again.

Law: an operator keeps only its best values or rows where its input is one table's rows or the
groups of a grouping, selected and projected: then the rows of a group can be read from the table,
or from the grouping's state, once more. Over joins and set operations that would mean running the
query, so there everything is kept, as without a bound.
Out of scope: reading the table (`app.refilling`), when a buffer is used up (`engine.refill`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from impctl.aliases import AttributeId, ColumnName, TableName
from impctl.data.vector import Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.operators.aggregate import Aggregate
from impctl.engine.operators.project import Project
from impctl.engine.operators.select import Select
from impctl.engine.operators.top import Top
from impctl.engine.refill import owners_of
from impctl.expr.nodes import ColumnRef
from impctl.maintain.flows import Flow, Source

if TYPE_CHECKING:
    from impctl.maintain.build import Builder

TableRows = Callable[
    [TableName, Sequence[ColumnName], Mapping[ColumnName, Vector]], Iterable[pa.Table]
]
"""All rows of a table, after the change, whose columns have one of these values each; more may come
along. The columns asked for come in any order."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What lies between a table or a grouping and an operator: what is done to each row."""

    origin: Source | Aggregate
    steps: tuple[Select | Project, ...]

    @property
    def accesses(self) -> int:
        """How many sketched accesses its rows have fragments of."""
        if isinstance(self.origin, Aggregate):
            return self.origin.accesses
        return len(self.origin.scan.partitions)

    def column_of(self, source: Source, name: AttributeId) -> ColumnName | None:
        """The column of the table, where it starts there, that passes unchanged as this one."""
        for step in reversed(self.steps):
            if isinstance(step, Project):
                expr = dict(step.outputs).get(name)
                if not isinstance(expr, ColumnRef):
                    return None
                name = expr.id
        columns = {identity: column for identity, column, _ in source.scan.columns}
        return columns.get(name)

    def passed(self, batch: Batch) -> Batch:
        """What arrives at the operator for these rows of the origin."""
        for step in self.steps:
            batch = step.step(batch)
        return batch


def prefix_of(builder: Builder, flow: Flow) -> Prefix | None:
    """The way to this flow from a table or a grouping; None where there is more between."""
    steps: list[Select | Project] = []
    at = flow.at
    while at >= 0:
        operator = builder.operators[at]
        if isinstance(operator, Aggregate) and operator.can_output:
            return Prefix(operator, tuple(reversed(steps)))
        if not isinstance(operator, Select | Project):
            return None
        steps.append(operator)
        (at,) = builder.inputs[at]
    return Prefix(builder.sources[-1 - at], tuple(reversed(steps)))


@dataclass(slots=True)
class Refilled:
    """A bounded operator, what it reads, and how often it had to.

    `rows` counts those of the table; a grouping's come from memory.
    """

    operator: Aggregate | Top
    prefix: Prefix
    keys: tuple[AttributeId, ...]
    groups: int = 0
    rows: int = 0

    def read_from(self, table_rows: TableRows) -> None:
        """Refill from these rows of the table from now on, where it is a table's."""
        source = self.prefix.origin
        if isinstance(source, Aggregate):
            return
        known = [(key, self.prefix.column_of(source, key)) for key in self.keys]

        def refill(keys: Sequence[Vector]) -> Batch:
            wanted = {
                column: key
                for (_, column), key in zip(known, keys, strict=True)
                if column is not None
            }
            return self._filled(keys, _read(source, table_rows, wanted))

        self.operator.refill_from(refill)

    def read_from_groups(self) -> None:
        """Refill from the state of the grouping below from now on, where it is a grouping's."""
        grouping = self.prefix.origin
        if isinstance(grouping, Aggregate):
            self.operator.refill_from(lambda keys: self._filled(keys, [grouping.output()]))

    def _filled(self, keys: Sequence[Vector], batches: Iterable[Batch]) -> Batch:
        """The rows of these groups among those of the origin, as they arrive at the operator."""
        count = len(keys[0]) if keys else 1
        parts = []
        for batch in batches:
            if not isinstance(self.prefix.origin, Aggregate):
                self.rows += len(batch)
            parts.append(owners_of(keys, count, self.prefix.passed(batch), self.keys)[1])
        self.groups += count
        filled = [part for part in parts if len(part)]
        return stacked_batches(filled) if filled else empty_batch(self.prefix.accesses)


def _read(
    source: Source, table_rows: TableRows, keys: Mapping[ColumnName, Vector]
) -> Iterator[Batch]:
    for rows in table_rows(source.table, source.scan.table_columns, keys):
        yield source.scan.read(rows, np.ones(len(rows), dtype=np.int64))
