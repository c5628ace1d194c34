"""Random graphs, hard ones: rates and costs over six orders of size, equal sizes, free pieces."""

from __future__ import annotations

from random import Random

from impctl.placement.graph import Graph, KindOfChange, Mode, Node, PerKind, Piece, Work

SIDE = (Mode.KEPT, Mode.READ, Mode.REBUILT)
KEYED = tuple(Mode)


class _Draw:
    def __init__(self, random: Random, pieces: int, *, shares: float) -> None:
        self.random = random
        self.left = pieces
        self.shares = shares
        self.nodes: list[Node] = []
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

    def piece(self, every: tuple[Mode, ...]) -> Piece:
        modes = [mode for mode in every if self.random.random() < 0.75] or [Mode.KEPT]
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

    def _bytes(self, mode: Mode) -> int:
        if mode is Mode.REBUILT:
            return 0
        # Few different sizes, so that sums of them are equal now and then.
        size = self.random.choice([0, 1, 2, 3, 5, 8, 50, 400, self.random.randint(0, 1000)])
        return size if mode is Mode.KEPT else size // 10

    def put(self, work: Work, inputs: tuple[int, ...], *pieces: Piece) -> int:
        table = self.random.choice(self.tables) if work is Work.SCAN else ""
        costs = {name: self.costs() for name in ("delta", "keys", "whole")}
        self.nodes.append(Node(work=work, inputs=inputs, pieces=pieces, table=table, **costs))
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
