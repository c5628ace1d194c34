"""Which columns tell apart the rows that only one of two conditions lets through.

Law: two rows that a grouping on these columns takes for equal pass a changed part of the condition
both or neither. To a grouping 0.0 and -0.0 are one value, to a cast they are not.
Out of scope: whether one condition implies the other (`plan.reuse.implication`).
"""

from __future__ import annotations

from impctl.expr.nodes import (
    And,
    Cast,
    ColumnRef,
    Compare,
    Expr,
    InList,
    IsNull,
    Not,
    Or,
    children,
    columns_of,
    conjuncts,
    walk,
)
from impctl.plan.fingerprint import expr_text
from impctl.types import AttributeId

Difference = frozenset[AttributeId] | None
"""Columns that alone tell apart what only the captured plan has; None where more differs."""


def changed_columns(asked: Expr | None, captured: Expr | None) -> Difference:
    """Columns of the parts of two conjunctions that only one of them has.

    None where these parts may tell 0.0 from -0.0: to a grouping that is one value; and where one
    reads no column (`1 > 0`): it lets all rows through or none, which no column tells apart.
    """
    left, right = (
        {expr_text(part): part for part in (() if expr is None else conjuncts(expr))}
        for expr in (asked, captured)
    )
    parts = [part for text, part in (*left.items(), *right.items())
             if text not in left or text not in right]  # fmt: skip
    read = [columns_of(part) for part in parts]
    if not all(read) or any(map(_may_see_the_sign_of_zero, parts)):
        return None
    return frozenset[AttributeId]().union(*read)


def _may_see_the_sign_of_zero(expr: Expr) -> bool:
    """Whether more than comparisons, which take 0.0 and -0.0 for one, reads a floating column."""
    is_fractional_cast = isinstance(expr, Cast) and expr.type.is_fractional
    if is_fractional_cast or isinstance(expr, Compare | InList | IsNull | And | Or | Not):
        return any(map(_may_see_the_sign_of_zero, children(expr)))
    columns = [part for part in walk(expr) if isinstance(part, ColumnRef) and part is not expr]
    return any(part.type is None or part.type.is_fractional for part in columns)
