"""A join tree, top down: which rows take part in a group that survived.

Law: a tuple is live if it is alive and its key is wanted; a key is wanted while some live tuple of
the parent has it (at the root: while its group survives). The live tuples are those from which a
row of a surviving group is joined, and their ranges are the sketch. Per access, the output is `live
after * (new set - old set) + (live after - live before) * old set`. Cost: the touched tuples, the
tuples of keys whose bit flipped, and the ranges emitted. An anti edge wants nothing; a left one
also wants a key that has no row yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.keys import group_rows, key_codes
from impctl.data.schema import LONG
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.batch import disagreement
from impctl.engine.jointree import node as lots
from impctl.engine.jointree.node import LIVE, NUMBER, TouchedNode, TreeNodeState
from impctl.engine.jointree.spec import Edge
from impctl.engine.jointree.values import KeyedState, Tuples, different
from impctl.engine.range_counts import GroupSets
from impctl.engine.tags import NO_PAIRS, Pairs

if TYPE_CHECKING:
    from impctl.engine.accumulators import Values


class Wishes(Struct, frozen=True):
    """Different keys, at least one, ascending by code, and whether they were and are wanted.
    Includes all keys that flipped, and others that the node above knew."""

    codes: Ints
    keys: Sequence[Vector]
    was: Bools
    now: Bools

    def flipped(self) -> Wishes | None:
        """Those whose wanted state changed in this step."""
        return self.take((self.was != self.now).nonzero()[0])

    def take(self, positions: Ints) -> Wishes | None:
        if not len(positions):
            return None
        keys = [key.take(positions) for key in self.keys]
        return Wishes(self.codes[positions], keys, self.was[positions], self.now[positions])


class Descent(Struct, frozen=True):
    """The result at one node: wishes per child, signed ranges per access, tuples that flipped."""

    below: tuple[Wishes | None, ...]
    emitted: tuple[Pairs, ...]
    flipped: int


def surviving(node: TreeNodeState, groups: Ints, weights: Ints) -> Wishes | None:
    """Count rows of the result into their groups, by number; these, and the touched groups."""
    if node.seen is not None and len(node.seen.groups) <= lots.MOST:
        # These are looked up next, so all are looked up at once.
        groups = np.concatenate([groups, node.seen.groups])
        weights = np.concatenate([weights, np.zeros(len(node.seen.groups), dtype=np.int64)])
    return _want(node.live, [Vector(LONG, groups)], weights)


def descend(node: TreeNodeState, wishes: Wishes | None) -> Descent:
    """Update one node by the wishes for its keys, after the way up."""
    candidates = _candidates(node, None if wishes is None else wishes.flipped())
    if candidates is None:
        return Descent((None,) * len(node.children), (NO_PAIRS,) * len(node.ranges), 0)
    return _brought_down(node, candidates, wishes)


def descend_first(node: TreeNodeState, tuples: Tuples, own: Values) -> Descent:
    """Descend for the first time, once all wishes for the tuples' keys are known. The children's
    flips need not be followed: all their tuples are visited."""
    result = _as_they_are(node, tuples, own)
    nobody = np.zeros(len(tuples), dtype=np.bool_)
    return _brought_down(node, replace(result, was_alive=nobody), None)


def _brought_down(node: TreeNodeState, candidates: TouchedNode, wishes: Wishes | None) -> Descent:
    was_wanted, is_wanted = _wanted(node, candidates, wishes)
    was_live, is_live = candidates.was_alive & was_wanted, candidates.is_alive & is_wanted
    signs = is_live.astype(np.int64) - was_live
    flipped = signs.nonzero()[0]
    emitted = tuple(
        _emitted(node, position, candidates, signs, flipped, is_live)
        for position in range(len(node.ranges))
    )
    below = tuple(
        _below(node, column, candidates.tuples, signs, flipped)
        if index is not None
        else _below_each(node, column, candidates.tuples, was_live, is_live)
        for column, index in enumerate(node.by)
    )
    return Descent(below, emitted, len(flipped))


_NONE = np.zeros(0, dtype=np.int64)


# Which tuples may flip.


def _candidates(node: TreeNodeState, flips: Wishes | None) -> TouchedNode | None:
    """Tuples that may be or have been live; those touched on the way up come first."""
    seen = node.seen
    more = None if flips is None else _reached(node, flips)
    if more is not None and seen is not None:
        more = _others(node, more, seen.tuples)
    if more is None or not len(more):
        return seen
    known = [] if seen is None else [seen]
    for start, end in lots.lots(len(more), lots.MOST):
        lot = more.between(start, end)
        known.append(_as_they_are(node, lot, node.owned_by(lot)))
    return TouchedNode.stacked(known)


def _reached(node: TreeNodeState, flips: Wishes) -> Tuples | None:
    """The tuples of these keys, ascending by code, each once; some may be deleted. None for
    none."""
    if node.is_global:
        # The one group survives or falls with all its tuples.
        codes, kept, _ = node.tuples.whole({})
        return Tuples(codes, dict(zip(node.order, kept, strict=True))) if len(codes) else None
    if node.up is not None:
        beyond = _beyond(node, flips)
        if beyond is None:
            return None
        rows = node.up.find(beyond.codes, beyond.keys).rows
        columns = {name: rows.columns[name] for name in node.order} if len(rows) else {}
        return different(node.order, [(len(rows), columns)])[0] if len(rows) else None
    names, kinds = node.node.key, dict(node.node.kept)
    pairs = zip(names, flips.keys, strict=True)
    keys = {name: Vector(kinds[name], key.values, key.valid) for name, key in pairs}
    if names == node.order:
        return Tuples(flips.codes, keys)
    return node.tuples_of(keys, len(flips.codes))


def _beyond(node: TreeNodeState, flips: Wishes) -> Wishes | None:
    """Tuples of the flipped groups not all of whose tuples were touched."""
    if node.seen is None or not node.node.is_key_all:
        return flips
    # A group of a root that keeps nothing else is one tuple.
    touched = np.sort(node.seen.groups)
    positions = np.minimum(touched.searchsorted(flips.codes), len(touched) - 1)
    return flips.take((touched[positions] != flips.codes).nonzero()[0])


def _others(node: TreeNodeState, more: Tuples, known: Tuples) -> Tuples:
    positions = node.tuples.places(
        known.codes, known.vectors(node.order), more.codes, more.vectors(node.order)
    )
    return more.take((positions < 0).nonzero()[0])


def _as_they_are(node: TreeNodeState, tuples: Tuples, own: Values) -> TouchedNode:
    """Tuples that this step did not touch: alive now if and only if they were before."""
    below = [node.below(index, tuples, None)[1] for index in range(len(node.children))]
    alive = node.alive_of(own, below)
    numbers = own.get(NUMBER, _NONE) if node.has_tuple_numbers else _NONE
    groups = _groups_of(node, tuples) if node.is_root and node.has_keys else _NONE
    return TouchedNode(tuples, alive, alive, numbers, groups)


def _groups_of(node: TreeNodeState, tuples: Tuples) -> Ints:
    keys = tuples.vectors(node.node.key)
    grouping = group_rows(keys, len(tuples))
    located = node.keys.find(grouping.codes, grouping.leaders(keys))
    groups: Ints = node.keys.read(located, {NUMBER: np.int64})[NUMBER][grouping.index()]
    return groups


# Which tuples are wanted.


def _wanted(
    node: TreeNodeState, candidates: TouchedNode, wishes: Wishes | None
) -> tuple[Bools, Bools]:
    if not node.has_keys:
        everyone = np.ones(len(candidates.tuples), dtype=np.bool_)
        return everyone, everyone
    if len(candidates.tuples) > lots.MOST:
        bounds = lots.lots(len(candidates.tuples), lots.MOST)
        parts = [_wanted(node, candidates.between(start, end), wishes) for start, end in bounds]
        was, now = zip(*parts, strict=True)
        return np.concatenate(was), np.concatenate(now)
    if node.is_root:
        keys = [Vector(LONG, candidates.groups)]
    else:
        keys = candidates.tuples.vectors(node.node.key)
    grouping = group_rows(keys, len(candidates.tuples))
    leaders = grouping.leaders(keys)
    was_wanted, is_wanted = _key_wishes(node.live, grouping.codes, leaders, wishes)
    if grouping.is_each_alone:
        return was_wanted, is_wanted
    index = grouping.index()
    return was_wanted[index], is_wanted[index]


def _key_wishes(
    live: KeyedState, codes: Ints, keys: Sequence[Vector], wishes: Wishes | None
) -> tuple[Bools, Bools]:
    """Whether each key was and is wanted; a key without a wish has not changed."""
    if wishes is None:
        is_wanted = live.read(live.find(codes, keys), {LIVE: np.int64})[LIVE] > 0
        return is_wanted, is_wanted
    positions = live.places(wishes.codes, wishes.keys, codes, keys)
    was, now = wishes.was[positions], wishes.now[positions]
    rest = (positions < 0).nonzero()[0]
    if len(rest):
        others = [key.take(rest) for key in keys]
        counts = live.read(live.find(codes[rest], others), {LIVE: np.int64})[LIVE]
        was[rest] = now[rest] = counts > 0
    return was, now


def _below(
    node: TreeNodeState, index: int, tuples: Tuples, signs: Ints, flipped: Ints
) -> Wishes | None:
    """The keys of the i-th child that flipped tuples have, possibly with repetitions."""
    if node.node.links[index].edge is Edge.ANTI or not len(flipped):
        return None
    rows, keys = node.keys_of(index, tuples.take(flipped))
    return _want(node.children[index].live, keys, signs[flipped[rows]]) if len(rows) else None


def _below_each(
    node: TreeNodeState, index: int, tuples: Tuples, was: Bools, now: Bools
) -> Wishes | None:
    """The same of a child whose key determines the tuple: it is wanted while the tuple is live, so
    no lookup is needed."""
    if node.node.links[index].edge is Edge.ANTI:
        return None
    rows, keys = node.keys_of(index, tuples)
    if not len(rows):
        return None
    if len(rows) < len(tuples):
        was, now = was[rows], now[rows]
    codes = key_codes(keys, len(rows))
    if not bool((codes[1:] >= codes[:-1]).all()):
        order = np.argsort(codes, kind="stable")
        codes, keys = codes[order], [key.take(order) for key in keys]
        was, now = was[order], now[order]
    node.children[index].live.put(codes, keys, {LIVE: now.astype(np.int64)}, was != now)
    return Wishes(codes, keys, was, now)


def _want(live: KeyedState, keys: Sequence[Vector], weights: Ints) -> Wishes:
    grouping = group_rows(keys, len(weights))
    change = grouping.sums(weights)
    leaders = grouping.leaders(keys)
    old = live.read(live.find(grouping.codes, leaders), {LIVE: np.int64})[LIVE]
    new = old + change
    if bool((new < 0).any()):
        raise disagreement("The change removes rows of a group that was not in the result")
    live.put(grouping.codes, leaders, {LIVE: new}, new != old)
    return Wishes(grouping.codes, leaders, old > 0, new > 0)


# Signed ranges.


def _emitted(
    node: TreeNodeState,
    index: int,
    candidates: TouchedNode,
    signs: Ints,
    flipped: Ints,
    is_live: Bools,
) -> Pairs:
    access, counts = node.node.accesses[index], node.ranges[index]
    if counts is None:
        assert access.by is not None, "what is not counted is given by a column"
        name, partition = access.by
        ranges = partition.range_ids_of(candidates.tuples.columns[name].take(flipped))
        return Pairs(flipped, ranges.astype(np.int64), signs[flipped])
    seen = None if node.seen is None else node.seen.sets[index]
    # For a flipped tuple: its old set, then the crossings; never the new set and the crossings.
    runs = counts.arrangement.runs if seen is None else seen.runs
    old = GroupSets(runs, candidates.numbers, NO_PAIRS).old_sets(flipped)
    slots = flipped[old.slots]
    if seen is None or not len(seen.crossed.slots):
        return Pairs(slots, old.ranges, signs[slots])
    crossed = seen.crossed
    kept = is_live[crossed.slots].nonzero()[0]
    return Pairs(
        np.concatenate([slots, crossed.slots[kept]]),
        np.concatenate([old.ranges, crossed.ranges[kept]]),
        np.concatenate([signs[slots], crossed.weights[kept]]),
    )
