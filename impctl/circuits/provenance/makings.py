"""Ways in which rows are made of others: heads and bodies as numbers.

Law: a making is one way: its head is there if all its bodies are. Those of groups are marked:
a part of a group's rows may make the same row by chance, or another one.
Out of scope: finding them (`circuits.provenance.program`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.vector import Bools, Ints
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Makings:
    """Making i makes `heads[i]` of `bodies[starts[i] : starts[i + 1]]`; shape (makings,) for
    `heads` and `are_groups`, one more for `starts`."""

    heads: Ints
    starts: Ints
    bodies: Ints
    are_groups: Bools

    def __len__(self) -> int:
        return len(self.heads)


class MakingList:
    """Collects makings."""

    def __init__(self) -> None:
        self._heads: list[Ints] = []
        self._sizes: list[Ints] = []
        self._bodies: list[Ints] = []
        self._are_groups: list[Bools] = []

    def add(self, heads: Ints, bodies: Ints) -> None:
        """One making per row; `bodies` has shape (rows, most of one), -1 for none."""
        there = bodies >= 0
        self._put(heads, there.sum(axis=1, dtype=np.int64), bodies[there], is_group=False)

    def add_groups(self, groups: Ints, heads: Ints, bodies: Ints) -> None:
        """One making per group, of the bodies of all rows that have it for a head."""
        owners = np.repeat(heads, bodies.shape[1])
        flat = bodies.reshape(-1)
        there = flat >= 0
        pairs = np.unique(np.stack([owners[there], flat[there]], axis=1), axis=0)
        groups = np.sort(groups)
        ends = np.searchsorted(pairs[:, 0], groups, side="right")
        sizes = ends - np.searchsorted(pairs[:, 0], groups, side="left")
        self._put(groups, sizes, pairs[:, 1], is_group=True)

    def _put(self, heads: Ints, sizes: Ints, bodies: Ints, *, is_group: bool) -> None:
        self._heads.append(heads)
        self._sizes.append(sizes)
        self._bodies.append(bodies)
        self._are_groups.append(np.full(len(heads), is_group))

    def whole(self) -> Makings:
        """All of them, in the order in which they came."""
        nothing = np.zeros(0, dtype=np.int64)
        sizes = np.concatenate([np.zeros(1, dtype=np.int64), *self._sizes])
        return Makings(
            np.concatenate([nothing, *self._heads]),
            np.cumsum(sizes),
            np.concatenate([nothing, *self._bodies]),
            np.concatenate([np.zeros(0, dtype=np.bool_), *self._are_groups]),
        )
