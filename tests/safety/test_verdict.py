"""What a verdict says besides yes and no: assumptions, keys, touch, barriers, ties, choices."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from impctl.data.schema import Column, Schema, other
from impctl.errors import UnsafeSketchError, UsageError
from impctl.plan.nodes import Aggregate
from impctl.rules.optimize import apply_rules
from impctl.safety.choose import SafeChoice, choose_attributes, counts_every_row
from impctl.safety.direction import Status
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.failures import Sizes, part_failure
from impctl.safety.judge import Verdict, check_safety, node_states
from impctl.sql.statement import parse_query
from tests.plan.catalogs import cases, listed, plan_of, read, schema_of
from tests.support.reference_plan import annotate, bag, evaluate

CATALOG = {
    "t": Schema(
        (
            *schema_of("g string, p int, v int, n int, d double, m decimal(10,2)"),
            Column("c", other("string collate UTF8_LCASE")),
        )
    ),
    "fine": schema_of("g string, p int, x decimal(38,30)"),
    "u": schema_of("h string, q int, w int"),
    "times": schema_of("g string, p int, at timestamp, local timestamp_ntz, day date"),
}


def judgements(section: str) -> list[Any]:
    """Texts with what is said of them: yes or no."""
    lines = listed("verdicts", section)
    return [pytest.param(text, {"yes": True, "no": False}[word], id=text) for text, word in lines]


def fact(column: str, kind: FactKind, source: FactSource = FactSource.STATISTICS) -> Fact:
    return Fact("t", column, kind, source)


def judged(sql: str, *facts: Fact, **columns: str) -> Verdict:
    """`t="p"` sketches every access of t on p; `t2="p"` only its second."""
    query = parse_query(sql, CATALOG)
    sketched = {}
    for key, column in columns.items():
        table, number = (key[:-1], key[-1]) if key[-1].isdigit() else (key, "1")
        sketched[f"{table}#{number}"] = column
    return check_safety(query, sketched, facts)


NONNEGATIVE = fact("v", FactKind.NONNEGATIVE)


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
        assert (result.safe, result.assumptions) == (True, ())
    for condition in ("v > -1", "v <> 0", "v > 0 OR p > 0", "NOT v > 0"):
        judge = partial(judged, sql.format(f"WHERE {condition}"), t="p")
        assert judge(NONNEGATIVE).assumptions == (NONNEGATIVE,)
        assert not judge().safe


HAVING = "SELECT g FROM t GROUP BY g HAVING {}"
SUM = "SELECT g, sum({0}) FROM t GROUP BY g HAVING sum({0}) > 3"


@pytest.mark.parametrize(("condition", "is_safe"), judgements("conditions"))
def test_conditions_that_rise_and_ends_of_values(condition: str, is_safe: bool) -> None:
    assert judged(HAVING.format(condition), NONNEGATIVE, t="p").safe is is_safe


@pytest.mark.parametrize(("summand", "is_safe"), judgements("summands"))
def test_signs_of_summands(summand: str, is_safe: bool) -> None:
    assert judged(SUM.format(summand), NONNEGATIVE, t="p").safe is is_safe


def test_a_condition_on_the_whole_summand_counts() -> None:
    assert judged(SUM.format("v * p").replace("GROUP", "WHERE v * p >= 0 GROUP"), t="p").safe


@pytest.mark.parametrize(("exponent", "is_safe"), judgements("powers of doubles"))
def test_a_power_of_negative_zero_may_be_below_zero(exponent: str, is_safe: bool) -> None:
    sql = HAVING.format(f"sum(power(d, {exponent})) > 5")
    assert judged(sql, fact("d", FactKind.NONNEGATIVE), t="p").safe is is_safe


@pytest.mark.parametrize(("condition", "is_safe"), judgements("dates"))
def test_dates_between_and_years(condition: str, is_safe: bool) -> None:
    assert judged(HAVING.format(condition).replace(" t ", " times "), times="p").safe is is_safe


@pytest.mark.parametrize(("condition", "is_safe"), judgements("rounded"))
def test_what_is_rounded_before_it_is_compared_has_no_sign(condition: str, is_safe: bool) -> None:
    sql = f"SELECT g FROM fine WHERE {condition} GROUP BY g HAVING sum(x) > 5"
    assert judged(sql, fine="p").safe is is_safe


def test_a_decimal_of_a_double_may_be_null() -> None:
    # Spark makes NULL of NaN and of infinities, also where all numbers before were known.
    having = "SELECT g FROM t GROUP BY g HAVING CAST(max({}) AS {}) {}"
    for condition in ("> 5", "IS NOT NULL"):
        sql = having.format("d", "DECIMAL(10, 2)", condition)
        assert not judged(sql, fact("d", FactKind.NAN_FREE), t="p").safe
    for kind in ("DECIMAL(20, 2)", "DOUBLE"):
        assert judged(having.format("v", kind, "> 5"), t="p").safe


def test_nan_harms_a_nonpositive_sum_but_not_a_nonnegative_one() -> None:
    up = "SELECT g, sum(d) FROM t GROUP BY g HAVING sum(d) > 3"
    down = up.replace("> 3", "< -3")
    nonnegative, nonpositive, clean = (
        fact("d", kind) for kind in (FactKind.NONNEGATIVE, FactKind.NONPOSITIVE, FactKind.NAN_FREE)
    )
    assert judged(up, nonnegative, t="p").assumptions == (nonnegative,)
    assert not judged(down, nonpositive, t="p").safe
    assert set(judged(down, nonpositive, clean, t="p").assumptions) == {nonpositive, clean}
    # deltalake lets a NaN with its sign bit set through CHECK (d <= 0).
    assert not judged(down, replace(nonpositive, source=FactSource.CONSTRAINT), t="p").safe
    assert judged(down.replace("GROUP", "WHERE d <= 0 GROUP"), t="p").safe


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
    nodes = list(parse_query(sql, CATALOG).root.walk())
    (position,) = result.key_columns
    assert isinstance(nodes[position], Aggregate)
    assert result.key_columns[position] == {"t#1": nodes[position].keys[0].attribute.id}
    assert set(result.keyed) == {"t#1"}
    assert judged(sql, t="g", u="h").safe
    assert not judged(sql, t="g", u="q").safe


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3 AND g > 'a'", "g"),
        ("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3 AND g > 'a'", "p"),
        ("SELECT g, max(v) FROM t WHERE p < 5 GROUP BY g HAVING max(v) > 3", "p"),
    ],
)
def test_verdicts_hold_before_and_after_the_plan_rules(sql: str, column: str) -> None:
    query = parse_query(sql, CATALOG)
    ruled = replace(query, root=apply_rules(query.root))
    before, after = (check_safety(one, {"t#1": column}, ()) for one in (query, ruled))
    assert before.safe is after.safe


AVERAGE_OF_JOIN = "SELECT g, avg(v) FROM t JOIN u ON g = h GROUP BY g HAVING avg(v) < 3"
GROUPED = "SELECT {} FROM (SELECT g, avg(v) AS a FROM t GROUP BY g{}) x{}"
TOUCH = [
    ("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) < 3", {"t": "g"}, True),
    ("SELECT g, avg(v) AS a FROM t GROUP BY g HAVING avg(v) < 3 ORDER BY a", {"t": "g"}, True),
    (GROUPED.format("avg(a)", " HAVING avg(v) < 3", ""), {"t": "g"}, True),
    (GROUPED.format("avg(a)", "", " HAVING count(*) > 1"), {"t": "g"}, False),
    ("SELECT g, count(*) FROM t GROUP BY g HAVING count(*) > 3", {"t": "p"}, False),
    (AVERAGE_OF_JOIN, {"t": "g"}, True),
    (AVERAGE_OF_JOIN, {"t": "g", "u": "h"}, False),
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
    assert judged(sql, **sketched).root_keyed is keyed


def test_nan_has_no_decimal() -> None:
    sql = "SELECT g, min({}) AS c FROM t GROUP BY g ORDER BY c ASC NULLS FIRST, g LIMIT 1"
    known = (fact("d", FactKind.NOT_NULL), fact("v", FactKind.NOT_NULL))
    assert judged(sql.format("CAST(v AS DECIMAL(3, 0))"), *known, t="p").safe
    assert not judged(sql.format("CAST(d AS DECIMAL(3, 0))"), *known, t="p").safe


RANDOM = "`{}` returns a different result on every run"
SEVERAL = "`{}` has several correct results, and the rows of the query depend on which one is used"
REFUSED = [
    ("SELECT g FROM t LIMIT 3", "LIMIT without ORDER BY has no fixed result"),
    (
        "SELECT g FROM t ORDER BY g OFFSET 2",
        "OFFSET without LIMIT keeps the last rows, which may not be in the sketch",
    ),
    ("SELECT g, v FROM t WHERE v > rand()", RANDOM.format("rand")),
    *(
        (sql.replace("{}", f"{name}(v)"), SEVERAL.format(name))
        for name in ("first", "mode", "collect_set")
        for (sql,) in listed("verdicts", "decided by one of several results")
    ),
    (
        "SELECT g FROM t WHERE p > 3 AND current_date() > DATE '2024-01-01'",
        RANDOM.format("current_date"),
    ),
]


@pytest.mark.parametrize("sql", cases("verdicts", "several results that decide nothing"))
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
    assert list(result.nodes) == list(query.root.walk())
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


@pytest.mark.parametrize(
    ("sql", "sketched", "word"), cases("verdicts", "ties and orders", are_named=True)
)
def test_what_may_be_chosen_or_ordered_otherwise_at_use_is_refused(
    sql: str, sketched: str, word: str
) -> None:
    table, _, column = sketched.partition("=")
    assert judged(sql, **{table: column}).safe is {"yes": True, "no": False}[word]


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


@pytest.mark.parametrize(
    ("rest", "columns"),
    [
        (
            "FROM sales WHERE price > (SELECT shelf FROM stock)",
            {"stock.shelf": False, "sales.sid": True},
        ),
        ("FROM sales WHERE price < (SELECT MAX(shelf) FROM stock)", {"stock.shelf": True}),
        ("FROM sales WHERE price > (SELECT MAX(shelf) FROM stock)", {"stock.shelf": False}),
        (", (SELECT MAX(shelf) FROM stock) FROM sales", {"stock.shelf": True}),
        (
            "FROM sales WHERE ok OR brand IN (SELECT brand FROM stock)",
            {"sales.sid": True, "stock.shelf": False},
        ),
    ],
)
def test_which_table_may_be_sketched(rest: str, columns: dict[str, bool]) -> None:
    query = read(f"SELECT sid {rest}")
    for asked in (query, type(query)(query.sql, apply_rules(query.root))):
        for column, is_safe in columns.items():
            table, _, name = column.partition(".")
            assert check_safety(asked, {f"{table}#1": name}, ()).safe is is_safe


def test_why_a_subquery_that_is_no_aggregate_is_not_sketched() -> None:
    query = read("SELECT sid FROM sales WHERE price > (SELECT shelf FROM stock)")
    assert check_safety(query, {"stock#1": "shelf"}, ()).reason == (
        "`shelf FROM stock` must return at most one row, and may return fewer rows over part of "
        "its table"
    )


@pytest.mark.parametrize(("sql", "is_every"), judgements("needs every row"))
def test_which_queries_need_every_row(sql: str, is_every: bool) -> None:
    assert counts_every_row(plan_of(sql)) is is_every


FAILING = {"t": schema_of("g int, p int, x int, y int, b bigint, d double, m decimal(38,2)")}
ROWS = 1_000_000

CAN_FAIL = cases("verdicts", "outputs that can fail")


FIRST = "SELECT g, {} AS r FROM t GROUP BY g ORDER BY COUNT(*) DESC, g LIMIT 1"


def may_fail(sql: str, *, t: str = "p", **bounds: tuple[int, int]) -> bool:
    """Whether it may fail through a sketch of `t` on that column, with columns between bounds."""
    between = {f"t#1.{c}": (Fraction(a), Fraction(b)) for c, (a, b) in bounds.items()}
    signs = [fact(c, FactKind.NONNEGATIVE) for c, (least, _) in bounds.items() if least >= 0]
    sizes = Sizes({"t#1": ROWS}, between)
    return part_failure(parse_query(sql, FAILING), {"t#1": t}, signs, sizes) is not None


@pytest.mark.parametrize("output", CAN_FAIL)
def test_outputs_that_can_fail(output: str) -> None:
    assert may_fail(FIRST.format(output))
    assert not may_fail(FIRST.format(output), t="g"), "whole groups fail as ever"


@pytest.mark.parametrize("output", cases("verdicts", "outputs that cannot fail"))
def test_outputs_that_cannot_fail_or_do_without_a_sketch(output: str) -> None:
    assert not may_fail(FIRST.format(output))


@pytest.mark.parametrize(("sql", "is_expected"), judgements("queries that can fail"))
def test_where_it_stands(sql: str, is_expected: bool) -> None:
    assert may_fail(sql) is is_expected


@pytest.mark.parametrize(
    ("output", "bounds", "expected"),
    [
        ("SUM(b)", {"b": (-1000, 1000)}, False),
        ("SUM(b)", {"b": (-(2**62), 2**62)}, True),
        ("SUM(b)", {"b": (0, 2**62)}, False),
        ("SUM(b * x)", {"b": (-1000, 1000), "x": (-1000, 1000)}, False),
        ("SUM(b) - SUM(y)", {"b": (0, 2**62), "y": (0, 9)}, False),
        ("SUM(b) * 100", {"b": (0, 2**62)}, False),
        ("SUM(b) * -100", {"b": (0, 2**62)}, False),
        ("SUM(b) * SUM(x)", {"b": (0, 2**62), "x": (0, 9)}, False),
        ("SUM(b) * SUM(x)", {"b": (0, 2**62), "x": (-9, 9)}, True),
        ("CAST(SUM(b) AS SMALLINT)", {"b": (0, 2**62)}, False),
        ("MAX(x) - MIN(x)", {"x": (0, 100)}, False),
        ("CAST(SUM(x) AS INT)", {"x": (-100, 100)}, False),
        ("SUM(x) / SUM(y)", {"y": (1, 100)}, True),
        ("SUM(x) / MAX(y)", {"y": (1, 100)}, False),
        ("SUM(m)", {"m": (-(10**20), 10**20)}, False),
        ("SUM(m)", {"m": (-(10**35), 10**35)}, True),
    ],
)
def test_statistics_bound_what_a_part_comes_to(
    output: str, bounds: dict[str, tuple[int, int]], expected: bool
) -> None:
    assert may_fail(FIRST.format(output), **bounds) is expected


CHOICES = {
    "sales": schema_of("brand string, price int, sold int"),
    "brands": schema_of("name string, country string"),
}
POSITIVE = tuple(
    Fact("sales", column, FactKind.NONNEGATIVE, FactSource.STATISTICS)
    for column in ("price", "sold")
)
REVENUE = (
    "SELECT brand, SUM(price * sold) AS rev FROM sales GROUP BY brand"
    " HAVING SUM(price * sold) > 5000"
)
AVERAGE = "SELECT brand, AVG(price) FROM sales GROUP BY brand HAVING AVG(price) > 500"


def chosen(sql: str, *facts: Fact, **options: object) -> SafeChoice:
    candidates = options.pop("candidates", {"sales": ("price", "brand")})
    wanted = options.pop("wanted", {})
    return choose_attributes(
        parse_query(sql, CHOICES),
        candidates,  # type: ignore[arg-type]
        facts,
        wanted,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def test_a_grouping_attribute_is_preferred_when_nothing_else_decides() -> None:
    result = chosen(REVENUE, *POSITIVE)
    assert result.sketched == {"sales#1": "brand"}
    assert result.verdict.safe
    assert [(c.column, c.safe, c.chosen) for c in result.considered] == [
        ("price", True, False),
        ("brand", True, True),
    ]
    assert result.considered[0].reason == "safe, but `brand` is a grouping attribute"


def test_cost_decides_before_anything_else() -> None:
    costs = {("sales", "price"): 10.0, ("sales", "brand"): 500.0}
    result = chosen(REVENUE, *POSITIVE, weigh=lambda options: costs)
    assert result.sketched == {"sales#1": "price"}
    assert set(result.verdict.assumptions) == set(POSITIVE)
    assert result.considered[1].reason == "safe, but `price` is expected to read less"
    wanted = chosen(REVENUE, *POSITIVE, wanted={"sales": "price"})
    assert wanted.sketched == {"sales#1": "price"}, "what is wanted is taken"


def test_the_order_of_candidates_decides_among_equals() -> None:
    candidates = {"sales": ("sold", "price")}
    result = chosen("SELECT brand, price FROM sales WHERE sold > 3", candidates=candidates)
    assert result.sketched == {"sales#1": "price"}, "price comes out of the query as a key"
    result = chosen("SELECT brand FROM sales WHERE sold > 3", candidates=candidates)
    assert result.sketched == {"sales#1": "sold"}
    assert result.considered[1].reason == "safe, but `sold` is preferred"


def test_an_unsafe_candidate_says_why() -> None:
    result = chosen(AVERAGE)
    assert result.sketched == {"sales#1": "brand"}
    price = result.considered[0]
    reason = (
        "HAVING compares `AVG(price)`, which can be larger or smaller over part of a group than"
        " over all of it"
    )
    assert (price.safe, price.reason) == (False, reason)
    assert price.span is not None


def test_what_is_wanted_but_unsafe_is_refused_with_the_safe_ones() -> None:
    with pytest.raises(UnsafeSketchError) as caught:
        chosen(AVERAGE, wanted={"sales": "price"}, name="q_avg")
    assert caught.value.message == (
        "A sketch of `sales.price` is not safe for query `q_avg`: HAVING compares `AVG(price)`,"
        " which can be larger or smaller over part of a group than over all of it"
    )
    assert caught.value.hint == "safe for this query: `sales.brand`"
    assert str(caught.value.location) == "query `q_avg`:1:59"
    assert caught.value.exit_code == 3


def test_nothing_safe_is_refused() -> None:
    with pytest.raises(UnsafeSketchError, match="the only candidate is not safe") as caught:
        chosen(AVERAGE, candidates={"sales": ("price",)})
    assert "add `sales.brand` under `partitions`" in (caught.value.hint or "")
    with pytest.raises(UnsafeSketchError, match="no candidate attribute"):
        chosen(AVERAGE, candidates={})
    with pytest.raises(UnsafeSketchError, match="does not read table `brands`"):
        chosen(AVERAGE, wanted={"brands": "name"})


JOIN = (
    "SELECT brand, AVG(price) FROM sales JOIN brands ON brand = name GROUP BY brand"
    " HAVING AVG(price) > 500"
)


def test_accesses_are_safe_together() -> None:
    result = chosen(JOIN, candidates={"sales": ("brand",), "brands": ("country", "name")})
    assert result.sketched == {"sales#1": "brand", "brands#1": "name"}
    assert result.verdict.safe


def test_keys_that_exclude_each_other_are_not_taken_together() -> None:
    sql = (
        "SELECT brand, country, n FROM (SELECT brand, COUNT(*) AS n FROM sales GROUP BY brand"
        " HAVING COUNT(*) > 2) a LEFT JOIN brands ON brand = name"
    )
    result = chosen(sql, candidates={"sales": ("price",), "brands": ("country",)})
    assert result.sketched == {"sales#1": "price"}
    brands = next(c for c in result.considered if c.access == "brands#1")
    assert not brands.safe

    union = (
        "SELECT name, COUNT(*) FROM (SELECT brand AS name, price FROM sales UNION ALL"
        " SELECT name, 1 FROM brands) a GROUP BY name HAVING COUNT(*) > 2"
    )
    both = chosen(union, candidates={"sales": ("price",), "brands": ("country",)})
    assert both.sketched == {"sales#1": "price", "brands#1": "country"}


def test_wanted_attributes_that_exclude_each_other_are_refused() -> None:
    sql = (
        "SELECT brand FROM sales JOIN (SELECT country, name FROM brands ORDER BY country LIMIT 1) b"
        " ON brand = name"
    )
    # The top row of brands is a choice among ties: either table alone may be sketched.
    assert chosen(sql, candidates={"brands": ("country",)}).sketched == {"brands#1": "country"}
    with pytest.raises(UnsafeSketchError):
        chosen(sql, wanted={"brands": "country", "sales": "brand"})


def test_every_access_of_a_table_gets_its_own_sketch() -> None:
    sql = (
        "SELECT a.brand FROM sales a WHERE a.price > 3 AND NOT EXISTS"
        " (SELECT 1 FROM sales b WHERE b.brand = a.brand AND b.price > a.price)"
    )
    result = chosen(sql, wanted={"sales": "price"})
    assert result.sketched == {"sales#1": "price"}
    second = next(c for c in result.considered if c.access == "sales#2")
    assert not second.safe
    assert second.reason.startswith("NOT EXISTS")
