"""Fixpoints in what looks at whole plans: the reference itself, hashes, reuse, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from impctl.data.schema import LONG, Column
from impctl.errors import QueryError
from impctl.plan.explain import describe
from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.lineage import trace
from impctl.plan.moved_conditions import moved_conditions
from impctl.plan.nodes import Plan, Query, Recursive, Scan, Witness, nodes_of, scans_of
from impctl.plan.properties import deciding
from impctl.reuse.verdict import aligned, check_reuse
from impctl.rules.optimize import core_of
from impctl.rules.witnesses import witnessed
from impctl.safety.judge import Verdict, check_safety
from impctl.spark.capture import collect, sketch_passes
from impctl.spark.render import render_plan
from tests.plan.network import (
    BY_REGION,
    CLOSURE,
    REACHED,
    edges_on_walks,
    fixpoints_of,
    links,
    plan_of,
    read,
    ruled,
)
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.random_cases import random_cases
from tests.support.reference_plan import annotate, bag, evaluate

NONLINEAR = (
    "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links "
    "UNION SELECT a.x, b.y FROM c a JOIN c b ON a.y = b.x) "
)


def _edges(rng: Random) -> list[tuple[int, int]]:
    most = rng.choice((2, 3, 5))
    return [(rng.randint(1, most), rng.randint(1, most)) for _ in range(rng.randint(0, 7))]


@random_cases(10, 17, 400)
def test_the_reference_gives_what_walks_lead_to_and_the_edges_of_all_of_them(cases: range) -> None:
    plan = plan_of(REACHED + "SELECT n FROM r")
    for seed in cases:
        edges = _edges(Random(seed))
        result = annotate(plan, {"links": links(*edges)})
        expected = edges_on_walks(edges, 1)
        rows = {row[0]: {index for _, index in lineage} for row, lineage in result.rows}
        assert rows == expected, seed
        assert len(result.rows) == len(rows)
        assert set(result.first_rows.values()) == {result.lineage}


@pytest.mark.parametrize("entry", [CLOSURE, NONLINEAR])
@random_cases(5, 9, 300)
def test_the_reference_gives_the_closure_whatever_way_it_is_written(
    cases: range, entry: str
) -> None:
    plan = plan_of(entry + "SELECT x, y FROM c")
    for seed in cases:
        edges = _edges(Random(seed))
        walks = {start: edges_on_walks(edges, start) for start, _ in edges}
        expected = {(x, y) for x, reached in walks.items() for y in reached}
        result = annotate(plan, {"links": links(*edges)})
        assert {row for row, _ in result.rows} == expected, seed
        assert len(result.rows) == len(expected)
        for (x, y), lineage in result.rows:
            assert {index for _, index in lineage} == walks[x][y], seed


def test_a_column_of_null_is_one_row() -> None:
    rows: list[dict[str, Any]] = [{"t": None, "n": None}, {"t": 1, "n": None}]
    plan = plan_of(
        "WITH RECURSIVE r(n) AS (SELECT n FROM seeds UNION SELECT n FROM r) SELECT n FROM r"
    )
    ((row, lineage),) = annotate(plan, {"seeds": rows}).rows
    assert row == (None,)
    assert lineage == {("seeds#1", 0), ("seeds#1", 1)}


def test_hashes_know_no_names_and_every_difference() -> None:
    base = REACHED + "SELECT n FROM r"
    renamed = base.replace("r(n)", "reached(node)").replace("FROM r", "FROM reached")
    renamed = renamed.replace("r.n", "reached.node").replace("SELECT n", "SELECT node")
    assert fingerprint(plan_of(renamed)) == fingerprint(plan_of(base))
    texts = [
        base,
        base.replace("src = 1", "src = 2"),
        base.replace("l.dst FROM", "l.src FROM"),
        base.replace("JOIN links l ON r.n = l.src", "JOIN links l ON r.n = l.dst"),
        base.replace("SELECT l.dst FROM r JOIN", "SELECT l.dst FROM nodes r JOIN"),
        "SELECT dst FROM links WHERE src = 1",
        CLOSURE + "SELECT x FROM c",
        NONLINEAR + "SELECT x FROM c",
    ]
    assert len({fingerprint(plan_of(text)) for text in texts}) == len(texts)
    assert template(plan_of(texts[1])) == template(plan_of(base))


TWO = (
    "WITH RECURSIVE a(n) AS (SELECT n FROM nodes UNION SELECT n + 1 FROM a WHERE n < 3), "
    "b(n) AS (SELECT n FROM nodes UNION SELECT n + 1 FROM b WHERE n < {}) "
    "SELECT 1 FROM {} x JOIN {} y ON x.n = y.n"
)


def test_the_same_entry_twice_is_not_two_entries() -> None:
    twice, both = (plan_of(TWO.format(3, "a", other)) for other in "ab")
    assert fingerprint(twice) != fingerprint(both)
    assert aligned(twice, both) is None
    assert aligned(both, twice) is None


def test_plans_of_one_shape_come_to_the_same_identities() -> None:
    plan = plan_of(REACHED.replace("src = 1", "src = 2") + "SELECT n FROM r")
    other = plan_of(
        REACHED.replace("r(n)", "q(n)").replace("r.n", "q.n").replace("FROM r", "FROM q")
        + "SELECT n FROM q"
    )
    result = aligned(plan, other)
    assert result is not None
    assert [one.id for one in fixpoints_of(result)] == ["q"]
    leaves = [node for node in nodes_of(result) if isinstance(node, Recursive)]
    models = [node for node in nodes_of(other) if isinstance(node, Recursive)]
    assert leaves == models
    assert [scan.access for scan in scans_of(result)] == [scan.access for scan in scans_of(other)]


REUSE = REACHED + "SELECT COUNT(*) FROM r WHERE n < 9 HAVING COUNT(*) > 3"


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        # Whatever stands above: all rows of the recursion are in the sketch.
        ("> 3", "> 5", True),
        ("> 3", "> 1", True),
        ("n < 9", "n < 100", True),
        ("n < 9", "n < 2", True),
        ("src = 1", "src = 2", False),
        ("src = 1", "src = 1 AND dst = 1", False),
    ],
)
def test_a_sketch_serves_every_query_over_the_same_recursion(
    old: str, new: str, allowed: bool
) -> None:
    captured, asked = ruled(REUSE), ruled(REUSE.replace(old, new))
    assert check_reuse(asked, captured, BY_REGION, ()).allowed is allowed


def test_constants_inside_are_refused_even_where_they_ask_for_less() -> None:
    text = REACHED.replace("= l.src)", "= l.src WHERE l.cost < {})") + "SELECT n FROM r"
    captured, asked = ruled(text.format(9)), ruled(text.format(5))
    verdict = check_reuse(asked, captured, BY_REGION, ())
    assert not verdict.allowed
    assert verdict.reason == (
        "the constants inside WITH RECURSIVE differ, which changes what it derives"
    )


def test_tables_sketched_beside_the_recursion_are_judged_by_the_rules() -> None:
    text = REACHED + "SELECT r.n FROM r JOIN nodes m ON r.n = m.n WHERE m.n < {}"
    columns = {**BY_REGION, "nodes#1": "kind"}
    for asked, accesses in ((5, {*columns}), (20, {*BY_REGION})):
        verdict = check_reuse(ruled(text.format(asked)), ruled(text.format(9)), columns, ())
        assert verdict.allowed
        assert {*verdict.accesses} == accesses, "what more is asked for is read whole"


@random_cases(7, 12, 300)
def test_reuse_gives_the_asked_answer(cases: range) -> None:
    captured, asked = ruled(REUSE), ruled(REUSE.replace("> 3", "< 3").replace("n < 9", "n < 4"))
    partitions: Any = dict.fromkeys(BY_REGION, ("src", (2, 3, 4)))
    for seed in cases:
        tables = {"links": links(*_edges(Random(seed)))}
        result = annotate(captured.root, tables)
        sketches = accurate_sketches(result, captured.root, tables, partitions)
        instances = instances_of(asked.root, tables, partitions, sketches)
        whole = bag(evaluate(asked.root, tables))
        assert bag(evaluate(asked.root, tables, instances)) == whole, seed


def test_constants_moved_inside_move_rows_of_its_tables_only() -> None:
    text = REACHED + "SELECT n FROM r"
    before, after = core_of(plan_of(text)), core_of(plan_of(text.replace("src = 1", "src = 2")))
    for is_open in (False, True):
        result = moved_conditions(before, after, is_open_above=is_open)
        assert result is not None
        assert set(result) == {"links#1"}
    for step in ("SELECT n + {} AS m FROM r", "SELECT n + 1 AS m FROM r WHERE n < {}"):
        text = f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION {step}) SELECT n FROM r"
        plans = [core_of(plan_of(text.format(number))) for number in (1, 2)]
        assert moved_conditions(*plans, is_open_above=True) is None
    above = [core_of(plan_of(f"{REACHED}SELECT n FROM r WHERE n * 2 > {c}")) for c in (1, 2)]
    assert moved_conditions(*above) is None
    assert moved_conditions(*above, is_open_above=True) == {}


def test_no_witness_stands_inside_a_fixpoint_which_chooses_derivations() -> None:
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT src FROM links GROUP BY src "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
        "SELECT m.kind, MAX(r.n) FROM r JOIN nodes m ON r.n = m.n GROUP BY m.kind"
    )
    query = ruled(sql)
    columns = {"links#1": Column("dst", LONG), "nodes#1": Column("n", LONG)}
    sketched = {access: column.name for access, column in columns.items()}
    result = witnessed(query, check_safety(query, sketched, ()), columns)
    places = [node for node in nodes_of(result.query.root) if isinstance(node, Witness)]
    assert len(places) == 1, "above the fixpoint one stands"
    (fixpoint,) = fixpoints_of(result.query.root)
    assert not any(isinstance(node, Witness) for node in nodes_of(fixpoint))
    inside = list(nodes_of(query.root)).index(fixpoints_of(query.root)[0])
    assert all(position <= inside for position in result.notes)
    assert "one derivation" in result.notes[inside]
    assert fixpoint.chooses
    assert fingerprint(query.root) == fingerprint(ruled(sql).root)
    assert fingerprint(replace(fixpoint, chooses=False)) != fingerprint(fixpoint)
    assert core_of(result.query.root) != core_of(query.root), "its state is another"


def test_without_a_sketch_below_or_of_a_bag_a_fixpoint_chooses_nothing() -> None:
    text = REACHED + "SELECT m.n FROM r JOIN nodes m ON r.n = m.n"
    for sql, access, column in (
        (text, "nodes#1", Column("n", LONG)),
        (text.replace("UNION", "UNION ALL"), "links#1", Column("dst", LONG)),
    ):
        query = ruled(sql)
        verdict = check_safety(query, {access: column.name}, ())
        assert verdict.safe
        result = witnessed(query, verdict, {access: column})
        (fixpoint,) = fixpoints_of(result.query.root)
        assert not fixpoint.chooses
        notes = [note for note in result.notes.values() if "UNION ALL counts" in note]
        assert bool(notes) == ("UNION ALL" in sql)


def test_values_that_depend_on_the_order_of_rows_decide_in_a_fixpoint() -> None:
    plan = plan_of(
        "WITH RECURSIVE r(n) AS (SELECT FIRST(dst) FROM links UNION SELECT n FROM r) "
        "SELECT n FROM r"
    )
    assert [name for name, _ in deciding(plan)] == ["first"]


def _captured(plan: Plan) -> object:
    scan = next(node for node in nodes_of(plan) if isinstance(node, Scan))
    return collect(plan, scan, scan.attributes[0].id)


@pytest.mark.parametrize("run", [lambda plan: render_plan(plan, {}), _captured])
def test_spark_texts_are_refused(run: Callable[[Plan], object]) -> None:
    with pytest.raises(QueryError, match="WITH RECURSIVE") as caught:
        run(plan_of(REACHED + "SELECT n FROM r"))
    assert caught.value.code == "capture_unsupported"
    assert trace(plan_of(REACHED + "SELECT n FROM r"), "links#1", Column("src", LONG)) is None


def _spark_texts(query: Query, verdict: Verdict, columns: dict[str, Column]) -> None:
    for result in sketch_passes(query, verdict, columns):
        render_plan(result.rows, {scan.access: "v" for scan in scans_of(query.root)})


@pytest.mark.parametrize(
    ("above", "access"),
    [("SELECT n FROM r", "links#1"), ("SELECT m.n FROM r JOIN nodes m ON r.n = m.n", "nodes#1")],
)
def test_no_pass_of_spark_captures_over_a_recursion(above: str, access: str) -> None:
    query = read(REACHED + above)
    column = Column("src" if access == "links#1" else "n", LONG)
    verdict = check_safety(query, {access: column.name}, ())
    with pytest.raises(QueryError, match="WITH RECURSIVE") as caught:
        _spark_texts(query, verdict, {access: column})
    assert caught.value.code == "capture_unsupported"


def test_first_rows_below_a_recursion_are_captured_as_they_are() -> None:
    query = read(
        "WITH RECURSIVE r(n) AS (SELECT n FROM (SELECT n FROM nodes ORDER BY n LIMIT 2) "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    )
    verdict = check_safety(query, {"nodes#1": "n"}, ())
    (result,) = sketch_passes(query, verdict, {"nodes#1": Column("n", LONG)})
    assert fixpoints_of(result.rows) == []
    assert [scan.access for scan in scans_of(result.rows)] == ["nodes#1"]


def test_a_plan_with_a_fixpoint_is_told_line_by_line() -> None:
    (line,) = [
        one
        for one in _lines(describe(core_of(plan_of(CLOSURE + "SELECT y FROM c WHERE x = 1"))))
        if one.startswith("fixpoint")
    ]
    assert line == "fixpoint c, each row once: x, y"
    assert read(CLOSURE + "SELECT y FROM c").tables == ("links",)


def _lines(line: Any) -> list[str]:
    own = f"{line.operator} {line.detail}"
    return [own, *(text for child in line.children for text in _lines(child))]
