"""One budget for several queries: their frontiers put together on a grid.

Law: what is chosen fits the budget where anything does. The grid has a thousand cells; each holds
the cheapest choice that was found for the first queries within so many bytes, with its bytes as
they are, so nothing is found that is dearer than by sizes rounded up to cells: with those, cells
would be full. Pieces are never shared between queries.
Out of scope: reads that queries share (`choice`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.circuits.keeping.frontier import Frontier
from impctl.data.vector import Bools, Floats, Ints

_CELLS = 1000


def divided(frontiers: Sequence[Frontier], budget: int) -> list[int]:
    """A point of each frontier, together within the budget's bytes and as cheap as is found.

    Where even the smallest points have more bytes, these.
    """
    if len(frontiers) < 2:
        return [frontier.best_within(budget) for frontier in frontiers]
    points = [0] * len(frontiers)
    if not budget or sum(int(frontier.bytes[0]) for frontier in frontiers) > budget:
        return points
    by_grid = _on_grid(frontiers, budget)
    return _filled_up(frontiers, points if by_grid is None else by_grid, budget)


def _on_grid(frontiers: Sequence[Frontier], budget: int) -> list[int] | None:
    size = np.zeros(_CELLS + 1, dtype=np.int64)
    cost = np.full(_CELLS + 1, np.inf)
    cost[0] = 0.0
    steps: list[tuple[Ints, Ints]] = []
    for frontier in frontiers:
        size, cost, point, before = _with(frontier, size, cost, budget)
        steps.append((point, before))
    if not np.isfinite(cost).any():
        # Rounding left nothing, which cannot be but for a budget of a few bytes.
        return None
    at = int(np.argmin(cost))
    result = []
    for point, before in reversed(steps):
        result.append(int(point[at]))
        at = int(before[at])
    return result[::-1]


def _with(
    frontier: Frontier, size: Ints, cost: Floats, budget: int
) -> tuple[Ints, Floats, Ints, Ints]:
    """The grid with one more query: bytes, cost, its point, and the cell before."""
    more, dearer = np.full(_CELLS + 1, 0, dtype=np.int64), np.full(_CELLS + 1, np.inf)
    point, before = np.zeros(_CELLS + 1, np.int64), np.zeros(_CELLS + 1, np.int64)
    filled = np.flatnonzero(np.isfinite(cost))
    for at in _one_a_cell(frontier, budget):
        total = size[filled] + frontier.bytes[at]
        cells = _cells(total, budget)
        result = cost[filled] + frontier.cost[at]
        # Bytes of neighbouring cells may come to lie in one cell, those of every other one do not.
        for start in (0, 1):
            lot = np.arange(start, len(filled), 2)
            lot = lot[cells[lot] <= _CELLS]
            lot = lot[result[lot] < dearer[cells[lot]]]
            to = cells[lot]
            more[to], dearer[to], point[to], before[to] = total[lot], result[lot], at, filled[lot]
    return more, dearer, point, before


def _one_a_cell(frontier: Frontier, budget: int) -> Ints:
    """Points of a frontier within the budget, the cheapest of each cell, and the smallest."""
    cells = _cells(frontier.bytes, budget)
    is_last: Bools = np.ones(len(frontier), dtype=np.bool_)
    is_last[:-1] = cells[1:] > cells[:-1]
    is_last[0] = True
    return np.flatnonzero(is_last & (cells <= _CELLS))


def _cells(size: Ints, budget: int) -> Ints:
    """The cell that ends at or after so many bytes."""
    result: Ints = -(-size * _CELLS // budget)
    return result


def _filled_up(frontiers: Sequence[Frontier], points: list[int], budget: int) -> list[int]:
    """What is left of the budget given to whom it helps most, as long as it helps anyone."""
    left = budget - sum(
        int(frontier.bytes[at]) for frontier, at in zip(frontiers, points, strict=True)
    )
    while True:
        gains = []
        for query, (frontier, at) in enumerate(zip(frontiers, points, strict=True)):
            better = frontier.best_within(int(frontier.bytes[at]) + left)
            gains.append((float(frontier.cost[at] - frontier.cost[better]), query, better))
        gain, query, better = max(gains, key=lambda one: one[0])
        if gain <= 0:
            return points
        left -= int(frontiers[query].bytes[better] - frontiers[query].bytes[points[query]])
        points[query] = better
