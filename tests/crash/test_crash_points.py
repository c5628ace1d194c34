"""A failure at any step of a command leaves a usable store; `gc` removes leftovers."""

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
    check_no_leftovers,
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
    # Store every state run as a file, which is created, written, synced and removed.
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    # Record the time of every commit, so that the steps do not depend on the speed of the disk.
    monkeypatch.setattr("impctl.store.store._WORTH_TELLING_MS", 0.0)
    return Cli(capsys, write_workload(tmp_path))


def make_stale(cli: Cli) -> None:
    """Capture, then change the table three times: `by_g` needs one step, `by_x` three."""
    cli.good("capture")
    for seed in (2, 3, 4):
        change(cli.workload.parent / "t", seed)


def make_skewed(cli: Cli) -> None:
    cli.good("capture")
    write_deltalake(str(cli.workload.parent / "t"), some_rows(90, 9, start=100), mode="append")


def add_garbage(cli: Cli) -> None:
    """Leave old sketch versions, unused partitions and files, and enough rows to vacuum."""
    make_skewed(cli)
    cli.good("capture", "--rebalance")
    for seed in range(3, 9):
        change(cli.workload.parent / "t", seed)
        cli.good("maintain")
    for name in ("a.arrow", "b.arrow"):
        (cli.workload.parent / ".impctl" / "state" / name).write_bytes(b"left")


def no_store(cli: Cli) -> None:
    """No store yet."""


SCENARIOS: dict[str, tuple[Callable[[Cli], None], tuple[str, ...], set[str]]] = {
    "first capture": (no_store, ("capture",), {"create_empty", "use_log", "sync_folder"}),
    "capture again": (make_stale, ("capture",), {"write", "sync", "commit", "remove"}),
    "maintain": (make_stale, ("maintain",), {"create", "write", "sync", "commit", "remove"}),
    "rebalance": (make_skewed, ("capture", "--rebalance"), {"write", "sync", "commit", "remove"}),
    "gc": (add_garbage, ("gc", "--keep", "1"), {"commit", "remove", "checkpoint", "put_note"}),
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
"""How a step fails, before or after it is done. A crash loses everything not synced."""


@FAILURES
@pytest.mark.parametrize("name", scenarios)
def test_command_that_fails_at_any_step_can_be_repeated(
    cli: Cli, tmp_path: Path, name: str, failure: type[Crash], *, late: bool
) -> None:
    prepare, command, expected = SCENARIOS[name]
    prepare(cli)
    root, backup = tmp_path / ".impctl", tmp_path / "kept"
    backup.mkdir()
    if root.exists():
        shutil.copytree(root, backup, dirs_exist_ok=True)
    steps = _fail_at(cli, FailingDisk(failure), -1, command)
    assert expected <= set(steps)
    failed, last = set(), dict[str, int]()
    for step in _chosen_steps(steps):
        shutil.rmtree(root)
        if any(backup.iterdir()):
            shutil.copytree(backup, root)
        failed.add(_fail_at(cli, FailingDisk(failure, late=late), step, command)[step])
        if (root / "catalog.sqlite").exists():
            stored_queries = check_store(root, tmp_path / "t")
            generations = {query: stored.generation for query, stored in stored_queries.items()}
            # A later crash does not lose what survived an earlier one.
            if failure is Crash:
                assert all(
                    generations[query] >= generation for query, generation in last.items()
                ), step
                last = generations
        cli.good(*command)
        after = check_store(root, tmp_path / "t")
        assert {stored.versions["t"] for stored in after.values()} == {newest(tmp_path / "t")}
        cli.good("gc", "--keep", "1")
        check_no_leftovers(root)
    assert expected - {"remove"} <= failed


def _fail_at(cli: Cli, disk: FailingDisk, index: int, command: tuple[str, ...]) -> list[str]:
    """Run the command on a disk that fails at step `index`, and return the steps."""
    disk.arm(index)
    remembered: set[int] = set()
    save = Store.save_arrivals

    def save_and_note(store: Store, *histories: Any) -> None:
        start = len(disk.steps)
        try:
            save(store, *histories)
        finally:
            remembered.update(range(start, len(disk.steps)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("impctl.store.store.RealDisk", lambda: disk)
        patch.setattr(Store, "save_arrivals", save_and_note)
        try:
            ran = cli(*command)
        except Crash:
            return disk.steps
    # Only a removal may fail without failing the run, because the file is collected later. `gc`
    # reports the failure.
    can_pass = index < 0 or (disk.steps[index] == "remove" and command[0] != "gc")
    # The lock works without its owner's name, and shrinking the catalog is optional. Results are
    # committed before arrivals of table commits are saved.
    can_pass = can_pass or disk.steps[index] in ("put_note", "vacuum", "checkpoint")
    can_pass = can_pass or index in remembered
    assert ran.code == (0 if can_pass else 6), (index, disk.steps, ran.document)
    return disk.steps


def _chosen_steps(steps: list[str]) -> list[int]:
    """The first and last step of each kind, or with IMPCTL_FUZZ above 1 every step."""
    if int(os.environ.get(FUZZ, "1")) > 1:
        return list(range(len(steps)))
    last = {step: index for index, step in enumerate(steps)}
    return sorted({steps.index(step) for step in last} | set(last.values()))
