"""Queries put off, each with its own time, and the order in which they are due."""

from __future__ import annotations

import random

import pytest

from impctl.service.schedule.daemon import Retries


@pytest.fixture(autouse=True)
def _no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)


def test_pauses_of_one_query_grow_and_those_of_another_do_not() -> None:
    retries = Retries(2.0)
    assert [retries.failed(["a"], 100.0) for _ in range(4)] == [2.0, 4.0, 8.0, 16.0]
    assert retries.failed(["b"], 100.0) == 2.0
    assert retries.next_due() == 102.0
    assert retries.waiting(102.0) == {"a"}
    assert retries.waiting(116.0) == set()


def test_a_try_that_goes_well_starts_over() -> None:
    retries = Retries(2.0)
    retries.failed(["a"], 0.0)
    retries.failed(["a"], 2.0)
    retries.went_well("a")
    retries.went_well("never failed")
    assert (retries.next_due(), retries.waiting(0.0)) == (None, frozenset())
    assert retries.failed(["a"], 10.0) == 2.0


def test_what_failed_together_is_due_together_and_the_pause_told_is_the_shortest() -> None:
    retries = Retries(1.0)
    retries.failed(["a", "b"], 0.0)
    assert retries.waiting(0.5) == {"a", "b"}
    retries.failed(["b"], 1.0)
    assert retries.failed(["a", "b", "c"], 3.0) == 1.0
    assert [retries.waiting(at) for at in (3.5, 4.0, 5.0, 7.0)] == [
        {"a", "b", "c"},
        {"a", "b"},
        {"b"},
        set(),
    ]
    assert retries.failed([], 9.0) is None


@pytest.mark.parametrize(("first", "longest"), [(2.0, 60.0), (300.0, 300.0)])
def test_pauses_end_growing_at_a_minute_or_at_the_interval(first: float, longest: float) -> None:
    retries = Retries(first)
    pauses = [retries.failed(["a"], 0.0) for _ in range(2000)]
    assert (pauses[0], pauses[-1]) == (first, longest)
    assert retries.next_due() == longest
