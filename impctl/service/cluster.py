"""Rewrite tables' files so that stored sketches skip files.

Law: only on request. Rows stay the same, in one commit that says so, so sketches stay right and no
query is recaptured. Expectations are reported before, results afterwards. A table that no sketch
gains from is not rewritten unless named, and never one that has that order already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import ImpctlError, UsageError, count_text
from impctl.service.advice import StoredSketchUse, cluster_forecast, sketch_uses, sketched_most
from impctl.service.output import held_signals
from impctl.service.partitions import is_partitionable
from impctl.service.results import ClusterResult, Failure, Outcome
from impctl.service.text import size_text
from impctl.stopwatch import Stopwatch
from impctl.tables.snapshot import Snapshot, bytes_of
from impctl.tables.write.maintenance import check_clusterable, cluster_table
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.types import ColumnName, TableName


def cluster(
    ctx: Context, tables: Sequence[TableName], by: Sequence[ColumnName], *, may_lose: bool = False
) -> Outcome:
    """Cluster the named tables, or those whose sketches gain from it. An order that makes more
    sketches read more than less is refused unless `may_lose`."""
    wanted = _requested(ctx, tables, by)
    results: list[ClusterResult] = []
    failures: list[Failure] = []
    uses = sketch_uses(ctx, ctx.reading_store(), failures)
    for table in wanted or tuple(uses):
        try:
            used = uses.get(table, [])
            results.append(_clustered(ctx, table, by, used, bool(wanted), may_lose=may_lose))
        except ImpctlError as error:
            failures.append(Failure(None, error))
    warning = (
        f"no sketch is stored for any query of {ctx.workload.file}, so there is "
        "nothing to cluster by; run `impctl capture` first, or give `--table` and `--by`"
    )
    return Outcome(tuple(results), () if wanted or uses else (warning,), tuple(failures))


def _requested(
    ctx: Context, tables: Sequence[TableName], by: Sequence[ColumnName]
) -> tuple[TableName, ...]:
    """The named tables; UsageError for an unknown one."""
    known, result = ctx.workload.tables, []
    for written in tables:
        table = ctx.workload.names.called(written)
        if table is None:
            raise UsageError(
                f"Table `{written}` is not in {ctx.workload.file}",
                code="cluster_table_unknown",
                hint=suggestion(written, list(known), "the file has"),
            )
        result.append(table)
    if by and len(tables) != 1:
        raise UsageError(
            "`--by` takes columns of one table", hint="name that table with `--table` too"
        )
    return tuple(dict.fromkeys(result))


def _clustered(
    ctx: Context,
    table: TableName,
    by: Sequence[ColumnName],
    uses: Sequence[StoredSketchUse],
    is_named: bool,
    *,
    may_lose: bool,
) -> ClusterResult:
    snapshot = ctx.tables.snapshot(table)
    columns = _columns(snapshot, by, uses)
    forecast = cluster_forecast(ctx, table, columns, uses)
    order = "sorted by" if len(columns) == 1 else "in Z-order of"
    names = ", ".join(f"`{name}`" for name in columns)
    result = ClusterResult(
        table=table,
        action="none",
        by=columns,
        reason=f"{order} {names}, in about {forecast.files:,} files",
        files=len(snapshot.files),
        bytes=snapshot.bytes,
        sketches=forecast.sketches,
        foreseen=ctx.settings.dry_run,
    )
    if is_named:
        check_clusterable(snapshot, columns)
    if forecast.is_done or (forecast.obstacle and not is_named):
        return replace(result, reason=forecast.obstacle)
    check_clusterable(snapshot, columns)
    if ctx.settings.dry_run:
        return result
    if not may_lose and len(result.losers) > len(result.winners):
        raise _loses(result)
    ctx.reporter.finished(replace(result, foreseen=True), 1, 1)
    ctx.reporter.step(f"clustering {table} by {', '.join(columns)}")
    watch = Stopwatch()
    with held_signals():
        done = cluster_table(ctx.tables.source(table), columns)
        ctx.tables.repin(table)
    sketches = []
    for use, expected in zip(uses, forecast.sketches, strict=True):
        left = use.left(ctx).files[use.sketch.table]
        sketches.append(replace(expected, files_after=len(left), bytes_after=bytes_of(left)))
    return replace(
        result,
        action="cluster",
        version=done.version,
        files_after=len(ctx.tables.snapshot(table).files),
        elapsed_ms=watch.ms,
        sketches=tuple(sketches),
    )


def _loses(result: ClusterResult) -> UsageError:
    names = ", ".join(f"`{loser.query}`" for loser in result.losers)
    return UsageError(
        f"Clustering table `{result.table}` by "
        f"{', '.join(f'`{name}`' for name in result.by)} would rewrite "
        f"{size_text(result.bytes)}, and {len(result.losers)} of "
        f"{count_text(len(result.sketches), 'sketch', 'sketches')} would read more "
        f"files than now: {names}",
        hint="choose other columns (`--dry-run` shows what each sketch would read), or add `--yes`",
        code="cluster_loses",
    )


def _columns(
    snapshot: Snapshot, by: Sequence[ColumnName], uses: Sequence[StoredSketchUse]
) -> tuple[ColumnName, ...]:
    if not by:
        often = sketched_most(snapshot, uses)
        if often:
            return often
        raise UsageError(
            f"No column is known to cluster table `{snapshot.table}` by",
            hint="name one with `--by`, or capture a query of the table first",
        )
    result = []
    for name in by:
        column = snapshot.schema.find(name)
        if column is None or not is_partitionable(column):
            names = [c.name for c in snapshot.schema if is_partitionable(c)]
            raise UsageError(
                f"Table `{snapshot.table}` has no column `{name}` that it can be clustered by",
                hint=suggestion(name, names, "it has"),
                code="column_unknown",
            )
        result.append(column.name)
    return tuple(dict.fromkeys(result))
