"""How many rows have which values of an attribute, as far as it can be told without reading all.

Law: values ascend and differ; weights are estimates of rows, each above zero. How good they are
decides how even ranges get, never soundness.
Out of scope: where they come from (`tables.value_weights`), cutting them in ranges
(`sketch.equidepth`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from typing import Self

from impctl.sketch.partition import BoundaryValue
from impctl.values import dataclass


@dataclass(frozen=True)
class ValueWeights:
    """Values and the rows that each stands for."""

    values: tuple[BoundaryValue, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[BoundaryValue, float]]) -> Self:
        """From pairs in any order; those of one value are added up, those without weight left."""
        result: dict[BoundaryValue, float] = {}
        for value, weight in pairs:
            if weight > 0:
                result[value] = result.get(value, 0.0) + weight
        # Values alone are compared in a third of the time that pairs take.
        ordered = tuple(sorted(result))
        return cls(ordered, tuple(map(result.__getitem__, ordered)))

    @cached_property
    def before(self) -> tuple[float, ...]:
        """Rows before each value, and all rows at the end; shape (values + 1,)."""
        return tuple(accumulate(self.weights, initial=0.0))

    @property
    def total(self) -> float:
        return self.before[-1]

    def rows_before(self, value: BoundaryValue) -> float:
        """Rows with less than this value."""
        return self.before[bisect_left(self.values, value)]
