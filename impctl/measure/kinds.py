"""The measures: capture, query, maintain, and every way to a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from impctl.bench.record import Cell, Label, Metric
from impctl.bench.timing import in_turns, milliseconds, warm_up
from impctl.errors import ImpctlError
from impctl.measure.duckdb import (
    Metrics,
    ParquetSql,
    duckdb_answers,
    duckdb_query_metrics,
    duckdb_recapture_metrics,
    same_answer,
)
from impctl.measure.scratch import AgainstRecapture, MeasuredQuery, measured_copy, worse_of
from impctl.service.answer import engine_answer
from impctl.service.query import materialized_result
from impctl.service.results import rows_of
from impctl.service.step import StepDone
from impctl.service.stored import known_ending
from impctl.service.verify import same_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.service.context import Context
    from impctl.service.filters import Pruned
    from impctl.workload.models import QuerySpec


class MeasuredCase(Struct, frozen=True, kw_only=True):
    """One query of one figure, which a measure turns into cells with these labels. A measure
    accesses tables only when iterated; if it fails, it loses its cells from there on."""

    ctx: Context
    figure: str
    query: QuerySpec
    labels: Mapping[str, Label]
    repeat: int
    seed: int

    def cell(
        self,
        metrics: Metrics,
        labels: Mapping[str, Label] | None = None,
        *,
        checked: AgainstRecapture | None = None,
        equal: bool | None = None,
        note: str = "",
    ) -> Cell:
        """Make a cell with the labels of the case, then these."""
        every = {**self.labels, **(labels or {})}
        covers = None if checked is None else checked.covers
        slack = None if checked is None else checked.slack
        return Cell(self.figure, every, metrics, covers=covers, slack=slack, equal=equal, note=note)

    def step(self, message: str) -> None:
        """Report a step, with the figure it is for."""
        self.ctx.reporter.step(f"{self.figure}: {message}")


def single(values: Mapping[str, float]) -> dict[str, Metric]:
    """Make metrics of one run each, which have no spread."""
    return {name: Metric.of([value]) for name, value in values.items()}


T = TypeVar("T")


class CallTimes(Struct, frozen=True):
    """Processor time of this process (all threads) and wall time of one run. On a busy machine
    other processes add to the wall time."""

    cpu_ms: float
    wall_ms: float


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


# Measure `capture`: a capture with its state against the query and a recapture.
# `capture_ms` fills sketch and state without storing them, `recapture_ms` computes the sketch
# alone, `plain_ms` is the query without a sketch; `state_bytes` is the state on disk. Law: the
# stored sketch is compared with a recapture first; each is warmed up until it ran four times or for
# ten seconds, then timed in turns.

_MOST = 3
"""Maximum captures timed; they are long enough to be steady."""


def measure_capture(case: MeasuredCase) -> Iterator[Cell]:
    """Measure one cell."""
    case.step(f"capturing {case.query.name}")
    with measured_copy(case.ctx, case.query) as measured:
        checked = measured.checked()
        calls: dict[str, Callable[[], object]] = {
            "plain_ms": measured.answer,
            "recapture_ms": measured.recapture,
        }
        if measured.has_state:
            calls["capture_ms"] = measured.capture
        for call in calls.values():
            warm_up(call)
        metrics = in_turns(calls, min(case.repeat, _MOST))
        if measured.has_state:
            runs = measured.scratch.store().run_refs(case.query.name)
            metrics |= single({"state_bytes": float(sum(run.bytes for run in runs))})
        yield case.cell(metrics, checked=checked)


# Measure `query`: the query as it is and through its sketch. The time with the sketch
# includes choosing the files, not finding the sketch in a store; `gain_ratio` is the time without
# over it. `files_share`, `rows_share` and `fragments_share` are the files read, their rows, and the
# sketches' ranges, of all. Law: results are compared first; both ways are warmed up and timed in
# turns in one session.


def measure_query(case: MeasuredCase) -> Iterator[Cell]:
    """Measure one cell."""
    case.step(f"running {case.query.name} with and without its sketch")
    with measured_copy(case.ctx, case.query) as measured:
        pruned = measured.pruned()
        plain = measured.answer()
        equal = same_rows(rows_of(measured.answer(pruned)), rows_of(plain))
        calls = {
            "plain_ms": measured.answer,
            "sketch_ms": lambda: measured.answer(measured.pruned()),
        }
        for call in calls.values():
            warm_up(call)
        times = in_turns(calls, case.repeat)
        duckdb, note = duckdb_query_metrics(measured, plain, case.repeat)
        shares = {
            "files_share": pruned.files_kept / max(pruned.files_total, 1),
            "rows_share": _rows_share(measured, pruned),
            "fragments_share": _ranges_share(measured),
        }
        metrics = {
            **duckdb,
            **times,
            "gain_ratio": Metric.quotient(times["plain_ms"], times["sketch_ms"]),
            **single(shares),
        }
        yield case.cell(metrics, equal=equal, note=note)


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


# Measure `maintain`: a change maintained incrementally and by recapture; `changes` (rows) and
# `shares` (of the table) are its sizes. `maintain_ms` is a step in a process that is up and has
# state and lock (`measure.scratch`). Law: for every size the maintained sketch is first compared
# with a recapture, with the change and after undoing it; a cell has the check of its kind. The
# baseline is the fastest recapture, timed per case without the change, which favors it for large
# changes, and warmed up until it ran four times, checks included, or ten more seconds. A deletion
# undoes an insertion. A note has the number of ranges if the table lacked values for all.

KINDS = ("insert", "delete", "both")
"""`both` is an insertion and a deletion that reverts it."""

_RECAPTURES = 3
"""Maximum recaptures timed: one takes as long as hundreds of runs of `maintain`."""


class MaintainedChange(Struct, frozen=True):
    """A change of so many rows, checked by kind and maintained; each run with its kind."""

    rows: int
    share: float
    checked: Mapping[str, AgainstRecapture]
    runs: Sequence[tuple[str, StepDone]]
    state_bytes: int


def measure_maintain(
    case: MeasuredCase,
    changes: Sequence[int],
    shares: Sequence[float],
    kinds: Sequence[str] = ("both",),
) -> Iterator[Cell]:
    """Measure a cell for every size and kind of change, labelled by kind if there are several."""
    case.step(f"capturing {case.query.name}")
    with measured_copy(case.ctx, case.query) as measured:
        sizes = _sizes(measured, changes, shares)
        result: list[MaintainedChange] = []
        failure: ImpctlError | None = None
        with measured.scratch.writing("bench"):
            try:
                for rows, share in sizes.items():
                    result.append(_maintained(case, measured, rows, share))
            except ImpctlError as error:
                failure = error
            # Last and warm: a cold baseline would flatter us.
            recaptures = recapture_times(case, measured, len(result)) if result else []
            # After a failure nobody knows whether the change is still there.
            duckdb: tuple[Metrics, str] = {}, ""
            if failure is None:
                duckdb = duckdb_recapture_with_note(case, measured)
        for change in result:
            for kind in kinds:
                is_labelled = len(kinds) > 1
                yield change_cell(case, change, kind, recaptures, duckdb, is_labelled=is_labelled)
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


def _maintained(
    case: MeasuredCase, measured: MeasuredQuery, size: int, share: float
) -> MaintainedChange:
    """Check one size, then maintain insertions and deletions in turn."""
    case.step(f"{case.query.name} with {size} changes")
    rows = measured.rows_like_the_table(size, case.seed)
    inserted, deleted = measured.checked_both_ways(rows)
    checked = {"insert": inserted, "delete": deleted, "both": worse_of(inserted, deleted)}
    runs = []
    for _ in range(case.repeat):
        runs.append(("insert", measured.maintain(rows, forth=True)))
        runs.append(("delete", measured.maintain(rows, forth=False)))
    return MaintainedChange(size, share, checked, runs, measured.state_bytes)


def duckdb_recapture_with_note(case: MeasuredCase, measured: MeasuredQuery) -> tuple[Metrics, str]:
    """Measure DuckDB's recapture, with a note on missing ranges too."""
    metrics, note = duckdb_recapture_metrics(measured, min(case.repeat, _RECAPTURES))
    return metrics, "; ".join(filter(None, (_missing_ranges(measured), note)))


def _missing_ranges(measured: MeasuredQuery) -> str:
    """How many ranges exist, if fewer than the workload requests."""
    parts = measured.scratch.workload.partitions
    requested = {(part.table.lower(), part.column.lower()): part.ranges for part in parts}
    result = {}
    for part in measured.partitions.values():
        expected = requested.get((part.table.lower(), part.attribute.lower()))
        if expected is not None and part.ranges < expected:
            name = f"{part.table}.{part.attribute}"
            result[name] = f"{part.ranges:,} of {expected:,} ranges of {name} in use"
    return "; ".join(result.values())


def recapture_times(case: MeasuredCase, measured: MeasuredQuery, sizes: int) -> list[float]:
    """Time recaptures; the checks made one per size and one without a change."""
    case.step(f"recapturing {case.query.name}")
    warm_up(measured.recapture, done=sizes + 1)
    return [milliseconds(measured.recapture) for _ in range(min(case.repeat, _RECAPTURES))]


def change_cell(
    case: MeasuredCase,
    change: MaintainedChange,
    kind: str,
    recaptures: Sequence[float],
    duckdb: tuple[Metrics, str],
    *,
    is_labelled: bool,
) -> Cell:
    """Make the cell of a change of this kind, compared with recaptures."""
    labels: dict[str, Label] = {"changes": change.rows, "share": float(f"{change.share:.3g}")}
    if is_labelled:
        labels["kind"] = kind
    runs = [run for way, run in change.runs if kind in (way, "both")]
    maintain, recapture = Metric.of([run.total_ms for run in runs]), Metric.of(recaptures)
    metrics = {
        "maintain_ms": maintain,
        "read_ms": Metric.of([run.read_ms for run in runs]),
        "engine_ms": Metric.of([run.engine_ms for run in runs]),
        "commit_ms": Metric.of([run.commit_ms for run in runs]),
        "recapture_ms": recapture,
        "recapture_ratio": Metric.quotient(recapture, maintain),
        "state_bytes": Metric.of([change.state_bytes]),
        **duckdb[0],
    }
    return case.cell(metrics, labels, checked=change.checked[kind], note=duckdb[1])


# Measure `ways`: every way to a query's answer, with files, wall time and CPU time. One cell per
# way, labelled `way`: the materialized result, the engine and DuckDB (over the text and files of
# `rewrite`) through the sketch, DuckDB over all files, Spark through the sketch and over all files.
# `gain_ratio` and `cpu_gain_ratio` are Spark over all files against this way. CPU time includes
# Spark's JVM and is missing if that is unreadable. Law: every answer is first compared with Spark's
# over all files; all ways run in one warm process, in turns. A note says why a way is missing.

_SPARK, _SPARK_SKETCH = "Spark, all files", "Spark with the sketch"
_DUCKDB, _DUCKDB_SKETCH = "DuckDB, all files", "DuckDB with the sketch"
_ENGINE, _MATERIALIZED = "impctl's engine with the sketch", "materialized result"


class _TimedWay(Struct, frozen=True):
    """One way to the result; `files` is how many data files it reads."""

    name: str
    run: Callable[[], pa.Table]
    files: int


def measure_ways(case: MeasuredCase) -> Iterator[Cell]:
    """Measure a cell for each way."""
    case.step(f"capturing {case.query.name}")
    connection = ParquetSql.open()
    with (
        measured_copy(case.ctx, replace(case.query, answer=True)) as measured,
        nullcontext() if connection is None else closing(connection),
    ):
        ways = _ways(measured)
        note = "DuckDB is not installed"
        if connection is not None:
            answers, note = duckdb_answers(connection, measured)
            _, pruned = measured.written()
            files = {_DUCKDB: pruned.files_total, _DUCKDB_SKETCH: pruned.files_kept}
            ways += [
                _TimedWay(name, answers[metric], files[name])
                for name, metric in (
                    (_DUCKDB, "duckdb_plain_ms"),
                    (_DUCKDB_SKETCH, "duckdb_sketch_ms"),
                )
                if metric in answers
            ]
        yield from _timed(case, measured, ways, note)


def _ways(measured: MeasuredQuery) -> list[_TimedWay]:
    """The ways without DuckDB, Spark over all files first."""
    pruned = measured.pruned()
    files_kept, total = pruned.files_kept, pruned.files_total
    ways = [
        _TimedWay(_SPARK, measured.answer, total),
        _TimedWay(_SPARK_SKETCH, lambda: measured.answer(measured.pruned()), files_kept),
    ]
    offered = [_TimedWay(_ENGINE, lambda: by_engine(measured, measured.pruned()), files_kept)]
    if measured.stored.state_meta.get("answer"):
        offered.append(_TimedWay(_MATERIALIZED, lambda: from_state(measured), 0))
    return ways + [way for way in offered if _answers(way)]


def by_engine(measured: MeasuredQuery, pruned: Pruned) -> pa.Table:
    """Compute the result in the engine, through the sketches."""
    return engine_answer(measured.scratch, measured.prepared, pruned)


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


def _timed(
    case: MeasuredCase, measured: MeasuredQuery, ways: list[_TimedWay], note: str
) -> Iterator[Cell]:
    """Compare each way with the first, time them in turn, and yield the slowest first."""
    from impctl.spark.session import jvm_cpu_ms

    expected = ways[0].run()
    equal = {way.name: same_answer(way.run(), expected) for way in ways}
    for way in ways:
        warm_up(way.run, done=1 if way.name != _SPARK else 2)
    session = measured.scratch.spark()
    case.step(f"timing {case.query.name} in {len(ways)} ways")
    runs: dict[str, list[CallTimes]] = {way.name: [] for way in ways}
    for _ in range(case.repeat):
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
        yield case.cell(metrics, {"way": name}, equal=equal[name], note=note)
