"""Three digits and a unit, never an exponent; messages that name a query once."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.service.decide import Estimates, reason_text
from impctl.service.doctor import _room
from impctl.service.results import Area, Subject
from impctl.service.text import duration_text, named_before, number_text, size_text
from impctl.store.health import Folder

SECOND, HOUR = 1000.0, 3_600_000.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ms"),
        (0.1234, "0.123 ms"),
        (0.00001234, "0.0000123 ms"),
        (999.4, "999 ms"),
        (999.9, "1 s"),
        (1234, "1.23 s"),
        (99.9 * SECOND, "99.9 s"),
        (600 * SECOND, "10 min"),
        (16.65 * HOUR, "999 min"),
        (16.66 * HOUR, "16.7 h"),
        (2345.6 * HOUR, "2,346 h"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert duration_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (999_499, "999 kB"),
        (999_700, "1 MB"),
        (2_000_000, "2 MB"),
        (999_700_000, "1 GB"),
        (1_800_000_000_000, "1.8 TB"),
        (1_234_500_000_000_000, "1,234 TB"),
    ],
)
def test_sizes(value: int, text: str) -> None:
    assert size_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (386.7, "387"), (999.6, "1,000"), (2000, "2,000"), (2345.6, "2,346")],
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


def test_room_on_a_large_disk(tmp_path: Path) -> None:
    folder = Folder(tmp_path, True, (), 999_700, 1_800_000_000_000)
    room = _room(Subject(Area.STORE, "s"), folder)
    assert room.message == "1.8 TB free, the store uses 1 MB"


def test_long_estimates() -> None:
    said = reason_text(Estimates(2_000_000.0, 3, 999_900.0, 1))
    assert said == (
        "estimate: 33.3 min to maintain, 16.7 min to recapture (from 3 and 1 recorded runs)"
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Query `q` uses UNPIVOT", "it uses UNPIVOT"),
        ("Query `q.r` uses UNPIVOT", "Query `q.r` uses UNPIVOT"),
        ("Query `qr` uses UNPIVOT", "Query `qr` uses UNPIVOT"),
        ("The SQL of query `q` cannot be read", "its SQL cannot be read"),
        (
            "A sketch of `t.a` is not safe for query `q`: x",
            "A sketch of `t.a` is not safe for the query: x",
        ),
        ("Table `q` is gone", "Table `q` is gone"),
    ],
)
def test_the_query_is_named_once(message: str, told: str) -> None:
    assert named_before("q", message) == told
