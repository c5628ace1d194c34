"""The line through recorded runs: never absurd, learns a known line, forgives one odd run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.app.maintaining.cost_model import learned

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
    found = learned([(x, fixed + per_row * x) for x in sizes])
    assert found is not None
    assert found.runs == len(sizes)
    assert found.largest == max(sizes)
    # The rounding of a time of up to an hour, spread over as many rows as the runs lie apart.
    apart = max(sizes) - min(sizes)
    error = 1e-9 * (fixed + per_row * max(sizes)) * (1 + rows / apart)
    assert found.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-6, abs=error)


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
    found = learned(points)
    assert found is not None
    for rows in (0, 1000, 500_000):
        assert found.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-5, abs=1e-5)


def test_runs_of_one_size_give_their_mean() -> None:
    found = learned([(1000, 2.0), (1000, 4.0)])
    assert found is not None
    assert (found.fixed, found.per_row) == (pytest.approx(3.0), 0.0)


def test_falling_times_are_a_level_line() -> None:
    """More rows that took less time: noise, not a gain per row."""
    found = learned([(0, 10.0), (1000, 9.0), (2000, 8.0)])
    assert found is not None
    assert found.per_row == 0.0
    assert 8 < found.fixed < 10


def test_nothing_is_learned_from_nothing() -> None:
    assert learned([]) is None
    assert learned([(float("nan"), 1.0), (1.0, -1.0)]) is None
