"""DuckDB's times beside Spark's, for the measures `maintain` and `query`.

Law: only what gave Spark's own answer is timed, in a warm connection; where DuckDB is installed and
did not, a note says why. Without DuckDB there is neither metric nor note.
Out of scope: how a query comes to DuckDB (`duckdb_recapture`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from impctl.app.answers import answer_of
from impctl.app.suites.duckdb_recapture import duckdb_plain, duckdb_recapture
from impctl.app.verify import same_rows
from impctl.bench.clock import milliseconds
from impctl.bench.parquet_sql import ParquetSql
from impctl.bench.record import Metric

if TYPE_CHECKING:
    from impctl.app.measured import MeasuredQuery


@dataclass(frozen=True, slots=True)
class Beside:
    """Metrics to add to a cell, and what to say of them."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    note: str = ""


def recapture_beside(measured: MeasuredQuery, turns: int) -> Beside:
    """`duckdb_ms`: the recapture in DuckDB, where that gives the sketches that Spark gives."""
    if not ParquetSql.is_installed():
        return Beside()
    expected = measured.recapture()
    offered = duckdb_recapture(
        measured.scratch, measured.prepared, measured.verdict, measured.partitions, expected
    )
    return _timed("duckdb_ms", offered.run, offered.reason, turns)


def answer_beside(measured: MeasuredQuery, expected: pa.Table, turns: int) -> Beside:
    """`duckdb_plain_ms`: the query that gave the `expected` rows, in DuckDB."""
    if not ParquetSql.is_installed():
        return Beside()
    offered = duckdb_plain(measured.scratch, measured.prepared)
    if offered.run is not None and not _same(offered.run(), expected):
        return Beside(note="DuckDB gives another result than Spark")
    return _timed("duckdb_plain_ms", offered.run, offered.reason, turns)


def _timed(name: str, run: Callable[[], object] | None, reason: str, turns: int) -> Beside:
    if run is None:
        return Beside(note=reason)
    return Beside({name: Metric.of([milliseconds(run) for _ in range(turns)])})


def _same(found: object, expected: pa.Table) -> bool:
    """Whether the rows are the same; DuckDB's types may be wider."""
    assert isinstance(found, pa.Table)
    try:
        typed = found.rename_columns(expected.column_names).cast(expected.schema)
    except (pa.ArrowException, ValueError):
        return False
    return same_rows(answer_of(typed).rows, answer_of(expected).rows)
