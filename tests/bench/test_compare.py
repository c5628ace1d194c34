"""Two records: a difference is told beyond noise and spread only, and nothing is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.bench.compare import Difference, compare_records
from impctl.bench.record import Cell, Metric, Record, RecordKind
from impctl.errors import UsageError
from tests.bench.paper_records import record_of
from tests.support.refused import refused


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
    "change",
    [{"suite": "t"}, {"scale": 0.5}, {"seed": 2}, {"kind": RecordKind.WORKLOAD}],
)
def test_records_of_different_runs_are_refused(change: dict[str, object]) -> None:
    record = record_of()
    with refused(UsageError, "records_differ"):
        compare_records(record, replace(record, **change))  # type: ignore[arg-type]
