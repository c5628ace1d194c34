"""The values of YAML scalars: the core types of YAML 1.2, dates, and sizes.

Law: only what is beyond doubt is typed. `true`/`false`, decimal numbers without leading zeros,
`null`/`~`, ISO dates and timestamps are; `no`, `on`, `1:30` and `007`, which YAML 1.1 turned into
booleans, minutes and octal numbers, stay text. A number that a double cannot hold is refused rather
than rounded.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from impctl.workload.models import CellValue

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
_UNITS = {
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
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_LARGEST = 1e18
"""More bytes than any disk has, few enough for arithmetic."""
SIZE_HINT = "write a size such as 500MB, 2GB or 2GiB"
_MAX_DIGITS = 400
"""Digits of a number; 308 suffice for any double and 38 for any decimal."""


class ScalarFault(Exception):
    """A scalar that looks like a value of its type but is invalid."""

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


def share_from(text: str) -> float | None:
    """The fraction of a text such as `25%`; None for anything else. ValueError unless 0 < % <=
    100."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        return None
    if not 0 < float(match[1]) <= 100:
        raise ValueError(text)
    return float(match[1]) / 100


def size_from(text: str) -> int:
    """The bytes of a size, possibly 0. ValueError for anything else."""
    match = _WRITTEN.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match.group(2).lower())
    if match is None or unit is None:
        raise ValueError(text)
    amount = Fraction(match.group(1)) * unit
    if amount > _LARGEST:
        raise ValueError(text)
    return int(amount)


def kind_of(value: object) -> str:
    """The kind of a value, for messages; never the value itself."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "text"
        case datetime():
            return "a timestamp"
        case date():
            return "a date"
        case _:
            return "a value"


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
