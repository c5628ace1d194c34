"""Who was quicker: beyond the noise, where no runs overlap, and the same ratio everywhere.

The numbers to remember, each at one size of a change, so that sizes do not make the number; and the
quickest way to an answer, named with the next one, or both within the noise.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.bench.break_even import MAINTAIN, RECAPTURE, contests
from impctl.bench.compare import compare_records
from impctl.bench.record import Cell, Chart, Figure, Label, Metric
from impctl.bench.summary import by_size, losses, quickest, summarize
from tests.bench.paper_records import record_of, small_record


def cell(changes: int = 10, **metrics: tuple[float, ...]) -> Cell:
    result = {name: Metric.of(values) for name, values in metrics.items()}
    return Cell("f", {"changes": changes}, result)


@pytest.mark.parametrize(
    ("ours", "other", "noise", "won", "lost"),
    [
        ((10, 11, 12), (20, 22, 24), 0.0, True, False),
        ((20, 22, 24), (10, 11, 12), 0.0, False, True),
        # A run of one side is as quick as one of the other.
        ((10, 11, 20), (20, 22, 24), 0.0, False, False),
        ((20, 22, 24), (10, 11, 20), 0.0, False, False),
        ((10, 11, 12), (20, 22, 24), 1.1, False, False),
        # A single run may differ by half for no reason, and must not lie among the others.
        ((10,), (14,), 0.0, False, False),
        ((10,), (16,), 0.0, True, False),
        ((16,), (10,), 0.0, False, True),
        ((11,), (10, 22, 24), 0.5, False, False),
        ((10, 11), (10, 11), 0.0, False, False),
        # Few yardsticks may agree by chance: next to nothing is no win.
        ((100, 101), (105, 106), 0.0, False, False),
    ],
)
def test_won_and_lost(
    ours: tuple[float, ...], other: tuple[float, ...], noise: float, won: bool, lost: bool
) -> None:
    record = record_of(cell(maintain_ms=ours, recapture_ms=other), noise=noise)
    (result,) = contests(record, MAINTAIN, RECAPTURE)
    assert (result.is_won, result.is_lost) == (won, lost)


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.2])
@pytest.mark.parametrize("values", [((10,), (14,)), ((10,), (16,)), ((11,), (10, 22)),
                                    ((10, 11), (13, 14)), ((22, 23), (10, 11))])  # fmt: skip
def test_a_win_is_what_a_comparison_calls_faster(
    values: tuple[tuple[float, ...], tuple[float, ...]], noise: float
) -> None:
    ours, other = values
    (result,) = contests(
        record_of(cell(maintain_ms=ours, recapture_ms=other), noise=noise), MAINTAIN, RECAPTURE
    )
    quiet = record_of(cell(maintain_ms=other))
    (change,) = compare_records(quiet, record_of(cell(maintain_ms=ours), noise=noise)).changes
    assert (result.is_won, result.is_lost) == (
        change.verdict == "faster",
        change.verdict == "slower",
    )


def test_the_noise_around_a_figure_counts_not_that_of_the_whole_run() -> None:
    record = record_of(cell(maintain_ms=(10, 11), recapture_ms=(20, 22)), noise=1.5)
    (whole,) = contests(record, MAINTAIN, RECAPTURE)
    (local,) = contests(replace(record, figure_noise={"f": 0.2}), MAINTAIN, RECAPTURE)
    (other,) = contests(replace(record, figure_noise={"g": 0.2}), MAINTAIN, RECAPTURE)
    assert [contest.is_won for contest in (whole, local, other)] == [False, True, False]
    assert (local.band, other.band) == (0.2, 1.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_amount_is_no_contest(bad: float) -> None:
    record = record_of(cell(maintain_ms=(bad,), recapture_ms=(1.0,)), cell(maintain_ms=(1.0,)))
    assert contests(record, MAINTAIN, RECAPTURE) == ()


def test_a_quotient_is_that_of_the_medians() -> None:
    over, under = Metric.of([800.0, 810.0, 900.0]), Metric.of([2.0, 4.0, 5.0, 10.0])
    assert Metric.quotient(over, under) == Metric(180.0, 80.0, 450.0, 3)


def test_duckdb_being_quicker_is_told() -> None:
    record = record_of(
        cell(10, maintain_ms=(5.0,), recapture_ms=(900.0,), duckdb_ms=(100.0,)),
        cell(1000, maintain_ms=(500.0,), recapture_ms=(900.0,), duckdb_ms=(100.0,)),
        cell(sketch_ms=(340.0,), plain_ms=(1580.0,), duckdb_plain_ms=(205.0,)),
    )
    told = "\n".join(losses(record))
    assert "Recapture in DuckDB was faster in “First”: at 1,000 changes (0.2× as fast)" in told
    assert "The query in DuckDB was faster than Spark with the sketch in “First”" in told


def test_where_a_tree_loses_is_told() -> None:
    record = record_of(
        cell(1, tree_ms=(9.0,), index_ms=(3.0,), duckdb_ms=(2.0,)),
        cell(200, tree_ms=(9.0,), index_ms=(300.0,), duckdb_ms=(200.0,)),
    )
    told = "\n".join(losses(record))
    assert "The index join was faster than the tree in “First”: at 1 change (0.33× as" in told
    assert (
        "Running the query again in DuckDB was faster than a step of the tree in “First”: "
        "at 1 change" in told
    )
    (section,) = (
        one
        for one in summarize(record).sections
        if one.title == "Joins without writing joined rows"
    )
    over = "Over an index join: speed-up 0.33× to 33×, median 17×; faster in 1 of 2 measurements."
    assert section.points[0] == over


def sized(cost: float, **labels: Label) -> Cell:
    metrics = {"maintain_ms": Metric.of([cost] * 3), "recapture_ms": Metric.of([1000.0] * 3)}
    return Cell("f", labels, metrics, covers=True, slack=0)


def sizes(*cells: Cell) -> list[tuple[str, list[float]]]:
    result = contests(record_of(*cells), MAINTAIN, RECAPTURE)
    return [(size.words, [contest.ratio for contest in size.found]) for size in by_size(result)]


def test_speed_ups_are_told_at_a_thousand_changes_and_at_the_largest_share() -> None:
    cells = [
        sized(1, changes=10, share=0.0001),
        sized(10, changes=1000, share=0.01),
        sized(500, changes=10_000, share=0.1),
        # The shares of two tables agree in two digits.
        sized(250, changes=10_040, share=0.1004),
        sized(20, changes=1000),
    ]
    assert sizes(*cells) == [("1,000 changes", [100, 50]), ("10 % of the table", [2, 4])]
    more = [sized(1, changes=10, share=0.0001, groups=groups) for groups in range(9)]
    assert sizes(*cells, *more) == sizes(*cells)
    summary = summarize(record_of(*cells, *more))
    assert [one.value for one in summary.headlines[:2]] == ["75×", "3×"]
    assert "from 50× to 100×, 2 measured" in summary.headlines[0].where
    (text,) = summary.sections[0].paragraphs
    assert "The median speed-up is 75× at 1,000 changes and 3× at 10 % of the table." in text


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([sized(1, changes=50), sized(2, changes=50), sized(3, changes=70)],
         ["50 changes", "70 changes"]),
        ([sized(1, changes=10), sized(2, changes=1000)], ["1,000 changes"]),
        ([sized(1, share=0.01), sized(2, share=0.1)], ["10 % of the table"]),
        ([sized(1, groups=5)], [""]),
        ([], []),
    ],
)  # fmt: skip
def test_else_at_the_most_common_size_and_once_where_it_is_the_largest(
    cells: list[Cell], words: list[str]
) -> None:
    assert [size for size, _ in sizes(*cells)] == words


def test_points_by_layout_tell_what_is_within_the_noise() -> None:
    def query(layout: str, sketch: float) -> Cell:
        metrics = {"plain_ms": Metric.of([100.0] * 3), "sketch_ms": Metric.of([sketch] * 3)}
        return Cell("f", {"layout": layout}, metrics)

    record = record_of(query("sorted", 10), query("shuffled", 95))
    (section,) = [one for one in summarize(record).sections if one.title.startswith("What a")]
    assert section.points == (
        "layout sorted: 10×.",
        "layout shuffled: 1.1× (1 within the noise).",
    )


ANSWERS = Figure("answers", "Answers", "", Chart("order", ("state_ms",), ()))


def answered(**times: tuple[float, ...]) -> Cell:
    metrics = {f"{name}_ms": Metric.of(list(result)) for name, result in times.items()}
    return Cell("answers", {"order": "sorted"}, metrics, equal=True)


def told(result: Cell, noise: float = 0.0) -> tuple[str, ...]:
    return quickest(small_record(result, figures=(ANSWERS,), figure_noise={"answers": noise}))


def test_the_quickest_is_told_with_the_next_one_and_the_others() -> None:
    result = answered(
        state=(9, 10, 11), by_engine=(29, 30, 31), plain=(1000, 1100), view=(19, 20, 21)
    )
    assert told(result) == (
        "order sorted: materialized result (10 ms), then manually maintained view, "
        "2× as long; engine with the sketch 3× as long; Spark without sketch 105× as long.",
    )


def test_within_the_noise_nobody_wins() -> None:
    result = answered(state=(9, 10, 11), by_engine=(11.5, 12, 12.5))
    assert told(result, noise=0.5) == (
        "order sorted: materialized result (10 ms) or engine with the sketch, within the noise.",
    )


def test_of_other_measures_nothing_is_told() -> None:
    assert told(answered(plain=(1, 2), sketch=(3, 4))) == ()


def test_it_is_a_section_of_the_summary() -> None:
    record = small_record(answered(state=(9, 10), by_engine=(29, 30)), figures=(ANSWERS,))
    titles = [section.title for section in summarize(record).sections]
    assert "Fastest way to answer" in titles
