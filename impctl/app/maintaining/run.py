"""Stale sketches brought up to date: each stage that was decided is carried out.

Law: what is done is what `app.maintaining.decide` says, and nothing is written before it has; a
step that stops for a reason which the policy lets pass becomes a recapture. Steps of several
queries are committed together, so that the disk is waited for once; each of them is whole or not
there, and a result is told only of what was committed.
Out of scope: deciding (`app.maintaining.decide`), one step of one query (`app.maintaining.step`),
telling of it (`app.maintaining.entries`), finding a sketch (`app.capture`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from impctl.app.capturing.captured import capture_query, without_provenance
from impctl.app.capturing.moments import moved_moments, stored_moments
from impctl.app.capturing.partners.readers import partners_of
from impctl.app.capturing.pins import check_not_replaced_meanwhile, is_current
from impctl.app.capturing.taken_up import TakenUp
from impctl.app.maintaining.change_files import change_files, lead_of
from impctl.app.maintaining.changes import Need, by_version
from impctl.app.maintaining.decide import NOT_INCREMENTALLY, Decisions, Stale
from impctl.app.maintaining.entries import (
    file_diff_warning,
    recapture_results,
    step_results,
    with_files,
    with_ranges,
    with_sync,
)
from impctl.app.maintaining.grouped_change import grouped_change
from impctl.app.maintaining.kept_states import KeptStates
from impctl.app.maintaining.moved import Moved, moved_at_once, moved_to
from impctl.app.maintaining.stage import ReadChange, Stage
from impctl.app.maintaining.step import Maintainer
from impctl.app.maintaining.task import Task
from impctl.app.maintaining.told_answer import ToldAnswer, ToldRecapture, rows_kept
from impctl.app.preparing.expiry import next_expiry
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.results.results import Failure, MaintainResult
from impctl.app.results.subject import named_before
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.stopwatch import Stopwatch
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.tables.changes import no_changes
from impctl.types import QueryName, TableName

_TOGETHER_MS = 1_000.0
"""Work that a killed process may have to do again: how long steps wait for their commit."""


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
        self.decisions = Decisions(desk, store, failures, kept)
        self._files = change_files(desk)
        self._written: dict[QueryName, list[str]] = {}
        """The files of changes, by query."""
        self._start_told = 0.0
        self._tasks = 0
        self._unreplaced: set[object] = set()
        """What was held against the tables since a change was read last."""

    def results(self, stale: Stale) -> list[MaintainResult]:
        """Maintain or recapture each; a query that fails adds its failure instead."""
        results: list[MaintainResult] = []
        waiting = deque(self.decisions.opened(stale))
        self._tasks = len(waiting)
        while waiting:
            results += self._some(waiting)
        return results

    def results_of_clock(self, stale: Stale) -> list[MaintainResult]:
        """Move on with the clock what stands at the pinned versions and still stands for another
        time: an eager query passes the versions first."""
        late = []
        for spec, before in stale:
            if not stored_moments(before):
                continue
            stored = self.store.load(spec.name)
            is_passed = stored is not None and is_current(stored, self.desk.tables)
            if stored is not None and is_passed and moved_moments(self.desk, stored):
                late.append((spec, stored))
        return self.results(late) if late else []

    def _some(self, waiting: deque[Task]) -> list[MaintainResult]:
        """As many of the tasks as get their steps into one commit, and then the recaptures among
        them, which take too long for others to wait for."""
        stepped: list[tuple[Task, list[MaintainResult]]] = []
        again: list[tuple[Task, Stage]] = []
        sync_ms = 0.0
        try:
            with self._together(len(waiting)):
                watch = Stopwatch()
                is_time = True
                while waiting and is_time:
                    task = waiting.popleft()
                    number = self._tasks - len(waiting)
                    self.desk.reporter.step(f"maintaining {task.spec.name}", number, self._tasks)
                    with Isolated(self.failures, task.spec):
                        done = self._stepped(task)
                        if isinstance(done, Stage):
                            again.append((task, done))
                        else:
                            stepped.append((task, done))
                    is_time = watch.ms < _TOGETHER_MS
                watch = Stopwatch()
            sync_ms = watch.ms
        except ImpctlError as error:
            self.failures += [Failure(task.spec.name, error) for task, _ in stepped]
            stepped = []
        results: list[MaintainResult] = []
        for task, result in stepped:
            results += with_sync(result, sync_ms / len(stepped))
            if self.kept is not None and task.taken is not None:
                self.kept.keep(self.desk, task.taken)
        for task, stage in again:
            with Isolated(self.failures, task.spec):
                results += self._recaptured(task, stage)
        return results

    def _together(self, tasks: int) -> AbstractContextManager[None]:
        """What makes the steps of several tasks one commit; one alone has its own per step."""
        return self.store.together() if tasks > 1 else nullcontext()

    def _spark_start(self) -> float:
        """Milliseconds that Spark took to start since this was last asked."""
        before, self._start_told = self._start_told, self.desk.spark_start_ms
        return self._start_told - before

    def _stepped(self, task: Task) -> list[MaintainResult] | Stage:
        """The results of the task's steps; or the recapture that is needed."""
        stage = self.decisions.stage(task)
        if stage.is_recapture:
            return stage
        try:
            return self._advance(task, stage)
        except NOT_INCREMENTALLY as trouble:
            return self.decisions.instead(task, trouble)

    def _advance(self, task: Task, stage: Stage) -> list[MaintainResult]:
        """Exact or touch, in one step or one per batch of versions."""
        taken = task.taken
        assert taken is not None
        since = dict(taken.versions)
        self._spark_start()
        if stage.is_grouped:
            watch = Stopwatch()
            pieces = [self._grouped(taken, stage.needs[0])]
            read_ms = watch.ms
        else:
            pieces, read_ms = self._pieces(task, stage.read), stage.read_ms
        size = self.decisions.size(stage.needs) if len(pieces) == 1 else None
        for result in stage.read:
            if result.changes.method == "file_diff":
                self._warn(file_diff_warning(self.desk.tables.snapshot(result.need.table)))
        self._check_not_replaced(task, stage)
        partners = partners_of(self.desk, taken.way, taken.stored.partitions)
        told = self._told(task, taken)
        maintainer = Maintainer(
            self.store,
            taken,
            partners,
            self._spark_start,
            task.move,
            told,
            partial(next_expiry, self.desk),
        )
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
        return self._with_files(with_ranges(self.desk, taken.stored, results))

    def _check_not_replaced(self, task: Task, stage: Stage) -> None:
        """That no table was replaced while its change was read; asked once after each reading."""
        pins = tuple((pin.table, pin.table_id, pin.version) for pin in task.stored.pins)
        meta = task.stored.state_meta
        held = (pins, repr(meta.get("marks")), repr(meta.get("files")))
        if stage.is_grouped or any(result.elapsed_ms for result in stage.read):
            self._unreplaced.clear()
        if held not in self._unreplaced:
            check_not_replaced_meanwhile(task.stored, self.desk.tables)
            self._unreplaced.add(held)

    def _is_told(self, task: Task) -> bool:
        """Whether there are changes of the query's answer to write; warns where they begin anew."""
        if task.spec.answer and not task.stored.state_meta.get("answer"):
            never = "" if task.taken is None else task.taken.way.no_answer
            self._warn(
                f"the result of query `{task.spec.name}` "
                + (
                    f"cannot be materialized ({never})"
                    if never
                    else "was not materialized before this run"
                )
                + ", so no file with its changes was written"
            )
            return False
        return task.spec.answer

    def _with_files(self, results: list[MaintainResult]) -> list[MaintainResult]:
        """One query's results with the files of all its steps."""
        return with_files(results, self._written.get(results[0].query, ())) if results else []

    def _told(self, task: Task, taken: TakenUp) -> ToldAnswer | None:
        """What writes the changes of the answer, where they are asked for."""
        if self._files is None or not self._is_told(task):
            return None
        before = None if task.move is None else task.move.answer
        written = self._written.setdefault(task.spec.name, [])
        return ToldAnswer(self._files, self.desk.session_zone, taken.way, before, written)

    def _grouped(self, taken: TakenUp, need: Need) -> dict[TableName, Moved]:
        """The one move of a change that Spark groups first."""
        assert taken.way.compiled is not None
        grouped = grouped_change(
            self.desk,
            taken.way.compiled,
            taken.stored.partitions,
            need,
            taken.stored.assumptions,
        )
        nothing = no_changes(self.desk.tables.snapshot(need.table, need.until), need.columns)
        return {
            need.table: replace(
                moved_to(self.desk.tables, need.table, nothing, need.until), grouped=grouped
            )
        }

    def _pieces(self, task: Task, read: Sequence[ReadChange]) -> list[dict[TableName, Moved]]:
        """What each step moves: all tables at once, or eagerly one batch of one table at a time."""
        if not task.is_eager or task.move is not None:
            return [moved_at_once(self.desk.tables, read)]
        tables = self.desk.tables
        return [
            {f.need.table: moved_to(tables, f.need.table, piece.changes, piece.version)}
            for f in read
            for piece in by_version(f.changes, f.need.until, self.batch_rows)
        ]

    def _warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _recaptured(self, task: Task, stage: Stage) -> list[MaintainResult]:
        trouble, reason = task.trouble, stage.reason
        self.desk.reporter.step(f"recapturing {task.spec.name}: {reason}")
        watch, prepared = Stopwatch(), prepare(self.desk, task.spec)
        told = self._recapture_told(task, prepared)
        captured = capture_query(
            self.desk,
            self.store,
            prepared,
            code=stage.reason_code,
            reason=reason,
            tell=None if told is None else told.tell,
        )
        stored = self.store.load(task.spec.name)
        assert stored is not None
        lost = _lost(task.stored, stored)
        if lost or (trouble is not None and trouble.code != "not_incremental"):
            name = task.spec.name
            why = named_before(name, reason)
            self.warnings.append(f"query `{name}` was recaptured: {why}{lost}")
        if captured.no_provenance:
            self._warn(without_provenance(task.spec.name, captured.no_provenance))
        results = recapture_results(task.stored, captured, stage, watch.ms)
        return self._with_files(with_ranges(self.desk, stored, results))

    def _recapture_told(self, task: Task, prepared: PreparedQuery) -> ToldRecapture | None:
        """The same for an answer that is captured anew; an error where it was not kept before."""
        if self._files is None or not self._is_told(task):
            return None
        # Steps before the one that could not be made are committed.
        stored = self.store.load(task.spec.name)
        assert stored is not None
        before = rows_kept(self.desk, self.store, task.spec, stored)
        versions = self.desk.tables.versions_of(prepared.tables)
        lead = lead_of(stored, versions, prepared.moments)
        written = self._written.setdefault(task.spec.name, [])
        return ToldRecapture(self._files, self.desk.session_zone, before, lead, written)


def _lost(before: StoredQuery, after: StoredQuery) -> str:
    """Which sketches a recapture did not make again; empty for none."""
    left = {(one.table, one.attribute) for one in after.sketches}
    gone = [one for one in before.sketches if (one.table, one.attribute) not in left]
    if not gone:
        return ""
    names = dict.fromkeys(f"`{one.table}.{one.attribute}`" for one in gone)
    return f"; it no longer has a sketch on {' and '.join(names)}"
