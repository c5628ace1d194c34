"""Break-even in words: `3.2 % (160,000 changes)`, or on which side of the measured sizes it lies.

Law: two digits, since it is read off between two measurements; a case is looked at only where both
costs and the sizes of changes are amounts above zero. Out of scope: finding it (`break_even`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.bench.break_even import SIZES, BreakEven, break_evens
from impctl.bench.contest import MAINTAIN, RECAPTURE, case_name
from impctl.bench.quantity import Unit, is_number, number, readable
from impctl.bench.record import Cell, Record


def break_even_words(record: Record) -> dict[tuple[str, str], str]:
    """Break-even in words, by figure and case; only what has a place on an axis is looked at."""
    found = {}
    for even in break_evens(replace(record, cells=tuple(filter(_has_costs, record.cells)))):
        figure = next(one for one in record.figures if one.name == even.figure)
        if figure.chart.x not in SIZES:
            continue
        cell = next(
            one for one in record.cells_of(even.figure) if even.labels.items() <= one.labels.items()
        )
        text = _break_even_text(even, cell, figure.chart.x)
        found[figure.name, case_name(figure, cell)] = text
    return found


def _has_costs(cell: Cell) -> bool:
    """Are both costs and the size of the change amounts above zero?"""
    costs = [cell.metrics[name].median for name in (MAINTAIN, RECAPTURE) if name in cell.metrics]
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
