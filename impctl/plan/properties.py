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
    columns_of,
    conjuncts,
    walk,
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
    attributes_of,
    expressions_of,
    inputs_of,
    nodes_of,
)
from impctl.types import AccessId, AttributeId

# Whether evaluating an expression can fail on some row, under Spark's ANSI rules. Law: False only
# where no value of the columns' types can make it fail; True when unsure. A rule never evaluates
# what can fail on rows that did not reach it before: a query that works must not start to fail.

_TOTAL = frozenset({ArithmeticOp.ADD, ArithmeticOp.SUBTRACT, ArithmeticOp.MULTIPLY})
_WIDTH = {Kind.BYTE: 1, Kind.SHORT: 2, Kind.INTEGER: 4, Kind.LONG: 8}


def can_fail(expr: Expr) -> bool:
    """Whether some row could make the expression fail."""
    return any(part_can_fail(part) for part in walk(expr))


def part_can_fail(part: Expr) -> bool:
    """Whether the outermost step of the expression can fail, given its operands' values."""
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


# What becomes of values that depend on the order of rows: shown, or deciding. Law: such a value
# (COLLECT_SET, MODE, FIRST ...) is any of several right ones, whenever Spark runs. Where it is
# only shown, it decides neither which rows there are nor another value that must be fixed, so a
# sketch that holds whole groups leaves it as free as it was. Where it decides, no two runs need
# agree on the rows.

OrderDependentColumns = dict[AttributeId, tuple[str, Span | None]]
"""Columns with such values, and the function of each with its place."""
_LOOSE = ORDER_DEPENDENT - TIE_DEPENDENT


def deciding_functions(root: Plan) -> tuple[tuple[str, Span | None], ...]:
    """Order-dependent functions that affect something in the plan, with places."""
    result: list[tuple[str, Span | None]] = []
    _follow(root, result)
    return tuple(dict.fromkeys(result))


def order_dependent_columns(root: Plan) -> frozenset[int]:
    """Positions of result columns that depend on the order of rows."""
    loose = _follow(root, [])
    return frozenset(
        index for index, column in enumerate(attributes_of(root)) if column.id in loose
    )


def _follow(node: Plan, deciding: list[tuple[str, Span | None]]) -> OrderDependentColumns:
    """The loose columns of a node's output; adds those that decide in it or below to `deciding`."""
    loose: OrderDependentColumns = {}
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


def _read_by(exprs: Iterable[Expr], loose: OrderDependentColumns) -> list[tuple[str, Span | None]]:
    used = frozenset[AttributeId]().union(*(columns_of(expr) for expr in exprs))
    return [loose[name] for name in loose if name in used]


def _read(node: Plan) -> Sequence[Expr]:
    """Expressions that decide on a node's rows or compute its other values."""
    match node:
        case Sort():
            return ()
        case Distinct() | SetOperation() | Fixpoint():
            return [column.ref() for side in inputs_of(node) for column in attributes_of(side)]
    return expressions_of(node)


# Window calls that see their whole partition, so that all its rows have one value. Law:
# `is_whole` only where the frame of every row is all rows of its partition, whatever the order.

_WHOLE = frozenset(
    f"{unit} between unbounded preceding and unbounded following" for unit in ("rows", "range")
)


def is_whole(call: WindowCall) -> bool:
    """Whether the call's frame is the whole partition; without ORDER BY and frame it is."""
    if call.frame is None:
        return not call.order
    return " ".join(call.frame.lower().split()) in _WHOLE


# The conditions that stand right above the scans of a plan. Law: a row of the access that meets
# not all of its conditions is dropped there, whatever the plan makes of the others above.


def scan_conditions(root: Plan) -> Mapping[AccessId, tuple[Expr, ...]]:
    """Conditions on the rows of each access that has any."""
    result: dict[AccessId, tuple[Expr, ...]] = {}
    for node in nodes_of(root):
        conditions: tuple[Expr, ...] = ()
        below = node
        while isinstance(below, Select):
            conditions += conjuncts(below.predicate)
            below = below.child
        if isinstance(below, Scan) and conditions:
            # From above: the first of several filters on a scan has the others below it.
            result.setdefault(below.access, conditions)
    return result


# Which accesses a plan yields nothing without. Law: where one of them has no row, the plan has
# none. What an outer join pads, what NOT EXISTS and EXCEPT leave, and the other branch of a union
# need no rows of theirs; a grouping without keys has a row over nothing.


def indispensable(plan: Plan) -> frozenset[AccessId]:
    """Accesses without whose rows the plan has none."""
    if isinstance(plan, Scan):
        return frozenset({plan.access})
    below = [indispensable(child) for child in inputs_of(plan)]
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
            return frozenset()
        case _:
            return below[0] if len(below) == 1 else frozenset()
