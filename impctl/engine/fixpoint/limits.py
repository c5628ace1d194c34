"""How far a recursion may go, whoever runs it.

Law: what goes beyond is an error, never a part of the rows.
"""

from __future__ import annotations

from dataclasses import replace

from impctl.errors import UnsupportedError
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Rounds in which rows come in, in one go, and rows there may be."""

    rounds: int = 100_000
    rows: int = 20_000_000

    def check(self, rounds: int, rows: int, *, bests: bool = False) -> None:
        """UnsupportedError beyond either; `bests`: only the best rows stay, so no circle goes on
        but one round which a value gets better."""
        for what, result, most in (("rounds", rounds, self.rounds), ("rows", rows, self.rows)):
            if result > most:
                bound = "limit the recursion in the query, for example by a level"
                if bests and what == "rounds":
                    bound = (
                        "look for a cycle that keeps improving the value, for example by a "
                        "negative cost, and exclude such rows in the query"
                    )
                raise UnsupportedError(
                    f"A recursive query exceeds its limit of {most:,} {what}",
                    code="recursion_limit",
                    hint=f"{bound}, or raise `limits: {{{what}: {most}}}` in the workload file",
                )


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class LevelLimits:
    """Of UNION ALL: so many levels may have rows, and so many rows are too many.

    As Spark has it (4.3: `spark.sql.cteRecursionLevelLimit`, `cteRecursionRowLimit`), so that it is
    part of what such a query means: the base is the first level, and as many rows as the limit are
    an error already.
    """

    levels: int = 100
    rows: int = 1_000_000

    def check(self, levels: int, rows: int) -> None:
        """UnsupportedError for rows in more levels, or for so many rows."""
        what, most = "levels", self.levels
        if levels <= most:
            what, most = "rows", self.rows
            if rows < most:
                return
        raise UnsupportedError(
            f"A recursive query of UNION ALL reaches its limit of {most:,} {what}",
            code="recursion_limit",
            hint="limit the recursion in the query, for example by a level, or write UNION, which "
            "ends in circles; MAX RECURSION LEVEL n behind its name allows more levels",
        )


LEVEL_LIMITS = LevelLimits()


def level_limits(levels: int | None) -> LevelLimits:
    """The limits of an entry that says so many levels; of one that says nothing for None."""
    return LEVEL_LIMITS if levels is None else replace(LEVEL_LIMITS, levels=levels)
