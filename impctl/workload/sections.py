"""The sections of a workload file: tables, partitions, views, queries, updates, budget."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from impctl.data.schema import name_parts
from impctl.errors import Location, UsageError
from impctl.sql.names import (
    CATALOG_SCHEME,
    SPARK_CATALOG,
    SPARK_SCHEMA,
    FullName,
    TableNames,
    path_key,
)
from impctl.types import Secrets
from impctl.workload.models import (
    DURATION_PATTERN,
    EVERYTHING,
    MACROS,
    BoundaryLiteral,
    BudgetSpec,
    CellValue,
    ChangeSpec,
    Cron,
    CronFault,
    DeleteSpec,
    Everything,
    ExpectedChanges,
    ExpirySpec,
    InsertSpec,
    JoinStrategy,
    LimitSpec,
    LineageMode,
    MaintainMode,
    ParameterMoves,
    PartitionSpec,
    Policy,
    ProvenanceSpec,
    QuerySpec,
    ShipMode,
    SimpleTrigger,
    StateKept,
    TableSpec,
    Trigger,
    UpdateSpec,
    ViewSpec,
    read_cron,
    seconds_in,
    written,
    zone_named,
)
from impctl.workload.scalars import (
    SIZE_HINT,
    ScalarFault,
    kind_of,
    plain_value,
    share_from,
    size_from,
)
from impctl.workload.yaml import (
    FileReading,
    MappingEntry,
    YamlScalar,
    inside,
    origin_of,
    shown,
    suggestion,
    written_at,
)

if TYPE_CHECKING:
    from impctl.types import ParameterValue, TableName

# Pieces that the JSON Schema of workload files is put together from. Law: every piece carries a
# description, which an editor shows.

JsonSchema = dict[str, object]

_VARIABLE: JsonSchema = {"type": "string", "pattern": r"\$\{"}


def object_of(
    description: str, properties: dict[str, JsonSchema], required: list[str] | None = None
) -> JsonSchema:
    """A mapping with these keys and no other."""
    schema: JsonSchema = {
        "description": description,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return schema if required is None else {**schema, "required": required}


def columns_of(description: str, value: JsonSchema) -> JsonSchema:
    """A mapping by column, not empty."""
    return {
        "description": description,
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": r"\S"},
        "additionalProperties": value,
    }


def settings_of(description: str) -> JsonSchema:
    """Settings of any name."""
    return {
        "description": description,
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }


def text_of(description: str) -> JsonSchema:
    return {"description": description, "type": "string", "pattern": r"\S"}


def or_variable(schema: JsonSchema, description: str) -> JsonSchema:
    """A value, or text that holds a variable."""
    return {"description": description, "anyOf": [schema, _VARIABLE]}


# Names in the workload file: what may be one, and which tables are declared. Law: names of
# queries and updates serve on a command line and in file names as they are; names of parameters
# are plain SQL identifiers; tables may be called by names of up to three parts.

NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
IDENTIFIER_PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,127}"
"""Names of parameters, and parts of a table's name without backticks."""

_PART = f"(?:{IDENTIFIER_PATTERN}|`[^`]+`)"
TABLE_PATTERN = rf"{_PART}(?:\.{_PART}){{0,2}}"
"""Names of tables and views: `sales`, `shop.sales`, ``main.`my shop`.sales``."""


class DeclaredTables(Struct, frozen=True):
    """The tables of the file, including invalid ones, and their names."""

    listed: tuple[TableName, ...]
    names: TableNames

    def table(self, written: str) -> TableName | None:
        """The table of that name; None without one."""
        result = self.names.called(written)
        return written if result is None and written in self.listed else result


Declared = DeclaredTables | None
"""None if `tables` itself is missing or invalid."""


def is_name(name: str) -> bool:
    """Whether the name is valid for a query or an update."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def is_table_name(name: str) -> bool:
    """Whether the name is valid for a table."""
    return re.fullmatch(TABLE_PATTERN, name) is not None


def refuse_name(node: Node, name: str, what: str, reading: FileReading) -> None:
    """Report that `name` cannot name `what`."""
    hint = "use letters, digits, `_`, `-` and `.`, at most 128 characters"
    reading.report(node, f"{written_at(node, name)} cannot be the name of {what}", hint)


def declared_table(
    written: str, node: Node, tables: Declared, path: str, reading: FileReading
) -> TableName | None:
    """The table called `written` at `node`; None, with a problem reported, if there is none."""
    if tables is None:
        return written
    result = tables.table(written)
    if result is None:
        problem = f"Table {written_at(node, written)} in {path} is not declared under `tables`"
        hint = suggestion(written, tables.listed, "declared tables")
        reading.report(node, problem, hint)
    return result


# Paths of the workload file: relative to the file itself, so that any working directory serves.
# Law: a URI (`s3://...`, `file:///...`) passes through untouched; any other path comes out
# absolute. A store is a folder of this machine: a URI for it is told apart here, of whatever
# scheme. Nothing is opened here.

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def read_path(node: Node | None, where: str, base: Path, reading: FileReading) -> str | None:
    """The path written at `node`, relative to the folder `base`."""
    written = reading.text(node, where)
    if node is None or written is None:
        return None
    if not written.isprintable():
        reading.report(node, f"{where} contains a line break or a control character", "remove it")
        return None
    return resolve_path(base, written)


def resolve_path(base: Path, written: str) -> str:
    """`written` relative to the folder `base`, which is absolute."""
    return written if _URI.match(written) else os.path.normpath(base / written)


# Whether a table in an object store comes with the credentials to read it. Law: credentials of
# the surroundings (variables, profiles, the machine's role) are used only for a table whose
# workload says so; any other needs its own, whatever server it lies on. The environment comes as
# an argument.

_S3 = ("s3", "s3a", "s3n")
_OTHERS = {
    **dict.fromkeys(
        ("gs", "gcs"),
        ("service_account", "service_account_path", "service_account_key", "skip_signature"),
    ),
    **dict.fromkeys(
        ("abfss", "abfs", "az", "azure", "adl"),
        (
            *("account_key", "access_key", "master_key", "sas_token", "sas_key", "bearer_token"),
            *("token", "client_secret", "federated_token_file", "use_emulator", "skip_signature"),
        ),
    ),
}
_TOKEN = "AWS_SESSION_TOKEN"
_NEEDS_NO_TOKEN = ("session_token", "token", "skip_signature")
_PREFIX = re.compile(r"^(aws_|google_|azure_storage_|azure_)")


def require_credentials(
    name: TableName, path: str, options: Mapping[str, str], env: Mapping[str, str]
) -> None:
    """Refuse a table in an object store whose storage options lack credentials. UsageError:
    `credentials_missing` names them, `credentials_mixed` the variable that deltalake would add."""
    missing = missing_credentials(path, options)
    if missing is not None:
        raise UsageError(
            f"Table `{name}` is in an object store and has no credentials: {missing}",
            code="credentials_missing",
            hint=f"set them in `tables.{name}.storage_options`, or write `credentials: ambient` "
            "there or at the top of the file to use those of the environment",
        )
    # deltalake fills in what the options leave open, so a stranger's token would go with the keys.
    keys = {_PREFIX.sub("", key.lower()) for key in options}
    if _scheme(path) in _S3 and env.get(_TOKEN) and keys.isdisjoint(_NEEDS_NO_TOKEN):
        raise UsageError(
            f"Table `{name}` has keys without a session token, and `{_TOKEN}` from the environment "
            "would be sent with them",
            code="credentials_mixed",
            hint=f"unset `{_TOKEN}`, set `aws_session_token` in `tables.{name}.storage_options`, "
            "or write `credentials: ambient`",
        )


def missing_credentials(path: str, options: Mapping[str, str]) -> str | None:
    """What the options lack to read this path; None if nothing, and for other places."""
    scheme = _scheme(path)
    given = {_PREFIX.sub("", key.lower()): value for key, value in options.items() if value}
    if given.get("skip_signature", "").lower() not in ("true", "1"):
        given.pop("skip_signature", None)
    if scheme in _S3:
        if "skip_signature" in given:
            return None
        lacking = [key for key in ("access_key_id", "secret_access_key") if key not in given]
        words = " and ".join(f"`aws_{key}`" for key in lacking)
        return None if not lacking else f"{words} not set, and no `credentials: ambient`"
    known = _OTHERS.get(scheme)
    if known is None or not given.keys().isdisjoint(known):
        return None
    return "no key in `storage_options`, and no `credentials: ambient`"


def _scheme(path: str) -> str:
    match = _URI.match(path)
    return "" if match is None else match[1].lower()


# What the workload file says of changes that are to come: `changes` of a table. Law: `never` is
# that the table does not change; else one expectation or a list of them, for as long as the
# table's log cannot know yet. Times without a zone are in UTC.

NEVER = "never"
MAX_ROWS = 1_000_000_000_000
"""The limit of rows per change."""

_KEYS = ("every", "rows", "deletes", "from", "until")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)[ ]*%")
_MOMENT_PATTERN = r"^\d{4}-\d\d-\d\d"


def read_changes(
    node: Node | None, where: str, reading: FileReading
) -> tuple[ExpectedChanges, ...] | None:
    """The expected changes, none for `never`; None if nothing is specified or it is invalid."""
    if node is None:
        return None
    if isinstance(node, ScalarNode):
        return _never(node, where, reading)
    if not isinstance(node, SequenceNode):
        result = _read_one(node, where, reading)
        return None if result is None else (result,)
    nodes = reading.elements(node, where)
    if nodes is None:
        return None
    if not nodes:
        hint = "write `changes: never`, or describe the expected changes"
        reading.report(node, f"{where} is empty", hint)
    read = [_read_one(element, where, reading) for element in nodes]
    known = tuple(spec for spec in read if spec is not None)
    return known if known and len(known) == len(read) else None


def _never(node: Node, where: str, reading: FileReading) -> tuple[ExpectedChanges, ...] | None:
    written = reading.text(node, where)
    if written is None or written == NEVER:
        return None if written is None else ()
    hint = "write `changes: never`, or for example `changes: {every: 1h, rows: 200, deletes: 5%}`"
    reading.report(node, f"{where} must be `{NEVER}`, a mapping, or a list of mappings", hint)
    return None


def _read_one(node: Node, where: str, reading: FileReading) -> ExpectedChanges | None:
    known = len(reading.problems)
    fields = reading.record(node, where, (), _KEYS)
    if fields is None:
        return None
    if not fields and len(reading.problems) == known:
        reading.report(node, f"{where} is empty", "write `every`, `from` or `until`")
    every = read_duration(fields.get("every"), inside(where, "every"), reading)
    usual = "write the usual number of rows per change"
    rows = reading.whole_number(fields.get("rows"), inside(where, "rows"), MAX_ROWS, usual)
    deletes = _share(fields.get("deletes"), inside(where, "deletes"), reading)
    since = _moment(fields.get("from"), inside(where, "from"), reading)
    until = _moment(fields.get("until"), inside(where, "until"), reading)
    for name, needed in (("rows", "every"), ("deletes", "rows")):
        if name in fields and needed not in fields:
            needs = f"{inside(where, name)} needs `{needed}`"
            reading.report(fields[name], needs, f"add `{needed}:`")
    if since is not None and until is not None and until <= since:
        hint = "the expectation applies from `from` until before `until`"
        reading.report(fields["until"], f"{inside(where, 'until')} must be later than `from`", hint)
    if len(reading.problems) > known:
        return None
    return ExpectedChanges(every, rows, deletes or 0.0, since, until)


def read_duration(node: Node | None, where: str, reading: FileReading) -> float | None:
    """The seconds written; None without a valid duration."""
    cell = reading.cell(node, where, "a duration such as 1h")
    if node is None or cell is None:
        return None
    seconds = seconds_in(cell.written, needs_unit=True)
    if seconds is None:
        problem = f"{where}: {written_at(node, cell.written)} is not a duration"
        reading.report(node, problem, "write a duration such as 10m or 1h")
    return seconds


def _share(node: Node | None, where: str, reading: FileReading) -> float | None:
    cell = reading.cell(node, where, "a share such as 5%")
    if node is None or cell is None:
        return None
    match = _SHARE.fullmatch(cell.written.strip())
    if match is None or float(match[1]) > 100:
        problem = f"{where}: {written_at(node, cell.written)} is not a share of the rows"
        reading.report(node, problem, "write a share such as 5%")
        return None
    return float(match[1]) / 100


def _moment(node: Node | None, where: str, reading: FileReading) -> float | None:
    """Seconds since 1970 of a day or a time."""
    cell = reading.cell(node, where, "a date such as 2026-12-01")
    if node is None or cell is None:
        return None
    value = cell.value
    if isinstance(value, str):
        try:
            value = plain_value(value)
        except ScalarFault as fault:
            reading.report(node, f"{where}: {fault.message}", fault.hint)
            return None
    if not isinstance(value, date):
        problem = f"{where}: {written_at(node, cell.written)} is not a date or a time"
        hint = "write a date such as 2026-12-01, or a time such as 2026-12-01 18:00:00"
        reading.report(node, problem, hint)
        return None
    at = value if isinstance(value, datetime) else datetime.combine(value, time())
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def changes_schema() -> JsonSchema:
    """The JSON Schema of a table's `changes`."""
    moment: JsonSchema = {"type": "string", "pattern": _MOMENT_PATTERN}
    share: JsonSchema = {"type": "string", "pattern": f"^{_SHARE.pattern}$"}
    mapping = {
        **object_of(
            "Expected changes that the table's log does not show yet.",
            {
                "every": or_variable(
                    {"type": "string", "pattern": f"^{DURATION_PATTERN}$"},
                    "How often the table changes, such as 1h.",
                ),
                "rows": or_variable(
                    {"type": "integer", "minimum": 1, "maximum": MAX_ROWS}, "Rows per change."
                ),
                "deletes": or_variable(share, "Share of the rows that are deletions, such as 5%."),
                "from": or_variable(moment, "Date or time from which this is expected."),
                "until": or_variable(moment, "Date or time before which this is expected."),
            },
        ),
        "minProperties": 1,
    }
    return {
        "description": "Expected changes: `never`, or how often and how large.",
        "anyOf": [
            or_variable({"const": NEVER}, "The table does not change."),
            mapping,
            {"type": "array", "minItems": 1, "items": mapping},
        ],
    }


# `budget` and `limits` of a workload file: what all state and a process may take, and how far a
# recursive query may go. Law: a budget bounds what is kept, never an answer; beyond a limit there
# is none. 0 is allowed for `disk` and means the least. A share of the machine's memory stays as
# it is written: the machine is another one now and then.

MEMORY_HINT = f"{SIZE_HINT}, or a share of the machine's memory such as 25%"

_V = TypeVar("_V")
_PATH = "`budget`"
_LIMITS = "`limits`"
_MOST = 2**62


def read_budget(node: Node | None, reading: FileReading) -> BudgetSpec:
    """The budget; without one everything is kept."""
    if node is None:
        return BudgetSpec()
    fields = reading.record(node, _PATH, (), ("disk", "memory")) or {}
    return BudgetSpec(
        _read(fields, "disk", size_from, SIZE_HINT, reading),
        _read(fields, "memory", _memory, MEMORY_HINT, reading),
    )


def read_limits(node: Node | None, reading: FileReading) -> LimitSpec:
    """The limits of recursive queries, with defaults."""
    usual = LimitSpec()
    if node is None:
        return usual
    fields = reading.record(node, _LIMITS, (), ("rounds", "rows")) or {}

    def read(name: str, default: int) -> int:
        path, hint = inside(_LIMITS, name), f"the default is {default}"
        return reading.whole_number(fields.get(name), path, _MOST, hint) or default

    return LimitSpec(read("rounds", usual.rounds), read("rows", usual.rows))


def _read(
    fields: Mapping[str, Node],
    name: str,
    read: Callable[[str], _V],
    hint: str,
    reading: FileReading,
) -> _V | None:
    at, path = fields.get(name), inside(_PATH, name)
    cell = None if at is None else reading.cell(at, path, "a size such as 1GB")
    if at is None or cell is None:
        return None
    try:
        return read(str(cell.value))
    except ValueError:
        reading.report(at, f"{path} must be a size, not `{cell.value}`", hint)
        return None


def _memory(text: str) -> str:
    if share_from(text) is None and size_from(text) == 0:
        raise ValueError(text)
    return text


def budget_schema() -> JsonSchema:
    """The JSON Schema of the budget."""
    disk = text_of(
        "Limit for the state of all queries on disk, such as 500MB or 2GB; 0 keeps the minimum."
    )
    memory = text_of("Memory limit of a process: 500MB, 2GB, or 25% of the machine's memory.")
    both = {"type": ["string", "integer"]}
    fields: dict[str, JsonSchema] = {"disk": {**disk, **both}, "memory": {**memory, **both}}
    return object_of("Limits for the state of all queries.", fields)


def limits_schema() -> JsonSchema:
    """The JSON Schema of the limits."""
    whole = {"type": "integer", "minimum": 1}
    usual = LimitSpec()
    return object_of(
        "Limits of WITH RECURSIVE with UNION; beyond them the query fails with `recursion_limit`.",
        {
            "rounds": {**whole, "description": f"Rounds in one run; default: {usual.rounds}."},
            "rows": {**whole, "description": f"Rows derived; default: {usual.rows}."},
        },
    )


# The key `trigger` of a query, or of `defaults`: when it is maintained.
# It is `commit`, `use`, or a mapping such as `{fresh_within: 10m, rows: 10000, every: 15m,
# cron: "0 6 * * 1-5", timezone: Europe/Vienna, point: nightly, ready_within: 5s, cheap: true}`.
#
# Law: what could not come true, or would be guessed at, is a problem with its place: a duration
# without unit, two clocks (`every` and `cron`), a zone that nobody knows, and what goes beside
# something that is not there.

KEYS = (*("fresh_within", "rows", "every", "cron", "timezone"), *("point", "ready_within", "cheap"))
_DAY = 86_400.0
_CLOCKS = ("every", "cron")
_WHEN = ("fresh_within", "rows", "every", "cron", "point")
"""Keys of which a trigger needs one."""

_BESIDE = {"timezone": _CLOCKS, "ready_within": (*_CLOCKS, "point"), "cheap": _WHEN}
"""Keys that are valid only with one of others."""


def read_trigger(node: Node | None, path: str, reading: FileReading) -> Trigger | None:
    """The trigger; None if there is none or a problem was reported."""
    if node is None:
        return None
    known = len(reading.problems)
    if not isinstance(node, MappingNode):
        beside = ", or a mapping such as `fresh_within: 10m`"
        word = reading.choice(node, path, list(SimpleTrigger), beside=beside)
        return None if word is None else Trigger(alone=SimpleTrigger(word))
    entries = reading.entries(node, path) or {}
    for word in SimpleTrigger:
        if word in entries:
            problem = f"`{word}` in {path} cannot be combined with other keys"
            reading.report(entries[word].key, problem, f"write `trigger: {word}`, or remove it")
    if len(reading.problems) > known:
        return None
    fields = reading.record(node, path, (), KEYS) or {}
    if len(reading.problems) == known:
        _check_together(node, fields, path, reading)
    trigger = Trigger(
        rows=_rows(fields.get("rows"), inside(path, "rows"), reading),
        every=_every(fields.get("every"), inside(path, "every"), reading),
        cron=_cron(fields.get("cron"), inside(path, "cron"), reading),
        timezone=_zone(fields.get("timezone"), inside(path, "timezone"), reading),
        fresh_within=_span(fields.get("fresh_within"), inside(path, "fresh_within"), reading),
        point=_point(fields.get("point"), inside(path, "point"), reading),
        ready_within=_span(fields.get("ready_within"), inside(path, "ready_within"), reading),
        cheap=_read_switch(fields.get("cheap"), inside(path, "cheap"), reading) or False,
    )
    return trigger if len(reading.problems) == known else None


def _check_together(
    node: Node, fields: Mapping[str, Node], path: str, reading: FileReading
) -> None:
    """Report keys that exclude each other, and keys without those they require."""
    if all(name in fields for name in _CLOCKS):
        problem = f"`every` and `cron` in {path} cannot be combined"
        reading.report(fields["cron"], problem, "remove one of them")
    if not any(name in fields for name in _WHEN):
        hint = f"use at least one of {', '.join(f'`{name}`' for name in _WHEN)}"
        reading.report(node, f"{path} does not specify a time or condition", hint)
        return
    for name, others in _BESIDE.items():
        if name in fields and not any(other in fields for other in others):
            listed = " or ".join(f"`{other}`" for other in others)
            problem = f"`{name}` in {path} requires {listed}"
            reading.report(fields[name], problem, "add one of them, or remove it")


def _span(node: Node | None, path: str, reading: FileReading) -> float | None:
    cell = reading.cell(node, path, "a duration such as 10m")
    if node is None or cell is None:
        return None
    seconds = seconds_in(cell.written, needs_unit=True)
    if seconds is None:
        reading.report(node, f"{path} must be a duration such as 10m", _UNITS_HINT)
    return seconds


_UNITS_HINT = "write a number above 0 with its unit: `500ms`, `5s`, `10m`, `1h` or `7d`"


def _every(node: Node | None, path: str, reading: FileReading) -> float | None:
    seconds = _span(node, path, reading)
    if node is None or seconds is None:
        return None
    if not 1.0 <= seconds <= _DAY:
        problem = f"{path} must be from 1s to {written(_DAY)}, because it is counted from midnight"
        hint = "use `cron` for days and weeks, and `commit` for shorter intervals"
        reading.report(node, problem, hint)
        return None
    return seconds


def _rows(node: Node | None, path: str, reading: FileReading) -> int | None:
    usual = "write the number of changed rows that justify a run, for example 10000"
    return reading.whole_number(node, path, MAX_ROWS, usual)


def _cron(node: Node | None, path: str, reading: FileReading) -> Cron | None:
    text = reading.text(node, path)
    if node is None or text is None:
        return None
    try:
        return read_cron(text)
    except CronFault as fault:
        reading.report(node, f"{path} is not a valid cron expression: {fault.message}", fault.hint)
        return None


def _zone(node: Node | None, path: str, reading: FileReading) -> str | None:
    name = reading.text(node, path)
    if node is None or name is None:
        return None
    if zone_named(name) is None:
        hint = "use a name such as `Europe/Vienna`; on a minimal system, install `tzdata`"
        reading.report(node, f"{path} is a time zone that this machine does not know", hint)
        return None
    return name


def _point(node: Node | None, path: str, reading: FileReading) -> str | None:
    name = reading.text(node, path)
    if node is None or name is None:
        return None
    if not is_name(name):
        refuse_name(node, name, "a point", reading)
        return None
    return name


def trigger_schema() -> JsonSchema:
    span: JsonSchema = {"type": "string", "pattern": rf"^\s*{DURATION_PATTERN}\s*$"}
    mapping = object_of(
        "When to maintain: at the first of these conditions.",
        {
            "fresh_within": or_variable(span, "Maximum time until a commit is in the sketch."),
            "rows": or_variable(
                {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
                "When this many changed rows are pending, according to the tables' logs.",
            ),
            "every": or_variable(
                span, "At multiples of this interval since midnight, from 1s to 1d."
            ),
            "cron": text_of(f"A cron expression with five fields, or one of {', '.join(MACROS)}."),
            "timezone": text_of("Time zone of `every` and `cron`; default: UTC."),
            "point": or_variable(
                {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
                "When `impctl maintain --point` gives this name.",
            ),
            "ready_within": or_variable(
                span,
                "Maintains ahead of time, so that at most this much work is left at the planned "
                "time.",
            ),
            "cheap": or_variable(
                {"type": "boolean"},
                "Also maintains earlier, when nothing else is due and it takes less than a second.",
            ),
        },
    )
    mapping["anyOf"] = [{"required": [name]} for name in _WHEN]
    return {
        "description": "When to maintain the query: after each commit (default), when its sketch "
        "is used, or at the conditions in a mapping.",
        "anyOf": [
            {"enum": [str(word) for word in SimpleTrigger]},
            _VARIABLE,
            mapping,
        ],
    }


MAX_RANGES = 100_000
"""Far below the limit of the engine (`engine.tags.RANGE_BITS`)."""

# The section `partitions` of the workload file: candidates for range partitions. Law: boundaries
# strictly increase and are of one kind, as far as can be told without the column: text may stand
# for decimals, so text that increases as numbers is as good as text that increases by code point.
# The column's type has the last word (`sketch.partition`).

_OLD_KEY = "fragments"
"""The old name of the key `ranges`; accepted until the first release."""

MAX_BOUNDARIES = MAX_RANGES - 1


def read_partitions(
    node: Node | None, tables: Declared, reading: FileReading
) -> tuple[PartitionSpec, ...]:
    """The valid candidates, in file order."""
    partition_specs: list[PartitionSpec] = []
    for text, entry in (reading.entries(node, "`partitions`") or {}).items():
        table = declared_table(text, entry.key, tables, "`partitions`", reading)
        where = inside("`partitions`", text)
        columns = reading.columns(entry.value, where)
        for column, inner in (columns or {}).items():
            spec = _read_partition(table or text, column, inner, where, reading)
            if table is None or spec is None:
                continue
            key = (spec.table, column.lower())
            if any((other.table, other.column.lower()) == key for other in partition_specs):
                problem = f"Column {shown(column)} of table {shown(table)} is partitioned twice"
                hint = "remove one; all names of a table refer to the same table"
                reading.report(inner.key, problem, hint)
            partition_specs.append(spec)
    return tuple(partition_specs)


def _read_partition(
    table: str, column: str, entry: MappingEntry, where: str, reading: FileReading
) -> PartitionSpec | None:
    path = inside(where, column)
    fields = reading.record(entry.value, path, (), ("boundaries", "ranges", _OLD_KEY))
    if fields is None:
        return None
    boundaries = _read_boundaries(fields.get("boundaries"), inside(path, "boundaries"), reading)
    key = _OLD_KEY if _OLD_KEY in fields else "ranges"
    ranges = reading.whole_number(
        fields.get(key), inside(path, key), MAX_RANGES, "16 to 1000 suit most tables"
    )
    if len(fields) != 1:
        hint = "write `boundaries: [601, 1001]` or `ranges: 16`"
        reading.report(entry.key, f"{path} must have either `boundaries` or `ranges`", hint)
    if boundaries is None and ranges is None:
        return None
    place = reading.at(entry.key)
    return PartitionSpec(table, column, boundaries, ranges, place, is_old_key=key == _OLD_KEY)


def _read_boundaries(
    node: Node | None, where: str, reading: FileReading
) -> tuple[BoundaryLiteral, ...] | None:
    elements = reading.elements(node, where)
    if node is None or elements is None:
        return None
    if not 1 <= len(elements) <= MAX_BOUNDARIES:
        hint = "n boundaries make n + 1 ranges"
        reading.report(node, f"{where} must have from 1 to {MAX_BOUNDARIES} values", hint)
        return None
    read = [_read_boundary(element, where, reading) for element in elements]
    values = tuple(value for value in read if value is not None)
    is_valid = len(values) == len(read) and _increase(values, elements, where, reading)
    return values if is_valid else None


def _read_boundary(node: Node, where: str, reading: FileReading) -> BoundaryLiteral | None:
    cell = reading.cell(node, f"A value of {where}", "a number, text or a date")
    if cell is None:
        return None
    if cell.value is None or isinstance(cell.value, bool):
        problem = f"A value of {where} must be a number, text or a date, not {kind_of(cell.value)}"
        hint = "NULL always has its own range" if cell.value is None else "put quotes around text"
        reading.report(node, problem, hint)
        return None
    if isinstance(cell.value, float) and not math.isfinite(cell.value):
        hint = "remove it; the first range has no lower bound and the last one no upper bound"
        reading.report(node, f"A value of {where} is not finite", hint)
        return None
    return cell.value


def _increase(
    values: Sequence[BoundaryLiteral], nodes: Sequence[Node], where: str, reading: FileReading
) -> bool:
    kinds = [_order_kind(value) for value in values]
    for kind, node in zip(kinds, nodes, strict=True):
        if kind != kinds[0]:
            problem = f"Values of {where} must be of one type, not {kinds[0]} and {kind}"
            reading.report(node, problem, "write all of them with quotes, or all without")
            return False
    position = _first_descent(values)
    numbers = _as_decimals(values)
    if position is not None and numbers is not None:
        position = _first_descent(numbers)
    if position is None:
        return True
    problem = f"Values of {where} must increase, but number {position + 1} does not"
    hint = "sort the boundaries and remove duplicates"
    reading.report(nodes[position], problem, hint)
    return False


def _order_kind(value: BoundaryLiteral) -> str:
    match value:
        case int() | float():
            return "numbers"
        case str():
            return "text"
        case datetime():
            return "timestamps" if value.tzinfo is None else "timestamps with a time zone"
        case date():
            return "dates"


def _first_descent(values: Sequence[Any]) -> int | None:
    pairs = enumerate(pairwise(values), start=1)
    return next((position for position, (low, high) in pairs if not low < high), None)


def _as_decimals(values: Sequence[BoundaryLiteral]) -> list[Decimal] | None:
    """The values as decimals if all of them are texts of a finite number."""
    try:
        numbers = [Decimal(value.strip()) for value in values if isinstance(value, str)]
    except InvalidOperation:
        return None
    is_finite = all(number.is_finite() for number in numbers)
    return numbers if is_finite and len(numbers) == len(values) else None


# The section `updates` of the workload file: batches that `apply` commits, in file order. Law:
# each update has a name of its own and does exactly one thing. Rows are kept as typed by YAML,
# expressions as SQL text.


class _Head(Struct, frozen=True):
    """What is known of an update before its action is read; None for invalid values."""

    name: str | None
    location: Location
    path: str


def read_updates(
    node: Node | None, tables: Declared, base: Path, reading: FileReading
) -> tuple[UpdateSpec, ...]:
    """The valid updates, in file order."""
    update_specs: list[UpdateSpec] = []
    first_line: dict[str, int] = {}
    for number, element in enumerate(reading.elements(node, "`updates`") or [], start=1):
        path = f"`updates[{number}]`"
        fields = reading.record(element, path, ("name",), ("insert", "delete", "update"))
        if fields is None:
            continue
        name = _read_name(fields.get("name"), inside(path, "name"), first_line, reading)
        head = _Head(name, reading.at(element), path)
        specs = (
            _read_insert(fields.get("insert"), head, tables, base, reading),
            _read_delete(fields.get("delete"), head, tables, reading),
            _read_change(fields.get("update"), head, tables, reading),
        )
        actions = len(fields.keys() - {"name"})
        if actions != 1:
            problem = f"{path} must have exactly one of `insert`, `delete`, `update`"
            hint = "make a second update for a second action" if actions else "add one of them"
            reading.report(element, problem, hint)
        update_specs.extend(spec for spec in specs if spec is not None)
    return tuple(update_specs)


def _read_name(
    node: Node | None, path: str, first_line: dict[str, int], reading: FileReading
) -> str | None:
    name = reading.text(node, path)
    if node is None or name is None:
        return None
    if not is_name(name):
        refuse_name(node, name, "an update", reading)
        return None
    if name in first_line:
        hint = f"give each update its own name; the first is on line {first_line[name]}"
        reading.report(node, f"Update {written_at(node, name)} appears twice", hint)
        return None
    first_line[name] = reading.at(node).line
    return name


def _read_insert(
    node: Node | None, head: _Head, tables: Declared, base: Path, reading: FileReading
) -> InsertSpec | None:
    path = inside(head.path, "insert")
    fields = reading.record(node, path, ("table",), ("rows", "file"))
    if node is None or fields is None:
        return None
    table = _read_table(fields.get("table"), path, tables, reading)
    rows = _read_rows(fields.get("rows"), inside(path, "rows"), reading)
    file = read_path(fields.get("file"), inside(path, "file"), base, reading)
    if ("rows" in fields) == ("file" in fields):
        hint = "write `rows: [{column: value}]` or `file: batch.parquet`"
        reading.report(node, f"{path} must have either `rows` or `file`", hint)
    if head.name is None or table is None or (rows is None) == (file is None):
        return None
    return InsertSpec(head.name, table, rows, file, head.location)


def _read_delete(
    node: Node | None, head: _Head, tables: Declared, reading: FileReading
) -> DeleteSpec | None:
    path = inside(head.path, "delete")
    fields = reading.record(node, path, ("table", "where"))
    if fields is None:
        return None
    table = _read_table(fields.get("table"), path, tables, reading)
    where = reading.text(fields.get("where"), inside(path, "where"))
    if head.name is None or table is None or where is None:
        return None
    return DeleteSpec(head.name, table, where, head.location)


def _read_change(
    node: Node | None, head: _Head, tables: Declared, reading: FileReading
) -> ChangeSpec | None:
    path = inside(head.path, "update")
    fields = reading.record(node, path, ("table", "set"), ("where",))
    if fields is None:
        return None
    table = _read_table(fields.get("table"), path, tables, reading)
    assignments = _read_set(fields.get("set"), inside(path, "set"), reading)
    where = reading.text(fields.get("where"), inside(path, "where"))
    # A condition that could not be read must not turn into an update of every row.
    if "where" in fields and where is None:
        return None
    if head.name is None or table is None or assignments is None:
        return None
    return ChangeSpec(
        head.name,
        table,
        {column: text for column, (text, _) in assignments.items()},
        where,
        head.location,
        {column: place for column, (_, place) in assignments.items()},
    )


def _read_table(node: Node | None, path: str, tables: Declared, reading: FileReading) -> str | None:
    table = reading.text(node, inside(path, "table"))
    if node is None or table is None:
        return None
    return declared_table(table, node, tables, path, reading)


def _read_rows(
    node: Node | None, path: str, reading: FileReading
) -> tuple[Mapping[str, CellValue], ...] | None:
    elements = reading.elements(node, path)
    if node is None or elements is None:
        return None
    if not elements:
        reading.report(node, f"{path} is empty", "write at least one row")
        return None
    rows: list[Mapping[str, CellValue]] = []
    for number, element in enumerate(elements, start=1):
        place = f"{path[:-1]}[{number}]`"
        row: dict[str, CellValue] = {}
        columns = reading.columns(element, place) or {}
        for column, entry in columns.items():
            cell = reading.cell(entry.value, inside(place, column), "a single value")
            if cell is not None:
                row[column] = cell.value
        if columns and len(row) == len(columns):
            rows.append(row)
    return tuple(rows) if len(rows) == len(elements) else None


def _read_set(
    node: Node | None, path: str, reading: FileReading
) -> Mapping[str, tuple[str, Location]] | None:
    """The expression of each column, and its position."""
    columns = reading.columns(node, path)
    if not columns:
        return None
    assignments: dict[str, tuple[str, Location]] = {}
    for column, entry in columns.items():
        place = inside(path, column)
        cell = reading.cell(entry.value, place, "an SQL expression")
        if cell is None:
            continue
        # A bare number or boolean is already an SQL expression; a bare date is not.
        if cell.value is None or not cell.written.strip():
            reading.report(entry.value, f"{place} is empty", "write `NULL` in quotes for NULL")
        elif not isinstance(cell.value, str | int | float):
            hint = "write it as SQL in quotes: \"DATE '2022-01-01'\""
            reading.report(entry.value, f"{place} must be an SQL expression, not a date", hint)
        else:
            assignments[column] = cell.written, reading.at(entry.value)
    return assignments if len(assignments) == len(columns) else None


# The section `views` of the workload file: names for SELECT texts that queries may read. Law: no
# view is called as a table or another view is. The texts are taken as they stand.


def read_views(
    node: Node | None, tables: DeclaredTables | None, reading: FileReading
) -> Mapping[FullName, ViewSpec]:
    """The valid views, by their full names, in file order."""
    result: dict[FullName, ViewSpec] = {}
    for name, entry in (reading.entries(node, "`views`") or {}).items():
        full = None if tables is None else tables.names.full(name_parts(name) or ())
        if not is_table_name(name):
            problem = f"{written_at(entry.key, name)} cannot be the name of a view"
            hint = "use letters, digits and `_`, in at most three parts separated by dots"
            reading.report(entry.key, problem, hint)
        sql = reading.resolved_text(entry.value, inside("`views`", name))
        if full is None or tables is None or sql is None or not isinstance(entry.value, ScalarNode):
            continue
        same = result[full].name if full in result else tables.names.tables.get(full)
        if same is not None:
            problem = f"View {shown(name)} has the same name as {shown(same)}"
            hint = "rename one; names are not case-sensitive in Spark"
            reading.report(entry.key, problem, hint)
        origin = origin_of(entry.value, sql, reading.lines)
        result[full] = ViewSpec(name, sql.text, reading.at(entry.key), origin)
    return result


# The section `tables` of the workload file, with the default catalog and schema beside it. Law: a
# table is one source, however many names it has: an entry with the path and options of an earlier
# one gives that table another name. Only an entry that has `partitions` or an `expiry` of its own
# is a source of its own, so that one table can have several divisions side by side, and be read
# with its expired rows and without. No name stands for two tables.

CREDENTIALS = ("options", "ambient")
"""Sources of object store credentials: `storage_options` alone, or also the environment."""

_NAME_HINT = (
    "use one to three parts separated by dots, each with letters, digits and `_` and no digit "
    "first; put backticks around any other part. `path` can be anything"
)


class _Names(Struct):
    catalog: str
    schema: str
    tables: dict[FullName, TableName] = field(default_factory=dict)
    paths: dict[str, TableName] = field(default_factory=dict)

    def add(self, node: Node, written: str, table: TableName, reading: FileReading) -> None:
        """Register the name for the table, or report a problem."""
        names = TableNames({}, catalog=self.catalog, schema=self.schema)
        full = names.full(name_parts(written) or ())
        if not is_table_name(written) or full is None:
            problem = f"{written_at(node, written)} cannot be the name of a table"
            reading.report(node, problem, _NAME_HINT)
            return
        known = self.tables.setdefault(full, table)
        if known != table:
            reading.report(
                node,
                f"Tables {shown(known)} and {shown(table)} have the same name"
                + ("" if written == table else f" {shown(written.replace('`', ''))}"),
                "rename one; names are not case-sensitive in Spark",
            )


def read_tables(
    fields: Mapping[str, Node], base: Path, reading: FileReading
) -> tuple[Declared, dict[TableName, TableSpec]]:
    """All declared names, including those of invalid tables, and the valid tables."""
    catalog = _read_default(fields.get("catalog"), "`catalog`", SPARK_CATALOG, reading)
    schema = _read_default(fields.get("schema"), "`schema`", SPARK_SCHEMA, reading)
    ambient = _is_ambient(fields.get("credentials"), "`credentials`", reading, otherwise=False)
    node = fields.get("tables")
    entries = reading.entries(node, "`tables`")
    if node is None or entries is None:
        return None, {}
    if not entries:
        reading.report(node, "`tables` is empty", "add at least one Delta table")
    names = _Names(catalog, schema)
    partitions = fields.get("partitions")
    # Their reader reports what is wrong with the keys.
    pairs = partitions.value if isinstance(partitions, MappingNode) else ()
    divided = {key.value for key, _ in pairs if isinstance(key, ScalarNode)}
    result: dict[TableName, TableSpec] = {}
    for name, entry in entries.items():
        spec, others = _read_table_section(name, entry, base, reading, ambient=ambient)
        same = None if spec is None or name in divided else _same_table(spec, result)
        table = name if same is None else same.name
        for place, text in ((entry.key, name), *others):
            names.add(place, text, table, reading)
        if same is not None and spec is not None:
            coming = _same_changes(same, spec, entry, reading)
            result[table] = replace(same, names=(*same.names, name, *spec.names), coming=coming)
        elif spec is not None:
            result[name] = spec
            names.paths.setdefault(path_key(spec.path), name)
    declared = TableNames(names.tables, names.paths, catalog, schema)
    return DeclaredTables(tuple(entries), declared), result


def _same_table(spec: TableSpec, result: Mapping[TableName, TableSpec]) -> TableSpec | None:
    """The same table of an earlier entry."""
    key = (path_key(spec.path), *_how(spec))
    return next((o for o in result.values() if (path_key(o.path), *_how(o)) == key), None)


def _how(spec: TableSpec) -> tuple[object, ...]:
    """What two entries for one path must share to be one source."""
    lives = None if spec.expiry is None else (spec.expiry.column.lower(), spec.expiry.after)
    return spec.storage_options, spec.ambient, spec.clone_of, lives


def _same_changes(
    table: TableSpec, other: TableSpec, entry: MappingEntry, reading: FileReading
) -> tuple[ExpectedChanges, ...] | None:
    """The changes of a table, which must be the same in two entries for it."""
    if other.coming is None or table.coming is None:
        return table.coming if other.coming is None else other.coming
    if table.coming != other.coming:
        reading.report(
            entry.key,
            f"Tables {shown(table.name)} and {shown(other.name)} are the same table, with "
            "different `changes`",
            "write `changes` once",
        )
    return table.coming


def _read_default(node: Node | None, where: str, otherwise: str, reading: FileReading) -> str:
    written = reading.text(node, where)
    if node is None or written is None:
        return otherwise
    parts = name_parts(written)
    if not is_table_name(written) or parts is None or len(parts) != 1:
        hint = "write one name: `catalog: main` and `schema: shop` make `sales` main.shop.sales"
        reading.report(node, f"{where} cannot be {written_at(node, written)}", hint)
        return otherwise
    return parts[0]


def _is_ambient(node: Node | None, where: str, reading: FileReading, *, otherwise: bool) -> bool:
    """Whether `credentials` is `ambient`; `otherwise` without it."""
    said = reading.choice(node, where, CREDENTIALS)
    return otherwise if said is None else said == "ambient"


def _read_table_section(
    name: str, entry: MappingEntry, base: Path, reading: FileReading, *, ambient: bool
) -> tuple[TableSpec | None, Sequence[tuple[Node, str]]]:
    """The table and its other names, each with its position."""
    where = inside("`tables`", name)
    fields = reading.record(
        entry.value,
        where,
        ("path",),
        ("storage_options", "names", "credentials", "changes", "expiry", "clone_of"),
    )
    if fields is None:
        return None, ()
    path = read_path(fields.get("path"), inside(where, "path"), base, reading)
    options = reading.settings(fields.get("storage_options"), inside(where, "storage_options"))
    written = fields.get("credentials")
    is_ambient = _is_ambient(written, inside(where, "credentials"), reading, otherwise=ambient)
    coming = read_changes(fields.get("changes"), inside(where, "changes"), reading)
    expiry = _read_expiry(fields.get("expiry"), inside(where, "expiry"), reading)
    place = inside(where, "clone_of")
    roots = [
        read_path(node, place, base, reading)
        for node in reading.elements(fields.get("clone_of"), place) or []
    ]
    clone_of = tuple(root for root in roots if root is not None)
    place = inside(where, "names")
    nodes = reading.elements(fields.get("names"), place) or []
    texts = [(node, reading.text(node, place)) for node in nodes]
    others = [(node, text) for node, text in texts if text is not None]
    if path is None:
        return None, others
    if path.startswith(CATALOG_SCHEME):
        # The catalog's name of the table is one of its names, and checked as one.
        others.append((fields["path"], path.removeprefix(CATALOG_SCHEME)))
    at, names = reading.at(entry.key), tuple(text for _, text in others)
    spec = TableSpec(
        name, path, Secrets(options or {}), at, names, is_ambient, coming, expiry, clone_of
    )
    return spec, others


def _read_expiry(node: Node | None, where: str, reading: FileReading) -> ExpirySpec | None:
    fields = None if node is None else reading.record(node, where, ("column", "after"), ())
    if node is None or fields is None:
        return None
    column = reading.text(fields.get("column"), inside(where, "column"))
    after = read_duration(fields.get("after"), inside(where, "after"), reading)
    if column is None or after is None:
        return None
    return ExpirySpec(column, max(1, round(after * 1e6)), reading.at(fields["column"]))


# The section `queries` of the workload file. Law: the SQL text is taken as it stands, with its
# place; only `plan` reads it. A parameter's value has the type that YAML gives it; a number with
# a point and no exponent is an exact decimal, as it is in SQL.

NO_SKETCH = "none"

SETTINGS = ("policy", "maintain", "join", "state", "buffer", "lineage", "answer", "trigger")
"""Settings that `defaults` may set for all queries."""

_CHOICES: Mapping[str, Sequence[str]] = {
    "policy": list(Policy),
    "maintain": list(MaintainMode),
    "join": list(JoinStrategy),
    "lineage": list(LineageMode),
    "state": list(StateKept),
}

_NO_ANSWER = {
    NO_SKETCH: "it is stored with the sketch; remove one of the two",
    str(LineageMode.WITNESS): (
        "a materialized result needs all rows, not only witnesses; remove one of the two"
    ),
}
"""What cannot be combined with a materialized result, and the hint."""

ABSORPTION = "absorption"

MAX_NODES = 1_000_000_000
"""Some twenty gigabytes."""

_OF_ALL = "absorption uses all derivations; write `lineage: all` or remove it"
_NO_FUNCTIONS = {
    NO_SKETCH: "it is stored with the sketch; remove one of the two",
    str(LineageMode.WITNESS): _OF_ALL,
    str(LineageMode.ANSWER): _OF_ALL,
}
"""What cannot be combined with recursion by absorption, and the hint."""

MAX_BUFFER = 1_000_000
"""More than that is as good as keeping everything (`all`)."""


def read_defaults(node: Node | None, reading: FileReading) -> Mapping[str, Node]:
    """The settings of queries without their own, from the section `defaults`."""
    path = "`defaults`"
    result = {} if node is None else reading.record(node, path, (), SETTINGS) or {}
    known = len(reading.problems)
    read = {name: value for name, value in result.items() if _is_right(name, value, path, reading)}
    return read if len(reading.problems) == known else {}


def _is_right(name: str, node: Node, path: str, reading: FileReading) -> bool:
    """Whether a setting has a value of its type; problems are reported once, here."""
    where = inside(path, name)
    match name:
        case "buffer":
            return _read_buffer(node, where, reading) is not None
        case "answer":
            return _read_switch(node, where, reading) is not None
        case "trigger":
            return read_trigger(node, where, reading) is not None
    return reading.choice(node, where, _CHOICES[name]) is not None


def read_queries(
    node: Node | None, tables: Declared, defaults: Mapping[str, Node], reading: FileReading
) -> dict[str, QuerySpec]:
    """The valid queries, in file order, with defaults applied."""
    entries = reading.entries(node, "`queries`")
    if node is None or entries is None:
        return {}
    if not entries:
        reading.report(node, "`queries` is empty", "write at least one query")
    result: dict[str, QuerySpec] = {}
    for name, entry in entries.items():
        if not is_name(name):
            refuse_name(entry.key, name, "a query", reading)
        spec = _read_query(name, entry, tables, defaults, reading)
        if spec is not None:
            result[name] = spec
    return result


def _read_query(
    name: str,
    entry: MappingEntry,
    tables: Declared,
    defaults: Mapping[str, Node],
    reading: FileReading,
) -> QuerySpec | None:
    path = inside("`queries`", name)
    own = reading.record(entry.value, path, ("sql",), ("params", "sketch", "provenance", *SETTINGS))
    if own is None:
        return None
    fields = {**defaults, **own}
    params, moves = _read_params(fields.get("params"), inside(path, "params"), reading)
    wanted = fields.get("sketch")
    is_sketched = not (isinstance(wanted, ScalarNode) and wanted.value == NO_SKETCH)
    where = inside(path, "sketch")
    sketch = _read_sketch(wanted, where, tables, reading) if is_sketched else {}

    def chosen(name: str) -> str | None:
        return reading.choice(fields.get(name), inside(path, name), _CHOICES[name])

    policy, maintain, join = map(chosen, ("policy", "maintain", "join"))
    buffer = _read_buffer(fields.get("buffer"), inside(path, "buffer"), reading)
    lineage = chosen("lineage")
    answer = _read_answer(fields, own, path, reading)
    trigger = read_trigger(fields.get("trigger"), inside(path, "trigger"), reading)
    node = fields.get("sql")
    sql = reading.resolved_text(node, inside(path, "sql"))
    if sql is None or not isinstance(node, ScalarNode):
        return None
    return QuerySpec(
        name=name,
        sql=sql.text,
        sketch=sketch,
        policy=Policy(policy or Policy.AUTO),
        maintain=MaintainMode(maintain or MaintainMode.LAZY),
        join=JoinStrategy(join or JoinStrategy.AUTO),
        location=reading.at(entry.key),
        sql_origin=origin_of(node, sql, reading.lines),
        params=params,
        moves=moves,
        buffer=buffer,
        lineage=LineageMode(lineage or LineageMode.ALL),
        lineage_place=reading.at(own["lineage"]) if "lineage" in own else None,
        is_sketched=is_sketched,
        answer=answer,
        trigger=trigger,
        state=_read_state(fields, own, path, reading),
        provenance=_read_provenance(fields, path, reading),
    )


def _read_state(
    fields: Mapping[str, Node], own: Mapping[str, Node], path: str, reading: FileReading
) -> StateKept | None:
    """The state kept whatever the budget; the default only if `join` permits it."""
    where = inside(path, "state")
    choice = reading.choice(fields.get("state"), where, _CHOICES["state"])
    join = fields.get("join")
    is_open = not isinstance(join, ScalarNode) or join.value == JoinStrategy.AUTO
    if choice is None or is_open:
        return None if choice is None else StateKept(choice)
    if "state" in own and isinstance(join, ScalarNode):
        hint = "`join` already determines the state to keep; remove one of the two"
        reading.report(own["state"], f"{where} cannot be combined with `join: {join.value}`", hint)
    return None


def _read_provenance(
    fields: Mapping[str, Node], path: str, reading: FileReading
) -> ProvenanceSpec | None:
    """How recursion is maintained by absorption; None if unspecified."""
    node, where = fields.get("provenance"), inside(path, "provenance")
    if node is None:
        return None
    for other in ("sketch", "lineage"):
        value = fields.get(other)
        if isinstance(value, ScalarNode) and value.value in _NO_FUNCTIONS:
            problem = f"{where} cannot be combined with `{other}: {value.value}`"
            reading.report(node, problem, _NO_FUNCTIONS[value.value])
    if not isinstance(node, MappingNode):
        also = ", or a mapping with `kind`, `ship` and `nodes`"
        reading.choice(node, where, [ABSORPTION], beside=also)
        return ProvenanceSpec()
    own = reading.record(node, where, ("kind",), ("ship", "nodes")) or {}
    reading.choice(own.get("kind"), inside(where, "kind"), [ABSORPTION])
    ship = reading.choice(own.get("ship"), inside(where, "ship"), list(ShipMode))
    usual = "5000000 nodes take about 100 MB"
    nodes = reading.whole_number(own.get("nodes"), inside(where, "nodes"), MAX_NODES, usual)
    default = ProvenanceSpec()
    return ProvenanceSpec(ShipMode(ship or default.ship), nodes or default.nodes)


def _read_answer(
    fields: Mapping[str, Node], own: Mapping[str, Node], path: str, reading: FileReading
) -> bool:
    """Whether the result is materialized; by default only if it can be."""
    node, where = fields.get("answer"), inside(path, "answer")
    is_kept = _read_switch(node, where, reading)
    if node is None or not is_kept:
        return False
    for other in ("sketch", "lineage"):
        value = fields.get(other)
        if isinstance(value, ScalarNode) and value.value in _NO_ANSWER:
            if "answer" not in own:
                return False
            problem = f"{where} cannot be combined with `{other}: {value.value}`"
            reading.report(node, problem, _NO_ANSWER[value.value])
    return True


def _read_switch(node: Node | None, path: str, reading: FileReading) -> bool | None:
    cell = reading.cell(node, path, "`true` or `false`")
    if node is None or cell is None:
        return None
    if not isinstance(cell.value, bool):
        reading.report(node, f"{path} must be `true` or `false`", "write it without quotes")
        return None
    return cell.value


def _read_buffer(node: Node | None, path: str, reading: FileReading) -> int | Everything | None:
    cell = reading.cell(node, path, f"a whole number or `{EVERYTHING}`")
    if cell is None:
        return None
    if cell.value == EVERYTHING:
        return EVERYTHING
    usual = f"100 to 10000 suit most queries; `{EVERYTHING}` keeps everything"
    return reading.whole_number(node, path, MAX_BUFFER, usual)


def _read_params(
    node: Node | None, path: str, reading: FileReading
) -> tuple[Mapping[str, ParameterValue], Mapping[str, ParameterMoves]]:
    """Values, and the parameters that move."""
    params: dict[str, ParameterValue] = {}
    moves: dict[str, ParameterMoves] = {}
    for name, entry in (reading.entries(node, path) or {}).items():
        if re.fullmatch(IDENTIFIER_PATTERN, name) is None:
            problem = f"{written_at(entry.key, name)} cannot be the name of a parameter"
            hint = "use letters, digits and `_`, and do not start with a digit"
            reading.report(entry.key, problem, hint)
        where = inside(path, name)
        if isinstance(entry.value, MappingNode):
            fields = reading.record(entry.value, where, ("moves",)) or {}
            choice = reading.choice(
                fields.get("moves"), inside(where, "moves"), list(ParameterMoves)
            )
            if choice is not None:
                moves[name] = ParameterMoves(choice)
            continue
        cell = reading.cell(entry.value, where, "a single value")
        value = None if cell is None else _parameter_value(cell)
        if cell is not None and value is None:
            hint = "write a number, text, a date, a timestamp, or true or false"
            reading.report(entry.value, f"{where} has no value for the SQL", hint)
        if value is not None:
            params[name] = value
    return params, moves


def _parameter_value(cell: YamlScalar) -> ParameterValue | None:
    """The value of a parameter; None for NULL, NaN and infinity, which have no literal."""
    if not isinstance(cell.value, float):
        return cell.value
    if not math.isfinite(cell.value):
        return None
    return cell.value if "e" in cell.written.lower() else Decimal(cell.written)


def _read_sketch(
    node: Node | None, path: str, tables: Declared, reading: FileReading
) -> Mapping[str, str]:
    sketch: dict[str, str] = {}
    if isinstance(node, ScalarNode):
        hint = "write `table: column`, or `none` for a query without a sketch"
        reading.report(node, f"{path} must be a mapping, or `{NO_SKETCH}`", hint)
        return sketch
    for table, entry in (reading.entries(node, path) or {}).items():
        column = reading.text(entry.value, inside(path, table))
        result = declared_table(table, entry.key, tables, path, reading)
        if result in sketch:
            hint = "remove one; all names of a table refer to the same table"
            reading.report(entry.key, f"Table {shown(table)} appears twice in {path}", hint)
        if result is not None and column is not None:
            sketch[result] = column
    return sketch
