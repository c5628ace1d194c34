"""A table that a run writes, batch after batch: opened once, and followed from there.

Law: what is told of the table is of its newest version when it was last looked at, in the log that
was opened. That it is the same log is seen by the entry of the pinned version: it has the content
it had when it was read, or the stamp of the run's own commit. Another log is opened anew, or
refused where a batch was prepared for the old one.
Cost: of a log that nobody else writes one look beyond its end and one at its last entry per batch.
Out of scope: what a batch is and how it is committed (`tables.write.updates`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from impctl.errors import ImpctlError, StorageError
from impctl.tables.commits import Commits, read_entry
from impctl.tables.failures import failure_text
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.source import DeltaSource, advance, recreated, refresh
from impctl.tables.write.applied_batches import AppliedBatches
from impctl.tables.write.batch_identity import Stamp
from impctl.types import TableVersion

_TO_DO = "nothing was written to it; to write to it, run the command again"


class WrittenTable:
    """A table as one run knows it.

    Once a batch was committed, nobody else may use the sources that it was made with or gives.
    """

    def __init__(self, source: DeltaSource) -> None:
        """`source` was opened at this moment.

        Later another log may stand there, whose entry would vouch for the one opened before it.
        """
        self._take(source)

    def _take(self, source: DeltaSource) -> None:
        self.source = source
        self.batches = AppliedBatches()
        self._snapshot: Snapshot | None = None
        self._sound: set[str] = set()
        """Files that deltalake copies faithfully, by URI."""
        self._files_before: frozenset[str] | None = None
        """Files before the run's own commit that led to the pinned version."""
        self._take_entry()

    def _take_entry(self) -> None:
        try:
            text = self._entry(self.source.version)
        except StorageError:
            text = None  # nothing is proven by it then, and no commit that is in fails for it
        self._entry_digest = None if text is None else _digest(text)
        self._stamp: Stamp | None = None

    def renew(self) -> DeltaSource:
        """The table at its newest version."""
        source = self.source
        if self._entry(source.version + 1) is None:
            return source
        try:
            moved: DeltaSource | None = advance(source)
        except ImpctlError:
            moved = None  # entries in between may have been cleaned away
        # Looked at afterwards: a table put in its place before or during the reading shows.
        if moved is not None and self._stands() and moved.table_id == source.table_id:
            self.source, self._snapshot, self._files_before = moved, None, None
            self._take_entry()
        else:
            self._take(refresh(source))
        return self.source

    def reopen(self) -> DeltaSource:
        """The table opened anew, whatever stands there."""
        self._take(refresh(self.source))
        return self.source

    def is_proven(self) -> bool:
        """Whether the log is still the one that was opened; False where nobody can tell."""
        return self._stands() is True

    def check_unmoved(self) -> None:
        """TableRecreatedError where another table, or another history, stands at the path."""
        stands = self._stands()
        if stands:
            return
        # The entry may have been cleaned away, or never been readable.
        newest = refresh(self.source) if stands is None else None
        if (
            newest is None
            or newest.table_id != self.source.table_id
            or newest.version < self.source.version
        ):
            raise recreated(self.source, _TO_DO)

    def _stands(self) -> bool | None:
        """Whether the pinned version has the entry that it had; None where there is none."""
        text = self._entry(self.source.version)
        if text is None:
            return None
        if self._stamp is not None:
            return self._stamp.is_on(Commits((text,), self.source.name, self.source.version - 1))
        return None if self._entry_digest is None else _digest(text) == self._entry_digest

    def _entry(self, version: TableVersion) -> str | None:
        """The log's entry of a version; None where it is not there."""
        try:
            return read_entry(self.source, version)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"Reading the log of table `{self.source.name}` failed: {failure_text(error)}",
                hint=f"check that `{self.source.path}` can be read, then run the command again",
            ) from error

    def snapshot(self) -> Snapshot:
        """The table at the pinned version, taken once."""
        if self._snapshot is None:
            self._snapshot = self.source.snapshot()
            if self._files_before is not None:
                # What deltalake wrote it also reads.
                self._sound |= set(self._snapshot.uris) - self._files_before
        return self._snapshot

    def unsure_files(self) -> Sequence[DataFile]:
        """Files of the snapshot that may hold what deltalake does not copy faithfully."""
        return [file for file in self.snapshot().files if file.uri not in self._sound]

    def take_for_sound(self, files: Sequence[DataFile]) -> None:
        """These files were looked at: nothing in them is copied wrongly."""
        self._sound.update(file.uri for file in files)

    def take_commit(self, stamp: Stamp | None) -> TableVersion:
        """A batch was committed through the pinned source; the version that it made."""
        before, version = self.source.version, int(self.source.delta.version())
        is_next = version == before + 1
        files = None if self._snapshot is None or not is_next else frozenset(self._snapshot.uris)
        self.source = replace(self.source, version=version)
        self._snapshot, self._files_before = None, files
        if stamp is None:
            self._take_entry()
        else:
            self.batches.add(stamp.identity, stamp.meant, version)
            self._stamp = stamp
        return version


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()
