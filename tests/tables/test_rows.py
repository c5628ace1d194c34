"""Reading rows: by parts, row groups and values; join partners per key."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, SqlType
from impctl.data.vector import Vector, from_arrow
from impctl.errors import (
    EvaluationError,
    HistoryGoneError,
    Location,
    SchemaChangedError,
    TableError,
)
from impctl.expr.nodes import And, Arithmetic, ArithmeticOp, ColumnRef, Compare, CompareOp, Literal
from impctl.service.pinned import PinnedTables
from impctl.sketch import sketch
from impctl.sketch.sketch import RangeFilter, RangePartition, RangeSet
from impctl.tables import rows
from impctl.tables import rows as read_parts
from impctl.tables.changes import read_changes, read_file_diff
from impctl.tables.rows import (
    ColumnCache,
    FileReader,
    PartedRead,
    parted_read,
    read_batches,
    read_rows,
    rows_with,
)
from impctl.tables.sample import (
    MANY_ROWS,
    KeyColumns,
    KeyCounts,
    counted,
    fan_out,
    key_counts,
    one_in,
    sampled_counts,
)
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.source import DeltaSource, open_source
from impctl.tables.write.maintenance import create_laid_out_table
from impctl.workload.models import TableSpec
from tests.support.random_cases import random_cases, random_seeds
from tests.tables import handmade
from tests.tables.handmade import (
    add,
    bag,
    create,
    fixture_tables,
    minus,
    readable_columns,
    stats,
    weighted_bag,
    write_table,
)

Values = list[Any]
KINDS: dict[str, SqlType] = {"long": LONG, "double": DOUBLE}


def table(folder: Path, files: Sequence[Values], kind: str, *, has_stats: bool = True) -> Snapshot:
    """A table with a log only; its bounds do not cover NaN."""
    adds = []
    for number, values in enumerate(files):
        plain = [value for value in values if value is not None and value == value]
        limits = {"v": (min(plain), max(plain))} if plain else {}
        known = {"stats": stats(len(values), {"v": values.count(None)}, **limits)}
        known = known if has_stats or number % 2 else {}
        adds.append(add(f"{number}.parquet", len(values), **known))
    return open_source("t", create(folder, {"v": kind}, *adds)).snapshot()


def passes(value: Any, row_filter: RangeFilter) -> bool:
    """Whether the value passes the filter in Spark: its intervals, or IS NULL."""
    if value is None:
        return row_filter.includes_null
    return any(
        (result.low is None or value != value or value >= result.low)
        and (result.high is None or value < result.high)
        for result in row_filter.intervals
    )


def rows_read(read: PartedRead, rows: Sequence[Values]) -> list[str]:
    def of(file: DataFile) -> Values:
        return rows[int(file.uri.rpartition("/")[2].removesuffix(".parquet"))]

    return sorted(
        repr(value)
        for part in read.parts
        for file in part.files
        for value in of(file)
        if part.filter is None or passes(value, part.filter)
    )


def random_files(rng: Random, kind: str) -> list[Values]:
    """Sorted, nearly sorted or random values, with some NULL and NaN."""
    values: Values = [rng.randint(0, 60) for _ in range(rng.randint(0, 120))]
    if rng.random() < 0.7:
        values.sort()
    if rng.random() < 0.3:
        values = [v if rng.random() < 0.95 else rng.randint(0, 60) for v in values]
    if rng.random() < 0.4:
        values = [v if rng.random() < 0.95 else None for v in values]
    if kind == "double":
        values = [None if v is None else float(v) for v in values]
        if rng.random() < 0.4:
            values = [v if rng.random() < 0.97 else math.nan for v in values]
    size = rng.randint(1, 8)
    return [values[start : start + size] for start in range(0, len(values), size)]


def check_parts(folder: Path, case: int, most_intervals: int) -> tuple[int, int]:
    """Counts of files read and of files with rows in the sketch."""
    rng = Random(f"parts {case}")
    kind = rng.choice(list(KINDS))
    files = random_files(rng, kind)
    snapshot = table(folder, files, kind, has_stats=rng.random() < 0.8)
    cuts: Values = sorted(rng.sample(range(1, 60), rng.randint(0, 40)))
    boundaries = tuple(map(float, cuts)) if kind == "double" else tuple(cuts)
    partition = RangePartition("t", "v", KINDS[kind], boundaries)
    share = rng.choice((0.02, 0.2, 0.5, 0.9, 1.0))
    ids = [range_id for range_id in range(partition.size) if rng.random() < share]
    read = parted_read(snapshot, RangeSet.of(ids, partition.size), partition)
    needed = sketch.exact_filter(RangeSet.of(ids, partition.size), partition)
    assert rows_read(read, files) == sorted(
        repr(v) for file in files for v in file if passes(v, read.wanted)
    )
    for values in files:
        assert all(passes(v, read.wanted) for v in values if passes(v, needed))
    for boundary in (math.nan if kind == "double" else 99, *boundaries, None):
        assert passes(boundary, read.wanted) >= passes(boundary, needed)
    assert sum(part.filter is not None for part in read.parts) <= read_parts.MAX_PARTS
    for part in read.parts:
        assert part.filter is None or len(part.filter.intervals) <= most_intervals + 1
    return (
        sum(len(part.files) for part in read.parts),
        sum(any(passes(v, needed) for v in values) for values in files),
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Small limits, so that a few dozen values need merged intervals and several parts."""
    monkeypatch.setattr(read_parts, "MAX_INTERVALS", 3)
    monkeypatch.setattr(read_parts, "MAX_PARTS", 4)
    return 3


@random_cases(34, 57, 1000)
def test_whole_ranges_are_read(tmp_path: Path, cases: range, few: int) -> None:
    results = [check_parts(tmp_path / str(case), case, few) for case in cases]
    read, needed = (sum(counts) for counts in zip(*results, strict=True))
    assert needed <= read < 1.5 * needed


def test_parts_keep_nan_of_their_files(tmp_path: Path, few: int) -> None:
    """Each file also has a value between the sketch's ranges, so all need a filter."""
    files: list[Values] = [[5.0, 15.0, math.nan], [25.0, 35.0], [65.0, 75.0], [85.0, 95.0, 105.0]]
    snapshot = table(tmp_path, files, "double")
    partition = RangePartition("t", "v", DOUBLE, tuple(10.0 * number for number in range(1, 11)))
    read = parted_read(snapshot, RangeSet.of([0, 2, 4, 6, 8, 10], partition.size), partition)
    assert len(read.wanted.intervals) > few
    assert rows_read(read, files) == ["105.0", "25.0", "5.0", "65.0", "85.0", "nan"]


def test_fully_covered_files_have_no_filter(tmp_path: Path) -> None:
    snapshot = table(tmp_path, [[0, 9], [10, 19], [15, 25]], "long")
    partition = RangePartition("t", "v", LONG, (10, 20))
    read = parted_read(snapshot, RangeSet.of([1], partition.size), partition)
    parts = [(len(part.files), part.filter is None) for part in read.parts]
    assert parts == [(1, True), (1, False)]


def test_scattered_ranges_of_sorted_table_skip_files(tmp_path: Path) -> None:
    """More ranges than one filter can have are in 100 of 400 files; few other files are read."""
    files: list[Values] = [[number * 10, number * 10 + 10] for number in range(400)]
    snapshot = table(tmp_path, files, "long")
    cuts = tuple(cut for number in range(400) for cut in (number * 10, number * 10 + 1))[1:]
    partition = RangePartition("t", "v", LONG, cuts)
    range_ids = [number for number in range(partition.ranges) if number % 8 == 2]
    read = parted_read(snapshot, RangeSet.of(range_ids, partition.size), partition)
    assert len(range_ids) == 100
    assert sum(len(part.files) for part in read.parts) <= 200
    assert len(read.parts) == math.ceil(100 / sketch.MAX_INTERVALS)


def table_of(folder: Path, count: int) -> None:
    columns = {"a": pa.array(range(count)), "b": pa.array([f"t{n}" for n in range(count)])}
    write_deltalake(str(folder), pa.table(columns), mode="append")


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 7, 64, 100, 1000])
def test_batches_have_all_live_rows(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (100, 3, 41):
        table_of(tmp_path / "t", count)
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    all_rows = read_rows(snapshot, ["b", "a"])
    monkeypatch.setattr(rows, "BATCH_ROWS", most)
    batches = list(read_batches(snapshot, ["b", "a"], least=most))
    assert pa.concat_tables(batches).equals(all_rows)
    assert max(map(len, batches)) < 2 * most
    assert sum(map(len, read_batches(snapshot, [], least=most))) == len(all_rows) == 144
    deleted = np.array([0, 5, 6, 63, 64, 99])
    file = max(snapshot.files, key=lambda one: one.rows or 0)
    reader = FileReader(snapshot, [snapshot.readable("a")])
    live = pa.concat_tables(reader.read_groups(replace(file, deleted=deleted)))
    kept = np.delete(np.arange(100), deleted)
    assert live.column("a").to_pylist() == kept.tolist()


def test_facts_of_files_are_computed_once(tmp_path: Path) -> None:
    table_of(tmp_path / "t", 3)
    tables = PinnedTables({"t": TableSpec("t", str(tmp_path / "t"), {}, Location("w", 1, 1))})
    first, source = tables.snapshot("t"), tables.source("t")
    assert tables.snapshot("t") is tables.snapshot("t", 0) is source.snapshot() is first
    computed: list[str] = []

    def fact(key: object, name: str) -> str:
        return tables.fact("t", key, lambda: computed.append(name) or name)

    results = [fact(("a", 1), "x"), fact(("a", 1), "y"), fact(("a", 2), "z"), fact(("b", 1), "w")]
    assert results == ["x", "x", "z", "w"]
    table_of(tmp_path / "t", 3)
    tables.advance("t")
    assert tables.snapshot("t", 0) is first is not tables.snapshot("t")
    tables.forget_files("t")
    assert fact(("a", 1), "v") == "v"
    assert tables.snapshot("t", 0) is not first
    assert computed == ["x", "z", "w", "v"]


ROWS = 10


def make(folder: Path, group: int) -> str:
    """A table of one file with ten rows, in row groups of this size."""
    file = handmade.added(folder, "a.parquet", pa.table({"x": range(ROWS)}), row_group_size=group)
    return handmade.create(folder, {"x": handmade.LONG}, file)


@pytest.mark.parametrize("read", [read_rows, lambda *of: list(read_batches(*of))])
def test_vector_of_another_file_is_refused(tmp_path: Path, read: Callable[..., Any]) -> None:
    snapshot = open_source("t", make(tmp_path, 3)).snapshot()
    (file,) = snapshot.files
    wrong = replace(file, deleted=np.array([1, ROWS], np.int64))
    with pytest.raises(TableError) as caught:
        read(snapshot, ["x"], [wrong])
    assert caught.value.code == "deletion_vectors_unmatched"


def test_file_without_row_groups_gives_no_batch(tmp_path: Path) -> None:
    path = make(tmp_path, 3)
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("x", pa.int64())])):
        pass
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 0
    assert not list(read_batches(open_source("t", path).snapshot(), ["x"]))


WITHOUT_DATA_FILES = {"checkpoints_vacuumed", "spark-variant-stable-feature-checkpoint"}
"""Fixtures with only a log."""
WRONG_IN_DELTALAKE = {"table_with_edge_timestamps"}
"""INT96 timestamps in year 9999, which deltalake reads as 1816."""


@pytest.mark.slow
@pytest.mark.parametrize("path", fixture_tables())
def test_newest_snapshot_reads_like_scan(path: Path) -> None:
    snapshot = open_source("t", str(path)).snapshot()
    columns = readable_columns(snapshot)
    if path.name in WITHOUT_DATA_FILES:
        with pytest.raises(HistoryGoneError, match="can no longer be read"):
            read_rows(snapshot, columns)
        return
    rows = read_rows(snapshot, columns)
    expected = pa.table(DeltaTable(str(path)).scan(columns=columns)).select(columns)
    assert rows.column_names == columns
    assert snapshot.rows in (None, rows.num_rows)
    if path.name in WRONG_IN_DELTALAKE:
        assert rows.num_rows == expected.num_rows
        assert [value.year for value in rows.column("BIG_DATE").to_pylist()] == [9999, 9999]
    else:
        assert bag(rows) == bag(expected)


@pytest.mark.slow
@pytest.mark.parametrize("path", fixture_tables())
def test_changes_are_the_difference_of_the_snapshots(path: Path) -> None:
    source = open_source("t", str(path))
    if path.name in WITHOUT_DATA_FILES:
        assert source.version > 0
        return
    # All versions of a short history; every third one, and the last, of a long one.
    steps = range(0, source.version + 1, 1 if source.version < 12 else 3)
    *older, newest = sorted({*steps, source.version})
    # Adjacent versions; each version and the last one; the first version and each.
    pairs = {*pairwise([*older, newest]), *product(older, [newest]), *product([0], older[1:])}
    compared = sum(_compare(source, since, until) for since, until in sorted(pairs))
    assert compared > 0 or source.version == 0 or path.name == "table_with_partitioning_mapping"


def _compare(source: DeltaSource, since: int, until: int) -> int:
    try:
        before, after = source.snapshot(since), source.snapshot(until)
    except HistoryGoneError:
        # Without the older snapshot, changes can only be read from the feed.
        with suppress(HistoryGoneError):
            assert read_changes(source, since, until, []).method == "change_feed"
        return 0
    columns = readable_columns(after)
    if any(before.schema.find(name) is None for name in columns):
        with pytest.raises(SchemaChangedError):
            read_changes(source, since, until, columns)
        return 0
    expected = minus(bag(read_rows(after, columns)), bag(read_rows(before, columns)))
    changes = read_changes(source, since, until, columns)
    assert weighted_bag(changes.table, changes.weights) == expected, (since, until, changes.method)
    diff = read_file_diff(before, after, columns)
    assert weighted_bag(diff.table, diff.weights) == expected, (since, until)
    assert changes.table.column_names == columns
    return 1


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
    """Snapshots by seed: three files with small row groups, all column types, and row numbers."""

    @cache
    def snapshot(seed: int) -> Snapshot:
        rng, folder = random.Random(seed), tmp_path_factory.mktemp("t")
        for i in range(3):
            columns = {
                name: pa.array([rng.choice(values) for _ in range(20)], kind)
                for name, (kind, values) in VALUES.items()
            }
            rows = pa.table({**columns, "no": pa.array(range(20 * i, 20 * i + 20), pa.int64())})
            few = WriterProperties(max_row_group_size=rng.choice([3, 7, 20]))
            write_deltalake(str(folder), rows, mode="append", writer_properties=few)
        return open_source("t", str(folder)).snapshot()

    return snapshot


def same(one: Any, other: Any) -> bool:
    """Equality as of join keys, with NULL equal to NULL."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def vector(snapshot: Snapshot, name: str, values: list[Any]) -> Vector:
    return from_arrow(pa.array(values, VALUES[name][0]), snapshot.readable(name).type)


@random_seeds(2, 4, 20)
@pytest.mark.parametrize("name", VALUES)
def test_rows_with_one_of_the_values(
    snapshot_of: Callable[[int], Snapshot], name: str, seed: int
) -> None:
    snapshot, rng = snapshot_of(seed), random.Random(seed)
    sought = rng.sample(VALUES[name][1], rng.randint(1, len(VALUES[name][1])))
    dead = {file.uri: sorted(rng.sample(range(20), 5)) for file in snapshot.files[:2]}
    files = tuple(
        replace(file, deleted=np.array(dead[file.uri], np.int64)) if file.uri in dead else file
        for file in snapshot.files
    )
    stored = pa.concat_tables([read_rows(snapshot, [name, "no"], [file]) for file in files])
    expected = [
        no
        for value, no in zip(stored[name].to_pylist(), stored["no"].to_pylist(), strict=True)
        if any(same(value, one) for one in sought)
    ]
    values = {name: [vector(snapshot, name, sought)]}
    result = list(rows_with(snapshot, ["no", name], values, files, ColumnCache()))
    assert all(part.column_names == ["no", name] for part in result)
    assert Counter([no for part in result for no in part["no"].to_pylist()]) == Counter(expected)


@random_seeds(2, 4, 20)
def test_rows_match_every_list(snapshot_of: Callable[[int], Snapshot], seed: int) -> None:
    snapshot, rng = snapshot_of(seed), random.Random(seed)
    lists = {
        name: [rng.sample(VALUES[name][1], 3) for _ in range(rng.randint(1, 2))] for name in "ils"
    }
    values = {name: [vector(snapshot, name, one) for one in some] for name, some in lists.items()}
    data = read_rows(snapshot, ["i", "l", "s", "no"]).to_pylist()
    expected = [
        row["no"] for row in data if all(row[n] in one for n, some in lists.items() for one in some)
    ]
    rows = rows_with(snapshot, ["no"], values, snapshot.files, ColumnCache())
    assert [no for part in rows for no in part["no"].to_pylist()] == expected


def test_unneeded_row_groups_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other columns of row groups without any of the values are not read."""
    rows = pa.table({"k": pa.array(range(40), pa.int64()), "x": pa.array(range(40), pa.int64())})
    snapshot = write_table(
        tmp_path, rows, writer_properties=WriterProperties(max_row_group_size=10)
    )
    read: list[tuple[str, ...]] = []
    read_some = FileReader.read_some

    def recorded(self: FileReader, *args: Any) -> pa.Table:
        table = read_some(self, *args)
        read.append(tuple(table.column_names))
        return table

    monkeypatch.setattr(FileReader, "read_some", recorded)
    kind = snapshot.readable("k").type
    values = {"k": [from_arrow(pa.array([3, 25], pa.int64()), kind)]}
    cache = ColumnCache()
    result = list(rows_with(snapshot, ["x"], values, snapshot.files, cache))
    assert [part["x"].to_pylist() for part in result] == [[3], [25]]
    # Groups whose bounds exclude all values are not read at all.
    assert [read.count(("k",)), read.count(("x",))] == [2, 2]
    values = {"k": [from_arrow(pa.array([24, 39], pa.int64()), kind)]}
    result = list(rows_with(snapshot, ["k", "x"], values, snapshot.files, cache))
    assert [part["x"].to_pylist() for part in result] == [[24], [39]]
    # Columns that were read before in this run are cached.
    assert [read.count(("k",)), read.count(("x",))] == [3, 3]


def test_column_cache_respects_its_limit(snapshot_of: Callable[[int], Snapshot]) -> None:
    snapshot, limits = snapshot_of(1), (0, 100, 300, 1 << 20)
    caches = [ColumnCache(most) for most in limits]
    for name in ("i", "s", "b", "i", "w", "s"):
        values = {name: [vector(snapshot, name, VALUES[name][1][1:2])]}
        plain, *cached = (
            [part.to_pydict() for part in rows_with(snapshot, ["no"], values, snapshot.files, one)]
            for one in (ColumnCache(), *caches)
        )
        assert cached == [plain] * len(limits)
        for each, most in zip(caches, limits, strict=True):
            assert sum(column.nbytes for column in each._cache.values()) == each._bytes <= most


def test_cache_distinguishes_renamed_columns(tmp_path: Path) -> None:
    columns = {"a": pa.array([1, 2], pa.int64()), "b": pa.array([2, 1], pa.int64())}
    write_deltalake(str(tmp_path), pa.table(columns))
    before, cache = open_source("t", str(tmp_path)).snapshot(), ColumnCache()
    after = replace(before, columns=replace(before.columns, physical={"a": "b", "b": "a"}))
    rows = [cache.columns(one, ["a"], one.files[0], 0, 2)["a"] for one in (before, after, before)]
    assert [row.to_pylist() for row in rows] == [[1, 2], [2, 1], [1, 2]]


def test_missing_file_is_reported(tmp_path: Path) -> None:
    snapshot = write_table(tmp_path, pa.table({"i": pa.array([1], pa.int32())}))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    values = {"i": [vector(snapshot, "i", [1])]}
    with pytest.raises(HistoryGoneError):
        list(rows_with(snapshot, ["i"], values, snapshot.files, ColumnCache()))


BOTH = (("a", LONG), ("b", STRING))
PAIR = KeyColumns(BOTH, (False, False))


def rows_of_keys(rng: Random, count: int) -> list[tuple[int | None, str | None]]:
    return [(rng.choice((None, 1, 2, 3, 4)), rng.choice((None, "x", "y"))) for _ in range(count)]


def table_of_keys(
    values: list[tuple[int | None, str | None]], **more: list[int] | pa.Array
) -> pa.Table:
    first, second = ([row[index] for row in values] for index in (0, 1))
    columns = {"a": pa.array(first, pa.int64()), "b": pa.array(second, pa.string())}
    return pa.table({**columns, **more})


def less(name: str, bound: int) -> Compare:
    """`name < bound`."""
    return Compare(CompareOp.LESS, ColumnRef(name, LONG), Literal(bound, LONG))


@pytest.mark.parametrize("has_condition", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", range(20))
def test_fan_out_is_pairs_per_changed_row(seed: int, has_condition: bool) -> None:
    """With a condition, only matching rows count. Batches do not matter."""
    rng = Random(seed)
    sides = rows_of_keys(rng, rng.randint(1, 30)), rows_of_keys(rng, rng.randint(0, 30))
    null_safe = (rng.random() < 0.5, rng.random() < 0.5)
    values = [[rng.choice((0, 1, 2, None)) for _ in part] for part in sides]
    key = KeyColumns(BOTH, null_safe, where=less("n", 2) if has_condition else None)

    def joins(one: tuple[int | None, str | None], other: tuple[int | None, str | None]) -> bool:
        return all(
            x == y and (x is not None or safe)
            for x, y, safe in zip(one, other, null_safe, strict=True)
        )

    both = list(zip(sides, values, strict=True))
    kept = [
        [row for row, n in zip(*one, strict=True) if not has_condition or n in (0, 1)]
        for one in both
    ]
    left, right = (table_of_keys(part, n=pa.array(numbers, pa.int64())) for part, numbers in both)
    changed, others = counted([left.slice(0, 7), left.slice(7)], key), counted([right], key)
    pairs = sum(joins(one, another) for one in kept[0] for another in kept[1])
    assert (changed.rows, changed.read) == (len(kept[0]), len(left))
    assert changed.share == pytest.approx(len(kept[0]) / len(left))
    assert fan_out(changed, others) == pytest.approx(pairs / max(len(kept[0]), 1))


def test_tuples_count_once_per_key_in_all_batches() -> None:
    key = KeyColumns((("a", LONG),), (False,), counted=(("b", STRING),))
    first = table_of_keys([(1, "x"), (1, "x"), (1, "y"), (2, None), (2, None)])
    result = counted([first, table_of_keys([(1, "x"), (1, None), (None, "x")])], key)
    assert result.rows == 8
    assert dict(zip(result.codes.tolist(), result.counts.tolist(), strict=True)) == {1: 3, 2: 1}


KEY = KeyColumns((("a", LONG),), (False,))


def test_fan_outs_of_other_keys() -> None:
    """Different integer types join, an empty key joins all rows, and no rows join none."""
    ints = pa.table({"a": pa.array([1, 1, 2], pa.int32())})
    one = counted([ints], KeyColumns((("a", INTEGER),), (False,)))
    assert fan_out(one, counted([table_of_keys([(1, None)])], KEY)) == pytest.approx(2 / 3)
    rows_ = [table_of_keys([(1, "x")] * count) for count in (3, 5)]
    assert fan_out(*(counted([part], KeyColumns((), ())) for part in rows_)) == 5
    some, none = counted(rows_, PAIR), counted([], PAIR)
    assert fan_out(none, some) == fan_out(some, none) == 0


def test_filtered_rows_give_no_tuples() -> None:
    key = KeyColumns((("a", LONG),), (False,), counted=(("b", STRING),), where=less("n", 2))
    result = counted([table_of_keys([(1, "x"), (1, "y"), (1, "x"), (2, "x")], n=[1, 2, 0, 3])], key)
    assert (result.codes.tolist(), result.counts.tolist()) == ([1], [1])
    assert (result.keys, result.together, result.rows, result.read) == (1, 1, 2, 4)


def test_no_matching_rows_and_no_rows() -> None:
    key = KeyColumns((("a", LONG),), (False,), counted=(("b", STRING),), where=less("n", 0))
    none = counted([table_of_keys([(1, "x")], n=[1])], key)
    assert (none.rows, none.read, none.share, none.keys) == (0, 1, 0.0, 0)
    assert counted([], key).share == 1.0


def test_failing_condition_is_reported() -> None:
    """It fails as in the engine, but not on rows that an earlier condition excludes."""
    inverse = Arithmetic(ArithmeticOp.INTEGER_DIVIDE, Literal(8, LONG), ColumnRef("n", LONG))
    failing = Compare(CompareOp.GREATER, inverse, Literal(1, LONG))
    rows_ = table_of_keys([(1, "x"), (2, "x")], n=[0, 2])
    with pytest.raises(EvaluationError):
        counted([rows_], KeyColumns(BOTH, (False, False), where=failing))
    some = Compare(CompareOp.NOT_EQUAL, ColumnRef("n", LONG), Literal(0, LONG))
    assert counted([rows_], KeyColumns(BOTH, (False, False), where=And((some, failing)))).rows == 1


def test_keys_are_sampled_before_the_condition() -> None:
    random = np.random.default_rng(7)
    keys, values = random.integers(0, 20_000, 200_000), random.integers(0, 10, 200_000)
    batch = pa.table({"a": keys, "n": values})
    key = KeyColumns((("a", LONG),), (False,), where=less("n", 3))
    exact, sampled = counted([batch], key), counted([batch], key, 16)
    assert (sampled.rows, sampled.share) == (exact.rows, exact.share)
    assert sampled.keys == pytest.approx(exact.keys, rel=0.1)
    assert sampled.together == pytest.approx(exact.together, rel=0.1)
    assert fan_out(sampled, sampled) == pytest.approx(fan_out(exact, exact), rel=0.1)


def counts(values: np.ndarray, sample: int) -> KeyCounts:
    return counted([pa.table({"a": values})], KEY, sample)


@pytest.mark.parametrize("step", [1, 16, 1 << 20])
def test_sample_is_unbiased_for_keys_with_a_common_factor(step: int) -> None:
    """Multiples of a number are sampled like other keys."""
    random = np.random.default_rng(5)
    left = random.integers(0, 20_000, 60_000) * step
    right = random.integers(0, 20_000, 100_000) * step
    exact = fan_out(counts(left, 1), counts(right, 1))
    sampled = fan_out(counts(left, 16), counts(right, 16))
    assert exact == pytest.approx(5, rel=0.05)
    assert sampled == pytest.approx(exact, rel=0.1)
    assert len(counts(left, 16).codes) == pytest.approx(len(counts(left, 1).codes) / 16, rel=0.1)


def test_large_tables_are_sampled_alike() -> None:
    assert one_in(10, MANY_ROWS) == 1
    assert one_in(10, MANY_ROWS + 1) == 16
    with pytest.raises(AssertionError):
        fan_out(counts(np.arange(3), 1), counts(np.arange(3), 16))


def test_key_counts_of_a_table(tmp_path: Path) -> None:
    files = table_of_keys([(1, "x"), (None, "x")], n=[1, 2]), table_of_keys([(1, "x")], n=[3])
    create_laid_out_table(str(tmp_path / "t"), files)
    snapshot = handmade.open_table(tmp_path / "t").snapshot()
    result = key_counts(snapshot, PAIR)
    assert (result.rows, result.counts.tolist()) == (3, [2])
    assert key_counts(snapshot, KeyColumns((), ())).counts.tolist() == [3]
    where = KeyColumns(BOTH, (False, False), where=less("n", 3))
    assert where.names == ("a", "b", "n")
    result = key_counts(snapshot, where)
    assert (result.rows, result.read, result.counts.tolist()) == (2, 3, [1])


@pytest.mark.parametrize("share", [2, 16])
def test_counts_are_sampled_afterwards(share: int) -> None:
    rng = Random(share)
    keys = [rng.randrange(500) for _ in range(3000)]
    parts = [pa.table({"a": pa.array(keys[start::3], pa.int64())}) for start in range(3)]
    result, direct = sampled_counts(counted(parts, KEY), share), counted(parts, KEY, share)
    assert result.codes.tolist() == direct.codes.tolist()
    assert result.counts.tolist() == direct.counts.tolist()
    assert (result.rows, result.read, result.one_in) == (direct.rows, direct.read, direct.one_in)
    assert 0 < len(result.codes) < 500
