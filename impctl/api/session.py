"""An open workload for programs: a method for each command, with its results and errors.

Law: each call is a run: it reads the workload file, pins the newest version of every table it
needs, and closes what it opened, so a long-lived object never answers from old versions. State in
memory is checked against file, tables and store before use. Calls of several threads on one object
are serialized.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from msgspec.structs import replace

from impctl.errors import ImpctlError, ImpctlWarning, QueriesFailedError, UsageError
from impctl.service.context import (
    AnswerCounter,
    Context,
    Memory,
    OpenTables,
    SessionBeside,
    SilentReporter,
    open_context,
)
from impctl.service.memory_limit import memory_from
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
    for_report,
    most_severe,
)
from impctl.service.settings import (
    NOW,
    PREFIX,
    SHARED_STORE,
    AnsweredBy,
    Policy,
    QueryRequest,
    Settings,
    SimulateRequest,
    SketchPolicy,
    check_planned_look,
    check_scheduled,
    disk_from,
    is_shared_store,
    seconds_in,
    store_folder,
)
from impctl.types import ParameterValue, QueryName, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from impctl.service.state_cache import StateCache


# Settings of a call: its arguments, then the `IMPCTL_*` variables. Law: variables mean the same as
# on the command line; an argument wins, and paths are made absolute at once, so that a later change
# of directory changes nothing.

T = TypeVar("T")


def settings_from(
    workload: str | os.PathLike[str], environ: Mapping[str, str], **arguments: object
) -> Settings:
    """Read the settings of every call; UsageError names a wrong argument or variable.

    An argument that is None is left to its variable, the workload file or the default.
    """

    readers: Mapping[str, Callable[[str], Any]] = {
        "store": lambda text: store_folder(text).absolute(),
        "policy": Policy,
        "lock_timeout": _at_least(0.0, float),
        "spark_profile": lambda text: Path(text).absolute(),
        "imbalance": _at_least(1.0, float),
        "large_change": _at_least(0, int),
        "scrub": _at_least(0, int),
        "memory": memory_from,
        "disk": disk_from,
    }
    picked = {
        name: _picked(name, arguments.get(name), environ, read) for name, read in readers.items()
    }
    return Settings(
        Path(workload).absolute(),
        shared_store=is_shared_store(environ.get(SHARED_STORE)),
        now=environ.get(NOW) or None,
        **{name: value for name, value in picked.items() if value is not None},
    )


def request_from(
    query: QueryName | None,
    params: Params | None,
    sql: str | None,
    at: At | None,
    sketch: str | None,
    required: bool,
    environ: Mapping[str, str],
) -> QueryRequest:
    """Read the arguments of a query; `sketch` says when to use the sketch."""
    use = _picked("sketch", sketch, environ, SketchPolicy) or SketchPolicy.AUTO
    return QueryRequest(query, params or (), sql, at, use, required)


def seconds_from(name: str, value: float | str | None) -> float | None:
    """Read a duration: seconds, or a text as for options."""
    return None if value is None else _read(f"Argument `{name}`", value, _seconds)


def texts_from(name: str, value: object) -> tuple[str, ...]:
    """Read a string or a sequence of strings; UsageError for anything else."""
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for text in several:
        if not isinstance(text, str):
            hint = "pass a string or a sequence of strings, as for the option of the same name"
            raise UsageError(f"Argument `{name}` has an invalid value: {text}", hint=hint)
    return tuple(several)


def _picked(
    name: str, value: object, environ: Mapping[str, str], read: Callable[[str], T]
) -> T | None:
    """Read the argument, else its variable; None if neither is set."""
    if value is not None:
        return _read(f"Argument `{name}`", value, read)
    variable = PREFIX + name.upper()
    text = environ.get(variable)
    return None if not text else _read(f"Variable `{variable}`", text, read)


def _read(name: str, value: object, read: Callable[[str], T]) -> T:
    try:
        return read(str(value))
    except ValueError as error:
        raise UsageError(f"{name} has an invalid value: {value}", hint=_hint(read)) from error


def _hint(read: Callable[[str], object]) -> str:
    if read is _seconds:
        return "pass seconds, or a string such as 500ms, 5s, 2m, 1h or 7d"
    if isinstance(read, type) and issubclass(read, StrEnum):
        return f"use one of: {', '.join(read)}"
    return "see docs/configuration.md for the accepted values"


def _seconds(text: str) -> float:
    value = seconds_in(text)
    if value is None:
        raise ValueError(text)
    return value


def _at_least(least: T, kind: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        number = kind(text)
        if not number >= least:  # type: ignore[operator]  # float or int; NaN is refused too
            raise ValueError(text)
        return number

    return read


# Law: every query has run before anything is raised, and the exception has the results that
# succeeded; a call for one query raises that query's error. An unsound sketch is raised, never just
# returned.

R = TypeVar("R")


def results_of(outcome: Outcome, kind: type[R], total: int) -> tuple[R, ...]:
    """Return the results, all of one kind, or raise; `total` is the number of queries."""
    report = for_report(outcome)
    worst = most_severe(report)
    results = tuple(result for result in report.results if isinstance(result, kind))
    assert len(results) == len(report.results)
    if worst is None:
        # Up from here: this function, the method that runs, the one that was called, the caller.
        warn_caller(outcome.warnings, depth=5)
        return results
    # Notes, since a program that turns warnings into exceptions would lose results and failures.
    for text in outcome.warnings:
        worst.error.add_note(f"warning: {text}")
    if total == 1:
        raise worst.error
    failures: dict[str, ImpctlError] = {}
    for failure in (worst, *report.failures):
        failures.setdefault(failure.query or "", failure.error)
    names = ", ".join(f"`{name}`" for name in failures)
    raise QueriesFailedError(
        f"{len(failures)} of {total} queries failed ({names}): {worst.error.message}",
        results=results,
        failures=failures,
        gravest=worst.error,
    ) from worst.error


def warn_caller(texts: tuple[str, ...], *, depth: int) -> None:
    """Warn at a line of the caller's program, `depth` frames up from the warning."""
    for text in texts:
        warnings.warn(text, ImpctlWarning, stacklevel=depth)


KEPT_BYTES = 256 << 20
"""State that stays in memory from one `maintain` to the next; larger state is loaded each time."""

Progress = Callable[[str, int, int], None]
"""Called with each step: a short line, its number and the total (0, 0 if not known)."""


class _ProgressReporter(SilentReporter):
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        if self._progress is not None:
            self._progress(message, number, total)


# Law: each call does what the command of the same name does, with the same records and errors.

Params = Mapping[str, ParameterValue]
"""Values for the named parameters of a query."""

At = int | Mapping[TableName, int]
"""A version of the query's table; of several tables a version for each."""

Duration = float | str
"""Seconds, or a text such as `10m`."""


class OpenWorkload:
    """An open workload; use it as a context manager, or call `close`.

    Methods for several queries default to all. They return one record per query (`maintain` and
    `verify`: per sketch) and raise QueriesFailedError after all have run, or the error of a single
    query. Every error is an `impctl.errors.ImpctlError`.
    """

    def __init__(
        self, settings: Settings, sessions: SessionBeside, progress: Progress | None
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._reporter = _ProgressReporter(progress)
        self._memory = Memory()
        self._answers = AnswerCounter()
        self._tables = OpenTables()
        self._states: StateCache | None = None
        self._lock = threading.RLock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<impctl workload {self._settings.workload}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def file(self) -> Path:
        """The workload file."""
        return self._settings.workload

    @property
    def queries(self) -> tuple[QueryName, ...]:
        """Names of the queries that the file has now."""
        return self._run(lambda ctx: tuple(ctx.workload.queries))

    def close(self) -> None:
        """Close the workload; Spark keeps running, whoever started it."""
        with self._lock:
            self._is_closed = True
            self._states = None
            self._answers.write()

    def capture(self, *queries: QueryName, dry_run: bool = False) -> tuple[CaptureResult, ...]:
        """Compute and store the sketch of each query; a dry run only reports how."""
        from impctl.service.capture import capture

        return self._each(
            CaptureResult, lambda ctx: capture(ctx, queries), queries, dry_run=dry_run
        )

    def rebalance(self, *queries: QueryName, dry_run: bool = False) -> tuple[CaptureResult, ...]:
        """Even out the ranges of stored sketches, as `impctl capture --rebalance` does."""
        from impctl.service.rebalance import rebalance

        return self._each(
            CaptureResult, lambda ctx: rebalance(ctx, queries), queries, dry_run=dry_run
        )

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
        """Update each sketch to the newest table versions if its policy allows.

        State of up to `KEPT_BYTES` stays in memory for the next call, until `close`. `due`: only
        queries that are due before the next such call, in `interval` (1m). `point`: only queries
        whose trigger has it. `changes`: a folder for the changes of materialized results, one file
        per step.
        """
        size = _picked("batch_rows", batch_rows, os.environ, _at_least(1, int))
        look = seconds_from("interval", interval)
        check_scheduled(due, point, look, queries)

        def use_case(ctx: Context) -> Outcome:
            from impctl.service.maintain import maintain
            from impctl.service.schedule import daemon as by_trigger
            from impctl.service.state_cache import StateCache

            if self._states is None:
                self._states = StateCache(KEPT_BYTES)
            if point is not None:
                return by_trigger.maintain_point(ctx, point, size, self._states)
            if due:
                return by_trigger.maintain_due(ctx, queries, size, self._states, look=look)
            return maintain(ctx, queries, batch_rows=size, cache=self._states)

        def counted(ctx: Context) -> int:
            from impctl.service.schedule.daemon import of_point

            return len(ctx.queries(queries) if point is None else of_point(ctx, point))

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
        """What `maintain` would do now, why, and its estimated cost; writes nothing, no Spark.

        `due`: when each query is due next, and why; `interval` as for `maintain`. `strict`: a query
        that can have no sketch fails.
        """
        look = seconds_from("interval", interval)
        check_planned_look(due, look)
        if due:
            from impctl.service.schedule.daemon import plan_due

            return self._each(DueResult, lambda ctx: plan_due(ctx, queries, look=look), queries)
        from impctl.service.plan import plan

        return self._each(PlanResult, lambda ctx: plan(ctx, queries, strict=strict), queries)

    def simulate(
        self,
        *queries: QueryName,
        since: Duration | None = None,
        disk: str | Sequence[str] = (),
        trigger: str | Sequence[str] = (),
        interval: Duration | None = None,
    ) -> SimulateResult:
        """What other budgets and triggers would have cost, by the commits of the last `since`.

        Combines each `disk` (`500MB`, `all`) with each `trigger` (`fresh_within: 10m`), checking
        every `interval` (5s). Only reads; never starts Spark.
        """
        begin, look = seconds_from("since", since), seconds_from("interval", interval)
        disks, triggers = texts_from("disk", disk), texts_from("trigger", trigger)
        request = SimulateRequest(begin, disks, triggers, look)

        def use_case(ctx: Context) -> Outcome:
            from impctl.service.schedule.simulate import simulate

            return simulate(ctx, queries, request)

        return self._one(SimulateResult, use_case)

    def status(self, *queries: QueryName) -> tuple[StatusResult, ...]:
        """What is stored for each query and whether it is current; never starts Spark."""
        from impctl.service.status import status

        return self._each(StatusResult, lambda ctx: status(ctx, queries), queries)

    def explain(self, *queries: QueryName) -> tuple[ExplainResult, ...]:
        """How each query is sketched and maintained, or why not; never starts Spark."""
        from impctl.service.explain import explain

        return self._each(ExplainResult, lambda ctx: explain(ctx, queries), queries)

    def verify(self, *queries: QueryName, results: bool = False) -> tuple[VerifyResult, ...]:
        """Compare stored sketches with a recapture; UnsoundSketchError if one lacks ranges.

        With `results`, also run each query with and without its sketch.
        """
        from impctl.service.verify import verify

        return self._each(VerifyResult, lambda ctx: verify(ctx, queries, results=results), queries)

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
        `at` selects the sketch stored for older versions, without maintenance. `files`: where to
        write the data files that the text reads, by table, for readers without Delta. `sketch`:
        `auto` does not use it if it costs more than it saves; `never` never does. If the sketch is
        unavailable the result is the query itself, with a warning; with `require_sketch`, an error.
        """
        from impctl.service.rewrite import rewrite

        request = request_from(query, params, sql, at, sketch, require_sketch, {})
        return self._one(RewriteResult, lambda ctx: rewrite(ctx, request, files))

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
        """The result of a query as Arrow; arguments as for `rewrite`.

        `sketch`: read through it `always`, `never`, or `auto`: if it saves more than it costs.
        `by`: the materialized result, the engine, Spark, or the fastest that can. `where`: only
        rows of the result that meet this condition on its columns.
        """
        from impctl.service.query import query as answered

        who = _picked("by", by, os.environ, AnsweredBy) or AnsweredBy.AUTO
        request = request_from(query, params, sql, at, sketch, require_sketch, os.environ)
        return self._one(QueryResult, lambda ctx: answered(ctx, request, who, where=where))

    def changes(
        self, query: QueryName | None = None, *, since: At | None = None, whole: bool = False
    ) -> ChangesResult:
        """The changes of a materialized result since the store's versions, or others, as Arrow.

        Only reads; never starts Spark. `whole`: the whole stored result, each row an insert.
        """
        from impctl.service.changes import changes

        return self._one(ChangesResult, lambda ctx: changes(ctx, query, since, whole=whole))

    def why(
        self,
        query: QueryName | None = None,
        *,
        row: Mapping[str, object],
        params: Params | None = None,
    ) -> WhyResult:
        """The table rows that derive a row of the result, the smallest set if that is proved.

        `row`: values of some of its columns. UsageError unless exactly one row has them; QueryError
        for a query that cannot be traced.
        """
        from impctl.service.why import why

        return self._one(WhyResult, lambda ctx: why(ctx, query, params or {}, row))

    def without(
        self, query: QueryName | None = None, *conditions: str, params: Params | None = None
    ) -> WithoutResult:
        """How the result would change without some table rows, as Arrow; no table is changed.

        The rows are those that meet one of the conditions, written `TABLE: CONDITION`, or without
        the table if the query reads only one.
        """
        from impctl.service.why import why

        return self._one(
            WithoutResult, lambda ctx: why(ctx, query, params or {}, without=conditions)
        )

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

        It reads the versions pinned by this call and belongs to impctl's session beside yours
        (`frame.sparkSession`), where names are those of the workload.
        """
        from impctl.service.rewrite import dataframe

        request = request_from(query, params, sql, at, sketch, require_sketch, os.environ)
        frame, texts = self._run(lambda ctx: dataframe(ctx, request))
        # The caller's line is above this function.
        warn_caller(texts, depth=3)
        return frame

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
        """What another engine has to read of the Parquet files; arguments as for `rewrite`.

        Per table: the data files, their deleted rows and partition values, and a predicate that
        the rows must meet.
        """
        from impctl.service.rewrite import files

        request = request_from(query, params, sql, at, sketch, require_sketch, {})
        listed, texts = self._run(lambda ctx: files(ctx, request))
        warn_caller(texts, depth=3)
        return listed

    def _each(
        self,
        kind: type[R],
        use_case: Callable[[Context], Outcome],
        queries: tuple[QueryName, ...] | Callable[[Context], int],
        *,
        dry_run: bool = False,
        changes: Path | None = None,
    ) -> tuple[R, ...]:
        """Return the records of these queries (none: all); a callable counts them."""

        def work(ctx: Context) -> tuple[Outcome, int]:
            result = use_case(ctx)
            return result, queries(ctx) if callable(queries) else len(ctx.queries(queries))

        outcome, total = self._run(work, dry_run=dry_run, changes=changes)
        return results_of(outcome, kind, total)

    def _one(self, kind: type[R], use_case: Callable[[Context], Outcome]) -> R:
        (result,) = results_of(self._run(use_case), kind, 1)
        return result

    def _run(
        self, work: Callable[[Context], T], *, dry_run: bool = False, changes: Path | None = None
    ) -> T:
        """Run on the workload file and the tables as they are now."""
        settings = replace(self._settings, dry_run=dry_run, changes=changes)
        with self._lock, self._sessions.visit():
            if self._is_closed:
                raise UsageError(
                    f"Workload {self.file} was closed",
                    hint="open it again with `impctl.open`",
                    code="workload_closed",
                )
            run = open_context(
                settings, self._reporter, self._sessions, self._memory, self._answers
            )
            with run as ctx:
                self._tables.lend(ctx)
                result = work(ctx)
                self._tables.take_back(ctx)
                return result


# Law: problems of the arguments or the file are reported here, before anything is done; Spark is
# neither started nor changed.

AnyPath = str | os.PathLike[str]


def open(
    workload: AnyPath,
    *,
    store: AnyPath | None = None,
    policy: Policy | Literal["auto", "incremental", "strict", "full"] | None = None,
    spark: SparkSession | None = None,
    spark_profile: AnyPath | None = None,
    lock_timeout: float | None = None,
    imbalance: float | None = None,
    large_change: int | None = None,
    memory: str | None = None,
    progress: Progress | None = None,
) -> OpenWorkload:
    """Open a workload file; WorkloadError lists everything that is wrong with it.

    Arguments have the meaning of the command line's options; defaults are the `IMPCTL_*`
    variables, the workload file and then the built-in ones.

    Work on Spark runs in a new session beside `spark`, or beside the running one; if none is
    running, Spark starts and stays up. The caller's session is never changed or stopped.
    `progress` is called before each step with a line, its number and the total.
    """
    settings = settings_from(
        workload,
        os.environ,
        store=store,
        policy=policy,
        lock_timeout=lock_timeout,
        spark_profile=spark_profile,
        imbalance=imbalance,
        large_change=large_change,
        memory=memory,
    )
    sessions = SessionBeside(spark)
    with open_context(settings):
        return OpenWorkload(settings, sessions, progress)
