"""A query's text read and put through the rules, once per text and schemas.

Law: what is remembered is what reading again would give: the text, the session's zone and the
schemas of all tables that were asked for are the same. A program that asks the same queries for
days plans each once per schema; errors are never remembered.
Out of scope: parameters (`plan.parameters`), judging the plan (`plan.safety`, `plan.reuse`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from impctl.aliases import QueryName, TableName
from impctl.data.schema import Schema
from impctl.plan.nodes import Catalog, Plan, Query
from impctl.plan.parse import parse_query
from impctl.plan.rules import apply_rules, core_of

_KEPT = 256
"""Plans remembered; some tens of kilobytes each."""

_Key = tuple[str, QueryName, str]


@dataclass(frozen=True, slots=True)
class Planned:
    """A query as written, the same with its plan after the rules, and that plan's core.

    The core yields the same rows without their columns (`rules.core_of`).
    """

    query: Query
    ruled: Query
    core: Plan


@dataclass(frozen=True, slots=True)
class _Watched(Mapping[TableName, Schema]):
    """A catalog that notes what was looked up in it."""

    catalog: Catalog
    names: tuple[TableName, ...]
    seen: dict[TableName, Schema | None] = field(default_factory=dict)

    def __getitem__(self, table: TableName) -> Schema:
        self.seen[table] = None
        found = self.catalog[table]
        self.seen[table] = found
        return found

    def __iter__(self) -> Iterator[TableName]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def is_like(self, catalog: Catalog) -> bool:
        """Whether another catalog would have answered the same."""
        return self.names == tuple(catalog) and all(
            catalog.get(table) == schema for table, schema in self.seen.items()
        )


_remembered: OrderedDict[_Key, tuple[_Watched, Planned]] = OrderedDict()
_lock = threading.Lock()


def planned(sql: str, catalog: Catalog, *, name: QueryName, zone: str) -> Planned:
    """The plans of a query; arguments and errors as of `parse_query`."""
    key = (sql, name, zone)
    with _lock:
        known = _remembered.get(key)
    if known is not None and known[0].is_like(catalog):
        return known[1]
    watched = _Watched(catalog, tuple(catalog))
    query = parse_query(sql, watched, name=name, zone=zone)
    ruled = replace(query, root=apply_rules(query.root))
    found = Planned(query, ruled, core_of(query.root))
    with _lock:
        _remembered[key] = (watched, found)
        _remembered.move_to_end(key)
        if len(_remembered) > _KEPT:
            _remembered.popitem(last=False)
    return found
