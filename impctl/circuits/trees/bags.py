"""Which relations are one bag, and why.

Law: any merging is right, since a bag is joined or probed; what is merged here has to be, in
this order: what one condition or other join reads beyond equality, what one argument or group
expression reads, cyclic cores, and what holds the group columns together with what is between.
Out of scope: telling which these are (`circuits.trees.shaping`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from impctl.circuits.trees.classes import KeyClass
from impctl.circuits.trees.cores import cyclic_cores
from impctl.circuits.trees.rooted import Bag, rooted_at
from impctl.circuits.trees.shape import Merging
from impctl.expr.nodes import Span
from impctl.values import dataclass

Relation = int


@dataclass(frozen=True, slots=True)
class Bags:
    """Sets of relations by their first ones, and why any of them were merged, in order."""

    members: tuple[frozenset[Relation], ...]
    reasons: tuple[Merging, ...] = ()

    def merged(self, relations: Collection[Relation], reason: Merging) -> Bags:
        """With the bags of these relations as one; the same where they are one already."""
        touched = [bag for bag in self.members if bag & frozenset(relations)]
        if len(touched) < 2:
            return self
        others = [bag for bag in self.members if bag not in touched]
        whole = [*others, frozenset().union(*touched)]
        return Bags(tuple(sorted(whole, key=min)), (*self.reasons, reason))

    def place_of(self, relation: Relation) -> int:
        """The bag that has the relation."""
        return next(at for at, bag in enumerate(self.members) if relation in bag)

    def classes(self, classes: Sequence[KeyClass]) -> tuple[Bag, ...]:
        """Per bag the numbers of the classes it has a column of."""
        return tuple(
            frozenset(at for at, one in enumerate(classes) if one.relations & bag)
            for bag in self.members
        )

    def relations_of(self, places: Iterable[int]) -> frozenset[Relation]:
        """All relations of the bags at these places."""
        return frozenset().union(*(self.members[at] for at in places))


def without_cores(bags: Bags, classes: Sequence[KeyClass], span: Span | None) -> Bags:
    """The bags with cyclic cores merged until none is left; `span` is an equality's place."""
    reason = Merging("equality conditions join tables in a cycle", span)
    while cores := cyclic_cores(bags.classes(classes)):
        before = bags
        for core in cores:
            bags = bags.merged(before.relations_of(core), reason)
    return bags


def with_all_columns(
    bags: Bags, classes: Sequence[KeyClass], holders: Sequence[frozenset[int]], reason: Merging
) -> Bags:
    """Acyclic bags, merged so that one has all wanted columns.

    `holders[i]` are the bags that have the i-th one. The bag that has most of them is merged with
    those on the way to the nearest one that has each other.
    """
    start = max(range(len(bags.members)), key=lambda at: (sum(at in h for h in holders), -at))
    tree = rooted_at(start, bags.classes(classes))
    path = {start}
    for holder in holders:
        if not holder & path:
            nearest = min(holder, key=lambda at: (tree.depths[at], at))
            path |= set(tree.path_to_root(nearest))
    return bags.merged(bags.relations_of(path), reason)
