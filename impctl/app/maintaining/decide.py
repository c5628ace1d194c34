"""What is done with each stale query, decided in one place as a stage.

Law: deciding reads the store, by its reading half alone, and the tables' logs and changes; a run
carries out what a dry run and `plan` show, because both ask here. Tasks are opened first, so that
each table's change is read once for all of them. What a policy forbids is refused before anything
is written; a recapture says why it was chosen.
Out of scope: carrying it out (`app.maintaining.run`), telling it (`app.maintaining.entries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from impctl.app.capturing.stage import capture_stage
from impctl.app.capturing.taken_up import TakenUp
from impctl.app.maintaining.changes import Need, SharedChanges
from impctl.app.maintaining.estimates import Size, dearer, reason_text, recorded
from impctl.app.maintaining.grouped_change import is_large
from impctl.app.maintaining.kept_states import KeptStates
from impctl.app.maintaining.move import Move
from impctl.app.maintaining.stage import (
    CLOCK_MOVED,
    EXPIRED,
    GROUPED_BY_SPARK,
    RECAPTURE_CHEAPER,
    ReadChange,
    Stage,
    recapture_stage,
)
from impctl.app.maintaining.task import Task, needs_of, open_task
from impctl.app.preparing.facts import recheck
from impctl.app.preparing.prepared import prepare
from impctl.app.results.foreseen import ENGINE, SPARK
from impctl.app.results.results import Failure
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    PolicyRefusedError,
    RecaptureNeededError,
    TableError,
)
from impctl.sketch.sketch import Mode
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.workload.models import Policy, QuerySpec

Stale = Sequence[tuple[QuerySpec, StoredQuery]]
NOT_INCREMENTALLY = (RecaptureNeededError, EvaluationError, TableError)
"""What stops maintaining; of the last two only `auto` makes a recapture: a row on which the query
fails may be gone by now, and Spark may read what impctl cannot."""


class Decisions:
    """The decisions of one run; what fails goes to the caller's list."""

    def __init__(
        self,
        desk: Workbench,
        store: StoreReader,
        failures: list[Failure],
        kept: KeptStates | None = None,
    ) -> None:
        self.desk = desk
        self.store = store
        self.failures = failures
        self.kept = kept
        self.shared = SharedChanges(desk.tables, desk.reporter)

    def opened(self, stale: Stale) -> list[Task]:
        """The tasks, their changes announced; a query that fails adds its failure instead."""
        tasks: list[Task] = []
        for spec, stored in stale:
            with Isolated(self.failures, spec):
                task = open_task(self.desk, self.store, spec, stored, self.kept)
                self.shared.announce(needs_of(self.desk.tables, task))
                tasks.append(task)
        return tasks

    def stages(self, stale: Stale) -> list[tuple[Task, Stage]]:
        """What would be done with each; a query that fails adds its failure instead."""
        result: list[tuple[Task, Stage]] = []
        for task in self.opened(stale):
            with Isolated(self.failures, task.spec):
                stage = self.stage(task, is_checked=True)
                if stage.is_recapture:
                    capture = capture_stage(self.desk, prepare(self.desk, task.spec))
                    stage = replace(stage, by=capture.by(self.desk))
                result.append((task, stage))
        return result

    def stage(self, task: Task, *, is_checked: bool = False) -> Stage:
        """What to do now, its change read; with `is_checked` also looked at as a run would."""
        policy = self.desk.policy(task.spec)
        _refuse(task, policy)
        if task.trouble is None and policy is not Policy.FULL:
            try:
                return self._incremental(task, policy, is_checked)
            except NOT_INCREMENTALLY as trouble:
                return self.instead(task, trouble)
        return _recapture(task)

    def instead(self, task: Task, trouble: ImpctlError) -> Stage:
        """The recapture, noted in the task, that what stops maintaining leads to.

        Raises where the policy does not allow to recapture.
        """
        policy = self.desk.policy(task.spec)
        if not isinstance(trouble, RecaptureNeededError) and policy is not Policy.AUTO:
            raise trouble
        task.trouble = trouble
        _refuse(task, policy)
        return _recapture(task)

    def size(self, needs: Sequence[Need]) -> Size | None:
        """How large these changes are together, by the log; None where it cannot be read."""
        result = [self.shared.size(need.span) for need in needs]
        sizes = [size for size in result if size is not None]
        if len(sizes) < len(result):
            return None
        rows = [size.rows for size in sizes if size.rows is not None]
        counted = sum(rows) if len(rows) == len(sizes) else None
        return Size(counted, sum(size.bytes for size in sizes))

    def _incremental(self, task: Task, policy: Policy, is_checked: bool) -> Stage:
        """Exact or touch; or recapture where that is cheaper and the policy leaves the choice."""
        assert task.taken is not None
        needs = tuple(needs_of(self.desk.tables, task))
        stage = self._carried(task.taken, needs, task.move)
        cheaper = self._cheaper(task, stage) if policy is Policy.AUTO else None
        if cheaper is not None:
            return cheaper
        if stage.is_grouped:
            return stage
        read = tuple(ReadChange(need, *self.shared.read(need)) for need in needs)
        if is_checked and task.stored.assumptions:
            for result in read:
                ending = self.desk.tables.snapshot(result.need.table)
                changes = result.changes
                recheck(task.stored.assumptions, ending, changes.table, changes.weights)
        return replace(stage, read=read)

    def _carried(self, taken: TakenUp, needs: tuple[Need, ...], move: Move | None) -> Stage:
        """Who carries these changes, and the move with the clock, into the state, and why so."""
        way = taken.way
        code = "incremental" if way.mode is Mode.EXACT else "touch_keyed"
        stage = Stage(str(way.mode), code, way.reason, ENGINE, needs)
        if move is not None and move.is_of_expiry:
            # With new versions it is their change that is carried, at another instant.
            stage = stage if needs else replace(stage, reason_code=EXPIRED, reason=move.reason)
        elif move is not None:
            stage = replace(stage, reason_code=CLOCK_MOVED, reason=f"{move.reason}; {way.reason}")
        elif is_large(self.shared, self.desk.settings, way.compiled, needs):
            reason = "a large change, grouped by Spark first"
            return replace(stage, reason_code=GROUPED_BY_SPARK, reason=reason, by=SPARK)
        if way.compiled is not None and way.compiled.asks_spark:
            return replace(stage, by=f"{ENGINE} and {SPARK}")
        return stage

    def _cheaper(self, task: Task, stage: Stage) -> Stage | None:
        """A recapture where maintaining is estimated to be clearly dearer.

        An eager query wants a sketch for every version, which no recapture gives.
        """
        if task.is_eager:
            return None
        result = dearer(
            recorded(self.store, task.stored),
            stage.cost_kind,
            lambda: self.size(stage.needs),
            has_spark=self.desk.has_spark,
            table_rows=lambda: self.desk.tables.rows_of(tuple(task.stored.versions)),
            moved=[need.table for need in stage.needs],
        )
        return None if result is None else recapture_stage(RECAPTURE_CHEAPER, reason_text(result))


def _refuse(task: Task, policy: Policy) -> None:
    """Raise what the policy forbids; returns where it allows to go on."""
    trouble = task.trouble
    if policy is Policy.INCREMENTAL and trouble is not None:
        raise trouble
    if policy is not Policy.STRICT:
        return
    reason = trouble.message if trouble is not None else None
    if reason is None and task.taken is not None and task.taken.way.mode is Mode.TOUCH:
        reason = task.taken.way.reason
    if reason is not None:
        raise PolicyRefusedError(
            f"Policy `strict` allows exact maintenance only: {reason}",
            # What only a recapture mends, `incremental` does not do either.
            hint="set the query's policy to `auto`"
            + (" or `incremental`" if trouble is None else "")
            + ", or capture it again",
            location=None if trouble is None else trouble.location,
        )


def _recapture(task: Task) -> Stage:
    """The recapture that trouble or policy `full` asks for."""
    if task.trouble is None:
        return recapture_stage("policy_full", "policy `full` always recaptures")
    return recapture_stage(task.trouble.code, task.trouble.message)
