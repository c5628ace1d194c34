"""A failure at any step of a whole command leaves a usable store; `gc` removes the rest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from impctl.service.settings import FUZZ
from impctl.store import states
from impctl.store.store import Store
from tests.crash.processes import (
    change,
    check_nothing_left,
    check_store,
    newest,
    some_rows,
    write_workload,
)
from tests.store.builders import Crash, FailingDisk, no_space
from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Cli:
    # Every run of state becomes a file: each is created, written, synced and removed.
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    # Every commit is timed in its record: the steps are the same however slow the disk is.
    monkeypatch.setattr("impctl.store.store._WORTH_TELLING_MS", 0.0)
    return Cli(capsys, write_workload(tmp_path))


def stale(cli: Cli) -> None:
    """Three versions behind; by_g is maintained in one step, by_x in three."""
    cli.good("capture")
    for seed in (2, 3, 4):
        change(cli.workload.parent / "t", seed)


def drifted(cli: Cli) -> None:
    cli.good("capture")
    write_deltalake(str(cli.workload.parent / "t"), some_rows(90, 9, start=100), mode="append")


def littered(cli: Cli) -> None:
    """Old sketch versions, partitions no sketch has, files no run has, rows enough to vacuum."""
    drifted(cli)
    cli.good("capture", "--rebalance")
    for seed in range(3, 9):
        change(cli.workload.parent / "t", seed)
        cli.good("maintain")
    for name in ("a.arrow", "b.arrow"):
        (cli.workload.parent / ".impctl" / "state" / name).write_bytes(b"left")


def nothing(cli: Cli) -> None:
    """No store yet."""


SCENARIOS: dict[str, tuple[Callable[[Cli], None], tuple[str, ...], set[str]]] = {
    "first capture": (nothing, ("capture",), {"create_empty", "use_log", "sync_folder"}),
    "capture again": (stale, ("capture",), {"write", "sync", "commit", "remove"}),
    "maintain": (stale, ("maintain",), {"create", "write", "sync", "commit", "remove"}),
    "rebalance": (drifted, ("capture", "--rebalance"), {"write", "sync", "commit", "remove"}),
    "gc": (littered, ("gc", "--keep", "1"), {"commit", "remove", "checkpoint", "put_note"}),
}


scenarios = [
    pytest.param(name, marks=pytest.mark.long if name in ("capture again", "rebalance") else ())
    for name in SCENARIOS
]


FAILURES = pytest.mark.parametrize(
    ("failure", "late"),
    [
        pytest.param(no_space, False, id="full disk"),
        pytest.param(Crash, False, id="crash before", marks=pytest.mark.long),
        pytest.param(Crash, True, id="crash after", marks=pytest.mark.long),
    ],
)
"""How a step fails, and whether after it was done. A crash loses what no sync made safe."""


@FAILURES
@pytest.mark.parametrize("name", scenarios)
def test_a_command_that_fails_at_any_step_can_be_run_again(
    cli: Cli, tmp_path: Path, name: str, failure: type[Crash], *, late: bool
) -> None:
    before, command, wanted = SCENARIOS[name]
    before(cli)
    root, kept = tmp_path / ".impctl", tmp_path / "kept"
    kept.mkdir()
    if root.exists():
        shutil.copytree(root, kept, dirs_exist_ok=True)
    steps = _fail_at(cli, FailingDisk(failure), -1, command)
    assert wanted <= set(steps)
    failed, last = set(), dict[str, int]()
    for at in _some(steps):
        shutil.rmtree(root)
        if any(kept.iterdir()):
            shutil.copytree(kept, root)
        failed.add(_fail_at(cli, FailingDisk(failure, late=late), at, command)[at])
        if (root / "catalog.sqlite").exists():
            held = check_store(root, tmp_path / "t")
            generations = {query: stored.generation for query, stored in held.items()}
            # What is left by a crash is not lost by a later one.
            if failure is Crash:
                assert all(generations[query] >= one for query, one in last.items()), at
                last = generations
        cli.good(*command)
        after = check_store(root, tmp_path / "t")
        assert {stored.versions["t"] for stored in after.values()} == {newest(tmp_path / "t")}
        cli.good("gc", "--keep", "1")
        check_nothing_left(root)
    assert wanted - {"remove"} <= failed


def _fail_at(cli: Cli, disk: FailingDisk, at: int, command: tuple[str, ...]) -> list[str]:
    """Run the command on a disk that fails at its step `at`; the steps it made."""
    disk.arm(at)
    remembered: set[int] = set()
    save = Store.save_arrivals

    def noted(store: Store, *histories: Any) -> None:
        start = len(disk.steps)
        try:
            save(store, *histories)
        finally:
            remembered.update(range(start, len(disk.steps)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("impctl.store.store.RealDisk", lambda: disk)
        patch.setattr(Store, "save_arrivals", noted)
        try:
            ran = cli(*command)
        except Crash:
            return disk.steps
    # Only a removal may fail without failing the run: what is left is collected later, and `gc`
    # itself says so.
    can_pass = at < 0 or (disk.steps[at] == "remove" and command[0] != "gc")
    # The lock holds without its owner's name, and shrinking the catalog is worth a try only; what a
    # run was for is committed before commits of tables are remembered.
    can_pass = can_pass or disk.steps[at] in ("put_note", "vacuum", "checkpoint")
    can_pass = can_pass or at in remembered
    assert ran.code == (0 if can_pass else 6), (at, disk.steps, ran.document)
    return disk.steps


def _some(steps: list[str]) -> list[int]:
    """The first and the last step of each kind; with more cases asked for, every step."""
    if int(os.environ.get(FUZZ, "1")) > 1:
        return list(range(len(steps)))
    last = {step: at for at, step in enumerate(steps)}
    return sorted({steps.index(step) for step in last} | set(last.values()))
