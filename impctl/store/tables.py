"""What the store keeps as catalog rows: queries, sketches, costs, commits, choices."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from types import MappingProxyType
from typing import Any

from msgspec import DecodeError, Struct
from msgspec.json import decode, encode
from msgspec.structs import astuple, replace

from impctl.data.schema import Kind, SqlType
from impctl.errors import ImpctlError, RetryableError
from impctl.forecast import KEPT as ARRIVALS_KEPT
from impctl.forecast import Arrival, History
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.sketch.sketch import MaintenanceMode, RangeSet
from impctl.store import states
from impctl.store.catalog import Value, digest_of, opened, seal_of, sealed
from impctl.store.disk import damaged
from impctl.store.records import (
    Amount,
    Assumption,
    Count,
    KeptVersion,
    MaintainCommit,
    NewCapture,
    RunCost,
    RunKind,
    RunParts,
    RunRecord,
    SideRead,
    StateChoiceBasis,
    StoredQuery,
    StoredSketch,
    TablePin,
    plain,
)
from impctl.store.states import WrittenRun
from impctl.types import AccessId, ColumnName, QueryName, TableName, TableVersion


def _json(value: object) -> str:
    return encode(value, enc_hook=plain).decode()


# Queries with their pins and progress as catalog rows. Law: what a capture fixes lies in `query`,
# what each commit moves in `progress` and `pin`; the generation grows by one with every commit of
# the query and never goes back.


class QueryRow(Struct, frozen=True):
    id: int
    name: QueryName
    fingerprint: str
    sql: str
    mode: str
    captured: int
    captured_at: float


_SAYS_NOTHING = 0
"""Value of two columns of `progress` that nothing reads. They stay: the seal of a stored row covers
them, and a migration in SQL could not renew it."""


class Progress(Struct, frozen=True):
    """What every commit changes; texts are JSON as stored."""

    generation: int
    assumptions: str
    state_meta: str
    maintained_at: float
    pins: int
    """Digest of the pins."""
    runs: int
    """Digest of the runs."""


def find_query(connection: Connection, path: Path, name: QueryName) -> QueryRow | None:
    row = connection.execute("SELECT * FROM query WHERE name = ?", (name,)).fetchone()
    return None if row is None else QueryRow(*opened(row, path, "query"))


_WITH_PROGRESS = (
    "SELECT * FROM query LEFT JOIN progress ON progress.query_id = query.id WHERE query.name = ?"
)
_QUERY_COLUMNS = 8


def find_with_progress(
    connection: Connection, path: Path, name: QueryName
) -> tuple[QueryRow, Progress] | None:
    """The query and its progress, in one read; both or neither, else StateCorruptError."""
    row = connection.execute(_WITH_PROGRESS, (name,)).fetchone()
    if row is None:
        return None
    query = QueryRow(*opened(row[:_QUERY_COLUMNS], path, "query"))
    if row[_QUERY_COLUMNS] is None:
        raise damaged(path, "the progress of a query is missing")
    _, generation, _, assumptions, meta, _, *rest = opened(row[_QUERY_COLUMNS:], path, "progress")
    return query, Progress(generation, assumptions, meta, *rest)


def query_names(connection: Connection, path: Path) -> tuple[QueryName, ...]:
    rows = connection.execute("SELECT * FROM query ORDER BY name").fetchall()
    return tuple(opened(row, path, "query")[1] for row in rows)


def save_query(
    connection: Connection,
    capture: NewCapture,
    query_id: int | None,
    generation: int,
    at: float,
) -> int:
    """Write what the capture fixes, over the row of `query_id` if any; returns the id."""
    if query_id is None:
        result = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM query").fetchone()
        query_id = int(result[0])
    row = (query_id, capture.query, capture.fingerprint, capture.sql, capture.mode.value)
    connection.execute(
        "INSERT OR REPLACE INTO query VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        sealed(*row, generation, float(at)),
    )
    return query_id


def save_progress(connection: Connection, query_id: int, progress: Progress) -> None:
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
    connection: Connection,
    query_id: int,
    pins: Iterable[TablePin],
    held: Mapping[TableName, PinRows] = MappingProxyType({}),
) -> int:
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
    connection: Connection, path: Path, query_id: int, digest: int
) -> dict[TableName, PinRows]:
    """The pins' rows, ordered by table; only their digest is verified."""
    rows = connection.execute(_PINS, (query_id,)).fetchall()
    # The joined columns come once, before those of each side; the number of schemas is the last.
    held = {row[1]: (row[:_PIN_COLUMNS], (*row[:2], *row[_PIN_COLUMNS:-1])) for row in rows}
    if (
        any(row[-1] != len(rows) for row in rows)
        or digest_of(itertools.chain(*held.values())) != digest
    ):
        raise damaged(path, "the pins of one version do not match each other")
    return held


def load_pins(
    connection: Connection, path: Path, query_id: int, digest: int
) -> tuple[TablePin, ...]:
    """The pins, ordered by table; they must match the digest."""
    pins = []
    for row, schema in held_pins(connection, path, query_id, digest).values():
        table, location, table_id, version = opened(row, path, "pin")[1:]
        (schema_json,) = opened(schema, path, "pin_schema")[2:]
        pins.append(TablePin(table, location, table_id, version, schema_json))
    return tuple(pins)


def load_query(
    connection: Connection, path: Path, name: QueryName, known: Partitions
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
        mode=MaintenanceMode(query.mode),
        pins=load_pins(connection, path, query.id, progress.pins),
        sketches=load_sketches(connection, path, query.id, progress.generation, known),
        assumptions=decode(progress.assumptions, type=tuple[Assumption, ...]),
        state_meta=decode(progress.state_meta),
        generation=progress.generation,
        captured_at=query.captured_at,
        maintained_at=progress.maintained_at,
    )


def meta_text(meta: Mapping[str, Any] | None) -> str:
    return _json({} if meta is None else meta)


# Sketches and their partitions as catalog rows. Law: what comes out is what went in, or
# StateCorruptError. Boundaries are stored once, under a hash of their content. A `sketch` row is
# written only where the bits differ from those before it, and holds from its generation on until
# the next row of its access.

_HELD = """
    SELECT * FROM sketched LEFT JOIN sketch ON sketch.query_id = sketched.query_id
    AND sketch.access = sketched.access AND sketch.generation = (
        SELECT max(generation) FROM sketch AS other WHERE other.query_id = sketched.query_id
        AND other.access = sketched.access AND other.generation BETWEEN sketched.captured AND ?)
    WHERE sketched.query_id = ? AND sketched.captured = ? ORDER BY sketched.access
"""
_SKETCHED_COLUMNS = 8
Partitions = dict[str, RangePartition]
"""Partitions read so far, by the hash of their content; extended by reads."""

_SKETCH = "INSERT INTO sketch VALUES (?, ?, ?, ?, ?)"
_SKETCH_TABLES = ("sketch", "sketched", "sketch_version", "sketch_basis")


def versions_text(versions: Mapping[TableName, TableVersion]) -> str:
    """Versions as text, equal for equal versions: SQL compares it with text of earlier releases."""
    return json.dumps({table: int(version) for table, version in sorted(versions.items())})


def save_captured(
    connection: Connection,
    query_id: int,
    generation: int,
    sketches: Iterable[StoredSketch],
    versions: str,
) -> None:
    """Write the sketches of a capture, with their partitions."""
    written = []
    for sketch in sorted(sketches, key=lambda sketch: sketch.access):
        _check_size(sketch.access, sketch.ranges, sketch.partition.size)
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
        bits = sketch.ranges.to_bytes()
        written.append(sealed(query_id, sketch.access, generation, bits))
        connection.execute(_SKETCH, written[-1])
    _save_version(connection, (query_id, generation, generation), digest_of(written), versions)


def save_maintained(
    connection: Connection,
    path: Path,
    query: tuple[int, int, int],
    sketches: Iterable[tuple[AccessId, RangeSet]],
    versions: str,
) -> None:
    """Write the sketches after a batch; `query` is id, captured generation, new generation."""
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
    connection: Connection, path: Path, query_id: int, generation: int, known: Partitions
) -> tuple[StoredSketch, ...]:
    """The sketches as of `generation`, ordered by access."""
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
        ranges = RangeSet.from_bytes(bits, size)
        sketches.append(StoredSketch(access, table, attribute, partition, ranges))
    if digest_of(holding) != digest:
        raise damaged(path, "the sketches of one version do not match each other")
    return tuple(sketches)


def _save_version(
    connection: Connection, query: tuple[int, int, int], digest: int, versions: str
) -> None:
    query_id, captured, generation = query
    connection.execute(
        "INSERT INTO sketch_version VALUES (?, ?, ?, ?, ?, ?)",
        sealed(query_id, generation, captured, digest, versions),
    )


def _held_sketches(
    connection: Connection, path: Path, query_id: int, captured: int, generation: int
) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Per captured access: the fixed values, and its valid row with seal. Fixed are access, table,
    attribute, partition and number of ranges."""
    held = []
    for row in connection.execute(_HELD, (generation, query_id, captured)).fetchall():
        sketched = opened(row[:_SKETCHED_COLUMNS], path, "sketched")[2:]
        sketch = row[_SKETCHED_COLUMNS:]
        if sketch[0] is None:
            raise damaged(path, f"the sketch of `{sketched[0]}` is missing")
        opened(sketch, path, "sketch")
        held.append((sketched, sketch))
    return held


def _check_size(access: AccessId, ranges: RangeSet, size: int) -> None:
    if ranges.size != size:
        raise ImpctlError(
            f"The sketch of access `{access}` has {ranges.size} ranges, but its partition has "
            f"{size}",
            code="sketch_size",
            hint="run `impctl capture` again",
        )


def _save_partition(connection: Connection, partition: RangePartition) -> str:
    kind = astuple(partition.type)
    boundaries = tuple(map(_encoded, partition.boundaries))
    content = _json(_PartitionRow(partition.table, partition.attribute, kind, boundaries))
    content_id = _content_id(content)
    connection.execute("INSERT OR IGNORE INTO partition VALUES (?, ?)", (content_id, content))
    return content_id


def _load_partition(connection: Connection, path: Path, content_id: str) -> RangePartition:
    row = connection.execute("SELECT content FROM partition WHERE id = ?", (content_id,)).fetchone()
    if row is None or _content_id(row[0]) != content_id:
        raise damaged(path, f"partition `{content_id}` is missing or altered")
    content = decode(row[0], type=_PartitionRow)
    boundaries = tuple(map(_decoded, content.boundaries))
    return RangePartition(content.table, content.attribute, SqlType(*content.type), boundaries)


def _content_id(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:32]


class _PartitionRow(Struct, frozen=True):
    """A partition as stored, its type as the values of `SqlType`."""

    table: TableName
    attribute: ColumnName
    type: tuple[Kind, int, int, str]
    boundaries: tuple[int | str | dict[str, str], ...]


def _encoded(value: BoundaryValue) -> int | str | dict[str, str]:
    # JSON keeps integers of any size and text; floats and bytes need a form that loses nothing.
    match value:
        case float():
            return {"float": value.hex()}
        case bytes():
            return {"bytes": value.hex()}
        case _:
            return value


def _decoded(value: int | str | dict[str, str]) -> BoundaryValue:
    match value:
        case {"float": text}:
            return float.fromhex(text)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case _:
            return value  # type: ignore[return-value]  # an int or str, as encoded


# What the latest runs of a query cost, as catalog rows. Law: of every kind of run, every set of
# tables it carried on and every layout of state, the latest `KEPT` are held, and `MOST` of a
# kind. Costs only ever feed an estimate: a row that does not match its seal is left out, where
# elsewhere it would end the run.

KEPT = 8
"""Runs of one kind over the same tables and layout: enough to see an outlier, few to read."""
MOST = 64
"""Runs of one kind, whatever tables changed."""

_LAST = "SELECT coalesce(max(number), 0) FROM cost WHERE query_id = ? AND kind = ?"
_SEALED = 8
"""Columns before the seal; those after it came with later formats."""
_KINDS = frozenset(kind.value for kind in RunKind)
_OLDEST = """DELETE FROM cost WHERE query_id = ? AND kind = ? AND (number <= ?
    OR moved = ? AND layout = ? AND number NOT IN (SELECT number FROM cost
            WHERE query_id = ? AND kind = ? AND moved = ? AND layout = ?
            ORDER BY number DESC LIMIT ?))"""


def add_cost(connection: Connection, query_id: int, cost: RunCost) -> None:
    """Append the cost of a run; drops the oldest of its like beyond `KEPT`."""
    number = _last(connection, query_id, cost.kind) + 1
    _put(connection, query_id, number, cost)
    mine, alike = (query_id, str(cost.kind)), (_text(cost.moved), cost.layout)
    connection.execute(_OLDEST, (*mine, number - MOST, *alike, *mine, *alike, KEPT))


def load_costs(connection: Connection, query_id: int) -> tuple[RunCost, ...]:
    rows = connection.execute(
        "SELECT * FROM cost WHERE query_id = ? ORDER BY kind, number DESC", (query_id,)
    ).fetchall()
    result = []
    for row in rows:
        values, seal, later = row[:_SEALED], row[_SEALED], row[_SEALED + 1 :]
        if seal_of(*values, *filter(None, later)) != seal:
            continue
        _, kind, _, changed, size, elapsed_ms, spark, start_ms = values
        if kind in _KINDS and math.isfinite(elapsed_ms):
            result.append(
                RunCost(
                    RunKind(kind),
                    changed,
                    size,
                    elapsed_ms,
                    bool(spark),
                    start_ms,
                    _tables(*later[:1]),
                    parts_in(*later[1:2]),
                    *later[2:],
                )
            )
    return tuple(result)


def _text(moved: Sequence[TableName]) -> str:
    return json.dumps(list(moved)) if moved else ""


def _tables(moved: str = "") -> tuple[TableName, ...]:
    return decode(moved, type=tuple[TableName, ...]) if moved else ()


def _last(connection: Connection, query_id: int, kind: RunKind) -> int:
    return int(connection.execute(_LAST, (query_id, str(kind))).fetchone()[0])


def _put(connection: Connection, query_id: int, number: int, cost: RunCost) -> None:
    values = (
        query_id,
        str(cost.kind),
        number,
        int(cost.rows),
        int(cost.bytes),
        float(cost.elapsed_ms),
        int(cost.spark),
        float(cost.start_ms),
    )
    later = (_text(cost.moved), parts_text(cost.parts), cost.layout)
    row = (*values, seal_of(*values, *filter(None, later)), *later)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT OR REPLACE INTO cost VALUES ({marks})", row)


# Parts of what a run cost, as text of its catalog row. Law: times come back to a thousandth of a
# millisecond, everything else as it was; a text that impctl did not write is as none, since
# nothing but an estimate comes of it.

_DIGITS = 3


class _PartsText(Struct, frozen=True):
    """Parts as stored; `reads` are keys, hits, rows and milliseconds by side."""

    times: tuple[Amount, ...]
    reads: dict[str, tuple[Count, Count, Count, Amount]]


def parts_text(parts: RunParts | None) -> str:
    """The parts as text; empty for none."""
    if parts is None:
        return ""
    times = tuple(round(ms, _DIGITS) for ms in parts.times)
    reads = {r.side: (r.keys, r.hits, r.rows, round(r.ms, _DIGITS)) for r in parts.reads}
    return _json(_PartsText(times, reads))


def parts_in(text: str = "") -> RunParts | None:
    """The parts in a text; None for an empty or unknown text."""
    try:
        stored = decode(text, type=_PartsText)
    except DecodeError:
        return None
    return RunParts(stored.times, tuple(SideRead(side, *n) for side, n in stored.reads.items()))


# What was done to a query and why, as catalog rows. Law: a record is numbered in the order of
# commits and stays when the query is captured again. Its cost is put where estimates are learned
# from (`store.tables`) and is not read back with it.

_COLUMNS = (
    *("action", "reason_code", "reason", "started_at"),
    *("elapsed_ms", "read_ms", "engine_ms", "commit_ms"),
    *("changes", "added", "removed", "versions"),
)
"""After a record's query and number, named like its fields."""

_LAST_ENTRY = "SELECT coalesce(max(number), 0) FROM history WHERE query_id = ?"


def add_record(connection: Connection, query_id: int, record: RunRecord) -> None:
    _put_entry(connection, query_id, _last_entry(connection, query_id) + 1, record)
    if record.cost is not None:
        add_cost(connection, query_id, record.cost)


def replace_last_record(connection: Connection, query_id: int, record: RunRecord) -> None:
    """Replace the latest record (timings are known only after the commit)."""
    _put_entry(connection, query_id, max(1, _last_entry(connection, query_id)), record)
    if record.cost is not None:
        number = max(1, _last(connection, query_id, record.cost.kind))
        _put(connection, query_id, number, record.cost)


def load_records(
    connection: Connection, path: Path, query_id: int, limit: int
) -> tuple[RunRecord, ...]:
    """The latest `limit` records, newest first."""
    rows = connection.execute(
        "SELECT * FROM history WHERE query_id = ? ORDER BY number DESC LIMIT ?", (query_id, limit)
    )
    records = []
    for row in rows.fetchall():
        values = opened(row, path, "history")[2:]
        given = dict(zip(_COLUMNS, values, strict=True))
        records.append(RunRecord(**{**given, "versions": decode(given["versions"])}))
    return tuple(records)


def _last_entry(connection: Connection, query_id: int) -> int:
    return int(connection.execute(_LAST_ENTRY, (query_id,)).fetchone()[0])


def _put_entry(connection: Connection, query_id: int, number: int, record: RunRecord) -> None:
    row: tuple[Value, ...] = (
        query_id,
        number,
        str(record.action),
        str(record.reason_code),
        record.reason,
        float(record.started_at),
        float(record.elapsed_ms),
        float(record.read_ms),
        float(record.engine_ms),
        float(record.commit_ms),
        int(record.changes),
        int(record.added),
        int(record.removed),
        versions_text(record.versions),
    )
    marks = ", ".join("?" * (len(row) + 1))
    connection.execute(f"INSERT OR REPLACE INTO history VALUES ({marks})", sealed(*row))


# Sketch versions that are kept beside the newest, and what each rests on, as catalog rows. Law: a
# version comes back with the very assumptions and basis of the commit that wrote it, never with
# those of another one; a version whose basis was not written is not there at all.


def save_basis(
    connection: Connection,
    query_id: int,
    generation: int,
    assumptions: str,
    basis: Mapping[str, Any] | None,
) -> None:
    """Save the basis of a generation's sketches; without one they are not offered later."""
    if basis is not None:
        row = sealed(query_id, generation, assumptions, _json(basis))
        connection.execute("INSERT INTO sketch_basis VALUES (?, ?, ?, ?, ?)", row)


def kept_versions(
    connection: Connection,
    path: Path,
    name: QueryName,
    versions: Mapping[TableName, TableVersion] | None,
) -> tuple[KeptVersion, ...]:
    """The versions of the query that have a basis, newest commit first."""
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
            kept.append(KeptVersion(generation, decode(text), basis[1]))
    return tuple(kept)


def load_kept(
    connection: Connection, path: Path, name: QueryName, generation: int, known: Partitions
) -> StoredQuery | None:
    """The query with pins, sketches, assumptions and basis of a generation; None if it is gone.
    Mode and times are those of the query now."""
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
    versions = decode(opened(row, path, "sketch_version")[4])
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
    connection: Connection, path: Path, query_id: int, generation: int
) -> tuple[tuple[Assumption, ...], dict[str, Any]] | None:
    row = connection.execute(
        "SELECT * FROM sketch_basis WHERE query_id = ? AND generation = ?", (query_id, generation)
    ).fetchone()
    if row is None:
        return None
    assumptions, basis = opened(row, path, "sketch_basis")[2:]
    return decode(assumptions, type=tuple[Assumption, ...]), decode(basis)


# The latest commits of each table as numbers, as catalog rows. Law: writing costs the arrivals
# that are new or go, not those that stay. They only ever feed a forecast: a row that does not
# match its seal is left out, and the next one stands behind a gap.

_LOG_COLUMNS, _ARRIVAL_COLUMNS = 6, 10


def load_arrivals(
    connection: Connection, tables: Iterable[TableName], *, is_whole: bool = True
) -> dict[TableName, History]:
    """The known histories of these tables; without arrivals if not `is_whole`."""
    result = {}
    for table in dict.fromkeys(tables):
        log = _log(connection, table)
        if log is not None:
            arrivals = tuple(_arrivals(connection, table)) if is_whole else ()
            result[table] = replace(log, arrivals=arrivals)
    return result


def save_arrivals(connection: Connection, histories: Mapping[TableName, History]) -> None:
    """Update the rows of tables to these histories, which continue those that were loaded: only
    arrivals after the known ones are inserted."""
    for table, commits in histories.items():
        since = _put_arrivals(connection, table, commits)
        row = sealed(table, commits.table_id, commits.until, _real(since), int(commits.has_missed))
        marks = ", ".join("?" * _LOG_COLUMNS)
        connection.execute(f"INSERT OR REPLACE INTO arrival_log VALUES ({marks})", row)


def _put_arrivals(connection: Connection, table: TableName, history: History) -> float | None:
    """Insert new arrivals and delete old ones; returns the time since which all are known."""
    stored = _log(connection, table)
    is_same = stored is not None and stored.table_id == history.table_id
    last = stored.until if stored is not None and is_same else -1
    connection.execute(
        "DELETE FROM arrival WHERE table_name = ? AND version > ?",
        (table, min(last, history.until)),
    )
    new = [_row(table, arrival) for arrival in history.arrivals if arrival.version > last]
    marks = ", ".join("?" * _ARRIVAL_COLUMNS)
    connection.executemany(f"INSERT INTO arrival VALUES ({marks})", new)
    # The oldest one to keep, if there are more.
    first = connection.execute(
        "SELECT version, at FROM arrival WHERE table_name = ? ORDER BY version DESC"
        " LIMIT 1 OFFSET ?",
        (table, ARRIVALS_KEPT - 1),
    ).fetchone()
    if first is None:
        return history.since
    gone = connection.execute(
        "DELETE FROM arrival WHERE table_name = ? AND version < ?", (table, first[0])
    )
    return first[1] if gone.rowcount else history.since


def _log(connection: Connection, table: TableName) -> History | None:
    """The table's row, without arrivals."""
    row = connection.execute("SELECT * FROM arrival_log WHERE table_name = ?", (table,)).fetchone()
    if row is None or seal_of(*row[:-1]) != row[-1]:
        return None
    return History(row[1], row[2], row[3], (), bool(row[4]))


def _arrivals(connection: Connection, table: TableName) -> Iterable[Arrival]:
    rows = connection.execute(
        "SELECT * FROM arrival WHERE table_name = ? ORDER BY version", (table,)
    ).fetchall()
    is_skipped = False
    for row in rows:
        if seal_of(*row[:-1]) != row[-1]:
            is_skipped = True
            continue
        version, at, inserted, deleted, files, size, operation, is_after_gap = row[1:-1]
        is_behind = bool(is_after_gap) or is_skipped
        yield Arrival(version, at, inserted, deleted, files, size, operation, is_behind)
        is_skipped = False


def _row(table: TableName, arrival: Arrival) -> tuple[object, ...]:
    return sealed(
        table,
        arrival.version,
        _real(arrival.at),
        arrival.inserted,
        arrival.deleted,
        arrival.files,
        arrival.bytes,
        arrival.operation,
        int(arrival.is_after_gap),
    )


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)


# What the last choice of state was made by, as the one row of its table. Law: it only ever saves
# a choice from being made again: a row that does not match its seal, or that impctl did not
# write, is as none.

_PLACE = 1


def load_chosen(connection: Connection) -> StateChoiceBasis | None:
    """The saved basis of the last choice; None without one."""
    row = connection.execute("SELECT * FROM state_choice WHERE place = ?", (_PLACE,)).fetchone()
    if row is None or seal_of(*row[:-1]) != row[-1]:
        return None
    try:
        return decode(row[1], type=StateChoiceBasis)
    except DecodeError:
        return None


def save_chosen(connection: Connection, chosen: StateChoiceBasis | None) -> None:
    """Save this basis; None removes it."""
    connection.execute("DELETE FROM state_choice")
    if chosen is None:
        return
    values = (_PLACE, _json(chosen))
    connection.execute("INSERT INTO state_choice VALUES (?, ?, ?)", (*values, seal_of(*values)))


# What a commit changes in the catalog, statement by statement; runs inside one transaction. Law:
# everything here happens in the caller's transaction; the generation expected by the writer is
# checked before anything is written. Files are only named here, never touched.


class Applied(Struct, frozen=True):
    """What a transaction did: the new generation, and unreferenced files."""

    generation: int
    unused_files: tuple[str, ...]


Apply = Callable[[Connection, tuple[WrittenRun, ...]], Applied]


def apply_capture(
    connection: Connection,
    path: Path,
    capture: NewCapture,
    written: tuple[WrittenRun, ...],
    record: RunRecord,
    at: float,
) -> Applied:
    """Replace what the query had by the capture."""
    result = find_with_progress(connection, path, capture.query)
    query_id, generation = None, 1
    unused: list[str] = []
    if result is not None:
        before, current = result
        query_id, generation = before.id, current.generation + 1
        unused = states.drop_all_runs(connection, before.id)
        if not _is_same(connection, path, before, current, capture):
            _forget(connection, before.id, *_SKETCH_TABLES, "cost")
        _forget(connection, before.id, "pin", "pin_schema")
    query_id = save_query(connection, capture, query_id, generation, at)
    pins = save_pins(connection, query_id, capture.pins)
    versions = versions_text({pin.table: pin.version for pin in capture.pins})
    save_captured(connection, query_id, generation, capture.sketches, versions)
    assumptions = _json(capture.assumptions)
    save_basis(connection, query_id, generation, assumptions, capture.basis)
    # What it had was dropped above.
    runs, _ = states.move_runs(connection, path, query_id, states.NO_RUNS, (), written)
    meta = meta_text(capture.state_meta)
    progress = Progress(generation, assumptions, meta, maintained_at=at, pins=pins, runs=runs)
    save_progress(connection, query_id, progress)
    add_record(connection, query_id, record)
    return Applied(generation, tuple(unused))


def apply_maintain(
    connection: Connection,
    path: Path,
    change: MaintainCommit,
    written: tuple[WrittenRun, ...],
) -> Applied:
    """Move the query forward; RetryableError if another writer moved it meanwhile."""
    result = find_with_progress(connection, path, change.query)
    if result is None:
        raise _moved(change, "is no longer in the store")
    query, current = result
    if current.generation != change.expected_generation:
        raise _moved(change, f"is already at generation {current.generation}")
    pinned = held_pins(connection, path, query.id, current.pins)
    _check_pins(change, [opened(row, path, "pin") for row, _ in pinned.values()])
    generation = current.generation + 1
    pins = save_pins(connection, query.id, change.pins, pinned)
    versions = versions_text({pin.table: pin.version for pin in change.pins})
    moved = (query.id, query.captured, generation)
    save_maintained(connection, path, moved, change.sketches, versions)
    save_basis(connection, query.id, generation, current.assumptions, change.basis)
    runs, unused = states.move_runs(
        connection, path, query.id, current.runs, change.drop_runs, written
    )
    meta = change.state_meta
    progress = replace(
        current,
        generation=generation,
        state_meta=current.state_meta if meta is None else meta_text(meta),
        maintained_at=change.at,
        pins=pins,
        runs=runs,
    )
    save_progress(connection, query.id, progress)
    add_record(connection, query.id, change.record)
    return Applied(generation, tuple(unused))


def _forget(connection: Connection, query_id: int, *tables: str) -> None:
    for table in tables:
        connection.execute(f"DELETE FROM {table} WHERE query_id = ?", (query_id,))  # noqa: S608


def _is_same(
    connection: Connection,
    path: Path,
    before: QueryRow,
    held: Progress,
    capture: NewCapture,
) -> bool:
    """Whether sketches of earlier versions still describe this query over these tables."""
    pins = load_pins(connection, path, before.id, held.pins)
    return before.fingerprint == capture.fingerprint and _commit_tables(pins) == _commit_tables(
        capture.pins
    )


def _commit_tables(pins: Sequence[TablePin]) -> set[tuple[str, str]]:
    # Not by path: a folder of tables may be moved, the identity of a table moves along.
    return {(pin.table, pin.table_id) for pin in pins}


def _check_pins(change: MaintainCommit, held: Sequence[tuple[Any, ...]]) -> None:
    """`held` are the values of the pins' rows: query, table, path, identity, version."""
    # A version of one table with the state of another would be a wrong answer later on.
    if {(row[1], row[3]) for row in held} != _commit_tables(change.pins):
        raise ImpctlError(
            f"A commit of query `{change.query}` refers to other tables than its capture",
            code="pins_differ",
            hint=f"run `impctl capture` for `{change.query}` again",
        )


def _moved(change: MaintainCommit, what: str) -> RetryableError:
    return RetryableError(
        f"Query `{change.query}` {what}, not at {change.expected_generation}",
        code="generation_moved",
        hint="another run was faster; run the command again",
    )
