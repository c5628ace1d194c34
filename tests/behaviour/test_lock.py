"""One writer at a time, readers never wait: with a real second process that holds the lock."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS

HOLDER = """
import sys, time
from pathlib import Path
from impctl.store.store import Store
with Store.open(Path(sys.argv[1])) as store, store.lock(5, "a test that waits"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held_lock(store: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the writer's lock while the block runs."""
    command = [sys.executable, "-P", "-c", HOLDER, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


@pytest.mark.spark
def test_a_second_writer_waits_then_names_the_holder(
    cli: Cli, table: str, tmp_path: Path, spark: Any
) -> None:
    cli.good("capture")
    write_deltalake(table, ROWS.slice(0, 1), mode="append")
    with held_lock(tmp_path / ".impctl") as holder:
        started = time.monotonic()
        ran = cli("maintain", "--lock-timeout", "0.3")
        assert time.monotonic() - started < 10
        assert (ran.code, ran.error["code"]) == (6, "lock_held")
        assert str(holder.pid) in ran.error["message"]
        assert cli.good("status").results[0]["stale"] is True
    # The holder was killed: its lock is recovered, the change is maintained.
    assert cli.good("maintain").results[0]["action"] == "exact"


@pytest.mark.spark
def test_readers_of_a_current_sketch_do_not_wait(cli: Cli, tmp_path: Path, spark: Any) -> None:
    cli.good("capture")
    with held_lock(tmp_path / ".impctl"):
        assert cli.good("rewrite", "--query", "q").results[0]["sql"].startswith("SELECT g")
        assert cli.good("maintain", "--lock-timeout", "0.1").results[0]["action"] == "none"
