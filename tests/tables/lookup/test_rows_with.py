"""Rows looked for by values are all that have one, of every type, in any files and row groups."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import WriterProperties, write_deltalake

from impctl.data.vector import Vector, from_arrow
from impctl.errors import HistoryGoneError
from impctl.tables.lookup import ReadOnce, rows_with
from impctl.tables.rows import FileReader, read_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from tests.support.random_cases import random_seeds
from tests.tables.bags import written

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [None, -(2**31), -1, 0, 1, 2**31 - 1]),
    "l": (pa.int64(), [None, -(2**63), 0, 7, 2**63 - 1]),
    "f": (pa.float64(), [None, 0.0, -0.0, math.nan, 1.5, -math.inf, 5e-324]),
    "n": (pa.decimal128(9, 2), [None, Decimal("0.00"), Decimal("-1.25"), Decimal("9999999.99")]),
    "w": (pa.decimal128(30, 3), [None, Decimal("0.001"), Decimal("123456789012345678901.125")]),
    "s": (pa.string(), [None, "", "a", "ä", "a\x00", "😀"]),
    "b": (pa.binary(), [None, b"", b"\x00", b"\x00\xff"]),
    "d": (pa.date32(), [None, dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "z": (pa.timestamp("us", tz="UTC"), [None, dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC)]),
    "o": (pa.bool_(), [None, True, False]),
}


@pytest.fixture(scope="module")
def snapshot_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Snapshot]:
    """By seed: three files in row groups of a few rows, one column of each type and a number."""

    @cache
    def snapshot(seed: int) -> Snapshot:
        rng, folder = random.Random(seed), tmp_path_factory.mktemp("t")
        for at in range(3):
            columns = {
                name: pa.array([rng.choice(values) for _ in range(20)], kind)
                for name, (kind, values) in VALUES.items()
            }
            rows = pa.table({**columns, "no": pa.array(range(20 * at, 20 * at + 20), pa.int64())})
            few = WriterProperties(max_row_group_size=rng.choice([3, 7, 20]))
            write_deltalake(str(folder), rows, mode="append", writer_properties=few)
        return open_source("t", str(folder)).snapshot()

    return snapshot


def same(one: Any, other: Any) -> bool:
    """As join keys are, NULL equal to NULL."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def wanted(snapshot: Snapshot, name: str, values: list[Any]) -> Vector:
    kind = VALUES[name][0]
    return from_arrow(pa.array(values, kind), snapshot.readable(name).type)


@random_seeds(2, 4, 20)
@pytest.mark.parametrize("name", VALUES)
def test_all_rows_with_a_value_and_no_other(
    snapshot_of: Callable[[int], Snapshot], name: str, seed: int
) -> None:
    snapshot, rng = snapshot_of(seed), random.Random(seed)
    asked = rng.sample(VALUES[name][1], rng.randint(1, len(VALUES[name][1])))
    gone = {file.uri: sorted(rng.sample(range(20), 5)) for file in snapshot.files[:2]}
    files = tuple(
        replace(file, deleted=np.array(gone[file.uri], np.int64)) if file.uri in gone else file
        for file in snapshot.files
    )
    held = pa.concat_tables([read_rows(snapshot, [name, "no"], [file]) for file in files])
    expected = [
        no
        for value, no in zip(held[name].to_pylist(), held["no"].to_pylist(), strict=True)
        if any(same(value, one) for one in asked)
    ]
    values = {name: [wanted(snapshot, name, asked)]}
    result = list(rows_with(snapshot, ["no", name], values, files, ReadOnce()))
    assert all(part.column_names == ["no", name] for part in result)
    numbers = [no for part in result for no in part["no"].to_pylist()]
    assert Counter(numbers) == Counter(expected)


@random_seeds(2, 4, 20)
def test_rows_have_a_value_of_every_list(snapshot_of: Callable[[int], Snapshot], seed: int) -> None:
    snapshot, rng = snapshot_of(seed), random.Random(seed)
    lists = {
        name: [rng.sample(VALUES[name][1], 3) for _ in range(rng.randint(1, 2))] for name in "ils"
    }
    values = {name: [wanted(snapshot, name, one) for one in some] for name, some in lists.items()}
    held = read_rows(snapshot, ["i", "l", "s", "no"]).to_pylist()
    expected = [
        row["no"] for row in held if all(row[n] in one for n, some in lists.items() for one in some)
    ]
    rows = rows_with(snapshot, ["no"], values, snapshot.files, ReadOnce())
    assert [no for part in rows for no in part["no"].to_pylist()] == expected


def test_groups_without_a_row_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of row groups with none of the values, other columns are never looked at."""
    rows = pa.table({"k": pa.array(range(40), pa.int64()), "x": pa.array(range(40), pa.int64())})
    snapshot = written(tmp_path, rows, writer_properties=WriterProperties(max_row_group_size=10))
    read: list[tuple[str, ...]] = []
    whole = FileReader.read_some

    def noted(self: FileReader, *args: Any) -> pa.Table:
        table = whole(self, *args)
        read.append(tuple(table.column_names))
        return table

    monkeypatch.setattr(FileReader, "read_some", noted)
    kind = snapshot.readable("k").type
    values = {"k": [from_arrow(pa.array([3, 25], pa.int64()), kind)]}
    once = ReadOnce()
    result = list(rows_with(snapshot, ["x"], values, snapshot.files, once))
    assert [part["x"].to_pylist() for part in result] == [[3], [25]]
    # Groups whose bounds hold none of the values are not read at all.
    assert [read.count(("k",)), read.count(("x",))] == [2, 2]
    values = {"k": [from_arrow(pa.array([24, 39], pa.int64()), kind)]}
    result = list(rows_with(snapshot, ["k", "x"], values, snapshot.files, once))
    assert [part["x"].to_pylist() for part in result] == [[24], [39]]
    # What was read before in this run is not read again.
    assert [read.count(("k",)), read.count(("x",))] == [3, 3]


def test_no_more_is_held_than_there_is_room_for(snapshot_of: Callable[[int], Snapshot]) -> None:
    snapshot, limits = snapshot_of(1), (0, 100, 300, 1 << 20)
    kept = [ReadOnce(most) for most in limits]
    for name in ("i", "s", "b", "i", "w", "s"):
        values = {name: [wanted(snapshot, name, VALUES[name][1][1:2])]}
        plain, *mine = (
            [part.to_pydict() for part in rows_with(snapshot, ["no"], values, snapshot.files, one)]
            for one in (ReadOnce(), *kept)
        )
        assert mine == [plain] * len(limits)
        for once, most in zip(kept, limits, strict=True):
            held = sum(column.nbytes for column in once._cache.values())
            assert held == once._bytes <= most


def test_a_column_that_took_the_name_of_another_is_read_for_itself(tmp_path: Path) -> None:
    columns = {"a": pa.array([1, 2], pa.int64()), "b": pa.array([2, 1], pa.int64())}
    write_deltalake(str(tmp_path), pa.table(columns))
    before, once = open_source("t", str(tmp_path)).snapshot(), ReadOnce()
    physical = {"a": "b", "b": "a"}
    after = replace(before, columns=replace(before.columns, physical=physical))
    rows = [once.columns(one, ["a"], one.files[0], 0, 2)["a"] for one in (before, after, before)]
    assert [row.to_pylist() for row in rows] == [[1, 2], [2, 1], [1, 2]]


def test_a_file_that_is_gone_is_said(tmp_path: Path) -> None:
    snapshot = written(tmp_path, pa.table({"i": pa.array([1], pa.int32())}))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    values = {"i": [wanted(snapshot, "i", [1])]}
    with pytest.raises(HistoryGoneError):
        list(rows_with(snapshot, ["i"], values, snapshot.files, ReadOnce()))
