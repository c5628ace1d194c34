"""Commits as numbers: read from logs once, by sign, without moves, over gaps and other tables."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.forecast import KEPT, Arrival, History, effective_times
from impctl.tables import log as module
from impctl.tables.log import commit_history
from impctl.tables.source import open_source
from tests.tables.handmade import actions_of, entry


def rows(count: int) -> pa.Table:
    return pa.table({"a": list(range(count))})


def of(path: Path, held: History | None = None, **more: Any) -> History:
    return commit_history(open_source("t", str(path)), held, **more)


def add_entry(path: Path, version: int, rows: int, at: object, **more: Any) -> None:
    """A commit as a writer would leave it; `at` in seconds."""
    stamp = {} if at is None else {"timestamp": at * 1000 if isinstance(at, int | float) else at}
    stats = json.dumps({"numRecords": rows})
    file = {"path": f"f{version}", "size": 5, "stats": stats, "partitionValues": {}}
    actions = [
        {"commitInfo": {"operation": "WRITE", **stamp, **more}},
        {"add": {**file, "modificationTime": 0, "dataChange": True}},
    ]
    entry(path, version).write_text("\n".join(map(json.dumps, actions)))


def add_entries(path: Path, versions: range, rows: int | None = None) -> None:
    """One a second, each of so many rows or of as many as its version says."""
    for version in versions:
        add_entry(path, version, version if rows is None else rows, 1e9 + version)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "t"
    write_deltalake(str(place), rows(10))
    return place


def test_rows_are_told_apart_by_sign_and_moves_are_none(path: Path) -> None:
    write_deltalake(str(path), rows(4), mode="append")
    DeltaTable(str(path)).update(updates={"a": "a + 100"}, predicate="a = 9")
    DeltaTable(str(path)).delete("a < 2")
    DeltaTable(str(path)).optimize.compact()
    write_deltalake(str(path), rows(0), mode="append")
    write_deltalake(str(path), rows(3), mode="overwrite")
    result = of(path)
    assert [(e.version, e.inserted, e.deleted) for e in result.arrivals] == [
        (1, 4, 0), (2, 1, 1), (3, 0, 4), (result.until, 3, 10),
    ]  # fmt: skip
    # Alone the last entry does not tell how many rows the files held that it removed.
    held = History(result.table_id, result.until - 1, None)
    assert [(e.inserted, e.deleted) for e in of(path, held).arrivals] == [(3, None)]
    assert [e.operation for e in result.arrivals] == ["WRITE", "UPDATE", "DELETE", "WRITE"]
    assert all(e.files > 0 and e.bytes > 0 and not e.is_after_gap for e in result.arrivals)
    assert result.since == actions_of(path, 0)[0]["commitInfo"]["timestamp"] / 1000
    assert not result.has_missed


@pytest.mark.slow
def test_in_pieces_as_at_once_and_each_entry_is_read_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    before = module.read_entry

    def counted(source: Any, version: int) -> str:
        read.append(version)
        return before(source, version)

    monkeypatch.setattr(module, "read_entry", counted)
    generator = random.Random(3)
    held = None
    for version in range(1, 31):
        add_entry(path, version, generator.randrange(3), 1e9 + version)
        if generator.random() < 0.4:
            held = of(path, held)
    held = of(path, held)
    assert sorted(read) == list(range(31))
    assert held == of(path)
    assert of(path, held) is held
    texts = {v: entry(path, v).read_text() for v in range(20, 31)}
    read.clear()
    assert of(path, None, texts=texts) == held
    assert sorted(read) == list(range(20))


def test_no_more_than_the_latest_are_kept_or_read(path: Path) -> None:
    add_entries(path, range(1, KEPT + 30))
    result = of(path)
    assert [e.version for e in result.arrivals] == list(range(30, KEPT + 30))
    assert result.since == 1e9 + 30
    assert result.arrivals[0].is_after_gap
    add_entries(path, range(KEPT + 30, KEPT + 40))
    later = of(path, result)
    assert [e.version for e in later.arrivals] == list(range(40, KEPT + 40))
    assert later.since == 1e9 + 40
    assert not any(e.is_after_gap for e in later.arrivals)


def test_a_cleaned_log_keeps_what_is_known_and_leaves_a_gap(path: Path) -> None:
    add_entries(path, range(1, 4), 7)
    held = of(path)
    add_entries(path, range(4, 9), 7)
    source = open_source("t", str(path))
    for version in range(6):
        entry(path, version).unlink()
    result = commit_history(source, held)
    assert [e.version for e in result.arrivals] == [1, 2, 3, 6, 7, 8]
    assert [e.is_after_gap for e in result.arrivals] == [False] * 3 + [True] + [False] * 2
    assert result.since == held.since
    fresh = commit_history(source, None)
    assert [e.version for e in fresh.arrivals] == [6, 7, 8]
    assert (fresh.since, fresh.arrivals[0].is_after_gap) == (1e9 + 6, True)


def test_a_gap_before_commits_that_are_none_is_not_forgotten(path: Path) -> None:
    add_entry(path, 1, 7, 1e9)
    held = of(path)
    for version in range(2, 5):
        add_entry(path, version, 0, 1e9 + version)
    source = open_source("t", str(path))
    entry(path, 2).unlink()
    result = commit_history(source, held)
    assert ([e.version for e in result.arrivals], result.has_missed) == ([1], True)
    entry(path, 2).write_text(entry(path, 3).read_text())
    add_entry(path, 5, 7, 1e9 + 9)
    last = of(path, result)
    assert [(e.version, e.is_after_gap) for e in last.arrivals] == [(1, False), (5, True)]
    assert not last.has_missed


@pytest.mark.parametrize(
    "text",
    ["no json", "7", '{"add": 7}', '{"add": {"size": 7}}', '{"add": {"path": [], "size": "x"}}'],
)
def test_a_damaged_entry_is_a_gap_and_no_error(path: Path, text: str) -> None:
    add_entry(path, 1, 7, 1e9)
    held = of(path)
    add_entry(path, 2, 7, 1e9 + 1)
    source = open_source("t", str(path))
    entry(path, 2).write_text(text)
    result = commit_history(source, held)
    assert (result.arrivals, result.until, result.has_missed) == (held.arrivals, 2, True)


def test_another_table_begins_anew_and_a_shorter_log_keeps_its_part(
    path: Path, tmp_path: Path
) -> None:
    add_entries(path, range(1, 4), 7)
    held = of(path)
    entry(path, 3).unlink()
    shorter = of(path, held)
    assert ([e.version for e in shorter.arrivals], shorter.until) == ([1, 2], 2)
    shutil.rmtree(path)
    write_deltalake(str(path), rows(1))
    assert of(path, held).arrivals == ()
    assert of(path, held).table_id != held.table_id


@pytest.mark.parametrize(
    ("at", "known"),
    [(1e9, 1e9), (None, None), ("soon", None), (-5, None), (1e300, None)],
)
def test_the_time_is_the_commits_word_or_the_files(path: Path, at: object, known: object) -> None:
    add_entry(path, 1, 7, at)
    os.utime(entry(path, 1), (5e8, 5e8))
    (result,) = of(path).arrivals
    assert result.at == (5e8 if known is None else known)


def test_the_commits_own_clock_goes_before(path: Path) -> None:
    add_entry(path, 1, 7, 1e9, inCommitTimestamp=2e12)
    assert of(path).arrivals[0].at == 2e9


@pytest.mark.parametrize("metrics", [{"numDeletedRows": "-4"}, {"numDeletedRows": 10**30}, "?"])
def test_what_a_writer_counts_wrongly_stays_in_bounds(path: Path, metrics: object) -> None:
    add_entry(path, 1, 7, 1e9, operationMetrics=metrics)
    for each in of(path).arrivals:
        assert 0 <= (each.inserted or 0) < 2**63
        assert 0 <= (each.deleted or 0) < 2**63


def arrivals(*times: float | None) -> list[Arrival]:
    return [Arrival(v, at, 1, 0, 1, 1, "") for v, at in enumerate(times, start=1)]


@pytest.mark.parametrize(
    ("times", "effective"),
    [
        ((), []),
        ((1.0, 2.0, 2.0, 5.0), [1.0, 2.0, 2.0, 5.0]),
        ((1.0, 900.0, 3.0), [1.0, 1.0, 3.0]),
        ((5.0, 1.0, 6.0), [5.0, 5.0, 6.0]),
        ((900.0, 2.0, 3.0), [2.0, 2.0, 3.0]),
        ((None, 2.0, None, 3.0), [2.0, 2.0, 2.0, 3.0]),
        ((900.0, 901.0), [100.0, 100.0]),
    ],
)
def test_times_never_go_back_nor_ahead(times: Any, effective: list[float]) -> None:
    assert effective_times(arrivals(*times), 100.0) == effective
