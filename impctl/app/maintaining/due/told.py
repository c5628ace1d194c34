"""When queries are due, as a process that looks once has it: for `--due`, and for plans.

Law: what `maintain --due` would maintain now, and what is told of it, come of one look. Times are
seconds since 1970 until they are told. Nothing is written and no lock taken.
Out of scope: maintaining (`app.maintain_due`), a process that goes on (`due.following`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from impctl.app.maintaining.due.costs import FIRST_MARGIN, OPENING_FRESH_S
from impctl.app.maintaining.due.looking import looked_at, now_of
from impctl.app.maintaining.due.pending import CommitLog
from impctl.app.maintaining.due.when import Due, Pace, Waiting, dues, shortest_bounds, taken
from impctl.app.results.due import DueResult
from impctl.app.workbench.workbench import Workbench
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

DEFAULT_LOOK = 60.0
"""Seconds until the next run of `--due`, as crontabs have it at their most frequent."""


@dataclass(frozen=True, slots=True)
class Look:
    """What waits for each query, when it is due, and which of these a run takes that starts now."""

    waiting: Sequence[Waiting]
    dues: Sequence[Due]
    taken: Sequence[Due]
    pace: Pace

    def results(self) -> list[DueResult]:
        """A result for each query."""
        chosen = {due.query: due for due in self.taken}
        return [
            _told(one, chosen.get(due.query, due), self.pace, is_due=due.query in chosen)
            for one, due in zip(self.waiting, self.dues, strict=True)
        ]

    def warnings(self) -> list[str]:
        """Bounds that cannot be held, each with its code."""
        pairs = [pair for one in self.waiting for pair in shortest_bounds(one, self.pace)]
        return [f"{text} [{code}]" for code, text in pairs]


def look_once(desk: Workbench, specs: Sequence[QuerySpec], look: float | None) -> Look:
    """At these queries; the next look is in `look` seconds (None: `DEFAULT_LOOK`)."""
    pace = Pace(OPENING_FRESH_S, FIRST_MARGIN, DEFAULT_LOOK if look is None else look)
    waiting = looked_at(desk, specs, pace.look, CommitLog())
    result = dues(waiting, pace, now_of(desk))
    return Look(waiting, result, taken(result, waiting, now_of(desk)), pace)


def _told(one: Waiting, due: Due, pace: Pace, *, is_due: bool) -> DueResult:
    return DueResult(
        query=one.query,
        trigger=one.trigger.text,
        due=is_due,
        why=f"{due.why}; {due.early}" if due.early else due.why,
        due_at=_time(due.due_at),
        due_by=_time(due.due_by),
        start_at=_time(due.start_at),
        pending=due.is_pending,
        rows=one.pending.rows,
        oldest_at=_time(one.pending.oldest),
        cost_ms=one.costs.pending * 1000 if one.costs.is_known else None,
        margin=pace.margin,
    )


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
