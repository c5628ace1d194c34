"""Values of expressions with Spark's semantics (ANSI on), and which expressions are supported.

Law: `find_blocker` refuses what the engine does not compute exactly as Spark does, before any row
is read. `Evaluator` and `Condition` take only expressions without a blocker, so the code below them
checks nothing. The result is Spark's, including NULL, NaN and overflow. Where Spark's result
depends on the order of a floating-point sum, the value has an error bound and a predicate may be
unsure. Rows that AND, CASE or COALESCE do not reach never raise. Cost: one pass of array operations
per node.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, localcontext
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from impctl.data.schema import BOOLEAN, STRING, Kind, SqlType
from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Vector, all_null
from impctl.errors import EvaluationError, UnsupportedExpressionError
from impctl.expr import nodes as e
from impctl.expr.cast import cast
from impctl.expr.cast import supports as supports_cast
from impctl.expr.compare import Truth, compare, conjoin, disjoin, like, like_objection, of_vector
from impctl.expr.compare import negate as negate_truth
from impctl.expr.functions import call_objection, compute
from impctl.expr.numeric import arithmetic, mean, negate
from impctl.expr.types import (
    arithmetic_type,
    common_type,
    fixed_offset,
    narrowed,
    offset_of,
    type_of,
    wider_type,
)
from impctl.types import AttributeId

_TRUTH_VALUES = (BOOLEAN, SqlType(Kind.NULL))


class Blocker(Struct, frozen=True):
    """The part of an expression that the evaluator does not compute, and why."""

    part: e.Expr
    reason: str


def find_blocker(expr: e.Expr) -> Blocker | None:
    """The first part that the engine cannot compute exactly, or None."""
    for part in expr.walk():
        reason = _reason(part)
        if reason is not None:
            return Blocker(part, reason)
    return None


def find_condition_blocker(expr: e.Expr) -> Blocker | None:
    """Like `find_blocker`, for a condition, which must be a truth value."""
    blocker = find_blocker(expr)
    if blocker is None and type_of(expr) not in _TRUTH_VALUES:
        return Blocker(expr, f"the engine does not support a condition of type `{type_of(expr)}`")
    return blocker


def _reason(expr: e.Expr) -> str | None:
    result = type_of(expr)
    if result is None or result.kind is Kind.OTHER:
        subject = f"function `{expr.name}`" if isinstance(expr, e.Call) else "an expression"
        return f"{subject} has a type that the engine does not support"
    match expr:
        case e.Literal() | e.ColumnRef() | e.Mean() | e.IsNull():
            return None
        case e.Arithmetic() | e.Negate():
            return _arithmetic_reason(result)
        case e.Compare():
            return _comparison_reason(expr)
        case e.And() | e.Or():
            return _all_boolean(expr.operands)
        case e.Not():
            return _all_boolean((expr.operand,))
        case e.InList():
            return _in_list_reason(expr)
        case e.Like():
            operand = type_of(expr.operand)
            if operand != STRING:
                return f"the engine does not support LIKE over `{operand}`"
            return like_objection(expr.pattern, expr.escape)
        case e.Case() | e.Coalesce():
            return _branches_reason(expr, result)
        case e.Cast():
            return _cast_reason(expr)
        case e.Call():
            return call_objection(expr)


def _cast_reason(expr: e.Cast) -> str | None:
    source = type_of(expr.operand)
    reason = f"the engine does not support CAST from `{source}` to `{expr.type}`"
    if source is None or not supports_cast(source, expr.type):
        return reason
    has_zone = Kind.TIMESTAMP in (source.kind, expr.type.kind) and source != expr.type
    if has_zone and source.kind is not Kind.NULL and fixed_offset(expr.zone) is None:
        return f"{reason} in the time zone {expr.zone}"
    return None


def _arithmetic_reason(sql_type: SqlType) -> str | None:
    if sql_type.kind is Kind.FLOAT:
        return "the engine does not support single-precision arithmetic"
    if sql_type.is_numeric:
        return None
    return f"the engine does not support arithmetic on `{sql_type}`"


def _all_boolean(operands: tuple[e.Expr, ...]) -> str | None:
    if all(type_of(part) in _TRUTH_VALUES for part in operands):
        return None
    return "AND, OR and NOT need conditions"


def _comparison_reason(expr: e.Compare) -> str | None:
    left, right = type_of(expr.left), type_of(expr.right)
    if left is not None and right is not None:
        left, right = narrowed(expr.left, left, right), narrowed(expr.right, right, left)
    return _comparable(left, right)


def _comparable(left: SqlType | None, right: SqlType | None) -> str | None:
    if left is None or right is None:
        return "the engine does not support a comparison of unknown types"
    if left.kind is Kind.NULL or right.kind is Kind.NULL:
        return "the engine does not support a comparison with a bare NULL"
    if left == right or (left.is_numeric and right.is_numeric and common_type(left, right)):
        return None
    return f"the engine does not support comparing `{left}` with `{right}`"


def _in_list_reason(expr: e.InList) -> str | None:
    types = [type_of(part) for part in (expr.operand, *expr.options)]
    for result in types[1:]:
        blocked = _comparable(types[0], result)
        if blocked is not None:
            return blocked
    known = [result for result in types if result is not None]
    common = reduce(wider_type, known)
    if all(supports_cast(result, common) for result in known):
        return None
    mixed = ", ".join(dict.fromkeys(map(str, known)))
    return f"the engine does not support an IN list that mixes {mixed}"


def _branches_reason(expr: e.Case | e.Coalesce, sql_type: SqlType) -> str | None:
    if sql_type.kind is Kind.FLOAT:
        return "the engine does not support single-precision results"
    if isinstance(expr, e.Case):
        results = (*(result for _, result in expr.branches), expr.default)
        blocked = _all_boolean(tuple(condition for condition, _ in expr.branches))
        if blocked is not None:
            return blocked
    else:
        results = expr.operands
    for result in results:
        source = type_of(result)
        is_mixed = source is None or common_type(source, sql_type) != sql_type
        if is_mixed or source is None or not supports_cast(source, sql_type):
            return f"the engine does not support mixing `{source}` and `{sql_type}`"
    return None


Columns = Mapping[AttributeId, Vector]  # All of one length

_EXACT_DIGITS = 100  # More than any decimal value or its scaling needs


class Evaluator:
    """Computes the values of an expression over batches of columns; UnsupportedExpressionError for
    an expression with a blocker."""

    __slots__ = ("_expr",)

    def __init__(self, expr: e.Expr) -> None:
        self._expr = _supported(expr, find_blocker(expr))

    def values(self, columns: Columns, length: int) -> Vector:
        """The value of each row, shape (length,). EvaluationError if Spark fails; NotExactError if
        a value cannot be computed exactly."""
        return _value(self._expr, columns, length)


class Condition:
    """Computes for which rows an expression is true; raises as `Evaluator` does."""

    __slots__ = ("_expr",)

    def __init__(self, expr: e.Expr) -> None:
        self._expr = _supported(expr, find_condition_blocker(expr))

    def truth(self, columns: Columns, length: int) -> Truth:
        """The possible outcomes for each row, shape (length,); raises as `Evaluator.values`."""
        return _truth(self._expr, columns, length)


def _supported(expr: e.Expr, blocker: Blocker | None) -> e.Expr:
    if blocker is not None:
        raise UnsupportedExpressionError(blocker.reason)
    return expr


def _value(expr: e.Expr, columns: Columns, length: int) -> Vector:
    match expr:
        case e.Literal():
            return _literal(expr, length)
        case e.ColumnRef():
            return columns[expr.id]
        case e.Arithmetic():
            return _arithmetic(expr, columns, length)
        case e.Negate():
            return negate(_value(expr.operand, columns, length))
        case e.Case():
            return _case(expr, columns, length)
        case e.Coalesce():
            return _coalesce(expr, columns, length)
        case e.Cast():
            operand = _value(expr.operand, columns, length)
            return cast(operand, expr.type, offset_of(expr.zone))
        case e.Mean():
            return mean(
                _value(expr.total, columns, length), _value(expr.count, columns, length), expr.type
            )
        case e.Call():
            arguments = [_value(part, columns, length) for part in expr.arguments]
            return compute(expr, arguments, _known_type(expr))
        case _:
            return _truth(expr, columns, length).to_vector()


def _truth(expr: e.Expr, columns: Columns, length: int) -> Truth:
    match expr:
        case e.Compare():
            left, right = (_value(part, columns, length) for part in (expr.left, expr.right))
            return compare(expr.op, left, right)
        case e.And() | e.Or():
            return _connective(expr.operands, columns, length, is_and=isinstance(expr, e.And))
        case e.Not():
            return negate_truth(_truth(expr.operand, columns, length))
        case e.IsNull():
            valid = _value(expr.operand, columns, length).validity()
            return Truth(~valid, valid, np.zeros(length, dtype=np.bool_))
        case e.InList():
            return _in_list(expr, columns, length)
        case e.Like():
            return like(_value(expr.operand, columns, length), expr.pattern, expr.escape)
        case _:
            return of_vector(cast(_value(expr, columns, length), BOOLEAN))


def _in_list(expr: e.InList, columns: Columns, length: int) -> Truth:
    """Spark casts the operand and all options to one type before comparing."""
    parts = [_value(part, columns, length) for part in (expr.operand, *expr.options)]
    common = reduce(wider_type, [part.type for part in parts])
    operand, *options = (cast(part, common) for part in parts)
    return disjoin([compare(e.CompareOp.EQUAL, operand, option) for option in options])


def _literal(expr: e.Literal, length: int) -> Vector:
    sql_type, value = expr.type, expr.value
    if value is None:
        return all_null(sql_type, length)
    if sql_type.kind is Kind.STRING:
        return Vector(sql_type, pa.repeat(pa.scalar(value, pa.large_string()), length))
    if sql_type.kind is Kind.BINARY:
        return Vector(sql_type, pa.repeat(pa.scalar(value, pa.large_binary()), length))
    if sql_type.kind is Kind.BOOLEAN:
        return Vector(sql_type, np.broadcast_to(bool(value), length))
    if sql_type.is_fractional:
        number = float(str(value))
        if sql_type.kind is Kind.FLOAT:
            # The nearest single-precision value, as in Spark.
            number = float(np.float32(number))
        return Vector(sql_type, np.broadcast_to(number, length))
    integer = unscaled(value, sql_type)
    dtype: Any = np.int64 if INT64_MIN <= integer <= INT64_MAX else object
    return Vector(sql_type, np.broadcast_to(np.array(integer, dtype=dtype), length))


def unscaled(value: object, sql_type: SqlType) -> int:
    """A literal's canonical integer: the value, times 10 ** scale for decimals."""
    # Python's default context would round to 28 digits.
    with localcontext(prec=_EXACT_DIGITS):
        return int(Decimal(str(value)).scaleb(sql_type.scale).to_integral_value())


def _arithmetic(expr: e.Arithmetic, columns: Columns, length: int) -> Vector:
    left, right = _value(expr.left, columns, length), _value(expr.right, columns, length)
    left_type = narrowed(expr.left, left.type, right.type)
    right_type = narrowed(expr.right, right.type, left.type)
    result = arithmetic_type(expr.op, left_type, right_type)
    if result is None:
        raise EvaluationError(f"`{expr.op}` is not defined on `{left.type}` and `{right.type}`")
    if left.type.kind is Kind.NULL or right.type.kind is Kind.NULL:
        return cast(Vector(SqlType(Kind.NULL), np.zeros(length, dtype=np.int64)), result)
    return arithmetic(expr.op, left, right, result)


def _connective(
    operands: tuple[e.Expr, ...], columns: Columns, length: int, *, is_and: bool
) -> Truth:
    """AND and OR left to right; a row decided by an earlier operand never reaches a later one."""
    join = conjoin if is_and else disjoin
    result = _truth(operands[0], columns, length)
    for operand in operands[1:]:
        open_rows = (result.may_true if is_and else result.may_false) | result.may_null
        may_raise = any(
            isinstance(part, e.Arithmetic | e.Cast | e.Negate | e.Call) for part in operand.walk()
        )
        if not may_raise or bool(open_rows.all()):
            result = join([result, _truth(operand, columns, length)])
            continue
        result = _joined_where(result, operand, columns, open_rows, is_and=is_and)
    return result


def _joined_where(
    result: Truth, operand: e.Expr, columns: Columns, open_rows: Bools, *, is_and: bool
) -> Truth:
    positions = np.flatnonzero(open_rows)
    part = _truth(operand, _subset(columns, operand, positions), len(positions))
    flags = [result.may_true, result.may_false, result.may_null]
    before = Truth(*(flag[positions] for flag in flags))
    joined = (conjoin if is_and else disjoin)([before, part])
    flags = [flag.copy() for flag in flags]
    for flag, new in zip(flags, (joined.may_true, joined.may_false, joined.may_null), strict=True):
        flag[positions] = new
    return Truth(*flags)


def _subset(columns: Columns, expr: e.Expr, positions: Any) -> dict[AttributeId, Vector]:
    return {name: columns[name].take(positions) for name in expr.columns}


def _case(expr: e.Case, columns: Columns, length: int) -> Vector:
    result_type = _known_type(expr)
    open_rows = np.ones(length, dtype=np.bool_)
    pieces: list[tuple[Any, Vector]] = []
    for condition, value in expr.branches:
        positions = np.flatnonzero(open_rows)
        outcome = _truth(condition, _subset(columns, condition, positions), len(positions))
        chosen = positions[outcome.sure_true()]
        pieces.append(_piece(value, columns, chosen, result_type))
        open_rows[chosen] = False
    pieces.append(_piece(expr.default, columns, np.flatnonzero(open_rows), result_type))
    return _assembled(pieces, result_type)


def _coalesce(expr: e.Coalesce, columns: Columns, length: int) -> Vector:
    result_type = _known_type(expr)
    open_rows = np.arange(length)
    pieces: list[tuple[Any, Vector]] = []
    for operand in expr.operands:
        positions, value = _piece(operand, columns, open_rows, result_type)
        valid = value.validity()
        pieces.append((positions[valid], value.keep(valid)))
        open_rows = positions[~valid]
    pieces.append((open_rows, all_null(result_type, len(open_rows))))
    return _assembled(pieces, result_type)


def _known_type(expr: e.Expr) -> SqlType:
    result = type_of(expr)
    if result is None:
        raise EvaluationError(
            "An expression in the query has a type that the engine does not support"
        )
    return result


def _piece(
    value: e.Expr, columns: Columns, positions: Any, result_type: SqlType
) -> tuple[Any, Vector]:
    result = _value(value, _subset(columns, value, positions), len(positions))
    return positions, cast(result, result_type)


def _assembled(pieces: list[tuple[Any, Vector]], result_type: SqlType) -> Vector:
    """One column from pieces that together have every row once."""
    order = np.argsort(np.concatenate([positions for positions, _ in pieces]), kind="stable")
    valid = np.concatenate([piece.validity() for _, piece in pieces])[order]
    if pieces[0][1].is_textual:
        joined: Any = pa.concat_arrays([piece.values for _, piece in pieces]).take(pa.array(order))
    else:
        joined = np.concatenate([piece.values for _, piece in pieces])[order]
    error = None
    if any(piece.error is not None for _, piece in pieces):
        known = [np.zeros(len(v)) if v.error is None else v.error for _, v in pieces]
        error = np.concatenate(known)[order]
    return Vector(result_type, joined, None if bool(valid.all()) else valid, error)
