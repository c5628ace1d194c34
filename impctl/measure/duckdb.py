"""DuckDB, an optional second yardstick beside Spark: recapture by its passes, and its answers.

Law: a connection stores nothing on disk and reads exactly the files it was given. Only what gave
Spark's sketch or answer is timed, in a warm connection that is closed afterwards: DuckDB's
arithmetic differs. If an installed DuckDB did not, or fails, a note says why and nothing else is
lost. Without DuckDB (`pip install duckdb`) there is neither connection nor metric nor note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from impctl.bench.record import Metric
from impctl.bench.timing import in_turns
from impctl.data.schema import Column
from impctl.data.vector import from_arrow
from impctl.service.prepare import SketchedQuery, kept_plan
from impctl.service.resolve import is_for_others
from impctl.service.results import rows_of
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
    from impctl.service.pinned import PinnedTables
    from impctl.service.prepare import PreparedQuery

Files = Mapping[TableName, Sequence[DataFile]]
RangesByAccess = Mapping[AccessId, RangeSet]
Metrics = Mapping[str, Metric]

_TARGET = "duckdb"


class ParquetSql:
    """A connection that is reused, so that it is warm."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @staticmethod
    def is_installed() -> bool:
        return find_spec("duckdb") is not None

    @classmethod
    def open(cls) -> Self | None:
        """Connect to a database in memory; None if DuckDB is not installed."""
        if not cls.is_installed():
            return None
        import duckdb

        return cls(duckdb.connect(":memory:"))

    def view(self, name: str, files: Sequence[str], *, has_folders: bool = False) -> None:
        """Let `name` stand for the rows of these files; SqlFailed if one is missing. With
        `has_folders` their folders' names are values of columns, typed as DuckDB guesses."""
        with _as_sql_failures():
            rows = self._connection.read_parquet(list(files), hive_partitioning=has_folders)
            rows.create_view(name, replace=True)

    def put(self, name: str, rows: pa.Table) -> None:
        """Register these rows as `name`."""
        with _as_sql_failures():
            self._connection.register(name, rows)

    def change(self, sql: str) -> None:
        """Run a statement without a result; SqlFailed if DuckDB refuses it."""
        with _as_sql_failures():
            self._connection.execute(sql)

    def run(self, sql: str) -> pa.Table:
        """Run a SELECT; SqlFailed if DuckDB refuses it."""
        with _as_sql_failures():
            result: pa.Table = self._connection.sql(sql).to_arrow_table()
            return result

    def close(self) -> None:
        """Free its memory and threads."""
        self._connection.close()


@contextmanager
def _as_sql_failures() -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise SqlFailed(str(error).splitlines()[0]) from error
    except RuntimeError as error:
        # Ctrl-C while DuckDB runs comes out of it as an error of no particular kind.
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


class SqlFailed(Exception):  # noqa: N818  # a finding of a measurement, never an error of impctl
    """DuckDB refused the text; the message is the first line of its own."""


class NotOffered(Exception):  # noqa: N818  # likewise
    """DuckDB cannot give the same result; the message says why."""


# What DuckDB can compute. Law: a function that is returned has given the right result once.


def duckdb_recapture(
    connection: ParquetSql, measured: MeasuredQuery, expected: RangesByAccess
) -> Callable[[], RangesByAccess]:
    """Recapture at the pinned versions by the passes of `spark.capture`, translated by sqlglot;
    NotOffered if it does not give the `expected` sketches."""
    tables, prepared, partitions = measured.scratch.tables, measured.prepared, measured.partitions
    _check_readable(tables, prepared)

    def recapture() -> RangesByAccess:
        for scan in prepared.scans:
            snapshot = tables.snapshot(scan.table)
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

    with _refusing("the capture"):
        passes = _passes(measured)
        result = recapture()
    if any(result[access] != ranges for access, ranges in expected.items()):
        raise NotOffered("DuckDB's arithmetic gives a different sketch than Spark's")
    return recapture


def duckdb_plain(
    connection: ParquetSql, tables: PinnedTables, prepared: PreparedQuery
) -> Callable[[], pa.Table]:
    """The query over whole tables, whose rows the caller compares."""
    return _query(connection, tables, prepared, partial(_whole, tables, prepared))


def _whole(tables: PinnedTables, prepared: PreparedQuery) -> tuple[str, Files]:
    is_plain = is_for_others(prepared.query)
    text = rewrite_sql(prepared.query, {}, is_local=True, is_plain=is_plain)
    return text, {table: tables.snapshot(table).files for table in prepared.tables}


def duckdb_answers(
    connection: ParquetSql, measured: MeasuredQuery
) -> tuple[dict[str, Callable[[], pa.Table]], str]:
    """The query over whole tables (`duckdb_plain_ms`) and over the text and files of `rewrite`,
    which every run computes again (`duckdb_sketch_ms`); and why one is missing. The caller
    compares their rows."""
    tables, prepared = measured.scratch.tables, measured.prepared

    def sketched() -> tuple[str, Files]:
        sql, pruned = measured.written()
        return sql, pruned.files

    answers: dict[str, Callable[[], pa.Table]] = {}
    reasons = []
    for name, read in (
        ("duckdb_plain_ms", partial(_whole, tables, prepared)),
        ("duckdb_sketch_ms", sketched),
    ):
        try:
            answers[name] = _query(connection, tables, prepared, read)
        except NotOffered as error:
            reasons.append(str(error))
    return answers, reasons[0] if reasons else ""


def _query(
    connection: ParquetSql,
    tables: PinnedTables,
    prepared: PreparedQuery,
    read: Callable[[], tuple[str, Files]],
) -> Callable[[], pa.Table]:
    """Run the text over the files that `read` returns, which is part of a run. Spark's text is
    translated; what Spark does not support is in DuckDB's dialect already."""
    _check_readable(tables, prepared)

    def run() -> pa.Table:
        text, files = read()
        for table, chosen in files.items():
            name = local_name(prepared.query, table)
            _view(connection, name, tables.snapshot(table), chosen)
        if not is_for_others(prepared.query):
            text = sqlglot.transpile(text, read=DIALECT, write=_TARGET)[0]
        return connection.run(text)

    with _refusing("the query"):
        run()
    return run


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except (SqlFailed, SqlglotError, pa.ArrowException) as error:
        raise NotOffered(f"DuckDB cannot run {what}: {error}") from error


def _check_readable(tables: PinnedTables, prepared: PreparedQuery) -> None:
    """NotOffered if the rows of a table are not those of its files."""
    for table in prepared.tables:
        snapshot = tables.snapshot(table)
        if local_path(snapshot.path) is None:
            reason = "it is not on the local disk"
        else:
            reason = why_not_plain(snapshot, reads_folders=True)
        if not reason and not snapshot.files:
            reason = "it has no files"
        if reason:
            raise NotOffered(f"DuckDB cannot read table `{table}` file by file: {reason}")


def _view(connection: ParquetSql, name: str, snapshot: Snapshot, files: Sequence[DataFile]) -> None:
    connection.view(
        name, [file.uri for file in files], has_folders=bool(snapshot.partition_columns)
    )


def _passes(measured: MeasuredQuery) -> list[tuple[tuple[AccessId, ...], str]]:
    """Per pass, a SELECT of one row with the needed values of each access's attribute."""
    prepared, partitions = measured.prepared, measured.partitions
    columns = {a: Column(p.attribute, p.type) for a, p in partitions.items()}
    views = {scan.access: scan.table for scan in prepared.scans}
    materialized = kept_plan(SketchedQuery(prepared, measured.verdict, partitions))
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
        raise SqlFailed("ranges are collected along the whole plan")
    renderer = Renderer(views)
    rows = renderer.select(pass_.rows).subquery("mine")
    keys = (_column("mine", renderer.name(key)) for key in pass_.keys.values())
    lists = [exp.ArrayAgg(this=exp.Distinct(expressions=[key])) for key in keys]
    values = exp.select(*lists).from_(rows)
    if pass_.groups is None:
        return values
    groups = renderer.select(pass_.groups)
    names = [renderer.name(attribute.id) for attribute in pass_.groups.attributes]
    if not pass_.group:
        return values.where(exp.Exists(this=groups))
    pairs = [
        exp.NullSafeEQ(this=_column("mine", renderer.name(group)), expression=_column("kept", name))
        for group, name in zip(pass_.group, names, strict=False)
    ]
    return values.join(groups.subquery("kept"), on=exp.and_(*pairs), join_type="left semi")


def _column(table: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=table)


# Metrics of a cell, and a note on them.


def duckdb_recapture_metrics(measured: MeasuredQuery, turns: int) -> tuple[Metrics, str]:
    """Measure `duckdb_ms`, the recapture in DuckDB, if its sketches equal Spark's. Call it while
    the table is unchanged: the sketches are compared with those captured."""

    def measure(connection: ParquetSql) -> Metrics:
        work = duckdb_recapture(connection, measured, measured.unchanged)
        return in_turns({"duckdb_ms": work}, turns)

    return duckdb_metrics(measure)


def duckdb_query_metrics(
    measured: MeasuredQuery, expected: pa.Table, turns: int
) -> tuple[Metrics, str]:
    """Measure `duckdb_plain_ms`, the query that returned the `expected` rows."""

    def measure(connection: ParquetSql) -> Metrics:
        work = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
        check_answer(work(), expected)
        return in_turns({"duckdb_plain_ms": work}, turns)

    return duckdb_metrics(measure)


def duckdb_metrics(measure: Callable[[ParquetSql], Metrics]) -> tuple[Metrics, str]:
    """Measure on a new connection, if DuckDB is installed; what fails becomes a note."""
    connection = ParquetSql.open()
    if connection is None:
        return {}, ""
    with closing(connection):
        try:
            return measure(connection), ""
        except NotOffered as error:
            return {}, str(error)
        except (SqlFailed, pa.ArrowException) as error:
            return {}, f"DuckDB failed after one successful answer: {error}"


def check_answer(table: pa.Table, expected: pa.Table) -> None:
    """NotOffered if the rows are not those of Spark."""
    if not same_answer(table, expected):
        raise NotOffered("DuckDB gives a different result than Spark")


def same_answer(table: pa.Table, expected: pa.Table) -> bool:
    """Whether the rows are equal in any order; DuckDB's types may be wider."""
    try:
        typed = table.rename_columns(expected.column_names).cast(expected.schema)
    except (pa.ArrowException, ValueError):
        return False
    return same_rows(rows_of(typed), rows_of(expected))
