"""Sorted rows: where equal neighbours begin, and where slices end.

Law: the rows are sorted by the columns that are compared; cost is their number, or, of slices that
are looked for, a search in them per slice at most.
Out of scope: sorting by keys of any type (`data.keys`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from impctl.data.order import in_order
from impctl.data.vector import Bools, Ints

_DENSE, _MANY = 16, 1_000
"""Places per value up to which many values are marked sooner than sorted."""
_BITS = 8
"""Places per code that is held: one in so many that are not there is taken for one that is."""
_SHORT = 3
"""Rows of a slice up to which its end is looked for row by row."""


def starts_in(*columns: Ints) -> Bools:
    """Whether each row differs from the one before it in some column; the first one does."""
    is_start = np.ones(len(columns[0]), dtype=np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=is_start[1:])
    for column in columns[1:]:
        is_start[1:] |= column[1:] != column[:-1]
    return is_start


def ends_of(codes: Ints, first: Ints, high: Ints, side: Literal["left", "right"]) -> Ints:
    """Where slices that begin at `first` end, as `codes.searchsorted(high, side)`; shape (n,).

    Most are short: looking at what comes next takes less than a search in many codes.
    """
    if not len(codes):
        return first
    is_below = np.less if side == "left" else np.less_equal
    last = first.copy()
    is_in: Bools = is_below(codes.take(first, mode="clip"), high) & (first < len(codes))
    rows = is_in.nonzero()[0]
    for _ in range(_SHORT - 1):
        if not len(rows):
            return last
        following = last[rows] + 1
        last[rows] = following
        # Most slices have ended by now, many of them before they began.
        is_in = is_below(codes.take(following, mode="clip"), high[rows]) & (following < len(codes))
        rows = rows[is_in]
    last[rows] = codes.searchsorted(high[rows], side)
    return last


def start_of(is_start: Bools) -> Ints:
    """The position of the last start up to each row."""
    starts: Ints = np.flatnonzero(is_start)[np.cumsum(is_start) - 1]
    return starts


def distinct_values(values: Ints) -> Ints:
    """Each value once, ascending. Measured: `np.unique` takes ten to forty times as long."""
    if len(values) >= _MANY:
        lowest = int(values.min())
        between = int(values.max()) - lowest
        if between < _DENSE * len(values):
            is_there = np.zeros(between + 1, dtype=np.bool_)
            is_there[values - lowest] = True
            result: Ints = is_there.nonzero()[0]
            return result + lowest
    ordered = in_order(values)
    return ordered[starts_in(ordered)]


def perhaps_in(held: Ints, asked: Ints) -> Ints:
    """Which of many codes may be among far fewer, by some of their bits: positions, ascending."""
    mask = (1 << (_BITS * len(held)).bit_length()) - 1
    is_there = np.zeros(mask + 1, dtype=np.bool_)
    is_there[held & mask] = True
    some: Ints = is_there[asked & mask].nonzero()[0]
    return some
