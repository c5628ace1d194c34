"""The choice of state, asked from outside: queries and a budget in, modes and reasons out.

Law: a pure function of its arguments. Reads that several queries make of the same tables in one run
are no part of the sum that is minimised; the choice is made once more with each read divided by
the queries that asked for it the first time, and the one of the two that is truly cheaper is given.
Out of scope: rates and sizes (`graph_of`, and who calls it), converting state, hysteresis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from impctl.bench.quantity import number
from impctl.circuits.keeping.evaluated import Modes, evaluate, per_day_together
from impctl.circuits.keeping.graph import Graph, KindOfChange, Mode, Node, PerKind, Piece, Work
from impctl.circuits.keeping.many_queries import divided
from impctl.circuits.keeping.state_choice import THIN, Choices, choices_of
from impctl.types import TableName
from impctl.values import dataclass

_Sharers = Mapping[tuple[tuple[TableName, ...], int], int]
"""How many queries read the same tables in runs of a kind of change."""


@dataclass(frozen=True, slots=True)
class PieceChoice:
    """What was chosen for one piece: bytes now and if kept, and why."""

    name: str
    mode: Mode
    bytes: int
    kept_bytes: int | None
    """None where it may not be kept."""
    reason: str


@dataclass(frozen=True, slots=True)
class QueryChoice:
    """What was chosen for one query: its pieces, bytes, and milliseconds a day, reads not shared.

    `is_exact` says that all its choices were weighed, so that of as many bytes none is cheaper but
    for what points were thinned by; else a good one was found, approximately.
    """

    pieces: Mapping[str, PieceChoice]
    bytes: int
    ms_per_day: float
    is_exact: bool

    @property
    def modes(self) -> Modes:
        """The mode of each piece, by its name."""
        return {name: piece.mode for name, piece in self.pieces.items()}


@dataclass(frozen=True, slots=True)
class StateChoice:
    """The choice for all queries: bytes, and milliseconds a day that maintaining is to take.

    Where it `exceeds` the budget, nothing fits: `least` are the fewest bytes that will do. A byte
    that was kept counted for so many milliseconds a day, `per_byte`.
    """

    queries: Mapping[str, QueryChoice]
    bytes: int
    ms_per_day: float
    exceeds: bool
    least: int = 0
    per_byte: float = 0.0


def choose(
    queries: Mapping[str, Graph],
    budget_bytes: int | None,
    *,
    thin: float = THIN,
    urgency: Sequence[float] = (),
    per_byte: float = 0.0,
) -> StateChoice:
    """The modes of all pieces of all queries within a budget of bytes; None is without bounds.

    Without bounds a byte that is kept may count for some milliseconds a day, `per_byte`.

    All graphs have the same kinds of change. Raises ValueError where they have not, or where the
    budget is below zero. With an `urgency` for each kind it is chosen as if that came so many times
    as often; what is told of the choice goes by how often it comes.
    """
    given = list(queries.values())
    if len({graph.kinds for graph in given}) > 1:
        raise ValueError("queries are expected to change in different ways")
    if budget_bytes is not None and budget_bytes < 0:
        raise ValueError("a budget below zero")
    graphs = [_urged(graph, urgency) for graph in given] if urgency else given
    result = [choices_of(graph, thin=thin) for graph in graphs]
    modes = _within(graphs, result, budget_bytes, per_byte)
    repriced = _repriced(graphs, modes)
    if repriced is not None:
        again = [choices_of(graph, thin=thin) for graph in repriced]
        other = _within(graphs, again, budget_bytes, per_byte)
        modes = min(modes, other, key=lambda one: _rank(graphs, one, budget_bytes, per_byte))
    exact = [choices.is_exact for choices in result]
    choice = told(queries, dict(zip(queries, modes, strict=True)), budget_bytes, exact)
    least = sum(int(choices.frontier.bytes[0]) for choices in result)
    return replace(choice, least=least, per_byte=per_byte)


def told(
    queries: Mapping[str, Graph],
    modes: Mapping[str, Modes],
    budget_bytes: int | None,
    exact: Sequence[bool],
) -> StateChoice:
    """What these modes of all pieces come to, and why each has its mode; `exact` is by query."""
    chosen = {
        name: _told(graph, modes[name], is_exact=is_exact)
        for (name, graph), is_exact in zip(queries.items(), exact, strict=True)
    }
    total = sum(one.bytes for one in chosen.values())
    exceeds = budget_bytes is not None and total > budget_bytes
    graphs, every = list(queries.values()), [modes[name] for name in queries]
    return StateChoice(chosen, total, per_day_together(graphs, every), exceeds)


def _urged(graph: Graph, urgency: Sequence[float]) -> Graph:
    kinds = tuple(
        replace(kind, rate=kind.rate * times)
        for kind, times in zip(graph.kinds, urgency, strict=True)
    )
    return Graph(graph.nodes, kinds, graph.runs)


def _within(
    graphs: Sequence[Graph], choices: Sequence[Choices], budget: int | None, per_byte: float
) -> list[Modes]:
    frontiers = [one.frontier for one in choices]
    if not frontiers:
        return []
    if per_byte:
        return [each.modes(int((each.cost + per_byte * each.bytes).argmin())) for each in frontiers]
    most = sum(int(frontier.bytes[-1]) for frontier in frontiers)
    points = divided(frontiers, most if budget is None else min(budget, most))
    return [frontier.modes(at) for frontier, at in zip(frontiers, points, strict=True)]


def _rank(
    graphs: Sequence[Graph], modes: list[Modes], budget: int | None, per_byte: float
) -> tuple[int, float]:
    """Bytes over the budget first, then cost."""
    total = sum(graph.bytes_of(one) for graph, one in zip(graphs, modes, strict=True))
    over = 0 if budget is None else max(0, total - budget)
    return over, per_day_together(graphs, modes) + per_byte * total


def _repriced(graphs: Sequence[Graph], modes: Sequence[Modes]) -> list[Graph] | None:
    """The graphs with reads divided among who made them; None where nobody shares one."""
    count: dict[tuple[tuple[TableName, ...], int], int] = {}
    for graph, chosen in zip(graphs, modes, strict=True):
        for kind, reads in enumerate(evaluate(graph, chosen).reads):
            for source, cost in reads.items():
                if source and cost > 0:
                    count[source, kind] = count.get((source, kind), 0) + 1
    if all(number < 2 for number in count.values()):
        return None
    return [
        Graph(tuple(_shared_reads(node, count) for node in graph.nodes), graph.kinds, graph.runs)
        for graph in graphs
    ]


def _shared_reads(node: Node, count: _Sharers) -> Node:
    if node.work is Work.SCAN:
        source = (node.table,)
        keys, whole = (_divided(costs, source, count) for costs in (node.keys, node.whole))
        return replace(node, keys=keys, whole=whole)
    return replace(node, pieces=tuple(_shared_piece(piece, count) for piece in node.pieces))


def _shared_piece(piece: Piece, count: _Sharers) -> Piece:
    if piece.reads_below or not piece.source:
        return piece
    return replace(piece, read=_divided(piece.read, piece.source, count))


def _divided(costs: PerKind, source: tuple[TableName, ...], count: _Sharers) -> PerKind:
    return tuple(cost / count.get((source, kind), 1) for kind, cost in enumerate(costs))


def _told(graph: Graph, modes: Modes, *, is_exact: bool) -> QueryChoice:
    costs = evaluate(graph, modes).per_kind
    pieces = {}
    for node in graph.nodes:
        for piece in node.pieces:
            mode = modes[piece.name]
            reason = _reason(graph, modes, costs, piece)
            kept = piece.sizes.get(Mode.KEPT)
            pieces[piece.name] = PieceChoice(piece.name, mode, piece.sizes[mode], kept, reason)
    return QueryChoice(pieces, graph.bytes_of(modes), _day(graph, costs), is_exact)


def _reason(graph: Graph, modes: Modes, mine: Sequence[float], piece: Piece) -> str:
    """Why a piece has its mode: what the next best, or keeping it, would change."""
    mode = modes[piece.name]
    if len(piece.modes) == 1:
        return "nothing can replace it" if mode is Mode.KEPT else "requested"
    if mode is Mode.KEPT:
        others = [other for other in piece.modes if other is not Mode.KEPT]
        costs = {other: evaluate(graph, {**modes, piece.name: other}) for other in others}
        best = min(others, key=lambda other: _day(graph, costs[other].per_kind))
        when = f"if it is {piece.word(best)}"
        return _difference(graph, costs[best].per_kind, mine, when, "costs nothing more")
    if Mode.KEPT not in piece.modes:
        return "it cannot be kept"
    kept = evaluate(graph, {**modes, piece.name: Mode.KEPT}).per_kind
    nothing = "no change exhausts it" if mode is Mode.BOUNDED else "no change needs it"
    return _difference(graph, mine, kept, f"because it is {piece.word(mode)}", nothing)


def _day(graph: Graph, costs: Sequence[float]) -> float:
    return sum(kind.rate * cost for kind, cost in zip(graph.kinds, costs, strict=True))


def _difference(
    graph: Graph, dear: Sequence[float], cheap: Sequence[float], when: str, nothing: str
) -> str:
    """The kind of change that makes most of a difference in cost, and what each run adds."""
    daily = [
        kind.rate * (one - other) for kind, one, other in zip(graph.kinds, dear, cheap, strict=True)
    ]
    at = max(range(len(daily)), key=daily.__getitem__, default=None)
    if at is None or daily[at] <= 0:
        return nothing
    more = dear[at] - cheap[at]
    told = f" (from {graph.runs[at]} runs)" if graph.runs and graph.runs[at] else ""
    return f"{_named(graph.kinds[at])}, and each change takes {number(more)} ms more {when}{told}"


def _named(kind: KindOfChange) -> str:
    tables = ", ".join(sorted(kind.tables))
    verb = "changes" if len(kind.tables) == 1 else "change"
    if kind.rate == 1:
        return f"{tables} {verb} once a day"
    if kind.rate > 1:
        return f"{tables} {verb} {number(kind.rate)} times a day"
    return f"{tables} {verb} once every {number(1 / kind.rate)} days"
