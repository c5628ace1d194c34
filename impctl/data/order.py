"""The order that sorts codes, in fewer passes than comparing them takes.

Law: the same positions as `np.argsort(codes, kind="stable")`, whatever the codes. Codes that lie
close together are sorted by 16 bits at a time, which NumPy does by counting; those that are sorted
but for a few places, and few of them, by merging. Cost: a pass per 16 bits of what lies between the
least code and the greatest.
Measured, a million codes: of 23 bits 32 ms in place of 98, a quarter of a million 3 ms in place of
20; codes spread over 64 bits take as long either way once they are many.
Out of scope: codes of keys (`data.keys`), what becomes of sorted rows (`data.sorted_rows`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.memory import reserve
from impctl.data.vector import Ints

MANY = 1_000
"""Codes that are looked for from which on it pays to sort them first."""
_DIGIT = 16
_FEW = 2_000
"""Codes that are sorted in no time."""
_RUNS = 32
"""Sorted runs that are merged sooner than counted."""
_MOST_PASSES = 3
_CACHED = 1 << 19
"""Codes that stay in the caches, of which a fourth pass pays."""


def ascending(codes: Ints) -> Ints:
    """Positions that sort the codes, equal ones as they come; shape (n,)."""
    # The order, and beside it the words or what merging takes, with some digits.
    reserve(3 * codes.nbytes)
    if len(codes) <= _FEW or _has_few_runs(codes):
        return np.argsort(codes, kind="stable")
    lowest = codes.min()
    # The difference of two codes wraps to what it is without a sign.
    words = codes.view(np.uint64) - np.uint64(int(lowest) & ((1 << 64) - 1))
    bits = int(words.max()).bit_length()
    passes = max(1, -(-bits // _DIGIT))
    if passes > (_MOST_PASSES if len(codes) > _CACHED else _MOST_PASSES + 1):
        return np.argsort(codes, kind="stable")
    order: Ints = np.argsort(words.astype(np.uint16), kind="stable")
    for at in range(1, passes):
        digits = (words >> np.uint64(at * _DIGIT)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def _has_few_runs(codes: Ints) -> bool:
    """Whether they are sorted but for some places; most that are not show it early."""
    if np.count_nonzero(codes[1:_FEW] < codes[: _FEW - 1]) > _RUNS:
        return False
    return bool(np.count_nonzero(codes[1:] < codes[:-1]) <= _RUNS)


def in_order(codes: Ints) -> Ints:
    """The codes, ascending."""
    if len(codes) <= _FEW:
        return np.sort(codes)
    return codes[ascending(codes)]


def when_many(codes: Ints) -> tuple[Ints | None, Ints]:
    """Codes that are asked for in ascending order, and what sorts them; None where they are few, or
    sorted as they are. Neighbours are found in the same part of a run, in a quarter of the time."""
    if len(codes) < MANY or bool((codes[1:] >= codes[:-1]).all()):
        return None, codes
    order = ascending(codes)
    return order, codes[order]
