"""Use case: what would be done with a query, and why, before anything runs.

Law: writes nothing, never starts Spark; reads metadata, the store and a sample, and the rows of
small tables on the local disk (`app.examining.trial`). Every operator says how it would be
maintained, every attribute whether it is safe, what is refused where in the SQL it stands.
Out of scope: doing it (`app.capture`, `app.maintain`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.capturing.chosen_way import capture_way
from impctl.app.capturing.entries import provenance_kept
from impctl.app.capturing.kept_plan import kept_plan
from impctl.app.examining.buffers import buffer_entries
from impctl.app.examining.extras import extra_warnings
from impctl.app.examining.join_trees import tree_entries
from impctl.app.examining.kept_answer import answer_entry
from impctl.app.examining.plan_lines import kept_state, plan_entries
from impctl.app.examining.stored_way import way_as_stored
from impctl.app.examining.trial import Trials
from impctl.app.preparing.choice import choose, judge_candidates
from impctl.app.preparing.lineage_use import lineage_warnings
from impctl.app.preparing.prepared import prepare
from impctl.app.results.explanations import ExplainResult, GroupsEntry, JoinSideEntry
from impctl.app.results.results import Failure, Outcome
from impctl.app.using.answering import who_answers
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import SideChoice
from impctl.errors import UnsafeSketchError
from impctl.plan.recursion import keyed_rows
from impctl.types import QueryName
from impctl.workload.models import QuerySpec


def explain(desk: Workbench, queries: Sequence[QueryName] | None) -> Outcome:
    """One result per query named (default: all)."""
    results: list[ExplainResult] = []
    warnings: list[str] = []
    failures: list[Failure] = []
    trials = Trials(desk)
    for spec in desk.queries(queries):
        with Isolated(failures, spec):
            results.append(_explained(desk, spec, trials, warnings))
    warnings += extra_warnings([result.query for result in results if result.provenance])
    is_new = any(one.mode != "none" and one.state_bytes is None for one in results)
    note = f"next: impctl capture {desk.workload.file}" if is_new else ""
    return Outcome(tuple(results), tuple(warnings), tuple(failures), note)


def _explained(
    desk: Workbench, spec: QuerySpec, trials: Trials, warnings: list[str]
) -> ExplainResult:
    prepared = prepare(desk, spec)
    policy = str(desk.policy(spec))
    try:
        chosen = choose(desk, prepared)
    except UnsafeSketchError as unsafe:
        plan = plan_entries(desk.tables, prepared, None, None)
        judged = judge_candidates(desk, prepared)
        return ExplainResult(
            query=spec.name,
            mode="none",
            reason=unsafe.message,
            policy=policy,
            plan=plan,
            attributes=judged,
            trees=tree_entries(prepared, None, {}),
            answer=answer_entry(spec, None, None),
            answered=who_answers(desk, prepared),
        )
    partitions = chosen.partitions(desk, prepared)
    way = capture_way(desk, prepared, chosen.verdict, partitions)
    warnings += lineage_warnings(desk.tables, prepared, chosen)
    notes = kept_plan(prepared, chosen.verdict, partitions).notes
    keyed = keyed_rows(prepared.root, chosen.verdict.key_columns)
    kept = kept_state(desk, spec, way)
    if kept is not None:
        way = way_as_stored(prepared, chosen.verdict, partitions, way, kept.stored)
    return ExplainResult(
        query=spec.name,
        mode=way.mode.value,
        reason=way.reason,
        policy=policy,
        plan=plan_entries(desk.tables, prepared, way, kept, notes, keyed),
        attributes=trials.tried(prepared, way, partitions, chosen.candidates),
        joins=() if way.compiled is None else tuple(map(_side, way.compiled.sides)),
        groups=() if way.compiled is None else tuple(map(_groups, way.compiled.groupings)),
        buffers=buffer_entries(prepared, way, kept),
        trees=tree_entries(prepared, way, partitions, None if kept is None else kept.pieces),
        state_bytes=None if kept is None else kept.bytes,
        answer=answer_entry(spec, way, kept),
        provenance=provenance_kept(spec, way.provenance),
        answered=who_answers(desk, prepared),
    )


def _groups(choice: SideChoice) -> GroupsEntry:
    return GroupsEntry(choice.side, choice.tables, choice.mode, choice.reason)


def _side(choice: SideChoice) -> JoinSideEntry:
    return JoinSideEntry(
        choice.side,
        choice.tables,
        choice.strategy.value,
        choice.mode,
        choice.reason,
        choice.rows,
        choice.bytes,
    )
