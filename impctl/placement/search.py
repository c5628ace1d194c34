"""The best modes of all pieces of state under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log1p
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
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


# The best modes of all pieces, for every budget at once: the undominated points of bytes and cost,
# of which the one with more bytes is cheaper. Queries share no pieces, and costs of pieces add up,
# so the points of all pieces of all queries are the sums of their own, combined piece by piece. For
# every dropped point there is one with no more bytes and no more cost, or at most the thinning
# share more for each piece with a choice, together at most about ten times that share.

THIN = 0.001  # The relative cost by which points must differ to be kept apart; 0 keeps all
_PIECES = 10
"""Pieces with a choice from which on points are kept apart at smaller differences."""
_MODES = tuple(PieceMode)


class Frontier(Struct, frozen=True, eq=False):
    """Points by rising `bytes` (int64) and falling `cost` (float64, milliseconds a day), both of
    shape (points,). `chosen` has the mode of each piece at each point, by its position in
    `PieceMode`, of shape (points, pieces)."""

    bytes: Ints
    cost: Floats
    chosen: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.bytes)

    def modes(self, point: int, models: Sequence[StateModel]) -> list[dict[str, PieceMode]]:
        """The modes of the pieces of each of the models that it was made of."""
        chosen = iter(self.chosen[point].tolist())
        return [{piece.name: _MODES[next(chosen)] for piece in model.pieces} for model in models]

    def best_within(self, budget: float) -> int:
        """The cheapest point with at most these bytes; the smallest if none has so few."""
        return max(0, int(np.searchsorted(self.bytes, budget, side="right")) - 1)


def frontier_of(models: Sequence[StateModel], *, thin: float = THIN) -> Frontier:
    """All choices worth making for these queries, by rising bytes and falling cost a day."""
    pieces = [(model, piece) for model in models for piece in model.pieces]
    thin /= max(1.0, sum(len(piece.modes) > 1 for _, piece in pieces) / _PIECES)
    zero = np.zeros(1, dtype=np.int64)
    result = Frontier(zero, np.zeros(1), np.zeros((1, 0), dtype=np.int8))
    for model, piece in pieces:
        result = added(result, _options(model, piece), thin)
    fixed = sum(
        model.per_day(
            [sum(at_kind(op.work, kind) for op in model.operators) for kind in _kinds(model)]
        )
        for model in models
    )
    return replace(result, cost=result.cost + fixed)


def _kinds(model: StateModel) -> range:
    return range(len(model.kinds))


def _options(model: StateModel, piece: Piece) -> list[tuple[int, float, PieceMode]]:
    """The bytes of each mode and its milliseconds a day."""
    return [
        (size, model.per_day([piece.cost(mode, kind) for kind in _kinds(model)]), mode)
        for mode, size in piece.sizes.items()
    ]


def added(
    frontier: Frontier, options: Sequence[tuple[int, float, PieceMode]], thin: float
) -> Frontier:
    """Every point combined with every mode of one more piece: bytes, cost and mode."""
    size = np.add.outer(frontier.bytes, [size for size, _, _ in options]).ravel()
    cost = np.add.outer(frontier.cost, [cost for _, cost, _ in options]).ravel()
    best = _undominated(size, cost, thin if min(len(frontier), len(options)) > 1 else 0.0)
    left, right = np.divmod(best, len(options))
    modes = np.array([_MODES.index(mode) for _, _, mode in options], dtype=np.int8)
    chosen = np.hstack([frontier.chosen[left], modes[right, np.newaxis]])
    return Frontier(size[best], cost[best], chosen)


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
    modes = _within(models, budget_bytes, per_byte, thin)
    repriced = _repriced(models, modes)
    if repriced is not None:
        other = _within(repriced, budget_bytes, per_byte, thin)
        modes = min(modes, other, key=lambda each: _rank(models, each, budget_bytes, per_byte))
    choice = explained(queries, dict(zip(queries, modes, strict=True)), budget_bytes)
    least = sum(min(piece.sizes.values()) for model in models for piece in model.pieces)
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
    models: Sequence[StateModel], budget: int | None, per_byte: float, thin: float
) -> Sequence[Modes]:
    alone = [
        {piece.name: _best(model, piece, per_byte) for piece in model.pieces} for model in models
    ]
    size = sum(model.bytes_of(modes) for model, modes in zip(models, alone, strict=True))
    if budget is None or size <= budget:
        return alone
    frontier = frontier_of(models, thin=thin)
    return frontier.modes(frontier.best_within(budget), models)


def _best(model: StateModel, piece: Piece, per_byte: float) -> PieceMode:
    """The cheapest mode by itself, of equal ones that with the fewest bytes."""
    options = _options(model, piece)
    return min(options, key=lambda option: (option[1] + per_byte * option[0], option[0]))[2]


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
