"""First rows and ranks where rows tie: barriers, choices among ties, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from impctl.sql.statement import parse_query
from tests.plan.safety.judged import CATALOG, judged
from tests.support.reference_plan import annotate, bag, evaluate


def test_only_top_k_below_other_operators_is_a_barrier() -> None:
    top = "SELECT g, sum(n * n) AS s FROM t GROUP BY g ORDER BY s DESC, g LIMIT 3"
    assert judged(top, t="p").barriers == 0
    assert judged(f"SELECT s FROM ({top}) a", t="p").barriers == 0
    assert judged(f"SELECT s FROM ({top}) a WHERE s > 3", t="p").barriers == 1
    assert judged(f"SELECT s, w FROM ({top}) a JOIN u ON g = h", u="q").barriers == 0


def test_ties_are_told_apart_from_a_total_order() -> None:
    sql = "SELECT g, sum(n * n) AS s FROM t GROUP BY g ORDER BY s DESC{} LIMIT 3"
    assert judged(sql.format(""), t="p").ties is not None
    assert judged(sql.format(", g"), t="p").ties is None


def test_a_choice_among_ties_is_not_joined_with_a_sketched_table() -> None:
    top = "(SELECT h, q, w FROM u ORDER BY w DESC{} LIMIT 1) a"
    sql = f"SELECT g, v FROM t JOIN {top} ON t.g = a.h"
    assert not judged(sql.format(""), t="p").safe
    assert not judged(sql.format(", h"), t="p").safe, "w and h do not tell all rows apart"
    assert judged(sql.format(", h, q"), t="p").safe

    # Proof: capture takes one of two tied rows, use the other one.
    tables = {
        "t": [
            {"g": "a", "p": 1, "v": 1, "n": 1, "d": None, "m": None, "c": None},
            {"g": "b", "p": 2, "v": 2, "n": 1, "d": None, "m": None, "c": None},
        ],
        "u": [{"h": "a", "q": 1, "w": 5}, {"h": "b", "q": 1, "w": 5}],
    }
    root = parse_query(sql.format(""), CATALOG).root
    captured = annotate(root, tables, None, lambda rows: rows.reverse())
    seen = {index for access, index in captured.lineage if access == "t#1"}
    used = bag(evaluate(root, tables, {"t#1": seen}))
    answers = [bag(evaluate(root, tables, None, random.Random(s).shuffle)) for s in range(20)]
    assert used not in answers


def test_grouping_what_a_choice_among_ties_left_is_refused() -> None:
    sql = (
        "SELECT p, count(*) FROM (SELECT g, p, row_number() OVER (PARTITION BY g ORDER BY v) AS r"
        " FROM t) a WHERE r = 1 GROUP BY p HAVING count(*) > 1"
    )
    assert not judged(sql, t="g").safe


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, f FROM ({}) a ORDER BY f LIMIT 1",
        "SELECT g FROM (SELECT g, rank() OVER (ORDER BY f) AS r FROM ({}) a) b WHERE r <= 1",
    ],
)
def test_first_rows_by_a_choice_among_ties_are_refused(sql: str) -> None:
    """The choice made at use may put another group first than the one made at capture."""
    made = "SELECT g, {}(v, n) AS f FROM t GROUP BY g"
    assert not judged(sql.format(made.format("max_by")), t="g").safe
    assert judged(sql.format("SELECT g, min(v) AS f FROM t GROUP BY g"), t="g").safe


def test_rows_of_grouping_sets_may_tie_in_all_their_keys() -> None:
    """A NULL of the table and the NULL of a total: which comes first is open."""
    sql = (
        "SELECT u.w FROM (SELECT g, count(*) AS n FROM t GROUP BY {} ORDER BY g LIMIT 1) q"
        " JOIN u ON q.n = u.q"
    )
    assert judged(sql.format("g"), u="q").safe
    assert not judged(sql.format("ROLLUP (g)"), u="q").safe


@pytest.mark.parametrize("has_rules", [False, True])
def test_ranks_among_rows_that_change_sides_are_refused(has_rules: bool) -> None:
    """Over part of a group its count is another, and so is the partition in which it is ranked."""
    sql = (
        "SELECT h FROM (SELECT h, rank() OVER (PARTITION BY {} ORDER BY h) AS r FROM"
        " (SELECT g AS h, v, count(*) AS n FROM t GROUP BY g, v) a) b WHERE r <= 1"
    )
    for column, is_safe in (("v", True), ("n", False)):
        query = parse_query(sql.format(column), CATALOG)
        if has_rules:
            query = replace(query, root=apply_rules(query.root))
        assert check_safety(query, {"t#1": "p"}, ()).safe is is_safe


def test_grouping_sums_over_the_rows_before_is_refused_where_rows_tie() -> None:
    sql = (
        "SELECT p, count(*) FROM (SELECT p, sum(v) OVER (PARTITION BY g ORDER BY n{}) AS s FROM t)"
        " a WHERE s > 3 GROUP BY p HAVING count(*) > 1"
    )
    assert judged(sql.format(""), t="g").safe
    rows = " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    assert not judged(sql.format(rows), t="g").safe
    every = " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    assert judged(sql.format(every), t="g").safe, "all rows of the partition, in whatever order"


@pytest.mark.parametrize(
    ("column", "other", "is_safe"),
    [
        ("at", "b.at", True),
        ("at", "b.day", True),
        ("local", "b.day", True),
        ("at", "b.local", False),
        ("local", "b.at", False),
        ("g", "b.g", True),
        ("g", "b.p", False),
    ],
)
def test_greatest_values_are_compared_in_their_own_order(
    column: str, other: str, is_safe: bool
) -> None:
    """Among texts '9' is greater than '10'; an hour that a zone has twice turns times round."""
    sql = (
        f"SELECT a.g FROM (SELECT g, max({column}) AS m FROM times GROUP BY g) a JOIN times b"
        f" ON a.m > {other}"
    )
    assert judged(sql, times="p").safe is is_safe
