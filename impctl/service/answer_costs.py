"""What a result would cost the engine and Spark, before either begins."""

from __future__ import annotations

import math
import statistics
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
from impctl.store.disk import Layout
from impctl.store.ledger import AnswerRun, Ledger
from impctl.tables.storage import local_path
from impctl.values import dataclass
from impctl.workload.models import AnsweredBy, QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.expr.nodes import Expr
    from impctl.service.context import Workbench
    from impctl.service.filters import Pruned
    from impctl.service.prepare import PreparedQuery
    from impctl.store.records import StoreReader
    from impctl.tables.snapshot import DataFile
    from impctl.types import TableName, TableVersion


SLOW_STATE_MS = 300.0
"""What kept rows may take to be told before anybody asks whether reading tables is quicker."""
_SMALL_STATE = 4_000_000
"""Bytes of kept rows that never take so long; what telling fewer took is not written down."""
_LATEST = 3
"""Runs that an estimate is the median of."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds, of these `start_ms` to start Spark; by how many recorded `runs`, 0: by
    rates."""

    ms: float
    runs: int = 0
    start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Fixed:
    """What any query takes, whatever it reads; `first` more where it is the first of its Spark,
    `start` more where that has to be started, as long as no start was recorded."""

    query: float
    first: float = 0.0
    start: float = 0.0


def answer_runs(desk: Workbench, spec: QuerySpec) -> tuple[AnswerRun, ...]:
    """What the latest answers of the query took, newest first."""
    runs = Ledger(desk.store_path).runs(spec.name, _mark(spec))
    return tuple(run for run in runs if _is_amount(run.elapsed_ms) and _is_amount(run.start_ms))


def record_answer(
    desk: Workbench,
    spec: QuerySpec,
    by: AnsweredBy,
    read: tuple[int, int, int],
    elapsed_ms: float,
    start_ms: float = 0.0,
) -> None:
    """Write down what an answer took, where there is a store; `read` are files, rows and bytes."""
    if Layout(desk.store_path).catalog.is_file():
        run = AnswerRun(spec.name, _mark(spec), str(by), time.time(), *read, elapsed_ms, start_ms)
        Ledger(desk.store_path).record_run(run)


def record_told(
    desk: Workbench, store: StoreReader, spec: QuerySpec, rows: pa.Table, elapsed_ms: float
) -> None:
    """Write down what telling kept rows took, where these are many."""
    if result_bytes(store, spec.name) >= _SMALL_STATE:
        read = (0, rows.num_rows, rows.nbytes)
        record_answer(desk, spec, AnsweredBy.STATE, read, elapsed_ms)


def is_slow_to_tell(desk: Workbench, store: StoreReader, spec: QuerySpec) -> bool:
    """Whether telling the kept rows of a query took long."""
    if result_bytes(store, spec.name) < _SMALL_STATE:
        return False
    return state_estimate(answer_runs(desk, spec)).ms >= SLOW_STATE_MS


def state_estimate(runs: Sequence[AnswerRun]) -> Estimate:
    """What telling kept rows takes; 0 where that was not recorded, as they are few."""
    told = [run.elapsed_ms for run in runs if run.by == AnsweredBy.STATE][:_LATEST]
    return Estimate(statistics.median(told) if told else 0.0, len(told))


def start_of(runs: Sequence[AnswerRun], fixed: Fixed) -> float:
    """What starting Spark takes, by the latest starts that were recorded."""
    seen = [run.start_ms for run in runs if run.start_ms > 0][:_LATEST]
    return statistics.median(seen) if seen else fixed.start


def by_runs(
    runs: Sequence[AnswerRun], by: AnsweredBy, rows: int, fixed: Fixed, *, is_up: bool
) -> Estimate | None:
    """What an answer takes that reads so many rows, by the latest recorded runs; None without.

    The first query of a Spark that was started for it takes longer, so runs like the one to come
    tell where there are any.
    """
    mine = [run for run in runs if run.by == by]
    if not mine:
        return None
    alike = [run for run in mine if is_up == (run.start_ms == 0.0)] or mine
    each = [_scaled(run, rows, fixed, is_up=is_up) for run in alike[:_LATEST]]
    start = 0.0 if is_up else start_of(runs, fixed)
    return Estimate(statistics.median(each) + start, len(each), start)


def _scaled(run: AnswerRun, rows: int, fixed: Fixed, *, is_up: bool) -> float:
    """What a run would take that reads so many rows. Of its time at least half depends on them."""
    was_up = run.start_ms == 0.0
    always = min(fixed.query + (0.0 if was_up else fixed.first), run.elapsed_ms / 2)
    now = always if was_up == is_up else fixed.query + (0.0 if is_up else fixed.first)
    return now + (run.elapsed_ms - always) * (rows / run.rows if run.rows else 1.0)


def _mark(spec: QuerySpec) -> int:
    return zlib.crc32(spec.sql.encode())


def _is_amount(ms: object) -> bool:
    return isinstance(ms, float) and math.isfinite(ms) and ms >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Milliseconds: what any query takes, a value read, and what operators do with a row."""

    query: float
    value: float
    join: float
    group: float
    double: float
    """A double in a sum or average, which the engine adds up exactly."""
    rank: float
    """A row put in order within its group: windows, and the first rows of each group."""
    first: float
    """A row of which the first in all are wanted."""


_ENGINE = Rates(
    query=10.0, value=30e-6, join=1.1e-3, group=0.25e-3, double=0.8e-3, rank=4e-3, first=0.3e-3
)
_SPARK = Rates(
    query=400.0, value=15e-6, join=0.2e-3, group=0.07e-3, double=0.03e-3, rank=1.5e-3, first=0.1e-3
)
_ENGINE_FIXED = Fixed(_ENGINE.query)
_SPARK_FIXED = Fixed(_SPARK.query, first=2500.0, start=4000.0)
_DUCKDB_START_MS, _DUCKDB_ROW_MS = 20.0, 15e-6
"""What a query costs DuckDB that is running, over all files on a local disk, and each value."""
_CLEARLY, _CLEARLY_MS = 1.5, 100.0
"""So many times as long, and so much longer, is worth telling, or trying."""
_ROW_BYTES = 16
"""Of a row whose number the log does not tell."""
_GROUPS = 0.1
"""Groups for each row below them, as long as nobody knows."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the engine and Spark are estimated to take, and why the quicker one is it in words.

    `quicker` says who would be quicker than both, empty where nobody clearly is.
    """

    engine: Estimate
    spark: Estimate
    why: str
    quicker: str = ""

    @property
    def is_engine(self) -> bool:
        """Whether the engine is the one to ask: the quicker one. Of two of which only one was tried
        the other has to be clearly quicker, as rates are rough."""
        if self.engine.runs and not self.spark.runs:
            return not _is_clearly_less(self.spark.ms, self.engine.ms)
        if self.spark.runs and not self.engine.runs:
            return _is_clearly_less(self.engine.ms, self.spark.ms)
        return self.engine.ms <= self.spark.ms

    @property
    def least(self) -> Estimate:
        """That of the quicker one."""
        return self.engine if self.is_engine else self.spark


def foreseen(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned,
) -> Foreseen:
    """Who would be the quicker one to read these files."""
    rows = {table: rows_of(files) for table, files in pruned.files.items()}
    total, is_up = sum(rows.values()), desk.has_spark
    runs = answer_runs(desk, prepared.spec)
    engine = by_runs(runs, AnsweredBy.ENGINE, total, _ENGINE_FIXED, is_up=True)
    if engine is None:
        engine = Estimate(_by_rates(prepared, rows, _ENGINE))
    spark = by_runs(runs, AnsweredBy.SPARK, total, _SPARK_FIXED, is_up=is_up)
    if spark is None:
        start = 0.0 if is_up else start_of(runs, _SPARK_FIXED)
        first = 0.0 if is_up else _SPARK_FIXED.first
        spark = Estimate(_by_rates(prepared, rows, _SPARK) + first + start, 0, start)
    why = f"estimate for {total:,} rows: engine {_told(engine)}, Spark {_told(spark)}"
    least = min(engine.ms, spark.ms)
    return Foreseen(engine, spark, why, _quicker(desk, prepared, versions, least))


def _by_rates(prepared: PreparedQuery, rows: Mapping[TableName, int], rates: Rates) -> float:
    """Milliseconds of one query over so many rows of each table, Spark's start left out."""
    ms, passing = rates.query, dict[int, float]()
    for node in reversed(tuple(nodes_of(prepared.planned.root))):
        below = [passing[id(child)] for child in inputs_of(node)]
        if isinstance(node, Scan):
            passing[id(node)] = float(rows.get(node.table, 0))
            ms += passing[id(node)] * max(1, len(node.attributes)) * rates.value
        else:
            passing[id(node)] = max(below, default=0.0) * _left_by(node)
            ms += sum(below) * _per_row(node, rates)
    return ms


def _left_by(node: Plan) -> float:
    """Rows that come out of an operator for each that goes in."""
    return _GROUPS if isinstance(node, Aggregate | Distinct | TopK) else 1.0


def _per_row(node: Plan, rates: Rates) -> float:
    """What an operator does with a row takes."""
    match node:
        case Join():
            return rates.join
        case Aggregate(aggregates=aggregates):
            sums = [one.call for one in aggregates if one.call.function in ("sum", "avg")]
            inexact = [one for one in sums if _is_double(one.arguments)]
            return rates.group + len(inexact) * rates.double
        case Distinct() | SetOperation():
            return rates.group
        case Window(calls=calls):
            return rates.rank * max(1, len({(one.partition_by, one.order) for one in calls}))
        case TopK():
            return rates.first if node.rank is None else rates.rank
    return 0.0


def _is_double(arguments: Sequence[Expr]) -> bool:
    types = [type_of(one) for one in arguments]
    return any(result is not None and result.is_fractional for result in types)


def _quicker(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    ours: float,
) -> str:
    """That DuckDB over all files would be clearly quicker, and how it learns of them."""
    from impctl.tables.rows import why_not_plain

    snapshots = {
        table: desk.tables.snapshot(table, versions.get(table)) for table in prepared.tables
    }
    values = sum(
        rows_of(snapshots[scan.table].files) * max(1, len(scan.attributes))
        for scan in prepared.scans
    )
    duckdb = _DUCKDB_START_MS + values * _DUCKDB_ROW_MS
    if not _is_clearly_less(duckdb, ours):
        return ""
    if any(local_path(one.path) is None for one in snapshots.values()):
        return ""
    how = "`impctl rewrite --sketch auto --files FILE` writes its text and file list"
    if any(why_not_plain(one) for one in snapshots.values()):
        how = "`files` of the Python interface lists the files to read"
    return (
        f"DuckDB over all files, if it supports the query, would take about {_time(duckdb)} "
        f"instead of {_time(ours)}: {how}"
    )


def rows_of(files: Sequence[DataFile]) -> int:
    """Rows of these files, as far as the log tells."""
    return sum(file.rows if file.rows is not None else file.size // _ROW_BYTES for file in files)


def _is_clearly_less(one: float, other: float) -> bool:
    return _CLEARLY * one <= other and one + _CLEARLY_MS <= other


def _told(one: Estimate) -> str:
    """An estimate in words."""
    start = f", including {_time(one.start_ms)} to start" if one.start_ms else ""
    by = f" (from {count_text(one.runs, 'run')})" if one.runs else ""
    return f"{_time(one.ms)}{by}{start}"


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
