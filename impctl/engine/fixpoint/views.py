"""State of whole numbers as it is looked up one by one, in memory where it lies.

Law: as arrangements and indexes have it; a look-up of one code is a search per run, without an
array made for it. Only where all of a run was looked at (`data.pages`): what lies in pages is
looked at first where that costs no more than what was done so far, and else there are no views.
Out of scope: what is looked up, and why (`engine.fixpoint.thin_fronts`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Sized
from typing import Any, TypeAlias, TypeVar

from impctl.data.keys import are_codes
from impctl.data.pages import InPages
from impctl.engine.arrangement import Arrangement
from impctl.engine.row_index import IndexRun
from impctl.engine.runs import Run
from impctl.types import AttributeId
from impctl.values import dataclass

_SMALL = 4_096
"""Rows of a run that is held for its view, though it may be gone by then."""
R = TypeVar("R", bound=Sized)
V = TypeVar("V")
Numbers: TypeAlias = "memoryview[Any]"
"""A view of an array of whole numbers: one of them is had in a fraction of the time that NumPy
takes."""
_ROWS_A_PAGE = 100
"""Rows of a run whose pages are looked at in the time that a row takes that comes or goes."""


def view_of(array: Any) -> Numbers:
    """The view of an array of 64-bit numbers."""
    return memoryview(array)


@dataclass(frozen=True, slots=True)
class IndexView:
    """One run of an index: its codes, the columns asked for, and weights."""

    codes: Numbers
    columns: tuple[Numbers, ...]
    weights: Numbers

    def span(self, code: int) -> tuple[int, int]:
        """Where the rows of a code lie."""
        first = bisect_left(self.codes, code)
        return first, bisect_right(self.codes, code, first)


@dataclass(frozen=True, slots=True)
class RowsView:
    """One run of an arrangement: its codes, its keys, and values; None for one that is all zero."""

    codes: Numbers
    keys: tuple[Numbers, ...]
    values: tuple[Numbers | None, ...]

    def place(self, first: int, key: tuple[int, ...]) -> int:
        """Where a key lies of the code that begins at `first`; -1 where it does not."""
        code = self.codes[first]
        for place in range(first, len(self.codes)):
            if self.codes[place] != code:
                break
            if all(part[place] == one for part, one in zip(self.keys, key, strict=True)):
                return place
        return -1


class Views:
    """Views of runs; those of small ones are kept while these are there, often for many steps."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, Any]] = {}

    def of_index(
        self, runs: Sequence[IndexRun], columns: Sequence[AttributeId], spent: int
    ) -> list[IndexView] | None:
        """The runs of an index, of whole numbers, always with the same columns; `spent` rows came
        and went so far. None where they are not to be looked at one by one, or some are NULL."""
        if not all(_is_looked_at(run, len(run), spent) for run in runs):
            return None
        return _all_known(self._seen(runs, lambda run: _index_view(run, columns)))

    def of_rows(
        self, arrangement: Arrangement, names: Sequence[str], spent: int
    ) -> list[RowsView] | None:
        """The runs of an arrangement, the newest first; None where they are not to be, or some key
        is no whole number."""
        runs = arrangement.runs[::-1]
        if not all(_is_looked_at(run, len(run), spent) for run in runs):
            return None
        return _all_known(self._seen(runs, lambda run: _rows_view(run, names)))

    def _seen(self, runs: Sequence[R], make: Callable[[R], V]) -> list[V]:
        known = self._known
        # A run that is held keeps its identity to itself.
        result = [(run, known.get(id(run)) or (run, make(run))) for run in runs]
        self._known = {id(run): pair for run, pair in result if len(run) <= _SMALL}
        return [view for _, (_, view) in result]


def _all_known(views: Sequence[V | None]) -> list[V] | None:
    """The views, if there is one of each run."""
    known = [view for view in views if view is not None]
    return known if len(known) == len(views) else None


def _index_view(run: IndexRun, columns: Sequence[AttributeId]) -> IndexView | None:
    """The view of a run that has no NULL in these columns."""
    held = [run.batch.columns[name] for name in columns]
    if any(column.valid is not None for column in held):
        return None
    values = tuple(view_of(column.values) for column in held)
    return IndexView(view_of(run.codes), values, view_of(run.batch.weights))


def _rows_view(run: Run, names: Sequence[str]) -> RowsView | None:
    """The view of a run whose keys are whole numbers, none of them NULL."""
    if not all(map(are_codes, run.keys)):
        return None
    columns = (run.values.get(name) for name in names)
    return RowsView(
        view_of(run.codes),
        tuple(view_of(part.to_numpy()) for part in run.keys),
        tuple(None if column is None else view_of(column) for column in columns),
    )


def _is_looked_at(run: InPages, rows: int, spent: int) -> bool:
    """Whether all of it was, or is now."""
    if run.pages is None or not run.pages.is_open:
        return True
    if rows > _ROWS_A_PAGE * (1 + spent):
        return False
    run.pages.check_all()
    return True
