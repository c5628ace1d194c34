"""Which rows of a fixpoint stay where only the best of each group count.

Law: rows with equal `keys` are a group. A row stays if one of its `values` is the least of its
group's (or greatest), NULL left out; rows that tie stay together, and where a group has no value
but NULL, its rows with NULL do. So a fixpoint that goes on for ever, as costs along a circle do,
may have an end: T is then what the rounds come to when rows that another one beats derive nothing.
Columns are told by their places.
Out of scope: when that leaves the answer as it is (`plan.best_reads`).
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class BestValue:
    """A column whose least value is the best, or its greatest."""

    place: int
    greatest: bool = False

    @property
    def function(self) -> str:
        """The aggregate that asks for it."""
        return "max" if self.greatest else "min"


@dataclass(frozen=True, slots=True)
class BestOnly:
    """Columns that tell groups, ascending, and the values that decide.

    With `keeps_null` rows whose value is NULL stay beside the best ones: what is derived from them
    may be better than what is derived from these.
    """

    keys: tuple[int, ...]
    values: tuple[BestValue, ...]
    keeps_null: bool = False

    def __str__(self) -> str:
        """For fingerprints."""
        values = (f"{value.function} {value.place}" for value in self.values)
        kept = " null" if self.keeps_null else ""
        return f"best {', '.join(values)} by {', '.join(map(str, self.keys))}{kept}"
