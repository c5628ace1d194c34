"""Rows per (group, fragment), and what a change does to a group's fragment set.

Law: a group's set is {f : count(group, f) > 0}. The code of a pair is `group * 2^24 + fragment`,
which is the whole key, so a group's fragments lie side by side in every run. Reading the set of a
group costs its fragments; counting costs the pairs changed.
Out of scope: keeping which number a group has (`engine.operators.aggregate`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import ascending, in_order, starts_in
from impctl.data.vector import Ints
from impctl.engine.arrangement import Arrangement, slices
from impctl.engine.disagreement import disagreement
from impctl.engine.runs import Run
from impctl.engine.tags import FRAGMENT_BITS, Pairs, SetTags
from impctl.values import dataclass

_FRAGMENT_MASK = (1 << FRAGMENT_BITS) - 1
_COUNT = "count"


@dataclass(frozen=True, slots=True)
class GroupSets:
    """Fragment sets of the changed groups as they were, and the crossings since."""

    runs: Sequence[Run]
    groups: Ints
    crossed: Pairs

    def crossings(self) -> Pairs:
        return self.crossed

    def old_sets(self, ordinals: Ints) -> Pairs:
        low = self.groups[ordinals] << FRAGMENT_BITS
        owners, codes, counts = slices(self.runs, low, low + (1 << FRAGMENT_BITS), _COUNT)
        return Pairs(owners, codes & _FRAGMENT_MASK, np.ones(len(counts), dtype=np.int64))


class FragmentCounts:
    """The counts of one sketched access."""

    def __init__(self, name: str) -> None:
        self.arrangement = Arrangement(name, (), _COUNT)

    def count(self, groups: Ints, pairs: Pairs) -> GroupSets:
        """Count a change in; `pairs.slots` index into `groups`. Returns old sets and crossings."""
        before = self.arrangement.runs
        codes = (groups[pairs.slots] << FRAGMENT_BITS) | pairs.fragments
        order = ascending(codes)
        codes = codes[order]
        if len(codes) == 0:
            return GroupSets(before, groups, pairs)
        starts = np.concatenate(
            [np.zeros(1, dtype=np.int64), np.flatnonzero(codes[1:] != codes[:-1]) + 1]
        )
        change = np.add.reduceat(pairs.weights[order], starts)
        slots = pairs.slots[order][starts]
        moved = change != 0
        codes, slots = codes[starts][moved], slots[moved]
        old, new = self._changed(codes, change[moved])
        return GroupSets(before, groups, _crossings(slots, codes, old, new))

    def add(self, groups: Ints, pairs: Pairs) -> None:
        """Count a change in where nobody asks for sets; of rows that only come at half the cost."""
        if not bool((pairs.weights == 1).all()):
            self.count(groups, pairs)
            return
        codes = in_order((groups[pairs.slots] << FRAGMENT_BITS) | pairs.fragments)
        if len(codes):
            starts = starts_in(codes).nonzero()[0]
            self._changed(codes[starts], np.diff(starts, append=len(codes)))

    def _changed(self, codes: Ints, change: Ints) -> tuple[Ints, Ints]:
        """Write changed counts, by ascending codes; as they were and as they are."""
        old: Ints = self.arrangement.gather(self.arrangement.find(codes, ()), _COUNT)
        new = old + change
        if bool((new < 0).any()):
            raise disagreement(
                "The change removes rows from a range where the stored state never had them"
            )
        self.arrangement.put(codes, (), {_COUNT: new})
        return old, new

    def adopt(self, other: FragmentCounts, targets: Ints) -> None:
        """Take over counts under new fragment numbers, where nothing was counted yet.

        `targets` is the new fragment of each old one; counts of those at -1 are left out.
        """
        run = other.arrangement.whole()
        if run is None:
            return
        fragments = targets[run.codes & _FRAGMENT_MASK]
        kept = np.flatnonzero(fragments >= 0)
        groups = run.codes[kept] & ~_FRAGMENT_MASK
        codes, index = np.unique(groups | fragments[kept], return_inverse=True)
        counts = np.zeros(len(codes), dtype=np.int64)
        np.add.at(counts, index, run.values[_COUNT][kept])
        self.arrangement.put(codes, (), {_COUNT: counts})

    def sets_of(self, groups: Ints) -> SetTags:
        """The fragment set of each group, spelled out."""
        low = groups << FRAGMENT_BITS
        runs = self.arrangement.runs
        owners, codes, _ = slices(runs, low, low + (1 << FRAGMENT_BITS), _COUNT)
        offsets = np.zeros(len(groups) + 1, dtype=np.int64)
        np.cumsum(np.bincount(owners, minlength=len(groups)), out=offsets[1:])
        return SetTags(offsets, (codes & _FRAGMENT_MASK).astype(np.int32))


def _crossings(slots: Ints, codes: Ints, old: Ints, new: Ints) -> Pairs:
    """Fragments that entered (+1) or left (-1) a group's set, sorted by slot."""
    signs = (new > 0).astype(np.int64) - (old > 0).astype(np.int64)
    crossed = np.flatnonzero(signs)
    order = crossed[np.argsort(slots[crossed], kind="stable")]
    return Pairs(slots[order], codes[order] & _FRAGMENT_MASK, signs[order])


def numbered(numbers: Ints, following: int) -> tuple[Ints, int]:
    """The numbers, with fresh ones from `following` on for those that have none; the next one."""
    fresh = np.flatnonzero(numbers == 0)
    result = numbers.copy()
    result[fresh] = np.arange(following, following + len(fresh))
    return result, following + len(fresh)
