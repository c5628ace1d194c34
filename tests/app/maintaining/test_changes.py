"""A change cut into batches of whole versions, and read once for all who need it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.errors import SchemaChangedError
from impctl.service import table_deltas as shared_changes
from impctl.service.table_deltas import Need, SharedChanges, VersionedChange, by_version
from impctl.tables.changes import Changes


def change(versions: list[int] | None, rows: int | None = None) -> Changes:
    """Rows numbered 0, 1, ... with weights that tell them apart."""
    count = len(versions) if versions is not None else (rows or 0)
    table = pa.table({"row": pa.array(range(count), pa.int64())})
    result = None if versions is None else np.array(versions, dtype=np.int64)
    return Changes(table, np.arange(count, dtype=np.int64) * 10, "change_feed", result)


def rows_of(batch: VersionedChange) -> list[int]:
    rows: list[int] = batch.changes.table.column("row").to_pylist()
    assert batch.changes.weights.tolist() == [10 * row for row in rows]
    assert batch.changes.method == "change_feed"
    return rows


@pytest.mark.slow
@given(st.lists(st.integers(3, 9), min_size=1, max_size=30), st.integers(1, 12))
def test_batches_are_whole_versions_in_order(versions: list[int], batch_rows: int) -> None:
    batches = by_version(change(versions), 11, batch_rows)
    seen: list[int] = []
    since = 0
    for batch in batches:
        rows = rows_of(batch)
        assert {versions[row] for row in rows} <= set(range(since + 1, batch.version + 1))
        expected = [row for row, v in enumerate(versions) if since < v <= batch.version]
        assert sorted(rows) == expected, "a version is in one batch, all of it"
        assert [versions[row] for row in rows] == sorted(versions[row] for row in rows)
        assert len(rows) >= batch_rows or batch is batches[-1]
        seen += rows
        since = batch.version
    assert sorted(seen) == list(range(len(versions)))
    assert batches[-1].version == 11


@pytest.mark.slow
@given(st.lists(st.integers(3, 9), min_size=1, max_size=30), st.integers(1, 12))
def test_batches_are_no_larger_than_need_be(versions: list[int], batch_rows: int) -> None:
    """Without its last version a batch would be too small."""
    for batch in by_version(change(versions), 9, batch_rows):
        own = [versions[row] for row in rows_of(batch)]
        assert sum(1 for version in own if version != own[-1]) < batch_rows


def test_each_version_alone_and_all_at_once() -> None:
    versions = [4, 5, 5, 7]
    one_by_one = by_version(change(versions), 8, 1)
    assert [(b.version, rows_of(b)) for b in one_by_one] == [(4, [0]), (5, [1, 2]), (8, [3])]
    together = by_version(change(versions), 8, 1000)
    assert [(b.version, rows_of(b)) for b in together] == [(8, [0, 1, 2, 3])]


def test_rows_of_one_version_keep_their_order() -> None:
    batches = by_version(change([5, 4, 5, 4]), 5, 1)
    assert [rows_of(batch) for batch in batches] == [[1, 3], [0, 2]]


@pytest.mark.parametrize("given_", [change(None, 3), change([]), change(None, 0)])
def test_without_versions_there_is_one_batch(given_: Changes) -> None:
    (batch,) = by_version(given_, 6, 1)
    assert batch.version == 6
    assert batch.changes is given_


def need(*columns: str, since: int = 1, per_version: bool = False) -> Need:
    return Need("t", "id", since, 5, columns, per_version)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    result: list[tuple[Any, ...]] = []

    def commits(source: Any, since: int, until: int) -> str:
        return f"commits of {source} {since} to {until}"

    def read(source: Any, since: int, until: int, columns: Any, **more: Any) -> Changes:
        result.append((source, since, until, columns, more["table_id"], more["with_versions"]))
        assert more["commits"] == commits(source, since, until)
        return change(None, 1)

    monkeypatch.setattr(shared_changes, "read_commits", commits)
    monkeypatch.setattr(shared_changes, "read_changes", read)
    return result


def shared() -> SharedChanges:
    """Of tables whose sources are named, in a run that listens to nothing."""
    run: Any = SimpleNamespace(step=lambda text: None, source=lambda table: f"source of {table}")
    return SharedChanges(run, run)


def test_one_read_serves_all(reads: list[tuple[Any, ...]]) -> None:
    changes = shared()
    changes.announce([need("a", "b"), need("b", "c", per_version=True), need("z", since=2)])
    first, _ = changes.read(need("a", "b"))
    again, elapsed = changes.read(need("b", "c", per_version=True))
    assert again is first
    assert elapsed == 0
    assert reads == [("source of t", 1, 5, ("a", "b", "c"), "id", True)]
    changes.read(need("z", since=2))
    assert reads[1:] == [("source of t", 2, 5, ("z",), "id", False)]


def test_what_was_not_announced_is_read_all_the_same(reads: list[tuple[Any, ...]]) -> None:
    shared().read(need("a", per_version=True))
    assert reads == [("source of t", 1, 5, ("a",), "id", True)]


def test_a_column_of_another_query_harms_no_one_else(
    reads: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    willing = shared_changes.read_changes

    def read(source: Any, since: int, until: int, columns: Any, **more: Any) -> Changes:
        if "b" in columns:
            raise SchemaChangedError("Column `b` was replaced")
        return willing(source, since, until, columns, **more)

    monkeypatch.setattr(shared_changes, "read_changes", read)
    changes = shared()
    changes.announce([need("a"), need("a", "b"), need("c")])
    changes.read(need("a"))
    with pytest.raises(SchemaChangedError):
        changes.read(need("a", "b"))
    changes.read(need("c"))
    assert [columns for _, _, _, columns, _, _ in reads] == [("a",), ("c",)]


def test_the_log_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result: list[tuple[int, int]] = []
    monkeypatch.setattr(
        shared_changes, "read_commits", lambda source, since, until: result.append((since, until))
    )
    monkeypatch.setattr(shared_changes, "read_changes", lambda *a, **more: change(None, 1))
    changes = shared()
    assert changes.commits(need("a")) is None
    assert changes.commits(need("b")) is None
    changes.read(need("a"))
    changes.commits(need("a", since=2))
    assert result == [(1, 5), (2, 5)]
