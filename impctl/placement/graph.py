"""A query's circuit as a graph of operators with pieces of state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.costs import STATE, StateTimes
from impctl.types import AttributeId, TableName

if TYPE_CHECKING:
    from impctl.compile.compile import Dataflow
    from impctl.engine.operator import Operator


# A circuit as operators with pieces of state. Nodes stand after their inputs, the root last. Costs
# are milliseconds per run for each kind of change, sizes are bytes. A node that no kind of change
# reaches costs nothing unless more than its changes is demanded.

PerKind = tuple[float, ...]
"""Milliseconds (or a chance) for each kind of change, in the graph's order."""


class PieceMode(StrEnum):
    KEPT = "kept"
    READ = "read"  # Its rows with the requested keys are read when needed
    REBUILT = "rebuilt"  # Nothing is kept; all its rows are computed for a step and forgotten
    BOUNDED = "bounded"  # The best of its rows are kept, and refilled when deletions used them up


class Demand(IntEnum):
    """What a reader requests of a flow in a run; each includes those before it."""

    DELTA = 0  # The inserted and deleted rows
    KEYS = 1  # Beside these the rows of some keys
    FULL = 2  # Beside these all rows


class Work(StrEnum):
    """What an operator does, as far as its state depends on it."""

    SCAN = "scan"
    ROWS = "rows"  # Selections, projections, unions: row by row, without state
    JOIN = "join"  # Two inputs, a piece for each
    KEYED = "keyed"  # One piece: a grouping, first rows, values; or what can only be kept


class KindOfChange(Struct, frozen=True):
    """Tables that change in one run, and how many such runs a day are expected."""

    tables: frozenset[TableName]
    rate: float


class Piece(Struct, frozen=True, kw_only=True):
    """One operator's state under one name, and its cost per run in each mode. An empty tuple of
    costs is zero. Work that only some runs do is multiplied by `hit`."""

    name: str
    sizes: Mapping[PieceMode, int]  # Bytes in each allowed mode
    opened: PerKind = ()
    """Kept or bounded: stored state opened, in runs that reach its operator at all."""
    upkeep: PerKind = ()  # Kept or bounded: the change of its input applied
    probe: PerKind = ()  # Of a side, kept or rebuilt: the other input's change looked up
    noted: PerKind = ()
    """Read: the filter of its keys opened, filled and probed in runs that reach its operator; for a
    grouping, the rows of the changed groups grouped."""
    read: PerKind = ()  # Read: the rows of the requested keys
    hit: PerKind = ()
    """Read: the chance that a requested key existed before the step; empty is certain."""
    build: PerKind = ()  # Rebuilt: all rows of its input sorted
    stream: PerKind = ()
    """On FULL demand: its rows output, and those of a side looked up in the other."""
    lookup: PerKind = ()  # On KEYS demand: their rows output
    refill: PerKind = ()  # Bounded: refilling what deletions used up
    source: tuple[TableName, ...] = ()
    """The tables that `read` reads; queries can share reads of the same ones in a run."""
    reads_below: bool = False  # Whether it is read from the flow below by key, and not from tables
    is_whole: bool = False
    """Read: all of its rows each time, since no key narrows them; users see it as rebuilt."""

    @property
    def modes(self) -> tuple[PieceMode, ...]:
        return tuple(self.sizes)

    def word(self, mode: PieceMode) -> str:
        """The mode in users' words."""
        return str(PieceMode.REBUILT if mode is PieceMode.READ and self.is_whole else mode)


class CostNode(Struct, frozen=True, kw_only=True):
    """One operator: its work, the nodes it reads, its pieces, and costs that no mode changes.
    `delta`, `keys` and `whole` are what it adds for each demand; of a scan, `keys` is a keyed read
    of its `table` and `whole` one of all of it."""

    work: Work
    inputs: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    table: TableName = ""
    delta: PerKind = ()
    keys: PerKind = ()
    whole: PerKind = ()


class Graph(Struct, frozen=True, dict=True):
    """The operators of a query, each after its inputs, and the expected kinds of change. `runs` are
    the runs of each kind that its costs were learned from, empty for prior times. ValueError if
    wires and pieces are no valid graph."""

    nodes: tuple[CostNode, ...]
    kinds: tuple[KindOfChange, ...]
    runs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            _check(node, index, len(self.kinds))
        names = [piece.name for piece in self.pieces]
        if len(self.runs) not in (0, len(self.kinds)):
            raise ValueError("`runs` is not for these kinds of change")
        if len(set(names)) < len(names):
            raise ValueError("two pieces of state have one name")

    @cached_property
    def active(self) -> tuple[tuple[bool, ...], ...]:
        """Per node and kind of change, whether its output may change."""
        result: list[tuple[bool, ...]] = []
        for node in self.nodes:
            if node.work is Work.SCAN:
                result.append(tuple(node.table in kind.tables for kind in self.kinds))
                continue
            below = [result[wire] for wire in node.inputs]
            result.append(tuple(any(one) for one in zip(*below, strict=True)))
        return tuple(result)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for node in self.nodes for piece in node.pieces)

    @property
    def shared(self) -> tuple[int, ...]:
        """Nodes with several readers, in order."""
        count = [0] * len(self.nodes)
        for node in self.nodes:
            for wire in node.inputs:
                count[wire] += 1
        return tuple(index for index, number in enumerate(count) if number > 1)

    def bytes_of(self, modes: Mapping[str, PieceMode]) -> int:
        """Bytes of all pieces in these modes, by the pieces' names."""
        return sum(piece.sizes[modes[piece.name]] for piece in self.pieces)


def restricted(graph: Graph, modes: Mapping[str, Collection[PieceMode]]) -> Graph:
    """The graph with these pieces limited to these modes; ValueError if none is left or one not
    allowed."""
    nodes = []
    for node in graph.nodes:
        pieces = tuple(_restricted(piece, modes.get(piece.name)) for piece in node.pieces)
        nodes.append(replace(node, pieces=pieces))
    return Graph(tuple(nodes), graph.kinds, graph.runs)


def _restricted(piece: Piece, modes: Collection[PieceMode] | None) -> Piece:
    if modes is None:
        return piece
    if not modes or not piece.sizes.keys() >= set(modes):
        raise ValueError(f"{piece.name} cannot be {' or '.join(modes) or 'nothing'}")
    sizes = {mode: size for mode, size in piece.sizes.items() if mode in modes}
    return replace(piece, sizes=sizes)


_PIECES = {Work.SCAN: 0, Work.ROWS: 0, Work.JOIN: 2, Work.KEYED: 1}
_MODES = {
    Work.JOIN: {PieceMode.KEPT, PieceMode.READ, PieceMode.REBUILT},
    Work.KEYED: set(PieceMode),
}
_NODE_COSTS = ("delta", "keys", "whole")
_PIECE_COSTS = (
    *("opened", "upkeep", "probe", "noted", "read", "hit"),
    *("build", "stream", "lookup", "refill"),
)


def _check(node: CostNode, at: int, kinds: int) -> None:
    """ValueError if a node does not fit its work, its place, or the number of kinds."""
    is_leaf = node.work is Work.SCAN
    if is_leaf == bool(node.inputs) or not all(0 <= wire < at for wire in node.inputs):
        raise ValueError(f"node {at} reads {node.inputs}")
    if node.work is Work.JOIN and len(node.inputs) != 2:
        raise ValueError(f"node {at} joins {len(node.inputs)} inputs")
    if len(node.pieces) != _PIECES[node.work]:
        raise ValueError(f"node {at} is a {node.work} with {len(node.pieces)} pieces")
    for piece in node.pieces:
        if not piece.sizes or not _MODES[node.work].issuperset(piece.sizes):
            raise ValueError(f"{piece.name}: modes {', '.join(piece.sizes) or 'none'}")
        if any(size < 0 for size in piece.sizes.values()):
            raise ValueError(f"{piece.name}: a size below zero")
    owned = [(node, _NODE_COSTS), *((piece, _PIECE_COSTS) for piece in node.pieces)]
    for owner, names in owned:
        for name in names:
            if len(getattr(owner, name)) not in (0, kinds):
                raise ValueError(f"node {at}: `{name}` is not for {kinds} kinds of change")


# A query's circuit as a graph: node s is source s, and node n + p is operator p, with n sources;
# pieces have the names of the operators' state (`join0.left`, `aggregate1`, `top0`). Operators
# without alternatives, such as trees and materialized results, have one kept piece. A side or
# grouping can be read where the circuit allows it (`compile.flows`), or if it is over selections,
# projections and inner joins of tables; if no key narrows the read, it reads all tables below. A
# side over a grouping whose keys are the side's can be looked up in the grouping.

_MS = 1e-6  # Milliseconds of a nanosecond


class Bounded(Struct, frozen=True):
    """A buffer of `size`: its bytes, the chance that a run of each kind uses it up; and if not all
    is kept now, the bytes of all."""

    bytes: int
    chance: Callable[[KindOfChange], float]
    kept_bytes: int | None = None
    size: int = 0


class Numbers(Struct, frozen=True, kw_only=True):
    """Facts about a circuit's flows and state; `wire` is an operator's, or -1 - source's.
    `rows(wire)` are all rows, `changed(wire, kind)` those of the change in one run; `bytes(name)`
    are those of a stored piece (`Keeper.name`), or of groups if they were kept, else 0.
    `fresh(side, kind)` is the share of the keys requested of a side, or of the rows of a grouping,
    whose rows or groups are inserted in the same run, `known(side, kind)` that of the others which
    have rows there. `bounded` has the pieces that may be bounded, by name."""

    rows: Callable[[int], float]
    changed: Callable[[int, KindOfChange], float]
    bytes: Callable[[str], int]
    fresh: Callable[[str, KindOfChange], float] = lambda side, kind: 0.0
    known: Callable[[str, KindOfChange], float] = lambda side, kind: 1.0
    bounded: Mapping[str, Bounded] = field(default_factory=dict)


def graph_of(
    compiled: Dataflow,
    kinds: Sequence[KindOfChange],
    numbers: Numbers,
    *,
    allowed: Collection[PieceMode] = tuple(PieceMode),
    times: StateTimes = STATE,
) -> Graph:
    """The circuit's operators with the prior costs of their pieces. Every piece can be kept; its
    other modes in `allowed` are choices."""
    return _GraphMaker(compiled, tuple(kinds), numbers, {*allowed, PieceMode.KEPT}, times).graph()


class _GraphMaker(Struct, dict=True):
    compiled: Dataflow
    kinds: tuple[KindOfChange, ...]
    numbers: Numbers
    allowed: Collection[PieceMode]
    prior: StateTimes

    def __post_init__(self) -> None:
        self._sources = self.compiled.sources
        self._operators = tuple(self.compiled.circuit)
        self._wires = self.compiled.circuit.wires
        self._seen: set[str] = set()
        self._named: set[str] = set()
        self._from_tables = {piece.side: piece for piece in self.compiled.pieces if piece.readers}
        """Sides and groupings that can be read from tables, even above groupings and joins."""

    def graph(self) -> Graph:
        nodes = [self._scan(index) for index in range(len(self._sources))]
        nodes += [self._operator(index) for index in range(len(self._operators))]
        return Graph(tuple(nodes), self.kinds)

    def _scan(self, at: int) -> CostNode:
        prior, rows = self.prior, self.numbers.rows(-1 - at)
        return CostNode(
            work=Work.SCAN,
            table=self._sources[at].table,
            keys=self._always(prior.keyed_read_ms + rows * prior.keyed_row_ns * _MS),
            whole=self._always(self._whole_ms(at)),
        )

    def _whole_ms(self, source: int) -> float:
        columns = len(self._sources[source].scan.table_columns)
        return self.prior.read_whole(self.numbers.rows(-1 - source), columns)

    def _operator(self, at: int) -> CostNode:
        operator = self._operators[at]
        inputs = tuple(self._node(wire) for wire in self._wires[at])
        if not inputs:
            # Its rows are those of no table: no change reaches them, and nothing is read.
            return CostNode(work=Work.SCAN)
        if operator.held_sides:
            return CostNode(work=Work.JOIN, inputs=inputs, pieces=self._sides(operator, at))
        keepers = [keeper.name for keeper in operator.arrangements()]
        fresh = [name for name in keepers if name not in self._seen]
        self._seen.update(fresh)
        if not fresh:
            return self._row_by_row(at, inputs)
        return CostNode(work=Work.KEYED, inputs=inputs, pieces=(self._keyed(operator, at, fresh),))

    def _row_by_row(self, at: int, inputs: tuple[int, ...]) -> CostNode:
        each = self.prior.row_ns * _MS
        wires = self._wires[at]
        return CostNode(
            work=Work.ROWS,
            inputs=inputs,
            delta=self._each(lambda k: each * sum(self.numbers.changed(w, k) for w in wires)),
            keys=self._always(0.0),
            whole=self._always(each * sum(map(self.numbers.rows, wires))),
        )

    def _sides(self, operator: Operator, at: int) -> tuple[Piece, ...]:
        wires = self._wires[at]
        self._seen.update(name for name, _ in operator.held_sides)
        # A side that is read has a separate filter.
        self._seen.update(keeper.name for keeper in operator.arrangements())
        sides = zip(operator.held_sides, wires, reversed(wires), strict=True)
        return tuple(
            self._side(name, keys, own, other, can_read=bool(keys) and self._is_from(own, name))
            for (name, keys), own, other in sides
        )

    def _is_from(self, own: int, name: str) -> bool:
        return name in self._from_tables or self.is_readable(own)

    def _side(
        self, name: str, keys: tuple[AttributeId, ...], own: int, other: int, *, can_read: bool
    ) -> Piece:
        numbers, prior = self.numbers, self.prior
        rows = numbers.rows(own)
        by_grouping = bool(keys) and self._is_grouped_by(own, keys)
        tables = self._tables(own)
        probe = self._each(lambda k: numbers.changed(other, k) * prior.probe_key_ns * _MS)
        sizes = {PieceMode.KEPT: numbers.bytes(name)}
        if can_read:
            sizes[PieceMode.READ] = self._filter_bytes(name, rows)
        elif by_grouping:
            sizes[PieceMode.READ] = 0
        sizes[PieceMode.REBUILT] = 0
        return Piece(
            name=name,
            sizes=self._only_allowed(sizes),
            opened=self._each(lambda k: prior.opened(rows, self._touched((own, other), k))),
            upkeep=self._each(lambda k: numbers.changed(own, k) * prior.build_row_ns * _MS),
            probe=probe,
            noted=self._always(prior.opened_ms if can_read else 0.0),
            read=self._always(self._read(name, own)) if can_read else probe,
            hit=self._each(lambda k: self._hit(name, (other,), k)),
            build=self._always(rows * prior.build_row_ns * _MS),
            stream=self._always(rows * prior.probe_key_ns * _MS),
            source=tables if can_read else (),
            is_whole=self._is_whole(name),
            reads_below=by_grouping and not can_read,
        )

    def _filter_bytes(self, name: str, rows: float) -> int:
        """Bytes of the filter of a piece that is read: a key per row, or the stored bytes if there
        are fewer keys."""
        most = int(rows * self.prior.filter_key_bytes)
        return min(most, self.numbers.bytes(f"{name}.filter") or most)

    def _hit(self, name: str, wires: Sequence[int], kind: KindOfChange) -> float:
        """The chance that one of the requested keys, or changed groups, existed."""
        requested = self._touched(wires, kind)
        fresh = requested * self.numbers.fresh(name, kind)
        return chance_of_hit(requested, fresh, self.numbers.known(name, kind))

    def _keyed(self, operator: Operator, at: int, keepers: Sequence[str]) -> Piece:
        numbers, prior = self.numbers, self.prior
        name = self._piece_name(keepers[0])
        wires = self._wires[at]
        below = sum(map(numbers.rows, wires))
        rows = numbers.rows(at)
        # Of groups that are not kept only the filter is stored; their size is reported.
        stored = (name,) if operator.reads and operator.group_keys else keepers
        sizes = {PieceMode.KEPT: sum(map(numbers.bytes, stored))}
        if operator.group_keys and self._is_from(wires[0], name):
            sizes[PieceMode.READ] = self._filter_bytes(name, rows)
        if operator.can_rebuild:
            sizes[PieceMode.REBUILT] = 0
        refill: PerKind = ()
        bounded = numbers.bounded.get(name)
        if bounded is not None:
            sizes[PieceMode.BOUNDED] = bounded.bytes
            refill_ms = self._refill_ms(wires[0])
            refill = self._each(lambda k: bounded.chance(k) * refill_ms)
            if bounded.kept_bytes is not None:
                sizes[PieceMode.KEPT] = bounded.kept_bytes
        return Piece(
            name=name,
            sizes=self._only_allowed(sizes),
            opened=self._each(lambda k: prior.opened(rows, self._touched(wires, k))),
            upkeep=self._each(lambda k: self._touched(wires, k) * prior.changed_group_ns * _MS),
            noted=self._each(lambda k: self._grouped(wires, below, rows, k)),
            read=self._always(sum(self._read(name, wire) for wire in wires)),
            hit=self._each(lambda k: self._hit(name, wires, k)),
            build=self._always(below * prior.group_row_ns * _MS),
            stream=self._always(rows * prior.row_ns * _MS),
            refill=refill,
            source=self._tables(wires[0]),
            is_whole=self._is_whole(name),
        )

    def _piece_name(self, keeper: str) -> str:
        """The operator's name, or the keeper's if an operator before it has the same."""
        name = keeper.partition(".")[0]
        name = keeper if name in self._named else name
        self._named.add(name)
        return name

    def _grouped(
        self, wires: Sequence[int], below: float, groups: float, kind: KindOfChange
    ) -> float:
        result = min(below, self._touched(wires, kind) * max(1.0, below / max(1.0, groups)))
        return result * self.prior.group_row_ns * _MS

    def _touched(self, wires: Sequence[int], kind: KindOfChange) -> float:
        return sum(self.numbers.changed(wire, kind) for wire in wires)

    def _read(self, name: str, wire: int) -> float:
        """Milliseconds to read the rows of some keys from all tables below."""
        prior = self.prior
        scanned = {at: self.numbers.rows(-1 - at) for at in sources_below(self._wires, wire)}
        if self._is_whole(name):
            widths = {at: len(self._sources[at].scan.table_columns) for at in scanned}
            values = sum(rows * widths[at] for at, rows in scanned.items())
            probed = prior.probe_key_ns * self.numbers.rows(wire)
            return (prior.read_value_ns * values + probed) * _MS
        each = prior.keyed_row_ns * _MS
        return sum(prior.keyed_read_ms + rows * each for rows in scanned.values())

    def _refill_ms(self, wire: int) -> float:
        """Time to read the whole table again, or to list all groups below; and to select the
        requested rows."""
        while wire >= 0 and not self._operators[wire].can_refill:
            (wire,) = self._wires[wire]
        rows = self.numbers.rows(wire)
        select_ms = rows * self.prior.group_row_ns * _MS
        if wire < 0:
            return select_ms + self._whole_ms(-1 - wire)
        # The groups are listed as if they were read, where that is possible.
        list_ms = rows * self.prior.row_ns * _MS
        if self._operators[wire].piece in self._from_tables:
            list_ms += sum(map(self._whole_ms, sources_below(self._wires, wire)))
        return select_ms + list_ms

    def _is_whole(self, name: str) -> bool:
        return name in self._from_tables and self._from_tables[name].is_whole

    def is_readable(self, wire: int) -> bool:
        """Whether these are selections, projections and inner joins of tables."""
        if wire < 0:
            return True
        operator = self._operators[wire]
        is_known = operator.is_rowwise or bool(operator.held_sides)
        return is_known and all(map(self.is_readable, self._wires[wire]))

    def _is_grouped_by(self, wire: int, keys: Sequence[AttributeId]) -> bool:
        """Whether these columns are keys of a grouping that the rows come from one by one."""
        names: list[AttributeId | None] = list(keys)
        while wire >= 0:
            operator = self._operators[wire]
            if operator.group_keys:
                return set(operator.group_keys).issuperset(names)
            if not operator.is_rowwise:
                return False
            names = [None if name is None else operator.passes(name) for name in names]
            (wire,) = self._wires[wire]
        return False

    def _tables(self, wire: int) -> tuple[TableName, ...]:
        return tuple(sorted({self._sources[at].table for at in sources_below(self._wires, wire)}))

    def _node(self, wire: int) -> int:
        return -1 - wire if wire < 0 else len(self._sources) + wire

    def _only_allowed(self, sizes: Mapping[PieceMode, int]) -> dict[PieceMode, int]:
        return {mode: size for mode, size in sizes.items() if mode in self.allowed}

    def _each(self, cost: Callable[[KindOfChange], float]) -> PerKind:
        return tuple(float(cost(kind)) for kind in self.kinds)

    def _always(self, cost: float) -> PerKind:
        return (float(cost),) * len(self.kinds)


def sources_below(wires: Sequence[Sequence[int]], wire: int) -> tuple[int, ...]:
    """The numbers of the sources that flow into a wire, ascending; `wires` are the operators'."""
    result: set[int] = set()
    waiting = [wire]
    while waiting:
        wire = waiting.pop()
        if wire < 0:
            result.add(-1 - wire)
        else:
            waiting += wires[wire]
    return tuple(sorted(result))


# What one operator costs in a run, by the modes of its pieces and what is asked of it. Law: a
# demand contains the weaker ones. Rows of all or of some keys come *with* the change, so that
# what is new among them can be told: whatever is paid for the change is paid then too, and some
# keys never cost more than all. So a flow that is asked for more is never cheaper. A step reads
# sides as of before it: what is asked is asked of the keys that were there, so `hit` is the
# chance for these. Every operator asks as much of an input as it needs for itself or for what is
# asked of it; a kept piece needs changes alone.
#
# | operator, mode | costs | asks of the input | |---|---|---| | scan | nothing · a keyed read · a
# read of all | | | row by row | per row | the same, of every input | | side kept | opened if
# anything is asked of the join; upkeep if it changes; probe if the other does | changes | | side
# read | filter if either changes; chance of a hit x read if the other does | changes, or keys of
# the flow below; all if the join is asked for more than changes | | side rebuilt | build and
# probe if the other changes | all if it is built, else changes | | join asked for more | one side
# streamed past the other, which is built unless kept | all of a side that is not kept | | keyed
# kept | opened and upkeep if active; rows or look-ups if asked for more | changes | | keyed
# bounded | the same, and refills | changes | | keyed read | filter, and chance of a hit x read,
# if active; the same read again for keys; build if asked for all | changes; all if asked for all
# | | keyed rebuilt | build if active or asked for more | all if it is built, else changes |

Read = tuple[tuple[TableName, ...], float]  # Tables that are read together, and the milliseconds


class Own(Struct, frozen=True):
    """What one operator costs in a run, without those below: work, reads of tables, demands."""

    work: float
    reads: tuple[Read, ...]
    asks: tuple[Demand, ...]  # One for each input

    @property
    def cost(self) -> float:
        return self.work + sum(read for _, read in self.reads)


def own(
    node: CostNode, active: Sequence[bool], modes: Sequence[PieceMode], kind: int, demand: Demand
) -> Own:
    """The node's cost in a run of this kind of change. `active` says of each input whether it
    changes in such a run (of a scan: of itself, once); `modes` are those of the node's pieces."""
    match node.work:
        case Work.SCAN:
            return _scan(node, kind, demand)
        case Work.ROWS:
            work = _shared_by_modes(node, active, kind, demand)
            return Own(work, (), (demand,) * len(node.inputs))
        case Work.JOIN:
            return _join(node, active, modes, kind, demand)
        case Work.KEYED:
            return _keyed(node, active, modes, kind, demand)


def chance_of_hit(asked: float, fresh: float, known: float) -> float:
    """The chance that a step has to read a side: that a requested key existed before it. Of the
    `asked` keys, `fresh` are inserted on this side in the same step and are new; each other exists
    with probability `known`. Numbers of keys are expected values, so not whole."""
    old = max(0.0, asked - fresh)
    if known >= 1:
        return min(1.0, old)
    return float(1 - (1 - max(0.0, known)) ** old)


def at_kind(costs: PerKind, kind: int) -> float:
    return costs[kind] if costs else 0.0


def _scan(node: CostNode, kind: int, demand: Demand) -> Own:
    if demand is Demand.DELTA:
        return Own(0.0, (), ())
    cost = at_kind(node.whole, kind)
    if demand is Demand.KEYS:
        cost = min(cost, at_kind(node.keys, kind))
    return Own(0.0, (((node.table,), cost),), ())


def _shared_by_modes(node: CostNode, active: Sequence[bool], kind: int, demand: Demand) -> float:
    work = at_kind(node.delta, kind) if any(active) else 0.0
    if demand is Demand.KEYS:
        work += min(at_kind(node.keys, kind), at_kind(node.whole, kind))
    if demand is Demand.FULL:
        work += at_kind(node.whole, kind)
    return work


def _join(
    node: CostNode, active: Sequence[bool], modes: Sequence[PieceMode], kind: int, demand: Demand
) -> Own:
    # What some keys of pairs are is not known by side, so a join makes all of them.
    makes_all = demand is not Demand.DELTA
    work = _shared_by_modes(node, active, kind, Demand.FULL if makes_all else demand)
    reads: list[Read] = []
    asks: list[Demand] = []
    is_built = [False, False]
    for at, (piece, mode) in enumerate(zip(node.pieces, modes, strict=True)):
        other_changes = active[1 - at]
        ask = Demand.FULL if makes_all and mode is not PieceMode.KEPT else Demand.DELTA
        if mode is PieceMode.KEPT and (makes_all or any(active)):
            work += at_kind(piece.opened, kind)
        if mode is PieceMode.KEPT and active[at]:
            work += at_kind(piece.upkeep, kind)
        if mode is PieceMode.READ and any(active):
            work += at_kind(piece.noted, kind)
        if other_changes and mode is PieceMode.READ:
            read, keys = _read(piece, kind)
            reads += read
            ask = max(ask, keys)
        elif other_changes:
            work += at_kind(piece.probe, kind)
        if other_changes and mode is PieceMode.REBUILT:
            work += at_kind(piece.build, kind)
            is_built[at] = True
            ask = Demand.FULL
        asks.append(ask)
    if makes_all:
        is_there = [mode is PieceMode.KEPT or is_built[index] for index, mode in enumerate(modes)]
        work += min(
            at_kind(streamed.stream, kind) + (0 if there else at_kind(passed.build, kind))
            for streamed, passed, there in zip(
                node.pieces, node.pieces[::-1], is_there[::-1], strict=True
            )
        )
    return Own(work, tuple(reads), tuple(asks))


def _read(piece: Piece, kind: int) -> tuple[list[Read], Demand]:
    """The cost of a side that is read when the other changes: reads of tables, and its demands. A
    read from the flow below counts as a demand whenever it may hit; that overestimates."""
    hit = _chance(piece, kind)
    cost = hit * at_kind(piece.read, kind)
    if not piece.reads_below:
        return [(piece.source, cost)], Demand.DELTA
    return [((), cost)], Demand.KEYS if hit > 0 else Demand.DELTA


def _chance(piece: Piece, kind: int) -> float:
    return piece.hit[kind] if piece.hit else 1.0


def _keyed(
    node: CostNode, active: Sequence[bool], modes: Sequence[PieceMode], kind: int, demand: Demand
) -> Own:
    (piece,), (mode,) = node.pieces, modes
    is_active = any(active)
    work = _shared_by_modes(node, active, kind, demand)
    build, stream = at_kind(piece.build, kind), at_kind(piece.stream, kind)
    reads: list[Read] = []
    is_built = mode is PieceMode.READ and demand is Demand.FULL
    if mode is PieceMode.REBUILT:
        is_built = is_active or demand is not Demand.DELTA
    elif mode is PieceMode.READ:
        work += at_kind(piece.noted, kind) if is_active else 0.0
        read = _chance(piece, kind) * at_kind(piece.read, kind)
        reads += [(piece.source, read)] * is_active
        reads += [(piece.source, min(read, build + stream))] * (demand is Demand.KEYS)
    else:
        if is_active:
            work += at_kind(piece.upkeep, kind)
            work += at_kind(piece.refill, kind) if mode is PieceMode.BOUNDED else 0.0
        if is_active or demand is not Demand.DELTA:
            work += at_kind(piece.opened, kind)
        if demand is Demand.KEYS:
            work += min(at_kind(piece.lookup, kind), stream)
    work += build if is_built else 0.0
    work += stream if demand is Demand.FULL else 0.0
    ask = Demand.FULL if is_built else Demand.DELTA
    return Own(work, tuple(reads), (ask,) * len(node.inputs))
