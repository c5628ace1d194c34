"""The numbers to remember: each at one size of a change, so that sizes do not make the number."""

from __future__ import annotations

import pytest

from impctl.bench.contest import MAINTAIN, RECAPTURE, contests
from impctl.bench.headlines import by_size
from impctl.bench.record import Cell, Label, Metric
from impctl.bench.summary import summarize

from .one_figure import record_of


def cell(cost: float, **labels: Label) -> Cell:
    metrics = {"maintain_ms": Metric.of([cost] * 3), "recapture_ms": Metric.of([1000.0] * 3)}
    return Cell("f", labels, metrics, covers=True, slack=0)


def sizes(*cells: Cell) -> list[tuple[str, list[float]]]:
    found = contests(record_of(*cells), MAINTAIN, RECAPTURE)
    return [(size.words, [contest.ratio for contest in size.found]) for size in by_size(found)]


def test_speed_ups_are_told_at_a_thousand_changes_and_at_the_largest_share() -> None:
    cells = [
        cell(1, changes=10, share=0.0001),
        cell(10, changes=1000, share=0.01),
        cell(500, changes=10_000, share=0.1),
        # The shares of two tables agree in two digits.
        cell(250, changes=10_040, share=0.1004),
        cell(20, changes=1000),
    ]
    assert sizes(*cells) == [("1,000 changes", [100, 50]), ("10 % of the table", [2, 4])]
    more = [cell(1, changes=10, share=0.0001, groups=groups) for groups in range(9)]
    assert sizes(*cells, *more) == sizes(*cells)
    summary = summarize(record_of(*cells, *more))
    assert [one.value for one in summary.headlines[:2]] == ["75×", "3×"]
    assert "from 50× to 100×, 2 measured" in summary.headlines[0].where
    (text,) = summary.sections[0].paragraphs
    assert "The median speed-up is 75× at 1,000 changes and 3× at 10 % of the table;" in text


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([cell(1, changes=50), cell(2, changes=50), cell(3, changes=70)],
         ["50 changes", "70 changes"]),
        ([cell(1, changes=10), cell(2, changes=1000)], ["1,000 changes"]),
        ([cell(1, share=0.01), cell(2, share=0.1)], ["10 % of the table"]),
        ([cell(1, groups=5)], [""]),
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
