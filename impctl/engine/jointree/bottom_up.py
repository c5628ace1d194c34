"""A join tree, bottom up: a join of n inputs as counts and sums per group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import Grouping, group_rows
from impctl.data.vector import Bools, Ints, Vector, concat
from impctl.engine.accumulators import ROWS, Values, clear_empty
from impctl.engine.extremes import Extreme, OrderedCounts
from impctl.engine.jointree import node as lots
from impctl.engine.jointree.node import (
    GLOBAL,
    HELD,
    NUMBER,
    Entering,
    KeyChange,
    TouchedNode,
    TouchedTuples,
    TreeNodeState,
    count_ranges,
    entering_rows,
    owning,
    write,
)
from impctl.engine.jointree.values import (
    AliveChange,
    Columns,
    Tuples,
    change,
    changed,
    counted_in,
    different,
    multiplied,
    zeros,
)
from impctl.engine.range_counts import GroupSets, numbered
from impctl.engine.tags import Pairs

if TYPE_CHECKING:
    from impctl.engine.batch import Batch


# Changes of the keys of a node. Law: a key's value is the sum over its tuples; its best value is
# the best of its living tuples. Only keys whose value changed are written. In bits mode, and above
# edges of existence, a parent only sees the first row inserted or the last one deleted. At the root
# each touched tuple gets the number of its group, which stays the same while the group has a tuple.


class Tally(Struct, frozen=True):
    old: Values
    new: Values

    def signs(self) -> Ints:
        """+1 where the first row was inserted, -1 where the last one was deleted."""
        signs: Ints = (self.new[ROWS] > 0).astype(np.int64) - (self.old[ROWS] > 0)
        return signs

    def take(self, positions: Ints) -> Tally:
        return Tally(
            {name: value[positions] for name, value in self.old.items()},
            {name: value[positions] for name, value in self.new.items()},
        )


def add_to_keys(
    node: TreeNodeState, tuples: Tuples, values: Tally, signs: Ints
) -> tuple[KeyChange | None, Ints]:
    """Add the tuples' changes to their keys; the change seen by the node above. `signs` is +1 for a
    new tuple, -1 for a deleted one. Also, at a root in ring mode, the number of each tuple's
    group."""
    if not node.has_keys:
        return None, tuples.codes[:0]
    moved = changed(node.parts, values.new, values.old)
    # At the root every tuple needs its group's number for the way down.
    if not node.is_root and not bool(moved.all()):
        positions = moved.nonzero()[0]
        values, tuples, signs = values.take(positions), tuples.take(positions), signs[positions]
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
        alive = AliveChange.of(tuples, grouping, values.signs(), new[NUMBER])
        for column in (*node.once, *((node.ordered,) if node.ordered else ())):
            column.add(new, old, alive)
    clear_empty(new, node.key_parts)
    differs = changed(node.key_parts, new, old)
    if node.is_root:
        new[HELD] = old[HELD] + grouping.sums(signs)
        differs |= new[HELD] != old[HELD]
    node.keys.put(grouping.codes, leaders, new, differs)
    groups = new[NUMBER][grouping.index()] if node.is_root else tuples.codes[:0]
    return key_change(node, grouping.codes, leaders, Tally(old, new)), groups


def set_keys(
    node: TreeNodeState, tuples: Tuples, values: Tally, signs: Ints
) -> tuple[KeyChange | None, Ints]:
    """The same where each key has one tuple: the key's value is the tuple's. Old `values` are the
    stored ones."""
    old, new = values.old, dict(values.new)
    _number(node, old, new)
    clear_empty(new, node.parts)
    differs = changed(node.parts, new, old)
    if node.is_root:
        new[HELD] = old[HELD] + signs
        differs |= signs != 0
    keys = tuples.vectors(node.node.key)
    node.keys.put(tuples.codes, keys, new, differs)
    groups = new[NUMBER] if node.is_root else tuples.codes[:0]
    return key_change(node, tuples.codes, keys, Tally(old, new)), groups


def key_change(
    node: TreeNodeState, codes: Ints, keys: Sequence[Vector], state: Tally
) -> KeyChange | None:
    """The keys of which the node above sees a change, by ascending codes; None for none."""
    positions = _is_seen(node, state).nonzero()[0]
    if not len(positions):
        return None
    seen = state.take(positions)
    return KeyChange(codes[positions], [key.take(positions) for key in keys], seen.old, seen.new)


def together(node: TreeNodeState, changes: Sequence[KeyChange]) -> KeyChange | None:
    """The combined change of changes in sequence, each of any keys."""
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


def _is_seen(node: TreeNodeState, state: Tally) -> Bools:
    if node.is_bits:
        crossed: Bools = state.signs() != 0
        return crossed
    if node.ordered:
        # Values may have replaced each other without a change of the group's state.
        return np.ones(len(state.new[ROWS]), dtype=np.bool_)
    return changed(node.key_parts, state.new, state.old)


def _number(node: TreeNodeState, old: Values, new: Values) -> None:
    if node.is_global:
        # The group exists before any row, and was emitted under this number.
        new[NUMBER] = np.full(len(old[NUMBER]), GLOBAL, dtype=np.int64)
    elif node.has_key_numbers:
        new[NUMBER], node.next_key = numbered(old[NUMBER], node.next_key)


def _best(
    extreme: Extreme, counts: OrderedCounts, values: Tally, numbers: Ints, grouping: Grouping
) -> Ints:
    """The best of each key's alive tuples, after recounting the best of these."""
    owners = numbers[grouping.index()]
    for state, sign in ((values.old, -1), (values.new, 1)):
        positions = ((state[ROWS] > 0) & (state[f"count{extreme.slot}"] > 0)).nonzero()[0]
        counts.change(
            owners[positions],
            state[extreme.name][positions],
            np.full(len(positions), sign, dtype=np.int64),
        )
    return counts.best(numbers)


# One node's step on the way up, from its changes and its children's. Law: the touched tuples are
# those of the batch and those that reach a changed key of a child, each once; no other value can
# change. Values before and after the step come from stored state, and their difference is added to
# the keys, so keys stay sums over their tuples however many nodes changed at once. Cost: the
# touched tuples, in lots, and their lookups; never the joined rows.


def rise(
    node: TreeNodeState, batch: Batch | None, changes: Sequence[KeyChange | None]
) -> KeyChange | None:
    """Update one node by the changes; the change of its keys, None for none. Leaves in `node.seen`
    what the way down needs, None where no tuple was touched."""
    node.seen = None
    touched = _touched(node, batch, changes)
    if touched is None:
        return None
    owned = (_owned(node, tuples, entering) for tuples, entering in _in_lots(*touched))
    risen = [_risen(node, part, changes) for part in owned if part is not None]
    if risen:
        seen = [seen for _, seen in risen]
        accesses = range(len(node.ranges) if len(seen) > 1 else 0)
        node.seen = TouchedNode.stacked(seen, tuple(_sets(seen, index) for index in accesses))
    return together(node, [moved for moved, _ in risen if moved is not None])


def _risen(
    node: TreeNodeState, touched: TouchedTuples, changes: Sequence[KeyChange | None]
) -> tuple[KeyChange | None, TouchedNode]:
    tuples = touched.tuples
    below = [node.below(index, tuples, change) for index, change in enumerate(changes)]
    after = value_of(node, touched.new, [new for _, new in below])
    if node.is_determined_by_key:
        before, to_keys = node.stored(tuples), set_keys
    else:
        before, to_keys = value_of(node, touched.old, [old for old, _ in below]), add_to_keys
    write(node, touched)
    if node.is_flat:
        # The tuples of a leaf are its keys.
        keys, own = tuples.vectors(node.order), Tally(touched.old, touched.new)
        moved, groups = key_change(node, tuples.codes, keys, own), tuples.codes[:0]
    else:
        # The tuples of a virtual root come and go with their rows: nobody owns them.
        values, own = Tally(before, after), Tally(touched.old, touched.new)
        signs = (values if node.node.is_virtual else own).signs()
        moved, groups = to_keys(node, tuples, values, signs)
        node.indexed(tuples, signs, groups)
    return moved, TouchedNode(
        tuples,
        before[ROWS] > 0,
        after[ROWS] > 0,
        touched.new.get(NUMBER, tuples.codes[:0]),
        groups,
        count_ranges(node, touched),
    )


def _in_lots(tuples: Tuples, entering: Entering | None) -> Iterator[tuple[Tuples, Entering | None]]:
    if len(tuples) <= lots.MOST:
        yield tuples, entering
        return
    for start, end in lots.lots(len(tuples), lots.MOST):
        own = None if entering is None else entering.within(start, end)
        yield tuples.between(start, end), own


def _sets(parts: Sequence[TouchedNode], index: int) -> GroupSets | None:
    result = [part.sets[index] for part in parts]
    known = [part for part in result if part is not None]
    if not known:
        return None
    starts = np.cumsum([0, *(len(part.tuples) for part in parts)])
    slots = [part.crossed.slots + start for part, start in zip(known, starts, strict=False)]
    crossed = Pairs(
        np.concatenate(slots),
        np.concatenate([part.crossed.ranges for part in known]),
        np.concatenate([part.crossed.weights for part in known]),
    )
    # Lots have different tuples, so the runs before the first lot hold the old sets of all.
    return GroupSets(known[0].runs, np.concatenate([part.numbers for part in parts]), crossed)


# Touched tuples and their own values.


def _touched(
    node: TreeNodeState, batch: Batch | None, changes: Sequence[KeyChange | None]
) -> tuple[Tuples, Entering | None] | None:
    """The touched tuples, ascending by code, and the batch's rows among them; None for none."""
    entering = None if batch is None or not len(batch) else entering_rows(node, batch)
    parts: list[tuple[int, Columns]] = []
    own = None
    if entering is not None:
        own = entering.tuples_of(node)
        parts.append((len(own), own.columns))
    parts += [_reached(node, index, c) for index, c in enumerate(changes) if c is not None]
    parts = [part for part in parts if part[0]]
    if not parts:
        return None
    if own is not None and len(parts) == 1:
        # What was grouped already is different and in order.
        return own, entering
    tuples, places = different(node.order, parts)
    if entering is not None:
        entering = Entering(entering.rows, entering.grouping, places[: len(entering.places)])
    return tuples, entering


def _owned(node: TreeNodeState, tuples: Tuples, entering: Entering | None) -> TouchedTuples | None:
    if node.node.is_virtual:
        always = {ROWS: np.ones(len(tuples), dtype=np.int64)}
        return TouchedTuples(tuples, always, always, None)
    return _without_ghosts(owning(node, tuples, entering))


def _reached(node: TreeNodeState, position: int, change: KeyChange) -> tuple[int, Columns]:
    """Tuples that have the changed keys of the i-th child; an index may return some twice."""
    link, index, kinds = node.node.links[position], node.by[position], dict(node.node.kept)
    if index is None:
        pairs = zip(link.columns, change.keys, strict=True)
        # The same values, under the type that this side has.
        columns = {name: Vector(kinds[name], key.values, key.valid) for name, key in pairs}
        return len(change.codes), columns
    rows = index.find(change.codes, change.keys).rows
    return len(rows), rows.columns


def _without_ghosts(touched: TouchedTuples) -> TouchedTuples | None:
    """Without tuples that an index returns though they were deleted: rows cancel only when runs
    merge."""
    kept = touched.new[ROWS] > 0
    entering = touched.entering
    if entering is not None:
        kept[entering.places] = True
    if bool(kept.all()):
        return touched
    positions = kept.nonzero()[0]
    if not len(positions):
        return None
    if entering is not None:
        places = (np.cumsum(kept) - 1)[entering.places]
        entering = Entering(entering.rows, entering.grouping, places)
    old = {name: value[positions] for name, value in touched.old.items()}
    new = {name: value[positions] for name, value in touched.new.items()}
    return TouchedTuples(touched.tuples.take(positions), old, new, entering)


# Values of tuples.


def value_of(node: TreeNodeState, own: Values, below: Sequence[Values]) -> Values:
    """Rows and slots of each tuple, over all that extend it below."""
    rows = node.rows_of(own, below)
    if node.is_bits or node.is_flat:
        return {ROWS: rows} if node.is_bits else own
    result = zeros(node.parts, len(rows))
    result[ROWS] = rows
    alive, factors = rows > 0, node.factors_of(below)
    sources: list[tuple[int | None, Values]] = [(None, own), *enumerate(below)]
    for index, source in sources:
        parts = node.own_parts if index is None else node.seen_of(index)
        if not parts:
            continue
        others = [factor for position, factor in enumerate(factors) if position != index]
        times = _alive_product(alive, others if index is None else [own[ROWS], *others])
        for part in parts:
            if isinstance(part, Extreme):
                result[part.name] = np.where(alive, source[part.name], 0)
            else:
                result.update(multiplied(part, source, times))
    return result


def _alive_product(alive: Bools, counts: Sequence[Ints]) -> Ints:
    """The product where a tuple is alive, else zero: it is no greater than its rows there."""
    result = alive.astype(np.int64)
    for count in counts:
        result = result * np.where(alive, count, 0)
    return result
