"""All rules: the same rows on random plans and data, examples of each, and the cache of plans."""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from random import Random
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, LONG, STRING, Column, Schema, decimal
from impctl.errors import QueryError
from impctl.expr.nodes import And, Cast, Compare, CompareOp, Expr, Literal, LiteralValue, Mean, Or
from impctl.plan import nodes as plan_nodes
from impctl.plan.fingerprint import fingerprint
from impctl.rules.error_columns import with_rounding
from impctl.rules.finalize import FinalSteps, FirstRows, answer_plan, read_ending, written_ending
from impctl.rules.normalize import best_fixpoints, single_rows, split_averages
from impctl.rules.optimize import (
    KEPT,
    RULES,
    Planned,
    PlannedQueries,
    apply_rules,
    core_of,
    prune_columns,
)
from impctl.rules.pushdown import common_parts, push_selections
from impctl.safety.judge import check_safety
from impctl.sql.statement import parse_query
from tests.plan.catalogs import cases, pairs, plan_of, read, schema_of, tree
from tests.plan.random_fixpoints import make_bag_trial, make_fixpoint_trial
from tests.plan.random_plans import ExprMaker
from tests.plan.trials import Trial, make_trial
from tests.support.random_cases import more_seeds, random_cases
from tests.support.random_queries import SCHEMA, random_sql
from tests.support.reference_plan import ReferenceFailure, ReferenceLimit, Tables, bag, evaluate

OFTEN = [rule for rule in RULES if rule not in (best_fixpoints, common_parts)]
"""Rules that change many random plans; tests of the others generate plans for them."""

RECURSIVE = (push_selections, prune_columns, apply_rules)
"""Rules that change many plans with a fixpoint."""

Answer = frozenset[tuple[tuple[object, ...], int]]


def answers(
    plan: plan_nodes.Plan,
    tables: Tables,
    rng: Random,
    runs: int,
    rows: Mapping[str, Sequence[int]] | None = None,
) -> set[Answer]:
    """Return the results for several orders of tied rows, over these `rows`."""
    return {frozenset(bag(evaluate(plan, tables, rows, rng.shuffle)).items()) for _ in range(runs)}


def is_open(plan: plan_nodes.Plan) -> bool:
    """Whether ties make the result nondeterministic."""
    return any(isinstance(node, plan_nodes.TopK | plan_nodes.Window) for node in plan.walk())


def check(
    cases: Collection[int],
    make: Callable[[int], Trial],
    rules: Sequence[Callable[[plan_nodes.Plan], plan_nodes.Plan]],
    least: float,
    *,
    has_open: bool = False,
) -> None:
    """Check that each rule keeps the results and changes at least this share of the plans.

    Plans with ties are evaluated in several orders of tied rows, or skipped.
    """
    compared: Counter[str] = Counter()
    for seed in cases:
        trial, rng = make(seed), Random(seed)
        changed = {rule.__name__: rule(trial.root) for rule in rules}
        changed = {name: after for name, after in changed.items() if after != trial.root}
        for after in changed.values():
            assert after.attributes == trial.root.attributes, seed
        if not changed or (is_open(trial.root) and not has_open):
            continue
        try:
            before = answers(trial.root, trial.tables, rng, 12 if is_open(trial.root) else 1)
        except (ReferenceFailure, ReferenceLimit):
            continue
        if len(before) > 1:
            continue
        compared.update([*changed])
        for name, after in changed.items():
            # A rule must not make a plan fail, so no error is caught here.
            assert answers(after, trial.tables, rng, 1) == before, (seed, name)
    assert all(compared[rule.__name__] > len(cases) * least for rule in rules), compared


@random_cases(25, 88, 600, also=more_seeds("rules"))
def test_rules_keep_results(cases: Collection[int]) -> None:
    check(cases, make_trial, [*OFTEN, apply_rules], 1 / 40, has_open=True)


@random_cases(50, 175, 3000, first=4_000_000, also=more_seeds("rules over fixpoints"))
def test_rules_keep_fixpoint_results(cases: Collection[int]) -> None:
    check(cases, make_fixpoint_trial, RECURSIVE, 1 / 10)


@random_cases(50, 79, 3000, first=5_000_000, also=more_seeds("rules over UNION ALL"))
def test_rules_keep_union_all_results(cases: Collection[int]) -> None:
    check(cases, make_bag_trial, RECURSIVE, 1 / 10)


GOLDEN = [
    (rule, sql, expected)
    for rule in (prune_columns, push_selections, split_averages)
    for sql, expected in pairs(rule.__name__)
]


@pytest.mark.parametrize(("rule", "sql", "expected"), GOLDEN)
def test_golden_pairs(
    rule: Callable[[plan_nodes.Plan], plan_nodes.Plan], sql: str, expected: str
) -> None:
    plan = plan_of(sql)
    after = rule(plan)
    assert tree(after) == expected
    assert after.attributes == plan.attributes
    assert rule(after) == after


def test_a_merged_selection_has_a_joint_span() -> None:
    sql = "SELECT sid FROM (SELECT * FROM sales WHERE price > 1) WHERE ok"
    pushed = push_selections(plan_of(sql))
    span = pushed.child.span  # type: ignore[union-attr]
    assert sql[span.start : span.end] == "price > 1) WHERE ok"


def test_apply_rules_reaches_a_fixpoint() -> None:
    for sql, _ in pairs("parse"):
        plan = apply_rules(plan_of(sql))
        assert apply_rules(plan) == plan, sql
        assert all(rule(plan) == plan for rule in RULES), sql


def test_the_rules_together() -> None:
    sql = (
        "SELECT s.brand, avg(price) a FROM sales s, stock t WHERE s.brand = t.brand AND shelf > 1 "
        "GROUP BY s.brand HAVING avg(price) > 10 AND s.brand <> 'x'"
    )
    assert tree(apply_rules(plan_of(sql))) == (
        "project brand, mean(sum of a, count of a) AS a\n"
        "  select mean(sum of a, count of a) > 10\n"
        "    aggregate by brand: sum(CAST(price AS double)) AS sum of a, "
        "count(price) AS count of a\n"
        "      join inner on sales#1.brand = stock#1.brand\n"
        "        select brand <> 'x'\n"
        "          scan sales#1: brand, price\n"
        "        select shelf > 1\n"
        "          scan stock#1: brand, shelf"
    )


@pytest.mark.parametrize(
    ("condition", "count", "is_all"),
    [
        ("r < 3", 2, True),
        ("r < 2.5", 2, True),
        ("3 > r", 2, True),
        ("2.5 >= r", 2, True),
        ("r = 1", 1, True),
        ("r = 2", 2, False),
        ("r = 2.5", 0, True),
        ("r <= -1", 0, True),
        # Constants are rounded as in Spark.
        ("r <= 2.99", 2, True),
        ("r <= 2.99999999F", 3, True),
        ("r <= CAST(2.99999999999999999999 AS DOUBLE)", 3, True),
        ("r <= CAST(2.5 AS DOUBLE)", 2, True),
        ("r <= CAST(2 AS FLOAT)", 2, True),
    ],
)
def test_a_rank_is_bounded_by_any_comparison(condition: str, count: int, is_all: bool) -> None:
    """`r = 2` drops rows among the first two, so its filter stays."""
    plan = apply_rules(
        plan_of(
            "SELECT sid FROM (SELECT sid, RANK() OVER (PARTITION BY sid ORDER BY price) AS r"
            f" FROM sales) WHERE {condition}"
        )
    )
    (first,) = (node for node in plan.walk() if isinstance(node, plan_nodes.TopK))
    assert first.count == count
    assert is_all is not any(isinstance(node, plan_nodes.Select) for node in plan.walk())


@pytest.mark.parametrize("sql", [sql for sql, _ in pairs("split_averages")])
def test_identities_stay_unique(sql: str) -> None:
    nodes = [
        n
        for n in split_averages(plan_of(sql)).walk()
        if isinstance(n, plan_nodes.Aggregate | plan_nodes.Project)
    ]
    ids = [attribute.id for node in nodes for attribute in node.attributes]
    assert len(ids) == len(set(ids))


def test_integers_are_summed_as_doubles_and_decimals_as_decimals() -> None:
    split = split_averages(plan_of("SELECT avg(price), avg(cost) FROM sales"))
    assert isinstance(split, plan_nodes.Project)
    assert isinstance(split.child, plan_nodes.Aggregate)
    of_price, of_price_count, of_cost, _ = split.child.aggregates
    assert isinstance(of_price.call.arguments[0], Cast)
    assert of_price.attribute.type == DOUBLE
    assert of_price_count.attribute.type == LONG
    assert not of_price_count.attribute.nullable
    assert of_cost.attribute.type == decimal(20, 2)
    means = [output.expr for output in split.outputs]
    assert [mean.type for mean in means if isinstance(mean, Mean)] == [DOUBLE, decimal(14, 6)]


WHERE = "SELECT sid FROM sales WHERE "


@pytest.mark.parametrize(("written", "expected"), cases("rules", "common parts"))
def test_common_parts(written: str, expected: str) -> None:
    assert tree(common_parts(plan_of(WHERE + written))) == tree(plan_of(WHERE + expected))


def test_an_equality_inside_an_or_joins() -> None:
    sql = (
        "SELECT sid FROM sales s, stock t WHERE (s.brand = t.brand AND price > 5 AND shelf > 1) "
        "OR (s.brand = t.brand AND price > 9 AND shelf > 0)"
    )
    text = tree(apply_rules(plan_of(sql)))
    assert "join inner on sales#1.brand = stock#1.brand AND" in text
    assert "join cross" not in text


@random_cases(30, 90, 1500, also="91 295 414 475 499 513 544 582")
def test_common_parts_keep_the_bag_of_rows(cases: Collection[int]) -> None:
    changed = compared = 0
    for seed in cases:
        trial = make_trial(seed)
        before = _with_common_parts(trial.root, ExprMaker(Random(seed)))
        after = common_parts(before)
        changed += after != before
        rng = Random(seed)
        try:
            expected = bag(evaluate(before, trial.tables, None, rng.shuffle))
        except (ReferenceFailure, ReferenceLimit):
            continue
        compared += after != before
        # The rule must not make a plan fail, so no error is caught here.
        assert bag(evaluate(after, trial.tables, None, Random(seed).shuffle)) == expected, seed
    assert compared > len(cases) // 5
    assert changed >= compared


def _with_common_parts(plan: plan_nodes.Plan, maker: ExprMaker) -> plan_nodes.Plan:
    """Replace each condition by an OR of two or three sides that share the condition."""
    inputs = tuple(_with_common_parts(child, maker) for child in plan.inputs)
    plan = plan.with_inputs(inputs) if inputs else plan
    attributes = [attribute for child in inputs for attribute in child.attributes]
    match plan:
        case plan_nodes.Select():
            return replace(plan, predicate=_spread(plan.predicate, attributes, maker))
        case plan_nodes.Join(condition=condition, null_aware=False) if condition is not None:
            return replace(plan, condition=_spread(condition, attributes, maker))
    return plan


def _spread(part: Expr, attributes: list, maker: ExprMaker) -> Expr:  # type: ignore[type-arg]
    sides = [
        And((part, maker.predicate(attributes, 1)))
        if maker.rng.random() < 0.5
        else And((maker.predicate(attributes, 1), _mirrored(part)))
        for _ in range(maker.rng.choice((2, 2, 3)))
    ]
    return Or(tuple(sides))


def _mirrored(part: Expr) -> Expr:
    if isinstance(part, Compare) and part.op is CompareOp.EQUAL:
        return replace(part, left=part.right, right=part.left)
    return part


_ONE = "SELECT COUNT(*) AS n, AVG(price) AS a FROM sales WHERE numsold > 1"
_TWO = "SELECT * FROM (SELECT MAX(price) m FROM sales) x, (SELECT SUM(shelf) s FROM stock) y"


@pytest.mark.parametrize(("long", "short"), cases("rules", "what one row passes"))
def test_steps_that_keep_the_only_row_are_dropped(long: str, short: str) -> None:
    plan, expected = (plan_of(sql.format(ONE=_ONE, TWO=_TWO)) for sql in (long, short))
    assert tree(single_rows(plan)) == tree(expected)


@pytest.mark.parametrize("sql", cases("rules", "what may drop a row"))
def test_steps_that_drop_rows_stay(sql: str) -> None:
    plan = plan_of(sql.format(ONE=_ONE))
    assert single_rows(plan) == plan


def test_an_aggregate_of_all_rows_with_a_limit_is_safe() -> None:
    query = read(f"{_ONE} ORDER BY a DESC LIMIT 100")
    assert not check_safety(query, {"sales#1": "numsold"}, ()).safe
    root = apply_rules(read(query.sql).root)
    assert check_safety(type(query)(query.sql, root), {"sales#1": "numsold"}, ()).safe


SQL = "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) > 5"


@pytest.fixture
def planned() -> Callable[..., Planned]:
    return PlannedQueries().of


def schema(*names: str) -> Schema:
    return Schema(tuple(Column(name, LONG) for name in names))


def test_a_plan_is_parsed_and_optimized(planned: Callable[..., Planned]) -> None:
    result = planned(SQL, {"t": schema("a", "b")}, name="q", zone="UTC")
    query = parse_query(SQL, {"t": schema("a", "b")}, name="q")
    assert result.query == query
    assert result.ruled.root == apply_rules(query.root)
    assert result.core == core_of(query.root)


def test_a_plan_is_cached_until_its_tables_change(
    planned: Callable[..., Planned],
) -> None:
    first = planned(SQL, {"t": schema("a", "b"), "u": schema("x")}, name="q", zone="UTC")
    again = planned(SQL, {"t": schema("a", "b"), "u": schema("y")}, name="q", zone="UTC")
    assert again is first, "table `u` is not read"


@pytest.mark.parametrize(
    "change",
    [
        {"catalog": {"t": schema("b", "a")}},
        {"catalog": {"t": schema("a", "b", "c")}},
        {"catalog": {"t": schema_of("a string, b bigint")}},
        {"catalog": {"t": schema("a", "b"), "T2": schema("a")}},
        {"zone": "+02:00"},
        {"name": "other"},
        {"sql": SQL + " "},
    ],
    ids=str,
)
def test_other_changes_are_parsed_again(
    planned: Callable[..., Planned], change: dict[str, object]
) -> None:
    arguments = {"sql": SQL, "catalog": {"t": schema("a", "b")}, "name": "q", "zone": "UTC"}
    first = planned(**arguments)
    other = planned(**(arguments | change))
    assert other is not first
    fresh = parse_query(**(arguments | change))  # type: ignore[arg-type]
    assert other.query == fresh
    assert planned(**(arguments | change)) is other


def test_an_error_is_not_cached(planned: Callable[..., Planned]) -> None:
    with pytest.raises(QueryError):
        planned(SQL, {"t": schema("a")}, name="q", zone="UTC")
    with pytest.raises(QueryError):
        planned(SQL, {"u": schema("a", "b")}, name="q", zone="UTC")
    assert planned(SQL, {"t": schema("a", "b")}, name="q", zone="UTC").query.sql == SQL
    with pytest.raises(QueryError, match="b"):
        planned(SQL, {"t": schema("a")}, name="q", zone="UTC")


def test_the_cache_drops_the_least_recently_used() -> None:
    catalog = {"t": schema("a", "b")}
    queries = PlannedQueries()

    def plan(number: int) -> Planned:
        return queries.of(f"SELECT a FROM t WHERE b > {number}", catalog, name="q", zone="UTC")

    first, second = plan(0), plan(1)
    for number in range(2, KEPT + 1):
        plan(number)
        assert plan(0) is first
    assert len(queries) == KEPT
    assert plan(1) is not second


class TrackedCatalog(Mapping[str, Schema]):
    """A catalog, like one of a run, that can be tracked by a weak reference."""

    def __getitem__(self, table: str) -> Schema:
        if table != "t":
            raise KeyError(table)
        return schema("a", "b")

    def __iter__(self) -> Iterator[str]:
        return iter(("t",))

    def __len__(self) -> int:
        return 1


@pytest.mark.slow
def test_no_catalog_leaks(planned: Callable[..., Planned]) -> None:
    catalog = TrackedCatalog()
    reference = weakref.ref(catalog)
    planned(SQL, catalog, name="q", zone="UTC")
    del catalog
    gc.collect()
    assert reference() is None
    assert planned(SQL, TrackedCatalog(), name="q", zone="UTC").query.sql == SQL


@pytest.mark.parametrize(
    ("sql", "cut"),
    [
        ("SELECT a FROM t WHERE b > 5 LIMIT 3", 3),
        ("(SELECT a FROM t WHERE b > 5) LIMIT 0", 0),
        ("SELECT * FROM (SELECT a FROM t WHERE b > 5 LIMIT 3) AS virtual_table", 3),
        ("SELECT a FROM t WHERE b > 5 LIMIT ALL", None),
    ],
)
def test_a_last_limit_without_order_is_not_in_the_plan(
    planned: Callable[..., Planned], sql: str, cut: int | None
) -> None:
    catalog = {"t": schema("a", "b")}
    result = planned(sql, catalog, name="q", zone="UTC")
    unlimited = planned("SELECT a FROM t WHERE b > 5", catalog, name="q", zone="UTC")
    assert result.query.cut == cut
    assert (result.query.sql, result.ruled.sql) == (sql, sql)
    assert fingerprint(result.ruled.root) == fingerprint(unlimited.ruled.root)
    assert fingerprint(result.core) == fingerprint(unlimited.core)


@pytest.mark.parametrize("sql", cases("rules", "limits that stay"))
def test_any_other_limit_stays_in_the_plan(planned: Callable[..., Planned], sql: str) -> None:
    result = planned(sql, {"t": schema("a", "b")}, name="q", zone="UTC")
    assert result.query.cut is None
    assert any(isinstance(node, plan_nodes.TopK) for node in result.query.root.walk())


EXPRESSIONS = """
SELECT g, -x, x + 1, x - 1L, x * 2, x / 2, x DIV 2, x % 3, f, f > 1.5, x <=> NULL, NOT (x > 1),
  x IS NULL OR x IN (1, 2), s LIKE 'a_%' ESCAPE '!', CASE WHEN x = 1 THEN 'a' ELSE 'b' END,
  COALESCE(x, 0), CAST(x AS STRING), UPPER(s), DATE '2024-02-29', 1.50BD, X'00ff', m
FROM (SELECT g, SUM(x) AS x, MAX(d) AS f, MAX(s) AS s, AVG(x) AS m FROM t GROUP BY g) AS u
WHERE x < 5 AND s <> 'x' ORDER BY x DESC NULLS LAST, s LIMIT 7 OFFSET 2
"""


def ending_of(sql: str) -> FinalSteps:
    query = parse_query(sql, {"t": SCHEMA})
    return answer_plan(replace(query, root=apply_rules(query.root))).ending


def through_json(ending: FinalSteps) -> FinalSteps:
    return read_ending(json.loads(json.dumps(written_ending(ending))))


def exprs(ending: FinalSteps) -> list[Expr]:
    first = () if ending.first is None else ending.first.order
    expressions = [*(output.expr for output in ending.outputs), *ending.predicates]
    return [*expressions, *(key.expr for key in (*ending.order, *first))]


@random_cases(50, 100, 1000)
def test_endings_round_trip_through_json(cases: range) -> None:
    cut = 0
    for seed in cases:
        rng = random.Random(seed)
        ending = ending_of(f"{random_sql(rng)} ORDER BY 1 LIMIT {rng.randrange(9)}")
        assert through_json(ending) == ending, seed
        cut += ending.is_cut
    assert cut > len(cases) * 5 // 6


def test_expressions_round_trip_through_json() -> None:
    ending = ending_of(EXPRESSIONS)
    assert through_json(ending) == ending
    used = {type(part) for expr in exprs(ending) for part in expr.walk()}
    assert {kind.__name__ for kind in get_args(Expr)} - {kind.__name__ for kind in used} <= {"Mean"}


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 2**63 - 1, -(2**70), -0.0, float("inf"), 1 / 3, "\ud800", "", b"\x00\xff"]
    + [Decimal("1E+3"), Decimal("-0.00")],
)
def test_constants_round_trip_exactly(value: LiteralValue) -> None:
    attribute = plan_nodes.Attribute("o", "o", decimal(5, 2), nullable=False)
    output = plan_nodes.ComputedColumn(attribute, Literal(value, DOUBLE))
    order = (plan_nodes.SortKey(Literal("x", STRING), True, False),)
    ending = FinalSteps((attribute,), (), FirstRows(order, None, 3), (), 0, (output,))
    result = through_json(ending)
    assert result == ending
    (read,) = (each.expr for each in result.outputs)
    assert isinstance(read, Literal)
    assert (type(read.value), repr(read.value)) == (type(value), repr(value))


def test_unknown_constants_are_refused() -> None:
    class Odd(int):
        pass

    output = plan_nodes.ComputedColumn(plan_nodes.Attribute("o", "o", LONG), Literal(Odd(1), LONG))
    with pytest.raises(TypeError):
        written_ending(FinalSteps((), (), None, (), None, (output,)))


@pytest.mark.parametrize(
    "written",
    [None, "x", 3, [], ["tuple"], ["FinalSteps"], ["Path", "/"], ["FinalSteps", 1, 2, 3, 4, 5, 6]]
    + [["Kind", "no such"], ["int", "x"], ["Decimal", "x"], ["SqlType", ["Kind", "long"]]],
)
def test_invalid_endings_are_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="not the end of a plan"):
        read_ending(written)


CATALOG = {"t": schema_of("g int, n bigint, m decimal(10,2), x double, f float, s string")}


@pytest.mark.parametrize(("sql", "inexact"), cases("rules", "columns with an error"))
def test_columns_with_an_error(sql: str, inexact: str) -> None:
    root = parse_query(sql, CATALOG).root
    result = with_rounding(root)
    if inexact == "none":
        assert result is None
        return
    assert result is not None
    plan, positions = result
    assert " ".join(map(str, positions)) == inexact
    attributes = root.attributes
    assert plan.attributes[: len(attributes)] == attributes
    assert len(plan.attributes) == len(attributes) + len(positions)
