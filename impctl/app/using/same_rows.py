"""Whether two answers of one query are the same bag of rows.

Law: doubles may differ by what the order of a floating sum can make of them, all else must be
equal; rows have no order. That is a small part of the double, or what is known of its own error,
which counts where a sum cancels (`rules.error_columns`).
Out of scope: getting the answers (`app.using.answers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from impctl.app.results.results import RowValue

_RELATIVE = 1e-9
"""Doubles closer than this count as equal: two orders of a sum of values of one sign never differ
by more in practice, and a wrong group differs by far more."""


_ABSOLUTE = 1e-12
"""What is left of a sum that cancels to nothing."""

_Double = tuple[float, float]
"""A double, and by how much it may be off beside that."""


def same_rows(
    left: Sequence[Sequence[RowValue]],
    right: Sequence[Sequence[RowValue]],
    *,
    errors: Sequence[Sequence[float]] | None = None,
) -> bool:
    """Whether two results are one bag, doubles compared with a tolerance.

    `errors`: for each row of the right, how far each of its cells may be off (0 where not known).
    """
    if len(left) != len(right):
        return False
    mine, theirs = _by_exact_part(left), _by_exact_part(right, errors)
    if mine.keys() != theirs.keys():
        return False
    return all(_same_doubles(mine[part], theirs[part]) for part in mine)


def _by_exact_part(
    rows: Sequence[Sequence[RowValue]], errors: Sequence[Sequence[float]] | None = None
) -> dict[tuple[str, ...], list[tuple[_Double, ...]]]:
    """The doubles of rows that are alike in everything else."""
    result: dict[tuple[str, ...], list[tuple[_Double, ...]]] = {}
    for at, row in enumerate(rows):
        part = tuple(map(_exact_part, row))
        off = [0.0] * len(row) if errors is None else errors[at]
        doubles = tuple(
            (cell, error) for cell, error in zip(row, off, strict=True) if isinstance(cell, float)
        )
        result.setdefault(part, []).append(doubles)
    return result


def _exact_part(cell: RowValue) -> str:
    if isinstance(cell, float):
        return "double"
    if isinstance(cell, Decimal) and cell.is_finite():
        return f"decimal {cell.as_integer_ratio()}"
    return repr(cell)


def _same_doubles(left: list[tuple[_Double, ...]], right: list[tuple[_Double, ...]]) -> bool:
    """Whether rows of doubles can be paired so that each pair is close."""
    if len(left) != len(right):
        return False
    pairs = zip(sorted(left, key=_numeric), sorted(right, key=_numeric), strict=True)
    if all(_close_rows(mine, theirs) for mine, theirs in pairs):
        return True
    # Near ties in one column may order the next one differently: look for partners one by one.
    open_rows = list(right)
    for row in left:
        partner = next((other for other in open_rows if _close_rows(row, other)), None)
        if partner is None:
            return False
        open_rows.remove(partner)
    return True


def _numeric(row: tuple[_Double, ...]) -> tuple[tuple[bool, float], ...]:
    """An order of doubles with NaN last."""
    return tuple((math.isnan(value), 0.0 if math.isnan(value) else value) for value, _ in row)


def _close_rows(left: tuple[_Double, ...], right: tuple[_Double, ...]) -> bool:
    return all(_close(mine, *theirs) for (mine, _), theirs in zip(left, right, strict=True))


def _close(left: float, right: float, error: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    tolerance = max(_ABSOLUTE, error)
    return math.isclose(left, right, rel_tol=_RELATIVE, abs_tol=tolerance)
