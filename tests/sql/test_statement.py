"""Plans of whole statements: golden trees, identities, spans, and refusals with positions."""

from __future__ import annotations

import sys
from decimal import Decimal

import pytest

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGER, LONG, STRING, SqlType, decimal
from impctl.errors import QueryError
from impctl.expr import nodes as e
from impctl.plan.nodes import Aggregate, Explode, Plan, Project, Scan, Select, SetOperation, Window
from impctl.rules.optimize import apply_rules
from impctl.sql.pivot import as_column, constant_of, name_of
from impctl.sql.statement import parse_query
from tests.plan.catalogs import CATALOG, cases, pairs, plan_of, read, refusal, text_of, tree
from tests.support.run_cli import refused

GOLDEN = pairs("parse")


def created_by(node: Plan) -> list[str]:
    """Identities that a node creates."""
    match node:
        case Scan() | SetOperation():
            return [attribute.id for attribute in node.attributes]
        case Project():
            return [output.attribute.id for output in node.outputs]
        case Aggregate():
            return [output.attribute.id for output in (*node.keys, *node.aggregates)]
        case Window():
            return [call.attribute.id for call in node.calls]
    return []


@pytest.mark.parametrize(("sql", "expected"), GOLDEN, ids=[sql[:60] for sql, _ in GOLDEN])
def test_golden_trees(sql: str, expected: str) -> None:
    """Check the tree, the uniqueness of identities and the spans of scans."""
    plan = plan_of(sql)
    assert tree(plan) == expected
    identities = [identity for node in plan.walk() for identity in created_by(node)]
    assert len(identities) == len(set(identities))
    assert not any(identity.startswith("?") for identity in identities)
    for scan in plan.scans:
        assert sql[scan.span.start : scan.span.end].lower() == scan.table


@pytest.mark.parametrize("written", ["sales", "SALES", "`sales`", "`Third Table`"])
def test_table_spans_include_backticks_but_no_alias(written: str) -> None:
    sql = f"-- note\nSELECT 1\n  FROM {written} AS x"
    (scan,) = plan_of(sql).scans
    assert sql[scan.span.start : scan.span.end] == written
    assert (scan.span.line, scan.span.column) == (3, 8)


def test_a_common_table_expression_used_twice_is_read_twice() -> None:
    scans = plan_of("WITH c AS (SELECT brand FROM stock) SELECT 1 FROM c x, c y, stock").scans
    assert [scan.access for scan in scans] == ["stock#1", "stock#2", "stock#3"]
    assert scans[0].span == scans[1].span != scans[2].span


def test_a_scan_lists_all_columns_as_nullable() -> None:
    (scan,) = plan_of("SELECT brand FROM sales").scans
    assert [item.name for item in scan.attributes] == list(CATALOG["sales"].names)
    assert scan.attributes[0].id == "sales#1.sid"
    assert all(item.nullable for item in scan.attributes)


def test_volatile_constructs_are_listed_with_spans() -> None:
    sql = (
        "SELECT rand(), now() FROM sales WHERE day < current_date GROUP BY brand "
        "HAVING first(price) > 1"
    )
    result = dict(read(sql).nondeterministic)
    assert set(result) == {"rand", "first", "now", "current_date"}
    texts = {name: sql[span.start : span.end] for name, span in result.items() if span is not None}
    assert texts == {
        "rand": "rand()",
        "first": "first(price)",
        "now": "now()",
        "current_date": "current_date",
    }


def test_a_deterministic_query_lists_nothing() -> None:
    assert (
        read("SELECT unix_timestamp(at), max(price) FROM sales GROUP BY at").nondeterministic == ()
    )


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("", "query_empty"),
        ("  -- nothing\n", "query_empty"),
        *cases("statements", "not one SELECT"),
    ],
)
def test_only_one_select_is_accepted(sql: str, code: str) -> None:
    with refused(QueryError, code, "`q1`") as caught:
        parse_query(sql, CATALOG, name="q1")
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert [word for word in ("<class", "Token") if word in caught.value.message] == []


def test_a_statement_may_end_with_a_semicolon() -> None:
    assert text_of("SELECT brand FROM sales;") == "project brand\n  scan sales#1"


def test_a_deep_expression_is_refused_not_crashed() -> None:
    with pytest.raises(QueryError, match="nested too deeply"):
        read(f"SELECT {'+'.join(['price'] * 5000)} FROM sales")


def test_depth_is_bounded_whatever_the_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        with pytest.raises(QueryError, match="nested too deeply"):
            read(f"SELECT {'+'.join(['price'] * 1000)} FROM sales")
        assert read(f"SELECT {'+'.join(['price'] * 400)} FROM sales")
    finally:
        sys.setrecursionlimit(limit)


SUMS = "+".join(["SUM(price)"] * 250)
PRICES = "+".join(["price"] * 250)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT brand FROM sales GROUP BY brand HAVING {SUMS} > 3",
        f"SELECT brand, {SUMS} AS s FROM sales GROUP BY brand ORDER BY {SUMS}",
        f"SELECT {PRICES} AS p FROM sales WHERE {PRICES} > 3 ORDER BY {PRICES}",
    ],
)
def test_chains_of_operators_may_be_long(sql: str) -> None:
    assert read(sql)


@pytest.mark.slow
def test_long_chains_are_read() -> None:
    many = " OR ".join(f"price = {n}" for n in range(1500))
    assert text_of(f"SELECT sid FROM sales WHERE {many}").count("price =") == 1500
    assert len(plan_of(" UNION ALL ".join(["SELECT sid FROM sales"] * 60)).scans) == 60


@pytest.mark.parametrize(
    ("condition", "quoted"),
    [
        ("-price > 1", "-price"),
        ("- (price + sid) > 1", "- (price + sid)"),
        ("-((price)) > 1", "-((price))"),
        ("sid - -price > 1", "-price"),
        ("abs(-price) > 1", "-price"),
    ],
)
def test_a_sign_belongs_to_the_span(condition: str, quoted: str) -> None:
    sql = f"SELECT brand FROM sales WHERE {condition}"
    (select,) = (node for node in plan_of(sql).walk() if isinstance(node, Select))
    (negated,) = (part for part in select.predicate.walk() if isinstance(part, e.Negate))
    assert sql[negated.span.start : negated.span.end] == quoted


@pytest.mark.parametrize(
    ("tail", "hint"),
    [
        ("GROUP BY brand HAVIN SUM(price) > 5", "did you mean HAVING?"),
        ("WHER GROUPP BY brand", "did you mean GROUP?"),
        ("GROUP BY brand nonsense 7", "first check that Spark SQL accepts the statement"),
    ],
)
def test_a_mistyped_clause_gets_a_hint(tail: str, hint: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(f"SELECT brand, SUM(price) FROM sales {tail}", CATALOG, name="q")
    assert (caught.value.code, caught.value.hint) == ("query_syntax", hint)


@pytest.mark.parametrize(("listed", "viewed"), cases("statements", "generators", are_named=True))
def test_generators_are_lateral_views(listed: str, viewed: str) -> None:
    plan = plan_of(listed)
    assert any(isinstance(node, Explode) for node in plan.walk())
    assert apply_rules(plan) == apply_rules(plan_of(viewed))


def test_where_sees_the_table_and_order_by_the_generator() -> None:
    sql = (
        "SELECT explode(array(price)) AS brand FROM sales WHERE brand = 'a' ORDER BY brand LIMIT 2"
    )
    plan = plan_of(sql)
    (explode,) = (node for node in plan.walk() if isinstance(node, Explode))
    assert isinstance(explode.child, Select)
    assert "brand" in {a.name for a in explode.child.child.attributes}
    assert plan == plan_of(sql.replace("ORDER BY brand", "ORDER BY 1"))


def test_generated_columns_keep_order() -> None:
    plan = plan_of("SELECT *, posexplode(array(sid)) AS (p, x), sid AS last FROM stock, sales")
    assert isinstance(plan, Project)
    assert [a.name for a in plan.attributes][-3:] == ["p", "x", "last"]


@pytest.mark.parametrize(("qualified", "around"), cases("statements", "filters", are_named=True))
def test_qualify_is_an_outer_filter(qualified: str, around: str) -> None:
    result, expected = (
        [type(node) for node in apply_rules(plan_of(sql)).walk()] for sql in (qualified, around)
    )
    assert result == expected


def test_qualify_may_use_a_window_on_an_alias() -> None:
    plan = plan_of(
        "SELECT brand, sum(price) AS s FROM sales GROUP BY brand HAVING count(*) > 1"
        " QUALIFY rank() OVER (PARTITION BY brand ORDER BY s) = 1"
    )
    nodes = list(plan.walk())
    (index,) = (i for i, node in enumerate(nodes) if isinstance(node, Window))
    above, window, below, group = nodes[index - 1 : index + 3]
    assert isinstance(above, Select)
    assert isinstance(window, Window)
    assert isinstance(below, Select)
    assert isinstance(group, Aggregate)
    names = {output.attribute.id: output.attribute.name for output in group.aggregates}
    (call,) = window.calls
    assert names[call.order[0].expr.id] == "s"  # type: ignore[attr-defined]  # a column
    assert call.partition_by == (group.keys[0].attribute.ref(),)


CENTS = decimal(5, 2)


def number(text: str) -> e.Literal:
    value = Decimal(text)
    return e.Literal(value, decimal(9, -int(value.as_tuple().exponent)))


@pytest.mark.parametrize(
    ("value", "column", "expected"),
    [
        (number("1.00"), CENTS, Decimal("1.00")),
        (number("-2.5000"), CENTS, Decimal("-2.50")),
        (e.Literal(999, INTEGER), CENTS, Decimal("999.00")),
        (e.Literal(1000, INTEGER), CENTS, None),
        (number("1.005"), CENTS, None),
        (number("2.00"), LONG, 2),
        (number("2.01"), LONG, None),
        (number("1.5"), DOUBLE, None),
        (e.Literal("1", STRING), LONG, None),
        (e.Literal("x", STRING), STRING, "x"),
        (e.Literal(1, INTEGER), STRING, None),
    ],
)
def test_values_changed_by_a_cast_are_skipped(
    value: e.Literal, column: SqlType, expected: e.LiteralValue
) -> None:
    cast = as_column(value, column)
    assert (None if cast is None else cast.value) == expected
    assert as_column(e.Literal(None, value.type), column) is not None


def test_constants_have_no_columns() -> None:
    number_one = e.Literal(1, INTEGER)
    assert constant_of(e.Arithmetic(e.ArithmeticOp.ADD, number_one, number_one)).value == 2
    wide = constant_of(e.Cast(number("1.5"), decimal(5, 3)))
    assert wide is not None
    assert name_of([wide]) == "1.500"
    assert constant_of(e.ColumnRef("t.a", INTEGER)) is None
    assert (
        constant_of(e.Arithmetic(e.ArithmeticOp.DIVIDE, number_one, e.Literal(0, INTEGER))) is None
    )


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([number("1.00")], "1.00"),
        ([number("-0.5")], "-0.5"),
        ([e.Literal(True, BOOLEAN)], "true"),
        ([e.Literal(-1, LONG), e.Literal("a", STRING)], "{-1, a}"),
        ([e.Literal(None, STRING), number("2")], "{null, 2}"),
        ([e.Literal(1.5, DOUBLE)], None),
        ([number("0.00000001")], None),
    ],
)
def test_names_of_constants(values: list[e.Literal], name: str | None) -> None:
    assert name_of(values) == name


SEVERAL_LINES = [
    ("SELECT brand\nFROM sales\nWHERE »prize > 3", "Column `prize` is unknown", "`price`"),
    ("SELECT brand FROM sales »-- recent \\\nWHERE price > 1", "may end elsewhere", "backslash"),
    ("SELECT brand --x\r»/* a /* b */ c */ FROM sales", "may end elsewhere", "nest comments"),
]


@pytest.mark.parametrize(
    ("marked", "message", "hint"), [*cases("statements", "refused"), *SEVERAL_LINES]
)
def test_refusals_have_a_position(marked: str, message: str, hint: str) -> None:
    error = refusal(marked)
    assert message in error.message
    assert hint in (error.hint or "")
    assert str(error.location).startswith("query `query`:")
    assert not error.message.endswith(".")
