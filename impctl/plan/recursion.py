"""What the plan of a fixpoint says of its rows: how steps read them, which columns stay.

Law: a column is stable if every row that a step derives has in it the very value of the rows it is
derived from; so all rows of a derivation have it. A step is linear if no row of it is derived from
two. Where it cannot be told, a column is not stable and a step not linear.
Out of scope: what follows for filters (`plan.rules.push_selections`) and for sketches
(`plan.safety.recursion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from impctl.data.schema import Kind
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, columns_of, conjuncts
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Select,
    SetKind,
    SetOperation,
    Sort,
    Window,
    attributes_of,
    inputs_of,
    nodes_of,
)
from impctl.types import AccessId, AttributeId, FixpointId
from impctl.values import dataclass

_MOST_WAYS = 64
"""Ways through the UNIONs of a step beyond which nothing is said of it."""

_ONE_OF_THEM = frozenset({"min", "max"})
"""Functions whose value is that of one row."""

_Origin = tuple[AttributeId, int]
"""A leaf, by its first column, and the place of one of its columns."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way through the UNIONs of a step: the leaves read, and what equals their columns."""

    leaves: tuple[AttributeId, ...]
    origins: Mapping[AttributeId, frozenset[_Origin]]


def is_linear(fixpoint: Fixpoint) -> bool:
    """Whether every row of the step is derived from one row of the fixpoint at most."""
    ways = _ways(fixpoint.step, fixpoint.id)
    return ways is not None and all(len(way.leaves) <= 1 for way in ways)


def reads_once(fixpoint: Fixpoint) -> bool:
    """Whether every row of the step is derived from one row of the fixpoint, not none or two."""
    ways = _ways(fixpoint.step, fixpoint.id)
    return bool(ways) and all(len(way.leaves) == 1 for way in ways or ())


def stable_columns(fixpoint: Fixpoint) -> frozenset[AttributeId]:
    """The columns of the fixpoint that no step changes, by their identities in it.

    A step that has rows not derived from the fixpoint's own has no stable columns.
    """
    ways = _ways(fixpoint.step, fixpoint.id)
    if not ways or not all(way.leaves for way in ways):
        return frozenset()
    heads = attributes_of(fixpoint.step)
    return frozenset(
        attribute.id
        for place, (attribute, head) in enumerate(zip(fixpoint.attributes, heads, strict=True))
        if all(
            {(leaf, place) for leaf in way.leaves} <= way.origins.get(head.id, frozenset())
            for way in ways
        )
    )


def keyed_rows(
    root: Plan, key_columns: Mapping[int, Mapping[AccessId, AttributeId]]
) -> dict[AttributeId, tuple[AccessId, ...]]:
    """By the column that a fixpoint is keyed on, all accesses below that are sketched on it.

    `key_columns` are those of the plan's verdict, by the positions of nodes.
    """
    nodes = tuple(nodes_of(root))
    return {
        column: tuple(keys)
        for position, keys in key_columns.items()
        if isinstance(nodes[position], Fixpoint)
        for column in set(keys.values())
    }


def reads_fixpoint(plan: Plan, fixpoint: FixpointId) -> bool:
    """Whether a leaf of the fixpoint is in the plan."""
    return any(isinstance(node, Recursive) and node.fixpoint == fixpoint for node in nodes_of(plan))


def _ways(plan: Plan, fixpoint: FixpointId) -> list[_Way] | None:
    """All ways through the plan; None where there are too many, or what is not followed."""
    if not reads_fixpoint(plan, fixpoint):
        return [_Way((), {})]
    match plan:
        case Recursive():
            leaf = plan.attributes[0].id
            columns = enumerate(plan.attributes)
            return [_Way((leaf,), {a.id: frozenset({(leaf, at)}) for at, a in columns})]
        case Sort() | Distinct():
            return _ways(plan.child, fixpoint)
        case Select():
            below = _ways(plan.child, fixpoint)
            return below and [_equated(way, plan.predicate) for way in below]
        case Project():
            below = _ways(plan.child, fixpoint)
            return below and [_projected(way, plan) for way in below]
        case Join():
            return _joined(plan, fixpoint)
        case SetOperation(kind=SetKind.UNION):
            return _either(plan, fixpoint)
    return None


def _projected(way: _Way, plan: Project) -> _Way:
    return replace(
        way,
        origins={
            output.attribute.id: way.origins[output.expr.id]
            for output in plan.outputs
            if isinstance(output.expr, ColumnRef) and output.expr.id in way.origins
        },
    )


def _joined(plan: Join, fixpoint: FixpointId) -> list[_Way] | None:
    left, right = (_ways(side, fixpoint) for side in (plan.left, plan.right))
    if left is None or right is None or len(left) * len(right) > _MOST_WAYS:
        return None
    result = [
        _Way((*one.leaves, *other.leaves), {**one.origins, **other.origins})
        for one in left
        for other in right
    ]
    if plan.kind is not JoinKind.INNER or plan.condition is None:
        return result
    return [_equated(way, plan.condition) for way in result]


def _either(plan: SetOperation, fixpoint: FixpointId) -> list[_Way] | None:
    result: list[_Way] = []
    for side in inputs_of(plan):
        ways = _ways(side, fixpoint)
        if ways is None or len(result) + len(ways) > _MOST_WAYS:
            return None
        pairs = list(zip(plan.attributes, attributes_of(side), strict=True))
        for way in ways:
            origins = {
                output.id: way.origins[source.id]
                for output, source in pairs
                if source.id in way.origins and source.type == output.type
            }
            result.append(_Way(way.leaves, origins))
    return result


def _equated(way: _Way, predicate: Expr) -> _Way:
    """The way with what a condition makes equal; values that only count as equal are left out."""
    pairs = [pair for part in conjuncts(predicate) for pair in _equal_columns(part)]
    origins = dict(way.origins)
    for _ in pairs:
        for one, other in pairs:
            both = origins.get(one, frozenset()) | origins.get(other, frozenset())
            origins[one] = origins[other] = both
    return replace(way, origins=origins)


def _equal_columns(part: Expr) -> Iterator[tuple[AttributeId, AttributeId]]:
    match part:
        case Compare(
            CompareOp.EQUAL | CompareOp.NULL_SAFE_EQUAL, ColumnRef() as one, ColumnRef() as other
        ) if one.type == other.type and _is_told_apart(one):
            yield one.id, other.id


def _is_told_apart(ref: ColumnRef) -> bool:
    """Whether values of its type that count as equal are the same, unlike 0.0 and -0.0."""
    return not ref.type.is_fractional and ref.type.kind is not Kind.OTHER


def approximate_columns(plan: Plan) -> frozenset[AttributeId]:
    """The columns of the plan that may be made of sums of doubles, which no two runs need share."""
    below = frozenset[AttributeId]().union(*(approximate_columns(side) for side in inputs_of(plan)))
    match plan:
        case Project():
            made = ((out.attribute.id, columns_of(out.expr)) for out in plan.outputs)
            return frozenset(name for name, read in made if read & below)
        case Aggregate():
            keys = (out.attribute.id for out in plan.keys if columns_of(out.expr) & below)
            calls = ((out.attribute, out.call.function, out.call.arguments)
                     for out in plan.aggregates)  # fmt: skip
            return frozenset((*keys, *_summed(calls, below)))
        case Window():
            calls = ((call.attribute, call.function, call.arguments) for call in plan.calls)
            return below | frozenset(_summed(calls, below))
        case SetOperation() | Fixpoint():
            sides = [attributes_of(side) for side in inputs_of(plan)]
            rows = zip(plan.attributes, *sides, strict=True)
            return frozenset(own.id for own, *of in rows if {one.id for one in of} & below)
        case _:
            return below


def _summed(
    calls: Iterable[tuple[Attribute, str, tuple[Expr, ...]]], below: frozenset[AttributeId]
) -> Iterator[AttributeId]:
    for attribute, function, arguments in calls:
        is_summed = attribute.type is None or attribute.type.is_fractional
        is_read = any(columns_of(argument) & below for argument in arguments)
        if is_read or (is_summed and function not in _ONE_OF_THEM):
            yield attribute.id
