"""Sequences of updates and queries, in a ratio such as `1U5Q`.

Law: equal arguments give equal sequences; a sequence repeats its ratio's block, updates first, and
every query asks with constants drawn evenly. Pure.
Out of scope: running them (`measures.mixed`).
"""

from __future__ import annotations

import re
from typing import Self

import numpy as np

from impctl.values import dataclass

_RATIO = re.compile(r"([1-9][0-9]*)U([1-9][0-9]*)Q")


@dataclass(frozen=True, slots=True)
class Ratio:
    """So many updates, then so many queries."""

    updates: int
    queries: int

    @classmethod
    def read(cls, text: str) -> Self | None:
        """`5U1Q` is five updates and one query; None for anything else."""
        match = _RATIO.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.updates}U{self.queries}Q"


@dataclass(frozen=True, slots=True)
class Operation:
    """A query with the constants of that number, or an update where there is none."""

    constants: int | None


def sequence(ratio: Ratio, length: int, constants: int, seed: int) -> tuple[Operation, ...]:
    """`length` operations, rounded up to whole blocks; `constants` are numbered from 0."""
    random = np.random.default_rng(seed)
    block = ratio.updates + ratio.queries
    operations: list[Operation] = []
    for _ in range(-(-length // block)):
        operations += [Operation(None)] * ratio.updates
        asked = random.integers(0, constants, ratio.queries).tolist()
        operations += [Operation(number) for number in asked]
    return tuple(operations)
