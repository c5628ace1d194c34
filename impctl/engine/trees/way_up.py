"""A step of one node on the way up: its own change and its children's key changes in, its own out.

Law: the touched tuples are those of the node's batch and those that reach a changed key of a child;
every tuple whose value can differ is among them, each once. A tuple's value before and after the
step is computed from what is stored; the differences are added to the keys, so that these stay the
sums over their tuples, however many nodes changed at once. Cost: the touched tuples and what the
look-ups cost; never the joined rows. Rows with NULL where a partner is needed are dropped; for left
and anti edges they stay. A count below zero is an error.
Out of scope: who is wanted from above (`engine.trees.way_down`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import Grouping, group_rows, normalise
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.accumulators import Count, Values, takes_bounds
from impctl.engine.aggregate_column import ROWS
from impctl.engine.batch import Batch
from impctl.engine.consolidate import identity_of
from impctl.engine.disagreement import disagreement
from impctl.engine.extremes import Extreme, OrderedCounts, ranks_of
from impctl.engine.fragment_counts import GroupSets, numbered
from impctl.engine.tags import Pairs
from impctl.engine.trees.key_sums import Tally, add_to_keys, key_change
from impctl.engine.trees.keyed import Columns, Tuples, different
from impctl.engine.trees.node import NUMBER, KeyChange, NodeState, Seen
from impctl.engine.trees.values import changed, clear_empty, counted_in, multiplied, zeros
from impctl.expr.spans import is_known, unsure_value
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class _Entering:
    """The rows of a batch that are kept, grouped by tuple; `places` tells each group's tuple."""

    rows: Batch
    grouping: Grouping
    places: Ints

    def tuple_of_rows(self) -> Ints:
        return self.places[self.grouping.index()]


@dataclass(frozen=True, slots=True)
class _Touched:
    """Touched tuples with what they own, before and after."""

    tuples: Tuples
    old: Values
    new: Values
    entering: _Entering | None


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
    tuples = touched.tuples
    below = [node.below(at, tuples, change) for at, change in enumerate(changes)]
    before = _value(node, touched.old, [old for old, _ in below])
    after = _value(node, touched.new, [new for _, new in below])
    _write(node, touched)
    if node.is_flat:
        moved, groups = _own_change(node, touched), tuples.codes[:0]
    else:
        # The tuples of a virtual root come and go with their rows: nobody owns them.
        values, own = Tally(before, after), Tally(touched.old, touched.new)
        came = (values if node.node.is_virtual else own).came()
        moved, groups = add_to_keys(node, tuples, values, came)
        node.indexed(tuples, came, groups)
    node.seen = Seen(
        tuples,
        before[ROWS] > 0,
        after[ROWS] > 0,
        touched.new.get(NUMBER, tuples.codes[:0]),
        groups,
        _count_fragments(node, touched),
    )
    return moved


# Which tuples are touched, and what they own.


def _touched(
    node: NodeState, batch: Batch | None, changes: Sequence[KeyChange | None]
) -> _Touched | None:
    entering = None if batch is None or not len(batch) else _entering(node, batch)
    parts: list[tuple[int, Columns]] = []
    if entering is not None:
        first = entering.grouping.first
        names = node.order
        columns = {name: entering.rows.columns[name].take(first) for name in names}
        parts.append((len(first), columns))
    parts += [_reached(node, at, c) for at, c in enumerate(changes) if c is not None]
    parts = [part for part in parts if part[0]]
    if not parts:
        return None
    if entering is not None and len(parts) == 1:
        # What was grouped already is different and in order.
        tuples = Tuples(entering.grouping.codes, parts[0][1])
    else:
        tuples, places = different(node.order, parts)
        if entering is not None:
            entering = _Entering(entering.rows, entering.grouping, places[: len(entering.places)])
    if node.node.is_virtual:
        always = {ROWS: np.ones(len(tuples), dtype=np.int64)}
        return _Touched(tuples, always, always, None)
    return _without_ghosts(_owning(node, tuples, entering))


def _entering(node: NodeState, batch: Batch) -> _Entering | None:
    """The rows that can have partners, with kept columns as keys; None for no rows."""
    spec = node.node
    columns = {
        name: (identity_of if name in spec.bitwise else normalise)(batch.columns[name])
        for name, _ in spec.kept
    }
    exact = [part.argument for part in node.own_parts if not takes_bounds(part)]
    if not all(map(is_known, [*columns.values(), *(batch.columns[name] for name in exact)])):
        raise unsure_value("A value to join or group by, or to take an extreme of")
    known = np.ones(len(batch), dtype=np.bool_)
    for name in node.never_null:
        valid = columns[name].valid
        if valid is not None:
            known &= valid
    columns.update({f"{_ARGUMENT}{n}": batch.columns[n] for n, _ in spec.arguments})
    rows = Batch(columns, batch.weights, batch.tags).keep(known)
    if not len(rows):
        return None
    kept = {
        name: Vector(column.type, column.values, None, column.error)
        if name in node.never_null
        else column
        for name, column in rows.columns.items()
    }
    rows = Batch(kept, rows.weights, rows.tags)
    grouping = group_rows([rows.columns[name] for name in node.order], len(rows))
    return _Entering(rows, grouping, np.arange(grouping.groups))


_ARGUMENT = "argument/"
"""Arguments lie beside kept columns, of which one may be the same column made a key."""


def _reached(node: NodeState, at: int, change: KeyChange) -> tuple[int, Columns]:
    """Tuples that have the changed keys of the i-th child; an index may tell some twice."""
    link, index, kinds = node.node.links[at], node.by[at], dict(node.node.kept)
    if index is None:
        pairs = zip(link.columns, change.keys, strict=True)
        # The same values, under the type that this side has.
        columns = {name: Vector(kinds[name], key.values, key.valid) for name, key in pairs}
        return len(change.codes), columns
    found = index.find(change.codes, change.keys).rows
    return len(found), found.columns


def _owning(node: NodeState, tuples: Tuples, entering: _Entering | None) -> _Touched:
    """Own rows and slots of the tuples; the batch's are added."""
    located = node.tuples.find(tuples.codes, tuples.vectors(node.order))
    old = node.tuples.read(located, node.own_columns)
    if entering is None:
        return _Touched(tuples, old, old, None)
    rows, grouping, places = entering.rows, entering.grouping, entering.places
    mine = {name: value[places] for name, value in old.items()}
    added = {ROWS: counted_in(mine[ROWS], rows.weights, grouping)}
    for part in node.own_parts:
        if not isinstance(part, Extreme):
            column = rows.columns[_ARGUMENT + part.argument]
            added.update(part.add(mine, part.delta(column, rows.weights, grouping)))
    _refuse_negative(node, added)
    if node.has_tuple_numbers:
        added[NUMBER], node.next_tuple = numbered(mine[NUMBER], node.next_tuple)
    for part, counts in node.own_best.items():
        owners = added[NUMBER][grouping.index()]
        column = rows.columns[_ARGUMENT + part.argument]
        _count_ranks(counts, part, column, owners, rows.weights)
        added[part.name] = counts.best(added[NUMBER])
    clear_empty(added, node.own_parts)
    new = {name: value.copy() for name, value in old.items()}
    for name, value in added.items():
        new[name][places] = value
    return _Touched(tuples, old, new, entering)


def _refuse_negative(node: NodeState, state: Values) -> None:
    counts = [state[ROWS]]
    counts += [state[f"count{p.slot}"] for p in node.own_parts if isinstance(p, Count)]
    if any(bool((count < 0).any()) for count in counts):
        raise disagreement(
            f"The change removes rows of `{node.node.name}` that the stored state never held"
        )


def _count_ranks(
    counts: OrderedCounts, part: Extreme, column: Vector, numbers: Ints, weights: Ints
) -> None:
    rows = column.validity().nonzero()[0]
    ranks = ranks_of(column.take(rows), reverse=part.reverse)
    counts.add(numbers[rows], ranks, weights[rows])


def _without_ghosts(touched: _Touched) -> _Touched | None:
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
        entering = _Entering(entering.rows, entering.grouping, places)
    old = {name: value[at] for name, value in touched.old.items()}
    new = {name: value[at] for name, value in touched.new.items()}
    return _Touched(touched.tuples.take(at), old, new, entering)


# What they are worth.


def _value(node: NodeState, own: Values, below: Sequence[Values]) -> Values:
    """Rows and slots of each tuple, over all that extend it below."""
    rows = node.rows_of(own, below)
    if node.is_bits or node.is_flat:
        return {ROWS: rows} if node.is_bits else own
    found = zeros(node.parts, len(rows))
    found[ROWS] = rows
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
                found[part.name] = np.where(alive, source[part.name], 0)
            else:
                found.update(multiplied(part, source, times))
    return found


def _alive_product(alive: Bools, counts: Sequence[Ints]) -> Ints:
    """The product where a tuple is alive: it is no greater than its rows there, else zero."""
    result = alive.astype(np.int64)
    for count in counts:
        result = result * np.where(alive, count, 0)
    return result


# What is written.


def _write(node: NodeState, touched: _Touched) -> None:
    if touched.entering is None:
        return
    differs = changed(node.own_parts, touched.new, touched.old)
    tuples = touched.tuples
    node.tuples.put(tuples.codes, tuples.vectors(node.order), touched.new, differs)


def _own_change(node: NodeState, touched: _Touched) -> KeyChange | None:
    """That of a leaf, whose tuples are its keys."""
    tuples = touched.tuples
    return key_change(
        node, tuples.codes, tuples.vectors(node.order), Tally(touched.old, touched.new)
    )


def _count_fragments(node: NodeState, touched: _Touched) -> tuple[GroupSets | None, ...]:
    """Count the batch's rows in their fragments; per access the sets before and what crossed."""
    entering, nothing = touched.entering, np.zeros(0, dtype=np.int64)
    found: list[GroupSets | None] = []
    for at, counts in enumerate(node.fragments):
        if counts is None:
            found.append(None)
            continue
        pairs = Pairs(nothing, nothing, nothing)
        if entering is not None:
            pairs = entering.rows.tags[at].expand(entering.tuple_of_rows(), entering.rows.weights)
        found.append(counts.count(touched.new[NUMBER], pairs))
    return tuple(found)
