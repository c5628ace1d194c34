"""Demo tables are created with a change feed, never over another table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.errors import UsageError
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table


def test_rows_and_properties(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    data = pa.table({"k": ["a", "b"], "v": [1, 2]})
    create_table(path, data, partition_by=["k"], configuration={"delta.appendOnly": "false"})
    snapshot = open_source("t", path).snapshot()
    assert snapshot.has_change_feed
    assert snapshot.partition_columns == ("k",)
    assert snapshot.configuration["delta.appendOnly"] == "false"
    assert read_rows(snapshot, ["v"]).num_rows == 2


def test_schema_alone_makes_an_empty_table(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_table(path, pa.schema([pa.field("v", pa.int64(), nullable=False)]), change_feed=False)
    snapshot = open_source("t", path).snapshot()
    assert (snapshot.rows, snapshot.has_change_feed, snapshot.not_null) == (0, False, {"v"})


def test_never_over_another_table(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_table(path, pa.table({"v": [1]}))
    with pytest.raises(UsageError, match="A table already exists at this path"):
        create_table(path, pa.table({"v": [2]}))
    assert read_rows(open_source("t", path).snapshot(), ["v"]).column(0).to_pylist() == [1]
