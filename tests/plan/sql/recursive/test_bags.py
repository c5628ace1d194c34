"""WITH RECURSIVE of UNION ALL: what is read, as which plan; what is refused; how many levels."""

from __future__ import annotations

import pytest

from impctl.errors import NotReadError, QueryError
from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.nodes import Join, JoinKind, Recursive, nodes_of
from impctl.sql.recursive import MOST_LEVELS
from impctl.sql.text import without_levels
from tests.plan.catalogs import refusal, tree
from tests.plan.network import fixpoint_of, fixpoints_of, plan_of, read

ENTRY = (
    "WITH RECURSIVE r(n){} AS (SELECT dst FROM links WHERE src = 1 UNION ALL "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
)
BASE = "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION ALL "
LEVELS = " MAX RECURSION LEVEL 7"


def test_an_entry_of_union_all_counts_every_derivation() -> None:
    assert tree(plan_of(ENTRY.format("") + "SELECT n FROM r")).splitlines() == [
        "fixpoint r, all: n",
        "  project dst",
        "    select src = 1",
        "      scan links#1: src, dst, cost, region, weight",
        "  project dst",
        "    join inner on n = src",
        "      recursive r: n",
        "      scan links#2: src, dst, cost, region, weight",
    ]


def test_the_first_part_may_be_a_union_of_either_kind() -> None:
    for kind in ("UNION", "UNION ALL"):
        fixpoint = fixpoint_of(
            f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes {kind} SELECT dst FROM links "
            "UNION ALL SELECT n + 1 FROM r) SELECT n FROM r"
        )
        assert not fixpoint.is_set
        assert ("union all" in tree(fixpoint.base)) is (kind == "UNION ALL")


@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        ("(SELECT n + 1 FROM r UNION ALL SELECT n + 2 FROM r)", []),
        ("SELECT m FROM (SELECT n AS m FROM r UNION ALL SELECT n + 2 FROM r)", []),
        ("SELECT l.dst FROM r LEFT JOIN links l ON r.n = l.src", [JoinKind.LEFT]),
        ("SELECT n + 1 FROM r WHERE n IN (SELECT n FROM nodes)", [JoinKind.SEMI]),
        ("SELECT n + 1 FROM r WHERE n NOT IN (SELECT n FROM nodes)", [JoinKind.ANTI]),
        (
            "SELECT q.d FROM r JOIN (SELECT DISTINCT src, dst AS d FROM links) q ON r.n = q.src",
            [JoinKind.INNER],
        ),
    ],
)
def test_steps_that_make_each_row_of_one(step: str, kinds: list[JoinKind]) -> None:
    fixpoint = fixpoint_of(f"{BASE}{step}) SELECT n FROM r")
    assert [node.kind for node in nodes_of(fixpoint.step) if isinstance(node, Join)] == kinds
    assert any(isinstance(node, Recursive) for node in nodes_of(fixpoint.step))


REFUSED = [
    # (step with » before the place, name of what is refused, a word of the hint)
    ("SELECT DISTINCT »l.dst FROM r JOIN links l ON r.n = l.src", "DISTINCT over", "UNION if each"),
    (
        "SELECT l.dst FROM (SELECT DISTINCT »n FROM r) q JOIN links l ON q.n = l.src",
        "DISTINCT over",
        "UNION if each",
    ),
    ("(SELECT »n FROM r UNION SELECT n + 1 FROM r)", "UNION over", "UNION if each"),
    ("SELECT dst FROM links WHERE »src IN (SELECT n FROM r)", "IN, EXISTS or a semi", "use a join"),
    (
        "SELECT dst FROM links l WHERE EXISTS (SELECT »1 FROM r WHERE r.n = l.src)",
        "IN, EXISTS or a semi",
        "use a join",
    ),
    ("SELECT a.n FROM r a JOIN »r b ON a.n = b.n + 1", "a join of two of its rows", "last round"),
    (
        "(SELECT n FROM r UNION ALL SELECT a.n FROM r a JOIN »r b ON a.n = b.n)",
        "a join of two of its rows",
        "last round",
    ),
    ("(SELECT n FROM r UNION ALL SELECT »n FROM nodes)", "rows derived without `r`", "every round"),
    ("SELECT dst FROM links WHERE src NOT IN (SELECT n FROM r)", "NOT IN, NOT EXISTS", "filter"),
    ("SELECT MAX(l.dst) FROM r JOIN links l ON r.n = l.src", "an aggregate function", "filter"),
    ("SELECT r.n FROM links l LEFT JOIN r ON r.n = l.src", "the optional side", "filter"),
    (
        "SELECT »n FROM nodes WHERE n < (WITH q AS (SELECT n FROM r) SELECT MAX(n) FROM nodes)",
        "rows derived without `r`",
        "every round",
    ),
    ("SELECT l.cost FROM r JOIN links l ON r.n = l.src", "`bigint` and `int` in column", "CAST"),
]


@pytest.mark.parametrize(("marked", "name", "hint"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_step_is_refused_by_name_at_its_place(marked: str, name: str, hint: str) -> None:
    error = refusal(f"{BASE}{marked}) SELECT n FROM r", read)
    assert isinstance(error, NotReadError)
    assert name in error.message
    assert hint in (error.hint or "")


def test_a_third_part_is_refused_as_in_spark() -> None:
    with pytest.raises(NotReadError, match="`r` in the first part of its UNION"):
        read(f"{BASE}SELECT n + 1 FROM r UNION ALL SELECT n + 2 FROM r) SELECT n FROM r")


@pytest.mark.parametrize(
    "clause",
    [LEVELS, "\n max\trecursion  level\n7", " MAX /* as deep */ RECURSION LEVEL 7"],
)
def test_max_recursion_level_is_kept_with_the_plan(clause: str) -> None:
    plan = plan_of(ENTRY.format(clause) + "SELECT n FROM r")
    (result,) = fixpoints_of(plan)
    assert result.levels == 7
    assert tree(plan).splitlines()[0] == "fixpoint r, all, at most 7 levels: n"
    plain = plan_of(ENTRY.format("") + "SELECT n FROM r")
    assert fixpoints_of(plain)[0].levels is None
    other = plan_of(ENTRY.format(LEVELS.replace("7", "8")) + "SELECT n FROM r")
    for hashed in (fingerprint, template):
        assert len({hashed(one) for one in (plan, plain, other)}) == 3


def test_every_entry_has_its_own() -> None:
    sql = (
        "WITH RECURSIVE a MAX RECURSION LEVEL 3 AS (SELECT n FROM nodes UNION ALL "
        "SELECT n + 1 FROM a), b MAX RECURSION LEVEL 5 AS (SELECT n FROM nodes), "
        "c(m) MAX RECURSION LEVEL 4 (SELECT n FROM nodes UNION ALL SELECT m + 1 FROM c), "
        "d AS (SELECT n FROM nodes UNION ALL SELECT n + 1 FROM d) "
        "SELECT 1 FROM a, b, c, d"
    )
    assert {one.id: one.levels for one in fixpoints_of(plan_of(sql))} == {"a": 3, "c": 4, "d": None}


def test_places_are_those_of_the_text_as_it_is_written() -> None:
    sql = ENTRY.format(LEVELS) + "SELECT n FROM r"
    fixpoint = fixpoint_of(sql)
    written = sql[fixpoint.span.start : fixpoint.span.end]
    assert sql.index(f"({written})") == sql.index("AS (") + 3
    spans = [(s.start, s.end) for s, _ in read(sql).mentions]
    assert [sql[start:end] for start, end in spans] == ["links", "links"]


def test_blanks_stand_in_its_place_for_other_readers() -> None:
    sql = ENTRY.format("\nMAX RECURSION LEVEL 7") + "SELECT 'MAX RECURSION LEVEL 7' FROM r"
    blank = without_levels(sql)
    assert len(blank) == len(sql)
    assert blank.count("RECURSION LEVEL") == 1
    assert blank == sql.replace("MAX RECURSION LEVEL 7 AS", " " * 21 + " AS")
    assert without_levels("SELECT 1") == "SELECT 1"


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
def test_it_stands_where_spark_reads_it_or_is_an_error(sql: str, message: str) -> None:
    assert message in refusal(sql, read).message


@pytest.mark.parametrize(
    "clause",
    [
        *(f"MAX RECURSION LEVEL {n}" for n in ("-1", "1.5", "'3'", "n", "`3`", "1 + 1")),
        "`MAX` RECURSION LEVEL 3",
        "MAX RECURSION 3",
    ],
)
def test_its_words_are_words_and_its_number_is_in_digits(clause: str) -> None:
    with pytest.raises(QueryError):
        read(ENTRY.format(f" {clause}") + "SELECT n FROM r")
