"""How a stored sketch stands to the workload file and its tables: the same, current, or neither.

Law: told from content hashes, versions and table identities alone, without reading SQL, so that a
run with nothing to do ends at once. `definition` changes whenever the query, the sketch asked for,
its candidate partitions or the tables' paths change.
Out of scope: what to do about it (`app.maintain`).
"""

from __future__ import annotations

import hashlib

from impctl.app.workbench import Workbench
from impctl.errors import RecaptureNeededError, TableRecreatedError
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.workload.models import QuerySpec


def stored_query(bench: Workbench, store: Store | None, spec: QuerySpec) -> StoredQuery:
    """What the store has of a query; RecaptureNeededError where it has nothing."""
    stored = None if store is None else store.load(spec.name)
    if stored is None:
        raise RecaptureNeededError(
            f"Query `{spec.name}` was never captured",
            code="not_captured",
            hint=f"run `impctl capture {bench.workload.file} --query {spec.name}`",
        )
    return stored


def check_definition(bench: Workbench, spec: QuerySpec, stored: StoredQuery) -> None:
    """RecaptureNeededError where the sketch was captured for another definition of the query."""
    if stored.fingerprint != definition(bench, spec):
        raise RecaptureNeededError(
            f"Query `{spec.name}` or its partitions changed since the capture",
            code="definition_changed",
            hint=f"run `impctl capture {bench.workload.file} --query {spec.name}`",
        )


def definition(bench: Workbench, spec: QuerySpec) -> str:
    """Content hash of all that makes a stored sketch the sketch of this query."""
    partitions = [
        (part.table, part.column, part.boundaries, part.fragments)
        for part in bench.workload.partitions
        if part.table in bench.workload.tables
    ]
    paths = sorted((name, table.path) for name, table in bench.workload.tables.items())
    text = repr((spec.sql, sorted(spec.sketch.items()), partitions, paths))
    return hashlib.sha256(text.encode()).hexdigest()


def is_current(stored: StoredQuery, bench: Workbench) -> bool:
    """Whether the sketch stands at the pinned versions of the same tables."""
    return all(
        bench.source(pin.table).version == pin.version
        and bench.source(pin.table).table_id == pin.table_id
        for pin in stored.pins
    )


def check_pins(stored: StoredQuery, bench: Workbench) -> None:
    """TableRecreatedError where a pinned table was re-created or went back in time."""
    for pin in stored.pins:
        source = bench.source(pin.table)
        if source.table_id != pin.table_id or source.version < pin.version:
            raise TableRecreatedError(
                f"Table `{pin.table}` at {source.path} is not the one the sketch was captured from",
                hint="run `impctl capture` to start again from the new table",
            )
