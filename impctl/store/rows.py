"""The rows of the catalog: queries, sketches, costs, commits of tables, choices of state."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import DecodeError, Struct
from msgspec.json import decode, encode
from msgspec.structs import astuple, replace

from impctl.data.schema import Kind, SqlType
from impctl.errors import ImpctlError, RetryableError
from impctl.forecast import KEPT as ARRIVALS_KEPT
from impctl.forecast import Commit, History
from impctl.sketch.sketch import BoundaryValue, MaintenanceMode, RangePartition, RangeSet
from impctl.store import states
from impctl.store.catalog import Transaction, digest_of, seal_of, sealed
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
from impctl.store.states import StoredRun
from impctl.types import AccessId, ColumnName, QueryName, TableName, TableVersion

# Commits. Law: a commit is one transaction of the caller, and the expected generation is checked
# before anything is written. Files are only named.


T = TypeVar("T")
Assumptions = tuple[Assumption, ...]
Versions = dict[TableName, TableVersion]
Applied = tuple[int, list[str]]
"""The new generation, and the files that nothing refers to after the commit."""
Apply = Callable[[Transaction, tuple[StoredRun, ...]], Applied]


def apply_capture(
    tx: Transaction,
    capture: NewCapture,
    written: tuple[StoredRun, ...],
    record: RunRecord,
    at: float,
) -> Applied:
    """Replace everything stored of the query."""
    before = find_query(tx, capture.query)
    unused: list[str] = []
    if before is None:
        query_id = int(tx.execute("SELECT coalesce(max(id), 0) + 1 FROM query").fetchone()[0])
        generation = 1
    else:
        query_id, generation = before.id, before.generation + 1
        unused = states.drop_all_runs(tx, query_id)
        is_same = before.fingerprint == capture.fingerprint
        if not is_same or _identities(_load_pins(tx, before)) != _identities(capture.pins):
            # Sketches of earlier versions do not describe this query over these tables.
            tx.delete(query_id, "sketch", "sketched", "sketch_version", "sketch_basis", "cost")
        tx.delete(query_id, "pin", "pin_schema")
    fixed = (capture.query, capture.fingerprint, capture.sql, capture.mode.value)
    tx.put("query", query_id, *fixed, generation, float(at))
    pins = _save_pins(tx, query_id, capture.pins)
    _save_captured(tx, query_id, generation, capture)
    assumptions = _json(capture.assumptions)
    _save_basis(tx, query_id, generation, assumptions, capture.basis)
    # Earlier runs were dropped above.
    runs, _ = states.move_runs(tx, query_id, states.NO_RUNS, (), written)
    meta = _json({} if capture.state_meta is None else capture.state_meta)
    row = QueryRow(query_id, *fixed, generation, at, generation, assumptions, meta, at, pins, runs)
    _save_progress(tx, row)
    add_record(tx, query_id, record)
    return generation, unused


def apply_maintain(
    tx: Transaction, change: MaintainCommit, written: tuple[StoredRun, ...]
) -> Applied:
    """Move the query forward; RetryableError if another writer moved it meanwhile."""
    query = find_query(tx, change.query)
    if query is None:
        raise _moved(change, "is no longer in the store")
    if query.generation != change.expected_generation:
        raise _moved(change, f"is already at generation {query.generation}")
    pinned = _pin_rows(tx, query)
    identities = {(row[1], row[3]) for row in (tx.opened(pin, "pin") for pin, _ in pinned.values())}
    # A version of one table with the state of another would later give a wrong answer.
    if identities != _identities(change.pins):
        raise ImpctlError(
            f"A commit of query `{change.query}` refers to other tables than its capture",
            code="pins_differ",
            hint=f"run `impctl capture` for `{change.query}` again",
        )
    generation, meta = query.generation + 1, change.state_meta
    digest = _save_pins(tx, query.id, change.pins, pinned)
    _save_maintained(tx, query, generation, change)
    _save_basis(tx, query.id, generation, query.assumptions, change.basis)
    runs, unused = states.move_runs(tx, query.id, query.runs, change.drop_runs, written)
    moved = replace(
        query,
        generation=generation,
        state_meta=query.state_meta if meta is None else _json(meta),
        maintained_at=change.at,
        pins=digest,
        runs=runs,
    )
    _save_progress(tx, moved)
    add_record(tx, query.id, change.record)
    return generation, unused


def _identities(pins: Sequence[TablePin]) -> set[tuple[str, str]]:
    # Not by path: tables keep their identity when their folder is moved.
    return {(pin.table, pin.table_id) for pin in pins}


def _moved(change: MaintainCommit, what: str) -> RetryableError:
    return RetryableError(
        f"Query `{change.query}` {what}, not at {change.expected_generation}",
        code="generation_moved",
        hint="another run was faster; run the command again",
    )


def _json(value: object) -> str:
    return encode(value, enc_hook=plain).decode()


def _read(tx: Transaction, text: str, kind: type[T]) -> T:
    """The value in a text; StateCorruptError if impctl did not write it."""
    try:
        return decode(text, type=kind)
    except DecodeError as error:
        raise tx.damaged(f"a row has a text that impctl did not write ({error})") from error


# Queries. Law: a capture writes `query`, every commit `progress` and `pin`; the generation grows by
# one with each commit of the query.


class QueryRow(Struct, frozen=True):
    """A query and its progress; `assumptions` and `state_meta` are JSON, `pins` and `runs` digests.
    `captured` is the generation of its capture."""

    id: int
    name: QueryName
    fingerprint: str
    sql: str
    mode: str
    captured: int
    captured_at: float
    generation: int
    assumptions: str
    state_meta: str
    maintained_at: float
    pins: int
    runs: int


_QUERY = (
    "SELECT * FROM query LEFT JOIN progress ON progress.query_id = query.id WHERE query.name = ?"
)
_QUERY_COLUMNS = 8
_UNUSED = 0
"""Value of two columns of `progress` that nothing reads. They stay because seals cover them, which
a migration in SQL cannot compute."""


def find_query(tx: Transaction, name: QueryName) -> QueryRow | None:
    """The query and its progress, in one read; StateCorruptError for one without the other."""
    row = tx.execute(_QUERY, (name,)).fetchone()
    if row is None:
        return None
    query, moved = tx.opened(row[:_QUERY_COLUMNS], "query"), row[_QUERY_COLUMNS:]
    if moved[0] is None:
        raise tx.damaged("the progress of a query is missing")
    _, generation, _, assumptions, meta, _, *rest = tx.opened(moved, "progress")
    return QueryRow(*(*query, generation, assumptions, meta, *rest))


def query_id(tx: Transaction, name: QueryName) -> int | None:
    row = tx.find("query", name=name)
    return None if row is None else int(row[0])


def query_names(tx: Transaction) -> tuple[QueryName, ...]:
    rows = tx.execute("SELECT * FROM query ORDER BY name").fetchall()
    return tuple(tx.opened(row, "query")[1] for row in rows)


def load_query(tx: Transaction, name: QueryName, known: Partitions) -> StoredQuery | None:
    """Everything of the query but runs and history."""
    query = find_query(tx, name)
    if query is None:
        return None
    return StoredQuery(
        query=query.name,
        fingerprint=query.fingerprint,
        sql=query.sql,
        mode=MaintenanceMode(query.mode),
        pins=_load_pins(tx, query),
        sketches=_load_sketches(tx, query.id, query.generation, known),
        assumptions=_read(tx, query.assumptions, Assumptions),
        state_meta=_read(tx, query.state_meta, dict[str, Any]),
        generation=query.generation,
        captured_at=query.captured_at,
        maintained_at=query.maintained_at,
    )


def load_kept(
    tx: Transaction, name: QueryName, generation: int, known: Partitions
) -> StoredQuery | None:
    """The query with pins, sketches, assumptions and basis of a generation; None if it is gone.
    Mode and times are those of the query now."""
    now, number = load_query(tx, name, known), query_id(tx, name)
    if now is None or number is None:
        return None
    version = tx.find("sketch_version", query_id=number, generation=generation)
    basis = _load_basis(tx, number, generation)
    if version is None or basis is None:
        return None
    versions = _read(tx, version[4], Versions)
    return replace(
        now,
        # Tables of other names or identities would have made a recapture forget this version.
        pins=tuple(replace(pin, version=versions[pin.table], schema_json="") for pin in now.pins),
        sketches=_load_sketches(tx, number, generation, known),
        assumptions=basis[0],
        state_meta=basis[1],
        generation=generation,
    )


def _save_progress(tx: Transaction, query: QueryRow) -> None:
    texts = (query.assumptions, query.state_meta)
    rest = (float(query.maintained_at), query.pins, query.runs)
    tx.put("progress", query.id, query.generation, _UNUSED, *texts, _UNUSED, *rest)


PinRows = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The rows of a pin and of its schema, seals included."""

_PINS = """
    SELECT *, (SELECT count(*) FROM pin_schema WHERE query_id = pin.query_id)
    FROM pin LEFT JOIN pin_schema USING (query_id, table_name)
    WHERE query_id = ? ORDER BY table_name
"""
_PIN_COLUMNS = 6


def _save_pins(
    tx: Transaction,
    number: int,
    pins: Iterable[TablePin],
    stored: Mapping[TableName, PinRows] = MappingProxyType({}),
) -> int:
    """Write the rows that differ from the stored ones; returns the digest of all."""
    written = []
    for pin in sorted(pins, key=lambda pin: pin.table):
        before, schema = stored.get(pin.table, ((), ()))
        row = sealed(number, pin.table, pin.path, pin.table_id, int(pin.version))
        if row != before:
            tx.insert("pin", row, "INSERT OR REPLACE")
        if not schema or schema[2] != pin.schema_json:
            schema = tx.put("pin_schema", number, pin.table, pin.schema_json)
        written += [row, schema]
    return digest_of(written)


def _pin_rows(tx: Transaction, query: QueryRow) -> dict[TableName, PinRows]:
    """The pins' rows, ordered by table; only their digest is verified."""
    rows = tx.execute(_PINS, (query.id,)).fetchall()
    # The joined columns come once, before those of each side; the number of schemas is the last.
    pins = {row[1]: (row[:_PIN_COLUMNS], (*row[:2], *row[_PIN_COLUMNS:-1])) for row in rows}
    digest = digest_of(itertools.chain(*pins.values()))
    if any(row[-1] != len(rows) for row in rows) or digest != query.pins:
        raise tx.damaged("the pins of one version do not match each other")
    return pins


def _load_pins(tx: Transaction, query: QueryRow) -> tuple[TablePin, ...]:
    return tuple(
        TablePin(*(*tx.opened(row, "pin")[1:], tx.opened(schema, "pin_schema")[2]))
        for row, schema in _pin_rows(tx, query).values()
    )


# Sketches and their partitions. Law: reading returns what was written, or StateCorruptError.
# Boundaries are stored once, under a hash of their content. A `sketch` row is written only if the
# bits change, and is valid from its generation until the next row of its access.

Partitions = dict[str, RangePartition]
"""Partitions read so far, by the hash of their content; extended by reads."""

_SKETCHES = """
    SELECT * FROM sketched LEFT JOIN sketch ON sketch.query_id = sketched.query_id
    AND sketch.access = sketched.access AND sketch.generation = (
        SELECT max(generation) FROM sketch AS other WHERE other.query_id = sketched.query_id
        AND other.access = sketched.access AND other.generation BETWEEN sketched.captured AND ?)
    WHERE sketched.query_id = ? AND sketched.captured = ? ORDER BY sketched.access
"""
_SKETCHED_COLUMNS = 8


def _save_captured(tx: Transaction, number: int, generation: int, capture: NewCapture) -> None:
    """Write the sketches of a capture, with their partitions."""
    written = []
    for sketch in sorted(capture.sketches, key=lambda sketch: sketch.access):
        size = sketch.partition.size
        _check_size(sketch.access, sketch.ranges, size)
        names = (sketch.access, sketch.table, sketch.attribute)
        partition_id = _save_partition(tx, sketch.partition)
        tx.add("sketched", number, generation, *names, partition_id, size)
        bits = sketch.ranges.to_bytes()
        written.append(tx.add("sketch", number, sketch.access, generation, bits))
    versions = _versions_of(capture.pins)
    tx.add("sketch_version", number, generation, generation, digest_of(written), versions)


def _save_maintained(
    tx: Transaction, query: QueryRow, generation: int, change: MaintainCommit
) -> None:
    """Write the sketches that a batch changed."""
    stored = _sketch_rows(tx, query.id, query.captured, generation)
    sketches = dict(change.sketches)
    known = [access for (access, *_), _ in stored]
    for access in sketches:
        if access not in known:
            raise ImpctlError(
                f"Access `{access}` was not captured; captured accesses are {known}",
                code="access_unknown",
                hint="run `impctl capture` again",
            )
    valid = []
    for (access, *_, size), row in stored:
        if access in sketches:
            _check_size(access, sketches[access], size)
            bits = sketches[access].to_bytes()
            if row[3] != bits:
                row = tx.add("sketch", query.id, access, generation, bits)
        valid.append(row)
    values = (query.captured, digest_of(valid), _versions_of(change.pins))
    tx.add("sketch_version", query.id, generation, *values)


def _load_sketches(
    tx: Transaction, number: int, generation: int, known: Partitions
) -> tuple[StoredSketch, ...]:
    """The sketches as of `generation`, ordered by access."""
    version = tx.find("sketch_version", query_id=number, generation=generation)
    if version is None:
        raise tx.damaged("a sketch version is missing")
    _, _, captured, digest, _ = version
    rows = _sketch_rows(tx, number, captured, generation)
    sketches = []
    for (access, table, attribute, partition_id, size), row in rows:
        bits = row[3]
        if len(bits) != (size + 7) // 8:
            raise tx.damaged(f"the sketch of `{access}` has the wrong size")
        if partition_id not in known:
            known[partition_id] = _load_partition(tx, partition_id)
        ranges = RangeSet.from_bytes(bits, size)
        sketches.append(StoredSketch(access, table, attribute, known[partition_id], ranges))
    if digest_of(row for _, row in rows) != digest:
        raise tx.damaged("the sketches of one version do not match each other")
    return tuple(sketches)


def _sketch_rows(
    tx: Transaction, number: int, captured: int, generation: int
) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Per captured access: access, table, attribute, partition and number of ranges; and the valid
    row of its sketch, with seal."""
    result = []
    for row in tx.execute(_SKETCHES, (generation, number, captured)).fetchall():
        sketched = tx.opened(row[:_SKETCHED_COLUMNS], "sketched")[2:]
        sketch = row[_SKETCHED_COLUMNS:]
        if sketch[0] is None:
            raise tx.damaged(f"the sketch of `{sketched[0]}` is missing")
        tx.opened(sketch, "sketch")
        result.append((sketched, sketch))
    return result


def _check_size(access: AccessId, ranges: RangeSet, size: int) -> None:
    if ranges.size != size:
        raise ImpctlError(
            f"The sketch of access `{access}` has {ranges.size} ranges, but its partition has "
            f"{size}",
            code="sketch_size",
            hint="run `impctl capture` again",
        )


class _PartitionText(Struct, frozen=True):
    """A partition as stored. `type` has the fields of `SqlType`; exact floats and bytes are objects
    with one key."""

    table: TableName
    attribute: ColumnName
    type: tuple[Kind, int, int, str]
    boundaries: tuple[int | str | dict[str, str], ...]


def _save_partition(tx: Transaction, partition: RangePartition) -> str:
    kind = astuple(partition.type)
    boundaries = tuple(map(_encoded, partition.boundaries))
    content = _json(_PartitionText(partition.table, partition.attribute, kind, boundaries))
    content_id = _content_id(content)
    tx.insert("partition", (content_id, content), "INSERT OR IGNORE")
    return content_id


def _load_partition(tx: Transaction, content_id: str) -> RangePartition:
    row = tx.execute("SELECT content FROM partition WHERE id = ?", (content_id,)).fetchone()
    if row is None or _content_id(row[0]) != content_id:
        raise tx.damaged(f"partition `{content_id}` is missing or altered")
    content = _read(tx, row[0], _PartitionText)
    boundaries = tuple(map(_decoded, content.boundaries))
    return RangePartition(content.table, content.attribute, SqlType(*content.type), boundaries)


def _content_id(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _encoded(value: BoundaryValue) -> int | str | dict[str, str]:
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


# Earlier sketch versions and their basis. Law: a version comes back with the assumptions and basis
# of the commit that wrote it; a version without a stored basis is not offered.


def kept_versions(
    tx: Transaction, name: QueryName, versions: Mapping[TableName, TableVersion] | None
) -> tuple[KeptVersion, ...]:
    """The versions of the query that have a basis, newest commit first."""
    number = query_id(tx, name)
    requested = None if versions is None else versions_text(versions)
    rows = tx.execute(
        "SELECT * FROM sketch_version WHERE query_id = ?1 AND (?2 IS NULL OR versions = ?2)"
        " ORDER BY generation DESC",
        (number, requested),
    ).fetchall()
    result = []
    for _, generation, _, _, text in (tx.opened(row, "sketch_version") for row in rows):
        basis = _load_basis(tx, number, generation)
        if basis is not None:
            result.append(KeptVersion(generation, _read(tx, text, Versions), basis[1]))
    return tuple(result)


def versions_text(versions: Mapping[TableName, TableVersion]) -> str:
    """Versions as text, equal for equal versions; SQL compares it with that of earlier releases."""
    return json.dumps({table: int(version) for table, version in sorted(versions.items())})


def _versions_of(pins: Iterable[TablePin]) -> str:
    return versions_text({pin.table: pin.version for pin in pins})


def _save_basis(
    tx: Transaction, number: int, generation: int, assumptions: str, basis: Mapping[str, Any] | None
) -> None:
    """Save the basis of a generation's sketches; without one they are not offered later."""
    if basis is not None:
        tx.add("sketch_basis", number, generation, assumptions, _json(basis))


def _load_basis(
    tx: Transaction, number: int | None, generation: int
) -> tuple[tuple[Assumption, ...], dict[str, Any]] | None:
    row = tx.find("sketch_basis", query_id=number, generation=generation)
    if row is None:
        return None
    return _read(tx, row[2], Assumptions), _read(tx, row[3], dict[str, Any])


# Costs of the latest runs of a query. Law: the latest `KEPT` runs of each kind, set of changed
# tables and layout of state are stored, at most `MOST` per kind. Costs feed only estimates, so a
# row that does not match its seal is skipped instead of ending the run.

KEPT = 8
"""Runs of one kind over the same tables and layout: enough to see an outlier, few to read."""
MOST = 64
"""Runs of one kind, whatever tables changed."""

_LAST_COST = "SELECT coalesce(max(number), 0) FROM cost WHERE query_id = ? AND kind = ?"
_SEALED = 8
"""Columns before the seal; those after it are from later formats."""
_KINDS = frozenset(kind.value for kind in RunKind)
_OLDEST = """DELETE FROM cost WHERE query_id = ? AND kind = ? AND (number <= ?
    OR moved = ? AND layout = ? AND number NOT IN (SELECT number FROM cost
            WHERE query_id = ? AND kind = ? AND moved = ? AND layout = ?
            ORDER BY number DESC LIMIT ?))"""


def load_costs(tx: Transaction, number: int) -> tuple[RunCost, ...]:
    rows = tx.execute(
        "SELECT * FROM cost WHERE query_id = ? ORDER BY kind, number DESC", (number,)
    ).fetchall()
    costs = []
    for row in rows:
        values, seal, (moved, parts, layout) = row[:_SEALED], row[_SEALED], row[_SEALED + 1 :]
        if seal_of(*values, *filter(None, (moved, parts, layout))) != seal:
            continue
        _, kind, _, changed, size, elapsed_ms, spark, start_ms = values
        if kind in _KINDS and math.isfinite(elapsed_ms):
            tables = decode(moved, type=tuple[TableName, ...]) if moved else ()
            spent = (elapsed_ms, bool(spark), start_ms)
            costs.append(
                RunCost(RunKind(kind), changed, size, *spent, tables, parts_in(parts), layout)
            )
    return tuple(costs)


def _add_cost(tx: Transaction, number: int, cost: RunCost) -> None:
    """Append the cost of a run; drops the oldest beyond the limits."""
    last = _last_cost(tx, number, cost) + 1
    _put_cost(tx, number, last, cost)
    kind, group = (number, str(cost.kind)), (_moved_text(cost), cost.layout)
    tx.execute(_OLDEST, (*kind, last - MOST, *group, *kind, *group, KEPT))


def _last_cost(tx: Transaction, number: int, cost: RunCost) -> int:
    return int(tx.execute(_LAST_COST, (number, str(cost.kind))).fetchone()[0])


def _put_cost(tx: Transaction, number: int, position: int, cost: RunCost) -> None:
    amounts = (int(cost.rows), int(cost.bytes), float(cost.elapsed_ms))
    values = (number, str(cost.kind), position, *amounts, int(cost.spark), float(cost.start_ms))
    later = (_moved_text(cost), parts_text(cost.parts), cost.layout)
    row = (*values, seal_of(*values, *filter(None, later)), *later)
    tx.insert("cost", row, "INSERT OR REPLACE")


def _moved_text(cost: RunCost) -> str:
    """The changed tables as text, as earlier releases wrote it: SQL compares it."""
    return json.dumps(list(cost.moved)) if cost.moved else ""


class _PartsText(Struct, frozen=True):
    """Parts as stored; `reads` are keys, hits, rows and milliseconds by side."""

    times: tuple[Amount, ...]
    reads: dict[str, tuple[Count, Count, Count, Amount]]


_DIGITS = 3
"""Decimals of a stored millisecond."""


def parts_text(parts: RunParts | None) -> str:
    """The parts as text; empty for none."""
    if parts is None:
        return ""
    times = tuple(round(ms, _DIGITS) for ms in parts.times)
    reads = {r.side: (r.keys, r.hits, r.rows, round(r.ms, _DIGITS)) for r in parts.reads}
    return _json(_PartsText(times, reads))


def parts_in(text: str) -> RunParts | None:
    """The parts in a text; None for an empty or unknown text."""
    try:
        stored = decode(text, type=_PartsText)
    except DecodeError:
        return None
    return RunParts(stored.times, tuple(SideRead(side, *n) for side, n in stored.reads.items()))


# The history of a query. Law: records are numbered in the order of commits and stay after a
# recapture. A record's cost is stored with the costs and is not read with the record.

_LAST_RECORD = "SELECT coalesce(max(number), 0) FROM history WHERE query_id = ?"


def add_record(tx: Transaction, number: int, record: RunRecord) -> None:
    _put_record(tx, number, _last_record(tx, number) + 1, record)
    if record.cost is not None:
        _add_cost(tx, number, record.cost)


def replace_last_record(tx: Transaction, number: int, record: RunRecord) -> None:
    """Replace the latest record (timings are known only after the commit)."""
    _put_record(tx, number, max(1, _last_record(tx, number)), record)
    if record.cost is not None:
        _put_cost(tx, number, max(1, _last_cost(tx, number, record.cost)), record.cost)


def load_records(tx: Transaction, number: int, limit: int) -> tuple[RunRecord, ...]:
    """The latest `limit` records, newest first."""
    rows = tx.execute(
        "SELECT * FROM history WHERE query_id = ? ORDER BY number DESC LIMIT ?", (number, limit)
    )
    records = []
    for row in rows.fetchall():
        *values, versions = tx.opened(row, "history")[2:]
        named = dict(zip(RunRecord.__struct_fields__, values, strict=False))
        records.append(RunRecord(**named, versions=_read(tx, versions, Versions)))
    return tuple(records)


def _last_record(tx: Transaction, number: int) -> int:
    return int(tx.execute(_LAST_RECORD, (number,)).fetchone()[0])


def _put_record(tx: Transaction, number: int, position: int, record: RunRecord) -> None:
    r = record
    texts = map(str, (r.action, r.reason_code, r.reason))
    times = map(float, (r.started_at, r.elapsed_ms, r.read_ms, r.engine_ms, r.commit_ms))
    counts = map(int, (r.changes, r.added, r.removed))
    tx.put("history", number, position, *texts, *times, *counts, versions_text(r.versions))


# The latest commits of each table (arrivals). Law: a write costs the arrivals added or removed, not
# those that stay. Arrivals feed only a forecast, so a row that does not match its seal is skipped,
# and the next one is marked as after a gap.


def load_arrivals(
    tx: Transaction, tables: Iterable[TableName], *, is_whole: bool = True
) -> dict[TableName, History]:
    """The known histories of these tables; without arrivals if not `is_whole`."""
    result = {}
    for table in dict.fromkeys(tables):
        log = _load_log(tx, table)
        if log is not None:
            arrivals = tuple(_load_arrivals(tx, table)) if is_whole else ()
            result[table] = replace(log, arrivals=arrivals)
    return result


def save_arrivals(tx: Transaction, histories: Mapping[TableName, History]) -> None:
    """Update the rows of tables to these histories, which continue those that were loaded: only
    arrivals after the known ones are inserted."""
    for table, commits in histories.items():
        since = _real(_put_arrivals(tx, table, commits))
        values = (commits.table_id, commits.until, since, int(commits.has_missed))
        tx.put("arrival_log", table, *values)


def _put_arrivals(tx: Transaction, table: TableName, history: History) -> float | None:
    """Insert new arrivals and delete old ones; returns the time since which all are known."""
    stored = _load_log(tx, table)
    is_same = stored is not None and stored.table_id == history.table_id
    last = stored.until if stored is not None and is_same else -1
    tx.execute(
        "DELETE FROM arrival WHERE table_name = ? AND version > ?",
        (table, min(last, history.until)),
    )
    for arrival in history.arrivals:
        if arrival.version > last:
            size = (arrival.inserted, arrival.deleted, arrival.files, arrival.bytes)
            values = (_real(arrival.at), *size, arrival.operation, int(arrival.is_after_gap))
            tx.add("arrival", table, arrival.version, *values)
    # The oldest one to keep, if there are more.
    first = tx.execute(
        "SELECT version, at FROM arrival WHERE table_name = ? ORDER BY version DESC"
        " LIMIT 1 OFFSET ?",
        (table, ARRIVALS_KEPT - 1),
    ).fetchone()
    if first is None:
        return history.since
    older = "DELETE FROM arrival WHERE table_name = ? AND version < ?"
    is_cut = tx.execute(older, (table, first[0])).rowcount > 0
    return first[1] if is_cut else history.since


def _load_log(tx: Transaction, table: TableName) -> History | None:
    """The table's row, without arrivals."""
    row = tx.execute("SELECT * FROM arrival_log WHERE table_name = ?", (table,)).fetchone()
    if row is None or seal_of(*row[:-1]) != row[-1]:
        return None
    return History(row[1], row[2], row[3], (), bool(row[4]))


def _load_arrivals(tx: Transaction, table: TableName) -> Iterable[Commit]:
    rows = tx.execute("SELECT * FROM arrival WHERE table_name = ? ORDER BY version", (table,))
    is_skipped = False
    for *values, seal in rows.fetchall():
        if seal_of(*values) != seal:
            is_skipped = True
            continue
        yield Commit(*(*values[1:-1], bool(values[-1]) or is_skipped))
        is_skipped = False


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)


# The basis of the last choice of state, in the one row of its table. Law: it only saves a choice
# from being made again: a row that does not match its seal, or that impctl did not write, counts as
# none.

_PLACE = 1


def load_chosen(tx: Transaction) -> StateChoiceBasis | None:
    """The saved basis of the last choice; None without one."""
    row = tx.execute("SELECT * FROM state_choice WHERE place = ?", (_PLACE,)).fetchone()
    if row is None or seal_of(*row[:-1]) != row[-1]:
        return None
    try:
        return decode(row[1], type=StateChoiceBasis)
    except DecodeError:
        return None


def save_chosen(tx: Transaction, chosen: StateChoiceBasis | None) -> None:
    """Save this basis; None removes it."""
    tx.execute("DELETE FROM state_choice")
    if chosen is not None:
        tx.add("state_choice", _PLACE, _json(chosen))
