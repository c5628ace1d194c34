"""Names of several parts in SQL: of tables, and of columns by their tables' whole names."""

from __future__ import annotations

import pytest

from impctl.data.schema import INTEGER, Column, Schema
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import Query, attributes_of, scans_of
from impctl.sql.names import TableNames
from impctl.sql.statement import parse_query
from tests.plan.catalogs import refusal

SCHEMA = Schema(tuple(Column(name, INTEGER) for name in ("k", "x", "note")))
TABLES = {"sales": SCHEMA, "hr.sales": SCHEMA, "people": SCHEMA}
NAMES = TableNames(
    {
        ("main", "shop", "sales"): "sales",
        ("main", "legacy", "umsatz"): "sales",
        ("main", "hr", "sales"): "hr.sales",
        ("main", "shop", "people"): "people",
    },
    {"/lake/sales": "sales"},
    "main",
    "shop",
)


def read(sql: str) -> Query:
    return parse_query(sql, TABLES, names=NAMES)


SAME = [
    "SELECT x FROM sales WHERE k > 1",
    "SELECT sales.x FROM Sales WHERE shop.sales.k > 1",
    "SELECT main.shop.sales.x FROM sales WHERE MAIN.`shop`.Sales.k > 1",
    "SELECT shop.sales.x FROM `main`.`shop`.`sales` WHERE sales.k > 1",
    "SELECT umsatz.x FROM legacy.umsatz WHERE main.legacy.umsatz.k > 1",
    "SELECT t.x FROM delta.`/lake/sales` t WHERE t.k > 1",
    "SELECT `/lake/sales`.x FROM delta.`/lake/sales` WHERE delta.`/lake/sales`.k > 1",
]


@pytest.mark.parametrize("sql", SAME)
def test_one_table_by_any_name_is_one_source(sql: str) -> None:
    result = read(sql)
    assert fingerprint(result.root) == fingerprint(read(SAME[0]).root)
    assert [scan.access for scan in scans_of(result.root)] == ["sales#1"]


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("SELECT x FROM main . `shop`.sales AS t", "main . `shop`.sales"),
        ("SELECT x FROM delta.`/lake/sales`", "delta.`/lake/sales`"),
        ("SELECT x FROM /* shop.sales */ shop.sales", "shop.sales"),
    ],
)
def test_the_span_covers_the_whole_name(sql: str, written: str) -> None:
    result = read(sql)
    (scan,) = scans_of(result.root)
    assert sql[scan.span.start : scan.span.end] == written
    assert result.mentions == ((scan.span, "sales"),)


def test_two_names_of_one_table_in_one_query_are_two_accesses_of_it() -> None:
    result = read("SELECT a.x FROM shop.sales a JOIN legacy.umsatz b ON a.k = b.k")
    assert [scan.access for scan in scans_of(result.root)] == ["sales#1", "sales#2"]


def test_stars_by_whole_names() -> None:
    for star in ("*", "people.*", "shop.people.*", "main.shop.people.*"):
        names = [a.name for a in attributes_of(read(f"SELECT {star} FROM people").root)]
        assert names == ["k", "x", "note"], star


def test_tables_of_unused_entries_are_mentioned() -> None:
    result = read("WITH c AS (SELECT * FROM hr.sales) SELECT x FROM people")
    assert result.tables == ("people", "hr.sales")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT x FROM other.sales", "Table `other.sales` is unknown"),
        ("SELECT x FROM delta.`/lake/none`", "is unknown"),
        ("SELECT x FROM a.b.c.d", "a name with more than three parts"),
        ("SELECT shop.sales.x FROM sales s", "has no table `shop.sales`"),
        ("SELECT hr.sales.x FROM sales", "has no table `hr.sales`"),
        ("SELECT hr.sales.* FROM sales", "has no table `hr.sales`"),
        ("SELECT shop.sales.y FROM sales", "Column `y` is unknown in `shop.sales`"),
        ("SELECT note.x FROM sales", "nested field"),
        ("SELECT sales.note.x FROM sales", "nested field"),
        ("SELECT main.shop.sales.x.y FROM sales", "nested field"),
        ("SELECT 1 FROM sales JOIN hr.sales ON TRUE", "two relations named `sales`"),
        ("SELECT 1 FROM sales, hr.sales", "two relations named `sales`"),
        (
            "SELECT 1 FROM sales WHERE EXISTS (SELECT 1 FROM hr.sales "
            "WHERE hr.sales.k = shop.sales.k)",
            "the name of an inner table",
        ),
    ],
)
def test_what_names_nothing_or_two_things_is_refused(sql: str, message: str) -> None:
    assert message in refusal(sql, read).message


def test_a_wrong_schema_is_answered_with_what_to_write() -> None:
    hint = refusal("SELECT x FROM crm.people", read).hint or ""
    assert "`people`" in hint
    assert "`names`" in hint
