"""`impctl`, killed right before a write: `python -m tests.crash.killing AT WORD ...`.

Writes are all that goes to disk: of the store (`store.disk`), and files outside of it by the calls
of the system that make them, fill them, bring them in place and make them safe. Below zero nobody
is killed, and how many writes there were goes to stderr.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impctl.service import capture
from impctl.store import disk, states
from impctl.store.disk import RealDisk
from tests.support.random_cases import TIMES
from tests.support.run_cli import Spoken, spoken

STRIDE = 96
PARTS = min(STRIDE, TIMES)
"""A test kills at one write in STRIDE; with IMPCTL_FUZZ=96 there are 96 parts, which take all."""

_STORE = ("create_empty", "create", "sync_folder", "remove", "put_note", "begin", "commit")
_SYSTEM = ("fsync", "replace", "unlink", "mkdir")


class Killer:
    """Counts writes, and ends the process at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def before(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
            return act(*args, **kwargs)

        return counted


def main() -> int:
    """Run the command that the words after the first say."""
    killer = Killer(int(sys.argv[1]))
    # Every run of state becomes a file.
    states.BLOB_LIMIT = 0
    # Every commit is timed in its record: the writes are the same however slow the disk is.
    capture._WORTH_TELLING_MS = 0.0
    for name in _STORE:
        setattr(RealDisk, name, killer.before(getattr(RealDisk, name)))
    disk.OutputFile.write = killer.before(disk.OutputFile.write)  # type: ignore[method-assign]
    for name in _SYSTEM:
        setattr(os, name, killer.before(getattr(os, name)))
    import pyarrow.parquet as pq

    pq.write_table = killer.before(pq.write_table)
    from impctl.cli.application import build_app
    from impctl.cli.boundary import run

    code = run(build_app(), sys.argv[2:])
    sys.stderr.write(f"\nwrites: {killer.count}\n")
    return code


def ran(folder: Path, at: int, *flags: str, command: str = "maintain") -> Spoken:
    """The command on the folder's workload, killed at a write; below zero not at all."""
    words = [command, str(folder / "w.yaml"), *flags, "--json"]
    return spoken(sys.executable, "-m", "tests.crash.killing", str(at), *words)


def writes(done: Spoken) -> int:
    """How many writes a run had that went well."""
    assert done.returncode == 0, done.stderr
    counted = re.search(r"writes: (\d+)", done.stderr)
    assert counted is not None
    return int(counted[1])


def saved_as(folder: Path) -> Path:
    """A copy beside a folder, put back before each try: stores know their path."""
    saved = folder.with_name("saved")
    shutil.copytree(folder, saved)
    return saved


def put_back(folder: Path, saved: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)


if __name__ == "__main__":
    sys.exit(main())
