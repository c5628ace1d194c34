"""When queries are due: what is pending, what their triggers say, and when a run must start."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.errors import ImpctlError
from impctl.forecast import Commit
from impctl.service.results import DueResult, FreshEntry
from impctl.service.schedule.forecast import Expectations, expectations
from impctl.service.stored import catch_up, expires, is_captured_alike, is_current, moved_moments
from impctl.service.text import duration_text
from impctl.sql.parameters import NEVER, RUN_INSTANT, read_moment, zone_of
from impctl.store.records import RunCost, RunKind, StoredQuery, TablePin
from impctl.tables.log import ChangeSize, commits_since
from impctl.workload.models import ON_COMMIT, QuerySpec, SimpleTrigger, Trigger
from impctl.workload.scalars import written

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.store.reader import StoreReader
    from impctl.tables.source import DeltaSource
    from impctl.types import QueryName, TableName, TableVersion

# Law: an instant is in seconds since 1970 and is the first one not before the start. A local
# crontab time that does not exist is the instant at which the clock moves forward; one that occurs
# twice is its first occurrence. Multiples count elapsed time since midnight, so they keep their
# pace on such days.

AN_INSTANT = 1e-5
"""Seconds to the search for the next moment; floats decades away differ by a fortieth of it."""

_SECOND = timedelta(seconds=1)
_MIDNIGHT = time()


def next_moment(trigger: Trigger, since: float) -> float | None:
    """The first moment of the trigger's `every` or `cron` not before `since`; None without them."""
    if trigger.every is None and trigger.cron is None:
        return None
    return _next_moment(trigger, since)


@lru_cache(maxsize=64)
def _next_moment(trigger: Trigger, since: float) -> float | None:
    """Cached, since many queries have one trigger and ask at one time."""
    moment = datetime.fromtimestamp(since, UTC)
    if trigger.every is not None:
        return _next_multiple(timedelta(seconds=trigger.every), trigger.zone, moment).timestamp()
    assert trigger.cron is not None
    # From just before: what the clock jumps over then is after that in local time.
    local = (moment - _SECOND).astimezone(trigger.zone).replace(tzinfo=None)
    instants = (instant_of(local_time, trigger.zone) for local_time in trigger.cron.after(local))
    result = next((instant for instant in instants if instant >= moment), None)
    return None if result is None else result.timestamp()


def last_moment(trigger: Trigger, since: float, before: float) -> float | None:
    """The last moment of the trigger's clock after `since` and before `before`; None without one.
    Bisection, so the cost does not depend on the number of moments between."""
    result = next_moment(trigger, since + AN_INSTANT)
    if result is None or result >= before:
        return None
    end = before
    while (following := next_moment(trigger, result + AN_INSTANT)) is not None and following < end:
        result = following
        middle = next_moment(trigger, (result + end) / 2)
        if middle is not None and middle < before:
            result = middle
        else:
            # None lies between the middle and what it is before.
            end = (result + end) / 2
    return result


def instant_of(local: datetime, zone: tzinfo) -> datetime:
    """The first UTC instant of this local time, or of the clock's jump over it."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == local:
        return first
    # Within a gap the offset before it leads beyond the jump, the offset after it before the jump.
    late, early = first, local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    after = late.astimezone(zone).utcoffset()
    while late - early > _SECOND:
        middle = early + (late - early) // 2
        middle = middle.replace(microsecond=0)
        if middle <= early:
            break
        if middle.astimezone(zone).utcoffset() == after:
            late = middle
        else:
            early = middle
    return late


def _next_multiple(every: timedelta, zone: tzinfo, moment: datetime) -> datetime:
    """The first multiple since its local midnight; midnight itself is one."""
    day = moment.astimezone(zone).date()
    while (start := _midnight(day, zone)) > moment:
        day -= timedelta(days=1)
    while (following := _midnight(day + timedelta(days=1), zone)) <= moment:
        day += timedelta(days=1)
        start = following
    passed = -((start - moment) // every)
    return min(start + passed * every, following)


def _midnight(day: date, zone: tzinfo) -> datetime:
    return instant_of(datetime.combine(day, _MIDNIGHT), zone)


# Pending commits of a query. Law: by the store and the tables' logs, without SQL or data. Times
# never decrease and are never in the future: an impossible time is that of the commit before, or
# unknown. It may not be now, since now moves with each look and a bound from there would never end.
# What the logs do not show (another table at the path, a changed definition) is `unsure`, and
# unsure queries are maintained.

_TOLERATED = 5.0
"""Clock difference of two machines in seconds: so much ahead is now."""


class PendingChange(Struct, frozen=True):
    """A commit, or the clock that moved: seconds since 1970, rows (None: unknown) and bytes."""

    at: float
    rows: int | None
    bytes: int = 0


class PendingChanges(Struct, frozen=True):
    """Changes by their times; `unsure` says why some may be missing, None if none are. `moved_at`
    is the time of the first version missing from the sketch, even if it changes no row. `mark` is
    equal for equal pending changes. `moved` are the tables that changed."""

    changes: tuple[PendingChange, ...] = ()
    unsure: str | None = None
    moved_at: float | None = None
    mark: object = None
    moved: frozenset[TableName] = frozenset()

    @property
    def oldest(self) -> float | None:
        return self.changes[0].at if self.changes else None

    @property
    def is_some(self) -> bool:
        """Whether a sketch may lack rows."""
        return bool(self.changes) or self.unsure is not None

    @property
    def rows(self) -> int | None:
        """Rows of all changes; None if one is unknown."""
        rows = [change.rows for change in self.changes if change.rows is not None]
        return sum(rows) if len(rows) == len(self.changes) else None

    @property
    def bytes(self) -> int:
        return sum(change.bytes for change in self.changes)


class CommitLog(Struct):
    """Cached commits: a long-running process reads each once."""

    _known: dict[tuple[TableName, str], dict[TableVersion, Commit]] = field(default_factory=dict)

    def since(self, source: DeltaSource, version: TableVersion) -> tuple[Commit, ...] | None:
        known = self._known.setdefault((source.name, source.table_id), {})
        result = commits_since(source, version, known)
        known.update({commit.version: commit for commit in result or ()})
        return result

    def __len__(self) -> int:
        return sum(len(known) for known in self._known.values())

    def keep(self, pins: Iterable[TablePin]) -> None:
        """Forget all but the commits after one of these versions."""
        least: dict[TableName, TableVersion] = {}
        for pin in pins:
            least[pin.table] = min(pin.version, least.get(pin.table, pin.version))
        for (table, _), known in self._known.items():
            for version in [v for v in known if table not in least or v <= least[table]]:
                del known[version]


def pending_of(
    ctx: Context, spec: QuerySpec, stored: StoredQuery | None, now: float, log: CommitLog
) -> PendingChanges:
    """What the query's sketch lacks at the pinned versions."""
    if stored is None:
        return PendingChanges(unsure="it was never captured", mark="not captured")
    try:
        return _pending(ctx, spec, stored, now, log)
    except ImpctlError as error:
        return PendingChanges(unsure=error.message, mark=error.message)


def _pending(
    ctx: Context, spec: QuerySpec, stored: StoredQuery, now: float, log: CommitLog
) -> PendingChanges:
    catch_up(ctx.tables, stored)
    moved = moved_moments(ctx, stored)
    # Of expiry there is a new instant at each look, though nothing else need be pending.
    others = {name: values for name, values in moved.items() if name != RUN_INSTANT}
    shown = {**others, **dict.fromkeys(moved.keys() & {RUN_INSTANT})}
    mark = (stored.generation, tuple(ctx.tables.versions_of(stored.versions).items()), str(shown))
    if not is_captured_alike(ctx, spec, stored):
        return PendingChanges(unsure="the query or impctl changed since the capture", mark=mark)
    if is_current(stored, ctx.tables) and not moved:
        return PendingChanges(mark=mark)
    changes: list[PendingChange] = []
    tables: set[TableName] = set()
    moved_at: list[float] = []
    for pin in stored.pins:
        source = ctx.tables.source(pin.table)
        is_other = source.table_id != pin.table_id or source.version < pin.version
        commits = None if is_other else log.since(source, pin.version)
        if commits is None:
            return PendingChanges(
                unsure=f"the log of table `{pin.table}` does not show it", mark=mark
            )
        times_in_log = [commit.at for commit in commits]
        first = times_in_log[0] if times_in_log else now
        if stored.maintained_at > now and (first is None or first > now + _TOLERATED):
            # The clock was put back, so the sketch says no more than the commit.
            why = f"the times of the changes of table `{pin.table}` are unknown"
            return PendingChanges(unsure=why, mark=mark)
        times = in_order(times_in_log, stored.maintained_at, now)
        moved_at += times[:1]
        tables.update([pin.table] if commits else [])
        changes += [
            PendingChange(moment, commit.rows, commit.bytes)
            for moment, commit in zip(times, commits, strict=True)
            if not commit.only_moves
        ]
    if moved:
        # The known time of the first expired row still in the sketch.
        until = expires(stored)
        expired = now
        if until not in ("", NEVER):
            expired = datetime.fromisoformat(until).timestamp()
        left_at = min(
            expired if name == RUN_INSTANT else _left_at(before, to, ctx.session_zone)
            for name, (before, to) in moved.items()
        )
        changes.append(PendingChange(min(left_at, now), None))
        moved_at.append(min(left_at, now))
    if not moved_at:
        # Versions are the stored ones, and yet it is not current: it has another log.
        return PendingChanges(
            unsure="a table is not the one the sketch was captured from", mark=mark
        )
    ordered = tuple(sorted(changes, key=lambda change: change.at))
    return PendingChanges(ordered, None, min(moved_at), mark, frozenset(tables))


def in_order(times: Iterable[float | None], since: float, now: float) -> list[float]:
    """Times of commits in ascending order, none after `now`. A commit without a time, or with one
    in the future, takes that of the one before it; the first one takes the last maintenance
    (`since`), its earliest possible time."""
    result: list[float] = []
    for moment in times:
        known = result[-1:]
        if moment is not None and moment <= now + _TOLERATED:
            known.append(moment)
        result.append(min(max(known, default=since), now))
    return result


def _left_at(before: str, to: str, zone: str) -> float:
    """When a moment changed its value, as far as its values show."""
    was, now = read_moment(before), read_moment(to)
    if isinstance(was, datetime) or isinstance(now, datetime):
        assert isinstance(now, datetime)
        return now.astimezone(UTC).timestamp()
    following: date = was + timedelta(days=1)
    return datetime.combine(following, time(), zone_of(zone)).timestamp()


# When a run has to start. For queries with something pending:
#
#     start(q) = deadline(q) - margin * (opening + work until deadline(q)) - look
#
# where the work is the cost of all queries with no later deadline. A deadline is `fresh_within`
# after the oldest pending commit, or the end of `ready_within` after a moment. Other triggers (a
# commit, a number of rows, a clock moment) start when they occur. Law: pure, all in seconds,
# instants since 1970. A start meets its deadline as far as costs and margin are right; with several
# keys the first start counts.

CHEAP_S = 1.0
"""A shorter run may start before it is due, where `cheap` says so."""

_ALONG = 0.1
"""The share of its bound by which a query may be maintained early to join another one's run."""


class Costs(Struct, frozen=True):
    """Seconds of maintenance: for what is pending, for rows `expected` until the next moment, and
    for the rows of one look. `is_known`: from recorded runs; `longest` of these."""

    pending: float
    expected: float = 0.0
    each_look: float = 0.0
    longest: float = 0.0
    is_known: bool = True


class Waiting(Struct, frozen=True):
    """A query, its trigger, what is pending, the cost of that, and its last maintenance."""

    query: QueryName
    trigger: Trigger
    pending: PendingChanges
    costs: Costs
    last: float | None = None


class Pace(Struct, frozen=True):
    """How runs go: the cost of opening one, the error factor of costs, the pause between looks."""

    opening: float
    margin: float
    look: float


class Due(Struct, frozen=True):
    """When a query is due, and why; None never comes by itself, or has no bound. `due_at` is what
    the trigger names: a commit, a moment, the end of a bound; `due_by` the deadline; `start_at`
    when a run starts for it. `is_pending`: there is something to do; `early`: only sharing a run or
    idle time starts it now."""

    query: QueryName
    why: str
    due_at: float | None = None
    due_by: float | None = None
    start_at: float | None = None
    is_pending: bool = False
    early: str = ""

    def is_now(self, now: float) -> bool:
        """Whether a run has to start for it."""
        return self.is_pending and self.start_at is not None and self.start_at <= now


class _Reason(Struct, frozen=True):
    """One reason to maintain: its time, its deadline, and how long before that to start. A run has
    to start `ahead` of the deadline; `at` is the start without a deadline. `left` is what a moment
    may leave undone."""

    why: str
    at: float
    deadline: float | None = None
    left: float | None = None


def dues(waiting: Sequence[Waiting], pace: Pace, now: float) -> list[Due]:
    """When each is due, in the order given."""
    reasons = [list(_reasons(query, now)) for query in waiting]
    work_until = _work_until(
        (min((reason.deadline or reason.at) for reason in result), query.costs.pending)
        for query, result in zip(waiting, reasons, strict=True)
        if result and query.pending.is_some
    )
    return [
        _due(query, result, work_until, pace, now)
        for query, result in zip(waiting, reasons, strict=True)
    ]


def chosen_for_run(
    result: Sequence[Due],
    waiting: Sequence[Waiting],
    now: float,
    failed: Collection[QueryName] = (),
) -> list[Due]:
    """What a run that starts now maintains, the earliest deadline first; empty for no run. Due
    queries are joined by those whose start comes within a tenth of their bound, unless all due ones
    `failed` last time; if nothing is due, by the cheap ones."""
    of = {query.query: query for query in waiting}
    chosen = [due for due in result if due.is_now(now)]
    if not chosen:
        for due in result:
            trigger, costs = of[due.query].trigger, of[due.query].costs
            if due.is_pending and trigger.cheap and costs.is_known and costs.pending < CHEAP_S:
                chosen.append(replace(due, early="cheap, and nothing else is due"))
    elif any(due.query not in failed for due in chosen):
        known = {due.query for due in chosen}
        for due in result:
            bound = of[due.query].trigger.fresh_within
            has_bound = bound is not None and due.due_by is not None and due.due_by == due.due_at
            if due.query in known or not due.is_pending or due.start_at is None or not has_bound:
                continue
            # Its start is so near that sharing the reading of changes pays.
            if due.start_at - now <= _ALONG * (bound or 0.0):
                chosen.append(replace(due, early="shares a run with other queries"))

    def deadline(due: Due) -> float:
        times = (due.due_by, due.due_at, due.start_at)
        return next((moment for moment in times if moment is not None), float("inf"))

    return sorted(chosen, key=deadline)


WorkUntil = Callable[[float], float]
"""Work by deadlines: the cost of all queries with a deadline up to a time."""


def _work_until(costs: Iterable[tuple[float, float]]) -> WorkUntil:
    ordered = sorted(costs)
    deadlines = [deadline for deadline, _ in ordered]
    sums = [0.0, *accumulate(cost for _, cost in ordered)]
    return lambda deadline: sums[bisect_right(deadlines, deadline)]


def _reasons(query: Waiting, now: float) -> Iterator[_Reason]:
    """The trigger's reasons for what is pending, one per key; none of `use` and `point`."""
    trigger, pending = query.trigger, query.pending
    if pending.unsure is not None:
        if trigger.alone is not SimpleTrigger.USE and not _is_point_alone(trigger):
            yield _Reason(pending.unsure, now)
        return
    if trigger.is_on_commit and pending.moved_at is not None:
        yield _Reason("at the next check after a commit", pending.moved_at)
    oldest = pending.oldest
    if oldest is not None and trigger.fresh_within is not None:
        deadline = oldest + trigger.fresh_within
        yield _Reason(f"fresh_within {written(trigger.fresh_within)}", deadline, deadline)
    if trigger.rows is not None:
        enough_at = _enough_at(pending, trigger.rows)
        if enough_at is not None:
            yield _Reason(f"{trigger.rows:,} rows are pending", enough_at)
    moment = next_moment(trigger, now if oldest is None else oldest)
    if moment is not None:
        clock = f"every {written(trigger.every)}" if trigger.every is not None else "cron"
        left = trigger.ready_within
        yield _Reason(clock, moment, None if left is None else moment + left, left)


def _is_point_alone(trigger: Trigger) -> bool:
    clocks = (trigger.rows, trigger.every, trigger.cron, trigger.fresh_within)
    return trigger.point is not None and all(clock is None for clock in clocks)


def _enough_at(pending: PendingChanges, rows: int) -> float | None:
    """When so many rows were pending; a change with unknown rows counts as enough."""
    counted = 0
    for change in pending.changes:
        if change.rows is None:
            return change.at
        counted += change.rows
        if counted >= rows:
            return change.at
    return None


def _due(
    query: Waiting, reasons: Sequence[_Reason], work_until: WorkUntil, pace: Pace, now: float
) -> Due:
    trigger = query.trigger
    is_pending = query.pending.is_some or (
        trigger.is_on_commit and query.pending.moved_at is not None
    )
    result = [_due_by(query, reason, work_until, pace, is_pending=is_pending) for reason in reasons]
    if is_pending and trigger.ready_within is not None and _is_point_alone(trigger):
        needed = pace.margin * (pace.opening + query.costs.pending)
        oldest = query.pending.oldest
        if needed > trigger.ready_within and oldest is not None:
            why = f"more than ready_within {written(trigger.ready_within)} is pending"
            result.append(Due(query.query, why, oldest, None, now, is_pending=True))
    if not result:
        if trigger.alone is SimpleTrigger.USE:
            why = "use: when its sketch is used, or when `maintain` names the query"
        elif _is_point_alone(trigger):
            why = f"point: on `maintain --point {trigger.point}`"
        elif not query.pending.is_some:
            why = "nothing is pending"
        else:
            why = f"{query.pending.rows or 0:,} of {trigger.rows or 0:,} rows are pending"
        return Due(query.query, why, is_pending=is_pending)
    return min(result, key=lambda due: float("inf") if due.start_at is None else due.start_at)


def _due_by(
    query: Waiting, reason: _Reason, work_until: WorkUntil, pace: Pace, *, is_pending: bool
) -> Due:
    why, start = reason.why, reason.at
    work = 0.0
    if not is_pending:
        why = f"nothing is pending; next: {reason.why}"
    elif reason.deadline is not None:
        work = pace.margin * (pace.opening + work_until(reason.deadline))
        if reason.left is None:
            start = reason.deadline - work - pace.look
    due = Due(query.query, why, reason.at, reason.deadline, start, is_pending)
    if not is_pending or reason.left is None:
        return due
    work += pace.margin * query.costs.expected
    early, is_too_much = reason.at - work, work > reason.left
    # Once is as late as possible; a run that was made since then did what could be done ahead.
    if is_too_much and (query.last is None or query.last < early):
        return replace(due, start_at=early, why=f"{reason.why}, started early for ready_within")
    return due


def shortest_bounds(query: Waiting, pace: Pace) -> list[tuple[str, str]]:
    """Codes and texts of bounds that cannot be met, each with the shortest that can."""
    result = []
    fresh, ready = query.trigger.fresh_within, query.trigger.ready_within
    usual = max(query.costs.longest, query.costs.each_look)
    if fresh is not None and fresh < max(query.costs.longest, pace.look):
        least = pace.look + pace.margin * (pace.opening + usual)
        step = f" and a step of {duration_text(usual * 1000)}" if usual > 0 else ""
        text = (
            f"query `{query.query}` cannot meet fresh_within {written(fresh)}: a check "
            f"every {duration_text(pace.look * 1000)}{step} take at least "
            f"{duration_text(least * 1000)}, including opening a run and a safety "
            f"factor of {pace.margin:g}"
        )
        result.append(("fresh_impossible", text))
    least_ready = pace.margin * (pace.opening + query.costs.each_look)
    if ready is not None and least_ready > ready:
        text = (
            f"query `{query.query}` cannot meet ready_within {written(ready)}: opening a "
            "run and processing the rows of one check may take "
            f"{duration_text(least_ready * 1000)}"
        )
        result.append(("ready_impossible", text))
    return result


# Law: reads the store and the tables' logs, never a data file. With nothing pending it reads no
# more than a run with nothing to do, except the histories of tables for queries with
# `ready_within`.


def trigger_of(spec: QuerySpec) -> Trigger:
    """The query's trigger; each commit by default."""
    return ON_COMMIT if spec.trigger is None else spec.trigger


def waiting_queries(
    ctx: Context,
    specs: Sequence[QuerySpec],
    look: float,
    log: CommitLog,
    triggers: Mapping[QueryName, Trigger] | None = None,
) -> list[Waiting]:
    """What waits for each of the queries, at the versions pinned now. `look` is the time until the
    next look in seconds; `triggers` are by query, None for their own."""
    from impctl.service.cost_model import recorded

    store, now = ctx.reading_store(), ctx.now()
    stored_queries = {spec.name: stored_of(store, spec) for spec in specs}
    if triggers is None:
        triggers = {spec.name: trigger_of(spec) for spec in specs}
    runs_of = {
        name: recorded(store, stored) if store is not None and stored is not None else ()
        for name, stored in stored_queries.items()
    }
    # Expected rows matter if a query must be ready at a moment and costs are known.
    ready = [
        stored
        for name, stored in stored_queries.items()
        if stored is not None and runs_of[name] and triggers[name].ready_within
    ]
    names = sorted({table for stored in ready for table in stored.versions})
    coming = expectations(ctx, store, names, now=now) if names else None
    result: list[Waiting] = []
    pins: list[TablePin] = []
    for spec in specs:
        stored = stored_queries[spec.name]
        trigger = triggers[spec.name]
        pending = pending_of(ctx, spec, stored, now, log)
        tables = () if stored is None or trigger.ready_within is None else tuple(stored.versions)
        costs = costs_of(trigger, pending, runs_of[spec.name], (now, now + look), tables, coming)
        last = None if stored is None else stored.maintained_at
        result.append(Waiting(spec.name, trigger, pending, costs, last))
        pins += () if stored is None else stored.pins
    log.keep(pins)
    return result


def fresh_entry(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> FreshEntry | None:
    """The age of what is pending, against the query's bound; None if the logs do not show it."""
    now, bound = ctx.now(), trigger_of(spec).fresh_within
    pending = pending_of(ctx, spec, stored, now, CommitLog())
    if pending.unsure is not None:
        return None
    age = 0.0 if pending.oldest is None else now - pending.oldest
    return FreshEntry(bound, age, bound is not None and age > bound)


def stored_of(store: StoreReader | None, spec: QuerySpec) -> StoredQuery | None:
    try:
        return None if store is None else store.load(spec.name)
    except ImpctlError:
        return None


# For `--due` and plans. Law: what `maintain --due` would maintain and what is reported come from
# one look. Writes nothing and takes no lock.

DEFAULT_LOOK = 60.0
"""Seconds until the next run of `--due`: the most frequent one of crontabs."""


class DueReport(Struct, frozen=True):
    """What waits for each query, when it is due, and which of these a run takes that starts now."""

    waiting: Sequence[Waiting]
    dues: Sequence[Due]
    selected: Sequence[Due]
    pace: Pace

    def results(self) -> list[DueResult]:
        chosen, result = {due.query: due for due in self.selected}, []
        for query, first in zip(self.waiting, self.dues, strict=True):
            due, costs = chosen.get(query.query, first), query.costs
            result.append(
                DueResult(
                    query=query.query,
                    trigger=query.trigger.text,
                    due=due.query in chosen,
                    why=f"{due.why}; {due.early}" if due.early else due.why,
                    due_at=_time(due.due_at),
                    due_by=_time(due.due_by),
                    start_at=_time(due.start_at),
                    pending=due.is_pending,
                    rows=query.pending.rows,
                    oldest_at=_time(query.pending.oldest),
                    cost_ms=costs.pending * 1000 if costs.is_known else None,
                    margin=self.pace.margin,
                )
            )
        return result

    def warnings(self) -> list[str]:
        """Bounds that cannot be met, each with its code."""
        pairs = [pair for query in self.waiting for pair in shortest_bounds(query, self.pace)]
        return [f"{text} [{code}]" for code, text in pairs]


def due_report(ctx: Context, specs: Sequence[QuerySpec], look: float | None) -> DueReport:
    """Look at these queries; the next look is in `look` seconds (None: `DEFAULT_LOOK`)."""
    pace = Pace(OPENING_FRESH_S, FIRST_MARGIN, DEFAULT_LOOK if look is None else look)
    waiting = waiting_queries(ctx, specs, pace.look, CommitLog())
    result = dues(waiting, pace, ctx.now())
    return DueReport(waiting, result, chosen_for_run(result, waiting, ctx.now()), pace)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# Costs of runs, in seconds. Law: learned from recorded runs as `plan` estimates are
# (`service.decide`), from changes of the same tables if any; one second if nothing is known. The
# margin is the ratio of actual to estimated time that covers 99 of 100 of the last runs, at least
# 1.5, and 3 with fewer than 20 runs.

OPENING_S = 0.05
"""Seconds before the first query of a run in a long-running process."""

OPENING_FIRST_S = 1.0
"""The same of its first run, which loads modules."""

OPENING_FRESH_S = 2.0
"""The same of a process that is started for it."""

UNKNOWN_S = 1.0
"""Seconds assumed for a query of unknown cost."""

LEAST_MARGIN = 1.5
FIRST_MARGIN = 3.0
_FEWEST = 20
_LOOKED_BACK = 200
_OF_HUNDRED = 99


class Margin:
    """Actual over expected run times; `value` is the factor for expected ones."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_LOOKED_BACK)
        self.value = FIRST_MARGIN

    def ran(self, thought: float, took: float) -> None:
        if thought > 0:
            self._ratios.append(took / thought)
        if len(self._ratios) >= _FEWEST:
            index = -(-len(self._ratios) * _OF_HUNDRED // 100) - 1
            self.value = max(LEAST_MARGIN, sorted(self._ratios)[index])


def costs_of(
    trigger: Trigger,
    pending: PendingChanges,
    runs: Sequence[RunCost],
    look: tuple[float, float],
    tables: Collection[TableName] = (),
    coming: Expectations | None = None,
) -> Costs:
    """The cost of a query now; `look` is this look and the next one. With `tables`, rows that are
    `coming` there until the next moment count."""
    size = ChangeSize(pending.rows, pending.bytes) if pending.changes else ChangeSize(0, 0)
    is_known, cost = _seconds(runs, size, pending.moved)
    more, each_look = 0.0, _seconds(runs, ChangeSize(0, 0), ())[1] if is_known else 0.0
    if coming is not None and tables and is_known:
        usual = coming.rows(tables, *look)
        if usual is not None:
            size = ChangeSize(round(usual), 0)
            each_look = _seconds(runs, size, coming.moved(tables, *look))[1]
        moment = next_moment(trigger, look[0])
        rows = None if moment is None else coming.rows(tables, look[0], moment)
        if rows is not None and moment is not None:
            both = ChangeSize((pending.rows or 0) + round(rows), pending.bytes)
            moved = {*pending.moved, *coming.moved(tables, look[0], moment)}
            more = max(0.0, _seconds(runs, both, moved)[1] - cost)
    longest = max((run.elapsed_ms for run in runs if run.kind is RunKind.MAINTAIN), default=0.0)
    return Costs(cost if pending.is_some else 0.0, more, each_look, longest / 1000, is_known)


def _seconds(
    runs: Sequence[RunCost], size: ChangeSize, moved: Collection[TableName]
) -> tuple[bool, float]:
    """Whether recorded runs tell, and the cost of a change of these tables; else a guess."""
    ms = maintain_ms([run for run in runs if run.kind is RunKind.MAINTAIN], size, moved)
    if ms is not None:
        return True, ms / 1000
    ms = maintain_ms(runs, size, moved)
    return False, UNKNOWN_S if ms is None else ms / 1000


def maintain_ms(
    runs: Sequence[RunCost], size: ChangeSize, moved: Collection[TableName]
) -> float | None:
    """Estimate milliseconds of a step, without a recapture, which would ask the tables for their
    rows, and without the start of Spark."""
    from impctl.service.cost_model import estimated

    return estimated(
        runs, RunKind.MAINTAIN, size, has_spark=True, table_rows=lambda: 0, moved=sorted(moved)
    ).maintain_ms
