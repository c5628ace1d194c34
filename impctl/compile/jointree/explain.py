"""A tree's shape in words: its nodes as a record each, and as lines for people.

Law: the record says what the shape says, in the names of the query; one line per node, children
below their parents in order. Out of scope: sizes and estimates, printing (`cli`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from impctl.compile.jointree.graph import TreeShape, told_by
from impctl.plan.explain import Names, call_text, expr_text
from impctl.plan.nodes import Plan, attributes_of, nodes_of
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.types import AccessId, ColumnName


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node: its relations, how it hangs on its parent, what it keeps and sums up.

    `bag` has no relation at a virtual root; `parent` is the parent's position. `ranges` has for
    each sketched access the column and whether the node counts its rows or keeps the column; of
    `probed` relations no two are joined by themselves. `at` is its place in the shape, by which its
    state is named.
    """

    at: int

    bag: tuple[str, ...]
    parent: int | None
    edge: str
    key: tuple[str, ...]
    kept: tuple[str, ...]
    calls: tuple[str, ...]
    ranges: tuple[tuple[ColumnName, str], ...]
    probed: bool


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A tree, its root first."""

    mode: str
    height: int
    nodes: tuple[NodeEntry, ...]


def tree_entry(shape: TreeShape, sketched: Mapping[AccessId, ColumnName]) -> TreeEntry:
    """The tree in words; `sketched` has the partition's column of each sketched access."""
    last = len(shape.nodes) - 1
    names = _names(shape)
    places = list(_downwards(shape, last))
    entries = tuple(_entry(shape, at, places, sketched, names) for at in places)
    return TreeEntry(str(shape.mode), shape.height, entries)


def tree_lines(tree: TreeEntry) -> tuple[str, ...]:
    """The nodes as an indented tree."""
    return tuple(_lines(tree, 0, "", ""))


def _downwards(shape: TreeShape, at: int) -> Iterator[int]:
    yield at
    for child in shape.children_of(at):
        yield from _downwards(shape, child)


def _names(shape: TreeShape) -> Names:
    plans: list[Plan] = [node.rows for node in shape.nodes if node.rows is not None]
    return {
        attribute.id: attribute.name
        for plan in plans
        for node in nodes_of(plan)
        for attribute in attributes_of(node)
    }


def _entry(
    shape: TreeShape,
    at: int,
    places: list[int],
    sketched: Mapping[AccessId, ColumnName],
    names: Names,
) -> NodeEntry:
    node = shape.nodes[at]
    outputs = () if shape.aggregate is None else shape.aggregate.aggregates
    ranges = tuple(
        (
            sketched[access],
            "counted" if told_by(node, access, sketched[access]) is None else "by column",
        )
        for access in node.accesses
        if access in sketched
    )
    kept = tuple(expr_text(expr, names) for expr in node.kept)
    return NodeEntry(
        at=at,
        bag=tuple(access.removesuffix("#1") for access in node.accesses)
        or (() if node.rows is None else ("one row",)),
        parent=None if node.parent is None else places.index(node.parent),
        edge="" if node.parent is None else str(node.edge),
        key=tuple(kept[place] for place in node.key),
        kept=kept,
        calls=tuple(call_text(outputs[one].call, names) for one in node.arguments),
        ranges=ranges,
        probed=node.circle is not None,
    )


def _lines(tree: TreeEntry, at: int, first: str, rest: str) -> Iterator[str]:
    yield first + _line(tree.nodes[at], is_ring=tree.mode == "ring")
    children = [place for place, node in enumerate(tree.nodes) if node.parent == at]
    for child in children:
        is_last = child == children[-1]
        yield from _lines(
            tree, child, rest + ("'- " if is_last else "|- "), rest + ("   " if is_last else "|  ")
        )


def _line(node: NodeEntry, *, is_ring: bool) -> str:
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
    told = "; ".join((parts.pop(), *(f"ranges of {column} {how}" for column, how in node.ranges)))
    return "  ".join((*parts, told))
