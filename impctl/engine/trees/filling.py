"""A tree filled with whole tables: up once, after all rows are in, and down once after that.

Law: what is remembered, and what is told, is what stepping with the same rows would have come to,
whatever batches they come in and in whatever order. While rows come in, only what tuples own is
counted (`take_in`); then every node's keys and indexes are made, children before parents
(`settle`), and at last who is wanted is found, parents before children (`first_told`). Every tuple
is looked at once on either way, in `lots`, so beside the state memory holds a lot
and one node's tuples. Cost: the rows, and the tuples with their look-ups.
Out of scope: changes of a tree that is filled (`engine.trees.way_up`, `engine.trees.way_down`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from impctl.data.vector import Vector
from impctl.engine.accumulators import Values
from impctl.engine.aggregate_column import ROWS
from impctl.engine.batch import Batch
from impctl.engine.tags import Pairs
from impctl.engine.trees import lots
from impctl.engine.trees.key_sums import Tally, add_to_keys, set_keys
from impctl.engine.trees.keyed import Tuples
from impctl.engine.trees.node import NUMBER, NodeState
from impctl.engine.trees.owned import entering_rows, owning, write
from impctl.engine.trees.spec import Edge
from impctl.engine.trees.values import zeros
from impctl.engine.trees.way_down import descend_first
from impctl.engine.trees.way_up import value_of
from impctl.values import dataclass


def take_in(node: NodeState, batch: Batch) -> None:
    """Count the batch's rows into the tuples that own them, and nothing else."""
    for rows in batch.lots(lots.LOT):
        entering = entering_rows(node, rows)
        if entering is not None:
            touched = owning(node, entering.tuples_of(node), entering)
            write(node, touched)
            for at, counts in enumerate(node.fragments):
                if counts is not None:
                    pairs = entering.fragments_of(at)
                    counts.add(touched.new[NUMBER], pairs)


def settle(node: NodeState) -> int:
    """Make a node's keys and indexes of its tuples, those of its children being made.

    The number of its tuples.
    """
    count = 0
    for tuples, own in _lots(node):
        count += len(tuples)
        if node.is_flat:
            continue
        below = [node.below(at, tuples, None)[1] for at in range(len(node.children))]
        value = value_of(node, own, below)
        came = (value if node.node.is_virtual else own)[ROWS] > 0
        signs = came.astype(np.int64)
        if node.is_told_by_key:
            # Nothing is stored yet, and nothing is asked for twice.
            nothing = {n: np.zeros(len(tuples), k) for n, k in node.key_columns.items()}
            _, groups = set_keys(node, tuples, Tally(nothing, value), signs)
        else:
            values = Tally(zeros(node.parts, len(tuples)), value)
            _, groups = add_to_keys(node, tuples, values, signs)
        node.indexed(tuples, signs, groups)
    return count


@dataclass(frozen=True, slots=True)
class FirstTold:
    """Some live tuples of a node: how many there are, and their fragments per access.

    Each fragment is told once, with the number of tuples that have it.
    """

    live: int
    told: tuple[Pairs, ...]


def first_told(node: NodeState) -> Iterator[FirstTold]:
    """Who of a settled node is live; its children learn whom it wants."""
    for tuples, own in _lots(node):
        result = descend_first(node, tuples, own)
        yield FirstTold(result.flipped, tuple(map(_counted, result.told)))


def added(one: Pairs, other: Pairs) -> Pairs:
    """Both, each fragment once."""
    fragments = np.concatenate([one.fragments, other.fragments])
    weights = np.concatenate([one.weights, other.weights])
    return _counted(Pairs(fragments, fragments, weights))


def _counted(pairs: Pairs) -> Pairs:
    # Weights are counts of tuples, so as doubles they are exact.
    counts = np.bincount(pairs.fragments, weights=pairs.weights).astype(np.int64)
    fragments = counts.nonzero()[0]
    return Pairs(np.zeros_like(fragments), fragments, counts[fragments])


# The tuples of a node.


def _lots(node: NodeState) -> Iterator[tuple[Tuples, Values]]:
    """All tuples and what they own, each once and some at a time, each time ascending by code."""
    if node.node.is_virtual:
        for tuples in _combinations(node):
            yield tuples, node.owned_by(tuples)
        return
    codes, kept, own = node.tuples.whole(node.own_columns)
    columns = dict(zip(node.order, kept, strict=False))
    for start, end in lots.lots(len(codes), lots.LOT):
        values = {name: value[start:end] for name, value in own.items()}
        yield Tuples(codes, columns).between(start, end), values


def _combinations(node: NodeState) -> Iterator[Tuples]:
    """Those of a virtual root that may be alive: one child says which, since all must have them."""
    at = next(at for at, link in enumerate(node.node.links) if link.edge is Edge.INNER)
    kinds, child = dict(node.node.kept), node.children[at]
    codes, keys, _ = child.keys.whole({})
    pairs = zip(node.node.links[at].columns, keys, strict=False)
    # The same values, under the type that this side has.
    columns = {name: Vector(kinds[name], key.values, key.valid) for name, key in pairs}
    tuples = Tuples(codes, columns)
    for start, end in lots.lots(len(codes), lots.LOT):
        yield node.tuples_of(tuples.between(start, end).columns, end - start)
