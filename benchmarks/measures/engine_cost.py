"""Measure `engine`: what maintaining costs beside a fixed piece of work on the same machine.

Options: `changes`, sizes of a change. `yardstick_ratio` is the time of that work over the time of
one maintenance, both timed in turn, so that it says more of the code than of the machine.
Law: the sketch is compared with recapture before anything is timed.
Out of scope: the work (`bench.timing`), against recapture (`measure.kinds`).
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import SuiteCase
from impctl.bench.record import Cell, Metric
from impctl.bench.timing import yardstick
from impctl.measure.scratch import measured_copy, worse_of


def measure_engine(case: SuiteCase) -> Iterator[Cell]:
    """A cell per size of change."""
    case.only("changes")
    return _cells(case, case.whole_numbers("changes", (1000,)))


def _cells(case: SuiteCase, sizes: tuple[int, ...]) -> Iterator[Cell]:
    with measured_copy(case.ctx, case.query) as measured:
        folder = measured.scratch.store_path.parent
        with measured.scratch.writing("bench"):
            for size in sizes:
                case.step(f"{case.query.name} with {size} changes, and the reference")
                rows = measured.rows_like_the_table(size, case.seed)
                checked = worse_of(*measured.checked_both_ways(rows))
                times: list[float] = []
                work: list[float] = []
                for turn in range(2 * case.repeat):
                    work.append(yardstick(folder))
                    times.append(measured.maintain(rows, forth=turn % 2 == 0).total_ms)
                ratios = [mine / theirs for mine, theirs in zip(work, times, strict=True)]
                yield case.cell(
                    {
                        "maintain_ms": Metric.of(times),
                        "yardstick_ms": Metric.of(work),
                        "yardstick_ratio": Metric.of(ratios),
                    },
                    {"changes": size},
                    checked=checked,
                )
