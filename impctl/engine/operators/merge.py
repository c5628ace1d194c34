"""Merge: the root, where tags of result rows become the sketch.

Identity: count[f] = sum of the weights of result rows that carry fragment f; the sketch is
{f : count[f] > 0}, and its change is the crossings of zero. State: one count per fragment and
access, dense in memory, kept as runs of changed counts. Cost: the (row, fragment) pairs that reach
the root, not the number of fragments. A count below zero means the state did not see a row that
is now deleted: an error, never a guess. An empty batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.vector import Bools, Ints
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch
from impctl.engine.dense_counts import DenseCounts
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class SketchDelta:
    """Fragments that entered and left one access's sketch; ascending ids."""

    added: Ints
    removed: Ints


class Merge:
    """Counts per fragment for each sketched access; `sizes` are the partitions' fragments."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._kept = [
            DenseCounts(f"merge.{access}", size, "result rows") for access, size in enumerate(sizes)
        ]

    @property
    def counts(self) -> list[Ints]:
        """Result rows per fragment, for each access."""
        return [kept.counts for kept in self._kept]

    def step(self, batch: Batch) -> tuple[SketchDelta, ...]:
        """Count the change in and report what crossed zero."""
        slots = np.zeros(len(batch), dtype=np.int64)
        deltas = []
        for kept, tags in zip(self._kept, batch.tags, strict=True):
            pairs = tags.expand(slots, batch.weights)
            change = kept.add(pairs.fragments, pairs.weights)
            entered, left = change.before == 0, change.after == 0
            deltas.append(SketchDelta(change.fragments[entered], change.fragments[left]))
        return tuple(deltas)

    def nothing(self) -> tuple[SketchDelta, ...]:
        """What no change at all does to the sketches."""
        none = np.zeros(0, dtype=np.int64)
        return tuple(SketchDelta(none, none) for _ in self._kept)

    def members(self, access: int) -> Bools:
        """The sketch as a mask over fragments."""
        return self._kept[access].counts > 0

    def arrangements(self) -> tuple[Arrangement, ...]:
        return tuple(kept.arrangement for kept in self._kept)

    def restore(self) -> None:
        """Fill the dense counts from the arrangements, after these were loaded."""
        for kept in self._kept:
            kept.restore()
