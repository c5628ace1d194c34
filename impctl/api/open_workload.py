"""A workload opened by a program: one method for each thing to do with its queries.

Law: each call is a run of its own: it reads the workload file, pins the newest version of every
table it needs, and closes what it opened, so an object that lives for days never answers from old
versions; what stays in memory is held against file, tables and store before it is used. Calls of
several threads on one object run one after another.
Out of scope: opening (`api.opening`), how failures are raised (`api.settle`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from impctl.aliases import ParameterValue, QueryName, TableName
from impctl.api.settle import settled, warned
from impctl.api.surroundings import answered_by_from, batch_rows_from, sketch_use_from
from impctl.app.results.changed import ChangesResult
from impctl.app.results.explanations import ExplainResult
from impctl.app.results.listed_files import QueryFiles
from impctl.app.results.results import (
    CaptureResult,
    MaintainResult,
    Outcome,
    QueryResult,
    RewriteResult,
    StatusResult,
    VerifyResult,
)
from impctl.app.workbench.memory import Memory
from impctl.app.workbench.open_tables import OpenTables
from impctl.app.workbench.sessions import SessionBeside
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.told_answers import ToldAnswers
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from impctl.app.maintaining.kept_states import KeptStates

KEPT_BYTES = 256 << 20
"""State that stays in memory from one `maintain` to the next; larger state is loaded each time."""

R = TypeVar("R")
T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Told what begins now: a short line, and which step of how many (0, 0 where that is not known)."""

Params = Mapping[str, ParameterValue]
"""Values for the named parameters of a query."""

At = int | Mapping[TableName, int]
"""A version of the query's table; of several tables a version for each."""


class _Told:
    """A reporter that passes on what it is told."""

    spark_log = "off"

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def step(self, message: str, done: int = 0, total: int = 0) -> None:
        if self._progress is not None:
            self._progress(message, done, total)


class OpenWorkload:
    """What `impctl.open` gives; a context manager, or closed with `close`.

    Methods that take several queries take all of the workload without names, return one record per
    query (`maintain` and `verify`: per sketch), and raise QueriesFailedError after all have run;
    for one query they raise its own error. Every error is an `impctl.errors.ImpctlError`.
    """

    def __init__(
        self, settings: Settings, sessions: SessionBeside, progress: Progress | None
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._reporter = _Told(progress)
        self._memory = Memory()
        self._answers = ToldAnswers()
        self._tables = OpenTables()
        self._states: KeptStates | None = None
        self._lock = threading.RLock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<impctl workload {self._settings.workload}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def file(self) -> Path:
        """The workload file."""
        return self._settings.workload

    @property
    def queries(self) -> tuple[QueryName, ...]:
        """Names of the queries that the file has now."""
        return self._run(lambda desk: tuple(desk.workload.queries))

    def close(self) -> None:
        """End the use of this object; Spark goes on running, whoever started it."""
        with self._lock:
            self._is_closed = True
            self._states = None
            self._answers.write()

    def capture(self, *queries: QueryName, dry_run: bool = False) -> tuple[CaptureResult, ...]:
        """Find and store the sketch of each query; a dry run says how and writes nothing."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.capture import capture

            return capture(desk, queries)

        return self._each(CaptureResult, use_case, queries, dry_run=dry_run)

    def rebalance(self, *queries: QueryName, dry_run: bool = False) -> tuple[CaptureResult, ...]:
        """Even out the ranges of stored sketches, as `impctl capture --rebalance` does."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.rebalance import rebalance

            return rebalance(desk, queries)

        return self._each(CaptureResult, use_case, queries, dry_run=dry_run)

    def maintain(
        self,
        *queries: QueryName,
        batch_rows: int | None = None,
        changes: str | Path | None = None,
        dry_run: bool = False,
    ) -> tuple[MaintainResult, ...]:
        """Bring each sketch up to the newest table versions, as far as its policy allows.

        State of up to `KEPT_BYTES` stays in memory for the next call, until `close`.

        `changes`: a folder to write to, step by step, what came and went of kept answers.
        """
        size = batch_rows_from(batch_rows, os.environ)

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.maintain import maintain

            return maintain(desk, queries, batch_rows=size, kept=self._kept_states())

        folder = None if changes is None else Path(changes)
        return self._each(MaintainResult, use_case, queries, dry_run=dry_run, changes=folder)

    def status(self, *queries: QueryName) -> tuple[StatusResult, ...]:
        """What is stored for each query and whether it is current; never starts Spark."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.status import status

            return status(desk, queries)

        return self._each(StatusResult, use_case, queries)

    def explain(self, *queries: QueryName) -> tuple[ExplainResult, ...]:
        """How each query is sketched and maintained, or why not; never starts Spark."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.explain import explain

            return explain(desk, queries)

        return self._each(ExplainResult, use_case, queries)

    def verify(self, *queries: QueryName, results: bool = False) -> tuple[VerifyResult, ...]:
        """Compare stored sketches with recapture; raises UnsoundSketchError where one lacks rows.

        With `results` each query is also run with and without its sketch.
        """

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.verify import verify

            return verify(desk, queries, results=results)

        return self._each(VerifyResult, use_case, queries)

    def rewrite(
        self,
        query: QueryName | None = None,
        *,
        params: Params | None = None,
        sql: str | None = None,
        at: At | None = None,
        files: Path | None = None,
        sketch: Literal["auto", "always", "never"] = "always",
        require_sketch: bool = False,
    ) -> RewriteResult:
        """The query's SQL with its sketch as range predicates, the sketch maintained first.

        `params` gives other values, `sql` another query; either may use another query's sketch.
        `at` asks for the sketch stored for older versions: then nothing is maintained. `files`:
        where to write the data files that the text reads, by table, for readers without Delta.
        `sketch`: `auto` leaves it away where it costs more than it saves, `never` always.
        Without a sketch for now it is the query itself, with a warning; `require_sketch`: an error.
        """

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.rewrite import rewrite

            use = sketch_use_from(sketch, {})
            return rewrite(desk, query, params or {}, sql, at, files, use, required=require_sketch)

        return self._one(RewriteResult, use_case)

    def query(
        self,
        query: QueryName | None = None,
        *,
        params: Params | None = None,
        sql: str | None = None,
        at: At | None = None,
        sketch: Literal["auto", "always", "never"] | None = None,
        require_sketch: bool = False,
        by: Literal["auto", "state", "engine", "spark"] | None = None,
        where: str | None = None,
    ) -> QueryResult:
        """The answer of a query as Arrow; arguments as for `rewrite`.

        `sketch`: `always` through it, `never`, or `auto`, where it saves more than it costs. `by`:
        from kept rows, by the engine, on Spark, or the quickest of those that can. `where`: the
        rows of the answer for which this condition on its columns is true.
        """
        use, who = sketch_use_from(sketch, os.environ), answered_by_from(by, os.environ)

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.query import query as answered

            given = params or {}
            return answered(
                desk, query, given, sql, at, use, who, required=require_sketch, where=where
            )

        return self._one(QueryResult, use_case)

    def changes(
        self, query: QueryName | None = None, *, since: At | None = None, whole: bool = False
    ) -> ChangesResult:
        """What came and went of a kept answer since the store's versions, or others, as Arrow.

        Only reads; never starts Spark. `whole`: the answer as it is kept, each row an insert.
        """

        def use_case(desk: Workbench) -> Outcome:
            from impctl.app.changes import changes

            return changes(desk, query, since, whole=whole)

        return self._one(ChangesResult, use_case)

    def dataframe(
        self,
        query: QueryName | None = None,
        *,
        params: Params | None = None,
        sql: str | None = None,
        at: At | None = None,
        sketch: Literal["auto", "always", "never"] | None = None,
        require_sketch: bool = False,
    ) -> DataFrame:
        """The query as a DataFrame that reads through the sketch; arguments as for `query`.

        It stands for the versions pinned by this call and belongs to impctl's session beside
        yours (`frame.sparkSession`), in which names mean what the workload says.
        """
        from impctl.app.dataframe import Framed, dataframe

        use = sketch_use_from(sketch, os.environ)

        def framing(desk: Workbench) -> Framed:
            return dataframe(desk, query, params or {}, sql, at, use, required=require_sketch)

        framed = self._run(framing)
        # The caller's line is above this function.
        warned(framed.warnings, depth=3)
        return framed.frame

    def files(
        self,
        query: QueryName | None = None,
        *,
        params: Params | None = None,
        sql: str | None = None,
        at: At | None = None,
        sketch: Literal["auto", "always", "never"] = "always",
        require_sketch: bool = False,
    ) -> QueryFiles:
        """What an engine that reads Parquet itself has to read; arguments as for `rewrite`.

        Per table the data files that are left, their deleted rows and partition values, and a
        predicate that the rows must meet.
        """
        from impctl.app.files import Listed, files

        use = sketch_use_from(sketch, {})

        def listing(desk: Workbench) -> Listed:
            return files(desk, query, params or {}, sql, at, use, required=require_sketch)

        listed = self._run(listing)
        warned(listed.warnings, depth=3)
        return listed.files

    def _kept_states(self) -> KeptStates:
        """State of the calls before; the engine is loaded when it is first needed."""
        from impctl.app.maintaining.kept_states import KeptStates

        if self._states is None:
            self._states = KeptStates(KEPT_BYTES)
        return self._states

    def _each(
        self,
        kind: type[R],
        use_case: Callable[[Workbench], Outcome],
        queries: tuple[QueryName, ...],
        *,
        dry_run: bool = False,
        changes: Path | None = None,
    ) -> tuple[R, ...]:
        def work(desk: Workbench) -> tuple[Outcome, int]:
            return use_case(desk), len(desk.queries(queries))

        outcome, asked = self._run(work, dry_run=dry_run, changes=changes)
        return settled(outcome, kind, asked)

    def _one(self, kind: type[R], use_case: Callable[[Workbench], Outcome]) -> R:
        (result,) = settled(self._run(use_case), kind, 1)
        return result

    def _run(
        self,
        work: Callable[[Workbench], T],
        *,
        dry_run: bool = False,
        changes: Path | None = None,
    ) -> T:
        """One run on the workload as it is now, and on the tables as they are now."""
        settings = replace(self._settings, dry_run=dry_run, changes=changes)
        with self._lock, self._sessions.visit():
            if self._is_closed:
                raise UsageError(
                    f"Workload {self.file} was closed",
                    hint="open it again with `impctl.open`",
                    code="workload_closed",
                )
            run = open_workbench(
                settings, self._reporter, self._sessions, self._memory, self._answers
            )
            with run as desk:
                self._tables.lend(desk)
                found = work(desk)
                self._tables.take_back(desk)
                return found
