"""A workload opened by a program: one method for each thing to do with its queries.

Law: each call does what the command of the same name does, with the same records and errors.
Out of scope: opening (`api.opening`), how calls are run (`api.opened`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from impctl.api.opened import Opened
from impctl.api.settle import warned
from impctl.api.surroundings import (
    answered_by_from,
    batch_rows_from,
    seconds_from,
    sketch_use_from,
    texts_from,
)
from impctl.service.context import Workbench
from impctl.service.results import (
    CaptureResult,
    ChangesResult,
    DueResult,
    ExplainResult,
    MaintainResult,
    Outcome,
    PlanResult,
    QueryFiles,
    QueryResult,
    RewriteResult,
    SimulateResult,
    StatusResult,
    VerifyResult,
    WhyResult,
    WithoutResult,
)
from impctl.service.settings import check_planned_look, due_request, simulate_request
from impctl.types import ParameterValue, QueryName, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Params = Mapping[str, ParameterValue]
"""Values for the named parameters of a query."""

At = int | Mapping[TableName, int]
"""A version of the query's table; of several tables a version for each."""

Duration = float | str
"""Seconds, or a text such as `10m`."""


class OpenWorkload(Opened):
    """What `impctl.open` gives; a context manager, or closed with `close`.

    Methods that take several queries take all of the workload without names, return one record per
    query (`maintain` and `verify`: per sketch), and raise QueriesFailedError after all have run;
    for one query they raise its own error. Every error is an `impctl.errors.ImpctlError`.
    """

    def capture(self, *queries: QueryName, dry_run: bool = False) -> tuple[CaptureResult, ...]:
        """Find and store the sketch of each query; a dry run says how and writes nothing."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.capture import capture

            return capture(desk, queries)

        return self._each(CaptureResult, use_case, queries, dry_run=dry_run)

    def rebalance(self, *queries: QueryName, dry_run: bool = False) -> tuple[CaptureResult, ...]:
        """Even out the ranges of stored sketches, as `impctl capture --rebalance` does."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.rebalance import rebalance

            return rebalance(desk, queries)

        return self._each(CaptureResult, use_case, queries, dry_run=dry_run)

    def maintain(
        self,
        *queries: QueryName,
        due: bool = False,
        point: str | None = None,
        interval: Duration | None = None,
        batch_rows: int | None = None,
        changes: str | Path | None = None,
        dry_run: bool = False,
    ) -> tuple[MaintainResult, ...]:
        """Bring each sketch up to the newest table versions, as far as its policy allows.

        State of up to `KEPT_BYTES` stays in memory for the next call, until `close`.

        `due`: only what is due before the next such call, in `interval` (1m); `point`: only the
        queries whose trigger has it. `changes`: a folder to write to, step by step, what came and
        went of kept answers.
        """
        size = batch_rows_from(batch_rows, os.environ)
        asked = due_request(due, point, seconds_from("interval", interval), queries)

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.maintain import maintain
            from impctl.service.schedule import maintain_due as by_trigger

            kept = self._kept_states()
            if asked.point is not None:
                return by_trigger.maintain_point(desk, asked.point, size, kept)
            if asked.due:
                return by_trigger.maintain_due(desk, queries, size, kept, look=asked.look)
            return maintain(desk, queries, batch_rows=size, kept=kept)

        def counted(desk: Workbench) -> int:
            from impctl.service.schedule.maintain_due import of_point

            return len(desk.queries(queries) if point is None else of_point(desk, point))

        folder = None if changes is None else Path(changes)
        return self._each(MaintainResult, use_case, counted, dry_run=dry_run, changes=folder)

    @overload
    def plan(
        self, *queries: QueryName, due: Literal[False] = False, strict: bool = False
    ) -> tuple[PlanResult, ...]: ...

    @overload
    def plan(
        self, *queries: QueryName, due: Literal[True], interval: Duration | None = None
    ) -> tuple[DueResult, ...]: ...

    def plan(
        self,
        *queries: QueryName,
        due: bool = False,
        interval: Duration | None = None,
        strict: bool = False,
    ) -> tuple[PlanResult, ...] | tuple[DueResult, ...]:
        """What `maintain` would do now, why, and what that may cost; writes nothing, no Spark.

        `due`: when each query is due next, by its trigger, and why; `interval` as for `maintain`.
        `strict`: a query that can have no sketch fails.
        """
        look = seconds_from("interval", interval)
        check_planned_look(due, look)
        if due:

            def due_case(desk: Workbench) -> Outcome:
                from impctl.service.schedule.maintain_due import plan_due

                return plan_due(desk, queries, look=look)

            return self._each(DueResult, due_case, queries)

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.plan import plan

            return plan(desk, queries, strict=strict)

        return self._each(PlanResult, use_case, queries)

    def simulate(
        self,
        *queries: QueryName,
        since: Duration | None = None,
        arrivals: str | Path | None = None,
        late: str | None = None,
        disk: str | Sequence[str] = (),
        trigger: str | Sequence[str] = (),
        interval: Duration | None = None,
        report: str | Path | None = None,
    ) -> SimulateResult:
        """What other budgets and triggers would have come to, by commits of the past.

        Those of the last `since`, or of a CSV file `arrivals`, their rows `late` as
        `p: 0.9, every: 60s` says. Each `disk` (`500MB`, `all`) by each
        `trigger` (`fresh_within: 10m`), looking every `interval` (5s). `report`: a page to write.
        Only reads, but for that; never starts Spark.
        """
        request = simulate_request(
            seconds_from("since", since),
            None if arrivals is None else Path(arrivals),
            texts_from("disk", disk),
            texts_from("trigger", trigger),
            seconds_from("interval", interval),
            None if report is None else Path(report),
            None if late is None else texts_from("late", (late,))[0],
        )

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.schedule.simulate import simulate

            result = simulate(desk, queries, request)
            # Where the page is, the caller knows.
            return replace(result, results=result.results[:1])

        return self._one(SimulateResult, use_case)

    def status(self, *queries: QueryName) -> tuple[StatusResult, ...]:
        """What is stored for each query and whether it is current; never starts Spark."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.status import status

            return status(desk, queries)

        return self._each(StatusResult, use_case, queries)

    def explain(self, *queries: QueryName) -> tuple[ExplainResult, ...]:
        """How each query is sketched and maintained, or why not; never starts Spark."""

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.explain import explain

            return explain(desk, queries)

        return self._each(ExplainResult, use_case, queries)

    def verify(self, *queries: QueryName, results: bool = False) -> tuple[VerifyResult, ...]:
        """Compare stored sketches with recapture; raises UnsoundSketchError where one lacks rows.

        With `results` each query is also run with and without its sketch.
        """

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.verify import verify

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
            from impctl.service.rewrite import rewrite

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
            from impctl.service.query import query as answered

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
            from impctl.service.changes import changes

            return changes(desk, query, since, whole=whole)

        return self._one(ChangesResult, use_case)

    def why(
        self,
        query: QueryName | None = None,
        *,
        row: Mapping[str, object],
        params: Params | None = None,
    ) -> WhyResult:
        """Rows of tables that derive a row of the answer together, a smallest set where proved.

        `row`: values of columns of the answer that tell it. UsageError where no row has them, or
        several have; QueryError for a query that is not traced.
        """

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.why import why

            return why(desk, query, params or {}, row)

        return self._one(WhyResult, use_case)

    def without(
        self, query: QueryName | None = None, *conditions: str, params: Params | None = None
    ) -> WithoutResult:
        """What would go of the answer, as Arrow, if rows were not there; no table is touched.

        Rows for which one of the conditions is true, written `TABLE: CONDITION`, or without the
        table where the query reads one.
        """

        def use_case(desk: Workbench) -> Outcome:
            from impctl.service.why import why

            return why(desk, query, params or {}, without=conditions)

        return self._one(WithoutResult, use_case)

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
        from impctl.service.rewrite import Framed, dataframe

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
        from impctl.service.rewrite import Listed, files

        use = sketch_use_from(sketch, {})

        def listing(desk: Workbench) -> Listed:
            return files(desk, query, params or {}, sql, at, use, required=require_sketch)

        listed = self._run(listing)
        warned(listed.warnings, depth=3)
        return listed.files
