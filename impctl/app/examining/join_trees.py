"""The join trees of a query, as `explain` tells them: whether there are any, and what each keeps.

Law: told of every query that joins, whether it asks for trees or not; what stands in the way of one
is named with its place. Out of scope: the trees in words (`circuits.trees.explanation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from impctl.aliases import AccessId, ColumnName
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import TreeEntry, TreeNodeEntry
from impctl.circuits.trees import explanation
from impctl.circuits.trees.shape import NoTree, Reason, TreeShape
from impctl.circuits.trees.shaping import tree_shapes
from impctl.circuits.way import Way
from impctl.sketch.partition import RangePartition
from impctl.workload.models import JoinStrategy


def tree_entries(
    prepared: PreparedQuery,
    way: Way | None,
    partitions: Mapping[AccessId, RangePartition],
) -> tuple[TreeEntry, ...]:
    """One entry for each block of joins at the top of the plan; none where nothing is joined.

    `way` is how the query is maintained, None where it has no safe sketch.
    """
    core = prepared.core if way is None or way.core is None else way.core
    sketched = {access: partition.attribute for access, partition in partitions.items()}
    return tuple(
        _entry(shape, prepared, way, sketched)
        for shape in tree_shapes(core)
        if not (isinstance(shape, NoTree) and shape.reason is Reason.ONE_TABLE)
    )


def _entry(
    shape: TreeShape | NoTree,
    prepared: PreparedQuery,
    way: Way | None,
    sketched: Mapping[AccessId, ColumnName],
) -> TreeEntry:
    if isinstance(shape, NoTree):
        return TreeEntry(False, f"none: {shape.text}", prepared.place(shape.span))
    is_used = way is not None and way.has_tree
    found = explanation.tree_entry(shape, sketched)
    nodes = tuple(
        TreeNodeEntry(**{one.name: getattr(node, one.name) for one in fields(TreeNodeEntry)})
        for node in found.nodes
    )
    drawn = explanation.tree_lines(found)
    said, estimate = _said(prepared, way), None
    if way is not None and way.trees is not None and way.trees.estimate is not None:
        estimate = way.trees.estimate
    return TreeEntry(
        is_used,
        said,
        mode=found.mode,
        height=found.height,
        nodes=nodes,
        drawn=drawn,
        joined=None if estimate is None else estimate.joined,
        touched=None if estimate is None else estimate.touched,
    )


def _said(prepared: PreparedQuery, way: Way | None) -> str:
    """Why the joins are a tree, or why they are not though they could be."""
    if prepared.spec.join is JoinStrategy.TREE:
        return "asked for"
    if way is None or way.trees is None:
        return "possible; `join: tree` asks for it"
    if way.has_tree:
        return f"chosen: {way.trees.reason}"
    return f"possible, not chosen: {way.trees.reason}; `join: tree` asks for it"
