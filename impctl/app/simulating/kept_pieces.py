"""What is kept of the queries' state in each setting, and what a step takes more for that.

Law: under a budget that is chosen which has the least expected work, by the graphs and prices of
`keep_to_budget`, for what is replayed; bounds of queries urge it, and the state as it is now stays
where another choice would not be carried out, as there. It is chosen once, before the replay: that
rates move meanwhile is not looked at. A step takes what the choice says that its kind of change
does, above what it says of the state as it is now, under which the runs were recorded. Rows beyond
those of one change make reads likelier: prices are asked for changes of several sizes, and lie
between them on lines.
Out of scope: the choice itself (`placement`), recorded runs (`simulating.lines`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import inf

from impctl.app.maintaining.expected import Expectations
from impctl.app.maintaining.keeping.bounds import Bound, chosen_within, late_runs
from impctl.app.maintaining.keeping.choice import Kept, graphs_of, kept_within
from impctl.app.maintaining.keeping.numbers import rows_of_change
from impctl.app.maintaining.keeping.worth import is_worth
from impctl.app.maintaining.kinds import Expected
from impctl.app.simulating.arrived import Replay
from impctl.app.workbench.workbench import Workbench
from impctl.placement.graph import Graph, Mode, Node, Piece, Work
from impctl.placement.search import Modes, evaluate
from impctl.store.reader import StoreReader
from impctl.types import QueryName, TableName
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

Tables = frozenset[TableName]

_Asked = tuple[int | None, tuple[tuple[QueryName, float], ...]]
"""A budget, and the milliseconds of each bound."""

_SCALES = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)
"""Sizes of changes that prices are asked for, times what is expected."""


@dataclass(frozen=True, slots=True)
class Price:
    """Of a kind of change, by its rows, which never fall: milliseconds, those above the state as it
    is, and reads."""

    rows: tuple[float, ...]
    ms: tuple[float, ...]
    more_ms: tuple[float, ...]
    reads: tuple[float, ...]


Prices = Mapping[QueryName, Mapping[Tables, Price]]
"""Of each query, by the tables that move."""


@dataclass(frozen=True)
class Choice:
    """The modes of all pieces under one budget; `bytes` are those of all state.

    `prices` are one object for all choices of the same modes. `conversions` counts queries that are
    kept otherwise now.
    """

    prices: Prices
    bytes: int
    exceeds: bool
    conversions: int


@dataclass(frozen=True)
class Pieces:
    """The queries whose state can be chosen, and their graphs for changes of all sizes."""

    kept: Kept
    expected: tuple[Expected, ...]
    graphs: tuple[Mapping[QueryName, Graph], ...]
    now: Mapping[QueryName, Modes]
    _modes: dict[_Asked, Mapping[QueryName, Modes]] = field(default_factory=dict)
    _costs_now: dict[QueryName, Sequence[tuple[float, ...]]] = field(default_factory=dict)
    _prices_of: list[tuple[Mapping[QueryName, Modes], Prices]] = field(default_factory=list)

    def within(self, budget: int | None, bounds: Mapping[QueryName, Bound]) -> Choice:
        """The choice under a budget, None keeps all; `bounds` are those of the queries."""
        asked = (budget, tuple(sorted((name, bound.ms) for name, bound in bounds.items())))
        if asked not in self._modes:
            self._modes[asked] = self._modes_within(budget, bounds)
        return self._choice(self._modes[asked], budget)

    def as_run(self, budget: int | None, bounds: Mapping[QueryName, Bound]) -> Choice:
        """The state as it is now; where that is over a budget, what is chosen in its place.

        That a run converts within the budget, where that pays, is not replayed.
        """
        now = self._choice(self.now, budget)
        return self.within(budget, bounds) if now.exceeds else now

    @cached_property
    def _usual(self) -> Mapping[QueryName, Graph]:
        return self.graphs[_SCALES.index(1.0)]

    def _modes_within(
        self, budget: int | None, bounds: Mapping[QueryName, Bound]
    ) -> Mapping[QueryName, Modes]:
        if budget is None:
            return {
                name: {piece.name: _kept_of(piece) for piece in graph.pieces}
                for name, graph in self._usual.items()
            }
        graphs, chances = self._usual, [one.chance for one in self.expected]
        fixed = self.kept.fixed
        choice, unheld = chosen_within(graphs, budget, bounds, chances, fixed, self.now)
        then = {name: one.modes for name, one in choice.queries.items()}
        late, late_now = (
            len(late_runs(graphs, modes, bounds, chances)) for modes in (then, self.now)
        )
        weighed = replace(
            self.kept,
            choice=choice,
            graphs=graphs,
            now=self.now,
            unheld=unheld,
            holds_more=late < late_now,
            budget=budget,
        )
        is_over = self._choice(self.now, budget).exceeds
        # What may not be kept as it is now goes with the first run, whatever it saves.
        is_asked = any(self.kept.now[name] != self.now[name] for name in self.now)
        return then if is_asked or is_worth(weighed, is_over=is_over) else self.now

    def _choice(self, modes: Mapping[QueryName, Modes], budget: int | None) -> Choice:
        sizes = [self._usual[name].bytes_of(result) for name, result in modes.items()]
        size = self.kept.fixed + sum(sizes)
        return Choice(
            self._all_prices(modes),
            size,
            budget is not None and size > budget,
            sum(result != self.now[name] for name, result in modes.items()),
        )

    def _all_prices(self, modes: Mapping[QueryName, Modes]) -> Prices:
        """One object for equal modes, so that it tells whether two choices are one."""
        for known, prices in self._prices_of:
            if known == modes:
                return prices
        made = {name: self._prices(name, result) for name, result in modes.items()}
        self._prices_of.append((modes, made))
        return made

    def _before(self, name: QueryName) -> Sequence[tuple[float, ...]]:
        """Milliseconds as it is kept now, by the sizes of changes and their kinds."""
        if name not in self._costs_now:
            modes = self.now[name]
            self._costs_now[name] = [evaluate(g[name], modes).per_kind for g in self.graphs]
        return self._costs_now[name]

    def _prices(self, name: QueryName, modes: Modes) -> dict[Tables, Price]:
        """Prices of the query by the tables of its own that move, the most frequent kind's."""
        tables = frozenset(self.kept.queries[name].stored.versions)
        result: dict[Tables, Price] = {}
        after = [evaluate(graphs[name], modes).per_kind for graphs in self.graphs]
        before = self._before(name)
        for at, kind in enumerate(self.expected):
            mine = kind.tables & tables
            if not mine or mine in result:
                continue
            ms = tuple(costs[at] for costs in after)
            more = tuple(one - other[at] for one, other in zip(ms, before, strict=True))
            reads = tuple(_reads(graphs[name], modes, at) for graphs in self.graphs)
            rows = tuple(rows_of_change(_scaled(kind, scale), mine) for scale in _SCALES)
            result[mine] = Price(rows, ms, more, reads)
        return result


def pieces_of(
    desk: Workbench, store: StoreReader, specs: Sequence[QuerySpec], replay: Replay
) -> Pieces:
    """Of these stored queries, with what is replayed for the history of changes."""
    kept = kept_within(desk, store, specs, None)
    tables = {table for one in kept.queries.values() for table in one.stored.versions}
    coming = Expectations(desk.workload.tables, replay.histories, replay.until)
    expected = coming.expected(tables)
    graphs = tuple(
        graphs_of(desk, store, kept.queries, [_scaled(one, scale) for one in expected])
        for scale in _SCALES
    )
    usual = graphs[_SCALES.index(1.0)]
    now = {name: _as_it_can(kept.now[name], usual[name]) for name in kept.queries}
    return Pieces(kept, expected, graphs, now)


def _scaled(kind: Expected, scale: float) -> Expected:
    rows = {name: None if rows is None else rows * scale for name, rows in kind.rows.items()}
    return replace(kind, rows=rows)


def _as_it_can(now: Modes, graph: Graph) -> Modes:
    """How pieces are kept, those that may not be kept so as they will be."""
    return {
        piece.name: now[piece.name] if now[piece.name] in piece.sizes else _kept_of(piece)
        for piece in graph.pieces
    }


def _kept_of(piece: Piece) -> Mode:
    return Mode.KEPT if Mode.KEPT in piece.sizes else piece.modes[0]


def _reads(graph: Graph, modes: Modes, kind: int) -> float:
    """Reads of tables, for a side or for groups, that are expected in a run of this kind."""
    return sum(_hits(graph, node, modes, kind) for node in graph.nodes)


def _hits(graph: Graph, node: Node, modes: Modes, kind: int) -> float:
    result = 0.0
    for at, piece in enumerate(node.pieces):
        # A side is asked by the other one's change, groups by their own.
        asking = [node.inputs[1 - at]] if node.work is Work.JOIN else node.inputs
        is_asked = any(graph.active[wire][kind] for wire in asking)
        if is_asked and modes[piece.name] is Mode.READ and piece.read:
            result += piece.hit[kind] if piece.hit else 1.0
    return result


def price_of_step(prices: Mapping[Tables, Price], moved: Tables, rows: float) -> tuple[float, ...]:
    """Milliseconds of a step over so many rows of these tables, those above now, and reads.

    A set of tables that is no kind of change is taken as the largest kinds that make it up.
    """
    exact = prices.get(moved)
    if exact is not None:
        return _at(exact, rows)
    left, parts = set(moved), [(0.0, 0.0, 0.0)]
    for tables, price in sorted(prices.items(), key=lambda one: (-len(one[0]), sorted(one[0]))):
        if tables <= left:
            left -= tables
            parts.append(_at(price, rows))
    return tuple(sum(column) for column in zip(*parts, strict=True))


@dataclass(frozen=True, slots=True)
class MostPriced:
    """What no step of at most so many rows exceeds, by rising rows: milliseconds, and those above
    now."""

    rows: tuple[float, ...]
    ms: tuple[float, ...]
    more_ms: tuple[float, ...]

    @classmethod
    def of(cls, prices: Iterable[Price]) -> MostPriced:
        """Over all kinds of change, as if all of them came together."""
        told = list(prices)
        rows = sorted({rows for price in told for rows in price.rows})
        ms, more = [0.0] * (len(rows) + 1), [0.0] * (len(rows) + 1)
        for price in told:
            for at, size in enumerate([*rows, inf]):
                # The first size that is no smaller, since prices lie on lines.
                last = min(len(price.rows) - 1, bisect_left(price.rows, size))
                ms[at] += max(price.ms[: last + 1])
                more[at] += max(0.0, *price.more_ms[: last + 1])
        return cls(tuple(rows), tuple(ms), tuple(more))

    def at(self, rows: float) -> tuple[float, float]:
        """Of at most so many rows."""
        at = bisect_left(self.rows, rows)
        return self.ms[at], self.more_ms[at]


def _at(price: Price, rows: float) -> tuple[float, float, float]:
    """On the lines between the sizes; beyond them as at the last, below them as at the first."""
    at = bisect_left(price.rows, rows)
    if at in (0, len(price.rows)):
        at = min(at, len(price.rows) - 1)
        return price.ms[at], price.more_ms[at], price.reads[at]
    share = (rows - price.rows[at - 1]) / (price.rows[at] - price.rows[at - 1])
    between = [
        column[at - 1] + share * (column[at] - column[at - 1])
        for column in (price.ms, price.more_ms, price.reads)
    ]
    return between[0], between[1], between[2]
