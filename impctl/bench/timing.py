"""Timing: repeats and medians on a monotonic clock, and how far measurements may differ."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from impctl.stopwatch import Stopwatch

if TYPE_CHECKING:
    from impctl.bench.record import Metric


Found = TypeVar("Found")

WARM_UP = 4
"""Runs of a query that are not counted: Spark compiles and recompiles it in the first ones."""

_WARM_MS = 10_000.0
"""Warming up goes no further after this long: a run of seconds is compiled in its own course."""


def milliseconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    watch = Stopwatch()
    work()
    return watch.ms


def warm_up(work: Callable[[], object], *, done: int = 0) -> None:
    """Call it until it ran WARM_UP times, `done` of them before; at most until 10 s have passed."""
    if done < WARM_UP:
        warmed_up(work, done=done)


def warmed_up(work: Callable[[], Found], *, done: int = 0) -> Found:
    """What it gives, called as by `warm_up`, once at least."""
    watch = Stopwatch()
    result = work()
    for _ in range(WARM_UP - done - 1):
        if watch.ms >= _WARM_MS:
            break
        result = work()
    return result


def in_turns(works: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Milliseconds of so many calls of each, all of them called once before any is again."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            times[name].append(milliseconds(work))
    return times


def median_of(work: Callable[[], object], repeat: int) -> float:
    """Median milliseconds of `repeat` calls, after one that is not counted."""
    work()
    return statistics.median(milliseconds(work) for _ in range(repeat))


SINGLE = 0.5
"""Band of a time that was measured once: Spark alone makes one run differ by that from the next."""

LEAST = 0.1
"""Of times, however quiet the machine seemed: noise comes from few yardsticks."""

_EXACT = 0.01
"""Of sizes and counts, which do not depend on how quick the machine is."""


def band_of(metric: str, one: Metric, other: Metric, noise: float) -> float:
    """The share by which the medians of this metric may differ for no reason."""
    if not metric.endswith(("_ms", "_ratio")):
        return _EXACT
    return time_band(one, other, noise)


def time_band(one: Metric, other: Metric, noise: float) -> float:
    """The same of times and ratios, whatever they are called."""
    return max(noise, SINGLE if min(one.runs, other.runs) < 2 else LEAST)


def side_of(one: Metric, other: Metric, band: float) -> int:
    """1 where `other` is more than `one` beyond the band, -1 where it is less, else 0."""
    if other.low > one.high and other.median > one.median * (1 + band):
        return 1
    if other.high < one.low and one.median > other.median * (1 + band):
        return -1
    return 0
