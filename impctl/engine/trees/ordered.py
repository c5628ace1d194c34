"""Values of a group that an order finds: extremes of text, MIN_BY and MAX_BY, at the root.

Law: what is first among the joined rows of a group is first among its alive tuples, where the root
keeps both the value and what orders it, since neither depends on how often a row is there. So
where tuples come alive or cease to be, their values come or go per group. An argument of which
nothing else is asked is counted by tuples: that tells whether there is any. Cost: the tuples that
came alive or ceased to be, and the look-ups of `engine.ordered_values` for every touched group.
Out of scope: values of other nodes, whose tuples do not tell the group.
"""

from __future__ import annotations

from impctl.engine.accumulators import Count, Values
from impctl.engine.aggregate_column import parts_of
from impctl.engine.firsts import Firsts
from impctl.engine.trees.alive import AliveChange
from impctl.engine.trees.spec import JoinTree


class OrderedColumns:
    """Kept columns of the root that are ordered per group; none where no call asks for that."""

    def __init__(self, tree: JoinTree, name: str) -> None:
        kinds, self._kept = dict(tree.root.kept), dict(tree.ordered)
        types = {argument: kinds[kept] for argument, kept in tree.ordered}
        self.firsts = Firsts(name, tree.columns, types)
        known = {argument for node in tree.nodes for argument, _ in node.arguments}
        self.counts = tuple(
            part
            for part in parts_of(tree.columns)
            if isinstance(part, Count) and part.argument in self._kept.keys() - known
        )

    def __bool__(self) -> bool:
        return bool(self.firsts)

    def add(self, new: Values, old: Values, change: AliveChange) -> None:
        """Count the tuples in, and bring into `new` how many of them have a value."""
        held, at = change.tuples.columns, change.at
        columns = {argument: held[kept] for argument, kept in self._kept.items()}
        for part in self.counts:
            delta = part.delta(columns[part.argument], change.came, change.grouping)
            new.update(part.add(old, delta))
        if len(at):
            moved = {name: column.take(at) for name, column in columns.items()}
            self.firsts.add(moved, change.owners, change.came[at])
