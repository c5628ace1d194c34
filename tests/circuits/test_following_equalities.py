"""Equalities that follow from others are looked up, where relations meet through a third one."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.joins import chain_of, following
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import INTEGER, LONG, Column, Schema
from impctl.expr.nodes import columns_of
from impctl.plan.nodes import Join, Plan, nodes_of, scans_of
from impctl.rules.optimize import apply_rules
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.arrow_rows import arrow_rows

COLUMNS = Schema((Column("k", LONG), Column("n", LONG), Column("p", LONG), Column("i", INTEGER)))
CATALOG = dict.fromkeys(("a", "b", "c"), COLUMNS)
MEETS = "SELECT a.n, COUNT(*) AS t FROM a JOIN b ON {} JOIN c ON {} WHERE a.p = 1 AND c.p = 1 "
GROUPED = "GROUP BY a.n HAVING COUNT(*) > 1"
SQL = (MEETS + GROUPED).format("a.k = b.k", "b.k = c.k")
COUNT = 60


def plan_of(sql: str) -> Plan:
    return apply_rules(parse_query(sql, CATALOG).root)


def session_of(sql: str) -> MaintainedQuery:
    root = plan_of(sql)
    ranges = {
        scan.access: RangePartition(scan.table, "n", LONG, tuple(range(1, COUNT)))
        for scan in scans_of(root)
    }
    return MaintainedQuery(compile_plan(root, ranges, {}))


def rows(rng: Random, count: int) -> list[dict[str, Any]]:
    return [
        {"k": rng.choice([None, *range(20)]), "n": rng.randrange(COUNT), "p": 1, "i": 0}
        for _ in range(count)
    ]


def table_of(result: list[dict[str, Any]]) -> pa.Table:
    return arrow_rows(COLUMNS, result)


def wanted(tables: dict[str, list[dict[str, Any]]]) -> dict[str, set[int]]:
    result = [
        (one, two, three)
        for one in tables["a"]
        for two in tables["b"]
        for three in tables["c"]
        if one["k"] is not None and one["k"] == two["k"] == three["k"]
    ]
    count = {n: sum(one["n"] == n for one, _, _ in result) for n in range(COUNT)}
    kept = [row for row in result if count[row[0]["n"]] > 1]
    return {name: {row[at]["n"] for row in kept} for at, name in enumerate("abc")}


@pytest.mark.parametrize("seed", range(5))
def test_what_follows_is_looked_up_and_changes_no_row(seed: int) -> None:
    rng = Random(seed)
    tables = {"a": rows(rng, 40), "b": rows(rng, 4), "c": rows(rng, 40)}
    session = session_of(SQL)
    session.load([(name, table_of(result)) for name, result in tables.items()])
    assert sum(op.joined_rows for op in session.circuit) < 40 * 40 / 4
    for _ in range(6):
        changes = {}
        for name in rng.sample("abc", 2):
            came, went = rows(rng, 3), [tables[name].pop() for _ in range(3)]
            tables[name] = [*came, *tables[name]]
            weights = np.array([1] * 3 + [-1] * 3, dtype=np.int64)
            changes[name] = TableChange(table_of([*came, *went]), weights)
        session.step(changes)
        result = {access[0]: set(ids.ids) for access, ids in session.fragments().items()}
        assert result == wanted(tables)


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("a.k = b.k", "b.k = c.k", 1),
        ("a.k = b.k", "b.k = c.n", 1),
        ("a.k = b.k", "b.k = c.k AND a.k = c.k", 0),
        ("a.k = b.k", "b.n = c.k", 0),
        ("a.k = b.i", "b.i = c.k", 0),
        ("a.k + 1 = b.k", "b.k = c.k", 0),
        ("a.k <=> b.k", "b.k = c.k", 0),
        ("a.k = b.k AND a.n = b.n", "b.k = c.k AND b.n = c.n", 2),
    ],
)
def test_which_equalities_follow(first: str, second: str, count: int) -> None:
    plan = plan_of((MEETS + GROUPED).format(first, second))
    chain = chain_of(next(node for node in nodes_of(plan) if isinstance(node, Join)))
    by_table = {scans_of(one.plan)[0].table: one.ids for one in chain.relations}
    both = by_table["a"] | by_table["c"]
    stated = [part for part in chain.conditions if columns_of(part) <= both]
    assert len(following(chain.equal, by_table["a"], by_table["c"], stated)) == count
