"""What a step of a query takes, by its recorded runs: found once, asked for many steps.

Law: the milliseconds of `app.maintaining.estimates` for the same runs and tables, in a process that
has whatever it needs loaded. Where no run and no capture tells, None.
Out of scope: what another choice of state adds (`simulating.kept_pieces`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property

from impctl.app.maintaining.estimates import Size, estimated
from impctl.store.records import RunCost, RunKind
from impctl.types import TableName
from impctl.values import dataclass

Tables = frozenset[TableName]

_OTHERS = frozenset([""])
"""Tables that no run carried on, so that all runs tell."""

_FAR = 1 << 40
"""Rows by which the slope of a line is asked."""


class CostsBy(StrEnum):
    """What tells what the steps of a query take."""

    RUNS = "runs"
    CAPTURE = "capture"
    PRIORS = "priors"


@dataclass(frozen=True, slots=True)
class _Line:
    """Milliseconds of a step of so many rows, and so many bytes."""

    fixed: float
    per_row: float
    per_byte: float = 0.0

    def at(self, rows: float, size: float) -> float:
        return self.fixed + max(self.per_row * rows, self.per_byte * size)


@dataclass
class QueryLines:
    """The lines of one query, by the tables that moved."""

    runs: Sequence[RunCost]
    by: CostsBy
    _lines: dict[Tables, _Line | None] = field(default_factory=dict)

    def ms(self, moved: Tables, rows: float, size: float) -> float | None:
        """What a step takes that carries on so many rows of these tables; None: nobody knows."""
        if moved not in self._lines:
            self._lines[moved] = _line(self.runs, self.by, moved)
        line = self._lines[moved]
        return None if line is None else line.at(rows, size)

    def most_ms(self, rows: float, size: float) -> float:
        """No less than that for any tables."""
        return max([line.at(rows, size) for line in self._told], default=0.0)

    @cached_property
    def _told(self) -> Sequence[_Line]:
        """The lines there are."""
        asked = {frozenset(run.moved) for run in self.runs} | {_OTHERS}
        lines = [_line(self.runs, self.by, one) for one in asked]
        return [line for line in lines if line is not None]


def lines_of(runs: Sequence[RunCost]) -> QueryLines:
    """Of the runs that were recorded of a query."""
    if any(run.kind is RunKind.MAINTAIN for run in runs):
        by = CostsBy.RUNS
    else:
        by = CostsBy.PRIORS if _line(runs, CostsBy.CAPTURE, _OTHERS) is None else CostsBy.CAPTURE
    return QueryLines(runs, by)


def _line(runs: Sequence[RunCost], by: CostsBy, moved: Tables) -> _Line | None:
    """The line of the estimates, asked for at its ends."""
    fixed = _asked(runs, Size(0, 0), moved)
    rows = _asked(runs, Size(_FAR, 0), moved)
    if fixed is None or rows is None:
        return None
    size = _asked(runs, Size(0, _FAR), moved) if by is CostsBy.CAPTURE else None
    per_byte = 0.0 if size is None else (size - fixed) / _FAR
    return _Line(fixed, (rows - fixed) / _FAR, per_byte)


def _asked(runs: Sequence[RunCost], size: Size, moved: Tables) -> float | None:
    # Without a recapture's estimate, and without the start of Spark in each step.
    result = estimated(
        runs,
        RunKind.MAINTAIN,
        size,
        has_spark=True,
        table_rows=lambda: 0,
        moved=sorted(moved),
    )
    return result.maintain_ms
