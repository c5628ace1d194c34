"""What a change of one relation does to the joined rows of a tree.

Law: with the tree as it stood before and as it stands after one input's change, the rows that the
second joins less those of the first. They are found from below and from above: tuples whose own
rows came or went; below an edge of existence the tuples above the uppermost one that came alive or
ceased to be; at each left edge on the way the tuples whose last partner went, or first one came,
for the row padded with NULL. What goes is looked for in the tree before, what comes in the one
after, so each way leads through tuples that were live there. Cost: that of the rows, and of the
tuples that the step touched.
Out of scope: several inputs at once, which are one change after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from impctl.data.vector import Bools, Ints
from impctl.engine.aggregate_column import ROWS
from impctl.engine.batch import Batch
from impctl.engine.trees.enumerated import JoinedTree, Start, own_of
from impctl.engine.trees.keyed import Tuples
from impctl.engine.trees.node import Seen
from impctl.engine.trees.spec import NO_SLOTS, Edge
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Moved:
    """A tree before and after a change of the input of one node, and what it touched per node."""

    before: JoinedTree
    after: JoinedTree
    at: int
    seen: Sequence[Seen | None]

    def rows(self) -> list[Batch]:
        """The joined rows that went, and those that came."""
        result = []
        for tuples, at, change in self._starts():
            for tree, sign in ((self.before, -1), (self.after, 1)):
                one_way = (np.sign(change) == sign).nonzero()[0]
                if len(one_way):
                    result.append(tree.rows(Start(at, tuples.take(one_way), change[one_way])))
        return [batch for batch in result if len(batch)]

    def _starts(self) -> Iterator[tuple[Tuples, int, Ints]]:
        """Tuples to begin with, their node, and how many rows came (or went) of each."""
        top = self._uppermost_existence()
        if top is None:
            tuples = self._touched(self.at)
            had, has = (own_of(tree.nodes[self.at], tuples) for tree in self._both)
            yield tuples, self.at, has - had
        else:
            seen = self.seen[top]
            if seen is not None:
                came = seen.is_alive.astype(np.int64) - seen.was_alive
                yield seen.tuples, top, came * own_of(self.after.nodes[top], seen.tuples)
        for at, place in self._left_edges(self.at if top is None else top):
            tuples = self._touched(at)
            result = [self._has_partner(tree, at, place, tuples) for tree in self._both]
            padded = result[0].astype(np.int64) - result[1]
            yield tuples, at, padded * own_of(self.after.nodes[at], tuples)

    @property
    def _both(self) -> tuple[JoinedTree, JoinedTree]:
        return self.before, self.after

    def _above(self, at: int) -> Iterator[tuple[int, int, Edge]]:
        """The nodes above one, with the place of the link below and the kind of its edge."""
        parents = self.after.parents
        while at in parents:
            at, place = parents[at]
            yield at, place, self.after.nodes[at].node.links[place].edge

    def _uppermost_existence(self) -> int | None:
        """The node that looks through the uppermost semi or anti edge above the change."""
        result = [at for at, _, edge in self._above(self.at) if edge in NO_SLOTS]
        return result[-1] if result else None

    def _left_edges(self, below: int) -> Iterator[tuple[int, int]]:
        return ((at, place) for at, place, edge in self._above(below) if edge is Edge.LEFT)

    def _touched(self, at: int) -> Tuples:
        seen = self.seen[at]
        if seen is None:
            return Tuples(np.zeros(0, dtype=np.int64), {})
        return seen.tuples

    def _has_partner(self, tree: JoinedTree, at: int, place: int, tuples: Tuples) -> Bools:
        if not len(tuples):
            return np.zeros(0, dtype=np.bool_)
        has: Bools = tree.nodes[at].below(place, tuples, None)[1][ROWS] > 0
        return has
