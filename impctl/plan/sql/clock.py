"""Constants that the clock gives a SQL text: the day, the hour, and longer stretches of time.

Law: one instant, in the session's time zone, decides all of them, and each enters the text as one
literal (`plan.sql.parameters`), so impctl and Spark see the same one. `now()` and
`current_timestamp` are constants only where the text cuts them to the hour or more coarsely: uncut
they differ between any two runs. A name that is part of another, quoted or an alias is none.
Out of scope: what depends on such a constant (`plan.moved_conditions`), arithmetic on it
(`plan.sql.moments`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from impctl.errors import UsageError
from impctl.expr.types import fixed_offset
from impctl.values import dataclass

if TYPE_CHECKING:
    from sqlglot.tokens import Token  # type: ignore[attr-defined]  # re-exported silently

CURRENT_DATE = "current_date"
HOUR = "date_trunc('hour', current_timestamp)"
RUN = "now"
"""The instant of the run itself, cut to whole seconds: no text asks for it, expiry does."""
NEVER = "never"
"""In place of an instant: no row that is there will ever expire."""
_UNITS = {
    **dict.fromkeys(("hour",), "hour"),
    **dict.fromkeys(("day", "dd"), "day"),
    "week": "week",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "quarter": "quarter",
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
}
"""What `date_trunc` may cut to, by the ways to write it."""
_CUT_NAMES = {f"date_trunc('{unit}', current_timestamp)": unit for unit in _UNITS.values()}
NOW = frozenset({"now", "current_timestamp"})
BARE = frozenset({"current_date", "current_timestamp"})
"""What needs no parentheses, so that a column may have the name."""


@dataclass(frozen=True, slots=True)
class ClockUse:
    """One place of a text, offsets included, where a constant of the clock stands."""

    moment: str
    start: int
    end: int
    before: int | None
    """The place among the tokens of the one before; None at the start of the text."""


@dataclass(frozen=True, slots=True)
class Clock:
    """An instant (UTC) in a session's zone; the values in `held` stand before what it gives."""

    instant: datetime
    zone: str = "UTC"
    held: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, date | datetime] = field(default_factory=dict)

    def text(self, moment: str, follows: str | None = None) -> str:
        """The value as it is written down and shown, of the moment with this name."""
        return self.value(moment, follows).isoformat()

    def value(self, moment: str, follows: str | None = None) -> date | datetime:
        """The value: a date, or a timestamp with its offset from UTC.

        What is `given` for a parameter stands for it; else it `follows` another moment.
        """
        if moment in self.held:
            return read_moment(self.held[moment])
        if moment in self.given:
            return self.given[moment]
        moment = moment if follows is None else follows
        local = self.instant.astimezone(zone_of(self.zone))
        if moment == CURRENT_DATE:
            return local.date()
        if moment == RUN:
            return self.instant.replace(microsecond=0)
        return _cut(local, _CUT_NAMES[moment]).astimezone(UTC)


def read_moment(written: str) -> date | datetime:
    """The value that `Clock.text` wrote."""
    is_day = len(written) == len("2026-11-25")
    return date.fromisoformat(written) if is_day else datetime.fromisoformat(written)


def given_moment(name: str, written: str, follows: str, zone: str) -> date | datetime:
    """The value given for a parameter that follows the day or the hour; UsageError for none."""
    try:
        if follows == CURRENT_DATE:
            return date.fromisoformat(written) if _DAY.fullmatch(written) else _no_time(written)
        return _instant(written, zone)
    except (ValueError, OverflowError):
        kind = "a day such as 2026-11-25" if follows == CURRENT_DATE else "a time: 2026-11-25 13:00"
        raise UsageError(
            f"Parameter `{name}` must be {kind}, not: {written}",
            hint="or omit it to use the current time",
            code="parameter_type",
        ) from None


def zone_of(name: str) -> tzinfo:
    """The time zone of this name; UsageError where this machine does not know it."""
    offset = fixed_offset(name)
    if offset is not None:
        return timezone(timedelta(microseconds=offset))
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"This machine has no data for time zone `{name}`, so the current day cannot be "
            "computed",
            hint="install the package `tzdata`, or set `spark.sql.session.timeZone` to a known one",
            code="zone_unknown",
        ) from None


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NOW = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?")


def instant_of(written: str, zone: str) -> datetime:
    """The time meant by `2026-11-25` or `2026-11-25 13:00:00`, in the session's zone or with an
    offset of its own; UsageError for any other text."""
    try:
        return _instant(written, zone)
    except (ValueError, OverflowError):
        raise UsageError(
            f"The value of `--now` or IMPCTL_NOW is not a time: {written}",
            hint="write 2026-11-25, 2026-11-25 13:00 or 2026-11-25T13:00:00+01:00",
            code="now_syntax",
        ) from None


def _instant(written: str, zone: str) -> datetime:
    result = datetime.fromisoformat(written) if _NOW.fullmatch(written) else _no_time(written)
    return (result.replace(tzinfo=zone_of(zone)) if result.tzinfo is None else result).astimezone(
        UTC
    )


def _no_time(written: str) -> NoReturn:
    raise ValueError(written)


def _cut(local: datetime, unit: str) -> datetime:
    """The start of the hour, day, ... that a local time is in, as Spark's `date_trunc` cuts it."""
    if unit == "hour":
        return local.replace(minute=0, second=0, microsecond=0)
    # Midnight that comes twice is the first; one that there is not is when the clock was put on.
    day = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    match unit:
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
        case "year":
            return day.replace(month=1, day=1)
        case _:
            return day


def clock_uses(sql: str, tokens: Sequence[Token]) -> Iterator[ClockUse]:
    """The constants of the clock in a text, from left to right."""
    words = [sql[token.start : token.end + 1].lower() for token in tokens]
    at = 0
    while at < len(tokens):
        result = None if at and words[at - 1] == "." else _use(words, at)
        if result is None:
            at += 1
            continue
        moment, length = result
        last = tokens[at + length - 1]
        yield ClockUse(moment, tokens[at].start, last.end + 1, at - 1 if at else None)
        at += length


def _use(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """The moment written from this word on, and in how many words."""
    match words[at : at + 4]:
        case ["current_date" | "curdate", "(", ")", *_]:
            return CURRENT_DATE, 3
        case ["current_date", *rest]:
            return None if rest[:1] in (["."], ["("]) else (CURRENT_DATE, 1)
        case ["to_date" | "date" | "cast", "(", *_]:
            return _to_day(words, at)
        case ["date_trunc", "(", unit, ","]:
            now = _now(words, at + 4)
            result = _UNITS.get(unit.strip("'\""))
            if now and result is not None and words[at + 4 + now : at + 5 + now] == [")"]:
                return f"date_trunc('{result}', current_timestamp)", 5 + now
            return None
    now = _now(words, at)
    is_cast = bool(now) and words[at + now : at + now + 2] == ["::", "date"]
    return (CURRENT_DATE, now + 2) if is_cast else None


def _to_day(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """`to_date(now())`, `date(now())` or `CAST(now() AS DATE)`."""
    now = _now(words, at + 2)
    if not now:
        return None
    end = ["as", "date", ")"] if words[at] == "cast" else [")"]
    is_whole = list(words[at + 2 + now : at + 2 + now + len(end)]) == end
    return (CURRENT_DATE, 2 + now + len(end)) if is_whole else None


def _now(words: Sequence[str], at: int) -> int:
    """In how many words the clock's time stands here; 0 where it does not."""
    match words[at : at + 3]:
        case ["now" | "current_timestamp", "(", ")"]:
            return 3
        case ["current_timestamp", *rest]:
            return 0 if rest[:1] in (["."], ["("]) else 1
    return 0
