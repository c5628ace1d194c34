"""Rows to insert, brought to a table's exact column types.

Law: a value is taken only when the column's type holds it exactly; anything else is refused with
its place. A column that is not given is NULL. Timestamps without a zone are read as UTC.
Out of scope: rows in files (`tables.write.inserted_file`), committing the rows
(`tables.write.updates`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema as DeltaSchema

from impctl.data.schema import Column, Kind, SqlType
from impctl.errors import UsageError
from impctl.tables.arrow_types import arrow_type
from impctl.tables.snapshot import Snapshot, null_when_empty
from impctl.types import ColumnName

_DECIMAL_TEXT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_DATE_TEXT = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME_TEXT = re.compile(
    rf"{_DATE_TEXT.pattern}([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[-+]\d\d:\d\d)?)?", re.ASCII
)
"""Spellings that Spark reads alike; Python would take `1_000`, `20241231` and other digits too."""

_BITS = {Kind.BYTE: 8, Kind.SHORT: 16, Kind.INTEGER: 32, Kind.LONG: 64}


def rows_to_insert(snapshot: Snapshot, rows: Sequence[Mapping[ColumnName, object]]) -> pa.Table:
    """The rows as a table in the snapshot's columns.

    Raises UsageError for an unknown column, a missing one that may not be NULL, or a value that is
    not of the column's type. Bounded by the rows that the workload file spells out.
    """
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
    """The column of that name; UsageError with the place where the table has none."""
    result = snapshot.schema.find(name)
    if result is None:
        raise UsageError(
            f"Table `{snapshot.table}` has no column `{name}`, which is in {place}",
            hint=f"its columns are {', '.join(f'`{known}`' for known in snapshot.schema.names)}",
        )
    return result


def insertable(snapshot: Snapshot, column: Column, *, is_given: bool) -> pa.DataType | None:
    """The Arrow type for the column's values; None when it can only be left NULL."""
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
    """A table of the given columns, NULL for those left out; refuses NULL where it may not be."""
    names, columns = [], []
    for column, array in zip(snapshot.schema, arrays, strict=True):
        nullable = column.name not in snapshot.not_null
        values = pa.nulls(rows, _own_type(snapshot, column)) if array is None else array
        if column.type.kind is Kind.STRING and column.name in snapshot.partition_columns:
            values = null_when_empty(values)
        if values.null_count and not nullable:
            raise _null_refused(snapshot, column)
        _check_length(snapshot, column, values)
        names.append(pa.field(column.name, values.type, nullable))
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=pa.schema(names))


def _own_type(snapshot: Snapshot, column: Column) -> pa.DataType:
    """The Arrow type of a column left out, structs and arrays included."""
    if column.type.kind is not Kind.OTHER:
        return arrow_type(column.type)
    schema = pa.schema(DeltaSchema.from_json(snapshot.schema_json).to_arrow())
    return schema.field(column.name).type


def _check_length(snapshot: Snapshot, column: Column, values: pa.Array | pa.ChunkedArray) -> None:
    """Refuse texts too long for VARCHAR(n); of blanks at the end, which Spark cuts, too."""
    limit = snapshot.columns.longest.get(column.name)
    if limit is None:
        return
    longest = pc.max(pc.utf8_length(values)).as_py()
    if longest is not None and longest > limit:
        raise UsageError(
            f"Column `{snapshot.table}.{column.name}` has type varchar({limit}), but a row has "
            f"{longest} characters",
            hint="shorten the text",
        )


def _null_refused(snapshot: Snapshot, column: Column) -> UsageError:
    return UsageError(
        f"Column `{snapshot.table}.{column.name}` is NOT NULL, but a row has no value for it",
        hint="give every row a value",
    )


def _value(value: object, column: Column, place: str) -> object:
    """The value in a form that Arrow takes exactly; UsageError where the type cannot hold it."""
    convert = _CONVERSIONS[column.type.kind]
    result = convert(value, column.type)
    if result is None:
        raise UsageError(
            f"The value of `{column.name}` in {place} is not a valid `{column.type}`: {value!r}",
            hint=_HINTS.get(column.type.kind, f"write a value of type `{column.type}`"),
        )
    return result


def _integer(value: object, kind: SqlType) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    limit = 2 ** (_BITS[kind.kind] - 1)
    return value if -limit <= value < limit else None


def _fraction(value: object, kind: SqlType) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    if kind.kind is Kind.FLOAT and math.isfinite(result):
        with np.errstate(over="ignore"):
            return result if math.isfinite(float(np.float32(result))) else None
    return result if math.isfinite(result) or not isinstance(value, int) else None


def _decimal(value: object, kind: SqlType) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value) is None:
        return None
    try:
        decimal = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None
    if not decimal.is_finite():
        return None
    # Python's default context would round to 28 digits.
    with localcontext(prec=100):
        scaled = decimal.scaleb(kind.scale) if len(decimal.as_tuple().digits) <= 38 else None
        if scaled is None or scaled != scaled.to_integral_value():
            return None
        return decimal if abs(scaled) < Decimal(10) ** kind.precision else None


def _boolean(value: object, _kind: SqlType) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object, _kind: SqlType) -> str | None:
    return value if isinstance(value, str) else None


def _bytes(value: object, _kind: SqlType) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _date(value: object, _kind: SqlType) -> date | None:
    if isinstance(value, datetime):
        return None
    if isinstance(value, str):
        if _DATE_TEXT.fullmatch(value) is None:
            return None
        try:
            return date.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, date) else None


def _instant(value: object, _kind: SqlType) -> datetime | None:
    result = _datetime(value)
    if result is None:
        return None
    try:
        return result.replace(tzinfo=UTC) if result.tzinfo is None else result.astimezone(UTC)
    except OverflowError:  # before year 1, or after 9999, in UTC
        return None


def _wall_time(value: object, _kind: SqlType) -> datetime | None:
    result = _datetime(value)
    return result if result is not None and result.tzinfo is None else None


def _datetime(value: object) -> datetime | None:
    if isinstance(value, str):
        if _TIME_TEXT.fullmatch(value) is None:
            return None
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value if isinstance(value, datetime) else None


_CONVERSIONS: Mapping[Kind, Callable[[object, SqlType], object]] = {
    Kind.BOOLEAN: _boolean,
    Kind.BYTE: _integer,
    Kind.SHORT: _integer,
    Kind.INTEGER: _integer,
    Kind.LONG: _integer,
    Kind.FLOAT: _fraction,
    Kind.DOUBLE: _fraction,
    Kind.DECIMAL: _decimal,
    Kind.STRING: _text,
    Kind.BINARY: _bytes,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _instant,
    Kind.TIMESTAMP_NTZ: _wall_time,
}
_HINTS = {
    Kind.STRING: "put text in quotes",
    Kind.DECIMAL: "write a number that fits the column's precision and scale exactly",
    Kind.DATE: "write a date such as 2024-12-31",
    Kind.TIMESTAMP: "write a time such as 2024-12-31T12:00:00Z",
    Kind.TIMESTAMP_NTZ: "write a time without a time zone such as 2024-12-31T12:00:00",
}
