"""Use case: find the sketch of each query at the pinned versions, and the state to maintain it.

Law: the sketch covers the query's provenance at exactly the versions stored with it; sketch, state
and versions are stored in one transaction, or the store stays as it was. Where the query can be
maintained exactly, one pass gives both sketch and state.
Out of scope: which attribute (`app.choice`), later changes (`app.maintain`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from impctl.aliases import AccessId, QueryName
from impctl.app.choice import Chosen, choose
from impctl.app.facts import assumption_of, assumption_text
from impctl.app.isolated import Isolated
from impctl.app.passes import filled_circuit, recaptured
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.restored import chooser_for, chosen_way
from impctl.app.results import CandidateEntry, CaptureResult, Failure, Outcome, SketchEntry
from impctl.app.state_meta import StateMeta, circuit_id
from impctl.app.status import sketch_entry
from impctl.app.stored import commit_marks, definition
from impctl.app.workbench import Workbench
from impctl.maintain.session import MaintainedQuery
from impctl.maintain.way import Mode, Way
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition
from impctl.store.records import Assumption, NewCapture, RunRecord, StoredSketch, TablePin
from impctl.store.store import Store
from impctl.workload.models import QuerySpec

_USEFUL_SHARE = 0.75
"""Beyond this share of the ranges a sketch is not worth using (pbds.md 6)."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What was stored for one query, and what it cost."""

    sketches: tuple[StoredSketch, ...]
    mode: Mode
    reason: str
    candidates: tuple[CandidateEntry, ...]
    assumptions: tuple[Assumption, ...]
    versions: Mapping[str, int]
    spark_ms: float
    engine_ms: float
    commit_ms: float
    elapsed_ms: float


def capture(bench: Workbench, queries: Sequence[QueryName] | None) -> Outcome:
    """Capture the queries named (default: all); one result per query."""
    results: list[CaptureResult] = []
    failures: list[Failure] = []
    warnings: list[str] = []
    specs = bench.queries(queries)
    if bench.settings.dry_run:
        for spec in specs:
            with Isolated(failures, spec):
                results.append(_foreseen(bench, spec))
        return Outcome(tuple(results), (), tuple(failures))
    with bench.writing("capture") as store:
        for spec in specs:
            with Isolated(failures, spec):
                prepared = prepare(bench, spec)
                captured = capture_query(
                    bench, store, prepared, code="asked", reason="capture was asked for"
                )
                results.append(_result(spec, captured))
                warnings += _useless(spec, captured)
    return Outcome(tuple(results), tuple(warnings), tuple(failures))


def _useless(spec: QuerySpec, captured: Captured) -> list[str]:
    """A warning for every sketch that lets next to nothing be skipped."""
    return [
        f"the sketch of query `{spec.name}` on `{sketch.table}.{sketch.attribute}` holds "
        f"{len(sketch.fragments)} of {sketch.partition.ranges} ranges and saves next to nothing; "
        "try more ranges or another attribute"
        for sketch in captured.sketches
        if len(sketch.fragments) > _USEFUL_SHARE * sketch.partition.ranges
    ]


def capture_query(
    bench: Workbench, store: Store, prepared: PreparedQuery, *, code: str, reason: str
) -> Captured:
    """Choose, capture and store; replaces what the query had."""
    started = time.perf_counter()
    chosen = choose(bench, prepared)
    partitions = chosen.partitions(bench, prepared)
    way = chosen_way(prepared, chosen.verdict, partitions, chooser_for(bench, prepared))
    bench.reporter.step(f"capturing {prepared.spec.name}")
    pass_started = time.perf_counter()
    found_ = _found(bench, prepared, chosen, partitions, way)
    session, found, way = found_.session, found_.fragments, found_.way
    pass_ms = (time.perf_counter() - pass_started) * 1000
    spark_ms = pass_ms if found_.uses_spark else 0.0
    engine_ms = 0.0 if found_.uses_spark else pass_ms
    sketches = _stored_sketches(prepared, partitions, found)
    assumptions = tuple(assumption_of(fact) for fact in chosen.verdict.assumptions)
    versions = {table: bench.source(table).version for table in prepared.tables}
    record = RunRecord(
        action="capture" if code == "asked" else "recapture",
        reason_code=code,
        reason=reason,
        started_at=time.time(),
        elapsed_ms=(time.perf_counter() - started) * 1000,
        read_ms=spark_ms,
        engine_ms=engine_ms,
        commit_ms=0.0,
        changes=0,
        added=sum(len(fragments) for fragments in found.values()),
        removed=0,
        versions=versions,
    )
    commit_started = time.perf_counter()
    _store(bench, store, prepared, way, session, sketches, assumptions, record)
    now = time.perf_counter()
    return Captured(
        sketches,
        way.mode,
        way.reason,
        chosen.candidates,
        assumptions,
        versions,
        spark_ms,
        engine_ms,
        (now - commit_started) * 1000,
        (now - started) * 1000,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The sketch of every access, the session with its state (exact mode only), who found them."""

    way: Way
    fragments: Mapping[AccessId, FragmentSet]
    session: MaintainedQuery | None
    uses_spark: bool


def _found(
    bench: Workbench,
    prepared: PreparedQuery,
    chosen: Chosen,
    partitions: Mapping[AccessId, RangePartition],
    way: Way,
) -> _Found:
    filled = None
    if way.mode is Mode.EXACT:
        filled = filled_circuit(bench, prepared, way, chosen.verdict, partitions)
        if filled is None:
            way = Way(
                Mode.RECAPTURE,
                "the engine could not fill its state (a join too large, or doubles too close)",
            )
    if filled is None:
        found = recaptured(bench, prepared, chosen.verdict, partitions)
        return _Found(way, found, None, True)
    return _Found(way, filled.session.fragments(), filled.session, filled.uses_spark)


def _stored_sketches(
    prepared: PreparedQuery,
    partitions: Mapping[AccessId, RangePartition],
    found: Mapping[AccessId, FragmentSet],
) -> tuple[StoredSketch, ...]:
    tables = prepared.table_of
    return tuple(
        StoredSketch(access, tables[access], partition.attribute, partition, found[access])
        for access, partition in partitions.items()
    )


def _store(
    bench: Workbench,
    store: Store,
    prepared: PreparedQuery,
    way: Way,
    session: MaintainedQuery | None,
    sketches: tuple[StoredSketch, ...],
    assumptions: tuple[Assumption, ...],
    record: RunRecord,
) -> None:
    versions = {table: bench.source(table).version for table in prepared.tables}
    marks = commit_marks(bench, versions)
    circuit = circuit_id(prepared.core)
    distant = [] if way.compiled is None else list(way.compiled.distant_sides)
    meta = StateMeta(way=way.reason, circuit=circuit, marks=marks, distant=distant)
    runs: dict[str, list[tuple[int, object]]] = {}
    if session is not None:
        checkpoint = session.checkpoint()
        counters = dict(checkpoint.counters)
        unsure = session.unsure_rows()
        meta = meta.model_copy(update={"counters": counters, "unsure": unsure})
        for arrangement, sequence, table in checkpoint.put:
            runs.setdefault(arrangement, []).append((sequence, table))
    capture_ = NewCapture(
        query=prepared.spec.name,
        fingerprint=definition(bench, prepared.spec, prepared.tables),
        sql=prepared.spec.sql,
        mode=way.mode.value,
        pins=_pins(bench, prepared),
        sketches=sketches,
        assumptions=assumptions,
        state_meta=meta.model_dump(),
        has_state=session is not None,
    )
    store.commit_capture(capture_, runs, record)


def _pins(bench: Workbench, prepared: PreparedQuery) -> tuple[TablePin, ...]:
    pins = []
    for table in prepared.tables:
        source = bench.source(table)
        schema = bench.snapshot(table).schema_json
        pins.append(TablePin(table, source.path, source.table_id, source.version, schema))
    return tuple(pins)


def _foreseen(bench: Workbench, spec: QuerySpec) -> CaptureResult:
    """What a capture would do, from metadata alone."""
    prepared = prepare(bench, spec)
    chosen = choose(bench, prepared)
    partitions = chosen.partitions(bench, prepared)
    way = chosen_way(prepared, chosen.verdict, partitions, chooser_for(bench, prepared))
    tables = prepared.table_of
    return CaptureResult(
        spec.name,
        "none",
        tuple(
            SketchEntry(tables[access], p.attribute, (), p.ranges)
            for access, p in partitions.items()
        ),
        {table: bench.source(table).version for table in prepared.tables},
        way.mode.value,
        0.0,
        0.0,
        0.0,
        chosen.candidates,
        tuple(assumption_text(assumption_of(fact)) for fact in chosen.verdict.assumptions),
    )


def _result(spec: QuerySpec, captured: Captured) -> CaptureResult:
    return CaptureResult(
        spec.name,
        "capture",
        tuple(sketch_entry(sketch) for sketch in captured.sketches),
        captured.versions,
        captured.mode.value,
        captured.elapsed_ms,
        captured.spark_ms,
        captured.engine_ms,
        captured.candidates,
        tuple(assumption_text(assumption) for assumption in captured.assumptions),
    )
