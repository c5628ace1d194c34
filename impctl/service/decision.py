"""What a capture is about to do: decided once, then run or explained.

Law: a stage is made from the SQL, the tables' metadata and a sample of values; nothing is written
and no Spark started. A run does what its stage says, but for a state that the engine turns out not
to be able to fill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.errors import RecaptureNeededError
from impctl.service.choose import AttributeChoice, choose
from impctl.service.fill import is_loaded_here
from impctl.service.filters import files_by_table, files_of_table, wanted_files
from impctl.service.maintenance_plan import capture_way
from impctl.service.prepare import PreparedQuery, assumption_of, assumption_text, prepare
from impctl.service.results import ENGINE, SPARK, CaptureResult, ReadEntry, SketchEntry
from impctl.service.stored import is_captured_alike, is_current, moved_moments
from impctl.sketch.sketch import MaintenanceMode
from impctl.tables.snapshot import bytes_of, rows_in

if TYPE_CHECKING:
    from impctl.compile.compile import MaintenancePlan
    from impctl.service.context import Context, Partitions
    from impctl.store.records import StoreReader
    from impctl.workload.models import QuerySpec


class CaptureStage(Struct, frozen=True):
    """The choice, its partitions by access, and how sketch and state are computed and kept."""

    prepared: PreparedQuery
    chosen: AttributeChoice
    partitions: Partitions
    way: MaintenancePlan

    def by(self, ctx: Context) -> str:
        compiled = self.way.compiled
        is_exact = self.way.mode is MaintenanceMode.EXACT and compiled is not None
        if not is_exact or compiled is None or not is_loaded_here(ctx, compiled):
            return SPARK
        return f"{ENGINE} and {SPARK}" if compiled.asks_spark else ENGINE

    def reads(self, ctx: Context) -> tuple[ReadEntry, ...]:
        """What is read of each table, after the query's conditions."""
        compiled, prepared = self.way.compiled, self.prepared
        snapshots = {scan.access: ctx.tables.snapshot(scan.table) for scan in prepared.scans}
        if self.way.mode is MaintenanceMode.EXACT and compiled is not None:
            tables = {snapshot.table: snapshot for snapshot in snapshots.values()}
            left = {name: files_of_table(result, compiled) for name, result in tables.items()}
        else:
            left = files_by_table(snapshots, wanted_files(prepared.root, snapshots))
        return tuple(
            ReadEntry(table, now.version, rows_in(now, files), len(files), bytes_of(files))
            for table, files in left.items()
            for now in [ctx.tables.snapshot(table)]
        )


def capture_stage(ctx: Context, prepared: PreparedQuery) -> CaptureStage:
    """Decide the capture; UnsafeSketchError if no attribute is safe."""
    chosen = choose(ctx, prepared, every=False)
    partitions = chosen.partitions(ctx, prepared)
    way = capture_way(ctx, prepared, chosen.verdict, partitions)
    return CaptureStage(prepared, chosen, partitions, way)


def foreseen_capture(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> CaptureResult:
    """Explain the capture of a query instead of running it."""
    prepared = prepare(ctx, spec)
    stage = capture_stage(ctx, prepared)
    tables = prepared.table_of
    facts = stage.chosen.verdict.assumptions
    return CaptureResult(
        query=spec.name,
        action="none",
        sketches=tuple(
            SketchEntry(tables[access], partition.attribute, (), partition.ranges)
            for access, partition in stage.partitions.items()
        ),
        versions=ctx.tables.versions_of(prepared.tables),
        mode=stage.way.mode.value,
        elapsed_ms=0.0,
        spark_ms=0.0,
        engine_ms=0.0,
        considered=stage.chosen.candidates,
        assumptions=tuple(assumption_text(assumption_of(fact)) for fact in facts),
        foreseen=True,
        by=stage.by(ctx),
        reads=stage.reads(ctx),
        stored=_stored(ctx, store, spec),
    )


def _stored(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> str:
    try:
        stored = None if store is None else store.load(spec.name)
        if stored is None:
            return "none"
        is_fresh = is_captured_alike(ctx, spec, stored) and is_current(stored, ctx.tables)
        is_fresh = is_fresh and not moved_moments(ctx, stored)
    except RecaptureNeededError:
        # What cannot be read back is replaced by the capture.
        return "stale"
    return "current" if is_fresh else "stale"
