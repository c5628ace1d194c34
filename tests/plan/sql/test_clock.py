"""Constants of the clock: what is read as one, which value it has, and where it stood."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from impctl.errors import UsageError
from impctl.sql.parameters import Clock, bind, instant_of

NOW = datetime(2026, 11, 25, 23, 40, 12, 345678, tzinfo=UTC)


def cut(unit: str) -> str:
    return f"date_trunc('{unit}', current_timestamp)"


@pytest.mark.parametrize(
    ("zone", "constant", "value"),
    [
        ("UTC", "current_date", date(2026, 11, 25)),
        ("Europe/Berlin", "current_date", date(2026, 11, 26)),
        ("+05:30", "current_date", date(2026, 11, 26)),
        ("America/St_Johns", "current_date", date(2026, 11, 25)),
        ("UTC", cut("hour"), datetime(2026, 11, 25, 23, tzinfo=UTC)),
        ("Europe/Berlin", cut("hour"), datetime(2026, 11, 25, 23, tzinfo=UTC)),
        ("+05:30", cut("hour"), datetime(2026, 11, 25, 23, 30, tzinfo=UTC)),
        ("America/St_Johns", cut("hour"), datetime(2026, 11, 25, 23, 30, tzinfo=UTC)),
        ("UTC", cut("day"), datetime(2026, 11, 25, tzinfo=UTC)),
        ("UTC", cut("week"), datetime(2026, 11, 23, tzinfo=UTC)),
        ("UTC", cut("month"), datetime(2026, 11, 1, tzinfo=UTC)),
        ("UTC", cut("quarter"), datetime(2026, 10, 1, tzinfo=UTC)),
        ("UTC", cut("year"), datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_stretch_begins_where_the_calendar_of_the_zone_says(
    zone: str, constant: str, value: date
) -> None:
    assert Clock(NOW, zone).value(constant) == value


def test_a_clock_that_is_put_on_or_back_has_the_hours_it_has() -> None:
    # 2026-10-25 in Berlin: 02:30 comes twice; in Santiago 2026-09-06 begins at 01:00.
    for hour in (0, 1):
        at = datetime(2026, 10, 25, hour, 30, tzinfo=UTC)
        assert Clock(at, "Europe/Berlin").value(cut("hour")) == at.replace(minute=0)
    late = Clock(datetime(2026, 9, 6, 12, tzinfo=UTC), "America/Santiago")
    assert late.value(cut("day")) == datetime(2026, 9, 6, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sql", "bound"),
    [
        ("SELECT current_date", "SELECT DATE '2026-11-25'"),
        ("SELECT CURDATE ( )", "SELECT DATE '2026-11-25'"),
        ("SELECT CAST(now() AS DATE) - 3", "SELECT DATE '2026-11-25' - 3"),
        ("SELECT x > current_timestamp()::date", "SELECT x > DATE '2026-11-25'"),
        (
            "SELECT date_trunc('MON', now())",
            "SELECT TIMESTAMP '2026-11-01 00:00:00+00:00'",
        ),
    ],
)
def test_a_constant_becomes_one_literal(sql: str, bound: str) -> None:
    assert bind(sql, {}, name="q", clock=Clock(NOW)).sql == bound


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT now(), current_timestamp, date_trunc('minute', now())",
        "SELECT 'current_date', `current_date`, t.current_date FROM t -- current_date",
        "SELECT x AS current_date FROM t ORDER BY current_date",
        "SELECT current_date FROM (SELECT x current_date FROM t)",
        "SELECT to_date(now(), 'yyyy'), CAST(now() AS STRING)",
    ],
)
def test_what_is_none_stays(sql: str) -> None:
    result = bind(sql, {}, name="q", clock=Clock(NOW))
    assert (result.sql, dict(result.moments)) == (sql, {})


def test_places_behind_a_constant_are_found_again() -> None:
    sql = "SELECT date_trunc('hour',\n  now()) AS h, oops, current_date + zero"
    result = bind(sql, {}, name="q", clock=Clock(NOW))
    lines = result.sql.split("\n")
    assert len(lines) == 2
    written = sql.split("\n")[1]
    for word in ("oops", "zero"):
        place = result.written_at(2, lines[1].index(word) + 1)
        assert place == (2, written.index(word) + 1)


def test_values_held_stand_before_the_clock() -> None:
    clock = Clock(NOW, held={"current_date": "2026-01-02", ":day": "2026-01-03"})
    result = bind(
        "SELECT current_date, :day",
        {},
        name="q",
        clock=clock,
        follows={"day": "current_date"},
    )
    assert result.sql == "SELECT DATE '2026-01-02', DATE '2026-01-03'"
    assert result.moments == {"current_date": "2026-01-02", ":day": "2026-01-03"}


@pytest.mark.parametrize(
    ("written", "zone", "expected"),
    [
        ("2026-11-25", "+02:00", datetime(2026, 11, 24, 22, tzinfo=UTC)),
        ("2026-11-25 13:00", "Europe/Berlin", datetime(2026, 11, 25, 12, tzinfo=UTC)),
        ("2026-11-25T13:00:00+01:00", "UTC", datetime(2026, 11, 25, 12, tzinfo=UTC)),
        ("2026-11-25T13:00:00.5Z", "+02:00", datetime(2026, 11, 25, 13, 0, 0, 500000, tzinfo=UTC)),
    ],
)
def test_a_time_that_is_set_is_in_the_zone(written: str, zone: str, expected: datetime) -> None:
    assert instant_of(written, zone) == expected


@pytest.mark.parametrize("written", ["", "tomorrow", "2026-13-01", "2026-11-25 25:00", "20261125"])
def test_a_time_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(UsageError) as refused:
        instant_of(written, "UTC")
    assert refused.value.code == "now_syntax"


@pytest.mark.parametrize("alias", ["AS current_date", "current_date", "AS `Current_Date`"])
def test_a_bare_name_that_is_an_alias_is_not_the_clocks(alias: str) -> None:
    inner = f"SELECT * FROM (SELECT day {alias} FROM t) WHERE "
    result = bind(f"{inner}current_date > DATE '2020-01-01'", {}, name="q", clock=Clock(NOW))
    assert result.sql == f"{inner}current_date > DATE '2020-01-01'"
    assert not result.moments
    result = bind(f"{inner}current_date > current_date()", {}, name="q", clock=Clock(NOW))
    assert result.sql == f"{inner}current_date > DATE '2026-11-25'"


def test_a_string_that_says_so_is_no_name() -> None:
    sql = "SELECT 'current_date' FROM t WHERE day > current_date"
    result = bind(sql, {}, name="q", clock=Clock(NOW))
    assert result.sql == "SELECT 'current_date' FROM t WHERE day > DATE '2026-11-25'"
