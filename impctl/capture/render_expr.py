"""Scalar expressions as sqlglot nodes of Spark SQL.

Law: the SQL means what the node means, with every operand in brackets that precedence could
touch; columns are read by the names that `capture.render` gave them.
Out of scope: constants (`capture.literals`), aggregates and windows (`capture.render`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, assert_never

from sqlglot import exp

from impctl.capture.literals import literal, sql_type, string_sql
from impctl.data.schema import Kind
from impctl.errors import QueryError
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Mean,
    Negate,
    Not,
    Or,
)
from impctl.expr.signature import ONE_ROW, SEVERAL_ROWS
from impctl.types import AttributeId

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Sql

Names = Mapping[AttributeId, str]
"""The name each column has in the SQL."""

_ARITHMETIC = {
    ArithmeticOp.ADD: exp.Add,
    ArithmeticOp.SUBTRACT: exp.Sub,
    ArithmeticOp.MULTIPLY: exp.Mul,
    ArithmeticOp.DIVIDE: exp.Div,
    ArithmeticOp.INTEGER_DIVIDE: exp.IntDiv,
    ArithmeticOp.REMAINDER: exp.Mod,
}
_COMPARE = {
    CompareOp.EQUAL: exp.EQ,
    CompareOp.NOT_EQUAL: exp.NEQ,
    CompareOp.LESS: exp.LT,
    CompareOp.LESS_EQUAL: exp.LTE,
    CompareOp.GREATER: exp.GT,
    CompareOp.GREATER_EQUAL: exp.GTE,
    CompareOp.NULL_SAFE_EQUAL: exp.NullSafeEQ,
}
_ATOMS = (exp.Column, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Cast, exp.Func)
_DEFAULT_ESCAPE = "\\"


def render_expr(expr: Expr, names: Names) -> Sql:
    """The expression over columns called by `names`."""
    match expr:
        case Literal():
            return literal(expr.value, expr.type)
        case ColumnRef():
            return column(names[expr.id])
        case Arithmetic():
            node = _ARITHMETIC[expr.op]
            return node(this=_operand(expr.left, names), expression=_operand(expr.right, names))
        case Compare():
            return _COMPARE[expr.op](
                this=_operand(expr.left, names), expression=_operand(expr.right, names)
            )
        case Negate():
            operand = _operand(expr.operand, names)
            # Without brackets the sign would be the constant's own, whose digits then count.
            is_bare = isinstance(operand, exp.Literal)
            return exp.Neg(this=exp.Paren(this=operand) if is_bare else operand)
        case And():
            return conjunction([_operand(part, names) for part in expr.operands])
        case Or():
            parts = [_operand(part, names) for part in expr.operands]
            return reduce(lambda left, right: exp.Or(this=left, expression=right), parts)
        case Not():
            return exp.Not(this=_operand(expr.operand, names))
        case IsNull():
            return exp.Is(this=_operand(expr.operand, names), expression=exp.null())
        case InList():
            options = [render_expr(option, names) for option in expr.options]
            return exp.In(this=_operand(expr.operand, names), expressions=options)
        case Like():
            return _like(expr, names)
        case Case() | Coalesce() | Cast() | Mean() | Call():
            return _render_call(expr, names)
        case _:
            assert_never(expr)


def column(name: str) -> exp.Column:
    """A column by its bare, quoted name."""
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


def _operand(expr: Expr, names: Names) -> Sql:
    return bracketed(render_expr(expr, names))


def _like(expr: Like, names: Names) -> Sql:
    like = exp.Like(this=_operand(expr.operand, names), expression=string_sql(expr.pattern))
    if expr.escape == _DEFAULT_ESCAPE:
        return like
    return exp.Escape(this=like, expression=exp.Literal.string(expr.escape))


def _render_call(expr: Case | Coalesce | Cast | Mean | Call, names: Names) -> Sql:
    match expr:
        case Case():
            branches = [
                exp.If(this=render_expr(condition, names), true=render_expr(result, names))
                for condition, result in expr.branches
            ]
            return exp.Case(ifs=branches, default=render_expr(expr.default, names))
        case Coalesce():
            parts = [render_expr(part, names) for part in expr.operands]
            return exp.Coalesce(this=parts[0], expressions=parts[1:])
        case Cast():
            return exp.Cast(this=render_expr(expr.operand, names), to=sql_type(expr.type))
        case Mean():
            return _mean(expr, names)
        case Call(name=name) if name == ONE_ROW:
            return _one_row(render_expr(expr.arguments[0], names))
        case Call():
            if not expr.name.replace("_", "").isalnum():
                raise QueryError(f"`{expr.name}` is not the name of a function")
            parts = [render_expr(part, names) for part in expr.arguments]
            if expr.name in ("timestampadd", "timestampdiff"):
                # Spark takes the unit as a bare word.
                parts[0] = exp.var(parts[0].name)
            return exp.Anonymous(this=expr.name.upper(), expressions=parts)
        case _:
            assert_never(expr)


def _one_row(rows: Sql) -> Sql:
    """A condition that fails in Spark where the rows are several."""
    is_single = exp.LTE(this=rows, expression=exp.Literal.number(1))
    failure = exp.Anonymous(this="RAISE_ERROR", expressions=[string_sql(SEVERAL_ROWS)])
    return exp.Case(ifs=[exp.If(this=is_single, true=exp.true())], default=failure)


def _mean(expr: Mean, names: Names) -> Sql:
    """AVG's last step. A count of 0 becomes NULL first, since ANSI forbids to divide by it.

    For decimals it is AVG's but for its last digits; Spark is asked for AVG there
    (`capture.averages`).
    """
    count = exp.Nullif(this=render_expr(expr.count, names), expression=exp.Literal.number(0))
    share = exp.Div(this=_operand(expr.total, names), expression=count)
    if expr.type.kind is Kind.DECIMAL:
        return exp.Cast(this=share, to=sql_type(expr.type))
    return share
