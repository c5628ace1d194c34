"""Steps of one run, told as the results that are shown: one per sketch.

Law: sketches of one query share what the run cost; fragments are net over all steps.
Out of scope: the steps themselves (`app.maintaining.step`), results of a recapture
(`app.maintaining.run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.aliases import AccessId, QueryName, TableName, TableVersion
from impctl.app.maintaining.refill import refill_text
from impctl.app.maintaining.step import StepDone
from impctl.app.results.results import MaintainResult, MaintainStep
from impctl.store.records import StoredQuery, StoredSketch


def step_results(
    stored: StoredQuery,
    since: Mapping[TableName, TableVersion],
    steps: Sequence[StepDone],
    code: str,
    reason: str,
) -> list[MaintainResult]:
    """One result per sketch; they share what the run cost."""
    unsure = sum(step.unsure for step in steps)
    if unsure:
        reason = f"{reason}; {unsure} groups kept because a sum of doubles is too close to call"
    refilled = refill_text(*_refilled(steps))
    reason = f"{reason}; {refilled}" if refilled else reason
    return [_result(stored.query, sketch, since, steps, code, reason) for sketch in stored.sketches]


def _refilled(steps: Sequence[StepDone]) -> tuple[int, int]:
    """Groups refilled over all steps, and the rows read for that."""
    groups, rows = zip(*(step.refilled for step in steps), strict=True)
    return sum(groups), sum(rows)


def _result(
    query: QueryName,
    sketch: StoredSketch,
    since: Mapping[TableName, TableVersion],
    steps: Sequence[StepDone],
    code: str,
    reason: str,
) -> MaintainResult:
    added, removed = _net(steps, sketch.access)
    refilled_groups, refilled_rows = _refilled(steps)
    shown = tuple(
        MaintainStep(
            step.action,
            step.versions,
            step.added.get(sketch.access, ()),
            step.removed.get(sketch.access, ()),
            step.changes,
            step.read_ms + step.engine_ms + step.commit_ms,
        )
        for step in steps
    )
    return MaintainResult(
        query=query,
        table=sketch.table,
        attribute=sketch.attribute,
        total=sketch.partition.ranges,
        action=steps[-1].action,
        reason_code=code,
        reason=reason,
        since=since,
        versions=steps[-1].versions,
        added=added,
        removed=removed,
        changes=sum(step.changes for step in steps),
        elapsed_ms=sum(step.elapsed_ms for step in shown),
        read_ms=sum(step.read_ms for step in steps),
        engine_ms=sum(step.engine_ms for step in steps),
        commit_ms=sum(step.commit_ms for step in steps),
        steps=shown if len(shown) > 1 else (),
        refilled_groups=refilled_groups,
        refilled_rows=refilled_rows,
    )


def _net(steps: Sequence[StepDone], access: AccessId) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Fragments that entered and left an access's sketch over all steps together."""
    change: dict[int, int] = {}
    for step in steps:
        for fragment in step.added.get(access, ()):
            change[fragment] = change.get(fragment, 0) + 1
        for fragment in step.removed.get(access, ()):
            change[fragment] = change.get(fragment, 0) - 1
    added = tuple(sorted(f for f, sign in change.items() if sign > 0))
    removed = tuple(sorted(f for f, sign in change.items() if sign < 0))
    return added, removed
