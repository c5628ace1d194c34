"""What stands beside the rows: its own table is sketched only where the rules allow it."""

from __future__ import annotations

import pytest

from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from tests.plan.catalogs import read


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
    ruled = type(query)(query.sql, apply_rules(query.root))
    for column, is_safe in columns.items():
        table, _, name = column.partition(".")
        for judged in (query, ruled):
            assert check_safety(judged, {f"{table}#1": name}, ()).safe is is_safe


def test_why_a_subquery_that_is_no_aggregate_is_not_sketched() -> None:
    query = read("SELECT sid FROM sales WHERE price > (SELECT shelf FROM stock)")
    assert check_safety(query, {"stock#1": "shelf"}, ()).reason == (
        "`shelf FROM stock` must return at most one row, and may return fewer rows over part of "
        "its table"
    )
