"""Use case: what `maintain` would do now, why, and what that is estimated to cost.

Law: the stages are those that `maintain` runs, made by the same code; nothing is written, no lock
taken and no Spark started. A policy that refuses fails here as it would there; a query that can
have no sketch is said so and, unless `strict`, fails nothing, as in `check`.
Out of scope: deciding (`service.decide`), estimating (`service.decide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.service.budget.choice import with_state
from impctl.service.context import Isolated, Texts, Workbench, is_refused
from impctl.service.cost_model import Estimates, Size, estimated, recorded
from impctl.service.decide import Decisions, Stage, Task
from impctl.service.decision import capture_stage
from impctl.service.maintain import has_nothing_to_do
from impctl.service.prepare import prepare
from impctl.service.results import (
    REFUSED,
    Failure,
    Outcome,
    PlannedChange,
    PlanResult,
    unsketched_plan,
)
from impctl.service.schedule.due import look_once, trigger_of
from impctl.service.schedule.forecast import expectations
from impctl.service.stored import catch_up, expires
from impctl.store.records import RunKind, StoredQuery

if TYPE_CHECKING:
    from impctl.errors import ImpctlError
    from impctl.store.records import StoreReader
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


def plan(desk: Workbench, queries: Sequence[QueryName] | None, *, strict: bool = False) -> Outcome:
    """One result per query, in the order of the file; `strict`: every query must have a sketch."""
    specs = desk.queries(queries)
    store = desk.reading_store()
    results: list[PlanResult] = []
    failures: list[Failure] = []
    stale: list[tuple[QuerySpec, StoredQuery]] = []
    for spec in specs:
        with Isolated(failures, spec):
            if not spec.is_sketched:
                results.append(unsketched_plan(spec.name, str(desk.policy(spec))))
                continue
            stored = None if store is None else store.load(spec.name)
            if store is None or stored is None:
                results.append(_to_capture(desk, spec))
                continue
            catch_up(desk.tables, stored)
            if has_nothing_to_do(desk, spec, stored):
                results.append(_nothing(desk, store, spec, stored))
            else:
                stale.append((spec, stored))
    texts: Texts = {}
    if store is not None:
        decisions = Decisions(desk, store, failures)
        for task, stage in decisions.stages(stale):
            with Isolated(failures, task.spec):
                results.append(_planned(decisions, task, stage))
        texts = decisions.shared.texts()
    if not strict:
        refused, failures = _sorted_out(desk, specs, failures)
        results += refused
    results = _with_next_changes(desk, store, results, texts)
    results = _with_dues(desk, specs, results)
    results, warnings = with_state(desk, store, results)
    order = {spec.name: index for index, spec in enumerate(specs)}
    results.sort(key=lambda result: order[result.query])
    return Outcome(tuple(results), tuple(warnings), tuple(failures))


def _with_next_changes(
    desk: Workbench, store: StoreReader | None, results: Sequence[PlanResult], texts: Texts
) -> list[PlanResult]:
    names = [name for result in results for name in result.since]
    coming = expectations(desk, store, names, texts)
    return [
        replace(each, next_change=coming.next_change(each.since)) if each.since else each
        for each in results
    ]


def _with_dues(
    desk: Workbench, specs: Sequence[QuerySpec], results: Sequence[PlanResult]
) -> list[PlanResult]:
    timed = {spec.name for spec in specs if not trigger_of(spec).is_on_commit}
    told = {each.query for each in results if each.since and each.query in timed}
    if not told:
        return list(results)
    # The others, too: what they take is to be done before the same deadlines.
    seen = look_once(desk, [spec for spec in specs if spec.is_sketched], None)
    result = {due.query: due for due in seen.results() if due.query in told}
    return [replace(each, due=result.get(each.query)) for each in results]


def _sorted_out(
    desk: Workbench, specs: Sequence[QuerySpec], failures: Sequence[Failure]
) -> tuple[list[PlanResult], list[Failure]]:
    """Failures that only mean a query can have no sketch, as results; and the other failures."""
    known = {spec.name: spec for spec in specs}
    results: list[PlanResult] = []
    left: list[Failure] = []
    for failure in failures:
        spec = None if failure.query is None else known.get(failure.query)
        if spec is not None and is_refused(spec, failure.error):
            results.append(_refused(desk, spec, failure.error))
        else:
            left.append(failure)
    return results, left


def _refused(desk: Workbench, spec: QuerySpec, error: ImpctlError) -> PlanResult:
    return PlanResult(
        query=spec.name,
        action=REFUSED,
        by=None,
        reason_code=error.code,
        reason=error.message,
        policy=str(desk.policy(spec)),
        since={},
        versions={},
        hint=error.hint,
    )


def _to_capture(desk: Workbench, spec: QuerySpec) -> PlanResult:
    prepared = prepare(desk, spec)
    return PlanResult(
        query=spec.name,
        action="capture",
        by=capture_stage(desk, prepared).by(desk),
        reason_code="not_captured",
        reason="it has not been captured; run `impctl capture`",
        policy=str(desk.policy(spec)),
        since={},
        versions=desk.tables.versions_of(prepared.tables),
    )


def _nothing(
    desk: Workbench, store: StoreReader, spec: QuerySpec, stored: StoredQuery
) -> PlanResult:
    nothing = Stage("none", "up_to_date", "no new version")
    return _result(
        desk, spec, stored, nothing, (), _estimates(desk, store, stored, (), RunKind.MAINTAIN)
    )


def _planned(decisions: Decisions, task: Task, stage: Stage) -> PlanResult:
    pending = _pending(decisions, task.stored, stage)
    estimates = _estimates(decisions.desk, decisions.store, task.stored, pending, stage.cost_kind)
    return _result(decisions.desk, task.spec, task.stored, stage, pending, estimates)


def _pending(decisions: Decisions, stored: StoredQuery, stage: Stage) -> tuple[PlannedChange, ...]:
    """The change of every table that moved: as read, else as far as the log tells."""
    read = {result.need.table: result.changes.rows for result in stage.read}
    entries = []
    for pin in stored.pins:
        until = decisions.desk.tables.source(pin.table).version
        if until == pin.version:
            continue
        size = decisions.shared.size((pin.table, pin.version, until))
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
    desk: Workbench,
    store: StoreReader,
    stored: StoredQuery,
    pending: Sequence[PlannedChange],
    kind: RunKind,
) -> Estimates:
    rows = [entry.rows for entry in pending if entry.rows is not None]
    counted = sum(rows) if len(rows) == len(pending) else None
    sizes = [entry.bytes for entry in pending if entry.bytes is not None]
    is_known = len(sizes) == len(pending)
    size = Size(counted, sum(sizes)) if counted is not None or is_known else None
    return estimated(
        recorded(store, stored),
        kind,
        size,
        has_spark=desk.has_spark,
        table_rows=lambda: desk.tables.rows_of(tuple(stored.versions)),
        moved=[entry.table for entry in pending],
    )


def _result(
    desk: Workbench,
    spec: QuerySpec,
    stored: StoredQuery,
    stage: Stage,
    pending: tuple[PlannedChange, ...],
    estimates: Estimates,
) -> PlanResult:
    return PlanResult(
        query=spec.name,
        action=stage.action,
        by=stage.by,
        reason_code=stage.reason_code,
        reason=stage.reason,
        policy=str(desk.policy(spec)),
        since=stored.versions,
        versions=desk.tables.versions_of(pin.table for pin in stored.pins),
        pending=pending,
        maintain_ms=estimates.maintain_ms,
        maintain_runs=estimates.maintain_runs,
        recapture_ms=estimates.recapture_ms,
        recapture_runs=estimates.recapture_runs,
        next_expiry=expires(stored) or None,
    )
