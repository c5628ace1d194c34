"""Tables of links and nodes, for the tests of recursion, and their queries read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from impctl.plan.nodes import Fixpoint, Plan, Query, nodes_of
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {
    "links": schema_of("src bigint, dst bigint, cost int, region string, weight double"),
    "nodes": schema_of("n bigint, kind string"),
    "seeds": schema_of("t bigint, n bigint"),
}

REACHED = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 "
    "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
)
CLOSURE = (
    "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links "
    "UNION SELECT c.x, l.dst FROM c JOIN links l ON c.y = l.src) "
)
KEYED = (
    "WITH RECURSIVE r(t, n) AS (SELECT cost, dst FROM links WHERE src = 1 UNION "
    "SELECT r.t, l.dst FROM r JOIN links l ON r.n = l.src AND r.t = l.cost) "
)
"""Nodes by links of one cost, which is the key."""

COSTS = "WITH RECURSIVE r(n, c) AS (SELECT dst, cost FROM links WHERE src = 1 UNION "
BY_COST = {"links#1": "cost", "links#2": "cost"}
BY_REGION = dict.fromkeys(BY_COST, "region")


def read(sql: str) -> Query:
    return parse_query(sql, CATALOG)


def plan_of(sql: str) -> Plan:
    return read(sql).root


def ruled(sql: str) -> Query:
    """The query after the plan rules."""
    query = read(sql)
    return replace(query, root=apply_rules(query.root))


def fixpoints_of(plan: Plan) -> list[Fixpoint]:
    """All fixpoints of the plan, outermost first."""
    return [node for node in nodes_of(plan) if isinstance(node, Fixpoint)]


def fixpoint_of(sql: str) -> Fixpoint:
    """The only fixpoint of the text."""
    (result,) = fixpoints_of(plan_of(sql))
    return result


def links(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Rows of `links`: source, destination, region and cost where they matter."""
    return [_link(*row) for row in rows]


def _link(src: int, dst: int, region: str = "A", cost: int = 1) -> dict[str, object]:
    return {"src": src, "dst": dst, "cost": cost, "region": region, "weight": 1.0}


def edges_on_walks(edges: Sequence[tuple[int, int]], start: int) -> dict[int, set[int]]:
    """By each node that walks from `start` lead to, the positions of all edges on such walks."""
    ahead = {node: _reached(edges, node) for edge in edges for node in edge}
    after = _reached(edges, start)
    return {
        node: {
            place
            for place, (one, other) in enumerate(edges)
            if (one == start or one in after) and (other == node or node in ahead[other])
        }
        for node in after
    }


def _reached(edges: Sequence[tuple[int, int]], start: int) -> set[int]:
    """The nodes that one step or more lead to."""
    result: set[int] = set()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        for one, other in edges:
            if one == node and other not in result:
                result.add(other)
                waiting.append(other)
    return result
