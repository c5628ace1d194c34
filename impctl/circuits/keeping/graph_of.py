"""A query's circuit as a graph for the choice of its state.

Law: node s is the circuit's source s, and node n + p its operator p, where n is the number of
sources; pieces have the names that the operators give their state (`join0.left`, `aggregate1`,
`top0`). Operators that nothing is known to replace, such as trees and kept answers, have one piece
that is kept. A side or grouping can be read where the circuit says so (`circuits.strategy`), or is
over selections, projections and inner joins of tables; where no key narrows the read it is one of
all tables below. A side over a grouping, its keys keys of the groups, can be told by the grouping.
Out of scope: sizes and changes, which are given; whether the engine can carry a mode out, which
`allowed` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from impctl.circuits.compile import Compiled
from impctl.circuits.keeping.demands import chance_of_hit
from impctl.circuits.keeping.graph import Graph, KindOfChange, Mode, Node, PerKind, Piece, Work
from impctl.circuits.keeping.priors import PRIORS, Priors
from impctl.engine.operator import Operator
from impctl.types import AttributeId, TableName
from impctl.values import dataclass

_MS = 1e-6
"""Milliseconds of a nanosecond."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """What a buffer of `size` takes: its bytes, the chance that a run of each kind uses one up, and
    filling it again; and where not all is kept now, the bytes of all."""

    bytes: int
    chance: Callable[[KindOfChange], float]
    refill_ms: float
    kept_bytes: int | None = None
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What is known of a circuit's flows and state; `wire` is an operator's, or -1 - source's.

    `rows(wire)` are all rows; `changed(wire, kind)` those of the change in one run; `bytes(name)`
    are those of one stored piece (`Keeper.name`), or of groups that are not kept, if they were, and
    0 of what is not stored.
    `fresh(side, kind)` is the share of the keys asked of a side, or of the rows of a grouping,
    whose rows or groups come with the same run, `known(side, kind)` that of the others which have
    rows there. `bounded` has the pieces that may be bounded, by name.
    """

    rows: Callable[[int], float]
    changed: Callable[[int, KindOfChange], float]
    bytes: Callable[[str], int]
    fresh: Callable[[str, KindOfChange], float] = lambda side, kind: 0.0
    known: Callable[[str, KindOfChange], float] = lambda side, kind: 1.0
    bounded: Mapping[str, Bounded] = field(default_factory=dict)


def graph_of(
    compiled: Compiled,
    kinds: Sequence[KindOfChange],
    numbers: Numbers,
    *,
    allowed: Collection[Mode] = tuple(Mode),
    priors: Priors = PRIORS,
) -> Graph:
    """The circuit's operators with what their pieces cost, by prior times.

    Every piece can be kept; of its other modes those in `allowed` are choices.
    """
    return _Maker(compiled, tuple(kinds), numbers, frozenset(allowed), priors).graph()


class _Maker:
    def __init__(
        self,
        compiled: Compiled,
        kinds: tuple[KindOfChange, ...],
        numbers: Numbers,
        allowed: frozenset[Mode],
        priors: Priors,
    ) -> None:
        self._sources = compiled.sources
        self._operators = tuple(compiled.circuit)
        self._wires = compiled.circuit.wires
        self._kinds = kinds
        self._numbers = numbers
        self._allowed = allowed
        self._priors = priors
        self._seen: set[str] = set()
        self._named: set[str] = set()
        self._from_tables = {piece.side: piece for piece in compiled.pieces if piece.readers}
        """Sides and groupings that can be read from tables, above groupings and other joins too."""

    def graph(self) -> Graph:
        nodes = [self._scan(at) for at in range(len(self._sources))]
        nodes += [self._operator(at) for at in range(len(self._operators))]
        return Graph(tuple(nodes), self._kinds)

    def _scan(self, at: int) -> Node:
        source, priors = self._sources[at], self._priors
        rows = self._numbers.rows(-1 - at)
        width = max(1, len(source.scan.table_columns))
        whole = rows * (priors.read_value_ns * width + priors.tag_row_ns) * _MS
        return Node(
            work=Work.SCAN,
            table=source.table,
            keys=self._always(priors.keyed_read_ms + rows * priors.keyed_row_ns * _MS),
            whole=self._always(whole),
        )

    def _operator(self, at: int) -> Node:
        operator = self._operators[at]
        inputs = tuple(self._node(wire) for wire in self._wires[at])
        if not inputs:
            # Its rows are those of no table: no change reaches them, and nothing is read.
            return Node(work=Work.SCAN)
        if operator.held_sides:
            return Node(work=Work.JOIN, inputs=inputs, pieces=self._sides(operator, at))
        keepers = [keeper.name for keeper in operator.arrangements()]
        fresh = [name for name in keepers if name not in self._seen]
        self._seen.update(fresh)
        if not fresh:
            return self._row_by_row(at, inputs)
        return Node(work=Work.KEYED, inputs=inputs, pieces=(self._keyed(operator, at, fresh),))

    def _row_by_row(self, at: int, inputs: tuple[int, ...]) -> Node:
        each = self._priors.row_ns * _MS
        wires = self._wires[at]
        return Node(
            work=Work.ROWS,
            inputs=inputs,
            delta=self._each(lambda k: each * sum(self._numbers.changed(w, k) for w in wires)),
            keys=self._always(0.0),
            whole=self._always(each * sum(map(self._numbers.rows, wires))),
        )

    def _sides(self, operator: Operator, at: int) -> tuple[Piece, ...]:
        wires = self._wires[at]
        self._seen.update(name for name, _ in operator.held_sides)
        # A side that is read has a filter of its own.
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
        numbers, priors = self._numbers, self._priors
        rows = numbers.rows(own)
        by_grouping = bool(keys) and self._is_told(own, keys)
        tables = self._tables(own)
        probe = self._each(lambda k: numbers.changed(other, k) * priors.probe_key_ns * _MS)
        sizes = {Mode.KEPT: numbers.bytes(name)}
        if can_read:
            sizes[Mode.READ] = self._filter_bytes(name, rows)
        elif by_grouping:
            sizes[Mode.READ] = 0
        sizes[Mode.REBUILT] = 0
        return Piece(
            name=name,
            sizes=self._only_allowed(sizes),
            opened=self._each(lambda k: priors.opened(rows, self._touched((own, other), k))),
            upkeep=self._each(lambda k: numbers.changed(own, k) * priors.build_row_ns * _MS),
            probe=probe,
            noted=self._always(priors.opened_ms if can_read else 0.0),
            read=self._always(self._read(name, own)) if can_read else probe,
            hit=self._each(lambda k: self._hit(name, other, k)),
            build=self._always(rows * priors.build_row_ns * _MS),
            stream=self._always(rows * priors.probe_key_ns * _MS),
            source=tables if can_read else (),
            is_whole=self._is_whole(name),
            reads_below=by_grouping and not can_read,
        )

    def _filter_bytes(self, name: str, rows: float) -> int:
        """What the filter of a piece that is read takes: a key for each row at most, and what is
        stored where rows have fewer keys."""
        most = int(rows * self._priors.filter_key_bytes)
        return min(most, self._numbers.bytes(f"{name}.filter") or most)

    def _hit(self, name: str, other: int, kind: KindOfChange) -> float:
        asked = self._numbers.changed(other, kind)
        fresh = asked * self._numbers.fresh(name, kind)
        return chance_of_hit(asked, fresh, self._numbers.known(name, kind))

    def _keyed(self, operator: Operator, at: int, keepers: Sequence[str]) -> Piece:
        numbers, priors = self._numbers, self._priors
        name = self._piece_name(keepers[0])
        wires = self._wires[at]
        below = sum(map(numbers.rows, wires))
        rows = numbers.rows(at)
        # Of groups that are not kept only the filter is stored, and what they would take is told.
        stored = (name,) if operator.reads and operator.group_keys else keepers
        sizes = {Mode.KEPT: sum(map(numbers.bytes, stored))}
        if operator.group_keys and self._is_from(wires[0], name):
            sizes[Mode.READ] = self._filter_bytes(name, rows)
        if operator.can_rebuild:
            sizes[Mode.REBUILT] = 0
        bounded = numbers.bounded.get(name)
        if bounded is not None:
            sizes[Mode.BOUNDED] = bounded.bytes
        if bounded is not None and bounded.kept_bytes is not None:
            sizes[Mode.KEPT] = bounded.kept_bytes
        return Piece(
            name=name,
            sizes=self._only_allowed(sizes),
            opened=self._each(lambda k: priors.opened(rows, self._touched(wires, k))),
            upkeep=self._each(lambda k: self._touched(wires, k) * priors.changed_group_ns * _MS),
            noted=self._each(lambda k: self._grouped(wires, below, rows, k)),
            read=self._always(sum(self._read(name, wire) for wire in wires)),
            hit=self._each(lambda k: self._groups_hit(name, wires, k)),
            build=self._always(below * priors.group_row_ns * _MS),
            stream=self._always(rows * priors.row_ns * _MS),
            refill=() if bounded is None else self._refill(bounded),
            source=self._tables(wires[0]),
            is_whole=self._is_whole(name),
        )

    def _refill(self, bounded: Bounded) -> PerKind:
        return self._each(lambda kind: bounded.chance(kind) * bounded.refill_ms)

    def _piece_name(self, keeper: str) -> str:
        """The operator's name, or the keeper's where an operator before it has the same."""
        name = keeper.partition(".")[0]
        name = keeper if name in self._named else name
        self._named.add(name)
        return name

    def _grouped(
        self, wires: Sequence[int], below: float, groups: float, kind: KindOfChange
    ) -> float:
        """Grouping the rows of the groups that change."""
        result = min(below, self._touched(wires, kind) * max(1.0, below / max(1.0, groups)))
        return result * self._priors.group_row_ns * _MS

    def _groups_hit(self, name: str, wires: Sequence[int], kind: KindOfChange) -> float:
        """The chance that one of the groups that change was there."""
        touched = self._touched(wires, kind)
        fresh = touched * self._numbers.fresh(name, kind)
        return chance_of_hit(touched, fresh, self._numbers.known(name, kind))

    def _touched(self, wires: Sequence[int], kind: KindOfChange) -> float:
        return sum(self._numbers.changed(wire, kind) for wire in wires)

    def _read(self, name: str, wire: int) -> float:
        """Milliseconds to read the rows of some keys from all tables below."""
        priors = self._priors
        if self._is_whole(name):
            result = (
                self._numbers.rows(-1 - at) * len(self._sources[at].scan.table_columns)
                for at in self._sources_below(wire)
            )
            each = priors.probe_key_ns * self._numbers.rows(wire)
            return (priors.read_value_ns * sum(result) + each) * _MS
        scanned = [self._numbers.rows(-1 - at) for at in self._sources_below(wire)]
        each = priors.keyed_row_ns * _MS
        return sum(priors.keyed_read_ms + rows * each for rows in scanned)

    def _is_whole(self, name: str) -> bool:
        return name in self._from_tables and self._from_tables[name].is_whole

    def is_readable(self, wire: int) -> bool:
        """Whether these are selections, projections and inner joins of tables."""
        if wire < 0:
            return True
        operator = self._operators[wire]
        is_known = operator.is_rowwise or bool(operator.held_sides)
        return is_known and all(map(self.is_readable, self._wires[wire]))

    def _is_told(self, wire: int, keys: Sequence[AttributeId]) -> bool:
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

    def _sources_below(self, wire: int) -> tuple[int, ...]:
        result: dict[int, None] = {}
        waiting = [wire]
        while waiting:
            at = waiting.pop()
            if at < 0:
                result[-1 - at] = None
            else:
                waiting += self._wires[at]
        return tuple(sorted(result))

    def _tables(self, wire: int) -> tuple[TableName, ...]:
        return tuple(sorted({self._sources[at].table for at in self._sources_below(wire)}))

    def _node(self, wire: int) -> int:
        return -1 - wire if wire < 0 else len(self._sources) + wire

    def _only_allowed(self, sizes: Mapping[Mode, int]) -> dict[Mode, int]:
        allowed = self._allowed | {Mode.KEPT}
        return {mode: size for mode, size in sizes.items() if mode in allowed}

    def _each(self, cost: Callable[[KindOfChange], float]) -> PerKind:
        return tuple(float(cost(kind)) for kind in self._kinds)

    def _always(self, cost: float) -> PerKind:
        return (float(cost),) * len(self._kinds)
