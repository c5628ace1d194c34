"""Measuring: repeats and medians on a monotonic clock.

Law: a measurement is the median of its runs; what is measured is called, never simulated; what is
compared is timed in turns, so that drift meets all alike.
Out of scope: what is measured and whether its answer is right.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

from impctl.stopwatch import Stopwatch

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
