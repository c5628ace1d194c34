"""WITH RECURSIVE: what is read, as which plan; what is refused, by which name, at which place."""

from __future__ import annotations

import pytest

from impctl.errors import NotReadError
from impctl.plan.explain import describe
from impctl.plan.nodes import (
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Recursive,
    Scan,
    attributes_of,
    nodes_of,
    scans_of,
)
from tests.plan.catalogs import refusal, tree
from tests.plan.network import CLOSURE, REACHED, fixpoint_of, fixpoints_of, plan_of, read

BASE = "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION "
"""All of an entry but its step and the bracket behind it."""


def test_an_entry_that_reads_itself_is_a_fixpoint() -> None:
    assert tree(plan_of(REACHED + "SELECT n FROM r")).splitlines() == [
        "fixpoint r, each row once: n",
        "  project dst",
        "    select src = 1",
        "      scan links#1: src, dst, cost, region, weight",
        "  project dst",
        "    join inner on n = src",
        "      recursive r: n",
        "      scan links#2: src, dst, cost, region, weight",
    ]


def test_its_columns_are_named_by_the_alias_and_typed_by_the_base() -> None:
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
    plan = plan_of(
        "WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION SELECT a.n FROM r a JOIN r b "
        "ON a.n = b.n + 1) SELECT x.n FROM r x JOIN r y ON x.n = y.n"
    )
    made = [
        attribute.id
        for node in nodes_of(plan)
        if isinstance(node, Scan | Recursive | Fixpoint)
        for attribute in attributes_of(node)
    ]
    assert len(made) == len(set(made))
    assert len({scan.access for scan in scans_of(plan)}) == len(scans_of(plan)) == 2
    one, other = fixpoints_of(plan)
    assert one.id == other.id, "one entry, read in two places"
    for result in (one, other):
        leaves = [node for node in nodes_of(result.step) if isinstance(node, Recursive)]
        assert [leaf.fixpoint for leaf in leaves] == [result.id, result.id]
        assert not any(isinstance(node, Recursive) for node in nodes_of(result.base))


def test_entries_of_one_name_are_told_apart() -> None:
    entry = "WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION SELECT n FROM r) SELECT n FROM r"
    fixpoints = fixpoints_of(plan_of(f"SELECT 1 FROM ({entry}) a CROSS JOIN ({entry}) b"))
    assert len({one.id for one in fixpoints}) == 2


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE a AS (SELECT n FROM nodes) SELECT n FROM a",
        # A WITH inside gives the name anew.
        "WITH RECURSIVE a AS (WITH a AS (SELECT n FROM nodes) SELECT n FROM a) SELECT n FROM a",
        "WITH RECURSIVE a AS (SELECT n FROM nodes UNION SELECT n FROM nodes) SELECT n FROM a",
        # Without the word the name is the table's.
        "WITH nodes AS (SELECT n FROM nodes UNION SELECT n FROM nodes) SELECT n FROM nodes",
    ],
)
def test_entries_that_do_not_read_themselves_are_ordinary(sql: str) -> None:
    assert fixpoints_of(plan_of(sql)) == []
    without = sql.replace("WITH RECURSIVE", "WITH")
    assert tree(plan_of(sql)) == tree(plan_of(without))


@pytest.mark.parametrize(
    "sql",
    [
        # Under RECURSIVE the name is the entry's own, though there is a table of that name.
        "WITH RECURSIVE nodes AS (SELECT dst FROM links UNION SELECT dst FROM NODES) "
        "SELECT dst FROM nodes",
        # A WITH inside reads it before it gives the name anew.
        "WITH RECURSIVE a AS (SELECT n FROM nodes UNION SELECT n FROM (WITH a AS "
        "(SELECT n FROM a) SELECT n FROM a)) SELECT n FROM a",
        "WITH RECURSIVE a AS (SELECT n FROM nodes UNION "
        "SELECT dst FROM links WHERE src IN (SELECT n FROM a)) SELECT n FROM a",
        "WITH RECURSIVE a AS ((SELECT n FROM nodes UNION SELECT n FROM a)) SELECT n FROM a",
        # A WITH of the entry itself, of which one part reads it.
        "WITH RECURSIVE a AS (WITH b AS (SELECT n + 1 AS n FROM a) SELECT n FROM nodes UNION "
        "SELECT n FROM b) SELECT n FROM a",
    ],
)
def test_entries_that_read_themselves_are_found_wherever_they_do(sql: str) -> None:
    fixpoint = fixpoint_of(sql)
    assert any(isinstance(node, Recursive) for node in nodes_of(fixpoint.step))


def test_entries_may_read_those_before_them() -> None:
    plan = plan_of(
        REACHED[:-1] + ", q(m) AS (SELECT n FROM r UNION SELECT q.m + 1 FROM q JOIN r ON r.n = q.m)"
        " SELECT m FROM q"
    )
    assert [one.id for one in fixpoints_of(plan)] == ["q", "r", "r"]


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("SELECT l.dst FROM r LEFT JOIN links l ON r.n = l.src", JoinKind.LEFT),
        ("SELECT l.dst FROM links l RIGHT JOIN r ON r.n = l.src", JoinKind.RIGHT),
        ("SELECT n + 1 FROM r WHERE n NOT IN (SELECT n FROM nodes)", JoinKind.ANTI),
        ("SELECT n + 1 FROM r WHERE n IN (SELECT n FROM nodes)", JoinKind.SEMI),
        # Over the entry itself IN and EXISTS are inner joins.
        ("SELECT dst FROM links WHERE src IN (SELECT n FROM r)", JoinKind.INNER),
        (
            "SELECT dst FROM links l WHERE EXISTS (SELECT 1 FROM r WHERE r.n = l.src)",
            JoinKind.INNER,
        ),
        ("SELECT dst FROM links l WHERE (SELECT COUNT(*) FROM r) > 0", JoinKind.INNER),
        ("SELECT l.dst FROM links l LEFT SEMI JOIN r ON r.n = l.src", JoinKind.INNER),
    ],
)
def test_joins_that_go_by_the_entrys_rows_stay(step: str, kind: JoinKind) -> None:
    fixpoint = fixpoint_of(f"{BASE}{step}) SELECT n FROM r")
    assert [node.kind for node in nodes_of(fixpoint.step) if isinstance(node, Join)] == [kind]


@pytest.mark.parametrize(
    "step",
    [
        "SELECT DISTINCT l.dst FROM r JOIN links l ON r.n = l.src",
        "SELECT l.dst FROM (SELECT DISTINCT n FROM r) q JOIN links l ON q.n = l.src",
        "(SELECT n + 1 FROM r UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src)",
    ],
)
def test_what_makes_rows_distinct_in_a_step_is_left_out(step: str) -> None:
    text = tree(fixpoints_of(plan_of(f"{BASE}{step}) SELECT n FROM r"))[0].step)
    assert "distinct" not in text
    assert "union\n" not in text


def test_what_does_not_read_the_entry_stays_as_it_is() -> None:
    fixpoint = fixpoint_of(
        f"{BASE}SELECT q.d FROM r JOIN (SELECT DISTINCT src, dst AS d FROM links) q "
        "ON r.n = q.src) SELECT n FROM r"
    )
    assert any(isinstance(node, Distinct) for node in nodes_of(fixpoint.step))


def test_the_base_may_be_any_query() -> None:
    fixpoint = fixpoint_of(
        "WITH RECURSIVE r(n) AS (SELECT src FROM links GROUP BY src HAVING COUNT(*) > 2 "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    )
    assert "aggregate" in tree(fixpoint.base)


def test_explain_places_the_fixpoint_and_its_leaves() -> None:
    sql = REACHED + "SELECT n FROM r"
    fixpoint = fixpoint_of(sql)
    leaf = next(node for node in nodes_of(fixpoint.step) if isinstance(node, Recursive))
    for node, text in ((fixpoint, REACHED[REACHED.index("SELECT") : -2]), (leaf, "r")):
        assert sql[node.span.start : node.span.end] == text
    assert describe(fixpoint).span == fixpoint.span


REFUSED = [
    # (step with » before the place, name of what is refused)
    ("SELECT »MAX(l.dst) FROM r JOIN links l ON r.n = l.src", "an aggregate function"),
    ("SELECT l.dst FROM r JOIN links l ON r.n = l.src GROUP BY »l.dst", "GROUP BY"),
    (
        "SELECT l.dst FROM r JOIN links l ON r.n = l.src GROUP BY »l.dst HAVING COUNT(*) > 1",
        "an aggregate function",
    ),
    ("SELECT »SUM(n) OVER (ORDER BY n) FROM r", "a window function"),
    ("SELECT DISTINCT ON »(n) n FROM r", "DISTINCT ON"),
    ("(SELECT n FROM r ORDER BY »n)", "ORDER BY"),
    ("(SELECT n FROM r ORDER BY »n LIMIT 3)", "LIMIT"),
    ("(SELECT »n FROM r EXCEPT SELECT n FROM nodes)", "EXCEPT"),
    ("(SELECT »n FROM nodes INTERSECT SELECT n FROM r)", "INTERSECT"),
    ("SELECT dst FROM links WHERE »src NOT IN (SELECT n FROM r)", "NOT IN, NOT EXISTS"),
    (
        "SELECT dst FROM links WHERE NOT EXISTS (SELECT »1 FROM r WHERE n = src)",
        "NOT IN, NOT EXISTS",
    ),
    ("SELECT l.dst FROM links l LEFT ANTI JOIN »r ON r.n = l.src", "an anti join"),
    ("SELECT r.n FROM r FULL JOIN »links l ON r.n = l.src", "the optional side of a full"),
    ("SELECT l.dst FROM links l LEFT JOIN »r ON r.n = l.src", "the optional side of a left"),
    ("SELECT l.dst FROM r RIGHT JOIN »links l ON r.n = l.src", "the optional side of a right"),
    ("SELECT dst FROM links WHERE src > (SELECT »MAX(n) FROM r)", "a subquery used as a value"),
    ("SELECT dst FROM links WHERE src > (SELECT »n FROM r)", "a subquery used as a value"),
    ("SELECT (SELECT »n FROM r) FROM links", "a subquery used as a value"),
    ("SELECT dst FROM links WHERE cost = 1 OR »src IN (SELECT n FROM r)", "IN or EXISTS under OR"),
    ("SELECT CAST(e AS BIGINT) FROM r LATERAL VIEW »explode(array(1)) v AS e", "LATERAL VIEW"),
    (
        "SELECT m FROM (WITH RECURSIVE q(m) AS (»SELECT n FROM r UNION SELECT m FROM q) "
        "SELECT m FROM q)",
        "another recursion",
    ),
    ("SELECT CAST(»rand() AS BIGINT) FROM r", "`rand` in recursive `r`"),
    ("SELECT »l.cost FROM r JOIN links l ON r.n = l.src", "`bigint` and `int` in column `n`"),
    ("SELECT NULL FROM »r", "in column `n`"),
]


@pytest.mark.parametrize(("marked", "name"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_step_is_refused_by_name_at_its_place(marked: str, name: str) -> None:
    _refused(f"{BASE}{marked}) SELECT n FROM r", name)


ENTRIES = [
    ("WITH RECURSIVE r AS (SELECT »src FROM r)", "recursive `r` with one part only"),
    (
        "WITH RECURSIVE r AS (SELECT »src FROM links INTERSECT SELECT src FROM r)",
        "recursive `r` with INTERSECT",
    ),
    (
        "WITH RECURSIVE r AS (SELECT »src FROM r EXCEPT SELECT src FROM links)",
        "recursive `r` with EXCEPT",
    ),
    (
        "WITH RECURSIVE r AS (SELECT src FROM »r UNION SELECT src FROM links)",
        "`r` in the first part of its UNION",
    ),
    (
        "WITH RECURSIVE r AS (SELECT src FROM links UNION SELECT src FROM »r UNION "
        "SELECT src FROM r)",
        "`r` in the first part of its UNION",
    ),
    (
        "WITH RECURSIVE r AS (SELECT src FROM links UNION SELECT src FROM r ORDER BY »1)",
        "ORDER BY on the UNION of recursive `r`",
    ),
    (
        "WITH RECURSIVE r AS (SELECT src FROM links UNION SELECT src FROM r LIMIT »3)",
        "LIMIT on the UNION of recursive `r`",
    ),
    (
        "WITH RECURSIVE r AS (SELECT src FROM links UNION SELECT src FROM »q), "
        "q AS (SELECT src FROM links UNION SELECT src FROM r)",
        "`q` before its own WITH entry (mutual recursion)",
    ),
    (
        "WITH RECURSIVE r(n) »MAX RECURSION LEVEL 5 AS (SELECT n FROM nodes UNION SELECT n FROM r)",
        "MAX RECURSION LEVEL on a recursion of UNION",
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION SELECT n FROM r) CYCLE »n SET c USING p",
        "CYCLE on a recursive WITH entry",
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION SELECT n FROM r) "
        "SEARCH DEPTH FIRST BY »n SET o",
        "SEARCH on a recursive WITH entry",
    ),
    (
        "WITH RECURSIVE r(n) USING KEY (»n) AS (SELECT n FROM nodes UNION SELECT n FROM r)",
        "USING KEY on a WITH entry",
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT »SUM(weight) FROM links UNION SELECT n FROM r)",
        "a sum of doubles in column `n` of recursive `r`",
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT weight FROM links UNION SELECT »r.n + q.s FROM r JOIN "
        "(SELECT AVG(weight) AS s FROM links) q)",
        "a sum of doubles in column `n` of recursive `r`",
    ),
    (
        "WITH RECURSIVE »r(n) AS (SELECT array(n) FROM nodes UNION SELECT n FROM r)",
        "column `n` of recursive `r`, whose type has values it cannot compare",
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT »rand() FROM links UNION SELECT n FROM r)",
        "`rand` in recursive `r`",
    ),
    (
        "WITH RECURSIVE »r(a, b) AS (SELECT n FROM nodes UNION SELECT a FROM r)",
        "lists 2 columns, but the relation has 1",
    ),
    (
        "WITH RECURSIVE r(a) AS (SELECT n FROM nodes UNION SELECT »a, a FROM r)",
        "has 1 column in its first part, but 2 in its second",
    ),
]


@pytest.mark.parametrize(("marked", "name"), ENTRIES, ids=[case[0] for case in ENTRIES])
def test_an_entry_is_refused_by_name_at_its_place(marked: str, name: str) -> None:
    _refused(f"{marked} SELECT * FROM r", name)


def _refused(marked: str, name: str) -> None:
    error = refusal(marked, read)
    # Spark would refuse it too, so it is not handed on.
    assert not isinstance(error, NotReadError)
    assert name in error.message
    assert error.code == "query_unsupported"


def test_an_entry_nobody_reads_is_read_all_the_same() -> None:
    assert fixpoints_of(plan_of(REACHED + "SELECT n FROM nodes")) == []
    _refused("WITH RECURSIVE r AS (SELECT »src FROM r) SELECT n FROM nodes", "with one part only")
