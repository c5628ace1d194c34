"""Commits as numbers: when each came, and how much it changed.

Law: what a log does not tell is None; counts are never negative. Times are as they were written:
who forecasts takes those of `effective_times`, which never go back and never lie in the future.
Out of scope: reading logs (`tables.change.commit_history`), keeping them (`store.arrivals`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.values import dataclass

KEPT = 400
"""Commits of a table that are known at most: more than the longest look back of any forecast."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A commit that changed rows.

    `at` is in seconds since 1970. `is_after_gap` says that commits between this one and the one
    before it are not known.
    """

    version: int
    at: float | None
    inserted: int | None
    deleted: int | None
    files: int
    bytes: int
    operation: str
    is_after_gap: bool = False

    @property
    def rows(self) -> int | None:
        """Rows inserted and deleted together."""
        if self.inserted is None or self.deleted is None:
            return None
        return self.inserted + self.deleted


@dataclass(frozen=True, slots=True)
class History:
    """The latest `KEPT` arrivals of a table, oldest first.

    `until` is the last version that was looked at, `since` the time from which on commits are
    known, None where no entry tells one. `has_missed` says that commits after the last arrival are
    not known.
    """

    table_id: str
    until: int
    since: float | None
    arrivals: tuple[Arrival, ...] = ()
    has_missed: bool = False


def effective_times(arrivals: Sequence[Arrival], now: float) -> list[float]:
    """A time for each arrival, none before the one before it and none after `now`.

    One that has no time, goes back or lies in the future has that of the one before it: its gap
    counts as 0.
    """
    sound = [each.at for each in arrivals if each.at is not None and each.at <= now]
    latest = sound[0] if sound else now
    result = []
    for each in arrivals:
        if each.at is not None and latest < each.at <= now:
            latest = each.at
        result.append(latest)
    return result
