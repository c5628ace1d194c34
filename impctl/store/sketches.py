"""Sketches and their partitions as catalog rows.

Law: what comes out is what went in, or StateCorruptError. Boundaries are stored once, under a hash
of their content. A `sketch` row is written only where the bits differ from those before it, and
holds from its generation on until the next row of its access.
Out of scope: pins and everything else about a query (`store.queries`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from impctl.data.schema import Kind, SqlType
from impctl.errors import ImpctlError
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.sketch.sketch import FragmentSet
from impctl.store.faults import damaged
from impctl.store.records import StoredSketch
from impctl.store.seals import digest_of, opened, sealed
from impctl.types import AccessId, TableName, TableVersion

_HELD = """
    SELECT * FROM sketched LEFT JOIN sketch ON sketch.query_id = sketched.query_id
    AND sketch.access = sketched.access AND sketch.generation = (
        SELECT max(generation) FROM sketch AS other WHERE other.query_id = sketched.query_id
        AND other.access = sketched.access AND other.generation BETWEEN sketched.captured AND ?)
    WHERE sketched.query_id = ? AND sketched.captured = ? ORDER BY sketched.access
"""
_SKETCHED_COLUMNS = 8
Partitions = dict[str, RangePartition]
"""Partitions that were read already, by the hash of their content; those read are added."""

_SKETCH = "INSERT INTO sketch VALUES (?, ?, ?, ?, ?)"


def versions_text(versions: Mapping[TableName, TableVersion]) -> str:
    """Versions as the one text that equal versions have."""
    return json.dumps({table: int(version) for table, version in sorted(versions.items())})


def save_captured(
    connection: sqlite3.Connection,
    query_id: int,
    generation: int,
    sketches: Iterable[StoredSketch],
    versions: str,
) -> None:
    """The sketches of a capture, with their partitions."""
    written = []
    for sketch in sorted(sketches, key=lambda sketch: sketch.access):
        _check_size(sketch.access, sketch.fragments, sketch.partition.size)
        row = (
            query_id,
            generation,
            sketch.access,
            sketch.table,
            sketch.attribute,
            _save_partition(connection, sketch.partition),
            sketch.partition.size,
        )
        connection.execute("INSERT INTO sketched VALUES (?, ?, ?, ?, ?, ?, ?, ?)", sealed(*row))
        bits = sketch.fragments.to_bytes()
        written.append(sealed(query_id, sketch.access, generation, bits))
        connection.execute(_SKETCH, written[-1])
    _save_version(connection, (query_id, generation, generation), digest_of(written), versions)


def save_maintained(
    connection: sqlite3.Connection,
    path: Path,
    query: tuple[int, int, int],
    sketches: Iterable[tuple[AccessId, FragmentSet]],
    versions: str,
) -> None:
    """The sketches after a batch; `query` is id, generation of its capture, new generation."""
    query_id, captured, generation = query
    held = _held_sketches(connection, path, query_id, captured, generation)
    given, known = dict(sketches), [sketched[0] for sketched, _ in held]
    for access in given:
        if access not in known:
            raise ImpctlError(
                f"Access `{access}` was not captured; captured accesses are {known}",
                code="access_unknown",
                hint="run `impctl capture` again",
            )
    holding = []
    for (access, *_, size), row in held:
        if access in given:
            _check_size(access, given[access], size)
            bits = given[access].to_bytes()
            if row[3] != bits:
                row = sealed(query_id, access, generation, bits)
                connection.execute(_SKETCH, row)
        holding.append(row)
    _save_version(connection, query, digest_of(holding), versions)


def load_sketches(
    connection: sqlite3.Connection, path: Path, query_id: int, generation: int, known: Partitions
) -> tuple[StoredSketch, ...]:
    """The sketches as they stood at `generation`, ordered by access."""
    result = connection.execute(
        "SELECT * FROM sketch_version WHERE query_id = ? AND generation = ?", (query_id, generation)
    ).fetchone()
    if result is None:
        raise damaged(path, "a sketch version is missing")
    captured, digest = opened(result, path, "sketch_version")[2:4]
    sketches, holding = [], []
    for sketched, held in _held_sketches(connection, path, query_id, captured, generation):
        access, table, attribute, partition_id, size = sketched
        holding.append(held)
        bits = held[3]
        if len(bits) != (size + 7) // 8:
            raise damaged(path, f"the sketch of `{access}` has the wrong size")
        if partition_id not in known:
            known[partition_id] = _load_partition(connection, path, partition_id)
        partition = known[partition_id]
        fragments = FragmentSet.from_bytes(bits, size)
        sketches.append(StoredSketch(access, table, attribute, partition, fragments))
    if digest_of(holding) != digest:
        raise damaged(path, "the sketches of one version do not match each other")
    return tuple(sketches)


def forget_sketches(connection: sqlite3.Connection, query_id: int) -> None:
    """Remove all sketches of the query; partitions stay until they are collected."""
    for table in ("sketch", "sketched", "sketch_version", "sketch_basis"):
        connection.execute(f"DELETE FROM {table} WHERE query_id = ?", (query_id,))  # noqa: S608


def _save_version(
    connection: sqlite3.Connection, query: tuple[int, int, int], digest: int, versions: str
) -> None:
    query_id, captured, generation = query
    connection.execute(
        "INSERT INTO sketch_version VALUES (?, ?, ?, ?, ?, ?)",
        sealed(query_id, generation, captured, digest, versions),
    )


def _held_sketches(
    connection: sqlite3.Connection, path: Path, query_id: int, captured: int, generation: int
) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Of each access captured, by its name: what is fixed, and the row, seal included, that holds.

    What is fixed are access, table, attribute, partition and number of ranges.
    """
    held = []
    for row in connection.execute(_HELD, (generation, query_id, captured)).fetchall():
        sketched = opened(row[:_SKETCHED_COLUMNS], path, "sketched")[2:]
        sketch = row[_SKETCHED_COLUMNS:]
        if sketch[0] is None:
            raise damaged(path, f"the sketch of `{sketched[0]}` is missing")
        opened(sketch, path, "sketch")
        held.append((sketched, sketch))
    return held


def _check_size(access: AccessId, fragments: FragmentSet, size: int) -> None:
    if fragments.size != size:
        raise ImpctlError(
            f"The sketch of access `{access}` has {fragments.size} ranges, but its partition has "
            f"{size}",
            code="sketch_size",
            hint="run `impctl capture` again",
        )


def _save_partition(connection: sqlite3.Connection, partition: RangePartition) -> str:
    content = json.dumps(
        {
            "table": partition.table,
            "attribute": partition.attribute,
            "type": [
                partition.type.kind.value,
                partition.type.precision,
                partition.type.scale,
                partition.type.detail,
            ],
            "boundaries": [_encoded(value) for value in partition.boundaries],
        }
    )
    content_id = _content_id(content)
    connection.execute("INSERT OR IGNORE INTO partition VALUES (?, ?)", (content_id, content))
    return content_id


def _load_partition(connection: sqlite3.Connection, path: Path, content_id: str) -> RangePartition:
    row = connection.execute("SELECT content FROM partition WHERE id = ?", (content_id,)).fetchone()
    if row is None or _content_id(row[0]) != content_id:
        raise damaged(path, f"partition `{content_id}` is missing or altered")
    content = json.loads(row[0])
    kind, precision, scale, detail = content["type"]
    return RangePartition(
        content["table"],
        content["attribute"],
        SqlType(Kind(kind), precision, scale, detail),
        tuple(_decoded(value) for value in content["boundaries"]),
    )


def _content_id(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _encoded(value: BoundaryValue) -> Any:
    # JSON keeps integers of any size and text; floats and bytes need a form that loses nothing.
    match value:
        case float():
            return {"float": value.hex()}
        case bytes():
            return {"bytes": value.hex()}
        case _:
            return value


def _decoded(value: Any) -> BoundaryValue:
    match value:
        case {"float": text}:
            return float.fromhex(text)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case _:
            return value  # type: ignore[no-any-return]  # an int or str, as encoded
