"""Which rows a sequence of deletions takes: the least ones, random ones, or both in turn.

Law: equal arguments give equal sequences; no row is taken twice; a sequence ends where no rows are
left. `2:1` is two random deletions, then a minimal one. Pure.
Out of scope: deleting (`measures.deletions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

MINIMAL = "minimal"
RANDOM = "random"

_RATIO = re.compile(r"([1-9][0-9]*):([1-9][0-9]*)")


def pattern_of(text: str) -> tuple[bool, ...] | None:
    """One round of a pattern, True for a minimal deletion; None for an unknown text."""
    if text == MINIMAL:
        return (True,)
    if text == RANDOM:
        return (False,)
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    return (False,) * int(match[1]) + (True,) * int(match[2])


def deletions_of(
    pattern: Sequence[bool], ordered: npt.NDArray[np.int64], size: int, seed: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Keys to delete, at most `size` at a time; `ordered` are those of all rows, least row first.

    Cost per deletion: the rows left.
    """
    random = np.random.default_rng(seed)
    left = ordered
    turn = 0
    while len(left):
        count = min(size, len(left))
        if pattern[turn % len(pattern)]:
            taken = np.arange(count)
        else:
            taken = random.choice(len(left), count, replace=False)
        yield left[np.sort(taken)]
        left = np.delete(left, taken)
        turn += 1
