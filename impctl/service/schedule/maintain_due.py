"""Use case: maintain what is due now, or what has a point; and say when queries are due.

Law: what is due is decided at the versions that are then maintained. A query that is not due stays
as it is and is told so; with nothing due no lock is taken and no planner loaded. A point that no
query has is an error, since a typing mistake would maintain nothing for ever.
Out of scope: when a query is due (`service.schedule`), going on (`service.schedule.daemon`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from impctl.errors import ImpctlError, UsageError
from impctl.service.maintain import maintain_specs, unchanged_results
from impctl.service.results import (
    ANSWER_OPEN,
    NOT_DUE,
    MaintainResult,
    Outcome,
    unsketched_maintain,
)
from impctl.service.schedule.due import Due, Waiting, look_once
from impctl.service.text import moment_text
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.decide import KeptStates
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


def maintain_due(
    desk: Workbench,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    kept: KeptStates | None = None,
    *,
    look: float | None = None,
) -> Outcome:
    """Maintain those of the queries named (default: all) that are due before the next look.

    With `kept` the operator state stays in memory for a later run of this process.
    """
    specs = desk.queries(queries)
    sketched = [spec for spec in specs if spec.is_sketched]
    seen = look_once(desk, sketched, look)
    known = {spec.name: spec for spec in sketched}
    done = Outcome()
    if seen.taken:
        asked = [known[due.query] for due in seen.taken]
        done = maintain_specs(desk, asked, batch_rows, kept, is_named=bool(queries))
    taken_up = {due.query for due in seen.taken}
    results = [one for one in done.results if isinstance(one, MaintainResult)]
    results += [unsketched_maintain(spec.name) for spec in specs if not spec.is_sketched]
    for one, due in zip(seen.waiting, seen.dues, strict=True):
        if due.query not in taken_up:
            results += _left(desk, known[due.query], one, due)
    order = {spec.name: index for index, spec in enumerate(specs)}
    results.sort(key=lambda result: order[result.query])
    warnings = (*done.warnings, *seen.warnings())
    return replace(done, results=tuple(results), warnings=warnings)


def maintain_point(
    desk: Workbench, point: str, batch_rows: int | None = None, kept: KeptStates | None = None
) -> Outcome:
    """Maintain the queries whose trigger has this point; UsageError where none has it."""
    return maintain_specs(desk, of_point(desk, point), batch_rows, kept, is_named=False)


def of_point(desk: Workbench, point: str) -> list[QuerySpec]:
    """The queries whose trigger has this point; UsageError where none has it."""
    specs = desk.queries(None)
    result = [spec for spec in specs if _point_of(spec) == point]
    if not result:
        points = dict.fromkeys(map(_point_of, specs))
        hint = suggestion(point, [name for name in points if name is not None], "the file has")
        raise UsageError(
            f"No query of {desk.workload.file} has the point `{point}`",
            hint=hint or "write `trigger: {point: NAME}` under a query",
            code="point_unknown",
        )
    return result


def _point_of(spec: QuerySpec) -> str | None:
    return None if spec.trigger is None else spec.trigger.point


def plan_due(
    desk: Workbench, queries: Sequence[QueryName] | None, *, look: float | None = None
) -> Outcome:
    """When each query is due next, and why; nothing is written and no lock taken."""
    seen = look_once(desk, desk.sketched(queries), look)
    return Outcome(tuple(seen.results()), tuple(seen.warnings()))


def _left(desk: Workbench, spec: QuerySpec, one: Waiting, due: Due) -> list[MaintainResult]:
    """What is said of a query that is left for later; nothing of one that has no sketch yet."""
    try:
        store = desk.reading_store()
        stored = None if store is None else store.load(spec.name)
    except ImpctlError:
        stored = None
    if stored is None:
        return []
    match = unchanged_results(desk, stored)
    if not one.pending.is_some and one.pending.moved_at is None:
        return match
    at = (
        ""
        if due.start_at is None
        else f", a run starts {moment_text(datetime.fromtimestamp(due.start_at, UTC))}"
    )
    return [
        replace(result, reason_code=NOT_DUE, reason=f"{due.why}{at}", answer_changed=ANSWER_OPEN)
        for result in match
    ]
