"""A count per fragment, dense in memory and kept as runs of what changed.

Law: a count is the sum of all weights its fragment was counted with; one below zero means that the
change takes back what was never there: an error, never a guess, unless the counts are `partial`:
then things were left uncounted, which a change may take back. Counting costs the pairs counted
(and, for more pairs than there are fragments, the fragments); writing costs the counts changed.
Out of scope: what is counted (result rows: `engine.operators.merge`; rows of a table: `maintain`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from impctl.data.vector import Ints
from impctl.engine.arrangement import Arrangement, slices
from impctl.engine.disagreement import never_held
from impctl.values import dataclass

_COUNT = "count"
_FEW = 8
"""Fragments per pair from which on sorting the pairs takes less than looking at all fragments."""


@dataclass(frozen=True, slots=True)
class CountChange:
    """Fragments whose count changed, ascending, and the counts before and after."""

    fragments: Ints
    before: Ints
    after: Ints


class DenseCounts:
    """Counts of `size` fragments; `what` names the things counted, for an error."""

    def __init__(self, name: str, size: int, what: str) -> None:
        self.counts: Ints = np.zeros(size, dtype=np.int64)
        self.arrangement = Arrangement(name, (), _COUNT)
        self.is_partial = False
        self._what = what

    def add(self, fragments: npt.NDArray[Any], weights: Ints) -> CountChange:
        """Count signed fragments in, in any order; both of shape (n,)."""
        places, change = self._summed(fragments, weights)
        before = self.counts[places]
        after = before + change
        if not self.is_partial and bool((after < 0).any()):
            raise never_held(self._what)
        self.counts[places] = after
        self.arrangement.put(places, (), {_COUNT: after})
        return CountChange(places, before, after)

    def _summed(self, fragments: npt.NDArray[Any], weights: Ints) -> tuple[Ints, Ints]:
        """Every fragment whose weights do not cancel, once, and their sum."""
        if len(fragments) * _FEW > len(self.counts):
            change = np.zeros(len(self.counts), dtype=np.int64)
            np.add.at(change, fragments, weights)
            places = np.flatnonzero(change)
            return places, change[places]
        order = np.argsort(fragments)
        ordered = fragments[order].astype(np.int64, copy=False)
        is_first = np.ones(len(ordered), dtype=np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
        starts = np.flatnonzero(is_first)
        change = np.add.reduceat(weights[order], starts) if len(starts) else weights[:0]
        moved = change != 0
        return ordered[starts][moved], change[moved]

    def restore(self) -> None:
        """Fill the counts from the arrangement, after that was loaded."""
        self.counts[:] = 0
        everything = np.array([0]), np.array([len(self.counts)])
        _, fragments, values = slices(self.arrangement.runs, *everything, _COUNT)
        self.counts[fragments] = values
