"""Repeats and medians; the yardstick leaves no file, and its noise is how far medians lie apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from impctl import stopwatch
from impctl.bench.machine import noise_of, yardstick
from impctl.bench.timing import WARM_UP, in_turns, median_of, milliseconds, warm_up


def ticking(monkeypatch: pytest.MonkeyPatch, *durations: float) -> None:
    """A clock on which the calls take these many seconds, one after the other."""

    def readings() -> Iterator[float]:
        now = 100.0
        for duration in durations:
            yield now
            now += duration
            yield now

    result = readings()
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: next(result))


def test_a_call_is_really_made_and_measured() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        time.sleep(0.01)

    assert 10 <= milliseconds(work) < 5000
    assert calls == [1]


def test_seconds_become_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch, 0.25)
    assert milliseconds(lambda: None) == pytest.approx(250)


@pytest.mark.parametrize(
    ("durations", "expected"), [((3, 1, 2), 2000), ((1, 2, 3, 100), 2500), ((5,), 5000)]
)
def test_the_median_counts(
    durations: tuple[float, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking(monkeypatch, *durations)
    assert median_of(lambda: None, len(durations)) == pytest.approx(expected)


def test_the_first_run_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch, 1, 1)
    calls: list[int] = []
    assert median_of(lambda: calls.append(1), 2) == pytest.approx(1000)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("seconds", "done", "runs"), [(0, 0, WARM_UP), (0, 3, 1), (0, 9, 0), (4, 0, 3), (60, 0, 1)]
)
def test_warming_up_ends_after_its_runs_or_ten_seconds(
    seconds: float, done: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: len(calls) * seconds)
    warm_up(lambda: calls.append(1), done=done)
    assert len(calls) == runs


def test_what_is_compared_is_timed_in_turns() -> None:
    calls: list[str] = []
    times = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b", "a", "b"]
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_a_failing_call_is_not_a_measurement() -> None:
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        median_of(work, 3)


@pytest.mark.slow
def test_it_measures_and_leaves_nothing(tmp_path: Path) -> None:
    assert yardstick(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("medians", "noise"), [([], 0.0), ([5.0], 0.0), ([4.0, 5.0, 4.5], 0.25), ([2.0, 2.0], 0.0)]
)
def test_noise(medians: list[float], noise: float) -> None:
    assert noise_of(medians) == pytest.approx(noise)
