"""Files of several row groups, read group by group, are the files read at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.tables.rows import read_batches, read_rows
from impctl.tables.source import open_source
from tests.tables import handmade

ROWS = 10


def make(folder: Path, group: int) -> str:
    """A table of one file with ten rows, in row groups of so many."""
    rows = pa.table({"x": range(ROWS)})
    file = handmade.added(folder, "a.parquet", rows, row_group_size=group)
    return handmade.create(folder, {"x": handmade.LONG}, file)


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 3, 10])
@pytest.mark.parametrize("deleted", [[], [0], [2, 3, 9], [4, 5, 6, 7], list(range(ROWS))])
def test_deleted_rows_are_left_out_of_each_group(
    tmp_path: Path, group: int, deleted: list[int]
) -> None:
    snapshot = open_source("t", make(tmp_path, group)).snapshot()
    (file,) = snapshot.files
    less = replace(file, deleted=np.array(deleted, np.int64))
    concat_tables = pa.concat_tables(read_batches(snapshot, ["x"], [less]))
    assert concat_tables.equals(read_rows(snapshot, ["x"], [less]))
    assert concat_tables.column("x").to_pylist() == [x for x in range(ROWS) if x not in deleted]


def test_a_file_without_a_row_group_gives_no_batch(tmp_path: Path) -> None:
    path = make(tmp_path, 3)
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("x", pa.int64())])):
        pass
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 0
    assert not list(read_batches(open_source("t", path).snapshot(), ["x"]))
