"""DuckDB's times beside Spark's, for the measures `maintain`, `query` and `rivals`.

Law: only what gave Spark's own answer is timed, in a warm connection that is closed afterwards;
where DuckDB is installed and did not, or fails, a note says why and nothing else is lost. Without
DuckDB there is neither metric nor note.
Out of scope: how a query comes to DuckDB (`duckdb_recapture`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from impctl.bench.clock import in_turns, milliseconds
from impctl.bench.parquet_sql import ParquetSql, SqlFailed
from impctl.bench.record import Metric
from impctl.measure.kinds.duckdb_recapture import (
    Files,
    Offered,
    duckdb_plain,
    duckdb_query,
    duckdb_recapture,
)
from impctl.service.spark_answer import answer_of
from impctl.service.verify import same_rows
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.measure.measured import MeasuredQuery


@dataclass(frozen=True, slots=True)
class Beside:
    """Metrics to add to a cell, and what to say of them."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    note: str = ""


def recapture_beside(measured: MeasuredQuery, turns: int) -> Beside:
    """`duckdb_ms`: the recapture in DuckDB, where that gives the sketches that Spark gives.

    Only while the table is without a change: they are compared with those found then.
    """

    def beside(connection: ParquetSql) -> Beside:
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


def answer_beside(measured: MeasuredQuery, expected: pa.Table, turns: int) -> Beside:
    """`duckdb_plain_ms`: the query that gave the `expected` rows, in DuckDB."""

    def beside(connection: ParquetSql) -> Beside:
        offered = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
        if offered.run is not None and not same_answer(offered.run(), expected):
            return Beside(note="DuckDB gives a different result than Spark")
        return _timed("duckdb_plain_ms", offered, turns)

    return _connected(beside)


def both_beside(measured: MeasuredQuery, expected: pa.Table, turns: int) -> Beside:
    """`duckdb_plain_ms`, and `duckdb_sketch_ms`: over what `rewrite` tells, text and files."""

    def beside(connection: ParquetSql) -> Beside:
        plain = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
        through = duckdb_sketch(connection, measured)
        runs = {"duckdb_plain_ms": plain.run, "duckdb_sketch_ms": through.run}
        works = {name: run for name, run in runs.items() if run is not None}
        if len(works) < len(runs):
            return Beside(note=plain.reason or through.reason)
        if not all(same_answer(work(), expected) for work in works.values()):
            return Beside(note="DuckDB gives a different result than Spark")
        times = in_turns(works, turns)
        return Beside({name: Metric.of(result) for name, result in times.items()})

    return _connected(beside)


def duckdb_sketch(connection: ParquetSql, measured: MeasuredQuery) -> Offered[pa.Table]:
    """The text and files that `rewrite` gives, found again in every run."""

    def asked() -> tuple[str, Files]:
        written = measured.written()
        return written.sql, written.pruned.files

    return duckdb_query(connection, measured.scratch.tables, measured.prepared, asked)


def _connected(beside: Callable[[ParquetSql], Beside]) -> Beside:
    """What a connection of its own gives; a query that fails later than its check is a note."""
    connection = ParquetSql.open()
    if connection is None:
        return Beside()
    with closing(connection):
        try:
            return beside(connection)
        except (SqlFailed, pa.ArrowException) as error:
            return Beside(note=f"DuckDB failed after one successful answer: {error}")


def _timed(name: str, offered: Offered[Any], turns: int) -> Beside:
    if offered.run is None:
        return Beside(note=offered.reason)
    return Beside({name: Metric.of([milliseconds(offered.run) for _ in range(turns)])})


def same_answer(table: pa.Table, expected: pa.Table) -> bool:
    """Whether the rows are the same, in any order; DuckDB's types may be wider."""
    try:
        typed = table.rename_columns(expected.column_names).cast(expected.schema)
    except (pa.ArrowException, ValueError):
        return False
    return same_rows(answer_of(typed).rows, answer_of(expected).rows)
