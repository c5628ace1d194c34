"""Moments of `every` and `cron` against instants written down, and against trying every minute."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.service.schedule.due import last_moment, next_moment
from impctl.workload.models import Trigger, read_cron
from tests.support.random_cases import random_seeds

VIENNA = "Europe/Vienna"


def after(trigger: Trigger, since: str, count: int) -> list[str]:
    """So many moments in a row, in UTC."""
    at, result = datetime.fromisoformat(since).timestamp(), []
    for _ in range(count):
        moment = next_moment(trigger, at)
        assert moment is not None
        result.append(datetime.fromtimestamp(moment, UTC).strftime("%m-%d %H:%M"))
        at = moment + 1e-3
    return result


def cron(text: str, zone: str | None = None) -> Trigger:
    return Trigger(cron=read_cron(text), timezone=zone)


def every(seconds: float, zone: str | None = None) -> Trigger:
    return Trigger(every=seconds, timezone=zone)


LORD_HOWE, SAMOA = "Australia/Lord_Howe", "Pacific/Apia"
CASES: dict[str, list[tuple[Trigger, str, str]]] = {
    "times of a crontab": [
        (cron("0 6 * * 1-5"), "2026-11-27T06:00", "11-27 06:00, 11-30 06:00, 12-01 06:00"),
        (cron("0 6 * * 1-5"), "2026-11-27T06:00:01", "11-30 06:00"),
        (cron("*/20 9-10 * * *"), "2026-11-27T09:21", "11-27 09:40, 11-27 10:00, 11-27 10:20"),
        (cron("15 10 1,15 * *"), "2026-12-20T00:00", "01-01 10:15, 01-15 10:15"),
        (cron("0 0 13 * 5"), "2026-11-27T00:00:01", "12-04 00:00, 12-11 00:00, 12-13 00:00"),
        (cron("0 0 29 2 *"), "2026-11-27T00:00", "02-29 00:00"),
        (cron("59 23 31 12 *"), "2026-12-31T23:59", "12-31 23:59, 12-31 23:59"),
        (cron("@hourly"), "2026-12-31T23:30", "01-01 00:00, 01-01 01:00"),
    ],
    "a zone has its own hours": [
        (cron("0 6 * * *", VIENNA), "2026-07-01T00:00", "07-01 04:00"),
        (cron("0 6 * * *", VIENNA), "2026-12-01T00:00", "12-01 05:00"),
        (cron("0 6 * * *", "Asia/Kolkata"), "2026-12-01T01:00", "12-02 00:30"),
    ],
    "a time that does not exist is when the clock is put on": [
        # In Vienna 2026-03-29 02:00 to 03:00 is left out, at 01:00 UTC.
        (
            cron("30 2 * * *", VIENNA),
            *("2026-03-28T12:00", "03-29 01:00, 03-30 00:30, 03-31 00:30"),
        ),
        (cron("0,20,40 2 * * *", VIENNA), "2026-03-28T12:00", "03-29 01:00, 03-30 00:00"),
        (
            cron("*/30 1-3 * * *", VIENNA),
            *("2026-03-28T12:00", "03-29 00:00, 03-29 00:30, 03-29 01:00, 03-29 01:30"),
        ),
        # Lord Howe moves by half an hour: no 02:00 to 02:30 on 2026-10-04, at 15:30 UTC before it.
        (cron("15 2 * * *", LORD_HOWE), "2026-10-03T00:00", "10-03 15:30"),
        # Samoa left out the whole of 2011-12-30.
        (cron("0 12 30 12 *", SAMOA), "2011-12-01T00:00", "12-30 10:00"),
    ],
    "a time that comes twice is its first coming": [
        # In Vienna 2026-10-25 02:00 to 03:00 comes twice, from 00:00 and from 01:00 UTC.
        (cron("30 2 * * *", VIENNA), "2026-10-24T12:00", "10-25 00:30, 10-26 01:30"),
        (cron("30 2 * * *", VIENNA), "2026-10-25T00:45", "10-26 01:30"),
        (cron("0 * * * *", VIENNA), "2026-10-24T23:30", "10-25 00:00, 10-25 02:00"),
    ],
    "multiples count from midnight": [
        (every(900), "2026-11-27T11:46", "11-27 12:00, 11-27 12:15"),
        (every(900), "2026-11-27T12:00", "11-27 12:00"),
        (every(86_400), "2026-11-27T00:00:01", "11-28 00:00, 11-29 00:00"),
        # What does not divide a day begins anew at midnight.
        (
            every(7 * 3600),
            *("2026-11-27T10:00", "11-27 14:00, 11-27 21:00, 11-28 00:00, 11-28 07:00"),
        ),
        (every(6 * 3600, "Asia/Kolkata"), "2026-11-27T10:00", "11-27 12:30, 11-27 18:30"),
    ],
    "multiples keep their pace when the clock is moved": [
        (every(3600, VIENNA), "2026-03-29T00:30", "03-29 01:00, 03-29 02:00, 03-29 03:00"),
        (every(3600, VIENNA), "2026-10-24T23:30", "10-25 00:00, 10-25 01:00, 10-25 02:00"),
        # The day has 23 hours, then 25.
        (every(12 * 3600, VIENNA), "2026-03-28T23:00", "03-28 23:00, 03-29 11:00, 03-29 22:00"),
        (
            every(12 * 3600, VIENNA),
            *("2026-10-24T22:00", "10-24 22:00, 10-25 10:00, 10-25 22:00, 10-25 23:00"),
        ),
        # In Santiago midnight of 2026-09-06 is left out.
        (every(86_400, "America/Santiago"), "2026-09-05T12:00", "09-06 04:00, 09-07 03:00"),
    ],
}
"""By rule: a trigger, an instant in UTC, and the moments from then on."""


@pytest.mark.parametrize("rule", CASES)
def test_moments_are_those_written_down(rule: str) -> None:
    for trigger, since, moments in CASES[rule]:
        wanted = moments.split(", ")
        assert after(trigger, f"{since}+00:00", len(wanted)) == wanted, (trigger.text, since)


ZONES = (
    VIENNA,
    "America/St_Johns",
    "Australia/Lord_Howe",
    "America/Santiago",
    "UTC",
    "Asia/Tehran",
)


def by_trying(trigger: Trigger, since: datetime) -> datetime:
    """The first minute from `since` on whose local time, not seen before, the fields have."""
    assert trigger.cron is not None
    fields, zone = trigger.cron, ZoneInfo(trigger.timezone or "UTC")
    at = since - timedelta(hours=26)
    newest = (at - timedelta(minutes=1)).astimezone(zone).replace(tzinfo=None)
    while True:
        local = at.astimezone(zone).replace(tzinfo=None)
        passed = newest + timedelta(minutes=1)
        is_due = False
        while passed <= local:
            is_due |= fields.has_day(passed.date()) and (
                passed.hour in fields.hours and passed.minute in fields.minutes
            )
            passed += timedelta(minutes=1)
        newest = max(newest, local)
        if is_due and at >= since:
            return at
        at += timedelta(minutes=1)


@pytest.mark.slow
@random_seeds(2, 4, 12)
def test_moments_are_those_found_by_trying(seed: int) -> None:
    rng = random.Random(seed)
    starts = [datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]
    starts += [datetime(2026, 9, 5, 12, tzinfo=UTC), datetime(2026, 4, 4, tzinfo=UTC)]
    for _ in range(12):
        minute = rng.choice(["0", "*/30", "15,45", "5-50/9", "*"])
        hour = rng.choice(["*", "0", "1-3", "*/2", "2", "23"])
        trigger = cron(f"{minute} {hour} * * *", rng.choice(ZONES))
        since = rng.choice(starts) + timedelta(minutes=rng.randrange(60 * 48))
        moment = next_moment(trigger, since.timestamp())
        assert moment == by_trying(trigger, since).timestamp(), (trigger.text, since)


TRIGGERS = st.builds(
    Trigger,
    every=st.integers(1, 86_400).map(float),
    timezone=st.sampled_from(ZONES),
) | st.builds(
    Trigger,
    cron=st.sampled_from(["@daily", "*/7 2 * * *", "0 */3 29 2 *", "30 1-3 * * 0"]).map(read_cron),
    timezone=st.sampled_from(ZONES),
)


@given(TRIGGERS, st.floats(1.6e9, 2.0e9))
def test_a_moment_is_the_first_one_from_then_on(trigger: Trigger, since: float) -> None:
    moment = next_moment(trigger, since)
    assert moment is not None
    assert moment >= since - 1e-6, "seconds are not exact to a microsecond"
    assert next_moment(trigger, moment) == moment
    before = next_moment(trigger, since + (moment - since) * 0.5)
    assert before == moment, "none lies between"


@random_seeds(8, 24, 40)
def test_the_last_moment_is_the_one_that_steps_come_to(seed: int) -> None:
    rng = random.Random(seed)
    zone = rng.choice([None, VIENNA, "Asia/Kolkata"])
    clocks = [every(70.0, zone), every(86_400.0, zone), every(1.5, zone)]
    clocks += [cron("*/7 1-3,22 * * *", zone), cron("30 2 * * *", zone), cron("0 0 1 * *", zone)]
    trigger = rng.choice(clocks)
    spans = {1.5: 400.0}
    # About a jump of the clock, where there is one.
    since = datetime(2026, 3, 28, tzinfo=UTC).timestamp() + rng.uniform(0, 86_400 * 2)
    before = since + rng.uniform(0, spans.get(trigger.every or 0.0, 86_400.0 * 3))
    if rng.random() < 0.5:
        # Neither end counts.
        since = next_moment(trigger, since) or since
        before = next_moment(trigger, before) or before
    stepped, at = None, since
    while (moment := next_moment(trigger, at + 1e-5)) is not None and moment < before:
        stepped = at = moment
    assert last_moment(trigger, since, before) == stepped


def test_without_a_clock_there_is_none() -> None:
    assert last_moment(Trigger(rows=5), 0.0, 1e9) is None
