"""The line through recorded runs, which forgives one odd run; and when an estimate by it decides:
enough runs, a clear margin, a size not much beyond what was seen."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.service.cost_model import learned
from impctl.service.decide import Size, dearer, estimated, reason_text
from impctl.store.records import RunCost, RunKind


def maintained(*sizes: int, per_row: float = 1.0) -> list[RunCost]:
    return [RunCost(RunKind.MAINTAIN, rows, rows * 10, 5.0 + per_row * rows) for rows in sizes]


AGAIN = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0)


def decided(costs: list[RunCost], size: Size | None, *, has_spark: bool = False):
    return dearer(
        costs, RunKind.MAINTAIN, lambda: size, has_spark=has_spark, table_rows=lambda: 1_000_000
    )


def test_the_dearer_way_is_told_with_both_estimates() -> None:
    result = decided([*maintained(1000, 2000, 4000), AGAIN], Size(4000, 0))
    assert result is not None
    assert result.maintain_ms == pytest.approx(4005)
    assert result.recapture_ms == pytest.approx(1000)
    assert reason_text(result) == (
        "estimate: 4 s to maintain, 1 s to recapture (from 3 and 1 recorded runs)"
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
    size = Mock(side_effect=AssertionError)
    assert dearer(costs, RunKind.MAINTAIN, size, has_spark=False, table_rows=lambda: 1) is None


def test_rows_follow_from_bytes_where_they_are_not_counted() -> None:
    result = decided([*maintained(1000, 2000, 4000), AGAIN], Size(None, 40_000))
    assert result is not None
    assert result.maintain_ms == pytest.approx(4005)


def test_starting_spark_counts_unless_it_runs() -> None:
    by_spark = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0, spark=True, start_ms=6000.0)
    costs = [*maintained(1000, 2000, 4000), by_spark]
    assert decided(costs, Size(4000, 0)) is None
    assert decided(costs, Size(4000, 0), has_spark=True) is not None


def test_recapture_follows_the_size_of_the_table() -> None:
    costs = [RunCost(RunKind.RECAPTURE, 1_000_000 * n, 0, 100.0 + 1000.0 * n) for n in (1, 2)]
    result = estimated(costs, RunKind.MAINTAIN, None, has_spark=True, table_rows=lambda: 4_000_000)
    assert result.recapture_ms == pytest.approx(4100)
    assert (result.maintain_ms, result.maintain_runs, result.recapture_runs) == (None, 0, 2)


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
    result = decided([captured], size)
    assert (result is not None) is is_dearer
    if result is not None:
        assert "a first guess" in reason_text(result)


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
        result = estimated(
            costs, RunKind.MAINTAIN, Size(30, 300), has_spark=False, table_rows=int, moved=moved
        )
        return result.maintain_ms, result.maintain_runs

    assert told("o") == (pytest.approx(900.0), 3)
    assert told("o", "l") == (pytest.approx(10.0), 2)
    assert told("c")[1] == 5  # none of its own: all tell something


ANY = st.floats(allow_nan=True, allow_infinity=True)
ROWS = st.integers(0, 50_000_000)
LINES = st.tuples(st.floats(0.05, 60_000), st.floats(0, 0.05))


@given(st.lists(st.tuples(ANY, ANY), max_size=20), ROWS)
def test_an_estimate_is_never_negative_nor_absurd(points, rows: int) -> None:
    line = learned(points)
    if line is None:
        assert not any(0 <= x < 1e30 and 0 <= y < 1e30 for x, y in points)
        return
    for value in (line.fixed, line.per_row, line.at(rows)):
        assert math.isfinite(value)
        assert value >= 0


@pytest.mark.slow
@given(LINES, st.lists(ROWS, min_size=2, max_size=16, unique=True), ROWS)
def test_a_known_line_is_learned(line, sizes, rows: int) -> None:
    fixed, per_row = line
    result = learned([(x, fixed + per_row * x) for x in sizes])
    assert result is not None
    assert result.runs == len(sizes)
    assert result.largest == max(sizes)
    # The rounding of a time of up to an hour, spread over as many rows as the runs lie apart.
    apart = max(sizes) - min(sizes)
    error = 1e-9 * (fixed + per_row * max(sizes)) * (1 + rows / apart)
    assert result.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-6, abs=error)


@pytest.mark.slow
@given(
    LINES,
    st.lists(st.integers(0, 500), min_size=6, max_size=16, unique=True),
    st.integers(0, 100),
    st.floats(3, 1000),
    st.booleans(),
)
def test_one_odd_run_is_forgiven(line, sizes, at: int, times: float, slower: bool) -> None:
    """Wherever it lies: a run that took many times as long or as short as the others say."""
    fixed, per_row = line
    points = [(x * 1000.0, fixed + per_row * x * 1000.0) for x in sizes]
    x, y = points[at % len(points)]
    points[at % len(points)] = (x, y * times if slower else y / times)
    result = learned(points)
    assert result is not None
    for rows in (0, 1000, 500_000):
        assert result.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-5, abs=1e-5)


def test_runs_of_one_size_give_their_mean() -> None:
    result = learned([(1000, 2.0), (1000, 4.0)])
    assert result is not None
    assert (result.fixed, result.per_row) == (pytest.approx(3.0), 0.0)


def test_falling_times_are_a_level_line() -> None:
    """More rows that took less time: noise, not a gain per row."""
    result = learned([(0, 10.0), (1000, 9.0), (2000, 8.0)])
    assert result is not None
    assert result.per_row == 0.0
    assert 8 < result.fixed < 10


def test_nothing_is_learned_from_nothing() -> None:
    assert learned([]) is None
    assert learned([(float("nan"), 1.0), (1.0, -1.0)]) is None


@pytest.mark.parametrize(("spark_first", "ms"), [(True, 9_000.0), (False, 1_000.0)])
def test_a_recapture_is_estimated_by_those_that_went_as_the_latest(
    spark_first: bool, ms: float
) -> None:
    """The engine's and Spark's lie on no common line."""
    both = [AGAIN, replace(AGAIN, elapsed_ms=9_000.0, spark=True)]
    costs = both[::-1] if spark_first else both
    result = estimated(costs, RunKind.MAINTAIN, None, has_spark=True, table_rows=lambda: 1_000_000)
    assert result.recapture_ms == pytest.approx(ms)
