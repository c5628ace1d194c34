"""Merge: the root, where tags of result rows become the sketch.

Identity: count[f] = sum of the weights of result rows that carry fragment f; the sketch is
{f : count[f] > 0}, and its change is the crossings of zero. State: one count per fragment and
access, dense in memory, kept as runs of changed counts. Cost: the (row, fragment) pairs that reach
the root, not the number of fragments. A count below zero means the state did not see a row that
is now deleted: an error, never a guess. An empty batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from impctl.data.vector import Bools, Ints
from impctl.engine.arrangement import Arrangement, slices
from impctl.engine.batch import Batch
from impctl.engine.tags import Pairs
from impctl.errors import CountBelowZeroError

_COUNT = "count"


@dataclass(frozen=True, slots=True)
class SketchDelta:
    """Fragments that entered and left one access's sketch; ascending ids."""

    added: Ints
    removed: Ints


class Merge:
    """Counts per fragment for each sketched access; `sizes` are the partitions' fragments."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.counts = [np.zeros(size, dtype=np.int64) for size in sizes]
        self._kept = [
            Arrangement(f"merge.{access}", (), _COUNT) for access in range(len(self.counts))
        ]

    def step(self, batch: Batch) -> tuple[SketchDelta, ...]:
        """Count the change in and report what crossed zero."""
        slots = np.zeros(len(batch), dtype=np.int64)
        return tuple(
            self._count(access, tags.expand(slots, batch.weights))
            for access, tags in enumerate(batch.tags)
        )

    def nothing(self) -> tuple[SketchDelta, ...]:
        """What no change at all does to the sketches."""
        none = np.zeros(0, dtype=np.int64)
        return tuple(SketchDelta(none, none) for _ in self.counts)

    def _count(self, access: int, pairs: Pairs) -> SketchDelta:
        counts = self.counts[access]
        fragments, places = np.unique(pairs.fragments, return_inverse=True)
        change = np.zeros(len(fragments), dtype=np.int64)
        np.add.at(change, places, pairs.weights)
        moved = change != 0
        fragments, change = fragments[moved], change[moved]
        before = counts[fragments]
        after = before + change
        if bool((after < 0).any()):
            raise CountBelowZeroError(
                "The change removes result rows that the stored state never held",
                hint="the table's history and the state disagree; run `impctl capture` again",
            )
        counts[fragments] = after
        self._kept[access].put(fragments, (), {_COUNT: after})
        return SketchDelta(fragments[(before == 0)], fragments[(after == 0)])

    def members(self, access: int) -> Bools:
        """The sketch as a mask over fragments."""
        return self.counts[access] > 0

    def arrangements(self) -> tuple[Arrangement, ...]:
        return tuple(self._kept)

    def restore(self) -> None:
        """Fill the dense counts from the arrangements, after these were loaded."""
        for counts, kept in zip(self.counts, self._kept, strict=True):
            counts[:] = 0
            everything = np.array([0]), np.array([len(counts)])
            _, fragments, values = slices(kept.runs, *everything, _COUNT)
            counts[fragments] = values
