"""Comparing records: differences beyond noise, which way was faster, and break-even sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from impctl.bench.record import (
    Cell,
    Difference,
    Label,
    Metric,
    Record,
    RecordComparison,
    RecordKind,
    compare_records,
)
from impctl.bench.summary import (
    BreakEven,
    Section,
    break_even_words,
    break_evens,
    by_size,
    contests,
    earliest_break_even,
    losses,
    summarize,
)
from impctl.errors import UsageError
from tests.bench.sample_records import record_of
from tests.support.run_cli import refused

FIRST = [10, 11, 12]
SECOND = [20, 22, 24]
Times = tuple[float, ...]


def cell(changes: int = 10, **metrics: Sequence[float]) -> Cell:
    return Cell(
        "f", {"changes": changes}, {name: Metric.of(runs) for name, runs in metrics.items()}
    )


def compared(old: Cell, new: Cell) -> RecordComparison:
    return compare_records(record_of(old), record_of(new))


@pytest.mark.parametrize(
    ("old", "new", "noise", "expected"),
    [
        ((10, 11, 12), (10, 11, 12), 0.0, "same"),
        ((10, 11, 12), (20, 22, 24), 0.0, "slower"),
        ((20, 22, 24), (10, 11, 12), 0.0, "faster"),
        # The runs overlap.
        ((10, 11, 21), (20, 22, 24), 0.0, "same"),
        ((20, 22, 24), (10, 11, 21), 0.0, "same"),
        # Disjoint, but not by more than the noise.
        ((10, 11, 12), (20, 22, 24), 1.1, "same"),
        ((20, 22, 24), (10, 11, 12), 1.1, "same"),
        ((10, 11, 12), (20, 22, 24), 0.9, "slower"),
        # A single run may differ by half by chance, and must not be among the others.
        ((10,), (14,), 0.0, "same"),
        ((10,), (16,), 0.0, "slower"),
        ((10, 11), (14,), 0.0, "same"),
        ((16,), (10,), 0.0, "faster"),
        ((10, 22, 24), (11,), 0.5, "same"),
        # Few yardstick runs may agree by chance, so a tiny difference is no win.
        ((105, 106), (100, 101), 0.0, "same"),
        ((10, 11), (13, 14), 0.3, "same"),
    ],
)
def test_verdicts(old: Times, new: Times, noise: float, expected: str) -> None:
    """In two records, and for two ways in one: a win is a difference that counts as faster."""
    assert verdict(old, new, noise=noise) == expected
    record = record_of(cell(maintain_ms=new, recapture_ms=old), noise=noise)
    (contest,) = contests(record, "maintain_ms", "recapture_ms")
    assert (contest.is_won, contest.is_lost) == (expected == "faster", expected == "slower")


def verdict(old: Times, new: Times, name: str = "maintain_ms", noise: float = 0.0) -> Difference:
    """Return how the metric changed, with this noise in the second of two runs."""
    (change,) = compare_records(
        record_of(cell(**{name: old})), record_of(cell(**{name: new}), noise=noise)
    ).changes
    return change.verdict


@pytest.mark.parametrize(
    ("name", "old", "grown", "noise", "verdicts"),
    [
        # The unit decides which direction is better.
        ("maintain_ms", 1.0, 3.0, 0.0, ("slower", "faster")),
        ("maintain_ms", 0.0, 1.0, 0.0, ("slower", "faster")),
        ("recapture_ratio", 1.0, 3.0, 0.0, ("faster", "slower")),
        ("state_bytes", 1.0, 3.0, 0.0, ("more", "less")),
        ("rows_share", 1.0, 3.0, 0.0, ("more", "less")),
        # Sizes do not depend on the speed of the machine.
        *(
            (name, 100.0, *case)
            for name in ("state_bytes", "rows_share", "refill_count")
            for case in ((103.0, 0.9, ("more", "less")), (100.5, 0.0, ("same", "same")))
        ),
    ],
)
def test_verdicts_by_unit(
    name: str, old: float, grown: float, noise: float, verdicts: tuple[str, str]
) -> None:
    assert verdict((old,), (grown,), name, noise) == verdicts[0]
    assert verdict((grown,), (old,), name, noise) == verdicts[1]


def test_wrong_cells_slack_and_failures_are_reported() -> None:
    right = replace(cell(maintain_ms=[2.0, 2.0]), covers=True, slack=0, equal=True)
    for wrong in (replace(right, covers=False), replace(right, equal=False)):
        assert [entry.labels for entry in compared(right, wrong).wrong] == [{"changes": 10}]
        assert compared(wrong, right).wrong == ()
    slack = compared(right, replace(right, slack=2)).changes[1:]
    assert [(c.metric, c.verdict) for c in slack] == [("slack", Difference.MORE)]
    failing = replace(record_of(right), failures=("one thing failed", "another failed"))
    reported = compare_records(record_of(right), failing).differences
    assert reported == ("failed in the new one: another failed",)


def test_tables_of_other_sizes_are_refused() -> None:
    first = replace(record_of(), tables={"t": 1000, "r": 5})
    second = replace(record_of(), tables={"t": 2000, "s": 7})
    with pytest.raises(UsageError, match="sizes of table `t`: 1,000 rows and 2,000 rows"):
        compare_records(first, second)
    assert compare_records(first, first).changes == ()
    assert compare_records(first, replace(second, tables={"s": 7})).changes == ()
    assert compare_records(first, replace(first, tables={"r": 5, "u": 9})).changes == ()


def test_a_record_is_the_same_as_itself() -> None:
    record = record_of(cell(maintain_ms=[1.0, 2.0, 9.0]), noise=0.1)
    result = compare_records(record, record)
    assert [change.verdict for change in result.changes] == [Difference.SAME]
    assert (result.only_old, result.only_new, result.differences) == ((), (), ())
    assert result.noise == pytest.approx(0.21)


def test_the_noise_of_the_figure_is_used() -> None:
    # Both records count: the noise of one alone is less than the difference.
    old, new = (record_of(cell(maintain_ms=runs), noise=0.5) for runs in (FIRST, SECOND))
    assert compare_records(old, new).changes[0].verdict == "same"
    quiet = [replace(record, figure_noise={"f": 0.2}) for record in (old, new)]
    result = compare_records(*quiet)
    assert (result.changes[0].verdict, result.noise) == ("slower", pytest.approx(1.25))


def test_cells_with_other_fingerprints_are_not_compared() -> None:
    def record(fingerprint: str) -> Record:
        first = replace(cell(maintain_ms=[9.0]), fingerprint=fingerprint)
        return record_of(first, replace(cell(20, maintain_ms=[1.0]), fingerprint="a"))

    result = compare_records(record("a"), record("b"))
    assert [entry.labels for entry in result.edited] == [{"changes": 10}]
    assert [change.labels for change in result.changes] == [{"changes": 20}]
    assert (result.only_old, result.only_new) == ((), ())
    # An older record without fingerprints is compared.
    for old, new in (("", "b"), ("a", ""), ("a", "a")):
        assert compare_records(record(old), record(new)).edited == ()


@pytest.mark.parametrize("other", [{"cpu": "y", "cores": "2"}, {"cpu": "x", "cores": "4"}])
def test_times_of_two_machines_are_not_compared(other: dict[str, str]) -> None:
    old = {"maintain_ms": [1.0] * 3, "recapture_ratio": [9.0] * 3, "state_bytes": [5.0] * 3}
    new = {"maintain_ms": [9.0] * 3, "recapture_ratio": [1.0] * 3, "state_bytes": [9.0] * 3}
    cells = [cell(**metrics) for metrics in (old, new)]
    result = compare_records(record_of(cells[0], cpu="x", cores="2"), record_of(cells[1], **other))
    verdicts = {change.metric: change.verdict for change in result.changes}
    assert verdicts == {
        "maintain_ms": Difference.UNJUDGED,
        "recapture_ratio": Difference.SLOWER,
        "state_bytes": Difference.MORE,
    }


def test_unmatched_cells_and_other_machines_are_reported() -> None:
    old = record_of(cell(1, a_ms=[1.0]), cell(2, a_ms=[1.0]), cpu="x")
    new = record_of(cell(2, a_ms=[1.0]), cell(3, b_ms=[1.0]), cpu="y", commit="c")
    result = compare_records(old, new)
    assert [entry.labels for entry in result.only_old] == [{"changes": 1}]
    assert [entry.labels for entry in result.only_new] == [{"changes": 3}]
    assert result.differences == ("cpu: x, then y", "commit: unknown, then c")


@pytest.mark.parametrize(
    "change", [{"suite": "t"}, {"scale": 0.5}, {"seed": 2}, {"kind": RecordKind.WORKLOAD}]
)
def test_records_of_different_runs_are_refused(change: dict[str, object]) -> None:
    record = record_of()
    with refused(UsageError, "records_differ"):
        compare_records(record, replace(record, **change))  # type: ignore[arg-type]


def test_the_figures_noise_replaces_that_of_the_run() -> None:
    record = record_of(cell(maintain_ms=(10, 11), recapture_ms=(20, 22)), noise=1.5)
    (run_noise,) = contests(record, "maintain_ms", "recapture_ms")
    (own_noise,) = contests(replace(record, figure_noise={"f": 0.2}), "maintain_ms", "recapture_ms")
    (other_noise,) = contests(
        replace(record, figure_noise={"g": 0.2}), "maintain_ms", "recapture_ms"
    )
    assert [contest.is_won for contest in (run_noise, own_noise, other_noise)] == [
        False,
        True,
        False,
    ]
    assert (own_noise.band, other_noise.band) == (0.2, 1.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_amounts_are_no_contest(bad: float) -> None:
    record = record_of(cell(maintain_ms=(bad,), recapture_ms=(1.0,)), cell(maintain_ms=(1.0,)))
    assert contests(record, "maintain_ms", "recapture_ms") == ()


def test_a_quotient_divides_the_medians() -> None:
    over, under = Metric.of([800.0, 810.0, 900.0]), Metric.of([2.0, 4.0, 5.0, 10.0])
    assert Metric.quotient(over, under) == Metric(180.0, 80.0, 450.0, 3)


def test_faster_duckdb_is_reported() -> None:
    record = record_of(
        cell(10, maintain_ms=(5.0,), recapture_ms=(900.0,), duckdb_ms=(100.0,)),
        cell(1000, maintain_ms=(500.0,), recapture_ms=(900.0,), duckdb_ms=(100.0,)),
        cell(sketch_ms=(340.0,), plain_ms=(1580.0,), duckdb_plain_ms=(205.0,)),
    )
    text = "\n".join(losses(record))
    assert "Recapture in DuckDB was faster in “First”: at 1,000 changes (0.2× as fast)" in text
    assert "The query in DuckDB was faster than Spark with the sketch in “First”" in text


def section(record: Record, title: str) -> Section:
    (result,) = (one for one in summarize(record).sections if one.title.startswith(title))
    return result


def test_losses_of_a_tree_are_reported() -> None:
    record = record_of(
        cell(1, tree_ms=(9.0,), index_ms=(3.0,), duckdb_ms=(2.0,)),
        cell(200, tree_ms=(9.0,), index_ms=(300.0,), duckdb_ms=(200.0,)),
    )
    text = "\n".join(losses(record))
    assert "The index join was faster than the tree in “First”: at 1 change (0.33× as" in text
    again = "Running the query again in DuckDB was faster than a step of the tree"
    assert f"{again} in “First”: at 1 change" in text


def sized(cost: float, **labels: Label) -> Cell:
    metrics = {"maintain_ms": Metric.of([cost] * 3), "recapture_ms": Metric.of([1000.0] * 3)}
    return Cell("f", labels, metrics, covers=True, slack=0)


def sizes(*cells: Cell) -> list[tuple[str, list[float]]]:
    result = contests(record_of(*cells), "maintain_ms", "recapture_ms")
    return [(words, [one.ratio for one in group]) for words, group in by_size(result).items()]


def test_speed_ups_are_for_1000_changes_and_the_largest_share() -> None:
    cells = [
        sized(1, changes=10, share=0.0001),
        sized(10, changes=1000, share=0.01),
        sized(500, changes=10_000, share=0.1),
        # The shares of two tables are equal in two digits.
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
def test_speed_ups_otherwise_use_the_most_common_size(cells: list[Cell], words: list[str]) -> None:
    assert [size for size, _ in sizes(*cells)] == words


def test_points_by_layout_mention_noise() -> None:
    def query(layout: str, sketch: float) -> Cell:
        metrics = {"plain_ms": Metric.of([100.0] * 3), "sketch_ms": Metric.of([sketch] * 3)}
        return Cell("f", {"layout": layout}, metrics)

    record = record_of(query("sorted", 10), query("shuffled", 95))
    points = ("layout sorted: 10×.", "layout shuffled: 1.1× (1 within the noise).")
    assert section(record, "What a").points == points


def sized_cell(size: float, cost: float, duckdb: float | None = None, **labels: Label) -> Cell:
    metrics = {"maintain_ms": Metric.of([cost]), "recapture_ms": Metric.of([100.0])}
    if duckdb is not None:
        metrics["duckdb_ms"] = Metric.of([duckdb])
    return Cell("f", {**labels, "changes": int(size * 1000), "share": size}, metrics)


def evens(*cells: Cell) -> Sequence[BreakEven]:
    return break_evens(record_of(*cells))


@pytest.mark.parametrize(
    ("costs", "side", "amount"),
    [
        pytest.param({0.01: 10, 0.1: 1000}, 0, math.sqrt(0.001), id="logarithmic axes"),
        pytest.param({0.01: 10, 0.05: 100, 0.1: 200}, 0, 0.05, id="an exact tie"),
        pytest.param({0.1: 99, 0.01: 1}, 1, 0.1, id="beyond the largest"),
        pytest.param({0.1: 500, 0.01: 101}, -1, 0.01, id="below the smallest"),
        pytest.param(
            {0.01: 50, 0.02: 200, 0.04: 50, 0.08: 200}, 0, math.sqrt(0.0002), id="the first of two"
        ),
    ],
)
def test_break_even_is_where_costs_cross(
    costs: dict[float, float], side: int, amount: float
) -> None:
    (result,) = evens(*(sized_cell(*cost) for cost in costs.items()))
    assert (result.size, result.side, result.amount) == ("share", side, pytest.approx(amount))


def test_break_even_per_series() -> None:
    costs = {5: 2000, 9: 500}
    few, many = evens(*(sized_cell(s, costs[g] * s, groups=g) for g in costs for s in (0.01, 0.1)))
    assert (few.case, few.side, few.amount) == ("5 groups", 0, pytest.approx(0.05))
    assert (many.side, many.amount) == (1, 0.1)


def test_break_even_in_rows() -> None:
    costs = {10: 1, 1000: 1e4}
    (result,) = evens(
        *(Cell("f", {"changes": n}, sized_cell(1, cost).metrics) for n, cost in costs.items())
    )
    assert (result.size, result.amount) == ("changes", pytest.approx(100))


def test_one_size_has_no_break_even() -> None:
    assert evens(sized_cell(0.1, 5)) == ()
    assert evens(Cell("f", {"a": 1}, sized_cell(1, 1).metrics)) == ()
    assert evens(cell(1, plain_ms=[1.0])) == ()


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        # A crossing precedes those beyond the sizes, of which the smallest counts.
        ({5: {0.01: 10, 0.1: 50}, 9: {0.01: 10, 0.1: 1000}}, ("3.2 %", "First: 9 groups")),
        (
            {5: {0.01: 10, 0.1: 50}, 9: {0.01: 10, 0.05: 50}},
            ("above 5 %", "above every measured change"),
        ),
        ({5: {0.01: 10}}, None),
    ],
)
def test_earliest_break_even(
    costs: dict[int, dict[float, float]], expected: tuple[str, str] | None
) -> None:
    cells = [sized_cell(*cost, groups=g) for g, of_g in costs.items() for cost in of_g.items()]
    assert earliest_break_even(record_of(*cells)) == expected


def test_break_even_per_case_and_with_duckdb() -> None:
    record = record_of(
        sized_cell(0.01, 10, duckdb=20.0, groups=5), sized_cell(0.1, 90, duckdb=20.0, groups=5),
        sized_cell(0.01, 10, groups=9),
    )  # fmt: skip
    assert list(break_even_words(record).values()) == ["above 100 changes"]
    (text,) = break_even_words(record, "duckdb_ms").values()
    assert text.endswith(" changes)")
    assert text.startswith("2.1 %")
