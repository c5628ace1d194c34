"""Sizes, durations, ratios and foreign texts as people read them, and the formats of rows.

Law: imports nothing heavy, since every command loads it.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from impctl.bench.quantity import number
from impctl.bench.record import number_or_name as number_or_name
from impctl.errors import UsageError

# Law: control characters of foreign text are escaped, so that it cannot control a terminal. Numbers
# have three digits and no exponent; a thousand of a unit is shown as one of the next, and the
# largest unit has a thousands separator.

_SIZES = ("B", "kB", "MB", "GB")
_LARGEST_SIZE = "TB"
_NEXT = 999.5
"""From here on, three digits show a thousand of the unit."""

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the order in which text is shown
    "\u2028\u2029]"  # line ends that only some programs know
)


Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def plain(text: str) -> str:
    """`text` with control characters (not tab and newline) escaped."""
    return text if text.isprintable() else CONTROL.sub(_escape, text)  # None of them is printable.


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


number_text = number
"""`0.123`, `12.3`, `1,235`."""


def duration_text(milliseconds: float) -> str:
    """In ms, s, min or h."""
    if milliseconds < _NEXT:
        return f"{number(milliseconds)} ms"
    seconds = milliseconds / 1000
    if seconds < 100:
        return f"{number(seconds)} s"
    minutes = seconds / 60
    return f"{number(minutes)} min" if minutes < _NEXT else f"{number(minutes / 60)} h"


def span_text(seconds: float) -> str:
    """A duration for people: `40 s`, `41 min`, `1 h 10`, `2.5 days`, `30 days`."""
    if seconds < 59.5:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest:02}" if rest else f"{hours} h"
    days = f"{round(minutes / 1440, 1 if hours < 240 else 0):,}"
    return f"{days.removesuffix('.0')} days"


def moment_text(instant: datetime) -> str:
    """A UTC instant to the second: `2026-11-27 10:41:58Z`."""
    return instant.strftime("%Y-%m-%d %H:%M:%SZ")


def size_text(count: int) -> str:
    """Bytes in the largest unit that keeps the number at 1 or more."""
    size = float(count)
    for unit in _SIZES:
        if size < _NEXT:
            return f"{number(size)} {unit}"
        size /= 1000
    return f"{number(size)} {_LARGEST_SIZE}"


def named_before(query: str, message: str) -> str:
    """The message as the end of a sentence that begins with the query's name, so that the query is
    named once."""
    name = f"[Qq]uery `{re.escape(query)}`"
    message = re.sub(rf"^{name}(?!\w)", "it", message)
    message = re.sub(rf"^The (\w+) of {name}", r"its \1", message)
    return re.sub(name, "the query", message)


ENDINGS = (".parquet", ".csv", ".jsonl")
"""File name endings, which choose the format."""


class RowsFormat(StrEnum):
    """How rows are shown."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


def ending_of(path: Path) -> str:
    """The ending of the file, in lower case; UsageError for one that names no format."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(
            f"`--out` does not support the file name extension of {path}",
            hint=f"name a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; other"
            " formats go to stdout, such as `--format json > FILE`",
            code="answer_ending",
        )
    return ending
