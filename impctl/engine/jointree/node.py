"""What one node of a join tree keeps, and how it is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import Struct

from impctl.data.keys import Grouping, group_rows, key_codes, normalise, starts_in
from impctl.data.schema import LONG
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.accumulators import ROWS, Count, Values, clear_empty, parts_of, takes_bounds
from impctl.engine.batch import Batch, disagreement, identity_of
from impctl.engine.extremes import Extreme, OrderedCounts, ranks_of
from impctl.engine.jointree.spec import NO_SLOTS, Edge, JoinTree, TreeMode
from impctl.engine.jointree.values import (
    Columns,
    KeyedState,
    OrderedColumns,
    Part,
    Tuples,
    changed,
    counted_in,
    once_columns,
    product,
    stacked,
)
from impctl.engine.range_counts import GroupSets, RangeCounts, numbered
from impctl.engine.tags import NO_PAIRS, Pairs
from impctl.engine.trace import Arrangement, RowIndex
from impctl.expr.error_bounds import is_known, unsure_value

if TYPE_CHECKING:
    from impctl.engine.operator import Keeper
    from impctl.types import AttributeId

# Rows or tuples processed at once. Law: lots do not depend on each other, apart from sums that the
# next lot adds to, so any sizes give the same result.

LOT = 1_000_000  # Batch size whose temporaries stay small beside the state of many more
MOST = 20_000_000
"""Tuples that a step processes at once: a gigabyte or two. More are processed in lots."""


def lots(length: int, most: int) -> Iterator[tuple[int, int]]:
    """Start and end of each lot; a single one of up to `most`."""
    size = max(1, length if length <= most else min(LOT, most))
    for start in range(0, length, size):
        yield start, min(start + size, length)


# Tuples of a node's input rows: rows, slots, numbers, ranges. Law: a tuple has the total weight of
# all its rows so far and the sums of their arguments, however they were batched. Rows with NULL are
# dropped where a partner is needed; for left and anti edges they stay. A count below zero is an
# error. Cost: the rows, and a lookup per different tuple.


class Entering(Struct, frozen=True):
    """The kept rows of a batch, grouped by tuple; `places` gives each group's tuple."""

    rows: Batch
    grouping: Grouping
    places: Ints

    def tuples_of(self, node: TreeNodeState) -> Tuples:
        """The different tuples of these rows, one per group."""
        names = node.order
        columns = {name: self.rows.columns[name].take(self.grouping.first) for name in names}
        return Tuples(self.grouping.codes, columns)

    def within(self, start: int, end: int) -> Entering | None:
        """The rows of the tuples at these places, renumbered from the first place."""
        places = self.tuple_of_rows()
        positions = ((places >= start) & (places < end)).nonzero()[0]
        if not len(positions):
            return None
        positions = positions[np.argsort(places[positions], kind="stable")]
        places = places[positions] - start
        starts = starts_in(places).nonzero()[0]
        codes = self.grouping.codes[self.grouping.index()[positions[starts]]]
        grouping = Grouping(len(positions), slice(None), starts, codes, starts)
        return Entering(self.rows.take(positions), grouping, places[starts])

    def range_ids_of(self, access: int) -> Pairs:
        """The rows' ranges of the i-th access, by the places of their tuples."""
        return self.rows.tags[access].expand(self.tuple_of_rows(), self.rows.weights)

    def tuple_of_rows(self) -> Ints:
        return self.places[self.grouping.index()]


class TouchedTuples(Struct, frozen=True):
    """Touched tuples with their own values, before and after."""

    tuples: Tuples
    old: Values
    new: Values
    entering: Entering | None


def entering_rows(node: TreeNodeState, batch: Batch) -> Entering | None:
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


_ARGUMENT = "argument/"  # Prefix of arguments beside kept columns, as both may be the same column


def owning(node: TreeNodeState, tuples: Tuples, entering: Entering | None) -> TouchedTuples:
    """The tuples' own rows and slots, with the batch's added."""
    located = node.tuples.find(tuples.codes, tuples.vectors(node.order))
    old = node.tuples.read(located, node.own_columns)
    if entering is None:
        return TouchedTuples(tuples, old, old, None)
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
        known = column.validity().nonzero()[0]
        ranks = ranks_of(column.take(known), reverse=part.reverse)
        counts.change(owners[known], ranks, rows.weights[known])
        added[part.name] = counts.best(added[NUMBER])
    clear_empty(added, node.own_parts)
    new = {name: value.copy() for name, value in old.items()}
    for name, value in added.items():
        new[name][places] = value
    return TouchedTuples(tuples, old, new, entering)


def _refuse_negative(node: TreeNodeState, state: Values) -> None:
    counts = [state[ROWS]]
    counts += [state[f"count{p.slot}"] for p in node.own_parts if isinstance(p, Count)]
    if any(bool((count < 0).any()) for count in counts):
        raise disagreement(
            f"The change removes rows of `{node.node.name}` that the stored state never contained"
        )


def write(node: TreeNodeState, touched: TouchedTuples) -> None:
    if touched.entering is None:
        return
    differs = changed(node.own_parts, touched.new, touched.old)
    tuples = touched.tuples
    node.tuples.put(tuples.codes, tuples.vectors(node.order), touched.new, differs)


def count_ranges(node: TreeNodeState, touched: TouchedTuples) -> tuple[GroupSets | None, ...]:
    """Count the batch's rows in their ranges; per access the sets before and the crossings."""
    entering = touched.entering
    group_sets: list[GroupSets | None] = []
    for index, counts in enumerate(node.ranges):
        if counts is None:
            group_sets.append(None)
        else:
            pairs = NO_PAIRS if entering is None else entering.range_ids_of(index)
            group_sets.append(counts.count(touched.new[NUMBER], pairs))
    return tuple(group_sets)


# The state of one node of a join tree, as runs that are checkpointed (`name` is the tree's and the
# node's):
# - `name.tuples`: own rows, own slots and a number, by kept columns. A leaf whose key determines
#   the tuple has none: its tuples are its keys;
# - `name.keys`: rows and slots, by key. At the root these are the groups, with their number and
#   their tuples, so that a group keeps its number while anything refers to it. In bits mode a root
#   needs none: what is alive there is live;
# - `name.by<i>`: tuples by the key of the i-th child, unless that key determines the tuple;
# - `name.up`: tuples by key, or at a root with groups by the group's number: the way down;
# - `name.fragments<i>`: rows by (tuple's number, range) of the i-th access, unless a column
#   determines the range;
# - `name.best<slot>`: per MIN or MAX below, how many living tuples of a key have each best value;
#   at the argument's node `name.own<slot>`: the rows of a tuple by rank;
# - `name.distinct<i>`: at the root, how many living tuples of a group have each value of a DISTINCT
#   argument; `name.first<slots>.rows` and `.codes`, or `last`: at the root, the values of living
#   tuples of a group in an order (both: see `engine.jointree.values`);
# - `name.live`: how many live tuples of the parent want a key (at the root: surviving rows). Apart
#   from `keys`, because another operator writes it. Law: after every step `keys` has for each key
#   the rows of the joined subtree, with multiplicity, and the sums over these; in bits mode
#   (`is_bits`) the number of living tuples.

NUMBER, HELD, LIVE = "number", "held", "live"
GLOBAL = 1  # The number of the one group of a root without group columns


class KeyChange(Struct, frozen=True):
    """Changed keys, ascending by code, with the value before and after."""

    codes: Ints
    keys: Sequence[Vector]
    old: Values
    new: Values


class TouchedNode(Struct, frozen=True):
    """Tuples that a step touches, shapes (tuples,): what the way up leaves for the way down."""

    tuples: Tuples
    was_alive: Bools
    is_alive: Bools
    numbers: Ints  # Of the tuples, where they are numbered
    groups: Ints  # Numbers of their groups, at a root in ring mode
    sets: tuple[GroupSets | None, ...] = ()
    """Per access: ranges of the tuples before, and the crossings since. None of tuples that only
    the way down reached."""

    def between(self, start: int, end: int) -> Self:
        """The tuples from one place to before another, without their sets."""
        part = slice(start, end)
        alive = (self.was_alive[part], self.is_alive[part])
        numbers = (self.numbers[part], self.groups[part])
        return type(self)(self.tuples.between(start, end), *alive, *numbers)

    @classmethod
    def stacked(cls, parts: Sequence[Self], sets: tuple[GroupSets | None, ...] = ()) -> Self:
        """All of them, one after the other: perhaps not in the order of their codes. At least
        one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            stacked([part.tuples for part in parts]),
            np.concatenate([part.was_alive for part in parts]),
            np.concatenate([part.is_alive for part in parts]),
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.groups for part in parts]),
            sets,
        )


class TreeNodeState:
    """The state of the node at `index`; `children` are those of its links, in order."""

    def __init__(self, tree: JoinTree, index: int, children: Sequence[TreeNodeState]) -> None:
        node = self.node = tree.nodes[index]
        self.children = tuple(children)
        self.is_root = node is tree.root
        self.is_bits = tree.mode is TreeMode.BITS or _is_below_bits(tree, index)
        self.is_global = self.is_root and not node.key
        self.is_flat = not self.is_root and not node.links and node.is_key_all
        self.order = node.key if self.is_flat else node.kept_names
        self.group = tree.group
        arguments = {name for name, _ in node.arguments}
        self.own_parts = tuple(p for p in parts_of(tree.columns) if p.argument in arguments)
        self.once = once_columns(tree, f"{tree.name}.{node.name}") if self.is_root else ()
        # Only at the root: other nodes' tuples do not determine the group.
        self.ordered = OrderedColumns(tree, f"{tree.name}.{node.name}") if self.is_root else None
        self.seen: TouchedNode | None = None
        self.next_tuple = self.next_key = 1
        self._make(f"{tree.name}.{node.name}")

    def _make(self, name: str) -> None:
        node, kinds = self.node, dict(self.node.kept)
        self.never_null = _never_null(self)
        # A child may bring a NULL to a virtual root for which another child has no partner.
        has_null = node.is_virtual or not set(self.order) <= self.never_null
        types = [kinds[column] for column in self.order]
        self.tuples = KeyedState(
            f"{name}.{'keys' if self.is_flat else 'tuples'}",
            types,
            ROWS,
            lambda: {**self.own_columns, NUMBER: np.int64},
            has_null=has_null,
        )
        self.has_keys = not (self.is_root and self.is_bits)
        key_null = self.is_root or any(node.null_safe)
        alive = HELD if self.is_root else ROWS
        self.keys = (
            self.tuples
            if self.is_flat
            else KeyedState(
                f"{name}.keys", node.key_types, alive, lambda: self.key_columns, has_null=key_null
            )
        )
        # At the root by the group's number, which passes through HAVING and top-k.
        live_types = (LONG,) if self.is_root else node.key_types
        live_null = not self.is_root and key_null
        self.live = KeyedState(f"{name}.live", live_types, LIVE, has_null=live_null)
        self.by = tuple(
            None
            if set(link.columns) == set(node.kept_names)
            else RowIndex(f"{name}.by{index}", node.kept, link.columns, 0)
            for index, link in enumerate(node.links)
        )
        self.up = self._up(f"{name}.up")
        self.ranges = tuple(
            RangeCounts(f"{name}.fragments{index}") if access.by is None else None
            for index, access in enumerate(node.accesses)
        )
        extremes = [part for part in self.parts if isinstance(part, Extreme)]
        own = [part for part in self.own_parts if isinstance(part, Extreme)]
        self.own_best = {part: OrderedCounts(f"{name}.own.{part.name}") for part in own}
        self.best = (
            {}
            if self.is_flat
            else {part: OrderedCounts(f"{name}.best.{part.name}") for part in extremes}
        )

    def _up(self, name: str) -> RowIndex | None:
        node = self.node
        if self.is_root:
            if self.is_bits or self.is_global:
                return None
            return RowIndex(name, (*node.kept, (self.group, LONG)), (self.group,), 0)
        return None if node.is_key_all else RowIndex(name, node.kept, node.key, 0)

    # What there is per tuple and per key.

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The slots of this node's tuples: their own, and those seen below."""
        below = [part for index in range(len(self.children)) for part in self.seen_of(index)]
        return (*self.own_parts, *below)

    @cached_property
    def key_parts(self) -> tuple[Part, ...]:
        """The slots of this node's keys: also those computed value by value."""
        once = (part for column in self.once for part in column.parts)
        return (*self.parts, *once, *(self.ordered.counts if self.ordered else ()))

    def seen_of(self, index: int) -> tuple[Part, ...]:
        """The slots that are seen of the i-th child."""
        return () if self.node.links[index].edge in NO_SLOTS else self.children[index].parts

    @cached_property
    def own_columns(self) -> Mapping[str, Any]:
        return _columns(self.own_parts, has_number=self.has_tuple_numbers)

    @cached_property
    def key_columns(self) -> Mapping[str, Any]:
        if self.is_flat:
            return self.own_columns
        columns = _columns(self.key_parts, has_number=self.has_key_numbers)
        return {**columns, HELD: np.int64} if self.is_root else columns

    @cached_property
    def is_determined_by_key(self) -> bool:
        """Whether each key has one tuple, under the same code, so that the key's state holds the
        tuple's."""
        is_one = not self.is_flat and self.has_keys and self.node.key == self.order
        return is_one and not self.best and not self.once and not self.ordered

    @cached_property
    def has_tuple_numbers(self) -> bool:
        return any(counts is not None for counts in self.ranges) or bool(self.own_best)

    @cached_property
    def has_key_numbers(self) -> bool:
        return self.is_root or bool(self.best)

    def keepers(self) -> Sequence[Keeper]:
        keepers: list[Keeper] = []
        if not self.node.is_virtual:
            keepers.append(self.tuples.arrangement)
        if self.has_keys and not self.is_flat:
            keepers.append(self.keys.arrangement)
        keepers += [index for index in (*self.by, self.up) if index is not None]
        keepers += [counts.arrangement for counts in self.ranges if counts is not None]
        keepers += [column.values.arrangement for column in self.once]
        keepers += self.ordered.firsts.arrangements if self.ordered else ()
        return (*keepers, *self.own_best.values(), *self.best.values())

    @property
    def live_keeper(self) -> Sequence[Arrangement]:
        """The state that the way down writes; a root in bits mode has none."""
        return (self.live.arrangement,) if self.has_keys else ()

    def snapshot_copy(self, children: Sequence[TreeNodeState]) -> Self:
        result = copy(self)
        result.children = tuple(children)
        result.tuples = self.tuples.snapshot_copy()
        result.keys = result.tuples if self.is_flat else self.keys.snapshot_copy()
        result.live = self.live.snapshot_copy()
        result.by = tuple(None if index is None else index.snapshot_copy() for index in self.by)
        result.up = None if self.up is None else self.up.snapshot_copy()
        return result

    # Looking up.

    def owned_by(self, tuples: Tuples) -> Values:
        """Rows and number of each tuple; a combination of a virtual root exists once."""
        if self.node.is_virtual:
            return {ROWS: np.ones(len(tuples), dtype=np.int64)}
        located = self.tuples.find(tuples.codes, tuples.vectors(self.order))
        return self.tuples.read(located, {ROWS: np.int64, NUMBER: np.int64})

    def stored(self, tuples: Tuples) -> Values:
        """The stored values of the keys of these tuples, of a node that `is_determined_by_key`."""
        located = self.keys.find(tuples.codes, tuples.vectors(self.node.key))
        return self.keys.read(located, self.key_columns)

    def below(
        self, position: int, tuples: Tuples, change: KeyChange | None
    ) -> tuple[Values, Values]:
        """Old and new values of the i-th child's keys, per tuple; nothing for a NULL key. One
        lookup per different key. Before is the old value where the key is in the change, also where
        the tuple itself is new."""
        rows, keys = self.keys_of(position, tuples)
        is_whole = len(rows) == len(tuples)
        if change and is_whole and self.children[position].keys.is_same(change.codes, keys):
            return change.old, change.new
        grouping = group_rows(keys, len(rows))
        leaders = grouping.leaders(keys)
        before, after = self._worth(position, grouping.codes, leaders, change)
        if grouping.is_each_alone and len(rows) == len(tuples):
            return before, after
        index = grouping.index()
        return _spread(before, index, rows, len(tuples)), _spread(after, index, rows, len(tuples))

    def _worth(
        self, index: int, codes: Ints, keys: Sequence[Vector], change: KeyChange | None
    ) -> tuple[Values, Values]:
        state = self.children[index].keys
        wanted = _columns(self.seen_of(index), has_number=False)
        if change is None:
            stored = state.read(state.find(codes, keys), wanted)
            return stored, stored
        positions = state.places(change.codes, change.keys, codes, keys)
        before = {name: change.old[name][positions] for name in wanted}
        after = {name: change.new[name][positions] for name in wanted}
        # The change has both values of its keys; only the others are looked up.
        rest = (positions < 0).nonzero()[0]
        if len(rest):
            others = [key.take(rest) for key in keys]
            stored = state.read(state.find(codes[rest], others), wanted)
            for name, value in stored.items():
                before[name][rest] = after[name][rest] = value
        return before, after

    def keys_of(self, index: int, tuples: Tuples) -> tuple[Ints, list[Vector]]:
        """Positions of the tuples that can have a partner in the i-th child, and their keys."""
        columns = tuples.vectors(self.node.links[index].columns)
        if all(column.valid is None for column in columns):
            return np.arange(len(tuples)), columns
        known = np.ones(len(tuples), dtype=np.bool_)
        for column, is_safe in zip(columns, self.children[index].node.null_safe, strict=True):
            if column.valid is not None and not is_safe:
                known &= column.valid
        rows = known.nonzero()[0]
        if len(rows) < len(tuples):
            columns = [column.take(rows) for column in columns]
        return rows, [_plain(column) for column in columns]

    def rows_of(self, own: Values, below: Sequence[Values]) -> Ints:
        """Joined rows of the subtree per tuple; in bits mode whether there is any."""
        if self.is_bits:
            return self.alive_of(own, below).astype(np.int64)
        return product([own[ROWS], *self.factors_of(below)])

    def alive_of(self, own: Values, below: Sequence[Values]) -> Bools:
        """Which tuples have all partners that they need below; as `rows_of`, without counting."""
        alive: Bools = own[ROWS] > 0
        for factor in self.factors_of(below):
            alive = alive & (factor > 0)
        return alive

    def factors_of(self, below: Sequence[Values]) -> list[Ints]:
        return [self._factor(index, value) for index, value in enumerate(below)]

    def _factor(self, index: int, value: Values) -> Ints:
        rows: Ints = value[ROWS]
        edge = self.node.links[index].edge
        # A child that is there once or not at all must not be multiplied by its count.
        factor = rows
        if edge is Edge.SEMI:
            factor = (rows > 0).astype(np.int64)
        elif edge is Edge.ANTI:
            factor = (rows == 0).astype(np.int64)
        elif edge is Edge.LEFT:
            factor = np.maximum(rows, 1)
        return factor

    def tuples_of(self, columns: Columns, length: int) -> Tuples:
        """Different rows as tuples, ascending by code."""
        vectors = [columns[name] for name in self.order]
        codes = key_codes(vectors, length)
        order = np.argsort(codes, kind="stable")
        return Tuples(codes, {n: columns[n] for n in self.order}).take(order)

    def indexed(self, tuples: Tuples, signs: Ints, groups: Ints) -> None:
        """Add new tuples (+1) to the indexes, and remove deleted ones (-1)."""
        positions = signs.nonzero()[0]
        if not len(positions):
            return
        moved = tuples.take(positions)
        for position, index in enumerate(self.by):
            if index is not None:
                rows, keys = self.keys_of(position, moved)
                batch = Batch(moved.take(rows).columns, signs[positions][rows], ())
                index.add(batch, key_codes(keys, len(rows)))
        if self.up is not None:
            columns = dict(moved.columns)
            if self.is_root:
                columns[self.group] = Vector(LONG, groups[positions])
            batch = Batch(columns, signs[positions], ())
            self.up.add(batch, self.up.codes_of(batch))


def _is_below_bits(tree: JoinTree, index: int) -> bool:
    """Whether only existence is seen of a node, because of an edge above it."""
    above = {
        link.child: (position, link.edge)
        for position, n in enumerate(tree.nodes)
        for link in n.links
    }
    while index in above:
        index, edge = above[index]
        if edge in NO_SLOTS:
            return True
    return False


def _never_null(state: TreeNodeState) -> set[AttributeId]:
    """Kept columns that never hold NULL, as such rows find no partner."""
    node = state.node
    names: set[AttributeId] = set()
    if not state.is_root:
        names |= {name for name, safe in zip(node.key, node.null_safe, strict=True) if not safe}
    for link, child in zip(node.links, state.children, strict=True):
        if link.edge in (Edge.INNER, Edge.SEMI):
            pairs = zip(link.columns, child.node.null_safe, strict=True)
            names |= {name for name, safe in pairs if not safe}
    return names


def _columns(parts: Sequence[Part], *, has_number: bool) -> dict[str, Any]:
    columns: dict[str, Any] = {ROWS: np.int64}
    for part in parts:
        columns.update(part.columns)
    return {**columns, NUMBER: np.int64} if has_number else columns


def _plain(column: Vector) -> Vector:
    if column.valid is None or not bool(column.valid.all()):
        return column
    return Vector(column.type, column.values)


def _spread(values: Values, index: Ints, rows: Ints, length: int) -> Values:
    if len(rows) == length:
        return {name: value[index] for name, value in values.items()}
    result: Values = {}
    for name, value in values.items():
        result[name] = np.zeros(length, dtype=value.dtype)
        result[name][rows] = value[index]
    return result
