"""A smallest set of table rows that derives a row, or one of which no row can be left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.vector import Ints, slice_positions

if TYPE_CHECKING:
    from impctl.compile.provenance.absorbed import Makings

# A smallest set of table rows that derives a row, or one without spare rows. `SMALLEST` is claimed
# only if proved, `MINIMAL` if without any one of its rows the row has no derivation (so no proper
# subset derives it, as more rows never derive less), `GROUP` if rows are grouped on the way: then
# all rows of the groups are included. Proof by shortest derivation: if every making has at most one
# made row among its bodies, a derivation is a line of makings, and a row made twice on it can be
# cut short; if besides no table row is a body in the makings of two heads, the rows of a line's
# makings are all different, so a line with the fewest is a set with the fewest. Else a search
# within a budget, since finding the smallest set is NP-hard: any derivation has a row of every set
# whose absence ends all derivations.

BUDGET = 5_000_000  # Bodies examined in the search for a smallest set: some seconds


class Claim(StrEnum):
    """What is proved of a set of rows."""

    SMALLEST = "smallest"
    MINIMAL = "minimal"
    GROUP = "group"


class Derivation(Struct, frozen=True):
    """Numbers of table rows that derive a row together, and what is proved of them. They come in
    order of use, of a line from its start; of groups they ascend. `lineage` is how many table rows
    take part in any derivation of it."""

    rows: tuple[int, ...]
    claim: Claim
    lineage: int


Smallest = Callable[[int, Iterable[tuple[int, tuple[int, ...]]]], frozenset[int] | None]
"""A smallest set of table rows that derives a row by makings (heads and bodies); None if
unknown."""


def derivation_of(
    makings: Makings,
    target: int,
    first: int,
    budget: int = BUDGET,
    smallest: Smallest | None = None,
) -> Derivation:
    """A derivation of the row of this number; table rows have numbers below `first`. Cost: the
    makings that take part in deriving it, and the search within `budget`; with `smallest`, its
    cost."""
    lineage = RowLineage(makings, target, first)
    chosen, leaves = lineage.shortest(), lineage.leaves.tolist()
    if lineage.has_groups:
        return Derivation(tuple(sorted(chosen)), Claim.GROUP, len(leaves))
    if lineage.is_line():
        return Derivation(chosen, Claim.SMALLEST, len(leaves))
    horn = _Horn(lineage, leaves)
    if smallest is not None:
        numbers = smallest(
            target, zip(lineage.heads.tolist(), lineage.bodies_of_all(), strict=True)
        )
        if numbers is not None:
            return Derivation(horn.in_order(numbers), Claim.SMALLEST, len(leaves))
    needed = horn.without_spare(chosen)
    try:
        fewer = _SmallerSetSearch(horn, budget).smaller_than(needed)
    except _SpentError:
        return Derivation(horn.in_order(needed), Claim.MINIMAL, len(leaves))
    return Derivation(
        horn.in_order(needed if fewer is None else fewer), Claim.SMALLEST, len(leaves)
    )


class _SpentError(Exception):
    """The budget of a search is used up."""


class _Horn:
    """What rows derive by the makings of a lineage."""

    def __init__(self, lineage: RowLineage, leaves: Sequence[int]) -> None:
        self.leaves = leaves
        self._target = lineage.target
        self._first = lineage.first
        self._heads: list[int] = lineage.heads.tolist()
        self._bodies = lineage.bodies_of_all()
        self._from_nothing = [
            head for head, bodies in zip(self._heads, self._bodies, strict=True) if not bodies
        ]
        self._uses: dict[int, list[int]] = {}
        for index, bodies in enumerate(self._bodies):
            for body in bodies:
                self._uses.setdefault(body, []).append(index)
        self.work = 0

    def derives(self, rows: Collection[int]) -> bool:
        """Whether these table rows derive the row."""
        missing: dict[int, int] = {}
        left = [*rows, *self._from_nothing]
        seen = set(left)
        while left:
            row = left.pop()
            if row == self._target:
                return True
            for making in self._uses.get(row, ()):
                self.work += 1
                missing[making] = missing.get(making, len(self._bodies[making])) - 1
                head = self._heads[making]
                if not missing[making] and head not in seen:
                    seen.add(head)
                    left.append(head)
        return False

    def in_order(self, rows: Collection[int]) -> tuple[int, ...]:
        """The rows in order of use, those that make something first."""
        missing: dict[int, int] = {}
        left = deque([*sorted(rows), *self._from_nothing])
        seen, used = set(left), dict[int, None]()
        while left:
            row = left.popleft()
            for making in self._uses.get(row, ()):
                missing[making] = missing.get(making, len(self._bodies[making])) - 1
                head = self._heads[making]
                if not missing[making] and head not in seen:
                    seen.add(head)
                    left.append(head)
                    used.update((body, None) for body in self._bodies[making] if body < self._first)
        return (*used, *(row for row in sorted(rows) if row not in used))

    def without_spare(self, rows: Iterable[int]) -> frozenset[int]:
        """The rows without those that are not needed, removed one after the other."""
        needed = set(rows)
        for row in sorted(needed):
            needed.discard(row)
            if not self.derives(needed):
                needed.add(row)
        return frozenset(needed)


class _SmallerSetSearch:
    """Search for a set of fewer rows, by sets of rows of which every derivation has one."""

    def __init__(self, horn: _Horn, budget: int) -> None:
        self._horn = horn
        self._budget = budget
        self._cuts: list[frozenset[int]] = []

    def smaller_than(self, rows: Collection[int]) -> frozenset[int] | None:
        """A smallest set if it has fewer rows than these; None if there is none."""
        for most in range(1, len(rows)):
            result = self._with(frozenset(), most)
            if result is not None:
                return result
        return None

    def _with(self, chosen: frozenset[int], more: int) -> frozenset[int] | None:
        """A set that derives the row: these, and at most so many more."""
        if self._horn.work > self._budget:
            raise _SpentError
        cut = next((cut for cut in self._cuts if not cut & chosen), None)
        if cut is None:
            if self._horn.derives(chosen):
                return chosen
            cut = self._cut(chosen)
            self._cuts.append(cut)
        if self._at_least(chosen) > more:
            return None
        for row in sorted(cut):
            result = self._with(chosen | {row}, more - 1)
            if result is not None:
                return result
        return None

    def _at_least(self, chosen: frozenset[int]) -> int:
        """A lower bound on the rows still needed: one of each of some disjoint sets."""
        hit, needed = set(chosen), 0
        for cut in self._cuts:
            if not cut & hit:
                hit |= cut
                needed += 1
        return needed

    def _cut(self, chosen: frozenset[int]) -> frozenset[int]:
        """Rows without all of which there is no derivation, none of those chosen among them."""
        without = set(chosen)
        left = [leaf for leaf in self._horn.leaves if leaf not in without]
        return frozenset(self._kept_out(without, left))

    def _kept_out(self, without: set[int], left: Sequence[int]) -> list[int]:
        """The rows that cannot join the others without deriving the row."""
        if self._horn.work > self._budget:
            raise _SpentError
        if not left:
            return []
        if not self._horn.derives(without | set(left)):
            without |= set(left)
            return []
        if len(left) == 1:
            return list(left)
        middle = len(left) // 2
        # Many rows at once: most can join.
        return [*self._kept_out(without, left[:middle]), *self._kept_out(without, left[middle:])]


# The makings that take part in deriving one row, and a derivation of least cost: the number of uses
# of table rows (Knuth's generalisation of Dijkstra's algorithm). Cost: the makings that take part,
# in array operations, one round per making that leads to the row; and those that cost no more than
# the result.


class RowLineage:
    """Makings with their bodies, each once: `bodies[i]` is a body of making `owners[i]`."""

    def __init__(self, makings: Makings, target: int, first: int) -> None:
        """Of the row `target`; table rows have numbers below `first`."""
        taking_part = _taking_part(makings, target)
        self.target = target
        self.first = first
        self.heads = makings.heads[taking_part]
        ends = makings.starts[taking_part + 1]
        positions, owners = slice_positions(makings.starts[taking_part], ends)
        self.owners, self.bodies = _pairs(owners, makings.bodies[positions])
        self.has_groups = bool(makings.are_groups[taking_part].any())
        self._is_leaf = self.bodies < first

    @property
    def leaves(self) -> Ints:
        """The table rows that take part, ascending."""
        return np.unique(self.bodies[self._is_leaf])

    def is_line(self) -> bool:
        """Whether a derivation with the fewest uses of rows is one with the fewest rows."""
        made_bodies = np.bincount(self.owners[~self._is_leaf], minlength=len(self.heads))
        if bool((made_bodies > 1).any()):
            return False
        heads = self.heads[self.owners[self._is_leaf]]
        leaves, _ = _pairs(self.bodies[self._is_leaf], heads)
        return not bool((leaves[1:] == leaves[:-1]).any())

    def shortest(self) -> tuple[int, ...]:
        """The table rows that a derivation of least cost uses, each once, in order of use."""
        count = len(self.heads)
        spent = np.bincount(self.owners[self._is_leaf], minlength=count).tolist()
        missing = np.bincount(self.owners[~self._is_leaf], minlength=count).tolist()
        heads = self.heads.tolist()
        uses = _slices(self.bodies[~self._is_leaf], self.owners[~self._is_leaf])
        front = [(spent[i], heads[i], i) for i in range(count) if not missing[i]]
        heapify(front)
        chosen: dict[int, int] = {}
        while front:
            cost, row, by = heappop(front)
            if row in chosen:
                continue
            chosen[row] = by
            if row == self.target:
                break
            for making in uses.get(row, ()):
                spent[making] += cost
                missing[making] -= 1
                if not missing[making]:
                    heappush(front, (spent[making], heads[making], making))
        return tuple(self._used(chosen))

    def _used(self, chosen: dict[int, int]) -> Iterator[int]:
        """The leaves below the target, by the making chosen for each row."""
        seen: set[int] = {self.target}
        used: set[int] = set()
        left = [(self.target, False)]
        while left:
            row, is_done = left.pop()
            start, end = np.searchsorted(self.owners, (chosen[row], chosen[row] + 1)).tolist()
            bodies = self.bodies[start:end].tolist()
            if is_done:
                leaves = [body for body in bodies if body < self.first and body not in used]
                used.update(leaves)
                yield from leaves
                continue
            left.append((row, True))
            more = [body for body in bodies if body >= self.first and body not in seen]
            seen.update(more)
            left += [(body, False) for body in reversed(more)]

    def bodies_of_all(self) -> list[tuple[int, ...]]:
        """The bodies of each making."""
        starts = np.searchsorted(self.owners, np.arange(len(self.heads) + 1)).tolist()
        bodies = self.bodies.tolist()
        return [tuple(bodies[s:e]) for s, e in zip(starts[:-1], starts[1:], strict=True)]


def _pairs(ones: Ints, others: Ints) -> tuple[Ints, Ints]:
    order = np.lexsort((others, ones))
    ones, others = ones[order], others[order]
    is_new = np.ones(len(ones), dtype=np.bool_)
    is_new[1:] = (ones[1:] != ones[:-1]) | (others[1:] != others[:-1])
    return ones[is_new], others[is_new]


def _slices(keys: Ints, values: Ints) -> dict[int, list[int]]:
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


def _taking_part(makings: Makings, target: int) -> Ints:
    """The positions of makings from which the target can be reached."""
    order = np.argsort(makings.heads, kind="stable")
    heads = makings.heads[order]
    most = max(target, int(makings.bodies.max(initial=0)), int(makings.heads.max(initial=0)))
    seen = np.zeros(most + 1, dtype=np.bool_)
    heads_wanted = np.array([target], dtype=np.int64)
    result: list[Ints] = []
    while len(heads_wanted):
        seen[heads_wanted] = True
        starts = heads.searchsorted(heads_wanted, side="left")
        sorted_positions, _ = slice_positions(
            starts, heads.searchsorted(heads_wanted, side="right")
        )
        positions = order[sorted_positions]
        result.append(positions)
        body_positions, _ = slice_positions(
            makings.starts[positions], makings.starts[positions + 1]
        )
        bodies = makings.bodies[body_positions]
        heads_wanted = np.unique(bodies[~seen[bodies]])
    return np.sort(np.concatenate(result))
