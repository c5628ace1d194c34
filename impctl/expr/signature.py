"""What a function takes and how it is computed.

Law: `takes` reads expressions, never rows. For the expressions it accepts, `compute` gives Spark's
result or refuses a row with Spark's error. A NULL argument gives NULL unless the function says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from impctl.data.schema import BOOLEAN, TEMPORAL, Kind, SqlType
from impctl.data.vector import Bools, Vector
from impctl.errors import EvaluationError
from impctl.expr.nodes import Call, Expr, Literal, Span
from impctl.expr.types import type_of

Takes = Callable[[Sequence[Expr]], bool]
Compute = Callable[[Sequence[Vector], SqlType], Vector]

TEXT = frozenset({Kind.STRING})
DAY = frozenset({Kind.DATE})
MOMENT = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})
WHOLE = frozenset({Kind.BYTE, Kind.SHORT, Kind.INTEGER})
EXACT = WHOLE | {Kind.LONG, Kind.DECIMAL}
NUMBER = EXACT | {Kind.FLOAT, Kind.DOUBLE}


class Function(Struct, frozen=True):
    takes: Takes
    compute: Compute


def kinds(*wanted: frozenset[Kind]) -> Takes:
    """Exactly one argument of each of these kinds."""

    def takes(arguments: Sequence[Expr]) -> bool:
        types = [type_of(argument) for argument in arguments]
        return len(types) == len(wanted) and all(
            sql_type is not None and sql_type.kind in allowed
            for sql_type, allowed in zip(types, wanted, strict=True)
        )

    return takes


def constants_after(first: frozenset[Kind], *rest: type) -> Takes:
    """One argument of these kinds, then constants of these Python types, not NULL."""

    def takes(arguments: Sequence[Expr]) -> bool:
        if len(arguments) != 1 + len(rest) or not kinds(first)(arguments[:1]):
            return False
        return all(
            isinstance(constant_of(argument), wanted)
            for argument, wanted in zip(arguments[1:], rest, strict=True)
        )

    return takes


def either(*options: Takes) -> Takes:
    return lambda arguments: any(takes(arguments) for takes in options)


def constant_of(expr: Expr) -> object:
    """The value of a constant number or text; None for NULL and everything else."""
    if not isinstance(expr, Literal) or isinstance(expr.value, bool):
        return None
    # The value of a date or timestamp is no number in Spark.
    return None if expr.type.kind in TEMPORAL else expr.value


def value_of(vector: Vector) -> str | int:
    """The value of a constant over at least one row."""
    result = vector.values[0]
    return str(result.as_py()) if vector.is_textual else int(result)


def all_valid(arguments: Sequence[Vector]) -> Bools | None:
    """Rows where no argument is NULL; None if all are."""
    masks = [argument.valid for argument in arguments if argument.valid is not None]
    return np.logical_and.reduce(masks) if masks else None


ONE_ROW = "one_row"  # No function of Spark has this name, and functions of users are not read
SEVERAL_ROWS = "More than one row returned by a subquery used as an expression"
"""Spark's message."""


def one_row(rows: Expr, span: Span | None) -> Call:
    """The condition that a subquery used as a value has at most one row, over the number of its
    rows. It is true for 0 and 1; for more the query fails. So it drops nothing."""
    return Call(ONE_ROW, (rows,), BOOLEAN, span=span)


def several_rows() -> EvaluationError:
    return EvaluationError(
        SEVERAL_ROWS,
        code="subquery_of_several_rows",
        hint="make it return one row, for example with MAX(...); Spark also fails on these rows",
    )


def _one_row(arguments: Sequence[Vector], result: SqlType) -> Vector:
    counts = arguments[0].filled()
    if bool(np.any(counts > 1)):
        raise several_rows()
    return Vector(result, np.ones(len(counts), dtype=np.bool_))


ONE_ROW_FUNCTION = Function(kinds(frozenset({Kind.LONG})), _one_row)
