"""Concurrent readers, writers and table changes in real processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from impctl.errors import LockHeldError
from impctl.service.context import open_context
from impctl.service.maintain import maintain
from impctl.service.settings import Settings
from impctl.service.status import status
from tests.behaviour.test_bad_input import held_lock
from tests.crash.processes import change, check_store, end, newest, ran, start, write_workload
from tests.support.run_cli import Capsys, Cli

WORKLOAD_ROWS = 600


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_workload(tmp_path, WORKLOAD_ROWS)).captured()


@contextmanager
def concurrent_changes(table: Path) -> Iterator[list[int]]:
    """Another thread commits to the table continuously and counts in the list."""
    is_over, counts = threading.Event(), [0]

    def work() -> None:
        while not is_over.wait(0.02):
            counts[0] += 1
            change(table, counts[0] * 3)  # appends only: a delete may meet a concurrent one

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        thread.join()


@pytest.mark.slow
def test_readers_and_writers_on_a_changing_table(cli: Cli, tmp_path: Path) -> None:
    """No run fails, and the stored sketches are accurate."""
    with concurrent_changes(tmp_path / "t") as counts:
        running = [start(cli.workload, "maintain") for _ in range(2)]
        running += [start(cli.workload, "status")]
        running += [start(cli.workload, "rewrite", "--query", q) for q in ("by_g", "by_x")]
        reads = [end(process) for process in running]
        check_store(tmp_path / ".impctl", tmp_path / "t")
    assert counts[0] > 2
    assert [done.document["error"] for done in reads if done.code != 0] == []
    assert not any(result.get("stale_reason", "") and "not the one" in result["stale_reason"]
                   for done in reads for result in done.document["results"])  # fmt: skip
    cli.good("maintain")
    stored_queries = check_store(tmp_path / ".impctl", tmp_path / "t")
    assert {stored.versions["t"] for stored in stored_queries.values()} == {newest(tmp_path / "t")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("maintain",),
        pytest.param(("capture",), marks=pytest.mark.long),
        pytest.param(("gc",), marks=pytest.mark.long),
        pytest.param(("rewrite", "--query", "by_g", "--require-sketch"), marks=pytest.mark.long),
    ],
)
def test_second_writer_names_the_first(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    change(tmp_path / "t", 2)
    with held_lock(tmp_path / ".impctl") as holder:
        readers = [start(cli.workload, "status") for _ in range(2)]
        done = ran(cli.workload, *words, "--lock-timeout", "0.4")
        assert [end(reader).code for reader in readers] == [0, 0]
        assert done.code == 6
        error = done.document["error"]
        assert error["code"] == "lock_held"
        assert f"process {holder.pid} on host `" in error["message"]
        assert "running `a test that waits`, for " in error["message"]
        waiting = start(cli.workload, words[0], *words[1:], "--lock-timeout", "60")
        time.sleep(1)
    # The holder has been killed, so the waiting command gets the lock.
    assert end(waiting).code == 0


def test_readers_of_current_sketches_do_not_wait(cli: Cli, tmp_path: Path) -> None:
    with held_lock(tmp_path / ".impctl"):
        started = time.monotonic()
        for query in ("by_g", "by_x"):
            cli.good("rewrite", "--query", query, "--lock-timeout", "60")
        cli.good("status")
        cli.good("maintain", "--lock-timeout", "60")
        cli.good("gc", "--dry-run", "--lock-timeout", "60")
        assert time.monotonic() - started < 30


def test_lock_timeout_applies_once_per_command(cli: Cli, tmp_path: Path) -> None:
    """Reuse maintains each stale candidate first; together they wait for one timeout."""
    change(tmp_path / "t", 2)
    settings = Settings(cli.workload, lock_timeout=0.6)
    with held_lock(tmp_path / ".impctl"), open_context(settings) as ctx:
        started = time.monotonic()
        for _ in range(5):
            with pytest.raises(LockHeldError), ctx.writing("query"):
                pass
        assert 0.6 <= time.monotonic() - started < 1.8


def test_overtaken_run_pins_again(cli: Cli, tmp_path: Path) -> None:
    """Another run maintained the store past the pinned version; the table is still the same."""
    change(tmp_path / "t", 2)
    settings = Settings(cli.workload)
    with open_context(settings) as reader, open_context(settings) as writer:
        assert reader.tables.source("t").version == writer.tables.source("t").version == 1
        change(tmp_path / "t", 3)
        assert ran(cli.workload, "maintain").code == 0
        assert [result.stale for result in status(reader, ()).results] == [False, False]
        outcome = maintain(writer, ())
    assert outcome.failures == ()
    assert [(r.action, r.versions) for r in outcome.results] == [("none", {"t": 2})] * 2


def test_killed_holder(cli: Cli, tmp_path: Path) -> None:
    change(tmp_path / "t", 2)
    with held_lock(tmp_path / ".impctl") as holder:
        pass
    messages = cli.good("maintain", "-v").stderr
    assert f"Recovered the lock of a run that ended early: process {holder.pid}" in messages
