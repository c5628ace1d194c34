"""How far a recursion may go, whoever runs it.

Law: what goes beyond is an error, never a part of the rows.
"""

from __future__ import annotations

from impctl.errors import UnsupportedError
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Rounds in which rows come in, in one go, and rows there may be."""

    rounds: int = 100_000
    rows: int = 20_000_000

    def check(self, rounds: int, rows: int) -> None:
        """UnsupportedError beyond either."""
        for what, found, most in (("rounds", rounds, self.rounds), ("rows", rows, self.rows)):
            if found > most:
                raise UnsupportedError(
                    f"A recursive query goes on beyond its limit of {most:,} {what}",
                    code="recursion_limit",
                    hint="bound the recursion in the query, as by a level, or raise the limit",
                )


LIMITS = Limits()
