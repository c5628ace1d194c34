"""Break-even in words: `3.2 % (160,000 changes)`, or on which side of the measured sizes it lies.

Law: two digits, since it is read off between two measurements; a case is looked at only where both
costs and the sizes of changes are amounts above zero. Out of scope: finding it (`break_even`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.bench.break_even import SIZES, BreakEven, break_evens
from impctl.bench.contest import MAINTAIN, RECAPTURE, case_name
from impctl.bench.quantity import Unit, is_number, number, readable
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Record


@dataclass(frozen=True, slots=True)
class _Case:
    """A series with its figure and one of its cells."""

    even: BreakEven
    figure: Figure
    cell: Cell

    @property
    def text(self) -> str:
        return _break_even_text(self.even, self.cell, self.figure.chart.x)

    @property
    def short_text(self) -> str:
        """In one size: the share of the table where it is known."""
        side, amount = self.place
        texts = _size_texts(self.even.size, amount, self.cell)
        return ("below ", "", "above ")[side] + texts.get("share", texts[self.even.size])

    @property
    def place(self) -> tuple[int, float]:
        """0 below what was measured, 1 a crossing, 2 beyond, and the size that is told."""
        sides = (self.even.before, self.even.at, self.even.beyond)
        return next((side, amount) for side, amount in enumerate(sides) if amount is not None)


def break_even_words(record: Record, other: str = RECAPTURE) -> dict[tuple[str, str], str]:
    """Break-even in words, by figure and case; `other` is the metric maintaining is held against.

    Only what has a place on an axis is looked at.
    """
    return {
        (case.figure.name, case_name(case.figure, case.cell)): case.text
        for case in _cases(record, other)
    }


def earliest_break_even(record: Record) -> tuple[str, str] | None:
    """The earliest break-even with recapture in words, and where it lies; None without any."""
    cases = _cases(record, RECAPTURE)
    if not cases:
        return None
    # Of equal sides those told in shares come first, for these are what compares.
    first = min(cases, key=lambda case: (case.place[0], case.even.size != "share", case.place[1]))
    name = case_name(first.figure, first.cell)
    where = f"{first.figure.title}: {name}" if name else first.figure.title
    if first.even.beyond is not None:
        where = "above every measured change"
    return first.short_text, where


def _cases(record: Record, other: str) -> list[_Case]:
    known = replace(record, cells=tuple(cell for cell in record.cells if _has_costs(cell, other)))
    figures = {figure.name: figure for figure in record.figures}
    result = []
    for even in break_evens(known, other=other):
        figure = figures[even.figure]
        if figure.chart.x in SIZES:
            cells = record.cells_of(even.figure)
            cell = next(one for one in cells if even.labels.items() <= one.labels.items())
            result.append(_Case(even, figure, cell))
    return result


def _has_costs(cell: Cell, other: str) -> bool:
    """Are both costs and the size of the change amounts above zero?"""
    costs = [cell.metrics[name].median for name in (MAINTAIN, other) if name in cell.metrics]
    sizes = [cell.labels[name] for name in SIZES if name in cell.labels]
    return all(is_number(amount) and amount > 0 for amount in (*costs, *sizes))


def _break_even_text(even: BreakEven, cell: Cell, axis: str) -> str:
    """A crossing in every way to say it; a side of what was measured as the axis says it."""
    if even.at is not None:
        first, *others = _size_texts(even.size, even.at, cell).values()
        return f"{first} ({others[0]})" if others else first
    for sign, amount in (("above", even.beyond), ("below", even.before)):
        if amount is not None:
            return f"{sign} {_size_texts(even.size, amount, cell)[axis]}"
    return ""


def _size_texts(size: str, amount: float, cell: Cell) -> dict[str, str]:
    """`3.2 %` and `160,000 changes`, by label: both where the cell tells how they go together."""
    amounts = {size: amount}
    changes, share = (cell.labels.get(name) for name in SIZES)
    if is_number(changes) and is_number(share):
        rows, part = ("changes", amount * changes / share), ("share", amount * share / changes)
        amounts.update([part] if size == "changes" else [rows])
    return {name: _size_text(name, amounts[name]) for name in reversed(SIZES) if name in amounts}


def _size_text(name: str, amount: float) -> str:
    amount = float(f"{amount:.2g}")
    if name == "share":
        return readable(amount, Unit.SHARE)
    return f"{number(amount)} changes"
