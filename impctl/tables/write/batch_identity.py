"""What tells an update batch from all others in its table's log, so that a repeat finds it there.

Law: two batches have one identity only where their name, their content (a file's bytes, not its
path) and their table are the same. It lies in the batch's own commit, as an application
transaction of Delta, which checkpoints keep and of two commits at once lets in one.
Out of scope: what is done about a batch that is in already (`tables.write.updates`, `app.apply`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import CommitProperties, Transaction

from impctl.errors import ImpctlError, StorageError, UsageError
from impctl.tables.commits import Action, Commits, read_commits
from impctl.tables.failures import READ_FAILURES, failure_text
from impctl.tables.source import DeltaSource, open_failure
from impctl.types import TableVersion
from impctl.values import dataclass

PREFIX = "impctl/apply/"


def identity_of(source: DeltaSource, name: str, content: object, file: str | None) -> str:
    """The identity of the batch `name`, whose `content` has one `repr` however often it is read."""
    digest = hashlib.sha256(repr((source.table_id, name, content)).encode("utf-8", "replace"))
    if file is not None:
        try:
            with open(file, "rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        except FileNotFoundError as error:
            raise UsageError(
                f"The file to insert does not exist: {file}",
                hint="a relative path starts at the folder of the workload file",
            ) from error
        except OSError as error:
            raise StorageError(
                f"Reading the file to insert failed: {failure_text(error)}", hint=f"check {file}"
            ) from error
    return f"{PREFIX}{digest.hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit of a named batch carries: whose it is, which version it is meant for, when."""

    identity: str
    meant: TableVersion
    at: int

    @property
    def properties(self) -> CommitProperties:
        """Properties of a commit that carries the stamp."""
        return CommitProperties(app_transactions=[Transaction(self.identity, self.meant, self.at)])

    def is_on(self, commits: Commits) -> bool:
        """Whether one of these commits carries the stamp."""
        own = {"appId": self.identity, "version": self.meant, "lastUpdated": self.at}
        return any(
            name == "txn" and own.items() <= body.items()
            for actions in commits.by_commit()
            for name, body in actions
        )


def stamp_of(source: DeltaSource, identity: str) -> Stamp:
    """The stamp of a commit on top of `source` now."""
    return Stamp(identity, source.version + 1, time.time_ns() // 1_000_000)


def version_with(source: DeltaSource, identity: str) -> TableVersion | None:
    """The version that brought the batch in; None where it is not in the table.

    A batch that RESTORE took out again is not in it. Where the log is cleaned up, the version is
    the one that the commit was meant for. ImpctlError where a RESTORE does not say what it took.
    """
    try:
        meant = source.delta.transaction_version(identity)
    except READ_FAILURES as error:
        raise open_failure(source.name, source.path, error) from error
    if meant is None:
        return None
    return brought_in(source, identity, int(meant), {})


def brought_in(
    source: DeltaSource, identity: str, meant: TableVersion, held: Mapping[TableVersion, str]
) -> TableVersion | None:
    """As `version_with` where the batch's newest transaction is of version `meant`.

    `held` are texts of commits that were read before.
    """
    commits = read_commits(source, meant - 1, source.version, held)
    if commits is None:
        return meant
    result: TableVersion | None = None
    for version, actions in enumerate(commits.by_commit(), start=meant):
        if any(name == "txn" and body.get("appId") == identity for name, body in actions):
            result = version
        elif result is not None and _is_restored_before(source, actions, version, result):
            result = None
    return result


def _is_restored_before(
    source: DeltaSource, actions: Sequence[Action], version: TableVersion, batch: TableVersion
) -> bool:
    """Whether the commit puts back a version before that of the batch."""
    infos = [body for name, body in actions if name == "commitInfo"]
    if not any(info.get("operation") == "RESTORE" for info in infos):
        return False
    parameters: Mapping[str, Any] = infos[0].get("operationParameters") or {}
    told = parameters.get("version")
    if told is None or not str(told).isdecimal():
        raise ImpctlError(
            f"The batch was applied to table `{source.name}` at version {batch}, but version "
            f"{version} restored an unnamed older version, so the batch may or may not be in it",
            hint="check the table; `apply --again` applies the batch again",
            code="batch_maybe_applied",
        )
    return int(told) < batch
