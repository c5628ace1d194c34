"""Schemas, catalogs and golden plans for tests that parse and rewrite queries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from impctl.data.schema import Column, Schema, from_spark, other
from impctl.errors import QueryError
from impctl.expr.nodes import Expr
from impctl.plan.explain import describe
from impctl.plan.nodes import Fixpoint, Plan, Project, Query
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query


def schema_of(columns: str) -> Schema:
    """`a int, m decimal(10,2)`: columns are separated by a comma and a space."""
    named = (column.rpartition(" ") for column in columns.split(", "))
    return Schema(
        tuple(Column(name.strip("`"), from_spark(kind) or other(kind)) for name, _, kind in named)
    )


SALES = schema_of(
    "sid bigint, brand string, price int, numSold int, day date, rate double, "
    "cost decimal(10,2), small float, ok boolean, at timestamp, extra struct<x:int>"
)
STOCK = schema_of("brand string, shelf int, two words int")
CATALOG = {"sales": SALES, "stock": STOCK, "Third Table": STOCK}


def read(sql: str) -> Query:
    return parse_query(sql, CATALOG)


def plan_of(sql: str) -> Plan:
    return read(sql).root


def selected(sql: str, catalog: Mapping[str, Schema] = CATALOG, zone: str = "UTC") -> Expr:
    """The first column that the text selects."""
    root = parse_query(sql, catalog, zone=zone).root
    assert isinstance(root, Project)
    return root.outputs[0].expr


def tree(plan: Plan) -> str:
    """The plan as indented lines. Scans of all columns are shown by access only."""
    lines = []
    for depth, _, operator, detail in describe(plan):
        if operator == "scan":
            detail = detail.partition(" as ")[2]
            if detail.endswith((", ".join(SALES.names), ", ".join(STOCK.names))):
                detail = detail.partition(":")[0]
        lines.append("  " * depth + f"{operator} {detail}".rstrip())
    return "\n".join(lines)


def refusal(marked: str, reader: Callable[[str], object] = read) -> QueryError:
    """The error for the text. It must have a hint, and the location marked by `»`, if any."""
    with pytest.raises(QueryError) as caught:
        reader(marked.replace("»", ""))
    before, mark, _ = marked.partition("»")
    location = caught.value.location
    assert location is not None
    if mark:
        assert (location.line, location.column) == (
            before.count("\n") + 1,
            len(before) - before.rfind("\n"),
        )
    assert caught.value.hint
    return caught.value


def text_of(sql: str) -> str:
    """The plan of the text as indented lines."""
    return tree(plan_of(sql))


_FOLDER = Path(__file__).parent / "golden"


def pairs(name: str) -> list[tuple[str, str]]:
    """The pairs of one golden file, in order."""
    result = []
    for block in (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").split("----\n"):
        sql, _, lines = block.partition("\n=>\n")
        result.append((sql.strip(), lines.strip()))
    return result


def listed(name: str, section: str) -> list[list[str]]:
    """The lines of a section of a golden file, split at arrows."""
    _, _, rest = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").partition(f"[{section}]\n")
    lines = rest.partition("\n[")[0].splitlines()
    result = [re.split(r" =>(?: |$)", line) for line in lines if line and line[0] != "#"]
    assert result, f"nothing is listed in [{section}] of {name}"
    return result


def cases(name: str, section: str, *, are_named: bool = False) -> list[Any]:
    """These lines as parameters. With `are_named` the first part is only the name of the case."""
    return [pytest.param(*line[are_named:], id=line[0]) for line in listed(name, section)]


NETWORK = {
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
"""Nodes reached by links of one cost, which is the key."""

COSTS = "WITH RECURSIVE r(n, c) AS (SELECT dst, cost FROM links WHERE src = 1 UNION "
BY_COST = {"links#1": "cost", "links#2": "cost"}
BY_REGION = dict.fromkeys(BY_COST, "region")


def read_net(sql: str) -> Query:
    return parse_query(sql, NETWORK)


def net_plan(sql: str) -> Plan:
    return read_net(sql).root


def ruled(sql: str) -> Query:
    """The query after the plan rules."""
    query = read_net(sql)
    return replace(query, root=apply_rules(query.root))


def fixpoints_of(plan: Plan) -> list[Fixpoint]:
    """All fixpoints of the plan, outermost first."""
    return [node for node in plan.walk() if isinstance(node, Fixpoint)]


def fixpoint_of(sql: str) -> Fixpoint:
    """The only fixpoint of the text."""
    (result,) = fixpoints_of(net_plan(sql))
    return result


def links(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Rows of `links`: source, destination, and optionally region and cost."""
    return [_link(*row) for row in rows]


def _link(src: int, dst: int, region: str = "A", cost: int = 1) -> dict[str, object]:
    return {"src": src, "dst": dst, "cost": cost, "region": region, "weight": 1.0}


def edges_on_walks(edges: Sequence[tuple[int, int]], start: int) -> dict[int, set[int]]:
    """For each node reached from `start`, the positions of all edges on walks to it."""
    ahead = {node: _reached(edges, node) for edge in edges for node in edge}
    after = _reached(edges, start)
    return {
        node: {
            position
            for position, (one, other) in enumerate(edges)
            if (one == start or one in after) and (other == node or node in ahead[other])
        }
        for node in after
    }


def _reached(edges: Sequence[tuple[int, int]], start: int) -> set[int]:
    """The nodes reached in one or more steps."""
    result: set[int] = set()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        for source, target in edges:
            if source == node and target not in result:
                result.add(target)
                waiting.append(target)
    return result
