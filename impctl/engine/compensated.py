"""Sums of doubles kept in twice the precision, with a bound on the error.

Law: `high + low` lies within the returned bound of the true sum, whatever the order of additions.
Two-sum is Knuth's; values are summed by slices of their digits, in a fixed number of passes over
the rows. A column of pairs is reduced pairwise inside each group, in O(log(rows per group)) passes.
Out of scope: what Spark's own sum may be off by (`engine.accumulators`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from impctl.data.vector import Floats, Ints

DRIFT = 2.0**-98
"""Relative error of one reduction, generously: pairwise in double-double depth * 2^-104."""
_SLICED = 18
"""Bits of the rows of a group that sums by slices are within that error for."""
_HEAD = ~((1 << 27) - 1)
"""The bits of a double but for the lower half of its digits."""
_FAR = 2.0**1000
"""Magnitudes far enough below the greatest double that powers above them are numbers too."""


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """(rounded sum, exact rest)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """(rounded product, exact rest), where nothing over- or underflows; by halves (Dekker)."""
    product = a * b
    (head_a, tail_a), (head_b, tail_b) = _halves(a), _halves(b)
    rest = (head_a * head_b - product) + head_a * tail_b + tail_a * head_b
    return product, rest + tail_a * tail_b


def _halves(values: Floats) -> tuple[Floats, Floats]:
    far = values * float((1 << 27) + 1)
    head = far - (far - values)
    return head, values - head


def add_pairs(
    high: Floats, low: Floats, other_high: Floats, other_low: Floats
) -> tuple[Floats, Floats]:
    """Column-wise sum of unevaluated pairs; error below 2^-104 of the operands' magnitudes."""
    total, rest = two_sum(high, other_high)
    tail, small = two_sum(low, other_low)
    rest = rest + tail
    total, rest = two_sum(total, rest)
    return two_sum(total, rest + small)


def grouped_pairs(high: Floats, low: Floats, starts: Ints) -> tuple[Floats, Floats]:
    """Sum of each group's pairs; rows must be sorted so that groups start at `starts`."""
    rows = len(high)
    if len(starts) == rows:
        return high, low
    high, low = high.copy(), low.copy()
    owners = np.zeros(rows, dtype=np.int64)
    owners[starts[1:]] = 1
    owners = np.cumsum(owners)
    ranks = np.arange(rows, dtype=np.int64) - starts[owners]
    while len(high) > len(starts):
        odd = np.flatnonzero(ranks & 1)
        left = odd - 1
        total, rest = add_pairs(high[left], low[left], high[odd], low[odd])
        high[left], low[left] = total, rest
        kept = np.flatnonzero(~(ranks & 1).astype(np.bool_))
        high, low, ranks = high[kept], low[kept], ranks[kept] >> 1
    return high, low


def grouped_sums(
    values: Floats, starts: Ints, reach: Floats | None = None
) -> tuple[Floats, Floats]:
    """Sum of each group's values as pairs; values sorted by group.

    `reach` are the sums of their magnitudes, where they are known.
    """
    rows = len(values)
    if len(starts) == rows:
        return values, np.zeros(rows)
    sizes = np.diff(starts, append=rows)
    if reach is None:
        reach = np.add.reduceat(np.abs(values), starts)
    bits = int(sizes.max()).bit_length()
    if bits > _SLICED or not float(reach.max()) < _FAR:
        return grouped_pairs(values, np.zeros(rows), starts)
    return _sliced(values, starts, sizes, reach, bits)


def _sliced(
    values: Floats, starts: Ints, sizes: Ints, reach: Floats, bits: int
) -> tuple[Floats, Floats]:
    """The sums by slices of the values' digits (Rump's extraction): in three passes, not one for
    each doubling of a group.

    Adding and taking away a power of two above twice the sum of a group's magnitudes leaves digits
    that add up without rounding, whatever the order, and a rest that is exact. The second slice
    takes the rest's upper digits, below that comes less than 2^(2 `bits` - 105) of the power, whose
    sum is off by at most 2^(3 `bits` - 158) of it: 2^-102 of the magnitudes. One power serves all
    groups where that holds of the smallest one too.
    """
    power: Any = np.ldexp(1.0, int(np.frexp(reach.max())[1]) + 1)
    if not _serves_all(float(power), reach, bits):
        power = np.ldexp(1.0, np.frexp(reach)[1] + 1).repeat(sizes)
    first = values + power
    first -= power
    values = values - first
    power = power * 2.0 ** (bits - 52)
    second = values + power
    second -= power
    values -= second
    high, middle = np.add.reduceat(first, starts), np.add.reduceat(second, starts)
    high, low = two_sum(high, middle)
    return two_sum(high, low + np.add.reduceat(values, starts))


def _serves_all(power: float, reach: Floats, bits: int) -> bool:
    """Whether slices by this power are as right for every group as by its own; one of nothing but
    zeros is so by any."""
    least = float(reach.min())
    if least == 0.0:
        some = reach[reach > 0.0]
        least = float(some.min()) if len(some) else power
    # By its own power a group is off by 2^(3 `bits` - 158) of at most four times its magnitudes.
    return power <= 4.0 * least * 2.0 ** (3 * (_SLICED - bits))


def grouped_products(values: Floats, weights: Ints, starts: Ints) -> tuple[Floats, Floats]:
    """Sum of `value * weight` per group as pairs; rows sorted by group.

    A product with a weight beyond one is split by its digits, so that both halves are exact.
    """
    if not len(weights) or int(np.abs(weights).max()) <= 1:
        return grouped_sums(values * weights, starts)
    # Cut off in the bits: nothing overflows, whatever the magnitude.
    head = (values.view(np.int64) & _HEAD).view(np.float64)
    # Halves that overlap would be rounded as single doubles where pairs are added.
    return grouped_pairs(*two_sum(head * weights, (values - head) * weights), starts)


def grouped_bound(magnitudes: Any, starts: Ints) -> Floats:
    """An upper bound of each group's sum of non-negative values."""
    if len(magnitudes) == 0:
        return np.zeros(0)
    sums = np.add.reduceat(magnitudes, starts)
    return np.asarray(sums * (1.0 + len(magnitudes) * 2.0**-52), dtype=np.float64)
