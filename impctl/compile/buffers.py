"""Bounded buffers: which operators can have them, and where their rows come from again.

An operator keeps only its best values or rows where its input is one table's rows, or the groups of
a grouping, selected and projected: then the rows of a group can be read again from the table or
from the grouping's state. Over joins and set operations that would need the query, so everything is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct, field

from impctl.compile.flows import Flow, Source
from impctl.data.vector import Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.lookups import owners_of
from impctl.stopwatch import Stopwatch
from impctl.types import AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    from impctl.engine.operator import Operator

TableRows = Callable[[Source, Mapping[ColumnName, Vector]], Iterable[pa.Table]]
"""All rows of a source's table, after the change, that meet its conditions and whose columns have
one of these values each; it may return more. Columns come in any order."""


class Buffers(Struct, frozen=True):
    """How many of the best rows or values are kept, if they can be refilled; None is all. Of each
    group of several, and where all rows are one group; of groups `of_piece` overrides single pieces
    of state, by name."""

    of_group: int | None = None
    of_all: int | None = None
    of_piece: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, size: int | None) -> Buffers:
        return cls(size, size)

    def size_of(self, piece: str, *, is_grouped: bool) -> int | None:
        return self.of_piece.get(piece, self.of_group) if is_grouped else self.of_all


KEEP_ALL = Buffers()
FEWEST = 8
"""Rows or values of a group that a look-up reads in any case, so a smaller bound is not faster. If
only the best one counts, it takes 8 deletions of the best to use it up."""
USUAL = Buffers(of_all=1000)
"""If all rows are one group, 1,000 deletions of the best rows use up the buffer. For many groups a
good bound depends on their sizes, which only the workload's author knows."""


class BufferChoice(Struct, frozen=True):
    """What is kept of a piece with first rows, or with values of MIN and MAX, per group: the best
    `size`, all if that is None. `wanted` are always held. `pinned` says why the size is no choice,
    empty if it is one; `is_values` that it is of a grouping's values, and not of first rows."""

    piece: str
    tables: tuple[TableName, ...]
    size: int | None
    wanted: int
    pinned: str = ""
    is_values: bool = False


OVER_MORE = (
    "only the query itself could refill a buffer: its rows come neither from one table nor from "
    "groups that can be read again"
)
ONE_GROUP = "its rows are one group, and the best rows of it are stored in any case"


class Prefix(Struct, frozen=True):
    """The path from a table, or an operator that knows its output, to a bounded operator."""

    origin: Source | Operator
    steps: tuple[Operator, ...]

    def column_of(self, source: Source, name: AttributeId) -> ColumnName | None:
        """The table column, if it starts there, that passes unchanged as this one."""
        passed: AttributeId | None = name
        for step in reversed(self.steps):
            passed = None if passed is None else step.passes(passed)
        columns = {identity: column for identity, column, _ in source.scan.columns}
        return None if passed is None else columns.get(passed)

    def passed(self, batch: Batch) -> Batch | None:
        """What arrives at the operator for these rows of the origin."""
        result: Batch | None = batch
        for step in self.steps:
            result = None if result is None else step.step(result)
        return result


def prefix_of(
    operators: Sequence[Operator],
    inputs: Sequence[Sequence[int]],
    sources: Sequence[Source],
    flow: Flow,
) -> Prefix | None:
    """The path to this flow from a table or a grouping; None if there is more between."""
    steps: list[Operator] = []
    wire = flow.wire
    while wire >= 0:
        operator = operators[wire]
        if operator.can_refill:
            return Prefix(operator, tuple(reversed(steps)))
        if not operator.is_rowwise:
            return None
        steps.append(operator)
        (wire,) = inputs[wire]
    return Prefix(sources[-1 - wire], tuple(reversed(steps)))


class Refilled(Struct):
    """A bounded operator, what it reads, by which keys and with how many tags, and how often.
    `rows` counts those of the table; a grouping's come from memory. `ms` is the time taken."""

    operator: Operator
    prefix: Prefix
    keys: tuple[AttributeId, ...]
    accesses: int
    groups: int = 0
    rows: int = 0
    ms: float = 0.0

    def read_from(self, table_rows: TableRows) -> None:
        """Refill from these rows of the table from now on, if the origin is a table."""
        source = self.prefix.origin
        if not isinstance(source, Source):
            return
        columns = [self.prefix.column_of(source, key) for key in self.keys]

        def refill(keys: Sequence[Vector]) -> Batch:
            pairs = zip(columns, keys, strict=True)
            values = {column: key for column, key in pairs if column is not None}
            return self._filled(keys, _read(source, table_rows, values))

        self.operator.refill_from(refill)

    def read_from_groups(self) -> None:
        """Refill from the state of the grouping below from now on, if the origin is one."""
        grouping = self.prefix.origin
        if not isinstance(grouping, Source):
            self.operator.refill_from(lambda keys: self._filled(keys, _output_of(grouping)))

    def whole(self, table_rows: TableRows) -> Iterator[Batch]:
        """All input rows of the operator, those of a table from `table_rows`; between steps."""
        origin = self.prefix.origin
        batches = (
            _read(origin, table_rows, {}) if isinstance(origin, Source) else _output_of(origin)
        )
        for batch in batches:
            passed = self.prefix.passed(batch)
            if passed is not None and len(passed):
                yield passed

    def _filled(self, keys: Sequence[Vector], batches: Iterable[Batch]) -> Batch:
        """The rows of these groups among those of the origin, as they arrive at the operator."""
        watch = Stopwatch()
        count = len(keys[0]) if keys else 1
        parts = []
        for batch in batches:
            if isinstance(self.prefix.origin, Source):
                self.rows += len(batch)
            passed = self.prefix.passed(batch)
            if passed is not None:
                parts.append(owners_of(keys, count, passed, self.keys)[1])
        self.groups += count
        filled = [part for part in parts if len(part)]
        self.ms += watch.ms
        return stacked_batches(filled) if filled else empty_batch(self.accesses)


def _output_of(grouping: Operator) -> Iterator[Batch]:
    yield grouping.output()


def _read(
    source: Source, table_rows: TableRows, keys: Mapping[ColumnName, Vector]
) -> Iterator[Batch]:
    for rows in table_rows(source, keys):
        yield source.inserted(rows)
