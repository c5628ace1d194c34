"""Break-even in words: `3.2 %, 160,000 changes`, or on which side of the measured sizes it lies.

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
        found[figure.name, case_name(figure, cell)] = _break_even_text(even, cell)
    return found


def _has_costs(cell: Cell) -> bool:
    """Are both costs and the size of the change amounts above zero?"""
    costs = [cell.metrics[name].median for name in (MAINTAIN, RECAPTURE) if name in cell.metrics]
    sizes = [cell.labels[name] for name in SIZES if name in cell.labels]
    return all(is_number(amount) and amount > 0 for amount in (*costs, *sizes))


def _break_even_text(even: BreakEven, cell: Cell) -> str:
    for sign, amount in (("", even.at), ("above ", even.beyond), ("below ", even.before)):
        if amount is not None:
            return f"{sign}{_size_text(even.size, amount, cell)}"
    return ""


def _size_text(size: str, amount: float, cell: Cell) -> str:
    """`3.2 %, 160,000 changes`: both ways to say it where a cell tells both."""
    changes, share = (cell.labels.get(name) for name in SIZES)
    rows, part = (amount, None) if size == "changes" else (None, amount)
    if is_number(changes) and is_number(share):
        rows = amount if size == "changes" else amount * changes / share
        part = amount if size == "share" else amount * share / changes
    texts = [
        "" if part is None else readable(float(f"{part:.2g}"), Unit.SHARE),
        "" if rows is None else f"{number(float(f'{rows:.2g}'))} changes",
    ]
    return ", ".join(text for text in texts if text)
