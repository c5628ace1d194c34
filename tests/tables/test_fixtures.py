"""Tables written by Spark and others read as deltalake's own scan reads them."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from impctl.errors import HistoryGoneError, SchemaChangedError
from impctl.tables.changes import read_changes, read_file_diff
from impctl.tables.rows import read_rows
from impctl.tables.source import DeltaSource, open_source
from tests.tables.bags import bag, fixture_tables, minus, readable_columns, weighted_bag

WITHOUT_DATA_FILES = {"checkpoints_vacuumed", "spark-variant-stable-feature-checkpoint"}
"""These fixtures hold a log only."""
WRONG_IN_DELTALAKE = {"table_with_edge_timestamps"}
"""INT96 timestamps in year 9999, which deltalake reads as 1816."""


@pytest.mark.slow
@pytest.mark.parametrize("path", fixture_tables())
def test_newest_snapshot_reads_as_scan_does(path: Path) -> None:
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
    compared = 0
    for since, until in combinations(_sparse_versions(source), 2):
        compared += _compare(source, since, until)
    assert compared > 0 or source.version == 0 or path.name == "table_with_partitioning_mapping"


def _sparse_versions(source: DeltaSource) -> list[int]:
    """All versions of a short history; every third one, and the last, of a long one."""
    step = 1 if source.version < 12 else 3
    return sorted({*range(0, source.version + 1, step), source.version})


def _compare(source: DeltaSource, since: int, until: int) -> int:
    try:
        before, after = source.snapshot(since), source.snapshot(until)
    except HistoryGoneError:
        _expect_gone_or_feed(source, since, until)
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


def _expect_gone_or_feed(source: DeltaSource, since: int, until: int) -> None:
    """Without the older snapshot only the feed's own commits can still answer."""
    with suppress(HistoryGoneError):
        assert read_changes(source, since, until, []).method == "change_feed"
