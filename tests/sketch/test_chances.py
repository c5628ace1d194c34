"""How likely fragments are in a sketch, by what a sample shows of them."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.sketch.chances import chances, rate_where_not_zero, wilson


def test_what_was_seen_whole_is_known() -> None:
    rows = np.full(6, 100.0)
    found = chances(rows, rows, np.full(6, 10.0), np.array([0, 3, 0, 1, 0, 0.0]))
    assert found.tolist() == [0, 1, 0, 1, 0, 0]


def test_neighbours_speak_for_what_was_not_seen() -> None:
    """Every tenth fragment is seen; the last tenth of them is in the sketch."""
    truth = np.arange(1000) >= 900
    seen = np.where(np.arange(1000) % 10 == 5, 100.0, 0.0)
    found = chances(np.full(1000, 100.0), seen, seen / 10, seen / 10 * truth)
    assert found.sum() == pytest.approx(100, abs=15)
    assert found[:850].sum() < 5


@pytest.mark.parametrize(("share", "off"), [(0.001, 0.5), (0.01, 0.2), (0.1, 0.02)])
def test_groups_that_were_not_seen_are_counted(share: float, off: float) -> None:
    """A twentieth of each fragment's hundred groups is seen."""
    random = np.random.default_rng(1)
    truth = random.random((2000, 100)) < share
    seen = truth[:, :5].sum(axis=1)
    found = chances(np.full(2000, 1e4), np.full(2000, 500.0), np.full(2000, 5.0), seen * 1.0)
    assert found.sum() == pytest.approx(truth.any(axis=1).sum(), rel=off)
    assert (found[seen > 0] == 1).all()


def test_nothing_seen_in_the_provenance_is_rare_not_impossible() -> None:
    found = chances(np.full(100, 100.0), np.full(100, 50.0), np.full(100, 50.0), np.zeros(100))
    assert 0 < found.max() < 0.1


def test_nothing_seen_at_all() -> None:
    nothing = np.zeros(3)
    assert chances(np.full(3, 9.0), nothing, nothing, nothing).tolist() == [0.5, 0.5, 0.5]


def test_the_interval_of_a_share() -> None:
    low, high = wilson(0.5, 100)
    assert low < 0.45 < 0.55 < high
    low, high = wilson(0.0, 20)
    assert low == pytest.approx(0)
    assert 0 < high < 0.2
    assert wilson(0.3, 0) == (0.0, 1.0)


def test_a_rate_from_a_mean_without_zeros() -> None:
    drawn = np.random.default_rng(5).poisson(1.3, 100_000)
    assert rate_where_not_zero(float(drawn[drawn > 0].mean())) == pytest.approx(1.3, abs=0.03)
    assert rate_where_not_zero(1.0) < 0.01
