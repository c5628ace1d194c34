"""What recorded runs of a query say of the costs in its graph, kind of change by kind of change.

Law: learned from runs that carried on the same tables, where there are `FEWEST` of them; from fewer
nothing. Of a run the time of each operator tells of this operator's work, what reads of sides took
of these, and the rest of it of what no choice of state changes. An operator's time tells nothing of
other modes of its pieces than those it had in that run.
Out of scope: the prior times (`placement.graph`), a line through runs (`cost_model`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from impctl.app.maintaining.cost_model import learned as line_through
from impctl.placement.graph import Demand, Graph, KindOfChange, Mode, Node, PerKind, own
from impctl.placement.options import Learned
from impctl.placement.search import Modes
from impctl.store.records import RunCost, RunKind, RunParts, buffer_name
from impctl.types import TableName
from impctl.values import dataclass

FEWEST = 3
"""Runs, or reads, from which on they are thought to tell more than prior times."""

_MOST_TIMES = 30.0
"""How far prior times were off at worst; what an operator takes beyond is not of its pieces."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """A run whose parts are known."""

    rows: int
    elapsed_ms: float
    parts: RunParts

    @property
    def read(self) -> frozenset[str]:
        """The sides that were read from files, had there been something to read, and buffers that
        would have been filled again."""
        return frozenset(one.side for one in self.parts.reads)

    def reads_ms(self, names: Collection[str]) -> float:
        return sum(one.ms for one in self.parts.reads if one.side in names)


def learned_of(
    graph: Graph,
    tables: Collection[TableName],
    modes: Modes,
    costs: Sequence[RunCost],
    rows: Sequence[float],
    layout: str = "",
) -> Learned:
    """What the runs tell: `modes` are those that pieces have now, called `layout` in recorded runs,
    `rows` those of a run of each kind that change in the query's tables."""
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
        """How many times as long as estimated each node takes, and what is beside them all."""
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
        """The same of runs whose parts are not known: what is more than estimated is beside.

        The whole of a run tells nothing of pieces that are kept otherwise than they were in it.
        """
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
        """What the node's work is estimated to take with its pieces as they are, reads and refills
        left out."""
        node = self._graph.nodes[at]
        node = replace(node, pieces=tuple(replace(one, refill=()) for one in node.pieces))
        active = [self._graph.active[wire][kind] for wire in node.inputs]
        return own(node, active, self._now(node), kind, Demand.DELTA).work

    def _now(self, node: Node) -> list[Mode]:
        return [self._modes[piece.name] for piece in node.pieces]

    def _actual(self, at: int, kind: int) -> float | None:
        """What it took, in runs in which its pieces were as they are; None of too few."""
        node = self._graph.nodes[at]
        names = {piece.name for piece in node.pieces}
        read = {name for name in names if self._modes[name] is Mode.READ}
        read |= {buffer_name(name) for name in names if self._modes[name] is Mode.BOUNDED}
        names |= {buffer_name(name) for name in names}
        runs = [run for run in self._timed[kind] if run.read & names == read]
        if len(runs) < FEWEST:
            return None
        place = at - self._first
        return self._at(
            [(run.rows, run.parts.times[place] - run.reads_ms(names)) for run in runs], kind
        )

    def _at(self, points: Sequence[tuple[int, float]], kind: int) -> float:
        """What runs took, of as many rows as are expected."""
        line = line_through([(float(rows), max(0.0, ms)) for rows, ms in points])
        return 0.0 if line is None else line.at(self._rows[kind])

    def _reads(self) -> dict[str, PerKind]:
        """Milliseconds of a read of each side that was read often enough, whatever asked it."""
        every = len(self._graph.kinds)
        names = [piece.name for piece in self._graph.pieces]
        result = {name: self._read_ms(name) for name in names}
        return {name: (ms,) * every for name, ms in result.items() if ms is not None}

    def _read_ms(self, side: str) -> float | None:
        """The mean of its reads; None of too few."""
        took = [
            one.ms
            for run in self._every
            for one in run.parts.reads
            if one.side == side and one.keys
        ]
        return sum(took) / len(took) if len(took) >= FEWEST else None

    def _hits(self) -> dict[str, PerKind]:
        """The chance of a read, for kinds of change that came often enough while it was read."""
        result = {}
        for piece in self._graph.pieces:
            chances = self._chances(piece.name, piece.hit or (1.0,) * len(self._graph.kinds))
            if chances is not None:
                result[piece.name] = chances
        return result

    def _chances(self, side: str, thought: PerKind) -> PerKind | None:
        """What was thought of it counts as one run more: what did not come in three may yet
        come."""
        told = [_asked(runs, side) for runs in self._timed]
        if not any(len(asked) >= FEWEST for asked in told):
            return None
        return tuple(
            (sum(asked) + prior) / (len(asked) + 1) if len(asked) >= FEWEST else prior
            for asked, prior in zip(told, thought, strict=True)
        )

    def _refills(self) -> dict[str, PerKind]:
        """What filling buffers again takes in a run of each kind, where enough were bounded."""
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


def _asked(runs: Sequence[_Timed], side: str) -> list[bool]:
    """Of the runs in which a side was to be read, whether it was."""
    return [one.keys > 0 for run in runs for one in run.parts.reads if one.side == side]


def _alike(
    costs: Sequence[RunCost], kind: KindOfChange, tables: frozenset[TableName]
) -> list[RunCost]:
    """The runs that carried on just what such a change moves of the query's tables."""
    wanted = tuple(sorted(kind.tables & tables))
    return [
        cost
        for cost in costs
        if wanted and cost.kind is RunKind.MAINTAIN and not cost.spark and cost.moved == wanted
    ]


def _bounded(actual: float, estimated: float) -> float:
    """Their ratio, no further from 1 than prior times were ever off."""
    if estimated <= 0:
        return 1.0
    return min(_MOST_TIMES, max(1 / _MOST_TIMES, actual / estimated))
