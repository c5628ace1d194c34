"""A query's circuits over rows in memory: as a join tree, and as joins in an index.

Law: a circuit is the one that a capture would fill for `join: tree`, `join: index` or what the
query itself asks; it is filled and stepped with the rows given, and processor time is counted, so
that who else uses the machine hardly matters. Nothing is read or committed.
Out of scope: which rows (`trees.streams`), what is asked anew (`semi_joins`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.trees.streams import Step, Tables
from impctl.compile.compile import Dataflow, MaintenancePlan
from impctl.compile.session import MaintainedQuery
from impctl.errors import UnsupportedError
from impctl.safety.judge import Verdict
from impctl.service.capture_plan import plan_capture
from impctl.service.context import Context
from impctl.service.maintenance_plan import plan_after_capture
from impctl.service.prepare import PreparedQuery, SketchedQuery, prepare
from impctl.sketch.sketch import RangePartition, RangeSet
from impctl.tables.rows import read_rows
from impctl.types import AccessId, TableName
from impctl.workload.models import JoinStrategy, QuerySpec

_SLICE = 1_000_000
"""Rows with which a circuit is filled at once, as a capture reads them."""


class Choices(Struct, frozen=True):
    """A query with its ranges: what all its circuits have in common."""

    ctx: Context
    prepared: PreparedQuery
    verdict: Verdict
    partitions: Mapping[AccessId, RangePartition]

    def way(self, join: JoinStrategy | None = None) -> MaintenancePlan:
        """The way by such joins, by those of the query itself for None.

        UnsupportedError where there is none by a circuit, or no tree though one is asked for.
        """
        spec = self.prepared.spec
        chosen = spec if join is None else replace(spec, join=join)
        prepared = replace(self.prepared, spec=chosen)
        result = plan_after_capture(
            self.ctx, SketchedQuery(prepared, self.verdict, self.partitions)
        )
        if result.compiled is None:
            raise UnsupportedError(
                f"Query `{spec.name}` has no circuit to measure: {result.reason}",
                code="not_incremental",
                hint="`impctl explain` shows the reason",
                location=self.prepared.place(result.span),
            )
        return result

    def tables(self) -> Tables:
        """Every table that the query reads, whole."""
        snapshots = [self.ctx.tables.snapshot(table) for table in self.prepared.tables]
        return {
            snapshot.table: read_rows(snapshot, snapshot.schema.names) for snapshot in snapshots
        }


def choices_of(ctx: Context, spec: QuerySpec) -> Choices:
    """The query with the ranges that a capture would choose; errors as of `plan_capture`."""
    prepared = prepare(ctx, spec)
    plan = plan_capture(ctx, prepared)
    return Choices(ctx, plan.prepared, plan.verdict, plan.partitions)


class Followed:
    """A circuit that follows a stream."""

    def __init__(self, compiled: Dataflow, start: Tables) -> None:
        self.session = MaintainedQuery(compiled)
        began = time.process_time()
        self.session.load(_slices({t: start[t] for t in compiled.tables}))
        self.capture_ms = (time.process_time() - began) * 1000.0

    def step(self, step: Step) -> float:
        """Milliseconds of processor time that the engine takes for it."""
        changes = step.changes()
        began = time.process_time()
        self.session.step(changes)
        return (time.process_time() - began) * 1000.0

    def ranges(self) -> Mapping[AccessId, RangeSet]:
        """The sketches as they stand."""
        return self.session.ranges()

    @property
    def state_bytes(self) -> int:
        """Bytes of keyed state held."""
        return self.session.state_bytes()

    @property
    def work(self) -> tuple[int, int, int]:
        """Tuples touched, flips and pairs of its trees so far; 0 without a tree."""
        return self.session.tree_work()


def _slices(tables: Tables) -> Iterator[tuple[TableName, pa.Table]]:
    """The rows of smaller tables first, as a capture has them."""
    for table, rows in sorted(tables.items(), key=lambda item: len(item[1])):
        for start in range(0, len(rows), _SLICE):
            yield table, rows.slice(start, _SLICE)
