"""The order of the rules, a cache of planned queries, and the rule that drops unread columns."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from impctl.expr.nodes import Expr
from impctl.plan import nodes as p
from impctl.plan.nodes import Catalog, LiveRows, Plan, Project, Query, TopK
from impctl.plan.recursion import leaves_in
from impctl.rules.normalize import best_fixpoints, rank_limits, single_rows, split_averages
from impctl.rules.pushdown import common_parts, push_selections
from impctl.sql.names import TableNames
from impctl.sql.statement import NO_EXPIRY, parse_query
from impctl.types import AttributeId, QueryName, TableName

# Drops columns that are not read. Law: the bag of rows over the remaining columns stays the same,
# and the root keeps all its columns. All columns stay below DISTINCT and set operations, as
# grouping expressions, and in a fixpoint that is a set, because they decide which rows are equal.
# UNION ALL does not compare rows: its columns are dropped unless the query, or the step for the
# others, needs them. A scan without columns still yields its rows. Only unread projections and
# windows are dropped as a whole.

Needed = frozenset[AttributeId]


def prune_columns(root: p.Plan) -> p.Plan:
    """Reduce scans and projections to the columns that are read above them."""
    return _prune(root, root.ids)


def _read(exprs: Iterable[Expr | None]) -> Needed:
    return frozenset().union(*(expr.columns for expr in exprs if expr is not None))


def _prune(plan: p.Plan, needed: Needed) -> p.Plan:
    """The plan with at least the needed columns, and no new ones."""
    match plan:
        case p.Scan():
            return replace(
                plan, attributes=tuple(item for item in plan.attributes if item.id in needed)
            )
        case p.Select() | p.Sort() | p.TopK() | p.Explode() | p.Witness():
            # Columns of EXPLODE stay: they decide how often a row occurs, read or not.
            below = needed - (plan.ids - plan.child.ids) | _read(plan.expressions)
            return replace(plan, child=_prune(plan.child, below))
        case p.Project():
            return _project(plan, needed)
        case p.Join():
            below = needed | _read((plan.condition,))
            return replace(plan, left=_prune(plan.left, below), right=_prune(plan.right, below))
        case p.Aggregate():
            return _aggregate(plan, needed)
        case p.Fixpoint() if not plan.is_set:
            return _bag(plan, needed)
        case p.Distinct() | p.SetOperation() | p.Fixpoint() | p.Recursive() | p.OneRow():
            return plan.map_inputs(lambda side: _prune(side, side.ids))
        case p.Window():
            return _window(plan, needed)
        case _:
            assert_never(plan)


def _project(plan: p.Project, needed: Needed) -> p.Plan:
    outputs = tuple(output for output in plan.outputs if output.attribute.id in needed)
    if not outputs and plan.outputs:
        # Only the number of rows matters, which is the child's.
        return _prune(plan.child, frozenset())
    child = _prune(plan.child, _read(output.expr for output in outputs))
    return replace(plan, child=child, outputs=outputs)


def _aggregate(plan: p.Aggregate, needed: Needed) -> p.Plan:
    aggregates = tuple(output for output in plan.aggregates if output.attribute.id in needed)
    if not plan.keys and not aggregates:
        aggregates = plan.aggregates[:1]
    pruned = replace(plan, aggregates=aggregates)
    return replace(pruned, child=_prune(plan.child, _read(pruned.expressions)))


def _window(plan: p.Window, needed: Needed) -> p.Plan:
    calls = tuple(call for call in plan.calls if call.attribute.id in needed)
    below = needed - {call.attribute.id for call in plan.calls}
    below |= _read(replace(plan, calls=calls).expressions)
    child = _prune(plan.child, below)
    return replace(plan, child=child, calls=calls) if calls else child


def _bag(plan: p.Fixpoint, needed: Needed) -> p.Plan:
    """Keep columns that are needed above or that the step computes them from, at least one."""
    heads, bases = plan.step.attributes, plan.base.attributes
    used = {
        position for position, attribute in enumerate(plan.attributes) if attribute.id in needed
    }
    while True:
        positions = sorted(used)
        step = _prune(plan.step, frozenset(heads[position].id for position in positions))
        read = _read_of_leaves(step, plan, [heads[position] for position in positions])
        if used and read <= used:
            break
        used |= read or {0}
    base = _prune(plan.base, frozenset(bases[position].id for position in positions))
    return replace(
        plan,
        base=_exactly(base, [bases[position] for position in positions]),
        step=_exactly(_cut(step, plan, positions), [heads[position] for position in positions]),
        attributes=tuple(plan.attributes[position] for position in positions),
    )


def _read_of_leaves(step: p.Plan, fixpoint: p.Fixpoint, outputs: Sequence[p.Attribute]) -> set[int]:
    """Positions of the fixpoint's columns that the step reads for these outputs."""
    read = {output.id for output in outputs}
    for node in step.walk():
        read |= _read(node.expressions)
        if isinstance(node, p.SetOperation):
            read |= node.left.ids | node.right.ids
    return {
        position
        for leaf in leaves_in(step, fixpoint.id)
        for position, attribute in enumerate(leaf.attributes)
        if attribute.id in read
    }


def _cut(step: p.Plan, fixpoint: p.Fixpoint, positions: Sequence[int]) -> p.Plan:
    if isinstance(step, p.Recursive) and step.fixpoint == fixpoint.id:
        return replace(step, attributes=tuple(step.attributes[position] for position in positions))
    return step.map_inputs(lambda child: _cut(child, fixpoint, positions))


def _exactly(plan: p.Plan, attributes: Sequence[p.Attribute]) -> p.Plan:
    """The plan with exactly these columns, since fixpoints match columns by position."""
    if [column.id for column in plan.attributes] == [attribute.id for attribute in attributes]:
        return plan
    return p.Project(plan, p.ComputedColumn.unchanged(attributes))


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


def _schemas_read(
    query: Query, catalog: Catalog, names: TableNames, live: Mapping[TableName, LiveRows]
) -> object:
    """What parsing the query read: all names, and the schemas and expiries of its tables."""
    return names, [(catalog.get(table), live.get(table)) for table in query.tables]


class PlannedQueries:
    """Cache of the latest planned queries, by text and zone; an entry is valid while the schemas
    and expiries of all tables that the text names are the same. Errors are not cached. Thread-safe;
    two threads may both plan the same query."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, QueryName, str, str], tuple[object, Planned]]
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
        if cached is None or cached[0] != _schemas_read(cached[1].query, catalog, names, live):
            query = parse_query(sql, catalog, name=name, zone=zone, names=names, live=live)
            query = without_free_limit(query)
            ruled = replace(query, root=apply_rules(query.root))
            planned = Planned(query, ruled, core_of(query.root))
            cached = _schemas_read(query, catalog, names, live), planned
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
