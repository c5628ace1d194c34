"""Removing what nothing refers to any more.

Law: only files that no run refers to are removed, and only by the holder of the writer's lock; of
the sketch versions of a query the latest `keep` stay.
Out of scope: Delta tables and everything outside the store's folder.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from impctl.store.faults import translated
from impctl.store.layout import RUN_SUFFIX, Layout
from impctl.store.seals import opened
from impctl.store.states import run_files

KEPT_VERSIONS = 32
"""How many sketch versions of a query stay by default."""

_PARTITIONS = "FROM partition WHERE id NOT IN (SELECT partition_id FROM sketched)"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A run file that nothing refers to."""

    name: str
    bytes: int


def find_leftovers(connection: sqlite3.Connection, layout: Layout) -> tuple[Leftover, ...]:
    """Run files in the store's folder without a run, by name."""
    known = run_files(connection)
    with translated(layout.state):
        try:
            entries = list(os.scandir(layout.state))
        except FileNotFoundError:
            return ()
        found = [
            Leftover(entry.name, entry.stat().st_size)
            for entry in entries
            if entry.name.endswith(RUN_SUFFIX) and entry.name not in known
        ]
    return tuple(sorted(found, key=lambda leftover: leftover.name))


def collect_sketches(connection: sqlite3.Connection, path: Path, keep: int) -> tuple[int, int]:
    """Remove older sketch versions and unused partitions; returns how many of each."""
    versions = 0
    queries = [row[0] for row in connection.execute("SELECT id FROM query")]
    for query_id in queries:
        versions += _trim(connection, path, query_id, max(1, keep))
    partitions = connection.execute(f"DELETE {_PARTITIONS}").rowcount
    return versions, partitions


def _trim(connection: sqlite3.Connection, path: Path, query_id: int, keep: int) -> int:
    oldest = connection.execute(
        "SELECT * FROM sketch_version WHERE query_id = ? ORDER BY generation DESC LIMIT 1 OFFSET ?",
        (query_id, keep - 1),
    ).fetchone()
    if oldest is None:
        return 0
    generation, captured = opened(oldest, path, "sketch_version")[1:3]
    gone = connection.execute(
        "DELETE FROM sketch_version WHERE query_id = ? AND generation < ?", (query_id, generation)
    ).rowcount
    connection.execute(
        "DELETE FROM sketched WHERE query_id = ? AND captured < ?", (query_id, captured)
    )
    connection.execute(
        "DELETE FROM sketch WHERE query_id = ? AND generation < ?", (query_id, captured)
    )
    # The row before `generation` still holds where the bits have not changed since.
    connection.execute(
        "DELETE FROM sketch WHERE query_id = ?1 AND generation < coalesce((SELECT"
        " max(later.generation) FROM sketch AS later WHERE later.query_id = ?1 AND"
        " later.access = sketch.access AND later.generation <= ?2), 0)",
        (query_id, generation),
    )
    return gone
