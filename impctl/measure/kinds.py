"""The measures: capture, query, maintain, and every way to a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from impctl.bench.parquet_sql import ParquetSql
from impctl.bench.record import Cell, Label, Metric
from impctl.bench.timing import in_turns, milliseconds, warm_up
from impctl.errors import ImpctlError
from impctl.measure.duckdb import (
    DuckDbMetrics,
    duckdb_plain,
    duckdb_query_metrics,
    duckdb_recapture_metrics,
    duckdb_sketch,
    same_answer,
)
from impctl.measure.scratch import (
    AgainstRecapture,
    MeasuredQuery,
    MeasuredStep,
    measured_copy,
    worse_of,
)
from impctl.service.answer import rows_of
from impctl.service.engine_answer import engine_answer
from impctl.service.query import materialized_result
from impctl.service.stored import known_ending
from impctl.service.verify import same_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.measure.figures import CaseContext
    from impctl.service.filters import Pruned


# Law: what was measured once has no spread.


def single(values: Mapping[str, float]) -> dict[str, Metric]:
    """Make metrics of one run each."""
    return {name: Metric.of([value]) for name, value in values.items()}


T = TypeVar("T")


# Processor time of this process (all threads) and wall time. Law: both of the same run. On a busy
# machine other processes add to the wall time.


class CallTimes(Struct, frozen=True):
    cpu_ms: float
    wall_ms: float

    @property
    def lesser_ms(self) -> float:
        """The smaller time, which favours work on all cores."""
        return min(self.cpu_ms, self.wall_ms)


def timed(run: Callable[[], T]) -> tuple[T, CallTimes]:
    """Run the work; return its result and times."""
    began, cpu = time.perf_counter(), time.process_time()
    result = run()
    cpu_ms = (time.process_time() - cpu) * 1000.0
    return result, CallTimes(cpu_ms, (time.perf_counter() - began) * 1000.0)


def cpu_of(runs: Sequence[CallTimes]) -> Metric:
    return Metric.of([run.cpu_ms for run in runs])


def wall_of(runs: Sequence[CallTimes]) -> Metric:
    return Metric.of([run.wall_ms for run in runs])


def ratios(metrics: Mapping[str, Metric], over: Mapping[str, str], under: str) -> dict[str, Metric]:
    """Divide metrics by the one named `under`, if both exist and that took any time."""
    if under not in metrics or metrics[under].low <= 0:
        return {}
    return {
        name: Metric.quotient(metrics[other], metrics[under])
        for name, other in over.items()
        if other in metrics
    }


# Measure `capture`: a capture with its state against the query and a recapture. No options.
# `capture_ms` fills sketch and state without storing them, `recapture_ms` computes the sketch
# alone, `plain_ms` is the query without a sketch; `state_bytes` is the state on disk. Law: the
# stored sketch is compared with a recapture first; each is warmed up until it ran four times or for
# ten seconds, then timed in turns.

_MOST = 3
"""Maximum captures timed; they are long enough to be steady."""


def measure_capture(ground: CaseContext) -> Iterator[Cell]:
    """Measure one cell."""
    ground.only()
    return _capture_cells(ground)


def _capture_cells(ground: CaseContext) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    with measured_copy(ground.ctx, ground.query) as measured:
        checked = measured.checked()
        works: dict[str, Callable[[], object]] = {
            "plain_ms": measured.answer,
            "recapture_ms": measured.recapture,
        }
        if measured.has_state:
            works["capture_ms"] = measured.capture
        for work in works.values():
            warm_up(work)
        times = in_turns(works, min(ground.repeat, _MOST))
        metrics = {name: Metric.of(values) for name, values in times.items()}
        if measured.has_state:
            runs = measured.scratch.store().run_refs(ground.query.name)
            metrics["state_bytes"] = Metric.of([float(sum(run.bytes for run in runs))])
        yield ground.cell(metrics, checked=checked)


# Measure `query`: the query as it is and through its sketch. No options. The time with the sketch
# includes choosing the files, not finding the sketch in a store; `gain_ratio` is the time without
# over it. `files_share`, `rows_share` and `fragments_share` are the files read, their rows, and the
# sketches' ranges, of all. Law: results are compared first; both ways are warmed up and timed in
# turns in one session.


def measure_query(ground: CaseContext) -> Iterator[Cell]:
    """Measure one cell."""
    ground.only()
    return _query_cells(ground)


def _query_cells(ground: CaseContext) -> Iterator[Cell]:
    ground.step(f"running {ground.query.name} with and without its sketch")
    with measured_copy(ground.ctx, ground.query) as measured:
        pruned = measured.pruned()
        plain = measured.answer()
        equal = same_rows(rows_of(measured.answer(pruned)), rows_of(plain))
        works = {
            "plain_ms": measured.answer,
            "sketch_ms": lambda: measured.answer(measured.pruned()),
        }
        for work in works.values():
            warm_up(work)
        times = in_turns(works, ground.repeat)
        without_ms, with_ms = Metric.of(times["plain_ms"]), Metric.of(times["sketch_ms"])
        beside = duckdb_query_metrics(measured, plain, ground.repeat)
        shares = {
            "files_share": pruned.files_kept / max(pruned.files_total, 1),
            "rows_share": _rows_share(measured, pruned),
            "fragments_share": _ranges_share(measured),
        }
        metrics = {
            **beside.metrics,
            "plain_ms": without_ms,
            "sketch_ms": with_ms,
            "gain_ratio": Metric.quotient(without_ms, with_ms),
            **single(shares),
        }
        yield ground.cell(metrics, equal=equal, note=beside.note)


def _rows_share(measured: MeasuredQuery, pruned: Pruned) -> float:
    """Rows in the remaining files, over all rows of the tables."""
    files = pruned.files
    total = sum(measured.scratch.tables.snapshot(table).rows or 0 for table in files)
    read = sum(file.rows or 0 for chosen in files.values() for file in chosen)
    return read / total if total else 0.0


def _ranges_share(measured: MeasuredQuery) -> float:
    """Ranges in the sketches, over all ranges of their attributes."""
    sketches = measured.stored.sketches
    total = sum(sketch.partition.size for sketch in sketches)
    return sum(len(sketch.ranges) for sketch in sketches) / total if total else 0.0


# Measure `maintain`: a change maintained incrementally and by recapture. Options: `changes` (rows)
# and `shares` (of the table), sizes of a change; `kind` (insert, delete, both), one cell each if
# there are several. `maintain_ms` is a step in a process that is up and has state and lock
# (`measure.scratch`). Law: for every size the maintained sketch is first compared with a recapture,
# with the change and after undoing it; a cell has the check of its kind. The baseline is the
# fastest recapture, timed per case without the change, which favors it for large changes, and
# warmed up until it ran four times, checks included, or ten more seconds. A deletion undoes an
# insertion. A note has the number of ranges if the table lacked values for all.

KINDS = ("insert", "delete", "both")
"""`both` is an insertion and a deletion that reverts it."""

_CHANGES = (10, 50, 100, 500, 1000)
"""Sizes that the papers call realistic."""

_RECAPTURES = 3
"""Maximum recaptures timed: one takes as long as hundreds of runs of `maintain`."""


class _Size(Struct, frozen=True):
    """A change of so many rows, checked by kind and maintained; each run with its kind."""

    rows: int
    share: float
    checked: Mapping[str, AgainstRecapture]
    runs: Sequence[tuple[str, MeasuredStep]]
    state_bytes: int


def measure_maintain(ground: CaseContext) -> Iterator[Cell]:
    """Measure cells for every size and kind of change."""
    ground.only("changes", "shares", "kind")
    shares = ground.numbers("shares")
    changes = ground.whole_numbers("changes", () if shares else _CHANGES)
    kinds = ground.choices("kind", KINDS, ("both",))
    return _maintain_cells(ground, changes, shares, kinds)


def _maintain_cells(
    ground: CaseContext, changes: Sequence[int], shares: Sequence[float], kinds: Sequence[str]
) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    with measured_copy(ground.ctx, ground.query) as measured:
        sizes = _sizes(measured, changes, shares)
        result: list[_Size] = []
        failure: ImpctlError | None = None
        with measured.scratch.writing("bench"):
            try:
                for size, share in sizes.items():
                    result.append(_size(ground, measured, size, share))
            except ImpctlError as error:
                failure = error
            # Last and warm: a cold baseline would flatter us.
            recaptures = recapture_times(ground, measured, len(result)) if result else []
            # After a failure nobody knows whether the change is still there.
            beside = (
                duckdb_recapture_with_note(ground, measured) if failure is None else DuckDbMetrics()
            )
        for entry in result:
            for kind in kinds:
                yield _cell(ground, entry, kind, recaptures, beside, len(kinds) > 1)
        if failure is not None:
            raise failure


def _sizes(
    measured: MeasuredQuery, changes: Sequence[int], shares: Sequence[float]
) -> dict[int, float]:
    """Rows of every change and their share of the table; small ones first."""
    total = measured.scratch.tables.snapshot(measured.table).rows or 0
    sizes = {size: size / total if total else 0.0 for size in changes}
    for share in shares:
        size = max(1, round(share * total))
        sizes[size] = _real_share(share, size, total)
    return dict(sorted(sizes.items()))


def _real_share(share: float, size: int, total: int) -> float:
    """The requested share, or the real one if the table is too small for it."""
    return size / total if total and abs(size - share * total) > 0.005 * size else share


def _size(ground: CaseContext, measured: MeasuredQuery, size: int, share: float) -> _Size:
    """Check one size, then maintain insertions and deletions in turn."""
    ground.step(f"{ground.query.name} with {size} changes")
    rows = measured.rows_like_the_table(size, ground.seed)
    inserted, deleted = measured.checked_both_ways(rows)
    checked = {"insert": inserted, "delete": deleted, "both": worse_of(inserted, deleted)}
    runs = []
    for _ in range(ground.repeat):
        runs.append(("insert", measured.maintain(rows, forth=True)))
        runs.append(("delete", measured.maintain(rows, forth=False)))
    return _Size(size, share, checked, runs, measured.state_bytes)


def duckdb_recapture_with_note(ground: CaseContext, measured: MeasuredQuery) -> DuckDbMetrics:
    """Measure DuckDB's recapture, with a note on missing ranges too."""
    beside = duckdb_recapture_metrics(measured, min(ground.repeat, _RECAPTURES))
    note = "; ".join(text for text in (_missing_ranges(measured), beside.note) if text)
    return replace(beside, note=note)


def _missing_ranges(measured: MeasuredQuery) -> str:
    """How many ranges exist, if fewer than the workload requests."""
    parts = measured.scratch.workload.partitions
    requested = {(part.table.lower(), part.column.lower()): part.ranges for part in parts}
    result = {}
    for part in measured.partitions.values():
        wanted = requested.get((part.table.lower(), part.attribute.lower()))
        if wanted is not None and part.ranges < wanted:
            name = f"{part.table}.{part.attribute}"
            result[name] = f"{part.ranges:,} of {wanted:,} ranges of {name} in use"
    return "; ".join(result.values())


def recapture_times(ground: CaseContext, measured: MeasuredQuery, sizes: int) -> list[float]:
    """Time recaptures; the checks made one per size and one without a change."""
    ground.step(f"recapturing {ground.query.name}")
    warm_up(measured.recapture, done=sizes + 1)
    return [milliseconds(measured.recapture) for _ in range(min(ground.repeat, _RECAPTURES))]


def _cell(
    ground: CaseContext,
    entry: _Size,
    kind: str,
    recaptures: Sequence[float],
    beside: DuckDbMetrics,
    labelled: bool,
) -> Cell:
    labels: dict[str, Label] = {"changes": entry.rows, "share": float(f"{entry.share:.3g}")}
    if labelled:
        labels["kind"] = kind
    runs = [run for way, run in entry.runs if kind in (way, "both")]
    metrics = {**metrics_of(runs, recaptures, entry.state_bytes), **beside.metrics}
    return ground.cell(metrics, labels, checked=entry.checked[kind], note=beside.note)


def metrics_of(
    runs: Sequence[MeasuredStep], recaptures: Sequence[float], state_bytes: int
) -> dict[str, Metric]:
    """The metrics of steps, compared with recaptures."""
    maintain, recapture = Metric.of([run.total_ms for run in runs]), Metric.of(recaptures)
    return {
        "maintain_ms": maintain,
        "read_ms": Metric.of([run.read_ms for run in runs]),
        "engine_ms": Metric.of([run.done.engine_ms for run in runs]),
        "commit_ms": Metric.of([run.done.commit_ms for run in runs]),
        "recapture_ms": recapture,
        "recapture_ratio": Metric.quotient(recapture, maintain),
        "state_bytes": Metric.of([state_bytes]),
    }


# Measure `ways`: every way to a query's answer, with files, wall time and CPU time. No options. One
# cell per way, labelled `way`: the materialized result, the engine and DuckDB (over the text and
# files of `rewrite`) through the sketch, DuckDB over all files, Spark through the sketch and over
# all files. `gain_ratio` and `cpu_gain_ratio` are Spark over all files against this way. CPU time
# includes Spark's JVM and is missing if that is unreadable. Law: every answer is first compared
# with Spark's over all files; all ways run in one warm process, in turns. A note says why a way is
# missing.

_SPARK, _SPARK_SKETCH = "Spark, all files", "Spark with the sketch"
_DUCKDB, _DUCKDB_SKETCH = "DuckDB, all files", "DuckDB with the sketch"
_ENGINE, _MATERIALIZED = "impctl's engine with the sketch", "materialized result"


class _TimedWay(Struct, frozen=True):
    """One way to the result; `files` is how many data files it reads."""

    name: str
    run: Callable[[], pa.Table]
    files: int


def measure_ways(ground: CaseContext) -> Iterator[Cell]:
    """Measure a cell for each way."""
    ground.only()
    return _way_cells(ground)


def _way_cells(ground: CaseContext) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    spec = replace(ground.query, answer=True)
    connection = ParquetSql.open()
    with measured_copy(ground.ctx, spec) as measured:
        if connection is None:
            yield from _timed(ground, measured, _ways(measured), "DuckDB is not installed")
            return
        with closing(connection):
            ways = _ways(measured)
            note = _add_duckdb(measured, connection, ways)
            yield from _timed(ground, measured, ways, note)


def _ways(measured: MeasuredQuery) -> list[_TimedWay]:
    """The ways without DuckDB, Spark over all files first."""
    pruned = measured.pruned()
    files_kept, total = pruned.files_kept, pruned.files_total
    scratch, stored, prepared = measured.scratch, measured.stored, measured.prepared

    def by_engine() -> pa.Table:
        pruned = measured.pruned()
        return engine_answer(scratch, prepared, stored.versions, pruned, stored.sketches)

    ways = [
        _TimedWay(_SPARK, measured.answer, total),
        _TimedWay(_SPARK_SKETCH, lambda: measured.answer(measured.pruned()), files_kept),
    ]
    offered = [_TimedWay(_ENGINE, by_engine, files_kept)]
    if stored.state_meta.get("answer"):
        offered.append(_TimedWay(_MATERIALIZED, lambda: from_state(measured), 0))
    return ways + [way for way in offered if _answers(way)]


def from_state(measured: MeasuredQuery) -> pa.Table:
    """Read the materialized result from the store."""
    scratch, stored = measured.scratch, measured.stored
    ending, plan = known_ending(scratch.tables, stored), None
    if ending is None:
        # A join tree computes the rows.
        plan = scratch.memory.answer(measured.prepared.planned)
        ending = plan.ending
    store, generation = scratch.store(), stored.generation
    result = materialized_result(scratch, store, stored.query, ending, generation, plan=plan)
    assert result is not None, "nobody else advances the copy's store"
    return result


def _answers(way: _TimedWay) -> bool:
    try:
        way.run()
    except ImpctlError:
        return False
    return True


def _add_duckdb(measured: MeasuredQuery, connection: ParquetSql, ways: list[_TimedWay]) -> str:
    """Add the ways of DuckDB; return why others are missing."""
    plain = duckdb_plain(connection, measured.scratch.tables, measured.prepared)
    through = duckdb_sketch(connection, measured)
    pruned = measured.written().pruned
    if plain.run is not None:
        ways.append(_TimedWay(_DUCKDB, plain.run, pruned.files_total))
    if through.run is not None:
        ways.append(_TimedWay(_DUCKDB_SKETCH, through.run, pruned.files_kept))
    return plain.reason or through.reason


def _timed(
    ground: CaseContext, measured: MeasuredQuery, ways: list[_TimedWay], note: str
) -> Iterator[Cell]:
    """Compare each way with the first, time them in turn, and yield the slowest first."""
    from impctl.spark.session import jvm_cpu_ms

    expected = ways[0].run()
    equal = {way.name: same_answer(way.run(), expected) for way in ways}
    for way in ways:
        warm_up(way.run, done=1 if way.name != _SPARK else 2)
    session = measured.scratch.spark()
    ground.step(f"timing {ground.query.name} in {len(ways)} ways")
    runs: dict[str, list[CallTimes]] = {way.name: [] for way in ways}
    for _ in range(ground.repeat):
        for way in ways:
            before = jvm_cpu_ms(session) or 0.0
            _, took = timed(way.run)
            used = (jvm_cpu_ms(session) or 0.0) - before
            runs[way.name].append(CallTimes(took.cpu_ms + used, took.wall_ms))
    knows_jvm = jvm_cpu_ms(session) is not None
    wall = {name: wall_of(took) for name, took in runs.items()}
    cpu = {name: cpu_of(took) for name, took in runs.items()}
    for way in sorted(ways, key=lambda way: -wall[way.name].median):
        name = way.name
        metrics = {**single({"files_count": float(way.files)}), "wall_ms": wall[name]}
        if knows_jvm or not name.startswith("Spark"):
            metrics["cpu_ms"] = cpu[name]
        metrics["gain_ratio"] = Metric.quotient(wall[_SPARK], wall[name])
        if knows_jvm:
            metrics["cpu_gain_ratio"] = Metric.quotient(cpu[_SPARK], cpu[name])
        yield ground.cell(metrics, {"way": name}, equal=equal[name], note=note)
