"""Good choices where flows are shared in too many ways to find the best ones.

Start from the choices that are best if every reader of a shared flow had a copy of it (kept wins
where copies differ), and evaluate them truly; then change single modes, or two at once, until
nothing within the bytes helps. Law: what comes out costs what it says; how much dearer than the
best it is, is not known.
Out of scope: exact choices (`state_choice`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from impctl.circuits.keeping.evaluated import per_day
from impctl.circuits.keeping.frontier import Frontier, of_choices
from impctl.circuits.keeping.graph import Graph, Mode

_STARTS = 24
"""Choices that are improved, of all, evenly over the frontier."""
_MOST_ROUNDS = 40
_MOST_PAIRS = 400


def improved(graph: Graph, copied: Frontier) -> Frontier:
    """The frontier of choices that nothing small improves."""
    places = np.unique(np.linspace(0, len(copied) - 1, _STARTS).astype(np.int64))
    starts = [copied.modes(int(at)) for at in places]
    starts += [_least(graph), {piece.name: piece.modes[0] for piece in graph.pieces}]
    result: list[tuple[dict[str, Mode], int, float]] = []
    for modes in starts:
        budget = graph.bytes_of(modes)
        cost = per_day(graph, modes)
        for _ in range(_MOST_ROUNDS):
            better = _better(graph, modes, budget, cost)
            if better is None:
                break
            modes, cost = better
        result.append((modes, graph.bytes_of(modes), cost))
    return of_choices(result)


def _least(graph: Graph) -> dict[str, Mode]:
    return {piece.name: min(piece.sizes, key=piece.sizes.__getitem__) for piece in graph.pieces}


def _better(
    graph: Graph, modes: dict[str, Mode], budget: int, cost: float
) -> tuple[dict[str, Mode], float] | None:
    """The cheapest choice within the bytes that differs in one mode, or in two."""
    for changes in (_one(graph, modes), _two(graph, modes)):
        best = None
        for changed in changes:
            if graph.bytes_of(changed) > budget:
                continue
            result = per_day(graph, changed)
            # Sums of the same costs in another order are no improvement.
            if result < cost * (1 - 1e-12) - 1e-12:
                best, cost = changed, result
        if best is not None:
            return best, cost
    return None


def _one(graph: Graph, modes: dict[str, Mode]) -> Iterator[dict[str, Mode]]:
    for piece in graph.pieces:
        for mode in piece.modes:
            if mode is not modes[piece.name]:
                yield {**modes, piece.name: mode}


def _two(graph: Graph, modes: dict[str, Mode]) -> Iterator[dict[str, Mode]]:
    left = _MOST_PAIRS
    for one, other in combinations(graph.pieces, 2):
        for mine in one.modes:
            for theirs in other.modes:
                if mine is modes[one.name] or theirs is modes[other.name] or not left:
                    continue
                left -= 1
                yield {**modes, one.name: mine, other.name: theirs}
