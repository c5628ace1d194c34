"""A graph with what recorded runs tell in place of prior times.

Law: only times change, never bytes, modes or wires; what no run tells stays as it was. Where every
operator took what was estimated of it, and nothing beside, the graph stays the same.
Out of scope: which runs tell what (whoever makes `Learned`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from impctl.circuits.keeping.graph import Graph, Node, PerKind, Piece, Work
from impctl.values import dataclass

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
