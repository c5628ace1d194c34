"""Which rows of a fixpoint no row of their group beats, while its rows come round by round.

Law: as of `plan.nodes`, over the rows met so far. A row that is beaten is beaten for good, so
once rows come no more those that are left are the best ones. Values without an order in whole
numbers beat nothing, and all rows stay.
Out of scope: what is made of the rows (`circuits.provenance.program`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from impctl.data.keys import group_normal
from impctl.data.vector import INT64_MAX, Bools, Ints, Vector
from impctl.engine.extremes import ranks_of
from impctl.plan.nodes import BestOnly


class BestSoFar:
    """The best values of each group of the rows met."""

    def __init__(self, best: BestOnly) -> None:
        self._only = best
        self._best: dict[tuple[Any, ...], list[int]] = {}

    def meet(self, columns: Sequence[Vector], length: int) -> Bools:
        """Which of these rows of the fixpoint no row met so far beats, nor one of these; shape
        (length,)."""
        if not all(map(_is_ranked, (columns[value.place] for value in self._only.values))):
            return np.ones(length, dtype=np.bool_)
        groups, values = self._groups(columns, length), self._values(columns)
        stays = np.zeros(length, dtype=np.bool_)
        for at, group in enumerate(groups):
            known = self._best.setdefault(group, [INT64_MAX] * len(values))
            for place, (ranks, _) in enumerate(values):
                known[place] = min(known[place], int(ranks[at]))
        for at, group in enumerate(groups):
            known = self._best[group]
            stays[at] = any(
                ranks[at] == known[place] or (self._only.keeps_null and not valid[at])
                for place, (ranks, valid) in enumerate(values)
            )
        return stays

    def _groups(self, columns: Sequence[Vector], length: int) -> list[tuple[Any, ...]]:
        keys, _ = group_normal([columns[place] for place in self._only.keys], length)
        lists = [key.to_arrow().to_pylist() for key in keys]
        # NaN is no equal of itself.
        parts = (
            ("NaN" if part != part else part for part in row) for row in zip(*lists, strict=True)
        )
        return list(map(tuple, parts)) if lists else [()] * length

    def _values(self, columns: Sequence[Vector]) -> list[tuple[Ints, Bools]]:
        """Of each value its order, the last one for NULL, and whether it is one."""
        result = []
        for value in self._only.values:
            column = columns[value.place]
            valid = column.validity()
            ranks = ranks_of(column, reverse=value.greatest)
            result.append((np.where(valid, ranks, INT64_MAX), valid))
        return result


def _is_ranked(column: Vector) -> bool:
    return not column.is_textual and column.values.dtype != object
