"""What plain scalars stand for; above all, what they do not."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.workload.yaml import ScalarFault, kind_of, plain_value, size_from
from tests.support.random_cases import FEW


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1e3", -1000.0),
        ("1.5E-2", 0.015),
        ("0.1", 0.1),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2022-02-28", date(2022, 2, 28)),
        ("2022-02-28 01:02:03", datetime(2022, 2, 28, 1, 2, 3)),
        ("2022-02-28T01:02:03.25", datetime(2022, 2, 28, 1, 2, 3, 250000)),
        ("2022-02-28t01:02:03Z", datetime(2022, 2, 28, 1, 2, 3, tzinfo=UTC)),
        (
            "2022-02-28 01:02:03 -05:30",
            datetime(2022, 2, 28, 1, 2, 3, tzinfo=timezone(-timedelta(hours=5, minutes=30))),
        ),
    ],
)
def test_what_is_beyond_doubt_is_typed(text: str, value: object) -> None:
    assert plain_value(text) == value
    assert type(plain_value(text)) is type(value)


DOUBTFUL = (
    "no NO yes on off y n 007 -01 00.5 1:30 190:20:30 1_000 0x1F 0b1 0o7 + - . 1e .e1 e1 1.2.3 "
    "2022-1-1 2022-02-28T1:02:03 nan inf Infinity true1 None ٣ 1٣"
)


@pytest.mark.parametrize("text", DOUBTFUL.split())
def test_what_is_in_doubt_stays_text(text: str) -> None:
    assert plain_value(text) == text


def test_nan_is_a_number() -> None:
    value = plain_value(".nan")
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("says", "texts"),
    [
        ("digits", ["1e400", "0.1000000000000000001", "12345678901234567.5", "1e-400"]),
        ("digits", ["9" * 401, "1." + "0" * 500]),
        ("calendar", ["2022-02-30", "2022-13-01", "0000-01-01"]),
        ("calendar", ["2022-02-28 25:00:00", "2022-02-28 01:02:61"]),
    ],
)
def test_what_would_be_rounded_or_does_not_exist_is_refused(says: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ScalarFault, match=says):
            plain_value(text)


@FEW
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_written_out_comes_back(value: float) -> None:
    assert plain_value(repr(value)) == value


@FEW
@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    with contextlib.suppress(ScalarFault):
        assert kind_of(plain_value(text)) != "a value"


def test_kinds_are_told_in_words() -> None:
    values = [None, True, 1, 1.0, "x", datetime(2022, 1, 1), date(2022, 1, 1), [1]]
    assert [kind_of(value) for value in values] == [
        "nothing",
        "true or false",
        "a whole number",
        "a number",
        "text",
        "a timestamp",
        "a date",
        "a value",
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1.5GB", 1_500_000_000),
        (" 2 GiB ", 2 << 30),
        ("0.1kb", 100),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_a_size_is_so_many_bytes(text: str, size: int) -> None:
    assert size_from(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.5.2GB", "1XB", "1e3", "nan", "9" * 400, "9" * 5_000]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text itself is all it says
        size_from(text)
