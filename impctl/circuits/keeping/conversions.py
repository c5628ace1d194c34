"""What it takes to bring a piece of state to another mode, by the costs in its graph.

Law: milliseconds, once. A side or grouping that is to be kept is read whole and put in order; of a
side that is to be read the keys are put into a filter, which is taken to cost as much as putting it
in order, and of a grouping the keys of its groups are told, or the best of them where it is to be
bounded.
Out of scope: carrying it out, pieces that can only be kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.circuits.keeping.graph import Graph, Mode, Work


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
