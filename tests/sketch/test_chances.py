"""How likely fragments are in a sketch, by what a sample shows of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from impctl.sketch.likelihood import Mixture, chances, hits_between, rate_where_not_zero


def test_what_was_seen_whole_is_known() -> None:
    rows = np.full(6, 100.0)
    result = chances(rows, rows, np.full(6, 10.0), np.array([0, 3, 0, 1, 0, 0.0]))
    assert result.likely.mean == pytest.approx([0, 1, 0, 1, 0, 0])
    assert result.low.mean == pytest.approx(result.high.mean), "nothing is left to chance"


def test_neighbours_speak_for_what_was_not_seen() -> None:
    """Every tenth fragment is seen; the last tenth of them is in the sketch."""
    truth = np.arange(1000) >= 900
    seen = np.where(np.arange(1000) % 10 == 5, 100.0, 0.0)
    result = chances(np.full(1000, 100.0), seen, seen / 10, seen / 10 * truth)
    likely = result.likely.mean
    assert likely.sum() == pytest.approx(100, abs=5)
    assert likely[:885].sum() < 2
    assert result.off == pytest.approx(0.01 / math.sqrt(12), rel=0.2), "a border lies in one gap"


def test_a_place_at_a_border_is_like_one_side_not_like_their_mean() -> None:
    """Of the gap before the first place with hits a half is in, though groups there are many."""
    truth = np.arange(1000) >= 900
    seen = np.where(np.arange(1000) % 50 < 2, 100.0, 0.0)
    result = chances(np.full(1000, 1000.0), seen, seen / 20, seen / 20 * truth)
    likely = result.likely.mean
    assert likely[852:900].sum() == pytest.approx(24, abs=4)
    assert likely[:852].sum() < 5
    assert likely[900:].sum() > 97


def test_few_hits_far_apart_are_anywhere() -> None:
    """Fifteen groups of six thousand seen, of one in fifty of all: no place is told from others."""
    seen = np.where(np.arange(1000) % 20 == 3, 400.0, 0.0)
    hits = np.zeros(1000)
    hits[np.arange(3, 1000, 20)[[1, 4, 9, 13, 16, 19, 23, 26, 29, 33, 36, 39, 42, 45, 48]]] = 1
    result = chances(np.full(1000, 400.0), seen, seen * 0.3, hits)
    likely = result.likely.mean
    assert likely.sum() == pytest.approx(1000 * (1 - math.exp(-0.3)), rel=0.25)
    assert result.low.mean.sum() < likely.sum() < result.high.mean.sum()


@pytest.mark.parametrize(("share", "off"), [(0.001, 0.5), (0.01, 0.2), (0.1, 0.02)])
def test_groups_that_were_not_seen_are_counted(share: float, off: float) -> None:
    """A twentieth of each fragment's hundred groups is seen."""
    random = np.random.default_rng(1)
    truth = random.random((2000, 100)) < share
    seen = truth[:, :5].sum(axis=1)
    result = chances(np.full(2000, 1e4), np.full(2000, 500.0), np.full(2000, 5.0), seen * 1.0)
    came, likely = truth.any(axis=1).sum(), result.likely.mean
    assert likely.sum() == pytest.approx(came, rel=off)
    assert likely[seen > 0] == pytest.approx(1)
    assert result.low.mean.sum() - 1 <= came <= result.high.mean.sum() + 1


def test_nothing_seen_in_the_provenance_is_rare_not_impossible() -> None:
    result = chances(np.full(100, 100.0), np.full(100, 50.0), np.full(100, 50.0), np.zeros(100))
    assert 0 < result.likely.mean.max() < 0.1
    assert result.high.mean.sum() > 2 * result.likely.mean.sum() > 0 == result.low.mean.sum()


def test_nothing_seen_at_all() -> None:
    nothing = np.zeros(3)
    result = chances(np.full(3, 9.0), nothing, nothing, nothing)
    assert result.likely.mean.tolist() == [0.5, 0.5, 0.5]
    assert (result.low.mean == 0).all()
    assert (result.high.mean == 1).all()


@pytest.mark.parametrize("rate", [0.3, 2.0, 10.0, 200.0])
def test_nine_of_ten_rates_lie_between_what_their_hits_tell(rate: float) -> None:
    hits = np.random.default_rng(9).poisson(rate, 2000)
    ends = np.array([hits_between(float(count)) for count in hits])
    assert ((ends[:, 0] <= rate) & (rate <= ends[:, 1])).mean() > 0.85


def test_a_mixture_is_scaled_and_merged() -> None:
    weights = np.array([[0.25] * 5, [0.75] * 5])
    chances = np.array([[1.0, 0, 0, 0, 0.5], [0.5, 0.5, 0, 0.2, 0.5]])
    mixture = Mixture(weights, chances)
    assert mixture.mean == pytest.approx([0.625, 0.375, 0, 0.15, 0.5])
    assert mixture.at_most(0.5).mean.sum() == pytest.approx(0.5)
    assert mixture.at_most(9).mean.sum() == pytest.approx(mixture.mean.sum())
    assert mixture.at_most(9, 0.5).mean.sum() == pytest.approx(mixture.mean.sum() / 2)
    merged = mixture.merged(2)
    assert merged.weights[:, 0].tolist() == [0.25, 0.75]
    assert merged.chances == pytest.approx(np.array([[1, 0, 0.5], [0.75, 0.2, 0.5]]))


def test_a_rate_from_a_mean_without_zeros() -> None:
    drawn = np.random.default_rng(5).poisson(1.3, 100_000)
    assert rate_where_not_zero(float(drawn[drawn > 0].mean())) == pytest.approx(1.3, abs=0.03)
    assert rate_where_not_zero(1.0) < 0.01
