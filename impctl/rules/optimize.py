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

# The rules, and the order in which they run. Law: a rule is total, keeps the bag of rows a plan
# yields on every database, and never changes the root's attributes (identities, names, order).
# Unsure means unchanged. The order is the review: what asks for the best rows of a fixpoint is
# looked at first, while nobody has dropped it yet; steps over single rows go next, as they hide
# what a condition stands on; what all sides of an OR ask for comes out of it then, so that it can
# go down; selections go down next, so that the columns only they read are known when columns are
# dropped; what is left of a filter on ranks then shows as a top-k; averages are split last,
# because splitting adds columns.

RULES: tuple[Callable[[Plan], Plan], ...] = (
    best_fixpoints,
    single_rows,
    common_parts,
    push_selections,
    rank_limits,
    prune_columns,
    split_averages,
)

_ROUNDS = 8
"""More than any plan has needed; a bound, so that two rules cannot alternate forever."""


def core_of(root: Plan) -> Plan:
    """The same rows without their columns, after the rules: all that a sketch depends on."""
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


# Queries read and put through the rules, each once per text and schemas. Law: what is remembered
# is what reading again would give: the text, the session's zone, the schemas of all tables that
# were looked up and what an expiry asks of their rows are the same. Errors are never remembered.

KEPT = 256
"""Queries remembered; some tens of kilobytes each."""


class Planned(Struct, frozen=True):
    """A query as written, with its plan after the rules, and that plan's core (`core_of`)."""

    query: Query
    ruled: Query
    core: Plan


class _LookedUp(Struct, frozen=True):
    """What parsing a query read of a catalog: all names in it, and the schemas looked up."""

    names: TableNames
    schemas: Mapping[TableName, Schema]
    live: Mapping[TableName, LiveRows | None]

    def is_in(
        self, catalog: Catalog, names: TableNames, live: Mapping[TableName, LiveRows]
    ) -> bool:
        """Whether the catalog still has the same."""
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
    """Cache of the latest planned queries, for as long as its owner keeps it. Thread-safe; two
    threads may both plan the same query."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, QueryName, str, str], tuple[_LookedUp, Planned]]
        self._kept = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def of(
        self,
        sql: str,
        catalog: Catalog,
        *,
        name: QueryName,
        zone: str,
        names: TableNames | None = None,
        live: Mapping[TableName, LiveRows] = NO_EXPIRY,
        at: str = "",
    ) -> Planned:
        """The plans of a query; arguments and errors as of `parse_query`. `at` names the instant of
        `live`: plans of several instants are remembered side by side."""
        names = names or TableNames.of(catalog)
        key = (sql, name, zone, at)
        with self._lock:
            known = self._kept.get(key)
        if known is None or not known[0].is_in(catalog, names, live):
            known = _plan(sql, catalog, names, name, zone, live)
        with self._lock:
            self._kept[key] = known
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return known[1]


def _plan(
    sql: str,
    catalog: Catalog,
    names: TableNames,
    name: QueryName,
    zone: str,
    live: Mapping[TableName, LiveRows],
) -> tuple[_LookedUp, Planned]:
    watched = _Watched(catalog)
    query = without_free_limit(
        parse_query(sql, watched, name=name, zone=zone, names=names, live=live)
    )
    ruled = replace(query, root=apply_rules(query.root))
    looked_up = _LookedUp(names, watched.seen, {table: live.get(table) for table in watched.seen})
    return looked_up, Planned(query, ruled, core_of(query.root))


def without_free_limit(query: Query) -> Query:
    """The query without a last LIMIT that does not decide which rows remain. Any rows of the whole
    answer are its answer. A sketch that is safe for the whole answer keeps all of them, so over it
    Spark may return only what it may return over the tables."""
    root = query.root
    if not isinstance(root, TopK) or root.order or root.rank is not None:
        return query
    if root.count is None or root.offset:
        return query
    return replace(query, root=root.child, cut=root.count)
