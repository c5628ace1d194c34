"""Maintenance that is due: once, for as long as the process runs, or over past commits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import ImpctlError, RetryableError, UsageError
from impctl.service.context import Context, Reporter, open_context
from impctl.service.maintain import maintain, maintain_specs, unchanged_results
from impctl.service.memory_limit import memory_of
from impctl.service.results import (
    ANSWER_OPEN,
    NOT_DUE,
    Failure,
    FollowedRun,
    MaintainResult,
    Outcome,
    most_severe,
)
from impctl.service.schedule.due import (
    OPENING_FIRST_S,
    OPENING_S,
    CommitLog,
    Due,
    Margin,
    Pace,
    Waiting,
    chosen_for_run,
    due_report,
    dues,
    shortest_bounds,
    stored_of,
    trigger_of,
    waiting_queries,
)
from impctl.service.settings import DEFAULT_MAX_WAIT, FollowRequest, Settings
from impctl.service.state_cache import StateCache
from impctl.service.stored import expires
from impctl.service.text import duration_text, moment_text
from impctl.sql.parameters import HOUR, NEVER, RUN_INSTANT
from impctl.stopwatch import Stopwatch
from impctl.store.catalog import catalog_mark
from impctl.tables.log import PinnedTable, has_new_log, log_end, open_newest
from impctl.types import QueryName, TableName
from impctl.workload.models import ON_COMMIT, QuerySpec, Trigger
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.tables.source import DeltaSource


# A scheduler runs queries on `commit` whenever something is new, and the others when they are due.
# `--follow` and `simulate` drive one. Law: what starts depends only on what the source says and on
# the clock, in seconds since 1970, so tests run days in a second. A failed look changes nothing. A
# query that failed affects no other query's start. What a run left pending is retried when
# something is new, or after ten minutes.

_QUIET = 600.0
"""Seconds after which what a run left pending is retried, whatever a look says."""


class CommitSource(Protocol):
    """The commits that a scheduler sees."""

    def is_new(self) -> bool:
        """Whether a run may have something to do that the last look and run did not see."""

    def waiting(self) -> Sequence[Waiting] | None:
        """What waits for each query that is not on `commit`; None where it cannot be read."""


class FinishedRun(Struct, frozen=True):
    """When a run ended, and seconds that its due queries took. Of the queries that `failed`, the
    `retryable` may succeed later. `waiting` is what waits at the versions of the run."""

    ended: float
    took: float
    failed: Collection[QueryName] = ()
    retryable: Collection[QueryName] = ()
    waiting: Sequence[Waiting] | None = None


Runner = Callable[[Sequence[QueryName], Sequence[Due]], FinishedRun]
"""Maintains these queries, of which some are due."""


class Scheduler:
    """What to run now and when to look again; `due`, `run` where something is due, and `pause` are
    called in turn."""

    def __init__(
        self,
        triggers: Mapping[QueryName, Trigger],
        look: float,
        clock: Callable[[], float],
        source: CommitSource,
        runner: Runner,
    ) -> None:
        self._look, self._clock, self._source, self._runner = look, clock, source, runner
        self._on_commit = [name for name, trigger in triggers.items() if trigger.is_on_commit]
        self._timed = triggers.keys() - set(self._on_commit)
        self.waiting: Sequence[Waiting] = ()
        self.upcoming: Sequence[Due] = ()
        """When the queries are due that no run took at the last look."""
        self.retries = Retries(look)
        self._has_looked = False
        """Whether `waiting` has what the source saw last."""
        self._pending_after: dict[QueryName, tuple[object, float]] = {}
        """What was pending of a query when a run took it, and when."""
        self._failed: set[QueryName] = set()
        self._opening = OPENING_FIRST_S
        self._margin = Margin()

    @property
    def pace(self) -> Pace:
        """How runs of this process go."""
        return Pace(self._opening, self._margin.value, self._look)

    def due(self) -> tuple[list[QueryName], list[Due]]:
        """Queries on `commit` to run now, where something is new or to be retried, and what is
        due, the earliest deadline first. All of the former that are not put off join every run: the
        source knows what is new since the last one, so a run must not leave one behind."""
        now, retry = time.monotonic(), self.retries.next_due()
        postponed = self.retries.waiting(now)
        ready = [name for name in self._on_commit if name not in postponed]
        has_retry = retry is not None and retry <= now
        is_new = bool(ready or self._timed) and (has_retry or self._source.is_new())
        if self._timed and (is_new or not self._has_looked):
            self._saw(self._source.waiting())
        due = self._due(self._clock(), postponed) if self._timed else []
        if has_retry:
            for name in self._timed.difference(postponed, (query.query for query in due)):
                # Put off no more, and yet not due: another process maintained it.
                self.retries.went_well(name)
        return (ready if is_new or due else []), due

    def run(
        self, ready: Sequence[QueryName], due: Sequence[Due]
    ) -> tuple[float | None, float | None]:
        """Run these; return seconds late, None without bounds, and seconds until a retry."""
        names = [*ready, *(query.query for query in due)]
        done = self._runner(names, due)
        for name in set(names).difference(done.retryable):
            self.retries.went_well(name)
        retry = self.retries.failed(done.retryable, time.monotonic())
        self._ran({query.query for query in due}, done)
        if self._timed:
            self._saw(done.waiting)
        late = [done.ended - query.due_by for query in due if query.due_by is not None]
        return max(0.0, *late) if late else None, retry

    def next_start(self) -> float | None:
        """When the next run starts; None if none is expected. A moment of the clock counts,
        although nothing is pending yet."""
        now = self._clock()
        starts = (due.start_at for due in self.upcoming if due.start_at is not None)
        return min((start for start in starts if start > now), default=None)

    def pause(self) -> float:
        """Seconds until the next look, start or retry."""
        retry, start, pauses = self.retries.next_due(), self.next_start(), [self._look]
        if retry is not None:
            pauses.append(retry - time.monotonic())
        if start is not None:
            pauses.append(start - self._clock())
        return max(0.0, min(pauses))

    def _saw(self, waiting: Sequence[Waiting] | None) -> None:
        self._has_looked = waiting is not None
        if waiting is not None:
            self.waiting = waiting

    def _due(self, now: float, postponed: Collection[QueryName]) -> list[Due]:
        waiting = [query for query in self.waiting if self._counts(query, now, postponed)]
        # What failed is reckoned apart, so that it moves no other's start.
        apart = [query for query in waiting if query.query in self._failed]
        others = [query for query in waiting if query.query not in self._failed]
        result = dues(others, self.pace, now)
        result += dues(apart, self.pace, now) if apart else []
        chosen = chosen_for_run(result, waiting, now, self._failed)
        names = {due.query for due in chosen}
        self.upcoming = [due for due in result if due.query not in names]
        return chosen

    def _counts(self, query: Waiting, now: float, postponed: Collection[QueryName]) -> bool:
        """Whether the query counts now: not if put off, nor unchanged since a run."""
        if query.query in postponed:
            return False
        if query.query not in self._pending_after or not query.pending.is_some:
            return True
        mark, since = self._pending_after[query.query]
        # A clock that was put back may not make the quiet longer.
        return mark != query.pending.mark or not 0 <= now - since < _QUIET

    def _ran(self, names: Collection[QueryName], done: FinishedRun) -> None:
        """Learn from a run of these due queries."""
        failed = set(names).intersection(done.failed)
        self._failed = self._failed.difference(names) | failed
        queries = [waiting for waiting in self.waiting if waiting.query in names]
        for waiting in queries:
            self._pending_after[waiting.query] = (waiting.pending.mark, done.ended)
        for name in self.retries.waiting(time.monotonic()):
            # It is retried separately.
            self._pending_after.pop(name, None)
        if queries and not failed and all(waiting.costs.is_known for waiting in queries):
            thought = self._opening + sum(waiting.costs.pending for waiting in queries)
            self._margin.ran(thought, done.took)
        if queries:
            self._opening = OPENING_S


# Law: each query has its due time, and its pauses grow with each failure until a success. Queries
# that failed in one run, equally often, are due together. A postponed query delays no other.

_LONGEST_PAUSE = 60.0
"""Longest pause between retries in seconds, unless the first is longer."""
_MOST_DOUBLINGS = 64


class Retries:
    """Queries put off; times are seconds of a monotonic clock."""

    def __init__(self, first_pause: float) -> None:
        self._first = first_pause
        self._longest = max(_LONGEST_PAUSE, first_pause)
        self._of: dict[QueryName, tuple[float, int]] = {}
        """The time of the next try, and failures in a row."""

    def next_due(self) -> float | None:
        """When the first of them is retried; None without any."""
        return min((due for due, _ in self._of.values()), default=None)

    def waiting(self, now: float) -> frozenset[QueryName]:
        """Those whose time has not come."""
        return frozenset(name for name, (due, _) in self._of.items() if due > now)

    def went_well(self, query: QueryName) -> None:
        self._of.pop(query, None)

    def failed(self, queries: Iterable[QueryName], now: float) -> float | None:
        """Put these off; return seconds until the first retry."""
        # Processes that failed at the same moment do not come back at the same moment.
        share = random.uniform(0.5, 1.0)
        pauses = []
        for query in queries:
            _, tries = self._of.get(query, (now, 0))
            doublings = min(tries, _MOST_DOUBLINGS)
            pauses.append(share * min(self._longest, self._first * 2.0**doublings))
            self._of[query] = (now + pauses[-1], tries + 1)
        return min(pauses, default=None)


# Law: what is due is decided at the versions that are then maintained. A query that is not due
# stays as it is and is reported; with nothing due no lock is taken and no planner loaded. An
# unknown point is an error, because a typo would maintain nothing forever.


def maintain_due(
    ctx: Context,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    cache: StateCache | None = None,
    *,
    look: float | None = None,
) -> Outcome:
    """Maintain those of the named queries (default: all) that are due before the next look. The
    `cache` keeps operator state for a later run of this process."""
    specs = ctx.queries(queries)
    sketched = [spec for spec in specs if spec.is_sketched]
    report = due_report(ctx, sketched, look)
    known = {spec.name: spec for spec in sketched}
    done = Outcome()
    if report.selected:
        chosen = [known[due.query] for due in report.selected]
        done = maintain_specs(ctx, chosen, batch_rows, cache, is_named=bool(queries))
    selected = {due.query for due in report.selected}
    results = [result for result in done.results if isinstance(result, MaintainResult)]
    results += [MaintainResult(query=spec.name) for spec in specs if not spec.is_sketched]
    for query, due in zip(report.waiting, report.dues, strict=True):
        if due.query not in selected:
            results += _not_due(ctx, known[due.query], query, due)
    order = {spec.name: index for index, spec in enumerate(specs)}
    results.sort(key=lambda result: order[result.query])
    warnings = (*done.warnings, *report.warnings())
    return replace(done, results=tuple(results), warnings=warnings)


def maintain_point(
    ctx: Context, point: str, batch_rows: int | None = None, cache: StateCache | None = None
) -> Outcome:
    """Maintain the queries whose trigger has this point; UsageError if none has it."""
    return maintain_specs(ctx, of_point(ctx, point), batch_rows, cache, is_named=False)


def of_point(ctx: Context, point: str) -> list[QuerySpec]:
    """The queries whose trigger has this point; UsageError if none has it."""
    specs = ctx.queries(None)
    result = [spec for spec in specs if trigger_of(spec).point == point]
    if not result:
        points = dict.fromkeys(trigger_of(spec).point for spec in specs)
        hint = suggestion(point, [name for name in points if name is not None], "the file has")
        raise UsageError(
            f"No query of {ctx.workload.file} has the point `{point}`",
            hint=hint or "write `trigger: {point: NAME}` under a query",
            code="point_unknown",
        )
    return result


def plan_due(
    ctx: Context, queries: Sequence[QueryName] | None, *, look: float | None = None
) -> Outcome:
    """When each query is due next, and why; writes nothing, takes no lock."""
    report = due_report(ctx, ctx.sketched(queries), look)
    return Outcome(tuple(report.results()), tuple(report.warnings()))


def _not_due(ctx: Context, spec: QuerySpec, waiting: Waiting, due: Due) -> list[MaintainResult]:
    """The result of a postponed query; none for one without a sketch."""
    stored = stored_of(ctx.reading_store(), spec)
    if stored is None:
        return []
    match = unchanged_results(ctx, stored)
    if not waiting.pending.is_some and waiting.pending.moved_at is None:
        return match
    why = due.why
    if due.start_at is not None:
        why += f", a run starts {moment_text(datetime.fromtimestamp(due.start_at, UTC))}"
    return [
        replace(result, reason_code=NOT_DUE, reason=why, answer_changed=ANSWER_OPEN)
        for result in match
    ]


# Law: a look costs a few file system calls per table and opens neither tables nor store. In doubt,
# such as an unreadable log, there is something new, and the run reports the problem.

_LONGEST_QUIET = 600.0
"""Seconds after which a run opens everything again, whatever a look says: for tables in object
stores that were replaced, and for failures that were fixed from outside."""


class TableWatch:
    """Tables and store as the last run left them."""

    def __init__(self) -> None:
        self._seen: dict[TableName, PinnedTable] = {}
        self._stuck: dict[TableName, object] = {}
        """Log ends of tables that the last run could not open; None for an unreadable log."""
        self._ends: dict[TableName, object] = {}
        """The same right before a run, which may see other ends."""
        self._store: object = None
        self._hour = ""
        self._expires: str | None = None
        self._opened_at: float | None = None

    def pinned(self) -> list[DeltaSource]:
        """The tables at their newest versions, for a run, without unreadable ones. From time to
        time none, so that all are opened again."""
        now, self._ends = time.monotonic(), {}
        if self._opened_at is None or now - self._opened_at >= _LONGEST_QUIET:
            self._opened_at = now
            return []
        result = []
        for name, known in self._seen.items():
            try:
                result.append(open_newest(known))
            except ImpctlError:
                # The run opens it again, and reports the error for its queries. What was read of it
                # here may be part of another log: nothing is added to that.
                self._seen[name] = replace(known, mark=None)
                self._ends[name] = _end(known)
        return result

    def saw(self, ctx: Context) -> None:
        """Remember a finished run's tables as it pinned them. Another log may have replaced one
        since; its state must not pass for that of the run."""
        self._seen.update(ctx.tables.seen)
        self._stuck = {name: end for name, end in self._ends.items() if name not in ctx.tables.seen}
        self._hour = ctx.clock.text(HOUR)
        # To read the store may change how its files lie there.
        self._expires = _next_expiry(ctx)
        self._store = catalog_mark(ctx.store_path)

    def is_due(self, ctx: Context) -> bool:
        """Whether a run may have something to do."""
        now = time.monotonic()
        if self._opened_at is None or now - self._opened_at >= _LONGEST_QUIET:
            return True
        if self._store != catalog_mark(ctx.store_path) or self._hour != ctx.time().text(HOUR):
            return True
        if self._expires is not None and ctx.time().text(RUN_INSTANT) >= self._expires:
            return True
        try:
            # A table that the last run could not open counts only once it has changed.
            return any(
                has_new_log(known)
                for name, known in self._seen.items()
                if name not in self._stuck or self._stuck[name] != _end(known)
            )
        except ImpctlError:
            return True


def _next_expiry(ctx: Context) -> str | None:
    """When the first row expires after the run's instant, as its queries have it; None for never.
    Past expiries belong to failed queries and wait as other failures do."""
    if all(table.expiry is None for table in ctx.workload.tables.values()):
        return None
    # That of the run may be closed.
    reading, result = ctx.next_run(()), []
    try:
        for spec in ctx.sketched(None):
            # What cannot be read its own run reports.
            with suppress(ImpctlError):
                store = reading.reading_store()
                stored = None if store is None else store.load(spec.name)
                result += [] if stored is None else [expires(stored)]
    finally:
        reading.close()
    # Texts in one form and zone: in their order.
    later = [
        instant
        for instant in result
        if instant not in ("", NEVER) and instant > ctx.clock.text(RUN_INSTANT)
    ]
    return min(later, default=None)


def _end(known: PinnedTable) -> object:
    try:
        return log_end(known)
    except ImpctlError:
        return None


# Law: each run does what `maintain` does, under the same policies, and holds the writer's lock only
# while it works. A query that fails stops neither the others nor the process; if the reason may
# pass (a lock, storage) it is retried at its own time. A changed workload file ends the process, so
# that nothing is reread silently.


class StopRequest(Protocol):
    """A request to end the process."""

    @property
    def is_asked(self) -> bool:
        """Whether it was asked."""

    def wait(self, seconds: float) -> None:
        """Wait; returns early when asked to end."""

    def working(self) -> AbstractContextManager[None]:
        """The time of one run, which may finish after the request."""


Show = Callable[[Outcome, FollowedRun], None]
"""Called for every run that had something to do."""


MAX_WAIT_DEPRECATED = "max_wait_deprecated"
_DEPRECATED = (
    "`--max-wait` is deprecated: write `trigger: {fresh_within: ...}` in the workload file"
    f" [{MAX_WAIT_DEPRECATED}]"
)


def followed_trigger(spec: QuerySpec, request: FollowRequest) -> Trigger:
    """The query's trigger: its own, else that of the flags, else each commit."""
    if spec.trigger is not None:
        return spec.trigger
    if request.pending_rows is None and request.max_wait is None:
        return ON_COMMIT
    wait = DEFAULT_MAX_WAIT if request.max_wait is None else request.max_wait
    return Trigger(rows=request.pending_rows, fresh_within=wait)


def follow(
    settings: Settings,
    queries: Sequence[QueryName] | None,
    request: FollowRequest,
    *,
    batch_rows: int | None,
    reporter: Reporter,
    stop: StopRequest,
    show: Show,
) -> None:
    """Maintain the named queries (default: all) whenever their tables change, until asked to end.
    RetryableError where the workload file changed; UsageError where it was wrong from the start."""
    files = Files.of(settings)
    with open_context(settings, reporter) as ctx:
        following = _Following(ctx, ctx.sketched(queries), batch_rows, request)
        following.report_start()
        while not stop.is_asked:
            files.check()
            ready, due = following.scheduler.due()
            if ready or due:
                with stop.working():
                    following.run(ready, due, show)
            if request.max_runs is not None and following.runs >= request.max_runs:
                return
            stop.wait(following.scheduler.pause())


class _Following:
    """The tables and runs of a process that follows; `ctx` itself never runs, each run has its
    own."""

    def __init__(
        self,
        ctx: Context,
        specs: Sequence[QuerySpec],
        batch_rows: int | None,
        request: FollowRequest,
    ) -> None:
        self._ctx, self._batch_rows, self._request = ctx, batch_rows, request
        self._cache = StateCache(memory=memory_of(ctx.settings, ctx.workload))
        self._triggers = {spec.name: followed_trigger(spec, request) for spec in specs}
        self._timed = [spec for spec in specs if not self._triggers[spec.name].is_on_commit]
        self._watch = TableWatch()
        self._log = CommitLog()
        self._outcome = Outcome()
        self._warned: set[tuple[str, QueryName]] = set()
        self._warnings: list[str] = []
        self.runs = 0
        self.scheduler = Scheduler(self._triggers, request.interval, ctx.now, self, self._maintain)

    def report_start(self) -> None:
        waits = "; ".join(f"{spec.name}: {self._triggers[spec.name].text}" for spec in self._timed)
        self._ctx.reporter.step(
            f"following {', '.join(self._triggers)} of {self._ctx.settings.workload}, checking "
            f"every {duration_text(self._request.interval * 1000)}{f' ({waits})' if waits else ''}"
        )
        if self._request.max_wait is not None:
            self._warn(_DEPRECATED)

    def is_new(self) -> bool:
        return self._watch.is_due(self._ctx)

    def waiting(self) -> Sequence[Waiting] | None:
        ctx = self._ctx.next_run(self._watch.pinned())
        try:
            result = self._waiting_at(ctx)
            # What could not be read stays new.
            if result is not None:
                self._watch.saw(ctx)
            return result
        finally:
            ctx.close()
            self._ctx.take_spark_of(ctx)

    def run(self, ready: Sequence[QueryName], due: Sequence[Due], show: Show) -> None:
        """Run these queries; show the run if it had anything to do."""
        started_at, watch = datetime.now(UTC), Stopwatch()
        late, retry = self.scheduler.run(ready, due)
        elapsed_ms = watch.ms
        done = tuple(
            result
            for result in self._outcome.results
            if not isinstance(result, MaintainResult) or result.action != "none"
        )
        if not done and not self._outcome.failures:
            self._ctx.reporter.step("waiting for changes: nothing new")
            return
        self.runs += 1
        decisive = most_severe(self._outcome)
        entry = FollowedRun(
            number=self.runs,
            started_at=started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            elapsed_ms=elapsed_ms,
            exit_code=0 if decisive is None else decisive.error.exit_code,
            retry_ms=None if retry is None else retry * 1000,
            late_ms=None if late is None else late * 1000,
        )
        warnings, self._warnings = (*self._outcome.warnings, *self._warnings), []
        show(replace(self._outcome, results=done, warnings=warnings), entry)
        self._ctx.reporter.step(f"waiting for changes, {self.runs} runs so far")

    def _maintain(self, queries: Sequence[QueryName], due: Sequence[Due]) -> FinishedRun:
        """Run `maintain`, catching its failure."""
        ctx, watch = self._ctx.next_run(self._watch.pinned()), Stopwatch()
        try:
            try:
                outcome = maintain(ctx, queries, self._batch_rows, self._cache)
            except UsageError:
                raise
            except ImpctlError as error:
                outcome = Outcome(failures=(Failure(None, error),))
            self._outcome, names = outcome, {query.query for query in due}
            # Sketches of one query share their time.
            others = {
                result.query: result.elapsed_ms
                for result in outcome.results
                if isinstance(result, MaintainResult) and result.query not in names
            }
            took = max(0.0, watch.ms - sum(others.values())) / 1000
            temporary = [
                failure for failure in outcome.failures if isinstance(failure.error, RetryableError)
            ]
            return FinishedRun(
                ended=self._ctx.now(),
                took=took,
                failed=_failed(queries, outcome.failures),
                retryable=_failed(queries, temporary),
                waiting=self._waiting_at(ctx) if self._timed else None,
            )
        finally:
            ctx.close()
            self._watch.saw(ctx)
            self._ctx.take_spark_of(ctx)

    def _waiting_at(self, ctx: Context) -> Sequence[Waiting] | None:
        """What waits at the versions that `ctx` has pinned."""
        look = self._request.interval
        try:
            result = waiting_queries(ctx, self._timed, look, self._log, self._triggers)
        except ImpctlError:
            return None
        for query in result:
            for code, text in shortest_bounds(query, self.scheduler.pace):
                if (code, query.query) not in self._warned:
                    self._warned.add((code, query.query))
                    self._warn(f"{text} [{code}]")
        return result

    def _warn(self, text: str) -> None:
        """Warn now, and in the next run that is shown."""
        self._ctx.reporter.step(text)
        self._warnings.append(text)


def _failed(queries: Sequence[QueryName], failures: Sequence[Failure]) -> list[QueryName]:
    failed = {failure.query for failure in failures}
    return [name for name in queries if name in failed or None in failed]


class Files(Struct, frozen=True):
    """The configuration files as they were before they were read."""

    contents: tuple[tuple[Path, bytes | None], ...]

    @classmethod
    def of(cls, settings: Settings) -> Files:
        paths = (settings.workload, settings.spark_profile)
        return cls(tuple((path, _content(path)) for path in paths if path is not None))

    def check(self) -> None:
        """RetryableError where one of them changed."""
        for path, content in self.contents:
            if _content(path) != content:
                raise RetryableError(
                    f"File `{path}` changed while `--follow` was running",
                    code="workload_changed",
                    hint="start again to use the new file; a service manager can do this",
                )


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
