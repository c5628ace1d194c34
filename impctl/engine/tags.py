"""The ranges that a row of a batch carries, one kind of tag per position in the circuit.

Law: expanding tags turns signed rows into signed (slot, range) pairs such that the sum over a row's
ranges equals the sum over its whole set, whatever form the tag has. Below the first grouping a row
has one range (`RowTags`). A stored row, or one from one branch of several, has an explicit set
(`SetTags`). Above a grouping, a changed group has an old and a new set (`range_counts.GroupTags`).
Old and new row of a group mostly take the same path, so their common part cancels and is never
expanded: what remains is `c_new * (new - old) + (c_old + c_new) * old`, whose first part is only
the ranges that crossed zero. So the cost of a group that stays in the result does not depend on the
number of ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from impctl.data.vector import Ints, slice_positions

RangeIds = npt.NDArray[np.int32]

RANGE_BITS = 24
"""Bits of a range's number where it shares one number with a group or slot: room for 16 million. A
workload may ask for 100,000 (`workload.models`)."""


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
        return SetTags(offsets_of(high - low), self.ranges[places])

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
    return SetTags(offsets_of(sizes), np.concatenate(parts))


def offsets_of(sizes: Ints) -> Ints:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
