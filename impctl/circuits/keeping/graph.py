"""A circuit as the choice of its state sees it: operators with pieces, and what each costs.

Law: a graph is a frozen value; its nodes stand after their inputs and the last one is the root.
Costs are milliseconds per run for each kind of change, sizes are bytes. A node that no kind of
change reaches costs nothing unless more than its changes is asked of it.
Out of scope: what a choice comes to (`demands`, `evaluated`), circuits of operators (`graph_of`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from enum import IntEnum, StrEnum

from impctl.types import TableName
from impctl.values import dataclass

PerKind = tuple[float, ...]
"""Milliseconds (or a chance) for each kind of change, in the graph's order."""


class Mode(StrEnum):
    """What is done about a piece of state."""

    KEPT = "kept"
    """Its rows are in the store."""
    READ = "read"
    """Its rows with the asked keys are read when they are asked for."""
    REBUILT = "rebuilt"
    """Nothing is kept; all its rows are computed for a step and forgotten."""
    BOUNDED = "bounded"
    """The best of its rows are kept, and filled again where deletions used them up."""


class Demand(IntEnum):
    """What is asked of a flow in a run; each with all that is asked by those before it."""

    DELTA = 0
    """The rows that came or went."""
    KEYS = 1
    """Beside these the rows of some keys."""
    FULL = 2
    """Beside these all rows."""


class Work(StrEnum):
    """What an operator does, as far as its state depends on it."""

    SCAN = "scan"
    ROWS = "rows"
    """Selections, projections, unions: row by row, nothing kept."""
    JOIN = "join"
    """Two inputs, a piece for each."""
    KEYED = "keyed"
    """One piece: a grouping, first rows, values; or what can only be kept."""


@dataclass(frozen=True, slots=True)
class KindOfChange:
    """Tables that move in one run, and how many such runs a day are expected."""

    tables: frozenset[TableName]
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one operator remembers under one name, and what it costs per run in each mode.

    An empty tuple of costs is nothing. What is only done in some runs is multiplied with `hit`.
    """

    name: str
    sizes: Mapping[Mode, int]
    """Bytes in each mode that is allowed."""
    opened: PerKind = ()
    """Kept or bounded: what is stored of it opened, in runs that reach its operator at all."""
    upkeep: PerKind = ()
    """Kept or bounded: the change of its input taken in."""
    probe: PerKind = ()
    """Of a side, kept or rebuilt: the other input's change looked up in it."""
    noted: PerKind = ()
    """Read: the filter of its keys opened, put into and asked, in runs that reach its operator; and
    of a grouping, the rows of the groups that change grouped."""
    read: PerKind = ()
    """Read: the rows of the keys that are asked, read."""
    hit: PerKind = ()
    """Read: the chance that a key is asked that was there before the step; empty is certain."""
    build: PerKind = ()
    """Rebuilt: all rows of its input put in order."""
    stream: PerKind = ()
    """Asked for everything: its rows given out, and those of a side looked up in the other."""
    lookup: PerKind = ()
    """Asked for some keys: their rows given out."""
    refill: PerKind = ()
    """Bounded: what deletions used up, filled again."""
    source: tuple[TableName, ...] = ()
    """The tables that `read` reads; reads of the same ones in a run can be shared by queries."""
    reads_below: bool = False
    """Whether it is read from the flow below, which is asked for keys, and not from tables."""
    is_whole: bool = False
    """Read: all of its rows each time, since no key narrows them; in users' words it is rebuilt."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that are allowed."""
        return tuple(self.sizes)

    def word(self, mode: Mode) -> str:
        """The mode in users' words."""
        return str(Mode.REBUILT if mode is Mode.READ and self.is_whole else mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator: what it does, the nodes it reads, its pieces, and costs that no mode changes.

    `delta`, `keys` and `whole` are what it adds for each demand; of a scan, `keys` is a keyed read
    of its `table` and `whole` one of all of it.
    """

    work: Work
    inputs: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    table: TableName = ""
    delta: PerKind = ()
    keys: PerKind = ()
    whole: PerKind = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """The operators of a query, each after its inputs, and the kinds of change that are expected.

    `runs` are how many runs of each kind its costs were learned from, empty for prior times.
    Raises ValueError for wires and pieces that make no graph.
    """

    nodes: tuple[Node, ...]
    kinds: tuple[KindOfChange, ...]
    runs: tuple[int, ...] = ()
    active: tuple[tuple[bool, ...], ...] = field(init=False)
    """Per node and kind of change, whether its output may change."""

    def __post_init__(self) -> None:
        result: list[tuple[bool, ...]] = []
        for at, node in enumerate(self.nodes):
            _check(node, at, len(self.kinds))
            if node.work is Work.SCAN:
                result.append(tuple(node.table in kind.tables for kind in self.kinds))
                continue
            below = [result[wire] for wire in node.inputs]
            result.append(tuple(any(one) for one in zip(*below, strict=True)))
        object.__setattr__(self, "active", tuple(result))
        names = [piece.name for piece in self.pieces]
        if len(self.runs) not in (0, len(self.kinds)):
            raise ValueError("`runs` is not for these kinds of change")
        if len(set(names)) < len(names):
            raise ValueError("two pieces of state have one name")

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces, in the order of their nodes."""
        return tuple(piece for node in self.nodes for piece in node.pieces)

    @property
    def shared(self) -> tuple[int, ...]:
        """Nodes that several inputs read, in order."""
        count = [0] * len(self.nodes)
        for node in self.nodes:
            for wire in node.inputs:
                count[wire] += 1
        return tuple(at for at, number in enumerate(count) if number > 1)

    def bytes_of(self, modes: Mapping[str, Mode]) -> int:
        """Bytes of all pieces in these modes, by the pieces' names."""
        return sum(piece.sizes[modes[piece.name]] for piece in self.pieces)


def pinned(graph: Graph, modes: Mapping[str, Mode]) -> Graph:
    """The graph in which these pieces have these modes alone; ValueError for one not allowed."""
    return restricted(graph, {name: (mode,) for name, mode in modes.items()})


def restricted(graph: Graph, modes: Mapping[str, Collection[Mode]]) -> Graph:
    """The graph in which these pieces have none but these modes; ValueError where none is left, or
    one is not allowed."""
    nodes = []
    for node in graph.nodes:
        pieces = tuple(_restricted(piece, modes.get(piece.name)) for piece in node.pieces)
        nodes.append(replace(node, pieces=pieces))
    return Graph(tuple(nodes), graph.kinds, graph.runs)


def _restricted(piece: Piece, modes: Collection[Mode] | None) -> Piece:
    if modes is None:
        return piece
    if not modes or not piece.sizes.keys() >= set(modes):
        raise ValueError(f"{piece.name} cannot be {' or '.join(modes) or 'nothing'}")
    sizes = {mode: size for mode, size in piece.sizes.items() if mode in modes}
    return replace(piece, sizes=sizes)


_PIECES = {Work.SCAN: 0, Work.ROWS: 0, Work.JOIN: 2, Work.KEYED: 1}
_ASKED = {
    Work.JOIN: {Mode.KEPT, Mode.READ, Mode.REBUILT},
    Work.KEYED: set(Mode),
}
_NODE_COSTS = ("delta", "keys", "whole")
_PIECE_COSTS = (
    *("opened", "upkeep", "probe", "noted", "read", "hit"),
    *("build", "stream", "lookup", "refill"),
)


def _check(node: Node, at: int, kinds: int) -> None:
    """ValueError where a node does not fit its work, its place, or the number of kinds."""
    is_leaf = node.work is Work.SCAN
    if is_leaf == bool(node.inputs) or not all(0 <= wire < at for wire in node.inputs):
        raise ValueError(f"node {at} reads {node.inputs}")
    if node.work is Work.JOIN and len(node.inputs) != 2:
        raise ValueError(f"node {at} joins {len(node.inputs)} inputs")
    if len(node.pieces) != _PIECES[node.work]:
        raise ValueError(f"node {at} is a {node.work} with {len(node.pieces)} pieces")
    for piece in node.pieces:
        if not piece.sizes or not _ASKED[node.work].issuperset(piece.sizes):
            raise ValueError(f"{piece.name}: modes {', '.join(piece.sizes) or 'none'}")
        if any(size < 0 for size in piece.sizes.values()):
            raise ValueError(f"{piece.name}: a size below zero")
    owned = [(node, _NODE_COSTS), *((piece, _PIECE_COSTS) for piece in node.pieces)]
    for owner, names in owned:
        for name in names:
            if len(getattr(owner, name)) not in (0, kinds):
                raise ValueError(f"node {at}: `{name}` is not for {kinds} kinds of change")
