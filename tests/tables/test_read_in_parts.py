"""Files are read in parts, however long their row groups are: the same rows in the same order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.data.schema import LONG
from impctl.errors import Location
from impctl.service.pinned import PinnedTables
from impctl.sketch.partition import RangePartition
from impctl.tables import rows
from impctl.tables.rows import FileReader, read_batches, read_rows
from impctl.tables.source import open_source
from impctl.workload.models import TableSpec


def table_of(folder: Path, count: int) -> None:
    columns = {"a": pa.array(range(count)), "b": pa.array([f"t{at}" for at in range(count)])}
    write_deltalake(str(folder), pa.table(columns), mode="append")


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 7, 64, 100, 1000])
def test_parts_are_the_rows_that_are_left(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (100, 3, 41):
        table_of(tmp_path / "t", count)
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    whole = read_rows(snapshot, ["b", "a"])
    monkeypatch.setattr(rows, "BATCH_ROWS", most)
    batches = list(read_batches(snapshot, ["b", "a"], least=most))
    assert pa.concat_tables(batches).equals(whole)
    assert max(map(len, batches)) < 2 * most
    assert sum(map(len, read_batches(snapshot, [], least=most))) == len(whole) == 144
    dead = np.array([0, 5, 6, 63, 64, 99])
    file = max(snapshot.files, key=lambda one: one.rows or 0)
    reader = FileReader(snapshot, [snapshot.readable("a")])
    left = pa.concat_tables(reader.read_groups(replace(file, deleted=dead)))
    kept = np.delete(np.arange(100), dead)
    assert left.column("a").to_pylist() == kept.tolist()


def test_ranges_of_a_column_are_proposed_once_for_a_version(tmp_path: Path) -> None:
    table_of(tmp_path / "t", 3)
    tables = PinnedTables({"t": TableSpec("t", str(tmp_path / "t"), {}, Location("w", 1, 1))})
    made: list[int] = []

    def make(*boundaries: int) -> RangePartition:
        made.append(len(boundaries))
        return RangePartition("t", "a", LONG, boundaries)

    first = tables.partition("t", "a", 1, lambda: make(1))
    assert tables.partition("t", "a", 1, lambda: make(1, 2)) is first
    assert tables.partition("t", "a", 2, lambda: make(1, 2)) is not first
    assert tables.partition("t", "b", 1, lambda: make(1, 2)) is not first
    table_of(tmp_path / "t", 3)
    tables.advance("t")
    assert tables.partition("t", "a", 1, lambda: make(5)).boundaries == (5,)
    tables.list_anew("t")
    assert tables.partition("t", "a", 1, lambda: make(6)).boundaries == (6,)
    assert made == [1, 2, 2, 1, 1]
