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

from impctl.aliases import AttributeId
from impctl.data.keys import Grouping
from impctl.data.vector import Ints
from impctl.engine.accumulators import Accumulator, Values
from impctl.engine.aggregate_column import parts_of
from impctl.engine.distinct_values import DistinctValues
from impctl.engine.extremes import Extreme
from impctl.engine.trees.keyed import Tuples
from impctl.engine.trees.spec import JoinTree
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class OnceColumn:
    """A kept column of the root whose values count once, and what is made of them per group."""

    kept: AttributeId
    values: DistinctValues
    parts: tuple[Accumulator, ...]

    def add(
        self,
        new: Values,
        old: Values,
        tuples: Tuples,
        came: Ints,
        grouping: Grouping,
        numbers: Ints,
    ) -> None:
        """Bring into `new` what the groups come to after the change.

        `came` is +1 for a tuple that is alive now, -1 for one that was; `grouping` is by group,
        whose `numbers` are of shape (groups,).
        """
        column, weights = tuples.columns[self.kept], np.zeros(len(tuples), dtype=np.int64)
        at = came.nonzero()[0]
        if len(at):
            owners = numbers[grouping.index()[at]]
            weights[at] = self.values.crossings(owners, column.take(at), came[at])
        for part in self.parts:
            new.update(part.add(old, part.delta(column, weights, grouping)))


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
