"""Which part of a plan a tree may serve: a grouping over joins, or joins alone, at the top.

Law: what stands above a block only decides which groups count, or nothing at all. Above the last
condition or LIMIT no row is lost, whatever is grouped there (`circuits.counted`), so there nothing
needs to be computed, and nothing decides: *bits*. Below a condition on groups there is one grouping
and then the joins. The sketch of a UNION is that of its branches together, each a block of its own,
in which no LIMIT is the last step. Where the answer's rows are asked for too, a grouping over the
joins, or DISTINCT, is the block's, so that its groups have their values.
Out of scope: whether the joins have a tree (`circuits.trees.shaping`).
"""

from __future__ import annotations

from collections.abc import Iterator

from impctl.circuits.trees.shape import NoTree, Reason
from impctl.plan.nodes import (
    Aggregate,
    ComputedColumn,
    Distinct,
    Plan,
    Project,
    Select,
    SetKind,
    SetOperation,
    Sort,
    TopK,
    attributes_of,
)
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """The grouping whose groups something decides on (None: nothing decides), and the joins.

    `decided` is the condition on groups or the LIMIT that is uppermost: nothing above decides.
    `place` is the node of the plan that the groups are the rows of: the grouping, or the DISTINCT
    that it is made of.
    """

    grouping: Aggregate | None
    joins: Plan
    decided: Plan | None = None
    place: Plan | None = None


def branches_of(root: Plan) -> tuple[Plan, ...]:
    """The branches of the UNIONs at the top, left to right; without one the plan itself."""
    below = _undecided(root)
    if isinstance(below, SetOperation) and below.kind is SetKind.UNION:
        return (*branches_of(below.left), *branches_of(below.right))
    return (root,)


def block_of(root: Plan, *, is_branch: bool = False) -> Block | NoTree:
    """The block of a plan without UNION at its top, or what stands between."""
    below = _undecided(root)
    top = _last_top(root)
    if top is not None and not is_branch:
        return _decided(top.child, top)
    if isinstance(below, TopK):
        return _no_block("a LIMIT or rank that is not the last step", below)
    if isinstance(below, Select) and isinstance(_ungrouped(below), Aggregate):
        return _decided(below, below)
    return Block(None, below)


def answered_blocks(root: Plan, *, is_branch: bool) -> Iterator[Block | NoTree]:
    """The blocks by which the rows that are asked for may be told, the best one first.

    Where nothing decides, the groups of what is grouped first; then the joined rows.
    """
    result = block_of(root, is_branch=is_branch)
    if isinstance(result, Block) and result.grouping is None:
        grouped = _lowest_grouping(root, result.joins)
        if grouped is not None:
            yield grouped
    yield result


def _lowest_grouping(root: Plan, joins: Plan) -> Block | None:
    """The grouping or DISTINCT next to the joins as a block whose groups all count."""
    result, node = None, root
    while node is not joins:
        assert isinstance(node, Project | Sort | Distinct | Aggregate), "nothing decides above"
        result = node if isinstance(node, Distinct | Aggregate) else result
        node = node.child
    if isinstance(result, Distinct):
        keys = tuple(ComputedColumn(one, one.ref()) for one in attributes_of(result))
        grouping = Aggregate(result.child, keys, (), span=result.span)
        return Block(grouping, result.child, result, result)
    if result is None or result.grouping_sets is not None:
        return None
    return Block(result, result.child, result, result)


def _undecided(root: Plan) -> Plan:
    """What is below everything that loses no row."""
    node = root
    while isinstance(node, Project | Sort | Distinct | Aggregate):
        node = node.child
    return node


def _last_top(root: Plan) -> TopK | None:
    node = root
    while isinstance(node, Project | Sort):
        node = node.child
    return node if isinstance(node, TopK) else None


def _ungrouped(node: Plan) -> Plan:
    while isinstance(node, Select | Project | Sort):
        node = node.child
    return node


def _decided(start: Plan, by: Plan) -> Block | NoTree:
    """The block below a condition on groups or a LIMIT."""
    node = _ungrouped(start)
    if not isinstance(node, Aggregate):
        if isinstance(by, TopK) and not isinstance(node, Distinct | TopK):
            return _no_block("a LIMIT or rank over rows that are not grouped", by)
        return _no_block("a step between the joins and the grouping", node)
    if node.grouping_sets is not None:
        return _no_block("a grouping by several sets of columns", node)
    return Block(node, node.child, by, node)


def _no_block(text: str, node: Plan) -> NoTree:
    return NoTree(Reason.NOT_AT_THE_TOP, text, node.span)
