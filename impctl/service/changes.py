"""The rows of a materialized result that were inserted and deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.compile.flows import BlockedError
from impctl.errors import ImpctlError, RetryableError, UsageError
from impctl.service.answer import engine_cannot, engine_rows
from impctl.service.capture import captured_query
from impctl.service.context import Context, Reporter, Versions, open_context
from impctl.service.decide import (
    NOT_INCREMENTALLY,
    SharedChanges,
    StaleQuery,
    needs_of,
    open_task,
)
from impctl.service.filters import filters_of
from impctl.service.formats import check_goal, shown
from impctl.service.memory_limit import MemoryLimit, within_memory
from impctl.service.prepare import PreparedQuery, prepare
from impctl.service.resolve import reporting_lost_versions, versions_at
from impctl.service.result_changes import (
    NO_ROWS,
    ChangeWriter,
    RowsOf,
    changes_between,
    check_materialized,
    stored_rows,
    whole_answer,
)
from impctl.service.results import ChangesResult, FollowedRun, Outcome
from impctl.service.schedule.daemon import Files, StopRequest, TableWatch
from impctl.service.step import Maintainer
from impctl.service.stored import (
    catch_up,
    check_not_replaced_meanwhile,
    check_pins,
    moved_meanwhile,
    moved_moments,
    stored_moments,
)
from impctl.service.text import duration_text
from impctl.stopwatch import Stopwatch
from impctl.workload.models import AnsweredBy, QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.service.maintenance_plan import QueryState
    from impctl.service.settings import AtVersions, FollowRequest, Settings
    from impctl.store.reader import StoreReader
    from impctl.store.records import StoredQuery
    from impctl.types import QueryName


# Law: writes nothing and starts no Spark. Stored rows are advanced in memory if `maintain` could do
# so without help; else, and between older versions, the engine computes what is missing from files.
# What neither can compute is an error, never a guess.


# A materialized result is advanced in memory, without a commit. Law: a step is the one that
# `maintain` makes; what needs Spark or a recapture is not done but reported
# (`NotMaintainableError`).


class NotMaintainableError(ImpctlError):
    """The state cannot be maintained without a recapture or Spark; never leaves the application."""


class FollowedAnswer:
    """A query's last answer and its next changes; RetryableError if the store changes meanwhile."""

    def __init__(self, ctx: Context, spec: QuerySpec) -> None:
        """UsageError if no rows are kept."""
        self._spec = spec
        self._stored = captured_query(ctx, ctx.reading_store(), spec)
        check_materialized(spec, self._stored)
        catch_up(ctx.tables, self._stored)
        self._since: Versions = self._stored.versions
        self._state: QueryState | None = None
        """The state with its rows, ahead of the store by changes read so far."""
        self._rows: RowsOf | None = None
        """Rows of the last answer, if there is no state."""
        self._why = ""

    def whole(self, ctx: Context) -> ChangesResult:
        answer = whole_answer(self._materialized(ctx), ctx.session_zone)
        return self._by_state(answer, {}, self._stored, "from the materialized result")

    def next(self, ctx: Context) -> ChangesResult:
        if self._rows is None:
            try:
                return self._advanced(ctx)
            except NotMaintainableError as trouble:
                self._why = trouble.message
                if self._rows is None:
                    # A first step may follow the clock: then the state is of another time.
                    self._rows = self._materialized(ctx)
        return self._compared(ctx, self._rows)

    def _advanced(self, ctx: Context) -> ChangesResult:
        """Changes up to the pinned versions, by the state. NotMaintainableError if they cannot be
        computed; then the rows of the last answer are noted, unless the store has them."""
        is_first = self._state is None
        if self._state is None:
            task = self._restored(ctx)
        else:
            check_pins(self._state.stored, ctx.tables)
            task = StaleQuery(self._spec, self._state.stored, self._state)
        # A state that a failed step touched is not used again.
        state, self._state = task.state, None
        assert state is not None
        assert state.plan.answer is not None
        assert state.plan.compiled is not None
        kept = state.plan.compiled.kept
        assert kept is not None
        before, ending, zone = state.versions, state.plan.answer.ending, ctx.session_zone
        collected: list[pa.Table] = []
        answer = None if task.move is None else task.move.answer
        writer = ChangeWriter(lambda _, rows: collected.append(rows), zone, state.plan, answer)
        try:
            if task.move is None and moved_moments(ctx, state.stored):
                raise NotMaintainableError("a time-dependent constant changed")
            needs = needs_of(ctx.tables, state)
            if needs or task.move is not None:
                shared = SharedChanges(ctx.tables, ctx.reporter)
                shared.announce(needs)
                deltas = tuple(map(shared.delta, needs))
                check_not_replaced_meanwhile(state.stored, ctx.tables)
                maintainer = Maintainer(ctx, None, state, task.move, writer)
                maintainer.step(deltas, reason_code="incremental", reason="")
        except ImpctlError as trouble:
            if isinstance(trouble, RetryableError) and not (is_first or writer.has_begun):
                self._state = state
            elif not is_first:
                self._rows = RowsOf(ending, writer.rows_before(), kept.bounded)
                self._why = trouble.message
            if isinstance(trouble, (NotMaintainableError, *NOT_INCREMENTALLY)):
                raise NotMaintainableError(trouble.message) from trouble
            raise
        self._state = state
        if not collected:
            nothing = RowsOf(ending, NO_ROWS, kept.bounded)
            collected.append(changes_between(nothing, nothing, zone))
        self._since = dict(state.versions)
        how = "from the materialized result, after maintaining it"
        return self._by_state(collected[0], before, state.stored, how)

    def _by_state(
        self, answer: pa.Table, since: Versions, stored: StoredQuery, reason: str
    ) -> ChangesResult:
        return ChangesResult(
            answer=answer,
            query=self._spec.name,
            since=since,
            versions=self._since,
            by=AnsweredBy.STATE,
            by_reason=reason,
            moments=stored_moments(stored),
        )

    def _restored(self, ctx: Context) -> StaleQuery:
        """The stored state, opened; NotMaintainableError if impossible."""
        store = ctx.reading_store()
        assert store is not None
        task = open_task(ctx, store, self._spec, self._stored)
        if task.state is None:
            assert task.trouble is not None
            raise NotMaintainableError(task.trouble.message)
        plan = task.state.plan
        if plan.answer is None:
            raise NotMaintainableError(plan.no_answer or plan.reason)
        if plan.compiled is not None and plan.compiled.asks_spark:
            raise NotMaintainableError("Spark reads a side of a join")
        self._check_unmoved(store)
        return task

    def _materialized(self, ctx: Context) -> RowsOf:
        store = ctx.reading_store()
        assert store is not None
        rows = stored_rows(ctx, store, self._spec, self._stored)
        self._check_unmoved(store)
        return rows

    def _check_unmoved(self, store: StoreReader) -> None:
        now = store.load(self._spec.name)
        if now is None or now.generation != self._stored.generation:
            raise moved_meanwhile(self._spec.name)

    def _compared(self, ctx: Context, before: RowsOf) -> ChangesResult:
        prepared = prepare(ctx, self._spec)
        with within_memory(ctx) as limit:
            after = _by_engine(ctx, limit, prepared)
        _check_same_columns(self._spec, before, after)
        since, versions = self._since, ctx.tables.versions_of(prepared.tables)
        self._rows, self._since = after, versions
        return ChangesResult(
            answer=changes_between(before, after, ctx.session_zone),
            query=self._spec.name,
            since=since,
            versions=versions,
            by=AnsweredBy.ENGINE,
            by_reason=f"the state could not be maintained: {self._why}",
            moments=prepared.moments,
        )


def changed_since(ctx: Context, spec: QuerySpec, at: AtVersions) -> ChangesResult:
    """Changes since older versions of the tables, from two answers of the engine."""
    prepared = prepare(ctx, spec)
    versions = versions_at(spec, prepared.tables, at, ctx.workload.names, option="--since")
    past = ctx.next_run(())
    for table, version in versions.items():
        newest = ctx.tables.source(table).version
        if version > newest:
            raise UsageError(
                f"Table `{table}` has no version {version} yet: it is at version {newest}",
                hint=f"give a version up to {newest}",
                code="since_newer",
            )
        with reporting_lost_versions("--since"):
            past.tables.pin_at(table, version)
    # At one instant, so that only changes by commits are reported.
    prepared_then = prepare(past, spec, prepared.moments)
    with within_memory(ctx) as limit:
        with reporting_lost_versions("--since"):
            before = _by_engine(past, limit, prepared_then)
        after = _by_engine(ctx, limit, prepared)
        _check_same_columns(spec, before, after)
        changes = changes_between(before, after, ctx.session_zone)
    return ChangesResult(
        answer=changes,
        query=spec.name,
        since=versions,
        versions=ctx.tables.versions_of(prepared.tables),
        by=AnsweredBy.ENGINE,
        by_reason="no result is stored for these versions, so both results were computed",
        moments=prepared.moments,
    )


def _by_engine(ctx: Context, limit: MemoryLimit, prepared: PreparedQuery) -> RowsOf:
    """The answer's rows over the pinned tables; QueryError if the engine cannot compute them."""
    versions = ctx.tables.versions_of(prepared.tables)
    pruned = filters_of(ctx.tables, prepared, (), versions)
    ctx.reporter.step(f"running {prepared.spec.name}")
    try:
        return engine_rows(ctx, limit, prepared, pruned)
    except BlockedError as blocked:
        hint = (
            "materialize its result (`answer: true`) if `impctl explain` shows that this is "
            "possible, or compare the results of two runs of `impctl query --out`"
        )
        raise engine_cannot(prepared, blocked, hint) from None


def _check_same_columns(spec: QuerySpec, before: RowsOf, after: RowsOf) -> None:
    """UsageError if the answers' columns differ, for example after a column changed its type."""
    forms = [
        [(output.attribute.name, output.attribute.type) for output in rows.ending.outputs]
        for rows in (before, after)
    ]
    if forms[0] != forms[1]:
        raise UsageError(
            f"The result of query `{spec.name}` has other columns now than at the older versions",
            hint="get the whole result with `impctl query`",
            code="answer_columns",
            location=spec.location,
        )


# Law: only reads: no lock is taken and Spark is not started. Applied to the answer at the store's
# versions, the changes give the answer at the newest, copy for copy.

_ATTEMPTS = 10
"""Attempts while other processes advance the store."""


def changes(
    ctx: Context,
    query: QueryName | None,
    since: AtVersions | None = None,
    *,
    whole: bool = False,
    limit: int | None = None,
    out: Path | None = None,
    escape_formulas: bool = False,
) -> Outcome:
    """Report changes of a query's answer between the store's versions and now. `since` gives the
    first versions; `whole` reports the stored answer itself. `limit` is the number of rows shown or
    written to the file `out`; `escape_formulas` keeps a spreadsheet from evaluating them."""
    if whole and since is not None:
        raise UsageError(
            "`--all` excludes `--since`: it returns the current materialized result only",
            hint="remove one of them; `impctl query --at` answers at older versions",
        )
    if out is not None:
        # Before anything slow.
        check_goal(out, ctx.reserved)
    spec = ctx.query(query)
    watch = Stopwatch()
    result = _read(ctx, spec, since, whole=whole)
    result = replace(result, elapsed_ms=watch.ms)
    return Outcome((shown(result, limit, out, escape_formulas=escape_formulas),))


def _read(ctx: Context, spec: QuerySpec, since: AtVersions | None, *, whole: bool) -> ChangesResult:
    if since is not None:
        return changed_since(ctx, spec, since)
    for attempt in range(_ATTEMPTS):
        try:
            answer = FollowedAnswer(ctx, spec)
            return answer.whole(ctx) if whole else answer.next(ctx)
        except RetryableError as error:
            if error.code != "sketch_moved" or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


# Law: each look reports changes since the one before, so that together they lead from the store's
# versions to the newest. Problems that may pass (storage, a table replaced during a read) are
# retried; any other ends the process, because later changes would not follow from earlier ones.

ShowChanges = Callable[[ChangesResult, FollowedRun], None]
"""Called for every look that finds a change, and for a whole answer."""


def follow_changes(
    settings: Settings,
    query: QueryName | None,
    request: FollowRequest,
    *,
    whole: bool,
    reporter: Reporter,
    stop: StopRequest,
    show: ShowChanges,
) -> None:
    """Report changes of one query's answer until interrupted, after the answer if `whole`."""
    files, watch, reported = Files.of(settings), TableWatch(), 0

    def report(find: Callable[[], ChangesResult]) -> None:
        nonlocal reported
        at, took = datetime.now(UTC), Stopwatch()
        result = find()
        if result.row_count:
            reported += 1
            result = replace(result, elapsed_ms=took.ms)
            started = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            show(result, FollowedRun(reported, started, result.elapsed_ms, 0))

    with open_context(settings, reporter) as ctx:
        spec = ctx.query(query)
        answer = FollowedAnswer(ctx, spec)
        reporter.step(
            f"following the result of {spec.name}, checking every "
            f"{duration_text(request.interval * 1000)}"
        )
        if whole:
            report(partial(answer.whole, ctx))
        while not stop.is_asked:
            files.check()
            if request.max_runs is not None and reported >= request.max_runs:
                return
            if watch.is_due(ctx):
                with stop.working():
                    now = ctx.next_run(watch.pinned())
                    try:
                        report(partial(answer.next, now))
                    except RetryableError as error:
                        if error.code == "sketch_moved":
                            raise
                        reporter.step(f"waiting to check again: {error.message}")
                    else:
                        watch.saw(now)
                    finally:
                        now.close()
            stop.wait(request.interval)
