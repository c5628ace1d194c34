"""What is worth keeping of all queries under the budget, by what is expected to change.

Law: a pure choice of what stored state and histories tell; nothing is written. Sides of queries
whose constants move with the clock, those that the workload pins (`join: index`, `files`, `spark`),
trees, groupings that cannot be read (`circuits.reading.groups`), kept answers and first rows are
kept as they are; of the other sides and groupings each is kept or read.
Out of scope: the algorithm (`circuits.keeping`), carrying it out (`keeping.conversion`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from impctl.aliases import QueryName
from impctl.app.maintaining.expected import expectations
from impctl.app.maintaining.keeping.numbers import numbers_of
from impctl.app.maintaining.keeping.opened import Opened, opened, state_bytes
from impctl.app.maintaining.kinds import Expected
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.keeping.choice import StateChoice, choose
from impctl.circuits.keeping.graph import Graph, KindOfChange, Mode, pinned
from impctl.circuits.keeping.graph_of import graph_of
from impctl.circuits.strategy import SideChoice, Strategy
from impctl.errors import ImpctlError, RecaptureNeededError
from impctl.store.reader import StoreReader
from impctl.values import dataclass
from impctl.workload.models import JoinStrategy, QuerySpec

_ALLOWED = (Mode.KEPT, Mode.READ)
"""What the engine carries out today."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The queries that were weighed, what was chosen, and bytes that no choice changes.

    `troubles` says of queries that could not be opened why; their state counts as it is.
    """

    queries: Mapping[QueryName, Opened]
    choice: StateChoice
    fixed: int
    troubles: Mapping[QueryName, str]

    def from_files(self, query: QueryName) -> tuple[str, ...]:
        """What of a query is to be read from files; Spark's sides stay Spark's."""
        pieces = self.choice.queries[query].pieces.values()
        by_spark = self.queries[query].compiled.sides_by(Strategy.SPARK)
        read = (piece.name for piece in pieces if piece.mode is Mode.READ)
        return tuple(name for name in read if name not in by_spark)


Choose = Callable[[Mapping[QueryName, Graph], int | None], StateChoice]
"""A way to choose modes for all pieces of these queries within so many bytes."""


def kept_within(
    desk: Workbench,
    store: StoreReader,
    specs: Sequence[QuerySpec],
    budget: int | None,
    choose: Choose = choose,
) -> Kept:
    """The choice for all of these queries that are stored."""
    queries: dict[QueryName, Opened] = {}
    troubles: dict[QueryName, str] = {}
    fixed = 0
    for spec in specs:
        try:
            found = _opened(desk, store, spec)
        except ImpctlError as trouble:
            # Another run tells of it by its exit code: this one is over, and did what it was for.
            troubles[spec.name], found = trouble.message, None
        if found is None:
            fixed += state_bytes(store, [spec.name])
        else:
            queries[spec.name] = found
    tables = {table for one in queries.values() for table in one.stored.versions}
    expected = expectations(desk, store, sorted(tables)).expected(tables)
    graphs = graphs_of(desk, queries, expected)
    for name, query in queries.items():
        pieces = {piece.name for piece in graphs[name].pieces}
        fixed += sum(size.bytes for at, size in query.sizes.items() if not _is_of(at, pieces))
    left = None if budget is None else max(0, budget - fixed)
    return Kept(queries, choose(graphs, left), fixed, troubles)


def graphs_of(
    desk: Workbench, queries: Mapping[QueryName, Opened], expected: Sequence[Expected]
) -> dict[QueryName, Graph]:
    """The queries as the choice sees them, where these kinds of change are expected."""
    kinds = tuple(KindOfChange(one.tables, one.per_day) for one in expected)
    return {name: _graph(desk, query, kinds, expected) for name, query in queries.items()}


def _opened(desk: Workbench, store: StoreReader, spec: QuerySpec) -> Opened | None:
    """The query; None where nothing of its state is to be chosen about."""
    stored = store.load(spec.name)
    try:
        return None if stored is None else opened(desk, store, spec, stored)
    except RecaptureNeededError:
        # Its state goes with the next capture.
        return None


def _graph(
    desk: Workbench, query: Opened, kinds: tuple[KindOfChange, ...], expected: Sequence[Expected]
) -> Graph:
    numbers = numbers_of(query, desk.tables, expected)
    graph = graph_of(query.compiled, kinds, numbers, allowed=_ALLOWED)
    sides = {choice.side: choice for choice in query.compiled.pieces}
    prepared = query.as_stored.prepared
    # Constants that move with the clock may stand above a join, or groups, and move through what
    # is kept.
    is_moving = prepared.moments and prepared.spec.join is JoinStrategy.AUTO
    asked = JoinStrategy.INDEX if is_moving else prepared.spec.join
    keeps_groups = prepared.moments or asked is JoinStrategy.INDEX
    of_groups = JoinStrategy.INDEX if keeps_groups else JoinStrategy.AUTO
    groupings = {choice.side for choice in query.compiled.groupings}
    held = {
        piece.name: _pinned_mode(
            sides.get(piece.name), of_groups if piece.name in groupings else asked
        )
        for piece in graph.pieces
        if len(piece.modes) > 1
    }
    return pinned(graph, {name: mode for name, mode in held.items() if mode is not None})


def _pinned_mode(side: SideChoice | None, asked: JoinStrategy) -> Mode | None:
    """What a piece is pinned to, by the workload or since the engine reads no such piece; None
    where it may be chosen."""
    if side is None or Strategy.FILES not in side.readers or asked is JoinStrategy.INDEX:
        return Mode.KEPT
    if side.strategy is Strategy.SPARK or asked is JoinStrategy.FILES:
        return Mode.READ
    return None


def _is_of(stored: str, pieces: set[str]) -> bool:
    """Whether a stored arrangement belongs to one of the pieces, by their names."""
    parts = stored.split(".")
    return any(".".join(parts[:count]) in pieces for count in range(1, len(parts) + 1))
