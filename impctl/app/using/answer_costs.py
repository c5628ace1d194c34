"""What an answer would take the engine and what Spark, before either begins.

Law: the estimate decides who is asked, never what the answer is. Rows are those of the files to
read, as the log counts them; where it does not, their bytes stand for them. The rates are measured
(decisions 0072, 0077) and rough: right about which side of a factor two the quicker one is. DuckDB
is nobody that impctl asks: where it would be clearly quicker over all files, that is said.
Out of scope: whether the engine can run the plan (`app.using.engine_answer`), or DuckDB the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.aliases import TableName
from impctl.app.preparing.filters import Pruned
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.workbench.workbench import Workbench
from impctl.tables.plain_files import why_not_plain
from impctl.tables.snapshot import DataFile
from impctl.tables.storage import local_path
from impctl.values import dataclass

_ENGINE_START_MS, _ENGINE_ROW_MS = 10.0, 30e-6
"""The engine's fixed cost, and what a row costs for each column that is read of it."""
_SPARK_START_MS, _SPARK_QUERY_MS, _SPARK_ROW_MS = 4000.0, 400.0, 15e-6
"""What starting Spark costs, what any query does, and a row for each of its columns."""
_DUCKDB_START_MS, _DUCKDB_ROW_MS = 20.0, 15e-6
"""The same of DuckDB that is running, over all files on a local disk."""
_CLEARLY, _CLEARLY_MS = 1.5, 100.0
"""So many times as long, and so much longer, is worth telling."""
_ROW_BYTES = 16
"""Of a row whose number the log does not tell."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Whether the engine is the quicker one, and why in words; `quicker` says who would be quicker
    than both, empty where nobody clearly is."""

    is_engine: bool
    why: str
    quicker: str = ""


def foreseen(desk: Workbench, found: Fresh, pruned: Pruned) -> Foreseen:
    """Who would be the quicker one to read these files."""
    rows, cells, all_cells = 0, 0, 0
    for table, files in pruned.files.items():
        scans = [scan for scan in found.prepared.scans if scan.table == table]
        columns = max(1, *(len(scan.attributes) for scan in scans), 1)
        own = rows_of(files)
        rows += own
        cells += own * columns
        all_cells += rows_of(_all_files(desk, found, table)) * columns
    engine = _ENGINE_START_MS + cells * _ENGINE_ROW_MS
    spark = _SPARK_QUERY_MS + cells * _SPARK_ROW_MS
    spark += 0.0 if desk.has_spark else _SPARK_START_MS
    start = "" if desk.has_spark else ", most of it to start"
    quicker = _quicker(desk, found, min(engine, spark), all_cells)
    if engine <= spark:
        told = f"{rows:,} rows take the engine some {_time(engine)}, Spark {_time(spark)}{start}"
        return Foreseen(True, told, quicker)
    told = f"{rows:,} rows would take the engine some {_time(engine)}, Spark {_time(spark)}"
    return Foreseen(False, told, quicker)


def _quicker(desk: Workbench, found: Fresh, ours: float, all_cells: int) -> str:
    """That DuckDB over all files would be clearly quicker, and how it learns of them."""
    duckdb = _DUCKDB_START_MS + all_cells * _DUCKDB_ROW_MS
    if ours < _CLEARLY * duckdb or ours < duckdb + _CLEARLY_MS:
        return ""
    tables = found.prepared.tables
    snapshots = [desk.tables.snapshot(table, found.versions.get(table)) for table in tables]
    if any(local_path(one.path) is None for one in snapshots):
        return ""
    how = "`impctl rewrite --sketch auto --files FILE` gives it text and files"
    if any(why_not_plain(one) for one in snapshots):
        how = "`files` of the Python interface tells it what to read"
    return (
        f"DuckDB over all files, where it runs the query, would take some {_time(duckdb)} instead "
        f"of {_time(ours)}: {how}"
    )


def _all_files(desk: Workbench, found: Fresh, table: TableName) -> Sequence[DataFile]:
    return desk.tables.snapshot(table, found.versions.get(table)).files


def rows_of(files: Sequence[DataFile]) -> int:
    """Rows of these files, as far as the log tells."""
    return sum(file.rows if file.rows is not None else file.size // _ROW_BYTES for file in files)


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
