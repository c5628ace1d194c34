"""Live, the way down: which rows take part in a group that survived, told as fragments.

Identity: for each sketched access of the tree, the output's change is that of the fragments of all
its rows that a row of a surviving group is joined from, one count per tuple and fragment. Inputs:
the rows of the groups that survived what decides, with the hidden column `tree.group`, and the
output of `Tree`, which is there whenever that was stepped: a row may have moved to another fragment
although no group changed. In bits mode whatever is alive survives, and the first input is not read.
State: per key how many live tuples want it, beside the nodes, which it shares with `Tree` and only
reads. Cost: the touched tuples, the tuples whose bit flips, and the fragments told. NULL keys of a
left edge want nothing. A group that leaves the result more often than it came is an error.
Not to be confused with the merge, which counts what this tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from impctl.engine.batch import Batch
from impctl.engine.operator import Keeper, Operator
from impctl.engine.operators.tree import Tree
from impctl.engine.tags import Pairs, SpanTags
from impctl.engine.trees.filling import added, first_told
from impctl.engine.trees.spec import Mode
from impctl.engine.trees.way_down import Wishes, descend, surviving


class Live(Operator):
    """The fragments of the rows behind the surviving groups of `tree`, which is stepped before."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree.tree
        self.form = tree.tree
        self._nodes = tree.nodes
        self._flips = 0
        self._pairs = 0
        self._is_filling = False

    def step(self, survivors: Batch | None, ran: Batch | None = None) -> Batch:
        """What came into the sketches' counts and what went, one row per tuple and fragment."""
        wishes: list[Wishes | None] = [None] * len(self._nodes)
        if self.tree.mode is Mode.RING and survivors is not None and len(survivors):
            groups = survivors.columns[self.tree.group].values
            wishes[-1] = surviving(self._nodes[-1], groups, survivors.weights)
        if self._is_filling:
            return self._told_first()
        told: list[Pairs | None] = [None] * self.tree.accesses
        for at in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[at]
            result = descend(node, wishes[at])
            for link, below in zip(node.node.links, result.below, strict=True):
                wishes[link.child] = below
            for access, pairs in zip(node.node.accesses, result.told, strict=True):
                told[access.position] = pairs
            self._flips += result.flipped
            # What the way up left is used up, also where a next step has only survivors.
            node.seen = None
        batch = _batch([pairs for pairs in told if pairs is not None])
        self._pairs += len(batch)
        return batch

    def _told_first(self) -> Batch:
        """The fragments of all live tuples, once the tree is filled and its groups have passed."""
        told = [_NO_PAIRS] * self.tree.accesses
        for node in reversed(self._nodes):
            node.seen = None
            for result in first_told(node):
                for access, pairs in zip(node.node.accesses, result.told, strict=True):
                    told[access.position] = added(told[access.position], pairs)
                    self._pairs += int(pairs.weights.sum())
                self._flips += result.live
        return _batch(told)

    def fill(self, is_filling: bool) -> None:
        self._is_filling = is_filling

    def arrangements(self) -> Sequence[Keeper]:
        shared = [keeper for node in self._nodes for keeper in node.keepers()]
        return (*shared, *(keeper for node in self._nodes for keeper in node.live_keeper))

    def counters(self) -> Mapping[str, int]:
        """How many tuples ever flipped, and how many fragments were ever told."""
        return {f"{self.tree.name}.flips": self._flips, f"{self.tree.name}.pairs": self._pairs}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._flips = counters[f"{self.tree.name}.flips"]
        self._pairs = counters[f"{self.tree.name}.pairs"]


_NONE = np.zeros(0, dtype=np.int64)
_NO_PAIRS = Pairs(_NONE, _NONE, _NONE)


def _batch(told: Sequence[Pairs]) -> Batch:
    """A row per pair, with one fragment of one access and none of the others."""
    ends = np.cumsum([len(pairs.fragments) for pairs in told]).tolist()
    tags = tuple(
        SpanTags(ends[-1], end - len(pairs.fragments), pairs.fragments.astype(np.int32))
        for pairs, end in zip(told, ends, strict=True)
    )
    weights = np.concatenate([np.zeros(0, dtype=np.int64), *(pairs.weights for pairs in told)])
    return Batch({}, weights, tags)
