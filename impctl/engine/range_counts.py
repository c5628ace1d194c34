"""How many rows each group and each range has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from impctl.data.keys import ascending, in_order, starts_in
from impctl.data.vector import slice_positions
from impctl.engine.batch import disagreement, never_held
from impctl.engine.tags import NO_PAIRS, RANGE_BITS, Pairs, SetTags, offsets_of
from impctl.engine.trace import Arrangement, Run, slices

if TYPE_CHECKING:
    from impctl.data.vector import Bools, Ints

# Rows per (group, range), and the change of a group's range set. Law: a group's set is {f :
# count(group, f) > 0}. The code of a pair is `group * 2^24 + range`, the whole key, so a group's
# ranges are adjacent in every run. Reading a group's set costs its ranges; counting costs the
# changed pairs.

# A count per range, dense in memory, stored as runs of changes. Law: a count is the sum of all
# weights counted for its range. One below zero is an error, unless the counts are partial: then
# uncounted things may be taken back. Counting costs the pairs (and, for more pairs than ranges, the
# ranges); writing costs the changed counts.

_COUNT = "count"
_FEW = 8  # Ranges per pair from which sorting the pairs is faster than scanning all ranges


class DenseCounts:
    """Counts of `size` ranges; `what` names the things counted, for an error."""

    def __init__(self, name: str, size: int, what: str) -> None:
        self.counts: Ints = np.zeros(size, dtype=np.int64)
        self.arrangement = Arrangement(name, (), _COUNT)
        self.is_partial = False
        self._what = what

    def add(self, ranges: npt.NDArray[Any], weights: Ints) -> None:
        """Count signed ranges, in any order; both of shape (n,)."""
        places, change = self._summed(ranges, weights)
        after = self.counts[places] + change
        if not self.is_partial and bool((after < 0).any()):
            raise never_held(self._what)
        self.counts[places] = after
        self.arrangement.put(places, (), {_COUNT: after})

    def _summed(self, ranges: npt.NDArray[Any], weights: Ints) -> tuple[Ints, Ints]:
        if len(ranges) * _FEW > len(self.counts):
            change = np.zeros(len(self.counts), dtype=np.int64)
            np.add.at(change, ranges, weights)
            positions = np.flatnonzero(change)
            return positions, change[positions]
        order = np.argsort(ranges)
        ordered = ranges[order].astype(np.int64, copy=False)
        starts = starts_in(ordered).nonzero()[0]
        change = np.add.reduceat(weights[order], starts) if len(starts) else weights[:0]
        moved = change != 0
        return ordered[starts][moved], change[moved]

    def restore(self) -> None:
        """Fill the counts from the arrangement, after that was loaded."""
        self.counts[:] = 0
        everything = np.array([0]), np.array([len(self.counts)])
        _, ranges, values = slices(self.arrangement.runs, *everything, _COUNT)
        self.counts[ranges] = values


_RANGE_MASK = (1 << RANGE_BITS) - 1


class GroupSets(Struct, frozen=True):
    """Range sets of the changed groups before the change. `crossed` are the ranges that entered
    (+1) or left (-1) them since, sorted by group."""

    runs: Sequence[Run]
    groups: Ints
    crossed: Pairs

    def old_sets(self, ordinals: Ints) -> Pairs:
        """The old set of each ordinal as (index into `ordinals`, range, 1)."""
        low = self.groups[ordinals] << RANGE_BITS
        owners, codes, counts = slices(self.runs, low, low + (1 << RANGE_BITS), _COUNT)
        return Pairs(owners, codes & _RANGE_MASK, np.ones(len(counts), dtype=np.int64))


class GroupTags(Struct, frozen=True):
    """The old or new range set of a changed group, by reference; shapes (n,)."""

    source: GroupSets
    ordinals: Ints
    is_new: Bools

    def __len__(self) -> int:
        return len(self.ordinals)

    def take(self, positions: npt.NDArray[Any]) -> GroupTags:
        return GroupTags(self.source, self.ordinals[positions], self.is_new[positions])

    def expand(self, slots: Ints, weights: Ints) -> Pairs:
        if len(self) == 0:
            return NO_PAIRS
        order = np.lexsort((slots, self.ordinals))
        ordinals, slots = self.ordinals[order], slots[order]
        starts = starts_in(ordinals, slots).nonzero()[0]
        weights = weights[order]
        new = np.add.reduceat(np.where(self.is_new[order], weights, 0), starts)
        total = np.add.reduceat(weights, starts)
        return _joined(
            self._crossed(ordinals[starts], slots[starts], new),
            self._whole(ordinals[starts], slots[starts], total),
        )

    def sets(self) -> SetTags:
        ordinals, slots = np.unique(self.ordinals, return_inverse=True)
        old = self.source.old_sets(ordinals)
        before = (old.slots << RANGE_BITS) | old.ranges
        crossings = self.source.crossed
        position = np.searchsorted(ordinals, crossings.slots)
        known = position < len(ordinals)
        known[known] = ordinals[position[known]] == crossings.slots[known]
        crossed = (position << RANGE_BITS) | crossings.ranges
        entered = crossed[known & (crossings.weights > 0)]
        left = crossed[known & (crossings.weights < 0)]
        after = np.concatenate([np.setdiff1d(before, left), entered])
        codes = np.concatenate([np.sort(before), np.sort(after)])
        # New sets follow the old ones: their positions start there.
        old_codes, new_codes = codes[: len(before)], codes[len(before) :]
        low = slots << RANGE_BITS
        start, end = (
            np.where(
                self.is_new,
                len(before) + np.searchsorted(new_codes, bound),
                np.searchsorted(old_codes, bound),
            )
            for bound in (low, low + (1 << RANGE_BITS))
        )
        places, _ = slice_positions(start, end)
        ranges = (codes[places] & _RANGE_MASK).astype(np.int32)
        return SetTags(offsets_of(end - start), ranges)

    def _crossed(self, ordinals: Ints, slots: Ints, weights: Ints) -> Pairs:
        crossings = self.source.crossed
        nonzero = np.flatnonzero(weights)
        low = np.searchsorted(crossings.slots, ordinals[nonzero], side="left")
        high = np.searchsorted(crossings.slots, ordinals[nonzero], side="right")
        positions, owners = slice_positions(low, high)
        owners = nonzero[owners]
        return Pairs(
            slots[owners],
            crossings.ranges[positions],
            crossings.weights[positions] * weights[owners],
        )

    def _whole(self, ordinals: Ints, slots: Ints, weights: Ints) -> Pairs:
        nonzero = np.flatnonzero(weights)
        sets = self.source.old_sets(ordinals[nonzero])
        owners = nonzero[sets.slots]
        return Pairs(slots[owners], sets.ranges, weights[owners])


def _joined(left: Pairs, right: Pairs) -> Pairs:
    return Pairs(
        np.concatenate([left.slots, right.slots]),
        np.concatenate([left.ranges, right.ranges]),
        np.concatenate([left.weights, right.weights]),
    )


class RangeCounts:
    def __init__(self, name: str) -> None:
        self.arrangement = Arrangement(name, (), _COUNT)

    def count(self, groups: Ints, pairs: Pairs) -> GroupSets:
        """Count a change; `pairs.slots` index into `groups`. Returns old sets and crossings."""
        before = self.arrangement.runs
        codes = (groups[pairs.slots] << RANGE_BITS) | pairs.ranges
        order = ascending(codes)
        codes = codes[order]
        if len(codes) == 0:
            return GroupSets(before, groups, pairs)
        starts = starts_in(codes).nonzero()[0]
        change = np.add.reduceat(pairs.weights[order], starts)
        slots = pairs.slots[order][starts]
        moved = change != 0
        codes, slots = codes[starts][moved], slots[moved]
        old, new = self._changed(codes, change[moved])
        return GroupSets(before, groups, _crossings(slots, codes, old, new))

    def add(self, groups: Ints, pairs: Pairs) -> None:
        """Count a change without returning sets; at half the cost where rows are only inserted."""
        if not bool((pairs.weights == 1).all()):
            self.count(groups, pairs)
            return
        codes = in_order((groups[pairs.slots] << RANGE_BITS) | pairs.ranges)
        if len(codes):
            starts = starts_in(codes).nonzero()[0]
            self._changed(codes[starts], np.diff(starts, append=len(codes)))

    def _changed(self, codes: Ints, change: Ints) -> tuple[Ints, Ints]:
        """Write changed counts, by ascending codes; old and new counts."""
        old: Ints = self.arrangement.gather(self.arrangement.find(codes, ()), _COUNT)
        new = old + change
        if bool((new < 0).any()):
            raise disagreement(
                "The change removes rows from a range where the stored state never had them"
            )
        self.arrangement.put(codes, (), {_COUNT: new})
        return old, new

    def adopt(self, other: RangeCounts, targets: Ints) -> None:
        """Adopt counts under new range numbers, where nothing was counted yet. `targets` is the new
        range of each old one; counts of those at -1 are skipped."""
        run = other.arrangement.whole()
        if run is None:
            return
        ranges = targets[run.codes & _RANGE_MASK]
        kept = np.flatnonzero(ranges >= 0)
        groups = run.codes[kept] & ~_RANGE_MASK
        codes, index = np.unique(groups | ranges[kept], return_inverse=True)
        counts = np.zeros(len(codes), dtype=np.int64)
        np.add.at(counts, index, run.values[_COUNT][kept])
        self.arrangement.put(codes, (), {_COUNT: counts})

    def sets_of(self, groups: Ints) -> SetTags:
        """The range set of each group as explicit lists."""
        low = groups << RANGE_BITS
        runs = self.arrangement.runs
        owners, codes, _ = slices(runs, low, low + (1 << RANGE_BITS), _COUNT)
        offsets = np.zeros(len(groups) + 1, dtype=np.int64)
        np.cumsum(np.bincount(owners, minlength=len(groups)), out=offsets[1:])
        return SetTags(offsets, (codes & _RANGE_MASK).astype(np.int32))


def _crossings(slots: Ints, codes: Ints, old: Ints, new: Ints) -> Pairs:
    """Ranges that entered (+1) or left (-1) a group's set, sorted by slot."""
    signs = (new > 0).astype(np.int64) - (old > 0).astype(np.int64)
    crossed = np.flatnonzero(signs)
    order = crossed[np.argsort(slots[crossed], kind="stable")]
    return Pairs(slots[order], codes[order] & _RANGE_MASK, signs[order])


def numbered(numbers: Ints, following: int) -> tuple[Ints, int]:
    """The numbers, with unused ones from `following` on in place of 0; the next unused one."""
    fresh = np.flatnonzero(numbers == 0)
    result = numbers.copy()
    result[fresh] = np.arange(following, following + len(fresh))
    return result, following + len(fresh)
