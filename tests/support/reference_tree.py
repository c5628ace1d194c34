"""Join trees by brute force: plain lists of rows, every joined row written down with its lineage.

Obviously right and slow: children are joined by comparing each row with each, semi, anti and left
edges are what their names say, and a sketch is the set of fragments of all rows that any joined row
of a surviving group is made of. Numbers are Python's. Nothing here is shared with the engine but
the description of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from impctl.engine.jointree.spec import Edge, JoinTree, Node


@dataclass(frozen=True)
class Held:
    """One row of a node: values by column, copies, and a fragment per access of the node."""

    values: Mapping[str, Any]
    copies: int
    fragments: tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """A joined row of a subtree: kept columns of its top, arguments, copies, rows it is made of."""

    kept: Mapping[str, Any]
    arguments: Mapping[str, Any]
    copies: int
    lineage: frozenset[tuple[int, int]]


Tables = Sequence[Sequence[Held]]
"""The rows of every node, by its position in the tree."""
Group = tuple[tuple[Any, ...], list[Joined]]


def groups_of(tree: JoinTree, tables: Tables) -> dict[tuple[Any, ...], list[Joined]]:
    """The joined rows of every group that has any."""
    result: dict[tuple[Any, ...], list[Joined]] = {}
    for row in _joined(tree, tables, len(tree.nodes) - 1):
        result.setdefault(tuple(row.kept[name] for name in tree.root.key), []).append(row)
    return result


def sketches(
    tree: JoinTree, tables: Tables, survives: Callable[[list[Joined]], bool]
) -> list[set[int]]:
    """Per access the fragments of all rows behind groups that survive."""
    groups = groups_of(tree, tables)
    if not tree.root.key:
        groups.setdefault((), [])
    result: list[set[int]] = [set() for _ in range(tree.accesses)]
    for rows in groups.values():
        if survives(rows):
            for at, place in frozenset().union(*(row.lineage for row in rows)):
                accesses = tree.nodes[at].accesses
                for access, fragment in zip(accesses, tables[at][place].fragments, strict=True):
                    result[access.position].add(fragment)
    return result


def values_of(rows: Sequence[Joined], argument: str) -> list[Any]:
    """The values of an argument that are not NULL, each as often as it is joined."""
    pairs = ((row.arguments[argument], row.copies) for row in rows)
    return [value for value, copies in pairs if value is not None for _ in range(copies)]


def _joined(tree: JoinTree, tables: Tables, at: int) -> Iterator[Joined]:
    node = tree.nodes[at]
    below = [list(_joined(tree, tables, link.child)) for link in node.links]
    for row in _own_rows(tree, tables, at, below):
        choices = [
            list(_partners(tree, at, place, row, below[place])) for place in range(len(node.links))
        ]
        for chosen in product(*choices):
            arguments, copies, lineage = dict(row.arguments), row.copies, row.lineage
            for one in chosen:
                arguments.update(one.arguments)
                copies *= one.copies
                lineage |= one.lineage
            yield Joined(row.kept, arguments, copies, lineage)


def _own_rows(
    tree: JoinTree, tables: Tables, at: int, below: Sequence[Sequence[Joined]]
) -> Iterator[Joined]:
    node = tree.nodes[at]
    if node.is_virtual:
        seen: set[tuple[Any, ...]] = set()
        for link, rows in zip(node.links, below, strict=True):
            for row in rows:
                key = [row.kept[name] for name in tree.nodes[link.child].key]
                kept = dict(zip(link.columns, key, strict=True))
                values = tuple(kept[name] for name in node.kept_names)
                if link.edge is Edge.INNER and values not in seen:
                    seen.add(values)
                    yield Joined(kept, {}, 1, frozenset())
        return
    for place, held in enumerate(tables[at]):
        kept = {name: held.values[name] for name in node.kept_names}
        arguments = {name: held.values[name] for name, _ in node.arguments}
        yield Joined(kept, arguments, held.copies, frozenset({(at, place)}))


def _partners(
    tree: JoinTree, at: int, place: int, row: Joined, below: Sequence[Joined]
) -> list[Joined]:
    """What the row may be joined with in one child."""
    link = tree.nodes[at].links[place]
    child = tree.nodes[link.child]
    mine = [row.kept[name] for name in link.columns]
    result = [one for one in below if _is_equal(child, mine, [one.kept[n] for n in child.key])]
    nothing = Joined({}, dict.fromkeys(_arguments_below(tree, link.child)), 1, frozenset())
    match link.edge:
        case Edge.INNER:
            return result
        case Edge.LEFT:
            return result or [nothing]
        case Edge.ANTI:
            return [] if result else [nothing]
        case Edge.SEMI:
            rows = frozenset().union(*(one.lineage for one in result))
            return [Joined({}, {}, 1, rows)] if result else []


def _is_equal(child: Node, mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return all(
        (left == right) if left is not None and right is not None else safe and left is right
        for left, right, safe in zip(mine, theirs, child.null_safe, strict=True)
    )


def _arguments_below(tree: JoinTree, at: int) -> list[str]:
    node = tree.nodes[at]
    names = [name for name, _ in node.arguments]
    for link in node.links:
        names += _arguments_below(tree, link.child)
    return names
