"""Which way to an answer was the quickest: named with the next one, or both within the noise."""

from __future__ import annotations

from impctl.bench.quickest import quickest
from impctl.bench.record import Cell, Chart, Figure, Metric
from impctl.bench.summary import summarize
from tests.bench.paper_records import small_record

FIGURE = Figure("answers", "Answers", "", Chart("order", ("state_ms",), ()))


def cell(**times: tuple[float, ...]) -> Cell:
    metrics = {f"{name}_ms": Metric.of(list(found)) for name, found in times.items()}
    return Cell("answers", {"order": "sorted"}, metrics, equal=True)


def told(found: Cell, noise: float = 0.0) -> tuple[str, ...]:
    return quickest(small_record(found, figures=(FIGURE,), figure_noise={"answers": noise}))


def test_the_quickest_is_told_with_the_next_one_and_the_others() -> None:
    found = cell(state=(9, 10, 11), by_engine=(29, 30, 31), plain=(1000, 1100), view=(19, 20, 21))
    assert told(found) == (
        "order sorted: kept answer (10 ms), then view kept by hand, 2× as long; engine over the "
        "sketch 3× as long; Spark without sketch 105× as long.",
    )


def test_within_the_noise_nobody_wins() -> None:
    found = cell(state=(9, 10, 11), by_engine=(11.5, 12, 12.5))
    assert told(found, noise=0.5) == (
        "order sorted: kept answer (10 ms) or engine over the sketch, within the noise.",
    )


def test_of_other_measures_nothing_is_told() -> None:
    assert told(cell(plain=(1, 2), sketch=(3, 4))) == ()


def test_it_is_a_section_of_the_summary() -> None:
    record = small_record(cell(state=(9, 10), by_engine=(29, 30)), figures=(FIGURE,))
    titles = [section.title for section in summarize(record).sections]
    assert "Who answered first" in titles
