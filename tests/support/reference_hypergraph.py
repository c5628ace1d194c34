"""Acyclic hypergraphs and running intersection, as their definitions have them. Slow."""

from __future__ import annotations

from collections.abc import Sequence


def is_acyclic(edges: Sequence[frozenset[int]]) -> bool:
    """Graham, Yu and Ozsoyoglu: drop what only one edge has, and edges within others."""
    left = [set(edge) for edge in edges]
    while True:
        before = [set(edge) for edge in left]
        for edge in left:
            alone = {v for v in edge if sum(v in other for other in left) == 1}
            edge -= alone
        for at, edge in enumerate(left):
            if any(edge <= other for place, other in enumerate(left) if place != at):
                del left[at]
                break
        if left == before:
            return all(not edge for edge in left)


def has_running_intersection(
    edges: Sequence[frozenset[int]], parents: Sequence[int | None]
) -> bool:
    """Whether it is one tree, and the edges with a vertex are connected in it, for every vertex."""
    if not is_tree(parents):
        return False
    for vertex in frozenset().union(*edges):
        holders = {at for at, edge in enumerate(edges) if vertex in edge}
        tops = [at for at in holders if parents[at] not in holders]
        if len(tops) != 1:
            return False
    return True


def is_tree(parents: Sequence[int | None]) -> bool:
    """Whether every way up ends at the one root."""
    if sum(parent is None for parent in parents) != 1:
        return False
    for start in range(len(parents)):
        at: int | None = start
        for _ in parents:
            at = None if at is None else parents[at]
        if at is not None:
            return False
    return True
