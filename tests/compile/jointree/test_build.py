"""Queries maintained by join trees: sketches match the lineage after every batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.jointree.graph import NoTree, TreeShape
from impctl.compile.jointree.shape import tree_lines, tree_nodes
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG
from impctl.engine import accumulators
from impctl.engine.join import JoinOperator
from impctl.engine.jointree import node
from impctl.engine.jointree.cyclic import Probe
from impctl.engine.jointree.tree import Tree
from impctl.errors import NotExactError, QueryError, UnsupportedError
from impctl.plan.nodes import Plan
from impctl.sketch.sketch import RangePartition
from tests.compile.jointree.shapes import CATALOG, JoinMaker, core, random_tables, shape_of
from tests.compile.test_plans import has_choice
from tests.plan.trials import fragment_of
from tests.support.carried_queries import Stored, arrow_rows, restored, sketches_of
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_plan import Tables, annotate

BATCHES = 3
BOUNDARIES = (1, 2)

Row = dict[str, Any]


def table_of(rows: list[Row]) -> pa.Table:
    return arrow_rows(CATALOG["r"], rows)


def partitions_of(rng: Random, root: Plan) -> dict[str, RangePartition]:
    """Every access is sketched on a column that the query reads."""
    result = {}
    for scan in root.scans:
        names = sorted({attribute.name for attribute in scan.attributes} & set("abc"))
        if names:
            name = rng.choice(names)
            result[scan.access] = RangePartition(scan.table, name, LONG, BOUNDARIES)
    return result


def expected_sketches(
    root: Plan, tables: Mapping[str, list[Row]], partitions: Mapping[str, RangePartition]
) -> dict[str, set[int]]:
    result: dict[str, set[int]] = {access: set() for access in partitions}
    for access, index in annotate(root, tables).lineage:
        if access in partitions:
            value = tables[partitions[access].table][index][partitions[access].attribute]
            result[access].add(fragment_of(value, BOUNDARIES))
    return result


def changes_of(
    rng: Random, tables: dict[str, list[Row]], make: Callable[[Random], Tables] = random_tables
) -> dict[str, TableChange]:
    """Deleted, copied and new rows in some tables."""
    spare = make(rng)
    result = {}
    for name, rows in tables.items():
        if rng.random() < 0.5:
            continue
        inserted = [rng.choice([*spare[name], *rows]) for _ in range(rng.randint(0, 3))]
        deleted = [
            rows.pop(rng.randrange(len(rows))) for _ in range(min(len(rows), rng.randint(0, 2)))
        ]
        rows.extend(dict(row) for row in inserted)
        weights = np.array([1] * len(inserted) + [-1] * len(deleted), dtype=np.int64)
        result[name] = TableChange(table_of([dict(row) for row in (*inserted, *deleted)]), weights)
    return result


def one_case(seed: int, counts: Counter[str]) -> None:
    rng = Random(seed)
    sql = JoinMaker(rng).sql()
    try:
        root = core(sql)
    except QueryError:
        return
    follow(root, rng, counts, f"{seed}: {sql}")


def follow(root: Plan, rng: Random, counts: Counter[str], label: str) -> None:
    """Maintain a query over random tables and batches, with occasional restarts."""
    tables = {name: [dict(row) for row in rows] for name, rows in random_tables(rng).items()}
    partitions = partitions_of(rng, root)
    splits = {name: rng.randint(0, 3) for name in tables}
    compiled = partial(compile_plan, root, partitions, {}, barriers=())
    try:
        first = compiled(has_trees=True)
    except (BlockedError, UnsupportedError) as error:
        counts[f"blocked: {error.message}"[:70]] += 1
        return
    if all(isinstance(shape, NoTree) for shape in first.shapes):
        counts["no tree"] += 1
        return
    # With ties the lineage covers one answer. The index join covers all of them.
    sessions = [MaintainedQuery(first)]
    if has_choice(root):
        sessions.append(MaintainedQuery(compiled()))
        counts["choices"] += 1
    stored = Stored()
    # Tables are loaded in two parts, possibly empty.
    parts = [(name, table_of(tables[name][: splits[name]])) for name in first.tables]
    parts += [(name, table_of(tables[name][splits[name] :])) for name in first.tables]
    for one in sessions:
        one.load(parts)
    for _ in range(BATCHES):
        result, *joined = map(sketches_of, sessions)
        every = expected_sketches(root, tables, partitions)
        expected = {access: every[access] for access in result}
        assert result == (joined[0] if joined else expected), label
        assert all(result[access] >= expected[access] for access in result), label
        counts["sketches"] += len(result)
        counts["filled sketches"] += sum(map(bool, result.values()))
        change = changes_of(rng, tables)
        for one in sessions:
            one.step(change)
        if rng.random() < 0.3:
            sessions[0] = restored(sessions[0], stored, MaintainedQuery(compiled(has_trees=True)))
    counts["trees"] += 1


@random_cases(
    0, 10, 4_000, also="1 8 15 28 39 40 60 64 88 97 102 110 119 123 147 151 169 171 175 184 191"
)
def test_random_joins(cases: Sequence[int]) -> None:
    counts = seen_in(cases, one_case)
    assert counts["trees"] > len(cases) // 2, counts
    assert counts["filled sketches"] > len(cases) // 2, counts


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
    "HAVING MIN(r.name) FILTER (WHERE r.b > 0) >= 'u' OR MAX(r.name) IS NULL",
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
@random_cases(2, 3, 24)
def test_each_kind_of_block(name: str, cases: Sequence[int]) -> None:
    counts = seen_in(
        cases, lambda seed, counts: follow(core(CASES[name]), Random(seed), counts, f"{seed}")
    )
    assert counts["trees"] == len(cases)
    assert counts["filled sketches"] > 0


@pytest.mark.parametrize("name", ["text", "value by key", "several values", "distinct values"])
@random_cases(2, 4, 12)
def test_random_joins_in_small_lots(
    name: str, cases: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in cases:
        with monkeypatch.context() as patched:
            patched.setattr(node, "MOST", 1 + seed % 2)
            patched.setattr(node, "LOT", 1 + seed % 2)
            follow(core(CASES[name]), Random(seed), Counter(), f"{seed}: {CASES[name]}")


def test_queries_without_a_tree_get_the_usual_circuit() -> None:
    root = core("SELECT a FROM r WHERE b > 1 GROUP BY a HAVING COUNT(*) > 2")
    partitions = partitions_of(Random(1), root)
    plain = compile_plan(root, partitions, {}, barriers=())
    with_trees = compile_plan(root, partitions, {}, barriers=(), has_trees=True)
    assert [type(one) for one in with_trees.circuit] == [type(one) for one in plain.circuit]
    assert isinstance(with_trees.shapes[0], NoTree)
    assert plain.shapes == ()


REFUSED = {
    "SELECT r.b, MAX_BY(r.c, r.i) AS m FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "ORDER BY m, r.b LIMIT 1": "MAX_BY below another grouping or a LIMIT",
    "SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b "
    "HAVING AVG(DISTINCT r.c) > 1": "the engine does not support AVG",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_trees_refuse_the_same_calls_as_index_joins(sql: str) -> None:
    root = core(sql)
    for has_trees in (True, False):
        with pytest.raises(BlockedError, match=REFUSED[sql]) as error:
            compile_plan(root, partitions_of(Random(1), root), {}, barriers=(), has_trees=has_trees)
        assert error.value.span is not None


NOTHING: Row = dict.fromkeys(column.name for column in CATALOG["r"])


def row(name: str | None, c: int | None = 1, i: int | None = 1, *, a: int = 1) -> Row:
    return {**NOTHING, "a": a, "b": 1, "c": c, "i": i, "name": name}


def compiled_having(condition: str) -> Dataflow:
    root = core(f"SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING {condition}")
    ranges = {"r#1": RangePartition("r", "b", LONG, BOUNDARIES)}
    result = compile_plan(root, ranges, {}, barriers=(), has_trees=True)
    assert isinstance(result.shapes[0], TreeShape)
    return result


def test_deleted_partners_remove_the_first_value() -> None:
    session = MaintainedQuery(compiled_having("MAX(r.name) = 'u'"))
    partners = [row(None), row(None, a=2)]
    session.load([("r", table_of([row("u"), row("v", a=2)])), ("s", table_of(partners))])
    for sign, is_there in ((-1, True), (1, False), (-1, True)):
        change = TableChange(table_of([partners[1]]), np.array([sign], dtype=np.int64))
        session.step({"s": change})
        assert bool(session.ranges()["r#1"].ids) == is_there


def test_too_many_ties_stop_the_step() -> None:
    session = MaintainedQuery(compiled_having("MIN_BY(r.c, r.i) = 1"))
    rows = [row("", value) for value in range(64)]
    session.load([("r", table_of(rows)), ("s", table_of([row(None)]))])
    assert session.ranges()["r#1"].ids
    with pytest.raises(NotExactError, match="More than 64 values"):
        session.step({"r": TableChange(table_of([row("", 64)]), np.ones(1, dtype=np.int64))})


def test_combinations_of_ties_are_limited_but_not_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accumulators, "_MOST_ROWS", 1)
    groups = [{**row("", value), "b": value} for value in range(4)]
    session = MaintainedQuery(compiled_having("MIN_BY(r.c, r.i) >= 0"))
    session.load([("r", table_of(groups)), ("s", table_of([row(None)]))])
    assert len(session.ranges()["r#1"].ids) == len(BOUNDARIES) + 1
    # One more row in a group with ties, before and after.
    tied = TableChange(table_of([{**row("", 7), "b": 1}]), np.ones(1, dtype=np.int64))
    session.step({"r": tied})
    with pytest.raises(NotExactError, match="combine to too many rows"):
        session.step({"r": tied, "s": TableChange(table_of([row(None)]), tied.weights)})


def test_replacing_a_distinct_value_updates_the_group() -> None:
    """Each step changes the sum but not the number of rows and tuples."""
    session = MaintainedQuery(compiled_having("SUM(DISTINCT r.c) = 2"))
    session.load([("r", table_of([row(None, 1)])), ("s", table_of([row(None)]))])
    for old, new, is_there in ((1, 2, True), (2, 3, False), (3, 2, True)):
        change = TableChange(table_of([row(None, old), row(None, new)]), np.array([-1, 1]))
        session.step({"r": change})
        assert bool(session.ranges()["r#1"].ids) == is_there, (old, new)


def names_of(condition: str) -> set[str]:
    (tree,) = (one for one in compiled_having(condition).circuit if isinstance(one, Tree))
    return {keeper.name.rpartition("tree0/1.")[2] for keeper in tree.arrangements()}


def test_only_first_values_add_pieces_to_the_state() -> None:
    plain = names_of("COUNT(r.name) > 1")
    assert not any("first" in name or "last" in name for name in plain)
    names = names_of("COUNT(r.name) > 1 AND MIN_BY(r.name, r.c) > '' AND MAX(r.name) > ''")
    parts = ("first1.0.rows", "first1.0.codes", "last0.0.rows", "last0.0.codes")
    assert names - plain == {*parts}


TRIANGLE = "r.a = s.a AND s.b = t.b AND t.c = r.c"
EDGES = "x.a = y.b AND y.a = z.b AND z.a = x.b"
PROBED_CASES = {
    "triangle": f"SELECT r.b FROM r, s, t WHERE {TRIANGLE} GROUP BY r.b HAVING SUM(s.c) > 1",
    "of classes": f"SELECT r.a FROM r, s, t WHERE {TRIANGLE} GROUP BY r.a HAVING COUNT(*) > 1",
    "rows": f"SELECT r.b FROM r, s, t WHERE {TRIANGLE}",
    "global": f"SELECT COUNT(*) FROM r, s, t WHERE {TRIANGLE} HAVING COUNT(*) > 1",
    "edges": f"SELECT x.a FROM r x, r y, r z WHERE {EDGES} GROUP BY x.a HAVING COUNT(*) > 1",
    "other columns": f"SELECT x.c FROM r x, r y, r z WHERE {EDGES} "
    "GROUP BY x.c HAVING SUM(y.i) > 1",
    "conditions": f"SELECT x.a FROM r x, r y, r z WHERE {EDGES} AND x.c >= 1 AND y.c >= 1 "
    "GROUP BY x.a HAVING COUNT(*) > 0",
    "other conditions": f"SELECT x.a FROM r x, r y, r z WHERE {EDGES} AND x.c >= 1 AND y.c < 2 "
    "AND z.c <> 0 GROUP BY x.a HAVING COUNT(*) > 0",
    "null-safe": "SELECT r.b FROM r JOIN s ON r.a <=> s.a JOIN t ON s.b <=> t.b AND t.c <=> r.c "
    "GROUP BY r.b HAVING COUNT(*) > 1",
    "circle of four": "SELECT r.b FROM r, s, t, u WHERE r.a = s.a AND s.b = t.b AND t.c = u.c "
    "AND u.i = r.i GROUP BY r.b HAVING COUNT(*) > 1",
    "dumbbell": "SELECT x.c FROM r x, r y, r z, s, t x2, t y2, t z2 WHERE "
    f"{EDGES} AND x.c = s.a AND s.b = x2.c AND x2.a = y2.b AND y2.a = z2.b AND z2.a = x2.b",
    "with a leaf": f"SELECT u.c, COUNT(*) FROM r, s, t, u WHERE {TRIANGLE} AND u.b = r.b "
    "GROUP BY u.c HAVING SUM(t.i) > 1",
    "computed": "SELECT r.b FROM r, s, t WHERE r.a = s.a + 1 AND s.b = t.b AND t.c = r.c "
    "GROUP BY r.b HAVING COUNT(*) > 0",
    "two columns of one": f"SELECT r.b FROM r, s, t WHERE {TRIANGLE} AND s.c = r.a "
    "GROUP BY r.b HAVING COUNT(*) > 0",
}


def compiled(sql: str) -> Dataflow:
    root = core(sql)
    ranges = {scan.access: RangePartition(scan.table, "a", LONG, (1, 2)) for scan in root.scans}
    return compile_plan(root, ranges, {}, barriers=(), has_trees=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBED_CASES)
@random_cases(0, 2, 250, also="3 5")
def test_sketches_of_cyclic_joins_match_the_lineage(name: str, cases: Sequence[int]) -> None:
    assert any(isinstance(one, Probe) for one in compiled(PROBED_CASES[name]).circuit)
    assert not any(isinstance(one, JoinOperator) for one in compiled(PROBED_CASES[name]).circuit)
    counts = seen_in(
        cases,
        lambda seed, counts: follow(core(PROBED_CASES[name]), Random(seed), counts, f"{seed}"),
    )
    assert counts["trees"] == len(cases)
    assert counts["filled sketches"] > 0


@pytest.mark.parametrize(
    "source",
    [
        f"r, s, t WHERE {TRIANGLE} AND r.i < s.i",
        f"r, s, t WHERE {TRIANGLE} AND (r.i = 1 OR s.i = 1)",
        "r, s, t, u WHERE r.a = s.a AND s.b = t.b AND t.c = u.c AND u.i = r.i AND r.c < s.c",
        "r, s, t WHERE r.a = s.a AND s.b = t.b AND t.name = r.c",
        "r, s, t WHERE r.a = s.a AND s.a = t.a AND r.b < t.b",
        "r JOIN s ON r.a = s.a JOIN t ON s.b = t.b AND t.c = r.c "
        "LEFT JOIN u ON u.a = r.a AND u.b = s.b AND u.c < t.b",
    ],
)
def test_cycles_with_other_conditions_are_not_probed(source: str) -> None:
    shape = shape_of(f"SELECT r.d FROM {source} GROUP BY r.d HAVING COUNT(*) > 1")
    nodes = shape.nodes if isinstance(shape, TreeShape) else ()
    assert all(node.circle is None for node in nodes)


def test_accesses_of_one_table_share_their_rows() -> None:
    def indexes(sql: str) -> int:
        (probe,) = (one for one in compiled(sql).circuit if isinstance(one, Probe))
        return len(probe.arrangements())

    assert indexes(PROBED_CASES["edges"]) == 3
    # Other conditions, other rows; the same conditions in another order, the same rows.
    assert indexes(PROBED_CASES["conditions"]) == 6
    assert indexes(PROBED_CASES["other conditions"]) == 9
    twice = f"{EDGES} AND x.c >= 1 AND x.b > 0 AND y.b > 0 AND y.c >= 1 AND z.b > 0 AND z.c >= 1"
    query = f"SELECT x.a FROM r x, r y, r z WHERE {twice} GROUP BY x.a HAVING COUNT(*) > 0"
    assert indexes(query) == 3


def test_probed_nodes_are_shown() -> None:
    shape = shape_of(PROBED_CASES["with a leaf"])
    nodes = tree_nodes(shape, {"r#1": "id"})
    assert [node.probed for node in nodes] == [len(node.bag) == 3 for node in nodes]
    assert any("r + s + t  probed  " in line for line in tree_lines(shape, nodes))
