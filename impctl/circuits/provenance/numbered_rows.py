"""Rows of one node of a plan, each once and with a number.

Law: rows are one where DISTINCT says so: NULL equals NULL, NaN NaN, 0.0 -0.0. A number is given to
a row when it is first met and never again to another.
Out of scope: what the rows are made of (`circuits.provenance.program`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from impctl.circuits.flows import Column
from impctl.data.keys import group_normal
from impctl.data.vector import Ints, Vector, all_null, concat
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Met:
    """The number of each row that was met, shape (rows,), and of those that were new their numbers
    and columns."""

    numbers: Ints
    new: Ints
    columns: tuple[Vector, ...]


class NumberedRows:
    """All rows met so far; `numbers` gives what no row has yet."""

    def __init__(self, columns: Sequence[Column], numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._known: dict[tuple[Any, ...], int] = {}
        self._columns = [[all_null(kind, 0)] for _, kind in columns]
        self._given: list[Ints] = [np.zeros(0, dtype=np.int64)]

    def __len__(self) -> int:
        return len(self._known)

    @property
    def columns(self) -> tuple[Vector, ...]:
        """Their columns, in the order in which they were met."""
        return tuple(concat(parts) for parts in self._columns)

    @property
    def given(self) -> Ints:
        """Their numbers, shape (rows,)."""
        return np.concatenate(self._given)

    def meet(self, columns: Sequence[Vector], length: int) -> Met:
        """Number these rows. Cost: a look-up per different one."""
        keys, grouping = group_normal(list(columns), length)
        leaders = [vector.to_arrow().to_pylist() for vector in grouping.leaders(keys)]
        rows = zip(*leaders, strict=True) if leaders else iter([()] * grouping.groups)
        result, new = np.empty(grouping.groups, dtype=np.int64), []
        for at, row in enumerate(rows):
            # NaN is no equal of itself.
            key = tuple("NaN" if part != part else part for part in row)
            number = self._known.get(key)
            if number is None:
                number = self._known[key] = next(self._numbers)
                new.append(at)
            result[at] = number
        places = np.array(new, dtype=np.int64)
        taken = tuple(column.take(grouping.first[places]) for column in keys)
        self._given.append(result[places])
        for parts, column in zip(self._columns, taken, strict=True):
            parts.append(column)
        return Met(result[grouping.index()], result[places], taken)
