"""Ways to break ties in a slow evaluation: at random, and again as in a run before.

Law: `is_an_answer` says yes only where some order of tied rows gives the very bag over the whole
tables. It looks first where a sketch would have it: the rows that the run before saw, in the order
it saw them, before all others; random orders alone miss one way among hundreds of thousands.
"""

from __future__ import annotations

from random import Random

from impctl.plan.nodes import Plan
from tests.support.reference_plan import Tables, bag, evaluate
from tests.support.reference_rows import Tuple

_TRIES = 2000


class TieBreaks:
    """Orders rows at random, and remembers the order of each."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._places: dict[object, int] = {}

    def at_random(self, rows: list[Tuple]) -> None:
        """Shuffle the rows in place."""
        self._rng.shuffle(rows)
        self._places.update((_key(row), place) for place, row in enumerate(rows))

    def as_before(self, rows: list[Tuple]) -> None:
        """The rows seen before first and in their order, the others after them at random."""
        self._rng.shuffle(rows)
        rows.sort(key=lambda row: self._places.get(_key(row), len(self._places)))


def _key(row: Tuple) -> object:
    """The row itself wherever it is met: its columns, and the rows it comes from."""
    return frozenset(row.values), row.lineage


def is_an_answer(result: object, root: Plan, tables: Tables, ties: TieBreaks) -> bool:
    """Whether some way of breaking ties gives this result over the whole tables."""
    if any(bag(evaluate(root, tables, None, ties.as_before)) == result for _ in range(20)):
        return True
    return any(bag(evaluate(root, tables, None, ties.at_random)) == result for _ in range(_TRIES))
