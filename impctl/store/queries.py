"""Queries with their pins and progress as catalog rows.

Law: what a capture fixes lies in `query`, what each commit moves in `progress` and `pin`; the
generation grows by one with every commit of the query and never goes back.
Out of scope: sketches (`store.sketches`), runs (`store.states`), history (`store.history`).
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from impctl.sketch.sketch import Mode
from impctl.store.faults import damaged
from impctl.store.records import Assumption, NewCapture, StoredQuery, TablePin
from impctl.store.seals import digest_of, opened, sealed
from impctl.store.sketches import Partitions, load_sketches
from impctl.types import QueryName, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class QueryRow:
    """What is fixed from one capture to the next."""

    id: int
    name: QueryName
    fingerprint: str
    sql: str
    mode: str
    captured: int
    captured_at: float


_SAYS_NOTHING = 0
"""In two columns of `progress` that nobody asked for. They stay: the seal of a stored row covers
them, and a migration in SQL could not seal it anew."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What every commit moves; texts are JSON as stored."""

    generation: int
    assumptions: str
    state_meta: str
    maintained_at: float
    pins: int
    """Digest of the pins."""
    runs: int
    """Digest of the runs."""


def find_query(connection: sqlite3.Connection, path: Path, name: QueryName) -> QueryRow | None:
    row = connection.execute("SELECT * FROM query WHERE name = ?", (name,)).fetchone()
    return None if row is None else QueryRow(*opened(row, path, "query"))


_WITH_PROGRESS = (
    "SELECT * FROM query LEFT JOIN progress ON progress.query_id = query.id WHERE query.name = ?"
)
_QUERY_COLUMNS = 8


def find_with_progress(
    connection: sqlite3.Connection, path: Path, name: QueryName
) -> tuple[QueryRow, Progress] | None:
    """The query and how far it is, in one look; both or neither, else StateCorruptError."""
    row = connection.execute(_WITH_PROGRESS, (name,)).fetchone()
    if row is None:
        return None
    query = QueryRow(*opened(row[:_QUERY_COLUMNS], path, "query"))
    if row[_QUERY_COLUMNS] is None:
        raise damaged(path, "the progress of a query is missing")
    _, generation, _, assumptions, meta, _, *rest = opened(row[_QUERY_COLUMNS:], path, "progress")
    return query, Progress(generation, assumptions, meta, *rest)


def query_names(connection: sqlite3.Connection, path: Path) -> tuple[QueryName, ...]:
    rows = connection.execute("SELECT * FROM query ORDER BY name").fetchall()
    return tuple(opened(row, path, "query")[1] for row in rows)


def save_query(
    connection: sqlite3.Connection,
    capture: NewCapture,
    query_id: int | None,
    generation: int,
    at: float,
) -> int:
    """Write what the capture fixes, over the row of `query_id` if there is one; returns the id."""
    if query_id is None:
        result = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM query").fetchone()
        query_id = int(result[0])
    row = (query_id, capture.query, capture.fingerprint, capture.sql, capture.mode.value)
    connection.execute(
        "INSERT OR REPLACE INTO query VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        sealed(*row, generation, float(at)),
    )
    return query_id


def save_progress(connection: sqlite3.Connection, query_id: int, progress: Progress) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        sealed(
            query_id,
            progress.generation,
            _SAYS_NOTHING,
            progress.assumptions,
            progress.state_meta,
            _SAYS_NOTHING,
            float(progress.maintained_at),
            progress.pins,
            progress.runs,
        ),
    )


PinRows = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The rows of a pin and of its schema, seals included."""


def save_pins(
    connection: sqlite3.Connection,
    query_id: int,
    pins: Iterable[TablePin],
    held: Mapping[TableName, PinRows] = MappingProxyType({}),
) -> int:
    """Write the pins, of a table only what differs from the `held` rows; returns their digest."""
    written = []
    for pin in sorted(pins, key=lambda pin: pin.table):
        before, schema = held.get(pin.table, ((), ()))
        row = sealed(query_id, pin.table, pin.path, pin.table_id, int(pin.version))
        if row != before:
            connection.execute("INSERT OR REPLACE INTO pin VALUES (?, ?, ?, ?, ?, ?)", row)
        if not schema or schema[2] != pin.schema_json:
            schema = sealed(query_id, pin.table, pin.schema_json)
            connection.execute("INSERT OR REPLACE INTO pin_schema VALUES (?, ?, ?, ?)", schema)
        written += [row, schema]
    return digest_of(written)


_PINS = """
    SELECT *, (SELECT count(*) FROM pin_schema WHERE query_id = pin.query_id)
    FROM pin LEFT JOIN pin_schema USING (query_id, table_name)
    WHERE query_id = ? ORDER BY table_name
"""
_PIN_COLUMNS = 6


def held_pins(
    connection: sqlite3.Connection, path: Path, query_id: int, digest: int
) -> dict[TableName, PinRows]:
    """The pins' rows, ordered by table; they must have that digest. Nothing else is checked."""
    rows = connection.execute(_PINS, (query_id,)).fetchall()
    # The joined columns stand once, before those of each side; the number of schemas is the last.
    held = {row[1]: (row[:_PIN_COLUMNS], (*row[:2], *row[_PIN_COLUMNS:-1])) for row in rows}
    if (
        any(row[-1] != len(rows) for row in rows)
        or digest_of(itertools.chain(*held.values())) != digest
    ):
        raise damaged(path, "the pins of one version do not match each other")
    return held


def load_pins(
    connection: sqlite3.Connection, path: Path, query_id: int, digest: int
) -> tuple[TablePin, ...]:
    """The pins, ordered by table; they must have that digest."""
    pins = []
    for row, schema in held_pins(connection, path, query_id, digest).values():
        table, location, table_id, version = opened(row, path, "pin")[1:]
        (schema_json,) = opened(schema, path, "pin_schema")[2:]
        pins.append(TablePin(table, location, table_id, version, schema_json))
    return tuple(pins)


def load_query(
    connection: sqlite3.Connection, path: Path, name: QueryName, known: Partitions
) -> StoredQuery | None:
    """Everything of the query but runs and history."""
    result = find_with_progress(connection, path, name)
    if result is None:
        return None
    query, progress = result
    return StoredQuery(
        query=query.name,
        fingerprint=query.fingerprint,
        sql=query.sql,
        mode=Mode(query.mode),
        pins=load_pins(connection, path, query.id, progress.pins),
        sketches=load_sketches(connection, path, query.id, progress.generation, known),
        assumptions=tuple(Assumption(*fact) for fact in json.loads(progress.assumptions)),
        state_meta=json.loads(progress.state_meta),
        generation=progress.generation,
        captured_at=query.captured_at,
        maintained_at=progress.maintained_at,
    )


def forget_pins(connection: sqlite3.Connection, query_id: int) -> None:
    connection.execute("DELETE FROM pin WHERE query_id = ?", (query_id,))
    connection.execute("DELETE FROM pin_schema WHERE query_id = ?", (query_id,))


def assumptions_text(assumptions: Iterable[Assumption]) -> str:
    return json.dumps(
        [[fact.table, fact.column, str(fact.kind), str(fact.source)] for fact in assumptions]
    )


def meta_text(meta: Mapping[str, Any] | None) -> str:
    return json.dumps({} if meta is None else dict(meta))
