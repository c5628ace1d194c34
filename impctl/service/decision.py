"""What a capture is about to do: decided once, then run or explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.compile.compile import MaintenancePlan
    from impctl.service.context import Partitions, Context
    from impctl.store.records import StoreReader
    from impctl.workload.models import QuerySpec


@dataclass(frozen=True, slots=True)
class CaptureStage:
    """The choice, its partitions by access, and how sketch and state are computed and kept."""

    prepared: PreparedQuery
    chosen: AttributeChoice
    partitions: Partitions
    way: MaintenancePlan

    def by(self, desk: Context) -> str:
        compiled = self.way.compiled
        is_exact = self.way.mode is MaintenanceMode.EXACT and compiled is not None
        if not is_exact or compiled is None or not is_loaded_here(desk, compiled):
            return SPARK
        return f"{ENGINE} and {SPARK}" if compiled.asks_spark else ENGINE

    def reads(self, desk: Context) -> tuple[ReadEntry, ...]:
        """What is read of each table, after the query's conditions."""
        compiled, prepared = self.way.compiled, self.prepared
        snapshots = {scan.access: desk.tables.snapshot(scan.table) for scan in prepared.scans}
        if self.way.mode is MaintenanceMode.EXACT and compiled is not None:
            tables = {snapshot.table: snapshot for snapshot in snapshots.values()}
            left = {name: files_of_table(result, compiled) for name, result in tables.items()}
        else:
            left = files_by_table(snapshots, wanted_files(prepared.root, snapshots))
        return tuple(
            ReadEntry(table, now.version, rows_in(now, files), len(files), bytes_of(files))
            for table, files in left.items()
            for now in [desk.tables.snapshot(table)]
        )


def capture_stage(desk: Context, prepared: PreparedQuery) -> CaptureStage:
    """Decide the capture; UnsafeSketchError if no attribute is safe."""
    chosen = choose(desk, prepared, every=False)
    partitions = chosen.partitions(desk, prepared)
    way = capture_way(desk, prepared, chosen.verdict, partitions)
    return CaptureStage(prepared, chosen, partitions, way)


def foreseen_capture(desk: Context, store: StoreReader | None, spec: QuerySpec) -> CaptureResult:
    """Explain the capture of a query instead of running it."""
    prepared = prepare(desk, spec)
    stage = capture_stage(desk, prepared)
    tables = prepared.table_of
    facts = stage.chosen.verdict.assumptions
    return CaptureResult(
        query=spec.name,
        action="none",
        sketches=tuple(
            SketchEntry(tables[access], partition.attribute, (), partition.ranges)
            for access, partition in stage.partitions.items()
        ),
        versions=desk.tables.versions_of(prepared.tables),
        mode=stage.way.mode.value,
        elapsed_ms=0.0,
        spark_ms=0.0,
        engine_ms=0.0,
        considered=stage.chosen.candidates,
        assumptions=tuple(assumption_text(assumption_of(fact)) for fact in facts),
        foreseen=True,
        by=stage.by(desk),
        reads=stage.reads(desk),
        stored=_stored(desk, store, spec),
    )


def _stored(desk: Context, store: StoreReader | None, spec: QuerySpec) -> str:
    try:
        stored = None if store is None else store.load(spec.name)
        if stored is None:
            return "none"
        is_fresh = is_captured_alike(desk, spec, stored) and is_current(stored, desk.tables)
        is_fresh = is_fresh and not moved_moments(desk, stored)
    except RecaptureNeededError:
        # What cannot be read back is replaced by the capture.
        return "stale"
    return "current" if is_fresh else "stale"
