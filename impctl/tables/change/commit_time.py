"""When a commit came: by its own word, else by the file of its log entry.

Law: seconds since 1970, finite and not negative; what a commit says that can be no time (text, NaN,
more than some thousand years) counts as not said. Times are as written, so they may lie in the
future or go back: who reckons with them sets that right (`forecast`,
`app.maintaining.due.pending`). Out of scope: what else a commit says of itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from impctl.tables.commits import Action
from impctl.tables.source import DeltaSource
from impctl.tables.storage import local_path
from impctl.types import TableVersion

_SAID = ("inCommitTimestamp", "timestamp")
"""Milliseconds since 1970; the first is kept in order by its writer, the second a machine's clock.
"""
_LATEST_MS = 1e14


def commit_time(
    source: DeltaSource, version: TableVersion, actions: Sequence[Action]
) -> float | None:
    """The time of this version, whose entry has these actions; None where nothing tells."""
    infos = [body for name, body in actions if name == "commitInfo" and isinstance(body, Mapping)]
    for body in infos:
        for key in _SAID:
            said = _seconds(body.get(key))
            if said is not None:
                return said
    folder = local_path(source.path)
    if folder is None:
        return None
    try:
        return os.stat(os.path.join(folder, "_delta_log", f"{version:020}.json")).st_mtime
    except OSError:
        return None


def _seconds(said: Any) -> float | None:
    # Compared before it is made a float: a whole number of JSON may be larger than any of those.
    if type(said) in (int, float) and 0 <= said < _LATEST_MS:
        return float(said) / 1000
    return None
