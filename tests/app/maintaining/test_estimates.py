"""When an estimate decides: enough runs, a clear margin, a size not much beyond what was seen."""

from __future__ import annotations

import pytest

from impctl.app.maintaining.estimates import Size, dearer, estimated, reason_text
from impctl.store.records import RunCost, RunKind


def maintained(*sizes: int, per_row: float = 1.0) -> list[RunCost]:
    return [RunCost(RunKind.MAINTAIN, rows, rows * 10, 5.0 + per_row * rows) for rows in sizes]


AGAIN = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0)


def decided(costs: list[RunCost], size: Size | None, *, has_spark: bool = False):
    return dearer(
        costs, RunKind.MAINTAIN, lambda: size, has_spark=has_spark, table_rows=lambda: 1_000_000
    )


def test_the_dearer_way_is_told_with_both_estimates() -> None:
    found = decided([*maintained(1000, 2000, 4000), AGAIN], Size(4000, 0))
    assert found is not None
    assert found.maintain_ms == pytest.approx(4005)
    assert found.recapture_ms == pytest.approx(1000)
    assert reason_text(found) == (
        "maintaining is estimated to take 4 s, a recapture 1 s (by 3 and 1 recorded runs)"
    )


@pytest.mark.parametrize(
    ("costs", "size"),
    [
        ([*maintained(1000, 2000), AGAIN], Size(4000, 0)),
        (maintained(1000, 2000, 4000), Size(4000, 0)),
        ([], Size(4000, 0)),
        ([*maintained(1000, 2000, 4000), AGAIN], Size(1500, 0)),
        ([*maintained(10, 20, 40), AGAIN], Size(4000, 0)),
        ([*maintained(1000, 2000, 4000), AGAIN], None),
        ([*maintained(100, 200, 400), RunCost(RunKind.RECAPTURE, 1, 0, 1.0)], Size(900, 0)),
    ],
    ids=[
        "too few maintained", "no capture", "nothing", "no clear margin", "beyond what was seen",
        "size unknown", "less than a second to gain",
    ],
)  # fmt: skip
def test_else_nothing_is_decided(costs: list[RunCost], size: Size | None) -> None:
    assert decided(costs, size) is None


def test_quick_runs_are_not_even_looked_at() -> None:
    """What keeps the common case cheap: no size is computed, no line fitted."""
    costs = [*maintained(10, 20, 40), AGAIN]

    def fail() -> Size:
        raise AssertionError

    assert dearer(costs, RunKind.MAINTAIN, fail, has_spark=False, table_rows=lambda: 1) is None


def test_rows_follow_from_bytes_where_they_are_not_counted() -> None:
    found = decided([*maintained(1000, 2000, 4000), AGAIN], Size(None, 40_000))
    assert found is not None
    assert found.maintain_ms == pytest.approx(4005)


def test_starting_spark_counts_unless_it_runs() -> None:
    by_spark = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0, spark=True, start_ms=6000.0)
    costs = [*maintained(1000, 2000, 4000), by_spark]
    assert decided(costs, Size(4000, 0)) is None
    assert decided(costs, Size(4000, 0), has_spark=True) is not None


def test_recapture_follows_the_size_of_the_table() -> None:
    costs = [RunCost(RunKind.RECAPTURE, 1_000_000 * n, 0, 100.0 + 1000.0 * n) for n in (1, 2)]
    found = estimated(costs, RunKind.MAINTAIN, None, has_spark=True, table_rows=lambda: 4_000_000)
    assert found.recapture_ms == pytest.approx(4100)
    assert (found.maintain_ms, found.maintain_runs, found.recapture_runs) == (None, 0, 2)


@pytest.mark.parametrize(
    ("captured", "size", "is_dearer"),
    [
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), Size(2_000, 2_100), True),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), Size(10, 2_100), True),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), Size(1_100, 1_050), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), Size(10, 900), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 900.0), Size(2_000, 2_100), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0, spark=True), Size(10, 2_100), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 0, 3_500.0), Size(2_000, 2_100), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), None, False),
    ],
    ids=[
        "overwritten", "overwritten, few rows net", "not clearly", "smaller than the table",
        "too quick to matter", "captured by Spark", "size of the table unknown", "no size",
    ],
)  # fmt: skip
def test_before_the_first_run_a_change_larger_than_the_table_is_recaptured(
    captured: RunCost, size: Size | None, is_dearer: bool
) -> None:
    found = decided([captured], size)
    assert (found is not None) is is_dearer
    if found is not None:
        assert "a first guess" in reason_text(found)


def test_a_dear_change_of_one_table_never_makes_anothers_be_recaptured() -> None:
    """What was seen: a change of customers took 19 s, and 30 changed parts were captured anew."""
    dear = [RunCost(RunKind.MAINTAIN, 30, 300, 19_000.0, moved=("customer",)) for _ in range(4)]
    cheap = [RunCost(RunKind.MAINTAIN, 30, 300, 500.0, moved=("part",)) for _ in range(4)]
    size, rows = Size(30, 300), lambda: 1_000_000

    def instead(costs: list[RunCost], *moved: str) -> object:
        return dearer(
            costs, RunKind.MAINTAIN, lambda: size, has_spark=False, table_rows=rows, moved=moved
        )

    assert instead([*dear, AGAIN], "customer") is not None
    assert instead([*dear, *cheap, AGAIN], "customer") is not None
    for costs in ([*dear, AGAIN], [*dear, *cheap, AGAIN]):
        assert instead(costs, "part") is None
        assert instead(costs, "part", "customer") is None


def test_each_kind_of_change_is_estimated_by_its_own_runs() -> None:
    costs = [
        *(RunCost(RunKind.MAINTAIN, 30, 300, 900.0, moved=("o",)) for _ in range(3)),
        *(RunCost(RunKind.MAINTAIN, 30, 300, 10.0, moved=("l", "o")) for _ in range(2)),
    ]

    def told(*moved: str) -> tuple[float | None, int]:
        found = estimated(
            costs, RunKind.MAINTAIN, Size(30, 300), has_spark=False, table_rows=int, moved=moved
        )
        return found.maintain_ms, found.maintain_runs

    assert told("o") == (pytest.approx(900.0), 3)
    assert told("o", "l") == (pytest.approx(10.0), 2)
    assert told("c")[1] == 5  # none of its own: all tell something
