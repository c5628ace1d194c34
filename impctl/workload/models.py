"""What a workload file says, as frozen values: each key of the file is declared here, once."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, tzinfo
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Union,
    get_args,
    get_origin,
)

from msgspec import NODEFAULT, Meta, Struct, field

from impctl.errors import Location
from impctl.types import ColumnName, ParameterValue, QueryName, Secrets, TableName
from impctl.workload.scalars import (
    DURATION_PATTERN,
    MACROS,
    SHARE_PATTERN,
    CellValue,
    Cron,
    ScalarFault,
    YamlScalar,
    cron_from,
    deletions_from,
    disk_from,
    duration_from,
    instant_from,
    interval_from,
    memory_from,
    microseconds_from,
    written,
    zone_from,
    zone_named,
)

if TYPE_CHECKING:
    from impctl.sql.names import FullName, TableNames

# How models declare the keys of the file; the reader and the JSON Schema derive from it. A field of
# a struct whose annotation has a `key` is a key of the file, under the field's name or the one of
# `field(name=...)`. Its type says what the file may hold, `Meta` what limits it. Other fields are
# filled in by the reader. Struct docstrings describe the mappings in the JSON Schema.

JsonSchema = dict[str, object]
Reader = str | Callable[[YamlScalar], Any]

_LIMITS = ("ge", "le", "min_length", "max_length", "extra_json_schema", "description")


def key(description: str = "", **extra: Any) -> Meta:
    """A key of the file. Without a description, the docstring of its struct is the description.

    - `reader`: as for `spelled`, for a type with its usual form.
    - `old_name`: accepted as well.
    - `is_required`: overrides that keys without a default, or None as one, are required.
    - `min_length`, `max_length`: limits of a list or a mapping.
    """
    limits = {name: extra.pop(name) for name in _LIMITS if name in extra}
    return Meta(description=description or None, extra={"is_key": True, **extra}, **limits)


def whole(most: int, hint: str) -> Meta:
    """A whole number from 1 to `most`; `hint` is what to write instead of another one."""
    return Meta(ge=1, le=most, extra={"hint": hint})


def spelled(reader: Reader, written: Any, expected: str = "text") -> Meta:
    """A value with a special form in the file. `reader` is a function of a scalar, which `expected`
    describes in messages, or the name of a reader of nodes in `workload.sections`; `written` is the
    type in the file."""
    return Meta(extra={"reader": reader, "written": written, "expected": expected})


class ValueKind(Struct, frozen=True):
    """The type of a value, with its `Meta`s combined."""

    options: tuple[Any, ...]
    """The types of a union, without None."""
    is_optional: bool
    limits: dict[str, Any]
    """Arguments of `Meta`, the outermost first."""
    extra: dict[str, Any]


class Key(Struct, frozen=True):
    name: str
    field: str
    kind: ValueKind
    is_required: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The key and its old name."""
        old = self.kind.extra.get("old_name")
        return (self.name,) if old is None else (self.name, old)


def kind_of(annotation: Any) -> ValueKind:
    limits: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    options, is_optional = (annotation,), False
    while len(options) == 1:
        (inner,) = options
        if get_origin(inner) is Annotated:
            # The outermost is the most specific.
            for meta in reversed(inner.__metadata__):
                declared = {name: getattr(meta, name) for name in _LIMITS}
                limits = {**{k: v for k, v in declared.items() if v is not None}, **limits}
                extra = {**(meta.extra or {}), **extra}
            options = (inner.__origin__,)
        elif get_origin(inner) in (Union, UnionType):
            parts = get_args(inner)
            is_optional = NoneType in parts
            options = tuple(part for part in parts if part is not NoneType)
        else:
            break
    return ValueKind(options, is_optional, limits, extra)


@cache
def keys_of(model: type[Struct]) -> tuple[Key, ...]:
    """The keys that the fields of a struct declare, in their order; inherited ones come last."""
    encoded = dict(zip(model.__struct_fields__, model.__struct_encode_fields__, strict=True))
    with_default = {
        name
        for name, default in zip(
            reversed(model.__struct_fields__), reversed(model.__struct_defaults__), strict=False
        )
        if default is not NODEFAULT
    }
    result: list[Key] = []
    for base in model.__mro__:
        for name, annotation in getattr(base, "__annotations__", {}).items():
            kind = kind_of(annotation)
            if "is_key" in kind.extra:
                is_optional = kind.is_optional or name in with_default
                is_required = kind.extra.get("is_required", not is_optional)
                result.append(Key(encoded[name], name, kind, is_required))
    return tuple(result)


# What values look like in a file, and their limits.

NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
"""Names of queries and updates serve on a command line and in file names as they are."""
NAME_HINT = "use letters, digits, `_`, `-` and `.`, at most 128 characters"

IDENTIFIER_PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,127}"
"""Names of parameters, and parts of a table's name without backticks."""

_PART = f"(?:{IDENTIFIER_PATTERN}|`[^`]+`)"
TABLE_PATTERN = rf"{_PART}(?:\.{_PART}){{0,2}}"
"""Names of tables and views: `sales`, `shop.sales`, ``main.`my shop`.sales``."""

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
    kind = types[0] if len(types) == 1 else list(types)
    return Annotated[Any, Meta(extra_json_schema={"type": kind, **more})]


def _text(pattern: str) -> Any:
    # As a limit of `Meta`, the pattern would be compiled whenever this module is loaded.
    return _json("string", pattern=f"^{pattern}$")


def _name_of(what: str) -> Callable[[YamlScalar], str]:
    """A reader of names that serve on a command line."""

    def read(scalar: YamlScalar) -> str:
        if re.fullmatch(NAME_PATTERN, scalar.written) is None:
            raise ScalarFault(f"{{text}} cannot be the name of {what}", NAME_HINT)
        return scalar.written

    return read


def _mapping(names: Any, values: Any, **limits: Any) -> Any:
    return Annotated[Mapping[names, values], Meta(**limits)]


def _columns(description: str, values: Any) -> Any:
    """A mapping by column, not empty."""
    return _mapping(_json("string", pattern=r"\S"), values, description=description, min_length=1)


def _described(written: Any, description: str) -> Any:
    return Annotated[written, Meta(description=description)]


_DURATION, _LENGTH = _text(DURATION_PATTERN), "a duration such as 10m"
_INSTANT = _json("string", pattern=r"^\d{4}-\d\d-\d\d")
_SIZE = _json("string", "integer", pattern=r"\S")

Duration = Annotated[float, spelled(duration_from, _DURATION, _LENGTH)]
Instant = Annotated[float, spelled(instant_from, _INSTANT, "a date such as 2026-12-01")]
"""Seconds since 1970 of a date or a time."""
PathText = Annotated[str, spelled("path", str)]
Settings = Annotated[Secrets, spelled("settings", _mapping(str, _json(*_CELL)))]


# When to maintain a query. Law: `commit` and `use` have no other settings; keys that need another
# key have it. Durations are seconds.


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
        key("When this many changed rows are pending, according to the tables' logs."),
        whole(MAX_ROWS, "write the number of changed rows that justify a run, for example 10000"),
    ] = None
    every: Annotated[
        Duration | None,
        key("At multiples of this interval since midnight, from 1s to 1d.", reader=interval_from),
    ] = None
    cron: Annotated[
        Cron | None,
        key(f"A cron expression with five fields, or one of {', '.join(MACROS)}."),
        spelled(cron_from, str),
    ] = None
    timezone: Annotated[
        str | None, key("Time zone of `every` and `cron`; default: UTC.", reader=zone_from)
    ] = None
    point: Annotated[
        str | None,
        key("When `impctl maintain --point` gives this name."),
        spelled(_name_of("a point"), _text(NAME_PATTERN)),
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


# The sections of the file. Law: values are checked as far as the file alone allows: names refer to
# declared tables, paths are absolute or URIs, variables are resolved. `repr` shows no secrets.

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
        ShipMode, key("Which derivations of a row are passed on: the first (lazy) or all (eager).")
    ] = ShipMode.LAZY
    nodes: Annotated[
        int,
        key("Maximum number of decision diagram nodes. Default: 5000000."),
        whole(MAX_NODES, "5000000 nodes take about 100 MB"),
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
        key("Rows per change."),
        whole(MAX_ROWS, "write the usual number of rows per change"),
    ] = None
    deletes: Annotated[
        float,
        key("Share of the rows that are deletions, such as 5%."),
        spelled(deletions_from, _text(rf"\s*{SHARE_PATTERN}\s*"), "a share such as 5%"),
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
        key("A duration such as `1 hour` or `7d`."),
        spelled(microseconds_from, _DURATION, _LENGTH),
    ]
    location: Location


Never = Literal["never"]
Credentials = Literal["options", "ambient"]
_CREDENTIALS = key(
    "Source of credentials for object stores. `options` (default): only `storage_options`. "
    "`ambient`: also the environment."
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
    credentials: Annotated[Credentials | None, _CREDENTIALS] = None
    coming: Annotated[
        tuple[ExpectedChanges, ...] | None,
        key("Expected changes: `never`, or how often and how large."),
        spelled(
            "changes",
            _described(Never, "The table does not change.")
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
    def ambient(self) -> bool:
        """Whether credentials may come from the environment of the process."""
        return self.credentials == "ambient"

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
            min_length=1,
            max_length=MAX_BOUNDARIES,
        ),
        spelled("boundaries", tuple[_json("number", "string"), ...]),
    ]
    ranges: Annotated[
        int | None,
        key("Number of ranges, with about the same number of rows in each.", old_name="fragments"),
        whole(MAX_RANGES, "16 to 1000 suit most tables"),
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
            "all."
        ),
        whole(MAX_BUFFER, f"100 to 10000 suit most queries; `{EVERYTHING}` keeps everything"),
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
            "at the conditions in a mapping."
        ),
        spelled("trigger", SimpleTrigger | Trigger),
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
            "is the current day or hour, and sketches are maintained as it changes."
        ),
        spelled("params", _mapping(_text(IDENTIFIER_PATTERN), _json(*_CELL) | MovingParameter)),
    ] = field(default_factory=dict)
    moves: Mapping[str, ParameterMoves] = field(default_factory=dict)
    """The parameters that sketches follow."""
    sketch: Annotated[
        Mapping[TableName, ColumnName],
        key(
            "The column to sketch, per table; it must be safe for the query. Or `none` for a query "
            "without a sketch."
        ),
        spelled(
            "sketch", Literal["none"] | _mapping(str, _described(str, "A column of the table."))
        ),
    ] = field(default_factory=dict)
    """Empty if impctl chooses."""
    is_sketched: bool = True
    """False for `sketch: none`."""
    provenance: Annotated[
        ProvenanceSpec | None,
        key(
            "Maintains WITH RECURSIVE by absorption: the state stores, for each row, a Boolean "
            "function of the table rows it depends on. `why` reads it. Needs the extra `bdd`."
        ),
        spelled(
            "provenance",
            _described(Absorption, "Absorption with `ship: lazy` and the default number of nodes.")
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


class InsertSpec(Struct, frozen=True, kw_only=True):
    """Insert rows."""

    one_of: ClassVar = ("rows", "file")

    name: str = ""
    table: Annotated[TableName, _TABLE]
    rows: Annotated[
        tuple[Mapping[ColumnName, CellValue], ...] | None,
        key("Rows to insert, each a mapping of columns to values.", min_length=1),
        spelled("rows", tuple[_columns("A row.", _json(*_CELL, "null")), ...]),
    ]
    file: Annotated[PathText | None, key("File with the rows, relative to this file.")]
    location: Location


class DeleteSpec(Struct, frozen=True, kw_only=True):
    """Delete rows."""

    name: str = ""
    table: Annotated[TableName, _TABLE]
    where: Annotated[str, _WHERE]
    location: Location


class ChangeSpec(Struct, frozen=True, kw_only=True):
    """Update rows; without `where`, all rows."""

    name: str = ""
    table: Annotated[TableName, _TABLE]
    assignments: Annotated[
        Mapping[ColumnName, str],
        key(),
        spelled(
            "assignments",
            _columns(
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

    name: Annotated[
        str, key("Name of the batch."), spelled(_name_of("an update"), _text(NAME_PATTERN))
    ]
    insert: Annotated[InsertSpec | None, key(reader="insert")] = None
    delete: Annotated[DeleteSpec | None, key()] = None
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
            "Limit for the state of all queries on disk, such as 500MB or 2GB; 0 keeps the minimum."
        ),
        spelled(disk_from, _SIZE, "a size such as 1GB"),
    ] = None
    """Bytes; None is unlimited."""
    memory: Annotated[
        str | None,
        key("Memory limit of a process: 500MB, 2GB, or 25% of the machine's memory."),
        spelled(memory_from, _SIZE, "a size such as 1GB"),
    ] = None
    """As written: the share is of the machine that runs."""


class LimitSpec(Struct, frozen=True):
    """Limits of WITH RECURSIVE with UNION; beyond them the query fails with `recursion_limit`."""

    rounds: Annotated[
        int,
        key(f"Rounds in one run; default: {_ROUNDS}."),
        whole(2**62, f"the default is {_ROUNDS}"),
    ] = _ROUNDS
    rows: Annotated[
        int, key(f"Rows derived; default: {_ROWS}."), whole(2**62, f"the default is {_ROWS}")
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
    credentials: Annotated[Credentials | None, _CREDENTIALS] = None
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
    """Why `written` cannot be a store, and a hint; None for a folder. A store requires locks and
    atomic renames, which object stores lack, so a URI is refused."""
    match = _SCHEME.match(written)
    if match is None:
        return None
    scheme, rest = match.groups()
    if scheme.lower() == "file":
        return f"A store cannot be at a URI: file:///{rest}", f"write the path: /{rest}"
    hint = "give a folder on this machine; only tables can be in an object store"
    return f"A store cannot be at a URI: {scheme}://{rest}", hint
