"""Whole statements to plans: golden trees, identities, spans; and what is refused, at its place."""

from __future__ import annotations

import sys
from decimal import Decimal

import pytest

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGER, LONG, STRING, SqlType, decimal
from impctl.errors import QueryError
from impctl.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Cast,
    ColumnRef,
    Literal,
    LiteralValue,
    Negate,
    walk,
)
from impctl.plan.nodes import (
    Aggregate,
    Explode,
    Plan,
    Project,
    Scan,
    Select,
    SetOperation,
    Window,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.rules.optimize import apply_rules
from impctl.sql.pivot import as_column, constant_of, name_of
from impctl.sql.statement import parse_query
from tests.plan.catalogs import CATALOG, pairs, plan_of, read, refusal, text_of

GOLDEN = pairs("parse")


@pytest.mark.parametrize(("sql", "expected"), GOLDEN, ids=[sql[:60] for sql, _ in GOLDEN])
def test_golden_trees(sql: str, expected: str) -> None:
    assert text_of(sql) == expected


def made_by(node: Plan) -> list[str]:
    """Identities that a node makes."""
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


@pytest.mark.parametrize("sql", [sql for sql, _ in GOLDEN])
def test_identities_are_unique(sql: str) -> None:
    made = [identity for node in nodes_of(plan_of(sql)) for identity in made_by(node)]
    assert len(made) == len(set(made))
    assert not any(identity.startswith("?") for identity in made)


@pytest.mark.parametrize("sql", [sql for sql, _ in GOLDEN])
def test_scan_spans_cover_exactly_the_written_name(sql: str) -> None:
    for scan in scans_of(plan_of(sql)):
        assert sql[scan.span.start : scan.span.end].lower() == scan.table


@pytest.mark.parametrize("written", ["sales", "SALES", "`sales`", "`Third Table`"])
def test_span_of_a_table_name_includes_backticks_but_no_alias(written: str) -> None:
    sql = f"-- note\nSELECT 1\n  FROM {written} AS x"
    (scan,) = scans_of(plan_of(sql))
    assert sql[scan.span.start : scan.span.end] == written
    assert (scan.span.line, scan.span.column) == (3, 8)


def test_a_common_table_expression_used_twice_is_read_twice() -> None:
    sql = "WITH c AS (SELECT brand FROM stock) SELECT 1 FROM c x, c y, stock"
    scans = scans_of(plan_of(sql))
    assert [scan.access for scan in scans] == ["stock#1", "stock#2", "stock#3"]
    assert scans[0].span == scans[1].span != scans[2].span


def test_a_scan_lists_all_columns_and_believes_of_none_that_it_has_no_null() -> None:
    (scan,) = scans_of(plan_of("SELECT brand FROM sales"))
    assert [item.name for item in scan.attributes] == list(CATALOG["sales"].names)
    assert scan.attributes[0].id == "sales#1.sid"
    assert all(item.nullable for item in scan.attributes)


def test_volatile_constructs_are_listed_with_their_places() -> None:
    sql = (
        "SELECT rand(), now() FROM sales WHERE day < current_date GROUP BY brand "
        "HAVING first(price) > 1"
    )
    result = dict(read(sql).nondeterministic)
    assert set(result) == {"rand", "first", "now", "current_date"}
    places = {name: sql[span.start : span.end] for name, span in result.items() if span is not None}
    assert places == {
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
        ("DROP TABLE sales", "query_not_select"),
        ("INSERT INTO sales SELECT * FROM sales", "query_not_select"),
        ("EXPLAIN SELECT 1", "query_not_select"),
        ("VALUES (1)", "query_not_select"),
        ("SELECT brand FROM sales; SELECT 1", "query_unsupported"),
        ("SELECT brand FROM", "query_syntax"),
        ("SELECT brand FROM sales WHERE", "query_syntax"),
        ("SELECT `brand FROM sales", "query_syntax"),
        ("SELECT (brand FROM sales", "query_syntax"),
    ],
)
def test_what_is_not_one_select(sql: str, code: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(sql, CATALOG, name="q1")
    assert caught.value.code == code
    assert caught.value.exit_code == 3
    assert "`q1`" in caught.value.message
    assert caught.value.hint
    assert "<class" not in caught.value.message
    assert "Token" not in caught.value.message


def test_a_statement_may_end_with_a_semicolon() -> None:
    assert text_of("SELECT brand FROM sales;") == "project brand\n  scan sales#1"


def test_a_deep_expression_is_refused_not_crashed() -> None:
    with pytest.raises(QueryError, match="nested too deeply"):
        read(f"SELECT {'+'.join(['price'] * 5000)} FROM sales")


def test_depth_is_bounded_where_the_host_raised_the_interpreters_limit() -> None:
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        with pytest.raises(QueryError, match="nested too deeply"):
            read(f"SELECT {'+'.join(['price'] * 1000)} FROM sales")
        assert read(f"SELECT {'+'.join(['price'] * 400)} FROM sales")
    finally:
        sys.setrecursionlimit(usual)


@pytest.mark.slow
def test_long_chains_are_read() -> None:
    many = " OR ".join(f"price = {n}" for n in range(1500))
    assert text_of(f"SELECT sid FROM sales WHERE {many}").count("price =") == 1500
    union = " UNION ALL ".join(["SELECT sid FROM sales"] * 60)
    assert len(scans_of(plan_of(union))) == 60


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
def test_a_sign_belongs_to_what_is_quoted(condition: str, quoted: str) -> None:
    sql = f"SELECT brand FROM sales WHERE {condition}"
    (select,) = (node for node in nodes_of(plan_of(sql)) if isinstance(node, Select))
    (negated,) = (e for e in walk(select.predicate) if isinstance(e, Negate))
    assert sql[negated.span.start : negated.span.end] == quoted


@pytest.mark.parametrize(
    ("tail", "hint"),
    [
        ("GROUP BY brand HAVIN SUM(price) > 5", "did you mean HAVING?"),
        ("WHER GROUPP BY brand", "did you mean GROUP?"),
        ("GROUP BY brand nonsense 7", "first check that Spark SQL accepts the statement"),
    ],
)
def test_a_mistyped_clause_is_guessed(tail: str, hint: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(f"SELECT brand, SUM(price) FROM sales {tail}", CATALOG, name="q")
    assert (caught.value.code, caught.value.hint) == ("query_syntax", hint)


SAME = {
    "element": (
        "SELECT brand, explode(array(price, 1)) AS x FROM sales",
        "SELECT brand, x FROM sales LATERAL VIEW explode(array(price, 1)) e AS x",
    ),
    "place and element": (
        "SELECT posexplode(array(price)) AS (p, x), brand FROM sales WHERE price > 3",
        "SELECT p, x, brand FROM sales LATERAL VIEW posexplode(array(price)) e AS p, x"
        " WHERE price > 3",
    ),
    "outer": (
        "SELECT explode_outer(array(price)) x FROM sales",
        "SELECT x FROM sales LATERAL VIEW OUTER explode(array(price)) e AS x",
    ),
    "key and value": (
        "SELECT explode(map(brand, price)) AS (k, v) FROM sales",
        "SELECT k, v FROM sales LATERAL VIEW explode(map(brand, price)) e AS k, v",
    ),
    "distinct and sorted": (
        "SELECT DISTINCT explode(array(price)) AS x FROM sales ORDER BY x DESC LIMIT 3",
        "SELECT DISTINCT x FROM sales LATERAL VIEW explode(array(price)) e AS x"
        " ORDER BY x DESC LIMIT 3",
    ),
    "sorted by what is not selected": (
        "SELECT explode(array(price)) AS x FROM sales ORDER BY sid, x LIMIT 3",
        "SELECT x FROM sales LATERAL VIEW explode(array(price)) e AS x ORDER BY sid, x LIMIT 3",
    ),
}


@pytest.mark.parametrize(("listed", "viewed"), SAME.values(), ids=SAME)
def test_it_is_the_lateral_view(listed: str, viewed: str) -> None:
    made = plan_of(listed)
    assert any(isinstance(node, Explode) for node in nodes_of(made))
    assert apply_rules(made) == apply_rules(plan_of(viewed))


def test_a_name_in_where_is_the_table_s_and_in_order_by_the_generator_s() -> None:
    sql = (
        "SELECT explode(array(price)) AS brand FROM sales WHERE brand = 'a' ORDER BY brand LIMIT 2"
    )
    plan = plan_of(sql)
    (explode,) = (node for node in nodes_of(plan) if isinstance(node, Explode))
    assert isinstance(explode.child, Select)
    assert "brand" in {a.name for a in attributes_of(explode.child.child)}
    assert plan == plan_of(sql.replace("ORDER BY brand", "ORDER BY 1"))


def test_its_columns_stand_in_its_place() -> None:
    plan = plan_of("SELECT *, posexplode(array(sid)) AS (p, x), sid AS last FROM stock, sales")
    assert isinstance(plan, Project)
    assert [a.name for a in attributes_of(plan)][-3:] == ["p", "x", "last"]


SAME_AS_FILTERS = {
    "alias of a window": (
        "SELECT brand, rank() OVER (ORDER BY sum(price)) AS r FROM sales GROUP BY brand"
        " QUALIFY r <= 2",
        "SELECT brand, r FROM (SELECT brand, rank() OVER (ORDER BY sum(price)) AS r FROM sales"
        " GROUP BY brand) q WHERE r <= 2",
    ),
    "column that is grouped by": (
        "SELECT brand, count(*) AS n, rank() OVER (ORDER BY brand) AS r FROM sales GROUP BY brand"
        " QUALIFY r > n AND sales.brand > 'a'",
        "SELECT * FROM (SELECT brand, count(*) AS n, rank() OVER (ORDER BY brand) AS r FROM sales"
        " GROUP BY brand) q WHERE r > n AND brand > 'a'",
    ),
    "above HAVING": (
        "SELECT brand, sum(price) AS s, rank() OVER (ORDER BY brand) AS r FROM sales"
        " GROUP BY brand HAVING sum(price) > 9 QUALIFY r = 2 AND s < 99",
        "SELECT * FROM (SELECT brand, sum(price) AS s, rank() OVER (ORDER BY brand) AS r"
        " FROM sales GROUP BY brand HAVING sum(price) > 9) q WHERE r = 2 AND s < 99",
    ),
}


@pytest.mark.parametrize(("qualified", "around"), SAME_AS_FILTERS.values(), ids=SAME_AS_FILTERS)
def test_it_is_a_filter_around_the_query(qualified: str, around: str) -> None:
    result, expected = (
        [type(node) for node in nodes_of(apply_rules(plan_of(sql)))] for sql in (qualified, around)
    )
    assert result == expected


def test_a_window_may_stand_in_it_over_an_alias() -> None:
    plan = plan_of(
        "SELECT brand, sum(price) AS s FROM sales GROUP BY brand HAVING count(*) > 1"
        " QUALIFY rank() OVER (PARTITION BY brand ORDER BY s) = 1"
    )
    nodes = list(nodes_of(plan))
    (at,) = (place for place, node in enumerate(nodes) if isinstance(node, Window))
    above, window, below, group = nodes[at - 1 : at + 3]
    assert isinstance(above, Select)
    assert isinstance(window, Window)
    assert isinstance(below, Select)
    assert isinstance(group, Aggregate)
    names = {output.attribute.id: output.attribute.name for output in group.aggregates}
    (call,) = window.calls
    assert names[call.order[0].expr.id] == "s"  # type: ignore[attr-defined]  # a column
    assert call.partition_by == (group.keys[0].attribute.ref(),)


CENTS = decimal(5, 2)


def number(text: str) -> Literal:
    value = Decimal(text)
    return Literal(value, decimal(9, -int(value.as_tuple().exponent)))


@pytest.mark.parametrize(
    ("value", "column", "expected"),
    [
        (number("1.00"), CENTS, Decimal("1.00")),
        (number("-2.5000"), CENTS, Decimal("-2.50")),
        (Literal(999, INTEGER), CENTS, Decimal("999.00")),
        (Literal(1000, INTEGER), CENTS, None),
        (number("1.005"), CENTS, None),
        (number("2.00"), LONG, 2),
        (number("2.01"), LONG, None),
        (number("1.5"), DOUBLE, None),
        (Literal("1", STRING), LONG, None),
        (Literal("x", STRING), STRING, "x"),
        (Literal(1, INTEGER), STRING, None),
    ],
)
def test_what_a_cast_would_change_is_not_taken(
    value: Literal, column: SqlType, expected: LiteralValue
) -> None:
    cast = as_column(value, column)
    assert (None if cast is None else cast.value) == expected
    assert as_column(Literal(None, value.type), column) is not None


def test_what_has_no_column_is_a_constant() -> None:
    one = Literal(1, INTEGER)
    two = constant_of(Arithmetic(ArithmeticOp.ADD, one, one))
    assert two.value == 2
    wide = constant_of(Cast(number("1.5"), decimal(5, 3)))
    assert wide is not None
    assert name_of([wide]) == "1.500"
    assert constant_of(ColumnRef("t.a", INTEGER)) is None
    assert constant_of(Arithmetic(ArithmeticOp.DIVIDE, one, Literal(0, INTEGER))) is None


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([number("1.00")], "1.00"),
        ([number("-0.5")], "-0.5"),
        ([Literal(True, BOOLEAN)], "true"),
        ([Literal(-1, LONG), Literal("a", STRING)], "{-1, a}"),
        ([Literal(None, STRING), number("2")], "{null, 2}"),
        ([Literal(1.5, DOUBLE)], None),
        ([number("0.00000001")], None),
    ],
)
def test_names(values: list[Literal], name: str | None) -> None:
    assert name_of(values) == name


CASES = [
    # (text with » before the place, part of the message, part of the hint)
    ("SELECT COUNT(*) FROM sales GROUP BY »window(day, '1 day')", "function `window`", "rewrite"),
    ("SELECT window.end FROM sales GROUP BY »window(day, '1 day')", "function `window`", "rewrite"),
    ("SELECT »pric FROM sales", "Column `pric` is unknown", "did you mean `price`?"),
    ("SELECT brand FROM »sale", "Table `sale` is unknown", "did you mean `sales`?"),
    ("SELECT »x.brand FROM sales", "has no table `x`", "alias"),
    ("SELECT »sales.brand FROM sales s", "has no table `sales`", "alias"),
    ("SELECT brand\nFROM sales\nWHERE »prize > 3", "Column `prize` is unknown", "`price`"),
    ("SELECT »brand FROM sales, stock", "ambiguous", "the table's name"),
    ("SELECT 1 FROM sales JOIN stock ON »brand = shelf", "`sales.brand`, `stock.brand`", "table"),
    ("SELECT 1 FROM sales JOIN stock USING (»price)", "Column `price` is unknown", "shelf"),
    ("SELECT »z.* FROM sales", "has no table `z`", "alias"),
    ("SELECT »extra.x FROM sales", "nested field `extra.x`", "top-level"),
    ("SELECT »sales.extra.x FROM sales", "nested field", "top-level"),
    ("SELECT »extra[0] FROM sales", "array element", "top-level"),
    ("SELECT if(»price > 1, 2) FROM sales", "`if` with 2 arguments", ""),
    (
        "SELECT 1 FROM sales WHERE price > (SELECT »shelf, shelf FROM stock)",
        "used as a value has 2 columns",
        "one column",
    ),
    (
        "SELECT SUM(price + (SELECT »1 FROM stock)) FROM sales",
        "a subquery inside an aggregate",
        "FROM",
    ),
    (
        "SELECT (SELECT »max(shelf) FROM stock), 1 FROM sales GROUP BY 1",
        "GROUP BY a subquery's value",
        "FROM",
    ),
    (
        "SELECT 1 FROM sales s WHERE ok OR EXISTS (SELECT »1 FROM stock t WHERE t.shelf < s.price)",
        "correlated by more than equalities",
        "UNION",
    ),
    (
        "SELECT 1 FROM sales WHERE NOT (ok OR »brand IN (SELECT brand FROM stock))",
        "IN or EXISTS",
        "AND",
    ),
    (
        "SELECT 1 FROM sales WHERE ok OR »brand NOT IN (SELECT brand FROM stock)",
        "IN or EXISTS",
        "AND",
    ),
    (
        "SELECT 1 FROM stock t WHERE shelf > (SELECT COUNT(*) FROM sales WHERE price = »t.shelf)",
        "`t.shelf` of the enclosing query in a subquery that cannot be joined directly",
        "FROM",
    ),
    (
        "SELECT 1 FROM stock t WHERE shelf > (SELECT MAX(x) FROM sales "
        "LATERAL VIEW explode(array(price)) v AS x WHERE price = »t.shelf)",
        "`t.shelf` of the enclosing query in a subquery with LATERAL VIEW",
        "sketch: none",
    ),
    (
        "SELECT 1 FROM stock t WHERE EXISTS (SELECT price FROM sales WHERE price = »t.shelf "
        "QUALIFY RANK() OVER (ORDER BY price) = 1)",
        "`t.shelf` of the enclosing query in a subquery with QUALIFY",
        "sketch: none",
    ),
    (
        "SELECT 1 FROM stock WHERE shelf IN (SELECT price FROM sales WHERE price = »shelf "
        "ORDER BY price LIMIT 1)",
        "`shelf` of the enclosing query in a subquery with LIMIT",
        "sketch: none",
    ),
    (
        "SELECT 1 FROM stock WHERE shelf IN (SELECT price FROM sales WHERE price = »none LIMIT 1)",
        "Column `none` is unknown",
        "cannot refer to columns of the enclosing query",
    ),
    ("SELECT 1 FROM sales TABLESAMPLE (»10 PERCENT)", "TABLESAMPLE", "without it"),
    ("SELECT 1 FROM sales LATERAL VIEW »inline(extra) x AS y", "VIEW of `inline`", "posexplode"),
    ("SELECT 1 FROM sales LATERAL VIEW »explode(extra) x", "without column names", "AS element"),
    (
        "SELECT 1 FROM sales LATERAL VIEW »explode(extra) x AS a, b, c",
        "names 3 columns, but `explode` returns a different number",
        "two for a map",
    ),
    ("SELECT 1 FROM sales, LATERAL (SELECT »1 FROM stock)", "LATERAL", "without it"),
    ("SELECT * FROM sales UNPIVOT (»v FOR k IN (price, sold))", "UNPIVOT", "UNION ALL"),
    (
        "SELECT * FROM stock CROSS JOIN sales PIVOT (»sum(price) FOR ok IN (true))",
        "a PIVOT after a join",
        "subquery in parentheses",
    ),
    (
        "SELECT * FROM stock, sales PIVOT (»sum(price) FOR ok IN (true))",
        "a PIVOT after a join",
        "subquery in parentheses",
    ),
    (
        "SELECT * FROM stock JOIN sales ON true PIVOT (»sum(price) FOR ok IN (true))",
        "a PIVOT after a join",
        "subquery in parentheses",
    ),
    ("SELECT * FROM sales PIVOT (»first(price) FOR brand IN ('a'))", "`first` in PIVOT", "FILTER"),
    ("SELECT * FROM sales PIVOT (sum(price) FOR brand IN (»1))", "type differs", "DATE '"),
    (
        "SELECT * FROM sales PIVOT (sum(price) AS s, »max(price) FOR brand IN ('a'))",
        "several aggregates of which one has no name",
        "AS",
    ),
    (
        "SELECT * FROM (SELECT at, price FROM sales) PIVOT (sum(price) FOR CAST(at AS DATE) IN "
        "(DATE »'2026-01-01'))",
        "without a name",
        "AS",
    ),
    (
        "SELECT * FROM sales PIVOT (sum(price) FOR sid IN (»1.5))",
        "type differs",
        "DATE '",
    ),
    (
        "SELECT * FROM sales PIVOT (sum(price) FOR brand IN (»upper(brand)))",
        "not a constant",
        "-1.50",
    ),
    (
        "SELECT * FROM sales PIVOT (sum(price) FOR (brand, ok) IN (»'a' AS b))",
        "1 part, but FOR names 2 columns",
        "each column",
    ),
    (
        "SELECT * FROM sales PIVOT (»coalesce(max(brand), 'x') FOR ok IN (true))",
        "an expression around the aggregates",
        "SELECT around",
    ),
    ("SELECT * FROM »range(10)", "table function `range`", "without it"),
    (
        "SELECT * FROM VALUES »(1), ('a') AS v(a)",
        "VALUES with `int` and `string`",
        "cast the values",
    ),
    ("SELECT * FROM VALUES 1, »2 AS v(a)", "an alias inside VALUES", "(VALUES (1), (2)) AS v(n)"),
    (
        "SELECT * FROM VALUES »(1), (2, 3) AS v(a)",
        "numbers of values, from 1 to 2",
        "same number of values",
    ),
    ("SELECT »1", "reads no table", "add a table"),
    (
        "SELECT »explode(extra) FROM sales",
        "a generator without column names",
        "explode(x) AS element",
    ),
    ("SELECT »explode(extra) AS (a, b, c) FROM sales", "SELECT names 3 columns", "one column"),
    ("SELECT »explode(extra, 1) AS x FROM sales", "SELECT of `explode` with several", "without it"),
    ("SELECT »explode(extra) + 1 AS x FROM sales", "function `explode`", "without it"),
    ("SELECT »inline(extra) FROM sales", "function `inline`", "without it"),
    (
        "SELECT explode(extra) AS x, »posexplode_outer(extra) AS (p, y) FROM sales",
        "several generator functions in one SELECT list",
        "LATERAL VIEW explode(x)",
    ),
    (
        "SELECT brand, »explode(array(brand)) AS x FROM sales GROUP BY brand",
        "`explode` in the SELECT list of a query with groups",
        "a subquery in FROM",
    ),
    (
        "SELECT »explode(array(brand)) AS x, rank() OVER (ORDER BY brand) AS r FROM sales",
        "`explode` in the SELECT list of a query with windows",
        "a subquery in FROM",
    ),
    ("SELECT explode(array(brand)) AS x FROM sales WHERE »x = 'a'", "Column `x`", "columns"),
    ("SELECT array(brand) AS a, explode(»a) AS x FROM sales", "Column `a`", "did you mean"),
    ("SELECT »window(at, '1 day') FROM sales", "function `window`", "without it"),
    (
        "SELECT 1 FROM sales WHERE EXISTS (SELECT »explode(array(brand)) FROM stock)",
        "function `explode`",
        "without it",
    ),
    (
        "SELECT 1 FROM sales s WHERE NOT EXISTS (SELECT *, »stack(1, t.shelf) FROM stock t WHERE"
        " t.brand = s.brand)",
        "function `stack`",
        "without it",
    ),
    (
        "SELECT 1 FROM stock WHERE NOT EXISTS (SELECT DISTINCT »window(at, '1 day') FROM sales)",
        "function `window`",
        "without it",
    ),
    ("SELECT »uper(brand) FROM sales", "which Spark does not have", "`upper`"),
    (
        "SELECT brand, »grouping__id FROM sales GROUP BY brand WITH ROLLUP",
        "uses `grouping__id`",
        "grouping_id()",
    ),
    (
        "SELECT 1 FROM sales WHERE EXISTS (SELECT 1 FROM stock a LEFT JOIN stock b"
        " ON a.shelf = b.shelf AND b.shelf > »sales.price WHERE a.brand = sales.brand)",
        "a column of the enclosing query in the ON condition",
        "WHERE",
    ),
    ("SELECT transform(»extra, x -> x) FROM sales", "lambda", "without it"),
    ("SELECT sum(price), »brand FROM sales", "neither grouped nor", "GROUP BY"),
    ("SELECT brand FROM sales GROUP BY brand HAVING »price > 1", "neither grouped", "GROUP BY"),
    ("SELECT brand FROM sales GROUP BY brand ORDER BY »price", "neither grouped", "GROUP BY"),
    ("SELECT »brand FROM sales HAVING 1 = 1", "neither grouped", "GROUP BY"),
    ("SELECT 1 FROM sales WHERE »sum(price) > 1", "aggregate function `sum` in WHERE", "HAVING"),
    ("SELECT sum(»max(price)) FROM sales", "`max` inside another aggregate", "subquery"),
    ("SELECT 1 FROM sales GROUP BY »sum(price)", "`sum` in GROUP BY", "subquery"),
    ("SELECT »sum(price) s FROM sales GROUP BY 1", "groups by an aggregate", "subquery"),
    ("SELECT sum(price) price FROM sales ORDER BY sum(»price)", "alias `price`", "qualify"),
    ("SELECT price x, sum(»x) FROM sales", "alias `x` inside an aggregate", "subquery"),
    ("SELECT »row_number() FROM sales", "`row_number` without OVER", "OVER"),
    ("SELECT 1 FROM sales WHERE »rank() OVER (ORDER BY sid) = 1", "window function in WHERE", ""),
    (
        "SELECT »rank() OVER w FROM sales",
        "Window `w` in query `query` is not defined",
        "WINDOW clause",
    ),
    (
        "SELECT rank() OVER (ORDER BY sid) r FROM sales HAVING »r > 1",
        "window function in HAVING",
        "",
    ),
    ("SELECT brand FROM sales ORDER BY »3", "ORDER BY 3 is not a column", "1 to 1"),
    ("SELECT brand FROM sales GROUP BY »2", "GROUP BY 2 is not a column", "1 to 1"),
    ("SELECT DISTINCT brand FROM sales ORDER BY »price", "SELECT DISTINCT", "SELECT list"),
    ("SELECT brand FROM sales UNION SELECT »brand, shelf FROM stock", "1 column with 2", "both"),
    ("SELECT price FROM sales UNION SELECT »brand FROM stock", "`int` and `string`", "cast"),
    ("SELECT brand FROM sales LIMIT »price", "LIMIT with an expression", "whole number"),
    ("SELECT 1 FROM sales x JOIN »stock x ON true", "two relations named `x`", "alias"),
    ("SELECT 1 FROM sales WHERE price = »:low", "parameter `low`", "value"),
    ("SELECT 1 FROM sales WHERE brand = 'a »${x}'", "`${x}`", ":name"),
    ("SELECT »0x1F FROM sales", "0x", "X'1F'"),
    ("SELECT brand FROM sales »-- recent \\\nWHERE price > 1", "may end elsewhere", "backslash"),
    ("SELECT brand FROM sales »/* a /*+ b */ c */", "may end elsewhere", "nest comments"),
    ("SELECT brand FROM sales /* a /*+ b */ WHERE price > 1", "cannot be tokenized", "comment"),
    ("SELECT 1 FROM sales WHERE brand = »'\\ud83d\\ude00'", "surrogate", "character"),
    ("SELECT 1 FROM sales WHERE position(»'a', brand, 2) = 0", "POSITION", "locate"),
    (
        "SELECT brand FROM sales GROUP BY brand HAVING »count(*, price) > 1",
        "`count` of `*`",
        "list",
    ),
    ("SELECT »rank() OVER b FROM sales WINDOW a AS (ORDER BY sid), b AS (a)", "by another", "full"),
    (
        "SELECT 1 FROM sales s WHERE price < (SELECT max(shelf) FROM stock WHERE"
        " shelf = »s.price + shelf)",
        "`s.price` of the enclosing query in a subquery that cannot be joined directly",
        "FROM",
    ),
    (
        "SELECT 1 FROM stock s JOIN stock t ON s.shelf = t.shelf NATURAL JOIN »sales",
        "duplicate column names",
        "USING",
    ),
    ("FROM sales »|> WHERE price > 1", "`|>`", "nested SELECTs"),
    ("SELECT 1 FROM sales s, stock t RIGHT JOIN »stock u ON t.shelf = u.shelf", "RIGHT", "CROSS"),
    (
        "SELECT 1 FROM sales s, stock t FULL JOIN »stock u ON t.shelf = u.shelf",
        "FULL",
        "parentheses",
    ),
    ("SELECT 1 FROM sales s, stock t NATURAL JOIN »stock u", "NATURAL", "CROSS JOIN"),
    ("SELECT 1 FROM sales s, stock t JOIN »stock u USING (shelf)", "USING", "CROSS JOIN"),
    (
        "SELECT 1 FROM sales s WHERE price < (SELECT max(shelf) FROM stock t WHERE"
        " »t.brand = s.price)",
        "different types",
        "cast",
    ),
    ("SELECT 1 FROM sales WHERE brand = »'it''s'", "two adjacent string literals", "\\'"),
    ("SELECT 1 FROM sales WHERE »!ok", "operator `!`", "NOT"),
    ("SELECT 1 FROM sales JOIN stock USING (»brand(1))", "an expression in USING", "ON"),
    ("SELECT sid FROM sales»@v3", "`@`", "pins"),
    ("SELECT sid FROM sales AS »$late", "`$`", ":name"),
    ("SELECT »@later FROM sales", "`@`", ":name"),
    ("SELECT »price = price = ok FROM sales", "operators", "parentheses"),
    ("SELECT »brand || price + 1 FROM sales", "operators", "parentheses"),
    ("SELECT »price & 1 FROM sales", "bitwise", "without it"),
    ("SELECT »price BETWEEN SYMMETRIC 1 AND 2 FROM sales", "SYMMETRIC", "comparisons"),
    ("SELECT try_cast(»brand AS int) FROM sales", "TRY_CAST", "CAST"),
    ("SELECT cast(»brand AS array<int>) FROM sales", "CAST to `array<int>`", "simple type"),
    ("SELECT DATE »'2024-02-30' FROM sales", "not a date", "DATE '2024-01-31'"),
    ("SELECT TIMESTAMP »'noon' FROM sales", "not a timestamp", "TIMESTAMP"),
    ("SELECT »99999Y FROM sales", "does not fit in `tinyint`", "suffix"),
    ("SELECT »1e400 FROM sales", "out of range", "remove"),
    ("SELECT »count(DISTINCT *) FROM sales", "`count` of `*`", "columns"),
    ("SELECT »* EXCEPT (brand) FROM sales", "EXCEPT or REPLACE", "columns"),
    ("SELECT 1 FROM sales SORT BY »brand", "SORT BY", "without it"),
    (
        "SELECT brand FROM sales GROUP BY brand QUALIFY rank() OVER (ORDER BY »price) = 1",
        "`price` of QUALIFY in a query that groups",
        "an outer query",
    ),
    (
        "SELECT brand, sum(price) AS price, rank() OVER (ORDER BY brand) AS r FROM sales"
        " GROUP BY brand QUALIFY r < 3 AND »price > 1",
        "`price` of QUALIFY in a query that groups",
        "aliases that are not column names",
    ),
    (
        "SELECT upper(brand) AS brand, rank() OVER (ORDER BY 1) AS r FROM sales"
        " GROUP BY upper(brand) QUALIFY r < 3 AND »brand > 'A'",
        "`brand` of QUALIFY in a query that groups",
        "aliases that are not column names",
    ),
    (
        "SELECT brand AS b, rank() OVER (ORDER BY brand) AS r FROM sales GROUP BY brand"
        " QUALIFY r < 3 AND »brand > 'A'",
        "`brand` of QUALIFY in a query that groups",
        "aliases that are not column names",
    ),
    (
        "SELECT brand, sum(price) AS s FROM sales GROUP BY brand"
        " QUALIFY rank() OVER (ORDER BY »sum(price)) = 1",
        "an aggregate function in QUALIFY",
        "select it under an alias",
    ),
    (
        "SELECT brand FROM sales GROUP BY brand QUALIFY »rank() OVER w = 1"
        " WINDOW w AS (ORDER BY brand)",
        "window `w` in QUALIFY of a query that groups",
        "after OVER",
    ),
    (
        "SELECT 1 AS one FROM sales QUALIFY »rank() OVER (ORDER BY 1) = 1 ORDER BY sum(price)",
        "QUALIFY in a query that groups only in ORDER BY",
        "without it",
    ),
    ("SELECT brand FROM sales QUALIFY »brand > 'a'", "no window function", "use WHERE"),
    (
        "SELECT sum(price) OVER (PARTITION BY brand) sid FROM sales QUALIFY »sid > 1",
        "`sid` of QUALIFY is ambiguous",
        "that is not a column name",
    ),
    (
        "SELECT sid FROM sales QUALIFY »rank() OVER (ORDER BY sid) IN (SELECT sid FROM stock)",
        "a subquery inside another expression in QUALIFY",
        "",
    ),
    ("SELECT 1 FROM sales VERSION AS OF »3", "time travel", "without it"),
    ("SELECT »brand FROM sales UNION ALL BY NAME SELECT brand FROM stock", "BY NAME", "without it"),
    ("SELECT 1 FROM sales GROUP BY brand »GROUPING SETS (brand)", "GROUPING SETS", "GROUP BY"),
    ("SELECT 1 FROM »(SELECT brand FROM sales) x(a, b)", "lists 2 columns", "every column"),
    (
        "SELECT 1 FROM sales s WHERE price IN "
        "(SELECT max(shelf) FROM stock t WHERE t.brand = »s.brand)",
        "`s.brand` of the enclosing query in a subquery that cannot be joined directly",
        "FROM",
    ),
    (
        "SELECT 1 FROM sales s WHERE EXISTS (SELECT 1 FROM stock t WHERE t.brand IN "
        "(SELECT brand FROM sales u WHERE u.sid = »s.sid))",
        "has no table `s`",
        "alias",
    ),
    # WITH entries that nothing uses are read all the same: Spark is handed the text as it is.
    ("WITH c AS (INSERT INTO »t VALUES (1)) SELECT 1 AS one", "uses INSERT as a query", ""),
    ("SELECT one FROM (WITH c AS (DELETE FROM »t) SELECT 1 AS one) s", "DELETE as a query", ""),
    (
        "WITH c AS (SELECT »reflect('x', 'exit', 1) AS x) SELECT 1 AS one",
        "`reflect`",
        "cannot know",
    ),
    ("SELECT »java_method('java.lang.System', 'exit', 1) AS x", "`java_method`", "cannot know"),
    *(
        (
            f"SELECT TIMESTAMP »'2024-01-01 00:00:00{zone}' FROM sales",
            "not a valid time zone offset",
            "offsets",
        )
        for zone in ("+18:01", "-23:59", "+01:60")
    ),
]


@pytest.mark.parametrize(("marked", "message", "hint"), CASES, ids=[case[0] for case in CASES])
def test_refused_by_name_at_its_place(marked: str, message: str, hint: str) -> None:
    error = refusal(marked)
    assert message in error.message
    assert hint in (error.hint or "")
    assert str(error.location).startswith("query `query`:")
    assert not error.message.endswith(".")
