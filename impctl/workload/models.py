"""What a workload file says, as frozen values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, field

from impctl.types import Secrets

if TYPE_CHECKING:
    from impctl.errors import Location
    from impctl.sql.names import FullName, TableNames
    from impctl.types import ColumnName, ParameterValue, QueryName, TableName

# Durations as people write them: `500ms`, `5s`, `2m`, `1h`, `7d` or `1 hour`, in flags and files.
# Law: a duration is positive and finite, in seconds; one parser serves flags and files alike. A
# file names the unit, since a bare number there would be guessed at; a flag without one is in
# seconds.

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
WORDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
"""The same in words, possibly several: `1 hour`, `2 days`."""
DURATION_PATTERN = rf"[0-9]+(\.[0-9]+)?[ ]*(ms|s|m|h|d|({'|'.join(WORDS)})s?)"
"""For the JSON Schema of a file."""

_TEXT = re.compile(rf"([0-9]+(?:\.[0-9]+)?)[ ]*(?:(ms|s|m|h|d|)|({'|'.join(WORDS)})s?)")
_LONGEST = 1e9


def seconds_in(text: str, *, needs_unit: bool = False) -> float | None:
    """The seconds that `text` means; None if it is no duration."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or (needs_unit and not match[2] and not match[3]):
        return None
    value = float(match[1]) * (WORDS[match[3]] if match[3] else UNITS.get(match[2], 1.0))
    return value if 0 < value < _LONGEST else None


@lru_cache(maxsize=64)  # a few values, many times
def written(seconds: float) -> str:
    """The duration as in a file, in the largest unit with a whole number."""
    for unit, size in reversed(UNITS.items()):
        count = round(seconds / size)
        if count and abs(count * size - seconds) < 1e-9 * max(1.0, seconds):
            return f"{count}{unit}"
    return f"{seconds:.3f}s"


# Times of a crontab: five fields, or a word such as `@daily`.     minute 0-59 | hour 0-23 | day
# of month 1-31 | month 1-12, jan-dec | day of week 0-7, sun-sat
#
# A field is `*`, a number, a name, a range `a-b`, any of these with a step `/n` (`a/n`: from `a`
# on), or several with commas. 0 and 7 are both Sunday. Law: where both days are given (neither is
# `*`), a day that either names is one; else a day has to fit both. What never comes, as the 30th
# of February, is refused, and so are the letters of other readers (L, W, #, ?), each by its name.

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
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
    """A text that is not a crontab time; never leaves this module."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Cron(Struct, frozen=True):
    """Minutes, hours, days of the month, months and days of the week (0 Sunday), each ascending.
    `either` means that a day need match only one of its two fields."""

    written: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool

    def has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        is_day = day.day in self.days
        is_weekday = day.isoweekday() % _SUNDAY in self.weekdays
        return is_day or is_weekday if self.either else is_day and is_weekday


class _CronField(Struct, frozen=True):
    """A field: its bounds, and the names of its values from `least` on."""

    what: str
    least: int
    most: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _CronField("minute", 0, 59),
    _CronField("hour", 0, 23),
    _CronField("day of month", 1, 31),
    _CronField("month", 1, 12, _MONTHS),
    _CronField("day of week", 0, _SUNDAY, _WEEKDAYS),
)


def read_cron(text: str) -> Cron:
    """Parse crontab times; `CronFault` for anything else."""
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
    minutes, hours, days, months, weekdays = map(_values, parts, _FIELDS)
    is_either = parts[2] != "*" and parts[4] != "*"
    sundays = tuple(sorted({day % _SUNDAY for day in weekdays}))
    result = Cron(" ".join(parts), minutes, hours, days, months, sundays, is_either)
    if not is_either and min(days) > max(_LONGEST_MONTH[month - 1] for month in months):
        raise CronFault("these times never occur", "none of these months has that many days")
    return result


def _values(text: str, field: _CronField) -> tuple[int, ...]:
    return tuple(sorted({value for item in text.split(",") for value in _item(item, field)}))


def _item(text: str, field: _CronField) -> range:
    """The values of one item between commas."""
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


def _value(text: str, item: str, field: _CronField) -> int:
    """A number or a name within the bounds of its field."""
    name = text.lower()
    is_named = name in field.names
    value = field.least + field.names.index(name) if is_named else _number(text, item, field)
    if not field.least <= value <= field.most:
        raise CronFault(
            f"the {field.what} is out of range", f"use a value from {field.least} to {field.most}"
        )
    return value


def _number(text: str, item: str, field: _CronField) -> int:
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


# When a query is to be maintained, as its file says it: frozen values. Law: a trigger here is
# complete and can come true; `commit` and `use` stand alone, and what goes with something else
# stands beside it. Durations are seconds.


class SimpleTrigger(StrEnum):
    """A trigger without settings: after each commit, or when the sketch is used."""

    COMMIT = "commit"
    USE = "use"


class Trigger(Struct, frozen=True, kw_only=True):
    """When to maintain: the first that occurs of what is not None. `rows` pending, a multiple of
    `every` since midnight, a time of `cron`, at most `fresh_within` after a commit, or when the
    `point` is named. `cheap`: earlier, if nothing else is due. `ready_within` bounds the work left
    then."""

    alone: SimpleTrigger | None = None
    rows: int | None = None
    every: float | None = None
    cron: Cron | None = None
    timezone: str | None = None
    fresh_within: float | None = None
    point: str | None = None
    ready_within: float | None = None
    cheap: bool = False

    @property
    def is_on_commit(self) -> bool:
        return self.alone is SimpleTrigger.COMMIT

    @property
    def zone(self) -> tzinfo:
        """The time zone of `every` and `cron`."""
        result = zone_named(self.timezone or "UTC")
        assert result is not None, "a trigger with an unknown time zone is refused when it is read"
        return result

    @property
    def text(self) -> str:
        """The trigger as in the file."""
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        if self.alone is not None:
            yield str(self.alone)
        if self.fresh_within is not None:
            yield f"fresh_within {written(self.fresh_within)}"
        if self.rows is not None:
            yield f"rows {self.rows}"
        where = "" if self.timezone is None else f" {self.timezone}"
        if self.every is not None:
            yield f"every {written(self.every)}{where}"
        if self.cron is not None:
            yield f"cron {self.cron.written}{where}"
        if self.point is not None:
            yield f"point {self.point}"
        if self.ready_within is not None:
            yield f"ready_within {written(self.ready_within)}"
        if self.cheap:
            yield "cheap"


ON_COMMIT = Trigger(alone=SimpleTrigger.COMMIT)


def zone_named(name: str) -> tzinfo | None:
    """The time zone; None if this machine does not know it. `UTC` needs no zone database."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


# What a workload file says, as frozen values. Law: a value here is complete and checked as far as
# the file alone allows: names refer to declared tables, paths are absolute or URIs, variables are
# resolved. Values that may hold secrets stay out of `repr`.

CellValue = int | float | str | bool | date | datetime | None
"""A value of a row to insert, as the file types it; the table's column type decides later."""

BoundaryLiteral = int | float | str | date | datetime
"""A boundary as written; decimals wider than a double are written as text."""


class Policy(StrEnum):
    """What `maintain` may do if a query cannot be maintained exactly."""

    AUTO = "auto"
    INCREMENTAL = "incremental"
    STRICT = "strict"
    FULL = "full"


class SketchPolicy(StrEnum):
    """Whether a query is read through its sketch: if it pays, always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class AnsweredBy(StrEnum):
    """What answers a query: its materialized result, the engine, Spark, or the fastest possible."""

    AUTO = "auto"
    STATE = "state"
    ENGINE = "engine"
    SPARK = "spark"


class MaintainMode(StrEnum):
    """Steps of maintenance: one per batch, or one for all of them."""

    EAGER = "eager"
    LAZY = "lazy"


class JoinStrategy(StrEnum):
    """Where a join finds matching rows: in an index, in files, through Spark, by sizes; or
    nowhere."""

    AUTO = "auto"
    INDEX = "index"
    FILES = "files"
    SPARK = "spark"
    SPARK_UNFILTERED = "spark_unfiltered"
    """Without a filter of the keys first, to measure what the filter saves."""
    TREE = "tree"
    """Counts and sums go up a tree of the tables, decisions come down, without joining."""


class StateKept(StrEnum):
    """Which state a query keeps, whatever the budget."""

    KEEP = "keep"
    LEAST = "least"
    """Only what nothing can replace is kept."""


Everything = Literal["all"]
EVERYTHING: Final[Everything] = "all"
"""The value of a query's `buffer` that keeps everything."""


class LineageMode(StrEnum):
    """Which rows a sketch covers: all that the answer derives from, and all rows of recursions;
    those that decide the answer; or, also of recursions, only what the answer derives from."""

    ALL = "all"
    WITNESS = "witness"
    ANSWER = "answer"


class ShipMode(StrEnum):
    """The provenance of a row that is passed on: its first derivation, or the whole function."""

    LAZY = "lazy"
    EAGER = "eager"


class ProvenanceSpec(Struct, frozen=True):
    """Recursion is maintained by absorption, with at most `nodes` of decision diagrams."""

    ship: ShipMode = ShipMode.LAZY
    nodes: int = 5_000_000


class ParameterMoves(StrEnum):
    """How often a parameter that sketches follow changes its value."""

    DAILY = "daily"
    HOURLY = "hourly"


_FOLLOWED = {
    ParameterMoves.DAILY: "current_date",
    ParameterMoves.HOURLY: "date_trunc('hour', current_timestamp)",
}
"""Names as in `sql.parameters`."""


class ExpectedChanges(Struct, frozen=True):
    """Expected changes of a table; None is unspecified. One `every` so many seconds, of so many
    `rows`, the share `deletes` of them deleted; from `since` to before `until`, in seconds since
    1970."""

    every: float | None
    rows: int | None
    deletes: float
    since: float | None
    until: float | None


class ExpirySpec(Struct, frozen=True):
    """Rows of a table are live until `after` microseconds after their `column`."""

    column: ColumnName
    after: int
    location: Location


class TableSpec(Struct, frozen=True):
    """A Delta table; `path` is absolute or a URI, `names` are its other names in SQL. `coming` are
    the changes that the file expects: none if it says that the table never changes, None if it says
    nothing. With an `expiry` queries see its live rows only."""

    name: TableName
    path: str
    storage_options: Secrets
    location: Location
    names: tuple[str, ...] = ()
    ambient: bool = False
    """Whether credentials may come from the environment of the process."""
    coming: tuple[ExpectedChanges, ...] | None = None
    expiry: ExpirySpec | None = None
    clone_of: tuple[str, ...] = ()
    """Absolute paths or URIs of tables whose files the log of a shallow clone may name."""

    @property
    def never_changes(self) -> bool:
        return self.coming == ()


class PartitionSpec(Struct, frozen=True):
    """A candidate partition: either `boundaries`, or a number of equi-depth `ranges`. `is_old_key`:
    the file uses `ranges`, the old name of that key."""

    table: TableName
    column: ColumnName
    boundaries: tuple[BoundaryLiteral, ...] | None
    ranges: int | None
    location: Location
    is_old_key: bool = False


class SqlRun(Struct, frozen=True):
    """Characters of a scalar from `offset` on that are contiguous on one line of the file."""

    offset: int
    line: int
    column: int


class TextPiece(Struct, frozen=True):
    """A piece of resolved text: literal from `source` on, or the value of a variable there."""

    offset: int
    source: int
    is_literal: bool


class SqlOrigin(Struct, frozen=True):
    """Where a SQL text is in the file; without `runs` only its start is known."""

    start: Location
    runs: tuple[SqlRun, ...]
    pieces: tuple[TextPiece, ...]


class ViewSpec(Struct, frozen=True):
    """A SELECT text under a name that queries and other views may read as a table."""

    name: TableName
    sql: str
    location: Location
    sql_origin: SqlOrigin


class QuerySpec(Struct, frozen=True, kw_only=True):
    """One query; `sketch` names the attribute per table and is empty if impctl chooses. `params`
    are the values of the named parameters in `sql`, for which sketches are captured; `moves` are
    the parameters that sketches follow. `buffer` is how many values or rows MIN, MAX and top-k keep
    per group, `all` of them, or the default (None). `lineage` is the kind of rows that the sketch
    holds (`LineageMode`); `lineage_place` is where the query itself says so, None if it does not.
    `is_sketched` is false for `sketch: none`; `answer` means that the result is materialized too.
    `trigger` says when the query is maintained, `state` which of its state is kept; None if the
    file does not. `provenance` means that recursion is maintained by absorption."""

    name: QueryName
    sql: str
    sketch: Mapping[TableName, ColumnName]
    policy: Policy
    maintain: MaintainMode
    join: JoinStrategy
    location: Location
    sql_origin: SqlOrigin
    params: Mapping[str, ParameterValue] = field(default_factory=dict)
    moves: Mapping[str, ParameterMoves] = field(default_factory=dict)
    buffer: int | Everything | None = None
    lineage: LineageMode = LineageMode.ALL
    lineage_place: Location | None = None
    is_sketched: bool = True
    answer: bool = False
    trigger: Trigger | None = None
    state: StateKept | None = None
    provenance: ProvenanceSpec | None = None

    @property
    def follows(self) -> dict[str, str]:
        """The moment of each parameter that moves, unless another value is given."""
        return {name: _FOLLOWED[moves] for name, moves in self.moves.items()}


class InsertSpec(Struct, frozen=True):
    """A batch of new rows: written out (`rows`), or in a file beside the workload (`file`)."""

    name: str
    table: TableName
    rows: tuple[Mapping[ColumnName, CellValue], ...] | None
    file: str | None
    location: Location


class DeleteSpec(Struct, frozen=True):
    """A batch that deletes the rows for which `where` is true."""

    name: str
    table: TableName
    where: str
    location: Location


class ChangeSpec(Struct, frozen=True):
    """A batch that sets columns to SQL expressions, on all rows or where `where` is true."""

    name: str
    table: TableName
    assignments: Mapping[ColumnName, str]
    where: str | None
    location: Location
    places: Mapping[ColumnName, Location]
    """The position of each column's value."""


UpdateSpec = InsertSpec | DeleteSpec | ChangeSpec
"""One update batch of the workload; `apply` commits each as one table version."""


class SparkSpec(Struct, frozen=True):
    """Settings of the Spark session; `master` is None if the file does not say."""

    master: str | None
    conf: Secrets


class BudgetSpec(Struct, frozen=True):
    """Limits of the state of all queries: bytes on `disk`; None is unlimited. `memory` is the limit
    of a process, as written: a size, or a share of the machine's such as `25%`."""

    disk: int | None = None
    memory: str | None = None


class LimitSpec(Struct, frozen=True):
    """Limits of WITH RECURSIVE of UNION: rounds at once, and rows derived."""

    rounds: int = 100_000
    rows: int = 20_000_000


class Workload(Struct, frozen=True, kw_only=True):
    """A whole workload file; mappings keep the order of the file."""

    name: str
    file: str
    tables: Mapping[TableName, TableSpec]
    names: TableNames
    views: Mapping[FullName, ViewSpec]
    partitions: tuple[PartitionSpec, ...]
    queries: Mapping[QueryName, QuerySpec]
    updates: tuple[UpdateSpec, ...]
    store: str
    spark: SparkSpec
    budget: BudgetSpec = BudgetSpec()
    limits: LimitSpec = LimitSpec()


DEFAULT_FILE = Path("impctl.yaml")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""Any number of slashes, as a `Path` keeps only one; a single letter is a drive."""


def store_path_problem(written: str) -> tuple[str, str] | None:
    """What is wrong with `written` as the place of a store, and a hint; None for a folder. A store
    requires locks and atomic renames, which object stores lack: a URI is not read as a folder's
    name."""
    match = _SCHEME.match(written)
    if match is None:
        return None
    scheme, rest = match.groups()
    if scheme.lower() == "file":
        return f"A store cannot be at a URI: file:///{rest}", f"write the path: /{rest}"
    hint = "give a folder on this machine; only tables can be in an object store"
    return f"A store cannot be at a URI: {scheme}://{rest}", hint
