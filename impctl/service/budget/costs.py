"""What recorded runs of a query say about its state: rows, sizes, costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.buffers import FEWEST as BUFFERS_FEWEST
from impctl.compile.buffers import USUAL, BufferChoice
from impctl.compile.flows import row_bytes
from impctl.placement.graph import (
    PRIORS,
    Bounded,
    Demand,
    Graph,
    KindOfChange,
    Numbers,
    PerKind,
    own,
)
from impctl.placement.graph import PieceMode as StateMode
from impctl.placement.search import Learned
from impctl.service.cost_model import learned as line_through
from impctl.service.maintenance_plan import Reopened, check_circuit, reopened, why_not_bounded
from impctl.service.stored import catch_up, check_definition, check_pins
from impctl.sketch.sketch import MaintenanceMode
from impctl.store.records import RunCost, RunKind, RunParts, StoredQuery, buffer_name

if TYPE_CHECKING:
    from impctl.compile.compile import Dataflow
    from impctl.engine.operator import Operator
    from impctl.placement.search import Modes
    from impctl.service.context import Context
    from impctl.service.pinned import PinnedTables
    from impctl.service.schedule.forecast import Expected
    from impctl.store.records import StoreReader
    from impctl.types import QueryName, TableName
    from impctl.workload.models import QuerySpec


# A stored query opened for the choice of its state: its circuit, its sizes, and how it is kept.
# Law: nothing of its state is read but how large its runs are.


class PieceSize(Struct, frozen=True):
    rows: int = 0
    bytes: int = 0


class OpenedQuery(Struct, frozen=True):
    """A query at its stored versions; `sizes` are by the names of stored pieces."""

    stored: StoredQuery
    as_stored: Reopened
    sizes: Mapping[str, PieceSize]

    @property
    def compiled(self) -> Dataflow:
        assert self.as_stored.plan.compiled is not None
        return self.as_stored.plan.compiled

    def bytes_of(self, operator: Operator) -> int:
        names = {keeper.name for keeper in operator.arrangements()}
        return sum(size.bytes for name, size in self.sizes.items() if name in names)


def opened(
    ctx: Context, store: StoreReader, spec: QuerySpec, stored: StoredQuery
) -> OpenedQuery | None:
    """Open the query; None if it has no state that the engine steps. RecaptureNeededError if its
    state belongs to another query or other tables by now, as reads would."""
    if stored.mode is not MaintenanceMode.EXACT:
        return None
    check_definition(ctx, spec, stored)
    catch_up(ctx.tables, stored)
    check_pins(stored, ctx.tables)
    result = reopened(ctx, spec, stored)
    check_circuit(ctx, result.prepared, result.plan, stored)
    return (
        None
        if result.plan.compiled is None
        else OpenedQuery(stored, result, sizes_of(store, stored))
    )


def state_bytes(store: StoreReader, queries: Iterable[QueryName]) -> int:
    return sum(run.bytes for query in queries for run in store.run_refs(query))


def sizes_of(store: StoreReader, stored: StoredQuery) -> Mapping[str, PieceSize]:
    result: dict[str, PieceSize] = {}
    for run in store.run_refs(stored.query):
        known = result.get(run.arrangement, PieceSize())
        result[run.arrangement] = PieceSize(known.rows + run.rows, known.bytes + run.bytes)
    return result


# What recorded runs of a query say of the costs in its graph, kind of change by kind of change.
# Law: learned from runs that carried on the same tables, where there are `FEWEST` of them; from
# fewer nothing. Of a run the time of each operator tells of this operator's work, what reads of
# sides took of these, and the rest of it of what no choice of state changes. An operator's time
# tells nothing of other modes of its pieces than those it had in that run.

FEWEST = 3
"""Runs, or reads, from which on they count more than prior times."""

_MOST_TIMES = 30.0
"""Prior times were off by at most this factor; more is not due to a node's pieces."""


class _Timed(Struct, frozen=True):
    rows: int
    elapsed_ms: float
    parts: RunParts

    @property
    def read(self) -> frozenset[str]:
        """Sides read from files if they had rows, and buffers refilled, in principle."""
        return frozenset(one.side for one in self.parts.reads)

    def node_ms(self, place: int, names: Collection[str]) -> float:
        return self.parts.times[place] - sum(o.ms for o in self.parts.reads if o.side in names)


def learned_of(
    graph: Graph,
    tables: Collection[TableName],
    modes: Modes,
    costs: Sequence[RunCost],
    rows: Sequence[float],
    layout: str = "",
) -> Learned:
    """Lessons of recorded runs: `modes` are the pieces' present ones, called `layout` in runs;
    `rows` are changed rows per run and kind."""
    return _Lessons(graph, frozenset(tables), modes, costs, rows, layout).learned()


class _Lessons:
    def __init__(
        self,
        graph: Graph,
        tables: frozenset[TableName],
        modes: Modes,
        costs: Sequence[RunCost],
        rows: Sequence[float],
        layout: str,
    ) -> None:
        self._graph = graph
        self._modes = modes
        self._rows = rows
        self._layout = layout
        alike = [_alike(costs, kind, tables) for kind in graph.kinds]
        self._whole = alike
        self._operators = sum(1 for node in graph.nodes if node.inputs)
        self._first = len(graph.nodes) - self._operators
        self._timed = [self._with_parts(runs) for runs in alike]
        self._every = self._with_parts([one for one in costs if one.kind is RunKind.MAINTAIN])

    def learned(self) -> Learned:
        kinds = range(len(self._graph.kinds))
        each = [self._of_kind(kind) for kind in kinds]
        places = range(self._first, len(self._graph.nodes))
        return Learned(
            times={at: tuple(times[at] for times, _ in each) for at in places},
            reads=self._reads(),
            hits=self._hits(),
            refills=self._refills(),
            beside=tuple(beside for _, beside in each),
            runs=tuple(len(runs) if len(runs) >= FEWEST else 0 for runs in self._whole),
        )

    def _of_kind(self, kind: int) -> tuple[Mapping[int, float], float]:
        """Ratio of actual to estimated time of each node, and the time outside nodes."""
        places = range(self._first, len(self._graph.nodes))
        estimated = {at: self._estimated(at, kind) for at in places}
        if len(self._timed[kind]) < FEWEST:
            return self._of_whole(kind, estimated)
        actual = {at: self._actual(at, kind) for at in places}
        known = {at: ms for at, ms in actual.items() if ms is not None and estimated[at] > 0}
        usual = _bounded(sum(known.values()), sum(estimated[at] for at in known))
        times, beyond = {}, 0.0
        for at in places:
            times[at] = _bounded(known[at], estimated[at]) if at in known else usual
            beyond += max(0.0, (actual[at] or 0.0) - times[at] * estimated[at])
        left = [(run.rows, run.elapsed_ms - sum(run.parts.times)) for run in self._timed[kind]]
        return times, self._at(left, kind) + beyond

    def _of_whole(
        self, kind: int, estimated: Mapping[int, float]
    ) -> tuple[Mapping[int, float], float]:
        """The same from runs without parts: what exceeds the estimate is outside. A whole run says
        nothing of pieces that are kept differently now."""
        total = sum(estimated.values())
        runs = [run for run in self._whole[kind] if run.layout == self._layout]
        if len(runs) < FEWEST:
            return dict.fromkeys(estimated, 1.0), 0.0
        ms = self._at([(run.rows, run.elapsed_ms) for run in runs], kind)
        factor = min(1.0, _bounded(ms, total))
        return dict.fromkeys(estimated, factor), max(0.0, ms - factor * total)

    def _with_parts(self, runs: Sequence[RunCost]) -> list[_Timed]:
        return [
            _Timed(run.rows, run.elapsed_ms, run.parts)
            for run in runs
            if run.parts is not None and len(run.parts.times) == self._operators
        ]

    def _estimated(self, at: int, kind: int) -> float:
        """Estimated work of the node in its present modes, without reads and refills."""
        node = self._graph.nodes[at]
        node = replace(node, pieces=tuple(replace(one, refill=()) for one in node.pieces))
        active = [self._graph.active[wire][kind] for wire in node.inputs]
        modes = [self._modes[piece.name] for piece in node.pieces]
        return own(node, active, modes, kind, Demand.DELTA).work

    def _actual(self, at: int, kind: int) -> float | None:
        """Actual time, from runs in the present modes; None if too few."""
        node = self._graph.nodes[at]
        names = {piece.name for piece in node.pieces}
        read = {name for name in names if self._modes[name] is StateMode.READ}
        read |= {buffer_name(name) for name in names if self._modes[name] is StateMode.BOUNDED}
        names |= {buffer_name(name) for name in names}
        runs = [run for run in self._timed[kind] if run.read & names == read]
        if len(runs) < FEWEST:
            return None
        return self._at([(run.rows, run.node_ms(at - self._first, names)) for run in runs], kind)

    def _at(self, points: Sequence[tuple[int, float]], kind: int) -> float:
        line = line_through([(float(rows), max(0.0, ms)) for rows, ms in points])
        return 0.0 if line is None else line.at(self._rows[kind])

    def _reads(self) -> dict[str, PerKind]:
        """Milliseconds per read of each side that was read often enough."""
        every = len(self._graph.kinds)
        names = [piece.name for piece in self._graph.pieces]
        result = {name: self._read_ms(name) for name in names}
        return {name: (ms,) * every for name, ms in result.items() if ms is not None}

    def _read_ms(self, side: str) -> float | None:
        took = [
            one.ms
            for run in self._every
            for one in run.parts.reads
            if one.side == side and one.keys
        ]
        return sum(took) / len(took) if len(took) >= FEWEST else None

    def _hits(self) -> dict[str, PerKind]:
        """The probability of a read, for kinds of change that occurred often enough."""
        result = {}
        for piece in self._graph.pieces:
            chances = self._chances(piece.name, piece.hit or (1.0,) * len(self._graph.kinds))
            if chances is not None:
                result[piece.name] = chances
        return result

    def _chances(self, side: str, thought: PerKind) -> PerKind | None:
        """The prior counts as one more run: what did not occur in three may yet."""
        were_read = [
            [one.keys > 0 for run in runs for one in run.parts.reads if one.side == side]
            for runs in self._timed
        ]
        if not any(len(flags) >= FEWEST for flags in were_read):
            return None
        return tuple(
            (sum(flags) + prior) / (len(flags) + 1) if len(flags) >= FEWEST else prior
            for flags, prior in zip(were_read, thought, strict=True)
        )

    def _refills(self) -> dict[str, PerKind]:
        """Refill time per run and kind, if enough pieces were bounded."""
        result = {}
        for piece in self._graph.pieces:
            if not piece.refill:
                continue
            buffer, most = buffer_name(piece.name), max(piece.refill)
            thought = tuple(ms / most if most else 0.0 for ms in piece.refill)
            chances, ms = self._chances(buffer, thought), self._read_ms(buffer)
            if chances is not None:
                result[piece.name] = tuple(
                    chance * (most if ms is None else ms) for chance in chances
                )
        return result


def _alike(
    costs: Sequence[RunCost], kind: KindOfChange, tables: frozenset[TableName]
) -> list[RunCost]:
    """The runs that maintained exactly this kind of change."""
    wanted = tuple(sorted(kind.tables & tables))
    return [
        cost
        for cost in costs
        if wanted and cost.kind is RunKind.MAINTAIN and not cost.spark and cost.moved == wanted
    ]


def _bounded(actual: float, estimated: float) -> float:
    """Their ratio, limited by how far prior times were ever off."""
    return 1.0 if estimated <= 0 else min(_MOST_TIMES, max(1 / _MOST_TIMES, actual / estimated))


# What is known of a query's flows, in the terms of the choice: rows, changed rows, bytes. Law:
# measured where something measures it (rows of stored runs, of tables, of changes), else taken
# from what flows in; a guess is only ever of a cost.

ROWS_UNKNOWN = 100
"""Rows of a change, if the log has no count."""
_NEW = 0.95
"""Share of keys that come with their own partners and are assumed new until runs show otherwise:
rows like an order with its lines may be lines of older orders."""
_FEW_ROWS = 8.0
"""Groups with at most so many rows on average arrive whole, like an order with its lines."""


def numbers_of(query: OpenedQuery, tables: PinnedTables, expected: Sequence[Expected]) -> Numbers:
    """The numbers of a circuit for placement."""
    flows = _Flows(query, tables, expected)
    return Numbers(
        rows=flows.rows,
        changed=flows.changed,
        bytes=flows.bytes,
        fresh=flows.fresh,
        bounded=_bounded_pieces(query, flows),
    )


def rows_of_change(expected: Expected, tables: Collection[TableName]) -> float:
    """Rows that such a change modifies in these tables."""
    return sum(_rows(expected, name) for name in expected.tables if name in tables)


def _rows(expected: Expected, table: TableName) -> float:
    if table not in expected.tables:
        return 0.0
    rows = expected.rows.get(table)
    return ROWS_UNKNOWN if rows is None else max(1.0, rows)


class _Flows:
    def __init__(
        self, query: OpenedQuery, tables: PinnedTables, expected: Sequence[Expected]
    ) -> None:
        self._query = query
        self._changes = {frozenset(one.tables): one for one in expected}
        self.kinds = [KindOfChange(one.tables, one.per_day) for one in expected]
        compiled = query.compiled
        self._operators, self._wires = tuple(compiled.circuit), compiled.circuit.wires
        self._sources = compiled.sources
        self._known: dict[int, float] = {
            -1 - at: float(tables.snapshot(source.table).likely_rows)
            for at, source in enumerate(compiled.sources)
        }
        self._sides: dict[str, tuple[int, int]] = {}
        self._widths: dict[str, int] = {}
        self._stored: dict[int, float] = {}
        for at, operator in enumerate(self._operators):
            own = self._wires[at]
            for side, mine, other in zip(operator.indexes, own, reversed(own), strict=False):
                self._sides[side.name] = (mine, other)
                self._widths[side.name] = row_bytes(side.columns, 1)
                self._stored[mine] = float(self._side_rows(side.name))
        self._grouped: dict[str, tuple[float, float]] = {}
        for at, operator in enumerate(self._operators):
            self._known[at] = self._rows_at(at)
            if operator.group_keys:
                rows = sum(self._known[wire] for wire in self._wires[at])
                self._grouped[operator.piece] = self._known[at], rows

    def _side_rows(self, name: str) -> int:
        size = self._query.sizes.get(name)
        return self._query.as_stored.meta.read_rows.get(name, 0) if size is None else size.rows

    def _rows_at(self, at: int) -> float:
        if at in self._stored:
            return self._stored[at]
        operator = self._operators[at]
        if operator.group_keys and operator.reads:
            return float(self._side_rows(operator.reads[0].name))
        names = [keeper.name for keeper in operator.arrangements()]
        stored = [self._query.sizes[name].rows for name in names if name in self._query.sizes]
        if stored and not operator.indexes:
            return float(stored[0])
        return max((self._known[wire] for wire in self._wires[at]), default=0.0)

    def rows(self, wire: int) -> float:
        return self._known[wire]

    def changed(self, wire: int, kind: KindOfChange) -> float:
        one = self._changes[kind.tables]
        return sum(self.fan_out(at, wire) * _rows(one, name) for at, name in self.below(wire))

    def deleted(self, wire: int, kind: KindOfChange) -> float:
        one = self._changes[kind.tables]
        return sum(
            self.fan_out(at, wire) * _rows(one, name) * one.deletes.get(name, 0.0)
            for at, name in self.below(wire)
        )

    def fresh(self, side: str, kind: KindOfChange) -> float:
        if not self.comes_with_its_own(side, kind):
            return 0.0
        deletes = self._changes[kind.tables].deletes
        deleted = max((deletes.get(name, 0.0) for name in kind.tables), default=0.0)
        return _NEW * (1.0 - deleted)

    def below(self, wire: int) -> list[tuple[int, TableName]]:
        result: dict[int, TableName] = {}
        waiting = [wire]
        while waiting:
            at = waiting.pop()
            if at < 0:
                result[-1 - at] = self._sources[-1 - at].table
            else:
                waiting += self._wires[at]
        return sorted(result.items())

    def fan_out(self, source: int, wire: int) -> float:
        return self._known[wire] / max(1.0, self._known[-1 - source])

    def comes_with_its_own(self, piece: str, kind: KindOfChange) -> bool:
        """Whether a piece's keys come with the change: its join's sides both do, or groups are
        small."""
        if piece in self._sides:
            mine, other = self.tables_of(piece)
            return bool(mine & kind.tables and other & kind.tables)
        groups, below = self._grouped.get(piece, (0.0, 0.0))
        return below <= groups * _FEW_ROWS

    def tables_of(self, side: str) -> tuple[frozenset[TableName], frozenset[TableName]]:
        mine, other = (frozenset(n for _, n in self.below(wire)) for wire in self._sides[side])
        return mine, other

    def bytes(self, name: str) -> int:
        size = self._query.sizes.get(name)
        if size is not None:
            return size.bytes
        if name in self._grouped:
            return self._query.as_stored.meta.group_bytes.get(name, 0)
        return self._query.as_stored.meta.read_rows.get(name, 0) * self._widths.get(name, 0)


# Which buffers a budget may bound, to how many rows or values, and what that takes and costs.
# Law: only pieces that the engine can fill again and of which neither the workload nor the clock
# says otherwise; a guess is only ever of a size and a cost. The size is a power of two, and stays
# while it is enough and not four times what is needed. It holds what is wanted and what the
# deletions of one run may take of one group: their mean and three times its root, as if each went
# for the best. What is used up sooner is filled again, which costs a read.

_MS = 1e-6
_NUMBER = 8
_PAIR = 3 * _NUMBER
"""Bytes of a value of a group with its count, or of a group with its edge."""


def _bounded_pieces(query: OpenedQuery, flows: _Flows) -> Mapping[str, Bounded]:
    prepared, meta = query.as_stored.prepared, query.as_stored.meta
    choices = [
        one
        for one in query.compiled.buffers
        if one.piece in meta.buffers or not why_not_bounded(prepared, meta, one)
    ]
    return {one.piece: _Piece(query, one, flows).bounded() for one in choices}


def size_for(wanted: int, deleted: float, now: int | None) -> int:
    """Buffer size per group for so many deletions per run on average."""
    needed = wanted + math.ceil(deleted + 3 * math.sqrt(deleted))
    size = max(BUFFERS_FEWEST, 1 << (needed - 1).bit_length())
    size = min(size, max(USUAL.of_all or 0, wanted))
    return now if now is not None and needed <= now <= 4 * size else size


def chance_of_refill(changed: float, deleted: float, spare: float) -> float:
    """The probability that a run exhausts a buffer, over all groups, in the long run. `changed`
    rows lie within buffers, of which a share is `deleted`; a buffer has `spare` rows. Deletions not
    balanced by new rows exhaust one after `spare`; if balanced, its size walks between none and
    twice as many, which takes some 3 times their square (the mean of such a walk from the middle to
    its lower end)."""
    lost = changed * max(0.0, 2 * deleted - 1) / spare
    walked = changed * min(1.0, 2 * deleted) / (3 * spare * spare)
    return min(1.0, lost + walked)


class _Piece:
    def __init__(self, query: OpenedQuery, choice: BufferChoice, flows: _Flows) -> None:
        self._query, self._choice, self._flows = query, choice, flows
        compiled = query.compiled
        self._operators, self._wires = tuple(compiled.circuit), compiled.circuit.wires
        self._at = next(at for at, o in enumerate(self._operators) if o.piece == choice.piece)
        self._operator = self._operators[self._at]
        (self._wire,) = self._wires[self._at]
        meta = query.as_stored.meta
        self._rows = max(1.0, flows.rows(self._wire))
        groups = (
            flows.rows(self._at) if choice.is_values else meta.buffer_groups.get(choice.piece, 1)
        )
        self._groups = min(self._rows, max(1.0, groups))
        self._now = meta.buffers.get(choice.piece)

    def bounded(self) -> Bounded:
        flows, wire = self._flows, self._wire
        most = max((flows.deleted(wire, kind) for kind in flows.kinds), default=0.0)
        size = size_for(self._choice.wanted, most / self._groups, self._now)
        held = float(self._held(size))
        is_best = min(1.0, held * self._groups / self._rows)
        spare = held - self._choice.wanted + 1

        def chance(kind: KindOfChange) -> float:
            changed = flows.changed(wire, kind)
            share = min(1.0, flows.deleted(wire, kind) / max(1.0, changed))
            return chance_of_refill(changed * is_best, share, spare)

        return Bounded(self._bytes(size), chance, self._refill_ms(), self._kept_bytes(), size)

    def _held(self, size: int) -> int:
        """Rows or values of a group after a refill."""
        if self._choice.is_values:
            return size
        wanted = self._choice.wanted
        return max(size, wanted + min(size, wanted))

    def _bytes(self, size: int) -> int:
        """Upper bound of its bytes once bounded: buffers grow to twice their size."""
        if self._now is not None:
            return self._query.bytes_of(self._operator)
        most = self._groups * 2 * self._held(size)
        if self._operator.reads:
            groups = self._groups * _NUMBER * (2 + len(self._operator.group_keys) + 6)
            as_read = self._query.as_stored.meta.group_bytes.get(self._choice.piece, 0)
            return int(min(as_read, groups + min(self._rows, most) * _PAIR))
        result = self._groups * _PAIR
        buffered = {keeper for keeper, _, _ in self._buffered()}
        result += sum(size for keeper, _, size in self._stored() if keeper not in buffered)
        for _, rows, size in self._buffered():
            result += size * min(1.0, most / max(1, rows))
        return int(result)

    def _kept_bytes(self) -> int | None:
        """Bytes if all were kept, for a bounded piece; else None."""
        if self._now is None:
            return None
        known = self._query.as_stored.meta.group_bytes.get(self._choice.piece)
        held = sum(rows for _, rows, _ in self._buffered())
        stored = self._query.bytes_of(self._operator)
        return int(stored * max(1.0, self._rows / max(1, held))) if known is None else known

    def _stored(self) -> Iterator[tuple[str, int, int]]:
        for keeper in self._operator.arrangements():
            size = self._query.sizes.get(keeper.name)
            if size is not None:
                yield keeper.name, size.rows, size.bytes

    def _buffered(self) -> Iterator[tuple[str, int, int]]:
        names = set(self._operator.buffered)
        return (one for one in self._stored() if one[0] in names)

    def _refill_ms(self) -> float:
        """Time to read the table again, whose files may all hold rows of a group, or to list all
        groups below; and to select those requested."""
        at = self._wire
        while at >= 0 and not self._operators[at].can_refill:
            (at,) = self._wires[at]
        result = self._flows.rows(at) * PRIORS.group_row_ns * _MS
        return result + (self._list_ms(at) if at >= 0 else self._whole_ms(at))

    def _list_ms(self, at: int) -> float:
        """Time to list all groups of a grouping, as if it were read where possible."""
        result = self._flows.rows(at) * PRIORS.row_ns * _MS
        chosen = {one.side: one for one in self._query.compiled.groupings}
        known = chosen.get(self._operators[at].piece)
        if known is not None and known.readers:
            result += sum(self._whole_ms(source) for source in self._sources(at))
        return result

    def _whole_ms(self, source: int) -> float:
        width = len(self._query.compiled.sources[-1 - source].scan.table_columns)
        each = PRIORS.read_value_ns * max(1, width) + PRIORS.tag_row_ns
        return self._flows.rows(source) * each * _MS

    def _sources(self, at: int) -> Iterator[int]:
        for wire in self._wires[at]:
            if wire < 0:
                yield wire
            else:
                yield from self._sources(wire)
