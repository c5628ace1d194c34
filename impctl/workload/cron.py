"""Times of a crontab: five fields, or a word such as `@daily`.

    minute 0-59 | hour 0-23 | day of month 1-31 | month 1-12, jan-dec | day of week 0-7, sun-sat

A field is `*`, a number, a name, a range `a-b`, any of these with a step `/n` (`a/n`: from `a` on),
or several with commas. 0 and 7 are both Sunday. Law: where both days are given (neither is `*`), a
day that either names is one; else a day has to fit both. What never comes, as the 30th of February,
is refused, and so are the letters of other readers (L, W, #, ?), each by its name.
Out of scope: which instants these are in a time zone (`app.maintaining.due.moments`).
"""

from __future__ import annotations

from datetime import date

from impctl.values import dataclass

_MONTHS = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SUNDAY = 7
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LETTERS = {
    "L": "the last day of a month or week",
    "W": "the weekday nearest to a day",
    "#": "the n-th weekday of a month",
    "?": "any day",
}


class CronFault(Exception):
    """A text that is no time of a crontab; never leaves this room."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Cron:
    """Minutes, hours, days of the month, months and days of the week (0 Sunday), each ascending.

    `either` says that a day need fit only one of its two fields.
    """

    written: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool

    def has_day(self, day: date) -> bool:
        """Whether its times come on this day."""
        if day.month not in self.months:
            return False
        is_day = day.day in self.days
        is_weekday = day.isoweekday() % _SUNDAY in self.weekdays
        return is_day or is_weekday if self.either else is_day and is_weekday


@dataclass(frozen=True, slots=True)
class _Field:
    """What a field counts, from `least` to `most`, and the names of its values from `least` on."""

    what: str
    least: int
    most: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, _SUNDAY, _WEEKDAYS),
)


def read_cron(text: str) -> Cron:
    """The times meant; `CronFault` for what is none of a crontab."""
    word = text.strip()
    if word.startswith("@"):
        if word.lower() not in MACROS:
            known = ", ".join(f"`{name}`" for name in MACROS)
            raise CronFault("the `@` word is unknown", f"the words are {known}")
        word = MACROS[word.lower()]
    parts = word.split()
    if len(parts) != len(_FIELDS):
        count = "1 field" if len(parts) == 1 else f"{len(parts)} fields"
        six = "; seconds and years are not supported" if len(parts) > len(_FIELDS) else ""
        raise CronFault(
            f"it has {count} instead of 5",
            "write minute, hour, day of month, month and day of week, for example `0 6 * * "
            f"1-5`{six}",
        )
    minutes, hours, days, months, weekdays = (
        _values(part, field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    is_either = parts[2] != "*" and parts[4] != "*"
    sundays = tuple(sorted({day % _SUNDAY for day in weekdays}))
    result = Cron(" ".join(parts), minutes, hours, days, months, sundays, is_either)
    if not is_either and min(days) > max(_LONGEST_MONTH[month - 1] for month in months):
        raise CronFault("these times never occur", "none of these months has that many days")
    return result


def _values(text: str, field: _Field) -> tuple[int, ...]:
    """The values that a field names, ascending."""
    result: set[int] = set()
    for item in text.split(","):
        result.update(_item(item, field))
    return tuple(sorted(result))


def _item(text: str, field: _Field) -> range:
    """The values of what stands between two commas."""
    body, slash, step_text = text.partition("/")
    step = _number(step_text, text, field) if slash else 1
    if step == 0:
        raise CronFault(f"the {field.what} has a step of 0", "steps start at 1")
    first, dash, last = body.partition("-")
    if body == "*":
        return range(field.least, field.most + 1, step)
    start = _value(first, text, field)
    if not dash:
        return range(start, (field.most if slash else start) + 1, step)
    end = _value(last, text, field)
    if field.most == _SUNDAY and end == 0 and start > 0:
        end = _SUNDAY
    if end < start:
        raise CronFault(
            f"the {field.what} has a range that runs backwards",
            "write it as two ranges with a comma",
        )
    return range(start, end + 1, step)


def _value(text: str, item: str, field: _Field) -> int:
    """A number or a name within the bounds of its field."""
    is_named = text.lower() in field.names
    value = (
        field.least + field.names.index(text.lower()) if is_named else _number(text, item, field)
    )
    if not field.least <= value <= field.most:
        raise CronFault(
            f"the {field.what} is out of range", f"use a value from {field.least} to {field.most}"
        )
    return value


def _number(text: str, item: str, field: _Field) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return int(text)
    for letter, meaning in _LETTERS.items():
        if letter in item.upper():
            raise CronFault(
                f"`{letter}` ({meaning}) in the {field.what} is not supported",
                "list the days, or use another trigger",
            )
    raise CronFault(
        f"the {field.what} is not valid",
        f"use `*`, numbers from {field.least} to {field.most}, ranges such as `1-5`, or steps such "
        "as `*/2`",
    )
