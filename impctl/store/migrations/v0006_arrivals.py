"""Commits of tables as numbers, so that it can be told when the next change comes and how large.

Why: a table's log says when its commits came, but is cleaned after a month, and reading hundreds of
entries at each run would cost more than the run. Numbers only: what they feed is a forecast. An
older impctl would not keep them up, so it must not open the store.
Out of scope: reading logs (`tables.change.commit_history`).
"""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    # How far each table's log was looked at; a name may come to stand for another table.
    """CREATE TABLE arrival_log (
        table_name TEXT PRIMARY KEY, table_id TEXT NOT NULL, until INTEGER NOT NULL, since REAL,
        has_missed INTEGER NOT NULL, seal INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE arrival (
        table_name TEXT NOT NULL, version INTEGER NOT NULL, at REAL, inserted INTEGER,
        deleted INTEGER, files INTEGER NOT NULL, bytes INTEGER NOT NULL, operation TEXT NOT NULL,
        is_after_gap INTEGER NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (table_name, version)) WITHOUT ROWID""",
)
