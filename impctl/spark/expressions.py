"""Scalar expressions and constants as Spark SQL."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, assert_never

from sqlglot import exp

from impctl.data.schema import Kind, SqlType
from impctl.errors import QueryError
from impctl.expr import nodes as e
from impctl.expr.functions import ONE_ROW, SEVERAL_ROWS
from impctl.types import AttributeId

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Sql

    from impctl.sketch.sketch import BoundaryValue


# Typed constants as Spark SQL: the value in exactly that type, whatever the session's time zone,
# and constant-folded, so that predicates with it are pushed to the files.

DIALECT = "spark"

_INTEGER_SUFFIX = {Kind.BYTE: "Y", Kind.SHORT: "S", Kind.INTEGER: "", Kind.LONG: "L"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EPOCH = datetime(1970, 1, 1)
_DAYS_WRITTEN = range((date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days + 1)
_MICROS_WRITTEN = range(
    (datetime.min - _EPOCH) // timedelta(microseconds=1),
    (datetime.max - _EPOCH) // timedelta(microseconds=1) + 1,
)
"""Timestamps with a text of four-digit years; Spark itself has a wider range."""


def sql_type(kind: SqlType) -> exp.DataType:
    return exp.DataType.build(kind.spark_name, dialect=DIALECT)


def literal(value: e.LiteralValue, kind: SqlType) -> Sql:
    """The constant; dates are days and timestamps microseconds, decimals `Decimal` values."""
    if value is None:
        return exp.null() if kind.kind is Kind.NULL else _cast(exp.null(), kind)
    match kind.kind:
        case Kind.BOOLEAN:
            return exp.Boolean(this=bool(value))
        case Kind.BYTE | Kind.SHORT | Kind.INTEGER | Kind.LONG:
            # A number with its suffix stays a literal to Spark, whose decimal rules ask for that.
            text = f"{int(str(int(value)))}{_INTEGER_SUFFIX[kind.kind]}"
            node = exp.Literal(this=text, is_string=False)
            return exp.Paren(this=node) if text.startswith("-") else node
        case Kind.FLOAT | Kind.DOUBLE:
            number = float(value)
            text = repr(number)
            if math.isnan(number):
                text = "NaN"
            elif math.isinf(number):
                text = "Infinity" if number > 0 else "-Infinity"
            return _text_cast(text, kind)
        case Kind.DECIMAL:
            return _text_cast(f"{Decimal(str(value)):f}", kind)
        case Kind.STRING:
            return string_sql(str(value))
        case Kind.BINARY:
            if not isinstance(value, bytes):
                raise QueryError(f"A binary constant must be bytes: {value!r}")
            return exp.HexString(this=value.hex())
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
            # Spark treats -0.0 as 0.0, Parquet's filter as less: 0.0 would drop row groups whose
            # only zero is -0.0.
            return literal(-0.0 if value == 0 else float(value), SqlType(Kind.DOUBLE))
        case Kind.BOOLEAN:
            return literal(bool(value), kind)
        case _:
            return literal(value, kind)


def _cast(operand: Sql, kind: SqlType) -> Sql:
    return exp.Cast(this=operand, to=sql_type(kind))


def _text_cast(text: str, kind: SqlType) -> Sql:
    return _cast(exp.Literal.string(text), kind)


def string_sql(value: str) -> Sql:
    """A string literal, also of characters that readers of SQL would change."""
    if _CONTROL.search(value) is None and "$" not in value:
        return exp.Literal.string(value)
    # SQL readers differ in escapes of control characters, and some replace `${name}` inside
    # literals first; bytes mean the same to all.
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


# Scalar expressions as sqlglot nodes of Spark SQL, with brackets around every operand that
# precedence could affect. Columns have the names given by `spark.render`.

Names = Mapping[AttributeId, str]
"""The name each column has in the SQL."""

_ARITHMETIC = {
    e.ArithmeticOp.ADD: exp.Add,
    e.ArithmeticOp.SUBTRACT: exp.Sub,
    e.ArithmeticOp.MULTIPLY: exp.Mul,
    e.ArithmeticOp.DIVIDE: exp.Div,
    e.ArithmeticOp.INTEGER_DIVIDE: exp.IntDiv,
    e.ArithmeticOp.REMAINDER: exp.Mod,
}
_COMPARE = {
    e.CompareOp.EQUAL: exp.EQ,
    e.CompareOp.NOT_EQUAL: exp.NEQ,
    e.CompareOp.LESS: exp.LT,
    e.CompareOp.LESS_EQUAL: exp.LTE,
    e.CompareOp.GREATER: exp.GT,
    e.CompareOp.GREATER_EQUAL: exp.GTE,
    e.CompareOp.NULL_SAFE_EQUAL: exp.NullSafeEQ,
}
_ATOMS = (exp.Column, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Cast, exp.Func)
_DEFAULT_ESCAPE = "\\"


def render_expr(expr: e.Expr, names: Names) -> Sql:
    match expr:
        case e.Literal():
            return literal(expr.value, expr.type)
        case e.ColumnRef():
            return column(names[expr.id])
        case e.Arithmetic():
            node = _ARITHMETIC[expr.op]
            return node(this=_operand(expr.left, names), expression=_operand(expr.right, names))
        case e.Compare():
            return _COMPARE[expr.op](
                this=_operand(expr.left, names), expression=_operand(expr.right, names)
            )
        case e.Negate():
            operand = _operand(expr.operand, names)
            # Without brackets the sign would be the constant's own, whose digits then count.
            is_bare = isinstance(operand, exp.Literal)
            return exp.Neg(this=exp.Paren(this=operand) if is_bare else operand)
        case e.And():
            return conjunction([_operand(part, names) for part in expr.operands])
        case e.Or():
            parts = [_operand(part, names) for part in expr.operands]
            return reduce(lambda left, right: exp.Or(this=left, expression=right), parts)
        case e.Not():
            return exp.Not(this=_operand(expr.operand, names))
        case e.IsNull():
            return exp.Is(this=_operand(expr.operand, names), expression=exp.null())
        case e.InList():
            options = [render_expr(option, names) for option in expr.options]
            return exp.In(this=_operand(expr.operand, names), expressions=options)
        case e.Like():
            like = exp.Like(this=_operand(expr.operand, names), expression=string_sql(expr.pattern))
            if expr.escape == _DEFAULT_ESCAPE:
                return like
            return exp.Escape(this=like, expression=exp.Literal.string(expr.escape))
        case e.Case() | e.Coalesce() | e.Cast() | e.Mean() | e.Call():
            return _render_call(expr, names)
        case _:
            assert_never(expr)


def column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))


def conjunction(parts: Sequence[Sql]) -> Sql:
    """All parts joined by AND; TRUE for none. The parts bring their own brackets."""
    if not parts:
        return exp.true()
    return reduce(lambda left, right: exp.And(this=left, expression=right), parts)


def bracketed(node: Sql) -> Sql:
    """The node, in brackets unless nothing can split it."""
    is_operator = isinstance(node, exp.Binary | exp.Connector)
    return node if isinstance(node, _ATOMS) and not is_operator else exp.Paren(this=node)


def _operand(expr: e.Expr, names: Names) -> Sql:
    return bracketed(render_expr(expr, names))


def _render_call(expr: e.Case | e.Coalesce | e.Cast | e.Mean | e.Call, names: Names) -> Sql:
    match expr:
        case e.Case():
            branches = [
                exp.If(this=render_expr(condition, names), true=render_expr(result, names))
                for condition, result in expr.branches
            ]
            return exp.Case(ifs=branches, default=render_expr(expr.default, names))
        case e.Coalesce():
            parts = [render_expr(part, names) for part in expr.operands]
            return exp.Coalesce(this=parts[0], expressions=parts[1:])
        case e.Cast():
            return exp.Cast(this=render_expr(expr.operand, names), to=sql_type(expr.type))
        case e.Mean():
            # AVG's last step. A count of 0 becomes NULL first, since ANSI forbids division by it.
            # For decimals it differs from AVG in its last digits; there Spark computes AVG
            # (`spark.render`).
            zero = exp.Literal.number(0)
            count = exp.Nullif(this=render_expr(expr.count, names), expression=zero)
            share = exp.Div(this=_operand(expr.total, names), expression=count)
            is_decimal = expr.type.kind is Kind.DECIMAL
            return exp.Cast(this=share, to=sql_type(expr.type)) if is_decimal else share
        case e.Call(name=name) if name == ONE_ROW:
            # A condition that fails in Spark if there are several rows.
            rows = render_expr(expr.arguments[0], names)
            is_single = exp.LTE(this=rows, expression=exp.Literal.number(1))
            failure = exp.Anonymous(this="RAISE_ERROR", expressions=[string_sql(SEVERAL_ROWS)])
            return exp.Case(ifs=[exp.If(this=is_single, true=exp.true())], default=failure)
        case e.Call():
            if not expr.name.replace("_", "").isalnum():
                raise QueryError(f"`{expr.name}` is not the name of a function")
            parts = [render_expr(part, names) for part in expr.arguments]
            if expr.name in ("timestampadd", "timestampdiff"):
                # Spark takes the unit as a bare word.
                parts[0] = exp.var(parts[0].name)
            return exp.Anonymous(this=expr.name.upper(), expressions=parts)
        case _:
            assert_never(expr)
