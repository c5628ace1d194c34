"""Typed constants as Spark SQL.

Law: the text means the value in exactly that type, whatever the session's time zone, and Spark
folds it to a constant, so that predicates with it are pushed to the files.
Out of scope: other expressions (`capture.render_expr`).
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from sqlglot import exp

from impctl.data.schema import Kind, SqlType
from impctl.errors import QueryError
from impctl.expr.nodes import LiteralValue
from impctl.sketch.partition import BoundaryValue

if TYPE_CHECKING:
    # The base of all nodes; releases before 28 call it Expression, so it is named for types alone.
    from sqlglot.expressions import Expr as Sql

DIALECT = "spark"

_INTEGER_SUFFIX = {Kind.BYTE: "Y", Kind.SHORT: "S", Kind.INTEGER: "", Kind.LONG: "L"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EPOCH = datetime(1970, 1, 1)
_DAYS_WRITTEN = range((date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days + 1)
_MICROS_WRITTEN = range(
    (datetime.min - _EPOCH) // timedelta(microseconds=1),
    (datetime.max - _EPOCH) // timedelta(microseconds=1) + 1,
)
"""What has a text of four-digit years; Spark itself goes further in both directions."""


def sql_type(kind: SqlType) -> exp.DataType:
    """The type as a node."""
    return exp.DataType.build(kind.spark_name, dialect=DIALECT)


def literal(value: LiteralValue, kind: SqlType) -> Sql:
    """The constant; dates are days and timestamps microseconds, decimals `Decimal` values."""
    if value is None:
        return exp.null() if kind.kind is Kind.NULL else _cast(exp.null(), kind)
    match kind.kind:
        case Kind.BOOLEAN:
            return exp.Boolean(this=bool(value))
        case Kind.BYTE | Kind.SHORT | Kind.INTEGER | Kind.LONG:
            # A number with its suffix stays a literal to Spark, whose decimal rules ask for that.
            text = f"{int(str(int(value)))}{_INTEGER_SUFFIX[kind.kind]}"
            number = exp.Literal(this=text, is_string=False)
            return exp.Paren(this=number) if text.startswith("-") else number
        case Kind.FLOAT | Kind.DOUBLE:
            return _text_cast(_double_text(float(value)), kind)
        case Kind.DECIMAL:
            return _text_cast(f"{Decimal(str(value)):f}", kind)
        case Kind.STRING:
            return string_sql(str(value))
        case Kind.BINARY:
            return exp.HexString(this=_as_bytes(value).hex())
        case Kind.DATE:
            return _date(int(value))
        case Kind.TIMESTAMP | Kind.TIMESTAMP_NTZ:
            return _timestamp(int(value), kind)
        case Kind.NULL | Kind.OTHER:
            raise QueryError(
                f"A constant of type `{kind}` cannot be written as SQL",
                hint="compute it from constants of simple types",
            )


def boundary(value: BoundaryValue, kind: SqlType) -> Sql:
    """A boundary of a partition, given in canonical form, as a constant of the column's type."""
    match kind.kind:
        case Kind.DECIMAL:
            # Made from text, because arithmetic on Decimals rounds to 28 digits.
            return literal(Decimal(f"{int(value)}e-{kind.scale}"), kind)
        case Kind.FLOAT | Kind.DOUBLE:
            # Boundaries are doubles; one that no float equals must not be rounded to a neighbour.
            # To Spark -0.0 is 0.0, to Parquet's filter it is less: written as 0.0, the filter
            # would drop row groups whose only zero is -0.0.
            return literal(-0.0 if value == 0 else float(value), SqlType(Kind.DOUBLE))
        case Kind.BOOLEAN:
            return literal(bool(value), kind)
        case _:
            return literal(value, kind)


def _as_bytes(value: LiteralValue) -> bytes:
    if isinstance(value, bytes):
        return value
    raise QueryError(f"A binary constant must be bytes: {value!r}")


def _cast(operand: Sql, kind: SqlType) -> Sql:
    return exp.Cast(this=operand, to=sql_type(kind))


def _text_cast(text: str, kind: SqlType) -> Sql:
    return _cast(exp.Literal.string(text), kind)


def _double_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def string_sql(value: str) -> Sql:
    """A text, also one that readers of SQL would change."""
    if _CONTROL.search(value) is None and "$" not in value:
        return exp.Literal.string(value)
    # Escapes of control characters differ between readers of SQL, and some replace `${name}`
    # inside literals before they read them; bytes mean the same to all.
    return _cast(exp.HexString(this=value.encode().hex()), SqlType(Kind.STRING))


def _date(days: int) -> Sql:
    if days in _DAYS_WRITTEN:
        return _text_cast((date(1970, 1, 1) + timedelta(days=days)).isoformat(), SqlType(Kind.DATE))
    return exp.Anonymous(this="DATE_FROM_UNIX_DATE", expressions=[_integer(days)])


def _timestamp(micros: int, kind: SqlType) -> Sql:
    is_local = kind.kind is Kind.TIMESTAMP_NTZ
    if micros in _MICROS_WRITTEN:
        moment = _EPOCH + timedelta(microseconds=micros)
        text = (
            moment.isoformat(sep=" ") if is_local else moment.replace(tzinfo=UTC).isoformat(sep=" ")
        )
        return _text_cast(text.replace("+00:00", "Z"), kind)
    if not is_local:
        return exp.Anonymous(this="TIMESTAMP_MICROS", expressions=[_integer(micros)])
    raise QueryError(
        f"A local timestamp of {micros} microseconds since 1970 cannot be written as SQL",
        hint="keep constants and boundaries between the years 1 and 9999",
    )


def _integer(value: int) -> Sql:
    return literal(value, SqlType(Kind.LONG if abs(value) > 2**31 - 1 else Kind.INTEGER))
