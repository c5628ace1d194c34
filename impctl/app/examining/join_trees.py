"""The join trees of a query, as `explain` tells them: whether there are any, and what each keeps.

Law: told of every query that joins, whether it asks for trees or not; what stands in the way of one
is named with its place. Out of scope: the trees in words (`compile.jointree.explain`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import TreeEntry, TreeNodeEntry
from impctl.compile.compile import Way
from impctl.compile.jointree import explain
from impctl.compile.jointree.cost import Estimate
from impctl.compile.jointree.graph import NoTree, Reason, TreeShape
from impctl.compile.jointree.shape import tree_shapes
from impctl.sketch.partition import RangePartition
from impctl.types import AccessId, ColumnName
from impctl.workload.models import JoinStrategy

_TOLD = tuple(one.name for one in fields(TreeNodeEntry) if one.name != "bytes")
_OF_NODE = re.compile(r"tree(?P<tree>\d+)\.tree\d+/(?P<node>\d+)\.")
"""State of a tree's node, by its name in the store."""


def tree_entries(
    prepared: PreparedQuery,
    way: Way | None,
    partitions: Mapping[AccessId, RangePartition],
    pieces: Mapping[str, int] | None = None,
) -> tuple[TreeEntry, ...]:
    """One entry for each block of joins at the top of the plan; none where nothing is joined.

    `way` is how the query is maintained, None where it has no safe sketch; `pieces` are the bytes
    of its stored state by name, where it is captured as it stands.
    """
    core = prepared.core if way is None or way.core is None else way.core
    sketched = {access: partition.attribute for access, partition in partitions.items()}
    used = () if way is None else way.shapes
    sizes = iter(_sizes(pieces or {}))
    return tuple(
        _entry(shape, prepared, way, sketched, next(sizes, {}) if _is_tree(shape) else {})
        for shape in used or tree_shapes(core)
        if not (isinstance(shape, NoTree) and shape.reason is Reason.ONE_TABLE)
    )


def _is_tree(shape: TreeShape | NoTree) -> bool:
    return isinstance(shape, TreeShape)


def _sizes(pieces: Mapping[str, int]) -> Iterator[dict[int, int]]:
    """For each tree that has state, as they are numbered, the bytes of its nodes by their place."""
    result: dict[int, dict[int, int]] = {}
    for name, size in pieces.items():
        match = _OF_NODE.match(name)
        if match is not None:
            nodes = result.setdefault(int(match["tree"]), {})
            nodes[int(match["node"])] = nodes.get(int(match["node"]), 0) + size
    yield from (nodes for _, nodes in sorted(result.items()))


def _entry(
    shape: TreeShape | NoTree,
    prepared: PreparedQuery,
    way: Way | None,
    sketched: Mapping[AccessId, ColumnName],
    sizes: Mapping[int, int],
) -> TreeEntry:
    if isinstance(shape, NoTree):
        return TreeEntry(False, f"none: {shape.text}", prepared.place(shape.span))
    is_used = way is not None and way.has_tree
    tree_entry = explain.tree_entry(shape, sketched)
    nodes = tuple(
        TreeNodeEntry(**{name: getattr(node, name) for name in _TOLD}, bytes=sizes.get(node.at))
        for node in tree_entry.nodes
    )
    drawn = explain.tree_lines(tree_entry)
    entry = TreeEntry(
        is_used,
        _said(prepared, way),
        mode=tree_entry.mode,
        height=tree_entry.height,
        nodes=nodes,
        drawn=drawn,
    )
    estimate = None if way is None or way.trees is None else way.trees.estimate
    return entry if estimate is None else _estimated(entry, estimate)


def _estimated(entry: TreeEntry, estimate: Estimate) -> TreeEntry:
    """With what it was chosen by, or not."""
    return replace(
        entry,
        joined=estimate.joined,
        touched=estimate.touched,
        index_ms=estimate.index_ms,
        tree_ms=estimate.tree_ms,
        index_bytes=round(estimate.index_bytes),
        tree_bytes=round(estimate.tree_bytes),
    )


def _said(prepared: PreparedQuery, way: Way | None) -> str:
    """Why the joins are a tree, or why they are not though they could be."""
    if prepared.spec.join is JoinStrategy.TREE:
        return "requested"
    if way is None or way.trees is None:
        return "possible; request it with `join: tree`"
    if way.has_tree:
        return f"chosen: {way.trees.reason}"
    return f"possible, not chosen: {way.trees.reason}; request it with `join: tree`"
