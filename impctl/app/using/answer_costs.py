"""What an answer would take the engine and what Spark, before either begins.

Law: the estimate decides who is asked, never what the answer is. Rows are those of the files to
read, as the log counts them; where it does not, their bytes stand for them. The rates are measured
(decision 0072) and rough: they are right about which side of a factor two the quicker one is.
Out of scope: whether the engine can run the plan (`app.using.engine_answer`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.preparing.filters import Pruned
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.workbench.workbench import Workbench
from impctl.tables.snapshot import DataFile
from impctl.values import dataclass

_ENGINE_START_MS, _ENGINE_ROW_MS = 10.0, 60e-6
"""The engine's fixed cost, and what a row costs for each column that is read of it."""
_SPARK_START_MS, _SPARK_QUERY_MS, _SPARK_ROW_MS = 4000.0, 400.0, 15e-6
"""What starting Spark costs, what any query does, and a row for each of its columns."""
_ROW_BYTES = 16
"""Of a row whose number the log does not tell."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Whether the engine is the quicker one, and why in words."""

    is_engine: bool
    why: str


def foreseen(desk: Workbench, found: Fresh, pruned: Pruned) -> Foreseen:
    """Who would be the quicker one to read these files."""
    rows, cells = 0, 0
    for table, files in pruned.files.items():
        scans = [scan for scan in found.prepared.scans if scan.table == table]
        own = rows_of(files)
        rows += own
        cells += own * max(1, *(len(scan.attributes) for scan in scans), 1)
    engine = _ENGINE_START_MS + cells * _ENGINE_ROW_MS
    spark = _SPARK_QUERY_MS + cells * _SPARK_ROW_MS
    spark += 0.0 if desk.has_spark else _SPARK_START_MS
    start = "" if desk.has_spark else ", most of it to start"
    if engine <= spark:
        told = f"{rows:,} rows take the engine some {_time(engine)}, Spark {_time(spark)}{start}"
        return Foreseen(True, told)
    return Foreseen(
        False, f"{rows:,} rows would take the engine some {_time(engine)}, Spark {_time(spark)}"
    )


def rows_of(files: Sequence[DataFile]) -> int:
    """Rows of these files, as far as the log tells."""
    return sum(file.rows if file.rows is not None else file.size // _ROW_BYTES for file in files)


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
