"""Frozen records of what has not been done yet: what `plan` and dry runs say.

Law: as in `app.results.results`, of which these are a part; a size or an estimate that nobody can
tell is None, never a guess.
Out of scope: deciding (`app.maintaining.decide`, `app.capturing.stage`), how it looks
(`cli.output.foreseen`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.app.results.due import DueResult
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """What would be read of a table; `rows` is None where its log does not tell."""

    table: str
    version: int
    rows: int | None
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A table's change that a sketch does not have yet; None is what its log does not tell."""

    table: str
    since: int
    until: int
    rows: int | None
    files: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextChange:
    """The next change of a query's tables, in seconds from now, with what it lies between four
    times in five.

    `by` says what speaks for the time, `rows_by` for the rows. What is not known is None, and
    `unknown` says why where that is everything.
    """

    tables: tuple[str, ...] = ()
    in_s: float | None = None
    in_s_low: float | None = None
    in_s_high: float | None = None
    rows: float | None = None
    rows_low: float | None = None
    rows_high: float | None = None
    by: str | None = None
    rows_by: str | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A piece of state under a budget: the `mode` that is chosen for it, the one that it has `now`,
    bytes in the chosen mode and if it is kept, and why. `buffer` is how many of the best rows or
    values of a group are kept where it is bounded."""

    name: str
    mode: str
    now: str
    bytes: int
    kept_bytes: int
    reason: str
    buffer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """What `maintain` would do with a query now, under its policy.

    `action` is exact, touch, recapture, none, capture where there is no sketch to maintain, or
    refused where there can be none (`hint` says what to do); `by` is who would compute. Estimates
    are milliseconds, None without a recorded run to learn from.
    """

    query: str
    action: str
    by: str | None
    reason_code: str
    reason: str
    policy: str
    since: Mapping[str, int]
    versions: Mapping[str, int]
    pending: tuple[PlannedChange, ...] = ()
    maintain_ms: float | None = None
    maintain_runs: int = 0
    recapture_ms: float | None = None
    recapture_runs: int = 0
    hint: str | None = None
    next_change: NextChange | None = None
    """None of a query that has no sketch to maintain."""
    due: DueResult | None = None
    """When it is due; None of a query without a sketch, or that is maintained at each commit."""
    state: tuple[PlannedPiece, ...] = ()
    """Under a budget, the pieces of its state that are chosen about."""
    next_expiry: str | None = None
    """As of `status`."""


ENGINE, SPARK = "engine", "Spark"

REFUSED = "refused"
"""The action of a query that can have no sketch."""
