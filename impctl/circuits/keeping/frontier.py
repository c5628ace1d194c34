"""Undominated points of bytes and cost, each knowing the modes it stands for.

Law: of two points the one with more bytes is cheaper; every point that was left out has one beside
it with no more bytes and no more cost, or, where points are thinned by a share, at most that share
more. Points do not hold their modes but the points that they were put together from: sums and
unions of frontiers stay numbers until one point is chosen.
Out of scope: which frontiers are put together (`state_choice`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log1p

import numpy as np

from impctl.circuits.keeping.graph import Mode
from impctl.data.vector import Bools, Floats, Ints
from impctl.values import dataclass

_AT_ONCE = 1 << 20
"""Pairs of points that are looked at in one go."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Where points come from: modes chosen here, and points of up to two other frontiers."""

    modes: tuple[tuple[str, Mode], ...]
    left: Frontier | None = None
    right: Frontier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Points by rising `bytes` (int64) and falling `cost` (float64), both of shape (points,).

    `part` is the place of each in `parts`, `left` and `right` the points of that part's frontiers.
    """

    bytes: Ints
    cost: Floats
    part: Ints
    left: Ints
    right: Ints
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return len(self.bytes)

    def modes(self, point: int) -> dict[str, Mode]:
        """The mode of each piece at a point; one met twice is kept where either says so."""
        result: dict[str, Mode] = {}
        for name, mode in self._chosen(point):
            # Copies of one flow may differ where its choice was not made once: kept wins.
            if name not in result or mode is Mode.KEPT:
                result[name] = mode
        return result

    def _chosen(self, point: int) -> Iterator[tuple[str, Mode]]:
        waiting: list[tuple[Frontier, int]] = [(self, point)]
        while waiting:
            frontier, at = waiting.pop()
            part = frontier.parts[frontier.part[at]]
            yield from part.modes
            if part.left is not None:
                waiting.append((part.left, int(frontier.left[at])))
            if part.right is not None:
                waiting.append((part.right, int(frontier.right[at])))

    def best_within(self, budget: float) -> int:
        """The cheapest point with at most these bytes; the smallest where none has so few."""
        return max(0, int(np.searchsorted(self.bytes, budget, side="right")) - 1)


def single(modes: Sequence[tuple[str, Mode]] = (), size: int = 0, cost: float = 0.0) -> Frontier:
    """One point."""
    none = np.zeros(1, dtype=np.int64)
    sizes, costs = np.array([size], dtype=np.int64), np.array([cost], dtype=np.float64)
    return Frontier(sizes, costs, none, none, none, (Part(tuple(modes)),))


def of_choices(choices: Sequence[tuple[Mapping[str, Mode], int, float]]) -> Frontier:
    """The undominated ones of whole choices: modes, bytes, cost."""
    size = np.array([size for _, size, _ in choices], dtype=np.int64)
    cost = np.array([cost for _, _, cost in choices], dtype=np.float64)
    part = np.arange(len(choices), dtype=np.int64)
    parts = tuple(Part(tuple(modes.items())) for modes, _, _ in choices)
    return _undominated(size, cost, part, part, part, parts, 0.0)


def added(one: Frontier, other: Frontier, thin: float) -> Frontier:
    """Every point of the one beside every point of the other."""
    if len(other) == 1 and not other.bytes[0] and not other.cost[0] and _is_bare(other):
        return one
    if len(one) == 1 and not one.bytes[0] and not one.cost[0] and _is_bare(one):
        return other
    parts = (Part((), one, other),)
    if min(len(one), len(other)) == 1:
        # What every point gains leaves none dominated.
        many = max(len(one), len(other))
        every, none = np.arange(many, dtype=np.int64), np.zeros(many, dtype=np.int64)
        left, right = (every, none) if len(other) == 1 else (none, every)
        return Frontier(one.bytes + other.bytes, one.cost + other.cost, none, left, right, parts)
    lot = max(1, _AT_ONCE // len(other))
    result = [_beside(one, other, start, start + lot, parts) for start in range(0, len(one), lot)]
    size, cost, left, right = (np.concatenate(column) for column in zip(*result, strict=True))
    none = np.zeros(len(size), dtype=np.int64)
    return _undominated(size, cost, none, left, right, parts, thin)


def _beside(
    one: Frontier, other: Frontier, start: int, end: int, parts: tuple[Part, ...]
) -> tuple[Ints, Floats, Ints, Ints]:
    """Some points of the one beside all of the other: bytes, cost, the point of each."""
    mine = np.arange(start, min(end, len(one)), dtype=np.int64)
    size = (one.bytes[mine, None] + other.bytes).ravel()
    cost = (one.cost[mine, None] + other.cost).ravel()
    left = np.repeat(mine, len(other))
    right = np.tile(np.arange(len(other), dtype=np.int64), len(mine))
    none = np.zeros(len(size), dtype=np.int64)
    result = _undominated(size, cost, none, left, right, parts, 0.0)
    return result.bytes, result.cost, result.left, result.right


def united(
    options: Sequence[tuple[tuple[tuple[str, Mode], ...], int, float, Frontier]], thin: float
) -> Frontier:
    """The points of all options: modes chosen here with their bytes and cost, over a frontier."""
    if len(options) == 1:
        modes, more, dearer, below = options[0]
        if not modes and not more and not dearer:
            return below
    sizes, costs, parts, points, owners = [], [], [], [], []
    for at, (modes, more, dearer, below) in enumerate(options):
        sizes.append(below.bytes + more)
        costs.append(below.cost + dearer)
        parts.append(Part(modes, below))
        points.append(np.arange(len(below), dtype=np.int64))
        owners.append(np.full(len(below), at, dtype=np.int64))
    left = np.concatenate(points)
    part = np.concatenate(owners)
    size, cost = np.concatenate(sizes), np.concatenate(costs)
    if len(options) == 1:
        # What every point gains leaves none dominated.
        return Frontier(size, cost, part, left, left, tuple(parts))
    return _undominated(size, cost, part, left, left, tuple(parts), thin)


def _is_bare(frontier: Frontier) -> bool:
    part = frontier.parts[0]
    return not part.modes and part.left is None


def _undominated(
    size: Ints,
    cost: Floats,
    part: Ints,
    left: Ints,
    right: Ints,
    parts: tuple[Part, ...],
    thin: float,
) -> Frontier:
    order = np.argsort(size, kind="stable")
    sizes, costs = size[order], cost[order]
    least = np.minimum.accumulate(costs)
    is_better = np.ones(len(order), dtype=np.bool_)
    is_better[1:] = costs[1:] < least[:-1]
    order = order[is_better]
    sizes = sizes[is_better]
    # Of equal sizes each is cheaper than the one before it.
    is_last = np.ones(len(order), dtype=np.bool_)
    is_last[:-1] = sizes[1:] > sizes[:-1]
    order = order[is_last]
    if thin and len(order) > 2:
        order = order[_apart(cost[order], thin)]
    return Frontier(size[order], cost[order], part[order], left[order], right[order], parts)


def _apart(cost: Floats, thin: float) -> Bools:
    """The first of those whose falling costs lie within one step of `1 + thin`."""
    with np.errstate(divide="ignore"):
        steps = np.floor(np.log(cost) / log1p(thin))
    is_first = np.ones(len(cost), dtype=np.bool_)
    is_first[1:] = steps[1:] != steps[:-1]
    return is_first
