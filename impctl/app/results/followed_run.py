"""What is said of each run of a process that follows, beside the run's outcome.

Law: as for `app.results.results`: plain values, field names that are the keys of the JSON document.
Out of scope: the outcome itself.
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """One run of `maintain --follow`; `started_at` is ISO 8601 in UTC.

    `retry_ms` is the pause until the first query is tried again that failed for a reason that may
    pass. `late_ms` is by how much the run missed the bound of one of its queries, 0 where it missed
    none; None where none has a bound.
    """

    number: int
    started_at: str
    elapsed_ms: float
    exit_code: int
    retry_ms: float | None = None
    late_ms: float | None = None
