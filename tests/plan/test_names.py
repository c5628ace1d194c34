"""Names of tables: what Spark takes for one table is one table, and nothing else is."""

from __future__ import annotations

import pytest

from impctl.data.schema import name_parts
from impctl.sql.names import TableNames, path_key

NAMES = TableNames(
    {
        ("main", "shop", "sales"): "sales",
        ("hive", "old shop", "sales"): "old",
        ("m", "s", "d"): "d",
    },
    {path_key("/lake/sales"): "sales", path_key("s3://b/t"): "old"},
    catalog="Main",
    schema="Shop",
)


@pytest.mark.parametrize(
    ("written", "table"),
    [
        ("sales", "sales"),
        ("SALES", "sales"),
        ("`sales`", "sales"),
        ("shop.sales", "sales"),
        ("MAIN.`Shop`.sales", "sales"),
        ("hive.`old shop`.sales", "old"),
        ("old shop.sales", None),
        ("other.sales", None),
        ("other.shop.sales", None),
        ("main.shop.sales.x", None),
        ("`main.shop.sales`", None),
        ("d", None),
        ("m.s.d", "d"),
        ("delta.`/lake/sales`", "sales"),
        ("DELTA.`/lake//sales/`", "sales"),
        ("delta.`file:/lake/sales`", "sales"),
        ("delta.`file:///lake/sales`", "sales"),
        ("delta.`/lake/Sales`", None),
        ("delta.`lake/sales`", None),
        ("parquet.`/lake/sales`", None),
        ("delta.`s3a://b/t/`", "old"),
        ("delta.`s3://b/T`", None),
        ("", None),
        ("a.", None),
        (".a", None),
        ("`a", None),
        ("a b", None),
    ],
)
def test_what_a_name_stands_for(written: str, table: str | None) -> None:
    assert NAMES.called(written) == table


def test_a_schema_called_delta_comes_before_paths() -> None:
    names = TableNames({("spark_catalog", "delta", "/lake/t"): "named"}, {"/lake/t": "found"})
    assert names.called("delta.`/lake/t`") == "named"


@pytest.mark.parametrize(
    ("written", "parts"),
    [("a.b", ("a", "b")), ("`a.b`.c", ("a.b", "c")), ("`a``b`", ("a`b",)), ("`a`b", None)],
)
def test_parts_of_a_name(written: str, parts: tuple[str, ...] | None) -> None:
    assert name_parts(written) == parts
