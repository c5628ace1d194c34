"""Properties of a plan: whether it can fail, depends on row order, or must have rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from impctl.data.schema import DOUBLE, STRING, Kind, SqlType
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
    Span,
    conjuncts,
)
from impctl.expr.types import type_of
from impctl.plan.functions import ORDER_DEPENDENT, TIE_DEPENDENT
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    WindowCall,
)
from impctl.types import AccessId, AttributeId

_TOTAL = frozenset({ArithmeticOp.ADD, ArithmeticOp.SUBTRACT, ArithmeticOp.MULTIPLY})
_WIDTH = {Kind.BYTE: 1, Kind.SHORT: 2, Kind.INTEGER: 4, Kind.LONG: 8}


def can_fail(expr: Expr) -> bool:
    """Whether some row could make the expression fail under Spark's ANSI rules; True when unsure.
    Rules never evaluate an expression that can fail on rows that did not reach it before, so that a
    query that works does not start to fail."""
    return any(part_can_fail(part) for part in expr.walk())


def part_can_fail(part: Expr) -> bool:
    """Whether the outermost operation of the expression can fail."""
    match part:
        case Literal() | ColumnRef() | And() | Or() | Not() | IsNull():
            return False
        case Compare():
            return not _are_alike(part.left, part.right)
        case InList():
            return not all(_are_alike(part.operand, option) for option in part.options)
        case Case():
            results = [result for _, result in part.branches]
            return not all(_are_alike(part.default, result) for result in results)
        case Coalesce():
            return not all(_are_alike(part.operands[0], other) for other in part.operands)
        case Like():
            return type_of(part.operand) != STRING
        case Arithmetic():
            return part.op not in _TOTAL or type_of(part) != DOUBLE
        case Negate():
            return type_of(part) != DOUBLE
        case Cast():
            return not _is_widening(type_of(part.operand), part.type)
        case Mean() | Call():
            return True
        case _:
            assert_never(part)


def _are_alike(left: Expr, right: Expr) -> bool:
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

OrderDependentColumns = dict[AttributeId, tuple[str, Span | None]]
"""Columns with such values, and the function of each with its span."""
_LOOSE = ORDER_DEPENDENT - TIE_DEPENDENT


def deciding_functions(root: Plan) -> tuple[tuple[str, Span | None], ...]:
    """Order-dependent functions that decide on rows or other values, with spans."""
    result: list[tuple[str, Span | None]] = []
    _follow(root, result)
    return tuple(dict.fromkeys(result))


def order_dependent_columns(root: Plan) -> frozenset[int]:
    """Positions of result columns that depend on the order of rows."""
    loose = _follow(root, [])
    return frozenset(index for index, column in enumerate(root.attributes) if column.id in loose)


def _follow(node: Plan, deciding: list[tuple[str, Span | None]]) -> OrderDependentColumns:
    """The order-dependent columns of a node's output; appends functions that decide to
    `deciding`."""
    loose: OrderDependentColumns = {}
    for below in node.inputs:
        loose |= _follow(below, deciding)
    if isinstance(node, Aggregate):
        calls = {
            output.attribute.id: (output.call.function, output.call.span)
            for output in node.aggregates
            if output.call.function in _LOOSE
        }
        deciding += _read_by(_read(node), loose)
        return calls
    if isinstance(node, Project):
        read = (
            (output.attribute.id, output.expr.columns & loose.keys()) for output in node.outputs
        )
        return {name: loose[min(used)] for name, used in read if used}
    if isinstance(node, SetOperation) and node.kind is SetKind.UNION and node.all:
        return {
            attribute.id: loose[column.id]
            for side in node.inputs
            for attribute, column in zip(node.attributes, side.attributes, strict=True)
            if column.id in loose
        }
    deciding += _read_by(_read(node), loose)
    return loose


def _read_by(exprs: Iterable[Expr], loose: OrderDependentColumns) -> list[tuple[str, Span | None]]:
    used = frozenset[AttributeId]().union(*(expr.columns for expr in exprs))
    return [loose[name] for name in loose if name in used]


def _read(node: Plan) -> Sequence[Expr]:
    """Expressions that decide on a node's rows or compute its other values."""
    match node:
        case Sort():
            return ()
        case Distinct() | SetOperation() | Fixpoint():
            return [column.ref() for side in node.inputs for column in side.attributes]
    return node.expressions


_WHOLE = frozenset(
    f"{unit} between unbounded preceding and unbounded following" for unit in ("rows", "range")
)


def is_whole(call: WindowCall) -> bool:
    """Whether the call's frame is the whole partition for every row, so that all have one value."""
    if call.frame is None:
        return not call.order
    return " ".join(call.frame.lower().split()) in _WHOLE


def scan_predicates(root: Plan) -> dict[AccessId, tuple[Expr, ...]]:
    """Per access the predicates of the selections right above it, the topmost first."""
    result: dict[AccessId, tuple[Expr, ...]] = {}
    for node in root.walk():
        predicates: list[Expr] = []
        below = node
        while isinstance(below, Select):
            predicates.append(below.predicate)
            below = below.child
        if isinstance(below, Scan):
            # The topmost of several selections on a scan has the others below it.
            result.setdefault(below.access, tuple(predicates))
    return result


def scan_conditions(root: Plan) -> Mapping[AccessId, tuple[Expr, ...]]:
    """The conditions right above each scan that has any: other rows of the access are dropped."""
    return {
        access: tuple(part for predicate in predicates for part in conjuncts(predicate))
        for access, predicates in scan_predicates(root).items()
        if predicates
    }


def indispensable(plan: Plan) -> frozenset[AccessId]:
    """Accesses without whose rows the plan has no rows."""
    if isinstance(plan, Scan):
        return frozenset({plan.access})
    below = [indispensable(child) for child in plan.inputs]
    match plan:
        case Join(kind=JoinKind.INNER | JoinKind.SEMI) | SetOperation(kind=SetKind.INTERSECT):
            return below[0] | below[1]
        case Join(kind=JoinKind.LEFT | JoinKind.ANTI) | SetOperation(kind=SetKind.EXCEPT):
            return below[0]
        case Join(kind=JoinKind.RIGHT):
            return below[1]
        case Join() | SetOperation():
            return below[0] & below[1]
        case Aggregate() if not plan.keys or plan.grouping_sets is not None:
            # A group without keys has a row over no rows.
            return frozenset()
        case _:
            return below[0] if len(below) == 1 else frozenset()
