"""What a piece of work took: processor time of this process, all threads, and time on the wall.

Law: both are of the same run. On a busy machine the wall has what others took, too.
Out of scope: what is run, how often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from impctl.bench.record import Metric
from impctl.values import dataclass

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Took:
    """Milliseconds of one run."""

    cpu_ms: float
    wall_ms: float

    @property
    def lesser_ms(self) -> float:
        """What favours whoever works on all cores."""
        return min(self.cpu_ms, self.wall_ms)


def timed(run: Callable[[], _Found]) -> tuple[_Found, Took]:
    """What the work gave, and what it took."""
    began, cpu = time.perf_counter(), time.process_time()
    result = run()
    cpu_ms = (time.process_time() - cpu) * 1000.0
    return result, Took(cpu_ms, (time.perf_counter() - began) * 1000.0)


def cpu_of(runs: Sequence[Took]) -> Metric:
    """Processor time of several runs."""
    return Metric.of([run.cpu_ms for run in runs])


def wall_of(runs: Sequence[Took]) -> Metric:
    """Their time on the wall."""
    return Metric.of([run.wall_ms for run in runs])


def ratios(metrics: Mapping[str, Metric], over: Mapping[str, str], under: str) -> dict[str, Metric]:
    """By the name of the ratio, what metric is over the one `under`, where both are there and the
    latter took any time."""
    if under not in metrics or metrics[under].low <= 0:
        return {}
    return {
        name: Metric.quotient(metrics[other], metrics[under])
        for name, other in over.items()
        if other in metrics
    }
