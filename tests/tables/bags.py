"""Rows as bags, so that tables and their changes are compared without order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.data.schema import Kind
from impctl.tables.changes import Changes, read_changes
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource, open_source

Bag = dict[str, int]

_FALLBACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "delta-fixtures"


def bag(table: pa.Table) -> Bag:
    """Each distinct row with the number of times it occurs."""
    return dict(Counter(_rows(table)))


def weighted_bag(table: pa.Table, weights: Iterable[int]) -> Bag:
    """Each distinct row with the sum of its weights; rows that cancel out are left out."""
    total: Counter[str] = Counter()
    for row, weight in zip(_rows(table), weights, strict=True):
        total[row] += int(weight)
    return {row: weight for row, weight in total.items() if weight}


def minus(left: Bag, right: Bag) -> Bag:
    """The signed difference of two bags."""
    rows = left.keys() | right.keys()
    result = {row: left.get(row, 0) - right.get(row, 0) for row in rows}
    return {row: weight for row, weight in result.items() if weight}


def _rows(table: pa.Table) -> list[str]:
    return [repr(row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def readable_columns(snapshot: Snapshot) -> list[str]:
    """The columns whose values impctl reads itself."""
    return [column.name for column in snapshot.schema if column.type.kind is not Kind.OTHER]


def fixture_tables() -> Sequence[object]:
    """The tables written by Spark and others, one parameter each; one skipped one where absent."""
    folder = Path(os.environ.get("IMPCTL_FIXTURES", _FALLBACK))
    if not folder.is_dir():
        reason = f"no Delta fixture tables in {folder}; name their folder in IMPCTL_FIXTURES"
        return [pytest.param(folder, marks=pytest.mark.skip(reason=reason), id="absent")]
    return [pytest.param(path, id=path.name) for path in sorted(folder.iterdir())]


def fixture_table(name: str) -> Path:
    """One of them; the test is skipped, with the reason, where they are absent."""
    path = Path(os.environ.get("IMPCTL_FIXTURES", _FALLBACK)) / name
    if not path.is_dir():
        pytest.skip(f"no Delta fixture table {path}; name their folder in IMPCTL_FIXTURES")
    return path


def written(path: Path, *files: pa.Table, **options: Any) -> Snapshot:
    """A table of these files, as deltalake writes it."""
    for rows in files:
        write_deltalake(str(path), rows, mode="append", **options)
    return open_source("t", str(path)).snapshot()


def check(source: DeltaSource, since: int, until: int, method: str) -> Changes:
    """The changes are the difference of the two snapshots, found the expected way."""
    before, after = source.snapshot(since), source.snapshot(until)
    columns = [name for name in readable_columns(after) if before.schema.find(name) is not None]
    expected = minus(bag(read_rows(after, columns)), bag(read_rows(before, columns)))
    result = read_changes(source, since, until, columns)
    assert weighted_bag(result.table, result.weights) == expected
    assert result.method == method
    assert result.rows == len(result.weights) == result.table.num_rows
    assert result.weights.dtype == np.int64
    return result
