"""The format of a store on disk and how an older one becomes the present one.

Law: a store written by a newer format is refused, never guessed at; an older one is brought up
step by step, all steps in one transaction. Out of scope: the steps themselves (`migrations`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from impctl.errors import UsageError
from impctl.store.faults import damaged
from impctl.store.migrations import (
    v0001_initial,
    v0002_costs,
    v0003_file_marks,
    v0004_sketch_basis,
    v0005_page_sums,
    v0006_arrivals,
    v0007_cost_moved,
    v0008_parts_and_choice,
    v0009_expiry,
    v0010_layouts,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    v0001_initial.STATEMENTS,
    v0002_costs.STATEMENTS,
    v0003_file_marks.STATEMENTS,
    v0004_sketch_basis.STATEMENTS,
    v0005_page_sums.STATEMENTS,
    v0006_arrivals.STATEMENTS,
    v0007_cost_moved.STATEMENTS,
    v0008_parts_and_choice.STATEMENTS,
    v0009_expiry.STATEMENTS,
    v0010_layouts.STATEMENTS,
)
"""Statements that lead from format n to format n + 1, at position n."""

FORMAT_VERSION = len(MIGRATIONS)
_APPLICATION_ID = 0x696D7043  # "impC" in the file's header, so that `file` can tell what it is


def format_of(connection: sqlite3.Connection) -> int:
    """The format of the open catalog; 0 where nothing was created yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_format(connection: sqlite3.Connection, path: Path) -> int:
    """The catalog's format; raises where this impctl must not touch it."""
    result = format_of(connection)
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if tables > 0 and application != _APPLICATION_ID:
        raise damaged(path, "it is a SQLite database, but not one that impctl created")
    if result > FORMAT_VERSION:
        raise UsageError(
            f"Store `{path.parent}` has format {result}, but this version of impctl supports "
            f"formats up to {FORMAT_VERSION}",
            code="store_format_newer",
            hint="upgrade impctl, or set `store` to another folder and capture again",
        )
    if result < 0 or (result == 0) != (tables == 0):
        raise damaged(path, f"format {result} with {tables} tables and indexes")
    return result


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the missing steps; call inside a write transaction."""
    for step in MIGRATIONS[check_format(connection, path) :]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
