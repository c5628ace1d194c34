"""Equi-depth boundaries, from a sample of values or from values with their weights.

Law: boundaries are strictly increasing values of the attribute's type, at most `ranges - 1`; how
well balanced they are depends on what is known of the values, soundness never does.
Out of scope: taking samples, weighing values (`tables`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from impctl.sketch.partition import BoundaryValue
from impctl.sketch.value_weights import ValueWeights
from impctl.values import dataclass

_LEAST, _MOST = 0.67, 1.5
"""How much of its share a range may hold so that it starts where a file does."""
_WIDER = 1.1
_ENOUGH = 0.95
"""Ranges found of those asked for with which no smaller share is tried."""
_HALVINGS = 8


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


def aligned_boundaries(
    weights: ValueWeights, ranges: int, starts: Sequence[BoundaryValue]
) -> tuple[BoundaryValue, ...]:
    """At most `ranges - 1` boundaries, even by weight, at one of `starts` wherever one is near.

    `starts` ascend: the least values of files, so that a file lies in as few ranges as may be. A
    heavy value stands alone; with no more values than ranges each has its own.
    """
    if len(weights.values) <= ranges:
        return weights.values[1:]
    placed = _Starts.of(weights, starts)
    share = weights.total / max(ranges, 1)
    while len(result := _swept(weights, share, placed)) >= ranges:
        share *= _WIDER
    # Heavy values fill several shares each: smaller shares cut what is between them as finely as
    # was asked for.
    too_small = 0.0
    for _ in range(_HALVINGS):
        if len(result) + 1 >= _ENOUGH * ranges:
            break
        smaller = (too_small + share) / 2
        finer = _swept(weights, smaller, placed)
        if len(finer) < ranges:
            result, share = finer, smaller
        else:
            too_small = smaller
    return tuple(result)


@dataclass(frozen=True, slots=True)
class _Starts:
    """Values where files start, ascending, and the rows before each."""

    values: tuple[BoundaryValue, ...]
    rows: tuple[float, ...]

    @classmethod
    def of(cls, weights: ValueWeights, starts: Sequence[BoundaryValue]) -> _Starts:
        return cls(tuple(starts), tuple(weights.rows_before(value) for value in starts))

    def nearest(self, least: float, wanted: float, most: float) -> int | None:
        """The start with the rows nearest to `wanted` before it; None without one between."""
        first, end = bisect_left(self.rows, least), bisect_right(self.rows, most)
        at = bisect_left(self.rows, wanted, first, end)
        near = range(max(first, at - 1), min(end, at + 1))
        return min(near, key=lambda at: abs(self.rows[at] - wanted), default=None)


def _swept(weights: ValueWeights, share: float, starts: _Starts) -> list[BoundaryValue]:
    """Boundaries from left to right, each about `share` rows after the one before."""
    result: list[BoundaryValue] = []
    last = 0.0
    while weights.total - last > share * _MOST:
        at = starts.nearest(last + share * _LEAST, last + share, last + share * _MOST)
        if at is not None:
            value, rows = starts.values[at], starts.rows[at]
        else:
            value, rows = _cut(weights, last, share)
        if rows >= weights.total:
            break
        result.append(value)
        last = rows
    return result


def _cut(weights: ValueWeights, last: float, share: float) -> tuple[BoundaryValue, float]:
    """The value to cut at, `share` rows after `last`: before a heavy one, or else behind it."""
    at = bisect_left(weights.before, last + share)
    rows = weights.before[at]
    if rows > last + share * _MOST and weights.before[at - 1] > last:
        at, rows = at - 1, weights.before[at - 1]
    return weights.values[min(at, len(weights.values) - 1)], rows
