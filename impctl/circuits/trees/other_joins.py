"""Semi, anti and left joins as edges of a tree, or why one is joined inside a bag instead.

Law: an edge asks for equal keys alone, conditions about the other side going to that side. A padded
column tells, above a left join, whether there was a partner, so nothing above may read one but
arguments of its side alone that are NULL with it: then padding adds nothing to their sums, and an
edge needs to know no more than that there was none.
Out of scope: the tree of the other side (`circuits.trees.shaping`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from impctl.circuits.trees.classes import KeyClass, equality_of, is_same
from impctl.circuits.trees.relations import Beside
from impctl.circuits.trees.shape import Merging
from impctl.engine.jointree.spec import Edge
from impctl.expr.nodes import (
    And,
    Arithmetic,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    columns_of,
)
from impctl.plan.nodes import JoinKind
from impctl.types import AttributeId
from impctl.values import dataclass

_EDGES = {JoinKind.SEMI: Edge.SEMI, JoinKind.ANTI: Edge.ANTI, JoinKind.LEFT: Edge.LEFT}


@dataclass(frozen=True, slots=True)
class EdgeKey:
    """An equality between a column above the edge and one below."""

    above: Expr
    below: Expr
    null_safe: bool


@dataclass(frozen=True, slots=True)
class EdgeJoin:
    """A join beside as an edge, and the conditions on its other side."""

    edge: Edge
    keys: tuple[EdgeKey, ...]
    own: tuple[Expr, ...]


def edge_of(
    beside: Beside,
    classes: Sequence[KeyClass],
    bounded: Collection[AttributeId],
    read_above: Collection[AttributeId],
) -> EdgeJoin | Merging:
    """The edge, or why there is none.

    `bounded` are columns of either side that are known within a bound, `read_above` those that more
    is asked of than arguments may.
    """
    if beside.null_aware:
        return Merging("NOT IN depends on all rows of its other side", beside.span)
    if beside.padded & frozenset(read_above):
        text = "a column of the optional side is read above the join"
        return Merging(text, beside.span)
    keys: list[EdgeKey] = []
    own: list[Expr] = []
    for part in beside.parts:
        if columns_of(part) and columns_of(part) <= beside.ids:
            own.append(part)
            continue
        key = _key_of(part, beside.ids, bounded)
        if key is None:
            return Merging(
                "an outer or semi join has more conditions than equal columns", part.span
            )
        keys.append(key)
    if _repeats([key.below for key in keys], ()) or _repeats([k.above for k in keys], classes):
        return Merging("two columns are compared with the same column", beside.span)
    return EdgeJoin(_EDGES[beside.kind], tuple(keys), tuple(own))


def _key_of(
    part: Expr, other: frozenset[AttributeId], bounded: Collection[AttributeId]
) -> EdgeKey | None:
    result = equality_of(part, bounded)
    if result is None:
        return None
    above, below = result.sides
    if columns_of(above) & other:
        above, below = below, above
    is_between = columns_of(above) and not columns_of(above) & other and columns_of(below)
    if not is_between or not columns_of(below) <= other:
        return None
    return EdgeKey(above, below, result.null_safe)


def _repeats(exprs: Sequence[Expr], classes: Sequence[KeyClass]) -> bool:
    """Whether two of them are one column, or equal by a class."""
    return any(
        is_same(one, other) or any(result.has(one) and result.has(other) for result in classes)
        for at, one in enumerate(exprs)
        for other in exprs[:at]
    )


def is_null_with(expr: Expr, padded: Collection[AttributeId]) -> bool:
    """Whether the expression is NULL, for certain, where all these columns are."""

    def of(*parts: Expr) -> list[bool]:
        return [is_null_with(part, padded) for part in parts]

    match expr:
        case ColumnRef():
            return expr.id in padded
        case Literal():
            return expr.value is None
        case Arithmetic():
            return any(of(expr.left, expr.right))
        case Compare():
            is_strict = expr.op is not CompareOp.NULL_SAFE_EQUAL
            return is_strict and any(of(expr.left, expr.right))
        case Negate() | Not() | Cast() | Like():
            return is_null_with(expr.operand, padded)
        case And() | Or() | Coalesce():
            return all(of(*expr.operands))
        case Case():
            # A condition that is NULL takes no branch.
            branches = (any(of(condition, result)) for condition, result in expr.branches)
            return all(branches) and is_null_with(expr.default, padded)
        case _:
            return False
