"""The part of a plan whose rows are counted: what stands above it loses none of them.

Law: a row of DISTINCT, of a grouping and of UNION stems from all rows that went into it, so above
the last condition, join or LIMIT the fragments are those of the rows below. There no value decides
anything: neither how groups are told apart nor what they sum up to.
Out of scope: plans without sums of doubles, which are built as they stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from impctl.engine import accumulators
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    Distinct,
    Plan,
    Project,
    SetKind,
    SetOperation,
    Sort,
    Window,
    inputs_of,
    nodes_of,
)

_WITH_BOUNDS = frozenset({"sum", "avg", *accumulators.FUNCTIONS})


def counted(root: Plan) -> Plan:
    """The plan without groupings at its top whose input has sums of doubles."""
    result = node = root
    while isinstance(node, Project | Sort | Aggregate | Distinct):
        (below,) = inputs_of(node)
        if isinstance(node, Aggregate | Distinct) and _has_bounds(below):
            result = below
        node = below
    is_union = isinstance(node, SetOperation) and node.kind is SetKind.UNION and not node.all
    if is_union and _has_bounds(node):
        assert isinstance(node, SetOperation)
        return replace(node, all=True)
    return result


def _has_bounds(plan: Plan) -> bool:
    """Whether some value may depend on the order in which doubles are added."""
    return any(
        function in _WITH_BOUNDS and attribute.type is not None and attribute.type.is_fractional
        for node in nodes_of(plan)
        for function, attribute in _computed(node)
    )


def _computed(node: Plan) -> Iterable[tuple[str, Attribute]]:
    """The functions of many rows that the node computes, each with its column."""
    match node:
        case Aggregate():
            return ((output.call.function, output.attribute) for output in node.aggregates)
        case Window():
            return ((call.function, call.attribute) for call in node.calls)
    return ()
