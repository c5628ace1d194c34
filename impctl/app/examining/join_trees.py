"""The join trees of a query, as `explain` tells them: whether there are any, and what each keeps.

Law: told of every query that joins, whether it asks for trees or not; what stands in the way of one
is named with its place. Out of scope: the trees themselves (`circuits.trees`).
"""

from __future__ import annotations

from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import TreeEntry, TreeNodeEntry
from impctl.circuits.counted import counted
from impctl.circuits.trees.shape import NoTree, Reason, ShapeNode, TreeShape
from impctl.circuits.trees.shaping import tree_shapes
from impctl.circuits.way import Way
from impctl.plan.nodes import Plan, scans_of
from impctl.plan.render_expr import call_text, expr_text
from impctl.workload.models import JoinStrategy


def tree_entries(prepared: PreparedQuery, way: Way | None) -> tuple[TreeEntry, ...]:
    """One entry for each block of joins at the top of the plan; none where nothing is joined.

    `way` is how the query is maintained, None where it has no safe sketch.
    """
    core = prepared.core if way is None or way.core is None else way.core
    asked = prepared.spec.join is JoinStrategy.TREE
    return tuple(
        _entry(shape, prepared, is_used=asked)
        for shape in tree_shapes(counted(core))
        if not (isinstance(shape, NoTree) and shape.reason is Reason.ONE_TABLE)
    )


def _entry(shape: TreeShape | NoTree, prepared: PreparedQuery, *, is_used: bool) -> TreeEntry:
    if isinstance(shape, NoTree):
        return TreeEntry(False, f"no tree: {shape.text}", prepared.place(shape.span))
    said = "asked for" if is_used else "possible; `join: tree` asks for it"
    nodes = tuple(_node(shape, at) for at in reversed(range(len(shape.nodes))))
    return TreeEntry(is_used, said, None, shape.mode.value, shape.height, nodes)


def _node(shape: TreeShape, at: int) -> TreeNodeEntry:
    node = shape.nodes[at]
    parent = node.parent
    return TreeNodeEntry(
        bag=_bag(node),
        depth=shape.depth_of(at),
        parent=() if parent is None else _bag(shape.nodes[parent]),
        edge="" if parent is None else node.edge.value,
        key=tuple(expr_text(node.kept[place]) for place in node.key),
        kept=tuple(expr_text(expr) for expr in node.kept),
        sums=_sums(shape, node),
    )


def _bag(node: ShapeNode) -> tuple[str, ...]:
    return () if node.rows is None else _tables(node.rows)


def _tables(plan: Plan) -> tuple[str, ...]:
    """The tables read below, those that are read several times by their number too."""
    return tuple(scan.access.removesuffix("#1") for scan in scans_of(plan))


def _sums(shape: TreeShape, node: ShapeNode) -> tuple[str, ...]:
    if shape.aggregate is None:
        return ()
    calls = (shape.aggregate.aggregates[place].call for place in node.arguments)
    return tuple(dict.fromkeys(call_text(call) for call in calls))
