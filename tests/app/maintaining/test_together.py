"""Steps of several queries are one commit: told only where it holds, and their state kept then."""

from __future__ import annotations

import errno
import math
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.compile.session import MaintainedQuery
from impctl.service.capture import capture
from impctl.service.context import open_workbench
from impctl.service.kept_states import KeptStates
from impctl.service.maintain import maintain
from impctl.service.results import MaintainResult, Outcome
from impctl.service.settings import Settings
from impctl.store.disk import RealDisk
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table

FILE = """
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4, 6]}}}
queries:
  many: {sql: "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 2", sketch: {t: g}}
  sums:
    sql: "SELECT g, SUM(10 / x) s FROM t GROUP BY g HAVING SUM(10 / x) > 20"
    sketch: {t: g}
    policy: incremental
  each:
    sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 20"
    sketch: {t: g}
    maintain: eager
store: .impctl
"""


def rows(x: int, *groups: int) -> pa.Table:
    return pa.table({"g": pa.array(groups, pa.int64()), "x": pa.array([x] * len(groups))})


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    create_table(str(tmp_path / "t"), rows(10, 0, 0, 0, 3, 3, 5))
    file = tmp_path / "w.yaml"
    file.write_text(FILE)
    with open_workbench(Settings(workload=file)) as desk:
        assert not capture(desk, None).failures
    return file


def append(workload: Path, x: int, *groups: int) -> None:
    write_deltalake(str(workload.parent / "t"), rows(x, *groups), mode="append")


def maintained(workload: Path, kept: KeptStates | None = None) -> Outcome:
    with open_workbench(Settings(workload=workload)) as desk:
        return maintain(desk, None, 1, kept)


def versions(workload: Path) -> list[int]:
    with Store.open(workload.parent / ".impctl") as store:
        result = [store.load(query) for query in ("many", "sums", "each")]
        return [stored.versions["t"] for stored in result if stored is not None]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A True per commit that waits for the disk; with `[False]` in it all are refused.

    That one took long is not told, which on a busy disk would be another.
    """
    seen: list[bool] = []
    real = RealDisk.commit

    def commit(self: RealDisk, connection: sqlite3.Connection) -> None:
        if seen == [False]:
            raise OSError(errno.EIO, "no")
        is_synced = connection.execute("PRAGMA synchronous").fetchone() == (2,)
        seen.extend([True] if is_synced else [])
        real(self, connection)

    monkeypatch.setattr("impctl.service.capture._WORTH_TELLING_MS", math.inf)
    monkeypatch.setattr(RealDisk, "commit", commit)
    return seen


@pytest.mark.slow
def test_all_queries_are_one_commit(workload: Path, commits: list[bool]) -> None:
    append(workload, 10, 5)
    append(workload, 10, 3)
    outcome = maintained(workload)
    assert not outcome.failures
    assert commits == [True]
    assert versions(workload) == [2, 2, 2]
    results = [r for r in outcome.results if isinstance(r, MaintainResult)]
    assert [len(r.steps) for r in results] == [0, 0, 2]


@pytest.mark.slow
def test_a_query_that_fails_is_alone(workload: Path) -> None:
    append(workload, 0, 5)
    outcome = maintained(workload)
    assert [failure.query for failure in outcome.failures] == ["sums"]
    assert versions(workload) == [1, 0, 1]


def test_where_the_commit_fails_nothing_is_told_and_nothing_kept(
    workload: Path, commits: list[bool]
) -> None:
    kept = KeptStates()
    append(workload, 10, 5)
    commits.append(False)
    outcome = maintained(workload, kept)
    assert outcome.results == ()
    assert [failure.query for failure in outcome.failures] == ["many", "sums", "each"]
    commits.clear()
    assert versions(workload) == [0, 0, 0]
    outcome = maintained(workload, kept)
    assert not outcome.failures
    assert versions(workload) == [1, 1, 1]


@pytest.mark.slow
def test_state_that_was_kept_is_not_read_again(
    workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptStates()
    append(workload, 10, 5)
    assert not maintained(workload, kept).failures
    read: list[str] = []
    real = Store.load_runs

    def load_runs(self: Store, query: str, beginning: str = "") -> object:
        read.append(query)
        return real(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", load_runs)
    append(workload, 10, 5)
    assert not maintained(workload, kept).failures
    assert read == []
    assert versions(workload) == [2, 2, 2]
    # What another process did in between is no state of ours.
    append(workload, 10, 5)
    assert not maintained(workload).failures
    read.clear()
    append(workload, 10, 5)
    assert not maintained(workload, kept).failures
    assert sorted(read) == ["each", "many", "sums"]


def test_of_states_kept_the_latest_ones_that_fit_stay(
    workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(workload, 10, 5)
    whole = KeptStates()
    assert not maintained(workload, whole).failures
    # Sizes of states grow with the tables, so they are taken as equally large.
    monkeypatch.setattr(MaintainedQuery, "state_bytes", lambda self: 10)
    for limit, left in ((30, ["many", "sums", "each"]), (29, ["sums", "each"]), (9, [])):
        kept = KeptStates(limit)
        append(workload, 10, 5)
        assert not maintained(workload, kept).failures
        assert list(kept._kept) == left
    assert all(held.bytes > 0 for held in whole._kept.values())
