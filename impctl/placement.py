"""Which pieces of a query's state are kept, read or bounded, under a budget of bytes.

A choice changes costs, never an answer. Operators are costs here; no store, table or session is
known. Law: costs are milliseconds per run for each kind of change. A piece that is not kept is read
from tables, never from other state, so what it costs does not depend on the modes of other pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from math import log1p
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.bench.quantity import number
from impctl.costs import STATE
from impctl.types import AttributeId, TableName

if TYPE_CHECKING:
    import numpy.typing as npt

    from impctl.compile.compile import Dataflow
    from impctl.data.vector import Bools, Floats, Ints
    from impctl.engine.operator import Operator

PerKind = tuple[float, ...]
"""Milliseconds (or a chance) for each kind of change, in the model's order; empty is zero."""


class PieceMode(StrEnum):
    KEPT = "kept"
    READ = "read"  # Its rows with the requested keys are read when needed
    BOUNDED = "bounded"  # The best of its rows are kept, and refilled when deletions used them up


Modes = Mapping[str, PieceMode]
"""The mode of each piece, by its name."""


class KindOfChange(Struct, frozen=True):
    """Tables that change in one run, and how many such runs a day are expected."""

    tables: frozenset[TableName]
    rate: float


class Piece(Struct, frozen=True, kw_only=True):
    """One operator's state under one name, and its cost per run in each mode."""

    name: str
    sizes: Mapping[PieceMode, int]  # Bytes in each allowed mode
    stored: PerKind = ()
    """Kept or bounded: stored state opened, the change of its input applied, and of a side the
    other input's change looked up."""
    noted: PerKind = ()
    """Read: the filter of its keys opened, filled and probed; for a grouping, the rows of the
    changed groups grouped."""
    read: PerKind = ()  # Read: the rows of the requested keys
    hit: PerKind = ()  # Read: the chance that a requested key existed before the step
    refill: PerKind = ()  # Bounded: refilling what deletions used up
    source: tuple[TableName, ...] = ()
    """The tables that `read` reads; queries can share reads of the same ones in a run."""
    is_whole: bool = False
    """Read: all of its rows each time, since no key narrows them; users see it as rebuilt."""
    conversion: Mapping[PieceMode, float] = field(default_factory=dict)
    """Milliseconds to bring it to each mode, once."""

    @property
    def modes(self) -> tuple[PieceMode, ...]:
        return tuple(self.sizes)

    def word(self, mode: PieceMode) -> str:
        """The mode in users' words."""
        return "rebuilt" if mode is PieceMode.READ and self.is_whole else str(mode)

    def work(self, mode: PieceMode, kind: int) -> float:
        """Milliseconds, except reads of tables."""
        if mode is PieceMode.READ:
            return at_kind(self.noted, kind)
        refill = at_kind(self.refill, kind) if mode is PieceMode.BOUNDED else 0.0
        return at_kind(self.stored, kind) + refill

    def reading(self, mode: PieceMode, kind: int) -> float:
        """Milliseconds of the reads of tables that are expected."""
        return at_kind(self.hit, kind) * at_kind(self.read, kind) if mode is PieceMode.READ else 0.0

    def cost(self, mode: PieceMode, kind: int) -> float:
        return self.work(mode, kind) + self.reading(mode, kind)


class OperatorCosts(Struct, frozen=True, kw_only=True):
    """One operator: work that no mode changes, and its pieces."""

    work: PerKind = ()
    pieces: tuple[Piece, ...] = ()


class StateModel(Struct, frozen=True, dict=True):
    """The operators of a query's circuit in order, and the expected kinds of change. `runs` are the
    runs of each kind that its costs were learned from, empty for prior times. ValueError if two
    pieces have one name, or costs are not for these kinds of change."""

    operators: tuple[OperatorCosts, ...]
    kinds: tuple[KindOfChange, ...]
    runs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        names = [piece.name for piece in self.pieces]
        if len(set(names)) < len(names):
            raise ValueError("two pieces of state have one name")
        costs = [self.runs, *(operator.work for operator in self.operators)]
        for piece in self.pieces:
            if not piece.sizes or min(piece.sizes.values()) < 0:
                raise ValueError(f"{piece.name}: no modes, or a size below zero")
            costs += [piece.stored, piece.noted, piece.read, piece.hit, piece.refill]
        if any(len(each) not in (0, len(self.kinds)) for each in costs):
            raise ValueError(f"costs are not for {len(self.kinds)} kinds of change")

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for operator in self.operators for piece in operator.pieces)

    @property
    def kind_indexes(self) -> range:
        return range(len(self.kinds))

    def fixed_work(self, kind: int) -> float:
        """Milliseconds of a run that no mode changes."""
        return sum(at_kind(operator.work, kind) for operator in self.operators)

    def bytes_of(self, modes: Modes) -> int:
        """Bytes of all pieces in these modes, by the pieces' names."""
        return sum(piece.sizes[modes[piece.name]] for piece in self.pieces)

    def per_day(self, per_kind: Sequence[float]) -> float:
        """Milliseconds a day, of those of one run of each kind."""
        return sum(kind.rate * ms for kind, ms in zip(self.kinds, per_kind, strict=True))

    def with_pieces(self, change: Callable[[Piece], Piece]) -> StateModel:
        operators = (
            replace(operator, pieces=tuple(map(change, operator.pieces)))
            for operator in self.operators
        )
        return replace(self, operators=tuple(operators))


def restricted(model: StateModel, modes: Mapping[str, Collection[PieceMode]]) -> StateModel:
    """The model with these pieces limited to these modes; ValueError if none is left or one not
    allowed."""

    def limited(piece: Piece) -> Piece:
        allowed = modes.get(piece.name, piece.modes)
        if not allowed or not piece.sizes.keys() >= set(allowed):
            raise ValueError(f"{piece.name} cannot be {' or '.join(allowed) or 'nothing'}")
        sizes = {mode: size for mode, size in piece.sizes.items() if mode in allowed}
        return replace(piece, sizes=sizes)

    return model.with_pieces(limited)


Reads = Mapping[tuple[TableName, ...], float]
"""Milliseconds of reads, by the tables read together."""


class Cost(Struct, frozen=True):
    """Milliseconds per run of each kind of change: work, and reads of tables."""

    work: PerKind
    reads: tuple[Reads, ...]

    @property
    def per_kind(self) -> PerKind:
        both = zip(self.work, self.reads, strict=True)
        return tuple(work + sum(reads.values()) for work, reads in both)


def evaluate(model: StateModel, modes: Modes) -> Cost:
    """What runs of each kind of change cost with every piece in its mode."""
    work, reads = [], []
    for kind in model.kind_indexes:
        work.append(model.fixed_work(kind) + sum(p.work(modes[p.name], kind) for p in model.pieces))
        each: dict[tuple[TableName, ...], float] = {}
        for piece in model.pieces:
            ms = piece.reading(modes[piece.name], kind)
            each[piece.source] = each.get(piece.source, 0.0) + ms
        reads.append(each)
    return Cost(tuple(work), tuple(reads))


def per_day(model: StateModel, modes: Modes) -> float:
    return model.per_day(evaluate(model, modes).per_kind)


def per_day_together(models: Sequence[StateModel], modes: Sequence[Modes]) -> float:
    """Milliseconds a day of queries maintained in the same runs. They share their reads of the same
    tables: the longest one is paid. All models must have the same kinds of change."""
    costs = [evaluate(model, chosen) for model, chosen in zip(models, modes, strict=True)]
    total = 0.0
    for index, kind in enumerate(models[0].kinds if models else ()):
        longest: dict[tuple[TableName, ...], float] = {}
        for cost in costs:
            for source, read in cost.reads[index].items():
                longest[source] = max(longest.get(source, 0.0), read)
        work = sum(cost.work[index] for cost in costs)
        total += kind.rate * (work + sum(longest.values()))
    return total


def at_kind(costs: PerKind, kind: int) -> float:
    return costs[kind] if costs else 0.0


# The model of a circuit, with prior times. Pieces have the names of the operators' state
# (`join0.left`, `aggregate1`, `top0`). Operators without alternatives, such as trees and
# materialized results, have one kept piece. A side or grouping can be read where the circuit allows
# it (`compile.flows`); if no key narrows the read, it reads all tables below. A step reads sides as
# of before it, so `hit` is the chance for the keys that were there then. A run that changes no
# table below an operator costs nothing there.

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
    whose rows or groups are inserted in the same run. `bounded` has the pieces that may be bounded,
    by name."""

    rows: Callable[[int], float]
    changed: Callable[[int, KindOfChange], float]
    bytes: Callable[[str], int]
    fresh: Callable[[str, KindOfChange], float] = lambda side, kind: 0.0
    bounded: Mapping[str, Bounded] = field(default_factory=dict)


def state_model(compiled: Dataflow, kinds: Sequence[KindOfChange], numbers: Numbers) -> StateModel:
    """The circuit's operators with the prior costs of their pieces. Every piece can be kept."""
    return _ModelMaker(compiled, tuple(kinds), numbers).model()


class _ModelMaker(Struct, dict=True):
    compiled: Dataflow
    kinds: tuple[KindOfChange, ...]
    numbers: Numbers

    def __post_init__(self) -> None:
        self._sources = self.compiled.sources
        self._operators = tuple(self.compiled.circuit)
        self._wires = self.compiled.circuit.wires
        self._seen: set[str] = set()
        self._named: set[str] = set()
        self._from_tables = {piece.side: piece for piece in self.compiled.pieces if piece.readers}
        """Sides and groupings that can be read from tables, even above groupings and joins."""

    def model(self) -> StateModel:
        operators = map(self._operator, range(len(self._operators)))
        return StateModel(tuple(operators), self.kinds)

    def _operator(self, index: int) -> OperatorCosts:
        operator, wires = self._operators[index], self._wires[index]
        keepers = [keeper.name for keeper in operator.arrangements()]
        fresh = [name for name in keepers if name not in self._seen]
        if not wires:
            # Its rows are those of no table: no change reaches them.
            return OperatorCosts()
        # A side that is read has a separate filter.
        self._seen.update(keepers, (name for name, _ in operator.held_sides))
        if operator.held_sides:
            sides = zip(operator.held_sides, wires, reversed(wires), strict=True)
            pieces = (self._side(name, keys, wire, other) for (name, keys), wire, other in sides)
            return OperatorCosts(pieces=tuple(pieces))
        if fresh:
            return OperatorCosts(pieces=(self._keyed(operator, index, fresh),))
        return OperatorCosts(work=self._per_row(wires, STATE.row_ns))

    def _side(self, name: str, keys: Sequence[AttributeId], wire: int, other: int) -> Piece:
        rows = self.numbers.rows(wire)
        build = rows * STATE.build_row_ns * _MS
        sizes = {PieceMode.KEPT: self.numbers.bytes(name)}
        can_read = bool(keys) and name in self._from_tables
        if can_read:
            sizes[PieceMode.READ] = self._filter_bytes(name, rows)
        opened = self._opened((wire, other), rows)
        upkeep = self._per_row((wire,), STATE.build_row_ns)
        probe = self._per_row((other,), STATE.probe_key_ns)
        return Piece(
            name=name,
            sizes=sizes,
            stored=tuple(map(sum, zip(opened, upkeep, probe, strict=True))),
            noted=self._where_active((wire, other), lambda _: STATE.opened_ms),
            read=self._always(self._read(name, wire)),
            hit=self._each(lambda kind: self._hit(name, (other,), kind)),
            source=self._tables(wire) if can_read else (),
            is_whole=self._is_whole(name),
            conversion={
                PieceMode.KEPT: self._whole_ms(self._below(wire)) + build,
                PieceMode.READ: build,
            },
        )

    def _keyed(self, operator: Operator, index: int, keepers: Sequence[str]) -> Piece:
        numbers, name = self.numbers, self._piece_name(keepers[0])
        wires, rows = self._wires[index], self.numbers.rows(index)
        below = sum(map(numbers.rows, wires))
        # Of groups that are not kept only the filter is stored; their size is reported.
        stored = (name,) if operator.reads and operator.group_keys else keepers
        sizes = {PieceMode.KEPT: sum(map(numbers.bytes, stored))}
        if operator.group_keys and name in self._from_tables:
            sizes[PieceMode.READ] = self._filter_bytes(name, rows)
        refill: PerKind = ()
        bounded = numbers.bounded.get(name)
        if bounded is not None:
            sizes[PieceMode.BOUNDED] = bounded.bytes
            refill_ms = self._refill_ms(wires[0])
            refill = self._where_active(wires, lambda kind: bounded.chance(kind) * refill_ms)
            if bounded.kept_bytes is not None:
                sizes[PieceMode.KEPT] = bounded.kept_bytes
        opened = self._opened(wires, rows)
        upkeep = self._per_row(wires, STATE.changed_group_ns)
        scans = set[int]().union(*map(self._below, wires))
        listed = rows * STATE.row_ns * _MS
        return Piece(
            name=name,
            sizes=sizes,
            stored=tuple(map(sum, zip(opened, upkeep, strict=True))),
            noted=self._each(lambda kind: self._grouped(wires, below, rows, kind)),
            read=self._always(sum(self._read(name, wire) for wire in wires)),
            hit=self._each(lambda kind: self._hit(name, wires, kind)),
            refill=refill,
            source=self._tables(wires[0]),
            is_whole=self._is_whole(name),
            conversion={
                PieceMode.KEPT: self._whole_ms(scans) + below * STATE.group_row_ns * _MS,
                PieceMode.READ: listed,
                PieceMode.BOUNDED: listed,
            },
        )

    def _piece_name(self, keeper: str) -> str:
        """The operator's name, or the keeper's if an operator before it has the same."""
        name = keeper.partition(".")[0]
        name = keeper if name in self._named else name
        self._named.add(name)
        return name

    def _filter_bytes(self, name: str, rows: float) -> int:
        """Bytes of the filter of a piece that is read: a key per row, or the stored bytes if there
        are fewer keys."""
        most = int(rows * STATE.filter_key_bytes)
        return min(most, self.numbers.bytes(f"{name}.filter") or most)

    def _opened(self, wires: Sequence[int], rows: float) -> PerKind:
        return self._where_active(wires, lambda k: STATE.opened(rows, self._touched(wires, k)))

    def _hit(self, name: str, wires: Sequence[int], kind: KindOfChange) -> float:
        """The chance that one of the requested keys, or changed groups, existed: others are
        inserted in the same step. Numbers of keys are expected values, so not whole."""
        requested = self._touched(wires, kind)
        fresh = requested * self.numbers.fresh(name, kind)
        return min(1.0, max(0.0, requested - fresh))

    def _grouped(
        self, wires: Sequence[int], below: float, groups: float, kind: KindOfChange
    ) -> float:
        result = min(below, self._touched(wires, kind) * max(1.0, below / max(1.0, groups)))
        return result * STATE.group_row_ns * _MS

    def _touched(self, wires: Sequence[int], kind: KindOfChange) -> float:
        return sum(self.numbers.changed(wire, kind) for wire in wires)

    def _read(self, name: str, wire: int) -> float:
        """Milliseconds to read the rows of some keys from all tables below."""
        scanned = {source: self.numbers.rows(-1 - source) for source in self._below(wire)}
        if self._is_whole(name):
            widths = {source: len(self._sources[source].scan.table_columns) for source in scanned}
            values = sum(rows * widths[source] for source, rows in scanned.items())
            probed = STATE.probe_key_ns * self.numbers.rows(wire)
            return (STATE.read_value_ns * values + probed) * _MS
        each = STATE.keyed_row_ns * _MS
        return sum(STATE.keyed_read_ms + rows * each for rows in scanned.values())

    def _refill_ms(self, wire: int) -> float:
        """Time to read the whole table again, or to list all groups below; and to select the
        requested rows."""
        while wire >= 0 and not self._operators[wire].can_refill:
            (wire,) = self._wires[wire]
        rows = self.numbers.rows(wire)
        select_ms = rows * STATE.group_row_ns * _MS
        if wire < 0:
            return select_ms + self._whole_ms([-1 - wire])
        # The groups are listed as if they were read, where that is possible.
        list_ms = rows * STATE.row_ns * _MS
        if self._operators[wire].piece in self._from_tables:
            list_ms += self._whole_ms(self._below(wire))
        return select_ms + list_ms

    def _whole_ms(self, sources: Collection[int]) -> float:
        """Milliseconds to read all rows of these tables."""
        widths = {source: len(self._sources[source].scan.table_columns) for source in sources}
        return sum(
            STATE.read_whole(self.numbers.rows(-1 - source), widths[source]) for source in sources
        )

    def _is_whole(self, name: str) -> bool:
        return name in self._from_tables and self._from_tables[name].is_whole

    def _below(self, wire: int) -> tuple[int, ...]:
        return sources_below(self._wires, wire)

    def _tables(self, *wires: int) -> tuple[TableName, ...]:
        return tuple(
            sorted({self._sources[source].table for w in wires for source in self._below(w)})
        )

    def _per_row(self, wires: Sequence[int], each_ns: float) -> PerKind:
        return self._each(lambda kind: self._touched(wires, kind) * each_ns * _MS)

    def _where_active(self, wires: Sequence[int], cost: Callable[[KindOfChange], float]) -> PerKind:
        """The cost in runs that change a table below these wires."""
        tables = self._tables(*wires)
        return self._each(lambda kind: 0.0 if kind.tables.isdisjoint(tables) else cost(kind))

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


# The best modes of all pieces, for every budget at once: the undominated points of bytes and cost,
# of which the one with more bytes is cheaper. Queries share no pieces, and costs of pieces add up,
# so the points of all pieces of all queries are the sums of their own, combined piece by piece. For
# every dropped point there is one with no more bytes and no more cost, or at most the thinning
# share more for each piece with a choice. That is the worst case: 440 pieces cost about 1% more
# than with a tenth of that share. The number of points depends on the costs, not on the pieces.

THIN = 0.001  # The relative cost by which points must differ to be kept apart; 0 keeps all
_MODES = tuple(PieceMode)


class Frontier(Struct, frozen=True, eq=False):
    """Points by rising `bytes` (int64) and falling `cost` (float64, milliseconds a day), both of
    shape (points,). `chosen` has the mode of each piece at each point, by its position in
    `PieceMode`, of shape (points, pieces)."""

    bytes: Ints
    cost: Floats
    chosen: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.bytes)

    def modes(self, point: int, models: Sequence[StateModel]) -> list[dict[str, PieceMode]]:
        """The modes of the pieces of each of the models that it was made of."""
        chosen = iter(self.chosen[point].tolist())
        return [{piece.name: _MODES[next(chosen)] for piece in model.pieces} for model in models]

    def best_within(self, budget: float) -> int:
        """The cheapest point with at most these bytes; the smallest if none has so few."""
        return max(0, int(np.searchsorted(self.bytes, budget, side="right")) - 1)


def frontier_of(models: Sequence[StateModel], *, thin: float = THIN) -> Frontier:
    """All choices worth making for these queries, by rising bytes and falling cost a day."""
    pieces = [(model, piece) for model in models for piece in model.pieces]
    zero = np.zeros(1, dtype=np.int64)
    result = Frontier(zero, np.zeros(1), np.zeros((1, 0), dtype=np.int8))
    for model, piece in pieces:
        result = added(result, _options(model, piece), thin)
    fixed = sum(model.per_day(list(map(model.fixed_work, model.kind_indexes))) for model in models)
    return replace(result, cost=result.cost + fixed)


def _options(model: StateModel, piece: Piece) -> list[tuple[int, float, PieceMode]]:
    """The bytes of each mode and its milliseconds a day."""
    return [
        (size, model.per_day([piece.cost(mode, kind) for kind in model.kind_indexes]), mode)
        for mode, size in piece.sizes.items()
    ]


def added(
    frontier: Frontier, options: Sequence[tuple[int, float, PieceMode]], thin: float
) -> Frontier:
    """Every point combined with every mode of one more piece: bytes, cost and mode."""
    size = np.add.outer(frontier.bytes, [size for size, _, _ in options]).ravel()
    cost = np.add.outer(frontier.cost, [cost for _, cost, _ in options]).ravel()
    best = _undominated(size, cost, thin if min(len(frontier), len(options)) > 1 else 0.0)
    left, right = np.divmod(best, len(options))
    modes = np.array([_MODES.index(mode) for _, _, mode in options], dtype=np.int8)
    chosen = np.hstack([frontier.chosen[left], modes[right, np.newaxis]])
    return Frontier(size[best], cost[best], chosen)


def _undominated(size: Ints, cost: Floats, thin: float) -> Ints:
    """The positions of the undominated points, by rising bytes."""
    order = np.argsort(size, kind="stable")
    sizes, costs = size[order], cost[order]
    least = np.minimum.accumulate(costs)
    is_better = np.ones(len(order), dtype=np.bool_)
    is_better[1:] = costs[1:] < least[:-1]
    order, sizes = order[is_better], sizes[is_better]
    # Of equal sizes each is cheaper than the one before it.
    is_last = np.ones(len(order), dtype=np.bool_)
    is_last[:-1] = sizes[1:] > sizes[:-1]
    order = order[is_last]
    return order[_apart(cost[order], thin)] if thin and len(order) > 2 else order


def _apart(cost: Floats, thin: float) -> Bools:
    """The first of those whose falling costs lie within one step of `1 + thin`."""
    with np.errstate(divide="ignore"):
        steps = np.floor(np.log(cost) / log1p(thin))
    is_first = np.ones(len(cost), dtype=np.bool_)
    is_first[1:] = steps[1:] != steps[:-1]
    return is_first


# The choice of state: queries and a budget in, modes and reasons out, as a pure function. The
# minimised sum leaves out that queries share reads of the same tables; so the choice is repeated
# with each read divided by the number of queries that chose it, and the truly cheaper of the two is
# returned.


class QueryChoice(Struct, frozen=True):
    """The choice for one query: the mode of each piece and why, bytes, and milliseconds a day,
    without shared reads."""

    modes: Modes
    reasons: Mapping[str, str]
    bytes: int
    ms_per_day: float


class StateChoice(Struct, frozen=True):
    """The choice for all queries: bytes, and the expected milliseconds a day of maintaining. If it
    `exceeds` the budget, nothing fits: `least` are the fewest bytes needed. A kept byte counted as
    `per_byte` milliseconds a day."""

    queries: Mapping[str, QueryChoice]
    bytes: int
    ms_per_day: float
    exceeds: bool
    least: int = 0
    per_byte: float = 0.0


def choose(
    queries: Mapping[str, StateModel],
    budget_bytes: int | None,
    *,
    thin: float = THIN,
    urgency: Sequence[float] = (),
    per_byte: float = 0.0,
) -> StateChoice:
    """Choose the modes of all pieces of all queries within a budget of bytes; None is unlimited,
    and then a kept byte may count as `per_byte` milliseconds a day. An `urgency` multiplies the
    rate of each kind of change for the choice, not in the reported cost. ValueError if the budget
    is below zero, or if the models have different kinds of change."""
    unscaled = list(queries.values())
    if len({model.kinds for model in unscaled}) > 1:
        raise ValueError("queries are expected to change in different ways")
    if budget_bytes is not None and budget_bytes < 0:
        raise ValueError("a budget below zero")
    models = [_urged(model, urgency) for model in unscaled] if urgency else unscaled
    modes = _within(models, budget_bytes, per_byte, thin)
    repriced = _repriced(models, modes)
    if repriced is not None:
        other = _within(repriced, budget_bytes, per_byte, thin)
        modes = min(modes, other, key=lambda each: _rank(models, each, budget_bytes, per_byte))
    choice = explained(queries, dict(zip(queries, modes, strict=True)), budget_bytes)
    least = sum(min(piece.sizes.values()) for model in models for piece in model.pieces)
    return replace(choice, least=least, per_byte=per_byte)


def explained(
    queries: Mapping[str, StateModel], modes: Mapping[str, Modes], budget_bytes: int | None
) -> StateChoice:
    """What these modes of all pieces cost, and why each has its mode."""
    chosen = {name: _query_choice(model, modes[name]) for name, model in queries.items()}
    total = sum(choice.bytes for choice in chosen.values())
    exceeds = budget_bytes is not None and total > budget_bytes
    every = [modes[name] for name in queries]
    return StateChoice(chosen, total, per_day_together(list(queries.values()), every), exceeds)


def _urged(model: StateModel, urgency: Sequence[float]) -> StateModel:
    kinds = (
        replace(kind, rate=kind.rate * times)
        for kind, times in zip(model.kinds, urgency, strict=True)
    )
    return replace(model, kinds=tuple(kinds))


def _within(
    models: Sequence[StateModel], budget: int | None, per_byte: float, thin: float
) -> Sequence[Modes]:
    alone = [
        {piece.name: _best(model, piece, per_byte) for piece in model.pieces} for model in models
    ]
    size = sum(model.bytes_of(modes) for model, modes in zip(models, alone, strict=True))
    if budget is None or size <= budget:
        return alone
    frontier = frontier_of(models, thin=thin)
    return frontier.modes(frontier.best_within(budget), models)


def _best(model: StateModel, piece: Piece, per_byte: float) -> PieceMode:
    """The cheapest mode by itself, of equal ones that with the fewest bytes."""
    options = _options(model, piece)
    return min(options, key=lambda option: (option[1] + per_byte * option[0], option[0]))[2]


def _rank(
    models: Sequence[StateModel], modes: Sequence[Modes], budget: int | None, per_byte: float
) -> tuple[int, float]:
    """Bytes over the budget first, then cost."""
    total = sum(model.bytes_of(mode) for model, mode in zip(models, modes, strict=True))
    over = 0 if budget is None else max(0, total - budget)
    return over, per_day_together(models, modes) + per_byte * total


def _repriced(models: Sequence[StateModel], modes: Sequence[Modes]) -> list[StateModel] | None:
    """The models with reads divided among those that made them; None if none is shared."""
    count: dict[tuple[tuple[TableName, ...], int], int] = {}
    for model, chosen in zip(models, modes, strict=True):
        for kind, reads in enumerate(evaluate(model, chosen).reads):
            for source, cost in reads.items():
                if cost > 0:
                    count[source, kind] = count.get((source, kind), 0) + 1
    if all(number < 2 for number in count.values()):
        return None

    def shared(piece: Piece) -> Piece:
        each = (ms / count.get((piece.source, kind), 1) for kind, ms in enumerate(piece.read))
        return replace(piece, read=tuple(each))

    return [model.with_pieces(shared) for model in models]


def _query_choice(model: StateModel, modes: Modes) -> QueryChoice:
    reasons = {piece.name: _reason(model, piece, modes[piece.name]) for piece in model.pieces}
    return QueryChoice(modes, reasons, model.bytes_of(modes), per_day(model, modes))


def _reason(model: StateModel, piece: Piece, mode: PieceMode) -> str:
    """Why a piece has its mode: what the next best, or keeping it, would change."""
    if len(piece.modes) == 1:
        return "nothing can replace it" if mode is PieceMode.KEPT else "requested"
    costs = {each: [piece.cost(each, kind) for kind in model.kind_indexes] for each in piece.modes}
    if mode is PieceMode.KEPT:
        others = [other for other in piece.modes if other is not PieceMode.KEPT]
        best = min(others, key=lambda other: model.per_day(costs[other]))
        when = f"if it is {piece.word(best)}"
        return _difference(model, costs[best], costs[mode], when, "costs nothing more")
    if PieceMode.KEPT not in piece.modes:
        return "it cannot be kept"
    nothing = "no change exhausts it" if mode is PieceMode.BOUNDED else "no change needs it"
    when = f"because it is {piece.word(mode)}"
    return _difference(model, costs[mode], costs[PieceMode.KEPT], when, nothing)


def _difference(
    model: StateModel, costly: Sequence[float], cheap: Sequence[float], when: str, nothing: str
) -> str:
    """The kind of change with the largest difference in cost, and what each run adds."""
    daily = [kind.rate * (d - c) for kind, d, c in zip(model.kinds, costly, cheap, strict=True)]
    index = max(range(len(daily)), key=daily.__getitem__, default=None)
    if index is None or daily[index] <= 0:
        return nothing
    name, more = _named(model.kinds[index]), costly[index] - cheap[index]
    note = f" (from {model.runs[index]} runs)" if model.runs and model.runs[index] else ""
    return f"{name}, and each change takes {number(more)} ms more {when}{note}"


def _named(kind: KindOfChange) -> str:
    tables = ", ".join(sorted(kind.tables))
    verb = "changes" if len(kind.tables) == 1 else "change"
    if kind.rate == 1:
        return f"{tables} {verb} once a day"
    if kind.rate > 1:
        return f"{tables} {verb} {number(kind.rate)} times a day"
    return f"{tables} {verb} once every {number(1 / kind.rate)} days"
