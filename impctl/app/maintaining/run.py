"""Stale sketches brought up to date, each under its policy.

Law: tasks are opened first, so that each table's change is read once for all of them; what is done
is decided in one place, as a stage that is then run or only explained; what a policy forbids is
refused before anything is written; a recapture says why it was chosen.
Out of scope: one step of one query (`app.maintaining.step`), finding a sketch (`app.capture`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from impctl.aliases import TableName, TableVersion
from impctl.app.capturing.captured import Captured, capture_query
from impctl.app.capturing.drift import ranges_entry
from impctl.app.capturing.pins import check_not_replaced_meanwhile
from impctl.app.capturing.stage import capture_stage
from impctl.app.maintaining.changes import Need, SharedChanges, by_version
from impctl.app.maintaining.entries import step_results
from impctl.app.maintaining.estimates import Size, dearer, reason_text
from impctl.app.maintaining.grouped_change import grouped_change, is_large
from impctl.app.maintaining.kept_states import KeptStates
from impctl.app.maintaining.stage import (
    GROUPED_BY_SPARK,
    RECAPTURE_CHEAPER,
    ReadChange,
    Stage,
    changed_rows,
)
from impctl.app.maintaining.step import Maintainer, Moved, StepDone
from impctl.app.maintaining.task import Task, needs_of, open_task
from impctl.app.preparing.facts import recheck
from impctl.app.preparing.prepared import prepare
from impctl.app.results.foreseen import ENGINE, SPARK
from impctl.app.results.results import Failure, MaintainResult
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    PolicyRefusedError,
    RecaptureNeededError,
    TableError,
)
from impctl.sketch.mode import Mode
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.tables.change.changes import Changes, no_changes
from impctl.tables.change.files_mark import files_mark
from impctl.tables.commit_mark import commit_mark
from impctl.workload.models import Policy, QuerySpec

Stale = Sequence[tuple[QuerySpec, StoredQuery]]
_NOT_INCREMENTALLY = (RecaptureNeededError, EvaluationError, TableError)
"""What stops maintaining; of the last two only `auto` makes a recapture: a row on which the query
fails may be gone by now, and Spark may read what impctl cannot."""


class StaleRun:
    """The stale queries of one run; failures and warnings go to the caller's lists."""

    def __init__(
        self,
        desk: Workbench,
        store: Store,
        batch_rows: int,
        failures: list[Failure],
        warnings: list[str],
        kept: KeptStates | None = None,
    ) -> None:
        self.desk = desk
        self.store = store
        self.batch_rows = batch_rows
        self.failures = failures
        self.warnings = warnings
        self.kept = kept
        self.shared = SharedChanges(desk)
        self._start_told = 0.0

    def results(self, stale: Stale) -> list[MaintainResult]:
        """Maintain or recapture each; a query that fails adds its failure instead."""
        results: list[MaintainResult] = []
        for task in self._opened(stale):
            with Isolated(self.failures, task.spec):
                results += self._run(task)
                if self.kept is not None and task.maintainer is not None:
                    self.kept.keep(self.desk, self.store, task.maintainer)
        return results

    def foreseen(self, stale: Stale) -> list[MaintainResult]:
        """The results of a dry run: each stage explained instead of run."""
        return [
            replace(result, foreseen=True)
            for task, stage in self.stages(stale)
            for result in self._explained(task, stage)
        ]

    def stages(self, stale: Stale) -> list[tuple[Task, Stage]]:
        """What would be done with each; a query that fails adds its failure instead."""
        found: list[tuple[Task, Stage]] = []
        for task in self._opened(stale):
            with Isolated(self.failures, task.spec):
                stage = self._stage(task, is_checked=True)
                if stage.is_recapture:
                    capture = capture_stage(self.desk, prepare(self.desk, task.spec))
                    stage = replace(stage, by=capture.by(self.desk))
                found.append((task, stage))
        return found

    def size(self, needs: Sequence[Need]) -> Size | None:
        """How large these changes are together, by the log; None where it cannot be read."""
        found = [self.shared.size(need.span) for need in needs]
        sizes = [size for size in found if size is not None]
        if len(sizes) < len(found):
            return None
        rows = [size.rows for size in sizes if size.rows is not None]
        counted = sum(rows) if len(rows) == len(sizes) else None
        return Size(counted, sum(size.bytes for size in sizes))

    def _opened(self, stale: Stale) -> list[Task]:
        tasks: list[Task] = []
        for spec, stored in stale:
            with Isolated(self.failures, spec):
                task = open_task(self.desk, self.store, spec, stored, self._spark_start, self.kept)
                self.shared.announce(needs_of(self.desk, task))
                tasks.append(task)
        return tasks

    def _spark_start(self) -> float:
        """Milliseconds that Spark took to start since this was last asked."""
        before, self._start_told = self._start_told, self.desk.spark_start_ms
        return self._start_told - before

    # What to do

    def _stage(self, task: Task, *, is_checked: bool = False) -> Stage:
        """What to do now, its change read; with `is_checked` also looked at as a run would."""
        policy = self.desk.policy(task.spec)
        self._refuse(task, policy)
        if task.trouble is None and policy is not Policy.FULL:
            try:
                return self._incremental(task, policy, is_checked)
            except _NOT_INCREMENTALLY as trouble:
                self._stopped(task, trouble)
        return _recapture(task)

    def _incremental(self, task: Task, policy: Policy, is_checked: bool) -> Stage:
        """Exact or touch; or recapture where that is cheaper and the policy leaves the choice."""
        maintainer = task.maintainer
        assert maintainer is not None
        needs = tuple(needs_of(self.desk, task))
        way = maintainer.way
        code = "incremental" if way.mode is Mode.EXACT else "touch_keyed"
        stage = Stage(str(way.mode), code, way.reason, ENGINE, needs)
        if is_large(self.shared, way.compiled, needs):
            reason = "a large change, grouped by Spark first"
            stage = replace(stage, reason_code=GROUPED_BY_SPARK, reason=reason, by=SPARK)
        elif way.compiled is not None and way.compiled.distant:
            stage = replace(stage, by=f"{ENGINE} and {SPARK}")
        cheaper = self._cheaper(task, stage) if policy is Policy.AUTO else None
        if cheaper is not None:
            return cheaper
        if stage.is_grouped:
            return stage
        read = tuple(ReadChange(need, *self.shared.read(need)) for need in needs)
        if is_checked and task.stored.assumptions:
            for found in read:
                ending = self.desk.snapshot(found.need.table)
                changes = found.changes
                recheck(task.stored.assumptions, ending, changes.table, changes.weights)
        return replace(stage, read=read)

    def _cheaper(self, task: Task, stage: Stage) -> Stage | None:
        """A recapture where maintaining is estimated to be clearly dearer.

        An eager query wants a sketch for every version, which no recapture gives.
        """
        if task.is_eager:
            return None
        found = dearer(
            self.store.costs(task.spec.name),
            stage.cost_kind,
            lambda: self.size(stage.needs),
            has_spark=self.desk.has_spark,
            table_rows=lambda: self.desk.rows_of(tuple(task.stored.versions)),
        )
        return None if found is None else _recapture_stage(RECAPTURE_CHEAPER, reason_text(found))

    def _stopped(self, task: Task, trouble: ImpctlError) -> None:
        """Note what stops maintaining; raises where the policy does not allow to recapture."""
        policy = self.desk.policy(task.spec)
        if not isinstance(trouble, RecaptureNeededError) and policy is not Policy.AUTO:
            raise trouble
        task.trouble = trouble
        self._refuse(task, policy)

    def _refuse(self, task: Task, policy: Policy) -> None:
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

    # Doing it

    def _explained(self, task: Task, stage: Stage) -> list[MaintainResult]:
        """The results of a stage that is not run."""
        stored = task.stored
        versions = {pin.table: self.desk.source(pin.table).version for pin in stored.pins}
        changes = 0 if stage.is_recapture else changed_rows(stage.read)
        step = StepDone(stage.action, versions, changes=changes, read_ms=stage.read_ms)
        return step_results(stored, stored.versions, [step], stage.reason_code, stage.reason)

    def _run(self, task: Task) -> list[MaintainResult]:
        stage = self._stage(task)
        if not stage.is_recapture:
            try:
                return self._advance(task, stage)
            except _NOT_INCREMENTALLY as trouble:
                self._stopped(task, trouble)
                stage = _recapture(task)
        return self._recaptured(task, stage)

    def _advance(self, task: Task, stage: Stage) -> list[MaintainResult]:
        """Exact or touch, in one step or one per batch of versions."""
        maintainer = task.maintainer
        assert maintainer is not None
        since = dict(maintainer.versions)
        self._spark_start()
        if stage.is_grouped:
            started = time.perf_counter()
            pieces = [self._grouped(task, maintainer, stage.needs[0])]
            read_ms = (time.perf_counter() - started) * 1000
        else:
            pieces, read_ms = self._pieces(task, stage.read), stage.read_ms
        size = self.size(stage.needs) if len(pieces) == 1 else None
        for found in stage.read:
            if found.changes.method == "file_diff":
                self._warn_of_file_diff(found.need.table)
        check_not_replaced_meanwhile(task.stored, self.desk)
        steps = []
        for moved in pieces:
            done = maintainer.step(
                moved,
                read_ms=read_ms,
                reason_code=stage.reason_code,
                reason=stage.reason,
                changed_bytes=0 if size is None else size.bytes,
            )
            steps.append(done)
            read_ms = 0.0
        results = step_results(task.stored, since, steps, stage.reason_code, stage.reason)
        return self._with_ranges(maintainer.stored, results)

    def _grouped(self, task: Task, maintainer: Maintainer, need: Need) -> dict[TableName, Moved]:
        """The one move of a change that Spark groups first."""
        assert maintainer.way.compiled is not None
        grouped = grouped_change(
            self.desk,
            maintainer.way.compiled,
            {sketch.access: sketch.partition for sketch in task.stored.sketches},
            need,
            task.stored.assumptions,
        )
        nothing = no_changes(self.desk.snapshot(need.table, need.until), need.columns)
        return {need.table: replace(self._moved(need, nothing, need.until), grouped=grouped)}

    def _pieces(self, task: Task, read: Sequence[ReadChange]) -> list[dict[TableName, Moved]]:
        """What each step moves: all tables at once, or eagerly one batch of one table at a time."""
        if not task.is_eager:
            return [{f.need.table: self._moved(f.need, f.changes, f.need.until) for f in read}]
        return [
            {f.need.table: self._moved(f.need, piece.changes, piece.version)}
            for f in read
            for piece in by_version(f.changes, f.need.until, self.batch_rows)
        ]

    def _moved(self, need: Need, changes: Changes, until: TableVersion) -> Moved:
        mark = commit_mark(self.desk.source(need.table), until)
        ending = self.desk.snapshot(need.table)
        # Between two batches of versions the log's entry alone has to do.
        files = files_mark(ending) if ending.version == until else None
        reached = partial(self.desk.snapshot, need.table, until)
        return Moved(changes, until, ending, mark, files, reached)

    def _warn_of_file_diff(self, table: TableName) -> None:
        if self.desk.snapshot(table).has_change_feed:
            warning = (
                f"the change feed of table `{table}` does not tell all of this change (it was off, "
                "the log names deletion vectors or says too little of a file, or a writer other "
                "than Spark copied files or added or removed them in a way that it may misread), "
                "so whole files were compared"
            )
        else:
            warning = (
                f"table `{table}` has no change feed for all of these versions, so whole files "
                "were compared; set `delta.enableChangeDataFeed` to true on it"
            )
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _recaptured(self, task: Task, stage: Stage) -> list[MaintainResult]:
        trouble, reason = task.trouble, stage.reason
        self.desk.reporter.step(f"recapturing {task.spec.name}: {reason}")
        if trouble is not None and trouble.code != "not_incremental":
            self.warnings.append(f"query `{task.spec.name}` was recaptured: {reason}")
        started = time.perf_counter()
        captured = capture_query(
            self.desk,
            self.store,
            prepare(self.desk, task.spec),
            code=stage.reason_code,
            reason=reason,
        )
        elapsed = (time.perf_counter() - started) * 1000
        results = _recapture_results(task.stored, captured, stage, elapsed)
        return self._with_ranges(self.store.load(task.spec.name), results)

    def _with_ranges(
        self, stored: StoredQuery | None, results: list[MaintainResult]
    ) -> list[MaintainResult]:
        """The results with how even the ranges of their sketches are now."""
        assert stored is not None
        return [
            replace(result, ranges=ranges_entry(self.desk, stored, result.table, result.attribute))
            for result in results
        ]


def _recapture(task: Task) -> Stage:
    """The recapture that trouble or policy `full` asks for."""
    if task.trouble is None:
        return _recapture_stage("policy_full", "policy `full` always recaptures")
    return _recapture_stage(task.trouble.code, task.trouble.message)


def _recapture_stage(code: str, reason: str) -> Stage:
    return Stage("recapture", code, reason)


def _recapture_results(
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
                changes=0,
                elapsed_ms=elapsed_ms,
                read_ms=captured.spark_ms,
                engine_ms=captured.engine_ms,
                commit_ms=captured.commit_ms,
            )
        )
    return results
