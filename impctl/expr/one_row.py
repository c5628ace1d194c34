"""The condition that a subquery used as a value has one row at most.

Law: true of no row and of one, for any more the query fails; never false and never NULL, so it
drops nothing. Its name is none that a query could call.
Out of scope: where it stands (`plan.sql.single_value`), how Spark is asked (`capture.render_expr`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import BOOLEAN, Kind, SqlType
from impctl.data.vector import Vector
from impctl.errors import EvaluationError
from impctl.expr.nodes import Call, Expr, Span
from impctl.expr.signature import Function, kinds

ONE_ROW = "one_row"
"""No function of Spark has this name, and functions of users are not read."""
SEVERAL_ROWS = "More than one row returned by a subquery used as an expression"
"""In Spark's own words."""


def one_row(rows: Expr, span: Span | None) -> Call:
    """The condition on a count of rows."""
    return Call(ONE_ROW, (rows,), BOOLEAN, span=span)


def several_rows() -> EvaluationError:
    """The failure of a query whose subquery has more."""
    return EvaluationError(
        SEVERAL_ROWS,
        code="subquery_of_several_rows",
        hint="make it return one row, for example with MAX(...); Spark also fails on these rows",
    )


def _compute(arguments: Sequence[Vector], result: SqlType) -> Vector:
    counts = arguments[0].filled()
    if bool(np.any(counts > 1)):
        raise several_rows()
    return Vector(result, np.ones(len(counts), dtype=np.bool_))


ONE_ROW_FUNCTION = Function(kinds(frozenset({Kind.LONG})), _compute)
