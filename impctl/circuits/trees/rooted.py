"""Bags of classes hung on a root, so that what two of them share lies on all bags between them.

Law: a spanning tree has this (*running intersection*) iff its weight, the number of classes that
each bag shares with its parent, summed, is the greatest possible: `full_weight`. Prim's way from
any root finds the greatest, so it finds such a tree iff there is one; the bags are acyclic then.
Ties go to the parent nearest to the root, then to the bag that changes most, which is best near the
root, then to the place in the SQL. Bags that share nothing are joined all the same, by weight 0.
Out of scope: what bags are (`circuits.trees.bags`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from impctl.values import dataclass

Bag = frozenset[int]
"""The numbers of the classes that the bag has a column of."""


@dataclass(frozen=True, slots=True)
class Rooted:
    """Per bag its parent (None: the root) and its distance from the root."""

    parents: tuple[int | None, ...]
    depths: tuple[int, ...]
    weight: int

    @property
    def root(self) -> int:
        return self.parents.index(None)

    def path_to_root(self, bag: int) -> tuple[int, ...]:
        """The bag, its parent and so on; the root is the last."""
        result = [bag]
        while (parent := self.parents[result[-1]]) is not None:
            result.append(parent)
        return tuple(result)


@dataclass(frozen=True, slots=True)
class Hung:
    """What hangs on a bag whatever the tree is: the depths below it, and their changed rows.

    `below[i]` is how far the i-th node is below the bag, `changed[i]` how many of its rows change.
    """

    below: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()


def full_weight(bags: Sequence[Bag]) -> int:
    """The weight of a tree with running intersection."""
    held = list(chain.from_iterable(bags))
    return len(held) - len(set(held))


def is_acyclic(bags: Sequence[Bag]) -> bool:
    """Whether the bags have a tree with running intersection."""
    return not bags or rooted_at(0, bags).weight == full_weight(bags)


def rooted_at(
    root: int, bags: Sequence[Bag], changed: Sequence[int] = (), *, is_virtual: bool = False
) -> Rooted:
    """The tree of greatest weight, grown from this bag; `changed` are the changed rows per bag.

    On a root that `is_virtual` only bags hang that have all its classes: at least one has.
    """
    changes = changed or (0,) * len(bags)
    parents: list[int | None] = [None] * len(bags)
    depths = [0] * len(bags)
    hung, weight = [root], 0
    while len(hung) < len(bags):
        ranked = (
            (-len(bags[parent] & bags[bag]), depths[parent], -changes[bag], bag, parent)
            for parent in hung
            for bag in range(len(bags))
            if bag not in hung
            and not (is_virtual and parent == root and not bags[root] <= bags[bag])
        )
        shared, depth, _, bag, parent = min(ranked)
        parents[bag], depths[bag] = parent, depth + 1
        hung.append(bag)
        weight -= shared
    return Rooted(tuple(parents), tuple(depths), weight)


def best_rooted(
    roots: Sequence[int],
    bags: Sequence[Bag],
    changed: Sequence[int] = (),
    hung: Sequence[Hung] = (),
) -> Rooted:
    """Of the trees from these roots the least high; then that whose changes have the shortest way.

    The way is the sum of depth times changed rows over all that hangs there. Then the place in the
    SQL decides.
    """
    trees = [(root, rooted_at(root, bags, changed)) for root in roots]
    return min(trees, key=lambda one: (_cost(one[1], changed, hung), one[0]))[1]


def _cost(tree: Rooted, changed: Sequence[int], hung: Sequence[Hung]) -> tuple[int, int]:
    """Height, and the way of all changes to the root."""
    depths = list(tree.depths)
    changes = list(changed or (0,) * len(depths))
    for depth, one in zip(tree.depths, hung, strict=False):
        depths.extend(depth + below for below in one.below)
        changes.extend(one.changed)
    way = sum(depth * rows for depth, rows in zip(depths, changes, strict=True))
    return max(depths), way
