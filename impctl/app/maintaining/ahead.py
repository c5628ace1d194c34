"""A kept answer carried on in memory alone: what `maintain` would make of it, without a commit.

Law: the store stays as it is. A step is the very one that `maintain` makes; what it could only do
with Spark's help, or by a recapture, is not done here but said (`NotCarriedError`).
Out of scope: answers computed otherwise (`app.using.changed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from impctl.app.capturing.moments import moved_moments, stored_moments
from impctl.app.capturing.partners.readers import partners_of
from impctl.app.capturing.pins import check_not_replaced_meanwhile, check_pins
from impctl.app.maintaining.answer_changes import NO_ROWS, RowsOf, changes_between
from impctl.app.maintaining.change_files import Lead
from impctl.app.maintaining.changes import SharedChanges
from impctl.app.maintaining.decide import NOT_INCREMENTALLY
from impctl.app.maintaining.moved import moved_at_once
from impctl.app.maintaining.stage import ReadChange
from impctl.app.maintaining.step import Maintainer
from impctl.app.maintaining.task import Task, needs_of, open_task
from impctl.app.maintaining.told_answer import ToldAnswer
from impctl.app.preparing.expiry import next_expiry
from impctl.app.workbench.workbench import Workbench
from impctl.engine.result_rows import AnswerRows
from impctl.errors import ImpctlError
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.types import TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Moving:
    """What came and went between versions of the tables; `moments` are the clock's values then."""

    since: Mapping[TableName, TableVersion]
    versions: Mapping[TableName, TableVersion]
    moments: Mapping[str, str]
    changes: pa.Table


class NotCarriedError(ImpctlError):
    """The state cannot be carried on without a recapture or Spark; never leaves the application."""


class AnswerAhead:
    """One query's state with its kept answer, ahead of the store by what was asked so far."""

    def __init__(
        self, desk: Workbench, store: StoreReader, spec: QuerySpec, stored: StoredQuery
    ) -> None:
        """Takes the state up; NotCarriedError where it cannot be."""
        task = open_task(desk, store, spec, stored)
        if task.taken is None:
            assert task.trouble is not None
            raise NotCarriedError(task.trouble.message)
        if task.taken.way.answer is None:
            raise NotCarriedError(task.taken.way.no_answer or task.taken.way.reason)
        if task.taken.way.compiled is not None and task.taken.way.compiled.asks_spark:
            raise NotCarriedError("Spark reads a side of a join")
        self._task: Task = task
        self._taken = task.taken
        self._has_begun = False
        self._told: ToldAnswer | None = None

    @property
    def stored(self) -> StoredQuery:
        """What the answer stands for by now."""
        return self._taken.stored

    def on(self, desk: Workbench) -> Moving:
        """What came and went up to the versions pinned; NotCarriedError where nothing tells."""
        assert self._taken.way.answer is not None
        task, before = self._task, self._taken.versions
        if self._has_begun:
            check_pins(self.stored, desk.tables)
            task = Task(task.spec, self.stored, self._taken)
        self._has_begun = True
        if task.move is None and moved_moments(desk, self.stored):
            raise NotCarriedError("a time-dependent constant changed")
        collected = _Collected()
        answer = None if task.move is None else task.move.answer
        self._told = ToldAnswer(collected, desk.session_zone, self._taken.way, answer, [])
        try:
            self._step(desk, task, self._told)
        except NOT_INCREMENTALLY as trouble:
            raise NotCarriedError(trouble.message) from trouble
        changes = collected.changes
        if changes is None:
            nothing = RowsOf(self._taken.way.answer.ending, NO_ROWS, self._kept.bounded)
            changes = changes_between(nothing, nothing, desk.session_zone)
        return Moving(before, self._taken.versions, stored_moments(self.stored), changes)

    def rows_before(self) -> RowsOf:
        """What the answer was made of before a step that could not be made."""
        way = self._taken.way
        assert way.answer is not None
        noted = None if self._told is None else self._told.noted
        rows = self._kept.whole() if noted is None else noted.rows_before()
        return RowsOf(way.answer.ending, rows, self._kept.bounded)

    @property
    def _kept(self) -> AnswerRows:
        compiled = self._taken.way.compiled
        assert compiled is not None
        assert compiled.kept is not None
        return compiled.kept

    def _step(self, desk: Workbench, task: Task, told: ToldAnswer) -> None:
        """The step of `maintain`, if there is anything to step with."""
        needs = needs_of(desk.tables, task)
        if not needs and task.move is None:
            return
        shared = SharedChanges(desk.tables, desk.reporter)
        shared.announce(needs)
        read = [ReadChange(need, *shared.read(need)) for need in needs]
        check_not_replaced_meanwhile(self.stored, desk.tables)
        partners = partners_of(desk, self._taken.way, self._taken.stored.partitions)
        maintainer = Maintainer(
            None,
            self._taken,
            partners,
            move=task.move,
            told=told,
            next_expiry=partial(next_expiry, desk),
        )
        moved = moved_at_once(desk.tables, read)
        maintainer.step(moved, read_ms=0.0, reason_code="incremental", reason="")


class _Collected:
    """The changes of a step, held."""

    def __init__(self) -> None:
        self.changes: pa.Table | None = None

    def write(self, lead: Lead, changes: pa.Table) -> None:
        self.changes = changes
