"""What a verdict says besides yes and no: assumptions, keys, touch, barriers, ties, reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.errors import UsageError
from impctl.plan.nodes import Aggregate, nodes_of
from impctl.rules.optimize import apply_rules
from impctl.safety.direction import Status
from impctl.safety.facts import FactKind, FactSource
from impctl.safety.judge import check_safety, node_states
from impctl.sql.statement import parse_query
from tests.plan.safety.judged import CATALOG, NONNEGATIVE, fact, judged


def test_statistics_are_named_only_where_they_are_needed() -> None:
    facts = (
        NONNEGATIVE,
        fact("v", FactKind.NOT_NULL),
        fact("d", FactKind.NONNEGATIVE),
        fact("p", FactKind.NONNEGATIVE),
    )
    sql = "SELECT g, sum(v) FROM t GROUP BY g HAVING {} > 3"
    assert judged(sql.format("sum(v)"), *facts, t="p").assumptions == (NONNEGATIVE,)
    assert judged(sql.format("count(*)"), *facts, t="p").assumptions == ()
    assert judged(sql.format("sum(v)"), *facts, t="g").assumptions == ()


def test_a_constraint_or_a_condition_makes_the_assumption_unnecessary() -> None:
    enforced = fact("v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)
    sql = "SELECT g, sum(v) FROM t {} GROUP BY g HAVING sum(v) > 3"
    assert judged(sql.format(""), NONNEGATIVE, enforced, t="p").assumptions == ()
    for condition in ("v > 0", "v >= 1 AND p < 3", "v BETWEEN 0 AND 9", "0 <= v", "v IN (1, 2)"):
        result = judged(sql.format(f"WHERE {condition}"), NONNEGATIVE, t="p")
        assert result.safe
        assert result.assumptions == ()
    for condition in ("v > -1", "v <> 0", "v > 0 OR p > 0", "NOT v > 0"):
        result = judged(sql.format(f"WHERE {condition}"), NONNEGATIVE, t="p")
        assert result.assumptions == (NONNEGATIVE,)
        assert not judged(sql.format(f"WHERE {condition}"), t="p").safe


SUMMANDS = [
    ("v", True),
    ("v * 2", True),
    ("v * n", False),
    ("v * v", True),
    ("p * p + v", True),
    ("abs(p)", True),
    ("-v", False),
    ("v - 1", False),
    ("v - (-1)", True),
    ("CASE WHEN p > 0 THEN p ELSE 0 END", True),
    ("CASE WHEN p > 0 THEN p ELSE -1 END", False),
    ("CASE WHEN p > 0 THEN p END", True),
    ("coalesce(v, 0)", True),
    ("coalesce(v, -1)", False),
    ("CAST(v AS DOUBLE)", True),
    ("v / 2", True),
    ("v % 2", True),
    ("m", False),
    ("length(g)", True),
]


CONDITIONS = [
    ("max(CASE WHEN p > 5 THEN 1 ELSE 0 END) = 1", True),
    ("max(CASE WHEN p > 5 THEN 1 END) = 1", True),
    ("max(CASE WHEN p > 5 THEN 1 ELSE 2 END) = 1", False),
    ("max(CASE WHEN p > 5 THEN 1 ELSE p END) = 1", False),
    ("max(CASE WHEN p > 5 THEN 1 ELSE 0 END) = 0", False),
    ("max(CASE WHEN p > 5 THEN 1 ELSE 0 END) <> 0", True),
    ("min(CASE WHEN p > 5 THEN 0 ELSE 1 END) = 0", True),
    ("min(CASE WHEN p > 5 THEN 0 ELSE 1 END) = 1", False),
    ("1 = max(CAST(p > 5 AS INT))", True),
    ("max(p > 5) = true", True),
    ("max(p > 5) = false", False),
    ("max(p > 5) <> true", False),
    ("count(*) <> 0", True),
    ("NOT count(*) = 0", True),
    ("count(*) <> 1", False),
    ("sum(CASE WHEN p > 5 THEN 1 ELSE 0 END) <> 0", True),
    ("sum(v) <> 0", True),
    ("sum(v) = 0", False),
    ("sum(p) <> 0", False),
    ("max(p) <> 0", False),
    ("greatest(max(v), max(p)) > 5", True),
    ("greatest(max(v), min(p)) > 5", False),
    ("greatest(min(v), min(p)) < 5", False),
    ("least(min(v), min(p)) < 5", True),
    ("least(max(v), max(p)) > 5", False),
    ("least(count(*), count(p)) > 5", True),
    ("greatest(max(v), 5.0) > 5", False),
    ("round(sum(v), 2) > 5", True),
    ("round(sum(v), max(v)) > 5", False),
    ("floor(sum(v) / 10) > 5", True),
    ("floor(max(d)) > 5", False),
    ("ceil(sum(v) / 10) < 5", False),
    ("sqrt(sum(v)) > 2", True),
    ("sqrt(max(p)) > 2", False),
    ("ln(max(p)) > 2", True),
    ("ln(min(p)) < 2", False),
    ("exp(min(p)) < 2", True),
    ("log(2, max(p)) > 2", False),
    ("sum(power(p, 2)) > 5", True),
    ("sum(power(p, 3)) > 5", False),
    ("sum(power(v, 3)) > 5", True),
    ("sum(power(v, -1)) > 5", True),
    ("sum(greatest(p, 0)) > 5", True),
    ("sum(greatest(p, v - 1)) > 5", False),
    ("sum(greatest(p, v)) > 5", False),
    ("sum(floor(v / 10)) > 5", True),
    ("avg(v) <> 0", False),
]


@pytest.mark.parametrize(
    ("exponent", "safe"), [("3", True), ("-2", True), ("-1", False), ("v", False)]
)
def test_a_power_of_negative_zero_may_be_below_zero(exponent: str, safe: bool) -> None:
    sql = f"SELECT g FROM t GROUP BY g HAVING sum(power(d, {exponent})) > 5"
    assert judged(sql, fact("d", FactKind.NONNEGATIVE), t="p").safe is safe


@pytest.mark.parametrize(("condition", "safe"), CONDITIONS)
def test_conditions_that_rise_and_ends_of_values(condition: str, safe: bool) -> None:
    sql = f"SELECT g FROM t GROUP BY g HAVING {condition}"
    assert judged(sql, NONNEGATIVE, t="p").safe is safe


@pytest.mark.parametrize(
    ("condition", "safe"),
    [
        ("datediff(max(day), min(day)) > 5", True),
        ("datediff(min(day), max(day)) > 5", False),
        ("datediff(min(day), max(day)) < -5", True),
        ("datediff(max(at), min(at)) > 5", False),
        ("year(max(day)) >= 2026", True),
        ("month(max(day)) >= 3", False),
        ("year(max(at)) >= 2026", False),
    ],
)
def test_dates_between_and_years(condition: str, safe: bool) -> None:
    assert judged(f"SELECT g FROM times GROUP BY g HAVING {condition}", times="p").safe is safe


@pytest.mark.parametrize(("summand", "safe"), SUMMANDS)
def test_signs_of_summands(summand: str, safe: bool) -> None:
    sql = f"SELECT g, sum({summand}) FROM t GROUP BY g HAVING sum({summand}) > 3"
    assert judged(sql, NONNEGATIVE, t="p").safe is safe


def test_a_decimal_of_a_double_may_be_null() -> None:
    # Spark makes NULL of NaN and of infinities, also where all numbers before were known.
    having = "SELECT g FROM t GROUP BY g HAVING CAST(max({}) AS {}) {}"
    for condition in ("> 5", "IS NOT NULL"):
        sql = having.format("d", "DECIMAL(10, 2)", condition)
        assert not judged(sql, fact("d", FactKind.NAN_FREE), t="p").safe
    for kind in ("DECIMAL(20, 2)", "DOUBLE"):
        assert judged(having.format("v", kind, "> 5"), t="p").safe


@pytest.mark.parametrize(
    ("condition", "safe"),
    [
        ("x >= 0", True),
        ("x >= CAST(0 AS BIGINT)", False),
        ("x >= +0", False),
        ("x IN (0)", False),
        ("x IN (1, 2)", False),
        ("x IN (0BD, 0.5)", True),
    ],
)
def test_what_is_rounded_before_it_is_compared_has_no_sign(condition: str, safe: bool) -> None:
    sql = f"SELECT g FROM fine WHERE {condition} GROUP BY g HAVING sum(x) > 5"
    assert judged(sql, fine="p").safe is safe


def test_a_condition_on_the_whole_summand_counts() -> None:
    sql = "SELECT g, sum(v * p) FROM t WHERE v * p >= 0 GROUP BY g HAVING sum(v * p) > 3"
    assert judged(sql, t="p").safe


def test_nan_harms_a_nonpositive_sum_but_not_a_nonnegative_one() -> None:
    up = "SELECT g, sum(d) FROM t GROUP BY g HAVING sum(d) > 3"
    down = "SELECT g, sum(d) FROM t GROUP BY g HAVING sum(d) < -3"
    nonnegative, nonpositive = (
        fact("d", FactKind.NONNEGATIVE),
        fact("d", FactKind.NONPOSITIVE),
    )
    clean = fact("d", FactKind.NAN_FREE)
    assert judged(up, nonnegative, t="p").assumptions == (nonnegative,)
    assert not judged(down, nonpositive, t="p").safe
    assert set(judged(down, nonpositive, clean, t="p").assumptions) == {nonpositive, clean}
    assert not judged(down, fact("d", FactKind.NONPOSITIVE, FactSource.CONSTRAINT), t="p").safe, (
        "deltalake lets a NaN with its sign bit set through CHECK (d <= 0)"
    )
    assert judged("SELECT g, sum(d) FROM t WHERE d <= 0 GROUP BY g HAVING sum(d) < -3", t="p").safe


def test_not_null_lets_nulls_first_pass() -> None:
    sql = "SELECT g, min({}) FROM t GROUP BY g ORDER BY 2 ASC NULLS FIRST, g LIMIT 1"
    assert not judged(sql.format("v"), t="p").safe
    assumed = fact("v", FactKind.NOT_NULL)
    assert judged(sql.format("v"), assumed, t="p").assumptions == (assumed,)


def test_a_grouping_attribute_is_a_key_through_joins_and_names() -> None:
    sql = (
        "SELECT k, avg(w) FROM (SELECT h AS k, w FROM t JOIN u ON t.g = u.h) a GROUP BY k"
        " HAVING avg(w) < 3"
    )
    result = judged(sql, t="g")
    assert result.status is Status.KEYED
    query = parse_query(sql, CATALOG)
    nodes = list(nodes_of(query.root))
    (position,) = result.key_columns
    assert isinstance(nodes[position], Aggregate)
    assert result.key_columns[position] == {"t#1": nodes[position].keys[0].attribute.id}
    assert set(result.keyed) == {"t#1"}
    assert judged(sql, t="g", u="h").safe
    assert not judged(sql, t="g", u="q").safe


def test_verdicts_hold_before_and_after_the_plan_rules() -> None:
    for sql, column in (
        ("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3 AND g > 'a'", "g"),
        ("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3 AND g > 'a'", "p"),
        ("SELECT g, max(v) FROM t WHERE p < 5 GROUP BY g HAVING max(v) > 3", "p"),
    ):
        query = parse_query(sql, CATALOG)
        before = check_safety(query, {"t#1": column}, ())
        after = check_safety(replace(query, root=apply_rules(query.root)), {"t#1": column}, ())
        assert before.safe is after.safe


TOUCH = [
    ("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) < 3", {"t": "g"}, True),
    ("SELECT g, avg(v) AS a FROM t GROUP BY g HAVING avg(v) < 3 ORDER BY a", {"t": "g"}, True),
    (
        "SELECT avg(a) FROM (SELECT g, avg(v) AS a FROM t GROUP BY g HAVING avg(v) < 3) x",
        {"t": "g"},
        True,
    ),
    (
        "SELECT avg(a) FROM (SELECT g, avg(v) AS a FROM t GROUP BY g) x HAVING count(*) > 1",
        {"t": "g"},
        False,
    ),
    ("SELECT g, count(*) FROM t GROUP BY g HAVING count(*) > 3", {"t": "p"}, False),
    ("SELECT g, avg(v) FROM t JOIN u ON g = h GROUP BY g HAVING avg(v) < 3", {"t": "g"}, True),
    (
        "SELECT g, avg(v) FROM t JOIN u ON g = h GROUP BY g HAVING avg(v) < 3",
        {"t": "g", "u": "h"},
        False,
    ),
    (
        "SELECT a.g, count(*) FROM t a JOIN t b ON a.g = b.g GROUP BY a.g HAVING count(*) < 9",
        {"t": "g"},
        False,
    ),
    ("SELECT g, avg(v) AS a FROM t GROUP BY g ORDER BY a, g LIMIT 3", {"t": "g"}, False),
    ("SELECT p, v FROM t WHERE v > 3", {"t": "p"}, True),
]


@pytest.mark.parametrize(("sql", "sketched", "keyed"), TOUCH)
def test_touch_is_for_keyed_roots_over_one_access(
    sql: str, sketched: dict[str, str], keyed: bool
) -> None:
    result = judged(sql, **sketched)
    assert result.root_keyed is keyed


def test_nan_has_no_decimal() -> None:
    sql = "SELECT g, min({}) AS c FROM t GROUP BY g ORDER BY c ASC NULLS FIRST, g LIMIT 1"
    known = (fact("d", FactKind.NOT_NULL), fact("v", FactKind.NOT_NULL))
    assert judged(sql.format("CAST(v AS DECIMAL(3, 0))"), *known, t="p").safe
    assert not judged(sql.format("CAST(d AS DECIMAL(3, 0))"), *known, t="p").safe


REFUSED = [
    ("SELECT g FROM t LIMIT 3", "LIMIT without ORDER BY has no fixed result"),
    (
        "SELECT g FROM t ORDER BY g OFFSET 2",
        "OFFSET without LIMIT keeps the last rows, which may not be in the sketch",
    ),
    ("SELECT g, v FROM t WHERE v > rand()", "`rand` returns a different result on every run"),
    *(
        (
            sql.replace("{}", f"{name}(v)"),
            f"`{name}` has several correct results, and the rows of the query depend on which one "
            "is used",
        )
        for name in ("first", "mode", "collect_set")
        for sql in (
            "SELECT g FROM t GROUP BY g HAVING {} IS NULL",
            "SELECT g, {} AS m FROM t GROUP BY g ORDER BY m LIMIT 2",
            "SELECT DISTINCT {} AS m FROM t GROUP BY g",
            "SELECT m, COUNT(*) FROM (SELECT g, {} AS m FROM t GROUP BY g) GROUP BY m",
            "SELECT COUNT(m) FROM (SELECT g, {} AS m FROM t GROUP BY g)",
            "SELECT {} AS m FROM t GROUP BY g UNION SELECT {} FROM t GROUP BY g",
            "SELECT a.g FROM (SELECT g, {} AS m FROM t GROUP BY g) a JOIN t ON a.m <=> t.g",
            "SELECT g, RANK() OVER (ORDER BY m) AS r FROM (SELECT g, {} AS m FROM t GROUP BY g)",
        )
    ),
    (
        "SELECT g FROM t WHERE p > 3 AND current_date() > DATE '2024-01-01'",
        "`current_date` returns a different result on every run",
    ),
]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, first(v) AS m FROM t GROUP BY g HAVING COUNT(*) > 2",
        "SELECT g, collect_list(v) AS m, COUNT(*) AS n FROM t GROUP BY g ORDER BY n, g LIMIT 2",
        "SELECT g, size(collect_set(v)) AS m FROM t GROUP BY g HAVING SUM(v) > 3",
        "SELECT g, mode(v) AS m FROM t GROUP BY g UNION ALL SELECT g, v FROM t WHERE v > 3",
        "SELECT g, m FROM (SELECT g, any_value(v) AS m, COUNT(*) AS n FROM t GROUP BY g) "
        "WHERE n < 3 ORDER BY m",
    ],
)
def test_what_has_several_right_answers_may_be_shown(sql: str) -> None:
    assert judged(sql, t="g").safe


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_has_no_fixed_answer_is_refused(sql: str, reason: str) -> None:
    result = judged(sql, t="p")
    assert not result.safe
    assert result.reason == reason
    assert result.span is not None


def test_the_span_points_at_the_part_that_is_not_safe() -> None:
    sql = "SELECT g FROM t GROUP BY g HAVING count(*) > 2 AND avg(v) > 3"
    span = judged(sql, t="p").span
    assert sql[span.start : span.end].startswith("avg(v)")


def test_values_that_a_collation_counts_as_equal_are_no_key() -> None:
    sql = "SELECT c, count(*) FROM t GROUP BY c HAVING count(*) < 3"
    assert not judged(sql, t="c").safe
    assert judged(sql.replace("<", ">"), t="c").status is Status.CONTAINED


def test_a_pruned_attribute_is_no_key_and_no_error() -> None:
    query = parse_query("SELECT g, count(*) FROM t GROUP BY g HAVING count(*) > 3", CATALOG)
    pruned = replace(query, root=apply_rules(query.root))
    assert check_safety(pruned, {"t#1": "p"}, ()).safe


def test_an_access_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no table access `t#9`"):
        judged("SELECT g FROM t", t9="p")


def test_a_query_without_sketched_tables_is_exact() -> None:
    result = judged("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) < 3")
    assert result.status is Status.EXACT
    assert not result.root_keyed


def test_states_are_given_for_every_node() -> None:
    query = parse_query("SELECT g, count(*) FROM t GROUP BY g HAVING count(*) > 3", CATALOG)
    result = node_states(query, {"t#1": "p"}, ())
    assert list(result.nodes) == list(nodes_of(query.root))
    assert result.states[-1].status is Status.KEYED
    assert result.root.status is Status.CONTAINED


def test_how_often_a_row_is_taken_apart_must_not_depend_on_what_was_left_out() -> None:
    groups = "(SELECT g, sum(v) AS s FROM t GROUP BY g HAVING sum(v) > 3) q"
    of_values = f"SELECT g FROM {groups} LATERAL VIEW explode(sequence(1, s)) e AS x"
    result = judged(of_values, NONNEGATIVE, t="p")
    assert not result.safe
    assert result.reason.startswith("`explode` expands a value that can differ")
    assert judged(of_values, NONNEGATIVE, t="g").safe
    of_keys = f"SELECT g FROM {groups} LATERAL VIEW explode(split(g, 'x')) e AS x"
    assert judged(of_keys, NONNEGATIVE, t="p").safe


def test_rows_that_are_taken_apart_are_not_told_apart_by_their_keys() -> None:
    # Which of a group's equal rows come first is open, so LIMIT may take any of them.
    top = "SELECT * FROM (SELECT g FROM t GROUP BY g) q {} ORDER BY g LIMIT 2"
    assert judged(top.format(""), t="p").ties is None
    assert judged(top.format("LATERAL VIEW explode(array(1, 2)) e AS x"), t="p").ties is not None


@pytest.mark.parametrize("counted", ["count(*) - 3", "coalesce(count(v), 3)", "(max(p))"])
def test_a_number_as_a_condition_is_true_of_lesser_ones_too(counted: str) -> None:
    assert not judged(f"SELECT g FROM t GROUP BY g HAVING {counted}", t="v").safe
    assert judged(f"SELECT g FROM t GROUP BY g HAVING {counted}", t="g").safe
    below = f"SELECT g FROM (SELECT g, {counted} AS n FROM t GROUP BY g) WHERE n"
    assert not judged(below, t="v").safe
