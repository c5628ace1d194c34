"""Which expressions can fail on some row."""

from __future__ import annotations

import pytest

from impctl.plan.properties import can_fail
from tests.plan.catalogs import selected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("price > 3", False),
        ("price > 3.5 AND brand LIKE 'x%' OR NOT ok", False),
        ("price IN (1, 2L)", False),
        ("brand IN ('a', NULL)", False),
        ("coalesce(price, 1) IS NULL", False),
        ("CASE WHEN ok THEN 1 ELSE 2.5 END", False),
        ("rate * 2 + rate", False),
        ("-rate", False),
        ("CAST(price AS bigint)", False),
        ("CAST(cost AS double)", False),
        ("price + 1", True),
        ("rate / 2", True),
        ("cost * 2", True),
        ("-price", True),
        ("CAST(brand AS int)", True),
        ("CAST(sid AS int)", True),
        ("price = '1'", True),
        ("price IN ('1')", True),
        ("CASE WHEN ok THEN 1 ELSE 'x' END", True),
        ("length(brand)", True),
    ],
)
def test_can_fail(written: str, expected: bool) -> None:
    assert can_fail(selected(f"SELECT {written} AS it FROM sales")) is expected
