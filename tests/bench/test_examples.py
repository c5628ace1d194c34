"""The running example has the rows that every document speaks of."""

from __future__ import annotations

from collections import defaultdict

from impctl.bench.examples import running_example_table


def revenue_by_brand() -> dict[str, int]:
    revenue: dict[str, int] = defaultdict(int)
    for row in running_example_table().to_pylist():
        revenue[row["brand"]] += row["price"] * row["numSold"]
    return revenue


def test_only_apple_sells_for_more_than_5000() -> None:
    assert {b: r for b, r in revenue_by_brand().items() if r > 5000} == {"Apple": 5074}


def test_s8_lifts_hp_over_the_threshold_and_no_other_sale_would_change_that() -> None:
    assert revenue_by_brand()["HP"] + 1299 == 6194


def test_s6_sells_four_and_rows_are_numbered() -> None:
    rows = running_example_table().to_pylist()
    assert [row["sid"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert rows[5]["numSold"] == 4
