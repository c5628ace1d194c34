"""Use case: maintain what is due now, or what has a point; and say when queries are due.

Law: what is due is decided at the versions that are then maintained. A query that is not due stays
as it is and is told so; with nothing due no lock is taken and no planner loaded. A point that no
query has is an error, since a typing mistake would maintain nothing for ever.
Out of scope: when a query is due (`app.maintaining.due`), going on (`app.follow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from impctl.aliases import QueryName
from impctl.app.maintain import maintain_specs
from impctl.app.maintaining.due.costs import FIRST_MARGIN, OPENING_FRESH_S
from impctl.app.maintaining.due.looking import looked_at, now_of
from impctl.app.maintaining.due.pending import CommitLog
from impctl.app.maintaining.due.when import Due, Pace, Waiting, dues, shortest_bounds, taken
from impctl.app.maintaining.maintained import unchanged_results
from impctl.app.results.due import NOT_DUE, DueResult
from impctl.app.results.results import ANSWER_OPEN, MaintainResult, Outcome
from impctl.app.results.unsketched import unsketched_maintain
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, UsageError
from impctl.workload.models import QuerySpec
from impctl.workload.reading import suggestion

DEFAULT_LOOK = 60.0
"""Seconds until the next run of `--due`, as crontabs have it at their most frequent."""


def maintain_due(
    desk: Workbench,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    *,
    look: float | None = None,
) -> Outcome:
    """Maintain those of the queries named (default: all) that are due before the next look."""
    specs = desk.queries(queries)
    sketched = [spec for spec in specs if spec.is_sketched]
    waiting, found, pace = _found(desk, sketched, look)
    chosen = taken(found, waiting, now_of(desk))
    known = {spec.name: spec for spec in sketched}
    done = Outcome()
    if chosen:
        asked = [known[due.query] for due in chosen]
        done = maintain_specs(desk, asked, batch_rows, is_named=bool(queries))
    taken_up = {due.query for due in chosen}
    results = [one for one in done.results if isinstance(one, MaintainResult)]
    results += [unsketched_maintain(spec.name) for spec in specs if not spec.is_sketched]
    for one, due in zip(waiting, found, strict=True):
        if due.query not in taken_up:
            results += _left(desk, known[due.query], one, due)
    order = {spec.name: index for index, spec in enumerate(specs)}
    results.sort(key=lambda result: order[result.query])
    warnings = (*done.warnings, *_impossible(waiting, pace))
    return replace(done, results=tuple(results), warnings=warnings)


def maintain_point(desk: Workbench, point: str, batch_rows: int | None = None) -> Outcome:
    """Maintain the queries whose trigger has this point; UsageError where none has it."""
    points = {spec.trigger.point: None for spec in desk.queries(None) if spec.trigger is not None}
    known = [name for name in points if name is not None]
    if point not in known:
        hint = suggestion(point, known, "the file has")
        raise UsageError(
            f"No query of {desk.workload.file} has the point `{point}`",
            hint=hint or "write `trigger: {point: NAME}` under a query",
            code="point_unknown",
        )
    specs = [
        spec
        for spec in desk.queries(None)
        if spec.trigger is not None and spec.trigger.point == point
    ]
    return maintain_specs(desk, specs, batch_rows, is_named=False)


def plan_due(
    desk: Workbench, queries: Sequence[QueryName] | None, *, look: float | None = None
) -> Outcome:
    """When each query is due next, and why; nothing is written and no lock taken."""
    specs = desk.sketched(queries)
    waiting, found, pace = _found(desk, specs, look)
    chosen = {due.query: due for due in taken(found, waiting, now_of(desk))}
    results = [
        _told(one, chosen.get(due.query, due), pace, is_due=due.query in chosen)
        for one, due in zip(waiting, found, strict=True)
    ]
    return Outcome(tuple(results), tuple(_impossible(waiting, pace)))


def _found(
    desk: Workbench, specs: Sequence[QuerySpec], look: float | None
) -> tuple[list[Waiting], list[Due], Pace]:
    """What waits, when it is due, and how runs of a process of their own go."""
    pace = Pace(OPENING_FRESH_S, FIRST_MARGIN, DEFAULT_LOOK if look is None else look)
    waiting = looked_at(desk, specs, pace.look, CommitLog())
    return waiting, dues(waiting, pace, now_of(desk)), pace


def _impossible(waiting: Sequence[Waiting], pace: Pace) -> list[str]:
    """Bounds that cannot be held, each with its code."""
    return [f"{text} [{code}]" for one in waiting for code, text in shortest_bounds(one, pace)]


def _left(desk: Workbench, spec: QuerySpec, one: Waiting, due: Due) -> list[MaintainResult]:
    """What is said of a query that is left for later; nothing of one that has no sketch yet."""
    try:
        store = desk.reading_store()
        stored = None if store is None else store.load(spec.name)
    except ImpctlError:
        stored = None
    if stored is None:
        return []
    found = unchanged_results(desk, stored)
    if not one.pending.is_some and one.pending.moved_at is None:
        return found
    at = "" if due.start_at is None else f", a run starts {_moment(due.start_at)}"
    return [
        replace(result, reason_code=NOT_DUE, reason=f"{due.why}{at}", answer_changed=ANSWER_OPEN)
        for result in found
    ]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _told(one: Waiting, due: Due, pace: Pace, *, is_due: bool) -> DueResult:
    return DueResult(
        query=one.query,
        trigger=one.trigger.text,
        due=is_due,
        why=f"{due.why}; {due.early}" if due.early else due.why,
        due_at=_time(due.due_at),
        due_by=_time(due.due_by),
        start_at=_time(due.start_at),
        pending=due.is_pending,
        rows=one.pending.rows,
        oldest_at=_time(one.pending.oldest),
        cost_ms=one.costs.pending * 1000 if one.costs.is_known else None,
        margin=pace.margin,
    )


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
