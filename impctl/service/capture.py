"""Capture the sketch of each query, and the state to maintain it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.build import circuit_id, template_id, with_answer
from impctl.compile.compile import MaintenancePlan
from impctl.compile.flows import Strategy
from impctl.compile.jointree.shape import trees_id
from impctl.compile.session import (
    MaintainedQuery,
    TouchedQuery,
    buffer_groups,
    filled_rows,
    group_bytes,
)
from impctl.data.memory import give_back
from impctl.errors import ImpctlError, RecaptureNeededError, UnsafeSketchError, masked
from impctl.safety.choose import counts_every_row
from impctl.service.advice import ClusterForecasts, followed_warnings, state_warnings, warnings_of
from impctl.service.budget.choice import keep_to_budget
from impctl.service.capture_plan import (
    CapturePlan,
    choose_sketches,
    judge_candidates,
    lineage_warnings,
    plan_capture,
    planned_capture,
)
from impctl.service.context import (
    Context,
    Isolated,
    Versions,
    collect_results,
    is_refused,
    remember_histories,
)
from impctl.service.fill import COULD_NOT, best_filled, capture_sketches_alone, filled_touch_state
from impctl.service.filters import filters_of
from impctl.service.maintenance_plan import chosen_buffers
from impctl.service.prepare import PreparedQuery, SketchedQuery, next_expiry, prepare
from impctl.service.results import SKETCH_NONE_REASON, CaptureResult, Failure, LeftEntry, Outcome
from impctl.service.stored import (
    StateMeta,
    check_pinned_commit,
    commit_marks,
    definition,
    depths,
    ending_to_store,
    sketch_entry,
    stored_query,
)
from impctl.service.text import named_before
from impctl.sketch.sketch import MaintenanceMode
from impctl.stopwatch import Stopwatch
from impctl.store.records import (
    Assumption,
    NewCapture,
    RunCost,
    RunKind,
    RunRecord,
    StoredQuery,
    StoredSketch,
    TablePin,
)

if TYPE_CHECKING:
    from impctl.service.context import RangesByAccess
    from impctl.service.pinned import PinnedTables
    from impctl.store.reader import StoreReader
    from impctl.store.store import Store
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


# Law: the sketch covers the query's provenance at exactly the versions stored with it. If the query
# can be maintained exactly, one pass gives both sketch and state.


def capture(ctx: Context, queries: Sequence[QueryName] | None) -> Outcome:
    """Capture the queries named (default: all); one result per query."""
    results: list[CaptureResult] = []
    failures: list[Failure] = []
    warnings: list[str] = []
    stored: list[Captured] = []
    specs = ctx.queries(queries)
    if ctx.settings.dry_run:
        reader = ctx.reading_store()
        return collect_results(specs, lambda spec: [planned_capture(ctx, reader, spec)])
    with ctx.writing("capture") as store:
        for number, spec in enumerate(specs, start=1):
            if not spec.is_sketched:
                results.append(CaptureResult(query=spec.name, reason=SKETCH_NONE_REASON))
                ctx.reporter.finished(results[-1], number, len(specs))
                continue
            ctx.reporter.step(f"capturing {spec.name}", number, len(specs))
            with Isolated(failures, spec):
                prepared = prepare(ctx, spec)
                captured = capture_query(
                    ctx, store, prepared, code="asked", reason="capture was requested"
                )
                results.append(_result(ctx.tables, captured))
                ctx.reporter.finished(results[-1], number, len(specs))
                plan = captured.planned.plan
                if plan.reason == COULD_NOT:
                    warnings.append(
                        f"query `{spec.name}` was captured without state, so every change of its "
                        f"tables recaptures it: {COULD_NOT}"
                    )
                if spec.answer and plan.answer is None and plan.no_answer:
                    warnings.append(
                        f"the result of query `{spec.name}` is not materialized: "
                        f"{plan.no_answer}; `query` reads through its sketch instead"
                    )
                if plan.no_provenance:
                    warnings.append(without_provenance(spec.name, plan.no_provenance))
                warnings += lineage_warnings(ctx.tables, captured.planned)
                stored.append(captured)
            give_back()
        forecasts = ClusterForecasts(ctx, store)
        for captured in stored:
            warnings += _advice(ctx, store, forecasts, captured)
        if stored:
            warnings += remember_histories(ctx, store, {})
            warnings += keep_to_budget(ctx, store, has_captured=True)
    return Outcome(tuple(results), tuple(warnings), tuple(failures))


def _advice(
    ctx: Context, store: StoreReader, forecasts: ClusterForecasts, captured: Captured
) -> list[str]:
    prepared, sketches = captured.planned.prepared, captured.sketches
    spec, failed = prepared.spec, list[Failure]()
    with Isolated(failed, spec):
        every_row = counts_every_row(prepared.query.root)
        skipping = list[str]()
        if not (every_row and spec.answer):
            # With a materialized result, nothing need be skipped.
            skipping = warnings_of(
                ctx.tables, forecasts, spec.name, sketches, counts_every_row=every_row
            )
        lineage = followed_warnings(spec.name, store.run_refs(spec.name))
        return [*skipping, *lineage, *state_warnings(ctx, store, prepared)]
    return [
        f"query `{spec.name}` was captured, but impctl could not estimate what its "
        f"sketch saves: {named_before(spec.name, failure.error.message)}"
        for failure in failed
    ]


def _result(tables: PinnedTables, captured: Captured) -> CaptureResult:
    planned, record = captured.planned, captured.record
    return replace(
        planned.result(record.versions),
        action="capture",
        sketches=tuple(sketch_entry(sketch) for sketch in captured.sketches),
        elapsed_ms=record.elapsed_ms,
        spark_ms=record.read_ms,
        engine_ms=record.engine_ms,
        left=tuple(_left(tables, captured)),
        moments=planned.prepared.moments,
    )


def _left(tables: PinnedTables, captured: Captured) -> Iterator[LeftEntry]:
    prepared, candidates = captured.planned.prepared, captured.planned.candidates
    expected = {entry.table: entry.expected for entry in candidates if entry.chosen}
    pruned = filters_of(tables, prepared, captured.sketches, captured.record.versions)
    for table in dict.fromkeys(sketch.table for sketch in captured.sketches):
        snapshot = tables.snapshot(table)
        yield LeftEntry(
            table=table,
            files=len(pruned.files[table]),
            files_total=len(snapshot.files),
            bytes=sum(file.size for file in pruned.files[table]),
            bytes_total=snapshot.bytes,
            expected=expected.get(table),
        )


# Law: a hint to capture is given only if it may help; a query without a safe sketch, or with a
# construct that impctl does not know, gets that reason.


def captured_query(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> StoredQuery:
    """Return what the store has of a query; raises why it is refused, or RecaptureNeededError."""
    try:
        return stored_query(ctx, store, spec)
    except RecaptureNeededError:
        refusal: ImpctlError | None
        try:
            refusal = refusal_of(ctx, prepare(ctx, spec))
        except ImpctlError as error:
            # The capture reports any other error, with its place.
            refusal = error if is_refused(spec, error) else None
        if refusal is not None:
            raise refusal from None
        raise


def refusal_of(ctx: Context, prepared: PreparedQuery) -> UnsafeSketchError | None:
    """The error if no sketch of the query is safe, else None."""
    try:
        if not any(judged.safe for judged in judge_candidates(ctx, prepared)):
            choose_sketches(ctx, prepared)
    except UnsafeSketchError as error:
        return error if is_refused(prepared.spec, error) else None
    return None


# Law: one transaction replaces what the query had, or changes nothing. Sketches of earlier versions
# stay, under the partitions of their capture, while the query is the same.


def commit_capture(
    ctx: Context,
    store: Store,
    prepared: PreparedQuery,
    plan: MaintenancePlan,
    state: MaintainedQuery | TouchedQuery | None,
    sketches: tuple[StoredSketch, ...],
    assumptions: tuple[Assumption, ...],
    record: RunRecord,
) -> RunRecord:
    """Store sketches and unsaved state as pinned; return the record with its layout."""
    versions = ctx.tables.versions_of(prepared.tables)
    for table in versions:
        check_pinned_commit(ctx.tables, table)
    meta = _meta_of(ctx.tables, prepared, plan, versions)
    if prepared.now:
        meta = replace(meta, expires=next_expiry(ctx, versions, prepared.now))
    runs: dict[str, list[tuple[int, object]]] = {}
    if state is not None:
        checkpoint = state.checkpoint()
        counters = dict(checkpoint.counters)
        meta = replace(meta, counters=counters, depths=depths(state.range_rows))
        if isinstance(state, MaintainedQuery):
            meta = replace(
                meta,
                unsure=state.unsure_rows(),
                read_rows=filled_rows(state),
                group_bytes=group_bytes(state),
                buffer_groups=buffer_groups(state),
            )
        for arrangement, sequence, table in checkpoint.put:
            runs.setdefault(arrangement, []).append((sequence, table))
    pins = tuple(
        TablePin(
            table,
            masked(source.path),
            source.table_id,
            source.version,
            ctx.tables.snapshot(table).schema_json,
        )
        for table in prepared.tables
        for source in [ctx.tables.source(table)]
    )
    capture = NewCapture(
        query=prepared.spec.name,
        fingerprint=definition(ctx, prepared.spec, prepared.tables),
        sql=prepared.query.sql,
        mode=plan.mode,
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


def _meta_of(
    tables: PinnedTables, prepared: PreparedQuery, plan: MaintenancePlan, versions: Versions
) -> StateMeta:
    circuit = circuit_id(prepared.core if plan.core is None else plan.core)
    return StateMeta(
        way=plan.reason,
        circuit=circuit if plan.answer is None else with_answer(circuit),
        answer=plan.answer is not None,
        template=template_id(prepared.core),
        moments=dict(prepared.moments),
        marks=commit_marks(tables, versions),
        files={table: tables.snapshot(table).mark for table in versions},
        distant=plan.sides_by(Strategy.SPARK),
        from_files=plan.sides_by(Strategy.FILES),
        buffers=chosen_buffers(prepared.spec, plan.compiled),
        side_reasons=_side_reasons(plan),
        ending=ending_to_store(plan.stored_answer),
        trees=trees_id(plan.shapes),
        estimate=_estimate(plan),
        provenance=plan.provenance,
    )


def _side_reasons(plan: MaintenancePlan) -> Mapping[str, str]:
    """Why each side or grouping is read or kept; if none is read, the tables decide it."""
    if plan.compiled is None or not plan.sides_by(Strategy.FILES):
        return {}
    return {choice.side: choice.reason for choice in plan.compiled.pieces}


def _estimate(plan: MaintenancePlan) -> Mapping[str, float]:
    if not plan.has_tree or plan.trees is None or plan.trees.estimate is None:
        return {}
    return {"joined": plan.trees.estimate.joined, "touched": plan.trees.estimate.touched}


class Captured(Struct, frozen=True):
    """What was captured, by the plan that could be carried out, and its cost, commit included."""

    planned: CapturePlan
    sketches: tuple[StoredSketch, ...]
    record: RunRecord


BeforeCommit = Callable[[MaintenancePlan, MaintainedQuery | TouchedQuery | None], None]


def capture_query(
    ctx: Context,
    store: Store,
    prepared: PreparedQuery,
    *,
    code: str,
    reason: str,
    before_commit: BeforeCommit | None = None,
) -> Captured:
    """Choose, capture and store, replacing what the query had."""
    total, spark_started = Stopwatch(), ctx.spark_start_ms
    planned = plan_capture(ctx, prepared)
    reading = Stopwatch()
    plan, result, state, uses_spark = _compute(ctx, planned)
    spark_ms, engine_ms = (reading.ms, 0.0) if uses_spark else (0.0, reading.ms)
    sketches = stored_sketches(planned, result)
    versions = ctx.tables.versions_of(prepared.tables)
    elapsed_ms, started_ms = total.ms, ctx.spark_start_ms - spark_started
    record = RunRecord(
        action="capture" if code == "asked" else "recapture",
        reason_code=code,
        reason=reason,
        started_at=time.time(),
        elapsed_ms=elapsed_ms,
        read_ms=spark_ms,
        engine_ms=engine_ms,
        added=sum(len(ranges) for ranges in result.values()),
        versions=versions,
        cost=RunCost(
            RunKind.RECAPTURE,
            ctx.tables.rows_of(prepared.tables),
            sum(ctx.tables.snapshot(table).bytes for table in prepared.tables),
            max(0.0, elapsed_ms - started_ms),
            uses_spark,
            started_ms,
        ),
    )
    committing = Stopwatch()
    if before_commit is not None:
        before_commit(plan, state)
    assumptions = planned.assumptions
    record = commit_capture(ctx, store, prepared, plan, state, sketches, assumptions, record)
    commit_ms, elapsed_ms = committing.ms, total.ms
    store.add_commit_time(prepared.spec.name, record, commit_ms)
    record = replace(record, elapsed_ms=elapsed_ms, commit_ms=commit_ms)
    return Captured(replace(planned, plan=plan), sketches, record)


def without_provenance(query: QueryName, why: str) -> str:
    """Say why recursion is not kept by absorption."""
    return (
        f"no provenance is stored for query `{query}`: {why}; its sketch is the same "
        "without it, and `why` reads the tables"
    )


def _compute(
    ctx: Context, planned: CapturePlan
) -> tuple[MaintenancePlan, RangesByAccess, MaintainedQuery | TouchedQuery | None, bool]:
    """The plan, the sketch of every access, the state to maintain it if any, whether Spark ran."""
    plan, filled = planned.plan, None
    if plan.mode is MaintenanceMode.EXACT:
        plan, filled = best_filled(ctx, planned, plan)
    if filled is None:
        result = capture_sketches_alone(ctx, planned)
        state = (
            filled_touch_state(ctx, planned, result) if plan.mode is MaintenanceMode.TOUCH else None
        )
        return plan, result, state, True
    return plan, filled.session.ranges(), filled.session, filled.uses_spark


def stored_sketches(query: SketchedQuery, result: RangesByAccess) -> tuple[StoredSketch, ...]:
    tables = query.prepared.table_of
    return tuple(
        StoredSketch(access, tables[access], partition.attribute, partition, result[access])
        for access, partition in query.partitions.items()
    )
