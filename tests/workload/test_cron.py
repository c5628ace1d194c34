"""Fields of a crontab against values written down, and what is refused."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.workload.models import MACROS, CronFault, read_cron
from tests.support.random_cases import FEW

ALL_DAYS = tuple(range(1, 32))
ALL_WEEKDAYS = tuple(range(7))


@pytest.mark.parametrize(
    ("text", "minutes", "hours"),
    [
        ("0 6 * * *", (0,), (6,)),
        ("*/15 * * * *", (0, 15, 30, 45), tuple(range(24))),
        ("5/20 0-3 * * *", (5, 25, 45), (0, 1, 2, 3)),
        ("1,3,2 23 * * *", (1, 2, 3), (23,)),
        ("10-20/5,59 8-18/4 * * *", (10, 15, 20, 59), (8, 12, 16)),
        ("*/40 */24 * * *", (0, 40), (0,)),
        ("  7   9 * * *  ", (7,), (9,)),
    ],
)
def test_minutes_and_hours(text: str, minutes: tuple[int, ...], hours: tuple[int, ...]) -> None:
    cron = read_cron(text)
    assert (cron.minutes, cron.hours) == (minutes, hours)
    assert (cron.days, cron.weekdays) == (ALL_DAYS, ALL_WEEKDAYS)


@pytest.mark.parametrize(
    ("text", "months", "weekdays"),
    [
        ("0 0 * jan,DEC *", (1, 12), ALL_WEEKDAYS),
        ("0 0 * 3-11/4 *", (3, 7, 11), ALL_WEEKDAYS),
        ("0 0 * * 1-5", tuple(range(1, 13)), (1, 2, 3, 4, 5)),
        ("0 0 * * 7", tuple(range(1, 13)), (0,)),
        ("0 0 * * 0,7", tuple(range(1, 13)), (0,)),
        ("0 0 * * 5-7", tuple(range(1, 13)), (0, 5, 6)),
        ("0 0 * * Fri-Sun", tuple(range(1, 13)), (0, 5, 6)),
        ("0 0 * * */2", tuple(range(1, 13)), (0, 2, 4, 6)),
        ("0 0 * * mon", tuple(range(1, 13)), (1,)),
    ],
)
def test_months_and_weekdays(text: str, months: tuple[int, ...], weekdays: tuple[int, ...]) -> None:
    cron = read_cron(text)
    assert (cron.months, cron.weekdays) == (months, weekdays)


def days_of(text: str, year: int) -> list[str]:
    result, day = read_cron(text), date(year, 1, 1)
    days = [day + timedelta(days=at) for at in range(366)]
    return [f"{one:%m-%d}" for one in days if one.year == year and result.has_day(one)]


def test_a_day_fits_either_of_its_fields_where_both_are_given() -> None:
    # The 13th, and every Friday: February 2026 has Fridays on 6, 13, 20 and 27.
    assert days_of("0 0 13 2 5", 2026) == ["02-06", "02-13", "02-20", "02-27"]
    assert days_of("0 0 1 3 5", 2026) == ["03-01", "03-06", "03-13", "03-20", "03-27"]
    # Where one of them is `*`, the other one decides.
    assert days_of("0 0 13 2 *", 2026) == ["02-13"]
    assert days_of("0 0 * 2 5", 2026) == ["02-06", "02-13", "02-20", "02-27"]


def test_days_that_only_some_years_have() -> None:
    assert days_of("0 0 29 2 *", 2027) == []
    assert days_of("0 0 29 2 *", 2028) == ["02-29"]
    assert days_of("0 0 31 * *", 2026) == [
        *("01-31", "03-31", "05-31", "07-31", "08-31", "10-31", "12-31")
    ]


def test_words_stand_for_five_fields() -> None:
    assert read_cron("@daily") == read_cron("0 0 * * *")
    assert read_cron(" @HOURLY") == read_cron("0 * * * *")
    assert days_of("@weekly", 2026)[:2] == ["01-04", "01-11"]
    assert days_of("@monthly", 2026)[:3] == ["01-01", "02-01", "03-01"]
    assert days_of("@yearly", 2026) == days_of("@annually", 2026) == ["01-01"]
    assert all(read_cron(word) for word in MACROS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 fields"),
        ("0", "1 field in"),
        ("0 6 * * 1-5 2026", "6 fields"),
        ("0 0 6 * * 1", "6 fields"),
        ("60 * * * *", "minute is out of range"),
        ("* 24 * * *", "hour is out of range"),
        ("* * 0 * *", "day of month is out of range"),
        ("* * 32 * *", "day of month is out of range"),
        ("* * * 13 *", "month is out of range"),
        ("* * * 0 *", "month is out of range"),
        ("* * * * 8", "day of week is out of range"),
        ("*/0 * * * *", "step of 0"),
        ("5-1 * * * *", "runs backwards"),
        ("* * * * 5-2", "runs backwards"),
        ("-5 * * * *", "minute is not valid"),
        ("1, * * * *", "minute is not valid"),
        ("1- * * * *", "minute is not valid"),
        ("*/ * * * *", "minute is not valid"),
        ("*/-1 * * * *", "minute is not valid"),
        ("1.5 * * * *", "minute is not valid"),
        ("٣ * * * *", "minute is not valid"),
        ("99999999999999 * * * *", "minute is not valid"),
        ("* * * * * ", None),
        ("@reboot", "`@` word is unknown"),
        ("@daily 0", "`@` word is unknown"),
        ("0 0 L * *", "`L` (the last day"),
        ("0 0 15W * *", "`W` (the weekday nearest"),
        ("0 0 * * 5#3", "`#` (the n-th weekday"),
        ("0 0 ? * 1", "`?` (any day)"),
        ("0 0 * * 5L", "`L` (the last day"),
        ("0 0 30 2 *", "never occur"),
        ("0 0 31 2,4,6,9,11 *", "never occur"),
        ("0 0 30 2 1", None),
        ("0 0 * mon *", "month is not valid"),
    ],
)
def test_what_is_refused(text: str, says: str | None) -> None:
    if says is None:
        assert read_cron(text)
        return
    with pytest.raises(CronFault) as caught:
        read_cron(text)
    assert says in caught.value.message
    assert caught.value.hint


PIECES = st.sampled_from([*"*07-,/ L#@", "59", "60", "mon", "feb"])


@FEW
@given(st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cron = read_cron(text)
    except CronFault:
        return
    assert all((cron.minutes, cron.hours, cron.days, cron.months, cron.weekdays))
    assert read_cron(cron.written) == cron
    # What is read comes at some time: a 29th of February is at most eight years away.
    days = (date(2026, 1, 1) + timedelta(days=at) for at in range(366 * 8))
    assert any(cron.has_day(day) for day in days)
