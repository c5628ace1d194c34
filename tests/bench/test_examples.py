"""Tables to measure on: the rows that every document speaks of, days split off, refreshes under
keys that nobody has, and synthetic ones."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from impctl.bench.data import (
    MEASURES,
    SYNTHETIC_SCHEMA,
    refreshes,
    running_example_table,
    split_last_days,
    synthetic_batches,
)
from impctl.errors import UsageError


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


def entries(*days: int | None) -> pa.Table:
    dates = [None if day is None else datetime(2022, 11, day, 23, 59, 59) for day in days]
    return pa.table({"n": list(range(len(days))), "Date": pa.array(dates, pa.timestamp("us"))})


def numbers(table: pa.Table) -> list[int]:
    return list(table["n"].to_pylist())


def test_each_of_the_last_days_is_a_batch_and_rows_without_a_date_stay() -> None:
    base, batches = split_last_days(entries(3, None, 1, 3, 7, 1, 8), "Date", 2)
    assert numbers(base) == [0, 1, 2, 3, 5]
    assert [numbers(batch) for batch in batches] == [[4], [6]]


@pytest.mark.parametrize("days", [0, 1, 3, 99])
def test_base_and_batches_are_the_table(days: int) -> None:
    base, batches = split_last_days(entries(3, None, 1, 3, 7), "Date", days)
    assert len(batches) == min(days, 3)
    assert sorted(sum((numbers(part) for part in (base, *batches)), [])) == [0, 1, 2, 3, 4]


def test_nothing_to_split() -> None:
    base, batches = split_last_days(entries(None), "Date", 3)
    assert numbers(base) == [0]
    assert batches == []


def test_a_column_that_is_absent_or_no_date_is_refused() -> None:
    with pytest.raises(UsageError, match="no column `When`"):
        split_last_days(entries(1), "When", 1)
    with pytest.raises(UsageError, match="has no dates"):
        split_last_days(entries(1), "n", 1)


def test_incidents_of_a_year() -> None:
    path = os.environ.get("IMPCTL_CRIMES")
    if not path or not Path(path).is_file():
        pytest.skip("IMPCTL_CRIMES names no Parquet file of incidents")
    whole = pq.read_table(path)
    base, batches = split_last_days(whole, "Date", 3)
    assert len(batches) == 3
    assert base.num_rows + sum(batch.num_rows for batch in batches) == whole.num_rows
    assert all(batch.num_rows > 0 for batch in batches)


KEYS = [32 * block + place for block in range(400) for place in range(8)]
ORDERS = pa.table({"o_orderkey": pa.array(KEYS, pa.int64()), "o_name": [f"o{k}" for k in KEYS]})
_LINES = [(key, line) for key in KEYS for line in range(1 + key % 7)]
LINEITEM = pa.table(
    {
        "l_orderkey": pa.array([key for key, _ in _LINES], pa.int64()),
        "l_linenumber": pa.array([line for _, line in _LINES], pa.int32()),
    }
)


def lineitem_of(keys: Sequence[int]) -> pa.Table:
    return LINEITEM.filter(pc.is_in(LINEITEM.column("l_orderkey"), pa.array(keys, pa.int64())))


def test_orders_come_with_all_their_lines_under_free_keys() -> None:
    seen: set[int] = set()
    for refresh in refreshes(ORDERS, lineitem_of, sizes=(1, 10, 200)):
        keys = set(refresh.orders.column("o_orderkey").to_pylist())
        assert not keys & set(KEYS)
        assert not keys & seen
        seen |= keys
        lines = refresh.lineitem.column("l_orderkey").to_pylist()
        assert set(lines) == keys
        wanted = {key + 8: 1 + key % 7 for key in KEYS if key + 8 in keys}
        assert {key: lines.count(key) for key in keys} == wanted
        rows = len(keys) + len(lines)
        assert refresh.size <= rows < refresh.size + 8
        names = zip(
            refresh.orders.column("o_orderkey").to_pylist(),
            refresh.orders.column("o_name").to_pylist(),
            strict=True,
        )
        assert all(name == f"o{key - 8}" for key, name in names)


def test_equal_arguments_give_equal_rows() -> None:
    one, other = (list(refreshes(ORDERS, lineitem_of, sizes=(50,), seed=3)) for _ in range(2))
    assert one == other
    (different,) = refreshes(ORDERS, lineitem_of, sizes=(50,), seed=4)
    assert not different.orders.equals(one[0].orders)
    assert np.unique(different.orders.column("o_orderkey").to_numpy()).size == len(different.orders)


def table(rows: int, groups: int, seed: int = 7, **options: object) -> pa.Table:
    batches = synthetic_batches(rows, groups, seed, **options)  # type: ignore[arg-type]
    return pa.Table.from_batches(list(batches), schema=SYNTHETIC_SCHEMA)


@pytest.mark.parametrize("sorted_by_a", [False, True])
def test_rows_do_not_depend_on_the_batch_size(sorted_by_a: bool) -> None:
    whole = table(10_000, 50, sorted_by_a=sorted_by_a, batch_rows=10_000)
    for batch_rows in (1, 999, 4096, 20_000):
        rows = 200 if batch_rows == 1 else 10_000
        if rows == 200:
            expected = table(200, 50, sorted_by_a=sorted_by_a)
        else:
            expected = whole
        parts = table(rows, 50, sorted_by_a=sorted_by_a, batch_rows=batch_rows)
        assert parts.combine_chunks().equals(expected.combine_chunks())


def test_the_seed_decides_the_rows() -> None:
    assert table(1000, 10, seed=1).equals(table(1000, 10, seed=1))
    assert not table(1000, 10, seed=1).equals(table(1000, 10, seed=2))


@pytest.mark.parametrize("sorted_by_a", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 6, 1000, 10_007])
def test_ids_are_unique_and_dense(rows: int, sorted_by_a: bool) -> None:
    ids = table(rows, 13, sorted_by_a=sorted_by_a, batch_rows=100)["id"].to_numpy()
    assert np.array_equal(np.sort(ids), np.arange(rows))


def test_sorted_rows_increase_in_a_and_scatter_the_ids() -> None:
    rows = table(20_000, 40, sorted_by_a=True)
    a = rows["a"].to_numpy()
    assert np.all(np.diff(a) >= 0)
    assert abs(np.corrcoef(a, rows["id"].to_numpy())[0, 1]) < 0.05


@pytest.mark.parametrize("sorted_by_a", [False, True])
def test_groups_are_uniform_over_their_whole_range(sorted_by_a: bool) -> None:
    a = table(100_000, 50, sorted_by_a=sorted_by_a)["a"].to_numpy()
    counts = np.bincount(a, minlength=50)
    assert len(counts) == 50
    # 2000 expected; seven standard deviations of a binomial count.
    assert np.all(np.abs(counts - 2000) < 7 * np.sqrt(2000))
    assert counts.std() > 20, "counts vary as those of random values do"


def test_measures_follow_a_with_noise() -> None:
    rows = table(50_000, 1000)
    a = rows["a"].to_numpy()
    for name in MEASURES:
        assert 0.8 < np.corrcoef(a, rows[name].to_numpy())[0, 1] < 0.9999
    residual = rows["c"].to_numpy() - a
    assert abs(residual.mean()) < 2
    assert abs(residual.std() - 50) < 2
    exact = table(100, 10, noise=0.0)
    assert exact["b"].to_pylist() == [float(value) for value in exact["a"].to_pylist()]


def test_more_groups_than_rows() -> None:
    rows = table(10, 500_000, sorted_by_a=True)
    assert pc.max(rows["a"]).as_py() < 500_000
    assert rows.num_rows == 10


@pytest.mark.parametrize(
    ("rows", "groups", "options"),
    [(-1, 1, {}), (2**31, 1, {}), (1, 0, {}), (1, 1, {"noise": -1.0}), (1, 1, {"batch_rows": 0})],
)
def test_senseless_sizes_are_refused_before_the_first_batch(
    rows: int, groups: int, options: dict[str, float]
) -> None:
    with pytest.raises(UsageError):
        synthetic_batches(rows, groups, 1, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_ten_million_rows_come_in_bounded_memory() -> None:
    total = 0
    for batch in synthetic_batches(10_000_000, 500_000, 1, sorted_by_a=True):
        total += batch.num_rows
        assert batch.nbytes <= 500_000 * 11 * 8
    assert total == 10_000_000
