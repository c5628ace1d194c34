"""What becomes of fragments when the ranges of an attribute change.

Law: a new fragment is in the new sketch when any old fragment that shares a value with it is in
the old one. So a range that was split passes its membership to all its parts, a merged one is in
if any part was, and the new sketch holds every row of the old one: it is sound wherever the
attribute is safe (superset lemma of Niu et al., PVLDB 2021; Liu et al., EDBT 2026, section 7.4).
NULL's fragment stays NULL's; NaN is in the last range before and after.
Out of scope: which boundaries to take (`sketch.rebalance`), operator state (`engine`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property

import numpy as np

from impctl.data.vector import Ints
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition
from impctl.values import dataclass


@dataclass(frozen=True)
class Renumbering:
    """From the fragments of `old` to those of `new`, both on one attribute of one table."""

    old: RangePartition
    new: RangePartition

    def fragments(self, held: FragmentSet) -> FragmentSet:
        """The sketch `held` over the new ranges; at least all rows it stood for."""
        mask = np.zeros(self.new.size, dtype=np.bool_)
        for fragment in held:
            mask[self.first[fragment] : self.last[fragment] + 1] = True
        return FragmentSet.from_mask(mask)

    @cached_property
    def targets(self) -> Ints:
        """The new fragment that holds all of an old one, -1 for one that was split."""
        return np.where(self.first == self.last, self.first, -1)

    def carried(self, counts: Ints) -> Ints:
        """Counts per old fragment as counts per new one, those of split ranges left out."""
        kept = self.targets >= 0
        result = np.zeros(self.new.size, dtype=np.int64)
        np.add.at(result, self.targets[kept], counts[kept])
        return result

    @cached_property
    def first(self) -> Ints:
        """For each old fragment the first new one that shares values with it."""
        starts = [bisect_right(self.new.boundaries, low) for low in self.old.boundaries]
        return np.array([0, *starts, self.new.null_fragment], dtype=np.int64)

    @cached_property
    def last(self) -> Ints:
        """For each old fragment the last new one that shares values with it."""
        ends = [bisect_left(self.new.boundaries, high) for high in self.old.boundaries]
        top = self.new.ranges - 1
        return np.array([*ends, top, self.new.null_fragment], dtype=np.int64)
