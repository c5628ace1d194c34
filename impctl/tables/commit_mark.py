"""A mark of one commit, so that a table's history is known again.

Law: equal marks mean equal log entries; a log entry that was cleaned away, or lies on remote
storage, has no mark, and then nothing is concluded from it.
Out of scope: what to do about another history (`app.capturing.pins`).
"""

from __future__ import annotations

import hashlib
import os

from impctl.tables.source import DeltaSource
from impctl.tables.storage import local_path
from impctl.types import TableVersion


def commit_mark(source: DeltaSource, version: TableVersion) -> str | None:
    """Hash of the log entry of `version`; None where it cannot be read from the local disk."""
    folder = local_path(source.path)
    if folder is None:
        return None
    try:
        with open(os.path.join(folder, "_delta_log", f"{version:020d}.json"), "rb") as entry:
            return hashlib.file_digest(entry, "sha256").hexdigest()[:16]
    except OSError:
        return None
