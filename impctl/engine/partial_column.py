"""What a column of partial aggregates means.

Law: a pass over rows that somebody else makes gives, per group, exactly these columns; which ones a
grouping wants follows from its accumulators.
Out of scope: writing the pass (`circuits.partials`), counting it in (`engine.accumulators`).
"""

from __future__ import annotations

from enum import StrEnum

from impctl.values import dataclass


class Meaning(StrEnum):
    """What was counted or added up over the rows of a group."""

    ROWS = "rows"
    """All rows."""
    COUNT = "count"
    """Rows whose argument is not NULL."""
    SUM = "sum"
    """The argument; of doubles, where specials are counted apart, the finite ones."""
    SIZE = "size"
    """The argument's magnitude, of doubles."""
    NAN = "nan"
    """Rows whose argument is NaN; so for the infinities."""
    PLUS_INFINITY = "pinf"
    MINUS_INFINITY = "ninf"


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """One column; `slot` is that of the accumulator whose argument it is about."""

    meaning: Meaning
    slot: int = 0

    @property
    def name(self) -> str:
        """A name no other column of the pass has."""
        return f"{self.meaning}{self.slot}"


ROWS = PartialColumn(Meaning.ROWS)
SPECIALS = (Meaning.NAN, Meaning.PLUS_INFINITY, Meaning.MINUS_INFINITY)
