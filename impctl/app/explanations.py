"""Frozen records of what could be done for a query, and why: `check` and `explain`.

Law: as for `app.results`, whose documents they are part of; nothing was run or stored to say it.
Out of scope: what was done (`app.results`).
"""

from __future__ import annotations

from dataclasses import dataclass

from impctl.errors import Location


@dataclass(frozen=True, slots=True)
class CandidateEntry:
    """An attribute looked at for a sketch: safe or not, chosen or not, and why."""

    table: str
    attribute: str
    safe: bool
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether a query can have a sketch; `mode` is how it would be maintained."""

    query: str
    supported: bool
    mode: str | None
    reason: str
    candidates: tuple[CandidateEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A line of the plan tree; `how` an operator is maintained and `place` where it stands."""

    depth: int
    operator: str
    detail: str
    how: str = ""
    why: str = ""
    place: Location | None = None


@dataclass(frozen=True, slots=True)
class JoinSideEntry:
    """How one side of a join finds partners: `index` keeps its rows, `spark` has them read.

    `rows` and `bytes` are the most that the index can come to, None where nobody knows.
    """

    side: str
    tables: tuple[str, ...]
    strategy: str
    reason: str
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """Whether a query is sketchable and maintainable, and what stands in the way."""

    query: str
    mode: str
    reason: str
    policy: str
    plan: tuple[PlanEntry, ...]
    attributes: tuple[CandidateEntry, ...]
    joins: tuple[JoinSideEntry, ...] = ()
