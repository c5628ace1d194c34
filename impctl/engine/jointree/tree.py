"""The operators of a join tree: counts and sums per group without joined rows, and live rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector, concat
from impctl.engine.accumulators import ROWS, Firsts, Picked, Values, before_and_after, outputs_of
from impctl.engine.batch import Batch, difference, empty_batch
from impctl.engine.jointree import node as lots
from impctl.engine.jointree.bottom_up import Tally, add_to_keys, rise, set_keys, value_of
from impctl.engine.jointree.node import (
    GLOBAL,
    NUMBER,
    KeyChange,
    TreeNodeState,
    entering_rows,
    owning,
    write,
)
from impctl.engine.jointree.spec import Edge, JoinTree, TreeMode, checked
from impctl.engine.jointree.top_down import Wishes, descend, descend_first, surviving
from impctl.engine.jointree.values import Tuples, sum_too_large, zeros
from impctl.engine.operator import Keeper, Operator
from impctl.engine.tags import NO_PAIRS, Pairs, SpanTags
from impctl.errors import EvaluationError

# A tree filled with whole tables: up once after all rows, then down once. Law: state and output are
# those of stepping with the same rows, whatever their batches and order. While rows arrive, only
# the tuples' own counts change (`take_in`); then keys and indexes are computed, children before
# parents (`settle`), and finally wanted keys, parents before children (`first_emitted`). Each tuple
# is visited once per direction, in lots, so memory beside the state is one lot and one node's
# tuples. Cost: the rows, and the tuples with their lookups.


def take_in(node: TreeNodeState, batch: Batch) -> None:
    """Count the batch's rows into the tuples that own them, and nothing else."""
    for rows in batch.lots(lots.LOT):
        entering = entering_rows(node, rows)
        if entering is not None:
            touched = owning(node, entering.tuples_of(node), entering)
            write(node, touched)
            for index, counts in enumerate(node.ranges):
                if counts is not None:
                    counts.add(touched.new[NUMBER], entering.range_ids_of(index))


def settle(node: TreeNodeState) -> int:
    """Build a node's keys and indexes from its tuples, after its children's; the number of
    tuples."""
    count = 0
    for tuples, own in _lots(node):
        count += len(tuples)
        if node.is_flat:
            continue
        below = [node.below(index, tuples, None)[1] for index in range(len(node.children))]
        value = value_of(node, own, below)
        signs = ((value if node.node.is_virtual else own)[ROWS] > 0).astype(np.int64)
        if node.is_determined_by_key:
            # Nothing is stored yet, so there is nothing to look up.
            nothing = {n: np.zeros(len(tuples), k) for n, k in node.key_columns.items()}
            _, groups = set_keys(node, tuples, Tally(nothing, value), signs)
        else:
            values = Tally(zeros(node.parts, len(tuples)), value)
            _, groups = add_to_keys(node, tuples, values, signs)
        node.indexed(tuples, signs, groups)
    return count


def first_emitted(node: TreeNodeState) -> Iterator[tuple[int, list[Pairs]]]:
    """The number of live tuples of a settled node and their ranges per access, in lots. Each range
    occurs once, with the number of tuples that have it. The children get their wishes."""
    for tuples, own in _lots(node):
        result = descend_first(node, tuples, own)
        yield result.flipped, [_counted(pairs) for pairs in result.emitted]


def added(left: Pairs, right: Pairs) -> Pairs:
    """Both, each range once."""
    ranges = np.concatenate([left.ranges, right.ranges])
    weights = np.concatenate([left.weights, right.weights])
    return _counted(Pairs(ranges, ranges, weights))


def _counted(pairs: Pairs) -> Pairs:
    # Weights are counts of tuples, so as doubles they are exact.
    counts = np.bincount(pairs.ranges, weights=pairs.weights).astype(np.int64)
    ranges = counts.nonzero()[0]
    return Pairs(np.zeros_like(ranges), ranges, counts[ranges])


# The tuples of a node.


def _lots(node: TreeNodeState) -> Iterator[tuple[Tuples, Values]]:
    """All tuples and their own values, each once, in lots that ascend by code."""
    if node.node.is_virtual:
        for tuples in _combinations(node):
            yield tuples, node.owned_by(tuples)
        return
    codes, kept, own = node.tuples.whole(node.own_columns)
    columns = dict(zip(node.order, kept, strict=False))
    for start, end in lots.lots(len(codes), lots.LOT):
        values = {name: value[start:end] for name, value in own.items()}
        yield Tuples(codes, columns).between(start, end), values


def _combinations(node: TreeNodeState) -> Iterator[Tuples]:
    """Combinations of a virtual root that may be alive: taken from one child, since all must have
    them."""
    index = next(index for index, link in enumerate(node.node.links) if link.edge is Edge.INNER)
    kinds, child = dict(node.node.kept), node.children[index]
    codes, keys, _ = child.keys.whole({})
    pairs = zip(node.node.links[index].columns, keys, strict=False)
    # The same values, under the type that this side has.
    columns = {name: Vector(kinds[name], key.values, key.valid) for name, key in pairs}
    tuples = Tuples(codes, columns)
    for start, end in lots.lots(len(codes), lots.LOT):
        yield node.tuples_of(tuples.between(start, end).columns, end - start)


# Tree, the way up: a join of n inputs as counts and sums per group, without joined rows. Identity:
# for every group whose value changed, the output's change is minus its old row plus its new row, as
# a grouping over the join gives it. All changed nodes are processed in one pass, without inclusion
# and exclusion. State: see `engine.jointree.node`. Cost: the batches' rows, and the touched tuples
# (those of the batches, and those above a changed key) with their lookups; never the joined rows.
# NULL is a group; in a key it has no partner, unless the key compares it as a value. A count below
# zero is an error. A group without rows is gone; without group columns there is always one group.
# Where MIN_BY has a choice, there is a row for every value that Spark may take. While it fills
# nothing is emitted; all groups follow at the end. In bits mode no row is emitted: the batch only
# tells `Live` that there was a step. Rows carry a hidden column, `tree.group`, and no ranges;
# `Live` emits those.


class Tree(Operator):
    """The groups of the rows that `tree` joins; each node names its input. InvariantError for what
    is no tree, UnsupportedError for a call that it cannot keep."""

    def __init__(self, tree: JoinTree) -> None:
        self.tree = self.form = checked(tree)
        nodes: list[TreeNodeState] = []
        for index, node in enumerate(tree.nodes):
            nodes.append(TreeNodeState(tree, index, [nodes[link.child] for link in node.links]))
        self.nodes = tuple(nodes)
        self._touched = 0
        self._is_filling = False

    @property
    def _root(self) -> TreeNodeState:
        return self.nodes[-1]

    @property
    def _ordered(self) -> Firsts:
        ordered = self._root.ordered
        assert ordered is not None, "a root has these, though perhaps of no column"
        return ordered.firsts

    def step(self, *batches: Batch | None) -> Batch | None:
        """Minus the old rows, plus the new rows of the changed groups; None while the circuit
        fills."""
        if not self._is_filling:
            before = self._ordered.snapshot_copy()
            return self._rows_of(self._rise(batches), before)
        with _sums_named():
            for node in self.nodes:
                batch = _batch_of(node, batches)
                if batch is not None:
                    take_in(node, batch)
        return None

    def _rise(self, batches: Sequence[Batch | None]) -> KeyChange | None:
        """The change of the root's groups; children are processed before parents."""
        changes: list[KeyChange | None] = []
        with _sums_named():
            for node in self.nodes:
                below = [changes[link.child] for link in node.node.links]
                changes.append(rise(node, _batch_of(node, batches), below))
                self._touched += 0 if node.seen is None else len(node.seen.tuples)
        return changes[-1]

    def fill(self, is_filling: bool) -> None:
        self._is_filling = is_filling

    def filled(self) -> Iterator[Batch]:
        """The change of all groups at once, after building every node's keys, leaves first."""
        with _sums_named():
            self._touched += sum(map(settle, self.nodes))
        emitted = self.start()
        if self.tree.mode is TreeMode.BITS:
            yield empty_batch(0)
        else:
            yield self.output() if emitted is None else difference(self.output(), emitted)

    def _rows_of(self, change: KeyChange | None, before: Firsts) -> Batch:
        if change is None or self.tree.mode is TreeMode.BITS:
            return empty_batch(0)
        groups = change.new[NUMBER]
        old, new = before.of(groups, change.old), self._ordered.of(groups, change.new)
        both = {name: np.concatenate([change.old[name], change.new[name]]) for name in change.new}
        # An inserted group has got its number now, a deleted one had it before.
        both[NUMBER] = np.tile(groups, 2)
        weights = np.repeat(np.array([-1, 1], dtype=np.int64), len(change.codes))
        picked = before_and_after(old, new, len(groups))
        return self._batch([concat([key, key]) for key in change.keys], both, weights, picked)

    def _batch(self, keys: Sequence[Vector], state: Values, weights: Ints, picked: Picked) -> Batch:
        columns = dict(zip(self._root.node.key, keys, strict=True))
        columns.update(outputs_of(self.tree.columns, state))
        columns[self.tree.group] = Vector(LONG, state[NUMBER])
        batch = Batch(columns, weights, ())
        exists = None if self._root.is_global else state[ROWS] > 0
        if self._ordered:
            return self._ordered.spread_out(batch, picked, exists)
        return batch if exists is None else batch.keep(exists)

    def start(self) -> Batch | None:
        """The one row that there is over empty input without group columns."""
        if self.tree.mode is TreeMode.BITS or not self._root.is_global:
            return None
        state = zeros(self._root.key_parts, 1)
        state[NUMBER] = np.full(1, GLOBAL, dtype=np.int64)
        return self._batch([], state, np.ones(1, dtype=np.int64), self._ordered.nothing())

    @property
    def can_output(self) -> bool:
        return self.tree.mode is TreeMode.RING

    def output(self) -> Batch:
        root = self._root
        _, keys, state = root.keys.whole(root.key_columns)
        if not state:
            result = self.start()
            return empty_batch(0) if result is None else result
        picked = self._ordered.of(state[NUMBER], state)
        return self._batch(keys, state, np.ones(len(state[ROWS]), dtype=np.int64), picked)

    def arrangements(self) -> Sequence[Keeper]:
        return tuple(keeper for node in self.nodes for keeper in node.keepers())

    def counters(self) -> Mapping[str, int]:
        """The next number of each node's tuples and keys, and the count of touched tuples so
        far."""
        result = {f"{self.tree.name}.touched": self._touched}
        for node in self.nodes:
            name = f"{self.tree.name}.{node.node.name}"
            result[f"{name}.next_tuple"] = node.next_tuple
            result[f"{name}.next_key"] = node.next_key
        return result

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._touched = counters[f"{self.tree.name}.touched"]
        for node in self.nodes:
            name = f"{self.tree.name}.{node.node.name}"
            node.next_tuple = counters[f"{name}.next_tuple"]
            node.next_key = counters[f"{name}.next_key"]


def _batch_of(node: TreeNodeState, batches: Sequence[Batch | None]) -> Batch | None:
    return None if node.node.input is None else batches[node.node.input]


@contextmanager
def _sums_named() -> Iterator[None]:
    """Report an EvaluationError as that of a sum on the way up."""
    try:
        yield
    # Spark does not sum rows without a join partner, so the query itself may not fail.
    except EvaluationError as error:
        raise sum_too_large() from error


# Live, the way down: the ranges of the rows that take part in a surviving group. Identity: for each
# sketched access of the tree, the output's change is that of the ranges of all rows from which a
# row of a surviving group is joined, one count per tuple and range. Inputs: the rows of the
# surviving groups, with the hidden column `tree.group`, and the output of `Tree`, also where no
# group changed: a row may have moved to another range. In bits mode everything alive survives, and
# the first input is not read. State: per key the number of live tuples that want it; the nodes are
# shared with `Tree` and only read. Cost: the touched tuples, the tuples whose bit flips, and the
# ranges emitted. NULL keys of a left edge want nothing. A group that leaves the result more often
# than it entered is an error.


class Live(Operator):
    """The ranges of the rows behind the surviving groups of `tree`, which is stepped before."""

    def __init__(self, tree: Tree) -> None:
        self.tree = self.form = tree.tree
        self._nodes = tree.nodes
        self._flips = 0
        self._pairs = 0
        self._is_filling = False

    def step(self, survivors: Batch | None, ran: Batch | None = None) -> Batch:
        """The changes of the sketches' counts, one row per tuple and range."""
        wishes: list[Wishes | None] = [None] * len(self._nodes)
        if self.tree.mode is TreeMode.RING and survivors is not None and len(survivors):
            groups = survivors.columns[self.tree.group].values
            wishes[-1] = surviving(self._nodes[-1], groups, survivors.weights)
        if self._is_filling:
            return self._emitted_first()
        emitted: list[Pairs | None] = [None] * self.tree.accesses
        for index in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[index]
            result = descend(node, wishes[index])
            for link, below in zip(node.node.links, result.below, strict=True):
                wishes[link.child] = below
            for access, pairs in zip(node.node.accesses, result.emitted, strict=True):
                emitted[access.position] = pairs
            self._flips += result.flipped
            # What the way up left is used up, also where a next step has only survivors.
            node.seen = None
        batch = _batch([pairs for pairs in emitted if pairs is not None])
        self._pairs += len(batch)
        return batch

    def _emitted_first(self) -> Batch:
        """The ranges of all live tuples, once the tree is filled and its groups have passed."""
        emitted = [NO_PAIRS] * self.tree.accesses
        for node in reversed(self._nodes):
            node.seen = None
            for live, ranges in first_emitted(node):
                for access, pairs in zip(node.node.accesses, ranges, strict=True):
                    emitted[access.position] = added(emitted[access.position], pairs)
                    self._pairs += int(pairs.weights.sum())
                self._flips += live
        return _batch(emitted)

    def fill(self, is_filling: bool) -> None:
        self._is_filling = is_filling

    def arrangements(self) -> Sequence[Keeper]:
        shared = [keeper for node in self._nodes for keeper in node.keepers()]
        return (*shared, *(keeper for node in self._nodes for keeper in node.live_keeper))

    def counters(self) -> Mapping[str, int]:
        """The counts of flipped tuples and of reported ranges so far."""
        return {f"{self.tree.name}.flips": self._flips, f"{self.tree.name}.pairs": self._pairs}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._flips = counters[f"{self.tree.name}.flips"]
        self._pairs = counters[f"{self.tree.name}.pairs"]


def _batch(emitted: Sequence[Pairs]) -> Batch:
    ends = np.cumsum([len(pairs.ranges) for pairs in emitted]).tolist()
    tags = tuple(
        SpanTags(ends[-1], end - len(pairs.ranges), pairs.ranges.astype(np.int32))
        for pairs, end in zip(emitted, ends, strict=True)
    )
    weights = np.concatenate([np.zeros(0, dtype=np.int64), *(pairs.weights for pairs in emitted)])
    return Batch({}, weights, tags)
