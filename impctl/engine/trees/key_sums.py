"""What the keys of a node come to after the values of some tuples changed.

Law: a key's value is the sum over its tuples, its best value the best of those that are alive; only
keys whose value changed are written, and only what is seen from above is told: below bits and above
edges of existence that is a first row that came or a last one that went. At the root every touched
tuple learns the number of its group, which stays the same while the group holds any tuple.
Out of scope: the values of tuples (`engine.trees.way_up`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import Grouping, group_rows
from impctl.data.vector import Bools, Ints, Vector, concat
from impctl.engine.accumulators import Values
from impctl.engine.aggregate_column import ROWS
from impctl.engine.extremes import Extreme, OrderedCounts
from impctl.engine.fragment_counts import numbered
from impctl.engine.trees.alive import AliveChange
from impctl.engine.trees.keyed import Tuples
from impctl.engine.trees.node import GLOBAL, HELD, NUMBER, KeyChange, NodeState
from impctl.engine.trees.values import change, changed, clear_empty, counted_in
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """State columns before and after a step."""

    old: Values
    new: Values

    def came(self) -> Ints:
        """+1 where there is a first row, -1 where the last one went."""
        signs: Ints = (self.new[ROWS] > 0).astype(np.int64) - (self.old[ROWS] > 0)
        return signs

    def take(self, positions: Ints) -> Tally:
        """Those at these positions."""
        return Tally(
            {name: value[positions] for name, value in self.old.items()},
            {name: value[positions] for name, value in self.new.items()},
        )


def add_to_keys(
    node: NodeState, tuples: Tuples, values: Tally, came: Ints
) -> tuple[KeyChange | None, Ints]:
    """Add what the tuples' values changed by to their keys; what that tells the node above.

    `came` is +1 for a tuple that is new, -1 for one that went. Also, at a root in ring mode, the
    number of each tuple's group.
    """
    if not node.has_keys:
        return None, tuples.codes[:0]
    moved = changed(node.parts, values.new, values.old)
    # At the root every tuple needs its group's number for the way down.
    if not node.is_root and not bool(moved.all()):
        at = moved.nonzero()[0]
        values, tuples, came = values.take(at), tuples.take(at), came[at]
    if not len(tuples):
        return None, tuples.codes
    keys = tuples.vectors(node.node.key)
    grouping = group_rows(keys, len(tuples))
    leaders = grouping.leaders(keys)
    old = node.keys.read(node.keys.find(grouping.codes, leaders), node.key_columns)
    new: Values = {ROWS: counted_in(old[ROWS], values.new[ROWS] - values.old[ROWS], grouping)}
    for part in node.parts:
        if not isinstance(part, Extreme):
            new.update(part.add(old, change(part, values.new, values.old, grouping)))
    _number(node, old, new)
    for extreme, counts in node.best.items():
        new[extreme.name] = _best(extreme, counts, values, new[NUMBER], grouping)
    if node.once or node.ordered:
        alive = AliveChange.of(tuples, grouping, values.came(), new[NUMBER])
        for column in (*node.once, *((node.ordered,) if node.ordered else ())):
            column.add(new, old, alive)
    clear_empty(new, node.key_parts)
    differs = changed(node.key_parts, new, old)
    if node.is_root:
        new[HELD] = old[HELD] + grouping.sums(came)
        differs |= new[HELD] != old[HELD]
    node.keys.put(grouping.codes, leaders, new, differs)
    groups = new[NUMBER][grouping.index()] if node.is_root else tuples.codes[:0]
    return key_change(node, grouping.codes, leaders, Tally(old, new)), groups


def set_keys(
    node: NodeState, tuples: Tuples, values: Tally, came: Ints
) -> tuple[KeyChange | None, Ints]:
    """The same where the key tells the tuple: what a tuple comes to is what its key does.

    Of `values`, the old ones are those that are stored.
    """
    old, new = values.old, dict(values.new)
    _number(node, old, new)
    clear_empty(new, node.parts)
    differs = changed(node.parts, new, old)
    if node.is_root:
        new[HELD] = old[HELD] + came
        differs |= came != 0
    keys = tuples.vectors(node.node.key)
    node.keys.put(tuples.codes, keys, new, differs)
    groups = new[NUMBER] if node.is_root else tuples.codes[:0]
    return key_change(node, tuples.codes, keys, Tally(old, new)), groups


def key_change(
    node: NodeState, codes: Ints, keys: Sequence[Vector], state: Tally
) -> KeyChange | None:
    """The keys of which the node above sees a change, by ascending codes; None for none."""
    at = _is_seen(node, state).nonzero()[0]
    if not len(at):
        return None
    seen = state.take(at)
    return KeyChange(codes[at], [key.take(at) for key in keys], seen.old, seen.new)


def together(node: NodeState, changes: Sequence[KeyChange]) -> KeyChange | None:
    """What is seen of changes that came one after the other, each of any keys."""
    if len(changes) < 2:
        return changes[0] if changes else None
    keys = [concat(list(parts)) for parts in zip(*(one.keys for one in changes), strict=True)]
    names = changes[0].new
    old = {name: np.concatenate([one.old[name] for one in changes]) for name in names}
    new = {name: np.concatenate([one.new[name] for one in changes]) for name in names}
    grouping = group_rows(keys, sum(len(one.codes) for one in changes))
    rows = np.arange(grouping.rows)[grouping.order]
    first = np.minimum.reduceat(rows, grouping.starts)
    last = np.maximum.reduceat(rows, grouping.starts)
    state = Tally(
        {name: value[first] for name, value in old.items()},
        {name: value[last] for name, value in new.items()},
    )
    return key_change(node, grouping.codes, [key.take(first) for key in keys], state)


def _is_seen(node: NodeState, state: Tally) -> Bools:
    if node.is_bits:
        crossed: Bools = state.came() != 0
        return crossed
    if node.ordered:
        # Values may have taken each other's place, of which nothing in the group's state tells.
        return np.ones(len(state.new[ROWS]), dtype=np.bool_)
    return changed(node.key_parts, state.new, state.old)


def _number(node: NodeState, old: Values, new: Values) -> None:
    if node.is_global:
        # It is there before any row is, and has been told under this number.
        new[NUMBER] = np.full(len(old[NUMBER]), GLOBAL, dtype=np.int64)
    elif node.has_key_numbers:
        new[NUMBER], node.next_key = numbered(old[NUMBER], node.next_key)


def _best(
    extreme: Extreme, counts: OrderedCounts, values: Tally, numbers: Ints, grouping: Grouping
) -> Ints:
    """The best of each key's alive tuples, after what these have for a best was counted anew."""
    owners = numbers[grouping.index()]
    for state, sign in ((values.old, -1), (values.new, 1)):
        at = ((state[ROWS] > 0) & (state[f"count{extreme.slot}"] > 0)).nonzero()[0]
        counts.add(owners[at], state[extreme.name][at], np.full(len(at), sign, dtype=np.int64))
    return counts.best(numbers)
