"""The order of the rules, and a cache of planned queries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import Schema
from impctl.plan.nodes import Catalog, LiveRows, Plan, Project, Query, TopK
from impctl.rules.normalize import best_fixpoints, rank_limits, single_rows, split_averages
from impctl.rules.prune import prune_columns
from impctl.rules.pushdown import common_parts, push_selections
from impctl.sql.names import TableNames
from impctl.sql.statement import NO_EXPIRY, parse_query
from impctl.types import QueryName, TableName

# Law: a rule is total, keeps the bag of rows of a plan on every database, and never changes the
# root's attributes (identities, names, order). Unsure means unchanged.

RULES: tuple[Callable[[Plan], Plan], ...] = (
    best_fixpoints,  # before other rules drop what reads the best rows
    single_rows,  # removes steps between conditions and what they read
    common_parts,  # so that they can be pushed down
    push_selections,  # before columns that only selections read are dropped
    rank_limits,
    prune_columns,
    split_averages,  # last, because it adds columns
)

_ROUNDS = 8
"""More than any plan has needed; two rules must not alternate forever."""


def core_of(root: Plan) -> Plan:
    """The plan without output columns, after the rules: all that a sketch depends on."""
    return apply_rules(Project(root, ()))


def apply_rules(root: Plan) -> Plan:
    """Apply every rule in order, repeatedly, until nothing changes."""
    for _ in range(_ROUNDS):
        before = root
        for rule in RULES:
            root = rule(root)
        if root == before:
            break
    return root


KEPT = 256
"""Queries in the cache; some tens of kilobytes each."""


class Planned(Struct, frozen=True):
    """A query as written, its plan after the rules, and its core (`core_of`)."""

    query: Query
    ruled: Query
    core: Plan


class _LookedUp(Struct, frozen=True):
    """What parsing a query read from a catalog: all its names, and the schemas looked up."""

    names: TableNames
    schemas: Mapping[TableName, Schema]
    live: Mapping[TableName, LiveRows | None]

    def is_in(
        self, catalog: Catalog, names: TableNames, live: Mapping[TableName, LiveRows]
    ) -> bool:
        return (
            self.names == names
            and all(catalog.get(table) == schema for table, schema in self.schemas.items())
            and all(live.get(table) == rows for table, rows in self.live.items())
        )


class _Watched(Mapping[TableName, Schema]):
    """A catalog that records which schemas were looked up."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.seen: dict[TableName, Schema] = {}

    def __getitem__(self, table: TableName) -> Schema:
        result = self.seen[table] = self._catalog[table]
        return result

    def __iter__(self) -> Iterator[TableName]:
        return iter(self._catalog)

    def __len__(self) -> int:
        return len(self._catalog)


class PlannedQueries:
    """Cache of the latest planned queries, by text and zone; an entry is valid while the schemas
    and expiries of all tables that were looked up are the same. Errors are not cached. Thread-safe;
    two threads may both plan the same query."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, QueryName, str, str], tuple[_LookedUp, Planned]]
        self._cache = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._cache)

    def of(
        self,
        sql: str,
        catalog: Catalog,
        *,
        name: QueryName,
        zone: str,
        names: TableNames | None = None,
        live: Mapping[TableName, LiveRows] = NO_EXPIRY,
        instant: str = "",
    ) -> Planned:
        """The plans of a query; arguments and errors as of `parse_query`. `instant` is that of
        `live`: plans of several instants are cached side by side."""
        names = names or TableNames.of(catalog)
        key = (sql, name, zone, instant)
        with self._lock:
            cached = self._cache.get(key)
        if cached is None or not cached[0].is_in(catalog, names, live):
            watched = _Watched(catalog)
            query = parse_query(sql, watched, name=name, zone=zone, names=names, live=live)
            query = without_free_limit(query)
            ruled = replace(query, root=apply_rules(query.root))
            expiries = {table: live.get(table) for table in watched.seen}
            looked_up = _LookedUp(names, watched.seen, expiries)
            cached = looked_up, Planned(query, ruled, core_of(query.root))
        with self._lock:
            self._cache[key] = cached
            self._cache.move_to_end(key)
            if len(self._cache) > KEPT:
                self._cache.popitem(last=False)
        return cached[1]


def without_free_limit(query: Query) -> Query:
    """The query without a last LIMIT that has no ORDER BY, for which any rows of the whole answer
    are correct. A sketch that is safe for the whole answer covers them all, so over it Spark
    returns only what it may return over the tables."""
    root = query.root
    if not isinstance(root, TopK) or root.order or root.rank is not None:
        return query
    if root.count is None or root.offset:
        return query
    return replace(query, root=root.child, cut=root.count)
