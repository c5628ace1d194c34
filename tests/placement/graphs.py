"""Random graphs, hard ones, and all choices of a small graph: the slow way, plainly right."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import numpy as np

from impctl.placement.graph import CostNode, Graph, KindOfChange, PerKind, Piece, PieceMode, Work

SIDE = (PieceMode.KEPT, PieceMode.READ, PieceMode.REBUILT)
KEYED = tuple(PieceMode)


def scans(*tables: str, **costs: PerKind) -> tuple[CostNode, ...]:
    return tuple(CostNode(work=Work.SCAN, table=table, **costs) for table in tables)


class _Draw:
    def __init__(self, random: Random, pieces: int, *, shares: float) -> None:
        self.random = random
        self.left = pieces
        self.shares = shares
        self.nodes: list[CostNode] = []
        self.tables = [f"t{number}" for number in range(random.randint(1, 5))]
        self.kinds = tuple(self._kind() for _ in range(random.randint(1, 4)))

    def _kind(self) -> KindOfChange:
        count = self.random.randint(1, min(2, len(self.tables)))
        return KindOfChange(frozenset(self.random.sample(self.tables, count)), self._number(3))

    def _number(self, size: int) -> float:
        if self.random.random() < 0.1:
            return 0.0
        return float(10 ** self.random.uniform(-size, size))

    def costs(self, size: int = 2) -> PerKind:
        if self.random.random() < 0.1:
            return ()
        return tuple(self._number(size) for _ in self.kinds)

    def piece(self, every: tuple[PieceMode, ...]) -> Piece:
        modes = [mode for mode in every if self.random.random() < 0.75] or [PieceMode.KEPT]
        self.left -= 1
        return Piece(
            name=f"p{self.left}",
            sizes={mode: self._bytes(mode) for mode in modes},
            opened=self.costs(0),
            upkeep=self.costs(1),
            probe=self.costs(1),
            noted=self.costs(0),
            read=self.costs(),
            hit=() if self.random.random() < 0.3 else tuple(self._chance() for _ in self.kinds),
            build=self.costs(3),
            stream=self.costs(3),
            lookup=self.costs(1),
            refill=self.costs(),
            source=tuple(self.random.sample(self.tables, 1)),
            reads_below=self.random.random() < 0.3,
        )

    def _chance(self) -> float:
        return self.random.choice([0.0, 1.0, self.random.random()])

    def _bytes(self, mode: PieceMode) -> int:
        if mode is PieceMode.REBUILT:
            return 0
        # Few different sizes, so that sums of them are equal now and then.
        size = self.random.choice([0, 1, 2, 3, 5, 8, 50, 400, self.random.randint(0, 1000)])
        return size if mode is PieceMode.KEPT else size // 10

    def put(self, work: Work, inputs: tuple[int, ...], *pieces: Piece) -> int:
        table = self.random.choice(self.tables) if work is Work.SCAN else ""
        costs = {name: self.costs() for name in ("delta", "keys", "whole")}
        self.nodes.append(CostNode(work=work, inputs=inputs, pieces=pieces, table=table, **costs))
        return len(self.nodes) - 1

    def node(self, depth: int) -> int:
        """An operator with everything below it; or, of a DAG, one that is there already."""
        if self.nodes and self.random.random() < self.shares:
            return self.random.randrange(len(self.nodes))
        choice = self.random.random()
        if depth == 0 or self.left == 0 or choice < 0.1:
            return self.put(Work.SCAN, ())
        if choice < 0.25:
            count = self.random.randint(1, 3)
            return self.put(Work.ROWS, tuple(self.node(depth - 1) for _ in range(count)))
        if choice < 0.5 or self.left < 2:
            piece = self.piece(KEYED)
            return self.put(Work.KEYED, (self.node(depth - 1),), piece)
        sides = self.piece(SIDE), self.piece(SIDE)
        return self.put(Work.JOIN, (self.node(depth - 1), self.node(depth - 1)), *sides)


def tree(random: Random, pieces: int = 7) -> Graph:
    """A tree with at most so many pieces."""
    draw = _Draw(random, random.randint(1, pieces), shares=0.0)
    draw.put(Work.ROWS, (draw.node(8),))
    return Graph(tuple(draw.nodes), draw.kinds)


def dag(random: Random, pieces: int = 6) -> Graph:
    """A graph in which flows may be read by several inputs."""
    draw = _Draw(random, random.randint(2, pieces), shares=0.25)
    draw.put(Work.ROWS, (draw.node(7), draw.node(4)))
    return Graph(tuple(draw.nodes), draw.kinds)


CHANGE, SOME, ALL = 0, 1, 2


class Exhaustive:
    """Every combination of modes: `modes[i]`, `bytes[i]`, `cost[i]` a day."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        names = [piece.name for piece in graph.pieces]
        self.modes = list(product(*(piece.modes for piece in graph.pieces)))
        count = len(self.modes)
        self.mode = {
            name: np.array([list(PieceMode).index(chosen[at]) for chosen in self.modes])
            for at, name in enumerate(names)
        }
        self.bytes = np.zeros(count, dtype=np.int64)
        for piece in graph.pieces:
            size = np.zeros(len(PieceMode), dtype=np.int64)
            for mode, number in piece.sizes.items():
                size[list(PieceMode).index(mode)] = number
            self.bytes += size[self.mode[piece.name]]
        self.cost = np.zeros(count)
        for kind, change in enumerate(graph.kinds):
            self.cost += change.rate * self._run(kind)

    def named(self, at: int) -> dict[str, PieceMode]:
        return {p.name: mode for p, mode in zip(self.graph.pieces, self.modes[at], strict=True)}

    def least(self, budget: float) -> float:
        """The least cost with at most these bytes; infinite where there is none."""
        return float(np.min(self.cost, where=self.bytes <= budget, initial=np.inf))

    def _is(self, piece: Any, mode: PieceMode) -> Any:
        return self.mode[piece.name] == list(PieceMode).index(mode)

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

    def _join(self, node: CostNode, asks: Any, kind: int, asked: list[Any]) -> Any:
        more = asks > CHANGE
        moves = [self._moves(wire, kind) for wire in node.inputs]
        total = np.zeros(len(self.modes)) + (_at(node.delta, kind) if any(moves) else 0)
        total += np.where(more, _at(node.whole, kind), 0)
        there = []
        for side in (0, 1):
            piece, own, other = node.pieces[side], moves[side], moves[1 - side]
            kept, read = self._is(piece, PieceMode.KEPT), self._is(piece, PieceMode.READ)
            rebuilt = self._is(piece, PieceMode.REBUILT)
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

    def _keyed(self, node: CostNode, asks: Any, kind: int, *, moves: bool) -> tuple[Any, Any]:
        (piece,) = node.pieces
        kept, bounded = self._is(piece, PieceMode.KEPT), self._is(piece, PieceMode.BOUNDED)
        read, rebuilt = self._is(piece, PieceMode.READ), self._is(piece, PieceMode.REBUILT)
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


def _some(node: CostNode, kind: int) -> float:
    """Some keys never cost more than all rows."""
    return min(_at(node.keys, kind), _at(node.whole, kind))
