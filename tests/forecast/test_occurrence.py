"""Chances against the same stretch by stretch; rare, regular, ceased and unknown things."""

from __future__ import annotations

import random

import numpy as np
import pytest

from impctl.forecast import Way, all_chances, chance


def reference(came: list[bool], of_day: int, of_week: int) -> list[float]:
    """What each way says of the stretch after `came`."""
    count = len(came)
    base = (sum(came) + 0.5) / (count + 1)
    latest = came[-60:]
    weights = [0.9**age for age in range(len(latest))][::-1]
    hits = sum(w for w, c in zip(weights, latest, strict=True) if c)

    def same(cycle: int) -> float:
        if not cycle:
            return base
        earlier = [c for n, c in enumerate(came) if n % cycle == count % cycle]
        return (sum(earlier) + 2 * base) / (len(earlier) + 2)

    return [base, (hits + 2 * base) / (sum(weights) + 2), same(of_day), same(of_week)]


@pytest.mark.parametrize("cycles", [(1, 7), (24, 168), (0, 1), (0, 0)])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_chances_are_those_of_stretch_by_stretch(cycles: tuple[int, int], share: float) -> None:
    generator = random.Random(4)
    came = [generator.random() < share for _ in range(150)]
    said = all_chances(np.array(came, dtype=np.bool_), *cycles)
    expected = [reference(came[:n], *cycles) for n in range(151)]
    np.testing.assert_allclose(said.T, expected, rtol=1e-12)
    assert ((said > 0) & (said < 1)).all()
    result = chance(np.array(came), *cycles)
    # That way speaks which lost least over the last 60.
    losses = [np.mean((said[k, 90:150] - came[90:]) ** 2) for k in range(4)]
    assert result.value == said[losses.index(min(losses)), -1]
    assert result.base == said[0, -1]


@pytest.mark.parametrize("count", [0, 1, 5, 99])
def test_what_never_came_may_come(count: int) -> None:
    result = chance(np.zeros(count, dtype=np.bool_), 1, 7)
    assert result.base == 1 / (2 * count + 2)
    assert 0 < result.value <= result.base


def test_who_speaks_follows_from_what_came() -> None:
    every_monday = np.array([n % 7 == 0 for n in range(140)])
    monday, tuesday = chance(every_monday, 1, 7), chance(np.append(every_monday, True), 1, 7)
    assert (monday.by, tuesday.by) == (Way.SAME_WEEK, Way.SAME_WEEK)
    assert monday.value > 0.9
    assert tuesday.value < 0.1
    every_noon = np.array([n % 24 == 12 for n in range(24 * 9 + 12)])
    assert chance(every_noon, 24, 168).by == Way.SAME_DAY
    assert chance(every_noon, 24, 168).value > 0.8
    ceased = np.array([True] * 60 + [False] * 40)
    assert chance(ceased, 1, 7).by == Way.RECENT
    assert chance(ceased, 1, 7).value < 0.12
    generator = np.random.default_rng(1)
    assert chance(generator.random(3000) < 0.3, 1, 7).by == Way.BASE
