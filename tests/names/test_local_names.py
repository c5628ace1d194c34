"""Where a text runs here its tables are views, which no WITH entry of the text may hide."""

from __future__ import annotations

import pytest

from impctl.spark.predicates import local_name, rewrite_sql
from impctl.sql.names import TableNames
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

SCHEMA = schema_of("k int")
NAMES = TableNames(
    {
        ("main", "shop", "sales"): "sales",
        ("main", "shop", "sales_"): "sales_",
        ("main", "hr", "sales"): "hr.sales",
    },
    {},
    "main",
    "shop",
)


@pytest.mark.parametrize(
    ("sql", "local"),
    [
        (
            "WITH sales AS (SELECT * FROM hr.sales), b AS (SELECT * FROM shop.sales) "
            "SELECT k FROM b",
            "WITH sales AS (SELECT * FROM `hr.sales_1` AS sales), "
            "b AS (SELECT * FROM `sales_0` AS sales) SELECT k FROM b",
        ),
        (
            "WITH `sales_0` AS (SELECT * FROM sales) SELECT b.k FROM Shop.sales b, sales_0, sales_",
            "WITH `sales_0` AS (SELECT * FROM `sales_0_` AS sales) "
            "SELECT b.k FROM `sales_0_` b, sales_0, sales_",
        ),
        ("WITH b AS (SELECT * FROM sales) SELECT k FROM b", None),
        ("SELECT k FROM shop.sales", "SELECT k FROM `sales` AS sales"),
    ],
)
def test_a_view_has_a_name_that_no_with_entry_has(sql: str, local: str | None) -> None:
    catalog = dict.fromkeys(("sales", "sales_", "hr.sales"), SCHEMA)
    query = parse_query(sql, catalog, names=NAMES)
    assert rewrite_sql(query, {}, is_local=True) == (local or sql)


def test_views_of_two_tables_have_two_names() -> None:
    sql = "WITH b AS (SELECT * FROM shop.sales) SELECT b.k FROM b, shop.sales_"
    query = parse_query(sql, dict.fromkeys(("sales", "sales_"), SCHEMA), names=NAMES)
    assert len({local_name(query, table) for table in query.tables}) == 2
