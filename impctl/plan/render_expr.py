"""Expressions as short text for people: messages, `explain`, logs.

Law: the text reads like the SQL it came from; it is never parsed or run.
Out of scope: SQL for Spark (`capture.render`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import assert_never

from impctl.data.schema import DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ
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
from impctl.plan.nodes import AggregateCall, SortKey
from impctl.types import AttributeId

Names = Mapping[AttributeId, str]


def shortened(text: str, longest: int) -> str:
    """The text, or as many of its characters as may be shown, with dots at the end."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


_OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY, _UNARY, _ATOM = range(8)
_IDENTITY = re.compile(r"(?:split\.)?(?:.*?#\d+|[a-z]\d+)\.(.*)", re.DOTALL)
_TIGHT = frozenset(
    {
        ArithmeticOp.MULTIPLY,
        ArithmeticOp.DIVIDE,
        ArithmeticOp.INTEGER_DIVIDE,
        ArithmeticOp.REMAINDER,
    }
)


def expr_text(expr: Expr, names: Names | None = None) -> str:
    """The expression in SQL-like words; `names` overrides how columns are called."""
    return _Writer(names).text(expr)


def column_name(identity: AttributeId) -> str:
    """The name part of a column's identity, such as `price` in `sales#1.price`."""
    match = _IDENTITY.fullmatch(identity)
    return identity if match is None else match.group(1)


def call_text(call: AggregateCall, names: Names | None = None) -> str:
    """An aggregate call in SQL-like words."""
    inside = ", ".join(expr_text(argument, names) for argument in call.arguments) or "*"
    text = f"{call.function}({'DISTINCT ' if call.distinct else ''}{inside})"
    if call.condition is None:
        return text
    return f"{text} FILTER (WHERE {expr_text(call.condition, names)})"


def order_text(order: tuple[SortKey, ...], names: Names | None = None) -> str:
    """Sort keys in SQL-like words; the place of NULLs only where it is not the usual one."""
    return ", ".join(_key_text(key, names) for key in order)


def _key_text(key: SortKey, names: Names | None) -> str:
    text = expr_text(key.expr, names) + (" DESC" if key.descending else "")
    if key.nulls_first == key.descending:
        text += " NULLS FIRST" if key.nulls_first else " NULLS LAST"
    return text


class _Writer:
    """Writes expressions under one naming of columns."""

    def __init__(self, names: Names | None) -> None:
        self._names = names or {}

    def text(self, expr: Expr) -> str:
        return self._written(expr)[0]

    def _inside(self, expr: Expr, level: int) -> str:
        """The text of an operand, in parentheses if it binds less tightly than `level`."""
        text, own = self._written(expr)
        return text if own >= level else f"({text})"

    def _listed(self, parts: tuple[Expr, ...]) -> str:
        return ", ".join(self.text(part) for part in parts)

    def _written(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case Literal():
                return _literal(expr), _ATOM
            case ColumnRef():
                return self._names.get(expr.id) or column_name(expr.id), _ATOM
            case Arithmetic():
                level = _MULTIPLY if expr.op in _TIGHT else _ADD
                left, right = self._inside(expr.left, level), self._inside(expr.right, level + 1)
                return f"{left} {expr.op.value} {right}", level
            case Negate():
                return f"-{self._inside(expr.operand, _ATOM)}", _UNARY
            case Compare():
                left, right = self._inside(expr.left, _ADD), self._inside(expr.right, _ADD)
                return f"{left} {expr.op.value} {right}", _COMPARE
            case And():
                return " AND ".join(self._inside(part, _AND + 1) for part in expr.operands), _AND
            case Or():
                return " OR ".join(self._inside(part, _OR + 1) for part in expr.operands), _OR
            case Not() | IsNull() | InList() | Like():
                return self._predicate(expr)
            case _:
                return self._call(expr), _ATOM

    def _predicate(self, expr: Not | IsNull | InList | Like) -> tuple[str, int]:
        match expr:
            case Not(operand=IsNull(operand=inner)):
                return f"{self._inside(inner, _ADD)} IS NOT NULL", _COMPARE
            case Not(operand=InList(operand=inner, options=options)):
                return f"{self._inside(inner, _ADD)} NOT IN ({self._listed(options)})", _COMPARE
            case Not():
                return f"NOT {self._inside(expr.operand, _NOT)}", _NOT
            case IsNull():
                return f"{self._inside(expr.operand, _ADD)} IS NULL", _COMPARE
            case InList():
                operand = self._inside(expr.operand, _ADD)
                return f"{operand} IN ({self._listed(expr.options)})", _COMPARE
            case Like():
                pattern = expr.pattern.replace("'", "\\'")
                return f"{self._inside(expr.operand, _ADD)} LIKE '{pattern}'", _COMPARE
            case _:
                assert_never(expr)

    def _call(self, expr: Case | Coalesce | Cast | Mean | Call) -> str:
        match expr:
            case Case():
                branches = " ".join(
                    f"WHEN {self.text(condition)} THEN {self.text(result)}"
                    for condition, result in expr.branches
                )
                return f"CASE {branches} ELSE {self.text(expr.default)} END"
            case Coalesce():
                return f"coalesce({self._listed(expr.operands)})"
            case Cast():
                return f"CAST({self.text(expr.operand)} AS {expr.type})"
            case Mean():
                return f"mean({self.text(expr.total)}, {self.text(expr.count)})"
            case Call():
                return f"{expr.name}({self._listed(expr.arguments)})"
            case _:
                assert_never(expr)


def _literal(literal: Literal) -> str:
    value = literal.value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if literal.type == DATE:
        return f"DATE '{date(1970, 1, 1) + timedelta(days=int(str(value)))}'"
    if literal.type in (TIMESTAMP, TIMESTAMP_NTZ) and isinstance(value, int):
        zone = "Z" if literal.type == TIMESTAMP else ""
        return f"{literal.type.kind.name} '{_instant_text(value)}{zone}'"
    if literal.type == STRING or isinstance(value, str):
        return "'" + str(value).replace("'", "\\'") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return str(value)


def _instant_text(micros: int) -> str:
    """The time of day, without a zone; of years that Python lacks the microseconds."""
    try:
        return str(datetime(1970, 1, 1) + timedelta(microseconds=micros))
    except OverflowError:
        return f"{micros} microseconds"
