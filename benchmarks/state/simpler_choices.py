"""Simpler ways to choose what is kept, to measure the choice against, under the same model.

Each keeps pieces one by one while they fit and leaves the others in the mode of fewest bytes; none
looks at how pieces depend on each other but `greedy`, which evaluates every single change. Law:
what comes out fits the budget where the modes of fewest bytes do. All are deterministic.
Out of scope: the choice that is used (`placement`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from impctl.placement import Piece, PieceMode, StateModel, evaluate, per_day

SimplerChoice = Callable[[StateModel, int], dict[str, PieceMode]]
"""The modes of all pieces of a query, within so many bytes."""

_CELLS = 1000


def by_size(model: StateModel, budget: int) -> dict[str, PieceMode]:
    """The smallest pieces first, whoever asks for them."""
    return _kept(model, budget, {piece.name: -_bytes(piece) for piece in _choosable(model)})


def least_recently_used(model: StateModel, budget: int) -> dict[str, PieceMode]:
    """Those first that were used last: in the long run, whose most frequent use is most frequent.

    Of a piece, any run in which it costs something kept is a use.
    """
    recent = {}
    for piece in _choosable(model):
        uses = _uses(model, piece)
        rates = [k.rate for k, is_used in zip(model.kinds, uses, strict=True) if is_used]
        recent[piece.name] = max(rates, default=0.0)
    return _kept(model, budget, recent)


def recycler(model: StateModel, budget: int) -> dict[str, PieceMode]:
    """Those first that save most per byte, each as often as it will be used.

    What a piece saves is what it costs to do without it while all others are kept.
    """
    return _recycled(model, budget, [kind.rate for kind in model.kinds])


def recycler_blind(model: StateModel, budget: int) -> dict[str, PieceMode]:
    """The same where nobody knows which changes come: all kinds alike."""
    return _recycled(model, budget, [1.0] * len(model.kinds))


def greedy(model: StateModel, budget: int) -> dict[str, PieceMode]:
    """From fewest bytes, the single change of a mode that truly saves most per byte; and again."""
    modes = _least(model)
    cost, size = per_day(model, modes), model.bytes_of(modes)
    while True:
        best, best_gain = None, 0.0
        for piece in model.pieces:
            for mode in piece.modes:
                more = piece.sizes[mode] - piece.sizes[modes[piece.name]]
                if mode is modes[piece.name] or size + more > budget:
                    continue
                result = per_day(model, {**modes, piece.name: mode})
                gain = (cost - result) / max(more, 1)
                if cost - result > 1e-12 * cost and gain > best_gain:
                    best, best_gain = ({**modes, piece.name: mode}, result, size + more), gain
        if best is None:
            return modes
        modes, cost, size = best


def knapsack(model: StateModel, budget: int) -> dict[str, PieceMode]:
    """The set of pieces with the greatest sum of single gains, over the choice of fewest bytes."""
    least = _least(model)
    modes = dict(least)
    left = budget - model.bytes_of(least)
    pieces = _choosable(model)
    if left <= 0 or not pieces:
        return modes
    before = per_day(model, least)
    best = np.zeros(_CELLS + 1)
    choices = []
    for piece in pieces:
        gain = before - per_day(model, {**least, piece.name: PieceMode.KEPT})
        more = _bytes(piece) - piece.sizes[least[piece.name]]
        cells = -(-more * _CELLS // left)
        is_taken = np.zeros(_CELLS + 1, dtype=np.bool_)
        if 0 <= cells <= _CELLS and gain > 0:
            with_it = best[: _CELLS + 1 - cells] + gain
            is_taken[cells:] = with_it > best[cells:]
            best[cells:] = np.maximum(best[cells:], with_it)
        choices.append((piece, cells, is_taken))
    cell = _CELLS
    for piece, cells, is_taken in reversed(choices):
        if is_taken[cell]:
            modes[piece.name] = PieceMode.KEPT
            cell -= cells
    return modes


SIMPLER_CHOICES: Mapping[str, SimplerChoice] = {
    "by_size": by_size,
    "lru": least_recently_used,
    "recycler": recycler,
    "recycler_blind": recycler_blind,
    "greedy": greedy,
    "knapsack": knapsack,
}


def _recycled(model: StateModel, budget: int, rates: list[float]) -> dict[str, PieceMode]:
    kept, least = _all_kept(model), _least(model)
    cheap = evaluate(model, kept).per_kind
    worth = {}
    for piece in _choosable(model):
        costly = evaluate(model, {**kept, piece.name: least[piece.name]}).per_kind
        each = zip(rates, costly, cheap, strict=True)
        saved = sum(rate * (one - other) for rate, one, other in each)
        worth[piece.name] = saved / max(1, _bytes(piece))
    return _kept(model, budget, worth)


def _kept(model: StateModel, budget: int, worth: Mapping[str, float]) -> dict[str, PieceMode]:
    """The worthiest pieces kept as long as they fit, the others with fewest bytes."""
    modes = _least(model)
    size = model.bytes_of(modes)
    for piece in sorted(_choosable(model), key=lambda one: (-worth[one.name], one.name)):
        more = _bytes(piece) - piece.sizes[modes[piece.name]]
        if size + more <= budget:
            modes[piece.name] = PieceMode.KEPT
            size += more
    return modes


def _choosable(model: StateModel) -> list[Piece]:
    return [
        piece for piece in model.pieces if PieceMode.KEPT in piece.sizes and len(piece.sizes) > 1
    ]


def _bytes(piece: Piece) -> int:
    return piece.sizes[PieceMode.KEPT]


def _least(model: StateModel) -> dict[str, PieceMode]:
    return {piece.name: min(piece.sizes, key=piece.sizes.__getitem__) for piece in model.pieces}


def _all_kept(model: StateModel) -> dict[str, PieceMode]:
    least = _least(model)
    return {
        p.name: PieceMode.KEPT if PieceMode.KEPT in p.sizes else least[p.name] for p in model.pieces
    }


def _uses(model: StateModel, piece: Piece) -> list[bool]:
    """Per kind of change, whether its runs take the piece up."""
    return [piece.cost(PieceMode.KEPT, kind) > 0 for kind in range(len(model.kinds))]
