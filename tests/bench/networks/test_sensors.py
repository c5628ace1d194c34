"""Sensors stand where they say, and know who is near."""

from __future__ import annotations

from itertools import pairwise

import pytest

from impctl.bench.networks.alarms import alarm_tables
from impctl.bench.networks.sensors import SEEDS, sensor_tables
from impctl.errors import UsageError


@pytest.mark.parametrize("sensors", [36, 100, 110, 400])
def test_near_are_those_below_twenty_metres(sensors: int) -> None:
    tables = {name: table.to_pydict() for name, table in sensor_tables(sensors, 1).items()}
    sensor = tables["sensor"]
    at = dict(zip(sensor["id"], zip(sensor["x"], sensor["y"], strict=True), strict=True))
    assert len(at) == {36: 36, 100: 100, 110: 100, 400: 400}[sensors]
    expected = {}
    for one, (x, y) in at.items():
        for other, (u, v) in at.items():
            squared = (x - u) ** 2 + (y - v) ** 2
            if one != other and squared < 2000**2:
                expected[one, other] = round(squared**0.5)
    near = tables["near"]
    found = dict(zip(zip(near["src"], near["dst"], strict=True), near["cost"], strict=True))
    assert found == expected
    assert len(near["src"]) == len(expected)
    assert max(map(max, at.values())) < 10_000


def test_seeds_are_triggered_first_and_half_of_the_others() -> None:
    tables = {name: table.to_pydict() for name, table in sensor_tables(100, 1).items()}
    seeds, triggered = tables["seed"], tables["triggered"]
    assert seeds["region"] == list(range(SEEDS))
    assert triggered["sensor"][:SEEDS] == seeds["sensor"]
    assert len({*triggered["sensor"]}) == len(triggered["sensor"]) == SEEDS + (100 - SEEDS) // 2
    assert triggered["at"] == [0] * SEEDS + list(range(1, len(triggered["at"]) - SEEDS + 1))
    assert sensor_tables(100, 1)["triggered"].equals(sensor_tables(100, 1)["triggered"])
    assert not sensor_tables(100, 2)["triggered"].equals(sensor_tables(100, 1)["triggered"])


def test_a_field_needs_sensors() -> None:
    with pytest.raises(UsageError, match="no field"):
        sensor_tables(35, 1)
    with pytest.raises(UsageError, match="too small for alarms"):
        alarm_tables(399, 1)


def test_around_alarms_all_sensors_are_triggered() -> None:
    tables = {name: table.to_pydict() for name, table in alarm_tables(2_000, 1).items()}
    sensor, triggered, seeds = tables["sensor"], tables["triggered"], tables["seed"]["sensor"]
    at = dict(zip(sensor["id"], zip(sensor["x"], sensor["y"], strict=True), strict=True))
    assert sensor["id"] == list(range(44 * 44))
    assert {*at.values()} == {(x * 1000, y * 1000) for x in range(44) for y in range(44)}
    there = {*triggered["sensor"]}
    assert len(there) == len(triggered["sensor"])
    assert triggered["sensor"][:SEEDS] == seeds
    assert triggered["at"] == [0] * SEEDS + list(range(1, len(there) - SEEDS + 1))
    around = {
        one
        for one, (x, y) in at.items()
        for u, v in (at[seed] for seed in seeds)
        if (x - u) ** 2 + (y - v) ** 2 <= 5_000**2
    }
    assert around <= there
    others = len(there - around) / (len(at) - len(around))
    assert 0.15 < others < 0.25
    assert alarm_tables(2_000, 1)["triggered"].equals(alarm_tables(2_000, 1)["triggered"])


def test_sensors_of_alarms_know_the_eight_around_them() -> None:
    tables = {name: table.to_pydict() for name, table in alarm_tables(500, 2).items()}
    sensor, near = tables["sensor"], tables["near"]
    places = list(zip(sensor["x"], sensor["y"], strict=True))
    expected = {}
    for one, (x, y) in enumerate(places):
        for other, (u, v) in enumerate(places):
            squared = (x - u) ** 2 + (y - v) ** 2
            if 0 < squared < 2000**2:
                expected[one, other] = round(squared**0.5)
    found = dict(zip(zip(near["src"], near["dst"], strict=True), near["cost"], strict=True))
    assert found == expected
    assert len(near["src"]) == len(expected)
    # Numbers follow places: who has the next one stands beside it, but where the field ends.
    steps = [abs(x - u) + abs(y - v) for (x, y), (u, v) in pairwise(places)]
    assert steps.count(1000) > 0.9 * len(steps)
    # All of them where the field is as wide as the curve.
    whole = alarm_tables(1024, 1)["sensor"].to_pydict()
    places = list(zip(whole["x"], whole["y"], strict=True))
    assert {abs(x - u) + abs(y - v) for (x, y), (u, v) in pairwise(places)} == {1000}
