"""What is worth keeping of all queries under the budget, by what is expected to change.

Law: a pure choice of what stored state, recorded runs and histories tell; nothing is written. Sides
of queries whose constants move with the clock, those that the workload pins (`join: index`,
`files`, `spark`, `state`, `buffer`), trees, groupings that cannot be read
(`compile.flows`) and kept answers are kept as they are; of the other sides and groupings
each is kept or read, whole where no key narrows what is read. First rows, and groupings with MIN or
MAX, may be bounded where their buffers can be filled again (`keeping.buffers`).
Out of scope: the algorithm (`placement`), what runs tell (`keeping.learned_prices`),
carrying it out (`keeping.conversion`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from impctl.app.maintaining.expected import Expectations, expectations
from impctl.app.maintaining.keeping.bounds import Unheld, bounds_of, chosen_within, late_runs
from impctl.app.maintaining.keeping.conversion import Wanted
from impctl.app.maintaining.keeping.learned_prices import learned_of
from impctl.app.maintaining.keeping.numbers import numbers_of, rows_of_change
from impctl.app.maintaining.keeping.opened import Opened, opened, state_bytes
from impctl.app.maintaining.kinds import Expected
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.memory_limit import largest_side, memory_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import SideChoice, Strategy
from impctl.errors import ImpctlError, RecaptureNeededError
from impctl.placement.graph import Graph, KindOfChange, Mode, Piece, graph_of, restricted
from impctl.placement.options import conversion_ms, priced
from impctl.placement.search import Modes, StateChoice
from impctl.store.reader import StoreReader
from impctl.types import QueryName
from impctl.values import dataclass
from impctl.workload.models import JoinStrategy, QuerySpec, StateKept

_ALLOWED = (Mode.KEPT, Mode.READ, Mode.BOUNDED)
"""What the engine carries out today."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The queries that were weighed, what was chosen, and bytes that no choice changes.

    By query, `graphs` are what they were weighed by, `now` how pieces are kept as it stands, and
    `conversions` the milliseconds that bring each to another mode; `sizes` of how many rows or
    values buffers are where pieces are bounded. `unheld` are bounds that the
    choice does not hold; it `holds_more` of them than what is kept now.
    `troubles` says of queries that could not be opened why; their state counts as it is.
    """

    queries: Mapping[QueryName, Opened]
    choice: StateChoice
    fixed: int
    troubles: Mapping[QueryName, str]
    graphs: Mapping[QueryName, Graph]
    now: Mapping[QueryName, Modes]
    conversions: Mapping[QueryName, Mapping[str, Mapping[Mode, float]]]
    sizes: Mapping[QueryName, Mapping[str, int]] = field(default_factory=dict)
    unheld: Sequence[Unheld] = ()
    holds_more: bool = False
    budget: int | None = None

    @property
    def is_out_of_reach(self) -> bool:
        """Whether even the least exceeds the budget; one of 0 asks for the least."""
        return bool(self.budget) and self.choice.exceeds

    def wanted(self, query: QueryName) -> Wanted:
        """What of a query is to be read from files, or bounded; Spark's sides stay Spark's, and
        what is read and no choice stays read."""
        modes = self.choice.queries[query].modes
        compiled = self.queries[query].compiled
        by_spark = compiled.sides_by(Strategy.SPARK)
        read = [name for name, mode in modes.items() if mode is Mode.READ]
        read += [name for name in compiled.sides_by(Strategy.FILES) if name not in modes]
        sizes = self.sizes[query]
        bounded = {name: sizes[name] for name, mode in modes.items() if mode is Mode.BOUNDED}
        return Wanted(tuple(name for name in read if name not in by_spark), bounded)


Choose = Callable[[Mapping[QueryName, Graph], int | None], StateChoice]
"""A way to choose modes for all pieces of these queries within so many bytes."""


def kept_within(
    desk: Workbench,
    store: StoreReader,
    specs: Sequence[QuerySpec],
    budget: int | None,
    coming: Expectations | None = None,
    choose: Choose | None = None,
) -> Kept:
    """The choice for all of these queries that are stored.

    `coming` is what to expect of at least their tables, where that is known already; `choose` takes
    the place of the choice that holds bounds, and looks at none.
    """
    queries, troubles, fixed = _all_opened(desk, store, specs)
    tables = {table for one in queries.values() for table in one.stored.versions}
    if coming is None:
        coming = expectations(desk, store, sorted(tables))
    weighed = _Weighed(desk, store, coming.expected(tables))
    by_priors = {name: weighed.by_priors(query) for name, query in queries.items()}
    now = {name: modes_now(query, by_priors[name]) for name, query in queries.items()}
    graphs = {
        name: weighed.graph(query, by_priors[name], now[name]) for name, query in queries.items()
    }
    for name, query in queries.items():
        pieces = {piece.name for piece in graphs[name].pieces}
        fixed += sum(size.bytes for at, size in query.sizes.items() if not _is_of(at, pieces))
    bounds, chances = bounds_of(specs), weighed.chances
    if choose is None:
        choice, unheld = chosen_within(graphs, budget, bounds, chances, fixed, now)
    else:
        left = None if budget is None else max(0, budget - fixed)
        choice, unheld = choose(graphs, left), ()
    then = {name: one.modes for name, one in choice.queries.items()}
    late, late_now = (len(late_runs(graphs, modes, bounds, chances)) for modes in (then, now))
    conversions = {name: conversion_ms(graph) for name, graph in by_priors.items()}
    holds_more = late < late_now
    return Kept(
        queries,
        choice,
        fixed,
        troubles,
        graphs,
        now,
        conversions,
        {name: weighed.sizes(query) for name, query in queries.items()},
        unheld,
        holds_more,
        budget,
    )


def graphs_of(
    desk: Workbench,
    store: StoreReader,
    queries: Mapping[QueryName, Opened],
    expected: Sequence[Expected],
) -> dict[QueryName, Graph]:
    """The queries as the choice sees them, where these kinds of change are expected."""
    weighed = _Weighed(desk, store, expected)
    result = {}
    for name, query in queries.items():
        by_priors = weighed.by_priors(query)
        result[name] = weighed.graph(query, by_priors, modes_now(query, by_priors))
    return result


def _all_opened(
    desk: Workbench, store: StoreReader, specs: Sequence[QuerySpec]
) -> tuple[dict[QueryName, Opened], dict[QueryName, str], int]:
    """The queries to choose about, why others could not be opened, and the bytes of all others."""
    queries: dict[QueryName, Opened] = {}
    troubles: dict[QueryName, str] = {}
    fixed = 0
    for spec in specs:
        try:
            result = _opened(desk, store, spec)
        except ImpctlError as trouble:
            # Another run tells of it by its exit code: this one is over, and did what it was for.
            troubles[spec.name], result = trouble.message, None
        if result is None:
            fixed += state_bytes(store, [spec.name])
        else:
            queries[spec.name] = result
    return queries, troubles, fixed


def _opened(desk: Workbench, store: StoreReader, spec: QuerySpec) -> Opened | None:
    """The query; None where nothing of its state is to be chosen about."""
    stored = store.load(spec.name)
    try:
        return None if stored is None else opened(desk, store, spec, stored)
    except RecaptureNeededError:
        # Its state goes with the next capture.
        return None


class _Weighed:
    """Queries as the choice sees them, by what is expected."""

    def __init__(self, desk: Workbench, store: StoreReader, expected: Sequence[Expected]) -> None:
        self._desk = desk
        self._store = store
        self._expected = expected
        self._kinds = tuple(KindOfChange(one.tables, one.per_day) for one in expected)
        self.chances = [one.chance for one in expected]
        self._sizes: dict[QueryName, dict[str, int]] = {}

    def by_priors(self, query: Opened) -> Graph:
        numbers = numbers_of(query, self._desk.tables, self._expected)
        sizes = {name: one.size for name, one in numbers.bounded.items()}
        self._sizes[query.stored.query] = sizes
        return graph_of(query.compiled, self._kinds, numbers, allowed=_ALLOWED)

    def sizes(self, query: Opened) -> Mapping[str, int]:
        """The buffers of a query that was weighed, where it is bounded."""
        return self._sizes[query.stored.query]

    def graph(self, query: Opened, by_priors: Graph, now: Modes) -> Graph:
        """The same by what recorded runs tell, with the pieces pinned that are no choice."""
        tables = query.stored.versions
        rows = [rows_of_change(one, tables) for one in self._expected]
        costs = self._store.costs(query.stored.query)
        layout = query.as_stored.meta.layout
        graph = priced(by_priors, learned_of(by_priors, tables, now, costs, rows, layout))
        prepared = query.as_stored.prepared
        allowed = {
            piece.name: _allowed(query, piece, prepared)
            for piece in graph.pieces
            if len(piece.modes) > 1
        }
        fits = largest_side(memory_of(self._desk.settings, self._desk.workload))
        for piece in graph.pieces:
            mode = now[piece.name]
            is_open = mode in allowed.get(piece.name, ()) and len(allowed[piece.name]) > 1
            is_built = mode is Mode.READ and piece.is_whole
            if mode is Mode.KEPT or is_built or not is_open:
                continue
            if _is_more(piece.sizes[Mode.KEPT], fits):
                # There may not be enough memory to build it; what is kept needs none, and what is
                # rebuilt as much each time.
                allowed[piece.name] = (mode,)
        return restricted(graph, allowed)


def _is_more(size: int, most: int | None) -> bool:
    return most is not None and size > most


def _asked(prepared: PreparedQuery) -> JoinStrategy:
    """How the workload has the query's joins find partners, whatever the budget."""
    spec = prepared.spec
    # Constants that move with the clock may stand above a join, and move through what is kept.
    is_moving = prepared.moves_above and spec.join is JoinStrategy.AUTO
    if is_moving or spec.state is StateKept.KEEP:
        return JoinStrategy.INDEX
    return JoinStrategy.FILES if spec.state is StateKept.LEAST else spec.join


def _asked_of_groups(prepared: PreparedQuery) -> JoinStrategy:
    """The same of groups: kept where constants move, which may be above them."""
    if prepared.moves_above or _asked(prepared) is JoinStrategy.INDEX:
        return JoinStrategy.INDEX
    return JoinStrategy.FILES if prepared.spec.state is StateKept.LEAST else JoinStrategy.AUTO


def modes_now(query: Opened, graph: Graph) -> dict[str, Mode]:
    """How each piece of the query's state is kept as it stands."""
    read = set(query.compiled.sides_by(Strategy.FILES) + query.compiled.sides_by(Strategy.SPARK))
    now = dict.fromkeys((piece.name for piece in graph.pieces), Mode.KEPT)
    now |= dict.fromkeys(query.as_stored.meta.buffers, Mode.BOUNDED)
    return now | dict.fromkeys(read, Mode.READ)


def _allowed(query: Opened, piece: Piece, prepared: PreparedQuery) -> tuple[Mode, ...]:
    """The modes of a piece that the engine carries out and the workload leaves open."""
    compiled = query.compiled
    is_side = any(one.side == piece.name for one in compiled.sides)
    asked = _asked(prepared) if is_side else _asked_of_groups(prepared)
    side = next((one for one in compiled.pieces if one.side == piece.name), None)
    is_least = prepared.spec.state is StateKept.LEAST
    pinned = _pinned_mode(side, asked, is_least=is_least)
    modes = {Mode.KEPT, Mode.READ} if pinned is None else {pinned}
    is_left = pinned is Mode.KEPT or piece.is_whole
    if Mode.BOUNDED in piece.modes and asked is JoinStrategy.FILES and is_left:
        modes = {Mode.BOUNDED}
    elif asked is JoinStrategy.AUTO:
        modes.add(Mode.BOUNDED)
    return tuple(mode for mode in piece.modes if mode in modes)


def _pinned_mode(side: SideChoice | None, asked: JoinStrategy, *, is_least: bool) -> Mode | None:
    """What a piece is pinned to, by the workload or since the engine reads no such piece; None
    where it may be chosen. What is read whole is left out where the least is asked for alone."""
    if side is None or Strategy.FILES not in side.readers or asked is JoinStrategy.INDEX:
        return Mode.KEPT
    is_asked = asked is JoinStrategy.FILES and (is_least or not side.is_whole)
    if side.strategy is Strategy.SPARK or is_asked:
        return Mode.READ
    return None


def _is_of(stored: str, pieces: set[str]) -> bool:
    """Whether a stored arrangement belongs to one of the pieces, by their names."""
    parts = stored.split(".")
    return any(".".join(parts[:count]) in pieces for count in range(1, len(parts) + 1))
