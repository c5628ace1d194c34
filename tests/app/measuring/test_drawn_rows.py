"""Rows to make changes from, also of tables whose log does not count them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from impctl.errors import UsageError
from impctl.measure.scratch import drawn_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from tests.tables import handmade
from tests.tables.vectored import VectoredTable


def ids(values: Iterable[int]) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def uncounted(folder: Path, *groups: list[int]) -> Snapshot:
    """A table of one file per group of values, none with statistics."""
    names = [
        handmade.write_file(folder, f"{at}.parquet", ids(values))
        for at, values in enumerate(groups)
    ]
    schema = handmade.metadata([handmade.field("id", handmade.LONG)])
    added = [handmade.add(name, 0, stats=None) for name in names]
    handmade.commit(folder, 0, handmade.protocol(), schema, *added)
    return open_source("t", str(folder)).snapshot()


def drawn(snapshot: Snapshot, size: int = 2000) -> list[int]:
    return drawn_rows(snapshot, size, np.random.default_rng(1)).column("id").to_pylist()


def test_every_row_is_as_likely_where_the_log_does_not_count_them(tmp_path: Path) -> None:
    snapshot = uncounted(tmp_path / "t", [1], [2, 3, 4], [])
    assert snapshot.rows is None
    result = drawn(snapshot)
    assert len(result) == 2000
    assert all(400 < result.count(value) < 600 for value in (1, 2, 3, 4))


def test_an_empty_table_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is empty"):
        drawn(uncounted(tmp_path / "t", []))


def test_deleted_rows_are_neither_drawn_nor_counted(tmp_path: Path) -> None:
    table = VectoredTable(tmp_path / "t", ids(range(10)))
    table.append(ids([10]))
    table.delete(lambda rows: pc.is_in(rows["id"], pa.array(range(1, 10))))
    result = drawn(open_source("t", str(tmp_path / "t")).snapshot())
    assert set(result) == {0, 10}
    assert 900 < result.count(10) < 1100
