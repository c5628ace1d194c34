"""Contents of verdicts: assumptions, keys, touch, barriers, ties, choice of attributes."""

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


def expected_verdicts(section: str) -> list[Any]:
    """Texts with the expected verdict, yes or no."""
    lines = listed("verdicts", section)
    return [pytest.param(text, {"yes": True, "no": False}[word], id=text) for text, word in lines]


def fact(column: str, kind: FactKind, source: FactSource = FactSource.STATISTICS) -> Fact:
    return Fact("t", column, kind, source)


def verdict_of(sql: str, *facts: Fact, **columns: str) -> Verdict:
    """`t="p"` sketches the first access of t on p; `t2="p"` the second."""
    query = parse_query(sql, CATALOG)
    sketched = {}
    for key, column in columns.items():
        table, number = (key[:-1], key[-1]) if key[-1].isdigit() else (key, "1")
        sketched[f"{table}#{number}"] = column
    return check_safety(query, sketched, facts)


NONNEGATIVE = fact("v", FactKind.NONNEGATIVE)


def test_only_needed_statistics_become_assumptions() -> None:
    facts = (
        NONNEGATIVE,
        fact("v", FactKind.NOT_NULL),
        fact("d", FactKind.NONNEGATIVE),
        fact("p", FactKind.NONNEGATIVE),
    )
    sql = "SELECT g, sum(v) FROM t GROUP BY g HAVING {} > 3"
    assert verdict_of(sql.format("sum(v)"), *facts, t="p").assumptions == (NONNEGATIVE,)
    assert verdict_of(sql.format("count(*)"), *facts, t="p").assumptions == ()
    assert verdict_of(sql.format("sum(v)"), *facts, t="g").assumptions == ()


def test_a_constraint_or_a_condition_makes_the_assumption_unnecessary() -> None:
    enforced = fact("v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)
    sql = "SELECT g, sum(v) FROM t {} GROUP BY g HAVING sum(v) > 3"
    assert verdict_of(sql.format(""), NONNEGATIVE, enforced, t="p").assumptions == ()
    for condition in ("v > 0", "v >= 1 AND p < 3", "v BETWEEN 0 AND 9", "0 <= v", "v IN (1, 2)"):
        result = verdict_of(sql.format(f"WHERE {condition}"), NONNEGATIVE, t="p")
        assert (result.safe, result.assumptions) == (True, ())
    for condition in ("v > -1", "v <> 0", "v > 0 OR p > 0", "NOT v > 0"):
        judge = partial(verdict_of, sql.format(f"WHERE {condition}"), t="p")
        assert judge(NONNEGATIVE).assumptions == (NONNEGATIVE,)
        assert not judge().safe


HAVING = "SELECT g FROM t GROUP BY g HAVING {}"
SUM = "SELECT g, sum({0}) FROM t GROUP BY g HAVING sum({0}) > 3"


@pytest.mark.parametrize(("condition", "is_safe"), expected_verdicts("conditions"))
def test_monotonic_conditions(condition: str, is_safe: bool) -> None:
    assert verdict_of(HAVING.format(condition), NONNEGATIVE, t="p").safe is is_safe


@pytest.mark.parametrize(("summand", "is_safe"), expected_verdicts("summands"))
def test_signs_of_summands(summand: str, is_safe: bool) -> None:
    assert verdict_of(SUM.format(summand), NONNEGATIVE, t="p").safe is is_safe


def test_condition_on_the_summand_gives_its_sign() -> None:
    assert verdict_of(SUM.format("v * p").replace("GROUP", "WHERE v * p >= 0 GROUP"), t="p").safe


@pytest.mark.parametrize(("exponent", "is_safe"), expected_verdicts("powers of doubles"))
def test_a_power_of_negative_zero_may_be_below_zero(exponent: str, is_safe: bool) -> None:
    sql = HAVING.format(f"sum(power(d, {exponent})) > 5")
    assert verdict_of(sql, fact("d", FactKind.NONNEGATIVE), t="p").safe is is_safe


@pytest.mark.parametrize(("condition", "is_safe"), expected_verdicts("dates"))
def test_dates_between_and_years(condition: str, is_safe: bool) -> None:
    assert verdict_of(HAVING.format(condition).replace(" t ", " times "), times="p").safe is is_safe


@pytest.mark.parametrize(("condition", "is_safe"), expected_verdicts("rounded"))
def test_rounded_comparisons_give_no_sign(condition: str, is_safe: bool) -> None:
    sql = f"SELECT g FROM fine WHERE {condition} GROUP BY g HAVING sum(x) > 5"
    assert verdict_of(sql, fine="p").safe is is_safe


def test_a_decimal_of_a_double_may_be_null() -> None:
    # Spark casts NaN and infinities to NULL, even if the double is never NULL.
    having = "SELECT g FROM t GROUP BY g HAVING CAST(max({}) AS {}) {}"
    for condition in ("> 5", "IS NOT NULL"):
        sql = having.format("d", "DECIMAL(10, 2)", condition)
        assert not verdict_of(sql, fact("d", FactKind.NAN_FREE), t="p").safe
    for kind in ("DECIMAL(20, 2)", "DOUBLE"):
        assert verdict_of(having.format("v", kind, "> 5"), t="p").safe


def test_nan_breaks_only_nonpositive_sums() -> None:
    up = "SELECT g, sum(d) FROM t GROUP BY g HAVING sum(d) > 3"
    down = up.replace("> 3", "< -3")
    nonnegative, nonpositive, clean = (
        fact("d", kind) for kind in (FactKind.NONNEGATIVE, FactKind.NONPOSITIVE, FactKind.NAN_FREE)
    )
    assert verdict_of(up, nonnegative, t="p").assumptions == (nonnegative,)
    assert not verdict_of(down, nonpositive, t="p").safe
    assert set(verdict_of(down, nonpositive, clean, t="p").assumptions) == {nonpositive, clean}
    # In deltalake, a NaN with its sign bit set satisfies CHECK (d <= 0).
    assert not verdict_of(down, replace(nonpositive, source=FactSource.CONSTRAINT), t="p").safe
    assert verdict_of(down.replace("GROUP", "WHERE d <= 0 GROUP"), t="p").safe


def test_not_null_makes_nulls_first_safe() -> None:
    sql = "SELECT g, min({}) FROM t GROUP BY g ORDER BY 2 ASC NULLS FIRST, g LIMIT 1"
    assert not verdict_of(sql.format("v"), t="p").safe
    not_null = fact("v", FactKind.NOT_NULL)
    assert verdict_of(sql.format("v"), not_null, t="p").assumptions == (not_null,)


def test_group_keys_survive_joins_and_renaming() -> None:
    sql = (
        "SELECT k, avg(w) FROM (SELECT h AS k, w FROM t JOIN u ON t.g = u.h) a GROUP BY k"
        " HAVING avg(w) < 3"
    )
    result = verdict_of(sql, t="g")
    assert result.status is Status.KEYED
    nodes = list(parse_query(sql, CATALOG).root.walk())
    (position,) = result.key_columns
    assert isinstance(nodes[position], Aggregate)
    assert result.key_columns[position] == {"t#1": nodes[position].keys[0].attribute.id}
    assert set(result.keyed) == {"t#1"}
    assert verdict_of(sql, t="g", u="h").safe
    assert not verdict_of(sql, t="g", u="q").safe


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
    assert verdict_of(sql, **sketched).root_keyed is keyed


def test_nan_has_no_decimal() -> None:
    sql = "SELECT g, min({}) AS c FROM t GROUP BY g ORDER BY c ASC NULLS FIRST, g LIMIT 1"
    known = (fact("d", FactKind.NOT_NULL), fact("v", FactKind.NOT_NULL))
    assert verdict_of(sql.format("CAST(v AS DECIMAL(3, 0))"), *known, t="p").safe
    assert not verdict_of(sql.format("CAST(d AS DECIMAL(3, 0))"), *known, t="p").safe


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
def test_ambiguous_values_may_be_output(sql: str) -> None:
    assert verdict_of(sql, t="g").safe


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_nondeterministic_queries_are_refused(sql: str, reason: str) -> None:
    result = verdict_of(sql, t="p")
    assert not result.safe
    assert result.reason == reason
    assert result.span is not None


def test_span_points_at_the_unsafe_part() -> None:
    sql = "SELECT g FROM t GROUP BY g HAVING count(*) > 2 AND avg(v) > 3"
    span = verdict_of(sql, t="p").span
    assert sql[span.start : span.end].startswith("avg(v)")


def test_collated_column_is_no_key() -> None:
    sql = "SELECT c, count(*) FROM t GROUP BY c HAVING count(*) < 3"
    assert not verdict_of(sql, t="c").safe
    assert verdict_of(sql.replace("<", ">"), t="c").status is Status.CONTAINED


def test_pruned_attribute_is_no_error() -> None:
    query = parse_query("SELECT g, count(*) FROM t GROUP BY g HAVING count(*) > 3", CATALOG)
    pruned = replace(query, root=apply_rules(query.root))
    assert check_safety(pruned, {"t#1": "p"}, ()).safe


def test_unknown_access_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no table access `t#9`"):
        verdict_of("SELECT g FROM t", t9="p")


def test_a_query_without_sketched_tables_is_exact() -> None:
    result = verdict_of("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) < 3")
    assert result.status is Status.EXACT
    assert not result.root_keyed


def test_every_node_has_a_state() -> None:
    query = parse_query("SELECT g, count(*) FROM t GROUP BY g HAVING count(*) > 3", CATALOG)
    result = node_states(query, {"t#1": "p"}, ())
    assert list(result.nodes) == list(query.root.walk())
    assert result.states[-1].status is Status.KEYED
    assert result.root.status is Status.CONTAINED


def test_explode_must_not_depend_on_skipped_rows() -> None:
    groups = "(SELECT g, sum(v) AS s FROM t GROUP BY g HAVING sum(v) > 3) q"
    of_values = f"SELECT g FROM {groups} LATERAL VIEW explode(sequence(1, s)) e AS x"
    result = verdict_of(of_values, NONNEGATIVE, t="p")
    assert not result.safe
    assert result.reason.startswith("`explode` expands a value that can differ")
    assert verdict_of(of_values, NONNEGATIVE, t="g").safe
    of_keys = f"SELECT g FROM {groups} LATERAL VIEW explode(split(g, 'x')) e AS x"
    assert verdict_of(of_keys, NONNEGATIVE, t="p").safe


def test_keys_do_not_identify_exploded_rows() -> None:
    # The order of a group's equal rows is not fixed, so LIMIT may take any of them.
    top = "SELECT * FROM (SELECT g FROM t GROUP BY g) q {} ORDER BY g LIMIT 2"
    assert verdict_of(top.format(""), t="p").ties is None
    assert (
        verdict_of(top.format("LATERAL VIEW explode(array(1, 2)) e AS x"), t="p").ties is not None
    )


@pytest.mark.parametrize("counted", ["count(*) - 3", "coalesce(count(v), 3)", "(max(p))"])
def test_number_as_a_condition_is_not_monotonic(counted: str) -> None:
    assert not verdict_of(f"SELECT g FROM t GROUP BY g HAVING {counted}", t="v").safe
    assert verdict_of(f"SELECT g FROM t GROUP BY g HAVING {counted}", t="g").safe
    below = f"SELECT g FROM (SELECT g, {counted} AS n FROM t GROUP BY g) WHERE n"
    assert not verdict_of(below, t="v").safe


def test_only_top_k_below_other_operators_is_a_barrier() -> None:
    top = "SELECT g, sum(n * n) AS s FROM t GROUP BY g ORDER BY s DESC, g LIMIT 3"
    assert verdict_of(top, t="p").barriers == 0
    assert verdict_of(f"SELECT s FROM ({top}) a", t="p").barriers == 0
    assert verdict_of(f"SELECT s FROM ({top}) a WHERE s > 3", t="p").barriers == 1
    assert verdict_of(f"SELECT s, w FROM ({top}) a JOIN u ON g = h", u="q").barriers == 0


def test_total_order_has_no_ties() -> None:
    sql = "SELECT g, sum(n * n) AS s FROM t GROUP BY g ORDER BY s DESC{} LIMIT 3"
    assert verdict_of(sql.format(""), t="p").ties is not None
    assert verdict_of(sql.format(", g"), t="p").ties is None


def test_tied_rows_must_not_join_a_sketched_table() -> None:
    top = "(SELECT h, q, w FROM u ORDER BY w DESC{} LIMIT 1) a"
    sql = f"SELECT g, v FROM t JOIN {top} ON t.g = a.h"
    assert not verdict_of(sql.format(""), t="p").safe
    assert not verdict_of(sql.format(", h"), t="p").safe, "w and h do not identify rows"
    assert verdict_of(sql.format(", h, q"), t="p").safe

    # Proof: the capture uses one of two tied rows, the query the other one.
    tables = {
        "t": [
            {"g": "a", "p": 1, "v": 1, "n": 1, "d": None, "m": None, "c": None},
            {"g": "b", "p": 2, "v": 2, "n": 1, "d": None, "m": None, "c": None},
        ],
        "u": [{"h": "a", "q": 1, "w": 5}, {"h": "b", "q": 1, "w": 5}],
    }
    root = parse_query(sql.format(""), CATALOG).root
    captured = annotate(root, tables, None, lambda rows: rows.reverse())
    in_sketch = {index for access, index in captured.lineage if access == "t#1"}
    used = bag(evaluate(root, tables, {"t#1": in_sketch}))
    answers = [bag(evaluate(root, tables, None, random.Random(s).shuffle)) for s in range(20)]
    assert used not in answers


@pytest.mark.parametrize(
    ("sql", "sketched", "expected"), cases("verdicts", "ties and orders", are_named=True)
)
def test_unstable_choices_and_orders_are_refused(sql: str, sketched: str, expected: str) -> None:
    table, _, column = sketched.partition("=")
    assert verdict_of(sql, **{table: column}).safe is {"yes": True, "no": False}[expected]


@pytest.mark.parametrize("has_rules", [False, True])
def test_ranks_in_unstable_partitions_are_refused(has_rules: bool) -> None:
    """Over part of a group its count differs, so it is ranked in another partition."""
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
    for variant in (query, type(query)(query.sql, apply_rules(query.root))):
        for column, is_safe in columns.items():
            table, _, name = column.partition(".")
            assert check_safety(variant, {f"{table}#1": name}, ()).safe is is_safe


def test_reason_for_scalar_subqueries() -> None:
    query = read("SELECT sid FROM sales WHERE price > (SELECT shelf FROM stock)")
    assert check_safety(query, {"stock#1": "shelf"}, ()).reason == (
        "`shelf FROM stock` must return at most one row, and may return fewer rows over part of "
        "its table"
    )


@pytest.mark.parametrize(("sql", "needs_all"), expected_verdicts("needs every row"))
def test_which_queries_need_every_row(sql: str, needs_all: bool) -> None:
    assert counts_every_row(plan_of(sql)) is needs_all


FAILING = {"t": schema_of("g int, p int, x int, y int, b bigint, d double, m decimal(38,2)")}
ROWS = 1_000_000

CAN_FAIL = cases("verdicts", "outputs that can fail")


FIRST = "SELECT g, {} AS r FROM t GROUP BY g ORDER BY COUNT(*) DESC, g LIMIT 1"


def may_fail(sql: str, *, t: str = "p", **bounds: tuple[int, int]) -> bool:
    """Whether the query may fail over a sketch of `t` on this column, given column bounds."""
    bounds_by_id = {f"t#1.{c}": (Fraction(a), Fraction(b)) for c, (a, b) in bounds.items()}
    signs = [fact(c, FactKind.NONNEGATIVE) for c, (least, _) in bounds.items() if least >= 0]
    sizes = Sizes({"t#1": ROWS}, bounds_by_id)
    return part_failure(parse_query(sql, FAILING), {"t#1": t}, signs, sizes) is not None


@pytest.mark.parametrize("output", CAN_FAIL)
def test_outputs_that_can_fail(output: str) -> None:
    assert may_fail(FIRST.format(output))
    assert not may_fail(FIRST.format(output), t="g"), "complete groups fail as without a sketch"


@pytest.mark.parametrize("output", cases("verdicts", "outputs that cannot fail"))
def test_outputs_that_cannot_fail(output: str) -> None:
    assert not may_fail(FIRST.format(output))


@pytest.mark.parametrize(("sql", "is_expected"), expected_verdicts("queries that can fail"))
def test_queries_that_can_fail(sql: str, is_expected: bool) -> None:
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
def test_statistics_bound_partial_results(
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


def choose(sql: str, *facts: Fact, **options: object) -> SafeChoice:
    candidates = options.pop("candidates", {"sales": ("price", "brand")})
    wanted = options.pop("wanted", {})
    return choose_attributes(
        parse_query(sql, CHOICES),
        candidates,  # type: ignore[arg-type]
        facts,
        wanted,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def test_grouping_attribute_is_preferred_by_default() -> None:
    result = choose(REVENUE, *POSITIVE)
    assert result.sketched == {"sales#1": "brand"}
    assert result.verdict.safe
    assert [(c.column, c.safe, c.chosen) for c in result.considered] == [
        ("price", True, False),
        ("brand", True, True),
    ]
    assert result.considered[0].reason == "safe, but `brand` is a grouping attribute"


def test_cost_decides_before_anything_else() -> None:
    costs = {("sales", "price"): 10.0, ("sales", "brand"): 500.0}
    result = choose(REVENUE, *POSITIVE, weigh=lambda options: costs)
    assert result.sketched == {"sales#1": "price"}
    assert set(result.verdict.assumptions) == set(POSITIVE)
    assert result.considered[1].reason == "safe, but `price` is expected to read less"
    requested = choose(REVENUE, *POSITIVE, wanted={"sales": "price"})
    assert requested.sketched == {"sales#1": "price"}, "a requested attribute is used"


def test_the_order_of_candidates_decides_among_equals() -> None:
    candidates = {"sales": ("sold", "price")}
    result = choose("SELECT brand, price FROM sales WHERE sold > 3", candidates=candidates)
    assert result.sketched == {"sales#1": "price"}, "price is a key in the result"
    result = choose("SELECT brand FROM sales WHERE sold > 3", candidates=candidates)
    assert result.sketched == {"sales#1": "sold"}
    assert result.considered[1].reason == "safe, but `sold` is preferred"


def test_an_unsafe_candidate_says_why() -> None:
    result = choose(AVERAGE)
    assert result.sketched == {"sales#1": "brand"}
    price = result.considered[0]
    reason = (
        "HAVING compares `AVG(price)`, which can be larger or smaller over part of a group than"
        " over all of it"
    )
    assert (price.safe, price.reason) == (False, reason)
    assert price.span is not None


def test_unsafe_request_is_refused_with_safe_columns() -> None:
    with pytest.raises(UnsafeSketchError) as error:
        choose(AVERAGE, wanted={"sales": "price"}, name="q_avg")
    assert error.value.message == (
        "A sketch of `sales.price` is not safe for query `q_avg`: HAVING compares `AVG(price)`,"
        " which can be larger or smaller over part of a group than over all of it"
    )
    assert error.value.hint == "safe for this query: `sales.brand`"
    assert str(error.value.location) == "query `q_avg`:1:59"
    assert error.value.exit_code == 3


def test_query_without_a_safe_candidate_is_refused() -> None:
    with pytest.raises(UnsafeSketchError, match="the only candidate is not safe") as error:
        choose(AVERAGE, candidates={"sales": ("price",)})
    assert "add `sales.brand` under `partitions`" in (error.value.hint or "")
    with pytest.raises(UnsafeSketchError, match="no candidate attribute"):
        choose(AVERAGE, candidates={})
    with pytest.raises(UnsafeSketchError, match="does not read table `brands`"):
        choose(AVERAGE, wanted={"brands": "name"})


JOIN = (
    "SELECT brand, AVG(price) FROM sales JOIN brands ON brand = name GROUP BY brand"
    " HAVING AVG(price) > 500"
)


def test_accesses_are_safe_together() -> None:
    result = choose(JOIN, candidates={"sales": ("brand",), "brands": ("country", "name")})
    assert result.sketched == {"sales#1": "brand", "brands#1": "name"}
    assert result.verdict.safe


def test_incompatible_keys_are_not_combined() -> None:
    sql = (
        "SELECT brand, country, n FROM (SELECT brand, COUNT(*) AS n FROM sales GROUP BY brand"
        " HAVING COUNT(*) > 2) a LEFT JOIN brands ON brand = name"
    )
    result = choose(sql, candidates={"sales": ("price",), "brands": ("country",)})
    assert result.sketched == {"sales#1": "price"}
    brands = next(c for c in result.considered if c.access == "brands#1")
    assert not brands.safe

    union = (
        "SELECT name, COUNT(*) FROM (SELECT brand AS name, price FROM sales UNION ALL"
        " SELECT name, 1 FROM brands) a GROUP BY name HAVING COUNT(*) > 2"
    )
    both = choose(union, candidates={"sales": ("price",), "brands": ("country",)})
    assert both.sketched == {"sales#1": "price", "brands#1": "country"}


def test_incompatible_requests_are_refused() -> None:
    sql = (
        "SELECT brand FROM sales JOIN (SELECT country, name FROM brands ORDER BY country LIMIT 1) b"
        " ON brand = name"
    )
    # The top row of brands is one of several ties, so only one of the tables may be sketched.
    assert choose(sql, candidates={"brands": ("country",)}).sketched == {"brands#1": "country"}
    with pytest.raises(UnsafeSketchError):
        choose(sql, wanted={"brands": "country", "sales": "brand"})


def test_accesses_of_a_table_have_separate_sketches() -> None:
    sql = (
        "SELECT a.brand FROM sales a WHERE a.price > 3 AND NOT EXISTS"
        " (SELECT 1 FROM sales b WHERE b.brand = a.brand AND b.price > a.price)"
    )
    result = choose(sql, wanted={"sales": "price"})
    assert result.sketched == {"sales#1": "price"}
    second = next(c for c in result.considered if c.access == "sales#2")
    assert not second.safe
    assert second.reason.startswith("NOT EXISTS")
