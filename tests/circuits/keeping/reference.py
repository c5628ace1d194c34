"""All choices of a small graph with their bytes and costs: the slow way that is plainly right.

Written from the rules of what operators ask (intermittent maintenance, demands), without a line of
`impctl.placement.graph`: here every choice of the graph is one place of an array, and a
rule is a condition over these arrays.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from impctl.placement.graph import Graph, Mode, Node, Work

CHANGE, SOME, ALL = 0, 1, 2


class Exhaustive:
    """Every combination of modes: `modes[i]`, `bytes[i]`, `cost[i]` a day."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        names = [piece.name for piece in graph.pieces]
        self.modes = list(product(*(piece.modes for piece in graph.pieces)))
        count = len(self.modes)
        self.mode = {
            name: np.array([list(Mode).index(chosen[at]) for chosen in self.modes])
            for at, name in enumerate(names)
        }
        self.bytes = np.zeros(count, dtype=np.int64)
        for piece in graph.pieces:
            size = np.zeros(len(Mode), dtype=np.int64)
            for mode, number in piece.sizes.items():
                size[list(Mode).index(mode)] = number
            self.bytes += size[self.mode[piece.name]]
        self.cost = np.zeros(count)
        for kind, change in enumerate(graph.kinds):
            self.cost += change.rate * self._run(kind)

    def named(self, at: int) -> dict[str, Mode]:
        return {p.name: mode for p, mode in zip(self.graph.pieces, self.modes[at], strict=True)}

    def least(self, budget: float) -> float:
        """The least cost with at most these bytes; infinite where there is none."""
        return float(np.min(self.cost, where=self.bytes <= budget, initial=np.inf))

    def _is(self, piece: Any, mode: Mode) -> Any:
        return self.mode[piece.name] == list(Mode).index(mode)

    def _moves(self, at: int, kind: int) -> bool:
        node = self.graph.nodes[at]
        if node.work is Work.SCAN:
            return node.table in self.graph.kinds[kind].tables
        return any(self._moves(wire, kind) for wire in node.inputs)

    def _run(self, kind: int) -> Any:
        nodes = self.graph.nodes
        asked = [np.zeros(len(self.modes), dtype=np.int64) for _ in nodes]
        total = np.zeros(len(self.modes))
        for at in range(len(nodes) - 1, -1, -1):
            node, asks = nodes[at], asked[at]
            if node.work is Work.SCAN:
                total += np.where(asks == SOME, _some(node, kind), 0)
                total += np.where(asks == ALL, _at(node.whole, kind), 0)
            elif node.work is Work.JOIN:
                total += self._join(node, asks, kind, asked)
            else:
                moves = any(self._moves(wire, kind) for wire in node.inputs)
                total += _at(node.delta, kind) if moves else 0
                total += np.where(asks == SOME, _some(node, kind), 0)
                total += np.where(asks == ALL, _at(node.whole, kind), 0)
                wanted = asks
                if node.work is Work.KEYED:
                    wanted, cost = self._keyed(node, asks, kind, moves=moves)
                    total += cost
                for wire in node.inputs:
                    asked[wire] = np.maximum(asked[wire], wanted)
        return total

    def _join(self, node: Node, asks: Any, kind: int, asked: list[Any]) -> Any:
        more = asks > CHANGE
        moves = [self._moves(wire, kind) for wire in node.inputs]
        total = np.zeros(len(self.modes)) + (_at(node.delta, kind) if any(moves) else 0)
        total += np.where(more, _at(node.whole, kind), 0)
        there = []
        for side in (0, 1):
            piece, own, other = node.pieces[side], moves[side], moves[1 - side]
            kept, read = self._is(piece, Mode.KEPT), self._is(piece, Mode.READ)
            rebuilt = self._is(piece, Mode.REBUILT)
            total += np.where(kept & own, _at(piece.upkeep, kind), 0)
            total += np.where(kept & other, _at(piece.probe, kind), 0)
            chance = piece.hit[kind] if piece.hit else 1.0
            total += np.where(read & other, chance * _at(piece.read, kind), 0)
            total += np.where(read & any(moves), _at(piece.noted, kind), 0)
            total += np.where(kept & (more | any(moves)), _at(piece.opened, kind), 0)
            total += np.where(rebuilt & other, _at(piece.build, kind) + _at(piece.probe, kind), 0)
            wants = np.where(~kept & more, ALL, CHANGE)
            wants = np.where(rebuilt & other, ALL, wants)
            if piece.reads_below and chance > 0:
                wants = np.where(read & other, np.maximum(wants, SOME), wants)
            wire = node.inputs[side]
            asked[wire] = np.maximum(asked[wire], wants)
            there.append(kept | (rebuilt & other))
        left, right = node.pieces
        by_left = _at(left.stream, kind) + np.where(there[1], 0, _at(right.build, kind))
        by_right = _at(right.stream, kind) + np.where(there[0], 0, _at(left.build, kind))
        return total + np.where(more, np.minimum(by_left, by_right), 0)

    def _keyed(self, node: Node, asks: Any, kind: int, *, moves: bool) -> tuple[Any, Any]:
        (piece,) = node.pieces
        kept, bounded = self._is(piece, Mode.KEPT), self._is(piece, Mode.BOUNDED)
        read, rebuilt = self._is(piece, Mode.READ), self._is(piece, Mode.REBUILT)
        total = np.zeros(len(self.modes))
        chance = piece.hit[kind] if piece.hit else 1.0
        stored = kept | bounded
        total += np.where(stored & (moves | (asks > CHANGE)), _at(piece.opened, kind), 0)
        if moves:
            total += np.where(stored, _at(piece.upkeep, kind), 0)
            total += np.where(bounded, _at(piece.refill, kind), 0)
            total += np.where(read, chance * _at(piece.read, kind) + _at(piece.noted, kind), 0)
        stream, build = _at(piece.stream, kind), _at(piece.build, kind)
        looked_up = min(stream, _at(piece.lookup, kind))
        total += np.where(stored & (asks == SOME), looked_up, 0)
        again = min(chance * _at(piece.read, kind), build + stream)
        total += np.where(read & (asks == SOME), again, 0)
        total += np.where(asks == ALL, stream, 0)
        builds = (rebuilt & (moves | (asks > CHANGE))) | (read & (asks == ALL))
        total += np.where(builds, build, 0)
        return np.where(builds, ALL, CHANGE), total


def _at(costs: Any, kind: int) -> float:
    return float(costs[kind]) if costs else 0.0


def _some(node: Node, kind: int) -> float:
    """Some keys never cost more than all rows."""
    return min(_at(node.keys, kind), _at(node.whole, kind))
