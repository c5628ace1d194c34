"""Stale sketches brought up to date, each under its policy.

Law: tasks are opened first, so that each table's change is read once for all of them; what a
policy forbids is refused before anything is written; a recapture says why it was needed.
Out of scope: one step of one query (`app.maintainer`), finding a sketch (`app.capture`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from impctl.aliases import AccessId, QueryName, TableName, TableVersion
from impctl.app.capture import capture_query
from impctl.app.drift import ranges_entry
from impctl.app.isolated import Isolated
from impctl.app.large_changes import grouped_change, is_large
from impctl.app.maintainer import Maintainer, Moved, StepDone
from impctl.app.partners import partners_of
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.refilling import refill_text
from impctl.app.restored import check_circuit, chooser_of, chosen_way, restored_verdict
from impctl.app.results import Failure, MaintainResult, MaintainStep
from impctl.app.shared_changes import Need, SharedChanges, by_version
from impctl.app.state_meta import StateMeta
from impctl.app.stored import check_definition, check_pins
from impctl.app.workbench import Workbench
from impctl.errors import PolicyRefusedError, RecaptureNeededError
from impctl.sketch.mode import Mode
from impctl.store.records import StoredQuery, StoredSketch
from impctl.store.store import Store
from impctl.tables.changes import Changes, check_same_columns, no_changes
from impctl.tables.commit_mark import commit_mark
from impctl.workload.models import MaintainMode, Policy, QuerySpec


@dataclass(slots=True)
class _Task:
    """One stale query: its stored sketch and what will be done with it."""

    spec: QuerySpec
    stored: StoredQuery
    maintainer: Maintainer | None = None
    trouble: RecaptureNeededError | None = None


class StaleRun:
    """The stale queries of one run; failures and warnings go to the caller's lists."""

    def __init__(
        self,
        bench: Workbench,
        store: Store,
        batch_rows: int,
        failures: list[Failure],
        warnings: list[str],
    ) -> None:
        self.bench = bench
        self.store = store
        self.batch_rows = batch_rows
        self.failures = failures
        self.warnings = warnings
        self.shared = SharedChanges(bench)

    def results(self, stale: Sequence[tuple[QuerySpec, StoredQuery]]) -> list[MaintainResult]:
        """Maintain or recapture each; a query that fails adds its failure instead."""
        tasks: list[_Task] = []
        for spec, stored in stale:
            with Isolated(self.failures, spec):
                tasks.append(self._open(spec, stored))
        self._announce(tasks)
        results: list[MaintainResult] = []
        for task in tasks:
            with Isolated(self.failures, task.spec):
                results += self._maintained(task)
        return results

    def _open(self, spec: QuerySpec, stored: StoredQuery) -> _Task:
        """The task, with what keeps it from being maintained incrementally."""
        task = _Task(spec, stored)
        try:
            check_definition(self.bench, spec, stored)
            if self.bench.policy(spec) is not Policy.FULL:
                check_pins(stored, self.bench)
                task.maintainer = self._maintainer(spec, stored)
        except RecaptureNeededError as trouble:
            task.trouble = trouble
        return task

    def _maintainer(self, spec: QuerySpec, stored: StoredQuery) -> Maintainer:
        prepared = prepare(self.bench, spec)
        verdict, partitions = restored_verdict(self.bench, prepared, stored)
        meta = StateMeta.read(stored.query, stored.state_meta)
        way = chosen_way(prepared, verdict, partitions, chooser_of(prepared, meta))
        try:
            check_circuit(self.bench, prepared, way, stored)
        except RecaptureNeededError:
            self._check_schemas(prepared, stored)
            raise
        if way.mode is Mode.RECAPTURE:
            raise RecaptureNeededError(
                f"Query `{spec.name}` cannot be maintained incrementally: {way.reason}",
                code="not_incremental",
                hint="use policy `auto` to let `maintain` recapture it",
                location=prepared.place(way.span),
            )
        return Maintainer(self.store, way, stored, partners_of(self.bench, way, partitions))

    def _check_schemas(self, prepared: PreparedQuery, stored: StoredQuery) -> None:
        """SchemaChangedError where a column the query reads is what makes the circuit another."""
        for pin in stored.pins:
            read = [a.name for s in prepared.scans if s.table == pin.table for a in s.attributes]
            before = self.bench.snapshot(pin.table, pin.version)
            check_same_columns(before, self.bench.snapshot(pin.table), read)

    def _announce(self, tasks: Sequence[_Task]) -> None:
        for task in tasks:
            if task.maintainer is not None:
                self.shared.announce(self._needs(task, task.maintainer))

    def _needs(self, task: _Task, maintainer: Maintainer) -> list[Need]:
        """What has to be read of every table that moved on."""
        needs = []
        for table, version in maintainer.versions.items():
            until = self.bench.source(table).version
            if until != version:
                needs.append(maintainer.need(table, until, per_version=_is_eager(task.spec)))
        return needs

    def _maintained(self, task: _Task) -> list[MaintainResult]:
        policy = self.bench.policy(task.spec)
        self._refuse(task, policy)
        if task.trouble is None and policy is not Policy.FULL:
            try:
                return self._advance(task)
            except RecaptureNeededError as trouble:
                task.trouble = trouble
                self._refuse(task, policy)
        return self._recaptured(task)

    def _refuse(self, task: _Task, policy: Policy) -> None:
        """Raise what the policy forbids; returns where it allows to go on."""
        trouble = task.trouble
        if policy is Policy.INCREMENTAL and trouble is not None:
            raise trouble
        if policy is not Policy.STRICT:
            return
        maintainer = task.maintainer
        reason = trouble.message if trouble is not None else None
        if reason is None and maintainer is not None and maintainer.way.mode is Mode.TOUCH:
            reason = maintainer.way.reason
        if reason is not None:
            raise PolicyRefusedError(
                f"Policy `strict` takes exact maintenance only: {reason}",
                hint="set the query's policy to `auto` or `incremental`, or capture it again",
                location=None if trouble is None else trouble.location,
            )

    def _advance(self, task: _Task) -> list[MaintainResult]:
        """Exact or touch, in one step or one per batch of versions."""
        maintainer = task.maintainer
        assert maintainer is not None
        since = dict(maintainer.versions)
        code, reason = _reason_of(maintainer)
        needs = self._needs(task, maintainer)
        if is_large(self.shared, maintainer.way.compiled, needs):
            return self._advance_grouped(task, maintainer, needs[0])
        read = [(need, *self.shared.read(need)) for need in needs]
        read_ms = sum(elapsed for _, _, elapsed in read)
        if self.bench.settings.dry_run:
            versions = {**since, **{need.table: need.until for need, _, _ in read}}
            rows = sum(changes.rows for _, changes, _ in read)
            step = StepDone(str(maintainer.way.mode), versions, changes=rows, read_ms=read_ms)
            return _foreseen(task.stored, since, step, code, reason)
        for need, changes, _ in read:
            if changes.method == "file_diff":
                self._warn_of_file_diff(need.table)
        steps = []
        for moved in self._pieces(task, [(need, changes) for need, changes, _ in read]):
            done = maintainer.step(moved, read_ms=read_ms, reason_code=code, reason=reason)
            steps.append(done)
            read_ms = 0.0
        results = _results(task.stored, since, steps, code, reason)
        return self._with_ranges(maintainer.stored, results)

    def _advance_grouped(
        self, task: _Task, maintainer: Maintainer, need: Need
    ) -> list[MaintainResult]:
        """In one step, with a change that Spark groups first."""
        since = dict(maintainer.versions)
        code, reason = "grouped_by_spark", "a large change, grouped by Spark first"
        if self.bench.settings.dry_run:
            step = StepDone(str(maintainer.way.mode), {**since, need.table: need.until})
            return _foreseen(task.stored, since, step, code, reason)
        assert maintainer.way.compiled is not None
        started = time.perf_counter()
        grouped = grouped_change(
            self.bench,
            maintainer.way.compiled,
            {sketch.access: sketch.partition for sketch in task.stored.sketches},
            need,
            task.stored.assumptions,
        )
        read_ms = (time.perf_counter() - started) * 1000
        nothing = no_changes(self.bench.snapshot(need.table, need.until), need.columns)
        moved = replace(self._moved(need, nothing, need.until), grouped=grouped)
        done = maintainer.step(
            {need.table: moved}, read_ms=read_ms, reason_code=code, reason=reason
        )
        return self._with_ranges(
            maintainer.stored, _results(task.stored, since, [done], code, reason)
        )

    def _with_ranges(
        self, stored: StoredQuery | None, results: list[MaintainResult]
    ) -> list[MaintainResult]:
        """The results with how even the ranges of their sketches are now."""
        assert stored is not None
        return [
            replace(result, ranges=ranges_entry(self.bench, stored, result.table, result.attribute))
            for result in results
        ]

    def _pieces(
        self, task: _Task, read: Sequence[tuple[Need, Changes]]
    ) -> list[dict[TableName, Moved]]:
        """What each step moves: all tables at once, or eagerly one batch of one table at a time."""
        if not _is_eager(task.spec):
            return [{need.table: self._moved(need, changes, need.until) for need, changes in read}]
        return [
            {need.table: self._moved(need, piece.changes, piece.version)}
            for need, changes in read
            for piece in by_version(changes, need.until, self.batch_rows)
        ]

    def _moved(self, need: Need, changes: Changes, until: TableVersion) -> Moved:
        mark = commit_mark(self.bench.source(need.table), until)
        ending = self.bench.snapshot(need.table)
        return Moved(changes, until, ending, mark, lambda: self.bench.snapshot(need.table, until))

    def _warn_of_file_diff(self, table: TableName) -> None:
        warning = (
            f"table `{table}` has no change feed for all of these versions, so whole files were "
            "compared; set `delta.enableChangeDataFeed` to true on it"
        )
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _recaptured(self, task: _Task) -> list[MaintainResult]:
        trouble = task.trouble
        code = "policy_full" if trouble is None else trouble.code
        reason = "policy `full` always recaptures" if trouble is None else trouble.message
        versions = {pin.table: self.bench.source(pin.table).version for pin in task.stored.pins}
        if self.bench.settings.dry_run:
            step = StepDone("recapture", versions)
            return _foreseen(task.stored, task.stored.versions, step, code, reason)
        self.bench.reporter.step(f"recapturing {task.spec.name}: {reason}")
        if trouble is not None and trouble.code != "not_incremental":
            self.warnings.append(f"query `{task.spec.name}` was recaptured: {reason}")
        started = time.perf_counter()
        captured = capture_query(
            self.bench, self.store, prepare(self.bench, task.spec), code=code, reason=reason
        )
        elapsed = (time.perf_counter() - started) * 1000
        results = []
        for sketch in captured.sketches:
            before = next(
                (
                    s
                    for s in task.stored.sketches
                    if (s.access, s.partition) == (sketch.access, sketch.partition)
                ),
                None,
            )
            old = None if before is None else before.fragments
            added = sketch.fragments.ids if old is None else sketch.fragments.minus(old).ids
            removed = () if old is None else old.minus(sketch.fragments).ids
            results.append(
                MaintainResult(
                    query=task.spec.name,
                    table=sketch.table,
                    attribute=sketch.attribute,
                    action="recapture",
                    reason_code=code,
                    reason=reason,
                    since=task.stored.versions,
                    versions=versions,
                    added=added,
                    removed=removed,
                    changes=0,
                    elapsed_ms=elapsed,
                    read_ms=captured.spark_ms,
                    engine_ms=captured.engine_ms,
                    commit_ms=captured.commit_ms,
                )
            )
        return self._with_ranges(self.store.load(task.spec.name), results)


def _is_eager(spec: QuerySpec) -> bool:
    return spec.maintain is MaintainMode.EAGER


def _reason_of(maintainer: Maintainer) -> tuple[str, str]:
    code = "incremental" if maintainer.way.mode is Mode.EXACT else "touch_keyed"
    return code, maintainer.way.reason


def _foreseen(
    stored: StoredQuery,
    since: Mapping[TableName, TableVersion],
    step: StepDone,
    code: str,
    reason: str,
) -> list[MaintainResult]:
    """The results of a step that a dry run does not take."""
    found = _results(stored, since, [step], code, reason)
    return [replace(result, foreseen=True) for result in found]


def _results(
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
