"""The rows that an update batch inserts, deletes or changes, computed before it is written."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from deltalake import Schema as DeltaSchema
from msgspec import Struct

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGRAL, Column, Kind, SqlType
from impctl.data.vector import Vector, from_arrow, typed_arrow
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    Location,
    NotExactError,
    QueryError,
    StorageError,
    TableError,
    UnsupportedError,
    UsageError,
)
from impctl.expr import nodes as e
from impctl.expr.evaluate import Condition, Evaluator, find_blocker, find_condition_blocker
from impctl.expr.types import type_of
from impctl.plan.nodes import Plan, Project, Scan, Select
from impctl.sql.statement import parse_query
from impctl.tables.files import check_calendar, hybrid_columns
from impctl.tables.rows import bare_rows, read_batches
from impctl.tables.snapshot import Snapshot, arrow_type, null_when_empty, to_arrow_type
from impctl.tables.statistics import prune_by_condition
from impctl.tables.storage import READ_FAILURES, failure_text

if TYPE_CHECKING:
    from impctl.types import AttributeId, ColumnName


# Rows to insert, from the workload file or from a Parquet or CSV file. Law: a value is accepted
# only if the column's type holds it exactly and Spark would store the same; a file whose column is
# of another kind is refused, never cast by Arrow's rules. A column that is not given is NULL.
# Timestamps without a zone are read as UTC.

_DAY = r"\d{4}-\d\d-\d\d"
_TIME = re.compile(rf"{_DAY}([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[-+]\d\d:\d\d)?)?", re.ASCII)
_NEVER = re.compile(r"(?!)")
_TEXTS: Mapping[Kind, re.Pattern[str]] = {
    Kind.FLOAT: _NEVER,
    Kind.DOUBLE: _NEVER,
    Kind.DECIMAL: re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII),
    Kind.DATE: re.compile(_DAY, re.ASCII),
    Kind.TIMESTAMP: _TIME,
    Kind.TIMESTAMP_NTZ: _TIME,
}
"""Spellings that Spark reads alike; Python would accept `1_000`, `20241231` and other digits."""


def rows_to_insert(snapshot: Snapshot, rows: Sequence[Mapping[ColumnName, object]]) -> pa.Table:
    """The rows as a table in the snapshot's columns. UsageError for an unknown column, a missing
    one that may not be NULL, or a wrong type. Bounded by the rows in the workload file."""
    provided: dict[ColumnName, list[object]] = {}
    for index, row in enumerate(rows):
        where = f"row {index + 1}"
        columns = [known(snapshot, name, f", which is in {where}") for name in row]
        for column, value in zip(columns, row.values(), strict=True):
            if columns.count(column) > 1:
                raise UsageError(
                    f"Column `{column.name}` is given twice in {where} for table "
                    f"`{snapshot.table}`",
                    hint="column names are not case-sensitive",
                )
            if value is not None:
                provided.setdefault(column.name, [None] * len(rows))[index] = value

    def converted(column: Column, values: list[object]) -> pa.Array:
        cells = [
            None if value is None else _value(value, column, f"row {index}")
            for index, value in enumerate(values, start=1)
        ]
        return pa.array(cells, arrow_type(column.type))

    return _completed(snapshot, provided, len(rows), converted)


def file_to_insert(snapshot: Snapshot, path: str) -> pa.Table:
    """The rows of a Parquet or CSV file (by its ending) as a table in the snapshot's columns."""
    data, hybrid = _read_file(snapshot, path)
    where = f", which is in file {path}"
    names = [known(snapshot, name, where).name for name in data.column_names]
    provided = dict(zip(names, data.columns, strict=True))
    if len(provided) != len(names):
        raise UsageError(
            f"A column name appears twice in {path}", hint="column names are not case-sensitive"
        )
    old = {name.lower() for name in hybrid}

    def converted(column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
        result = _converted(snapshot, column, values, path)
        if column.name.lower() in old:
            check_calendar(result, column.type, column.name, path)
        return result

    return _completed(snapshot, provided, data.num_rows, converted)


def known(snapshot: Snapshot, name: ColumnName, use: str) -> Column:
    """The column of that name; if the table has none, UsageError with its `use` in the batch."""
    result = snapshot.schema.find(name)
    if result is None:
        raise UsageError(
            f"Table `{snapshot.table}` has no column `{name}`{use}",
            hint=f"its columns are {', '.join(f'`{known}`' for known in snapshot.schema.names)}",
        )
    return result


def _completed(
    snapshot: Snapshot,
    provided: Mapping[ColumnName, Any],
    rows: int,
    convert: Callable[[Column, Any], Any],
) -> pa.Table:
    """A table of the given columns, NULL for missing ones where NULL is permitted."""
    fields, columns = [], []
    for column in snapshot.schema:
        is_opaque = column.type.kind is Kind.OTHER
        if is_opaque and column.name in provided:
            raise UsageError(
                f"Column `{snapshot.table}.{column.name}` has type `{column.type}`, and impctl "
                "cannot insert values of this type",
                hint="omit the column, or insert with Spark",
            )
        if column.name in provided:
            values = convert(column, provided[column.name])
        elif is_opaque:
            schema = pa.schema(DeltaSchema.from_json(snapshot.schema_json).to_arrow())
            values = pa.nulls(rows, schema.field(column.name).type)
        else:
            values = pa.nulls(rows, arrow_type(column.type))
        columns.append(storable(snapshot, column, values))
        is_nullable = column.name not in snapshot.not_null
        fields.append(pa.field(column.name, columns[-1].type, is_nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def storable(snapshot: Snapshot, column: Column, values: pa.Array | pa.ChunkedArray) -> Any:
    """The values as they are written. Refuses NULL in a column that is NOT NULL, and texts too long
    for VARCHAR(n), including trailing blanks, which Spark cuts."""
    if column.type.kind is Kind.STRING and column.name in snapshot.partition_columns:
        values = null_when_empty(values)
    if values.null_count and column.name in snapshot.not_null:
        raise UsageError(
            f"Column `{snapshot.table}.{column.name}` is NOT NULL, but a row has no value for it",
            hint="give every row a value",
        )
    limit = snapshot.columns.longest.get(column.name)
    longest = None if limit is None else pc.max(pc.utf8_length(values)).as_py()
    if limit is not None and longest is not None and longest > limit:
        raise UsageError(
            f"Column `{snapshot.table}.{column.name}` has type varchar({limit}), but a row has "
            f"{longest} characters",
            hint="shorten the text",
        )
    return values


def _value(value: object, column: Column, where: str) -> object:
    """The value in a form that Arrow converts exactly; UsageError if the type cannot hold it."""
    try:
        result = _plain(value, column.type)
        if result is not None:
            pa.scalar(result, arrow_type(column.type))
            return result
    except (pa.ArrowException, ArithmeticError, ValueError):
        pass  # out of the type's range, or no such day
    raise UsageError(
        f"The value of `{column.name}` in {where} is not a valid `{column.type}`: {value!r}",
        hint=_HINTS.get(column.type.kind, f"write a value of type `{column.type}`"),
    )


def _plain(value: object, target: SqlType) -> object:
    """The value as Arrow takes it; None if it is of another kind. ValueError or ArithmeticError if
    there is no such value."""
    kind = target.kind
    if isinstance(value, bool) or kind in _EXACTLY or target.is_integral:
        is_right = isinstance(value, _EXACTLY.get(kind, int))
        return value if is_right and isinstance(value, bool) is (kind is Kind.BOOLEAN) else None
    if isinstance(value, str) and not _TEXTS[kind].fullmatch(value):
        return None
    if target.is_fractional and isinstance(value, int | float | Decimal):
        double = float(value)
        with np.errstate(over="ignore"):
            stored = float(np.float32(double)) if kind is Kind.FLOAT else double
        is_changed = math.isinf(stored) and not (isinstance(value, float) and math.isinf(value))
        return None if is_changed else double
    if kind is Kind.DECIMAL and isinstance(value, int | float | str | Decimal):
        decimal = Decimal(repr(value) if isinstance(value, float) else value)
        return decimal if decimal.is_finite() else None
    if kind is Kind.DATE:
        day = date.fromisoformat(value) if isinstance(value, str) else value
        return day if isinstance(day, date) and not isinstance(day, datetime) else None
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime):
        return None
    if kind is Kind.TIMESTAMP_NTZ:
        return moment if moment.tzinfo is None else None
    # Before year 1, or after 9999, in UTC, this overflows.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_EXACTLY: Mapping[Kind, type] = {Kind.BOOLEAN: bool, Kind.STRING: str, Kind.BINARY: bytes}
_HINTS = {
    Kind.STRING: "put text in quotes",
    Kind.DECIMAL: "write a number that fits the column's precision and scale exactly",
    Kind.DATE: "write a date such as 2024-12-31",
    Kind.TIMESTAMP: "write a time such as 2024-12-31T12:00:00Z",
    Kind.TIMESTAMP_NTZ: "write a time without a time zone such as 2024-12-31T12:00:00",
}


_Test = Callable[[pa.DataType], bool]

_INTEGER: tuple[_Test, ...] = (pa.types.is_integer,)
_SOURCES: Mapping[Kind, tuple[_Test, ...]] = {
    **dict.fromkeys(INTEGRAL, _INTEGER),
    Kind.BOOLEAN: (pa.types.is_boolean,),
    Kind.FLOAT: (*_INTEGER, pa.types.is_float16, pa.types.is_float32),
    Kind.DOUBLE: (*_INTEGER, pa.types.is_floating),
    Kind.DECIMAL: (*_INTEGER, pa.types.is_decimal),
    Kind.STRING: (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    Kind.BINARY: (
        *(pa.types.is_binary, pa.types.is_large_binary),
        *(pa.types.is_fixed_size_binary, pa.types.is_binary_view),
    ),
    Kind.DATE: (pa.types.is_date,),
    Kind.TIMESTAMP: (pa.types.is_date, pa.types.is_timestamp),
    Kind.TIMESTAMP_NTZ: (
        pa.types.is_date,
        lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    ),
}
"""Types of a file's column, per type of the table's, between which a checked cast is exact."""


def check_regular(path: str) -> None:
    """UsageError for a folder, a pipe or a device, whose content may be infinite."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(
            f"The file to insert is not a regular file: {path}", hint="give a Parquet or CSV file"
        )


def _converted(
    snapshot: Snapshot, column: Column, values: pa.ChunkedArray, path: str
) -> pa.ChunkedArray:
    """The values in the column's type; UsageError if one changes."""
    reason = f"it has type `{values.type}`"
    if _means_the_same(values.type, column.type.kind):
        try:
            return to_arrow_type(values, column.type)
        except pa.ArrowException as error:
            reason = failure_text(error)
    raise UsageError(
        f"Column `{column.name}` of {path} does not fit `{column.type}`: {reason}",
        hint=f"give the file's column the type of `{snapshot.table}.{column.name}`",
    )


def _means_the_same(source: pa.DataType, target: Kind) -> bool:
    """Whether a cast keeps the meaning: numbers as numbers, texts as texts, times as times. Only
    then does a checked cast fail or keep the value, in Arrow as in Spark."""
    if pa.types.is_dictionary(source):
        source = source.value_type
    if pa.types.is_null(source):
        return True
    return any(is_such(source) for is_such in _SOURCES.get(target, ()))


def _read_file(snapshot: Snapshot, path: str) -> tuple[pa.Table, frozenset[ColumnName]]:
    """The file's rows, and its columns in the calendar of Spark 2."""
    try:
        if path.lower().endswith(".parquet"):
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                rows = file.read()
                return rows, hybrid_columns(file.metadata, rows.column_names)
        if path.lower().endswith(".csv"):
            return _read_csv(snapshot, path), frozenset()
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"The file to insert cannot be read: {failure_text(error)}", hint=f"correct {path}"
        ) from error
    except READ_FAILURES as error:
        raise unreadable_file(path, error) from error
    raise UsageError(
        f"The file to insert is neither Parquet nor CSV: {path}",
        hint="use the extension `.parquet` or `.csv`",
    )


def unreadable_file(path: str, error: Exception) -> ImpctlError:
    """The error for a file to insert that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return UsageError(
            f"The file to insert does not exist: {path}",
            hint="a relative path starts at the folder of the workload file",
        )
    return StorageError(
        f"Reading the file to insert failed: {failure_text(error)}", hint=f"check {path}"
    )


def _read_csv(snapshot: Snapshot, path: str) -> pa.Table:
    """The file's rows in the columns' types, each column spelled as in the header."""
    with pa_csv.open_csv(path) as opened:
        header = opened.schema.names
    result = {name: snapshot.schema.find(name) for name in header}
    options = pa_csv.ConvertOptions(
        # pyarrow guesses the type of a column whose exact name is missing here.
        column_types={
            name: arrow_type(column.type)
            for name, column in result.items()
            if column is not None and column.type.kind is not Kind.OTHER
        },
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return pa_csv.read_csv(path, convert_options=options)


# The rows that a delete or update matches, and their new values. Law: impctl's engine decides, with
# Spark's meaning, which rows match and what becomes of them. deltalake is given values, never a
# condition or an expression: it merges a table of the combinations of values in the columns that
# are read, and beside them the values to set. Rows with the same values there match alike, so no
# key is needed. NaN matches NaN of the same bits, NULL matches NULL, and -0.0 matches 0.0, which no
# condition distinguishes. What the engine cannot compute exactly, and more than a simple condition
# or value, is refused by name. Memory is proportional to the matching combinations.

_TABLE = "updated_table"
_ACCESS = f"{_TABLE}#1"
_EXACT_DOUBLE_DIGITS = 15
_UNREADABLE = "query_syntax"
_COMPUTED = re.compile(r"[()|*+=<>]")
_MEANT_DAY = re.compile(r"\d{4}-\d\d?-\d\d?")
_MEANT_TIME = re.compile(rf"{_MEANT_DAY.pattern}([ T]\d.*)?")
_EXAMPLES = (
    "values of `set` are SQL expressions: text and times need their own quotes, as in "
    "\"'Berlin'\" or \"TIMESTAMP '2026-01-31 12:00:00'\""
)
_CONSTANT = (e.Literal, e.Negate, e.Arithmetic)
_VALUE = (*_CONSTANT, e.ColumnRef)
_SIMPLE_CONDITIONS = (
    "a condition compares columns and constants with `=`, `<`, IN, BETWEEN, IS NULL and the like, "
    "joined by AND, OR and NOT; run other updates in Spark"
)
_SIMPLE_VALUES = "a value is a constant, or arithmetic on columns; run other updates in Spark"


class MatchedRows(Struct, frozen=True):
    """How many rows a batch matches, and what deltalake merges."""

    rows: int
    keys: tuple[ColumnName, ...]
    """The columns that decide; without any, every row matches."""
    assigned: tuple[ColumnName, ...]
    values: pa.Table
    """A row per combination of values: columns `k0`, `k1`, ... as `keys`, `v0`, ... to set."""
    texts: frozenset[ColumnName] = frozenset()
    """Partition columns of text: the protocol reads `''` there as NULL, deltalake as a text."""

    @property
    def predicate(self) -> str:
        """The condition of the merge of `target` and `source`."""
        pairs = []
        for index, name in enumerate(self.keys):
            stored = f"target.{_quoted(name)}"
            stored = f"nullif({stored}, '')" if name in self.texts else stored
            pairs.append(f"({stored} IS NOT DISTINCT FROM source.k{index})")
        return " AND ".join(pairs) or "TRUE"

    @property
    def updates(self) -> dict[str, str]:
        """The value of each column to set, in the names of the merge."""
        return {_quoted(name): f"source.v{index}" for index, name in enumerate(self.assigned)}


def _quoted(name: ColumnName) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Change(Struct, frozen=True):
    column: Column
    written: str
    value: e.Expr
    """In the column's type."""


def match_rows(
    snapshot: Snapshot,
    where: str | None,
    assignments: Mapping[ColumnName, str] = MappingProxyType({}),
    places: Mapping[ColumnName, Location] = MappingProxyType({}),
) -> MatchedRows:
    """The rows for which `where` is true (without one every row), and their new values. Raises
    UsageError or QueryError for invalid texts, UnsupportedError for what impctl does not compute,
    EvaluationError if the batch fails on a row. Errors of assignments have their places."""
    changes = _read_assignments(snapshot, assignments, places)
    condition: e.Expr = e.Literal(True, BOOLEAN) if where is None else _read_where(snapshot, where)
    changed = {change.column.name for change in changes}
    constraints = dict(_constraints(snapshot, changed))
    read = _columns(
        snapshot, condition, *(change.value for change in changes), *constraints.values()
    )
    rows, keys = _match(snapshot, where, condition, read)
    vectors = _vectors(read, keys)
    new: dict[ColumnName, pa.Array] = {}
    for change in changes:
        with _failures(snapshot, change.written):
            computed = Evaluator(change.value).values(vectors, len(keys))
        array = typed_arrow(computed, arrow_type(change.column.type))
        new[change.column.name] = storable(snapshot, change.column, array)
    for key, column in read.items():
        if column.name in new:
            vectors[key] = from_arrow(new[column.name], column.type)
    for text, constraint in constraints.items():
        _check_constraint(snapshot, text, constraint, vectors, len(keys))
    names = [
        *(f"k{index}" for index in range(len(read))),
        *(f"v{index}" for index in range(len(new))),
    ]
    values = [*(keys.column(column.name) for column in read.values()), *new.values()]
    texts = frozenset(c.name for c in read.values() if c.type.kind is Kind.STRING)
    return MatchedRows(
        rows,
        tuple(column.name for column in read.values()),
        tuple(new),
        pa.Table.from_arrays(values, names) if names else bare_rows(1),
        texts.intersection(snapshot.partition_columns),
    )


def check_rows(snapshot: Snapshot, rows: pa.Table) -> None:
    """Refuse rows that violate a constraint, and constraints that impctl cannot test."""
    for text, condition in _constraints(snapshot, rows.column_names) if len(rows) else ():
        vectors = _vectors(_columns(snapshot, condition), rows)
        _check_constraint(snapshot, text, condition, vectors, len(rows))


def not_writable(snapshot: Snapshot, reason: str) -> TableError:
    return TableError(
        f"impctl cannot write to table `{snapshot.table}`: {reason}",
        hint="apply the batch with Spark and the Delta JAR",
        code="table_not_writable",
    )


def _constraints(
    snapshot: Snapshot, changed: Collection[ColumnName]
) -> Iterator[tuple[str, e.Expr]]:
    """The constraints that read a changed column. deltalake tests them too, but by its own rules:
    `7 / 2` is 3, a NaN may be below 0."""
    for text in snapshot.constraints:
        try:
            condition = _parse_condition(snapshot, text)
        except ImpctlError as error:
            reason = f"its constraint `{text}` cannot be parsed by impctl"
            raise not_writable(snapshot, reason) from error
        read = _columns(snapshot, condition).values()
        if read and not any(column.name in changed for column in read):
            continue
        is_opaque = any(column.type.kind is Kind.OTHER for column in read)
        if is_opaque or find_blocker(condition) is not None:
            raise not_writable(snapshot, f"its constraint `{text}` cannot be checked by impctl")
        yield text, condition


def _check_constraint(
    snapshot: Snapshot, text: str, condition: e.Expr, vectors: dict[AttributeId, Vector], rows: int
) -> None:
    if not Condition(condition).truth(vectors, rows).sure_true().all():
        raise UsageError(
            f"Table `{snapshot.table}` does not accept the batch: a row breaks its constraint"
            f" `{text}`",
            hint="correct the batch, or the table's constraints",
        )


def _columns(snapshot: Snapshot, *exprs: e.Expr) -> dict[AttributeId, Column]:
    """The columns that are read, each once, in the schema's order."""
    used = frozenset[str]().union(*(expr.columns for expr in exprs))
    ids = ((f"{_ACCESS}.{column.name}", column) for column in snapshot.schema)
    return {key: column for key, column in ids if key in used}


def _vectors(read: Mapping[AttributeId, Column], rows: pa.Table) -> dict[AttributeId, Vector]:
    return {key: from_arrow(rows.column(c.name), c.type) for key, c in read.items()}


def _match(
    snapshot: Snapshot, where: str | None, condition: e.Expr, read: dict[AttributeId, Column]
) -> tuple[int, pa.Table]:
    """The number of matching rows, and the combinations of values they have."""
    names = [snapshot.readable(column.name).name for column in read.values()]
    files = prune_by_condition(snapshot, condition, {key: c.name for key, c in read.items()})
    rows, parts = 0, []
    for batch in read_batches(snapshot, names, files):
        with _failures(snapshot, where or ""):
            truth = Condition(condition).truth(_vectors(read, batch), len(batch))
            matches = truth.sure_true()
        rows += int(matches.sum())
        if names:
            parts.append(_distinct(batch.filter(pa.array(matches)), names))
    if not names:
        return rows, bare_rows(min(rows, 1))
    kinds = pa.schema([(c.name, arrow_type(c.type)) for c in read.values()])
    return rows, _distinct(pa.concat_tables([kinds.empty_table(), *parts]), names)


def _distinct(rows: pa.Table, names: Sequence[ColumnName]) -> pa.Table:
    """The rows, each once; Arrow distinguishes the two zeros and the bits of NaN."""
    for index, name in enumerate(names):
        if pa.types.is_floating(rows.column(name).type):
            # deltalake's join holds both zeros to be equal.
            positive = pc.add(rows.column(name), pa.scalar(0, rows.column(name).type))
            rows = rows.set_column(index, name, positive)
    return rows.group_by(names, use_threads=False).aggregate([])


@contextmanager
def _failures(snapshot: Snapshot, written: str) -> Iterator[None]:
    """Translate failures of the engine on a row."""
    try:
        yield
    except NotExactError as error:
        raise _refused(snapshot, written, "impctl cannot compute it exactly on a row") from error
    except EvaluationError as error:
        raise EvaluationError(
            f"`{shown(written)}` fails on a row of table `{snapshot.table}`: {error.message}",
            hint="restrict `where` to rows for which the expression can be computed",
        ) from error


def _read_where(snapshot: Snapshot, where: str) -> e.Expr:
    condition = _parse_condition(snapshot, where)
    complex_part = _complex_part(condition)
    if complex_part is not None:
        reason = f"{_named(complex_part)} is not available in conditions of updates"
        raise _refused(snapshot, where, reason, _SIMPLE_CONDITIONS)
    blocker = find_condition_blocker(condition)
    if blocker is not None:
        raise _refused(snapshot, where, blocker.reason)
    return condition


def _complex_part(condition: e.Expr) -> e.Expr | None:
    """The first part that makes the condition more than a simple one."""
    match condition:
        case e.And() | e.Or() | e.Not():
            parts = map(_complex_part, condition.expressions)
            return next((part for part in parts if part is not None), None)
        case e.Compare() | e.InList() | e.IsNull():
            return next((side for side in condition.expressions if not _is_simple_side(side)), None)
        case e.ColumnRef() | e.Literal():
            return None
        case _:
            return condition


def _is_simple_side(side: e.Expr) -> bool:
    return isinstance(side, e.ColumnRef) or all(isinstance(part, _CONSTANT) for part in side.walk())


def _named(part: e.Expr) -> str:
    """What the expression is called in SQL."""
    match part:
        case e.Call():
            return f"function `{part.name}`"
        case e.Like() | e.Case() | e.Coalesce() | e.Cast():
            return type(part).__name__.upper()
        case e.Arithmetic() | e.Negate():
            return "arithmetic on columns"
        case _:
            return "a condition inside an expression"


def _parse_condition(snapshot: Snapshot, text: str) -> e.Expr:
    """A condition on the table's rows, which may be more than a simple one."""
    predicate, _ = _parse(snapshot, f"SELECT 1 FROM {_TABLE} WHERE {text}", text)
    if predicate is None or type_of(predicate) != BOOLEAN:
        raise UsageError(
            f"`where` must be a condition on the rows of table `{snapshot.table}`: {shown(text)}",
            hint="write a comparison such as `sid = 3`",
        )
    return predicate


def _read_assignments(
    snapshot: Snapshot, assignments: Mapping[ColumnName, str], places: Mapping[ColumnName, Location]
) -> list[_Change]:
    changes: dict[ColumnName, _Change] = {}
    for name, written in assignments.items():
        try:
            column = known(snapshot, name, " to set")
            if column.name in changes:
                raise UsageError(
                    f"Column `{snapshot.table}.{column.name}` is set twice",
                    hint="column names are not case-sensitive",
                )
            changes[column.name] = _read_assignment(snapshot, column, written)
        except ImpctlError as error:
            raise error.at(places.get(name, error.location)) from error
    return list(changes.values())


def _read_assignment(snapshot: Snapshot, column: Column, written: str) -> _Change:
    where = f"`set` of `{snapshot.table}.{column.name}`"
    try:
        _, values = _parse(snapshot, f"SELECT {written} FROM {_TABLE}", written)
        if len(values) != 1:
            raise UsageError(
                f"{where} must be one value: {shown(written)}",
                hint="write one expression per column",
            )
        # Otherwise an alias or a clause behind the value would be lost, as in `city hall`.
        _, values = _parse(snapshot, f"SELECT ({written}\n) FROM {_TABLE}", written)
        return _Change(column, written, _stored(snapshot, column, written, values[0]))
    except QueryError as error:
        located = error.saying(f"{where} cannot be used: {error.message}")
        raise located.hinting(_hint(column, written, error)) from error


def _stored(snapshot: Snapshot, column: Column, written: str, value: e.Expr) -> e.Expr:
    """The value in the column's type, under Spark's store assignment."""
    source, target = type_of(value), column.type
    complex_part = next((part for part in value.walk() if not isinstance(part, _VALUE)), None)
    if complex_part is not None:
        reason = f"{_named(complex_part)} is not available in values of updates"
        raise _refused(snapshot, written, reason, _SIMPLE_VALUES)
    if source != target and not (
        source is None
        or source.kind is Kind.NULL
        or source.is_numeric
        and target.is_numeric
        or source.is_integral
        and target.kind is Kind.STRING
    ):
        literal = None if target.kind is Kind.STRING else _literal_of(column, written)
        hint = "write a value of the column's type" if literal is None else _meant(literal)
        reason = f"a `{source}` cannot be stored in a column of type `{target}`"
        raise _refused(snapshot, written, reason, hint)
    if source is not None and source.kind is Kind.DECIMAL and target.kind is Kind.FLOAT:
        # With more digits, rounding twice may differ from Spark's.
        value = e.Cast(value, DOUBLE) if source.precision <= _EXACT_DOUBLE_DIGITS else value
    stored = e.Cast(value, target)
    blocker = find_blocker(stored)
    if blocker is not None:
        raise _refused(snapshot, written, blocker.reason)
    return stored


def _hint(column: Column, written: str, error: QueryError) -> str | None:
    literal = _literal_of(column, written)
    hint = error.hint if error.code != _UNREADABLE else None
    if literal is None and hint is not None:
        return hint
    expected = _EXAMPLES if literal is None else _meant(literal)
    return expected if hint is None else f"{expected}; {hint}"


def _meant(literal: str) -> str:
    return f'values of `set` are SQL expressions: write this one as "{literal}"'


def _literal_of(column: Column, written: str) -> str | None:
    """The literal that an unquoted text probably means; None if it is none."""
    text = written.strip().strip("'")
    if not text.isprintable() or any(mark in text for mark in "'\"\\"):
        return None
    match column.type.kind:
        case Kind.STRING:
            return None if _COMPUTED.search(text) else f"'{text}'"
        case Kind.DATE if _MEANT_DAY.fullmatch(text) and _is_a_day(text):
            return f"DATE '{text}'"
        case Kind.TIMESTAMP if _MEANT_TIME.fullmatch(text) and _is_a_day(re.split("[ T]", text)[0]):
            return f"TIMESTAMP '{text}'"
        case _:
            return None


def _is_a_day(text: str) -> bool:
    try:
        date(*map(int, text.split("-")))
    except ValueError:
        return False
    return True


def _parse(snapshot: Snapshot, sql: str, written: str) -> tuple[e.Expr | None, tuple[e.Expr, ...]]:
    """Condition and outputs of a SELECT over the one table; refuses any other query."""
    try:
        query = parse_query(sql, {_TABLE: snapshot.schema}, name=f"update of {snapshot.table}")
    except QueryError as error:
        # A position inside the generated SELECT would mislead.
        raise QueryError(error.message, hint=error.hint, code=error.code) from error
    node: Plan = query.root
    outputs: tuple[e.Expr, ...] = ()
    predicates: list[e.Expr] = []
    if isinstance(node, Project):
        outputs = tuple(output.expr for output in node.outputs)
        node = node.child
    while isinstance(node, Select):
        predicates.append(node.predicate)
        node = node.child
    if not isinstance(node, Scan):
        raise UsageError(
            f"Only expressions over the rows of table `{snapshot.table}` can be used in an update:"
            f" {shown(written)}",
            hint="remove subqueries, aggregates and clauses such as GROUP BY",
        )
    predicate = e.conjunction(predicates) if predicates else None
    return predicate, outputs


def _refused(
    snapshot: Snapshot, written: str, why: str, hint: str = "run this update in Spark instead"
) -> UnsupportedError:
    return UnsupportedError(
        f"An update of table `{snapshot.table}` cannot use `{shown(written)}`: {why}",
        hint=hint,
        code="update_unsupported",
    )


def shown(written: str) -> str:
    """A text of the file on one line, for messages."""
    return " ".join(written.split())
