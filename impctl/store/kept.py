"""Sketch versions that are kept beside the newest, and what each rests on, as catalog rows.

Law: a version comes back with the very assumptions and basis of the commit that wrote it, never
with those of another one; a version whose basis was not written is not there at all.
Out of scope: the sketches themselves (`store.sketches`), whether a version may be used
(`app.using.older_sketch`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from impctl.store.queries import find_query, load_query
from impctl.store.records import Assumption, KeptVersion, StoredQuery
from impctl.store.seals import opened, sealed
from impctl.store.sketches import Partitions, load_sketches, versions_text
from impctl.types import QueryName, TableName, TableVersion


def save_basis(
    connection: sqlite3.Connection,
    query_id: int,
    generation: int,
    assumptions: str,
    basis: Mapping[str, Any] | None,
) -> None:
    """What the sketch of a generation rests on; without a basis it is not offered later."""
    if basis is not None:
        row = sealed(query_id, generation, assumptions, json.dumps(dict(basis)))
        connection.execute("INSERT INTO sketch_basis VALUES (?, ?, ?, ?, ?)", row)


def kept_versions(
    connection: sqlite3.Connection,
    path: Path,
    name: QueryName,
    versions: Mapping[TableName, TableVersion] | None,
) -> tuple[KeptVersion, ...]:
    """The versions of the query that have a basis, newest commit first; those asked for, or all."""
    query = find_query(connection, path, name)
    if query is None:
        return ()
    wanted = None if versions is None else versions_text(versions)
    result = connection.execute(
        "SELECT * FROM sketch_version WHERE query_id = ?1 AND (?2 IS NULL OR versions = ?2)"
        " ORDER BY generation DESC",
        (query.id, wanted),
    ).fetchall()
    kept = []
    for row in result:
        generation, text = (opened(row, path, "sketch_version")[at] for at in (1, 4))
        basis = _basis(connection, path, query.id, generation)
        if basis is not None:
            kept.append(KeptVersion(generation, json.loads(text), basis[1]))
    return tuple(kept)


def load_kept(
    connection: sqlite3.Connection,
    path: Path,
    name: QueryName,
    generation: int,
    known: Partitions,
) -> StoredQuery | None:
    """The query with pins, sketches, assumptions and basis of a generation.

    None where that is not there (any more). Mode and times are those of the query as it is now.
    """
    now = load_query(connection, path, name, known)
    query = find_query(connection, path, name)
    if now is None or query is None:
        return None
    row = connection.execute(
        "SELECT * FROM sketch_version WHERE query_id = ? AND generation = ?", (query.id, generation)
    ).fetchone()
    basis = _basis(connection, path, query.id, generation)
    if row is None or basis is None:
        return None
    versions = json.loads(opened(row, path, "sketch_version")[4])
    return replace(
        now,
        # Tables of other names or identities would have made a recapture forget this version.
        pins=tuple(replace(pin, version=versions[pin.table], schema_json="") for pin in now.pins),
        sketches=load_sketches(connection, path, query.id, generation, known),
        assumptions=basis[0],
        state_meta=dict(basis[1]),
        generation=generation,
    )


def _basis(
    connection: sqlite3.Connection, path: Path, query_id: int, generation: int
) -> tuple[tuple[Assumption, ...], dict[str, Any]] | None:
    row = connection.execute(
        "SELECT * FROM sketch_basis WHERE query_id = ? AND generation = ?", (query_id, generation)
    ).fetchone()
    if row is None:
        return None
    assumptions, basis = opened(row, path, "sketch_basis")[2:]
    return tuple(Assumption(*fact) for fact in json.loads(assumptions)), json.loads(basis)
