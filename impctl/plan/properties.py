"""Properties of a plan: whether it can fail, depends on row order, or must have rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from impctl.data.schema import DOUBLE, STRING, Kind, SqlType
from impctl.expr import nodes as e
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.plan.functions import ORDER_DEPENDENT, TIE_DEPENDENT
from impctl.types import AccessId, AttributeId

_TOTAL = frozenset({e.ArithmeticOp.ADD, e.ArithmeticOp.SUBTRACT, e.ArithmeticOp.MULTIPLY})
_WIDTH = {Kind.BYTE: 1, Kind.SHORT: 2, Kind.INTEGER: 4, Kind.LONG: 8}


def can_fail(expr: e.Expr) -> bool:
    """Whether some row could make the expression fail under Spark's ANSI rules; True when unsure.
    Rules never evaluate an expression that can fail on rows that did not reach it before, so that a
    query that works does not start to fail."""
    return any(part_can_fail(part) for part in expr.walk())


def part_can_fail(part: e.Expr) -> bool:
    """Whether the outermost operation of the expression can fail."""
    match part:
        case e.Literal() | e.ColumnRef() | e.And() | e.Or() | e.Not() | e.IsNull():
            return False
        case e.Compare():
            return not _are_alike(part.left, part.right)
        case e.InList():
            return not all(_are_alike(part.operand, option) for option in part.options)
        case e.Case():
            results = [result for _, result in part.branches]
            return not all(_are_alike(part.default, result) for result in results)
        case e.Coalesce():
            return not all(_are_alike(part.operands[0], other) for other in part.operands)
        case e.Like():
            return type_of(part.operand) != STRING
        case e.Arithmetic():
            return part.op not in _TOTAL or type_of(part) != DOUBLE
        case e.Negate():
            return type_of(part) != DOUBLE
        case e.Cast():
            return not _is_widening(type_of(part.operand), part.type)
        case e.Mean() | e.Call():
            return True
        case _:
            assert_never(part)


def _are_alike(left: e.Expr, right: e.Expr) -> bool:
    """Whether casting both to a common type cannot fail."""
    a, b = type_of(left), type_of(right)
    if a is None or b is None:
        return False
    return a == b or Kind.NULL in (a.kind, b.kind) or (a.is_numeric and b.is_numeric)


def _is_widening(source: SqlType | None, target: SqlType) -> bool:
    if source is None:
        return False
    if source == target or source.kind is Kind.NULL:
        return True
    if target == DOUBLE:
        return source.is_numeric
    if source.kind in _WIDTH and target.kind in _WIDTH:
        return _WIDTH[source.kind] <= _WIDTH[target.kind]
    return False


# The result of an order-dependent function (COLLECT_SET, MODE, FIRST ...) is any of several correct
# values. If the query only outputs it, a sketch of whole groups changes nothing: the value is still
# any of these. If it decides on rows or on other values, two runs need not agree.

OrderDependentColumns = dict[AttributeId, tuple[str, e.Span | None]]
"""Columns with such values, and the function of each with its span."""
_LOOSE = ORDER_DEPENDENT - TIE_DEPENDENT


def deciding_functions(root: p.Plan) -> tuple[tuple[str, e.Span | None], ...]:
    """Order-dependent functions that decide on rows or other values, with spans."""
    result: list[tuple[str, e.Span | None]] = []
    _follow(root, result)
    return tuple(dict.fromkeys(result))


def order_dependent_columns(root: p.Plan) -> frozenset[int]:
    """Positions of result columns that depend on the order of rows."""
    loose = _follow(root, [])
    return frozenset(index for index, column in enumerate(root.attributes) if column.id in loose)


def _follow(node: p.Plan, deciding: list[tuple[str, e.Span | None]]) -> OrderDependentColumns:
    """The order-dependent columns of a node's output; appends functions that decide to
    `deciding`."""
    loose: OrderDependentColumns = {}
    for below in node.inputs:
        loose |= _follow(below, deciding)
    if isinstance(node, p.Aggregate):
        calls = {
            output.attribute.id: (output.call.function, output.call.span)
            for output in node.aggregates
            if output.call.function in _LOOSE
        }
        deciding += _read_by(_read(node), loose)
        return calls
    if isinstance(node, p.Project):
        read = (
            (output.attribute.id, output.expr.columns & loose.keys()) for output in node.outputs
        )
        return {name: loose[min(used)] for name, used in read if used}
    if isinstance(node, p.SetOperation) and node.kind is p.SetKind.UNION and node.all:
        return {
            attribute.id: loose[column.id]
            for side in node.inputs
            for attribute, column in zip(node.attributes, side.attributes, strict=True)
            if column.id in loose
        }
    deciding += _read_by(_read(node), loose)
    return loose


def _read_by(
    exprs: Iterable[e.Expr], loose: OrderDependentColumns
) -> list[tuple[str, e.Span | None]]:
    used = frozenset[AttributeId]().union(*(expr.columns for expr in exprs))
    return [loose[name] for name in loose if name in used]


def _read(node: p.Plan) -> Sequence[e.Expr]:
    """Expressions that decide on a node's rows or compute its other values."""
    match node:
        case p.Sort():
            return ()
        case p.Distinct() | p.SetOperation() | p.Fixpoint():
            return [column.ref() for side in node.inputs for column in side.attributes]
    return node.expressions


_WHOLE = frozenset(
    f"{unit} between unbounded preceding and unbounded following" for unit in ("rows", "range")
)


def is_whole(call: p.WindowCall) -> bool:
    """Whether the call's frame is the whole partition for every row, so that all have one value."""
    if call.frame is None:
        return not call.order
    return " ".join(call.frame.lower().split()) in _WHOLE


def scan_predicates(root: p.Plan) -> dict[AccessId, tuple[e.Expr, ...]]:
    """Per access the predicates of the selections right above it, the topmost first."""
    result: dict[AccessId, tuple[e.Expr, ...]] = {}
    for node in root.walk():
        predicates: list[e.Expr] = []
        below = node
        while isinstance(below, p.Select):
            predicates.append(below.predicate)
            below = below.child
        if isinstance(below, p.Scan):
            # The topmost of several selections on a scan has the others below it.
            result.setdefault(below.access, tuple(predicates))
    return result


def scan_conditions(root: p.Plan) -> Mapping[AccessId, tuple[e.Expr, ...]]:
    """The conditions right above each scan that has any: other rows of the access are dropped."""
    return {
        access: tuple(part for predicate in predicates for part in e.conjuncts(predicate))
        for access, predicates in scan_predicates(root).items()
        if predicates
    }


def indispensable(plan: p.Plan) -> frozenset[AccessId]:
    """Accesses without whose rows the plan has no rows."""
    if isinstance(plan, p.Scan):
        return frozenset({plan.access})
    below = [indispensable(child) for child in plan.inputs]
    match plan:
        case (
            p.Join(kind=p.JoinKind.INNER | p.JoinKind.SEMI)
            | p.SetOperation(kind=p.SetKind.INTERSECT)
        ):
            return below[0] | below[1]
        case p.Join(kind=p.JoinKind.LEFT | p.JoinKind.ANTI) | p.SetOperation(kind=p.SetKind.EXCEPT):
            return below[0]
        case p.Join(kind=p.JoinKind.RIGHT):
            return below[1]
        case p.Join() | p.SetOperation():
            return below[0] & below[1]
        case p.Aggregate() if not plan.keys or plan.grouping_sets is not None:
            # A group without keys has a row over no rows.
            return frozenset()
        case _:
            return below[0] if len(below) == 1 else frozenset()
