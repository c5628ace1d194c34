"""What a step of a query takes in a setting: recorded runs, and what the choice of state adds.

Law: seconds, never below what the choice itself says of the step; it is what the schedule thinks,
and what the step then takes where no noise is asked for, so that nothing is late by chance. Out of
scope: both parts (`simulating.lines`, `simulating.kept_pieces`), schedules and noise
(`simulating.virtual_run`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from impctl.app.maintaining.due.costs import UNKNOWN_S
from impctl.app.simulating.kept_pieces import MostPriced, Price, price_of_step
from impctl.app.simulating.lines import CostsBy, QueryLines
from impctl.types import TableName
from impctl.values import dataclass

Tables = frozenset[TableName]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step takes, in seconds, and how many reads of sides are expected in it."""

    seconds: float
    reads: float


@dataclass(frozen=True)
class StepCosts:
    """Of one query in one setting."""

    lines: QueryLines
    prices: Mapping[Tables, Price]
    _known: dict[tuple[Tables, float, float], Step] = field(default_factory=dict)

    def step(self, moved: Tables, rows: float, size: float) -> Step:
        """A step that carries on so many rows and bytes of these tables."""
        key = (moved, rows, size)
        result = self._known.get(key)
        if result is None:
            result = self._known[key] = self._step(moved, rows, size)
        return result

    def _step(self, moved: Tables, rows: float, size: float) -> Step:
        ms, more, reads = price_of_step(self.prices, moved, rows)
        known = self.lines.ms(moved, rows, size)
        if known is None:
            return Step(ms / 1000 if ms else UNKNOWN_S, reads)
        return Step(max(known + more, ms) / 1000, reads)

    @cached_property
    def _most_priced(self) -> MostPriced:
        return MostPriced.of(self.prices.values())

    @cached_property
    def is_known(self) -> bool:
        """Whether recorded runs tell."""
        return self.lines.by is CostsBy.RUNS

    def most(self, rows: float, size: float) -> float:
        """No less than any step takes over at most so much."""
        ms, more = self._most_priced.at(rows)
        known = self.lines.most_ms(rows, size)
        least = UNKNOWN_S * 1000 if self.lines.by is CostsBy.PRIORS else 0.0
        return max(known + more, ms, least) / 1000
