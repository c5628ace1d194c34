"""The synthetic table: seeded, independent of batch size, and shaped as the benchmarks assume."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from impctl.bench.synthetic import MEASURES, SYNTHETIC_SCHEMA, synthetic_batches
from impctl.errors import UsageError


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
