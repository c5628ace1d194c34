"""What each operator can do with its pieces of state, and what each mode costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from impctl.placement.graph import Demand, Graph, Mode, Node, Own, PerKind, Piece, Work, own
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.data.vector import Floats


def conversion_ms(graph: Graph) -> Mapping[str, Mapping[Mode, float]]:
    """Per side and grouping the milliseconds to bring it to each mode."""
    result: dict[str, Mapping[Mode, float]] = {}
    for node in graph.nodes:
        # A grouping has one piece, over all of its inputs.
        below = [[wire] for wire in node.inputs] if node.work is Work.JOIN else [node.inputs]
        for piece, wires in zip(node.pieces, below, strict=bool(node.pieces)):
            scans = set[int]().union(*(_scans(graph, wire) for wire in wires))
            read = sum(max(graph.nodes[at].whole, default=0.0) for at in scans)
            build = max(piece.build, default=0.0)
            told = max(piece.stream, default=0.0)
            is_side = node.work is Work.JOIN
            others = {Mode.READ: build} if is_side else {Mode.READ: told, Mode.BOUNDED: told}
            result[piece.name] = {Mode.KEPT: read + build, **others}
    return result


def _scans(graph: Graph, wire: int) -> set[int]:
    """The scans at or below a node."""
    result, waiting = set[int](), [wire]
    while waiting:
        at = waiting.pop()
        if graph.nodes[at].work is Work.SCAN:
            result.add(at)
        waiting += graph.nodes[at].inputs
    return result


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


_WORK = ("opened", "upkeep", "probe", "noted", "build", "stream", "lookup")
"""What a piece costs but for reads of tables, for buffers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What recorded runs tell, for each kind of change in the graph's order.

    `times` are how many times as long as by prior times the work of a node takes, reads left out;
    `reads` and `hits` are milliseconds of a read and its chance, by piece, `refills` what buffers
    of a piece that are filled again take; `beside` are the
    milliseconds of a run that are no operator's. `runs` says how many runs of each kind tell.
    """

    times: Mapping[int, PerKind] = field(default_factory=dict)
    reads: Mapping[str, PerKind] = field(default_factory=dict)
    hits: Mapping[str, PerKind] = field(default_factory=dict)
    refills: Mapping[str, PerKind] = field(default_factory=dict)
    beside: PerKind = ()
    runs: tuple[int, ...] = ()


def priced(graph: Graph, learned: Learned) -> Graph:
    """The graph with learned costs."""
    nodes = [_node(node, at, learned) for at, node in enumerate(graph.nodes)]
    if learned.beside and nodes[-1].work is not Work.SCAN:
        own = nodes[-1].delta or (0.0,) * len(graph.kinds)
        both = tuple(one + more for one, more in zip(own, learned.beside, strict=True))
        nodes[-1] = replace(nodes[-1], delta=both)
    return Graph(tuple(nodes), graph.kinds, learned.runs)


def _node(node: Node, at: int, learned: Learned) -> Node:
    if node.work is Work.SCAN:
        # Nobody but a side that is rebuilt asks it for more than its change.
        return node
    times = learned.times.get(at, ())
    pieces = tuple(_piece(piece, times, learned) for piece in node.pieces)
    costs: dict[str, Any] = {
        name: _times(getattr(node, name), times) for name in ("delta", "keys", "whole")
    }
    return replace(node, pieces=pieces, **costs)


def _piece(piece: Piece, times: PerKind, learned: Learned) -> Piece:
    costs: dict[str, Any] = {name: _times(getattr(piece, name), times) for name in _WORK}
    costs["read"] = learned.reads.get(piece.name, piece.read)
    costs["hit"] = learned.hits.get(piece.name, piece.hit)
    costs["refill"] = learned.refills.get(piece.name, piece.refill)
    return replace(piece, **costs)


def _times(costs: PerKind, times: PerKind) -> PerKind:
    if not costs or not times:
        return costs
    return tuple(cost * factor for cost, factor in zip(costs, times, strict=True))
