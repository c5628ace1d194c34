"""When queries are due, when that has to be done, and when a run has to start for it.

For queries with something pending:

    start(q) = deadline(q) - margin * (opening + work until deadline(q)) - look

where the work is the sum of the costs of all queries whose deadline is not later. A deadline is
that of `fresh_within` after the oldest pending commit, or the end of `ready_within` after a moment.
Whatever else makes a query due (a commit, so many rows, a moment of the clock) starts when it
comes. Law: pure; times are seconds since 1970, amounts of time seconds. A start is never later than
the deadline leaves time for, as far as costs and margin are right; where several keys of a trigger
say when, the first start counts.
Out of scope: what is pending (`app.maintaining.due.pending`), costs (`app.maintaining.due.costs`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from impctl.app.maintaining.due.moments import next_moment
from impctl.app.maintaining.due.pending import Pending
from impctl.app.results.amounts import duration_text
from impctl.types import QueryName
from impctl.values import dataclass
from impctl.workload.models import Alone, Trigger, written

CHEAP_S = 1.0
"""What takes less may be done before it is due, where `cheap` says so."""

_ALONG = 0.1
"""The share of its bound by which a query may be maintained early to share another one's run."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What maintaining takes, in seconds: for what is pending, for the rows `expected` beside it
    until the next moment, and for the rows of one look.

    `is_known` says that recorded runs tell; `longest` is the longest of these.
    """

    pending: float
    expected: float = 0.0
    each_look: float = 0.0
    longest: float = 0.0
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """A query, its trigger, what is pending for it, what that takes, and when it was done last."""

    query: QueryName
    trigger: Trigger
    pending: Pending
    costs: Costs
    last: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How runs go: what opening one takes, how far costs may be off, the pause between looks."""

    opening: float
    margin: float
    look: float


@dataclass(frozen=True, slots=True)
class Due:
    """When a query is due, and why; what is None never comes by itself, or has no bound.

    `due_at` is what the trigger names: a commit, a moment, the end of a bound; `due_by` until when
    it has to be in the sketch; `start_at` when a run starts for it. `is_pending` says that there is
    something to do; `early` that nothing but sharing a run or idle time has it done now.
    """

    query: QueryName
    why: str
    due_at: float | None = None
    due_by: float | None = None
    start_at: float | None = None
    is_pending: bool = False
    cost: float = 0.0
    early: str = ""

    def is_now(self, now: float) -> bool:
        """Whether a run has to start for it."""
        return self.is_pending and self.start_at is not None and self.start_at <= now


@dataclass(frozen=True, slots=True)
class _Wish:
    """One reason to maintain: when it comes, its deadline, and how much before that to start.

    `ahead` of the deadline a run has to start; `at` is the start of what has no deadline. Of a
    moment, `left` is what may be left to do at it.
    """

    why: str
    at: float
    deadline: float | None = None
    left: float | None = None


def dues(waiting: Sequence[Waiting], pace: Pace, now: float) -> list[Due]:
    """When each is due, in the order given."""
    wishes = [list(_wishes(one, now)) for one in waiting]
    loads = _Loads(
        (min((wish.deadline or wish.at) for wish in result), one.costs.pending)
        for one, result in zip(waiting, wishes, strict=True)
        if result and one.pending.is_some
    )
    return [
        _due(one, result, loads, pace, now) for one, result in zip(waiting, wishes, strict=True)
    ]


def taken(
    result: Sequence[Due],
    waiting: Sequence[Waiting],
    now: float,
    failed: Collection[QueryName] = (),
) -> list[Due]:
    """What a run that starts now maintains, the earliest deadline first; empty for no run.

    With those that are due go those whose start comes within a tenth of their bound, unless all
    that is due `failed` the last time; where nothing is due, those that are cheap.
    """
    of = {one.query: one for one in waiting}
    chosen = [due for due in result if due.is_now(now)]
    if not chosen:
        cheap = [due for due in result if due.is_pending and _is_cheap(of[due.query])]
        chosen = [replace(due, early="cheap, and nothing else is due") for due in cheap]
    elif any(due.query not in failed for due in chosen):
        known = {due.query for due in chosen}
        chosen += [
            replace(due, early="shares a run with other queries")
            for due in result
            if due.query not in known and _goes_along(due, of[due.query], now)
        ]
    return sorted(chosen, key=_deadline)


def _goes_along(due: Due, one: Waiting, now: float) -> bool:
    """Whether its start is so near that sharing the reading of changes pays."""
    bound = one.trigger.fresh_within
    if bound is None or not due.is_pending or due.start_at is None:
        return False
    return (
        due.due_by is not None and due.due_by == due.due_at and due.start_at - now <= _ALONG * bound
    )


def _is_cheap(one: Waiting) -> bool:
    return one.trigger.cheap and one.costs.is_known and one.costs.pending < CHEAP_S


def _deadline(due: Due) -> float:
    for at in (due.due_by, due.due_at, due.start_at):
        if at is not None:
            return at
    return float("inf")


class _Loads:
    """Work that has to be done by a time: the sum of the costs of all deadlines up to it."""

    def __init__(self, parts: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(parts)
        self._deadlines = [at for at, _ in ordered]
        self._sums = [0.0, *accumulate(cost for _, cost in ordered)]

    def until(self, deadline: float) -> float:
        return self._sums[bisect_right(self._deadlines, deadline)]


def _wishes(one: Waiting, now: float) -> Iterator[_Wish]:
    """What the trigger makes of what is pending, a wish per key; none of `use` and `point`."""
    trigger, pending = one.trigger, one.pending
    if pending.unsure is not None:
        if trigger.alone is not Alone.USE and not _is_point_alone(trigger):
            yield _Wish(pending.unsure, now)
        return
    if trigger.is_on_commit and pending.moved_at is not None:
        yield _Wish("at the next check after a commit", pending.moved_at)
    oldest = pending.oldest
    if oldest is not None and trigger.fresh_within is not None:
        deadline = oldest + trigger.fresh_within
        yield _Wish(f"fresh_within {written(trigger.fresh_within)}", deadline, deadline)
    if trigger.rows is not None:
        at = _enough_at(pending, trigger.rows)
        if at is not None:
            yield _Wish(f"{trigger.rows:,} rows are pending", at)
    moment = next_moment(trigger, now if oldest is None else oldest)
    if moment is not None:
        said = f"every {written(trigger.every)}" if trigger.every is not None else "cron"
        left = trigger.ready_within
        yield _Wish(said, moment, None if left is None else moment + left, left)


def _is_point_alone(trigger: Trigger) -> bool:
    clocks = (trigger.rows, trigger.every, trigger.cron, trigger.fresh_within)
    return trigger.point is not None and all(one is None for one in clocks)


def _enough_at(pending: Pending, rows: int) -> float | None:
    """When so many rows were pending; a change whose rows are not told counts as enough."""
    seen = 0
    for change in pending.changes:
        if change.rows is None:
            return change.at
        seen += change.rows
        if seen >= rows:
            return change.at
    return None


def _due(one: Waiting, wishes: Sequence[_Wish], loads: _Loads, pace: Pace, now: float) -> Due:
    """The wish whose run has to start first."""
    is_pending = one.pending.is_some or (
        one.trigger.is_on_commit and one.pending.moved_at is not None
    )
    result = [_of_wish(one, wish, loads, pace, is_pending=is_pending) for wish in wishes]
    if is_pending and one.trigger.ready_within is not None and _is_point_alone(one.trigger):
        needed = pace.margin * (pace.opening + one.costs.pending)
        oldest = one.pending.oldest
        if needed > one.trigger.ready_within and oldest is not None:
            why = f"more than ready_within {written(one.trigger.ready_within)} is pending"
            result.append(Due(one.query, why, oldest, None, now, True, one.costs.pending))
    if not result:
        return Due(one.query, _why_not(one), is_pending=is_pending, cost=one.costs.pending)
    return min(result, key=lambda due: float("inf") if due.start_at is None else due.start_at)


def _of_wish(one: Waiting, wish: _Wish, loads: _Loads, pace: Pace, *, is_pending: bool) -> Due:
    """When a run has to start for one wish."""
    why, start = wish.why, wish.at
    work = 0.0
    if not is_pending:
        why = f"nothing is pending; next: {wish.why}"
    elif wish.deadline is not None:
        work = pace.margin * (pace.opening + loads.until(wish.deadline))
        if wish.left is None:
            start = wish.deadline - work - pace.look
    due = Due(one.query, why, wish.at, wish.deadline, start, is_pending, one.costs.pending)
    if not is_pending or wish.left is None:
        return due
    work += pace.margin * one.costs.expected
    early, is_too_much = wish.at - work, work > wish.left
    # Once is as late as possible; a run that was made since then did what could be done ahead.
    if is_too_much and (one.last is None or one.last < early):
        return replace(due, start_at=early, why=f"{wish.why}, started early for ready_within")
    return due


def _why_not(one: Waiting) -> str:
    """Why nothing makes the query due as things stand."""
    trigger, rows = one.trigger, one.pending.rows
    if trigger.alone is Alone.USE:
        return "use: when its sketch is used, or when `maintain` names the query"
    if _is_point_alone(trigger):
        return f"point: on `maintain --point {trigger.point}`"
    if not one.pending.is_some:
        return "nothing is pending"
    return f"{rows or 0:,} of {trigger.rows or 0:,} rows are pending"


def shortest_bounds(one: Waiting, pace: Pace) -> list[tuple[str, str]]:
    """Codes and texts of bounds that cannot be held, each with the shortest that can."""
    result = []
    fresh, ready = one.trigger.fresh_within, one.trigger.ready_within
    usual = max(one.costs.longest, one.costs.each_look)
    if fresh is not None and fresh < max(one.costs.longest, pace.look):
        least = pace.look + pace.margin * (pace.opening + usual)
        step = f" and a step of {duration_text(usual * 1000)}" if usual > 0 else ""
        result.append(
            (
                "fresh_impossible",
                f"query `{one.query}` cannot meet fresh_within {written(fresh)}: a check "
                f"every {duration_text(pace.look * 1000)}{step} take at least "
                f"{duration_text(least * 1000)}, including opening a run and a safety "
                f"factor of {pace.margin:g}",
            )
        )
    least_ready = pace.margin * (pace.opening + one.costs.each_look)
    if ready is not None and least_ready > ready:
        result.append(
            (
                "ready_impossible",
                f"query `{one.query}` cannot meet ready_within {written(ready)}: opening a "
                "run and processing the rows of one check may take "
                f"{duration_text(least_ready * 1000)}",
            )
        )
    return result
