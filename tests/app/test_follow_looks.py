"""Looks and runs of a process that follows, in this process: what it looks at between two runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.follow import _Following
from impctl.app.maintaining import watch as looking
from impctl.app.maintaining.watch import Watch
from impctl.app.workbench.settings import FollowRequest, Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.errors import LockHeldError, StorageError
from impctl.store.store import Store
from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS, WORKLOAD

QUERIES = """
  three: {sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 20", sketch: {t: g},
          policy: incremental, trigger: {rows: 3}}
  night: {sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 21", sketch: {t: g},
          policy: incremental, trigger: {point: nightly}}
store: .impctl
"""


@pytest.fixture
def following(cli: Cli) -> Iterator[_Following]:
    """Following `q`, on each commit, `three` and `night`; the first look is done."""
    cli.workload.write_text(cli.workload.read_text().replace("store: .impctl\n", QUERIES[1:]))
    cli.good("capture")
    with open_workbench(Settings(cli.workload, lock_timeout=0.0)) as desk:
        found = _Following(desk, desk.sketched(None), None, FollowRequest(interval=1.0))
        work(found)
        assert work(found) == []
        yield found


def work(following: _Following) -> list[str]:
    """One turn of the loop; the queries that a run took."""
    ready, due = following.due()
    if not ready and not due:
        return []
    following.run(ready, due, lambda outcome, run: None)
    return [*ready, *(one.query for one in due)]


def append(table: str, rows: int) -> None:
    write_deltalake(table, ROWS.slice(0, rows), mode="append")


@pytest.mark.slow
def test_each_by_its_trigger(following: _Following, table: str) -> None:
    append(table, 2)
    assert work(following) == ["q"]
    assert work(following) == []
    append(table, 1)
    assert work(following) == ["q", "three"]
    assert work(following) == []


@pytest.mark.slow
def test_what_came_between_a_look_and_its_run_is_new_to_the_others(
    following: _Following, table: str
) -> None:
    append(table, 1)
    ready, due = following.due()
    assert (ready, due) == (["q"], [])
    append(table, 2)
    following.run(ready, due, lambda outcome, run: None)
    assert "three" in work(following)


@pytest.mark.slow
def test_a_look_that_failed_leaves_all_as_new(
    following: _Following, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 3)
    with monkeypatch.context() as patch:
        patch.setattr(following.followed, "look", lambda desk: False)
        following._look()
    assert work(following) == ["q", "three"]


def test_a_lock_puts_off_and_another_process_may_do_it_meanwhile(
    following: _Following, cli: Cli, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 3)

    def held(*_: Any, **__: Any) -> Any:
        raise LockHeldError("another process writes")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "lock", held)
        assert work(following) == ["q", "three"]
        assert work(following) == [], "both are put off"
    cli.good("maintain")
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert "three" not in work(following)
    assert following.retries.next_due() is None, "what is not due is not put off for ever"
    assert following.pause() > 0


@pytest.mark.slow
def test_a_look_that_failed_after_a_run_is_made_up_for(
    following: _Following, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 1)
    ready, due = following.due()
    append(table, 2)
    with monkeypatch.context() as patch:
        patch.setattr(following.followed, "look", lambda desk: False)
        following.run(ready, due, lambda outcome, run: None)
    assert "three" in work(following)


def test_a_log_that_could_not_be_read_is_no_news_until_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    (tmp_path / "w.yaml").write_text(WORKLOAD.replace("POLICY", "auto"))
    watch = Watch()

    def away(*_: Any) -> Any:
        # As an object store answers, which a test has none of.
        raise StorageError("Table `t` cannot be reached")

    with open_workbench(Settings(tmp_path / "w.yaml")) as desk:
        watch.pinned()
        desk.tables.source("t")
        watch.saw(desk)
        assert not watch.is_due(desk)
        with monkeypatch.context() as patch:
            patch.setattr(looking, "has_new_log", away)
            patch.setattr(looking, "log_end", away)
            patch.setattr(looking, "pinned_anew", away)
            assert watch.is_due(desk)
            watch.saw(desk.next_run(watch.pinned()))  # the run could not open it either
            assert not watch.is_due(desk)
            # It came back while the run was still at it, which had found none.
            run = desk.next_run(watch.pinned())
            patch.setattr(looking, "log_end", lambda _: "another")
            patch.setattr(looking, "has_new_log", lambda _: True)
            watch.saw(run)
            assert watch.is_due(desk)
        write_deltalake(str(tmp_path / "t"), pa.table(ROWS), mode="append")
        assert watch.is_due(desk)
