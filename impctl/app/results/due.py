"""Frozen records of when queries are due: what `plan --due` and `status` say of it.

Law: as in `app.results.results`, of which these are a part; times are in UTC, and what nobody can
tell, or never comes by itself, is None. Out of scope: reckoning it (`app.maintaining.due`), how it
looks (`cli.output.due`).
"""

from __future__ import annotations

from datetime import datetime

from impctl.values import dataclass

NOT_DUE = "not_due"
"""Reason code of a stale query that `maintain --due` leaves for later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueResult:
    """When a query is maintained next, and why.

    `due` says that a run would start for it now. `due_at` is what its `trigger` names (a commit, a
    moment, the end of a bound), `due_by` until when it has to be done, `start_at` when a run starts
    for it. `rows` are pending, None where a log does not tell; `cost_ms` is what they are estimated
    to take, None without a recorded run, and `margin` how far that may be off.
    """

    query: str
    trigger: str
    due: bool
    why: str
    due_at: datetime | None
    due_by: datetime | None
    start_at: datetime | None
    pending: bool
    rows: int | None
    oldest_at: datetime | None
    cost_ms: float | None
    margin: float


@dataclass(frozen=True, slots=True)
class FreshEntry:
    """How old the oldest change is that a sketch does not have, in seconds; 0 without any.

    `bound_s` is what `fresh_within` allows, None without it; `late` says that it is exceeded.
    """

    bound_s: float | None
    age_s: float
    late: bool
