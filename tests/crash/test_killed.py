"""kill -9 of real commands at random moments, again and again."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from impctl.service.settings import FUZZ
from tests.crash.processes import ran, start, until_open
from tests.crash.small import KEPT, change, check_nothing_left, check_store, newest, write_workload
from tests.support.run_cli import Cli

pytestmark = pytest.mark.slow

ROUNDS = 12 * int(os.environ.get(FUZZ, "1"))
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("maintain",),
    ("capture",),
    ("maintain",),
    ("gc", "--keep", "1"),
    ("capture", "--rebalance"),
    ("query", "--query", KEPT, "--by", "state"),
)


def test_killed_commands_leave_a_store_that_goes_on(
    cli: Cli, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    workload, table, store = cli.workload, tmp_path / "t", tmp_path / ".impctl"
    assert ran(workload, "capture").code == 0
    draw = random.Random(5)
    spans: dict[str, float] = {}
    killed, versions = 0, {"by_g": 0, "by_x": 0}
    for number in range(4 * ROUNDS):
        # How many still run when they are killed depends on the machine and its load.
        if number >= ROUNDS and killed >= ROUNDS // 2:
            break
        change(table, number + 2)
        command, *words = COMMANDS[number % len(COMMANDS)]
        process = start(workload, command, *words)
        opened = until_open(process, store)
        span = spans.get(command, 0.5)
        with suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0, span))
            spans[command] = min(span, time.monotonic() - opened)
        process.kill()
        process.communicate()
        killed += process.returncode == -9
        held = check_store(store, table)
        now = {name: stored.versions["t"] for name, stored in held.items()}
        assert all(now[name] >= version for name, version in versions.items())
        versions = now
        assert {result["query"] for result in cli.good("status").results} == set(now)
        if number % 3 == 2:
            cli.good("maintain")
            current = {stored.versions["t"] for stored in check_store(store, table).values()}
            assert current == {newest(table)}
            by_state, by_engine = (_answer(cli, by) for by in ("state", "engine"))
            assert by_state == by_engine != []
            cli.good("gc", "--keep", "1")
            check_nothing_left(store)
            (again,) = cli.good("gc", "--keep", "1", "--dry-run").results
            assert again["entries"] == []
    record_property("killed", killed)
    assert killed >= ROUNDS // 2


def _answer(cli: Cli, by: str) -> list[object]:
    (result,) = cli.good("query", "--query", KEPT, "--by", by).results
    assert result["by"] == by
    return sorted(result["rows"], key=repr)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    # Rows enough for files of state beside the catalog.
    return Cli(capsys, write_workload(tmp_path, rows=30_000))
