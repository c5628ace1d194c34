"""Derivations by numbers, and those that were stored, in arrays until something asks for one.

Rows of a fixpoint have even numbers, leaves odd ones. Law: the rows that stored derivations make
are found by rounds, and of each row one derivation is chosen whose rows came in earlier rounds:
what is made of chosen ones alone has an end. A derivation that was handed out is no longer asleep;
which ones were chosen stays known.
Cost: a start sorts the derivations and takes a round for each level of them; afterwards what is
asked for, plus a binary search.
Out of scope: functions (`absorption`), who gives numbers (`row_numbers`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from impctl.data.keys import distinct_values
from impctl.data.vector import Ints, slice_positions
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Grounded:
    """One derivation: the row derived, the rows of the fixpoint and those of tables it uses, all by
    numbers of the caller."""

    head: int
    bodies: tuple[int, ...]
    leaves: tuple[int, ...]


def grounded(numbers: Ints) -> list[Grounded]:
    """Derivations of an array, shape (derivations, 1 + numbers of one): the head first, then what
    took part, less than zero for none."""
    result = []
    for head, *parts in numbers.tolist():
        there = [part for part in parts if part >= 0]
        bodies = tuple(part for part in there if not part % 2)
        result.append(Grounded(head, bodies, tuple(part for part in there if part % 2)))
    return result


class Asleep:
    """Those of an array, shape (derivations, 1 + numbers of one), as `grounded` has them."""

    def __init__(self, numbers: Ints) -> None:
        self._numbers = numbers
        self._is_here = np.ones(len(numbers), dtype=np.bool_)
        heads, parts = numbers[:, 0], numbers[:, 1:]
        self._of_head = _Places(heads)
        owners, columns = (parts >= 0).nonzero()
        self._of_part = _Places(parts[owners, columns], owners)
        self._rows = distinct_values(self._of_head.values)
        self._chosen = np.full(len(self._rows), -1, dtype=np.int64)
        """Which derivation is chosen for each row, -1 for none."""
        waits_for = ((parts >= 0) & (parts % 2 == 0)).sum(axis=1)
        self._choose(np.searchsorted(self._rows, heads), waits_for)

    def _choose(self, places: Ints, waits_for: Ints) -> None:
        """Choose round by round; `places` are those of the heads, `waits_for` how many rows each
        derivation still waits for."""
        ready = (waits_for == 0).nonzero()[0]
        while len(ready):
            ready = ready[self._chosen[places[ready]] < 0]
            came, first = np.unique(places[ready], return_index=True)
            self._chosen[came] = ready[first]
            used, counts = np.unique(self._of_part.of(self._rows[came]), return_counts=True)
            waits_for[used] -= counts
            ready = used[waits_for[used] == 0]

    def rows(self) -> Ints:
        """The rows that are derived, ascending."""
        return self._rows[self._chosen >= 0]

    def chosen(self, row: int) -> Grounded:
        """The derivation that was chosen for a row."""
        place = int(np.searchsorted(self._rows, row))
        (result,) = grounded(self._numbers[self._chosen[place]][None])
        return result

    def made_of(self, leaf: int) -> set[int]:
        """The rows that a leaf takes part in, by chosen derivations. Cost: these."""
        result, asked = set[int](), np.array([leaf], dtype=np.int64)
        while len(asked):
            used = self._of_part.of(asked)
            heads = self._numbers[used, 0]
            is_chosen = self._chosen[np.searchsorted(self._rows, heads)] == used
            new = set(heads[is_chosen].tolist()) - result
            result |= new
            asked = np.array(sorted(new), dtype=np.int64)
        return result

    def take_of_head(self, row: int) -> list[Grounded]:
        """Hand out what derives a row."""
        return self._taken(self._of_head.of(np.array([row])))

    def take_of_part(self, number: int) -> list[Grounded]:
        """Hand out what a row or a leaf takes part in."""
        return self._taken(np.unique(self._of_part.of(np.array([number]))))

    def _taken(self, places: Ints) -> list[Grounded]:
        here = places[self._is_here[places]]
        self._is_here[here] = False
        return grounded(self._numbers[here])

    def here(self) -> Iterator[Grounded]:
        """Those that were not handed out."""
        yield from grounded(self._numbers[self._is_here])

    def __len__(self) -> int:
        return int(self._is_here.sum())


class _Places:
    """Where values stand, sorted; `owners` are told in place of positions."""

    def __init__(self, values: Ints, owners: Ints | None = None) -> None:
        order = np.argsort(values, kind="stable")
        self.values: Ints = values[order]
        self._owners: Ints = order if owners is None else owners[order]

    def of(self, asked: Ints) -> Ints:
        """The owners of these values, for each as often as it has it."""
        first = np.searchsorted(self.values, asked, "left")
        last = np.searchsorted(self.values, asked, "right")
        result: Ints = self._owners[slice_positions(first, last)[0]]
        return result
