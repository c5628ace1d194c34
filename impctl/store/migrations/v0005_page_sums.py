"""Checksums of state files page by page, so that a run reads what it uses and not all there is.

Why: every run read the whole state of its queries to compare one checksum per file (2.9 GB for
fourteen queries of TPC-H, of which a small change uses some megabytes). A file that an older impctl
wrote has none; it is looked at in full until `store.scrub` gives it some. An older impctl would
take such a file for damaged, so it must not open the store.
Out of scope: reading and writing rows (`store.states`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "ALTER TABLE run ADD COLUMN sums BLOB",
    # When a file was looked at last, and how far since. Nothing rests on it, so it has no seal.
    """CREATE TABLE scrub (
        file TEXT PRIMARY KEY, at REAL NOT NULL, page INTEGER NOT NULL) WITHOUT ROWID""",
)
