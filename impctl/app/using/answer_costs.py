"""What an answer would take the engine and what Spark, before either begins.

Law: the estimate decides who is asked, never what the answer is. As long as nobody has answered a
query it goes by rates: rows of the files to read, as the log counts them or their bytes stand for
them, and what the plan does with these rows. Rates are measured (decision 0072) and rough: right
about which side of a factor two the quicker one is. Runs that were recorded of the same text and
path take their place, scaled by the rows that are to be read now. DuckDB is nobody that impctl
asks: where it would be clearly quicker over all files, that is said.
Out of scope: whether the engine can run the plan (`app.using.engine_answer`), or DuckDB the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.preparing.filters import Pruned
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.using.answer_runs import Estimate, Fixed, answer_runs, by_runs, start_of
from impctl.app.workbench.workbench import Workbench
from impctl.errors import count_text
from impctl.expr.nodes import Expr
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
from impctl.tables.rows import why_not_plain
from impctl.tables.snapshot import DataFile
from impctl.tables.storage import local_path
from impctl.types import TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import AnsweredBy


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
