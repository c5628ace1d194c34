"""Random models of state, and a brute-force search of small ones."""

from __future__ import annotations

from itertools import product
from random import Random

from msgspec import Struct

from impctl.placement import (
    KindOfChange,
    OperatorCosts,
    PerKind,
    Piece,
    PieceMode,
    StateModel,
)

KEPT, READ, BOUNDED = PieceMode
Choice = dict[str, PieceMode]


def piece_of(
    name: str, sizes: dict[PieceMode, int] | None = None, kinds: int = 1, **costs: object
) -> Piece:
    """A piece; a cost that is one number applies to each kind of change."""
    costs_by_kind = {
        key: (cost,) * kinds if isinstance(cost, float) else cost for key, cost in costs.items()
    }
    return Piece(name=name, sizes={KEPT: 0} if sizes is None else sizes, **costs_by_kind)  # type: ignore[arg-type]


def model_of(*pieces: Piece, kinds: tuple[KindOfChange, ...]) -> StateModel:
    """One operator with these pieces."""
    return StateModel((OperatorCosts(pieces=pieces),), kinds)


def drawn_model(random: Random, pieces: int = 7) -> StateModel:
    """A random model with at most this many pieces and widely different costs."""
    tables = [f"t{number}" for number in range(random.randint(1, 5))]

    def number(size: float) -> float:
        return 0.0 if random.random() < 0.1 else float(10 ** random.uniform(-size, size))

    kinds = tuple(
        KindOfChange(
            frozenset(random.sample(tables, random.randint(1, min(2, len(tables))))), number(3)
        )
        for _ in range(random.randint(1, 4))
    )

    def costs(size: float = 2) -> PerKind:
        return () if random.random() < 0.1 else tuple(number(size) for _ in kinds)

    def size_in(mode: PieceMode) -> int:
        # Few different sizes, so that some sums are equal.
        size = random.choice([0, 1, 2, 3, 5, 8, 50, 400, random.randint(0, 1000)])
        return size if mode is KEPT else size // 10

    def drawn_piece(name: str) -> Piece:
        modes = [mode for mode in PieceMode if random.random() < 0.75] or [KEPT]
        return Piece(
            name=name,
            sizes={mode: size_in(mode) for mode in modes},
            stored=costs(1),
            noted=costs(0),
            read=costs(),
            hit=tuple(random.choice([0.0, 1.0, random.random()]) for _ in kinds),
            refill=costs(),
            source=(random.choice(tables),),
            conversion={mode: number(3) for mode in PieceMode},
        )

    operators, remaining = [], random.randint(1, pieces)
    while remaining:
        count = random.randint(0, min(2, remaining))
        remaining -= count
        chosen = tuple(drawn_piece(f"p{remaining + i}") for i in range(count))
        operators.append(OperatorCosts(work=costs(), pieces=chosen))
    return StateModel(tuple(operators), kinds)


class Option(Struct, frozen=True):
    """One choice of modes, with its bytes and milliseconds per day."""

    modes: Choice
    bytes: int
    cost: float


def every_option(model: StateModel) -> list[Option]:
    pieces = [piece for operator in model.operators for piece in operator.pieces]
    result = []
    for modes in product(*(piece.sizes for piece in pieces)):
        chosen = list(zip(pieces, modes, strict=True))
        cost = 0.0
        for i, kind in enumerate(model.kinds):
            ms = sum(_cost(operator.work, i) for operator in model.operators)
            for piece, mode in chosen:
                if mode is READ:
                    ms += _cost(piece.noted, i) + _cost(piece.hit, i) * _cost(piece.read, i)
                else:
                    ms += _cost(piece.stored, i) + (
                        _cost(piece.refill, i) if mode is BOUNDED else 0
                    )
            cost += kind.rate * ms
        size = sum(piece.sizes[mode] for piece, mode in chosen)
        result.append(Option({piece.name: mode for piece, mode in chosen}, size, cost))
    return result


def least_cost(options: list[Option], budget: float) -> float:
    """The least cost within the budget in bytes; infinite if nothing fits."""
    return min((one.cost for one in options if one.bytes <= budget), default=float("inf"))


def largest(model: StateModel) -> int:
    return sum(max(piece.sizes.values()) for piece in model.pieces)


def _cost(costs: PerKind, kind: int) -> float:
    return costs[kind] if costs else 0.0
