"""All that one operator can do: its combinations of modes, what each costs and asks, as arrays.

Law: numbers are those of `demands.own`, for every combination, kind of change and demand at once,
so that an operator that is asked for different things is looked at with one selection. Of
combinations that ask the same of the inputs the dominated ones are left out.
Out of scope: frontiers (`state_choice`).
"""

from __future__ import annotations

from itertools import product

import numpy as np

from impctl.circuits.keeping.demands import Own, own
from impctl.circuits.keeping.graph import Demand, Graph, Mode
from impctl.data.vector import Floats
from impctl.values import dataclass

Asked = tuple[int, ...]
"""What is asked of a flow for each kind of change, as `Demand`s."""


@dataclass(frozen=True, slots=True)
class Option:
    """Modes of an operator's pieces: bytes, milliseconds a day, and what its inputs are asked."""

    modes: tuple[tuple[str, Mode], ...]
    bytes: int
    cost: float
    asks: tuple[Asked, ...]


class Options:
    """What one node of a graph can do."""

    def __init__(self, graph: Graph, at: int, *, asks_keys: bool = True) -> None:
        """`asks_keys`: whether some operator asks for the rows of keys."""
        node = graph.nodes[at]
        kinds = range(len(graph.kinds))
        self._combinations = list(product(*(piece.modes for piece in node.pieces)))
        self._names = tuple(piece.name for piece in node.pieces)
        self._bytes = [
            sum(piece.sizes[mode] for piece, mode in zip(node.pieces, modes, strict=True))
            for modes in self._combinations
        ]
        self._rates: Floats = np.array([kind.rate for kind in graph.kinds], dtype=np.float64)
        self._every = np.arange(len(graph.kinds))
        active = [
            tuple(graph.active[wire][kind] for wire in node.inputs or (at,)) for kind in kinds
        ]
        self._found = []
        for modes in self._combinations:
            each = []
            for kind in kinds:
                least, most = (
                    own(node, active[kind], modes, kind, demand)
                    for demand in (Demand.DELTA, Demand.FULL)
                )
                # Nobody asks for keys where no piece is read from the flow below it.
                keys = own(node, active[kind], modes, kind, Demand.KEYS) if asks_keys else most
                each.append([least, keys, most])
            self._found.append(each)
        self._costs = self._per_day()
        self._asked: dict[Asked, list[Option]] = {}

    def _per_day(self) -> Floats:
        costs = [[[one.cost for one in kind] for kind in modes] for modes in self._found]
        shape = (len(costs), len(self._rates), len(Demand))
        result: Floats = np.array(costs, dtype=np.float64).reshape(shape)
        result *= self._rates[:, None]
        return result

    def asked(self, demand: Asked) -> list[Option]:
        """The combinations that are worth having, asked for this."""
        if demand not in self._asked:
            self._asked[demand] = self._undominated(demand)
        return self._asked[demand]

    def _undominated(self, demand: Asked) -> list[Option]:
        costs = self._costs[:, self._every, list(demand)].sum(axis=1)
        alike: dict[tuple[Asked, ...], list[int]] = {}
        for at, kinds in enumerate(self._found):
            alike.setdefault(_asks(kinds, demand), []).append(at)
        result = []
        for asks, places in alike.items():
            best = float("inf")
            for at in sorted(places, key=lambda at: (self._bytes[at], costs[at])):
                if costs[at] < best:
                    best = float(costs[at])
                    modes = tuple(zip(self._names, self._combinations[at], strict=True))
                    result.append(Option(modes, self._bytes[at], best, asks))
        return result


def _asks(kinds: list[list[Own]], demand: Asked) -> tuple[Asked, ...]:
    """What is asked of each input, for each kind of change."""
    asks = [kind[asked].asks for kind, asked in zip(kinds, demand, strict=True)]
    return tuple(zip(*asks, strict=True))
