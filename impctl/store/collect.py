"""Removing what nothing refers to any more.

Law: only files that no run refers to are removed, and only by the holder of the writer's lock; of
the sketch versions of a query the latest `keep` stay.
Out of scope: Delta tables; scratch folders beside them (`store.scratch`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from impctl.errors import StorageError
from impctl.store.catalog import Catalog
from impctl.store.faults import is_full, suppress_full, translated
from impctl.store.layout import RUN_SUFFIX, Layout
from impctl.store.records import Collected, Leftover, OldVersions
from impctl.store.seals import opened
from impctl.store.states import run_files

KEPT_VERSIONS = 32
"""How many sketch versions of a query stay by default."""

_PARTITIONS = "FROM partition WHERE id NOT IN (SELECT partition_id FROM sketched)"


def find_leftovers(connection: sqlite3.Connection, layout: Layout) -> tuple[Leftover, ...]:
    """Run files in the store's folder without a run, by name."""
    known = run_files(connection)
    with translated(layout.state):
        try:
            entries = list(os.scandir(layout.state))
        except FileNotFoundError:
            return ()
        result = [
            Leftover(layout.run_file(entry.name), entry.stat().st_size)
            for entry in entries
            if entry.name.endswith(RUN_SUFFIX) and entry.name not in known
        ]
    return tuple(sorted(result, key=lambda leftover: leftover.path))


def collect_sketches(connection: sqlite3.Connection, path: Path, keep: int) -> Collected:
    """Remove older sketch versions and unused partitions; returns what they were."""
    versions = []
    for query_id, name in connection.execute("SELECT id, name FROM query ORDER BY name").fetchall():
        before = _row_bytes(connection, query_id)
        gone = _trim(connection, path, query_id, max(1, keep))
        if gone:
            freed = before - _row_bytes(connection, query_id)
            versions.append(OldVersions(name, gone, freed))
    size = connection.execute(f"SELECT {_total('id', 'content')} {_PARTITIONS}").fetchone()[0]
    partitions = connection.execute(f"DELETE {_PARTITIONS}").rowcount
    return Collected(tuple(versions), partitions, int(size))


def trimmed(
    result: Collected, keep: int, catalog: Callable[[], Catalog], check_room: Callable[[], None]
) -> Collected:
    """The same with old versions and partitions removed, or why the disk did not let them.

    `check_room` raises StorageError where the catalog cannot be written, which may be another one
    after it.
    """
    try:
        if result.versions or result.partitions:
            check_room()
            with catalog().writing() as connection:
                collect_sketches(connection, catalog().path, keep)
    except StorageError as error:
        if not is_full(error):
            raise
        return Collected(files=result.files, refusal=error)
    with suppress_full():
        # Worth a try only: it writes the whole catalog anew.
        catalog().shrink()
    return result


def _row_bytes(connection: sqlite3.Connection, query_id: int) -> int:
    """Bytes of texts and bits in the rows of all sketch versions of a query."""
    parts = (
        (_total("versions"), "sketch_version"),
        (_total("assumptions", "basis"), "sketch_basis"),
        (_total("access", "bits"), "sketch"),
        (_total("access", "table_name", "attribute", "partition_id"), "sketched"),
    )
    return sum(
        int(
            connection.execute(
                f"SELECT {total} FROM {table} WHERE query_id = ?", (query_id,)
            ).fetchone()[0]
        )
        for total, table in parts
    )


def _total(*columns: str) -> str:
    """Bytes of these columns over all rows, as SQL."""
    lengths = " + ".join(f"length(CAST({column} AS BLOB))" for column in columns)
    return f"coalesce(sum({lengths}), 0)"


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
        "DELETE FROM sketch_basis WHERE query_id = ? AND generation < ?", (query_id, generation)
    )
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
