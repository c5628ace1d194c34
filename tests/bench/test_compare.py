"""Records compared: differences beyond noise, who was quicker, and where breaking even lies."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from impctl.bench.break_even import (
    MAINTAIN,
    RECAPTURE,
    break_even_words,
    break_evens,
    comparisons,
    earliest_break_even,
)
from impctl.bench.compare import Difference, compare_records
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record, RecordKind
from impctl.bench.summary import by_size, losses, quickest, summarize
from impctl.errors import UsageError
from tests.bench.paper_records import record_of, small_record
from tests.support.run_cli import refused


def cell(name: str, metric: Metric, changes: int = 10) -> Cell:
    return Cell("f", {"changes": changes}, {name: metric})


def verdict(
    old: tuple[float, ...], new: tuple[float, ...], name: str = "maintain_ms", noise: float = 0.0
) -> Difference:
    before = record_of(cell(name, Metric.of(old)), noise=noise)
    after = record_of(cell(name, Metric.of(new)), noise=noise)
    (change,) = compare_records(before, after).changes
    return change.verdict


@pytest.mark.parametrize(
    ("old", "new", "noise", "expected"),
    [
        ((10, 11, 12), (10, 11, 12), 0.0, "same"),
        ((10, 11, 12), (20, 22, 24), 0.0, "slower"),
        ((20, 22, 24), (10, 11, 12), 0.0, "faster"),
        # The runs overlap.
        ((10, 11, 21), (20, 22, 24), 0.0, "same"),
        ((20, 22, 24), (10, 11, 21), 0.0, "same"),
        # Apart, but not by more than the noise of both records: 1.5 * 1.5 is more than 2.
        ((10, 11, 12), (20, 22, 24), 0.5, "same"),
        ((20, 22, 24), (10, 11, 12), 0.5, "same"),
        ((10, 11, 12), (20, 22, 24), 0.4, "slower"),
        ((0, 0), (0, 0), 0.0, "same"),
        ((0, 0), (1, 1), 0.0, "slower"),
        # A single run says little.
        ((10,), (14,), 0.0, "same"),
        ((10,), (16,), 0.0, "slower"),
        ((10, 11), (14,), 0.0, "same"),
        ((16,), (10,), 0.0, "faster"),
    ],
)
def test_verdicts(
    old: tuple[float, ...], new: tuple[float, ...], noise: float, expected: str
) -> None:
    assert verdict(old, new, noise=noise) == expected


@pytest.mark.parametrize(
    ("name", "grown", "shrunk"),
    [
        ("maintain_ms", "slower", "faster"),
        ("recapture_ratio", "faster", "slower"),
        ("state_bytes", "more", "less"),
        ("rows_share", "more", "less"),
    ],
)
def test_the_unit_says_which_way_is_better(name: str, grown: str, shrunk: str) -> None:
    assert verdict((1.0,), (3.0,), name) == grown
    assert verdict((3.0,), (1.0,), name) == shrunk


@pytest.mark.parametrize("name", ["state_bytes", "rows_share", "refill_count"])
def test_sizes_do_not_depend_on_how_quick_the_machine_was(name: str) -> None:
    assert verdict((100.0,), (103.0,), name, noise=0.9) == "more"
    assert verdict((103.0,), (100.0,), name, noise=0.9) == "less"
    assert verdict((100.0,), (100.5,), name) == "same"


def test_wrong_cells_slack_and_failures_are_told() -> None:
    right = replace(cell("maintain_ms", Metric.of([2.0, 2.0])), covers=True, slack=0, equal=True)
    for wrong in (replace(right, covers=False), replace(right, equal=False)):
        result = compare_records(record_of(right), record_of(wrong))
        assert [place.labels for place in result.wrong] == [{"changes": 10}]
        assert compare_records(record_of(wrong), record_of(right)).wrong == ()
    result = compare_records(record_of(right), record_of(replace(right, slack=2)))
    assert [(c.metric, c.verdict) for c in result.changes[1:]] == [("slack", Difference.MORE)]
    failing = replace(record_of(right), failures=("one thing failed", "another failed"))
    assert compare_records(record_of(right), failing).differences == (
        "failed in the new one: another failed",
    )


def test_tables_of_other_sizes_are_refused() -> None:
    one = replace(record_of(), tables={"t": 1000, "r": 5})
    other = replace(record_of(), tables={"t": 2000, "s": 7})
    with pytest.raises(UsageError, match="sizes of table `t`: 1,000 rows and 2,000 rows"):
        compare_records(one, other)
    assert compare_records(one, one).changes == ()
    assert compare_records(one, replace(other, tables={"s": 7})).changes == ()
    assert compare_records(one, replace(one, tables={"r": 5, "u": 9})).changes == ()


def test_a_record_is_the_same_as_itself() -> None:
    record = record_of(cell("maintain_ms", Metric.of([1.0, 2.0, 9.0])), noise=0.1)
    result = compare_records(record, record)
    assert [change.verdict for change in result.changes] == [Difference.SAME]
    assert (result.only_old, result.only_new, result.differences) == ((), (), ())
    assert result.noise == pytest.approx(0.21)


def test_the_noise_around_the_figure_is_the_band() -> None:
    old = record_of(cell("maintain_ms", Metric.of([10, 11, 12])), noise=1.5)
    new = record_of(cell("maintain_ms", Metric.of([20, 22, 24])), noise=1.5)
    assert compare_records(old, new).changes[0].verdict == "same"
    quiet = [replace(record, figure_noise={"f": 0.2}) for record in (old, new)]
    result = compare_records(*quiet)
    assert result.changes[0].verdict == "slower"
    assert result.noise == pytest.approx(5.25)


def test_cells_of_something_else_under_the_same_labels_are_not_compared() -> None:
    def record(fingerprint: str) -> Record:
        other = replace(cell("maintain_ms", Metric.of([1.0]), 20), fingerprint="a")
        return record_of(
            replace(cell("maintain_ms", Metric.of([9.0])), fingerprint=fingerprint), other
        )

    result = compare_records(record("a"), record("b"))
    assert [place.labels for place in result.edited] == [{"changes": 10}]
    assert [change.labels for change in result.changes] == [{"changes": 20}]
    assert (result.only_old, result.only_new) == ((), ())
    # A record from before fingerprints says nothing against it.
    for old, new in (("", "b"), ("a", ""), ("a", "a")):
        assert compare_records(record(old), record(new)).edited == ()


@pytest.mark.parametrize("other", [{"cpu": "y", "cores": "2"}, {"cpu": "x", "cores": "4"}])
def test_times_of_two_machines_are_not_judged(other: dict[str, str]) -> None:
    metrics = [{"maintain_ms": 1.0, "recapture_ratio": 9.0, "state_bytes": 5.0},
               {"maintain_ms": 9.0, "recapture_ratio": 1.0, "state_bytes": 9.0}]  # fmt: skip
    cells = [
        Cell("f", {}, {name: Metric.of([value] * 3) for name, value in one.items()})
        for one in metrics
    ]
    result = compare_records(record_of(cells[0], cpu="x", cores="2"), record_of(cells[1], **other))
    verdicts = {change.metric: change.verdict for change in result.changes}
    assert verdicts == {
        "maintain_ms": Difference.UNJUDGED,
        "recapture_ratio": Difference.SLOWER,
        "state_bytes": Difference.MORE,
    }


def test_cells_without_a_partner_and_other_machines_are_told() -> None:
    one = Metric.of([1.0])
    old = record_of(cell("a_ms", one, 1), cell("a_ms", one, 2), cpu="x")
    new = record_of(cell("a_ms", one, 2), cell("b_ms", one, 3), cpu="y", commit="c")
    result = compare_records(old, new)
    assert [place.labels for place in result.only_old] == [{"changes": 1}]
    assert [place.labels for place in result.only_new] == [{"changes": 3}]
    assert result.differences == ("cpu: x, then y", "commit: unknown, then c")


@pytest.mark.parametrize(
    "change", [{"suite": "t"}, {"scale": 0.5}, {"seed": 2}, {"kind": RecordKind.WORKLOAD}]
)
def test_records_of_different_runs_are_refused(change: dict[str, object]) -> None:
    record = record_of()
    with refused(UsageError, "records_differ"):
        compare_records(record, replace(record, **change))  # type: ignore[arg-type]


def contest_cell(changes: int = 10, **metrics: tuple[float, ...]) -> Cell:
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
    record = record_of(contest_cell(maintain_ms=ours, recapture_ms=other), noise=noise)
    (result,) = comparisons(record, MAINTAIN, RECAPTURE)
    assert (result.is_won, result.is_lost) == (won, lost)


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.2])
@pytest.mark.parametrize("values", [((10,), (14,)), ((10,), (16,)), ((11,), (10, 22)),
                                    ((10, 11), (13, 14)), ((22, 23), (10, 11))])  # fmt: skip
def test_a_win_is_what_a_comparison_calls_faster(
    values: tuple[tuple[float, ...], tuple[float, ...]], noise: float
) -> None:
    ours, other = values
    (result,) = comparisons(
        record_of(contest_cell(maintain_ms=ours, recapture_ms=other), noise=noise),
        MAINTAIN,
        RECAPTURE,
    )
    quiet = record_of(contest_cell(maintain_ms=other))
    (change,) = compare_records(
        quiet, record_of(contest_cell(maintain_ms=ours), noise=noise)
    ).changes
    assert (result.is_won, result.is_lost) == (
        change.verdict == "faster",
        change.verdict == "slower",
    )


def test_the_noise_around_a_figure_counts_not_that_of_the_whole_run() -> None:
    record = record_of(contest_cell(maintain_ms=(10, 11), recapture_ms=(20, 22)), noise=1.5)
    (whole,) = comparisons(record, MAINTAIN, RECAPTURE)
    (local,) = comparisons(replace(record, figure_noise={"f": 0.2}), MAINTAIN, RECAPTURE)
    (other,) = comparisons(replace(record, figure_noise={"g": 0.2}), MAINTAIN, RECAPTURE)
    assert [contest.is_won for contest in (whole, local, other)] == [False, True, False]
    assert (local.band, other.band) == (0.2, 1.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_amount_is_no_contest(bad: float) -> None:
    record = record_of(
        contest_cell(maintain_ms=(bad,), recapture_ms=(1.0,)), contest_cell(maintain_ms=(1.0,))
    )
    assert comparisons(record, MAINTAIN, RECAPTURE) == ()


def test_a_quotient_is_that_of_the_medians() -> None:
    over, under = Metric.of([800.0, 810.0, 900.0]), Metric.of([2.0, 4.0, 5.0, 10.0])
    assert Metric.quotient(over, under) == Metric(180.0, 80.0, 450.0, 3)


def test_duckdb_being_quicker_is_told() -> None:
    record = record_of(
        contest_cell(10, maintain_ms=(5.0,), recapture_ms=(900.0,), duckdb_ms=(100.0,)),
        contest_cell(1000, maintain_ms=(500.0,), recapture_ms=(900.0,), duckdb_ms=(100.0,)),
        contest_cell(sketch_ms=(340.0,), plain_ms=(1580.0,), duckdb_plain_ms=(205.0,)),
    )
    told = "\n".join(losses(record))
    assert "Recapture in DuckDB was faster in “First”: at 1,000 changes (0.2× as fast)" in told
    assert "The query in DuckDB was faster than Spark with the sketch in “First”" in told


def test_where_a_tree_loses_is_told() -> None:
    record = record_of(
        contest_cell(1, tree_ms=(9.0,), index_ms=(3.0,), duckdb_ms=(2.0,)),
        contest_cell(200, tree_ms=(9.0,), index_ms=(300.0,), duckdb_ms=(200.0,)),
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
    result = comparisons(record_of(*cells), MAINTAIN, RECAPTURE)
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
    assert section.points == ("layout sorted: 10×.", "layout shuffled: 1.1× (1 within the noise).")


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


def sized_cell(size: float, cost: float, duckdb: float | None = None, **labels: Label) -> Cell:
    metrics = {"maintain_ms": Metric.of([cost]), "recapture_ms": Metric.of([100.0])}
    if duckdb is not None:
        metrics["duckdb_ms"] = Metric.of([duckdb])
    return Cell("f", {**labels, "changes": int(size * 1000), "share": size}, metrics)


def test_it_lies_where_the_costs_cross_on_logarithmic_axes() -> None:
    (result,) = break_evens(record_of(sized_cell(0.01, 10), sized_cell(0.1, 1000)))
    assert result.size == "share"
    assert result.at == pytest.approx(math.sqrt(0.01 * 0.1))
    assert (result.beyond, result.before) == (None, None)


def test_an_exact_tie_is_the_crossing() -> None:
    (result,) = break_evens(
        record_of(sized_cell(0.01, 10), sized_cell(0.05, 100), sized_cell(0.1, 200))
    )
    assert result.at == pytest.approx(0.05)


def test_beyond_the_largest_and_below_the_smallest() -> None:
    (cheap,) = break_evens(record_of(sized_cell(0.1, 99), sized_cell(0.01, 1)))
    assert (cheap.at, cheap.beyond, cheap.before) == (None, 0.1, None)
    (dear,) = break_evens(record_of(sized_cell(0.1, 500), sized_cell(0.01, 101)))
    assert (dear.at, dear.beyond, dear.before) == (None, None, 0.01)


def test_the_first_crossing_counts() -> None:
    cells = [
        sized_cell(0.01, 50),
        sized_cell(0.02, 200),
        sized_cell(0.04, 50),
        sized_cell(0.08, 200),
    ]
    (result,) = break_evens(record_of(*cells))
    assert result.at is not None
    assert 0.01 < result.at < 0.02


def test_every_series_has_its_own() -> None:
    cells = [sized_cell(s, c * s, groups=g) for g, c in ((5, 2000), (9, 500)) for s in (0.01, 0.1)]
    few, many = break_evens(record_of(*cells))
    assert few.labels == {"groups": 5}
    assert few.at == pytest.approx(0.05)
    assert many.beyond == 0.1


def test_without_shares_rows_count() -> None:
    cells = [
        Cell("f", {"changes": rows}, sized_cell(1, cost).metrics)
        for rows, cost in ((10, 1), (1000, 1e4))
    ]
    (result,) = break_evens(record_of(*cells))
    assert result.size == "changes"
    assert result.at == pytest.approx(100)


def test_a_single_size_or_no_size_has_none() -> None:
    assert break_evens(record_of(sized_cell(0.1, 5))) == ()
    assert break_evens(record_of(Cell("f", {"a": 1}, sized_cell(1, 1).metrics))) == ()
    assert break_evens(record_of(Cell("f", {"changes": 1}, {"plain_ms": Metric.of([1.0])}))) == ()


def test_the_earliest_is_a_crossing_before_any_that_lies_beyond() -> None:
    record = record_of(
        sized_cell(0.01, 10, groups=5), sized_cell(0.1, 50, groups=5),
        sized_cell(0.01, 10, groups=9), sized_cell(0.1, 1000, groups=9),
    )  # fmt: skip
    even = earliest_break_even(record)
    assert even is not None
    assert even[0] == "3.2 %"
    assert even[1].endswith("9 groups")


def test_beyond_everything_it_is_the_least_of_the_largest_sizes() -> None:
    record = record_of(
        sized_cell(0.01, 10, groups=5), sized_cell(0.1, 50, groups=5),
        sized_cell(0.01, 10, groups=9), sized_cell(0.05, 50, groups=9),
    )  # fmt: skip
    assert earliest_break_even(record) == ("above 5 %", "above every measured change")
    assert earliest_break_even(record_of(sized_cell(0.01, 10))) is None


def test_each_case_has_its_own_and_duckdb_another() -> None:
    record = record_of(
        sized_cell(0.01, 10, duckdb=20.0, groups=5), sized_cell(0.1, 90, duckdb=20.0, groups=5),
        sized_cell(0.01, 10, groups=9),
    )  # fmt: skip
    assert list(break_even_words(record).values()) == ["above 100 changes"]
    (text,) = break_even_words(record, "duckdb_ms").values()
    assert text.endswith(" changes)")
    assert text.startswith("2.1 %")
