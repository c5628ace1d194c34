"""DuckDB beside impctl: recapture by its passes, and the times of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import sqlglot
from msgspec import Struct, field
from sqlglot import exp
from sqlglot.errors import SqlglotError

from impctl.bench.parquet_sql import ParquetSql, SqlFailed
from impctl.bench.record import Metric
from impctl.bench.timing import in_turns, milliseconds
from impctl.data.schema import Column
from impctl.data.vector import from_arrow
from impctl.plan.nodes import attributes_of
from impctl.service.answer import rows_of
from impctl.service.prepare import SketchedQuery, kept_plan
from impctl.service.resolve import is_for_others
from impctl.service.verify import same_rows
from impctl.sketch.sketch import RangeSet
from impctl.spark.capture import PassKind, SketchPass, sketch_passes
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import local_name, rewrite_sql
from impctl.spark.render import Renderer
from impctl.sql.text import without_recursion_limits
from impctl.tables.files import why_not_plain
from impctl.tables.snapshot import DataFile, Snapshot, to_arrow_type
from impctl.tables.storage import local_path
from impctl.types import AccessId, TableName

if TYPE_CHECKING:
    from impctl.measure.scratch import MeasuredQuery
    from impctl.safety.judge import Verdict
    from impctl.service.context import Context
    from impctl.service.pinned import PinnedTables
    from impctl.service.prepare import PreparedQuery
    from impctl.sketch.partition import RangePartition


RangesByAccess = Mapping[AccessId, RangeSet]

# Recapture in DuckDB, as another baseline: the passes of `spark.capture` over the same files,
# translated by sqlglot. Law: a pass is offered only if its sketch equaled Spark's at that version;
# else there is a reason. Equality is checked because DuckDB's arithmetic differs.

Files = Mapping[TableName, Sequence[DataFile]]

_TARGET = "duckdb"

T = TypeVar("T")


class DuckDbRun(Generic[T], Struct, frozen=True):
    """How DuckDB computes the same result; `run` is None, for `reason`, if it cannot."""

    run: Callable[[], T] | None
    reason: str = ""


def duckdb_recapture(
    connection: ParquetSql,
    ctx: Context,
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    expected: RangesByAccess,
) -> DuckDbRun[RangesByAccess]:
    """Recapture at the pinned versions, checked once against the `expected` sketches."""
    reason = _unreadable(ctx.tables, prepared)
    if reason:
        return DuckDbRun(None, reason)

    def recapture() -> RangesByAccess:
        for scan in prepared.scans:
            snapshot = ctx.tables.snapshot(scan.table)
            _view(connection, scan.table, snapshot, snapshot.files)
        sketches: dict[AccessId, RangeSet] = {}
        for accesses, text in passes:
            answer = connection.run(text)
            for access, lists in zip(accesses, answer.columns, strict=True):
                partition = partitions[access]
                values = to_arrow_type(lists.combine_chunks().flatten(), partition.type)
                ranges = partition.range_ids_of(from_arrow(values, partition.type))
                sketches[access] = RangeSet.of(np.unique(ranges).tolist(), partition.size)
        return sketches

    try:
        passes = _passes(prepared, verdict, partitions)
        result = recapture()
    except (SqlFailed, SqlglotError, pa.ArrowException, _NoPassError) as error:
        return DuckDbRun(None, f"DuckDB cannot run the capture: {error}")
    wrong = [access for access, ranges in expected.items() if result[access] != ranges]
    if wrong:
        return DuckDbRun(None, "DuckDB's arithmetic gives a different sketch than Spark's")
    return DuckDbRun(recapture)


def duckdb_plain(
    connection: ParquetSql, tables: PinnedTables, prepared: PreparedQuery
) -> DuckDbRun[pa.Table]:
    """The query over whole tables; `run` returns an Arrow table for the caller to compare."""

    def whole() -> tuple[str, Files]:
        is_plain = is_for_others(prepared.query)
        text = rewrite_sql(prepared.query, {}, is_local=True, is_plain=is_plain)
        return text, {t: tables.snapshot(t).files for t in prepared.tables}

    return duckdb_query(connection, tables, prepared, whole)


def duckdb_query(
    connection: ParquetSql,
    tables: PinnedTables,
    prepared: PreparedQuery,
    read: Callable[[], tuple[str, Files]],
) -> DuckDbRun[pa.Table]:
    """Run the text over the files that `read` returns, which is part of a run. Spark's text is
    translated; what Spark does not support is in DuckDB's dialect already."""
    reason = _unreadable(tables, prepared)
    if reason:
        return DuckDbRun(None, reason)

    def run() -> pa.Table:
        text, files = read()
        for table, chosen in files.items():
            name = local_name(prepared.query, table)
            _view(connection, name, tables.snapshot(table), chosen)
        if not is_for_others(prepared.query):
            text = sqlglot.transpile(text, read=DIALECT, write=_TARGET)[0]
        return connection.run(text)

    try:
        run()
    except (SqlFailed, SqlglotError) as error:
        return DuckDbRun(None, f"DuckDB cannot run the query: {error}")
    return DuckDbRun(run)


class _NoPassError(Exception):
    """DuckDB cannot run this pass."""


def _unreadable(tables: PinnedTables, prepared: PreparedQuery) -> str:
    """Why the rows of a table are not those of its files; empty if they are."""
    for table in prepared.tables:
        snapshot = tables.snapshot(table)
        if local_path(snapshot.path) is None:
            reason = "it is not on the local disk"
        else:
            reason = why_not_plain(snapshot, reads_folders=True)
        if not reason and not snapshot.files:
            reason = "it has no files"
        if reason:
            return f"DuckDB cannot read table `{table}` file by file: {reason}"
    return ""


def _view(connection: ParquetSql, name: str, snapshot: Snapshot, files: Sequence[DataFile]) -> None:
    connection.view(
        name, [file.uri for file in files], has_folders=bool(snapshot.partition_columns)
    )


def _passes(
    prepared: PreparedQuery, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
) -> list[tuple[tuple[AccessId, ...], str]]:
    """Per pass, a SELECT of one row with the needed values of each access's attribute."""
    columns = {a: Column(p.attribute, p.type) for a, p in partitions.items()}
    views = {scan.access: scan.table for scan in prepared.scans}
    materialized = kept_plan(SketchedQuery(prepared, verdict, partitions))
    return [
        (tuple(pass_.keys), _translated(_needed_values(pass_, views)))
        for pass_ in sketch_passes(materialized.query, materialized.verdict, columns)
    ]


def _translated(select: exp.Select) -> str:
    tree = sqlglot.parse_one(without_recursion_limits(select.sql(DIALECT)), dialect=DIALECT)
    for call in tree.find_all(exp.Anonymous):
        # sqlglot does not know the function by which a second row of a subquery fails.
        if call.name.upper() == "RAISE_ERROR":
            call.set("this", "ERROR")
    return tree.sql(_TARGET)


def _needed_values(pass_: SketchPass, views: Mapping[AccessId, str]) -> exp.Select:
    """Per access, select the distinct keys of rows in qualifying groups, if there are groups."""
    if pass_.way is PassKind.COLLECTED:
        raise _NoPassError("ranges are collected along the whole plan")
    renderer = Renderer(views)
    rows = renderer.select(pass_.rows).subquery("mine")
    keys = (_column("mine", renderer.name(key)) for key in pass_.keys.values())
    lists = [exp.ArrayAgg(this=exp.Distinct(expressions=[key])) for key in keys]
    wanted = exp.select(*lists).from_(rows)
    if pass_.groups is None:
        return wanted
    groups = renderer.select(pass_.groups)
    names = [renderer.name(attribute.id) for attribute in attributes_of(pass_.groups)]
    if not pass_.group:
        return wanted.where(exp.Exists(this=groups))
    pairs = [
        exp.NullSafeEQ(this=_column("mine", renderer.name(group)), expression=_column("kept", name))
        for group, name in zip(pass_.group, names, strict=False)
    ]
    return wanted.join(groups.subquery("kept"), on=exp.and_(*pairs), join_type="left semi")


def _column(table: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=table)


# DuckDB's times for the measures `maintain`, `query` and `rivals`. Law: only what gave Spark's
# answer is timed, in a warm connection that is closed afterwards; if an installed DuckDB did not,
# or fails, a note says why and nothing else is lost. Without DuckDB there is neither metric nor
# note.


class DuckDbMetrics(Struct, frozen=True):
    """Metrics to add to a cell, and a note on them."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    note: str = ""


def duckdb_recapture_metrics(measured: MeasuredQuery, turns: int) -> DuckDbMetrics:
    """Measure `duckdb_ms`, the recapture in DuckDB, if its sketches equal Spark's. Call it while
    the table is unchanged: the sketches are compared with those captured."""

    def beside(connection: ParquetSql) -> DuckDbMetrics:
        offered = duckdb_recapture(
            connection,
            measured.scratch,
            measured.prepared,
            measured.verdict,
            measured.partitions,
            measured.unchanged,
        )
        return _timed("duckdb_ms", offered, turns)

    return _connected(beside)


def duckdb_query_metrics(measured: MeasuredQuery, expected: pa.Table, turns: int) -> DuckDbMetrics:
    """Measure `duckdb_plain_ms`, the query that returned the `expected` rows."""

    def beside(connection: ParquetSql) -> DuckDbMetrics:
        offered = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
        if offered.run is not None and not same_answer(offered.run(), expected):
            return DuckDbMetrics(note="DuckDB gives a different result than Spark")
        return _timed("duckdb_plain_ms", offered, turns)

    return _connected(beside)


def duckdb_sketch_metrics(measured: MeasuredQuery, expected: pa.Table, turns: int) -> DuckDbMetrics:
    """Measure `duckdb_plain_ms`, and `duckdb_sketch_ms` over the text and files of `rewrite`."""

    def beside(connection: ParquetSql) -> DuckDbMetrics:
        plain = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
        through = duckdb_sketch(connection, measured)
        runs = {"duckdb_plain_ms": plain.run, "duckdb_sketch_ms": through.run}
        works = {name: run for name, run in runs.items() if run is not None}
        if len(works) < len(runs):
            return DuckDbMetrics(note=plain.reason or through.reason)
        if not all(same_answer(work(), expected) for work in works.values()):
            return DuckDbMetrics(note="DuckDB gives a different result than Spark")
        times = in_turns(works, turns)
        return DuckDbMetrics({name: Metric.of(result) for name, result in times.items()})

    return _connected(beside)


def duckdb_sketch(connection: ParquetSql, measured: MeasuredQuery) -> DuckDbRun[pa.Table]:
    """The query over the text and files of `rewrite`, which every run computes again."""

    def read() -> tuple[str, Files]:
        written = measured.written()
        return written.sql, written.pruned.files

    return duckdb_query(connection, measured.scratch.tables, measured.prepared, read)


def _connected(beside: Callable[[ParquetSql], DuckDbMetrics]) -> DuckDbMetrics:
    """Run on a new connection. A query that fails after its check becomes a note."""
    connection = ParquetSql.open()
    if connection is None:
        return DuckDbMetrics()
    with closing(connection):
        try:
            return beside(connection)
        except (SqlFailed, pa.ArrowException) as error:
            return DuckDbMetrics(note=f"DuckDB failed after one successful answer: {error}")


def _timed(name: str, offered: DuckDbRun[Any], turns: int) -> DuckDbMetrics:
    if offered.run is None:
        return DuckDbMetrics(note=offered.reason)
    return DuckDbMetrics({name: Metric.of([milliseconds(offered.run) for _ in range(turns)])})


def same_answer(table: pa.Table, expected: pa.Table) -> bool:
    """Whether the rows are equal in any order; DuckDB's types may be wider."""
    try:
        typed = table.rename_columns(expected.column_names).cast(expected.schema)
    except (pa.ArrowException, ValueError):
        return False
    return same_rows(rows_of(typed), rows_of(expected))
