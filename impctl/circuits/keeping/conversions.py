"""What it takes to bring a piece of state to another mode, by the costs in its graph.

Law: milliseconds, once. A side that is to be kept is read whole and put in order; of one that is to
be read the keys are put into a filter, which is taken to cost as much as putting it in order.
Out of scope: carrying it out, other pieces than sides of joins.
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.circuits.keeping.graph import Graph, Mode, Work


def conversion_ms(graph: Graph) -> Mapping[str, Mapping[Mode, float]]:
    """Per side the milliseconds to bring it to each mode."""
    found: dict[str, Mapping[Mode, float]] = {}
    for node in graph.nodes:
        if node.work is not Work.JOIN:
            continue
        for piece, wire in zip(node.pieces, node.inputs, strict=True):
            read = sum(max(graph.nodes[at].whole, default=0.0) for at in _scans(graph, wire))
            build = max(piece.build, default=0.0)
            found[piece.name] = {Mode.KEPT: read + build, Mode.READ: build}
    return found


def _scans(graph: Graph, wire: int) -> set[int]:
    """The scans at or below a node."""
    found, waiting = set[int](), [wire]
    while waiting:
        at = waiting.pop()
        if graph.nodes[at].work is Work.SCAN:
            found.add(at)
        waiting += graph.nodes[at].inputs
    return found
