"""Catalogs for the tests of reading and rewriting, and plans as short text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from impctl.data.schema import Schema
from impctl.errors import QueryError
from impctl.expr.nodes import Expr
from impctl.plan.explain import PlanLine, describe
from impctl.plan.nodes import Plan, Project, Query
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

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
    """The plan as indented lines; scans by access alone, since their columns are all columns."""
    return "\n".join(_lines(describe(plan), 0))


def _lines(line: PlanLine, depth: int) -> list[str]:
    detail = line.detail
    if line.operator == "scan":
        detail = detail.partition(" as ")[2]
        if detail.endswith((", ".join(SALES.names), ", ".join(STOCK.names))):
            detail = detail.partition(":")[0]
    own = "  " * depth + f"{line.operator} {detail}".rstrip()
    return [own, *(text for child in line.children for text in _lines(child, depth + 1))]


def refusal(marked: str, reader: Callable[[str], object] = read) -> QueryError:
    """Why the text is refused: with a hint, and at the place that `»` stands before, if any."""
    with pytest.raises(QueryError) as caught:
        reader(marked.replace("»", ""))
    before, mark, _ = marked.partition("»")
    place = caught.value.location
    assert place is not None
    if mark:
        assert (place.line, place.column) == (
            before.count("\n") + 1,
            len(before) - before.rfind("\n"),
        )
    assert caught.value.hint
    return caught.value


def text_of(sql: str) -> str:
    """The plan of the text as indented lines."""
    return tree(plan_of(sql))
