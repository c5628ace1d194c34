"""The instants at which a trigger's clock strikes: multiples since midnight, times of a crontab.

Law: an instant is given in seconds since 1970 and is the first not before the one asked from. Of a
crontab, a local time that does not exist (the clock is put on) is the instant at which the clock is
put on, and one that comes twice (the clock is put back) is its first coming alone. Multiples count
the time that really passes since midnight, so they keep their pace on such days.
Out of scope: the fields of a crontab (`workload.models`), whether anything is due
(`app.maintaining.due.when`).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

from impctl.workload.models import Cron, Trigger

_DAYS = 366 * 8 + 2
"""Days looked through: a 29th of February is at most eight years away."""

AN_INSTANT = 1e-5
"""Seconds after a moment from which on the one that follows is asked for; times of days that are
decades away differ by a fortieth of it at least."""

_SECOND = timedelta(seconds=1)
_MIDNIGHT = time()


def next_moment(trigger: Trigger, since: float) -> float | None:
    """The first moment of the trigger's `every` or `cron` not before `since`; None without them."""
    if trigger.every is None and trigger.cron is None:
        return None
    return _next_moment(trigger, since)


@lru_cache(maxsize=64)
def _next_moment(trigger: Trigger, since: float) -> float | None:
    """Kept, since many queries have one trigger and ask at one time."""
    at = datetime.fromtimestamp(since, UTC)
    if trigger.every is not None:
        return _next_multiple(timedelta(seconds=trigger.every), trigger.zone, at).timestamp()
    if trigger.cron is not None:
        result = _next_of_cron(trigger.cron, trigger.zone, at)
        return None if result is None else result.timestamp()
    return None


def last_moment(trigger: Trigger, since: float, before: float) -> float | None:
    """The last moment of the trigger's clock after `since` and before `before`; None without one.

    Found by halves, so that it costs the same whether few moments lie between or millions.
    """
    result = next_moment(trigger, since + AN_INSTANT)
    if result is None or result >= before:
        return None
    end = before
    while (following := next_moment(trigger, result + AN_INSTANT)) is not None and following < end:
        result = following
        middle = next_moment(trigger, (result + end) / 2)
        if middle is not None and middle < before:
            result = middle
        else:
            # None lies between the middle and what it is before.
            end = (result + end) / 2
    return result


def instant_of(local: datetime, zone: tzinfo) -> datetime:
    """When it is this local time first, in UTC; where it never is, when the clock jumps over it."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == local:
        return first
    # Within a gap the offset before it leads beyond the jump, the offset after it before the jump.
    late, early = first, local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    after = late.astimezone(zone).utcoffset()
    while late - early > _SECOND:
        middle = early + (late - early) // 2
        middle = middle.replace(microsecond=0)
        if middle <= early:
            break
        if middle.astimezone(zone).utcoffset() == after:
            late = middle
        else:
            early = middle
    return late


def _next_multiple(every: timedelta, zone: tzinfo, at: datetime) -> datetime:
    """The first multiple since its local midnight; midnight itself is one."""
    day = at.astimezone(zone).date()
    while (start := _midnight(day, zone)) > at:
        day -= timedelta(days=1)
    while (following := _midnight(day + timedelta(days=1), zone)) <= at:
        day += timedelta(days=1)
        start = following
    passed = -((start - at) // every)
    return min(start + passed * every, following)


def _midnight(day: date, zone: tzinfo) -> datetime:
    return instant_of(datetime.combine(day, _MIDNIGHT), zone)


def _next_of_cron(cron: Cron, zone: tzinfo, at: datetime) -> datetime | None:
    """The first of its times; None where none comes in so many years."""
    # The day before too: what it jumps over may come late, and midnight may come twice.
    day = at.astimezone(zone).date() - timedelta(days=1)
    for _ in range(_DAYS):
        if cron.has_day(day):
            result = _first_of_day(cron, day, zone, at)
            if result is not None:
                return result
        day += timedelta(days=1)
    return None


def _first_of_day(cron: Cron, day: date, zone: tzinfo, at: datetime) -> datetime | None:
    for hour in cron.hours:
        # An hour that is over cannot hold it; a jump moves a time by less than a day.
        last = datetime.combine(day, time(hour, cron.minutes[-1]))
        if instant_of(last, zone) < at:
            continue
        for minute in cron.minutes:
            result = instant_of(datetime.combine(day, time(hour, minute)), zone)
            if result >= at:
                return result
    return None
