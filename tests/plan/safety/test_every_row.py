"""Queries that need every row, which no sketch can help."""

from __future__ import annotations

import pytest

from impctl.safety.choose import counts_every_row
from tests.plan.catalogs import plan_of


@pytest.mark.parametrize(
    ("sql", "every"),
    [
        ("SELECT COUNT(*) FROM sales", True),
        ("SELECT SUM(price) + 1, MAX(price) FROM sales", True),
        ("SELECT COUNT(*) FROM sales HAVING COUNT(*) > 3", True),
        ("SELECT brand, COUNT(DISTINCT price) FROM sales GROUP BY ROLLUP(brand)", True),
        ("SELECT DISTINCT brand FROM sales ORDER BY brand", True),
        ("SELECT price, SUM(price) OVER (PARTITION BY brand) FROM sales", True),
        ("SELECT brand FROM sales UNION ALL SELECT brand FROM stock", True),
        ("SELECT COUNT(*) FROM sales WHERE price > 3", False),
        ("SELECT brand, COUNT(*) FROM sales GROUP BY brand HAVING COUNT(*) > 3", False),
        ("SELECT brand FROM sales ORDER BY brand LIMIT 3", False),
        ("SELECT COUNT(*) FROM sales JOIN stock ON sales.brand = stock.brand", False),
        ("SELECT brand FROM sales EXCEPT SELECT brand FROM stock", False),
        ("SELECT COUNT(*) FROM (SELECT brand FROM sales WHERE ok) t", False),
    ],
)
def test_which_queries_need_every_row(sql: str, every: bool) -> None:
    assert counts_every_row(plan_of(sql)) is every
