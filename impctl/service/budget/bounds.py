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

# Sizes that are told as enough. Law: what is told is never less than what is needed, and at most
# a hundredth more.


def enough_text(size: int) -> str:
    """A budget for so many bytes: three digits, rounded up."""
    digit = 10 ** max(0, len(str(size)) - 3)
    return size_text(-(-size // digit) * digit)


# The choice of state under which queries hold their bounds, as far as the budget lets them. Law:
# looked at are kinds of change that come within a day with a chance of 5%, and queries with
# `fresh_within` or `ready_within`. Where such a change is estimated to take longer than the
# bound, with a margin, the choice is made as if it came twice as often, ten times at most. No
# kind of change is urged that would take too long whatever is kept. What is not held is told,
# with the bytes that would do.

BOUND_IMPOSSIBLE = "bound_impossible"

_LIKELY = 0.05
"""A kind of change counts if its probability within a day is higher."""
_TIMES = 10


class Bound(Struct, frozen=True):
    """How long a run for a query may take: milliseconds, and the workload file's text."""

    ms: float
    text: str


Graphs = Mapping[QueryName, Graph]
Bounds = Mapping[QueryName, Bound]
ModesByQuery = Mapping[QueryName, Modes]


class MissedBound(Struct, frozen=True):
    """A bound that changes of these tables miss, taking `ms` with the choice. `enough` are bytes of
    all pieces that would meet it, in `enough_ms`; None if nothing would."""

    query: QueryName
    bound: Bound
    tables: tuple[TableName, ...]
    ms: float
    runs: int
    enough: int | None = None
    enough_ms: float = 0.0


Late = tuple[QueryName, int]


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
    """Choose within so many bytes; also returns the bounds that are missed. `chances` are the
    probabilities of the graphs' kinds of change within a day; `fixed` are bytes of the budget that
    no choice changes. Of choices that meet as many bounds, the one with the least expected work
    wins. A budget of 0 requests the fewest bytes. If a budget is out of reach, what is kept `now`
    stays, and another piece is dropped only if its share of all bytes is larger than the share it
    adds to the work: the work at most doubles."""
    checks = _BoundChecks(graphs, bounds, chances)
    within = _within_reach(graphs, budget, fixed, now)
    best = choice = within(())
    fewest = late = checks.late({name: one.modes for name, one in choice.queries.items()})
    urgency = [1.0] * len(chances)
    for _ in range(_TIMES):
        urged = {kind for name, kind in late if checks.least(name, [kind]) is not None}
        if not urged:
            break
        urgency = [2 * times if kind in urged else times for kind, times in enumerate(urgency)]
        choice = within(urgency)
        late = checks.late({name: one.modes for name, one in choice.queries.items()})
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
    held = {name: _with_kept(graph, now.get(name, {})) for name, graph in graphs.items()}

    def beyond(urgency: Sequence[float]) -> StateChoice:
        choice = choose(held, None, urgency=urgency, per_byte=per_byte)
        return replace(choice, exceeds=True, least=usual.least)

    return beyond


def _with_kept(graph: Graph, now: Modes) -> Graph:
    kept = [piece for piece in graph.pieces if now.get(piece.name) is PieceMode.KEPT]
    return restricted(
        graph, {one.name: (PieceMode.KEPT,) for one in kept if PieceMode.KEPT in one.modes}
    )


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
        # As if nothing else changed: then more bytes mean less work for these alone.
        alone = tuple(
            replace(kind, rate=1.0 if at in kinds else 0.0) for at, kind in enumerate(graph.kinds)
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
            unheld = MissedBound(name, self._bounds[name], tables, costs[kind], runs)
            modes = self.least(name, kinds)
            if modes is not None:
                enough = choice.bytes - chosen.bytes + graph.bytes_of(modes)
                ms = evaluate(graph, modes).per_kind[kind]
                unheld = replace(unheld, enough=enough, enough_ms=ms)
            yield unheld

    def _is_too_long(self, name: QueryName, ms: float) -> bool:
        return LEAST_MARGIN * ms > self._bounds[name].ms


def missed_bound_text(one: MissedBound, fixed: int) -> str:
    """Describe a missed bound; `fixed` are bytes of state without a choice."""
    verb = "changes" if len(one.tables) == 1 else "change"
    by = f" (from {one.runs} runs)" if one.runs else ""
    text = (
        f"query `{one.query}` may miss {one.bound.text}: when {', '.join(one.tables)} "
        f"{verb}, maintaining is estimated to take {duration_text(one.ms)}{by} with the "
        "state that is stored"
    )
    if one.enough is None:
        return f"{text}, and would take too long with all of it [{BOUND_IMPOSSIBLE}]"
    return (
        f"{text}; with {enough_text(one.enough + fixed)} of state for all queries it would "
        f"take {duration_text(one.enough_ms)} [{BOUND_IMPOSSIBLE}]"
    )
