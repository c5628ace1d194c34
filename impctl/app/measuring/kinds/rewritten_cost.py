"""Measure `rewritten`: a recursive query in DuckDB over all files, and over what `rewrite` tells.

No options. The query is captured by the engine on a scratch copy, then its text runs in DuckDB as
it is (`duckdb_plain_ms`), and as `rewrite` prints it over the files of `rewrite --files`
(`duckdb_sketch_ms`, finding text and files included): times on the wall; `duckdb_plain_cpu_ms` and
`duckdb_sketch_cpu_ms` are processor times of all threads. `gain_ratio` and `cpu_gain_ratio` are the
one over the other. `rows_share` are the rows in the ranges that the sketches hold, of all rows of
the tables that have one, `files_share` the files left of all, `fragments_share` the ranges held, of
the table with the most rows; `sketched_rows` all rows of those tables.
Law: the answers are compared before anything is timed, with each other and with the engine's, over
a circuit of its own; files are warm. Without DuckDB the note says so, and the sketch is told.
Out of scope: Spark, which does not run such a text (`rivals` has other queries).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa

from impctl.aliases import TableName
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.kinds.duckdb_recapture import (
    Files,
    Offered,
    duckdb_plain,
    duckdb_query,
)
from impctl.app.measuring.kinds.recursion_cost import are_same_rows
from impctl.app.measuring.measured import MeasuredQuery, measured_copy
from impctl.app.measuring.recursion.circuit import recursive_query
from impctl.app.measuring.recursion.took import Took, cpu_of, timed, wall_of
from impctl.app.measuring.single import single
from impctl.bench.parquet_sql import ParquetSql
from impctl.bench.record import Cell, Metric
from impctl.data.vector import from_arrow
from impctl.store.records import StoredSketch
from impctl.tables.arrow_types import to_arrow_type
from impctl.tables.rows import read_rows
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class _Held:
    """Of the sketches: rows in their ranges and all, and per table the ranges held and all."""

    rows: int
    of_rows: int
    fragments_share: float


def measure_rewritten(ground: Ground) -> Iterator[Cell]:
    """One cell."""
    ground.only()
    return _cells(ground)


def _cells(ground: Ground) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    with measured_copy(ground.desk, ground.query) as measured:
        held, pruned = _held(measured), measured.written().pruned
        query = recursive_query(ground, 1)
        answer = query.filled(query.tables).answer()
        metrics = single(
            {
                "rows_share": held.rows / held.of_rows,
                "files_share": pruned.files_kept / max(pruned.files_total, 1),
                "fragments_share": held.fragments_share,
                "sketched_rows": held.of_rows,
                "answer_rows": len(answer),
            }
        )
        connection = ParquetSql.open()
        if connection is None:
            yield ground.cell(metrics, note="DuckDB is not installed")
            return
        with closing(connection):
            ground.step(f"running {ground.query.name} in DuckDB")
            yield _beside(ground, measured, connection, answer, metrics)


def _beside(
    ground: Ground,
    measured: MeasuredQuery,
    connection: ParquetSql,
    answer: pa.Table,
    metrics: dict[str, Metric],
) -> Cell:
    plain = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
    through = _through(measured, connection)
    if plain.run is None or through.run is None:
        return ground.cell(metrics, note=plain.reason or through.reason)
    whole, few = _rows_of(plain.run), _rows_of(through.run)
    is_equal = are_same_rows(answer, whole()) and are_same_rows(answer, few())
    runs: tuple[list[Took], list[Took]] = ([], [])
    for _ in range(ground.repeat):
        for run, took in zip((whole, few), runs, strict=True):
            took.append(timed(run)[1])
    metrics = {
        **metrics,
        "duckdb_plain_ms": wall_of(runs[0]),
        "duckdb_sketch_ms": wall_of(runs[1]),
        "duckdb_plain_cpu_ms": cpu_of(runs[0]),
        "duckdb_sketch_cpu_ms": cpu_of(runs[1]),
        "gain_ratio": Metric.quotient(wall_of(runs[0]), wall_of(runs[1])),
        "cpu_gain_ratio": Metric.quotient(cpu_of(runs[0]), cpu_of(runs[1])),
    }
    return ground.cell(metrics, equal=is_equal)


def _through(measured: MeasuredQuery, connection: ParquetSql) -> Offered:
    """The text and files of `rewrite`, found anew with every run."""

    def asked() -> tuple[str, Files]:
        written = measured.written()
        return written.sql, written.pruned.files

    return duckdb_query(connection, measured.scratch.tables, measured.prepared, asked)


def _rows_of(run: Callable[[], object]) -> Callable[[], pa.Table]:
    def rows() -> pa.Table:
        found = run()
        assert isinstance(found, pa.Table)
        return found

    return rows


def _held(measured: MeasuredQuery) -> _Held:
    """Rows counted in the tables; of several sketches of one table the union of their ranges."""
    by_table: dict[TableName, list[StoredSketch]] = {}
    for sketch in measured.stored.sketches:
        by_table.setdefault(sketch.table, []).append(sketch)
    shares: list[tuple[int, int, float]] = []
    for table, sketches in by_table.items():
        snapshot = measured.scratch.tables.snapshot(table)
        rows = read_rows(snapshot, [sketches[0].attribute])
        is_held = np.zeros(len(rows), dtype=bool)
        for sketch in sketches:
            partition = sketch.partition
            values = rows.column(sketch.attribute).combine_chunks()
            vector = from_arrow(to_arrow_type(values, partition.type), partition.type)
            is_held |= sketch.fragments.to_mask()[partition.fragments_of(vector)]
        fragments = max(len(one.fragments) / one.partition.size for one in sketches)
        shares.append((len(rows), int(is_held.sum()), fragments))
    return _Held(
        rows=sum(held for _, held, _ in shares),
        of_rows=max(sum(rows for rows, _, _ in shares), 1),
        fragments_share=max(shares)[2] if shares else 0.0,
    )
