"""Forecasts and rates against one-by-one computations, on hard histories and real incidents."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from impctl.forecast import (
    COVERAGE,
    LEAST,
    Floats,
    all_forecasts,
    all_rates,
    choose_forecasts,
    forecast,
    intervals,
    rate,
)

_FILE = Path(__file__).resolve().parents[2] / "shared" / "data" / "crimes-2022.parquet"


def crime_times() -> npt.NDArray[np.float64]:
    """Times in seconds since 1970, in order."""
    if not _FILE.is_file():
        pytest.skip(f"{_FILE} is not there")
    column = pq.read_table(_FILE, columns=["Date"])["Date"].to_numpy()
    result: npt.NDArray[np.float64] = np.sort(column.astype("datetime64[s]").astype(np.float64))
    return result


def predicted_next(values: Sequence[float], times: Sequence[float]) -> list[float]:
    """Predict the number after these with each forecaster; `times` has one entry more."""
    latest = values[-64:]
    weights = [0.85**age for age in range(len(latest))][::-1]
    mean = statistics.fmean(values[-8:])

    def of_same(cycle: float) -> float:
        slot = times[-1] % cycle // 3600
        pairs = zip(values, times, strict=False)
        same = [value for value, time in pairs if time % cycle // 3600 == slot]
        return statistics.fmean(same[-6:]) if same else mean

    return [
        values[-1],
        mean,
        statistics.median(values[-16:]),
        math.fsum(w * v for w, v in zip(weights, latest, strict=True)) / math.fsum(weights),
        of_same(86_400.0),
        of_same(604_800.0),
    ]


def predicted(values: Sequence[float], times: Sequence[float]) -> list[list[float]]:
    """Predict each number but the first, and the next one."""
    return [predicted_next(values[:n], times[: n + 1]) for n in range(1, len(values) + 1)]


def mean_errors(forecasts: Sequence[Sequence[float]], actual: Sequence[float]) -> list[float]:
    """The mean error of each forecaster over the last 30 numbers."""
    pairs = list(zip(forecasts, actual, strict=True))[-30:]
    return [statistics.fmean(abs(row[k] - v) for row, v in pairs) for k in range(6)]


HOUR = 3600.0


def histories() -> dict[str, list[float]]:
    generator = random.Random(5)
    return {
        "constant": [7.0] * 80,
        "zero": [0.0] * 80,
        "regular": [float(n % 24) for n in range(400)],
        "alternating": [float(n % 2 * 1000) for n in range(90)],
        "exploding": [2.0**n for n in range(62)],
        "vanishing": [2.0 ** (61 - n) for n in range(62)],
        "growing": [float(n) for n in range(130)],
        "one far off": [3.0] * 40 + [1e15] + [3.0] * 40,
        "at random": [float(generator.randrange(1000)) for _ in range(400)],
        "few": [4.0, 0.0, 9.0, 1.0, 5.0],
    }


def times_of(kind: str, count: int) -> list[float]:
    generator = random.Random(len(kind))
    steps = {
        "hourly": lambda: HOUR,
        "equal": lambda: 0.0,
        "any": lambda: generator.expovariate(1 / HOUR),
    }
    times = [1.6e9]
    for _ in range(count):
        times.append(times[-1] + steps[kind]())
    return times


@pytest.mark.slow
@pytest.mark.parametrize("times", ["hourly", "equal", "any"])
@pytest.mark.parametrize("name", list(histories()))
def test_forecasts_match_one_by_one_computation(name: str, times: str) -> None:
    values = histories()[name]
    ends = times_of(times, len(values))
    forecasts = all_forecasts(np.array(values), np.array(ends))
    assert forecasts.shape == (6, len(values) + 1)
    assert np.isnan(forecasts[:, 0]).all()
    np.testing.assert_allclose(forecasts[:, 1:].T, predicted(values, ends), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(histories()))
def test_the_forecaster_with_the_least_recent_error_is_used(name: str) -> None:
    values = histories()[name]
    ends = times_of("any", len(values))
    chosen, by = choose_forecasts(np.array(values), np.array(ends))
    expected = predicted(values, ends)
    for n in range(2, len(values) + 1):
        errors = mean_errors(expected[: n - 1], values[1:n])
        close = [k for k in range(6) if errors[k] <= min(errors) * (1 + 1e-9) + 1e-9]
        assert by[n] in close
        assert chosen[n] == pytest.approx(expected[n - 1][by[n]], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("times", ["hourly", "equal", "any"])
@pytest.mark.parametrize("name", list(histories()))
def test_hard_histories_have_sound_forecasts(name: str, times: str) -> None:
    values = histories()[name]
    ends = times_of(times, len(values))
    first = LEAST + 3
    for count in (*range(first), *range(first, len(values), 29), len(values)):
        result = forecast(values[:count], ends[: count + 1])
        if count < LEAST:
            assert result is None
            continue
        assert result is not None
        assert np.isfinite([result.low, result.value, result.high]).all()
        assert 0 <= result.low <= result.value <= result.high
        least, greatest = min(values[:count]), max(values[:count])
        assert least - 1e-9 <= result.value <= greatest * (1 + 1e-12)


def test_regular_values_are_certain() -> None:
    regular = histories()["regular"]
    result = forecast(regular, times_of("hourly", 400))
    assert result is not None
    assert (result.low, result.value, result.high) == (400 % 24,) * 3
    assert result.by == "the same time of day"
    weekly = [float(n % 168) for n in range(399)]
    result = forecast(weekly, times_of("hourly", 399))
    assert result is not None
    assert (result.value, result.by) == (399 % 168, "the same time of week")
    constant = forecast([7.0] * 9, times_of("any", 9))
    assert constant is not None
    assert (constant.low, constant.value, constant.high, constant.by) == (7, 7, 7, "the last value")


def test_forecasts_ignore_later_values() -> None:
    generator = random.Random(8)
    values = np.array([generator.expovariate(0.01) for _ in range(200)])
    times = np.array(times_of("any", 200))
    full, _ = choose_forecasts(values, times)
    expected = intervals(values, full, 150)
    for count in range(60, 200, 7):
        part, _ = choose_forecasts(values[:count], times[: count + 1])
        assert np.array_equal(part, full[: count + 1], equal_nan=True)
        (result,) = intervals(values[:count], part, 1)
        assert result.tolist() == expected[count - 201].tolist()


def gain(values: Floats, times: Floats) -> tuple[float, float, float]:
    """Return ratios of the errors of the last number and the mean to ours, and the coverage."""
    (chosen, _), warm = choose_forecasts(values, times), 60
    error = np.abs(chosen[:-1] - values)[warm:].mean()
    last_error = np.abs(np.diff(values))[warm - 1 :].mean()
    means = np.cumsum(values)[:-1] / np.arange(1, len(values))
    mean_error = np.abs(means - values[1:])[warm - 1 :].mean()
    ends = intervals(values, chosen, len(values) - warm + 1)[:-1]
    covered = (ends[:, 0] <= values[warm:]) & (values[warm:] <= ends[:, 1])
    return float(last_error / error), float(mean_error / error), float(covered.mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "over_last", "over_mean"),
    [(86_400, 1.17, 2.18), (3600, 1.56, 1.65), (900, 1.57, 1.0)],
)
def test_rows_of_a_citys_incidents(width: int, over_last: float, over_mean: float) -> None:
    batches = crime_times() // width
    values = np.bincount((batches - batches.min()).astype(np.int64)).astype(np.float64)
    times = (batches.min() + np.arange(len(values) + 1)) * width
    result = gain(values, times)
    assert result[0] >= over_last
    assert result[1] >= over_mean
    assert 0.75 <= result[2] <= 0.85


@pytest.mark.parametrize(("every", "over_last", "over_mean"), [(500, 1.46, 1.56), (50, 1.75, 1.59)])
def test_gaps_of_a_citys_incidents(every: int, over_last: float, over_mean: float) -> None:
    times = crime_times()[::every]
    result = gain(np.diff(times), times)
    assert result[0] >= over_last
    assert result[1] >= over_mean
    assert 0.77 <= result[2] <= 0.83


def test_intervals_cover_four_in_five_random_numbers() -> None:
    generator = np.random.default_rng(2)
    values = generator.lognormal(3.0, 1.0, 3000)
    result = gain(values, np.arange(3001) * 977.0)
    assert abs(result[2] - COVERAGE) < 0.03


def reference(occurred: list[bool], cycle: int) -> list[float]:
    """Return the estimates of each method for the next period."""
    count = len(occurred)
    base = (sum(occurred) + 0.5) / (count + 1)
    latest = occurred[-60:]
    weights = [0.9**age for age in range(len(latest))][::-1]
    hits = sum(w for w, c in zip(weights, latest, strict=True) if c)
    earlier = [c for n, c in enumerate(occurred) if cycle and n % cycle == count % cycle]
    same = (sum(earlier) + 2 * base) / (len(earlier) + 2)
    return [base, (hits + 2 * base) / (sum(weights) + 2), same]


@pytest.mark.parametrize("cycle", [7, 168, 1, 0])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_rates_match_one_by_one_computation(cycle: int, share: float) -> None:
    generator = random.Random(4)
    occurred = [float(generator.random() < share) for _ in range(150)]
    estimates = all_rates(np.array(occurred), cycle)
    expected = [reference(occurred[:n], cycle) for n in range(151)]
    np.testing.assert_allclose(estimates.T, expected, rtol=1e-12)
    assert ((estimates > 0) & (estimates < 1)).all()
    # The method with the least loss over the last 60 is used.
    losses = [np.mean((estimates[k, 90:150] - occurred[90:]) ** 2) for k in range(3)]
    assert rate(np.array(occurred), cycle) == estimates[losses.index(min(losses)), -1]


@pytest.mark.parametrize("count", [0, 1, 5, 99])
def test_rates_are_never_zero(count: int) -> None:
    assert 0 < rate(np.zeros(count), 7) <= rate(np.zeros(count)) <= 1 / (2 * count + 2)


def test_the_history_decides_the_method() -> None:
    every_monday = np.array([float(n % 7 == 0) for n in range(140)])
    assert rate(every_monday, 7) > 0.9
    assert rate(np.append(every_monday, 1.0), 7) < 0.1
    every_noon = np.array([float(n % 24 == 12) for n in range(24 * 9 + 12)])
    assert rate(every_noon, 24) > 0.8
    ceased = np.array([1.0] * 60 + [0.0] * 40)
    assert rate(ceased, 7) < 0.12
    occurred = (np.random.default_rng(1).random(3000) < 0.3).astype(np.float64)
    assert rate(occurred, 168) == (occurred.sum() + 0.5) / 3001
