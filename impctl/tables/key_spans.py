"""The values that a column has in some files, as spans, and the files of another that meet them.

Law: every value of the column in these files lies in a span, NULL left aside, which joins with
nothing; a file is left out only if no value in it lies in one. NaN joins with NaN and is in no
statistics, so it is told apart. What is not known is everything.
Out of scope: which columns join (`rules.joined_columns`).
"""

from __future__ import annotations

import numpy as np

from impctl.sketch.partition import BoundaryValue
from impctl.tables.bounds import ColumnBounds, Flags, places_in
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class KeySpans:
    """Spans that ascend and do not touch, both ends included."""

    lows: tuple[BoundaryValue, ...]
    highs: tuple[BoundaryValue, ...]
    may_be_nan: bool

    def meets(self, bounds: ColumnBounds) -> Flags:
        """Which files with these bounds may hold one of the values."""
        # Spans that end before the file starts, and those that begin before it ends.
        over = np.where(bounds.has_low, places_in(self.highs, bounds.lows, "left"), 0)
        begun = np.where(
            bounds.has_high, places_in(self.lows, bounds.highs, "right"), len(self.lows)
        )
        meets = (begun > over) & ~bounds.is_all_null
        return meets | bounds.may_be_nan if self.may_be_nan else meets


def key_spans(files: ColumnBounds) -> KeySpans | None:
    """The spans of files with these bounds; None where some are not known."""
    filled = files.filled
    if not filled.is_known:
        return None
    lows: list[BoundaryValue] = []
    highs: list[BoundaryValue] = []
    for low, high in sorted(zip(filled.lows.tolist(), filled.highs.tolist(), strict=True)):
        if highs and low <= highs[-1]:
            highs[-1] = max(highs[-1], high)
        else:
            lows.append(low)
            highs.append(high)
    return KeySpans(tuple(lows), tuple(highs), bool(filled.may_be_nan.any()))
