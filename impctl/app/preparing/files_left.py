"""Which files a sketch would leave, as chances, and how many ranges it takes for that.

Law: an estimate, which no answer rests on. Fewer ranges than proposed are taken where they leave
hardly more bytes than they save.
Out of scope: where the chances come from (`app.preparing.estimate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import numpy.typing as npt

from impctl.sketch.likelihood import Mixture
from impctl.tables.prune import FileSpans
from impctl.values import dataclass

Floats = npt.NDArray[np.float64]

_DEVIATIONS = 1.645
"""Of an interval that holds nine of ten."""
ALIKE = 1.1
"""Estimates are no finer: of what lies within, what is simpler to keep is taken."""
_AS_GOOD = 1.01
"""Times as many files as the finest ranges leave, that fewer ranges may leave."""


@dataclass(frozen=True, slots=True, eq=False)
class FilesLeft:
    """Chance of each file to be left: likely, at least and at most, by what the share of groups in
    the provenance may be; and how many files its borders may be off."""

    likely: Floats
    low: Floats
    high: Floats
    off: float
    pairs: float = 0.0
    """Pairs of a group and a range that state counts rows for."""
    together: int = 1
    """Ranges of those proposed that are made one."""

    @classmethod
    def of(cls, spans: FileSpans, ends: Sequence[Mixture], off: float, most_together: int) -> Self:
        """By what fragments are likely, at least and at most like; with as few ranges as leave
        hardly more files than all of them."""
        likely, low, high = ends
        left = spans.left(likely)
        together = 1
        while together * 2 <= most_together:
            coarser = spans.merged(together * 2).left(likely.merged(together * 2))
            if float(coarser.sum()) > _AS_GOOD * float(left.sum()):
                break
            together *= 2
        return cls(left, spans.left(low), spans.left(high), off * len(left), together=together)

    @classmethod
    def all_of(cls, count: int) -> Self:
        """Every file, surely."""
        return cls(np.ones(count), np.ones(count), np.ones(count), 0.0)

    def at_least(self, floor: Floats) -> FilesLeft:
        """The same where no file is left less likely than so."""
        return replace(
            self, likely=np.maximum(self.likely, floor), high=np.maximum(self.high, floor)
        )

    def is_as_good_as(self, least: Floats, sizes: Floats) -> bool:
        """Whether what leaves at least these cannot be better by more than estimates are fine."""
        return float((self.likely * sizes).sum()) <= ALIKE * float((least * sizes).sum())

    def between(self) -> tuple[float, float, float]:
        """Files expected, and the fewest and the most that nine of ten times are left."""
        count = float(self.likely.sum())
        by_chance = float((self.likely * (1.0 - self.likely)).sum())
        spread = _DEVIATIONS * math.sqrt(self.off * self.off + by_chance)
        fewest, most = float(self.low.sum()), float(self.high.sum())
        return count, min(count, fewest) - spread, max(count, most) + spread
