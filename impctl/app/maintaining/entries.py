"""What was done with a stale query, or would be, told as the results that are shown.

Law: one result per sketch; sketches of one query share what the run cost, and fragments are net
over all steps. A stage that is only foreseen is told by the same code as one that was run.
Out of scope: deciding (`app.maintaining.decide`), the steps themselves (`app.maintaining.step`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from impctl.app.capturing.captured import Captured
from impctl.app.capturing.drift import ranges_entry
from impctl.app.capturing.moments import stored_moments
from impctl.app.maintaining.done import StepDone
from impctl.app.maintaining.refill import refill_text
from impctl.app.maintaining.stage import Stage, changed_rows
from impctl.app.maintaining.task import Task
from impctl.app.results.results import ANSWER_OPEN, ANSWER_SAME, MaintainResult, MaintainStep
from impctl.app.results.tree_work import TreeWork
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.store.records import StoredQuery, StoredSketch
from impctl.tables.snapshot import Snapshot
from impctl.types import AccessId, QueryName, TableName, TableVersion


def foreseen_results(tables: PinnedTables, task: Task, stage: Stage) -> list[MaintainResult]:
    """The results of a stage that is not run."""
    stored = task.stored
    versions = tables.versions_of(pin.table for pin in stored.pins)
    changes = 0 if stage.is_recapture else changed_rows(stage.read)
    step = StepDone(stage.action, versions, changes=changes, read_ms=stage.read_ms)
    results = step_results(stored, stored.versions, [step], stage.reason_code, stage.reason)
    return [replace(result, foreseen=True, answer_changed=None) for result in results]


def with_ranges(
    desk: Workbench, stored: StoredQuery, results: Sequence[MaintainResult]
) -> list[MaintainResult]:
    """The results with how even the ranges of their sketches are now, and the clock's values."""
    moments = stored_moments(stored)
    return [
        replace(
            result,
            ranges=ranges_entry(desk, stored, result.table, result.attribute),
            moments=moments,
        )
        for result in results
    ]


def with_files(results: Sequence[MaintainResult], written: Sequence[str]) -> list[MaintainResult]:
    """The results with the files that tell what came and went of the answer."""
    return [replace(result, change_files=tuple(written)) for result in results]


def with_sync(results: Sequence[MaintainResult], sync_ms: float) -> list[MaintainResult]:
    """The results with their share of the one sync that they were committed by."""
    return [
        replace(
            result,
            elapsed_ms=result.elapsed_ms + sync_ms,
            commit_ms=result.commit_ms + sync_ms,
        )
        for result in results
    ]


def file_diff_warning(snapshot: Snapshot) -> str:
    """Why whole files were compared, and what helps."""
    table = snapshot.table
    if snapshot.has_change_feed:
        return (
            f"whole files of table `{table}` were compared, because its change feed does "
            "not cover all of this change. The feed was off, the log names deletion vectors or "
            "lacks details of a file, or another writer than Spark copied, added or removed files"
        )
    return (
        f"whole files of table `{table}` were compared, because it has no change feed for "
        "all of these versions; set `delta.enableChangeDataFeed` to true on it"
    )


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
        reason = (
            f"{reason}; {unsure} groups stay in the sketch because a sum of doubles is too "
            "close to its limit"
        )
    refilled = refill_text(*_refilled(steps))
    notes = dict.fromkeys(step.note for step in steps)
    reason = "; ".join(filter(None, (reason, refilled, *notes)))
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
            _changes([step]),
            step.read_ms + step.engine_ms + step.commit_ms,
            _answer_changed([step]),
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
        changes=_changes(steps),
        elapsed_ms=sum(step.elapsed_ms for step in shown),
        read_ms=sum(step.read_ms for step in steps),
        engine_ms=sum(step.engine_ms for step in steps),
        commit_ms=sum(step.commit_ms for step in steps),
        steps=shown if len(shown) > 1 else (),
        refilled_groups=refilled_groups,
        refilled_rows=refilled_rows,
        tree=_tree_work(steps),
        answer_changed=_answer_changed(steps),
    )


def _tree_work(steps: Sequence[StepDone]) -> TreeWork | None:
    """What join trees did over all steps; None without any."""
    works = [step.tree for step in steps if step.tree is not None]
    if not works:
        return None
    return TreeWork(
        sum(one.touched for one in works),
        sum(one.flips for one in works),
        sum(one.pairs for one in works),
    )


def _changes(steps: Sequence[StepDone]) -> int | None:
    """The changed rows carried on; None where one step read whole tables instead."""
    if any(step.action == "recapture" for step in steps):
        return None
    return sum(step.changes for step in steps)


def _answer_changed(steps: Sequence[StepDone]) -> str:
    return ANSWER_OPEN if any(step.may_change_answer for step in steps) else ANSWER_SAME


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


def recapture_results(
    stored: StoredQuery, captured: Captured, stage: Stage, elapsed_ms: float
) -> list[MaintainResult]:
    """One result per new sketch, held against the old one where they have the same ranges."""
    before = {(sketch.access, sketch.partition): sketch.fragments for sketch in stored.sketches}
    results = []
    for sketch in captured.sketches:
        old = before.get((sketch.access, sketch.partition))
        added = sketch.fragments.ids if old is None else sketch.fragments.minus(old).ids
        removed = () if old is None else old.minus(sketch.fragments).ids
        results.append(
            MaintainResult(
                query=stored.query,
                table=sketch.table,
                attribute=sketch.attribute,
                total=sketch.partition.ranges,
                action="recapture",
                reason_code=stage.reason_code,
                reason=stage.reason,
                since=stored.versions,
                versions=captured.versions,
                added=added,
                removed=removed,
                changes=None,
                elapsed_ms=elapsed_ms,
                read_ms=captured.spark_ms,
                engine_ms=captured.engine_ms,
                commit_ms=captured.commit_ms,
                answer_changed=ANSWER_OPEN,
            )
        )
    return results
