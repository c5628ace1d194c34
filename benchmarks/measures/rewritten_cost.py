"""Measure `rewritten`: a recursive query in DuckDB over all files, and over what `rewrite` tells.

No options. The query is captured by the engine on a scratch copy, then its text runs in DuckDB as
it is (`duckdb_plain_ms`), and as `rewrite` prints it over the files of `rewrite --files`
(`duckdb_sketch_ms`, finding text and files included). Over files DuckDB may read all of them again
with every round; `duckdb_loaded_ms` is reading the columns that the text names into memory, once,
and asking there. These are times on the wall; those that are called `cpu` are processor times of
all threads. `gain_ratio` and `cpu_gain_ratio` are the first over the second, `loaded_ratio` and
`loaded_cpu_ratio` the third over it. `rows_share` are the rows in the ranges that the sketches
hold, of all rows of the tables that have one (`sketched_rows`), `files_share` the files left of
all, `fragments_share` the ranges held, of the table with the most rows.
Law: the answers are compared before anything is timed, with each other and with the engine's, over
a circuit of its own; files are warm. Without DuckDB the note says so, and the sketch is told.
Out of scope: Spark, which does not run such a text (`rivals` has other queries).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.measures.recursion_cost import are_same_rows, ratios
from benchmarks.recursion.circuit import recursive_query
from impctl.bench.record import Cell, Metric
from impctl.data.vector import from_arrow
from impctl.measure.duckdb import ParquetSql, duckdb_answers
from impctl.measure.kinds import CallTimes, cpu_of, single, timed, wall_of
from impctl.measure.run import words_of
from impctl.measure.scratch import MeasuredQuery, measured_copy
from impctl.spark.predicates import local_name, rewrite_sql
from impctl.store.records import StoredSketch
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import to_arrow_type
from impctl.types import TableName

_FILES = "impctl_files"
_RATIOS = {"gain_ratio": "duckdb_plain_ms", "loaded_ratio": "duckdb_loaded_ms"}
_CPU_RATIOS = {"cpu_gain_ratio": "duckdb_plain_cpu_ms", "loaded_cpu_ratio": "duckdb_loaded_cpu_ms"}


class _Held(Struct, frozen=True):
    """Of the sketches: rows in their ranges and all, and per table the ranges held and all."""

    rows: int
    of_rows: int
    fragments_share: float


def measure_rewritten(case: SuiteCase) -> Iterator[Cell]:
    """One cell."""
    case.only()
    return _cells(case)


def _cells(case: SuiteCase) -> Iterator[Cell]:
    case.step(f"capturing {case.query.name}")
    with measured_copy(case.ctx, case.query) as measured:
        stored, pruned = _held(measured), measured.written()[1]
        query = recursive_query(case, 1)
        answer = query.filled(query.tables).answer()
        metrics = single(
            {
                "rows_share": stored.rows / stored.of_rows,
                "files_share": pruned.files_kept / max(pruned.files_total, 1),
                "fragments_share": stored.fragments_share,
                "sketched_rows": stored.of_rows,
                "answer_rows": len(answer),
            }
        )
        connection = ParquetSql.open()
        if connection is None:
            yield case.cell(metrics, note="DuckDB is not installed")
            return
        with closing(connection):
            case.step(f"running {case.query.name} in DuckDB")
            yield _beside(case, measured, connection, answer, metrics)


def _beside(
    case: SuiteCase,
    measured: MeasuredQuery,
    connection: ParquetSql,
    answer: pa.Table,
    metrics: dict[str, Metric],
) -> Cell:
    calls, note = duckdb_answers(connection, measured)
    if note:
        return case.cell(metrics, note=note)
    calls["duckdb_loaded_ms"] = lambda: _loaded(measured)
    is_equal = all(are_same_rows(answer, call()) for call in calls.values())
    runs = dict[str, list[CallTimes]]()
    for _ in range(case.repeat):
        for name, call in calls.items():
            runs.setdefault(name, []).append(timed(call)[1])
    for name, took in runs.items():
        metrics |= {name: wall_of(took), name.replace("_ms", "_cpu_ms"): cpu_of(took)}
    metrics |= ratios(metrics, _RATIOS, "duckdb_sketch_ms")
    metrics |= ratios(metrics, _CPU_RATIOS, "duckdb_sketch_cpu_ms")
    return case.cell(metrics, equal=is_equal)


def _loaded(measured: MeasuredQuery) -> pa.Table:
    """The answer by a connection that reads each table once, for the columns that it may need."""
    query, words = measured.prepared.query, words_of(measured.prepared.query.sql)
    connection = ParquetSql.open()
    assert connection is not None, "it is installed: another connection has answered"
    with closing(connection):
        for table in measured.prepared.tables:
            snapshot = measured.scratch.tables.snapshot(table)
            connection.view(_FILES, [file.uri for file in snapshot.files])
            columns = [name for name in snapshot.schema.names if name.lower() in words]
            listed = ", ".join(f'"{name}"' for name in columns) or "*"
            name = local_name(query, table)
            connection.change(f'CREATE TABLE "{name}" AS SELECT {listed} FROM {_FILES}')
        return connection.run(rewrite_sql(query, {}, is_local=True, is_plain=True))


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
            is_held |= sketch.ranges.to_mask()[partition.range_ids_of(vector)]
        ranges = max(len(one.ranges) / one.partition.size for one in sketches)
        shares.append((len(rows), int(is_held.sum()), ranges))
    return _Held(
        rows=sum(held for _, held, _ in shares),
        of_rows=max(sum(rows for rows, _, _ in shares), 1),
        fragments_share=max(shares)[2] if shares else 0.0,
    )
