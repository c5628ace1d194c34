"""Names of the folders and files of a store; nothing else knows them.

Law: every file impctl writes for itself lies under `root`, under a name made here.
Out of scope: what the files hold.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from impctl.values import dataclass

RUN_SUFFIX = ".arrow"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of the store at `root` lie."""

    root: Path

    @property
    def catalog(self) -> Path:
        """The SQLite catalog; its write-ahead log lies beside it."""
        return self.root / "catalog.sqlite"

    @property
    def write_ahead_log(self) -> Path:
        return self.root / "catalog.sqlite-wal"

    @property
    def ledger(self) -> Path:
        """What uses of sketches left out; a database of its own (`store.ledger`)."""
        return self.root / "ledger.sqlite"

    @property
    def state(self) -> Path:
        """The folder of runs too large for the catalog."""
        return self.root / "state"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def recovery(self) -> Path:
        """Locked for an instant by whoever takes away a dead owner's lock."""
        return self.root / "lock.recovery"

    @property
    def own_files(self) -> tuple[Path, ...]:
        """Whatever of the store has a fixed name, SQLite's files beside the catalog included."""
        ends = ("", "-wal", "-shm", "-journal")
        bases = (self.catalog, self.ledger)
        named = (self.root / f"{base.name}{end}" for base in bases for end in ends)
        return *named, self.state, self.lock, self.recovery

    def run_file(self, name: str) -> Path:
        return self.state / name

    def new_run_name(self) -> str:
        """A file name no run had before."""
        return f"{uuid.uuid4().hex}{RUN_SUFFIX}"
