"""The log's commits between two versions, read as text.

Law: `read_commits` answers only when every commit of the range was read; it never guesses.
Out of scope: replaying the log into a snapshot (deltalake does that).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from impctl.errors import TableError
from impctl.tables.source import DeltaSource
from impctl.tables.storage import read_text
from impctl.types import TableName, TableVersion
from impctl.values import dataclass

Action = tuple[str, Any]
"""Name and body of an entry of the log."""

_OF_SPARK = ("Apache-Spark/", "Databricks-Runtime/")


@dataclass(frozen=True)
class Commits:
    """The texts of consecutive commits, oldest first, of a table after one version.

    Asking for an entry that is damaged raises TableError.
    """

    # Without slots: the parsed actions are kept beside the texts.
    texts: tuple[str, ...]
    table: TableName
    since: TableVersion

    @property
    def may_change_metadata(self) -> bool:
        """False only when no commit carries new metadata or a new protocol."""
        return any('"metaData"' in text or '"protocol"' in text for text in self.texts)

    @property
    def only_move_rows(self) -> bool:
        """True only where all that happened to files is OPTIMIZE and its like.

        That the new files hold the rows of the old ones is its writer's word
        (`tables.change.copies`).
        """
        if self.may_change_metadata or any('"dataChange":true' in text for text in self.texts):
            return False
        return not self._bodies("cdc") and all(
            body.get("dataChange") is False for body in self._bodies("add", "remove")
        )

    def by_commit(self) -> Sequence[Sequence[Action]]:
        """Name and body of every action, commit by commit, in the log's order."""
        return self._parsed

    @cached_property
    def _parsed(self) -> list[list[Action]]:
        # Not `splitlines`: JSON need not escape U+2028 and the like, which texts may hold.
        lines = ([line for line in text.split("\n") if line.strip()] for text in self.texts)
        return [
            [(name, body) for line in each for name, body in self._entry(at, line) if body]
            for at, each in enumerate(lines, start=self.since + 1)
        ]

    def _entry(self, version: TableVersion, line: str) -> Iterable[Action]:
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise _damaged(self.table, version, error) from error
        if not isinstance(entry, dict):
            raise _damaged(self.table, version, f"`{line[:40]}` is not a log entry")
        return entry.items()

    def metadata(self) -> list[dict[str, Any]]:
        """The metadata actions, oldest first."""
        return self._bodies("metaData")

    def files(self) -> list[str]:
        """Log paths of the files whose rows a change feed may read: added, removed, change data."""
        return [body["path"] for body in self._bodies("add", "remove", "cdc")]

    def fed(self) -> Iterator[list[Action]]:
        """The actions whose files a change feed reads, commit by commit.

        The change data alone where there is some; none of a commit that only moves rows.
        """
        for actions in self.by_commit():
            told = [(name, body) for name, body in actions if name == "cdc"]
            yield told or [action for action in actions if is_of_rows(action)]

    @property
    def is_fed_by_vectors(self) -> bool:
        """Whether a change feed would have to tell rows from deletion vectors.

        So after DELETE in Spark, which writes no change data then.
        """
        return any('"deletionVector"' in text for text in self.texts) and any(
            body.get("deletionVector") is not None for actions in self.fed() for _, body in actions
        )

    @property
    def changed_bytes(self) -> int:
        """Bytes of the files a change feed would read; a file whose size is not told counts 0."""
        return sum(int(body.get("size") or 0) for actions in self.fed() for _, body in actions)

    def _bodies(self, *names: str) -> list[dict[str, Any]]:
        return [body for actions in self.by_commit() for name, body in actions if name in names]


def is_of_rows(action: Action) -> bool:
    """Whether it adds or removes a file, and rows with it."""
    name, body = action
    return name in ("add", "remove") and body.get("dataChange") is not False


def is_of_spark(actions: Sequence[Action]) -> bool:
    """Whether a commit says that Spark wrote it."""
    writers = [body.get("engineInfo") or "" for name, body in actions if name == "commitInfo"]
    return bool(writers) and all(writer.startswith(_OF_SPARK) for writer in writers)


def read_commits(
    source: DeltaSource,
    since: TableVersion,
    until: TableVersion,
    held: Mapping[TableVersion, str] | None = None,
) -> Commits | None:
    """The commits after `since` up to `until`; None when one is missing or the range is empty.

    `held` are texts of commits that were read before. Raises TableError for one that is no text.
    """
    if until < since:
        return None
    texts = []
    for version in range(since + 1, until + 1):
        try:
            known = None if held is None else held.get(version)
            texts.append(read_entry(source, version) if known is None else known)
        except OSError:
            return None
    return Commits(tuple(texts), source.name, since)


def read_entry(source: DeltaSource, version: TableVersion) -> str:
    """The text of one commit; OSError where it cannot be read, TableError where it is no text."""
    name = f"_delta_log/{version:020}.json"
    try:
        text = read_text(source.path, source.storage_options, name)
    except UnicodeDecodeError as error:
        raise _damaged(source.name, version, error) from error
    if not text.strip():
        # No writer makes one: a crash, or a store that returned nothing.
        raise _damaged(source.name, version, "it is empty")
    return text


def _damaged(table: TableName, version: TableVersion, what: object) -> TableError:
    """The error for a commit that cannot be read, which deltalake may not even have opened."""
    return TableError(
        f"The log entry of version {version} of table `{table}` is damaged: {what}",
        hint=(
            "restore the entry, or write a checkpoint for a later version and run `impctl capture`"
        ),
        code="table_unreadable",
    )
