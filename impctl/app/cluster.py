"""Use case: rewrite tables' files so that the sketches stored for them leave files out.

Law: only on demand; rows stay as they are, in one commit that says so, so sketches stay right and
no query is captured anew. Told before is what is expected, afterwards what came; a table that no
sketch would gain of is left alone, unless it is named.
Out of scope: the rewriting (`tables.write.cluster`), which attribute is sketched
(`app.preparing.choice`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from impctl.aliases import ColumnName, TableName
from impctl.app.capturing.definition import is_captured_alike
from impctl.app.capturing.moments import stored_moments
from impctl.app.preparing.filters import Pruned, filters_of
from impctl.app.preparing.partitions import is_partitionable
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.results.clustered import ClusteredSketch, ClusterResult
from impctl.app.results.results import Failure, Outcome
from impctl.app.workbench.held_signals import held_signals
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, UsageError
from impctl.sketch.files_after import share_after
from impctl.stopwatch import Stopwatch
from impctl.store.records import StoredSketch
from impctl.tables.snapshot import Snapshot
from impctl.tables.write.cluster import bytes_per_file, check_clusterable, cluster_table
from impctl.workload.reading import suggestion

_WORTH_IT = 0.8
"""Of the bytes that sketches leave now, at most so many must be left for a table to be rewritten
without being named."""
_MOST_COLUMNS = 4
"""By more a Z-order tells hardly anything apart."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A sketch of the table, and the query that it is for."""

    prepared: PreparedQuery
    sketch: StoredSketch
    sketches: tuple[StoredSketch, ...]


def cluster(desk: Workbench, tables: Sequence[TableName], by: Sequence[ColumnName]) -> Outcome:
    """Cluster the tables named, or those that sketches are stored for and gain of it."""
    wanted = _wanted(desk, tables, by)
    results: list[ClusterResult] = []
    failures: list[Failure] = []
    uses = _uses(desk, failures)
    for table in wanted or tuple(uses):
        try:
            results.append(_clustered(desk, table, by, uses.get(table, []), bool(wanted)))
        except ImpctlError as error:
            failures.append(Failure(None, error))
    return Outcome(tuple(results), _warnings(desk, wanted, uses), tuple(failures))


def _wanted(
    desk: Workbench, tables: Sequence[TableName], by: Sequence[ColumnName]
) -> tuple[TableName, ...]:
    """The tables named; UsageError for one that the file does not have."""
    known, found = desk.workload.tables, []
    for written in tables:
        table = desk.workload.names.called(written)
        if table is None:
            raise UsageError(
                f"Table `{written}` is not in {desk.workload.file}",
                code="cluster_table_unknown",
                hint=suggestion(written, list(known), "the file has"),
            )
        found.append(table)
    if by and len(tables) != 1:
        raise UsageError(
            "`--by` names columns of one table", hint="name that table with `--table` too"
        )
    return tuple(dict.fromkeys(found))


def _warnings(
    desk: Workbench, wanted: Sequence[TableName], uses: dict[TableName, list[_Use]]
) -> tuple[str, ...]:
    if wanted or uses:
        return ()
    return (
        f"no sketch is stored for a query of {desk.workload.file}, so there is nothing to cluster "
        "by; run `impctl capture` first, or name `--table` and `--by`",
    )


def _uses(desk: Workbench, failures: list[Failure]) -> dict[TableName, list[_Use]]:
    """The sketches stored for the file's queries as they read now, by table."""
    store = desk.reading_store()
    found: dict[TableName, list[_Use]] = {}
    if store is None:
        return found
    for spec in desk.sketched(None):
        with Isolated(failures, spec):
            stored = store.load(spec.name)
            if stored is None or not is_captured_alike(desk, spec, stored):
                continue
            prepared = prepare(desk, spec, stored_moments(stored))
            for sketch in stored.sketches:
                use = _Use(prepared, sketch, stored.sketches)
                found.setdefault(sketch.table, []).append(use)
    return found


def _clustered(
    desk: Workbench,
    table: TableName,
    by: Sequence[ColumnName],
    uses: Sequence[_Use],
    is_named: bool,
) -> ClusterResult:
    snapshot = desk.tables.snapshot(table)
    columns = _columns(snapshot, by, uses)
    files = max(1, round(snapshot.bytes / bytes_per_file(snapshot)))
    sketches = [_expected(desk, use, columns, files) for use in uses]
    result = ClusterResult(
        table=table,
        action="none",
        by=columns,
        reason=_reason(columns, files),
        files=len(snapshot.files),
        sketches=tuple(sketches),
        foreseen=desk.settings.dry_run,
    )
    now, then = sum(s.bytes for s in sketches), sum(s.bytes_expected for s in sketches)
    if not is_named and then > _WORTH_IT * now:
        return replace(result, reason="its sketches would leave out hardly more than they do now")
    check_clusterable(snapshot, columns)
    if desk.settings.dry_run:
        return result
    desk.reporter.step(f"clustering {table} by {', '.join(columns)}")
    watch = Stopwatch()
    with held_signals():
        done = cluster_table(desk.tables.source(table), columns)
        desk.tables.repin(table)
    came = [_came(desk, use, found) for use, found in zip(uses, sketches, strict=True)]
    return replace(
        result,
        action="cluster",
        version=done.version,
        files_after=len(desk.tables.snapshot(table).files),
        elapsed_ms=watch.ms,
        sketches=tuple(came),
    )


def _columns(
    snapshot: Snapshot, by: Sequence[ColumnName], uses: Sequence[_Use]
) -> tuple[ColumnName, ...]:
    """The columns asked for, as the schema spells them; else the attributes sketched most often."""
    if not by:
        attributes = [use.sketch.attribute for use in uses]
        able = [name for name in attributes if name not in snapshot.partition_columns]
        often = sorted(dict.fromkeys(able), key=lambda name: -able.count(name))
        if often:
            return tuple(often[:_MOST_COLUMNS])
        raise UsageError(
            f"Nothing tells by which column to cluster table `{snapshot.table}`",
            hint="name one with `--by`, or capture a query of the table first",
        )
    found = []
    for name in by:
        column = snapshot.schema.find(name)
        if column is None or not is_partitionable(column):
            names = [c.name for c in snapshot.schema if is_partitionable(c)]
            raise UsageError(
                f"Table `{snapshot.table}` has no column `{name}` that it can be clustered by",
                hint=suggestion(name, names, "it has"),
                code="column_unknown",
            )
        found.append(column.name)
    return tuple(dict.fromkeys(found))


def _reason(columns: Sequence[ColumnName], files: int) -> str:
    order = "sorted by" if len(columns) == 1 else "in Z-order of"
    return f"{order} {', '.join(f'`{name}`' for name in columns)}, in about {files:,} files"


def _expected(
    desk: Workbench, use: _Use, columns: Sequence[ColumnName], files: int
) -> ClusteredSketch:
    """What the sketch leaves now, and would of files in the new order."""
    table = use.sketch.table
    left = _left(desk, use).files[table]
    now = sum(file.size for file in left)
    total = desk.tables.snapshot(table).bytes
    share = min(1.0, now / max(total, 1))
    if use.sketch.attribute in columns:
        share = min(share, share_after(use.sketch.fragments, use.sketch.partition, files, columns))
    return ClusteredSketch(
        query=use.prepared.spec.name,
        attribute=use.sketch.attribute,
        files=len(left),
        bytes=now,
        files_expected=round(share * files),
        bytes_expected=round(share * total),
    )


def _came(desk: Workbench, use: _Use, expected: ClusteredSketch) -> ClusteredSketch:
    """What the same sketch leaves of the files as they are now: their rows did not change."""
    left = _left(desk, use).files[use.sketch.table]
    return replace(expected, files_after=len(left), bytes_after=sum(file.size for file in left))


def _left(desk: Workbench, use: _Use) -> Pruned:
    versions = desk.tables.versions_of(use.prepared.tables)
    return filters_of(desk.tables, use.prepared, use.sketches, versions)
