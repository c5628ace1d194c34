"""Whole statements to plans: golden trees, identities, spans, what is no SELECT."""

from __future__ import annotations

import sys

import pytest

from impctl.errors import QueryError
from impctl.expr.nodes import Negate, walk
from impctl.plan.nodes import (
    Aggregate,
    Plan,
    Project,
    Scan,
    Select,
    SetOperation,
    Window,
    nodes_of,
    scans_of,
)
from impctl.sql.statement import parse_query
from tests.plan.catalogs import CATALOG, plan_of, read, text_of
from tests.plan.golden_pairs import pairs

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
