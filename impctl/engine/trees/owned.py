"""What the rows of a node's own flow make of its tuples: rows, slots, numbers, fragments.

Law: a tuple owns the sum of the weights of all rows ever seen that have it, and the sums of their
arguments, whatever batches they came in. Rows with NULL where a partner is needed are dropped; for
left and anti edges they stay. A count below zero is an error. Cost: the rows, and a look-up per
different tuple.
Out of scope: what these are worth with the rows below (`engine.trees.way_up`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.keys import Grouping, group_rows, normalise, starts_in
from impctl.data.vector import Ints, Vector
from impctl.engine.accumulators import Count, Values, takes_bounds
from impctl.engine.aggregate_column import ROWS
from impctl.engine.batch import Batch
from impctl.engine.consolidate import identity_of
from impctl.engine.disagreement import disagreement
from impctl.engine.extremes import Extreme, OrderedCounts, ranks_of
from impctl.engine.fragment_counts import GroupSets, numbered
from impctl.engine.tags import Pairs
from impctl.engine.trees.keyed import Tuples
from impctl.engine.trees.node import NUMBER, NodeState
from impctl.engine.trees.values import changed, clear_empty, counted_in
from impctl.expr.error_bounds import is_known, unsure_value
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Entering:
    """The rows of a batch that are kept, grouped by tuple; `places` tells each group's tuple."""

    rows: Batch
    grouping: Grouping
    places: Ints

    def tuples_of(self, node: NodeState) -> Tuples:
        """The different tuples of these rows, one per group."""
        names = node.order
        columns = {name: self.rows.columns[name].take(self.grouping.first) for name in names}
        return Tuples(self.grouping.codes, columns)

    def within(self, start: int, end: int) -> Entering | None:
        """The rows of the tuples at these places, which are counted from there on."""
        places = self.tuple_of_rows()
        at = ((places >= start) & (places < end)).nonzero()[0]
        if not len(at):
            return None
        at = at[np.argsort(places[at], kind="stable")]
        places = places[at] - start
        starts = starts_in(places).nonzero()[0]
        codes = self.grouping.codes[self.grouping.index()[at[starts]]]
        grouping = Grouping(len(at), slice(None), starts, codes, starts)
        return Entering(self.rows.take(at), grouping, places[starts])

    def fragments_of(self, access: int) -> Pairs:
        """The rows' fragments of the i-th access, by the places of their tuples."""
        return self.rows.tags[access].expand(self.tuple_of_rows(), self.rows.weights)

    def tuple_of_rows(self) -> Ints:
        """The place of each row's tuple."""
        return self.places[self.grouping.index()]


@dataclass(frozen=True, slots=True)
class Touched:
    """Touched tuples with what they own, before and after."""

    tuples: Tuples
    old: Values
    new: Values
    entering: Entering | None


def entering_rows(node: NodeState, batch: Batch) -> Entering | None:
    """The rows that can have partners, with kept columns as keys; None for no rows."""
    spec = node.node
    columns = {
        name: (identity_of if name in spec.bitwise else normalise)(batch.columns[name])
        for name, _ in spec.kept
    }
    exact = [part.argument for part in node.own_parts if not takes_bounds(part)]
    if not all(map(is_known, [*columns.values(), *(batch.columns[name] for name in exact)])):
        raise unsure_value("A value used in a join, a grouping, MIN or MAX")
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
    return Entering(rows, grouping, np.arange(grouping.groups))


_ARGUMENT = "argument/"
"""Arguments lie beside kept columns, of which one may be the same column made a key."""


def owning(node: NodeState, tuples: Tuples, entering: Entering | None) -> Touched:
    """Own rows and slots of the tuples; the batch's are added."""
    located = node.tuples.find(tuples.codes, tuples.vectors(node.order))
    old = node.tuples.read(located, node.own_columns)
    if entering is None:
        return Touched(tuples, old, old, None)
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
    return Touched(tuples, old, new, entering)


def _refuse_negative(node: NodeState, state: Values) -> None:
    counts = [state[ROWS]]
    counts += [state[f"count{p.slot}"] for p in node.own_parts if isinstance(p, Count)]
    if any(bool((count < 0).any()) for count in counts):
        raise disagreement(
            f"The change removes rows of `{node.node.name}` that the stored state never contained"
        )


def _count_ranks(
    counts: OrderedCounts, part: Extreme, column: Vector, numbers: Ints, weights: Ints
) -> None:
    rows = column.validity().nonzero()[0]
    ranks = ranks_of(column.take(rows), reverse=part.reverse)
    counts.add(numbers[rows], ranks, weights[rows])


def write(node: NodeState, touched: Touched) -> None:
    """Keep what the tuples own now."""
    if touched.entering is None:
        return
    differs = changed(node.own_parts, touched.new, touched.old)
    tuples = touched.tuples
    node.tuples.put(tuples.codes, tuples.vectors(node.order), touched.new, differs)


def count_fragments(node: NodeState, touched: Touched) -> tuple[GroupSets | None, ...]:
    """Count the batch's rows in their fragments; per access the sets before and what crossed."""
    entering, nothing = touched.entering, np.zeros(0, dtype=np.int64)
    group_sets: list[GroupSets | None] = []
    for at, counts in enumerate(node.fragments):
        if counts is None:
            group_sets.append(None)
            continue
        pairs = Pairs(nothing, nothing, nothing)
        if entering is not None:
            pairs = entering.fragments_of(at)
        group_sets.append(counts.count(touched.new[NUMBER], pairs))
    return tuple(group_sets)
