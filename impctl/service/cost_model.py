"""Predict what a run takes from the latest runs: one line per kind of run.

Law: `fixed + per_row * rows`, both finite and never negative. A run that does not fit the others is
left out where they agree without it; of a run's time the part that grows with its size counts for
less, so that a few long runs do not drown the short ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.errors import StateCorruptError
from impctl.service.stored import StateMeta
from impctl.service.text import duration_text
from impctl.store.records import RunCost, RunKind, StoredQuery

if TYPE_CHECKING:
    from impctl.store.reader import StoreReader
    from impctl.types import TableName
import math

_TYPICAL_ROWS = 1_000.0
"""Rows below which noise is equal, as the fixed part dominates."""

_FEWEST_TO_DOUBT = 4
"""With fewer runs an outlier cannot be identified."""

_DOUBT = 9.0
"""A run is an outlier if the squared error without it is smaller by this factor."""

_ROUNDING = 1e-18
"""Squared error, relative to the squared times, that counts as rounding."""

Point = tuple[float, float]


class CostLine(Struct, frozen=True):
    fixed: float
    per_row: float
    runs: int
    largest: float

    def at(self, rows: float) -> float:
        return self.fixed + self.per_row * rows


def learned(points: Sequence[Point]) -> CostLine | None:
    """Fit the line; None without usable runs."""
    sound = [(x, y) for x, y in points if _is_amount(x) and _is_amount(y)]
    if not sound:
        return None
    fixed, per_row, wrong = _fit(sound)
    fitted = sound
    squared = sum(_weight(x) * y * y for x, y in sound)
    if len(sound) >= _FEWEST_TO_DOUBT and wrong > _ROUNDING * squared:
        subsets = [sound[:index] + sound[index + 1 :] for index in range(len(sound))]
        fits = [(_fit(subset), subset) for subset in subsets]
        (fewer_fixed, fewer_per_row, left), subset = min(fits, key=lambda result: result[0][2])
        if left * _DOUBT < wrong:
            fixed, per_row, fitted = fewer_fixed, fewer_per_row, subset
    return CostLine(fixed, per_row, len(sound), max(x for x, _ in fitted))


def _is_amount(value: float) -> bool:
    return math.isfinite(value) and 0.0 <= value < 1e30


def _weight(rows: float) -> float:
    return 1.0 / (rows + _TYPICAL_ROWS) ** 2


def _fit(points: Sequence[Point]) -> tuple[float, float, float]:
    """Weighted least squares: fixed part, part per row (both at least 0), squared error."""
    weighted = [(_weight(x), x, y) for x, y in points]
    total = sum(w for w, _, _ in weighted)
    mean_x = sum(w * x for w, x, _ in weighted) / total
    mean_y = sum(w * y for w, _, y in weighted) / total
    xx = sum(w * (x - mean_x) ** 2 for w, x, _ in weighted)
    xy = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in weighted)
    per_row = max(0.0, xy / xx) if xx > 0.0 else 0.0
    fixed = mean_y - per_row * mean_x
    if fixed < 0.0:
        # The best line through the origin; there are rows, or the mean of times were below 0.
        fixed = 0.0
        per_row = sum(w * x * y for w, x, y in weighted) / sum(w * x * x for w, x, _ in weighted)
    return fixed, per_row, sum(w * (y - fixed - per_row * x) ** 2 for w, x, y in weighted)


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
_SPARK_START_MS = 8_000.0
"""Milliseconds to start Spark, if never measured."""


class MaintenanceSize(Struct, frozen=True):
    """The change to be maintained; `rows` is None if only its bytes are known."""

    rows: int | None
    bytes: int


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
    size: MaintenanceSize | None,
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


def _guess(again: Sequence[RunCost], size: MaintenanceSize) -> float | None:
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
    size: Callable[[], MaintenanceSize | None],
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
    runs: Sequence[RunCost], start: float, size: Callable[[], MaintenanceSize | None]
) -> MaintenanceSize | None:
    """The change, if recorded runs can predict it and it may be large enough."""
    longest = max(cost.elapsed_ms for cost in runs)
    if len(runs) < _FEWEST_MAINTAINED or longest * _TRUSTED_TIMES + start < _LEAST_GAIN_MS:
        return None
    change, line = size(), _line(runs)
    rows = None if change is None else _rows(runs, change)
    is_predicted = line is not None and rows is not None and rows <= line.largest * _TRUSTED_TIMES
    return change if is_predicted else None


def _by_guess(
    again: Sequence[RunCost], size: Callable[[], MaintenanceSize | None]
) -> MaintenanceSize | None:
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
    wanted = tuple(sorted(moved))
    return [cost for cost in _of_kind(costs, kind) if cost.moved == wanted]


def _line(costs: Sequence[RunCost]) -> CostLine | None:
    return learned([(cost.rows, cost.elapsed_ms) for cost in costs])


def _rows(costs: Sequence[RunCost], size: MaintenanceSize) -> int | None:
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
    starts = [cost.start_ms for cost in costs if cost.start_ms > 0]
    return statistics.median(starts) if starts else _SPARK_START_MS
