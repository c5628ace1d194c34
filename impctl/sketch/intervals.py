"""A set of fragments as few intervals on the bare attribute.

Law: the intervals ascend, do not touch, and contain every value of every fragment in the set;
closing a gap only adds (superset lemma of Niu et al., PVLDB 2021). At most `limit` intervals,
because Spark's generated filter falls off a cliff between 48 and 64 of them.
Out of scope: SQL (`capture.use`), file statistics (`tables.prune`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.values import dataclass

MAX_INTERVALS = 32


@dataclass(frozen=True, slots=True)
class Interval:
    """`low <= v < high`; None is open. The interval open above holds NaN too."""

    low: BoundaryValue | None
    high: BoundaryValue | None


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """What rows of an access to read: intervals in order, and whether NULL is wanted."""

    partition: RangePartition
    intervals: tuple[Interval, ...]
    includes_null: bool

    @property
    def is_everything(self) -> bool:
        return self.includes_null and self.intervals == (Interval(None, None),)


def range_filter(
    fragments: FragmentSet,
    partition: RangePartition,
    *,
    limit: int = MAX_INTERVALS,
    rows: Sequence[int] | None = None,
) -> RangeFilter:
    """The filter for a sketch; the smallest gaps are closed first until `limit` are left.

    A gap is as large as its rows where `rows` per fragment are given, else as its fragments.
    """
    runs = _runs([f for f in fragments.ids if f != partition.null_fragment])
    gaps = [
        (sum(rows[end + 1 : start]) if rows is not None else start - end - 1, index)
        for index, ((_, end), (start, _)) in enumerate(zip(runs, runs[1:], strict=False))
    ]
    closed = {index for _, index in sorted(gaps)[: max(0, len(runs) - limit)]}
    merged: list[tuple[int, int]] = []
    for index, run in enumerate(runs):
        if index > 0 and index - 1 in closed:
            merged[-1] = (merged[-1][0], run[1])
        else:
            merged.append(run)
    return RangeFilter(
        partition,
        tuple(_interval(partition, first, last) for first, last in merged),
        partition.null_fragment in fragments,
    )


def exact_filter(fragments: FragmentSet, partition: RangePartition) -> RangeFilter:
    """The filter with no gap closed: for telling files apart, where intervals cost nothing."""
    return range_filter(fragments, partition, limit=partition.size)


def fragments_between(interval: Interval, partition: RangePartition) -> range:
    """The range fragments that an interval is made of; its ends are boundaries."""
    first = 0 if interval.low is None else bisect_right(partition.boundaries, interval.low)
    if interval.high is None:
        return range(first, partition.ranges)
    return range(first, bisect_right(partition.boundaries, interval.high))


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Maximal runs of consecutive ids as (first, last)."""
    runs: list[tuple[int, int]] = []
    for fragment in ids:
        if runs and runs[-1][1] == fragment - 1:
            runs[-1] = (runs[-1][0], fragment)
        else:
            runs.append((fragment, fragment))
    return runs


def _interval(partition: RangePartition, first: int, last: int) -> Interval:
    low = None if first == 0 else partition.boundaries[first - 1]
    high = None if last == partition.ranges - 1 else partition.boundaries[last]
    return Interval(low, high)
