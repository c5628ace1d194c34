"""The best values of each group, counted; what lies beyond stays in the table.

Law: a group's buffer holds every value up to its edge, with its count, and nothing beyond; an edge
only moves down, until the group is refilled or empty. Beyond twice `size` different values the edge
moves to the best `size`. Without any value left and with an edge that is not COMPLETE, the group
needs a refill. Cost: the changed values, and the buffers of the groups they are in.
Out of scope: keeping edges (whoever owns the groups), reading (`engine.refill`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.vector import Bools, Ints
from impctl.engine.extremes import OrderedCounts, summed_pairs
from impctl.engine.refill import COMPLETE, edge_after
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Best:
    """Per group: the best rank, whether there is one in the buffer, and the buffer's edge."""

    ranks: Ints
    is_found: Bools
    edges: Ints


class BestValues:
    """Buffers of the best `size` to twice as many ranks per group."""

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self.counts = OrderedCounts(name)

    def change(self, groups: Ints, edges: Ints, owners: Ints, ranks: Ints, weights: Ints) -> Best:
        """Count a change in; `owners` index into `groups`, which have these edges."""
        owners, ranks, weights = summed_pairs(owners, ranks, weights)
        edges = self._lowered(owners, ranks, weights, edges)
        kept = ranks <= edges[owners]
        self.counts.add(groups[owners[kept]], ranks[kept], weights[kept])
        return self._trimmed(groups, edges)

    def clear(self, groups: Ints) -> None:
        """Forget what the buffers of these groups hold."""
        owners, ranks, counts = self.counts.all_of(groups)
        self.counts.add(groups[owners], ranks, -counts)

    def refill(self, groups: Ints, owners: Ints, ranks: Ints, weights: Ints) -> Best:
        """Fill the empty buffers of these groups from all their values."""
        edges = np.full(len(groups), COMPLETE)
        return self.change(groups, edges, owners, ranks, weights)

    def shed(self, groups: Ints) -> Ints:
        """Keep the best `size` of all values of all groups, these; where their edges are then."""
        owners, ranks, counts = self.counts.all_of(groups)
        complete = np.full(len(groups), COMPLETE)
        ones = np.ones(len(owners), dtype=np.int64)
        edges = edge_after(owners, ranks, ones, self.size, complete, self.size)
        kept = np.flatnonzero(ranks <= edges[owners])
        self.counts.clear()
        self.counts.add(groups[owners[kept]], ranks[kept], counts[kept])
        return edges

    def _lowered(self, owners: Ints, ranks: Ints, weights: Ints, edges: Ints) -> Ints:
        """Edges below which a change alone fills a buffer: so a load keeps no more than that."""
        new = np.flatnonzero((weights > 0) & (ranks <= edges[owners]))
        ones = np.ones(len(new), dtype=np.int64)
        return edge_after(owners[new], ranks[new], ones, 2 * self.size, edges, 2 * self.size)

    def _trimmed(self, groups: Ints, edges: Ints) -> Best:
        owners, ranks, counts = self.counts.all_of(groups)
        inside = ranks <= edges[owners]
        ones = np.ones(int(inside.sum()), dtype=np.int64)
        edges = edge_after(owners[inside], ranks[inside], ones, self.size, edges, 2 * self.size)
        outside = ranks > edges[owners]
        self.counts.add(groups[owners[outside]], ranks[outside], -counts[outside])
        owners, ranks = owners[~outside], ranks[~outside]
        who, first = np.unique(owners, return_index=True)
        best = np.zeros(len(groups), dtype=np.int64)
        best[who] = ranks[first]
        is_found = np.zeros(len(groups), dtype=np.bool_)
        is_found[who] = True
        return Best(best, is_found, edges)
