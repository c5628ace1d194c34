"""Joined rows of a join tree, enumerated for the requested keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import Grouping, group_rows
from impctl.data.vector import Bools, Ints, Vector, all_null, concat, slice_positions
from impctl.engine.accumulators import ROWS
from impctl.engine.batch import Batch, disagreement, empty_batch, loading, stacked_or_empty
from impctl.engine.jointree.node import LIVE, TouchedNode, TreeNodeState
from impctl.engine.jointree.spec import NO_SLOTS, Edge, JoinTree
from impctl.engine.jointree.tree import Live, Tree
from impctl.engine.jointree.values import Columns, Tuples, product
from impctl.engine.operator import Keeper, Operator
from impctl.engine.trace import MOST_PAIRS
from impctl.errors import JoinTooLargeError
from impctl.types import AttributeId

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.engine.linear import ProjectOperator
    from impctl.engine.result_rows import Runs


# Joined rows of a tree on request, breadth first from given tuples. Law: the result is the joined
# rows that the given tuples are part of, with their copies: the product of the tuples' rows. Only
# live tuples are followed, so every partial row leads to a result (else an error), and no step is
# wider than the result. The inputs of semi and anti edges are not part of a row; where a left edge
# has no partner, all columns below it are NULL. Cost: the result rows times nodes, and the tuples
# of each key passed, some of which may not be alive.


class Shown(Struct, frozen=True):
    """A column of the joined rows, and the kept column of the node at `node` that it shows.
    Integral types may differ; a column kept as the bits of doubles is shown as doubles."""

    name: AttributeId
    kind: SqlType
    node: int
    column: AttributeId


class JoinedTree:
    """The nodes of a tree in bits mode in their current state; `shown` are the requested
    columns."""

    def __init__(self, nodes: Sequence[TreeNodeState], shown: Sequence[Shown]) -> None:
        self.nodes = tuple(nodes)
        self.shown = tuple(shown)
        self.parents = {
            link.child: (index, position)
            for index, node in enumerate(nodes)
            for position, link in enumerate(node.node.links)
        }

    def whole(self) -> Batch:
        """All joined rows. Cost: the rows, and the tuples of the root."""
        root = self.nodes[-1]
        codes, kept, values = root.tuples.whole({ROWS: np.int64})
        if not len(codes):
            return empty_batch(0)
        tuples = Tuples(codes, dict(zip(root.order, kept, strict=True)))
        return self.rows(len(self.nodes) - 1, tuples, values[ROWS])

    def rows(self, start: int, tuples: Tuples, weights: Ints) -> Batch:
        """The joined rows that contain live ones of these tuples of the node at `start`, ascending
        by code, times their signed weights."""
        _, is_alive = alive_of(self.nodes[start], tuples, must_be_wanted=True)
        positions = is_alive.nonzero()[0]
        if not len(positions):
            return empty_batch(0)
        weights = weights[positions]
        stored = self._needed(start, tuples.take(positions).columns)
        rows = _PartialRows(np.abs(weights), stored, {}, np.sign(weights))
        reached = [(start, -1)]
        for node, previous in reached:
            for neighbor in self._neighbors(node):
                if neighbor != previous:
                    rows = self._extended(rows, node, neighbor)
                    reached.append((neighbor, node))
            rows = rows.without(node, [shown.column for shown in self.shown if shown.node == node])
        columns = {column.name: self._column(rows, column) for column in self.shown}
        return Batch(columns, rows.weights * rows.signs, ())

    def _neighbors(self, index: int) -> Iterator[int]:
        links = self.nodes[index].node.links
        yield from (link.child for link in links if link.edge not in NO_SLOTS)
        if index in self.parents:
            parent, position = self.parents[index]
            if self.nodes[parent].node.links[position].edge not in NO_SLOTS:
                yield parent

    def _names(self, index: int) -> Iterator[AttributeId]:
        """The node's columns that are shown or join others."""
        node = self.nodes[index].node
        leading = {name for link in node.links for name in link.columns} | set(node.key)
        shown = {column.column for column in self.shown if column.node == index}
        return (name for name in node.kept_names if name in leading | shown)

    def _needed(self, index: int, columns: Columns) -> _NodeColumns:
        return {(index, name): columns[name] for name in self._names(index)}

    def _extended(self, rows: _PartialRows, node: int, neighbor: int) -> _PartialRows:
        parent, position = self.parents.get(node, (-1, -1))
        child = position if parent == neighbor else None
        if child is None:
            position = self.parents[neighbor][1]
            is_padded = self.nodes[node].node.links[position].edge is Edge.LEFT
            asking, keys = self._key_below(rows, node, position)
        else:
            is_padded, asking = False, np.arange(len(rows))
            keys = [rows.columns[node, name] for name in self.nodes[node].node.key]
        grouping = group_rows(keys, len(asking))
        left = np.ones(len(rows), dtype=np.bool_)
        parts: list[_PartialRows] = []
        if grouping.groups:
            leaders = [key.take(grouping.first) for key in keys]
            result = _tuples_by_key(self.nodes[neighbor], child, grouping.codes, leaders)
            extended, places = _matched(asking, grouping, result)
            left[extended] = False
            if len(extended):
                stored = self._needed(neighbor, result.columns)
                parts.append(_joined(rows.take(extended), places, result, stored))
        is_absent = rows.absent.get(node, _nobody(rows))
        if not is_padded and bool((left & ~is_absent).any()):
            raise disagreement(
                "A row of a join has no match, although the stored state counted one"
            )
        if bool(left.any()):
            parts.append(self._padded(rows.take(left.nonzero()[0]), neighbor))
        return parts[0] if len(parts) == 1 else _both(*parts)

    def _key_below(
        self, rows: _PartialRows, index: int, position: int
    ) -> tuple[Ints, list[Vector]]:
        present = np.arange(len(rows))
        is_absent = rows.absent.get(index)
        if is_absent is not None:
            present = (~is_absent).nonzero()[0]
        names = self.nodes[index].node.links[position].columns
        columns = {name: rows.columns[index, name].take(present) for name in names}
        asking, keys = self.nodes[index].keys_of(position, Tuples(present, columns))
        return present[asking], keys

    def _padded(self, rows: _PartialRows, index: int) -> _PartialRows:
        kinds = dict(self.nodes[index].node.kept)
        columns = {
            (index, column): all_null(kinds[column], len(rows)) for column in self._names(index)
        }
        absent = {**rows.absent, index: np.ones(len(rows), dtype=np.bool_)}
        return _PartialRows(rows.weights, {**rows.columns, **columns}, absent, rows.signs)

    def _column(self, rows: _PartialRows, shown: Shown) -> Vector:
        stored = rows.columns[shown.node, shown.column]
        values = stored.values
        if shown.column in self.nodes[shown.node].node.bitwise:
            values = values.view(np.float64)
        return Vector(shown.kind, values, stored.valid)


_NodeColumns = dict[tuple[int, AttributeId], Vector]  # Columns by their node and name


class _PartialRows(Struct, frozen=True):
    """Partially joined rows: copies, sign and columns so far; `absent` where a node has no
    tuple."""

    weights: Ints
    columns: _NodeColumns
    absent: Mapping[int, Bools]
    signs: Ints

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, positions: Ints) -> _PartialRows:
        columns = {name: column.take(positions) for name, column in self.columns.items()}
        absent = {node: mask[positions] for node, mask in self.absent.items()}
        return _PartialRows(self.weights[positions], columns, absent, self.signs[positions])

    def without(self, index: int, shown: Sequence[AttributeId]) -> _PartialRows:
        columns = {n: c for n, c in self.columns.items() if n[0] != index or n[1] in shown}
        return _PartialRows(self.weights, columns, self.absent, self.signs)


def _nobody(rows: _PartialRows) -> Bools:
    return np.zeros(len(rows), dtype=np.bool_)


def _both(first: _PartialRows, second: _PartialRows) -> _PartialRows:
    """Both, one after the other; `second` may lack nodes that `first` has."""
    absent = {
        index: np.concatenate([first.absent.get(index, _nobody(first)), mask])
        for index, mask in second.absent.items()
    }
    columns = {n: concat([first.columns[n], second.columns[n]]) for n in second.columns}
    weights = np.concatenate([first.weights, second.weights])
    return _PartialRows(weights, columns, absent, np.concatenate([first.signs, second.signs]))


class _FoundTuples(Struct, frozen=True):
    """Tuples by the position of their key among the requested ones, ascending; the number of rows
    of each."""

    owners: Ints
    columns: Columns
    counts: Ints


def _tuples_by_key(
    node: TreeNodeState, child: int | None, codes: Ints, keys: Sequence[Vector]
) -> _FoundTuples:
    """The live tuples of a node by the key of a child, given by its position; without one the alive
    tuples by the node's own key. Each comes once, though an index may return some twice."""
    columns: Columns
    index = node.up if child is None else node.by[child]
    if index is None:
        # The key determines the tuple; its values are the same under the node's own types.
        names = node.node.key if child is None else node.node.links[child].columns
        kinds, owners = dict(node.node.kept), np.arange(len(keys[0]) if keys else 1)
        columns = {n: Vector(kinds[n], k.values, k.valid) for n, k in zip(names, keys, strict=True)}
    else:
        result = index.find(codes, keys)
        owners, columns = result.owners, result.rows.columns
    if not len(owners):
        return _FoundTuples(owners, {}, owners)
    vectors = [columns[name] for name in node.order]
    grouping = group_rows(vectors, len(owners))
    first = grouping.first
    tuples = Tuples(grouping.codes, {name: columns[name].take(first) for name in node.order})
    counts, is_alive = alive_of(node, tuples, must_be_wanted=child is not None)
    positions = is_alive.nonzero()[0]
    owners = owners[first[positions]]
    order = np.argsort(owners, kind="stable")
    return _FoundTuples(
        owners[order], tuples.take(positions[order]).columns, counts[positions[order]]
    )


def row_counts(node: TreeNodeState, tuples: Tuples) -> Ints:
    located = node.tuples.find(tuples.codes, tuples.vectors(node.order) if len(tuples) else ())
    counts: Ints = node.tuples.read(located, {ROWS: np.int64})[ROWS]
    return counts


def alive_of(node: TreeNodeState, tuples: Tuples, *, must_be_wanted: bool) -> tuple[Ints, Bools]:
    """The rows of each tuple, and whether it has all partners that it needs below; with
    `must_be_wanted` whether it is live."""
    if not len(tuples):
        return tuples.codes, np.zeros(0, dtype=np.bool_)
    counts = row_counts(node, tuples)
    below = [node.below(index, tuples, None)[1] for index in range(len(node.children))]
    alive = node.alive_of({ROWS: counts}, below)
    if must_be_wanted and node.has_keys:
        keys = tuples.vectors(node.node.key)
        grouping = group_rows(keys, len(tuples))
        located = node.live.find(grouping.codes, [key.take(grouping.first) for key in keys])
        is_wanted = node.live.read(located, {LIVE: np.int64})[LIVE] > 0
        alive = alive & is_wanted[grouping.index()]
    return counts, alive


def _matched(asking: Ints, grouping: Grouping, result: _FoundTuples) -> tuple[Ints, Ints]:
    """For each joined row the positions of the row that it extends, and of the matching tuple."""
    groups = np.arange(grouping.groups, dtype=np.int64)
    low = result.owners.searchsorted(groups)
    high = result.owners.searchsorted(groups, side="right")
    index = grouping.index()
    count = int((high - low)[index].sum())
    if count > MOST_PAIRS:
        raise JoinTooLargeError(
            f"A join returns {count:,} rows in one request",
            hint="group the rows in the query, or restrict the join's condition",
        )
    places, owners = slice_positions(low[index], high[index])
    return asking[owners], places


def _joined(
    rows: _PartialRows, positions: Ints, result: _FoundTuples, columns_of_node: _NodeColumns
) -> _PartialRows:
    """The rows with their matching tuples, repeated by the tuples' rows."""
    columns = {name: column.take(positions) for name, column in columns_of_node.items()}
    weights = product([rows.weights, result.counts[positions]])
    return _PartialRows(weights, {**rows.columns, **columns}, rows.absent, rows.signs)


# The change of a tree's joined rows when one input changes. Law: the joined rows of the tree after
# the change minus those before. They are found from tuples whose own rows changed, from tuples
# above the uppermost edge of existence that became or ceased to be alive, and at each left edge
# above from tuples that lost their last partner or got a first one (for the row padded with NULL).
# Deleted rows are looked up in the tree before, inserted ones in the tree after, so only live
# tuples are followed. Cost: those rows, and the touched tuples.


class TreeChange(Struct, frozen=True):
    """A tree before and after a change of the input of one node, and the touched tuples per
    node."""

    before: JoinedTree
    after: JoinedTree
    changed: int
    touched: Sequence[TouchedNode | None]

    def rows(self) -> list[Batch]:
        result = []
        for tuples, index, change in self._starts():
            for tree, sign in ((self.before, -1), (self.after, 1)):
                one_way = (np.sign(change) == sign).nonzero()[0]
                if len(one_way):
                    result.append(tree.rows(index, tuples.take(one_way), change[one_way]))
        return [batch for batch in result if len(batch)]

    def _starts(self) -> Iterator[tuple[Tuples, int, Ints]]:
        """Tuples to begin with, their node, and how many rows of each were inserted or deleted."""
        # The node above the change with the uppermost semi or anti edge.
        top = None
        for index, _, edge in self._above(self.changed):
            top = index if edge in NO_SLOTS else top
        if top is None:
            tuples = self._touched(self.changed)
            had, has = (row_counts(tree.nodes[self.changed], tuples) for tree in self._both)
            yield tuples, self.changed, has - had
        else:
            touched = self.touched[top]
            if touched is not None:
                signs = touched.is_alive.astype(np.int64) - touched.was_alive
                yield touched.tuples, top, signs * row_counts(self.after.nodes[top], touched.tuples)
        for index, position, edge in self._above(self.changed if top is None else top):
            if edge is not Edge.LEFT:
                continue
            tuples = self._touched(index)
            result = [self._has_partner(tree, index, position, tuples) for tree in self._both]
            padded = result[0].astype(np.int64) - result[1]
            yield tuples, index, padded * row_counts(self.after.nodes[index], tuples)

    @property
    def _both(self) -> tuple[JoinedTree, JoinedTree]:
        return self.before, self.after

    def _above(self, index: int) -> Iterator[tuple[int, int, Edge]]:
        """The nodes above one, with the place of the link below and the kind of its edge."""
        parents = self.after.parents
        while index in parents:
            index, position = parents[index]
            yield index, position, self.after.nodes[index].node.links[position].edge

    def _touched(self, index: int) -> Tuples:
        touched = self.touched[index]
        return Tuples(np.zeros(0, dtype=np.int64), {}) if touched is None else touched.tuples

    def _has_partner(self, tree: JoinedTree, index: int, position: int, tuples: Tuples) -> Bools:
        if not len(tuples):
            return np.zeros(0, dtype=np.bool_)
        has: Bools = tree.nodes[index].below(position, tuples, None)[1][ROWS] > 0
        return has


# Joined rows of a tree in bits mode, and the ranges of the rows that take part. Identity of
# `JoinedRows`: the output's change is that of the joined rows, with their copies, in the columns
# shown. Inputs are applied one after the other, so a table in several nodes changes in one at a
# time. State: that of `Tree` and `Live`, never a joined row. Cost: theirs, once per changed input,
# and the result rows. Columns below a left edge without a partner are NULL. Deleted rows are looked
# up in the tree as it was. `EnumeratedRows` are those of a materialized result, computed only on
# request. Identity of `JoinedRowTags`: the ranges of the rows that take part, which `JoinedRows`
# computes; it has no state, and reads that output only to be stepped after it.


class JoinedRows(Operator):
    """The rows that `tree`, in bits mode, joins, with the columns `shown`."""

    joined_rows = 0

    def __init__(self, tree: JoinTree, shown: Sequence[Shown]) -> None:
        self.shown = tuple(shown)
        self.form = (tree, self.shown)
        self._tree = Tree(tree)
        self._live = Live(self._tree)
        self._node_of_input = {
            n.input: index for index, n in enumerate(tree.nodes) if n.input is not None
        }
        self._ranges: list[Batch] = []

    def step(self, *batches: Batch | None) -> Batch:
        result: list[Batch] = []
        for number, batch in enumerate(batches):
            if batch is not None and len(batch):
                result += self._changed(number, batch)
        self.joined_rows += sum(map(len, result))
        return stacked_or_empty(result, 0)

    def step_silently(self, *batches: Batch | None) -> None:
        """The same step for all inputs at once, without computing the rows."""
        self._ranges.append(self._live.step(None, self._tree.step(*batches)))

    def _changed(self, number: int, batch: Batch) -> list[Batch]:
        before = self.snapshot_copy()
        inputs = [batch if index == number else None for index in range(len(self._node_of_input))]
        ran = self._tree.step(*inputs)
        touched = [node.seen for node in self._tree.nodes]
        self._ranges.append(self._live.step(None, ran))
        after = JoinedTree(self._tree.nodes, self.shown)
        return TreeChange(before, after, self._node_of_input[number], touched).rows()

    def snapshot_copy(self) -> JoinedTree:
        nodes: list[TreeNodeState] = []
        for node in self._tree.nodes:
            nodes.append(node.snapshot_copy([nodes[link.child] for link in node.node.links]))
        return JoinedTree(nodes, self.shown)

    def report(self) -> Batch:
        """The ranges that entered and left since the last call."""
        result, self._ranges = self._ranges, []
        return stacked_or_empty(result, self._tree.tree.accesses)

    def arrangements(self) -> Sequence[Keeper]:
        result = {
            arrangement.name: arrangement
            for part in (self._tree, self._live)
            for arrangement in part.arrangements()
        }
        return tuple(result.values())

    def counters(self) -> Mapping[str, int]:
        return {**self._tree.counters(), **self._live.counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._tree.take_up(counters)
        self._live.take_up(counters)


class EnumeratedRows(JoinedRows):
    """The rows of a result that are not stored: the tree enumerates them on request. `outputs`
    computes them from the joined rows. A step costs what the tree's does, unless changes are
    noted."""

    are_enumerated = True
    bounded: frozenset[AttributeId] = frozenset()
    keys: tuple[AttributeId, ...] = ()

    def __init__(
        self,
        tree: JoinTree,
        shown: Sequence[Shown],
        outputs: ProjectOperator,
        columns: Sequence[tuple[AttributeId, SqlType]],
    ) -> None:
        super().__init__(tree, shown)
        self.form = (tree, self.shown, outputs.form)
        self.beginning = f"{tree.name}."
        self.columns = tuple(columns)
        self._outputs = outputs
        self._noted: list[Batch] | None = None
        self._before: JoinedTree | None = None

    def step(self, *batches: Batch | None) -> Batch:
        """Returns nothing; `JoinedRowTags` is to be stepped."""
        if self._noted is None:
            self.step_silently(*batches)
        else:
            self._noted.append(super().step(*batches))
        return empty_batch(0)

    def note(self) -> None:
        """Record changes from now on, and a snapshot of the tree."""
        self._noted, self._before = [], self.snapshot_copy()

    def noted(self) -> Batch:
        rows, self._noted = stacked_or_empty(self._noted or (), 0), None
        return self._computed(rows)

    def before(self, noted: Batch) -> Batch:
        """The rows of the tree at `note`, whatever became of it."""
        assert self._before is not None, "it was noted"
        return self._computed(self._before.whole())

    def whole(self) -> Batch:
        return self._computed(self.snapshot_copy().whole())

    def _computed(self, rows: Batch) -> Batch:
        return self._outputs.step(rows) if len(rows) else rows

    def load(self, runs: Runs, code: int | None = None) -> None:
        with loading():
            for keeper in self.arrangements():
                keeper.load(runs.get(keeper.name, ()))

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, EnumeratedRows) and self._outputs.says_like(other._outputs)


class JoinedRowTags(Operator):
    """The ranges of the rows behind the joined rows; stepped after them."""

    def __init__(self, joined: JoinedRows) -> None:
        self._joined = joined

    def step(self, rows: Batch) -> Batch:
        return self._joined.report()
