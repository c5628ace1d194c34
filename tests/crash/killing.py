"""`impctl`, killed right before a write: `python -m tests.crash.killing INDEX WORD ...`.

Writes are all disk operations: those of the store (`store.disk`), and the system calls that create,
write, move, remove and sync other files. With a negative index the run is not killed. The number of
writes is printed to stderr.
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

from impctl.store import disk, states, store
from impctl.store.disk import RealDisk
from tests.support.random_cases import TIMES
from tests.support.run_cli import Spoken, spoken

STRIDE = 96
PARTS = min(STRIDE, TIMES)
"""A test kills at one write in STRIDE. With IMPCTL_FUZZ=96, the 96 parts cover all writes."""

_STORE = ("create_empty", "create", "sync_folder", "remove", "put_note", "begin", "commit")
_SYSTEM = ("fsync", "replace", "unlink", "mkdir")


class Killer:
    """Counts writes, and kills the process at one of them."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.count = 0

    def before(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.count == self.index:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
            return act(*args, **kwargs)

        return counted


def main() -> int:
    """Run the command in the arguments after the first."""
    killer = Killer(int(sys.argv[1]))
    # Store every state run as a file.
    states.BLOB_LIMIT = 0
    # Record the time of every commit, so that the writes do not depend on the speed of the disk.
    store._WORTH_TELLING_MS = 0.0
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


def ran(folder: Path, index: int, *flags: str, command: str = "maintain") -> Spoken:
    """Run the command on the folder's workload, killed at a write unless the index is negative."""
    arguments = [command, str(folder / "w.yaml"), *flags, "--json"]
    return spoken(sys.executable, "-m", "tests.crash.killing", str(index), *arguments)


def writes(process: Spoken) -> int:
    """The number of writes of a successful run."""
    assert process.returncode == 0, process.stderr
    found = re.search(r"writes: (\d+)", process.stderr)
    assert found is not None
    return int(found[1])


def save_copy(folder: Path) -> Path:
    """Copy a folder. The copy is restored to the same path, because stores know their path."""
    saved = folder.with_name("saved")
    shutil.copytree(folder, saved)
    return saved


def put_back(folder: Path, saved: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)


if __name__ == "__main__":
    sys.exit(main())
