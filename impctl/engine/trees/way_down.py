"""A step of one node on the way down: wanted keys in, what it wants itself and fragments out.

Law: a tuple is live if it is alive and its key is wanted; a key is wanted while some live tuple of
the parent has it (at the root: while its group survives). Live tuples are those that a row of a
surviving group is joined from, and their fragments are the sketch. Told are, per access,
`live after * (new set - old set) + (live after - live before) * old set`. Cost: the touched tuples,
the tuples of keys whose bit flipped, and the fragments told. An anti edge wants nothing; a left one
also wants a key of which there is no row yet.
Out of scope: which groups survive (operators between the two ways), values (`way_up`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from impctl.data.keys import group_rows
from impctl.data.schema import LONG
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.accumulators import Values
from impctl.engine.disagreement import disagreement
from impctl.engine.fragment_counts import GroupSets
from impctl.engine.tags import Pairs
from impctl.engine.trees import lots
from impctl.engine.trees.keyed import KeyedState, Tuples, different, stacked
from impctl.engine.trees.node import LIVE, NUMBER, NodeState
from impctl.engine.trees.spec import Edge
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Flips:
    """Keys that are wanted since this step, or no longer, ascending by code."""

    codes: Ints
    keys: Sequence[Vector]
    is_wanted: Bools


@dataclass(frozen=True, slots=True)
class Descent:
    """What one node comes to: flips per child, told fragments per access, tuples that flipped."""

    below: tuple[Flips | None, ...]
    told: tuple[Pairs, ...]
    flipped: int


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Tuples that may be live now or were; those that the way up touched come first."""

    tuples: Tuples
    was_alive: Bools
    is_alive: Bools
    numbers: Ints
    groups: Ints

    def between(self, start: int, end: int) -> _Candidates:
        """Those from one place to before another."""
        part = slice(start, end)
        return _Candidates(
            self.tuples.between(start, end),
            self.was_alive[part],
            self.is_alive[part],
            self.numbers[part],
            self.groups[part],
        )


def surviving(node: NodeState, groups: Ints, weights: Ints) -> Flips | None:
    """Count rows of the result into their groups, by number; the groups that flipped."""
    numbers = Vector(LONG, groups)
    return _want(node.live, [numbers], weights)


def descend(node: NodeState, flips: Flips | None) -> Descent:
    """Bring one node to where the flips of its keys, and the way up before them, leave it."""
    found = _candidates(node, flips)
    if found is None:
        return Descent((None,) * len(node.children), (_NO_PAIRS,) * len(node.fragments), 0)
    return _brought_down(node, found, flips)


def descend_first(node: NodeState, tuples: Tuples, own: Values) -> Descent:
    """Bring tuples of which none was live to where they are wanted, after all their keys are.

    The children's flips need not be followed: all their tuples have their turn.
    """
    found = _as_they_are(node, tuples, own)
    nobody = np.zeros(len(tuples), dtype=np.bool_)
    return _brought_down(node, replace(found, was_alive=nobody), None)


def _brought_down(node: NodeState, found: _Candidates, flips: Flips | None) -> Descent:
    was_wanted, is_wanted = _wanted(node, found, flips)
    was_live, is_live = found.was_alive & was_wanted, found.is_alive & is_wanted
    signs = is_live.astype(np.int64) - was_live
    told = tuple(_told(node, at, found, signs, is_live) for at in range(len(node.fragments)))
    at = signs.nonzero()[0]
    if not len(at):
        return Descent((None,) * len(node.children), told, 0)
    flipped = found.tuples.take(at)
    below = tuple(_below(node, place, flipped, signs[at]) for place in range(len(node.children)))
    return Descent(below, told, len(at))


_NONE = np.zeros(0, dtype=np.int64)
_NO_PAIRS = Pairs(_NONE, _NONE, _NONE)


# Which tuples may flip.


def _candidates(node: NodeState, flips: Flips | None) -> _Candidates | None:
    seen = node.seen
    found = None
    if seen is not None:
        found = _Candidates(seen.tuples, seen.was_alive, seen.is_alive, seen.numbers, seen.groups)
    more = None if flips is None else _reached(node, flips)
    if more is not None and found is not None:
        more = _others(node, more, found.tuples)
    if more is None or not len(more):
        return found
    known = [] if found is None else [found]
    for start, end in lots.lots(len(more), lots.MOST):
        lot = more.between(start, end)
        known.append(_as_they_are(node, lot, node.owned_by(lot)))
    return _stacked(known)


def _reached(node: NodeState, flips: Flips) -> Tuples | None:
    """The tuples of these keys, ascending by code, each once; some may be gone. None for none."""
    if node.is_global:
        # The one group survives or falls with all its tuples.
        codes, kept, _ = node.tuples.whole({})
        return Tuples(codes, dict(zip(node.order, kept, strict=True))) if len(codes) else None
    if node.up is not None:
        flips = _beyond(node, flips)
        found = node.up.find(flips.codes, flips.keys).rows
        columns = {name: found.columns[name] for name in node.order} if len(found) else {}
        return different(node.order, [(len(found), columns)])[0] if len(found) else None
    names, kinds = node.node.key, dict(node.node.kept)
    pairs = zip(names, flips.keys, strict=True)
    keys = {name: Vector(kinds[name], key.values, key.valid) for name, key in pairs}
    if names == node.order:
        return Tuples(flips.codes, keys)
    return node.tuples_of(keys, len(flips.codes))


def _beyond(node: NodeState, flips: Flips) -> Flips:
    """Those of the groups that flipped whose tuples were not all touched."""
    if node.seen is None or not node.node.is_key_all:
        return flips
    # A group of a root that keeps nothing else is one tuple.
    touched = np.sort(node.seen.groups)
    places = np.minimum(touched.searchsorted(flips.codes), len(touched) - 1)
    at = (touched[places] != flips.codes).nonzero()[0]
    return Flips(flips.codes[at], [key.take(at) for key in flips.keys], flips.is_wanted[at])


def _others(node: NodeState, more: Tuples, known: Tuples) -> Tuples:
    """The tuples that are not known already."""
    places = node.tuples.places(
        known.codes, known.vectors(node.order), more.codes, more.vectors(node.order)
    )
    return more.take((places < 0).nonzero()[0])


def _as_they_are(node: NodeState, tuples: Tuples, own: Values) -> _Candidates:
    """Tuples that this step did not touch: alive now if and only if they were before."""
    below = [node.below(at, tuples, None)[1] for at in range(len(node.children))]
    alive = node.alive_of(own, below)
    numbers = own.get(NUMBER, _NONE) if node.has_tuple_numbers else _NONE
    groups = _groups_of(node, tuples) if node.is_root and node.has_keys else _NONE
    return _Candidates(tuples, alive, alive, numbers, groups)


def _groups_of(node: NodeState, tuples: Tuples) -> Ints:
    keys = tuples.vectors(node.node.key)
    grouping = group_rows(keys, len(tuples))
    located = node.keys.find(grouping.codes, grouping.leaders(keys))
    groups: Ints = node.keys.read(located, {NUMBER: np.int64})[NUMBER][grouping.index()]
    return groups


def _stacked(parts: Sequence[_Candidates]) -> _Candidates:
    """All of them, one after the other: not in the order of their codes. At least one."""
    if len(parts) == 1:
        return parts[0]
    return _Candidates(
        stacked([one.tuples for one in parts]),
        np.concatenate([one.was_alive for one in parts]),
        np.concatenate([one.is_alive for one in parts]),
        np.concatenate([one.numbers for one in parts]),
        np.concatenate([one.groups for one in parts]),
    )


# Whom their parents want.


def _wanted(node: NodeState, found: _Candidates, flips: Flips | None) -> tuple[Bools, Bools]:
    """Whether each tuple's key was and is wanted."""
    if not node.has_keys:
        everyone = np.ones(len(found.tuples), dtype=np.bool_)
        return everyone, everyone
    if len(found.tuples) > lots.MOST:
        bounds = lots.lots(len(found.tuples), lots.MOST)
        parts = [_wanted(node, found.between(start, end), flips) for start, end in bounds]
        was, now = zip(*parts, strict=True)
        return np.concatenate(was), np.concatenate(now)
    if node.is_root:
        keys = [Vector(LONG, found.groups)]
    else:
        keys = found.tuples.vectors(node.node.key)
    grouping = group_rows(keys, len(found.tuples))
    leaders = grouping.leaders(keys)
    was_wanted, is_wanted = _wishes(node.live, grouping.codes, leaders, flips)
    if grouping.is_each_alone:
        return was_wanted, is_wanted
    index = grouping.index()
    return was_wanted[index], is_wanted[index]


def _wishes(
    live: KeyedState, codes: Ints, keys: Sequence[Vector], flips: Flips | None
) -> tuple[Bools, Bools]:
    """Whether each key was and is wanted; what flipped tells of itself."""
    if flips is None:
        counts = live.read(live.find(codes, keys), {LIVE: np.int64})[LIVE]
        return counts > 0, counts > 0
    places = live.places(flips.codes, flips.keys, codes, keys)
    has_flipped = places >= 0
    is_wanted = flips.is_wanted[places] & has_flipped
    rest = (~has_flipped).nonzero()[0]
    if len(rest):
        others = [key.take(rest) for key in keys]
        counts = live.read(live.find(codes[rest], others), {LIVE: np.int64})[LIVE]
        is_wanted[rest] = counts > 0
    return is_wanted ^ has_flipped, is_wanted


def _below(node: NodeState, at: int, flipped: Tuples, signs: Ints) -> Flips | None:
    """The keys of the i-th child that are wanted since these tuples flipped, or no longer."""
    if node.node.links[at].edge is Edge.ANTI:
        return None
    rows, keys = node.keys_of(at, flipped)
    return _want(node.children[at].live, keys, signs[rows])


def _want(live: KeyedState, keys: Sequence[Vector], weights: Ints) -> Flips | None:
    """Count signed wishes for keys; those whose count left or reached zero."""
    grouping = group_rows(keys, len(weights))
    change = grouping.sums(weights)
    leaders = grouping.leaders(keys)
    old = live.read(live.find(grouping.codes, leaders), {LIVE: np.int64})[LIVE]
    new = old + change
    if bool((new < 0).any()):
        raise disagreement("The change takes away rows of a group that was not in the result")
    live.put(grouping.codes, leaders, {LIVE: new}, new != old)
    at = ((new > 0) != (old > 0)).nonzero()[0]
    if not len(at):
        return None
    return Flips(grouping.codes[at], [key.take(at) for key in leaders], new[at] > 0)


# What is told.


def _told(node: NodeState, at: int, found: _Candidates, signs: Ints, is_live: Bools) -> Pairs:
    """Signed fragments of the i-th access, by position of the tuple."""
    flipped = signs.nonzero()[0]
    access, counts = node.node.accesses[at], node.fragments[at]
    if counts is None:
        assert access.by is not None, "what is not counted is told by a column"
        name, partition = access.by
        fragments = partition.fragments_of(found.tuples.columns[name].take(flipped))
        return Pairs(flipped, fragments.astype(np.int64), signs[flipped])
    seen = None if node.seen is None else node.seen.sets[at]
    # Of a tuple that flips its old set is told, then what crossed zero: never the new set and that.
    runs = counts.arrangement.runs if seen is None else seen.runs
    old = GroupSets(runs, found.numbers, _NO_PAIRS).old_sets(flipped)
    slots = flipped[old.slots]
    if seen is None or not len(seen.crossed.slots):
        return Pairs(slots, old.fragments, signs[slots])
    crossed = seen.crossings()
    kept = is_live[crossed.slots].nonzero()[0]
    return Pairs(
        np.concatenate([slots, crossed.slots[kept]]),
        np.concatenate([old.fragments, crossed.fragments[kept]]),
        np.concatenate([signs[slots], crossed.weights[kept]]),
    )
