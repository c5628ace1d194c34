"""Splitting a table by day loses nothing and doubles nothing."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.bench.daily import split_last_days
from impctl.errors import UsageError


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
    with pytest.raises(UsageError, match="holds no dates"):
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
