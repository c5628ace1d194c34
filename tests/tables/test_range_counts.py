"""Rows per range by the log alone: what is told is what reading the files counts.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 1,000 cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from impctl.data.schema import DOUBLE, LONG, STRING, SqlType
from impctl.data.vector import from_arrow
from impctl.sketch.partition import RangePartition
from impctl.tables.prune import spread_counts, told_counts
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.random_cases import random_cases
from tests.tables.vectored import VectoredTable

KINDS: dict[str, tuple[SqlType, pa.DataType, list[Any], tuple[Any, ...]]] = {
    "long": (LONG, pa.int64(), list(range(-3, 9)), (-1, 0, 4)),
    "double": (
        DOUBLE,
        pa.float64(),
        [-math.inf, -1.5, -0.0, 0.0, 0.5, 2.5, 7.0, math.inf, math.nan],
        (0.0, 2.5),
    ),
    "string": (STRING, pa.string(), ["", "a", "ab", "b" * 40, "b" * 39 + "c", "z"], ("a", "b")),
}


def laid_out(path: Path, files: Iterable[pa.Table]) -> Snapshot:
    create_laid_out_table(str(path), files)
    return open_source("t", str(path)).snapshot()


def some(rng: Random, kind: str) -> pa.Table:
    """Rows of one value more often than not, now and then with NULL or another value."""
    _, arrow, values, _ = KINDS[kind]
    start = rng.randrange(len(values))
    near = values[start : start + rng.choice((1, 1, 2))]
    near += [None] * rng.choice((0, 0, 1)) + rng.sample(values, rng.choice((0, 0, 1)))
    if rng.random() < 0.1:
        near = [None]
    rows = [rng.choice(near) for _ in range(rng.randint(1, 5))]
    return pa.table({"v": pa.array(rows, arrow), "n": list(range(len(rows)))})


def check(snapshot: Snapshot, partition: RangePartition) -> int:
    """Files told; AssertionError where what is told is not what reading counts."""
    counts, untold = told_counts(snapshot, partition)
    left = {file.uri for file in untold}
    told = [file for file in snapshot.files if file.uri not in left]
    column = from_arrow(read_rows(snapshot, ["v"], told).column(0), partition.type)
    read = np.bincount(partition.fragments_of(column), minlength=partition.size)
    assert counts.tolist() == read.tolist()
    spread = spread_counts(snapshot, partition, untold, read)
    assert (spread >= 0).all()
    rows = sum(file.rows - (0 if file.deleted is None else len(file.deleted)) for file in untold)
    assert spread.sum() == rows
    return len(told)


@pytest.mark.slow
@random_cases(4, 6, 100)
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_told_is_what_is_read(tmp_path: Path, kind: str, cases: range) -> None:
    told = files = 0
    for seed in cases:
        rng = Random(seed)
        snapshot = laid_out(tmp_path / str(seed), [some(rng, kind) for _ in range(6)])
        told += check(snapshot, RangePartition("t", "v", KINDS[kind][0], KINDS[kind][3]))
        files += 6
    assert told > files // 10
    assert told < files


@random_cases(4, 6, 60)
def test_deleted_rows_are_not_counted(tmp_path: Path, cases: range) -> None:
    told = 0
    for seed in cases:
        rng, path = Random(seed), tmp_path / str(seed)
        table = VectoredTable(path, some(rng, "long"))
        for _ in range(3):
            table.append(some(rng, "long"))
        gone = rng.randint(0, 3)
        table.delete(lambda rows, gone=gone: pc.equal(rows["n"], gone))  # type: ignore[misc]  # bound now
        snapshot = open_source("t", str(path)).snapshot()
        told += check(snapshot, RangePartition("t", "v", LONG, (-1, 0, 4)))
    assert told > len(cases)


def test_only_the_files_asked_for_count(tmp_path: Path) -> None:
    snapshot = laid_out(tmp_path / "t", [pa.table({"v": [at, at]}) for at in range(4)])
    counts, untold = told_counts(
        snapshot, RangePartition("t", "v", LONG, (1, 2)), snapshot.uris[1:]
    )
    assert (counts.tolist(), untold) == ([0, 2, 4, 0], ())


def test_another_type_than_the_ranges_tells_nothing(tmp_path: Path) -> None:
    snapshot = laid_out(tmp_path / "t", [pa.table({"v": [1.5]})])
    counts, untold = told_counts(snapshot, RangePartition("t", "v", LONG, (1, 2)))
    assert (counts.sum(), len(untold)) == (0, 1)


def test_rows_are_spread_between_the_bounds_like_the_others(tmp_path: Path) -> None:
    files = [[0, 0, 0, 1], [0, 3, 3, 3, None], [5, 9], [None]]
    snapshot = laid_out(tmp_path / "t", [pa.table({"v": pa.array(v, pa.int64())}) for v in files])
    partition = RangePartition("t", "v", LONG, (1, 3, 5, 9))
    like = np.array([5, 1, 1, 0, 0, 0])
    spread = spread_counts(snapshot, partition, snapshot.files, like)
    # Three of four to the first of two ranges; of four 2.4, 0.8 and 0.8; one each; NULL apart.
    assert spread.tolist() == [5, 2, 1, 1, 1, 2]
    assert (spread.sum(), spread[-1]) == (12, 2)
