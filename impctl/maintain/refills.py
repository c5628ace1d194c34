"""Bounded buffers: which operators can have them, and where their rows come from again.

Law: an operator keeps only its best values or rows where its input is one table's rows, selected
and projected: then the rows of a group can be read from the table once more. Over joins, groups or
set operations that would mean running the query, so there everything is kept, as without a bound.
Out of scope: reading the table (`app.refilling`), when a buffer is used up (`engine.refill`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """What lies between a table and an operator: the source, and what is done to each row."""

    source: Source
    steps: tuple[Select | Project, ...]

    def column_of(self, name: AttributeId) -> ColumnName | None:
        """The table's column that passes unchanged as this one, if one does."""
        for step in reversed(self.steps):
            if isinstance(step, Project):
                expr = dict(step.outputs).get(name)
                if not isinstance(expr, ColumnRef):
                    return None
                name = expr.id
        columns = {identity: column for identity, column, _ in self.source.scan.columns}
        return columns.get(name)

    def batch(self, rows: pa.Table) -> Batch:
        """What arrives at the operator for these rows of the table."""
        batch = self.source.scan.read(rows, np.ones(len(rows), dtype=np.int64))
        for step in self.steps:
            batch = step.step(batch)
        return batch


def prefix_of(builder: Builder, flow: Flow) -> Prefix | None:
    """The way from the table to this flow; None where it is more than rows of one table."""
    steps: list[Select | Project] = []
    at = flow.at
    while at >= 0:
        operator = builder.operators[at]
        if not isinstance(operator, Select | Project):
            return None
        steps.append(operator)
        (at,) = builder.inputs[at]
    return Prefix(builder.sources[-1 - at], tuple(reversed(steps)))


@dataclass(slots=True)
class Refilled:
    """A bounded operator, what it reads, and how often it had to."""

    operator: Aggregate | Top
    prefix: Prefix
    keys: tuple[AttributeId, ...]
    groups: int = 0
    rows: int = 0

    def read_from(self, table_rows: TableRows) -> None:
        """Refill from these rows from now on."""
        known = [(key, self.prefix.column_of(key)) for key in self.keys]
        source = self.prefix.source

        def refill(keys: Sequence[Vector]) -> Batch:
            count = len(keys[0]) if keys else 1
            wanted = {
                column: key
                for (_, column), key in zip(known, keys, strict=True)
                if column is not None
            }
            parts = []
            for rows in table_rows(source.table, source.scan.table_columns, wanted):
                self.rows += len(rows)
                parts.append(owners_of(keys, count, self.prefix.batch(rows), self.keys)[1])
            self.groups += count
            filled = [part for part in parts if len(part)]
            return stacked_batches(filled) if filled else empty_batch(len(source.scan.partitions))

        self.operator.refill_from(refill)
