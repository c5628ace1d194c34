"""Measuring: repeats, medians and spread on a monotonic clock.

Law: a measurement is the median of its runs, quoted with how far they lie apart; what is measured
is called, never simulated. Out of scope: what is measured and whether its answer is right.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

WARM_UP = 4
"""Runs of a query that are not counted: Spark compiles and recompiles it in the first ones."""


def milliseconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def median_of(work: Callable[[], object], repeat: int, *, warm_up: int = 1) -> float:
    """Median milliseconds of `repeat` calls, after some that are not counted."""
    for _ in range(warm_up):
        work()
    return statistics.median(milliseconds(work) for _ in range(repeat))


def spread(values: Sequence[float]) -> float:
    """(greatest - least) / median; 0 for a single value."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0
