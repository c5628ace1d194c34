"""The values that a column has in some files, as spans, and the files of another that meet them.

Law: every value of the column in these files lies in a span, NULL left aside, which joins with
nothing; a file is left out only if no value in it lies in one. NaN joins with NaN and is in no
statistics, so it is told apart. What is not known is everything.
Out of scope: which columns join (`plan.rules.joined_columns`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from impctl.sketch.partition import BoundaryValue
from impctl.tables.statistics import FileBounds


@dataclass(frozen=True, slots=True)
class KeySpans:
    """Spans that ascend and do not touch, both ends included."""

    lows: tuple[BoundaryValue, ...]
    highs: tuple[BoundaryValue, ...]
    may_be_nan: bool

    def meets(self, bounds: FileBounds) -> bool:
        """Whether a file with these bounds may hold one of the values."""
        if self.may_be_nan and bounds.may_be_nan:
            return True
        if bounds.is_all_null:
            return False
        low, high = bounds.minimum, bounds.maximum
        # The first span that does not end before the file starts.
        first = 0 if low is None else bisect_left(self.highs, low)
        if first == len(self.highs):
            return False
        return high is None or self.lows[first] <= high  # type: ignore[operator]  # one column, one value type


def key_spans(files: Sequence[FileBounds]) -> KeySpans | None:
    """The spans of files with these bounds; None where some are not known."""
    filled = [bounds for bounds in files if not bounds.is_all_null]
    pairs = [(bounds.minimum, bounds.maximum) for bounds in filled]
    known = [(low, high) for low, high in pairs if low is not None and high is not None]
    if len(known) < len(pairs):
        return None
    lows: list[BoundaryValue] = []
    highs: list[BoundaryValue] = []
    for low, high in sorted(known):
        if highs and low <= highs[-1]:  # type: ignore[operator]  # one column, one value type
            highs[-1] = max(highs[-1], high)
        else:
            lows.append(low)
            highs.append(high)
    return KeySpans(tuple(lows), tuple(highs), any(bounds.may_be_nan for bounds in filled))
