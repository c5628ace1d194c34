"""How many rows or tuples are worked on at once.

Law: what becomes of a lot does not depend on the others, but for sums that the next lot adds to, so
any lots mean the same. Out of scope: what is done with one.
"""

from __future__ import annotations

from collections.abc import Iterator

LOT = 1_000_000
"""What is computed of so many stays small beside the state of many more."""
MOST = 20_000_000
"""Tuples that a step works on at once: a gigabyte or two. More are worked on in lots."""


def lots(length: int, most: int) -> Iterator[tuple[int, int]]:
    """Start and end of each lot; a single one of up to `most`."""
    size = max(1, length if length <= most else min(LOT, most))
    for start in range(0, length, size):
        yield start, min(start + size, length)
