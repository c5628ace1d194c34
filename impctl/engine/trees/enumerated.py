"""Joined rows of a tree written down, those asked for only: breadth first from some of its tuples.

Law: the rows that come out are those that the given tuples are part of, each with its copies: a
tuple's own rows multiplied along the way. A way leads through live tuples only, so no part of a row
leads nowhere (an error, should one), and no step on the way is wider than what comes out. What a
semi or anti edge looks at is no part of a row; where a left edge finds no partner, all columns from
there on are NULL. Cost: the rows that come out, times nodes, and the tuples of each key on the way,
of which some may not be alive.
Out of scope: from which tuples to begin (`engine.trees.row_changes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from impctl.data.keys import Grouping, group_rows
from impctl.data.schema import SqlType
from impctl.data.vector import Bools, Ints, Vector, all_null, concat, slice_positions
from impctl.engine.aggregate_column import ROWS
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.disagreement import disagreement
from impctl.engine.row_index import MOST_PAIRS
from impctl.engine.trees.keyed import Columns, Tuples
from impctl.engine.trees.node import LIVE, NodeState
from impctl.engine.trees.spec import NO_SLOTS, Edge
from impctl.engine.trees.values import product
from impctl.errors import JoinTooLargeError
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of the joined rows, and the kept column of the node at `node` that it is.

    Integral types may differ, and the other is the bits of doubles where the node says so.
    """

    name: AttributeId
    kind: SqlType
    node: int
    column: AttributeId


@dataclass(frozen=True, slots=True)
class Start:
    """Tuples of the node at `at` to begin with, ascending by code, and a signed weight of each."""

    at: int
    tuples: Tuples
    weights: Ints


class JoinedTree:
    """The nodes of a tree in bits mode as they stand; `shown` are the columns asked for."""

    def __init__(self, nodes: Sequence[NodeState], shown: Sequence[Shown]) -> None:
        self.nodes = tuple(nodes)
        self.shown = tuple(shown)
        self.parents = {
            link.child: (at, place)
            for at, node in enumerate(nodes)
            for place, link in enumerate(node.node.links)
        }

    def whole(self) -> Batch:
        """All joined rows. Cost: the rows, and the tuples of the root."""
        root = self.nodes[-1]
        codes, kept, values = root.tuples.whole({ROWS: np.int64})
        if not len(codes):
            return empty_batch(0)
        tuples = Tuples(codes, dict(zip(root.order, kept, strict=True)))
        return self.rows(Start(len(self.nodes) - 1, tuples, values[ROWS]))

    def rows(self, start: Start) -> Batch:
        """The joined rows that live ones of these tuples are part of, times their weights."""
        result = alive_of(self.nodes[start.at], start.tuples, must_be_wanted=True)
        at = result.is_alive.nonzero()[0]
        if not len(at):
            return empty_batch(0)
        weights = start.weights[at]
        held = self._held(start.at, start.tuples.take(at).columns)
        rows = _Rows(np.abs(weights), held, {}, np.sign(weights))
        reached = [(start.at, -1)]
        for here, before in reached:
            for there in self._beside(here):
                if there != before:
                    rows = self._extended(rows, here, there)
                    reached.append((there, here))
            rows = rows.without(here, [one.column for one in self.shown if one.node == here])
        columns = {one.name: self._column(rows, one) for one in self.shown}
        return Batch(columns, rows.weights * rows.signs, ())

    def _beside(self, at: int) -> Iterator[int]:
        """The nodes that hang on this one, or that it hangs on, whose columns are in its rows."""
        links = self.nodes[at].node.links
        yield from (link.child for link in links if link.edge not in NO_SLOTS)
        if at in self.parents:
            parent, place = self.parents[at]
            if self.nodes[parent].node.links[place].edge not in NO_SLOTS:
                yield parent

    def _names(self, at: int) -> Iterator[AttributeId]:
        """Those of a node's columns that are shown, or lead on."""
        node = self.nodes[at].node
        leading = {name for link in node.links for name in link.columns} | set(node.key)
        shown = {one.column for one in self.shown if one.node == at}
        return (name for name in node.kept_names if name in leading | shown)

    def _held(self, at: int, columns: Columns) -> _Held:
        return {(at, name): columns[name] for name in self._names(at)}

    def _extended(self, rows: _Rows, here: int, there: int) -> _Rows:
        """The rows with the tuples of a node beside one that they have already."""
        asking, keys, reached = self._asked(rows, here, there)
        grouping = group_rows(keys, len(asking))
        matched, left = _NOTHING, np.ones(len(rows), dtype=np.bool_)
        parts: list[_Rows] = []
        if grouping.groups:
            leaders = [key.take(grouping.first) for key in keys]
            result = reached.found(grouping.codes, leaders)
            matched = _matched(asking, grouping, result)
            left[matched.rows] = False
            if len(matched.rows):
                parts.append(_joined(rows, matched, result, self._held(there, result.columns)))
        is_absent = rows.absent.get(here, _nobody(rows))
        if not reached.is_padded and bool((left & ~is_absent).any()):
            raise disagreement(
                "A row of a join has no match, although the stored state counted one"
            )
        if bool(left.any()):
            parts.append(self._padded(rows.take(left.nonzero()[0]), there))
        return parts[0] if len(parts) == 1 else _both(*parts)

    def _asked(
        self, rows: _Rows, here: int, there: int
    ) -> tuple[Ints, list[Vector], _Above | _Below]:
        """The rows that can have a partner in a node beside one, their keys, whom to ask."""
        parent, place = self.parents.get(here, (-1, -1))
        if parent == there:
            keys = [rows.columns[here, name] for name in self.nodes[here].node.key]
            return np.arange(len(rows)), keys, _Above(self.nodes[there], place)
        place = self.parents[there][1]
        is_padded = self.nodes[here].node.links[place].edge is Edge.LEFT
        asking, keys = self._key_below(rows, here, place)
        return asking, keys, _Below(self.nodes[there], is_padded)

    def _key_below(self, rows: _Rows, at: int, place: int) -> tuple[Ints, list[Vector]]:
        """The rows that can have a partner in a child, and their keys."""
        present = np.arange(len(rows))
        is_absent = rows.absent.get(at)
        if is_absent is not None:
            present = (~is_absent).nonzero()[0]
        names = self.nodes[at].node.links[place].columns
        columns = {name: rows.columns[at, name].take(present) for name in names}
        asking, keys = self.nodes[at].keys_of(place, Tuples(present, columns))
        return present[asking], keys

    def _padded(self, rows: _Rows, at: int) -> _Rows:
        """The rows with NULL in place of a node's columns."""
        kinds = dict(self.nodes[at].node.kept)
        columns = {(at, one): all_null(kinds[one], len(rows)) for one in self._names(at)}
        absent = {**rows.absent, at: np.ones(len(rows), dtype=np.bool_)}
        return _Rows(rows.weights, {**rows.columns, **columns}, absent, rows.signs)

    def _column(self, rows: _Rows, shown: Shown) -> Vector:
        held = rows.columns[shown.node, shown.column]
        values = held.values
        if shown.column in self.nodes[shown.node].node.bitwise:
            values = values.view(np.float64)
        return Vector(shown.kind, values, held.valid)


_Held = dict[tuple[int, AttributeId], Vector]
"""Columns by the node that they are of and their names."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Parts of joined rows: copies, sign and columns so far; `absent` where a node has no tuple."""

    weights: Ints
    columns: _Held
    absent: Mapping[int, Bools]
    signs: Ints

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, at: Ints) -> _Rows:
        columns = {name: column.take(at) for name, column in self.columns.items()}
        absent = {node: mask[at] for node, mask in self.absent.items()}
        return _Rows(self.weights[at], columns, absent, self.signs[at])

    def without(self, at: int, shown: Sequence[AttributeId]) -> _Rows:
        """Without those of a node's columns that only led on."""
        columns = {n: c for n, c in self.columns.items() if n[0] != at or n[1] in shown}
        return _Rows(self.weights, columns, self.absent, self.signs)


def _nobody(rows: _Rows) -> Bools:
    return np.zeros(len(rows), dtype=np.bool_)


def _both(first: _Rows, second: _Rows) -> _Rows:
    """Both, one after the other; of what the second ones have no tuple the first ones may."""
    absent = {
        at: np.concatenate([first.absent.get(at, _nobody(first)), mask])
        for at, mask in second.absent.items()
    }
    columns = {n: concat([first.columns[n], second.columns[n]]) for n in second.columns}
    weights = np.concatenate([first.weights, second.weights])
    return _Rows(weights, columns, absent, np.concatenate([first.signs, second.signs]))


# Tuples by a key, from above and from below.


@dataclass(frozen=True, slots=True)
class _Found:
    """Tuples by the place of their key among those asked for, ascending; how many rows each has."""

    owners: Ints
    columns: Columns
    own: Ints


@dataclass(frozen=True, slots=True)
class _Below:
    """Alive tuples of a node by its key; with `is_padded` there may be none."""

    node: NodeState
    is_padded: bool

    def found(self, codes: Ints, keys: Sequence[Vector]) -> _Found:
        node = self.node
        if node.up is None:
            return _told(node, node.node.key, keys, must_be_wanted=False)
        result = node.up.find(codes, keys)
        return _living(node, result.owners, result.rows.columns, must_be_wanted=False)


@dataclass(frozen=True, slots=True)
class _Above:
    """Live tuples of a node by the key of its child at `place`."""

    node: NodeState
    place: int
    is_padded = False

    def found(self, codes: Ints, keys: Sequence[Vector]) -> _Found:
        node, index = self.node, self.node.by[self.place]
        if index is None:
            names = node.node.links[self.place].columns
            return _told(node, names, keys, must_be_wanted=True)
        result = index.find(codes, keys)
        return _living(node, result.owners, result.rows.columns, must_be_wanted=True)


def _told(
    node: NodeState, names: Sequence[AttributeId], keys: Sequence[Vector], *, must_be_wanted: bool
) -> _Found:
    """Tuples that are told by their keys; the values are the same under the node's own types."""
    kinds, count = dict(node.node.kept), len(keys[0]) if keys else 1
    columns = {n: Vector(kinds[n], k.values, k.valid) for n, k in zip(names, keys, strict=True)}
    return _living(node, np.arange(count), columns, must_be_wanted=must_be_wanted)


def _living(node: NodeState, owners: Ints, columns: Columns, *, must_be_wanted: bool) -> _Found:
    """Those of the tuples that are alive, each once: an index may tell some twice."""
    if not len(owners):
        return _Found(owners, {}, owners)
    vectors = [columns[name] for name in node.order]
    grouping = group_rows(vectors, len(owners))
    first = grouping.first
    tuples = Tuples(grouping.codes, {name: columns[name].take(first) for name in node.order})
    living = alive_of(node, tuples, must_be_wanted=must_be_wanted)
    at = living.is_alive.nonzero()[0]
    owners = owners[first[at]]
    order = np.argsort(owners, kind="stable")
    return _Found(owners[order], tuples.take(at[order]).columns, living.own[at[order]])


@dataclass(frozen=True, slots=True)
class Living:
    """How many rows each tuple has, and whether it is alive, or live where that was asked."""

    own: Ints
    is_alive: Bools


def own_of(node: NodeState, tuples: Tuples) -> Ints:
    """How many rows each tuple has."""
    located = node.tuples.find(tuples.codes, tuples.vectors(node.order) if len(tuples) else ())
    own: Ints = node.tuples.read(located, {ROWS: np.int64})[ROWS]
    return own


def alive_of(node: NodeState, tuples: Tuples, *, must_be_wanted: bool) -> Living:
    """Which tuples find all they want below; with `must_be_wanted` which are live."""
    if not len(tuples):
        return Living(tuples.codes, np.zeros(0, dtype=np.bool_))
    own = own_of(node, tuples)
    below = [node.below(at, tuples, None)[1] for at in range(len(node.children))]
    alive = node.alive_of({ROWS: own}, below)
    if must_be_wanted and node.has_keys:
        keys = tuples.vectors(node.node.key)
        grouping = group_rows(keys, len(tuples))
        located = node.live.find(grouping.codes, [key.take(grouping.first) for key in keys])
        wanted = node.live.read(located, {LIVE: np.int64})[LIVE] > 0
        alive = alive & wanted[grouping.index()]
    return Living(own, alive)


@dataclass(frozen=True, slots=True)
class _Matched:
    """For each joined row the place of the row that it extends, and of the tuple found for it."""

    rows: Ints
    places: Ints


_NOTHING = _Matched(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _matched(asking: Ints, grouping: Grouping, result: _Found) -> _Matched:
    """What was found for each group of asking rows, for each of its rows."""
    groups = np.arange(grouping.groups, dtype=np.int64)
    low = result.owners.searchsorted(groups)
    high = result.owners.searchsorted(groups, side="right")
    index = grouping.index()
    _check_size(int((high - low)[index].sum()))
    places, owners = slice_positions(low[index], high[index])
    return _Matched(asking[owners], places)


def _joined(rows: _Rows, matched: _Matched, result: _Found, held: _Held) -> _Rows:
    """The rows with the tuples found for them, as often as these have rows."""
    taken = rows.take(matched.rows)
    columns = {name: column.take(matched.places) for name, column in held.items()}
    weights = product([taken.weights, result.own[matched.places]])
    return _Rows(weights, {**taken.columns, **columns}, taken.absent, taken.signs)


def _check_size(rows: int) -> None:
    if rows > MOST_PAIRS:
        raise JoinTooLargeError(
            f"A join returns {rows:,} rows in one request",
            hint="group the rows in the query, or restrict the join's condition",
        )
