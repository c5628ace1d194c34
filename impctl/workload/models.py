"""What a workload file says, as frozen values: each key of the file is declared here, once."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from impctl.errors import Location
from impctl.types import ColumnName, ParameterValue, QueryName, Secrets, TableName
from impctl.workload.keys import key, spelled

if TYPE_CHECKING:
    from impctl.sql.names import FullName, TableNames

# Durations as people write them: `500ms`, `5s`, `2m`, `1h`, `7d` or `1 hour`, in flags and files.
# Law: a duration is positive and finite, in seconds; one parser serves flags and files alike. A
# file names the unit, since a bare number there would be guessed at; a flag without one is in
# seconds.

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
WORDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
"""The same in words, possibly several: `1 hour`, `2 days`."""

_TEXT = re.compile(rf"([0-9]+(?:\.[0-9]+)?)[ ]*(?:(ms|s|m|h|d)|({'|'.join(WORDS)})s?)?")
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


# Times of a crontab: five fields (minute, hour, day of month, month, day of week), or a word such
# as `@daily`. The library cronsim parses the fields and finds the times. Law: where both days are
# given (neither is `*`), a day that either names is one; else a day has to fit both. What never
# comes, as the 30th of February, is refused, and so are the letters that cronsim or other readers
# know (L, W, #, ?), each by its name.

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
    """A field: its bounds, and the names of its values from `least` on."""

    what: str
    least: int
    most: int
    names: tuple[str, ...] = ()


_FIELDS = (
    _CronField("minute", 0, 59),
    _CronField("hour", 0, 23),
    _CronField("day of month", 1, 31),
    _CronField("month", 1, 12, tuple("jan feb mar apr may jun jul aug sep oct nov dec".split())),
    _CronField("day of week", 0, 7, tuple("sun mon tue wed thu fri sat".split())),
)


class CronFault(Exception):
    """A text that is not a crontab time; never leaves this package."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Cron(Struct, frozen=True):
    """Times of a crontab: as in the file, and as cronsim reads them with the same meaning."""

    written: str
    expression: str

    def after(self, local: datetime) -> Iterator[datetime]:
        """The times after `local`, ascending; without a time zone, as `local`."""
        from cronsim import CronSim

        return iter(CronSim(self.expression, local))


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
    fields = [_plain(part, field) for part, field in zip(parts, _FIELDS, strict=True)]
    result = Cron(" ".join(parts), " ".join(fields))
    if not _is_cron(result.expression):
        raise CronFault("these times never occur", "none of these months has that many days")
    return result


def _plain(text: str, field: _CronField) -> str:
    """The field as cronsim reads it with the meaning that it has here."""
    plain = text if text == "*" else ",".join(_item(item, field) for item in text.split(","))
    if not _is_cron(" ".join(plain if other is field else "*" for other in _FIELDS)):
        raise CronFault(
            f"the {field.what} is not valid",
            f"use `*`, numbers from {field.least} to {field.most}, ascending ranges such as "
            "`1-5`, or steps above 0 such as `*/2`",
        )
    return plain


def _item(item: str, field: _CronField) -> str:
    body, slash, step = item.partition("/")
    first, dash, last = (_number(word, field) for word in body.partition("-"))
    if first == "*" and not dash:
        # cronsim requires both days where one begins with a star.
        first, dash, last = str(field.least), "-", str(field.most)
    elif field.what == "day of week" and last == "0" and first not in ("0", "7"):
        last = "7"
    elif dash and first == last and step.isdigit() and step.strip("0"):
        # One value, whatever the step; cronsim would go on to the highest one.
        return first
    return f"{first}{dash}{last}{slash}{step}"


def _number(word: str, field: _CronField) -> str:
    """The number of a name; numbers without leading zeros."""
    if word.isascii() and word.isdigit():
        return word.lstrip("0") or "0"
    if word.lower() in field.names:
        return str(field.least + field.names.index(word.lower()))
    for letter, meaning in _LETTERS.items():
        if letter in word.upper():
            raise CronFault(
                f"`{letter}` ({meaning}) in the {field.what} is not supported",
                "list the days, or use another trigger",
            )
    return word


def _is_cron(expression: str) -> bool:
    """Whether cronsim can read it and it has a time."""
    from cronsim import CronSim, CronSimError

    try:
        CronSim(expression, datetime.min)
    except (CronSimError, ValueError):
        return False
    return True


# What values look like in a file, and their limits.

NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
"""Names of queries and updates serve on a command line and in file names as they are."""

IDENTIFIER_PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,127}"
"""Names of parameters, and parts of a table's name without backticks."""

_PART = f"(?:{IDENTIFIER_PATTERN}|`[^`]+`)"
TABLE_PATTERN = rf"{_PART}(?:\.{_PART}){{0,2}}"
"""Names of tables and views: `sales`, `shop.sales`, ``main.`my shop`.sales``."""

SHARE_PATTERN = r"([0-9]{1,3}(?:\.[0-9]{1,6})?)[ ]*%"

MAX_RANGES = 100_000
"""Far below the limit of the engine (`engine.tags.RANGE_BITS`)."""
MAX_BOUNDARIES = MAX_RANGES - 1
MAX_BUFFER = 1_000_000
"""More than that is as good as keeping everything (`all`)."""
MAX_ROWS = 1_000_000_000_000
"""The limit of rows per change."""
MAX_NODES = 1_000_000_000
"""Some twenty gigabytes."""

_ROUNDS, _ROWS = 100_000, 20_000_000
_CELL = ("string", "number", "boolean")


def _json(*types: str, **more: str) -> Any:
    """Values of these types of JSON."""
    return Annotated[Any, Meta(extra_json_schema={"type": list(types), **more})]


def _text(pattern: str) -> Any:
    return Annotated[str, Meta(pattern=f"^{pattern}$")]


def _mapping(names: Any, values: Any, **limits: Any) -> Any:
    return Annotated[Mapping[names, values], Meta(**limits)]


def _columns(description: str, values: Any) -> Any:
    """A mapping by column, not empty."""
    names = Annotated[str, Meta(pattern=r"\S")]
    return _mapping(names, values, description=description, min_length=1)


def _described(written: Any, description: str) -> Any:
    return Annotated[written, Meta(description=description)]


_DURATION = _text(rf"\s*[0-9]+(\.[0-9]+)?[ ]*(ms|s|m|h|d|({'|'.join(WORDS)})s?)\s*")
Duration = Annotated[float, spelled("duration", _DURATION)]
Instant = Annotated[float, spelled("instant", Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d")])]
"""Seconds since 1970 of a date or a time."""
PathText = Annotated[str, spelled("path", str)]
Settings = Annotated[Secrets, spelled("settings", _mapping(str, _json(*_CELL)))]


# When a query is to be maintained. Law: a trigger is complete and can come true; `commit` and `use`
# stand alone, and what goes with something else stands beside it. Durations are seconds.


class SimpleTrigger(StrEnum):
    """A trigger without settings: after each commit, or when the sketch is used."""

    COMMIT = "commit"
    USE = "use"


class Trigger(Struct, frozen=True, kw_only=True):
    """When to maintain: at the first of these conditions."""

    clocks: ClassVar = ("every", "cron")
    any_of: ClassVar = ("fresh_within", "rows", *clocks, "point")

    alone: SimpleTrigger | None = None
    fresh_within: Annotated[
        Duration | None, key("Maximum time until a commit is in the sketch.")
    ] = None
    rows: Annotated[
        int | None,
        key(
            "When this many changed rows are pending, according to the tables' logs.",
            ge=1,
            le=MAX_ROWS,
            hint="write the number of changed rows that justify a run, for example 10000",
        ),
    ] = None
    every: Annotated[
        Duration | None,
        key("At multiples of this interval since midnight, from 1s to 1d.", reader="every"),
    ] = None
    cron: Annotated[
        Cron | None,
        key(
            f"A cron expression with five fields, or one of {', '.join(MACROS)}.",
            reader="cron",
            written=str,
        ),
    ] = None
    timezone: Annotated[
        str | None, key("Time zone of `every` and `cron`; default: UTC.", reader="zone")
    ] = None
    point: Annotated[
        str | None,
        key(
            "When `impctl maintain --point` gives this name.",
            reader="point",
            written=_text(NAME_PATTERN),
        ),
    ] = None
    ready_within: Annotated[
        Duration | None,
        key("Maintains ahead of time, so that at most this much work is left at the planned time."),
    ] = None
    cheap: Annotated[
        bool,
        key("Also maintains earlier, when nothing else is due and it takes less than a second."),
    ] = False

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


# The sections of the file. Law: a value here is complete and checked as far as the file alone
# allows: names refer to declared tables, paths are absolute or URIs, variables are resolved. Values
# that may hold secrets stay out of `repr`.

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


Absorption = Literal["absorption"]


class ProvenanceSpec(Struct, frozen=True):
    """Settings of the provenance."""

    ship: Annotated[
        ShipMode,
        key("Which derivations of a row are passed on: the first (lazy) or all (eager)."),
    ] = ShipMode.LAZY
    nodes: Annotated[
        int,
        key(
            "Maximum number of decision diagram nodes. Default: 5000000.",
            ge=1,
            le=MAX_NODES,
            hint="5000000 nodes take about 100 MB",
        ),
    ] = 5_000_000
    kind: Annotated[Absorption, key("Kind of provenance.", is_required=True)] = "absorption"


class ParameterMoves(StrEnum):
    """How often a parameter that sketches follow changes its value."""

    DAILY = "daily"
    HOURLY = "hourly"


_FOLLOWED = {
    ParameterMoves.DAILY: "current_date",
    ParameterMoves.HOURLY: "date_trunc('hour', current_timestamp)",
}
"""Names as in `sql.parameters`."""


class MovingParameter(Struct, frozen=True):
    """A time-dependent value."""

    moves: Annotated[ParameterMoves, key("How often it changes.")]


class ExpectedChanges(Struct, frozen=True):
    """Expected changes that the table's log does not show yet."""

    any_of: ClassVar = ("every", "rows", "deletes", "from", "until")

    every: Annotated[Duration | None, key("How often the table changes, such as 1h.")] = None
    rows: Annotated[
        int | None,
        key(
            "Rows per change.", ge=1, le=MAX_ROWS, hint="write the usual number of rows per change"
        ),
    ] = None
    deletes: Annotated[
        float,
        key(
            "Share of the rows that are deletions, such as 5%.",
            reader="share",
            written=_text(rf"\s*{SHARE_PATTERN}\s*"),
        ),
    ] = 0.0
    since: Annotated[Instant | None, key("Date or time from which this is expected.")] = field(
        default=None, name="from"
    )
    until: Annotated[Instant | None, key("Date or time before which this is expected.")] = None


class ExpirySpec(Struct, frozen=True):
    """A row expires this long after the time in its column. Rows with NULL there are never used."""

    column: Annotated[ColumnName, key("A column of type TIMESTAMP or DATE.")]
    after: Annotated[
        int,
        key("A duration such as `1 hour` or `7d`.", reader="microseconds", written=_DURATION),
    ]
    location: Location


Never = Literal["never"]
_CREDENTIALS = key(
    "Source of credentials for object stores. `options` (default): only `storage_options`. "
    "`ambient`: also the environment.",
    reader="credentials",
    written=Literal["options", "ambient"],
)


class TableSpec(Struct, frozen=True):
    """A Delta table."""

    name: TableName
    path: Annotated[
        PathText,
        key(
            "Folder of the table, relative to this file, or a URI. `catalog://shop.sales` is the "
            "location in Spark's catalog."
        ),
    ]
    storage_options: Annotated[
        Settings, key("Options passed to the object store unchanged.", is_required=False)
    ]
    location: Location
    names: Annotated[
        tuple[Annotated[str, Meta(description="A name with one to three parts.")], ...],
        key("Other names of the table, such as `shop.sales` or `main.shop.sales`."),
    ] = ()
    ambient: Annotated[bool, _CREDENTIALS] = field(default=False, name="credentials")
    """Whether credentials may come from the environment of the process."""
    coming: Annotated[
        tuple[ExpectedChanges, ...] | None,
        key(
            "Expected changes: `never`, or how often and how large.",
            reader="changes",
            written=_described(Never, "The table does not change.")
            | ExpectedChanges
            | Annotated[tuple[ExpectedChanges, ...], Meta(min_length=1)],
        ),
    ] = field(default=None, name="changes")
    """None of them if the table never changes; None if the file says nothing."""
    expiry: Annotated[ExpirySpec | None, key(reader="expiry")] = None
    """Queries see the rows that are live only."""
    clone_of: Annotated[
        tuple[
            Annotated[PathText, Meta(description="A folder, relative to this file, or a URI.")], ...
        ],
        key(
            "Folders of the tables that this table is a shallow clone of. Without this key, a log "
            "may not list files outside the table's folder."
        ),
    ] = ()

    @property
    def never_changes(self) -> bool:
        return self.coming == ()


class PartitionSpec(Struct, frozen=True):
    """A range partition of the column."""

    one_of: ClassVar = ("boundaries", "ranges", "fragments")

    table: TableName
    column: ColumnName
    boundaries: Annotated[
        tuple[BoundaryLiteral, ...] | None,
        key(
            "Values that split the column, strictly increasing; n values make n + 1 ranges.",
            reader="boundaries",
            written=tuple[_json("number", "string"), ...],
            min_length=1,
            max_length=MAX_BOUNDARIES,
        ),
    ]
    ranges: Annotated[
        int | None,
        key(
            "Number of ranges, with about the same number of rows in each.",
            ge=1,
            le=MAX_RANGES,
            hint="16 to 1000 suit most tables",
            old_name="fragments",
        ),
    ]
    location: Location
    is_old_key: bool = False
    """Whether the file uses `fragments`, which is accepted until the first release."""


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


class QuerySettings(Struct, frozen=True, kw_only=True):
    """Settings of all queries that do not set their own."""

    policy: Annotated[
        Policy, key("What `maintain` may do when the sketch cannot be maintained exactly.")
    ] = Policy.AUTO
    maintain: Annotated[
        MaintainMode,
        key("When to maintain: with every batch (eager), or when the sketch is needed (lazy)."),
    ] = MaintainMode.LAZY
    join: Annotated[
        JoinStrategy,
        key(
            "Where joins find the rows that match changed rows: in a stored index, in the tables' "
            "files, or through Spark. With `tree`, joined rows are never stored."
        ),
    ] = JoinStrategy.AUTO
    state: Annotated[
        StateKept | None,
        key(
            "State to keep whatever the budget: all (keep), or only what cannot be replaced "
            "(least). Not with `join`."
        ),
    ] = None
    buffer: Annotated[
        int | Everything | None,
        key(
            "Values or rows that MIN, MAX and top-k store per group. When deletions exhaust them, "
            "impctl reads more from the table. Default: 1000 if all rows are one group, otherwise "
            "all.",
            ge=1,
            le=MAX_BUFFER,
            hint=f"100 to 10000 suit most queries; `{EVERYTHING}` keeps everything",
        ),
    ] = None
    lineage: Annotated[
        LineageMode,
        key(
            "Rows that the sketch covers. `all`: all rows the result is derived from. `witness`: "
            "for MIN, MAX, DISTINCT and EXISTS, only the deciding rows. `answer`: for a "
            "recursion, only rows the result is derived from. Sketches with `witness` or `answer` "
            "cannot be reused for other constants or columns."
        ),
    ] = LineageMode.ALL
    answer: Annotated[
        bool,
        key(
            "Whether to store and maintain the query's result as well: `query` then answers from "
            "state."
        ),
    ] = False
    trigger: Annotated[
        Trigger | None,
        key(
            "When to maintain the query: after each commit (default), when its sketch is used, or "
            "at the conditions in a mapping.",
            reader="trigger",
            written=SimpleTrigger | Trigger,
        ),
    ] = None


NO_SKETCH = "none"


class QuerySpec(QuerySettings, frozen=True, kw_only=True):
    """A query that impctl maintains sketches for."""

    name: QueryName
    location: Location
    sql: Annotated[str, key("The query in Spark SQL.", reader="sql")]
    sql_origin: SqlOrigin
    params: Annotated[
        Mapping[str, ParameterValue],
        key(
            "Values of the named parameters (`:name`) in the SQL. A sketch is captured for these "
            "values; `--param NAME=VALUE` sets others of the same type. A time-dependent parameter "
            "is the current day or hour, and sketches are maintained as it changes.",
            reader="params",
            written=_mapping(_text(IDENTIFIER_PATTERN), _json(*_CELL) | MovingParameter),
        ),
    ] = field(default_factory=dict)
    moves: Mapping[str, ParameterMoves] = field(default_factory=dict)
    """The parameters that sketches follow."""
    sketch: Annotated[
        Mapping[TableName, ColumnName],
        key(
            "The column to sketch, per table; it must be safe for the query. Or `none` for a query "
            "without a sketch.",
            reader="sketch",
            written=Literal["none"] | _mapping(str, _described(str, "A column of the table.")),
        ),
    ] = field(default_factory=dict)
    """Empty if impctl chooses."""
    is_sketched: bool = True
    """False for `sketch: none`."""
    provenance: Annotated[
        ProvenanceSpec | None,
        key(
            "Maintains WITH RECURSIVE by absorption: the state stores, for each row, a Boolean "
            "function of the table rows it depends on. `why` reads it. Needs the extra `bdd`.",
            reader="provenance",
            written=_described(
                Absorption, "Absorption with `ship: lazy` and the default number of nodes."
            )
            | ProvenanceSpec,
        ),
    ] = None
    lineage_place: Location | None = None
    """Where the query itself sets `lineage`."""

    @property
    def follows(self) -> dict[str, str]:
        """The moment of each parameter that moves, unless another value is given."""
        return {name: _FOLLOWED[moves] for name, moves in self.moves.items()}


_TABLE = key("A declared table.", reader="declared")
_WHERE = key("SQL condition for the rows to change.")


class InsertSpec(Struct, frozen=True):
    """Insert rows."""

    one_of: ClassVar = ("rows", "file")

    name: str
    table: Annotated[TableName, _TABLE]
    rows: Annotated[
        tuple[Mapping[ColumnName, CellValue], ...] | None,
        key(
            "Rows to insert, each a mapping of columns to values.",
            reader="rows",
            written=tuple[_columns("A row.", _json(*_CELL, "null")), ...],
            min_length=1,
        ),
    ]
    file: Annotated[PathText | None, key("File with the rows, relative to this file.")]
    location: Location


class DeleteSpec(Struct, frozen=True):
    """Delete rows."""

    name: str
    table: Annotated[TableName, _TABLE]
    where: Annotated[str, _WHERE]
    location: Location


class ChangeSpec(Struct, frozen=True):
    """Update rows; without `where`, all rows."""

    name: str
    table: Annotated[TableName, _TABLE]
    assignments: Annotated[
        Mapping[ColumnName, str],
        key(
            reader="assignments",
            written=_columns(
                "Columns to set, each to an SQL expression. Text and times therefore need their "
                "own quotes, as in \"'Berlin'\" or \"TIMESTAMP '2026-01-31 12:00:00'\".",
                _json(*_CELL, pattern=r"\S"),
            ),
        ),
    ] = field(name="set")
    where: Annotated[str | None, _WHERE]
    location: Location
    places: Mapping[ColumnName, Location]
    """The position of each column's value."""


UpdateSpec = InsertSpec | DeleteSpec | ChangeSpec
"""One update batch of the workload; `apply` commits each as one table version."""


class UpdateEntry(Struct, frozen=True):
    """One batch."""

    one_of: ClassVar = ("insert", "delete", "update")

    name: Annotated[str, key("Name of the batch.", written=_text(NAME_PATTERN))]
    insert: Annotated[InsertSpec | None, key(reader="insert")] = None
    delete: Annotated[DeleteSpec | None, key(reader="delete")] = None
    update: Annotated[ChangeSpec | None, key(reader="update")] = None


class SparkSpec(Struct, frozen=True):
    """Settings of the Spark session."""

    master: Annotated[str | None, key("Master of the cluster, for example `local[*]`.")]
    conf: Annotated[Settings, key("Spark settings by full name.", reader="spark_settings")] = field(
        default_factory=Secrets
    )


class BudgetSpec(Struct, frozen=True):
    """Limits for the state of all queries."""

    disk: Annotated[
        int | None,
        key(
            "Limit for the state of all queries on disk, such as 500MB or 2GB; 0 keeps the "
            "minimum.",
            reader="size",
            written=_json("string", "integer", pattern=r"\S"),
        ),
    ] = None
    """Bytes; None is unlimited."""
    memory: Annotated[
        str | None,
        key(
            "Memory limit of a process: 500MB, 2GB, or 25% of the machine's memory.",
            reader="memory",
            written=_json("string", "integer", pattern=r"\S"),
        ),
    ] = None
    """As written, since the machine is another one now and then."""


class LimitSpec(Struct, frozen=True):
    """Limits of WITH RECURSIVE with UNION; beyond them the query fails with `recursion_limit`."""

    rounds: Annotated[
        int,
        key(
            f"Rounds in one run; default: {_ROUNDS}.",
            ge=1,
            le=2**62,
            hint=f"the default is {_ROUNDS}",
        ),
    ] = _ROUNDS
    rows: Annotated[
        int,
        key(f"Rows derived; default: {_ROWS}.", ge=1, le=2**62, hint=f"the default is {_ROWS}"),
    ] = _ROWS


class Workload(Struct, frozen=True, kw_only=True):
    """All sections of a workload file; mappings keep the order of the file."""

    file: str
    name: Annotated[
        str, key("Name of the workload; default: the name of the file.", is_required=False)
    ]
    catalog: Annotated[
        str | None,
        key("Catalog of table names without one; default: `spark_catalog`.", reader="part"),
    ] = None
    schema: Annotated[
        str | None, key("Schema of table names without one; default: `default`.", reader="part")
    ] = None
    ambient: Annotated[bool, _CREDENTIALS] = field(default=False, name="credentials")
    tables: Annotated[
        Mapping[TableName, TableSpec],
        key(
            "Delta tables under the names that the SQL uses.",
            written=_mapping(_text(TABLE_PATTERN), TableSpec),
            min_length=1,
        ),
    ]
    names: "TableNames"
    views: Annotated[
        Mapping["FullName", ViewSpec],
        key(
            "Views: named SELECT statements that queries and other views can read.",
            written=_mapping(_text(TABLE_PATTERN), _described(str, "A SELECT in Spark SQL.")),
        ),
    ] = field(default_factory=dict)
    defaults: Annotated[QuerySettings, key()] = QuerySettings()
    partitions: Annotated[
        tuple[PartitionSpec, ...],
        key(
            "Candidate partitions by table and column; impctl proposes the others.",
            written=_mapping(str, _columns("Columns of the table.", PartitionSpec)),
        ),
    ] = ()
    queries: Annotated[
        Mapping[QueryName, QuerySpec],
        key(
            "Queries, each with a name of your choice.",
            written=_mapping(_text(NAME_PATTERN), QuerySpec),
            min_length=1,
        ),
    ]
    updates: Annotated[
        tuple[UpdateSpec, ...],
        key(
            "Batches that `impctl apply` commits as new table versions.",
            written=tuple[UpdateEntry, ...],
        ),
    ] = ()
    store: Annotated[
        str,
        key(
            "Folder for sketches and state; default: `.impctl` next to this file.",
            reader="store",
            is_required=False,
        ),
    ]
    budget: Annotated[BudgetSpec, key()] = BudgetSpec()
    limits: Annotated[LimitSpec, key()] = LimitSpec()
    spark: Annotated[SparkSpec, key()] = SparkSpec(None, Secrets())


class WorkloadFile(Workload, frozen=True, kw_only=True):
    """Tables, queries and update batches that impctl works on. Any value may contain `${VAR}` or
    `${VAR:-default}`; `$$` is a literal `$`."""

    version: Annotated[
        Literal[1], key("Version of this file format: 1.", reader="version", is_required=True)
    ] = 1


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
