"""Predict what a run or an answer takes, from recorded ones or by prior times.

Law: an estimate only chooses between two correct ways. Runs of one kind are on one line
(`costs.line_through`); answers scale with the rows that they read.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.costs import DUCKDB, ENGINE, SPARK, AnswerTimes, CostLine, is_amount, line_through
from impctl.errors import StateCorruptError, count_text
from impctl.service.stored import StateMeta, result_bytes
from impctl.service.text import duration_text
from impctl.store.disk import StoreLayout
from impctl.store.ledger import AnswerRun, Ledger
from impctl.store.records import RunCost, RunKind, StoredQuery
from impctl.tables.log import ChangeSize
from impctl.tables.storage import local_path
from impctl.workload.models import AnsweredBy, QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.expr.nodes import Expr
    from impctl.plan.nodes import Plan
    from impctl.service.context import Context, Versions
    from impctl.service.filters import Pruned
    from impctl.service.prepare import PreparedQuery
    from impctl.store.reader import StoreReader
    from impctl.tables.snapshot import DataFile
    from impctl.types import TableName


# Maintenance against recapture. Law: estimates only choose between two correct ways. Recapture is
# chosen if it is cheaper by a clear margin, by enough runs, for a change not much larger than any
# maintained before: otherwise a wrong estimate would never be corrected. Only runs that moved the
# same tables choose a recapture; without any, all runs of the query give the shown estimate. Runs
# of state kept differently do not count. Before the first maintenance, a change takes its share of
# the table.


_FEWEST_MAINTAINED = 3
"""Runs needed to predict maintenance; one capture suffices for recapture."""
_TRUSTED_TIMES = 10
"""Predict up to this multiple of the largest observed change."""
_MARGIN = 2.0
"""Factor by which maintenance must take longer."""
_LEAST_GAIN_MS = 1_000.0
"""Savings below this are ignored."""
_GUESSED = 1.5
"""Maintenance relative to a capture of the same share, if never tried: measured 0.8 (sums) to 2.3
(MAX), with file comparison 0.9. By it, recapture is chosen only if more rows or bytes changed than
the table has."""


def recorded(store: StoreReader, stored: StoredQuery) -> tuple[RunCost, ...]:
    """The costs of runs with the present layout; none if the description cannot be read."""
    meta = stored.state_meta
    try:
        layout = StateMeta.read(stored.query, meta).layout if meta else ""
    except StateCorruptError:
        return ()
    return tuple(cost for cost in store.costs(stored.query) if cost.layout == layout)


class RunEstimates(Struct, frozen=True):
    """Milliseconds, None if no run was recorded, and the number of runs."""

    maintain_ms: float | None = None
    maintain_runs: int = 0
    recapture_ms: float | None = None
    recapture_runs: int = 0


def estimated(
    costs: Sequence[RunCost],
    kind: RunKind,
    size: ChangeSize | None,
    *,
    has_spark: bool,
    table_rows: Callable[[], int],
    moved: Sequence[TableName] = (),
) -> RunEstimates:
    """Both estimates from recorded runs; `moved` are the changed tables."""
    runs = _alike(costs, kind, moved) or _of_kind(costs, kind)
    again = _of_kind(costs, RunKind.RECAPTURE)
    line, maintain_ms = _line(runs), None
    rows = None if size is None else _rows(runs, size)
    if line is not None and rows is not None:
        maintain_ms = line.at(rows) + _start(runs, costs, has_spark)
    elif not runs and size is not None and kind is RunKind.MAINTAIN:
        maintain_ms = _guess(again, size)
    return RunEstimates(
        maintain_ms, len(runs), _recapture(costs, has_spark, table_rows), len(again)
    )


def _guess(again: Sequence[RunCost], size: ChangeSize) -> float | None:
    """The first maintenance estimated from the latest capture; None without one. Captures in Spark
    do not count: most of their time does not depend on the rows."""
    if not again or again[0].spark or again[0].bytes <= 0:
        return None
    share = size.bytes / again[0].bytes
    if size.rows is not None and again[0].rows > 0:
        share = max(share, size.rows / again[0].rows)
    return again[0].elapsed_ms * share * _GUESSED


def if_recapture_is_cheaper(
    costs: Sequence[RunCost],
    kind: RunKind,
    size: Callable[[], ChangeSize | None],
    *,
    has_spark: bool,
    table_rows: Callable[[], int],
    moved: Sequence[TableName] = (),
) -> RunEstimates | None:
    """Both estimates if recapture is clearly cheaper, else None. Unknowns are computed only when
    they matter: most runs end at the first test."""
    runs, again = _alike(costs, kind, moved), _of_kind(costs, RunKind.RECAPTURE)
    if not again:
        return None
    if runs:
        change = _by_line(runs, _start(runs, costs, has_spark), size)
    else:
        change = None if _of_kind(costs, kind) else _by_guess(again, size)
    if change is None:
        return None
    result = estimated(costs, kind, change, has_spark=has_spark, table_rows=table_rows, moved=moved)
    if result.maintain_ms is None or result.recapture_ms is None:
        return None
    is_clear = result.maintain_ms > result.recapture_ms * _MARGIN
    return (
        result if is_clear and result.maintain_ms - result.recapture_ms > _LEAST_GAIN_MS else None
    )


def _by_line(
    runs: Sequence[RunCost], start: float, size: Callable[[], ChangeSize | None]
) -> ChangeSize | None:
    """The change, if recorded runs can predict it and it may be large enough."""
    longest = max(cost.elapsed_ms for cost in runs)
    if len(runs) < _FEWEST_MAINTAINED or longest * _TRUSTED_TIMES + start < _LEAST_GAIN_MS:
        return None
    change, line = size(), _line(runs)
    rows = None if change is None else _rows(runs, change)
    is_predicted = line is not None and rows is not None and rows <= line.largest * _TRUSTED_TIMES
    return change if is_predicted else None


def _by_guess(again: Sequence[RunCost], size: Callable[[], ChangeSize | None]) -> ChangeSize | None:
    """The change before any maintenance run, if the guess may decide."""
    if again[0].elapsed_ms < _LEAST_GAIN_MS:
        return None
    change = size()
    return change if change is not None and change.bytes > again[0].bytes else None


def reason_text(estimates: RunEstimates) -> str:
    assert estimates.maintain_ms is not None
    assert estimates.recapture_ms is not None
    if not estimates.maintain_runs:
        return (
            "more rows changed than the table has: maintaining may take "
            f"{duration_text(estimates.maintain_ms)}, a recapture "
            f"{duration_text(estimates.recapture_ms)} (a first guess)"
        )
    return (
        f"estimate: {duration_text(estimates.maintain_ms)} to maintain, "
        f"{duration_text(estimates.recapture_ms)} to recapture (from "
        f"{estimates.maintain_runs} and {estimates.recapture_runs} recorded runs)"
    )


def _of_kind(costs: Sequence[RunCost], kind: RunKind) -> list[RunCost]:
    return [cost for cost in costs if cost.kind == kind]


def _alike(costs: Sequence[RunCost], kind: RunKind, moved: Sequence[TableName]) -> list[RunCost]:
    tables = tuple(sorted(moved))
    return [cost for cost in _of_kind(costs, kind) if cost.moved == tables]


def _line(costs: Sequence[RunCost]) -> CostLine | None:
    return line_through([(cost.rows, cost.elapsed_ms) for cost in costs])


def _rows(costs: Sequence[RunCost], size: ChangeSize) -> int | None:
    if size.rows is not None:
        return size.rows
    shares = [cost.rows / cost.bytes for cost in costs if cost.bytes > 0]
    return round(size.bytes * statistics.median(shares)) if shares else None


def _recapture(
    costs: Sequence[RunCost], has_spark: bool, table_rows: Callable[[], int]
) -> float | None:
    again = _of_kind(costs, RunKind.RECAPTURE)
    # Spark's times say nothing about the engine, and vice versa; the next run is like the latest.
    again = [cost for cost in again if cost.spark == again[0].spark]
    line = _line(again)
    if line is None:
        return None
    return line.at(table_rows() if line.per_row else 0) + _start(again, costs, has_spark)


def _start(runs: Sequence[RunCost], costs: Sequence[RunCost], has_spark: bool) -> float:
    if has_spark or not runs or not runs[0].spark:
        return 0.0
    return _spark_start([cost.start_ms for cost in costs], SPARK.start + SPARK.first)


def _spark_start(recorded: Sequence[float], prior: float) -> float:
    """Milliseconds to start Spark: the median of the recorded starts, zeros aside."""
    starts = [ms for ms in recorded if ms > 0]
    return statistics.median(starts) if starts else prior


# Recorded answers. Law: they belong to one text, parameter values aside, and one way; an
# inaccessible ledger changes nothing. Returning materialized rows loads no planner.

SLOW_STATE_MS = 300.0
"""Milliseconds of reading the result's rows above which reading tables is considered."""
_SMALL_STATE = 4_000_000
"""Bytes of result rows that are always read quickly; such reads are not recorded."""
_LATEST = 3
"""Runs whose median is the estimate."""


class AnswerEstimate(Struct, frozen=True):
    """Milliseconds, with `start_ms` to start Spark; from `runs` recorded runs, or by rates if 0."""

    ms: float
    runs: int = 0
    start_ms: float = 0.0


def answer_runs(ctx: Context, spec: QuerySpec) -> tuple[AnswerRun, ...]:
    """Return the latest recorded answers of the query, newest first."""
    runs = Ledger(ctx.store_path).runs(spec.name, _mark(spec))
    return tuple(run for run in runs if _is_time(run.elapsed_ms) and _is_time(run.start_ms))


def record_answer(
    ctx: Context,
    spec: QuerySpec,
    by: AnsweredBy,
    read: tuple[int, int, int],
    elapsed_ms: float,
    start_ms: float = 0.0,
) -> None:
    if StoreLayout(ctx.store_path).catalog.is_file():
        run = AnswerRun(spec.name, _mark(spec), str(by), time.time(), *read, elapsed_ms, start_ms)
        Ledger(ctx.store_path).record_run(run)


def record_state_read(
    ctx: Context, store: StoreReader, spec: QuerySpec, rows: pa.Table, elapsed_ms: float
) -> None:
    """Record how long reading the result's rows took, if they are many."""
    if result_bytes(store, spec.name) >= _SMALL_STATE:
        record_answer(ctx, spec, AnsweredBy.STATE, (0, rows.num_rows, rows.nbytes), elapsed_ms)


def is_slow_state_read(ctx: Context, store: StoreReader, spec: QuerySpec) -> bool:
    if result_bytes(store, spec.name) < _SMALL_STATE:
        return False
    return state_estimate(answer_runs(ctx, spec)).ms >= SLOW_STATE_MS


def state_estimate(runs: Sequence[AnswerRun]) -> AnswerEstimate:
    """Milliseconds to read the result's rows; 0 if not recorded, since they are few."""
    times = [run.elapsed_ms for run in runs if run.by == AnsweredBy.STATE][:_LATEST]
    return AnswerEstimate(statistics.median(times) if times else 0.0, len(times))


def _by_runs(
    runs: Sequence[AnswerRun], by: AnsweredBy, rows: int, times: AnswerTimes, *, is_up: bool
) -> AnswerEstimate | None:
    """Estimate an answer over so many rows from recorded runs; None without any. The first query of
    a new Spark takes longer, so runs like the next one are preferred."""
    own_runs = [run for run in runs if run.by == by]
    if not own_runs:
        return None
    alike = [run for run in own_runs if is_up == (run.start_ms == 0.0)] or own_runs
    estimates = [_scaled(run, rows, times, is_up=is_up) for run in alike[:_LATEST]]
    start = 0.0 if is_up else _start_of(runs)
    return AnswerEstimate(statistics.median(estimates) + start, len(estimates), start)


def _scaled(run: AnswerRun, rows: int, times: AnswerTimes, *, is_up: bool) -> float:
    was_up = run.start_ms == 0.0
    always = min(times.query + (0.0 if was_up else times.first), run.elapsed_ms / 2)
    now = always if was_up == is_up else times.query + (0.0 if is_up else times.first)
    return now + (run.elapsed_ms - always) * (rows / run.rows if run.rows else 1.0)


def _mark(spec: QuerySpec) -> int:
    return zlib.crc32(spec.sql.encode())


def _is_time(ms: object) -> bool:
    return isinstance(ms, float) and is_amount(ms)


def _start_of(runs: Sequence[AnswerRun]) -> float:
    return _spark_start([run.start_ms for run in runs if run.start_ms > 0][:_LATEST], SPARK.start)


# Who answers. Law: before the first answer, prior times are used: rows of the files to read, by the
# log's counts or bytes, and what the plan does with them. Recorded runs of the same text and way
# replace them, scaled by rows to read. impctl never asks DuckDB, but reports if it would clearly be
# faster over all files.

_CLEARLY, _CLEARLY_MS = 1.5, 100.0
"""Factor and milliseconds that make a difference worth reporting."""
_ROW_BYTES = 16
"""Bytes per row, if the log has no row count."""
_GROUPS = 0.1
"""Groups per input row, if unknown."""


class EngineChoice(Struct, frozen=True):
    """The estimates, why the quicker one wins, and in `quicker` what would be clearly quicker."""

    engine: AnswerEstimate
    spark: AnswerEstimate
    why: str
    quicker: str = ""

    @property
    def is_engine(self) -> bool:
        """Whether to ask the engine. Rates are rough: an untried one must be clearly quicker."""
        if self.engine.runs and not self.spark.runs:
            return not _is_clearly_less(self.spark.ms, self.engine.ms)
        if self.spark.runs and not self.engine.runs:
            return _is_clearly_less(self.engine.ms, self.spark.ms)
        return self.engine.ms <= self.spark.ms

    @property
    def least(self) -> AnswerEstimate:
        return self.engine if self.is_engine else self.spark


def compare_engines(ctx: Context, prepared: PreparedQuery, pruned: Pruned) -> EngineChoice:
    """Estimate both for these files."""
    rows = {table: rows_of(files) for table, files in pruned.files.items()}
    total, is_up = sum(rows.values()), ctx.has_spark
    runs = answer_runs(ctx, prepared.spec)
    engine = _by_runs(runs, AnsweredBy.ENGINE, total, ENGINE, is_up=True)
    if engine is None:
        engine = AnswerEstimate(prior_ms(prepared, rows, ENGINE))
    spark = _by_runs(runs, AnsweredBy.SPARK, total, SPARK, is_up=is_up)
    if spark is None:
        start, first = (0.0, 0.0) if is_up else (_start_of(runs), SPARK.first)
        spark = AnswerEstimate(prior_ms(prepared, rows, SPARK) + first + start, 0, start)
    why = f"estimate for {total:,} rows: engine {_text(engine)}, Spark {_text(spark)}"
    least = min(engine.ms, spark.ms)
    return EngineChoice(engine, spark, why, _quicker(ctx, prepared, pruned.versions, least))


def prior_ms(prepared: PreparedQuery, rows: Mapping[TableName, int], times: AnswerTimes) -> float:
    """Milliseconds of a query over so many rows per table, without Spark's start."""
    from impctl.plan.nodes import Aggregate, Distinct, Scan, TopK

    ms, passing = times.query, dict[int, float]()
    for node in reversed(tuple(prepared.root.walk())):
        below = [passing[id(child)] for child in node.inputs]
        if isinstance(node, Scan):
            passing[id(node)] = float(rows.get(node.table, 0))
            ms += passing[id(node)] * max(1, len(node.attributes)) * times.value
        else:
            is_grouping = isinstance(node, Aggregate | Distinct | TopK)
            passing[id(node)] = max(below, default=0.0) * (_GROUPS if is_grouping else 1.0)
            ms += sum(below) * _per_row(node, times)
    return ms


def _per_row(node: Plan, times: AnswerTimes) -> float:
    from impctl.plan.nodes import Aggregate, Distinct, Join, SetOperation, TopK, Window

    match node:
        case Join():
            return times.join
        case Aggregate(aggregates=aggregates):
            calls = (aggregate.call for aggregate in aggregates)
            sums = [call.arguments for call in calls if call.function in ("sum", "avg")]
            return times.group + sum(map(_is_double, sums)) * times.double
        case Distinct() | SetOperation():
            return times.group
        case Window(calls=calls):
            return times.rank * max(1, len({(call.partition_by, call.order) for call in calls}))
        case TopK():
            return times.top if node.rank is None else times.rank
    return 0.0


def _is_double(arguments: Sequence[Expr]) -> bool:
    from impctl.expr.types import type_of

    types = [type_of(argument) for argument in arguments]
    return any(result is not None and result.is_fractional for result in types)


def _quicker(ctx: Context, prepared: PreparedQuery, versions: Versions, ours: float) -> str:
    """A note if DuckDB over all files would be clearly quicker, and how to use it."""
    from impctl.tables.files import why_not_plain

    snapshots = {
        table: ctx.tables.snapshot(table, versions.get(table)) for table in prepared.tables
    }
    rows = {table: rows_of(snapshot.files) for table, snapshot in snapshots.items()}
    duckdb = prior_ms(prepared, rows, DUCKDB)
    is_local = all(local_path(snapshot.path) is not None for snapshot in snapshots.values())
    if not (is_local and _is_clearly_less(duckdb, ours)):
        return ""
    how = "`impctl rewrite --sketch auto --files FILE` writes its text and file list"
    if any(why_not_plain(snapshot) for snapshot in snapshots.values()):
        how = "`files` of the Python interface lists the files to read"
    return (
        f"DuckDB over all files, if it supports the query, would take about {_time(duckdb)} "
        f"instead of {_time(ours)}: {how}"
    )


def rows_of(files: Sequence[DataFile]) -> int:
    """Rows of these files, estimated where the log has no count."""
    return sum(file.rows if file.rows is not None else file.size // _ROW_BYTES for file in files)


def _is_clearly_less(left: float, right: float) -> bool:
    return _CLEARLY * left <= right and left + _CLEARLY_MS <= right


def _text(estimate: AnswerEstimate) -> str:
    start = f", including {_time(estimate.start_ms)} to start Spark" if estimate.start_ms else ""
    by = f" (from {count_text(estimate.runs, 'run')})" if estimate.runs else ""
    return f"{_time(estimate.ms)}{by}{start}"


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
