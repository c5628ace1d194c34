"""The log's commits between two versions, read as text.

Law: `read_commits` answers only when every commit of the range was read; it never guesses.
Out of scope: replaying the log into a snapshot (deltalake does that).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from impctl.aliases import TableVersion
from impctl.tables.source import DeltaSource
from impctl.tables.storage import read_text


@dataclass(frozen=True, slots=True)
class Commits:
    """The texts of consecutive commits, oldest first."""

    texts: tuple[str, ...]

    @property
    def may_change_metadata(self) -> bool:
        """False only when no commit carries new metadata or a new protocol."""
        return any('"metaData"' in text or '"protocol"' in text for text in self.texts)

    @property
    def only_move_rows(self) -> bool:
        """True only where all that happened to files is OPTIMIZE and its like.

        Their writers vouch, as the protocol asks, that the table holds the same rows as before.
        """
        if self.may_change_metadata or any('"dataChange":true' in text for text in self.texts):
            return False
        return not self._bodies("cdc") and all(
            body.get("dataChange") is False for body in self._bodies("add", "remove")
        )

    def by_commit(self) -> Iterator[list[tuple[str, Any]]]:
        """Name and body of every action, commit by commit, in the log's order."""
        for text in self.texts:
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
            yield [action for line in lines for action in line.items()]

    def metadata(self) -> list[dict[str, Any]]:
        """The metadata actions, oldest first."""
        return self._bodies("metaData")

    def files(self) -> list[str]:
        """Log paths of the files whose rows a change feed may read: added, removed, change data."""
        return [body["path"] for body in self._bodies("add", "remove", "cdc")]

    @property
    def changed_bytes(self) -> int:
        """Bytes of the files a change feed would read; a file whose size is not told counts 0."""
        total = 0
        for actions in self.by_commit():
            has_change_data = any(name == "cdc" for name, _ in actions)
            for name, body in actions:
                is_read = name == "cdc" if has_change_data else name in ("add", "remove")
                total += int(body.get("size") or 0) if is_read else 0
        return total

    def _bodies(self, *names: str) -> list[dict[str, Any]]:
        return [
            body
            for actions in self.by_commit()
            for name, body in actions
            if name in names and body is not None
        ]


def read_commits(source: DeltaSource, since: TableVersion, until: TableVersion) -> Commits | None:
    """The commits after `since` up to `until`; None when one is missing or the range is empty."""
    if until < since:
        return None
    texts = []
    for version in range(since + 1, until + 1):
        name = f"_delta_log/{version:020}.json"
        try:
            texts.append(read_text(source.path, source.storage_options, name))
        except OSError:
            return None
    return Commits(tuple(texts))
