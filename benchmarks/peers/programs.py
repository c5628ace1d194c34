"""The recursive queries that peers keep: reachability, regions of sensors, best paths.

A *fact* is a row of the table that changes, a *row* one of the fixpoint; both are tuples of whole
numbers. Rows come from facts alone (`bases`) or from a fact and one row, the body (`heads`).
Law: a row's first column says with whom it lies, its second one no step changes. A fact lies with
the peer of `home` and is joined with rows at the peer of `meets`.
Out of scope: how a program is kept (`tracked`, `rederived`), peers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

Fact = tuple[int, ...]
Row = tuple[int, ...]

COST, HOPS = 2, 3
"""Columns of a row of `Paths`."""


class Program(Protocol):
    """One linear recursive query."""

    @property
    def prunes(self) -> bool:
        """Whether rows beaten by others of their group are held back (aggregate selection)."""

    def home(self, fact: Fact) -> int:
        """The node with whom a fact lies."""

    def meets(self, fact: Fact) -> int:
        """The first column of the rows that a fact is joined with."""

    def bases(self, fact: Fact) -> Iterable[Row]:
        """Rows by the fact alone; they lie where the fact does."""

    def heads(self, fact: Fact, body: Row) -> Iterable[Row]:
        """Rows by the fact and a row that it meets."""

    def bodies(self, head: Row, facts: Iterable[Fact]) -> Iterable[Row]:
        """Rows that may derive `head`, for whoever holds it and the facts at home there."""

    def group(self, row: Row) -> Row:
        """What rows compete for, where `prunes`."""

    def best(self, rows: Collection[Row]) -> Iterable[Row]:
        """Those of a group's rows that the answer may need."""

    def answer(self, rows: Iterable[Row]) -> frozenset[Row]:
        """What the query asks for, out of all its rows."""


class _Unpruned:
    """What programs without aggregates have in common."""

    prunes = False

    def group(self, row: Row) -> Row:
        """Every row is a group of its own."""
        return row

    def best(self, rows: Collection[Row]) -> Iterable[Row]:
        """All of them."""
        return rows

    def answer(self, rows: Iterable[Row]) -> frozenset[Row]:
        """All rows."""
        return frozenset(rows)


class Reach(_Unpruned):
    """Query 1: rows (x, y) by links (x, y), and by a link (x, z) and a row (z, y)."""

    def home(self, fact: Fact) -> int:
        """Where it starts."""
        return fact[0]

    def meets(self, fact: Fact) -> int:
        """Rows from where it ends."""
        return fact[1]

    def bases(self, fact: Fact) -> Iterable[Row]:
        """The link itself."""
        return ((fact[0], fact[1]),)

    def heads(self, fact: Fact, body: Row) -> Iterable[Row]:
        """What its start reaches through its end."""
        return ((fact[0], body[1]),)

    def bodies(self, head: Row, facts: Iterable[Fact]) -> Iterable[Row]:
        """The same target from the ends of the links that start here."""
        return [(fact[1], head[1]) for fact in facts]


class Regions(_Unpruned, Struct, frozen=True):
    """Query 3: rows (sensor, region) by triggered sensors (sensor,), as the datalog has it.

    A seed that is triggered is in its region, and so is every neighbour of a triggered sensor in
    it, triggered or not. Neighbours and seeds do not change.
    """

    near: Mapping[int, tuple[int, ...]]
    seeds: Mapping[int, tuple[int, ...]]
    """Per sensor, the regions that begin there."""

    def home(self, fact: Fact) -> int:
        """The sensor."""
        return fact[0]

    def meets(self, fact: Fact) -> int:
        """The sensor's own rows."""
        return fact[0]

    def bases(self, fact: Fact) -> Iterable[Row]:
        """The regions that begin there."""
        return [(fact[0], region) for region in self.seeds.get(fact[0], ())]

    def heads(self, fact: Fact, body: Row) -> Iterable[Row]:
        """The same region at all neighbours."""
        return [(sensor, body[1]) for sensor in self.near.get(fact[0], ())]

    def bodies(self, head: Row, facts: Iterable[Fact]) -> Iterable[Row]:
        """The same region at all neighbours: who is triggered only they know."""
        return [(sensor, head[1]) for sensor in self.near.get(head[0], ())]


class Paths(Struct, frozen=True):
    """Query 2 without the path itself: rows (x, y, cost, hops) by links (x, z, cost).

    `minimised` are the columns whose least values are wanted, a group's rows that have none of them
    are held back; with none of them all paths are enumerated, which ends only without circles.
    Costs are above 0. Rows that tie stay: `best` has no first one.
    """

    minimised: tuple[int, ...]

    @property
    def prunes(self) -> bool:
        """Where something is minimised."""
        return bool(self.minimised)

    def home(self, fact: Fact) -> int:
        """Where it starts."""
        return fact[0]

    def meets(self, fact: Fact) -> int:
        """Rows from where it ends."""
        return fact[1]

    def bases(self, fact: Fact) -> Iterable[Row]:
        """The link itself, of one hop."""
        return ((*fact, 1),)

    def heads(self, fact: Fact, body: Row) -> Iterable[Row]:
        """The path with the link before it."""
        return ((fact[0], body[1], fact[COST] + body[COST], body[HOPS] + 1),)

    def bodies(self, head: Row, facts: Iterable[Fact]) -> Iterable[Row]:
        """The rest of the path after its first link."""
        return [
            (fact[1], head[1], head[COST] - fact[COST], head[HOPS] - 1)
            for fact in facts
            if head[COST] > fact[COST] and head[HOPS] > 1
        ]

    def group(self, row: Row) -> Row:
        """From where to where."""
        return row[:COST]

    def best(self, rows: Collection[Row]) -> Iterable[Row]:
        """Those with the least value of one column at least."""
        least = [(column, min(row[column] for row in rows)) for column in self.minimised if rows]
        return [row for row in rows if any(row[column] == value for column, value in least)]

    def answer(self, rows: Iterable[Row]) -> frozenset[Row]:
        """Per group and column that is minimised, (x, y, column, least value); else all rows."""
        if not self.minimised:
            return frozenset(rows)
        least: dict[Row, int] = {}
        for row in rows:
            for column in self.minimised:
                key = (row[0], row[1], column)
                least[key] = min(least.get(key, row[column]), row[column])
        return frozenset((*key, value) for key, value in least.items())
