"""Names of time zones, and what is no fixed offset."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.schema import TIMESTAMP
from impctl.data.vector import INT64_MAX, INT64_MIN, Vector
from impctl.errors import NotExactError
from impctl.expr.types import fixed_offset, moved_by

MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("zone", "minutes"),
    [
        *((name, 0) for name in ("Z", "UTC", "GMT", "UT", "Etc/UTC", "+00:00", "-0", "UTC+0")),
        ("+02:00", 120),
        ("-03:30", -210),
        ("GMT+2", 120),
        ("UTC-1145", -705),
        ("+5:7", 307),
        ("-18:00", -1080),
    ],
)
def test_a_fixed_offset(zone: str, minutes: int) -> None:
    assert fixed_offset(zone) == minutes * MINUTE


@pytest.mark.parametrize(
    "zone",
    ["Europe/Berlin", "Etc/GMT+2", "EST", "CET", "GMT0", "utc", "", "+", "02:00", "+18:01", "+19"]
    + ["-23:59", "+01:60", "+123", "+01:30:00", "UTC +2", " UTC", "+٢"],
)
def test_anything_else_is_left_to_spark(zone: str) -> None:
    assert fixed_offset(zone) is None


def test_a_time_at_the_end_of_the_range_is_refused_not_wrapped() -> None:
    for end, offset in ((INT64_MIN, -MINUTE), (INT64_MAX, MINUTE)):
        times = Vector(TIMESTAMP, np.array([0, end]))
        assert moved_by(times, -offset).values.tolist() == [-offset, end - offset]
        with pytest.raises(NotExactError):
            moved_by(times, offset)
    hidden = Vector(TIMESTAMP, np.array([0, INT64_MAX]), np.array([True, False]))
    assert moved_by(hidden, MINUTE).values[0] == MINUTE
