"""The ranges that a row of a batch carries, one kind of tag per position in the circuit.

Law: expanding tags turns signed rows into signed (slot, range) pairs such that the sum over a row's
ranges equals the sum over its whole set, whatever form the tag has. Below the first grouping a row
has one range (`RowTags`). A stored row, or one from one branch of several, has an explicit set
(`SetTags`). Above a grouping, a changed group has an old and a new set (`GroupTags`). Old and new
row of a group mostly take the same path, so their common part cancels and is never expanded: what
remains is `c_new * (new - old) + (c_old + c_new) * old`, whose first part is only the ranges that
crossed zero. So the cost of a group that stays in the result does not depend on the number of
ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from impctl.data.keys import starts_in
from impctl.data.vector import Bools, Ints, slice_positions

RangeIds = npt.NDArray[np.int32]

RANGE_BITS = 24
"""Bits of a range's number where it shares one number with a group or slot: room for 16 million. A
workload may ask for 100,000 (`workload.sections`)."""


class Pairs(Struct, frozen=True):
    """Signed (slot, range) pairs; three arrays of one length, in no order, not consolidated."""

    slots: Ints
    ranges: Ints
    weights: Ints


NO_PAIRS = Pairs(*np.zeros((3, 0), dtype=np.int64))


class Tags(Protocol):
    def __len__(self) -> int: ...

    def take(self, positions: npt.NDArray[Any]) -> Tags: ...

    def expand(self, slots: Ints, weights: Ints) -> Pairs:
        """Pairs for rows that fall into `slots` with `weights`; both of shape (rows,)."""
        ...

    def sets(self) -> SetTags:
        """The same tags with explicit sets. Cost: the ranges of all rows."""
        ...


class RowTags(Struct, frozen=True):
    """One range per row; shape (n,), int32."""

    ranges: RangeIds

    def __len__(self) -> int:
        return len(self.ranges)

    def take(self, positions: npt.NDArray[Any]) -> RowTags:
        return RowTags(self.ranges[positions])

    def expand(self, slots: Ints, weights: Ints) -> Pairs:
        return Pairs(slots, self.ranges.astype(np.int64), weights)

    def sets(self) -> SetTags:
        ends = np.arange(len(self.ranges) + 1, dtype=np.int64)
        return SetTags(ends, self.ranges.astype(np.int32, copy=False))


class SetTags(Struct, frozen=True):
    """Any set per row: that of row i is `ranges[offsets[i]:offsets[i + 1]]`, ascending."""

    offsets: Ints
    ranges: RangeIds

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, positions: npt.NDArray[Any]) -> SetTags:
        low, high = self.offsets[positions], self.offsets[positions + 1]
        places, _ = slice_positions(low, high)
        return SetTags(_offsets(high - low), self.ranges[places])

    def expand(self, slots: Ints, weights: Ints) -> Pairs:
        sizes = np.diff(self.offsets)
        rows = np.repeat(np.arange(len(self), dtype=np.int64), sizes)
        start, end = int(self.offsets[0]), int(self.offsets[-1])
        return Pairs(slots[rows], self.ranges[start:end].astype(np.int64), weights[rows])

    def sets(self) -> SetTags:
        return self


class SpanTags(Struct, frozen=True):
    """One range per row for consecutive rows from `start` on, and none for the other `rows`."""

    rows: int
    start: int
    ranges: RangeIds

    def __len__(self) -> int:
        return self.rows

    def take(self, positions: npt.NDArray[Any]) -> SetTags:
        return self.sets().take(positions)

    def expand(self, slots: Ints, weights: Ints) -> Pairs:
        part = slice(self.start, self.start + len(self.ranges))
        return Pairs(slots[part], self.ranges.astype(np.int64), weights[part])

    def sets(self) -> SetTags:
        ends = np.arange(-self.start, self.rows + 1 - self.start, dtype=np.int64)
        return SetTags(np.clip(ends, 0, len(self.ranges)), self.ranges)


def no_ranges(rows: int) -> SetTags:
    return SetTags(np.zeros(rows + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))


def apart(tag: Tags) -> Tags:
    """The tags in a form that does not refer to other state."""
    return tag if isinstance(tag, RowTags) else tag.sets()


def stacked(tags: Sequence[Tags]) -> Tags:
    """The tags of several batches, one after the other; at least one."""
    if len(tags) == 1:
        return tags[0]
    if all(isinstance(tag, RowTags) for tag in tags):
        return RowTags(np.concatenate([tag.ranges for tag in tags if isinstance(tag, RowTags)]))
    spelled = [tag.sets() for tag in tags]
    sizes = np.concatenate([np.diff(tag.offsets) for tag in spelled])
    parts = [tag.ranges[int(tag.offsets[0]) : int(tag.offsets[-1])] for tag in spelled]
    return SetTags(_offsets(sizes), np.concatenate(parts))


def _offsets(sizes: Ints) -> Ints:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


class SetSource(Protocol):
    """Old range sets of changed groups and their crossings, by group ordinal."""

    def crossings(self) -> Pairs:
        """(ordinal, range, +1 or -1), sorted by ordinal."""
        ...

    def old_sets(self, ordinals: Ints) -> Pairs:
        """The old set of each ordinal as (index into `ordinals`, range, 1)."""
        ...


class GroupTags(Struct, frozen=True):
    """The old or new range set of a changed group, by reference; shapes (n,)."""

    source: SetSource
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
        crossings = self.source.crossings()
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
        ranges = (codes[places] & ((1 << RANGE_BITS) - 1)).astype(np.int32)
        return SetTags(_offsets(end - start), ranges)

    def _crossed(self, ordinals: Ints, slots: Ints, weights: Ints) -> Pairs:
        crossings = self.source.crossings()
        wanted = np.flatnonzero(weights)
        low = np.searchsorted(crossings.slots, ordinals[wanted], side="left")
        high = np.searchsorted(crossings.slots, ordinals[wanted], side="right")
        positions, owners = slice_positions(low, high)
        owners = wanted[owners]
        return Pairs(
            slots[owners],
            crossings.ranges[positions],
            crossings.weights[positions] * weights[owners],
        )

    def _whole(self, ordinals: Ints, slots: Ints, weights: Ints) -> Pairs:
        wanted = np.flatnonzero(weights)
        sets = self.source.old_sets(ordinals[wanted])
        owners = wanted[sets.slots]
        return Pairs(slots[owners], sets.ranges, weights[owners])


def _joined(left: Pairs, right: Pairs) -> Pairs:
    return Pairs(
        np.concatenate([left.slots, right.slots]),
        np.concatenate([left.ranges, right.ranges]),
        np.concatenate([left.weights, right.weights]),
    )
