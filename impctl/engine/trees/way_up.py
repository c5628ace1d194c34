"""A step of one node on the way up: its own change and its children's key changes in, its own out.

Law: the touched tuples are those of the node's batch and those that reach a changed key of a child;
every tuple whose value can differ is among them, each once. A tuple's value before and after the
step is computed from what is stored; the differences are added to the keys, so that these stay the
sums over their tuples, however many nodes changed at once. Very many are worked on in `lots`. Cost:
the touched tuples and what the look-ups cost; never the joined rows.
Out of scope: what the batch's own rows make of tuples (`engine.trees.owned`), who is wanted from
above (`engine.trees.way_down`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.accumulators import Values
from impctl.engine.aggregate_column import ROWS
from impctl.engine.batch import Batch
from impctl.engine.extremes import Extreme
from impctl.engine.fragment_counts import GroupSets
from impctl.engine.tags import Pairs
from impctl.engine.trees import lots
from impctl.engine.trees.key_sums import Tally, add_to_keys, key_change, set_keys, together
from impctl.engine.trees.keyed import Columns, Tuples, different, stacked
from impctl.engine.trees.node import NUMBER, KeyChange, NodeState, Seen
from impctl.engine.trees.owned import (
    Entering,
    Touched,
    count_fragments,
    entering_rows,
    owning,
    write,
)
from impctl.engine.trees.values import multiplied, zeros


def rise(
    node: NodeState, batch: Batch | None, changes: Sequence[KeyChange | None]
) -> KeyChange | None:
    """Bring one node to where the changes leave it; the change of its keys, None for none.

    Leaves in `node.seen` what the way down needs, None where no tuple was touched.
    """
    node.seen = None
    touched = _touched(node, batch, changes)
    if touched is None:
        return None
    owned = (_owned(node, tuples, entering) for tuples, entering in _in_lots(*touched))
    risen = [_risen(node, one, changes) for one in owned if one is not None]
    if risen:
        node.seen = _one([seen for _, seen in risen])
    return together(node, [moved for moved, _ in risen if moved is not None])


def _risen(
    node: NodeState, touched: Touched, changes: Sequence[KeyChange | None]
) -> tuple[KeyChange | None, Seen]:
    """The same for some of the touched tuples."""
    tuples = touched.tuples
    below = [node.below(at, tuples, change) for at, change in enumerate(changes)]
    after = value_of(node, touched.new, [new for _, new in below])
    if node.is_told_by_key:
        before, to_keys = node.stored(tuples), set_keys
    else:
        before, to_keys = value_of(node, touched.old, [old for old, _ in below]), add_to_keys
    write(node, touched)
    if node.is_flat:
        moved, groups = _own_change(node, touched), tuples.codes[:0]
    else:
        # The tuples of a virtual root come and go with their rows: nobody owns them.
        values, own = Tally(before, after), Tally(touched.old, touched.new)
        came = (values if node.node.is_virtual else own).came()
        moved, groups = to_keys(node, tuples, values, came)
        node.indexed(tuples, came, groups)
    return moved, Seen(
        tuples,
        before[ROWS] > 0,
        after[ROWS] > 0,
        touched.new.get(NUMBER, tuples.codes[:0]),
        groups,
        count_fragments(node, touched),
    )


def _in_lots(tuples: Tuples, entering: Entering | None) -> Iterator[tuple[Tuples, Entering | None]]:
    if len(tuples) <= lots.MOST:
        yield tuples, entering
        return
    for start, end in lots.lots(len(tuples), lots.MOST):
        own = None if entering is None else entering.within(start, end)
        yield tuples.between(start, end), own


def _one(parts: Sequence[Seen]) -> Seen:
    """What was left of lots of tuples, as of one."""
    if len(parts) == 1:
        return parts[0]
    return Seen(
        stacked([one.tuples for one in parts]),
        np.concatenate([one.was_alive for one in parts]),
        np.concatenate([one.is_alive for one in parts]),
        np.concatenate([one.numbers for one in parts]),
        np.concatenate([one.groups for one in parts]),
        tuple(_sets(parts, at) for at in range(len(parts[0].sets))),
    )


def _sets(parts: Sequence[Seen], at: int) -> GroupSets | None:
    result = [one.sets[at] for one in parts]
    known = [one for one in result if one is not None]
    if not known:
        return None
    starts = np.cumsum([0, *(len(one.tuples) for one in parts)])
    slots = [one.crossed.slots + start for one, start in zip(known, starts, strict=False)]
    crossed = Pairs(
        np.concatenate(slots),
        np.concatenate([one.crossed.fragments for one in known]),
        np.concatenate([one.crossed.weights for one in known]),
    )
    # Each lot counted for tuples of its own, so what the first one found is how all were.
    return GroupSets(known[0].runs, np.concatenate([one.numbers for one in parts]), crossed)


# Which tuples are touched, and what they own.


def _touched(
    node: NodeState, batch: Batch | None, changes: Sequence[KeyChange | None]
) -> tuple[Tuples, Entering | None] | None:
    """The touched tuples, ascending by code, and the batch's rows among them; None for none."""
    entering = None if batch is None or not len(batch) else entering_rows(node, batch)
    parts: list[tuple[int, Columns]] = []
    own = None
    if entering is not None:
        own = entering.tuples_of(node)
        parts.append((len(own), own.columns))
    parts += [_reached(node, at, c) for at, c in enumerate(changes) if c is not None]
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


def _owned(node: NodeState, tuples: Tuples, entering: Entering | None) -> Touched | None:
    if node.node.is_virtual:
        always = {ROWS: np.ones(len(tuples), dtype=np.int64)}
        return Touched(tuples, always, always, None)
    return _without_ghosts(owning(node, tuples, entering))


def _reached(node: NodeState, at: int, change: KeyChange) -> tuple[int, Columns]:
    """Tuples that have the changed keys of the i-th child; an index may tell some twice."""
    link, index, kinds = node.node.links[at], node.by[at], dict(node.node.kept)
    if index is None:
        pairs = zip(link.columns, change.keys, strict=True)
        # The same values, under the type that this side has.
        columns = {name: Vector(kinds[name], key.values, key.valid) for name, key in pairs}
        return len(change.codes), columns
    rows = index.find(change.codes, change.keys).rows
    return len(rows), rows.columns


def _without_ghosts(touched: Touched) -> Touched | None:
    """Without tuples that an index told though they went: rows cancel only when runs merge."""
    kept = touched.new[ROWS] > 0
    entering = touched.entering
    if entering is not None:
        kept[entering.places] = True
    if bool(kept.all()):
        return touched
    at = kept.nonzero()[0]
    if not len(at):
        return None
    if entering is not None:
        places = (np.cumsum(kept) - 1)[entering.places]
        entering = Entering(entering.rows, entering.grouping, places)
    old = {name: value[at] for name, value in touched.old.items()}
    new = {name: value[at] for name, value in touched.new.items()}
    return Touched(touched.tuples.take(at), old, new, entering)


# What they are worth.


def value_of(node: NodeState, own: Values, below: Sequence[Values]) -> Values:
    """Rows and slots of each tuple, over all that extend it below."""
    rows = node.rows_of(own, below)
    if node.is_bits or node.is_flat:
        return {ROWS: rows} if node.is_bits else own
    result = zeros(node.parts, len(rows))
    result[ROWS] = rows
    alive, factors = rows > 0, node.factors_of(below)
    sources: list[tuple[int | None, Values]] = [(None, own), *enumerate(below)]
    for at, source in sources:
        parts = node.own_parts if at is None else node.seen_of(at)
        if not parts:
            continue
        others = [factor for place, factor in enumerate(factors) if place != at]
        times = _alive_product(alive, others if at is None else [own[ROWS], *others])
        for part in parts:
            if isinstance(part, Extreme):
                result[part.name] = np.where(alive, source[part.name], 0)
            else:
                result.update(multiplied(part, source, times))
    return result


def _alive_product(alive: Bools, counts: Sequence[Ints]) -> Ints:
    """The product where a tuple is alive: it is no greater than its rows there, else zero."""
    result = alive.astype(np.int64)
    for count in counts:
        result = result * np.where(alive, count, 0)
    return result


# What is seen from above.


def _own_change(node: NodeState, touched: Touched) -> KeyChange | None:
    """That of a leaf, whose tuples are its keys."""
    tuples = touched.tuples
    return key_change(
        node, tuples.codes, tuples.vectors(node.order), Tally(touched.old, touched.new)
    )
