"""WITH RECURSIVE: the plans of readable queries, and the refusals with name and position."""

from __future__ import annotations

from typing import Any

import pytest

from impctl.errors import NotReadError, QueryError
from impctl.plan import nodes
from impctl.plan.explain import describe
from impctl.plan.fingerprint import fingerprint, template
from impctl.sql.recursive import MOST_LEVELS, is_refused_by_spark
from impctl.sql.text import read_text, without_recursion_limits
from tests.plan.catalogs import (
    CLOSURE,
    REACHED,
    cases,
    fixpoint_of,
    fixpoints_of,
    listed,
    net_plan,
    read_net,
    refusal,
    tree,
)

STEP = "SELECT l.dst FROM r JOIN links l ON r.n = l.src"
BODIES = [
    f"SELECT dst FROM links UNION {STEP}",
    f"(SELECT dst FROM links) UNION ({STEP})",
    f"((SELECT dst FROM links) UNION ({STEP}))",
    "SELECT 1L AS n FROM links UNION SELECT x FROM (SELECT dst AS x FROM links) t JOIN r ON n = x",
    f" -- a bracket )\n SELECT dst FROM links WHERE region = ')' UNION {STEP} /* ( */ ",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("head", ["r(n) AS ", "`r` (`n`)\nAS\n", "R(n) as ", "r(n) "])
def test_an_entry_spans_all_between_its_brackets(body: str, head: str) -> None:
    sql = f"WITH RECURSIVE a(n) AS (SELECT n FROM nodes), {head}({body}) SELECT 1 FROM a AS b, r"
    fixpoint = fixpoint_of(sql)
    assert sql[fixpoint.span.start : fixpoint.span.end] == body


def test_nested_entries_have_nested_spans() -> None:
    inner = "SELECT dst FROM links UNION SELECT l.dst FROM s JOIN links l ON s.n = l.src"
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM"
        f" (WITH RECURSIVE s(n) AS ({inner}) SELECT n FROM s) t UNION {STEP}) SELECT n FROM r"
    )
    outer, inner_fixpoint = fixpoints_of(net_plan(sql))
    assert sql[inner_fixpoint.span.start : inner_fixpoint.span.end] == inner
    assert outer.span.start < inner_fixpoint.span.start
    assert inner_fixpoint.span.end < outer.span.end


BASE = "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION "
"""An entry except for its step and closing bracket."""


@pytest.mark.parametrize(
    ("sql", "label"),
    [(REACHED, "each row once"), (REACHED.replace("UNION", "UNION ALL"), "all")],
    ids=["set", "bag"],
)
def test_an_entry_that_reads_itself_is_a_fixpoint(sql: str, label: str) -> None:
    assert tree(net_plan(sql + "SELECT n FROM r")).splitlines() == [
        f"fixpoint r, {label}: n",
        "  project dst",
        "    select src = 1",
        "      scan links#1: src, dst, cost, region, weight",
        "  project dst",
        "    join inner on n = src",
        "      recursive r: n",
        "      scan links#2: src, dst, cost, region, weight",
    ]


def test_fixpoint_columns_have_alias_names_and_base_types() -> None:
    fixpoint = fixpoint_of(CLOSURE + "SELECT * FROM c")
    assert [(a.name, str(a.type), a.nullable) for a in fixpoint.attributes] == [
        ("x", "bigint", True),
        ("y", "bigint", True),
    ]
    assert fixpoint.is_set
    unnamed = fixpoint_of(
        "WITH RECURSIVE r AS (SELECT n FROM nodes UNION SELECT n + 1 FROM r) SELECT * FROM r"
    )
    assert [a.name for a in unnamed.attributes] == ["n"]


def test_identities_are_unique_and_leaves_know_their_fixpoint() -> None:
    plan = net_plan(
        "WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION SELECT a.n FROM r a JOIN r b "
        "ON a.n = b.n + 1) SELECT x.n FROM r x JOIN r y ON x.n = y.n"
    )
    ids = [
        attribute.id
        for node in plan.walk()
        if isinstance(node, nodes.Scan | nodes.Recursive | nodes.Fixpoint)
        for attribute in node.attributes
    ]
    assert len(ids) == len(set(ids))
    assert len({scan.access for scan in plan.scans}) == len(plan.scans) == 2
    first, second = fixpoints_of(plan)
    assert first.id == second.id, "one entry, read in two places"
    for fixpoint in (first, second):
        leaves = [node for node in fixpoint.step.walk() if isinstance(node, nodes.Recursive)]
        assert [leaf.fixpoint for leaf in leaves] == [fixpoint.id, fixpoint.id]
        assert not any(isinstance(node, nodes.Recursive) for node in fixpoint.base.walk())


def test_entries_of_one_name_are_distinct() -> None:
    entry = "WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION SELECT n FROM r) SELECT n FROM r"
    fixpoints = fixpoints_of(net_plan(f"SELECT 1 FROM ({entry}) a CROSS JOIN ({entry}) b"))
    assert len({one.id for one in fixpoints}) == 2


@pytest.mark.parametrize("sql", cases("recursive", "ordinary entries"))
def test_entries_that_do_not_read_themselves_are_ordinary(sql: str) -> None:
    assert fixpoints_of(net_plan(sql)) == []
    without = sql.replace("WITH RECURSIVE", "WITH")
    assert tree(net_plan(sql)) == tree(net_plan(without))


@pytest.mark.parametrize("sql", cases("recursive", "entries that read themselves"))
def test_entries_may_read_themselves_anywhere(sql: str) -> None:
    assert any(isinstance(node, nodes.Recursive) for node in fixpoint_of(sql).step.walk())


def test_entries_may_read_earlier_ones() -> None:
    plan = net_plan(
        REACHED[:-1] + ", q(m) AS (SELECT n FROM r UNION SELECT q.m + 1 FROM q JOIN r ON r.n = q.m)"
        " SELECT m FROM q"
    )
    assert [one.id for one in fixpoints_of(plan)] == ["q", "r", "r"]


def joins_of(fixpoint: nodes.Fixpoint) -> str:
    """Return the kinds of the joins in its step."""
    kinds = [node.kind.name for node in fixpoint.step.walk() if isinstance(node, nodes.Join)]
    return ", ".join(kinds) or "none"


@pytest.mark.parametrize(("step", "kind"), cases("recursive", "joins that stay"))
def test_joins_in_a_step_keep_their_kind(step: str, kind: str) -> None:
    assert joins_of(fixpoint_of(f"{BASE}{step}) SELECT n FROM r")) == kind


@pytest.mark.parametrize(
    "step",
    [
        "SELECT DISTINCT l.dst FROM r JOIN links l ON r.n = l.src",
        "SELECT l.dst FROM (SELECT DISTINCT n FROM r) q JOIN links l ON q.n = l.src",
        "(SELECT n + 1 FROM r UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src)",
    ],
)
def test_distinct_in_a_step_is_dropped(step: str) -> None:
    text = tree(fixpoints_of(net_plan(f"{BASE}{step}) SELECT n FROM r"))[0].step)
    assert "distinct" not in text
    assert "union\n" not in text


def test_distinct_elsewhere_is_kept() -> None:
    fixpoint = fixpoint_of(
        f"{BASE}SELECT q.d FROM r JOIN (SELECT DISTINCT src, dst AS d FROM links) q "
        "ON r.n = q.src) SELECT n FROM r"
    )
    assert any(isinstance(node, nodes.Distinct) for node in fixpoint.step.walk())


def test_the_fixpoint_and_its_leaves_have_spans() -> None:
    sql = REACHED + "SELECT n FROM r"
    fixpoint = fixpoint_of(sql)
    leaf = next(node for node in fixpoint.step.walk() if isinstance(node, nodes.Recursive))
    for node, text in ((fixpoint, REACHED[REACHED.index("SELECT") : -2]), (leaf, "r")):
        assert sql[node.span.start : node.span.end] == text
    assert next(describe(fixpoint))[1] is fixpoint


@pytest.mark.parametrize(("marked", "name"), cases("recursive", "steps"))
def test_unsupported_steps_are_refused(marked: str, name: str) -> None:
    _refused(f"{BASE}{marked}) SELECT n FROM r", name)


@pytest.mark.parametrize(("marked", "name"), cases("recursive", "entries"))
def test_unsupported_entries_are_refused(marked: str, name: str) -> None:
    _refused(f"{marked} SELECT * FROM r", name)


def _refused(marked: str, name: str) -> None:
    error = refusal(marked, read_net)
    # Spark would refuse it too, so it does not get the query.
    assert not isinstance(error, NotReadError)
    assert name in error.message
    assert error.code == "query_unsupported"


def test_an_unused_entry_is_parsed_too() -> None:
    assert fixpoints_of(net_plan(REACHED + "SELECT n FROM nodes")) == []
    _refused("WITH RECURSIVE r AS (SELECT »src FROM r) SELECT n FROM nodes", "with one part only")


@pytest.mark.parametrize(("marked", "hint"), cases("recursive", "unknown names"))
def test_an_unknown_name_gets_a_suggestion(marked: str, hint: str) -> None:
    error = refusal(f"{marked} SELECT src FROM links", read_net)
    assert "is unknown" in error.message
    assert (error.code, error.hint) == ("table_unknown", hint)


def test_an_entry_may_have_a_tables_name() -> None:
    assert read_net("WITH links AS (SELECT dst FROM links) SELECT dst FROM links").root


SEED = "SELECT dst FROM links WHERE src = 1"
ALL = f"WITH RECURSIVE r(n) AS ({SEED} UNION ALL {STEP})"


def texts(section: str) -> list[Any]:
    """Read the queries of a section by name and insert their shared parts."""
    shared = {"ALL": ALL, "SEED": SEED, "STEP": STEP}
    lines = listed("recursive", section)
    return [pytest.param(text.format(**shared), id=name) for name, text in lines]


REFUSED_BY_SPARK, LEFT_TO_SPARK = texts("refused by Spark"), texts("left to Spark")


@pytest.mark.parametrize("sql", REFUSED_BY_SPARK)
def test_queries_refused_by_spark_are_known(sql: str) -> None:
    assert is_refused_by_spark(read_text(sql, "q")[1])


@pytest.mark.parametrize("sql", LEFT_TO_SPARK)
def test_other_queries_are_left_to_spark(sql: str) -> None:
    assert not is_refused_by_spark(read_text(sql, "q")[1])


@pytest.mark.spark
def test_spark_agrees(spark: Any) -> None:
    from pyspark.errors import AnalysisException, ParseException

    spark.sql("SELECT 1L AS src, 7L AS dst").createOrReplaceTempView("links")
    for case in LEFT_TO_SPARK:
        spark.sql(*case.values)
    for case in REFUSED_BY_SPARK:
        with pytest.raises((AnalysisException, ParseException)):
            spark.sql(*case.values)


def test_other_constructs_are_errors_if_spark_fails() -> None:
    with pytest.raises(QueryError, match="uses SORT BY in SELECT") as caught:
        read_net(f"WITH RECURSIVE r(n) AS ({SEED} UNION {STEP}) SELECT n FROM r SORT BY n")
    assert not isinstance(caught.value, NotReadError)
    # A query that nothing can run does not deserve a hint about `sketch: none`.
    assert "sketch: none" not in caught.value.hint
    assert "Spark" in caught.value.hint


def test_other_constructs_are_left_to_spark() -> None:
    with pytest.raises(NotReadError, match="uses SORT BY in SELECT") as caught:
        read_net(f"{ALL} SELECT n FROM r SORT BY n")
    assert "sketch: none" in caught.value.hint


def test_mutual_recursion_is_an_error() -> None:
    with pytest.raises(QueryError, match="mutual recursion") as caught:
        read_net(
            f"WITH RECURSIVE r(n) AS ({SEED} UNION ALL SELECT n FROM s), s AS (SELECT n FROM r) "
            "SELECT n FROM r"
        )
    assert not isinstance(caught.value, NotReadError)


ENTRY = (
    "WITH RECURSIVE r(n){} AS (SELECT dst FROM links WHERE src = 1 UNION ALL "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
)
HEAD = "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION ALL "
LEVELS = " MAX RECURSION LEVEL 7"


def test_the_first_part_may_be_any_union() -> None:
    for kind in ("UNION", "UNION ALL"):
        fixpoint = fixpoint_of(
            f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes {kind} SELECT dst FROM links "
            "UNION ALL SELECT n + 1 FROM r) SELECT n FROM r"
        )
        assert not fixpoint.is_set
        assert ("union all" in tree(fixpoint.base)) is (kind == "UNION ALL")


@pytest.mark.parametrize(("step", "kinds"), cases("recursive", "joins of one row"))
def test_steps_deriving_rows_from_one(step: str, kinds: str) -> None:
    fixpoint = fixpoint_of(f"{HEAD}{step}) SELECT n FROM r")
    assert joins_of(fixpoint) == kinds
    assert any(isinstance(node, nodes.Recursive) for node in fixpoint.step.walk())


@pytest.mark.parametrize(("marked", "name", "hint"), cases("recursive", "steps of UNION ALL"))
def test_unsupported_union_all_steps_are_refused(marked: str, name: str, hint: str) -> None:
    error = refusal(f"{HEAD}{marked}) SELECT n FROM r", read_net)
    assert isinstance(error, NotReadError)
    assert name in error.message
    assert hint in (error.hint or "")


def test_a_third_part_is_refused_as_in_spark() -> None:
    with pytest.raises(NotReadError, match="`r` in the first part of its UNION"):
        read_net(f"{HEAD}SELECT n + 1 FROM r UNION ALL SELECT n + 2 FROM r) SELECT n FROM r")


@pytest.mark.parametrize(
    "clause", [LEVELS, "\n max\trecursion  level\n7", " MAX /* as deep */ RECURSION LEVEL 7"]
)
def test_max_recursion_level_is_in_the_plan(clause: str) -> None:
    plan = net_plan(ENTRY.format(clause) + "SELECT n FROM r")
    (result,) = fixpoints_of(plan)
    assert result.levels == 7
    assert tree(plan).splitlines()[0] == "fixpoint r, all, at most 7 levels: n"
    plain = net_plan(ENTRY.format("") + "SELECT n FROM r")
    assert fixpoints_of(plain)[0].levels is None
    deeper = net_plan(ENTRY.format(LEVELS.replace("7", "8")) + "SELECT n FROM r")
    for hashed in (fingerprint, template):
        assert len({hashed(each_plan) for each_plan in (plan, plain, deeper)}) == 3


def test_levels_are_per_entry() -> None:
    sql = (
        "WITH RECURSIVE a MAX RECURSION LEVEL 3 AS (SELECT n FROM nodes UNION ALL "
        "SELECT n + 1 FROM a), b MAX RECURSION LEVEL 5 AS (SELECT n FROM nodes), "
        "c(m) MAX RECURSION LEVEL 4 (SELECT n FROM nodes UNION ALL SELECT m + 1 FROM c), "
        "d AS (SELECT n FROM nodes UNION ALL SELECT n + 1 FROM d) "
        "SELECT 1 FROM a, b, c, d"
    )
    assert {one.id: one.levels for one in fixpoints_of(net_plan(sql))} == {
        "a": 3,
        "c": 4,
        "d": None,
    }


def test_spans_refer_to_the_original_text() -> None:
    sql = ENTRY.format(LEVELS) + "SELECT n FROM r"
    fixpoint = fixpoint_of(sql)
    assert sql.index(f"({sql[fixpoint.span.start : fixpoint.span.end]})") == sql.index("AS (") + 3
    spans = [(s.start, s.end) for s, _ in read_net(sql).mentions]
    assert [sql[start:end] for start, end in spans] == ["links", "links"]


def test_the_level_clause_can_be_blanked() -> None:
    sql = ENTRY.format("\nMAX RECURSION LEVEL 7") + "SELECT 'MAX RECURSION LEVEL 7' FROM r"
    blank = without_recursion_limits(sql)
    assert len(blank) == len(sql)
    assert blank.count("RECURSION LEVEL") == 1
    assert blank == sql.replace("MAX RECURSION LEVEL 7 AS", " " * 21 + " AS")
    assert without_recursion_limits("SELECT 1") == "SELECT 1"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT n »MAX RECURSION LEVEL 3 FROM nodes", "in the wrong place"),
        (
            "WITH RECURSIVE r »MAX RECURSION LEVEL 3 (n) AS (SELECT n FROM nodes UNION ALL "
            "SELECT n FROM r) SELECT n FROM r",
            "in the wrong place",
        ),
        ("WITH q »MAX RECURSION LEVEL 3 AS (SELECT n FROM nodes) SELECT n FROM q", "not a WITH R"),
        (
            f"WITH RECURSIVE r »MAX RECURSION LEVEL {MOST_LEVELS + 1} AS (SELECT n FROM nodes "
            "UNION ALL SELECT n FROM r) SELECT n FROM r",
            "is more than 2,147,483,647",
        ),
    ],
)
def test_a_misplaced_level_is_an_error(sql: str, message: str) -> None:
    assert message in refusal(sql, read_net).message


@pytest.mark.parametrize(
    "clause",
    [
        *(f"MAX RECURSION LEVEL {n}" for n in ("-1", "1.5", "'3'", "n", "`3`", "1 + 1")),
        "`MAX` RECURSION LEVEL 3",
        "MAX RECURSION 3",
    ],
)
def test_malformed_levels_are_errors(clause: str) -> None:
    with pytest.raises(QueryError):
        read_net(ENTRY.format(f" {clause}") + "SELECT n FROM r")
