"""When a fixpoint may keep the best rows of each group alone, and the answer stays as it is.

Law: it may where (1) its rows are read through MIN and MAX of some of its columns, the *values*, or
joined back to these by equality; (2) a step makes of a value v only v + e, or, where the least
counts, the greater of v and e (where the greatest counts, the lesser), and no other column of it;
(3) no condition reads a value, unless there is only one and it is bounded on the side of the worse
ones; (4) groups are told by all columns that anything of this reads, e included. Then what a worse
row derives a better one of its group derives, no worse, with the same rows of tables: so where the
rows without the rule have an end, the best of each group are the same, and where they go on and on,
as costs along a circle do, the best are those that all rounds come to. Whether e is above zero
decides on nothing but the end: along a circle below zero there is none, nor are there bounds to
paths of one cost along a circle of cost zero.
The lesser of v and e, where the least counts, would be better than v: along a circle the row that v
came from would be beaten by what came of it, and nothing be left for it to stand on.
What ties: v + e is as much better as v is, so all rows that are best stay, whatever else is in them
(a path); the greater of v and e is not, so there nothing else may be in them. Numbers that are
rounded may do either, so doubles are not added. NULL is no value: greatest(NULL, e) is e, so there
rows with NULL stay, too.
Out of scope: putting it into plans (`plan.rules.best_fixpoints`), the rows themselves (`engine`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from impctl.data.schema import TEMPORAL, Kind, SqlType
from impctl.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Call,
    Cast,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    columns_of,
)
from impctl.expr.types import type_of
from impctl.plan.best_only import BestOnly, BestValue
from impctl.plan.nodes import Aggregate, Attribute, Fixpoint, Plan, Recursive, attributes_of
from impctl.plan.ways import IsLeaf, LeafWay, NotFollowedError, ways_of
from impctl.types import AttributeId
from impctl.values import dataclass

_FUNCTIONS = {"min": False, "max": True}
_NARROW_DIGITS = 18
_BELOW = (CompareOp.LESS, CompareOp.LESS_EQUAL)
_ABOVE = (CompareOp.GREATER, CompareOp.GREATER_EQUAL)


class NotBestOnlyError(Exception):
    """Why all rows of a fixpoint count, in words."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a fixpoint: the best of these values, in groups by these columns at least.

    `has_bounds` where conditions above bound the value.
    """

    keys: frozenset[int]
    values: tuple[BestValue, ...]
    has_bounds: bool = False


def best_of_groups(plan: Aggregate, fixpoint: Fixpoint) -> BestOnly:
    """Which rows of a fixpoint below this grouping may stay; NotBestOnlyError where all count."""
    if plan.grouping_sets is not None:
        raise NotBestOnlyError("the query groups them by several sets of columns")
    ways = _followed(plan.child, lambda node: node is fixpoint)
    keys: set[int] = set()
    values: dict[BestValue, None] = {}
    for output in plan.aggregates:
        call = output.call
        if call.function not in _FUNCTIONS or call.condition is not None:
            what = "FILTER" if call.condition is not None else call.function.upper()
            raise NotBestOnlyError(f"{what} needs all of them")
        for way in (way for way in ways if way.leaf is not None):
            result = _value_read(way, way.over(call.arguments[0]))
            if result is not None:
                value, read = result
                values[BestValue(value, _FUNCTIONS[call.function])] = None
                keys |= read
    wanted = tuple(values)
    has_bounds = False
    for way in (way for way in ways if way.leaf is not None):
        keys |= _places(way, (way.over(key.expr) for key in plan.keys))
        keys |= _places(way, way.matches)
        for condition in way.conditions:
            rest = _bound(way, condition, wanted)
            has_bounds |= rest is not None
            keys |= _places(way, (condition,)) if rest is None else rest
    return best_only(fixpoint, Wanted(frozenset(keys), wanted, has_bounds))


def _value_read(way: LeafWay, expr: Expr) -> tuple[int, set[int]] | None:
    """The place of the value that MIN or MAX reads, and of what else it reads."""
    read = sorted(_places(way, (expr,)))
    if not read:
        return None
    assert way.leaf is not None
    for place in read:
        grown = _grown(expr, way.leaf[place].id)
        if grown is None:
            continue
        if grown.compared:
            # NULL is no best value, yet greatest(NULL, e) is e.
            raise NotBestOnlyError("GREATEST and LEAST turn NULL into a value")
        return place, _places(way, grown.others)
    raise NotBestOnlyError("MIN or MAX reads a value computed from them")


def best_only(fixpoint: Fixpoint, wanted: Wanted) -> BestOnly:
    """What may stay, as far as the fixpoint itself goes; NotBestOnlyError where all count."""
    if not fixpoint.is_set:
        raise NotBestOnlyError("UNION ALL counts every derivation")
    if not wanted.values:
        raise NotBestOnlyError("MIN or MAX reads none of their columns")
    is_leaf = partial(_is_own, fixpoint)
    ways = [way for way in _followed(fixpoint.step, is_leaf) if way.leaf is not None]
    heads = attributes_of(fixpoint.step)
    growths: list[_Grown] = []
    keys = set(wanted.keys)
    for value in wanted.values:
        own = fixpoint.attributes[value.place]
        for side in (attributes_of(fixpoint.base), heads):
            if side[value.place].type != own.type:
                raise NotBestOnlyError(f"`{own.name}` is cast")
        for way in ways:
            grown = _growth(way, value, own, way.expr(heads[value.place]))
            growths.append(grown)
            keys |= _places(way, grown.others)
    has_bounds = wanted.has_bounds
    for way in ways:
        keys |= _places(way, way.matches)
        for condition in way.conditions:
            rest = _bound(way, condition, wanted.values)
            has_bounds |= rest is not None
            keys |= _places(way, (condition,)) if rest is None else rest
    keys = _closed(keys, ways, heads)
    _refuse(fixpoint, wanted, keys, ways, has_bounds=has_bounds)
    is_weak = any(grown.compared for grown in growths)
    if is_weak and any(grown.is_added for grown in growths):
        raise NotBestOnlyError(
            "the recursion both adds to their values and compares them with GREATEST or LEAST"
        )
    if is_weak and len(keys) + 1 < len(heads):
        raise NotBestOnlyError("of the rows that tie by GREATEST or LEAST, one would be missing")
    return BestOnly(tuple(sorted(keys)), wanted.values, keeps_null=is_weak)


def _is_own(fixpoint: Fixpoint, node: Plan) -> bool:
    return isinstance(node, Recursive) and node.fixpoint == fixpoint.id


def _closed(keys: set[int], ways: Sequence[LeafWay], heads: Sequence[Attribute]) -> set[int]:
    """These columns and all that steps make them of."""
    while True:
        read = [_places(way, (way.expr(heads[key]) for key in keys)) for way in ways]
        more = keys.union(*read)
        if more == keys:
            return keys
        keys = more


def _refuse(
    fixpoint: Fixpoint,
    wanted: Wanted,
    keys: set[int],
    ways: Sequence[LeafWay],
    *,
    has_bounds: bool,
) -> None:
    """NotBestOnlyError where a value decides on more than itself."""
    values = {value.place for value in wanted.values}
    if keys & values:
        names = ", ".join(f"`{fixpoint.attributes[place].name}`" for place in sorted(keys & values))
        raise NotBestOnlyError(f"conditions or other columns read {names}")
    if has_bounds and len(wanted.values) > 1:
        raise NotBestOnlyError("a condition on one value also affects the other")
    heads = attributes_of(fixpoint.step)
    for place, head in enumerate(heads):
        if place in values or place in keys:
            continue
        for way in ways:
            if _places(way, (way.expr(head),)) & values:
                name = fixpoint.attributes[place].name
                raise NotBestOnlyError(f"`{name}` is computed from a value that MIN or MAX reads")


def _followed(plan: Plan, is_leaf: IsLeaf) -> list[LeafWay]:
    try:
        return ways_of(plan, is_leaf)
    except NotFollowedError as error:
        raise NotBestOnlyError(str(error)) from None


def _places(way: LeafWay, exprs: Iterable[Expr]) -> set[int]:
    """The places of the leaf's columns that these read."""
    if way.leaf is None:
        return set()
    place = {attribute.id: at for at, attribute in enumerate(way.leaf)}
    return {place[name] for expr in exprs for name in columns_of(expr) if name in place}


@dataclass(frozen=True, slots=True)
class _Grown:
    """A value and what is done to it: others that are added, or compared with by a function."""

    others: tuple[Expr, ...] = ()
    compared: frozenset[str] = frozenset()
    is_added: bool = False


def _growth(way: LeafWay, value: BestValue, own: Attribute, expr: Expr) -> _Grown:
    assert way.leaf is not None
    if own.type is None or not _has_order(own.type):
        raise NotBestOnlyError(f"`{own.name}` is of type {own.type or 'unknown'}")
    grown = _grown(expr, way.leaf[value.place].id)
    if grown is None:
        raise NotBestOnlyError(f"a step computes `{own.name}` by more than adding to it")
    if grown.is_added and own.type.is_fractional:
        raise NotBestOnlyError(f"`{own.name}` has type {own.type}, and its sums are rounded")
    if not grown.compared <= {"least" if value.greatest else "greatest"}:
        raise NotBestOnlyError(
            f"in a cycle, a derived row could replace the `{own.name}` it was derived from"
        )
    return grown


def _has_order(kind: SqlType) -> bool:
    """Whether the engine has its values in 64 bits (`engine.extremes`)."""
    if kind.kind is Kind.DECIMAL:
        return kind.precision <= _NARROW_DIGITS
    return kind.is_numeric or kind.kind in TEMPORAL or kind.kind is Kind.BOOLEAN


def _grown(expr: Expr, own: AttributeId) -> _Grown | None:
    """How the expression grows with that column; None where it may do otherwise."""
    match expr:
        case ColumnRef(id=name):
            return _Grown() if name == own else None
        case Cast(operand=below, type=kind) if _is_exact(below, kind):
            return _grown(below, own)
        case Arithmetic() if _is_rounded(expr):
            return None
        case Arithmetic(op=ArithmeticOp.ADD, left=left, right=right):
            if own not in columns_of(left):
                left, right = right, left
            return _with(_grown(left, own), (right,), own, is_added=True)
        case Arithmetic(op=ArithmeticOp.SUBTRACT, left=left, right=right):
            return _with(_grown(left, own), (right,), own, is_added=True)
        case Call(name=("greatest" | "least") as name, arguments=parts):
            of_own = [part for part in parts if own in columns_of(part)]
            if len(of_own) != 1:
                return None
            others = tuple(part for part in parts if part is not of_own[0])
            return _with(_grown(of_own[0], own), others, own, compared=name)
    return None


def _with(
    grown: _Grown | None,
    others: tuple[Expr, ...],
    own: AttributeId,
    *,
    is_added: bool = False,
    compared: str = "",
) -> _Grown | None:
    if grown is None or any(own in columns_of(other) for other in others):
        return None
    functions = grown.compared | {compared} if compared else grown.compared
    return _Grown((*grown.others, *others), functions, grown.is_added or is_added)


def _is_exact(below: Expr, kind: SqlType) -> bool:
    """Whether casting keeps the value, where it does not fail."""
    result = type_of(below)
    if result is None:
        return False
    if kind.kind is Kind.DECIMAL:
        return result.is_integral or (result.kind is Kind.DECIMAL and result.scale <= kind.scale)
    return result.is_integral and kind.is_integral


def _is_rounded(expr: Arithmetic) -> bool:
    """Whether a sum has fewer digits than what is added."""
    result = type_of(expr)
    parts = [type_of(part) for part in (expr.left, expr.right)]
    if result is None or None in parts:
        return True
    return result.scale < max(part.scale for part in parts if part is not None)


def _bound(way: LeafWay, condition: Expr, values: Sequence[BestValue]) -> set[int] | None:
    """Where a condition bounds a value on its worse side, what else it reads; else None."""
    if not isinstance(condition, Compare) or way.leaf is None:
        return None
    for value in values:
        own = way.leaf[value.place]
        if own.type is not None and own.type.is_fractional:
            continue
        worse, mirrored = (_ABOVE, _BELOW) if value.greatest else (_BELOW, _ABOVE)
        sides = (
            (condition.left, condition.right, worse),
            (condition.right, condition.left, mirrored),
        )
        for side, other, allowed in sides:
            grown = _grown(side, own.id)
            if grown is None or grown.compared or condition.op not in allowed:
                continue
            if own.id not in columns_of(other):
                return _places(way, (*grown.others, other))
    return None
