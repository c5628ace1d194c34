"""The makings that take part in deriving one row, and a derivation with the fewest uses of rows.

Law: a derivation's cost is the number of rows of tables that it uses, each as often as it is used;
the one found has the least (Knuth's generalisation of Dijkstra's algorithm), and is found without
looking at makings that cost more. Cost: the makings that take part, in array operations, one round
per making that leads to the row; and those that cost no more than it.
Out of scope: sets of rows, where one that is used twice counts once
(`circuits.provenance.derivation`).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from impctl.circuits.provenance.makings import Makings
from impctl.data.vector import Ints, slice_positions


class Lineage:
    """Makings with their bodies, each once: `bodies[i]` is a body of making `owners[i]`."""

    def __init__(self, made: Makings, target: int, first: int) -> None:
        """Of the row `target`; rows of tables have numbers below `first`."""
        taking_part = _taking_part(made, target)
        self.target = target
        self.first = first
        self.heads = made.heads[taking_part]
        ends = made.starts[taking_part + 1]
        positions, owners = slice_positions(made.starts[taking_part], ends)
        self.owners, self.bodies = _pairs(owners, made.bodies[positions])
        self.has_groups = bool(made.are_groups[taking_part].any())
        self._is_leaf = self.bodies < first

    @property
    def leaves(self) -> Ints:
        """The rows of tables that take part, ascending."""
        return np.unique(self.bodies[self._is_leaf])

    def is_line(self) -> bool:
        """Whether a derivation with the fewest uses of rows is one with the fewest rows."""
        made = np.bincount(self.owners[~self._is_leaf], minlength=len(self.heads))
        if bool((made > 1).any()):
            return False
        heads = self.heads[self.owners[self._is_leaf]]
        leaves, _ = _pairs(self.bodies[self._is_leaf], heads)
        return not bool((leaves[1:] == leaves[:-1]).any())

    def shortest(self) -> tuple[int, ...]:
        """The rows of tables that a derivation of least cost uses, each once, in the order in which
        they are used."""
        count = len(self.heads)
        spent = np.bincount(self.owners[self._is_leaf], minlength=count).tolist()
        missing = np.bincount(self.owners[~self._is_leaf], minlength=count).tolist()
        heads = self.heads.tolist()
        uses = _slices(self.bodies[~self._is_leaf], self.owners[~self._is_leaf])
        front = [(spent[at], heads[at], at) for at in range(count) if not missing[at]]
        heapify(front)
        chosen: dict[int, int] = {}
        while front:
            cost, row, by = heappop(front)
            if row in chosen:
                continue
            chosen[row] = by
            if row == self.target:
                break
            for at in uses.get(row, ()):
                spent[at] += cost
                missing[at] -= 1
                if not missing[at]:
                    heappush(front, (spent[at], heads[at], at))
        return tuple(self._used(chosen))

    def _used(self, chosen: dict[int, int]) -> Iterator[int]:
        """The leaves below the target, by the making chosen for each row."""
        seen: set[int] = {self.target}
        told: set[int] = set()
        left = [(self.target, False)]
        while left:
            row, is_done = left.pop()
            start, end = np.searchsorted(self.owners, (chosen[row], chosen[row] + 1)).tolist()
            bodies = self.bodies[start:end].tolist()
            if is_done:
                own = [body for body in bodies if body < self.first and body not in told]
                told.update(own)
                yield from own
                continue
            left.append((row, True))
            more = [body for body in bodies if body >= self.first and body not in seen]
            seen.update(more)
            left += [(body, False) for body in reversed(more)]

    def bodies_of_all(self) -> list[tuple[int, ...]]:
        """The bodies of each making."""
        places = np.searchsorted(self.owners, np.arange(len(self.heads) + 1)).tolist()
        bodies = self.bodies.tolist()
        return [tuple(bodies[s:e]) for s, e in zip(places[:-1], places[1:], strict=True)]


def _pairs(ones: Ints, others: Ints) -> tuple[Ints, Ints]:
    """The different pairs, in order."""
    order = np.lexsort((others, ones))
    ones, others = ones[order], others[order]
    is_new = np.ones(len(ones), dtype=np.bool_)
    is_new[1:] = (ones[1:] != ones[:-1]) | (others[1:] != others[:-1])
    return ones[is_new], others[is_new]


def _slices(keys: Ints, values: Ints) -> dict[int, list[int]]:
    """The values of each key."""
    if not len(keys):
        return {}
    order = np.argsort(keys, kind="stable")
    ordered, sorted_values = keys[order], values[order].tolist()
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = [*starts[1:].tolist(), len(ordered)]
    return {
        key: sorted_values[start:end]
        for key, start, end in zip(ordered[starts].tolist(), starts.tolist(), ends, strict=True)
    }


def _taking_part(made: Makings, target: int) -> Ints:
    """The makings from which the target can be reached, by their positions."""
    order = np.argsort(made.heads, kind="stable")
    heads = made.heads[order]
    most = max(target, int(made.bodies.max(initial=0)), int(made.heads.max(initial=0)))
    seen = np.zeros(most + 1, dtype=np.bool_)
    wanted = np.array([target], dtype=np.int64)
    result: list[Ints] = []
    while len(wanted):
        seen[wanted] = True
        starts = heads.searchsorted(wanted, side="left")
        places, _ = slice_positions(starts, heads.searchsorted(wanted, side="right"))
        positions = order[places]
        result.append(positions)
        places, _ = slice_positions(made.starts[positions], made.starts[positions + 1])
        bodies = made.bodies[places]
        wanted = np.unique(bodies[~seen[bodies]])
    return np.sort(np.concatenate(result))
