"""Maintenance that is due: once, or for as long as the process runs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace
from sortedcontainers import SortedKeyList

from impctl.errors import ImpctlError, RetryableError, UsageError
from impctl.service.context import Context, Reporter, open_context
from impctl.service.kept_states import StateCache
from impctl.service.maintain import maintain, maintain_specs, unchanged_results
from impctl.service.memory_limit import memory_of
from impctl.service.outcome import most_severe
from impctl.service.results import (
    ANSWER_OPEN,
    NOT_DUE,
    Failure,
    FollowedRun,
    MaintainResult,
    Outcome,
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
    now_of,
    shortest_bounds,
    trigger_of,
    waiting_queries,
)
from impctl.service.settings import DEFAULT_MAX_WAIT, FollowRequest
from impctl.service.stored import expires
from impctl.service.text import duration_text, moment_text
from impctl.sql.parameters import HOUR, NEVER, RUN_INSTANT
from impctl.stopwatch import Stopwatch
from impctl.store.catalog import catalog_mark
from impctl.tables.log import PinnedTable, has_new_log, log_end, open_newest
from impctl.workload.models import ON_COMMIT, QuerySpec, Trigger
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.service.settings import Settings
    from impctl.tables.source import DeltaSource
    from impctl.types import QueryName, TableName


# The queries of a process that follows, as their triggers have them. Law: queries on `commit` are
# run whenever something is new, as ever; the others when the timetable says, from what the last
# look found. After each run there is a look at the versions it pinned, so that nothing which a
# run saw is new to nobody. A look that fails changes nothing.

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


class FollowedQueries:
    """Queries on `commit`, and the timetable of the others."""

    def __init__(self, specs: Sequence[QuerySpec], request: FollowRequest) -> None:
        self._triggers = {spec.name: followed_trigger(spec, request) for spec in specs}
        self._timed = [spec for spec in specs if not self._triggers[spec.name].is_on_commit]
        self._look = request.interval
        self._log = CommitLog()
        self._timetable = Timetable(request.interval)
        self._warned: set[tuple[str, str]] = set()
        self._warnings = [] if request.max_wait is None else [_DEPRECATED]
        self._untold = list(self._warnings)
        self.on_commit = tuple(n for n, trigger in self._triggers.items() if trigger.is_on_commit)
        self.timed = frozenset(spec.name for spec in self._timed)

    @property
    def has_timed(self) -> bool:
        """Whether any query waits for something else than a commit."""
        return bool(self._timed)

    def told(self) -> str:
        """What the queries wait for, in a few words."""
        return "; ".join(f"{spec.name}: {self._triggers[spec.name].text}" for spec in self._timed)

    def look(self, ctx: Context) -> bool:
        """Read what is pending at the versions that `ctx` has pinned; return whether it
        succeeded."""
        try:
            waiting = waiting_queries(ctx, self._timed, self._look, self._log, self._triggers)
        except ImpctlError:
            return False
        self._timetable.saw(waiting)
        for one in waiting:
            for code, text in shortest_bounds(one, self._timetable.pace):
                if (code, one.query) not in self._warned:
                    self._warned.add((code, one.query))
                    self._warnings.append(f"{text} [{code}]")
                    self._untold.append(self._warnings[-1])
        return True

    def due(self, ctx: Context, put_off: Collection[QueryName]) -> list[Due]:
        """What is due by the timetable, the earliest deadline first."""
        return self._timetable.due(now_of(ctx), put_off) if self._timed else []

    def pause(self, ctx: Context) -> float | None:
        """Seconds until the next start, at least 0; None if none is expected."""
        now = now_of(ctx)
        start = self._timetable.next_start(now)
        return None if start is None else max(0.0, start - now)

    def ran(
        self,
        ctx: Context,
        done: Sequence[Due],
        took: float,
        *,
        failed: Collection[QueryName],
        put_off: Collection[QueryName],
    ) -> float | None:
        """Record a finished run; return milliseconds late, None without bounds. Those of `failed`
        that are `put_off` are retried at a time of their own."""
        now = now_of(ctx)
        late = self._timetable.ran(done, now, took, failed=failed, put_off=put_off)
        return None if late is None else late * 1000

    def untold(self) -> list[str]:
        """New warnings, for a reader of the log."""
        result, self._untold = self._untold, []
        return result

    def warnings(self) -> tuple[str, ...]:
        """Warnings since the last call."""
        result, self._warnings = tuple(self._warnings), []
        return result


# The timetable of a process that follows: when the next run starts, and for what. Law: pure but
# for what it was told, and timed by whoever asks, so that tests run days of it in a second. A
# query that failed counts in no other's start and takes no other along; what a run left pending
# is not tried again before something is new, or ten minutes have passed.

_QUIET = 600.0
"""Seconds after which what a run left pending is retried, whatever a look says."""


class Timetable:
    """Queries by the starts of their next runs; times are seconds since 1970."""

    def __init__(self, look: float) -> None:
        self._look = look
        self._waiting: tuple[Waiting, ...] = ()
        self._left: dict[QueryName, tuple[object, float]] = {}
        """What was pending of a query when a run took it, and when."""
        self._failed: set[QueryName] = set()
        self._opening = OPENING_FIRST_S
        self._by_start = SortedKeyList(key=lambda due: due.start_at)
        self.margin = Margin()

    @property
    def pace(self) -> Pace:
        """How runs of this process go."""
        return Pace(self._opening, self.margin.value, self._look)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        return self._waiting

    def saw(self, waiting: Iterable[Waiting]) -> None:
        """Take the results of a look in place of the one before."""
        self._waiting = tuple(waiting)

    def due(self, now: float, put_off: Collection[QueryName] = ()) -> list[Due]:
        """What a run that starts now maintains, the earliest deadline first."""
        waiting = [one for one in self._waiting if self._is_asked(one, now, put_off)]
        # What failed is reckoned apart, so that it moves no other's start.
        apart = [one for one in waiting if one.query in self._failed]
        others = [one for one in waiting if one.query not in self._failed]
        result = [*dues(others, self.pace, now), *dues(apart, self.pace, now)]
        chosen = chosen_for_run(result, waiting, now, self._failed)
        names = {due.query for due in chosen}
        self._by_start.clear()
        self._by_start.update(
            due for due in result if due.start_at is not None and due.query not in names
        )
        return chosen

    def next_start(self, now: float) -> float | None:
        """When the next run starts, after `due`; None if none is expected. A moment of the clock
        counts, although nothing is pending yet."""
        later = self._by_start.irange_key(min_key=now, inclusive=(False, True))
        due: Due | None = next(later, None)
        return None if due is None else due.start_at

    def ran(
        self,
        done: Sequence[Due],
        now: float,
        took: float,
        *,
        failed: Collection[QueryName] = (),
        put_off: Collection[QueryName] = (),
    ) -> float | None:
        """Record a finished run before looking at what it left; return seconds late, None without
        bounds. Those of `failed` that are `put_off` are retried at a time of their own."""
        names = {due.query for due in done}
        self._failed = (self._failed - names) | names.intersection(failed)
        mine = [one for one in self._waiting if one.query in names]
        for one in mine:
            self._left[one.query] = (one.pending.mark, now)
        for query in put_off:
            self._left.pop(query, None)
        is_whole = not names.intersection(failed)
        if mine and is_whole and all(one.costs.is_known for one in mine):
            self.margin.ran(self._opening + sum(one.costs.pending for one in mine), took)
        if mine:
            self._opening = OPENING_S
        late = [now - due.due_by for due in done if due.due_by is not None]
        return max(0.0, *late) if late else None

    def _is_asked(self, one: Waiting, now: float, put_off: Collection[QueryName]) -> bool:
        """Whether the query counts now: not if put off, nor unchanged since a run."""
        if one.query in put_off:
            return False
        mark, at = self._left.get(one.query, (None, now))
        # A clock that was put back may not make the quiet longer.
        if one.query not in self._left or mark != one.pending.mark or not 0 <= now - at < _QUIET:
            return True
        return not one.pending.is_some


# Use case: maintain what is due now, or what has a point; and say when queries are due. Law: what
# is due is decided at the versions that are then maintained. A query that is not due stays as it
# is and is told so; with nothing due no lock is taken and no planner loaded. A point that no
# query has is an error, since a typing mistake would maintain nothing for ever.


def maintain_due(
    ctx: Context,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    kept: StateCache | None = None,
    *,
    look: float | None = None,
) -> Outcome:
    """Maintain those of the named queries (default: all) that are due before the next look. With
    `kept` the operator state stays in memory for a later run of this process."""
    specs = ctx.queries(queries)
    sketched = [spec for spec in specs if spec.is_sketched]
    seen = due_report(ctx, sketched, look)
    known = {spec.name: spec for spec in sketched}
    done = Outcome()
    if seen.taken:
        chosen = [known[due.query] for due in seen.taken]
        done = maintain_specs(ctx, chosen, batch_rows, kept, is_named=bool(queries))
    taken_up = {due.query for due in seen.taken}
    results = [one for one in done.results if isinstance(one, MaintainResult)]
    results += [MaintainResult(query=spec.name) for spec in specs if not spec.is_sketched]
    for one, due in zip(seen.waiting, seen.dues, strict=True):
        if due.query not in taken_up:
            results += _left(ctx, known[due.query], one, due)
    order = {spec.name: index for index, spec in enumerate(specs)}
    results.sort(key=lambda result: order[result.query])
    warnings = (*done.warnings, *seen.warnings())
    return replace(done, results=tuple(results), warnings=warnings)


def maintain_point(
    ctx: Context, point: str, batch_rows: int | None = None, kept: StateCache | None = None
) -> Outcome:
    """Maintain the queries whose trigger has this point; UsageError where none has it."""
    return maintain_specs(ctx, of_point(ctx, point), batch_rows, kept, is_named=False)


def of_point(ctx: Context, point: str) -> list[QuerySpec]:
    """The queries whose trigger has this point; UsageError where none has it."""
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
    seen = due_report(ctx, ctx.sketched(queries), look)
    return Outcome(tuple(seen.results()), tuple(seen.warnings()))


def _left(ctx: Context, spec: QuerySpec, one: Waiting, due: Due) -> list[MaintainResult]:
    """The result of a postponed query; none for one without a sketch."""
    try:
        store = ctx.reading_store()
        stored = None if store is None else store.load(spec.name)
    except ImpctlError:
        stored = None
    if stored is None:
        return []
    match = unchanged_results(ctx, stored)
    if not one.pending.is_some and one.pending.moved_at is None:
        return match
    at = (
        ""
        if due.start_at is None
        else f", a run starts {moment_text(datetime.fromtimestamp(due.start_at, UTC))}"
    )
    return [
        replace(result, reason_code=NOT_DUE, reason=f"{due.why}{at}", answer_changed=ANSWER_OPEN)
        for result in match
    ]


# Queries that failed for a reason that may pass, in the order in which they are tried again. Law:
# each query has a due time of its own, and its pauses grow from one failure to the next until a
# try goes well; queries that failed in one run are due together where they failed as often. What
# is put off holds up no other query.

_LONGEST_PAUSE = 60.0
"""Longest pause between retries in seconds, unless the first is longer."""
_MOST_DOUBLINGS = 64


class _PutOff(Struct, frozen=True):
    """A query, the time of its next try, and its failures in a row."""

    query: QueryName
    due: float
    tries: int


class Retries:
    """Queries put off; times are seconds of a monotonic clock."""

    def __init__(self, first_pause: float) -> None:
        self._first = first_pause
        self._longest = max(_LONGEST_PAUSE, first_pause)
        self._of: dict[QueryName, _PutOff] = {}
        self._by_due = SortedKeyList(key=lambda held: held.due)

    def next_due(self) -> float | None:
        """When the first of them is retried; None without any."""
        return self._by_due[0].due if self._by_due else None

    def waiting(self, now: float) -> frozenset[QueryName]:
        """Those whose time has not come."""
        later = self._by_due.irange_key(min_key=now, inclusive=(False, True))
        return frozenset(retry.query for retry in later)

    def went_well(self, query: QueryName) -> None:
        retry = self._of.pop(query, None)
        if retry is not None:
            self._by_due.remove(retry)

    def failed(self, queries: Iterable[QueryName], now: float) -> float | None:
        """Put these off; return seconds until the first retry."""
        # Processes that failed at the same moment do not come back at the same moment.
        share = random.uniform(0.5, 1.0)
        pauses = []
        for query in queries:
            before = self._of.get(query)
            tries = 0 if before is None else min(before.tries, _MOST_DOUBLINGS)
            pauses.append(share * min(self._longest, self._first * 2.0**tries))
            self.went_well(query)
            self._of[query] = _PutOff(query, now + pauses[-1], tries + 1)
            self._by_due.add(self._of[query])
        return min(pauses, default=None)


# What a following process saw at its last run, and whether there is anything new. Law: a look
# costs a few questions to the file system per table; it opens no table and no store. In doubt, a
# log that cannot be read included, there is something new: the run itself then says what.

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
        self._looked_anew: float | None = None

    def pinned(self) -> list[DeltaSource]:
        """The tables at their newest versions, for a run, without unreadable ones. From time to
        time none, so that all are opened again."""
        now, self._ends = time.monotonic(), {}
        if self._looked_anew is None or now - self._looked_anew >= _LONGEST_QUIET:
            self._looked_anew = now
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
        if self._looked_anew is None or now - self._looked_anew >= _LONGEST_QUIET:
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
    later = [at for at in result if at not in ("", NEVER) and at > ctx.clock.text(RUN_INSTANT)]
    return min(later, default=None)


def _end(known: PinnedTable) -> object:
    try:
        return log_end(known)
    except ImpctlError:
        return None


# Use case: keep stored sketches up to date for as long as the process runs. Law: each run is what
# `maintain` does, under the same policies, and takes the writer's lock only while it works;
# between runs nothing is held but memory. A query that fails stops neither the others nor the
# process: where the reason may pass (a lock, storage) it is tried again at a time of its own, and
# the others go on meanwhile. A workload file that changes ends the process, so that nothing is
# ever read again in silence.


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
        specs = ctx.sketched(queries)
        kept = StateCache(memory=memory_of(settings, ctx.workload))
        following = _Following(ctx, specs, batch_rows, request, kept=kept)
        followed = following.followed
        waits_for = f" ({followed.told()})" if followed.has_timed else ""
        reporter.step(
            f"following {', '.join(spec.name for spec in specs)} of {settings.workload}, "
            f"checking every {duration_text(request.interval * 1000)}{waits_for}"
        )
        while not stop.is_asked:
            files.check()
            ready, due = following.due()
            if ready or due:
                with stop.working():
                    following.run(ready, due, show)
            if request.max_runs is not None and following.runs >= request.max_runs:
                return
            stop.wait(following.pause())


class _Following(Struct, dict=True):
    """The runs of one process; `ctx` itself never runs, each run has its own."""

    ctx: Context
    specs: Sequence[QuerySpec]
    batch_rows: int | None
    request: FollowRequest
    kept: StateCache = field(default_factory=StateCache)
    watch: TableWatch = field(default_factory=TableWatch)
    runs: int = 0
    has_looked: bool = False
    """Whether the timetable has what the watch saw last."""

    @cached_property
    def retries(self) -> Retries:
        return Retries(self.request.interval)

    @cached_property
    def followed(self) -> FollowedQueries:
        return FollowedQueries(self.specs, self.request)

    def due(self) -> tuple[list[QueryName], list[Due]]:
        """What to run now: queries on `commit` where something is new or to be retried, and what
        the timetable has. All of the former that are not put off join every run: the watch asks
        whether a table moved since the last one, so a run must not leave one behind."""
        now, next_due = time.monotonic(), self.retries.next_due()
        waiting = self.retries.waiting(now)
        has_retry = next_due is not None and next_due <= now
        ready = [name for name in self.followed.on_commit if name not in waiting]
        is_asked = bool(ready) or self.followed.has_timed
        is_new = is_asked and (has_retry or self.watch.is_due(self.ctx))
        if self.followed.has_timed and (is_new or not self.has_looked):
            self._look()
        due = self.followed.due(self.ctx, waiting)
        for name in self.followed.timed.difference(waiting, (one.query for one in due)):
            # Put off no more, and yet not due: another process maintained it.
            self.retries.went_well(name)
        return (ready if is_new or due else []), due

    def pause(self) -> float:
        """Seconds until the next look, or the next start."""
        next_due, start = self.retries.next_due(), self.followed.pause(self.ctx)
        pauses = [self.request.interval]
        if next_due is not None:
            pauses.append(max(0.0, next_due - time.monotonic()))
        if start is not None:
            pauses.append(start)
        return min(pauses)

    def run(self, ready: Sequence[QueryName], due: Sequence[Due], show: Show) -> None:
        """Run these queries; show the run if it had anything to do."""
        at, watch = datetime.now(UTC), Stopwatch()
        queries = [*ready, *(one.query for one in due)]
        outcome, retry, late_ms = self._maintained(queries, due)
        elapsed_ms = watch.ms
        done = tuple(
            result
            for result in outcome.results
            if not isinstance(result, MaintainResult) or result.action != "none"
        )
        if not done and not outcome.failures:
            self.ctx.reporter.step("waiting for changes: nothing new")
            return
        self.runs += 1
        decisive = most_severe(outcome)
        entry = FollowedRun(
            number=self.runs,
            started_at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            elapsed_ms=elapsed_ms,
            exit_code=0 if decisive is None else decisive.error.exit_code,
            retry_ms=None if retry is None else retry * 1000,
            late_ms=late_ms,
        )
        warnings = (*outcome.warnings, *self.followed.warnings())
        show(replace(outcome, results=done, warnings=warnings), entry)
        self.ctx.reporter.step(f"waiting for changes, {self.runs} runs so far")

    def _look(self) -> None:
        """Look at what is pending, without a run; what could not be read stays new."""
        ctx = self.ctx.next_run(self.watch.pinned())
        try:
            self.has_looked = self.followed.look(ctx)
            if self.has_looked:
                self.watch.saw(ctx)
            for text in self.followed.untold():
                self.ctx.reporter.step(text)
        finally:
            ctx.close()
            self.ctx.take_spark_of(ctx)

    def _maintained(
        self, queries: Sequence[QueryName], due: Sequence[Due]
    ) -> tuple[Outcome, float | None, float | None]:
        """Run `maintain`, catching its failure; return also the pause until a retry, and the
        delay."""
        ctx, watch = self.ctx.next_run(self.watch.pinned()), Stopwatch()
        try:
            try:
                outcome = maintain(ctx, queries, self.batch_rows, self.kept)
            except UsageError:
                raise
            except ImpctlError as error:
                outcome = Outcome(failures=(Failure(None, error),))
            temporary = [one for one in outcome.failures if isinstance(one.error, RetryableError)]
            put_off = _failed(queries, temporary)
            for name in set(queries).difference(put_off):
                self.retries.went_well(name)
            retry = self.retries.failed(put_off, time.monotonic())
            names = {one.query for one in due}
            # Sketches of one query share their time.
            took = {
                result.query: result.elapsed_ms
                for result in outcome.results
                if isinstance(result, MaintainResult) and result.query not in names
            }
            late_ms = self.followed.ran(
                self.ctx,
                due,
                max(0.0, watch.ms - sum(took.values())) / 1000,
                failed=_failed(queries, outcome.failures),
                put_off=self.retries.waiting(time.monotonic()),
            )
            if self.followed.has_timed:
                self.has_looked = self.followed.look(ctx)
            return outcome, retry, late_ms
        finally:
            ctx.close()
            self.watch.saw(ctx)
            self.ctx.take_spark_of(ctx)


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
