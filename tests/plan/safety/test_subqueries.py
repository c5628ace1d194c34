"""What stands beside the rows: its own table is sketched only where the rules allow it."""

from __future__ import annotations

import pytest

from impctl.plan.rules.order import apply_rules
from impctl.plan.safety.verdict import check_safety
from tests.plan.catalogs import read


@pytest.mark.parametrize(
    ("sql", "column", "safe"),
    [
        ("SELECT sid FROM sales WHERE price > (SELECT shelf FROM stock)", "stock.shelf", False),
        ("SELECT sid FROM sales WHERE price > (SELECT shelf FROM stock)", "sales.sid", True),
        ("SELECT sid FROM sales WHERE price < (SELECT MAX(shelf) FROM stock)", "stock.shelf", True),
        (
            "SELECT sid FROM sales WHERE price > (SELECT MAX(shelf) FROM stock)",
            "stock.shelf",
            False,
        ),
        ("SELECT sid, (SELECT MAX(shelf) FROM stock) FROM sales", "stock.shelf", True),
        ("SELECT sid FROM sales WHERE ok OR brand IN (SELECT brand FROM stock)", "sales.sid", True),
        (
            "SELECT sid FROM sales WHERE ok OR brand IN (SELECT brand FROM stock)",
            "stock.shelf",
            False,
        ),
    ],
)
def test_which_table_may_be_sketched(sql: str, column: str, safe: bool) -> None:
    query = read(sql)
    ruled = type(query)(sql, apply_rules(query.root))
    table, _, name = column.partition(".")
    for judged in (query, ruled):
        assert check_safety(judged, {f"{table}#1": name}, ()).safe is safe


def test_why_a_subquery_that_is_no_aggregate_is_not_sketched() -> None:
    query = read("SELECT sid FROM sales WHERE price > (SELECT shelf FROM stock)")
    assert check_safety(query, {"stock#1": "shelf"}, ()).reason == (
        "`shelf FROM stock` may have one row at most, and can have fewer over part of its table"
    )
