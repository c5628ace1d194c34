"""Tree, the way up: a join of n inputs as counts and sums per group, without a joined row.

Identity: for every group of the joined rows whose value changed, the output's change is minus its
old row plus its new row, as a grouping over the join would give it; all nodes that changed are
handled in one pass, so there is nothing to include and exclude again. State: see
`engine.trees.node`. Cost: the batches' rows and the touched tuples (those of the batches, and those
above a key whose value changed), with what looking them up takes; never the joined rows. NULL is a
group; in a key NULL has no partner, unless the key compares it as a value. Negative weights take
away what was counted; below zero is an error. A group without rows is gone; without group columns
there is one that always exists; where MIN_BY has a choice, there is a row for every value Spark may
take. While it fills nothing comes out, and then all groups at once. In
bits mode, where nothing decides, no row comes out: the batch only tells `Live` that there was a
step. Rows carry no fragments but a hidden column, `tree.group`.
Not to be confused with `join`, which writes joined rows down, and `live`, which tells fragments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector, concat
from impctl.engine.accumulators import Values
from impctl.engine.aggregate_column import ROWS, outputs_of
from impctl.engine.batch import Batch, difference, empty_batch
from impctl.engine.firsts import Firsts, Picked, before_and_after
from impctl.engine.operator import Keeper, Operator
from impctl.engine.trees.filling import settle, take_in
from impctl.engine.trees.node import GLOBAL, NUMBER, KeyChange, NodeState
from impctl.engine.trees.spec import JoinTree, Mode, checked
from impctl.engine.trees.values import sum_too_large, zeros
from impctl.engine.trees.way_up import rise
from impctl.errors import EvaluationError


class Tree(Operator):
    """The groups of the rows that `tree` joins; its i-th input is that of the node which says so.

    InvariantError for what is no tree, UnsupportedError for a call that it cannot keep.
    """

    def __init__(self, tree: JoinTree) -> None:
        self.tree = self.form = checked(tree)
        nodes: list[NodeState] = []
        for at, node in enumerate(tree.nodes):
            nodes.append(NodeState(tree, at, [nodes[link.child] for link in node.links]))
        self.nodes = tuple(nodes)
        self._touched = 0
        self._is_filling = False

    @property
    def _root(self) -> NodeState:
        return self.nodes[-1]

    @property
    def _ordered(self) -> Firsts:
        ordered = self._root.ordered
        assert ordered is not None, "a root has these, though perhaps of no column"
        return ordered.firsts

    def step(self, *batches: Batch | None) -> Batch | None:
        """Minus the old rows, plus the new rows of the changed groups; None while it fills."""
        if not self._is_filling:
            before = self._ordered.as_it_stands()
            return self._rows_of(self._rise(batches), before)
        with _sums_named():
            for node in self.nodes:
                batch = _batch_of(node, batches)
                if batch is not None:
                    take_in(node, batch)
        return None

    def _rise(self, batches: Sequence[Batch | None]) -> KeyChange | None:
        """The change of the root's groups, every node's after its children's."""
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
        """The change of all groups at once, after every node's keys are made, leaves first."""
        with _sums_named():
            self._touched += sum(map(settle, self.nodes))
        told = self.start()
        if self.tree.mode is Mode.BITS:
            yield empty_batch(0)
        else:
            yield self.output() if told is None else difference(self.output(), told)

    def _rows_of(self, change: KeyChange | None, before: Firsts) -> Batch:
        if change is None or self.tree.mode is Mode.BITS:
            return empty_batch(0)
        groups = change.new[NUMBER]
        old, new = before.of(groups, change.old), self._ordered.of(groups, change.new)
        both = {name: np.concatenate([change.old[name], change.new[name]]) for name in change.new}
        # A group that comes has its number since now, one that goes had it all along.
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
        if self.tree.mode is Mode.BITS or not self._root.is_global:
            return None
        state = zeros(self._root.key_parts, 1)
        state[NUMBER] = np.full(1, GLOBAL, dtype=np.int64)
        return self._batch([], state, np.ones(1, dtype=np.int64), self._ordered.nothing())

    @property
    def can_output(self) -> bool:
        return self.tree.mode is Mode.RING

    def output(self) -> Batch:
        """The rows of all groups. Cost: the groups."""
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
        """The next number of each node's tuples and keys, and how many tuples were ever touched."""
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


def _batch_of(node: NodeState, batches: Sequence[Batch | None]) -> Batch | None:
    return None if node.node.input is None else batches[node.node.input]


@contextmanager
def _sums_named() -> Iterator[None]:
    """What cannot be computed within is a sum on the way up, and is told as one."""
    try:
        yield
    # Of rows that nothing joins with Spark takes no sum, so the query may not fail.
    except EvaluationError as error:
        raise sum_too_large() from error
