"""What a result would cost the engine and Spark, estimated before either begins."""

from __future__ import annotations

import math
import statistics
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.errors import count_text
from impctl.expr.types import type_of
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Join,
    Plan,
    Scan,
    SetOperation,
    TopK,
    Window,
    inputs_of,
    nodes_of,
)
from impctl.service.stored import result_bytes
from impctl.store.disk import StoreLayout
from impctl.store.ledger import AnswerRun, Ledger
from impctl.tables.storage import local_path
from impctl.workload.models import AnsweredBy, QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.expr.nodes import Expr
    from impctl.service.context import Context, Versions
    from impctl.service.filters import Pruned
    from impctl.service.prepare import PreparedQuery
    from impctl.store.records import StoreReader
    from impctl.tables.snapshot import DataFile
    from impctl.types import TableName


# Recorded answer times, apart from the rates, since returning materialized rows loads no planner.
# Law: times only choose between ways to the same answer. They belong to one text, parameter values
# aside, and one way; an inaccessible ledger changes nothing.

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


class Fixed(Struct, frozen=True):
    """Milliseconds: `first` for a Spark's first query, `start` to start it if never recorded."""

    query: float
    first: float = 0.0
    start: float = 0.0


def answer_runs(ctx: Context, spec: QuerySpec) -> tuple[AnswerRun, ...]:
    """Return the latest recorded answers of the query, newest first."""
    runs = Ledger(ctx.store_path).runs(spec.name, _mark(spec))
    return tuple(run for run in runs if _is_amount(run.elapsed_ms) and _is_amount(run.start_ms))


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


def start_of(runs: Sequence[AnswerRun], fixed: Fixed) -> float:
    starts = [run.start_ms for run in runs if run.start_ms > 0][:_LATEST]
    return statistics.median(starts) if starts else fixed.start


def by_runs(
    runs: Sequence[AnswerRun], by: AnsweredBy, rows: int, fixed: Fixed, *, is_up: bool
) -> AnswerEstimate | None:
    """Estimate an answer over so many rows from recorded runs; None without any. The first query of
    a new Spark takes longer, so runs like the next one are preferred."""
    own_runs = [run for run in runs if run.by == by]
    if not own_runs:
        return None
    alike = [run for run in own_runs if is_up == (run.start_ms == 0.0)] or own_runs
    estimates = [_scaled(run, rows, fixed, is_up=is_up) for run in alike[:_LATEST]]
    start = 0.0 if is_up else start_of(runs, fixed)
    return AnswerEstimate(statistics.median(estimates) + start, len(estimates), start)


def _scaled(run: AnswerRun, rows: int, fixed: Fixed, *, is_up: bool) -> float:
    was_up = run.start_ms == 0.0
    always = min(fixed.query + (0.0 if was_up else fixed.first), run.elapsed_ms / 2)
    now = always if was_up == is_up else fixed.query + (0.0 if is_up else fixed.first)
    return now + (run.elapsed_ms - always) * (rows / run.rows if run.rows else 1.0)


def _mark(spec: QuerySpec) -> int:
    return zlib.crc32(spec.sql.encode())


def _is_amount(ms: object) -> bool:
    return isinstance(ms, float) and math.isfinite(ms) and ms >= 0


# Law: estimates decide who answers, never the answer. Before the first answer they use rates: rows
# of the files to read, by the log's counts or bytes, and what the plan does with them. Rates are
# measured (decision 0072) and rough: right about which is faster beyond a factor of two. Recorded
# runs of the same text and way replace them, scaled by rows to read. impctl never asks DuckDB, but
# reports if it would clearly be faster over all files.


class Rates(Struct, frozen=True, kw_only=True):
    """Milliseconds per query, per value read, and per row in operators."""

    query: float
    value: float
    join: float
    group: float
    double: float
    rank: float
    """A row sorted within its group: windows, and top-k per group."""
    first: float
    """A row of a global top-k."""


_ENGINE = Rates(
    query=10.0, value=30e-6, join=1.1e-3, group=0.25e-3, double=0.8e-3, rank=4e-3, first=0.3e-3
)
_SPARK = Rates(
    query=400.0, value=15e-6, join=0.2e-3, group=0.07e-3, double=0.03e-3, rank=1.5e-3, first=0.1e-3
)
_ENGINE_FIXED = Fixed(_ENGINE.query)
_SPARK_FIXED = Fixed(_SPARK.query, first=2500.0, start=4000.0)
_DUCKDB_START_MS, _DUCKDB_ROW_MS = 20.0, 15e-6
"""Milliseconds of a query in DuckDB over local files, and of each value."""
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


def compare_engines(
    ctx: Context, prepared: PreparedQuery, versions: Versions, pruned: Pruned
) -> EngineChoice:
    """Estimate both for these files."""
    rows = {table: rows_of(files) for table, files in pruned.files.items()}
    total, is_up = sum(rows.values()), ctx.has_spark
    runs = answer_runs(ctx, prepared.spec)
    engine = by_runs(runs, AnsweredBy.ENGINE, total, _ENGINE_FIXED, is_up=True)
    if engine is None:
        engine = AnswerEstimate(_by_rates(prepared, rows, _ENGINE))
    spark = by_runs(runs, AnsweredBy.SPARK, total, _SPARK_FIXED, is_up=is_up)
    if spark is None:
        start = 0.0 if is_up else start_of(runs, _SPARK_FIXED)
        first = 0.0 if is_up else _SPARK_FIXED.first
        spark = AnswerEstimate(_by_rates(prepared, rows, _SPARK) + first + start, 0, start)
    why = f"estimate for {total:,} rows: engine {_text(engine)}, Spark {_text(spark)}"
    least = min(engine.ms, spark.ms)
    return EngineChoice(engine, spark, why, _quicker(ctx, prepared, versions, least))


def _by_rates(prepared: PreparedQuery, rows: Mapping[TableName, int], rates: Rates) -> float:
    """Milliseconds of a query over so many rows per table, without Spark's start."""
    ms, passing = rates.query, dict[int, float]()
    for node in reversed(tuple(nodes_of(prepared.planned.root))):
        below = [passing[id(child)] for child in inputs_of(node)]
        if isinstance(node, Scan):
            passing[id(node)] = float(rows.get(node.table, 0))
            ms += passing[id(node)] * max(1, len(node.attributes)) * rates.value
        else:
            is_grouping = isinstance(node, Aggregate | Distinct | TopK)
            passing[id(node)] = max(below, default=0.0) * (_GROUPS if is_grouping else 1.0)
            ms += sum(below) * _per_row(node, rates)
    return ms


def _per_row(node: Plan, rates: Rates) -> float:
    match node:
        case Join():
            return rates.join
        case Aggregate(aggregates=aggregates):
            sums = [
                aggregate.call
                for aggregate in aggregates
                if aggregate.call.function in ("sum", "avg")
            ]
            inexact = [summed for summed in sums if _is_double(summed.arguments)]
            return rates.group + len(inexact) * rates.double
        case Distinct() | SetOperation():
            return rates.group
        case Window(calls=calls):
            return rates.rank * max(1, len({(call.partition_by, call.order) for call in calls}))
        case TopK():
            return rates.first if node.rank is None else rates.rank
    return 0.0


def _is_double(arguments: Sequence[Expr]) -> bool:
    types = [type_of(argument) for argument in arguments]
    return any(result is not None and result.is_fractional for result in types)


def _quicker(ctx: Context, prepared: PreparedQuery, versions: Versions, ours: float) -> str:
    """A note if DuckDB over all files would be clearly quicker, and how to use it."""
    from impctl.tables.files import why_not_plain

    snapshots = {
        table: ctx.tables.snapshot(table, versions.get(table)) for table in prepared.tables
    }
    values = sum(
        rows_of(snapshots[scan.table].files) * max(1, len(scan.attributes))
        for scan in prepared.scans
    )
    duckdb = _DUCKDB_START_MS + values * _DUCKDB_ROW_MS
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
