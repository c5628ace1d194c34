"""What a commit changes in the catalog, statement by statement; runs inside one transaction.

Law: everything here happens in the caller's transaction; the generation expected by the writer is
checked before anything is written. Files are only named here, never touched.
Out of scope: transaction, lock and files (`store.store`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from impctl.errors import ImpctlError, RetryableError
from impctl.store import costs, history, kept, queries, sketches, states
from impctl.store.queries import Progress, QueryRow
from impctl.store.records import MaintainCommit, NewCapture, RunRecord, TablePin
from impctl.store.seals import opened
from impctl.store.states import WrittenRun
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Applied:
    """What a transaction did: the new generation, and files that nothing refers to any more."""

    generation: int
    unused_files: tuple[str, ...]


Apply = Callable[[sqlite3.Connection, tuple[WrittenRun, ...]], Applied]


def apply_capture(
    connection: sqlite3.Connection,
    path: Path,
    capture: NewCapture,
    written: tuple[WrittenRun, ...],
    record: RunRecord,
    at: float,
) -> Applied:
    """Put the capture in place of what the query had."""
    result = queries.find_with_progress(connection, path, capture.query)
    query_id, generation = None, 1
    unused: list[str] = []
    if result is not None:
        before, held = result
        query_id, generation = before.id, held.generation + 1
        unused = states.drop_all_runs(connection, before.id)
        if not _is_same(connection, path, before, held, capture):
            sketches.forget_sketches(connection, before.id)
            costs.forget_costs(connection, before.id)
        queries.forget_pins(connection, before.id)
    query_id = queries.save_query(connection, capture, query_id, generation, at)
    pins = queries.save_pins(connection, query_id, capture.pins)
    versions = sketches.versions_text({pin.table: pin.version for pin in capture.pins})
    sketches.save_captured(connection, query_id, generation, capture.sketches, versions)
    assumptions = queries.assumptions_text(capture.assumptions)
    kept.save_basis(connection, query_id, generation, assumptions, capture.basis)
    # What it had was dropped above.
    runs, _ = states.move_runs(connection, path, query_id, states.NO_RUNS, (), written)
    progress = Progress(
        generation=generation,
        assumptions=assumptions,
        state_meta=queries.meta_text(capture.state_meta),
        maintained_at=at,
        pins=pins,
        runs=runs,
    )
    queries.save_progress(connection, query_id, progress)
    history.add_record(connection, query_id, record)
    return Applied(generation, tuple(unused))


def apply_maintain(
    connection: sqlite3.Connection,
    path: Path,
    change: MaintainCommit,
    written: tuple[WrittenRun, ...],
) -> Applied:
    """Move the query forward; RetryableError where another writer moved it meanwhile."""
    result = queries.find_with_progress(connection, path, change.query)
    if result is None:
        raise _moved(change, "is no longer in the store")
    query, held = result
    if held.generation != change.expected_generation:
        raise _moved(change, f"is already at generation {held.generation}")
    pinned = queries.held_pins(connection, path, query.id, held.pins)
    _check_pins(change, [opened(row, path, "pin") for row, _ in pinned.values()])
    generation = held.generation + 1
    pins = queries.save_pins(connection, query.id, change.pins, pinned)
    versions = sketches.versions_text({pin.table: pin.version for pin in change.pins})
    moved = (query.id, query.captured, generation)
    sketches.save_maintained(connection, path, moved, change.sketches, versions)
    kept.save_basis(connection, query.id, generation, held.assumptions, change.basis)
    runs, unused = states.move_runs(
        connection, path, query.id, held.runs, change.drop_runs, written
    )
    meta = change.state_meta
    progress = replace(
        held,
        generation=generation,
        state_meta=held.state_meta if meta is None else queries.meta_text(meta),
        maintained_at=change.at,
        pins=pins,
        runs=runs,
    )
    queries.save_progress(connection, query.id, progress)
    history.add_record(connection, query.id, change.record)
    return Applied(generation, tuple(unused))


def _is_same(
    connection: sqlite3.Connection,
    path: Path,
    before: QueryRow,
    held: Progress,
    capture: NewCapture,
) -> bool:
    """Whether sketches of earlier versions still speak of this query over these tables."""
    pins = queries.load_pins(connection, path, before.id, held.pins)
    return before.fingerprint == capture.fingerprint and _tables(pins) == _tables(capture.pins)


def _tables(pins: Sequence[TablePin]) -> set[tuple[str, str]]:
    # Not by path: a folder of tables may be moved, the identity of a table moves along.
    return {(pin.table, pin.table_id) for pin in pins}


def _check_pins(change: MaintainCommit, held: Sequence[tuple[Any, ...]]) -> None:
    """`held` are the values of the pins' rows: query, table, path, identity, version."""
    # A version of one table with the state of another would be a wrong answer later on.
    if {(row[1], row[3]) for row in held} != _tables(change.pins):
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
