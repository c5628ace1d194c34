"""Plans as text, fingerprints, possible failures, and tracing of columns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, INTEGER, LONG, TIMESTAMP, Column
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Literal, Mean
from impctl.plan import nodes
from impctl.plan.explain import call_text, column_name, describe, expr_text, order_text
from impctl.plan.fingerprint import fingerprint
from impctl.plan.lineage import follow, trace
from impctl.plan.properties import can_fail, scan_conditions
from impctl.plan.recursion import recursion_notes
from impctl.rules.optimize import PlannedQueries, apply_rules
from impctl.sql.statement import parse_query
from tests.plan import catalogs

TRAVERSED = (
    catalogs.net_plan(catalogs.CLOSURE + "SELECT DISTINCT y FROM c WHERE x = 1"),
    *map(
        catalogs.plan_of,
        (
            "SELECT brand, e, sum(price) OVER (PARTITION BY brand ORDER BY sid) FROM sales "
            "LATERAL VIEW explode(array(price, numSold)) v AS e ORDER BY e + 1 LIMIT 3",
            "SELECT brand, max(price + 1) FILTER (WHERE ok) FROM sales GROUP BY brand, sid",
            "SELECT CASE WHEN ok THEN 1 ELSE 2 END FROM sales LEFT JOIN stock USING (brand) "
            "WHERE price IN (1, 2) AND sales.brand LIKE 'a%'",
            "SELECT brand FROM sales EXCEPT SELECT brand FROM stock WHERE shelf IS NULL",
        ),
    ),
)


@pytest.mark.parametrize("node", [node for plan in TRAVERSED for node in plan.walk()])
def test_mapping_of_nodes(node: nodes.Plan) -> None:
    assert node.map_inputs(lambda child: child) is node
    assert node.map(lambda expr: expr) is node
    one = nodes.OneRow()
    assert node.with_inputs([one] * len(node.inputs)).inputs == (one,) * len(node.inputs)
    constant = Literal(7, LONG)
    changed = node.map(lambda expr: constant)
    assert changed.expressions == (constant,) * len(node.expressions)
    assert (changed.inputs, changed.added) == (node.inputs, node.added)
    renamed = node.map_added(lambda column: replace(column, id=f"{column.id}/new"))
    assert [column.id for column in renamed.added] == [f"{c.id}/new" for c in node.added]
    assert (renamed.inputs, renamed.expressions) == (node.inputs, node.expressions)
    for expr in node.expressions:
        assert expr.transform(lambda part: None) is expr
        parts = len(expr.expressions)
        assert expr.map(lambda part: constant).expressions == (constant,) * parts


def test_lines_have_operator_detail_and_span() -> None:
    sql = "SELECT brand, SUM(price * numSold) AS rev FROM sales WHERE ok GROUP BY brand"
    root = catalogs.plan_of(sql)
    aggregate, select, (depth, _, operator, detail) = describe(root)
    assert aggregate == (0, root, "aggregate", "by brand: sum(price * numSold) AS rev")
    assert select[2:] == ("select", "ok")
    assert sql[select[1].span.start : select[1].span.end] == "ok"
    assert (depth, operator) == (2, "scan")
    assert detail.startswith("sales as sales#1: sid, brand, price")


def test_lines_are_in_the_order_of_the_nodes() -> None:
    root = catalogs.plan_of("SELECT 1 FROM sales, stock")
    assert [(depth, node) for depth, node, *_ in describe(root)] == [
        *zip((0, 1, 2, 2), root.walk(), strict=True)
    ]


@pytest.mark.parametrize("written", catalogs.cases("expressions", "reads like the SQL"))
def test_text_reads_like_the_sql(written: str) -> None:
    assert expr_text(catalogs.selected(f"SELECT {written} AS it FROM sales")) == written


def test_names_override_identities() -> None:
    ref = ColumnRef("sales#1.price", INTEGER)
    assert expr_text(ref) == "price"
    assert expr_text(ref, {"sales#1.price": "cost"}) == "cost"
    assert expr_text(Mean(ref, ref, DOUBLE)) == "mean(price, price)"


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("sales#1.price", "price"),
        ("a b.c#12.two words", "two words"),
        ("p3.rev", "rev"),
        ("a1.avg(x.y)", "avg(x.y)"),
        ("split.a1.brand", "brand"),
        ("odd", "odd"),
    ],
)
def test_column_names(identity: str, name: str) -> None:
    assert column_name(identity) == name


def test_calls_and_orders() -> None:
    root = catalogs.plan_of("SELECT count(*), sum(DISTINCT price) FILTER (WHERE ok) FROM sales")
    assert isinstance(root, nodes.Aggregate)
    assert [call_text(output.call) for output in root.aggregates] == [
        "count(*)",
        "sum(DISTINCT price) FILTER (WHERE ok)",
    ]
    top = catalogs.plan_of(
        "SELECT * FROM stock ORDER BY brand, shelf DESC, `two words` NULLS LAST, "
        "1 DESC NULLS FIRST LIMIT 1"
    )
    assert isinstance(top, nodes.TopK)
    expected = "brand, shelf DESC, two words NULLS LAST, brand DESC NULLS FIRST"
    assert order_text(top.order) == expected


STAYS = "conditions on `x` apply to its first part, because no step changes these columns"
WHOLE = "its first part is every row of `links`, so the sketch of that part covers the whole table"
PAYS = (
    "updating is faster than deriving all rows again if a run deletes up to about 10% or inserts "
    "up to about 33% of the rows read"
)
LATE = (
    "checked after all rows are derived; if the step kept `y` unchanged, it could be checked at "
    "the start"
)


@pytest.mark.parametrize(
    ("sql", "fixpoint", "condition"),
    [
        (catalogs.CLOSURE + "SELECT y FROM c", f"{STAYS}; {WHOLE}; {PAYS}", None),
        (catalogs.CLOSURE + "SELECT y FROM c WHERE x = 1", f"{STAYS}; {PAYS}", None),
        (catalogs.CLOSURE + "SELECT y FROM c WHERE y = 1", f"{STAYS}; {WHOLE}; {PAYS}", LATE),
        (catalogs.CLOSURE + "SELECT y FROM c WHERE x = 1 AND y = 1", f"{STAYS}; {PAYS}", LATE),
        (catalogs.REACHED + "SELECT n FROM r", PAYS, None),
        (
            "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links WHERE cost = 1 "
            "UNION SELECT a.x, b.y FROM c a JOIN c b ON a.y = b.x) SELECT x FROM c",
            "a step reads it more than once, and all its rows each time",
            None,
        ),
    ],
)
def test_notes(sql: str, fixpoint: str | None, condition: str | None) -> None:
    root = apply_rules(catalogs.net_plan(sql))
    notes = recursion_notes(root)
    result = {
        type(node): notes[position]
        for position, node in enumerate(root.walk())
        if position in notes
    }
    expected = {nodes.Fixpoint: fixpoint, nodes.Select: condition}
    assert result == {kind: note for kind, note in expected.items() if note is not None}


def test_random_conditions_on_stable_columns_have_no_note() -> None:
    """A condition with a random value per row cannot move, whatever columns it compares."""
    root = apply_rules(catalogs.net_plan(catalogs.CLOSURE + "SELECT y FROM c WHERE x > rand()"))
    assert [note for note in recursion_notes(root).values() if note == LATE] == []


def test_plans_without_recursion_have_no_notes() -> None:
    assert recursion_notes(apply_rules(catalogs.net_plan("SELECT n FROM nodes WHERE n > 1"))) == {}


BASE = (
    "SELECT brand, sum(price) AS rev FROM sales WHERE price > 3 GROUP BY brand HAVING count(*) > 1"
)


@pytest.mark.parametrize(
    "same",
    [
        BASE.lower(),
        BASE.replace(" ", "\n  "),
        "-- a remark\n" + BASE,
        BASE.replace("rev", "revenue"),
        "SELECT s.brand b, SUM(s.PRICE) FROM Sales AS s WHERE s.price > 3 GROUP BY 1 "
        "HAVING count(1) > 1",
        "SELECT * FROM (SELECT brand, sum(price) FROM sales WHERE price > 3 GROUP BY brand "
        "HAVING count(*) > 1) q",
    ],
)
def test_equal_fingerprints(same: str) -> None:
    assert fingerprint(catalogs.plan_of(same)) == fingerprint(catalogs.plan_of(BASE))


def test_different_fingerprints() -> None:
    texts = [
        BASE,
        BASE.replace("> 3", "> 4"),
        BASE.replace("> 3", ">= 3"),
        BASE.replace("> 3", "> 3L"),
        BASE.replace("> 3", "> 3.0"),
        BASE.replace("> 3", "> '3'"),
        BASE.replace("sum(price)", "sum(numSold)"),
        BASE.replace("sum(price)", "max(price)"),
        BASE.replace("sum(price)", "sum(DISTINCT price)"),
        BASE.replace("sum(price)", "sum(price) FILTER (WHERE ok)"),
        BASE.replace("brand", "ok"),
        "SELECT DISTINCT * FROM (" + BASE + ")",
        BASE + " ORDER BY brand LIMIT 3",
        BASE + " ORDER BY brand DESC LIMIT 3",
        BASE + " ORDER BY brand LIMIT 4",
        BASE + " ORDER BY brand NULLS LAST LIMIT 3",
        *(sql for sql, _ in catalogs.pairs("parse")[1:]),
    ]
    assert len({fingerprint(catalogs.plan_of(text)) for text in texts}) == len(texts)


def test_fingerprints_are_stable() -> None:
    digest = fingerprint(catalogs.plan_of("SELECT brand FROM stock"))
    assert digest == fingerprint(catalogs.plan_of("SELECT brand FROM stock"))
    assert len(digest) == 64
    assert int(digest, 16) > 0


@pytest.mark.parametrize(("written", "word"), catalogs.cases("expressions", "can fail"))
def test_can_fail(written: str, word: str) -> None:
    is_expected = {"yes": True, "no": False}[word]
    assert can_fail(catalogs.selected(f"SELECT {written} AS it FROM sales")) is is_expected


CATALOG = {
    "t": catalogs.schema_of("id bigint, g string, v bigint"),
    "u": catalogs.schema_of("k bigint, g string, w bigint, d double"),
}


def traced(sql, access, attribute):
    query = parse_query(sql, CATALOG)
    table = next(scan.table for scan in query.root.scans if scan.access == access)
    return query.root, trace(query.root, access, CATALOG[table].find(attribute))


@pytest.mark.parametrize(("sql", "access", "attribute"), catalogs.cases("plans", "traced"))
def test_traced(sql, access, attribute):
    root, result = traced(sql, access, attribute)
    ids = [a.id for a in result.plan.attributes]
    assert result.key.id in ids
    assert {a.id for a in root.attributes} <= set(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("sql", "access", "attribute"), catalogs.cases("plans", "lost"))
def test_not_traced(sql, access, attribute):
    assert traced(sql, access, attribute)[1] is None


def test_pruned_attributes_are_restored():
    query = parse_query("SELECT v FROM t", {"t": catalogs.schema_of("v bigint")})
    result = trace(query.root, "t#1", Column("id", LONG))
    assert [a.name for a in result.plan.scans[0].attributes] == ["v", "id"]


def followed(sql):
    root = parse_query(sql, CATALOG).root
    origin = next(node for node in root.walk() if isinstance(node, nodes.Aggregate))
    return follow(root, origin, tuple(key.attribute.id for key in origin.keys)), origin


def test_group_keys_survive_projection():
    result, origin = followed("SELECT s FROM (SELECT g, v, sum(v) AS s FROM t GROUP BY g, v) q")
    assert result is not None
    assert len(result.attributes) == len(origin.keys) == 2


GROUPS = "(SELECT g, sum(v) AS s FROM t GROUP BY g)"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT u.w FROM u LEFT JOIN {GROUPS} q ON q.g = u.g",
        f"SELECT u.w FROM u WHERE u.g IN (SELECT q.g FROM {GROUPS} q)",
        f"SELECT DISTINCT s FROM {GROUPS} q ORDER BY s LIMIT 3",
        f"SELECT g FROM {GROUPS} q UNION ALL SELECT g FROM u",
    ],
)
def test_rows_not_derived_from_groups(sql):
    assert followed(sql)[0] is None


EXPIRING = {
    "t": catalogs.schema_of("a bigint, b bigint, at timestamp"),
    "u": catalogs.schema_of("a bigint, at timestamp"),
}
LIVE = {"t": nodes.LiveRows("at", Literal(7, TIMESTAMP))}
TEXTS = [text for (text,) in catalogs.listed("plans", "expiring")]


def above(root: nodes.Plan, scan: nodes.Plan) -> nodes.Plan:
    (result,) = (node for node in root.walk() if any(scan is below for below in node.inputs))
    return result


@pytest.mark.parametrize("sql", TEXTS)
def test_only_scans_of_the_table_have_the_condition(sql: str) -> None:
    query = parse_query(sql, EXPIRING, live=LIVE)
    scans = [node for node in query.root.walk() if isinstance(node, nodes.Scan)]
    assert any(scan.table == "t" for scan in scans)
    for scan in scans:
        node = above(query.root, scan)
        has_condition = isinstance(node, nodes.Select) and isinstance(node.predicate, Compare)
        assert has_condition == (scan.table == "t")
        if has_condition:
            assert isinstance(node, nodes.Select)
            (column,) = (a for a in scan.attributes if a.name == "at")
            assert node.predicate == Compare(CompareOp.GREATER, column.ref(), LIVE["t"].later_than)
    assert dict(query.live) == LIVE


@pytest.mark.parametrize("sql", TEXTS)
def test_rules_keep_expiry_at_the_scan(sql: str) -> None:
    root = apply_rules(parse_query(sql, EXPIRING, live=LIVE).root)
    conditions = scan_conditions(root)
    for scan in (node for node in root.walk() if isinstance(node, nodes.Scan)):
        if scan.table == "t":
            comparisons = [c for c in conditions[scan.access] if isinstance(c, Compare)]
            assert any(c.right == LIVE["t"].later_than for c in comparisons), sql


def test_each_instant_has_its_plan() -> None:
    planned = PlannedQueries()
    result = {
        edge: planned.of(
            TEXTS[0],
            EXPIRING,
            name="q",
            zone="UTC",
            live={"t": nodes.LiveRows("at", Literal(edge, TIMESTAMP))},
            instant=name,
        )
        for edge, name in ((7, "first"), (8, "second"), (9, "second"))
    }
    # With the same name, another expiry still gives another plan.
    assert [one.query.live[0][1].later_than.value for one in result.values()] == [7, 8, 9]
    assert (
        planned.of(TEXTS[0], EXPIRING, name="q", zone="UTC", live=LIVE, instant="first")
        is result[7]
    )
