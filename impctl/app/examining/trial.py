"""What a query's sketch will skip, by a capture that stores nothing.

The engine runs the capture in memory, where that takes about two seconds at most and the tables are
on the local disk. Otherwise the estimate from a sample is shown (`app.preparing.estimate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from impctl.app.capturing.captured import stored_sketches
from impctl.app.capturing.fill_by_engine import is_loaded_here, loaded
from impctl.app.preparing.filters import filters_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import CandidateEntry, ExpectedReading
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Way
from impctl.errors import ImpctlError
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import Mode
from impctl.store.records import StoredSketch
from impctl.tables.snapshot import bytes_of, rows_in
from impctl.tables.storage import local_path
from impctl.types import AccessId, TableName

MOST_ROWS = 6_000_000
"""Rows of a query's tables, at most: the engine reads about three million a second."""
_MOST_ROWS_OF_RUN = 3 * MOST_ROWS


class Trials:
    """The trials of one run of `explain`, which together take a few seconds at most."""

    def __init__(self, desk: Workbench) -> None:
        self._desk = desk
        self._rows_left = _MOST_ROWS_OF_RUN

    def tried(
        self,
        prepared: PreparedQuery,
        way: Way,
        partitions: Mapping[AccessId, RangePartition],
        candidates: Sequence[CandidateEntry],
    ) -> tuple[CandidateEntry, ...]:
        """The candidates, the chosen ones with what their sketches leave to read."""
        desk, compiled = self._desk, way.compiled
        snapshots = [desk.tables.snapshot(table) for table in prepared.tables]
        rows = sum(snapshot.likely_rows for snapshot in snapshots)
        if (
            way.mode is not Mode.EXACT
            or compiled is None
            or compiled.asks_spark
            or not 0 < rows <= min(MOST_ROWS, self._rows_left)
            or any(local_path(snapshot.path) is None for snapshot in snapshots)
            or not is_loaded_here(desk, compiled)
        ):
            return tuple(candidates)
        self._rows_left -= rows
        desk.reporter.step(f"running the capture of {prepared.spec.name} without storing it")
        try:
            session = loaded(desk, compiled, partitions)
        except ImpctlError:
            return tuple(candidates)  # `capture` reports what is wrong
        if session is None:
            return tuple(candidates)
        sketches = stored_sketches(prepared, partitions, session.fragments())
        read = _reading(desk, prepared, sketches)
        return tuple(
            replace(entry, expected=read[entry.table])
            if entry.chosen and entry.table in read
            else entry
            for entry in candidates
        )


def _reading(
    desk: Workbench, prepared: PreparedQuery, sketches: Sequence[StoredSketch]
) -> dict[TableName, ExpectedReading]:
    """Files, rows and bytes of each table that is read through a sketch."""
    versions = desk.tables.versions_of(prepared.tables)
    pruned = filters_of(desk.tables, prepared, sketches, versions)
    result = {}
    for table in {sketch.table for sketch in sketches}:
        snapshot, kept = desk.tables.snapshot(table), pruned.files[table]
        result[table] = ExpectedReading(
            files=len(kept),
            files_low=len(kept),
            files_high=len(kept),
            files_total=len(snapshot.files),
            rows=rows_in(snapshot, kept) or 0,
            bytes=bytes_of(kept),
            is_measured=True,
        )
    return result
