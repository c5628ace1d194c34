"""What recorded runs of a query say about its state: rows, sizes, costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import mul
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile import buffers
from impctl.compile.flows import row_bytes
from impctl.costs import line_through
from impctl.placement import (
    Bounded,
    KindOfChange,
    Modes,
    Numbers,
    OperatorCosts,
    PerKind,
    Piece,
    PieceMode,
    StateModel,
    at_kind,
    sources_below,
)
from impctl.service.maintenance_plan import Reopened, check_circuit, reopened, why_not_bounded
from impctl.service.stored import catch_up, check_definition, check_pins
from impctl.sketch.sketch import MaintenanceMode
from impctl.store.records import RunCost, RunKind, RunParts, StoredQuery, buffer_name

if TYPE_CHECKING:
    from impctl.compile.compile import Dataflow
    from impctl.engine.operator import Operator
    from impctl.service.context import Context
    from impctl.service.pinned import PinnedTables
    from impctl.service.schedule.forecast import Expected
    from impctl.store.reader import StoreReader
    from impctl.types import QueryName, TableName
    from impctl.workload.models import QuerySpec


class PieceSize(Struct, frozen=True):
    rows: int = 0
    bytes: int = 0


class OpenedQuery(Struct, frozen=True):
    """A query at its stored versions. Of its state only the `sizes` of its runs are read, by
    arrangement."""

    stored: StoredQuery
    reopened: Reopened
    sizes: Mapping[str, PieceSize]

    @property
    def compiled(self) -> Dataflow:
        assert self.reopened.plan.compiled is not None
        return self.reopened.plan.compiled

    def bytes_of(self, operator: Operator) -> int:
        names = {keeper.name for keeper in operator.arrangements()}
        return sum(size.bytes for name, size in self.sizes.items() if name in names)


def opened(
    ctx: Context, store: StoreReader, spec: QuerySpec, stored: StoredQuery
) -> OpenedQuery | None:
    """Open the query; None if the engine does not maintain it. RecaptureNeededError if its state
    now belongs to another query or other tables."""
    if stored.mode is not MaintenanceMode.EXACT:
        return None
    check_definition(ctx, spec, stored)
    catch_up(ctx.tables, stored)
    check_pins(stored, ctx.tables)
    result = reopened(ctx, spec, stored)
    check_circuit(ctx, result, stored)
    if result.plan.compiled is None:
        return None
    sizes: dict[str, PieceSize] = {}
    for run in store.run_refs(stored.query):
        size = sizes.get(run.arrangement, PieceSize())
        sizes[run.arrangement] = PieceSize(size.rows + run.rows, size.bytes + run.bytes)
    return OpenedQuery(stored, result, sizes)


def state_bytes(store: StoreReader, queries: Iterable[QueryName]) -> int:
    return sum(run.bytes for query in queries for run in store.run_refs(query))


# A model priced by recorded runs instead of prior times. Law: only times change, by kind of change:
# at least `FEWEST` runs over the same tables teach, fewer change nothing. The time of an operator
# in a run is that of its work, the time of reads that of the sides, and the rest is what no choice
# of state changes. An operator's time says nothing about modes of its pieces other than those in
# that run. If all runs took exactly the estimated times, the model stays the same.

FEWEST = 3
"""Runs, or reads, needed to replace prior times."""

_MOST_TIMES = 30.0
"""Largest factor between actual and prior time; more is not due to an operator's pieces."""


def priced(
    model: StateModel,
    tables: Collection[TableName],
    modes: Modes,
    costs: Sequence[RunCost],
    rows: Sequence[float],
) -> StateModel:
    """Price the model. `modes` are the present ones of the pieces; `rows` are changed rows per run,
    by kind."""
    runs = [
        (cost, cost.parts)
        for cost in costs
        if cost.kind is RunKind.MAINTAIN
        and cost.parts is not None
        and len(cost.parts.times) == len(model.operators)
    ]
    moved = [tuple(sorted(kind.tables.intersection(tables))) for kind in model.kinds]
    by_kind = [[run for run in runs if names and run[0].moved == names] for names in moved]
    return _Lessons(model, modes, runs, by_kind, rows).model()


_TimedRun = tuple[RunCost, RunParts]


class _Lessons(Struct):
    """What runs say of a model: all of them of reads, `by_kind` those of exactly one kind."""

    of: StateModel
    modes: Modes
    runs: Sequence[_TimedRun]
    by_kind: Sequence[Sequence[_TimedRun]]
    rows: Sequence[float]

    def model(self) -> StateModel:
        by_kind = [self._of_kind(kind) for kind in range(len(self.of.kinds))]
        operators = [
            self._priced(operator, [times[number] for times, _ in by_kind])
            for number, operator in enumerate(self.of.operators)
        ]
        if operators:
            # Counted at the root: what is outside all operators.
            last = operators[-1]
            both = (at_kind(last.work, kind) + beside for kind, (_, beside) in enumerate(by_kind))
            operators[-1] = replace(last, work=tuple(both))
        runs = tuple(len(runs) if len(runs) >= FEWEST else 0 for runs in self.by_kind)
        return StateModel(tuple(operators), self.of.kinds, runs)

    def _priced(self, operator: OperatorCosts, factors: Sequence[float]) -> OperatorCosts:
        pieces = (
            replace(
                piece,
                stored=_times(piece.stored, factors),
                noted=_times(piece.noted, factors),
                read=piece.read if ms is None else (ms,) * len(self.of.kinds),
                hit=self._chances(piece.name, piece.hit),
                refill=self._refill(piece),
            )
            for piece in operator.pieces
            for ms in [self._read_ms(piece.name)]
        )
        return OperatorCosts(work=_times(operator.work, factors), pieces=tuple(pieces))

    def _of_kind(self, kind: int) -> tuple[Mapping[int, float], float]:
        """Ratio of actual to estimated time of each operator, and the time outside operators."""
        estimated = dict(enumerate(self._estimated(one, kind) for one in self.of.operators))
        if len(self.by_kind[kind]) < FEWEST:
            return dict.fromkeys(estimated, 1.0), 0.0
        actual = {n: self._actual(n, one, kind) for n, one in enumerate(self.of.operators)}
        known = {
            number: ms for number, ms in actual.items() if ms is not None and estimated[number] > 0
        }
        usual = _bounded(sum(known.values()), sum(estimated[number] for number in known))
        times, beyond = {}, 0.0
        for number in actual:
            times[number] = usual
            if number in known:
                times[number] = _bounded(known[number], estimated[number])
            beyond += max(0.0, (actual[number] or 0.0) - times[number] * estimated[number])
        left = [(run.rows, run.elapsed_ms - sum(parts.times)) for run, parts in self.by_kind[kind]]
        return times, self._at(left, kind) + beyond

    def _estimated(self, operator: OperatorCosts, kind: int) -> float:
        """Estimated work of the operator in its present modes, without reads and refills."""
        works = [
            piece.noted if self.modes[piece.name] is PieceMode.READ else piece.stored
            for piece in operator.pieces
        ]
        return sum(at_kind(work, kind) for work in (operator.work, *works))

    def _actual(self, number: int, operator: OperatorCosts, kind: int) -> float | None:
        """Actual time of the operator, from runs in the present modes; None if too few."""
        names = {piece.name for piece in operator.pieces}
        read = {name for name in names if self.modes[name] is PieceMode.READ}
        read |= {buffer_name(name) for name in names if self.modes[name] is PieceMode.BOUNDED}
        names |= {buffer_name(name) for name in names}
        points = []
        for run, parts in self.by_kind[kind]:
            # Sides that are read, and buffers that are refilled, even without rows.
            reads = [side for side in parts.reads if side.side in names]
            if {side.side for side in reads} == read:
                ms = parts.times[number] - sum(side.ms for side in reads)
                points.append((run.rows, ms))
        return self._at(points, kind) if len(points) >= FEWEST else None

    def _at(self, points: Sequence[tuple[int, float]], kind: int) -> float:
        line = line_through([(float(rows), max(0.0, ms)) for rows, ms in points])
        return 0.0 if line is None else line.at(self.rows[kind])

    def _read_ms(self, side: str) -> float | None:
        """Milliseconds per read of a side that was read often enough."""
        reads = [read for _, parts in self.runs for read in parts.reads]
        times = [read.ms for read in reads if read.side == side and read.keys]
        return sum(times) / len(times) if len(times) >= FEWEST else None

    def _chances(self, side: str, priors: PerKind) -> PerKind:
        """The probability of a read, learned for kinds of change that occurred often enough. The
        prior counts as one more run: what did not occur in three runs may still occur."""
        were_read = (
            [read.keys > 0 for _, parts in runs for read in parts.reads if read.side == side]
            for runs in self.by_kind
        )
        return tuple(
            (sum(flags) + prior) / (len(flags) + 1) if len(flags) >= FEWEST else prior
            for flags, prior in zip(were_read, priors, strict=bool(priors))
        )

    def _refill(self, piece: Piece) -> PerKind:
        """Refill time per run and kind, learned if the piece was bounded often enough."""
        buffer, most = buffer_name(piece.name), max(piece.refill, default=0.0)
        priors = tuple(ms / most if most else 0.0 for ms in piece.refill)
        ms = self._read_ms(buffer)
        return tuple(
            chance * (most if ms is None else ms) for chance in self._chances(buffer, priors)
        )


def _times(costs: PerKind, factors: Sequence[float]) -> PerKind:
    return tuple(map(mul, costs, factors))


def _bounded(actual: float, estimated: float) -> float:
    """Their ratio, limited by `_MOST_TIMES`."""
    return 1.0 if estimated <= 0 else min(_MOST_TIMES, max(1 / _MOST_TIMES, actual / estimated))


# Rows, changed rows and bytes of a query's flows. Law: they are measured where possible (rows of
# stored runs, of tables, of changes), else derived from what flows in. A guess affects only a cost.

ROWS_UNKNOWN = 100
"""Rows of a change, if the log has no count."""
_NEW = 0.95
"""Share of keys that arrive with their partners and are assumed new until runs show otherwise: an
order's lines arrive with it, or belong to an older order."""
_FEW_ROWS = 8.0
"""Groups with at most this many rows on average arrive whole, like an order with its lines."""


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
        self._changes = {frozenset(kind.tables): kind for kind in expected}
        self.kinds = [KindOfChange(kind.tables, kind.per_day) for kind in expected]
        compiled = query.compiled
        self._operators, self._wires = tuple(compiled.circuit), compiled.circuit.wires
        self._sources = compiled.sources
        self._known: dict[int, float] = {
            -1 - number: float(tables.snapshot(source.table).likely_rows)
            for number, source in enumerate(compiled.sources)
        }
        self._sides: dict[str, tuple[int, int]] = {}
        self._widths: dict[str, int] = {}
        self._stored: dict[int, float] = {}
        for operator, inputs in zip(self._operators, self._wires, strict=True):
            sides = zip(operator.indexes, inputs, reversed(inputs), strict=False)
            for side, wire, other in sides:
                self._sides[side.name] = (wire, other)
                self._widths[side.name] = row_bytes(side.columns, 1)
                self._stored[wire] = float(self._side_rows(side.name))
        self._grouped: dict[str, tuple[float, float]] = {}
        for number, operator in enumerate(self._operators):
            self._known[number] = self._rows_of(number)
            if operator.group_keys:
                rows = sum(self._known[wire] for wire in self._wires[number])
                self._grouped[operator.piece] = self._known[number], rows

    def _side_rows(self, name: str) -> int:
        size = self._query.sizes.get(name)
        return self._query.reopened.meta.read_rows.get(name, 0) if size is None else size.rows

    def _rows_of(self, number: int) -> float:
        if number in self._stored:
            return self._stored[number]
        operator = self._operators[number]
        if operator.group_keys and operator.reads:
            return float(self._side_rows(operator.reads[0].name))
        names = [keeper.name for keeper in operator.arrangements()]
        stored = [self._query.sizes[name].rows for name in names if name in self._query.sizes]
        if stored and not operator.indexes:
            return float(stored[0])
        return max((self._known[wire] for wire in self._wires[number]), default=0.0)

    def rows(self, wire: int) -> float:
        return self._known[wire]

    def changed(self, wire: int, kind: KindOfChange) -> float:
        return sum(rows for _, rows in self._changed_below(wire, kind))

    def deleted(self, wire: int, kind: KindOfChange) -> float:
        deletes = self._changes[kind.tables].deletes
        return sum(
            rows * deletes.get(table, 0.0) for table, rows in self._changed_below(wire, kind)
        )

    def _changed_below(self, wire: int, kind: KindOfChange) -> Iterator[tuple[TableName, float]]:
        """Rows that a change of each table below a wire changes there."""
        change = self._changes[kind.tables]
        for source, table in self._below(wire):
            fan_out = self._known[wire] / max(1.0, self._known[-1 - source])
            yield table, fan_out * _rows(change, table)

    def fresh(self, side: str, kind: KindOfChange) -> float:
        if not self._arrives_whole(side, kind):
            return 0.0
        deletes = self._changes[kind.tables].deletes
        deleted = max((deletes.get(name, 0.0) for name in kind.tables), default=0.0)
        return _NEW * (1.0 - deleted)

    def _below(self, wire: int) -> list[tuple[int, TableName]]:
        """The sources that flow into a wire: number and table."""
        return [(n, self._sources[n].table) for n in sources_below(self._wires, wire)]

    def _arrives_whole(self, piece: str, kind: KindOfChange) -> bool:
        """Whether keys arrive with their partners: both sides of the join change, or groups are
        small."""
        if piece in self._sides:
            inputs = [{table for _, table in self._below(wire)} for wire in self._sides[piece]]
            return all(tables & kind.tables for tables in inputs)
        groups, rows = self._grouped.get(piece, (0.0, 0.0))
        return rows <= groups * _FEW_ROWS

    def bytes(self, name: str) -> int:
        size = self._query.sizes.get(name)
        if size is not None:
            return size.bytes
        if name in self._grouped:
            return self._query.reopened.meta.group_bytes.get(name, 0)
        return self._query.reopened.meta.read_rows.get(name, 0) * self._widths.get(name, 0)


# Buffers that a budget may bound: their sizes, bytes and costs. Law: only pieces that the engine
# can refill, and that neither the workload nor the clock pins. A guess affects only a size and a
# cost. The size is a power of two and stays while it is between one and four times what is needed:
# the wanted rows and the deletions of one run in one group (their mean plus three times its root,
# as if all hit the best rows). A buffer exhausted earlier is refilled, which costs a read.

_NUMBER = 8
_PAIR = 3 * _NUMBER
"""Bytes of a value of a group with its count, or of a group with its boundary."""


def _bounded_pieces(query: OpenedQuery, flows: _Flows) -> Mapping[str, Bounded]:
    prepared, meta = query.reopened.prepared, query.reopened.meta
    return {
        choice.piece: _bounded_piece(query, choice, flows)
        for choice in query.compiled.buffers
        if choice.piece in meta.buffers or not why_not_bounded(prepared, meta, choice)
    }


def size_for(requested: int, deleted: float, now: int | None) -> int:
    """Buffer size per group, for `deleted` rows per run on average."""
    needed = requested + math.ceil(deleted + 3 * math.sqrt(deleted))
    size = max(buffers.FEWEST, 1 << (needed - 1).bit_length())
    size = min(size, max(buffers.USUAL.of_all or 0, requested))
    return now if now is not None and needed <= now <= 4 * size else size


def chance_of_refill(changed: float, deleted: float, spare: float) -> float:
    """The long-run probability that a run exhausts a buffer of any group. `changed` rows are within
    buffers, a share of them is `deleted`, and a buffer has `spare` rows. Unbalanced deletions
    exhaust it after `spare`. Balanced ones make its size a random walk between 0 and twice `spare`,
    whose mean time from the middle to the lower end is about 3 times the square of `spare`."""
    lost = changed * max(0.0, 2 * deleted - 1) / spare
    walked = changed * min(1.0, 2 * deleted) / (3 * spare * spare)
    return min(1.0, lost + walked)


def _bounded_piece(query: OpenedQuery, choice: buffers.BufferChoice, flows: _Flows) -> Bounded:
    meta, operators = query.reopened.meta, tuple(query.compiled.circuit)
    number = [operator.piece for operator in operators].index(choice.piece)
    operator, (wire,) = operators[number], query.compiled.circuit.wires[number]
    now, as_read = meta.buffers.get(choice.piece), meta.group_bytes.get(choice.piece)
    below = max(1.0, flows.rows(wire))
    groups = flows.rows(number) if choice.is_values else meta.buffer_groups.get(choice.piece, 1)
    groups = min(below, max(1.0, groups))
    most_deleted = max((flows.deleted(wire, kind) for kind in flows.kinds), default=0.0)
    size = size_for(choice.wanted, most_deleted / groups, now)
    # Rows or values of a group after a refill.
    rows = size if choice.is_values else max(size, choice.wanted + min(size, choice.wanted))
    share_in_buffers = min(1.0, rows * groups / below)

    def chance(kind: KindOfChange) -> float:
        changed = flows.changed(wire, kind)
        share = min(1.0, flows.deleted(wire, kind) / max(1.0, changed))
        return chance_of_refill(changed * share_in_buffers, share, rows - choice.wanted + 1)

    names = [keeper.name for keeper in operator.arrangements()]
    stored = {name: query.sizes[name] for name in names if name in query.sizes}
    buffered = [size for name, size in stored.items() if name in operator.buffered]
    if now is not None:
        bounded, kept = query.bytes_of(operator), as_read
        if kept is None:
            buffered_rows = sum(size.rows for size in buffered)
            kept = int(bounded * max(1.0, below / max(1, buffered_rows)))
        return Bounded(bounded, chance, kept, size)
    # At most: buffers grow to twice their size.
    most = groups * 2 * rows
    if operator.reads:
        grouped = groups * _NUMBER * (2 + len(operator.group_keys) + 6)
        result = min(as_read or 0, grouped + min(below, most) * _PAIR)
    else:
        result = groups * _PAIR
        result += sum(s.bytes for name, s in stored.items() if name not in operator.buffered)
        result += sum(s.bytes * min(1.0, most / max(1, s.rows)) for s in buffered)
    return Bounded(int(result), chance, None, size)
