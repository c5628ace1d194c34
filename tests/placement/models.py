"""Random models of state, and all choices of a small one: the slow way, plainly right."""

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
    """A piece of which a cost given as a number is that of each kind of change."""
    given = {
        key: (cost,) * kinds if isinstance(cost, float) else cost for key, cost in costs.items()
    }
    return Piece(name=name, sizes={KEPT: 0} if sizes is None else sizes, **given)  # type: ignore[arg-type]


def model_of(*pieces: Piece, kinds: tuple[KindOfChange, ...]) -> StateModel:
    """One operator with these pieces."""
    return StateModel((OperatorCosts(pieces=pieces),), kinds)


def drawn_model(random: Random, pieces: int = 7) -> StateModel:
    """Operators with at most so many pieces, and costs of very different sizes."""
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
        # Few different sizes, so that sums of them are equal now and then.
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

    operators, left = [], random.randint(1, pieces)
    while left:
        count = random.randint(0, min(2, left))
        left -= count
        own = tuple(drawn_piece(f"p{left + at}") for at in range(count))
        operators.append(OperatorCosts(work=costs(), pieces=own))
    return StateModel(tuple(operators), kinds)


class Option(Struct, frozen=True):
    """One choice of modes, its bytes, and milliseconds a day."""

    modes: Choice
    bytes: int
    cost: float


def every_option(model: StateModel) -> list[Option]:
    pieces = [piece for operator in model.operators for piece in operator.pieces]
    result = []
    for modes in product(*(piece.sizes for piece in pieces)):
        chosen = list(zip(pieces, modes, strict=True))
        cost = 0.0
        for at, kind in enumerate(model.kinds):
            ms = sum(_at(operator.work, at) for operator in model.operators)
            for piece, mode in chosen:
                if mode is READ:
                    ms += _at(piece.noted, at) + _at(piece.hit, at) * _at(piece.read, at)
                else:
                    ms += _at(piece.stored, at) + (_at(piece.refill, at) if mode is BOUNDED else 0)
            cost += kind.rate * ms
        size = sum(piece.sizes[mode] for piece, mode in chosen)
        result.append(Option({piece.name: mode for piece, mode in chosen}, size, cost))
    return result


def least_cost(options: list[Option], budget: float) -> float:
    """The least cost with at most these bytes; infinite where there is none."""
    return min((one.cost for one in options if one.bytes <= budget), default=float("inf"))


def largest(model: StateModel) -> int:
    return sum(max(piece.sizes.values()) for piece in model.pieces)


def _at(costs: PerKind, kind: int) -> float:
    return costs[kind] if costs else 0.0
