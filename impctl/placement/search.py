"""The best modes of all pieces of state under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log1p
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.bench.quantity import number
from impctl.placement.model import (
    KindOfChange,
    Modes,
    Piece,
    PieceMode,
    StateModel,
    at_kind,
    evaluate,
    per_day,
    per_day_together,
)
from impctl.types import TableName

if TYPE_CHECKING:
    from impctl.data.vector import Bools, Floats, Ints


# The best modes of all pieces of one query, for every budget at once: the undominated points of
# bytes and cost, of which the one with more bytes is cheaper. Costs of pieces add up, so the points
# of all pieces are the sums of their own, combined piece by piece. For every dropped point there is
# one with no more bytes and no more cost, or at most the thinning share more for each piece with a
# choice.

THIN = 0.001  # The relative cost by which points must differ to be kept apart; 0 keeps all
_AT_ONCE = 1 << 20  # Pairs of points compared in one array
_MODES = tuple(PieceMode)


class Frontier(Struct, frozen=True, eq=False):
    """Points by rising `bytes` (int64) and falling `cost` (float64, milliseconds a day), both of
    shape (points,). `chosen` has the mode of each named piece at each point, by its position in
    `PieceMode`, of shape (points, names)."""

    bytes: Ints
    cost: Floats
    names: tuple[str, ...]
    chosen: Ints

    def __len__(self) -> int:
        return len(self.bytes)

    def modes(self, point: int) -> dict[str, PieceMode]:
        chosen = self.chosen[point].tolist()
        return {name: _MODES[mode] for name, mode in zip(self.names, chosen, strict=True)}

    def best_within(self, budget: float) -> int:
        """The cheapest point with at most these bytes; the smallest if none has so few."""
        return max(0, int(np.searchsorted(self.bytes, budget, side="right")) - 1)


def frontier_of(model: StateModel, *, thin: float = THIN) -> Frontier:
    """All choices worth making for the query, by rising bytes and falling cost a day."""
    kinds = range(len(model.kinds))
    fixed = [sum(at_kind(operator.work, kind) for operator in model.operators) for kind in kinds]
    none = np.zeros(1, dtype=np.int64)
    result = Frontier(none, np.zeros(1), (), np.zeros((1, 0), dtype=np.int64))
    for piece in model.pieces:
        result = added(_of_piece(model, piece), result, thin)
    return replace(result, cost=result.cost + model.per_day(fixed))


def _of_piece(model: StateModel, piece: Piece) -> Frontier:
    kinds = range(len(model.kinds))
    points = []
    for mode, size in piece.sizes.items():
        cost = model.per_day([piece.cost(mode, kind) for kind in kinds])
        points.append((size, cost, [_MODES.index(mode)]))
    return of_points((piece.name,), points)


def of_points(
    names: tuple[str, ...], points: Sequence[tuple[int, float, Sequence[int]]]
) -> Frontier:
    """The undominated ones of these points: bytes, cost, and the modes of the named pieces."""
    size = np.array([size for size, _, _ in points], dtype=np.int64)
    cost = np.array([cost for _, cost, _ in points], dtype=np.float64)
    chosen = np.array([modes for _, _, modes in points], dtype=np.int64)
    best = _undominated(size, cost, 0.0)
    return Frontier(size[best], cost[best], names, chosen.reshape(len(points), len(names))[best])


def added(first: Frontier, second: Frontier, thin: float) -> Frontier:
    """Every point of the one combined with every point of the other."""
    sizes, costs, pairs = [], [], []
    lot = max(1, _AT_ONCE // len(second))
    for start in range(0, len(first), lot):
        size = np.add.outer(first.bytes[start : start + lot], second.bytes).ravel()
        cost = np.add.outer(first.cost[start : start + lot], second.cost).ravel()
        best = _undominated(size, cost, 0.0)
        sizes.append(size[best])
        costs.append(cost[best])
        pairs.append(best + start * len(second))
    size, cost, pair = np.concatenate(sizes), np.concatenate(costs), np.concatenate(pairs)
    # What every point gains leaves none closer to the next one.
    best = _undominated(size, cost, thin if min(len(first), len(second)) > 1 else 0.0)
    left, right = np.divmod(pair[best], len(second))
    chosen = np.hstack([first.chosen[left], second.chosen[right]])
    return Frontier(size[best], cost[best], (*first.names, *second.names), chosen)


def _undominated(size: Ints, cost: Floats, thin: float) -> Ints:
    """The positions of the undominated points, by rising bytes."""
    order = np.argsort(size, kind="stable")
    sizes, costs = size[order], cost[order]
    least = np.minimum.accumulate(costs)
    is_better = np.ones(len(order), dtype=np.bool_)
    is_better[1:] = costs[1:] < least[:-1]
    order, sizes = order[is_better], sizes[is_better]
    # Of equal sizes each is cheaper than the one before it.
    is_last = np.ones(len(order), dtype=np.bool_)
    is_last[:-1] = sizes[1:] > sizes[:-1]
    order = order[is_last]
    return order[_apart(cost[order], thin)] if thin and len(order) > 2 else order


def _apart(cost: Floats, thin: float) -> Bools:
    """The first of those whose falling costs lie within one step of `1 + thin`."""
    with np.errstate(divide="ignore"):
        steps = np.floor(np.log(cost) / log1p(thin))
    is_first = np.ones(len(cost), dtype=np.bool_)
    is_first[1:] = steps[1:] != steps[:-1]
    return is_first


# One budget for several queries: their frontiers combined on a grid of a thousand cells. Each cell
# holds the cheapest choice for the first queries within so many bytes, with its exact bytes, so the
# result is never dearer than with sizes rounded up to cells. It fits the budget if anything does.
# Queries share no pieces.

_CELLS = 1000


def divided(frontiers: Sequence[Frontier], budget: int) -> list[int]:
    """A point of each frontier, together within the budget and as cheap as the search finds. If
    even the smallest points have more bytes, these."""
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
    cell = int(np.argmin(cost))
    result = []
    for point, before in reversed(steps):
        result.append(int(point[cell]))
        cell = int(before[cell])
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
    """Give the rest of the budget to the query it helps most, as long as it helps any."""
    used = (frontier.bytes[point] for frontier, point in zip(frontiers, points, strict=True))
    left = budget - sum(map(int, used))
    while True:
        gains = []
        for query, (frontier, index) in enumerate(zip(frontiers, points, strict=True)):
            better = frontier.best_within(int(frontier.bytes[index]) + left)
            gains.append((float(frontier.cost[index] - frontier.cost[better]), query, better))
        gain, query, better = max(gains, key=lambda one: one[0])
        if gain <= 0:
            return points
        left -= int(frontiers[query].bytes[better] - frontiers[query].bytes[points[query]])
        points[query] = better


# The choice of state: queries and a budget in, modes and reasons out, as a pure function. The
# minimised sum leaves out that queries share reads of the same tables; so the choice is repeated
# with each read divided by the number of queries that chose it, and the truly cheaper of the two is
# returned.


class QueryChoice(Struct, frozen=True):
    """The choice for one query: the mode of each piece and why, bytes, and milliseconds a day,
    without shared reads."""

    modes: Modes
    reasons: Mapping[str, str]
    bytes: int
    ms_per_day: float


class StateChoice(Struct, frozen=True):
    """The choice for all queries: bytes, and the expected milliseconds a day of maintaining. If it
    `exceeds` the budget, nothing fits: `least` are the fewest bytes needed. A kept byte counted as
    `per_byte` milliseconds a day."""

    queries: Mapping[str, QueryChoice]
    bytes: int
    ms_per_day: float
    exceeds: bool
    least: int = 0
    per_byte: float = 0.0


def choose(
    queries: Mapping[str, StateModel],
    budget_bytes: int | None,
    *,
    thin: float = THIN,
    urgency: Sequence[float] = (),
    per_byte: float = 0.0,
) -> StateChoice:
    """Choose the modes of all pieces of all queries within a budget of bytes; None is unlimited,
    and then a kept byte may count as `per_byte` milliseconds a day. An `urgency` multiplies the
    rate of each kind of change for the choice, not in the reported cost. ValueError if the budget
    is below zero, or if the models have different kinds of change."""
    given = list(queries.values())
    if len({model.kinds for model in given}) > 1:
        raise ValueError("queries are expected to change in different ways")
    if budget_bytes is not None and budget_bytes < 0:
        raise ValueError("a budget below zero")
    models = [_urged(model, urgency) for model in given] if urgency else given
    frontiers = [frontier_of(model, thin=thin) for model in models]
    modes = _within(frontiers, budget_bytes, per_byte)
    repriced = _repriced(models, modes)
    if repriced is not None:
        again = [frontier_of(model, thin=thin) for model in repriced]
        other = _within(again, budget_bytes, per_byte)
        modes = min(modes, other, key=lambda each: _rank(models, each, budget_bytes, per_byte))
    choice = explained(queries, dict(zip(queries, modes, strict=True)), budget_bytes)
    least = sum(int(frontier.bytes[0]) for frontier in frontiers)
    return replace(choice, least=least, per_byte=per_byte)


def explained(
    queries: Mapping[str, StateModel], modes: Mapping[str, Modes], budget_bytes: int | None
) -> StateChoice:
    """What these modes of all pieces cost, and why each has its mode."""
    chosen = {name: _query_choice(model, modes[name]) for name, model in queries.items()}
    total = sum(choice.bytes for choice in chosen.values())
    exceeds = budget_bytes is not None and total > budget_bytes
    every = [modes[name] for name in queries]
    return StateChoice(chosen, total, per_day_together(list(queries.values()), every), exceeds)


def _urged(model: StateModel, urgency: Sequence[float]) -> StateModel:
    kinds = (
        replace(kind, rate=kind.rate * times)
        for kind, times in zip(model.kinds, urgency, strict=True)
    )
    return replace(model, kinds=tuple(kinds))


def _within(
    frontiers: Sequence[Frontier], budget: int | None, per_byte: float
) -> list[dict[str, PieceMode]]:
    if not frontiers:
        return []
    if per_byte:
        return [
            frontier.modes(int((frontier.cost + per_byte * frontier.bytes).argmin()))
            for frontier in frontiers
        ]
    most = sum(int(frontier.bytes[-1]) for frontier in frontiers)
    points = divided(frontiers, most if budget is None else min(budget, most))
    return [frontier.modes(point) for frontier, point in zip(frontiers, points, strict=True)]


def _rank(
    models: Sequence[StateModel], modes: Sequence[Modes], budget: int | None, per_byte: float
) -> tuple[int, float]:
    """Bytes over the budget first, then cost."""
    total = sum(model.bytes_of(mode) for model, mode in zip(models, modes, strict=True))
    over = 0 if budget is None else max(0, total - budget)
    return over, per_day_together(models, modes) + per_byte * total


def _repriced(models: Sequence[StateModel], modes: Sequence[Modes]) -> list[StateModel] | None:
    """The models with reads divided among those that made them; None if none is shared."""
    count: dict[tuple[tuple[TableName, ...], int], int] = {}
    for model, chosen in zip(models, modes, strict=True):
        for kind, reads in enumerate(evaluate(model, chosen).reads):
            for source, cost in reads.items():
                if cost > 0:
                    count[source, kind] = count.get((source, kind), 0) + 1
    if all(number < 2 for number in count.values()):
        return None

    def shared(piece: Piece) -> Piece:
        each = (ms / count.get((piece.source, kind), 1) for kind, ms in enumerate(piece.read))
        return replace(piece, read=tuple(each))

    return [model.with_pieces(shared) for model in models]


def _query_choice(model: StateModel, modes: Modes) -> QueryChoice:
    reasons = {piece.name: _reason(model, piece, modes[piece.name]) for piece in model.pieces}
    return QueryChoice(modes, reasons, model.bytes_of(modes), per_day(model, modes))


def _reason(model: StateModel, piece: Piece, mode: PieceMode) -> str:
    """Why a piece has its mode: what the next best, or keeping it, would change."""
    if len(piece.modes) == 1:
        return "nothing can replace it" if mode is PieceMode.KEPT else "requested"
    kinds = range(len(model.kinds))
    costs = {each: [piece.cost(each, kind) for kind in kinds] for each in piece.modes}
    if mode is PieceMode.KEPT:
        others = [other for other in piece.modes if other is not PieceMode.KEPT]
        best = min(others, key=lambda other: model.per_day(costs[other]))
        when = f"if it is {piece.word(best)}"
        return _difference(model, costs[best], costs[mode], when, "costs nothing more")
    if PieceMode.KEPT not in piece.modes:
        return "it cannot be kept"
    nothing = "no change exhausts it" if mode is PieceMode.BOUNDED else "no change needs it"
    when = f"because it is {piece.word(mode)}"
    return _difference(model, costs[mode], costs[PieceMode.KEPT], when, nothing)


def _difference(
    model: StateModel, costly: Sequence[float], cheap: Sequence[float], when: str, nothing: str
) -> str:
    """The kind of change with the largest difference in cost, and what each run adds."""
    daily = [kind.rate * (d - c) for kind, d, c in zip(model.kinds, costly, cheap, strict=True)]
    index = max(range(len(daily)), key=daily.__getitem__, default=None)
    if index is None or daily[index] <= 0:
        return nothing
    name, more = _named(model.kinds[index]), costly[index] - cheap[index]
    note = f" (from {model.runs[index]} runs)" if model.runs and model.runs[index] else ""
    return f"{name}, and each change takes {number(more)} ms more {when}{note}"


def _named(kind: KindOfChange) -> str:
    tables = ", ".join(sorted(kind.tables))
    verb = "changes" if len(kind.tables) == 1 else "change"
    if kind.rate == 1:
        return f"{tables} {verb} once a day"
    if kind.rate > 1:
        return f"{tables} {verb} {number(kind.rate)} times a day"
    return f"{tables} {verb} once every {number(1 / kind.rate)} days"
