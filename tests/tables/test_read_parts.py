"""Reads in parts give all rows of whole ranges; brute force is the judge.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 10,000 cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from impctl.data.schema import DOUBLE, LONG, SqlType
from impctl.sketch import sketch
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, RangeFilter
from impctl.tables import rows as read_parts
from impctl.tables.rows import PartedRead, parted_read
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.source import open_source
from tests.support.random_cases import random_cases
from tests.tables.handmade import add, create, stats

Values = list[Any]
KINDS: dict[str, SqlType] = {"long": LONG, "double": DOUBLE}


def table(folder: Path, files: Sequence[Values], kind: str, *, has_stats: bool = True) -> Snapshot:
    """A table of which the log alone is there; its bounds say nothing of NaN."""
    adds = []
    for at, values in enumerate(files):
        plain = [value for value in values if value is not None and value == value]
        limits = {"v": (min(plain), max(plain))} if plain else {}
        told = {"stats": stats(len(values), {"v": values.count(None)}, **limits)}
        told = told if has_stats or at % 2 else {}
        adds.append(add(f"{at}.parquet", len(values), **told))
    return open_source("t", create(folder, {"v": kind}, *adds)).snapshot()


def is_wanted(value: Any, wanted: RangeFilter) -> bool:
    """What the filter is in Spark: its intervals, and IS NULL."""
    if value is None:
        return wanted.includes_null
    return any(
        (result.low is None or value != value or value >= result.low)
        and (result.high is None or value < result.high)
        for result in wanted.intervals
    )


def rows_read(read: PartedRead, rows: Sequence[Values]) -> list[str]:
    def of(file: DataFile) -> Values:
        return rows[int(file.uri.rpartition("/")[2].removesuffix(".parquet"))]

    return sorted(
        repr(value)
        for part in read.parts
        for file in part.files
        for value in of(file)
        if part.filter is None or is_wanted(value, part.filter)
    )


def random_files(rng: Random, kind: str) -> list[Values]:
    """Sorted, nearly sorted or random values, some NULL and NaN among them."""
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
    return [values[at : at + size] for at in range(0, len(values), size)]


def judge(folder: Path, case: int, most_intervals: int) -> tuple[int, int]:
    """Files read, and files that hold wanted rows of the sketch."""
    rng = Random(f"parts {case}")
    kind = rng.choice(list(KINDS))
    files = random_files(rng, kind)
    snapshot = table(folder, files, kind, has_stats=rng.random() < 0.8)
    cuts: Values = sorted(rng.sample(range(1, 60), rng.randint(0, 40)))
    boundaries = tuple(map(float, cuts)) if kind == "double" else tuple(cuts)
    partition = RangePartition("t", "v", KINDS[kind], boundaries)
    share = rng.choice((0.02, 0.2, 0.5, 0.9, 1.0))
    ids = [at for at in range(partition.size) if rng.random() < share]
    read = parted_read(snapshot, FragmentSet.of(ids, partition.size), partition)
    needed = sketch.exact_filter(FragmentSet.of(ids, partition.size), partition)
    assert rows_read(read, files) == sorted(
        repr(v) for file in files for v in file if is_wanted(v, read.wanted)
    )
    for values in files:
        assert all(is_wanted(v, read.wanted) for v in values if is_wanted(v, needed))
    for boundary in (math.nan if kind == "double" else 99, *boundaries, None):
        assert is_wanted(boundary, read.wanted) >= is_wanted(boundary, needed)
    assert sum(part.filter is not None for part in read.parts) <= read_parts.MAX_PARTS
    for part in read.parts:
        assert part.filter is None or len(part.filter.intervals) <= most_intervals + 1
    return (
        sum(len(part.files) for part in read.parts),
        sum(any(is_wanted(v, needed) for v in values) for values in files),
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Small limits, so that gaps are closed and parts made with a few dozen values."""
    monkeypatch.setattr(read_parts, "MAX_INTERVALS", 3)
    monkeypatch.setattr(read_parts, "MAX_PARTS", 4)
    return 3


def judge_all(folder: Path, cases: range, most_intervals: int) -> tuple[int, int]:
    result = [judge(folder / str(case), case, most_intervals) for case in cases]
    return sum(read for read, _ in result), sum(needed for _, needed in result)


@random_cases(34, 57, 1000)
def test_all_rows_of_whole_ranges(tmp_path: Path, cases: range, few: int) -> None:
    read, needed = judge_all(tmp_path, cases, few)
    assert needed <= read < 1.5 * needed


def test_every_part_with_a_file_that_may_hold_nan_keeps_it(tmp_path: Path, few: int) -> None:
    """Each file also has a value between wanted ranges, so that all of them need a filter."""
    files: list[Values] = [[5.0, 15.0, math.nan], [25.0, 35.0], [65.0, 75.0], [85.0, 95.0, 105.0]]
    snapshot = table(tmp_path, files, "double")
    partition = RangePartition("t", "v", DOUBLE, tuple(10.0 * at for at in range(1, 11)))
    read = parted_read(snapshot, FragmentSet.of([0, 2, 4, 6, 8, 10], partition.size), partition)
    assert len(read.wanted.intervals) > few
    assert rows_read(read, files) == ["105.0", "25.0", "5.0", "65.0", "85.0", "nan"]


def test_files_of_wanted_ranges_alone_have_no_filter(tmp_path: Path) -> None:
    snapshot = table(tmp_path, [[0, 9], [10, 19], [15, 25]], "long")
    partition = RangePartition("t", "v", LONG, (10, 20))
    read = parted_read(snapshot, FragmentSet.of([1], partition.size), partition)
    assert [(len(part.files), part.filter is None) for part in read.parts] == [
        (1, True),
        (1, False),
    ]


def test_scattered_ranges_of_a_sorted_table_are_read_alone(tmp_path: Path) -> None:
    """More ranges than a filter has: 100 of 400 files hold them, and no other file is read."""
    files: list[Values] = [[at * 10, at * 10 + 10] for at in range(400)]
    snapshot = table(tmp_path, files, "long")
    cuts = tuple(cut for at in range(400) for cut in (at * 10, at * 10 + 1))[1:]
    partition = RangePartition("t", "v", LONG, cuts)
    wanted = [at for at in range(partition.ranges) if at % 8 == 2]
    read = parted_read(snapshot, FragmentSet.of(wanted, partition.size), partition)
    assert len(wanted) == 100
    assert sum(len(part.files) for part in read.parts) <= 200
    assert len(read.parts) == math.ceil(100 / sketch.MAX_INTERVALS)
