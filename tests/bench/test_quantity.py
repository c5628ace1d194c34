from __future__ import annotations

import math

import pytest

from impctl.bench.quantity import (
    Unit,
    label_text,
    number,
    plain_name,
    readable,
    spread_text,
    times,
    unit_of,
)
from impctl.bench.record import Metric


@pytest.mark.parametrize(
    ("name", "unit", "words"),
    [
        ("maintain_ms", Unit.MS, "maintain"),
        ("state_bytes", Unit.BYTES, "state"),
        ("refilled_rows", Unit.ROWS, "refilled"),
        ("share", Unit.SHARE, "share of the table"),
        ("files_share", Unit.SHARE, "files share"),
        ("ratio", Unit.RATIO, "ratio"),
        ("recapture_ms", Unit.MS, "recapture"),
        ("recapture_ratio", Unit.RATIO, "recapture ratio"),
        ("duckdb_ms", Unit.MS, "recapture in DuckDB"),
        ("changes", Unit.NONE, "changes"),
        ("refill_count", Unit.NONE, "refill count"),
        ("", Unit.NONE, ""),
    ],
)
def test_a_name_ends_in_its_unit(name: str, unit: Unit, words: str) -> None:
    assert unit_of(name) is unit
    assert plain_name(name) == words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9, Unit.MS, "0.9 ms"),
        (0.0123, Unit.MS, "0.012 ms"),
        (0.0, Unit.MS, "0 ms"),
        (12.34, Unit.MS, "12.3 ms"),
        (999.4, Unit.MS, "999 ms"),
        (999.7, Unit.MS, "1 s"),
        (1300, Unit.MS, "1.3 s"),
        (90_000, Unit.MS, "1.5 min"),
        (7_200_000, Unit.MS, "2 h"),
        (152, Unit.BYTES, "152 B"),
        (4_200_000, Unit.BYTES, "4.2 MB"),
        (1234, Unit.ROWS, "1,234 rows"),
        (0.035, Unit.SHARE, "3.5 %"),
        (2497, Unit.RATIO, "2,497×"),
        (1234.5, Unit.NONE, "1,234"),
        (math.nan, Unit.MS, "–"),
        (math.inf, Unit.BYTES, "–"),
        (-5.0, Unit.MS, "-5 ms"),
    ],
)
def test_values_carry_their_unit(value: float, unit: Unit, text: str) -> None:
    assert readable(value, unit) == text


def test_ratios_and_numbers_promise_no_more_than_they_know() -> None:
    assert [times(value) for value in (0.35, 1.04, 9.94, 9.96, 180.4)] == [
        "0.35×", "1×", "9.9×", "10×", "180×",
    ]  # fmt: skip
    assert [number(value) for value in (0.0, 0.00123, 0.5, 12.345, 1e6)] == [
        "0", "0.00123", "0.5", "12.3", "1,000,000",
    ]  # fmt: skip


def test_a_spread_names_a_common_unit_once() -> None:
    assert spread_text(Metric(10, 8, 12.5, 5), Unit.MS) == "8–12.5 ms"
    assert spread_text(Metric(1000, 900, 1200, 5), Unit.MS) == "900 ms–1.2 s"
    assert spread_text(Metric(10, 10, 10, 5), Unit.MS) == ""
    assert spread_text(Metric(10, 8, 12, 1), Unit.MS) == ""
    assert spread_text(Metric(10, math.nan, 12, 5), Unit.MS) == ""
    assert spread_text(Metric(3, 2, 4, 5), Unit.RATIO) == "2×–4×"


def test_labels_read_as_they_are_written() -> None:
    assert label_text("share", 0.02) == "2 %"
    assert label_text("groups", 500_000) == "500,000"
    assert label_text("batch", "lazy") == "lazy"
    assert label_text("sorted", True) == "yes"
