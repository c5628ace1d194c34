"""Measure `ways`: every way to a query's answer, with the files it reads, wall time and CPU time.

No options. One cell per way, labelled `way`: the materialized result, the engine and DuckDB (over
the text and files of `rewrite`) through the sketch, DuckDB over all files, Spark through the sketch
and over all files. `gain_ratio` and `cpu_gain_ratio` are Spark over all files against this way.
CPU time is that of this process and, where Spark runs, of its JVM; it is missing where the JVM's
cannot be read.
Law: every answer is compared with Spark's over all files before anything is timed; all ways run in
one warm process, each in turn. A way that a query does not have is missing, and a note says why.
Out of scope: starting a process, what capturing and maintaining cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.bench.clock import warm_up
from impctl.bench.parquet_sql import ParquetSql
from impctl.bench.record import Cell, Metric
from impctl.errors import ImpctlError
from impctl.measure.kinds.duckdb_recapture import duckdb_plain
from impctl.measure.kinds.duckdb_times import duckdb_sketch, same_answer
from impctl.measure.measured import MeasuredQuery, measured_copy
from impctl.measure.single import single
from impctl.measure.took import Took, cpu_of, timed, wall_of
from impctl.service.engine_answer import engine_answer
from impctl.service.kept_answer import kept_answer
from impctl.service.stored import known_ending
from impctl.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.measure.ground import Ground

_SPARK, _SPARK_SKETCH = "Spark, all files", "Spark with the sketch"
_DUCKDB, _DUCKDB_SKETCH = "DuckDB, all files", "DuckDB with the sketch"
_ENGINE, _MATERIALIZED = "impctl's engine with the sketch", "materialized result"


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to the answer; `files` is how many data files it reads."""

    name: str
    run: Callable[[], pa.Table]
    files: int


def measure_ways(ground: Ground) -> Iterator[Cell]:
    """A cell for each way."""
    ground.only()
    return _cells(ground)


def _cells(ground: Ground) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    spec = replace(ground.query, answer=True)
    connection = ParquetSql.open()
    with measured_copy(ground.desk, spec) as measured:
        if connection is None:
            yield from _timed(ground, measured, _ways(measured), "DuckDB is not installed")
            return
        with closing(connection):
            ways = _ways(measured)
            note = _add_duckdb(measured, connection, ways)
            yield from _timed(ground, measured, ways, note)


def _ways(measured: MeasuredQuery) -> list[_Way]:
    """Those without DuckDB, Spark over all files first."""
    pruned = measured.pruned()
    kept, total = pruned.files_kept, pruned.files_total
    stored, prepared = measured.stored, measured.prepared

    def by_engine() -> pa.Table:
        sketches = stored.sketches
        return engine_answer(
            measured.scratch, prepared, stored.versions, measured.pruned(), sketches
        )

    ways = [
        _Way(_SPARK, measured.answer, total),
        _Way(_SPARK_SKETCH, lambda: measured.answer(measured.pruned()), kept),
    ]
    offered = [_Way(_ENGINE, by_engine, kept)]
    if stored.state_meta.get("answer"):
        offered.append(_Way(_MATERIALIZED, lambda: from_state(measured), 0))
    return ways + [way for way in offered if _answers(way)]


def from_state(measured: MeasuredQuery) -> pa.Table:
    """The materialized result, read from the store."""
    scratch, stored = measured.scratch, measured.stored
    ending, plan = known_ending(scratch.tables, stored), None
    if ending is None:
        # A join tree computes the rows.
        plan = scratch.memory.answer(measured.prepared.planned)
        ending = plan.ending
    store, generation = scratch.store(), stored.generation
    result = kept_answer(scratch, store, stored.query, ending, generation, plan=plan)
    assert result is not None, "nobody else advances the copy's store"
    return result


def _answers(way: _Way) -> bool:
    try:
        way.run()
    except ImpctlError:
        return False
    return True


def _add_duckdb(measured: MeasuredQuery, connection: ParquetSql, ways: list[_Way]) -> str:
    """Adds DuckDB's ways, as far as it has them; what to say of others."""
    plain = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
    through = duckdb_sketch(connection, measured)
    pruned = measured.written().pruned
    for offered, name, files in (
        (plain, _DUCKDB, pruned.files_total),
        (through, _DUCKDB_SKETCH, pruned.files_kept),
    ):
        if offered.run is not None:
            ways.append(_Way(name, offered.run, files))
    return plain.reason or through.reason


def _timed(ground: Ground, measured: MeasuredQuery, ways: list[_Way], note: str) -> Iterator[Cell]:
    """The ways, slowest first, each compared with the first and timed in turn."""
    from impctl.spark.session import jvm_cpu_ms

    expected = ways[0].run()
    equal = {way.name: same_answer(way.run(), expected) for way in ways}
    for way in ways:
        warm_up(way.run, done=1 if way.name != _SPARK else 2)
    session = measured.scratch.spark()
    ground.step(f"timing {ground.query.name} in {len(ways)} ways")
    runs: dict[str, list[Took]] = {way.name: [] for way in ways}
    for _ in range(ground.repeat):
        for way in ways:
            before = jvm_cpu_ms(session) or 0.0
            _, took = timed(way.run)
            used = (jvm_cpu_ms(session) or 0.0) - before
            runs[way.name].append(Took(took.cpu_ms + used, took.wall_ms))
    knows_jvm = jvm_cpu_ms(session) is not None
    wall = {name: wall_of(took) for name, took in runs.items()}
    cpu = {
        name: cpu_of(took)
        for name, took in runs.items()
        if knows_jvm or not name.startswith("Spark")
    }
    for way in sorted(ways, key=lambda way: -wall[way.name].median):
        name = way.name
        metrics = {**single({"files_count": float(way.files)}), "wall_ms": wall[name]}
        if name in cpu:
            metrics["cpu_ms"] = cpu[name]
        metrics["gain_ratio"] = Metric.quotient(wall[_SPARK], wall[name])
        if knows_jvm:
            metrics["cpu_gain_ratio"] = Metric.quotient(cpu[_SPARK], cpu[name])
        yield ground.cell(metrics, {"way": name}, equal=equal[name], note=note)
