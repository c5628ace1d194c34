"""What becomes of values that depend on the order of rows: shown, or deciding.

Law: such a value (COLLECT_SET, MODE, FIRST ...) is any of several right ones, whenever Spark runs.
Where it is only shown, it decides neither which rows there are nor another value that must be
fixed, so a sketch that holds whole groups leaves it as free as it was. Where it decides, no two
runs need agree on the rows.
Out of scope: functions whose answer is fixed unless rows tie (`plan.safety.grouping`), volatile
ones, window functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from impctl.expr.nodes import Expr, Span, columns_of
from impctl.plan.expressions import expressions_of
from impctl.plan.functions import ORDER_DEPENDENT, TIE_DEPENDENT
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Plan,
    Project,
    SetKind,
    SetOperation,
    Sort,
    attributes_of,
    inputs_of,
)
from impctl.types import AttributeId

Loose = dict[AttributeId, tuple[str, Span | None]]
"""Columns with such values, and the function of each with its place."""
_LOOSE = ORDER_DEPENDENT - TIE_DEPENDENT


def deciding(root: Plan) -> tuple[tuple[str, Span | None], ...]:
    """The order-dependent functions that something in the plan depends on, with their places."""
    result: list[tuple[str, Span | None]] = []
    _follow(root, result)
    return tuple(dict.fromkeys(result))


def loose_columns(root: Plan) -> frozenset[int]:
    """The positions of result columns that depend on the order of rows."""
    loose = _follow(root, [])
    return frozenset(at for at, column in enumerate(attributes_of(root)) if column.id in loose)


def _follow(node: Plan, deciding: list[tuple[str, Span | None]]) -> Loose:
    """The loose columns of a node's output; what they decide in it or below goes to `deciding`."""
    loose: Loose = {}
    for below in inputs_of(node):
        loose |= _follow(below, deciding)
    if isinstance(node, Aggregate):
        own = {
            output.attribute.id: (output.call.function, output.call.span)
            for output in node.aggregates
            if output.call.function in _LOOSE
        }
        deciding += _read_by(_read(node), loose)
        return own
    if isinstance(node, Project):
        read = (
            (output.attribute.id, columns_of(output.expr) & loose.keys()) for output in node.outputs
        )
        return {name: loose[min(used)] for name, used in read if used}
    if isinstance(node, SetOperation) and node.kind is SetKind.UNION and node.all:
        return {
            attribute.id: loose[column.id]
            for side in inputs_of(node)
            for attribute, column in zip(node.attributes, attributes_of(side), strict=True)
            if column.id in loose
        }
    deciding += _read_by(_read(node), loose)
    return loose


def _read_by(exprs: Iterable[Expr], loose: Loose) -> list[tuple[str, Span | None]]:
    used = frozenset[AttributeId]().union(*(columns_of(expr) for expr in exprs))
    return [loose[name] for name in loose if name in used]


def _read(node: Plan) -> Sequence[Expr]:
    """What a node looks at to tell which rows there are, or to compute another value."""
    match node:
        case Sort():
            return ()
        case Distinct() | SetOperation() | Fixpoint():
            return [column.ref() for side in inputs_of(node) for column in attributes_of(side)]
    return expressions_of(node)
