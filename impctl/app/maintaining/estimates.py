"""What maintaining and recapturing a query would take now, and whether that decides anything.

Law: an estimate only ever chooses between two ways that are both right. Recapture is chosen where
it is cheaper by a clear margin, by runs enough, for a change not much larger than any maintained
before: otherwise a wrong estimate would never be corrected, because nothing would try it again.
What a change of some tables took tells nothing of a change of others: only runs that carried on the
same tables choose a recapture. Where there is none, all runs of the query give an estimate. Nor do
runs tell anything that carried on a state that was kept otherwise.
Before the first run of maintaining there is a guess: a change takes as its share of the table does.
Out of scope: the line through the runs (`app.maintaining.cost_model`), keeping costs
(`store.tables`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from impctl.app.capturing.meta import layout_of
from impctl.app.maintaining.cost_model import CostLine, learned
from impctl.app.results.amounts import duration_text
from impctl.store.reader import StoreReader
from impctl.store.records import RunCost, RunKind, StoredQuery
from impctl.types import TableName
from impctl.values import dataclass

_FEWEST_MAINTAINED = 3
"""Runs from which on maintaining is thought to be known; one capture is enough for recapture."""

_TRUSTED_TIMES = 10
"""A change may be so many times as large as the largest one learned from."""

_MARGIN = 2.0
"""How many times as long maintaining has to take."""

_LEAST_GAIN_MS = 1_000.0
"""What nobody waits for is not worth another way."""

_GUESSED = 1.5
"""What maintaining takes, over the same share of a capture, as long as nobody has tried: measured
0.8 (sums) to 2.3 (MAX) of it, with files compared 0.9. A guess chooses recapture only where more
rows or bytes changed than the table has."""

_SPARK_START_MS = 8_000.0
"""What starting Spark takes where that was never seen."""


@dataclass(frozen=True, slots=True)
class Size:
    """The change to be maintained: `rows` is None where only its bytes are known."""

    rows: int | None
    bytes: int


def recorded(store: StoreReader, stored: StoredQuery) -> tuple[RunCost, ...]:
    """What the query's runs cost while its state was kept as it is now."""
    layout = layout_of(stored)
    return tuple(cost for cost in store.costs(stored.query) if cost.layout == layout)


@dataclass(frozen=True, slots=True)
class Estimates:
    """Milliseconds, None where no run tells; and the number of runs learned from."""

    maintain_ms: float | None = None
    maintain_runs: int = 0
    recapture_ms: float | None = None
    recapture_runs: int = 0


def estimated(
    costs: Sequence[RunCost],
    kind: RunKind,
    size: Size | None,
    *,
    has_spark: bool,
    table_rows: Callable[[], int],
    moved: Sequence[TableName] = (),
) -> Estimates:
    """Both estimates, as far as recorded runs tell them; `moved` are the tables that changed."""
    mine = _alike(costs, kind, moved) or _of(costs, kind)
    again = _of(costs, RunKind.RECAPTURE)
    line, maintain_ms = _line(mine), None
    rows = None if size is None else _rows(mine, size)
    if line is not None and rows is not None:
        maintain_ms = line.at(rows) + _start(mine, costs, has_spark)
    elif not mine and size is not None and kind is RunKind.MAINTAIN:
        maintain_ms = _guess(again, size)
    return Estimates(maintain_ms, len(mine), _recapture(costs, has_spark, table_rows), len(again))


def _guess(again: Sequence[RunCost], size: Size) -> float | None:
    """What the first run of maintaining may take, by the latest capture; None without one.

    One in Spark tells nothing: most of what it takes does not depend on the rows.
    """
    if not again or again[0].spark or again[0].bytes <= 0:
        return None
    share = size.bytes / again[0].bytes
    if size.rows is not None and again[0].rows > 0:
        share = max(share, size.rows / again[0].rows)
    return again[0].elapsed_ms * share * _GUESSED


def dearer(
    costs: Sequence[RunCost],
    kind: RunKind,
    size: Callable[[], Size | None],
    *,
    has_spark: bool,
    table_rows: Callable[[], int],
    moved: Sequence[TableName] = (),
) -> Estimates | None:
    """Both estimates where maintaining is the dearer way by a clear margin, else None.

    What is not known yet is only looked at once it can matter: most runs end at the first test.
    """
    mine, again = _alike(costs, kind, moved), _of(costs, RunKind.RECAPTURE)
    if not again:
        return None
    if mine:
        change = _by_line(mine, _start(mine, costs, has_spark), size)
    else:
        change = None if _of(costs, kind) else _by_guess(again, size)
    if change is None:
        return None
    result = estimated(costs, kind, change, has_spark=has_spark, table_rows=table_rows, moved=moved)
    if result.maintain_ms is None or result.recapture_ms is None:
        return None
    is_clear = result.maintain_ms > result.recapture_ms * _MARGIN
    return (
        result if is_clear and result.maintain_ms - result.recapture_ms > _LEAST_GAIN_MS else None
    )


def _by_line(mine: Sequence[RunCost], start: float, size: Callable[[], Size | None]) -> Size | None:
    """The change, where recorded runs can tell what it takes and that may be long enough."""
    longest = max(cost.elapsed_ms for cost in mine)
    if len(mine) < _FEWEST_MAINTAINED or longest * _TRUSTED_TIMES + start < _LEAST_GAIN_MS:
        return None
    change, line = size(), _line(mine)
    rows = None if change is None else _rows(mine, change)
    is_told = line is not None and rows is not None and rows <= line.largest * _TRUSTED_TIMES
    return change if is_told else None


def _by_guess(again: Sequence[RunCost], size: Callable[[], Size | None]) -> Size | None:
    """The change before any run of maintaining, where the guess may decide."""
    if again[0].elapsed_ms < _LEAST_GAIN_MS:
        return None
    change = size()
    return change if change is not None and change.bytes > again[0].bytes else None


def reason_text(estimates: Estimates) -> str:
    """Why recapture was chosen, both estimates named."""
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


def _of(costs: Sequence[RunCost], kind: RunKind) -> list[RunCost]:
    return [cost for cost in costs if cost.kind == kind]


def _alike(costs: Sequence[RunCost], kind: RunKind, moved: Sequence[TableName]) -> list[RunCost]:
    """The runs that carried on changes of the same tables; of older ones nobody knows which."""
    wanted = tuple(sorted(moved))
    return [cost for cost in _of(costs, kind) if cost.moved == wanted]


def _line(costs: Sequence[RunCost]) -> CostLine | None:
    return learned([(cost.rows, cost.elapsed_ms) for cost in costs])


def _rows(costs: Sequence[RunCost], size: Size) -> int | None:
    """The rows of the change; by its bytes, as in earlier changes, where they were not counted."""
    if size.rows is not None:
        return size.rows
    shares = [cost.rows / cost.bytes for cost in costs if cost.bytes > 0]
    return round(size.bytes * statistics.median(shares)) if shares else None


def _recapture(
    costs: Sequence[RunCost], has_spark: bool, table_rows: Callable[[], int]
) -> float | None:
    again = _of(costs, RunKind.RECAPTURE)
    # What Spark took tells nothing of the engine, nor the other way; the next is like the latest.
    again = [cost for cost in again if cost.spark == again[0].spark]
    line = _line(again)
    if line is None:
        return None
    rows = table_rows() if line.per_row else 0
    return line.at(rows) + _start(again, costs, has_spark)


def _start(mine: Sequence[RunCost], costs: Sequence[RunCost], has_spark: bool) -> float:
    """What starting Spark adds, if the latest such run used it and it is not running yet."""
    if has_spark or not mine or not mine[0].spark:
        return 0.0
    seen = [cost.start_ms for cost in costs if cost.start_ms > 0]
    return statistics.median(seen) if seen else _SPARK_START_MS
