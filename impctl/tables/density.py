"""How densely rows lie along a column, from spans over which rows are spread evenly.

Law: rows are neither lost nor made: up to the end of all spans there are all of them.
Out of scope: where values lie (`tables.line`).
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from impctl.tables.bounds import ColumnBounds
from impctl.tables.line import Line
from impctl.values import dataclass

Floats = npt.NDArray[np.float64]


def line_of(bounds: ColumnBounds) -> Line | None:
    """The line of a column's bounds; None where some are not known, or infinite."""
    filled = bounds.filled
    if not len(filled) or not filled.is_known:
        return None
    return Line.of([*filled.lows.tolist(), *filled.highs.tolist()])


@dataclass(frozen=True, slots=True)
class Density:
    """Rows per unit of a line: what begins at each start, less what is over at each end."""

    starts: Floats
    from_start: Floats
    moment_from_start: Floats
    ends: Floats
    from_end: Floats
    moment_from_end: Floats

    @classmethod
    def of(cls, lows: Floats, ends: Floats, rows: Floats) -> Self:
        """Of spans from `lows` to `ends`, all of shape (spans,)."""
        dense = rows / (ends - lows)
        at_low, at_end = np.argsort(lows), np.argsort(ends)
        return cls(
            lows[at_low],
            _summed(dense[at_low]),
            _summed((dense * lows)[at_low]),
            ends[at_end],
            _summed(dense[at_end]),
            _summed((dense * ends)[at_end]),
        )

    def at(self, places: Floats) -> Floats:
        """Rows per unit at each place."""
        begun = self.from_start[np.searchsorted(self.starts, places, side="right")]
        over = self.from_end[np.searchsorted(self.ends, places, side="right")]
        return np.asarray(np.maximum(begun - over, 0.0))

    def before(self, places: Floats) -> Floats:
        """Rows that lie before each place."""
        begun = np.searchsorted(self.starts, places, side="right")
        over = np.searchsorted(self.ends, places, side="right")
        result = places * (self.from_start[begun] - self.from_end[over])
        return np.asarray(result - self.moment_from_start[begun] + self.moment_from_end[over])


def _summed(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])
