"""Equi-depth boundaries from a sample of values.

Law: boundaries are strictly increasing values of the attribute's type; how well balanced they are
depends on the sample, soundness never does.
Out of scope: taking the sample (`tables`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from impctl.sketch.partition import BoundaryValue


def equidepth_boundaries(sample: Iterable[BoundaryValue], ranges: int) -> tuple[BoundaryValue, ...]:
    """At most `ranges - 1` boundaries that split the sample evenly; NULL and NaN must be left out.

    A value that fills several quantiles gets a fragment of its own, so that it does not drag its
    neighbours along; with no more distinct values than ranges, every value gets its own fragment.
    """
    ordered = sorted(sample)
    distinct: list[BoundaryValue] = []
    first_at: list[int] = []
    for position, value in enumerate(ordered):
        if not distinct or value != distinct[-1]:
            distinct.append(value)
            first_at.append(position)
    if len(distinct) <= ranges:
        return tuple(distinct[1:])
    chosen: list[int] = []
    for quantile in range(1, ranges):
        target = quantile * len(ordered) // ranges
        index = _last_at_or_before(first_at, target)
        if not chosen or index > chosen[-1]:
            chosen.append(index)
        elif chosen[-1] + 1 < len(distinct) and chosen[-1] == index:
            chosen.append(index + 1)
    return tuple(distinct[index] for index in chosen if index > 0)


def _last_at_or_before(first_at: list[int], target: int) -> int:
    return bisect_right(first_at, target) - 1
