"""The join tree of a plan, or the reason why it has none; its shape in words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.aggregates import is_ordered, plain_call, read_calls
from impctl.compile.flows import BlockedError, known_type_of
from impctl.compile.jointree.build import PlannedBlock
from impctl.compile.jointree.decompose import (
    Block,
    RequestedRows,
    SubTree,
    answered_blocks,
    block_of,
    branches_of,
    decompose,
    grown,
    joined_columns,
    objection_to,
    shown_columns,
)
from impctl.compile.jointree.graph import NoTree, Reason, TreeShape, partition_column
from impctl.engine import accumulators
from impctl.engine.jointree.spec import TreeMode
from impctl.plan import nodes as p
from impctl.plan.explain import Names, call_text, expr_text

if TYPE_CHECKING:
    from impctl.types import AccessId, ColumnName

# Names of the trees of a plan, under which their state is stored. A name changes with any node,
# edge or kept column. The plan alone does not determine the tree: a later release may choose
# another one.

_NONE = "none"


def trees_id(shapes: Sequence[TreeShape | NoTree]) -> str:
    """Name the join trees of a plan's branches; empty if there are none."""
    drawn = [
        _NONE if isinstance(shape, NoTree) else "\n".join(tree_lines(shape, tree_nodes(shape)))
        for shape in shapes
    ]
    if all(text == _NONE for text in drawn):
        return ""
    return hashlib.sha256("\n\n".join(drawn).encode()).hexdigest()[:16]


# A tree finds the sketches that joining finds; a plan without a tree is joined as usual. The same
# plan always has the same tree.

_SUMS = frozenset({"count", "sum", "min", "max", *accumulators.FUNCTIONS})
"""Calls computed from sums, or best values, per key."""


def tree_shapes(root: p.Plan) -> tuple[TreeShape | NoTree, ...]:
    """The trees of a plan after the rules, which split AVG: one, or one per branch of the UNIONs at
    its top."""
    return tuple(block.shape for block in planned_blocks(root))


def planned_blocks(root: p.Plan, *, has_answer: bool = False) -> tuple[PlannedBlock, ...]:
    """The branches of a plan, each with its block and shape. With an answer the trees give the rows
    of the plan, not only which rows take part."""
    branches = branches_of(root)
    is_branch = len(branches) > 1
    if has_answer:
        return tuple(_answered(branch, is_branch=is_branch) for branch in branches)
    return tuple(_planned(branch, block_of(branch, is_branch=is_branch)) for branch in branches)


def _planned(
    branch: p.Plan, block: Block | NoTree, joined: tuple[p.ComputedColumn, ...] | None = None
) -> PlannedBlock:
    if isinstance(block, NoTree):
        return PlannedBlock(branch, None, block)
    return PlannedBlock(branch, block, _shape_of(block, joined))


def _answered(branch: p.Plan, *, is_branch: bool) -> PlannedBlock:
    """The first block whose tree gives its rows; the last block if none does."""
    for block in answered_blocks(branch, is_branch=is_branch):
        if isinstance(block, Block) and block.grouping is None:
            return _planned(branch, block, joined_columns(branch, block.joins))
        result = _planned(branch, block)
        if isinstance(result.shape, TreeShape) and _is_maintained(result.shape):
            return result
    return result


def _is_maintained(shape: TreeShape) -> bool:
    """Whether the engine maintains the output of its groups."""
    try:
        if shape.aggregate is not None:
            read_calls(shape.aggregate)
    except BlockedError:
        return False
    return True


def _shape_of(
    block: Block, joined: tuple[p.ComputedColumn, ...] | None = None
) -> TreeShape | NoTree:
    if block.grouping is None:
        requested: RequestedRows | NoTree = RequestedRows(shown=shown_columns(joined or ()))
    else:
        requested = _requested(block.grouping)
    if isinstance(requested, NoTree):
        return requested
    joins = decompose(block.joins, requested)
    if joins.count == 1 and not joins.relations.beside:
        return _not_joined(block.joins)
    result = grown(joins, may_be_virtual=True)
    if len(result.nodes) == 1 and result.nodes[0].circle is None:
        # One of several relations, or with a join beside, has a reason.
        merging = next(chain(result.merged, joins.inside.values()))
        return NoTree(Reason.ONE_BAG, merging.text, merging.span)
    objection = objection_to(joins)
    if objection is not None:
        return objection
    if block.grouping is None:
        return TreeShape(result.nodes, TreeMode.BITS, joined=joined)
    return _ring(block.grouping, result)


def _requested(grouping: p.Aggregate) -> RequestedRows | NoTree:
    """The group columns, and what calls read of one row."""
    calls = {}
    one_by_one = set()
    for index, output in enumerate(grouping.aggregates):
        try:
            call = plain_call(output.call)
            calls[index] = call.arguments
            if call.distinct or is_ordered(call):
                one_by_one.add(index)
        except BlockedError as blocked:
            return NoTree(Reason.CALL, blocked.message, blocked.span)
    return RequestedRows(
        tuple(key.expr for key in grouping.keys), calls, one_by_one=frozenset(one_by_one)
    )


def _not_joined(plan: p.Plan) -> NoTree:
    joins = [node for node in plan.walk() if isinstance(node, p.Join)]
    if not joins:
        return NoTree(Reason.ONE_TABLE, "nothing is joined", plan.span)
    relation = plan
    while isinstance(relation, p.Select | p.Project | p.Sort):
        relation = relation.child
    if isinstance(relation, p.Join):
        text = "in a full outer join, both sides are optional"
        return NoTree(Reason.ONE_BAG, text, relation.span or plan.span)
    text = "a step between the joins and the result needs each group's own rows"
    return NoTree(Reason.NOT_AT_THE_TOP, text, plan.span or joins[0].span)


def _ring(grouping: p.Aggregate, result: SubTree) -> TreeShape | NoTree:
    root = result.nodes[-1]
    outputs = []
    for index, output in enumerate(grouping.aggregates):
        plain = plain_call(output.call)
        is_one_by_one = plain.distinct or is_ordered(plain)
        is_sum = plain.function in _SUMS and not is_one_by_one
        if not is_sum and index not in (result.one_by_one if is_one_by_one else root.arguments):
            name = output.call.function.upper()
            text = f"{name} is only possible for columns of the table that has the GROUP BY columns"
            return NoTree(Reason.CALL, text, output.call.span)
        if is_ordered(plain) and known_type_of(plain.arguments[0], plain.span).is_fractional:
            # Values kept are those of GROUP BY.
            text = f"{plain.function.upper()} of doubles may distinguish 0.0 from -0.0"
            return NoTree(Reason.CALL, text, output.call.span)
        arguments = result.calls[index]
        if is_one_by_one:
            arguments = tuple(root.kept[index] for index in result.one_by_one[index])
        call = p.AggregateCall(plain.function, arguments, plain.distinct, span=plain.span)
        outputs.append(p.AggregateOutput(output.attribute, call))
    keys = tuple(
        p.ComputedColumn(key.attribute, root.kept[index])
        for key, index in zip(grouping.keys, result.columns, strict=True)
    )
    aggregate = replace(grouping, keys=keys, aggregates=tuple(outputs))
    return TreeShape(result.nodes, TreeMode.RING, aggregate, result.columns, grouping)


class TreeNodeEntry(Struct, frozen=True):
    """A node of a join tree: the accesses of its `bag` (none for a virtual root) and its state.
    `key` is what it shares with its `parent` (a position among the nodes) over an `edge` of that
    kind; the root has the group columns. Its tuples differ in `kept`; `calls` are aggregated over
    them. `ranges` has each sketched column, and whether its ranges are `counted` or reported `by
    column`. Rows of a `probed` bag are looked up over the rows of its tables. `bytes` is the stored
    state, None if it is not captured in this form."""

    bag: tuple[str, ...]
    parent: int | None
    edge: str
    key: tuple[str, ...]
    kept: tuple[str, ...]
    calls: tuple[str, ...]
    ranges: tuple[tuple[ColumnName, str], ...]
    probed: bool
    bytes: int | None = None


_NOTHING: Mapping[Any, Any] = {}


def tree_nodes(
    shape: TreeShape,
    sketched: Mapping[AccessId, ColumnName] = _NOTHING,
    sizes: Mapping[int, int] = _NOTHING,
) -> tuple[TreeNodeEntry, ...]:
    """Describe the nodes, the root first; `sketched` has the partition column of each sketched
    access, `sizes` the stored bytes by position in the shape."""
    names = _names(shape)
    order = list(_downwards(shape, len(shape.nodes) - 1))
    return tuple(
        _entry(shape, position, order, sketched, names, sizes.get(position)) for position in order
    )


def tree_lines(shape: TreeShape, nodes: Sequence[TreeNodeEntry]) -> tuple[str, ...]:
    """The nodes as an indented tree."""
    return tuple(_lines(nodes, 0, "", "", is_ring=shape.mode is TreeMode.RING))


def _downwards(shape: TreeShape, index: int) -> Iterator[int]:
    yield index
    for child in shape.children_of(index):
        yield from _downwards(shape, child)


def _names(shape: TreeShape) -> Names:
    plans: list[p.Plan] = [node.rows for node in shape.nodes if node.rows is not None]
    return {
        attribute.id: attribute.name
        for plan in plans
        for node in plan.walk()
        for attribute in node.attributes
    }


def _entry(
    shape: TreeShape,
    index: int,
    order: list[int],
    sketched: Mapping[AccessId, ColumnName],
    names: Names,
    size: int | None,
) -> TreeNodeEntry:
    node = shape.nodes[index]
    outputs = () if shape.aggregate is None else shape.aggregate.aggregates
    ranges = tuple(
        (
            sketched[access],
            "counted" if partition_column(node, access, sketched[access]) is None else "by column",
        )
        for access in node.accesses
        if access in sketched
    )
    kept = tuple(expr_text(expr, names) for expr in node.kept)
    return TreeNodeEntry(
        bag=tuple(access.removesuffix("#1") for access in node.accesses)
        or (() if node.rows is None else ("one row",)),
        parent=None if node.parent is None else order.index(node.parent),
        edge="" if node.parent is None else str(node.edge),
        key=tuple(kept[position] for position in node.key),
        kept=kept,
        calls=tuple(call_text(outputs[argument].call, names) for argument in node.arguments),
        ranges=ranges,
        probed=node.circle is not None,
        bytes=size,
    )


def _lines(
    nodes: Sequence[TreeNodeEntry], index: int, first: str, rest: str, *, is_ring: bool
) -> Iterator[str]:
    yield first + _line(nodes[index], is_ring=is_ring)
    children = [position for position, node in enumerate(nodes) if node.parent == index]
    for child in children:
        branch, further = ("'- ", "   ") if child == children[-1] else ("|- ", "|  ")
        yield from _lines(nodes, child, rest + branch, rest + further, is_ring=is_ring)


def _line(node: TreeNodeEntry, *, is_ring: bool) -> str:
    """`r  inner on a  keeps a, SUM(b); ranges of id counted`."""
    name = " + ".join(node.bag) or f"[{', '.join(node.kept)}]"
    parts = [name, "probed"] if node.probed else [name]
    if node.parent is None:
        parts.append("groups" if not node.bag else "root")
        if node.bag and is_ring:
            parts[-1] = f"groups by {', '.join(node.key)}" if node.key else "one group"
    else:
        parts.append(f"{node.edge} on {', '.join(node.key) or 'nothing'}")
    if node.bag and (node.kept or node.calls):
        parts.append(f"keeps {', '.join((*node.kept, *node.calls))}")
    ranges = (f"ranges of {column} {how}" for column, how in node.ranges)
    return "  ".join((*parts[:-1], "; ".join((parts[-1], *ranges))))
