"""Samples of a column's values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables import sample
from impctl.tables.sample import sample_values
from impctl.tables.source import open_source
from tests.tables.bags import fixture_table, written


def test_small_columns_come_whole_without_null_and_nan(tmp_path: Path) -> None:
    data = pa.table({"f": [1.5, None, float("nan"), 2.5], "k": ["a", "a", None, "b"]})
    snapshot = written(tmp_path, data, partition_by=["k"])
    assert sorted(sample_values(snapshot, "F", 100, 1)) == [1.5, 2.5]
    assert sorted(sample_values(snapshot, "k", 100, 1)) == ["a", "a", "b"]


def test_canonical_values(tmp_path: Path) -> None:
    data = pa.table(
        {
            "d": pa.array([19000], pa.int32()).cast(pa.date32()),
            "m": pa.array(["1.50"]).cast(pa.decimal128(10, 2)),
            "t": pa.array([7], pa.timestamp("us", tz="UTC")),
        }
    )
    snapshot = written(tmp_path, data)
    assert [sample_values(snapshot, name, 10, 1) for name in "dmt"] == [[19000], [150], [7]]


def test_large_tables_are_sampled_evenly_and_repeatably(tmp_path: Path) -> None:
    for start in range(0, 40_000, 10_000):
        data = pa.table({"v": list(range(start, start + 10_000))})
        snapshot = written(tmp_path, data)
    result = sample_values(snapshot, "v", 400, 7)
    assert len(result) == 400
    assert result == sample_values(snapshot, "v", 400, 7)
    assert result != sample_values(snapshot, "v", 400, 8)
    assert [sum(int(v) // 10_000 == file for v in result) for file in range(4)] == [100] * 4


def test_many_files_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MAX_FILES", 3)
    data = pa.table({"v": list(range(8)), "k": list(range(8))})
    snapshot = written(tmp_path, data, partition_by=["k"])
    result = sample_values(snapshot, "v", 100, 1)
    assert len(set(result)) == 3


def test_mapped_table_is_sampled() -> None:
    snapshot = open_source("t", str(fixture_table("table_with_column_mapping"))).snapshot()
    assert "Anthony Johnson" in sample_values(snapshot, "Super Name", 10, 1)
