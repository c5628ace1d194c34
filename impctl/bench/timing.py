"""Timing: repeats and medians on a monotonic clock, and how far measurements may differ."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from impctl.stopwatch import Stopwatch

if TYPE_CHECKING:
    from impctl.bench.record import Metric


# Law: a measurement is the median of its runs. Compared ways are timed in turns, so that drift
# affects all alike.

T = TypeVar("T")

WARM_UP = 4
"""Runs of a query that are not counted: Spark compiles and recompiles it in the first ones."""

_WARM_MS = 10_000.0
"""Limit of warming up: a run of seconds is compiled during the run."""


def milliseconds(work: Callable[[], object]) -> float:
    """Time one call."""
    watch = Stopwatch()
    work()
    return watch.ms


def warm_up(work: Callable[[], object], *, done: int = 0) -> None:
    """Call it until it ran WARM_UP times, `done` of them before, or 10 s have passed."""
    if done < WARM_UP:
        warmed_up(work, done=done)


def warmed_up(work: Callable[[], T], *, done: int = 0) -> T:
    """Call it as `warm_up` does, at least once, and return its result."""
    watch = Stopwatch()
    result = work()
    for _ in range(WARM_UP - done - 1):
        if watch.ms >= _WARM_MS:
            break
        result = work()
    return result


def in_turns(works: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Time so many calls of each; all are called once before any is again."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            times[name].append(milliseconds(work))
    return times


def median_of(work: Callable[[], object], repeat: int) -> float:
    """Median milliseconds of `repeat` calls, after one that is not counted."""
    work()
    return statistics.median(milliseconds(work) for _ in range(repeat))


# The noise rule of reports and comparisons. Law: two metrics differ only if their runs do not
# interleave and their medians lie further apart than the band. The band of times and ratios is the
# noise, but at least a tenth, since two yardsticks may agree by chance, and at least half if either
# has a single run; sizes have hardly any.

SINGLE = 0.5
"""Band of a time measured once: single runs of Spark differ by that much."""

LEAST = 0.1
"""Minimum band of times, however quiet the machine seemed: noise comes from few yardsticks."""

_EXACT = 0.01
"""Band of sizes and counts, which do not depend on the machine."""


def band_of(metric: str, left: Metric, right: Metric, noise: float) -> float:
    """The share by which the medians of this metric may differ for no reason."""
    if not metric.endswith(("_ms", "_ratio")):
        return _EXACT
    return time_band(left, right, noise)


def time_band(left: Metric, right: Metric, noise: float) -> float:
    """The same for times and ratios of any name."""
    return max(noise, SINGLE if min(left.runs, right.runs) < 2 else LEAST)


def side_of(left: Metric, right: Metric, band: float) -> int:
    """1 if `other` is more than `one` beyond the band, -1 if it is less, else 0."""
    if right.low > left.high and right.median > left.median * (1 + band):
        return 1
    if right.high < left.low and left.median > right.median * (1 + band):
        return -1
    return 0
