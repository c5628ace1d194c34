"""Why a captured sketch need not hold what another query asks for, and where it shows.

Law: a reason names the first place found, in the texts of both. Out of scope: finding it
(`plan.reuse.pairing`).
"""

from __future__ import annotations

from impctl.expr.nodes import Span
from impctl.plan.safety.wording import Wording
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why the captured rows need not hold the asked ones; spans are places in either text."""

    reason: str
    asked: Span | None = None
    captured: Span | None = None

    def text(self, asked_sql: str, captured_sql: str) -> str:
        """The reason, with both texts where they are known."""
        there = Wording(captured_sql, {}).slice(self.captured)
        here = Wording(asked_sql, {}).slice(self.asked)
        if not there:
            return self.reason
        now = f", but the query says `{here}`" if here else ""
        return f"{self.reason} `{there}`{now}"
