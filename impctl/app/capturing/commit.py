"""A capture written to the store: sketches, partitions, state and versions in one transaction.

Law: what the query had is replaced whole or not at all; sketches of earlier versions stay, under
the partitions they were captured with, as long as the query is the same.
Out of scope: finding the sketch (`app.capture`, `app.rebalance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from impctl.app.capturing.chosen_way import chosen_buffers
from impctl.app.capturing.definition import definition
from impctl.app.capturing.drift import depths
from impctl.app.capturing.kept_ending import ending_to_store
from impctl.app.capturing.meta import StateMeta
from impctl.app.capturing.pins import check_pinned_commit, commit_marks
from impctl.app.preparing.expiry import next_expiry
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.compile.build import circuit_id, template_id, with_answer
from impctl.compile.compile import Way
from impctl.compile.flows import Strategy
from impctl.compile.jointree.shape import trees_id
from impctl.compile.session import (
    MaintainedQuery,
    TouchedQuery,
    buffer_groups,
    filled_rows,
    group_bytes,
)
from impctl.errors import masked
from impctl.store.records import Assumption, NewCapture, RunRecord, StoredSketch, TablePin
from impctl.store.store import Store
from impctl.tables.changes import files_mark
from impctl.types import QueryName, TableName, TableVersion


def commit_capture(
    desk: Workbench,
    store: Store,
    prepared: PreparedQuery,
    way: Way,
    state: MaintainedQuery | TouchedQuery | None,
    sketches: tuple[StoredSketch, ...],
    assumptions: tuple[Assumption, ...],
    record: RunRecord,
) -> RunRecord:
    """Store what was found at the pinned versions; `state` holds nothing saved before.

    Returns the record with the layout of the state that it is of.
    """
    versions = desk.tables.versions_of(prepared.tables)
    for table in versions:
        check_pinned_commit(desk.tables, table)
    meta = _described(desk.tables, prepared, way, versions)
    if prepared.now:
        meta = replace(meta, expires=next_expiry(desk, versions, prepared.now))
    runs: dict[str, list[tuple[int, object]]] = {}
    if state is not None:
        checkpoint = state.checkpoint()
        meta = replace(
            meta,
            counters=dict(checkpoint.counters),
            unsure=state.unsure_rows() if isinstance(state, MaintainedQuery) else 0,
            depths=depths(state.range_rows),
            read_rows=filled_rows(state) if isinstance(state, MaintainedQuery) else {},
            group_bytes=group_bytes(state) if isinstance(state, MaintainedQuery) else {},
            buffer_groups=buffer_groups(state) if isinstance(state, MaintainedQuery) else {},
        )
        for arrangement, sequence, table in checkpoint.put:
            runs.setdefault(arrangement, []).append((sequence, table))
    pins = _pins(desk.tables, prepared)
    capture = NewCapture(
        query=prepared.spec.name,
        fingerprint=definition(desk, prepared.spec, prepared.tables),
        sql=prepared.query.sql,
        mode=way.mode,
        pins=pins,
        sketches=sketches,
        assumptions=assumptions,
        state_meta=meta.as_stored(),
        basis=meta.basis(pins),
    )
    if record.cost is not None:
        record = replace(record, cost=replace(record.cost, layout=meta.layout))
    store.commit_capture(capture, runs, record)
    return record


def _described(
    tables: PinnedTables,
    prepared: PreparedQuery,
    way: Way,
    versions: Mapping[TableName, TableVersion],
) -> StateMeta:
    """What is said of any state that this way has; what it counted is still to be said."""
    return StateMeta(
        way=way.reason,
        circuit=_circuit(prepared, way),
        answer=way.answer is not None,
        template=template_id(prepared.core),
        moments=dict(prepared.moments),
        marks=commit_marks(tables, versions),
        files={table: files_mark(tables.snapshot(table)) for table in versions},
        distant=way.sides_by(Strategy.SPARK),
        from_files=way.sides_by(Strategy.FILES),
        buffers=chosen_buffers(prepared.spec, way.compiled),
        side_reasons=_side_reasons(way),
        ending=ending_to_store(way.lying_answer),
        trees=trees_id(way.shapes),
        estimate=_estimate(way),
        provenance=way.provenance,
    )


def _side_reasons(way: Way) -> Mapping[str, str]:
    """Why each side or grouping is read or kept; of a circuit that keeps all, or has Spark read,
    that follows from the tables, and is not stored."""
    if way.compiled is None or not way.sides_by(Strategy.FILES):
        return {}
    return {choice.side: choice.reason for choice in way.compiled.pieces}


def _estimate(way: Way) -> Mapping[str, float]:
    """What its trees were chosen by."""
    if not way.has_tree or way.trees is None or way.trees.estimate is None:
        return {}
    return {"joined": way.trees.estimate.joined, "touched": way.trees.estimate.touched}


def _circuit(prepared: PreparedQuery, way: Way) -> str:
    """What the circuit of this way is called."""
    circuit = circuit_id(prepared.core if way.core is None else way.core)
    return circuit if way.answer is None else with_answer(circuit)


def _pins(tables: PinnedTables, prepared: PreparedQuery) -> tuple[TablePin, ...]:
    pins = []
    for table in prepared.tables:
        source = tables.source(table)
        schema = tables.snapshot(table).schema_json
        pins.append(TablePin(table, masked(source.path), source.table_id, source.version, schema))
    return tuple(pins)


_WORTH_TELLING_MS = 20.0
"""Some hundred times as long as the second, unsynced commit takes."""


def amend(store: Store, query: QueryName, record: RunRecord, commit_ms: float) -> None:
    """Add a long commit to the latest record of the query, which is this one, and to its cost."""
    if commit_ms < _WORTH_TELLING_MS:
        return
    cost = record.cost
    if cost is not None:
        cost = replace(cost, elapsed_ms=cost.elapsed_ms + commit_ms)
    elapsed_ms = record.elapsed_ms + commit_ms
    store.amend_record(
        query, replace(record, elapsed_ms=elapsed_ms, commit_ms=commit_ms, cost=cost)
    )
