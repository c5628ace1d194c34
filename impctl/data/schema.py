"""Value types as Spark SQL and Delta name them, columns, schemas, and identifiers in SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

# Law: two types are equal exactly when Spark calls them the same.


class Kind(StrEnum):
    """The families of Delta types; the value is Delta's own name for it."""

    BOOLEAN = "boolean"
    BYTE = "byte"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    NULL = "void"
    OTHER = "other"  # Structs, arrays, maps, variant: carried by name, never computed with


INTEGRAL = frozenset({Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG})
FRACTIONAL = frozenset({Kind.FLOAT, Kind.DOUBLE})
NUMERIC = INTEGRAL | FRACTIONAL | {Kind.DECIMAL}
TEMPORAL = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})

_SPARK_NAMES = {
    Kind.BYTE: "tinyint",
    Kind.SHORT: "smallint",
    Kind.INTEGER: "int",
    Kind.LONG: "bigint",
}
_DELTA_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


class SqlType(Struct, frozen=True):
    """One Spark SQL type; precision and scale only for decimals, detail only for OTHER."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    detail: str = ""

    @property
    def spark_name(self) -> str:
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        if self.kind is Kind.OTHER:
            return self.detail
        return _SPARK_NAMES.get(self.kind, self.kind.value)

    @property
    def is_numeric(self) -> bool:
        return self.kind in NUMERIC

    @property
    def is_integral(self) -> bool:
        return self.kind in INTEGRAL

    @property
    def is_fractional(self) -> bool:
        """Binary floating point: sums depend on order, NaN exists."""
        return self.kind in FRACTIONAL

    def __str__(self) -> str:
        return self.spark_name


BOOLEAN = SqlType(Kind.BOOLEAN)
BYTE = SqlType(Kind.BYTE)
SHORT = SqlType(Kind.SHORT)
INTEGER = SqlType(Kind.INTEGER)
LONG = SqlType(Kind.LONG)
FLOAT = SqlType(Kind.FLOAT)
DOUBLE = SqlType(Kind.DOUBLE)
STRING = SqlType(Kind.STRING)
BINARY = SqlType(Kind.BINARY)
DATE = SqlType(Kind.DATE)
TIMESTAMP = SqlType(Kind.TIMESTAMP)
TIMESTAMP_NTZ = SqlType(Kind.TIMESTAMP_NTZ)
NULL = SqlType(Kind.NULL)


def decimal(precision: int, scale: int) -> SqlType:
    """`decimal(precision, scale)`; precision 1 to 38."""
    return SqlType(Kind.DECIMAL, precision, scale)


def other(detail: str) -> SqlType:
    """A type that impctl only passes through, by its Spark name."""
    return SqlType(Kind.OTHER, detail=detail)


def from_delta(name: str) -> SqlType:
    """The type of a primitive type name in the Delta log; any other name becomes OTHER."""
    match = _DELTA_DECIMAL.fullmatch(name)
    if match is not None:
        return decimal(int(match.group(1)), int(match.group(2)))
    try:
        kind = Kind(name)
    except ValueError:
        return other(name)
    return SqlType(kind) if kind not in (Kind.DECIMAL, Kind.OTHER) else other(name)


def from_spark(name: str) -> SqlType | None:
    """The type that Spark's DDL spells so; None for arrays, maps, structs and unknown types."""
    kinds = {spelled: kind.value for kind, spelled in _SPARK_NAMES.items()}
    result = from_delta(kinds.get(name, name))
    return None if result.kind is Kind.OTHER else result


class Column(Struct, frozen=True):
    name: str
    type: SqlType


class Schema(Struct, frozen=True):
    """The columns of a table, in order; names are unique without regard to case, as in Spark."""

    columns: tuple[Column, ...]

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def find(self, name: str) -> Column | None:
        lowered = name.lower()
        for column in self.columns:
            if column.name.lower() == lowered:
                return column
        return None


# Names of tables and columns in SQL. Law: any name can be quoted, whatever its characters, and is
# read back in the same parts.

_PART = re.compile(r"`((?:[^`]|``)+)`|([A-Za-z0-9_]+)")


def quoted(name: str) -> str:
    """The name in backticks, as Spark and Delta's constraints write it."""
    return "`" + name.replace("`", "``") + "`"


def name_parts(written: str) -> tuple[str, ...] | None:
    """The parts of a name such as `main.shop.sales` without backticks; None if it is no name."""
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(written, position)
        if match is None:
            return None
        parts.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        position = match.end()
        if position == len(written):
            return tuple(parts)
        if written[position] != ".":
            return None
        position += 1
