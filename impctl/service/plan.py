"""What `maintain` would do now, why, and its estimated cost.

Law: `maintain` makes the same decisions by the same code; nothing is written, no lock taken and no
Spark started. A policy that refuses fails here as it would there; a query that can have no sketch
is reported and, unless `strict`, is no failure, as in `check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.service.budget.choice import with_state
from impctl.service.capture_plan import plan_capture
from impctl.service.context import Context, Isolated, split_refused
from impctl.service.cost_model import RunEstimates, estimated, recorded
from impctl.service.decide import Decider, Decision, StaleQuery
from impctl.service.maintain import has_nothing_to_do
from impctl.service.prepare import prepare
from impctl.service.results import REFUSED, Failure, Outcome, PlannedChange, PlanResult
from impctl.service.schedule.due import due_report, trigger_of
from impctl.service.schedule.forecast import expectations
from impctl.service.stored import catch_up, expires
from impctl.store.records import RunKind, StoredQuery
from impctl.tables.log import ChangeSize

if TYPE_CHECKING:
    from impctl.errors import ImpctlError
    from impctl.store.reader import StoreReader
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


def plan(ctx: Context, queries: Sequence[QueryName] | None, *, strict: bool = False) -> Outcome:
    """One result per query, in the order of the file; `strict`: every query must have a sketch."""
    specs = ctx.queries(queries)
    store = ctx.reading_store()
    results: list[PlanResult] = []
    failures: list[Failure] = []
    stale: list[tuple[QuerySpec, StoredQuery]] = []
    for spec in specs:
        with Isolated(failures, spec):
            if not spec.is_sketched:
                results.append(PlanResult(query=spec.name, policy=str(ctx.policy(spec))))
                continue
            stored = None if store is None else store.load(spec.name)
            if store is None or stored is None:
                results.append(_to_capture(ctx, spec))
                continue
            catch_up(ctx.tables, stored)
            if has_nothing_to_do(ctx, spec, stored):
                nothing = Decision(StaleQuery(spec, stored), "none", "up_to_date", "no new version")
                estimates = _estimates(ctx, store, stored, (), RunKind.MAINTAIN)
                results.append(_result(ctx, nothing, (), estimates))
            else:
                stale.append((spec, stored))
    if store is not None:
        decider = Decider(ctx, store, failures)
        for decision in decider.decide_all(stale):
            with Isolated(failures, decision.task.spec):
                pending = _pending(decider, decision)
                stored = decision.task.stored
                estimates = _estimates(ctx, store, stored, pending, decision.cost_kind)
                results.append(_result(ctx, decision, pending, estimates))
    if not strict:
        refused, failures = split_refused(ctx, failures)
        results += [_refused(ctx, spec, error) for spec, error in refused]
    names = [name for result in results for name in result.since]
    coming = expectations(ctx, store, names)
    results = [
        replace(result, next_change=coming.next_change(result.since)) if result.since else result
        for result in results
    ]
    timed = {spec.name for spec in specs if not trigger_of(spec).is_on_commit}
    shown = {result.query for result in results if result.since and result.query in timed}
    if shown:
        # The others, too: their work is to be done before the same deadlines.
        look = due_report(ctx, [spec for spec in specs if spec.is_sketched], None)
        dues = {due.query: due for due in look.results() if due.query in shown}
        results = [replace(result, due=dues.get(result.query)) for result in results]
    results, warnings = with_state(ctx, store, results)
    order = {spec.name: index for index, spec in enumerate(specs)}
    results.sort(key=lambda result: order[result.query])
    return Outcome(tuple(results), tuple(warnings), tuple(failures))


def _refused(ctx: Context, spec: QuerySpec, error: ImpctlError) -> PlanResult:
    return PlanResult(
        query=spec.name,
        action=REFUSED,
        reason_code=error.code,
        reason=error.message,
        policy=str(ctx.policy(spec)),
        hint=error.hint,
    )


def _to_capture(ctx: Context, spec: QuerySpec) -> PlanResult:
    prepared = prepare(ctx, spec)
    return PlanResult(
        query=spec.name,
        action="capture",
        by=plan_capture(ctx, prepared).by(ctx),
        reason_code="not_captured",
        reason="it has not been captured; run `impctl capture`",
        policy=str(ctx.policy(spec)),
        versions=ctx.tables.versions_of(prepared.tables),
    )


def _pending(decider: Decider, decision: Decision) -> tuple[PlannedChange, ...]:
    """The change of every changed table: as read, else as far as the log shows."""
    read = {delta.table: delta.rows for delta in decision.deltas}
    entries = []
    for pin in decision.task.stored.pins:
        until = decider.ctx.tables.source(pin.table).version
        if until == pin.version:
            continue
        size = decider.shared.size((pin.table, pin.version, until))
        entries.append(
            PlannedChange(
                pin.table,
                pin.version,
                until,
                read.get(pin.table, None if size is None else size.rows),
                None if size is None else size.files,
                None if size is None else size.bytes,
            )
        )
    return tuple(entries)


def _estimates(
    ctx: Context,
    store: StoreReader,
    stored: StoredQuery,
    pending: Sequence[PlannedChange],
    kind: RunKind,
) -> RunEstimates:
    rows = [entry.rows for entry in pending if entry.rows is not None]
    counted = sum(rows) if len(rows) == len(pending) else None
    sizes = [entry.bytes for entry in pending if entry.bytes is not None]
    is_known = len(sizes) == len(pending)
    size = ChangeSize(counted, sum(sizes)) if counted is not None or is_known else None
    return estimated(
        recorded(store, stored),
        kind,
        size,
        has_spark=ctx.has_spark,
        table_rows=lambda: ctx.tables.rows_of(tuple(stored.versions)),
        moved=[entry.table for entry in pending],
    )


def _result(
    ctx: Context, decision: Decision, pending: tuple[PlannedChange, ...], estimates: RunEstimates
) -> PlanResult:
    spec, stored = decision.task.spec, decision.task.stored
    return PlanResult(
        query=spec.name,
        action=decision.action,
        by=decision.by,
        reason_code=decision.reason_code,
        reason=decision.reason,
        policy=str(ctx.policy(spec)),
        since=stored.versions,
        versions=ctx.tables.versions_of(pin.table for pin in stored.pins),
        pending=pending,
        maintain_ms=estimates.maintain_ms,
        maintain_runs=estimates.maintain_runs,
        recapture_ms=estimates.recapture_ms,
        recapture_runs=estimates.recapture_runs,
        next_expiry=expires(stored) or None,
    )
