"""The Delta schema of one version as impctl's schema, with what the log says about each column."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from impctl.data.schema import Column, Kind, Schema, SqlType, from_delta, other, quoted
from impctl.errors import TableError

if TYPE_CHECKING:
    from impctl.types import ColumnName

# The one Arrow type per SQL type in which this package hands out columns. Law: readers differ
# (string views, milliseconds, dictionary codes), what leaves this package does not; a cast that
# would lose anything raises.

_SIMPLE = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.BYTE: pa.int8(),
    Kind.SHORT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.large_string(),
    Kind.BINARY: pa.large_binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
}


def arrow_type(kind: SqlType) -> pa.DataType:
    """The Arrow type for a SQL type; TableError if impctl never reads values of it."""
    if kind.kind is Kind.DECIMAL:
        return pa.decimal128(kind.precision, kind.scale)
    result = _SIMPLE.get(kind.kind)
    if result is None:
        raise TableError(
            f"impctl itself cannot read a column of type `{kind}`",
            hint="remove the column from the query, or use it only in parts that Spark evaluates",
            code="column_type_unsupported",
        )
    return result


def to_arrow_type(column: pa.ChunkedArray, kind: SqlType) -> pa.ChunkedArray:
    """The column in the type of `arrow_type`."""
    wanted = arrow_type(kind)
    if column.type == wanted:
        return column
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    elif pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary())
    return column.cast(wanted)


# The Delta schema of one version as impctl's schema, with what the log says about each column.
# Law: a column whose values impctl cannot compute with is of kind OTHER, and one that nobody may
# read without the Delta JAR is listed in `opaque` with the reason; neither is fatal while unused.
# Every column may hold NULL: NOT NULL binds writers, and a file older than a column has none of
# it.

PHYSICAL_NAME = "delta.columnMapping.physicalName"
_CHAR_TYPES = "__CHAR_VARCHAR_TYPE_STRING"
_CHAR = re.compile(r"(?<!var)char\(", re.IGNORECASE)
_VARCHAR = re.compile(r"varchar\((\d+)\)", re.IGNORECASE)
_COLLATIONS = "__COLLATIONS"
_TYPE_CHANGES = "delta.typeChanges"
_PLAIN_COLLATIONS = frozenset({"UTF8_BINARY", "spark.UTF8_BINARY"})
_READABLE_CHANGES = frozenset(
    {
        ("byte", "short"),
        ("byte", "integer"),
        ("byte", "long"),
        ("short", "integer"),
        ("short", "long"),
        ("integer", "long"),
        ("float", "double"),
        ("integer", "double"),
    }
)
"""Type changes for which both readers were verified on older files."""
_FROM_FLOAT = ("float", "double")


class TableSchema(Struct, frozen=True):
    """Columns in Delta order, with physical names and facts from the log."""

    schema: Schema
    physical: Mapping[ColumnName, str]
    """Name in the data files and in the statistics, for every column."""
    opaque: Mapping[ColumnName, str]
    """Columns that cannot be read without the Delta JAR, with the reason."""
    not_null: frozenset[ColumnName]
    """Columns declared NOT NULL, which says nothing about existing rows."""
    invariants: tuple[str, ...]
    """SQL conditions that every row satisfies, from column metadata."""
    longest: Mapping[ColumnName, int]
    """Maximum length of a VARCHAR(n) column; Delta itself calls it a string."""
    once_float: frozenset[ColumnName] = frozenset()
    """Columns of DOUBLE that were FLOAT: older files' statistics are texts of floats."""


def read_schema(schema_json: str, *, is_mapped: bool) -> TableSchema:
    """Parse the schema text of the log, with mapped names if the table maps them."""
    fields = json.loads(schema_json)["fields"]
    columns: list[Column] = []
    physical: dict[ColumnName, str] = {}
    opaque: dict[ColumnName, str] = {}
    for field in fields:
        name = field["name"]
        kind = _column_type(field)
        columns.append(Column(name, kind))
        physical[name] = field["metadata"].get(PHYSICAL_NAME, name) if is_mapped else name
        reason = _opaque_reason(field, kind, is_mapped=is_mapped)
        if reason is not None:
            opaque[name] = reason
    return TableSchema(
        Schema(tuple(columns)),
        physical,
        opaque,
        frozenset(field["name"] for field in fields if not field["nullable"]),
        tuple(_invariants(fields)),
        dict(_limits(fields)),
        frozenset(field["name"] for field in fields if _FROM_FLOAT in _type_changes(field)),
    )


def schema_mark(schema_json: str) -> str:
    """A digest of the schema, including the columns' names in the files."""
    return hashlib.sha256(schema_json.encode()).hexdigest()[:16]


def _limits(fields: list[Mapping[str, Any]]) -> Iterator[tuple[ColumnName, int]]:
    for field in fields:
        match = _VARCHAR.fullmatch(str(field["metadata"].get(_CHAR_TYPES, "")))
        if match is not None:
            yield field["name"], int(match.group(1))


def _column_type(field: Mapping[str, Any]) -> SqlType:
    delta_type = field["type"]
    is_plain = _collation(field) is None and _unreadable_change(field) is None
    if isinstance(delta_type, str) and is_plain and not _is_padded(field):
        return from_delta(delta_type)
    return other(_ddl(delta_type))


def _opaque_reason(field: Mapping[str, Any], kind: SqlType, *, is_mapped: bool) -> str | None:
    collation = _collation(field)
    if collation is not None:
        return f"its strings use the collation `{collation}`"
    change = _unreadable_change(field)
    if change is not None:
        return f"its type was changed from {change[0]} to {change[1]}"
    if _is_padded(field):
        return "it has type char(n), which Spark pads with spaces in comparisons"
    if _mentions(field["type"], "variant"):
        return "it contains variant values"
    if is_mapped and kind.kind is Kind.OTHER:
        return "it is nested, and the table uses column mapping"
    return None


def _collation(field: Mapping[str, Any]) -> str | None:
    """A collation other than byte order, anywhere in the column."""
    names = map(str, field["metadata"].get(_COLLATIONS, {}).values())
    return next((name for name in names if name not in _PLAIN_COLLATIONS), None)


def _is_padded(field: Mapping[str, Any]) -> bool:
    """Whether the type is or contains CHAR(n), a string to Delta; VARCHAR(n) compares as one."""
    return _CHAR.search(str(field["metadata"].get(_CHAR_TYPES, ""))) is not None


def _unreadable_change(field: Mapping[str, Any]) -> tuple[str, str] | None:
    return next((pair for pair in _type_changes(field) if pair not in _READABLE_CHANGES), None)


def _type_changes(field: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The column's type changes, oldest first."""
    changes = field["metadata"].get(_TYPE_CHANGES, ())
    return [(str(change.get("fromType")), str(change.get("toType"))) for change in changes]


def _mentions(delta_type: Any, wanted: str) -> bool:
    if isinstance(delta_type, str):
        return delta_type == wanted
    match delta_type["type"]:
        case "struct":
            return any(_mentions(field["type"], wanted) for field in delta_type["fields"])
        case "array":
            return _mentions(delta_type["elementType"], wanted)
        case _:
            return _mentions(delta_type["keyType"], wanted) or _mentions(
                delta_type["valueType"], wanted
            )


def _ddl(delta_type: Any) -> str:
    """The type in Spark's DDL, for an explicit schema."""
    if isinstance(delta_type, str):
        return from_delta(delta_type).spark_name
    match delta_type["type"]:
        case "struct":
            inner = ", ".join(
                f"{quoted(field['name'])}: {_ddl(field['type'])}" for field in delta_type["fields"]
            )
            return f"struct<{inner}>"
        case "array":
            return f"array<{_ddl(delta_type['elementType'])}>"
        case _:
            return f"map<{_ddl(delta_type['keyType'])}, {_ddl(delta_type['valueType'])}>"


def _invariants(fields: list[Mapping[str, Any]]) -> Iterator[str]:
    for field in fields:
        text = field["metadata"].get("delta.invariants")
        if text is not None:
            yield str(json.loads(text)["expression"]["expression"])
