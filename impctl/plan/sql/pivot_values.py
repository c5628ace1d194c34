"""Values after IN of a PIVOT: the constant each stands for in its column's type, and its name.

Law: a value is taken only where Spark's cast of it to the column's type changes nothing, so that
both find the same rows; it is called as Spark shows it as text, by the type it was written in. None
where either is not certain.
Source: Spark's rule ResolvePivot.
Out of scope: which rows a value counts (`plan.sql.pivot`).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

from impctl.data.schema import Kind, SqlType
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.evaluate import Evaluator, find_blocker
from impctl.expr.nodes import Expr, Literal, LiteralValue, columns_of
from impctl.expr.types import MAX_PRECISION

_EXACT_DIGITS = 100
"""More than any decimal value or its scaling needs."""
_PLAIN_BELOW = 6
"""Zeros after the point up to which every way to write a decimal writes it plainly."""


def constant_of(expr: Expr) -> Literal | None:
    """The constant that an expression without columns is, such as `CAST('1' AS INT)` or `1 + 1`."""
    if isinstance(expr, Literal):
        return expr
    if columns_of(expr) or find_blocker(expr) is not None:
        return None
    try:
        result = Evaluator(expr).values({}, 1)
    except (EvaluationError, NotExactError):
        return None
    if not result.validity()[0]:
        return Literal(None, result.type, span=expr.span)
    value = _plain(result.values[0], result.type)
    return None if value is None else Literal(value, result.type, span=expr.span)


def _plain(value: object, kind: SqlType) -> LiteralValue:
    """A computed value as a literal holds it; None for kinds that are not taken here."""
    if kind.kind is Kind.STRING:
        return str(value)
    if kind.kind is Kind.BOOLEAN:
        return bool(value)
    if kind.is_integral:
        return int(str(value))
    if kind.kind is Kind.DECIMAL:
        with localcontext(prec=_EXACT_DIGITS):
            return Decimal(str(value)).scaleb(-kind.scale)
    return None


def as_column(value: Literal, column: SqlType | None) -> Literal | None:
    """The value in the column's type; None where Spark's cast would change it, or might."""
    if value.value is None:
        return value
    if column is None:
        return None
    if value.type == column or (value.type.is_integral and column.is_integral):
        return value
    is_exact = value.type.is_integral or value.type.kind is Kind.DECIMAL
    if not is_exact or not (column.is_integral or column.kind is Kind.DECIMAL):
        return None
    with localcontext(prec=_EXACT_DIGITS):
        number = Decimal(str(value.value))
        unscaled = number.scaleb(column.scale)
        digits = column.precision if column.kind is Kind.DECIMAL else MAX_PRECISION
        if unscaled != unscaled.to_integral_value() or abs(unscaled) >= Decimal(10) ** digits:
            return None
        if column.is_integral:
            return Literal(int(number), column, span=value.span)
        return Literal(number.quantize(Decimal(1).scaleb(-column.scale)), column, span=value.span)


def name_of(values: Sequence[Literal]) -> str | None:
    """What Spark calls the columns of one value, or of several in brackets."""
    texts = [_text(value) for value in values]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    return known[0] if len(known) == 1 else f"{{{', '.join(known)}}}"


def _text(value: Literal) -> str | None:
    if value.value is None:
        return "null"
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    if value.type.is_integral or value.type.kind is Kind.STRING:
        return str(value.value)
    if value.type.kind is Kind.DECIMAL and value.type.scale <= _PLAIN_BELOW:
        return f"{Decimal(str(value.value)):.{value.type.scale}f}"
    return None
