"""The values of scalars: the core types of YAML 1.2, dates, sizes, durations, crontab times.

Law: only unambiguous text is typed: `true`/`false`, decimal numbers without leading zeros,
`null`/`~`, ISO dates and timestamps. `no`, `on`, `1:30` and `007`, which YAML 1.1 makes booleans,
minutes and octal numbers, stay text. A number that a double cannot represent exactly is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, tzinfo
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import NoneType

from msgspec import Struct

CellValue = int | float | str | bool | date | datetime | None
"""A value of a row to insert, as the file types it; the table's column type decides later."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"([Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?[ ]?(Z|[-+]\d\d:\d\d)?)?"
)
_MAX_DIGITS = 400
"""Digits of a number; 308 suffice for any double and 38 for any decimal."""


class YamlScalar(Struct, frozen=True):
    """A scalar value; wrapped because NULL is a value too."""

    value: CellValue
    written: str


class ScalarFault(Exception):
    """A scalar that is no value of its type. `message` may contain `{path}` and `{text}`: where the
    scalar is, and its text in the file."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def plain_value(text: str) -> CellValue:
    """The value of a plain (unquoted) scalar; `ScalarFault` if it would be altered."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INTEGER.fullmatch(text):
        _check_digits(text)
        return int(text)
    if _FLOAT.fullmatch(text):
        return _exact_float(text)
    if _TIMESTAMP.fullmatch(text):
        return _timestamp(text)
    return text


_KINDS: Mapping[type, str] = {
    NoneType: "nothing",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    datetime: "a timestamp",
    date: "a date",
}


def kind_text(value: object) -> str:
    """The kind of a value, for messages; never the value itself."""
    return _KINDS.get(type(value), "a value")


def _check_digits(text: str) -> None:
    if len(text) > _MAX_DIGITS:
        raise ScalarFault("A number has too many digits", f"write at most {_MAX_DIGITS} digits")


def _exact_float(text: str) -> float:
    _check_digits(text)
    value = float(text)
    if math.isinf(value) or Decimal(repr(value)) != Decimal(text):
        raise ScalarFault(
            "A number has more digits, or a larger exponent, than a double can hold",
            "put quotes around it to keep it exactly as written, or write fewer digits",
        )
    return value


def _timestamp(text: str) -> date | datetime:
    try:
        if len(text) == len("2022-01-01"):
            return date.fromisoformat(text)
        return datetime.fromisoformat(text.replace(" +", "+").replace(" -", "-").replace(" Z", "Z"))
    except ValueError:
        raise ScalarFault(
            "This date or timestamp does not exist in the calendar",
            "correct it, or put quotes around it to keep it as text",
        ) from None


def instant_from(scalar: YamlScalar) -> float:
    """Seconds since 1970 of a day or a time, in UTC unless it has a zone."""
    value = scalar.value
    if isinstance(value, str):
        value = plain_value(value)
    if not isinstance(value, date):
        raise ScalarFault(
            "{path}: {text} is not a date or a time",
            "write a date such as 2026-12-01, or a time such as 2026-12-01 18:00:00",
        )
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


# Sizes of data, in bytes or as a share of the machine's memory, and shares of rows.

_SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_LARGEST = 1e18
"""More bytes than any disk has, few enough for arithmetic."""
_SHARE_OF_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*%")
SIZE_HINT = "write a size such as 500MB, 2GB or 2GiB"
MEMORY_HINT = f"{SIZE_HINT}, or a share of the machine's memory such as 25%"
SHARE_PATTERN = r"([0-9]{1,3}(?:\.[0-9]{1,6})?)[ ]*%"


def share_from(text: str) -> float | None:
    """The fraction of a text such as `25%`; None for anything else. ValueError unless 0 < % <=
    100."""
    match = _SHARE_OF_MEMORY.fullmatch(text.strip())
    if match is None:
        return None
    if not 0 < float(match[1]) <= 100:
        raise ValueError(text)
    return float(match[1]) / 100


def size_from(text: str) -> int:
    """The bytes of a size, possibly 0. ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else _SIZES.get(match.group(2).lower())
    if match is None or unit is None:
        raise ValueError(text)
    amount = Fraction(match.group(1)) * unit
    if amount > _LARGEST:
        raise ValueError(text)
    return int(amount)


def disk_from(scalar: YamlScalar) -> int:
    """Bytes; 0 is allowed and means the least."""
    try:
        return size_from(str(scalar.value))
    except ValueError:
        raise ScalarFault("{path} must be a size, not {text}", SIZE_HINT) from None


def memory_from(scalar: YamlScalar) -> str:
    """A size above 0 or a share, as written: a share depends on the machine that runs."""
    text = str(scalar.value)
    try:
        if share_from(text) is not None or size_from(text) > 0:
            return text
    except ValueError:
        pass
    raise ScalarFault("{path} must be a size, not {text}", MEMORY_HINT)


def deletions_from(scalar: YamlScalar) -> float:
    """The share of rows."""
    match = re.fullmatch(SHARE_PATTERN, scalar.written.strip())
    if match is None or float(match[1]) > 100:
        raise ScalarFault("{path}: {text} is not a share of the rows", "write a share such as 5%")
    return float(match[1]) / 100


# Durations such as `500ms`, `5s`, `2m`, `1h`, `7d` or `1 hour`. Law: a duration is positive and
# finite, in seconds. A file must give the unit; an option without a unit is in seconds.

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
WORDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
"""The same in words, possibly several: `1 hour`, `2 days`."""
DURATION_PATTERN = rf"\s*[0-9]+(\.[0-9]+)?[ ]*(ms|s|m|h|d|({'|'.join(WORDS)})s?)\s*"
"""For the JSON Schema of a file."""

_TEXT = re.compile(rf"([0-9]+(?:\.[0-9]+)?)[ ]*(?:(ms|s|m|h|d)|({'|'.join(WORDS)})s?)?")
_LONGEST = 1e9


def seconds_in(text: str, *, needs_unit: bool = False) -> float | None:
    """The seconds that `text` means; None if it is no duration."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or (needs_unit and not match[2] and not match[3]):
        return None
    value = float(match[1]) * (WORDS[match[3]] if match[3] else UNITS.get(match[2], 1.0))
    return value if 0 < value < _LONGEST else None


def duration_from(scalar: YamlScalar) -> float:
    """Seconds of a duration with a unit."""
    seconds = seconds_in(scalar.written, needs_unit=True)
    if seconds is None:
        raise ScalarFault(
            "{path} must be a duration such as 10m",
            "write a number above 0 with its unit: `500ms`, `5s`, `10m`, `1h` or `7d`",
        )
    return seconds


def microseconds_from(scalar: YamlScalar) -> int:
    return max(1, round(duration_from(scalar) * 1e6))


def interval_from(scalar: YamlScalar) -> float:
    """Seconds of an interval that is counted from midnight."""
    seconds = duration_from(scalar)
    if not 1.0 <= seconds <= UNITS["d"]:
        raise ScalarFault(
            "{path} must be from 1s to 1d, because it is counted from midnight",
            "use `cron` for days and weeks, and `commit` for shorter intervals",
        )
    return seconds


@lru_cache(maxsize=64)  # a few values, many times
def written(seconds: float) -> str:
    """The duration as in a file, in the largest unit with a whole number."""
    for unit, size in reversed(UNITS.items()):
        count = round(seconds / size)
        if count and abs(count * size - seconds) < 1e-9 * max(1.0, seconds):
            return f"{count}{unit}"
    return f"{seconds:.3f}s"


# Crontab times: five fields (minute, hour, day of month, month, day of week), or a word such as
# `@daily`. Law: if neither day is `*`, a day matches if either field does, else if both do. Times
# that never occur, such as February 30, and the extensions L, W, # and ? are refused.

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LETTERS = {
    "L": "the last day of a month or week",
    "W": "the weekday nearest to a day",
    "#": "the n-th weekday of a month",
    "?": "any day",
}


class _CronField(Struct, frozen=True):
    title: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    """Names of the values from `least` on."""


_FIELDS = (
    _CronField("minute", 0, 59),
    _CronField("hour", 0, 23),
    _CronField("day of month", 1, 31),
    _CronField("month", 1, 12, _MONTHS),
    _CronField("day of week", 0, 7, _WEEKDAYS),
)


class Cron(Struct, frozen=True):
    """Crontab times as in the file, and as an equivalent expression for cronsim."""

    written: str
    expression: str

    def after(self, local: datetime) -> Iterator[datetime]:
        """The times after `local`, ascending; without a time zone, as `local`."""
        from cronsim import CronSim

        return iter(CronSim(self.expression, local))


def cron_from(scalar: YamlScalar) -> Cron:
    return read_cron(scalar.written)


def read_cron(text: str) -> Cron:
    """Parse crontab times; `ScalarFault` for anything else."""
    word = text.strip()
    if word.startswith("@"):
        if word.lower() not in MACROS:
            known = ", ".join(f"`{name}`" for name in MACROS)
            raise _cron_fault("the `@` word is unknown", f"the words are {known}")
        word = MACROS[word.lower()]
    parts = word.split()
    if len(parts) != len(_FIELDS):
        count = "1 field" if len(parts) == 1 else f"{len(parts)} fields"
        six = "; seconds and years are not supported" if len(parts) > len(_FIELDS) else ""
        raise _cron_fault(
            f"it has {count} instead of 5",
            "write minute, hour, day of month, month and day of week, for example `0 6 * * "
            f"1-5`{six}",
        )
    expression = " ".join(map(_plain, parts, _FIELDS))
    if not _is_cron(expression):
        raise _cron_fault("these times never occur", "none of these months has that many days")
    return Cron(" ".join(parts), expression)


def _cron_fault(problem: str, hint: str) -> ScalarFault:
    return ScalarFault(f"{{path}} is not a valid cron expression: {problem}", hint)


def _plain(text: str, field: _CronField) -> str:
    """The field with the same meaning for cronsim."""
    plain = text if text == "*" else ",".join(_item(item, field) for item in text.split(","))
    if not _is_cron(" ".join(plain if other is field else "*" for other in _FIELDS)):
        raise _cron_fault(
            f"the {field.title} is not valid",
            f"use `*`, numbers from {field.least} to {field.most}, ranges such as `1-5`, or steps "
            "such as `*/2`",
        )
    return plain


def _item(item: str, field: _CronField) -> str:
    if not item.isascii():
        return ""
    body, slash, step = item.partition("/")
    first, dash, last = (_number(word, field) for word in body.partition("-"))
    is_range = first.isdecimal() and last.isdecimal()
    if step and not step.strip("0"):
        raise _cron_fault(f"the {field.title} has a step of 0", "steps start at 1")
    if first == "*" and not dash:
        # cronsim requires both days where one begins with a star.
        first, dash, last = str(field.least), "-", str(field.most)
    elif is_range and field.title == "day of week" and last == "0" != first:
        last = "7"
    elif is_range and int(last) < int(first):
        raise _cron_fault(
            f"the {field.title} has a range that runs backwards",
            "write it as two ranges with a comma",
        )
    elif is_range and first == last and step.isdecimal():
        # One value, whatever the step; cronsim would continue to the highest value.
        return first
    return f"{first}{dash}{last}{slash}{step}"


def _number(word: str, field: _CronField) -> str:
    """The number of a name; numbers without leading zeros."""
    if word.lower() in field.names:
        return str(field.least + field.names.index(word.lower()))
    if word.isdecimal():
        if len(word) > 4 or not field.least <= int(word) <= field.most:
            raise _cron_fault(
                f"the {field.title} is out of range",
                f"use a value from {field.least} to {field.most}",
            )
        return str(int(word))
    for letter, meaning in _LETTERS.items():
        if letter in word.upper():
            raise _cron_fault(
                f"`{letter}` ({meaning}) in the {field.title} is not supported",
                "list the days, or use another trigger",
            )
    return word


def _is_cron(expression: str) -> bool:
    """Whether cronsim accepts it and a time matches."""
    from cronsim import CronSim, CronSimError

    try:
        CronSim(expression, datetime.min)
    except (CronSimError, ValueError):
        return False
    return True


def zone_from(scalar: YamlScalar) -> str:
    """The name of a time zone."""
    if zone_named(scalar.written) is None:
        raise ScalarFault(
            "{path} is a time zone that this machine does not know",
            "use a name such as `Europe/Vienna`; on a minimal system, install `tzdata`",
        )
    return scalar.written


def zone_named(name: str) -> tzinfo | None:
    """The time zone; None if this machine does not know it. `UTC` needs no zone database."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
