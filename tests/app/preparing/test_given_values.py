"""Values given on the command line take the type of the value in the file, or are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from impctl.service.parameters import parsed
from impctl.types import ParameterValue

NOON = datetime(2024, 1, 31, 12)


@pytest.mark.parametrize(
    ("written", "like", "expected"),
    [
        ("7000", 1, 7000),
        ("-1", 1, -1),
        ("+1", 1, 1),
        (str(2**63 - 1), 1, 2**63 - 1),
        ("0.75", Decimal(1), Decimal("0.75")),
        ("2", Decimal(1), Decimal(2)),
        ("-.5", Decimal(1), Decimal("-0.5")),
        ("50", 1.0, 50.0),
        ("2.5e3", 1.0, 2500.0),
        ("TRUE", False, True),
        ("false", True, False),
        ("' OR 1=1", "x", "' OR 1=1"),
        ("", "x", ""),
        ("7", "x", "7"),
        ("2024-02-29", date(2024, 1, 1), date(2024, 2, 29)),
        ("2024-01-31 12:00:00", NOON, NOON),
        ("2024-01-31T12:00:00Z", NOON, NOON.replace(tzinfo=UTC)),
        ("2024-01-31 12:00:00.5", NOON, NOON.replace(microsecond=500_000)),
        ("2024-01-31 12:00:00-18:00", NOON, NOON.replace(tzinfo=timezone(timedelta(hours=-18)))),
    ],
)
def test_a_value_of_the_type(written: str, like: ParameterValue, expected: ParameterValue) -> None:
    result = parsed(written, like)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("written", "like"),
    [
        *((text, 1) for text in ("", " 1", "1 ", "1.0", "1e3", "0x1", "1_0", "one", "NULL", "١")),
        (str(2**63), 1),
        ("9" * 30, 1),
        *((text, Decimal(1)) for text in ("", ".", "1e3", "NaN", "1" * 39, "0." + "1" * 39)),
        *((text, 1.0) for text in ("nan", "inf", "1e999", "1d", "")),
        *((text, True) for text in ("1", "yes", "")),
        *((text, date(2024, 1, 1)) for text in ("2024-02-30", "2024-1-1", "today", "20240101")),
        *((text, NOON) for text in ("2024-01-31", "2024-01-31 25:00:00", "now")),
        *((f"2024-01-31 12:00:00{zone}", NOON) for zone in ("+18:01", "-23:59", "+01:60")),
    ],
)
def test_anything_else_is_none(written: str, like: ParameterValue) -> None:
    assert parsed(written, like) is None
