"""The log's commits between two versions, read as text.

Law: `read_commits` answers only when every commit of the range was read; it never guesses.
Out of scope: replaying the log into a snapshot (deltalake does that).
"""

from __future__ import annotations

import json
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

    def metadata(self) -> list[dict[str, Any]]:
        """The metadata actions, oldest first."""
        return list(self._actions("metaData"))

    def files(self) -> list[str]:
        """Log paths of the files whose rows a change feed may read: added, removed, change data."""
        return [
            action["path"] for name in ("add", "remove", "cdc") for action in self._actions(name)
        ]

    def _actions(self, name: str) -> list[dict[str, Any]]:
        found = []
        for text in self.texts:
            for line in text.splitlines():
                if f'"{name}"' in line:
                    action = json.loads(line).get(name)
                    if action is not None:
                        found.append(action)
        return found


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
