"""What one sketch says about another."""

from __future__ import annotations

from impctl.sketch.sketch import Comparison, FragmentSet, compare


def held_against(held: set[int], accurate: set[int]) -> Comparison:
    return compare(FragmentSet.of(held, 10), FragmentSet.of(accurate, 10))


def test_equal_sketches() -> None:
    result = held_against({1, 9}, {1, 9})
    assert result == Comparison((), ())
    assert result.covers
    assert result.slack == 0


def test_too_large_is_slack() -> None:
    result = held_against({1, 3, 9}, {3})
    assert result == Comparison((), (1, 9))
    assert result.covers
    assert result.slack == 2


def test_too_small_is_unsound_whatever_it_has_besides() -> None:
    result = held_against({0, 1, 2, 3}, {3, 4, 5})
    assert result == Comparison((4, 5), (0, 1, 2))
    assert not result.covers
    assert held_against(set(), set()).covers
    assert not held_against(set(), {0}).covers
