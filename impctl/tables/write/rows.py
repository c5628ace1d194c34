"""The rows that an update batch inserts, deletes or changes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from deltalake import Schema as DeltaSchema

from impctl.data.schema import INTEGRAL, Column, Kind, SqlType
from impctl.errors import StorageError, UsageError
from impctl.tables.files import check_calendar, hybrid_columns
from impctl.tables.snapshot import Snapshot, arrow_type, null_when_empty, to_arrow_type
from impctl.tables.storage import READ_FAILURES, failure_text

if TYPE_CHECKING:
    from impctl.types import ColumnName

# Rows to insert, brought to a table's exact column types. Law: a value is taken only when the
# column's type holds it exactly; anything else is refused with its place. A column that is not
# given is NULL. Timestamps without a zone are read as UTC.

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
    one that may not be NULL, or a wrong type. Bounded by the rows that the workload file spells
    out."""
    named = [_by_column(snapshot, row, f"row {at}") for at, row in enumerate(rows, start=1)]
    arrays: list[pa.Array | None] = []
    for column in snapshot.schema:
        given = [row.get(column.name) for row in named]
        kind = insertable(snapshot, column, is_given=any(v is not None for v in given))
        if kind is None:
            arrays.append(None)
            continue
        values = [
            None if value is None else _value(value, column, f"row {at}")
            for at, value in enumerate(given, start=1)
        ]
        arrays.append(pa.array(values, kind))
    return complete(snapshot, arrays, len(named))


def _by_column(
    snapshot: Snapshot, row: Mapping[ColumnName, object], place: str
) -> dict[ColumnName, object]:
    result: dict[ColumnName, object] = {}
    for name, value in row.items():
        column = known(snapshot, name, place)
        if column.name in result:
            raise UsageError(
                f"Column `{column.name}` is given twice in {place} for table `{snapshot.table}`",
                hint="column names are not case-sensitive",
            )
        result[column.name] = value
    return result


def known(snapshot: Snapshot, name: ColumnName, place: str) -> Column:
    """The column of that name; UsageError with the place if the table has none."""
    result = snapshot.schema.find(name)
    if result is None:
        raise UsageError(
            f"Table `{snapshot.table}` has no column `{name}`, which is in {place}",
            hint=f"its columns are {', '.join(f'`{known}`' for known in snapshot.schema.names)}",
        )
    return result


def insertable(snapshot: Snapshot, column: Column, *, is_given: bool) -> pa.DataType | None:
    """The Arrow type for the column's values; None if it can only be NULL."""
    if column.type.kind is Kind.OTHER:
        if is_given:
            raise UsageError(
                f"Column `{snapshot.table}.{column.name}` has type `{column.type}`, and impctl "
                "cannot insert values of this type",
                hint="omit the column, or insert with Spark",
            )
        return None
    return arrow_type(column.type)


def complete(snapshot: Snapshot, arrays: Sequence[pa.Array | None], rows: int) -> pa.Table:
    """A table of the given columns, NULL for missing ones where NULL is permitted."""
    names, columns = [], []
    for column, array in zip(snapshot.schema, arrays, strict=True):
        values = pa.nulls(rows, _own_type(snapshot, column)) if array is None else array
        values = storable(snapshot, column, values)
        names.append(pa.field(column.name, values.type, column.name not in snapshot.not_null))
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=pa.schema(names))


def _own_type(snapshot: Snapshot, column: Column) -> pa.DataType:
    """The Arrow type of a missing column, including structs and arrays."""
    if column.type.kind is not Kind.OTHER:
        return arrow_type(column.type)
    schema = pa.schema(DeltaSchema.from_json(snapshot.schema_json).to_arrow())
    return schema.field(column.name).type


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


def _value(value: object, column: Column, place: str) -> object:
    """The value in a form that Arrow converts exactly; UsageError if the type cannot hold it."""
    try:
        result = _plain(value, column.type)
        if result is not None:
            pa.scalar(result, arrow_type(column.type))
            return result
    except (pa.ArrowException, ArithmeticError, ValueError):
        pass  # out of the type's range, or no such day
    raise UsageError(
        f"The value of `{column.name}` in {place} is not a valid `{column.type}`: {value!r}",
        hint=_HINTS.get(column.type.kind, f"write a value of type `{column.type}`"),
    )


def _plain(value: object, wanted: SqlType) -> object:
    """The value as Arrow takes it; None if it is of another kind. ValueError or ArithmeticError if
    there is no such value."""
    kind = wanted.kind
    if isinstance(value, bool) or kind in _EXACTLY or wanted.is_integral:
        is_right = isinstance(value, _EXACTLY.get(kind, int))
        return value if is_right and isinstance(value, bool) is (kind is Kind.BOOLEAN) else None
    if isinstance(value, str) and not _TEXTS[kind].fullmatch(value):
        return None
    if wanted.is_fractional and isinstance(value, int | float | Decimal):
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


# Rows to insert from a Parquet or CSV file, brought to a table's exact column types. Law: a value
# is taken only when the column's type holds it exactly and Spark would store the same; a file
# whose column is of another kind is refused, never cast by Arrow's rules. Timestamps without a
# zone are read as UTC.

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


def file_to_insert(snapshot: Snapshot, path: str) -> pa.Table:
    """The rows of a Parquet or CSV file (by its ending) as a table in the snapshot's columns."""
    data, hybrid = _read_file(snapshot, path)
    given = {
        known(snapshot, name, f"file {path}").name: data.column(at)
        for at, name in enumerate(data.column_names)
    }
    if len(given) != len(data.column_names):
        raise UsageError(
            f"A column name appears twice in {path}", hint="column names are not case-sensitive"
        )
    old = {name.lower() for name in hybrid}
    arrays: list[pa.Array | None] = []
    for column in snapshot.schema:
        values = given.get(column.name)
        kind = insertable(snapshot, column, is_given=values is not None)
        if values is None or kind is None:
            arrays.append(None)
            continue
        converted = _converted(snapshot, column, values, path)
        if column.name.lower() in old:
            check_calendar(converted, column.type, column.name, path)
        arrays.append(converted)
    return complete(snapshot, arrays, data.num_rows)


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


def _means_the_same(given: pa.DataType, wanted: Kind) -> bool:
    """Whether a cast keeps the meaning: numbers as numbers, texts as texts, times as times. Only
    then does a checked cast fail or keep the value, in Arrow as in Spark."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_null(given):
        return True
    return any(is_such(given) for is_such in _SOURCES.get(wanted, ()))


def _read_file(snapshot: Snapshot, path: str) -> tuple[pa.Table, frozenset[ColumnName]]:
    """The file's rows, and its columns in the calendar of Spark 2."""
    try:
        if path.lower().endswith(".parquet"):
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                rows = file.read()
                return rows, hybrid_columns(file.metadata, rows.column_names)
        if path.lower().endswith(".csv"):
            return _read_csv(snapshot, path), frozenset()
    except FileNotFoundError as error:
        raise UsageError(
            f"The file to insert does not exist: {path}",
            hint="a relative path starts at the folder of the workload file",
        ) from error
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"The file to insert cannot be read: {failure_text(error)}", hint=f"correct {path}"
        ) from error
    except READ_FAILURES as error:
        raise StorageError(
            f"Reading the file to insert failed: {failure_text(error)}", hint=f"check {path}"
        ) from error
    raise UsageError(
        f"The file to insert is neither Parquet nor CSV: {path}",
        hint="use the extension `.parquet` or `.csv`",
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
