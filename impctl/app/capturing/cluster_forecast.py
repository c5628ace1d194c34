"""What clustering a table would do for the sketches stored for it, and whether it would help.

Law: by statistics, and by the rows per range that the state holds; no file is read. Who clusters,
who shows it beforehand and who advises it ask here, so that nothing is advised that would be left
undone.
Out of scope: the rewriting (`tables.write.maintenance`), how files are foreseen (`sketch.likelihood`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from impctl.app.capturing.definition import is_captured_alike
from impctl.app.capturing.moments import stored_moments
from impctl.app.preparing.filters import Pruned, filters_of
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.results.clustered import ClusteredSketch
from impctl.app.results.results import Failure
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.compile.fill import RangeRows, counts_name
from impctl.data.vector import Ints
from impctl.errors import ImpctlError, StateCorruptError
from impctl.sketch.likelihood import share_after
from impctl.sketch.partition import RangePartition
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery, StoredSketch
from impctl.tables.prune import likely_counts
from impctl.tables.sample import is_sorted, overlap
from impctl.tables.snapshot import Snapshot, bytes_of
from impctl.tables.write.maintenance import bytes_per_file, clustered_by
from impctl.types import ColumnName, QueryName, TableName
from impctl.values import dataclass

_WORTH_IT = 0.8
"""Of the bytes that sketches leave now, at most so many must be left for a table to be rewritten
without being named."""
_AS_FINE = 0.75
"""A table of so many of the files that it would have is not cut finer by writing it again."""
_MOST_COLUMNS = 4
"""By more a Z-order tells hardly anything apart."""


@dataclass(frozen=True, slots=True, eq=False)
class SketchUse:
    """A sketch of a table, the query that it is for, and the rows of the table in each range."""

    prepared: PreparedQuery
    sketch: StoredSketch
    sketches: tuple[StoredSketch, ...]
    rows: Ints

    def left(self, desk: Workbench) -> Pruned:
        """What the query's sketches and conditions leave of the files as they are."""
        versions = desk.tables.versions_of(self.prepared.tables)
        return filters_of(desk.tables, self.prepared, self.sketches, versions)


@dataclass(frozen=True, slots=True)
class ClusterForecast:
    """One table in the order of `columns`, and what each sketch would leave of it.

    `obstacle` says why there is nothing to gain, and is empty where there is; `is_done` where the
    files lie in that order already.
    """

    columns: tuple[ColumnName, ...]
    files: int
    sketches: tuple[ClusteredSketch, ...]
    obstacle: str
    is_done: bool

    @property
    def share(self) -> float:
        """Of the bytes that the sketches leave now, those that they would leave."""
        now = sum(sketch.bytes for sketch in self.sketches)
        return sum(sketch.bytes_expected for sketch in self.sketches) / now if now else 1.0


def sketch_uses(
    desk: Workbench, store: StoreReader | None, failures: list[Failure]
) -> dict[TableName, list[SketchUse]]:
    """The sketches stored for the file's queries as they read now, by table."""
    result: dict[TableName, list[SketchUse]] = {}
    if store is None:
        return result
    for spec in desk.sketched(None):
        with Isolated(failures, spec):
            stored = store.load(spec.name)
            if stored is None or not is_captured_alike(desk, spec, stored):
                continue
            prepared = prepare(desk, spec, stored_moments(stored))
            for sketch in stored.sketches:
                rows = _rows_per_range(desk.tables.snapshot(sketch.table), store, stored, sketch)
                use = SketchUse(prepared, sketch, stored.sketches, rows)
                result.setdefault(sketch.table, []).append(use)
    return result


def _rows_per_range(
    snapshot: Snapshot, store: StoreReader, stored: StoredQuery, sketch: StoredSketch
) -> Ints:
    """Rows per fragment as the state counts them, for how they share the table; else as the log
    suggests."""
    partition = sketch.partition
    others = {other.partition for other in stored.sketches} - {partition}
    # Two partitions of one attribute are counted under names that tell nobody which is which.
    if not any(_is_named_alike(partition, other) for other in others):
        counted = RangeRows([partition])
        # State that is damaged keeps nobody from clustering; `maintain` and `doctor` tell of it.
        with suppress(StateCorruptError):
            counted.load(store.load_runs(stored.query, counts_name(partition)))
        counts = counted.counts(partition)
        if counts.any():
            return counts
    return likely_counts(snapshot, partition)


def _is_named_alike(one: RangePartition, other: RangePartition) -> bool:
    return (one.table, one.attribute) == (other.table, other.attribute)


def sketched_most(snapshot: Snapshot, uses: Sequence[SketchUse]) -> tuple[ColumnName, ...]:
    """The attributes sketched most often; none that the table is partitioned by."""
    attributes = [use.sketch.attribute for use in uses]
    able = [name for name in attributes if name not in snapshot.partition_columns]
    often = sorted(dict.fromkeys(able), key=lambda name: -able.count(name))
    return tuple(often[:_MOST_COLUMNS])


def cluster_forecast(
    desk: Workbench, table: TableName, columns: Sequence[ColumnName], uses: Sequence[SketchUse]
) -> ClusterForecast:
    """What the table's files would be in this order."""
    snapshot = desk.tables.snapshot(table)
    files = max(1, round(snapshot.bytes / bytes_per_file(snapshot)))
    sketches = tuple(_expected(desk, use, columns, files) for use in uses)
    result = ClusterForecast(tuple(columns), files, sketches, "", is_done=False)
    if _is_done(desk, snapshot, columns, files):
        order = "order" if len(columns) == 1 else "Z-order"
        by = ", ".join(f"`{name}`" for name in columns)
        as_now = tuple(
            replace(one, files_expected=one.files, bytes_expected=one.bytes) for one in sketches
        )
        obstacle = f"its files are already in the {order} of {by}"
        return replace(result, sketches=as_now, obstacle=obstacle, is_done=True)
    if result.share <= _WORTH_IT:
        return result
    obstacle = "its sketches would skip hardly more than they do now"
    if files == 1:
        obstacle += ", because all of it fits into one file"
    return replace(result, obstacle=obstacle)


def _is_done(
    desk: Workbench, snapshot: Snapshot, columns: Sequence[ColumnName], files: int
) -> bool:
    """Whether writing the table again in this order would change nothing that matters."""
    if set(clustered_by(desk.tables.source(snapshot.table))) == set(columns):
        return True
    is_fine = len(snapshot.files) >= _AS_FINE * files
    return len(columns) == 1 and is_fine and is_sorted(snapshot, columns[0])


def _expected(
    desk: Workbench, use: SketchUse, columns: Sequence[ColumnName], files: int
) -> ClusteredSketch:
    """What the sketch leaves now, and would of files in the new order."""
    sketch = use.sketch
    left = use.left(desk).files[sketch.table]
    snapshot = desk.tables.snapshot(sketch.table)
    now, total = bytes_of(left), snapshot.bytes
    share = min(1.0, now / max(total, 1))
    if sketch.attribute in columns:
        after = share_after(sketch.fragments, sketch.partition, use.rows, files, columns)
        share = min(share, after)
    elif share < 1:
        # A new file takes its rows from as many old ones as share values of the columns.
        mixed = max(overlap(snapshot, name) for name in columns) * len(snapshot.files)
        share = 1 - (1 - share) ** max(mixed, 1.0)
    return ClusteredSketch(
        query=use.prepared.spec.name,
        attribute=sketch.attribute,
        files=len(left),
        bytes=now,
        files_expected=int(np.ceil(round(share * files, 6))),
        bytes_expected=round(share * total),
    )


class ClusterForecasts:
    """The forecasts of a run that advises, each made when it is asked for and then kept."""

    def __init__(self, desk: Workbench, store: StoreReader | None) -> None:
        self._desk = desk
        self._store = store
        self._uses: dict[TableName, list[SketchUse]] | None = None
        self._made: dict[TableName, ClusterForecast | None] = {}

    def of(self, table: TableName) -> ClusterForecast | None:
        """As `cluster` would find it for all sketches of the table; None where it has none that
        can be used, or cannot be looked at."""
        if self._uses is None:
            self._uses = sketch_uses(self._desk, self._store, [])
        if table not in self._made:
            self._made[table] = self._forecast(table, self._uses.get(table, []))
        return self._made[table]

    def alone(self, query: QueryName, sketch: StoredSketch) -> ClusteredSketch | None:
        """What an order by its own attribute would do for one sketch of several; None where that is
        nothing, or all that `of` looks at."""
        whole, uses = self.of(sketch.table), (self._uses or {}).get(sketch.table, [])
        wanted = (query, sketch.attribute)
        own = [use for use in uses if (use.prepared.spec.name, use.sketch.attribute) == wanted]
        if whole is None or len(own) in (0, len(uses)):
            return None
        forecast = self._forecast(sketch.table, own)
        if forecast is None or forecast.obstacle:
            return None
        return forecast.sketches[0]

    def _forecast(self, table: TableName, uses: Sequence[SketchUse]) -> ClusterForecast | None:
        try:
            columns = sketched_most(self._desk.tables.snapshot(table), uses)
            return cluster_forecast(self._desk, table, columns, uses) if columns else None
        except ImpctlError:
            return None
