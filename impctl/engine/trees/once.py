"""Values of a group that count once however many joined rows have them: DISTINCT at the root.

Law: a group has a value of a column that the root keeps iff an alive tuple of the group has it. So
where tuples come alive or cease to be, the value is counted per group, and where that crosses zero
it is added to what the group comes to, or taken away. Equality is that of GROUP BY; NULL does not
count. Cost: the tuples that came alive or ceased to be. Counts below zero are an error.
Out of scope: values of other nodes, whose tuples do not tell the group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.engine.accumulators import Accumulator, Values
from impctl.engine.aggregate_column import parts_of
from impctl.engine.distinct_values import DistinctValues
from impctl.engine.extremes import Extreme
from impctl.engine.trees.alive import AliveChange
from impctl.engine.trees.spec import JoinTree
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class OnceColumn:
    """A kept column of the root whose values count once, and what is made of them per group."""

    kept: AttributeId
    values: DistinctValues
    parts: tuple[Accumulator, ...]

    def add(self, new: Values, old: Values, change: AliveChange) -> None:
        """Bring into `new` what the groups come to after the change."""
        column, at = change.tuples.columns[self.kept], change.at
        weights = np.zeros(len(change.tuples), dtype=np.int64)
        if len(at):
            crossings = self.values.crossings(change.owners, column.take(at), change.came[at])
            weights[at] = crossings
        for part in self.parts:
            new.update(part.add(old, part.delta(column, weights, change.grouping)))


def once_columns(tree: JoinTree, name: str) -> Sequence[OnceColumn]:
    """Those of the tree's root, in state that is named after `name`, their places counted."""
    kinds = dict(tree.root.kept)
    parts = [part for part in parts_of(tree.columns) if not isinstance(part, Extreme)]
    return tuple(
        OnceColumn(
            kept,
            DistinctValues(f"{name}.distinct{at}", kinds[kept]),
            tuple(part for part in parts if part.argument == argument),
        )
        for at, (argument, kept) in enumerate(tree.once)
    )
