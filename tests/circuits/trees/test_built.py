"""Queries maintained by join trees: after every batch the sketches are those of the lineage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.jointree.graph import NoTree
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG
from impctl.engine.jointree import node
from impctl.errors import QueryError, UnsupportedError
from impctl.plan.nodes import Plan, scans_of
from impctl.sketch.partition import RangePartition
from tests.circuits.test_plans_against_reference import has_choice
from tests.circuits.trees.drawn import CATALOG, core
from tests.circuits.trees.random_joins import JoinMaker, random_tables
from tests.plan.trials import fragment_of
from tests.support.arrow_rows import arrow_rows
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_plan import Tables, annotate
from tests.support.restored_query import Stored, restored

BATCHES = 3
BOUNDARIES = (1, 2)

Row = dict[str, Any]


def table_of(rows: list[Row]) -> pa.Table:
    return arrow_rows(CATALOG["r"], rows)


def partitions_of(rng: Random, root: Plan) -> dict[str, RangePartition]:
    """Every access is sketched, on one of the columns that the query reads of it."""
    result = {}
    for scan in scans_of(root):
        names = sorted({attribute.name for attribute in scan.attributes} & set("abc"))
        if names:
            name = rng.choice(names)
            result[scan.access] = RangePartition(scan.table, name, LONG, BOUNDARIES)
    return result


def wanted(
    root: Plan, tables: Mapping[str, list[Row]], partitions: Mapping[str, RangePartition]
) -> dict[str, set[int]]:
    names = {scan.access: scan.table for scan in scans_of(root)}
    result: dict[str, set[int]] = {access: set() for access in partitions}
    for access, at in annotate(root, tables).lineage:
        if access in partitions:
            value = tables[names[access]][at][partitions[access].attribute]
            result[access].add(fragment_of(value, BOUNDARIES))
    return result


def changes_of(
    rng: Random, tables: dict[str, list[Row]], made: Callable[[Random], Tables] = random_tables
) -> dict[str, TableChange]:
    """Rows that go, and copies and new ones that come, in some tables at once."""
    spare = made(rng)
    result = {}
    for name, rows in tables.items():
        if rng.random() < 0.5:
            continue
        came = [rng.choice([*spare[name], *rows]) for _ in range(rng.randint(0, 3))]
        went = [
            rows.pop(rng.randrange(len(rows))) for _ in range(min(len(rows), rng.randint(0, 2)))
        ]
        rows.extend(dict(row) for row in came)
        weights = np.array([1] * len(came) + [-1] * len(went), dtype=np.int64)
        result[name] = TableChange(table_of([dict(row) for row in (*came, *went)]), weights)
    return result


def one_case(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    sql = JoinMaker(rng).sql()
    try:
        root = core(sql)
    except QueryError:
        return
    follow(root, rng, seen, f"{seed}: {sql}")


def follow(root: Plan, rng: Random, seen: Counter[str], what: str) -> None:
    """A query over random tables and batches, stopped and taken up again now and then."""
    tables = {name: [dict(row) for row in rows] for name, rows in random_tables(rng).items()}
    partitions = partitions_of(rng, root)
    changed = {name: rng.randint(0, 3) for name in tables}

    def compiled() -> Compiled:
        return compile_plan(root, partitions, {}, barriers=(), trees=changed)

    try:
        first = compiled()
    except (BlockedError, UnsupportedError) as error:
        seen[f"blocked: {error.message}"[:70]] += 1
        return
    if all(isinstance(shape, NoTree) for shape in first.shapes):
        seen["no tree"] += 1
        return
    session = MaintainedQuery(first)
    # Where rows tie the lineage is that of one answer: all of them are what the index join has.
    sessions = [session]
    if has_choice(root):
        sessions.append(MaintainedQuery(compile_plan(root, partitions, {}, barriers=())))
        seen["choices"] += 1
    stored = Stored()
    # Tables come in parts, in any order.
    parts = [(name, table_of(tables[name][at::2])) for at in (0, 1) for name in first.tables]
    for one in sessions:
        one.load(parts)
    for _ in range(BATCHES):
        result, *joined = ({a: set(p.ids) for a, p in s.fragments().items()} for s in sessions)
        expected = {access: wanted(root, tables, partitions)[access] for access in result}
        assert result == (joined[0] if joined else expected), what
        assert all(result[access] >= expected[access] for access in result), what
        seen["sketches"] += len(result)
        seen["filled sketches"] += sum(map(bool, result.values()))
        change = changes_of(rng, tables)
        for one in sessions:
            one.step(change)
        if rng.random() < 0.3:
            session = restored(session, stored, MaintainedQuery(compiled()))
            sessions[0] = session
    seen["trees"] += 1


@random_cases(
    0, 40, 4_000, also="1 8 15 28 39 40 60 64 88 97 102 110 119 123 147 151 169 171 175 184 191"
)
def test_random_joins(cases: Sequence[int]) -> None:
    seen = seen_in(cases, one_case)
    assert seen["trees"] > len(cases) // 2, seen
    assert seen["filled sketches"] > len(cases) // 2, seen


CASES = {
    "having": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING SUM(s.c) > 3",
    "virtual": "SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING SUM(s.c) > r.a",
    "two types": "SELECT r.i FROM r JOIN s ON r.i = s.a GROUP BY r.i, s.a HAVING COUNT(*) > 2",
    "average": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING AVG(s.c) > 1",
    "deviation": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING STDDEV(s.c) > 0.4",
    "global": "SELECT COUNT(*) FROM r JOIN s ON r.a = s.a HAVING COUNT(*) < 9",
    "extreme": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING MAX(s.c) < 2",
    "first": "SELECT r.b, SUM(s.c) * 10 + r.b AS n FROM r JOIN s ON r.a = s.a WHERE r.b >= 0 "
    "GROUP BY r.b ORDER BY n DESC, r.b LIMIT 1",
    "columns": "SELECT b, n FROM (SELECT r.b, COUNT(*) + 1 AS n FROM r JOIN s ON r.a = s.a "
    "GROUP BY r.b) WHERE n > 3",
    "union": "SELECT r.b FROM r JOIN s ON r.a = s.a UNION SELECT t.b FROM t JOIN u ON t.a = u.a "
    "GROUP BY t.b HAVING COUNT(*) > 2",
    "half a union": "SELECT r.b FROM r JOIN s ON r.a = s.a "
    "UNION ALL SELECT t.b FROM t WHERE t.c > 0",
    "distinct": "SELECT DISTINCT b FROM (SELECT r.b, r.c FROM r JOIN s ON r.a = s.a "
    "GROUP BY r.b, r.c HAVING COUNT(*) > 1)",
    "distinct values": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING COUNT(DISTINCT r.c) > 1 AND SUM(s.c) > 0 OR SUM(DISTINCT r.i) = 3",
    "distinct of a group": "SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a "
    "HAVING COUNT(DISTINCT r.a) = 1 AND SUM(DISTINCT s.a) > 0",
    "distinct of all": "SELECT COUNT(*) FROM r JOIN s ON r.a = s.a "
    "HAVING COUNT(DISTINCT r.c) FILTER (WHERE r.b > 0) < 2",
    "distinct beside none": "SELECT r.b FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.a = r.a) "
    "GROUP BY r.b HAVING SUM(DISTINCT r.c + 1) <> 3 OR COUNT(DISTINCT 1) > 1",
    "distinct beside padding": "SELECT r.b FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING COUNT(DISTINCT r.c) > 1 OR COUNT(s.c) > 3",
    "text": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING MAX(r.name) < 'v'",
    "value of a group": "SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a "
    "HAVING MAX_BY(r.a, s.a) <> 1",
    "text beside its count": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING MIN(r.name) = '' AND COUNT(r.name) > 1 OR SUM(s.c) > 9",
    "text of all": "SELECT COUNT(*) FROM r JOIN s ON r.a = s.a "
    "HAVING MIN(r.name) FILTER (WHERE r.b > 0) = 'u' OR MAX(r.name) IS NULL",
    "text of an equal column": "SELECT s.b FROM r JOIN s ON r.name = s.name "
    "GROUP BY s.b HAVING MIN(r.name) <> 'u'",
    "wide decimals": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING MIN(CAST(r.c AS DECIMAL(38, 2))) > 0.5",
    "text that orders groups": "SELECT r.b, MIN(r.name) AS m FROM r JOIN s ON r.a = s.a "
    "WHERE r.b >= 0 GROUP BY r.b ORDER BY m DESC, r.b LIMIT 1",
    "value by key": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING MAX_BY(r.name, r.c) = 'u' OR MIN_BY(r.i, r.name) = 2",
    "value by key of all": "SELECT COUNT(*) FROM r JOIN s ON r.a = s.a "
    "HAVING MIN_BY(r.name, r.c) IS NULL",
    "value by an equal key": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING MIN_BY(r.name, s.a) > '' OR MIN_BY(s.a, r.c) = 2",
    "value of another type": "SELECT r.b FROM r JOIN s ON r.a = s.i GROUP BY r.b "
    "HAVING MAX_BY(s.i, r.c) < 2",
    "constant by key": "SELECT s.b FROM r JOIN s ON r.a = s.a GROUP BY s.b "
    "HAVING MAX_BY('x', s.c) = 'x' AND COUNT('x') > 1 AND MIN('x') = 'x'",
    "value beside none": "SELECT r.b FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.a = r.a) "
    "GROUP BY r.b HAVING MIN_BY(r.c, r.i) <> 1",
    "value beside padding": "SELECT r.b FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING MIN(r.name) > '' OR MAX_BY(r.c, r.name) = 1 OR COUNT(s.c) > 3",
    "several values": "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING MIN_BY(r.c, r.i) + MAX_BY(r.a, r.i) = 2",
    "left": "SELECT r.b FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.b HAVING COUNT(s.c) < 3",
    "grouped relation": "SELECT r.b FROM r JOIN (SELECT a, MAX(c) AS c FROM s GROUP BY a) q "
    "ON r.a = q.a JOIN t ON t.b = r.b GROUP BY r.b HAVING SUM(q.c) > 2",
}


@pytest.mark.parametrize("name", CASES)
@random_cases(0, 5, 24, also="0 1 3")
def test_each_kind_of_block(name: str, cases: Sequence[int]) -> None:
    seen = seen_in(cases, lambda at, seen: follow(core(CASES[name]), Random(at), seen, f"{at}"))
    assert seen["trees"] == len(cases)
    assert seen["filled sketches"] > 0


def test_a_value_that_takes_another_ones_place_changes_the_group() -> None:
    """As many rows and tuples as before, but another sum, from step to step."""
    sql = "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING SUM(DISTINCT r.c) = 2"
    ranges = {"r#1": RangePartition("r", "b", LONG, BOUNDARIES)}
    root = core(sql)
    assert "r#1" in {scan.access for scan in scans_of(root)}
    session = MaintainedQuery(compile_plan(root, ranges, {}, barriers=(), trees={}))
    nothing: Row = dict.fromkeys(column.name for column in CATALOG["r"])

    def row(value: int) -> Row:
        return {**nothing, "a": 1, "b": 1, "c": value}

    session.load([("r", table_of([row(1)])), ("s", table_of([row(1)]))])
    for old, new, is_there in ((1, 2, True), (2, 3, False), (3, 2, True)):
        weights = np.array([-1, 1], dtype=np.int64)
        session.step({"r": TableChange(table_of([row(old), row(new)]), weights)})
        assert bool(session.fragments()["r#1"].ids) == is_there, (old, new)


@pytest.mark.parametrize("name", ["text", "value by key", "several values", "distinct values"])
@random_cases(2, 4, 12)
def test_random_joins_in_any_lots(name: str, cases: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in cases:
        with monkeypatch.context() as patched:
            patched.setattr(node, "MOST", 1 + seed % 2)
            patched.setattr(node, "LOT", 1 + seed % 2)
            follow(core(CASES[name]), Random(seed), Counter(), f"{seed}: {CASES[name]}")


def test_without_a_tree_the_circuit_is_the_one_without_trees() -> None:
    root = core("SELECT a FROM r WHERE b > 1 GROUP BY a HAVING COUNT(*) > 2")
    partitions = partitions_of(Random(1), root)
    plain = compile_plan(root, partitions, {}, barriers=())
    asked = compile_plan(root, partitions, {}, barriers=(), trees={})
    assert [type(one) for one in asked.circuit] == [type(one) for one in plain.circuit]
    assert isinstance(asked.shapes[0], NoTree)
    assert plain.shapes == ()


REFUSED = {
    "SELECT r.b, MAX_BY(r.c, r.i) AS m FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "ORDER BY m, r.b LIMIT 1": "MAX_BY below another grouping or a LIMIT",
    "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING AVG(DISTINCT r.c) > 1": "the engine does not support AVG",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_groupings_over_rows_do_not_keep_trees_do_not_either(sql: str) -> None:
    root = core(sql)
    for trees in ({}, None):
        with pytest.raises(BlockedError, match=REFUSED[sql]) as error:
            compile_plan(root, partitions_of(Random(1), root), {}, barriers=(), trees=trees)
        assert error.value.span is not None
