"""Choose state so that queries meet their bounds, as far as the budget allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from impctl.placement.graph import Graph, PieceMode, restricted
from impctl.placement.search import Modes, StateChoice, choices_of, choose, evaluate
from impctl.service.schedule.due import LEAST_MARGIN
from impctl.service.text import duration_text, size_text
from impctl.types import QueryName, TableName
from impctl.workload.models import QuerySpec
from impctl.workload.scalars import written


def enough_text(size: int) -> str:
    """A budget of at least `size` bytes, rounded up to three digits: at most 1% more."""
    digit = 10 ** max(0, len(str(size)) - 3)
    return size_text(-(-size // digit) * digit)


# Law: only kinds of change with a chance above 5% within a day count, and queries with
# `fresh_within` or `ready_within`. Where such a change is estimated to exceed the bound, with a
# margin, the choice is repeated as if it occurred twice as often, ten times at most. Kinds of
# change that exceed it with any state are ignored. Missed bounds are reported, with the bytes that
# would meet them.

BOUND_IMPOSSIBLE = "bound_impossible"

_LIKELY = 0.05
_REPETITIONS = 10


class Bound(Struct, frozen=True):
    """How long a run for a query may take: milliseconds, and its text in the workload file."""

    ms: float
    text: str


Graphs = Mapping[QueryName, Graph]
Bounds = Mapping[QueryName, Bound]
ModesByQuery = Mapping[QueryName, Modes]


class MissedBound(Struct, frozen=True):
    """A bound that changes of these tables miss: they take `ms`, estimated from `runs`. With
    `enough` bytes for all pieces they would take `enough_ms`; None if no state meets the bound."""

    query: QueryName
    bound: Bound
    tables: tuple[TableName, ...]
    ms: float
    runs: int
    enough: int | None = None
    enough_ms: float = 0.0


Late = tuple[QueryName, int]
"""A query, and a kind of change by number that misses its bound."""


def bounds_of(specs: Iterable[QuerySpec]) -> dict[QueryName, Bound]:
    """The bound of each query that has one, the shorter of two."""
    result = {}
    for spec in specs:
        trigger = spec.trigger
        if trigger is None:
            continue
        limits = {"fresh_within": trigger.fresh_within, "ready_within": trigger.ready_within}
        bounds = [Bound(s * 1000, f"{name} {written(s)}") for name, s in limits.items() if s]
        if bounds:
            result[spec.name] = min(bounds, key=lambda bound: bound.ms)
    return result


def chosen_within(
    graphs: Graphs,
    budget: int | None,
    bounds: Bounds,
    chances: Sequence[float],
    fixed: int = 0,
    now: ModesByQuery = MappingProxyType({}),
) -> tuple[StateChoice, tuple[MissedBound, ...]]:
    """Choose within `budget` bytes, `fixed` of which no choice changes; also returns missed bounds.
    `chances` are the probabilities of each kind of change within a day. Of choices that meet the
    same number of bounds, the one with the least expected work wins. A budget of 0 requests the
    fewest bytes. If the budget is out of reach, what is kept `now` stays, and another piece is
    dropped only if its share of the bytes exceeds its share of the work: work at most doubles."""
    checks = _BoundChecks(graphs, bounds, chances)
    within = _within_reach(graphs, budget, fixed, now)
    best = choice = within(())
    fewest = late = checks.late(modes_of(choice))
    urgency = [1.0] * len(chances)
    for _ in range(_REPETITIONS):
        urged = {kind for name, kind in late if checks.least(name, [kind]) is not None}
        if not urged:
            break
        urgency = [2 * times if kind in urged else times for kind, times in enumerate(urgency)]
        choice = within(urgency)
        late = checks.late(modes_of(choice))
        if (len(late), choice.ms_per_day) < (len(fewest), best.ms_per_day):
            best, fewest = choice, late
    return best, tuple(checks.missed(best, fewest))


def _within_reach(
    graphs: Graphs, budget: int | None, fixed: int, now: ModesByQuery
) -> Callable[[Sequence[float]], StateChoice]:
    """How to choose under this budget, by the urgency of each kind of change."""
    left = None if budget is None else max(0, budget - fixed)
    usual = choose(graphs, left)

    def within(urgency: Sequence[float]) -> StateChoice:
        return choose(graphs, left, urgency=urgency) if urgency else usual

    if not budget or (budget >= fixed and not usual.exceeds):
        return within
    cheapest = choose(graphs, None)
    per_byte = cheapest.ms_per_day / max(1, cheapest.bytes + fixed)
    with_kept = {name: _with_kept(graph, now.get(name, {})) for name, graph in graphs.items()}

    def beyond(urgency: Sequence[float]) -> StateChoice:
        choice = choose(with_kept, None, urgency=urgency, per_byte=per_byte)
        return replace(choice, exceeds=True, least=usual.least)

    return beyond


def _with_kept(graph: Graph, now: Modes) -> Graph:
    kept = {
        piece.name: (PieceMode.KEPT,)
        for piece in graph.pieces
        if now.get(piece.name) is PieceMode.KEPT and PieceMode.KEPT in piece.modes
    }
    return restricted(graph, kept)


def modes_of(choice: StateChoice) -> dict[QueryName, Modes]:
    return {name: query.modes for name, query in choice.queries.items()}


def late_runs(
    graphs: Graphs, modes: ModesByQuery, bounds: Bounds, chances: Sequence[float]
) -> list[Late]:
    return _BoundChecks(graphs, bounds, chances).late(modes)


class _BoundChecks:
    def __init__(self, graphs: Graphs, bounds: Bounds, chances: Sequence[float]) -> None:
        self._graphs = graphs
        self._bounds = {name: bounds[name] for name in graphs if name in bounds}
        self._likely = [kind for kind, chance in enumerate(chances) if chance > _LIKELY]
        self._least: dict[tuple[QueryName, tuple[int, ...]], Modes | None] = {}

    def late(self, modes: ModesByQuery) -> list[Late]:
        return [
            (name, kind)
            for name in self._bounds
            for kind, ms in enumerate(evaluate(self._graphs[name], modes[name]).per_kind)
            if kind in self._likely and self._is_too_long(name, ms)
        ]

    def least(self, name: QueryName, kinds: Sequence[int]) -> Modes | None:
        """Modes with the fewest bytes that meet the bound for these kinds; None if none do."""
        key = (name, tuple(kinds))
        if key not in self._least:
            self._least[key] = self._fewest_bytes(name, kinds)
        return self._least[key]

    def _fewest_bytes(self, name: QueryName, kinds: Sequence[int]) -> Modes | None:
        graph = self._graphs[name]
        # As if nothing else changed, so that more bytes mean less work for these kinds.
        alone = tuple(
            replace(kind, rate=1.0 if number in kinds else 0.0)
            for number, kind in enumerate(graph.kinds)
        )
        frontier = choices_of(Graph(graph.nodes, alone)).frontier
        for point in range(len(frontier)):
            modes = frontier.modes(point)
            costs = evaluate(graph, modes).per_kind
            if not any(self._is_too_long(name, costs[kind]) for kind in kinds):
                return modes
        return None

    def missed(self, choice: StateChoice, late: Sequence[Late]) -> Iterator[MissedBound]:
        for name in dict.fromkeys(name for name, _ in late):
            kinds = [kind for query, kind in late if query == name]
            graph, chosen = self._graphs[name], choice.queries[name]
            costs = evaluate(graph, chosen.modes).per_kind
            kind = max(kinds, key=costs.__getitem__)
            runs = graph.runs[kind] if graph.runs else 0
            tables = tuple(sorted(graph.kinds[kind].tables))
            missed = MissedBound(name, self._bounds[name], tables, costs[kind], runs)
            modes = self.least(name, kinds)
            if modes is not None:
                enough = choice.bytes - chosen.bytes + graph.bytes_of(modes)
                ms = evaluate(graph, modes).per_kind[kind]
                missed = replace(missed, enough=enough, enough_ms=ms)
            yield missed

    def _is_too_long(self, name: QueryName, ms: float) -> bool:
        return LEAST_MARGIN * ms > self._bounds[name].ms


def missed_bound_text(missed: MissedBound, fixed: int) -> str:
    """Describe a missed bound; `fixed` are the bytes that no choice changes."""
    verb = "changes" if len(missed.tables) == 1 else "change"
    by = f" (from {missed.runs} runs)" if missed.runs else ""
    text = (
        f"query `{missed.query}` may miss {missed.bound.text}: when {', '.join(missed.tables)} "
        f"{verb}, maintaining is estimated to take {duration_text(missed.ms)}{by} with the "
        "state that is stored"
    )
    if missed.enough is None:
        return f"{text}, and would take too long with all of it [{BOUND_IMPOSSIBLE}]"
    return (
        f"{text}; with {enough_text(missed.enough + fixed)} of state for all queries it would "
        f"take {duration_text(missed.enough_ms)} [{BOUND_IMPOSSIBLE}]"
    )
