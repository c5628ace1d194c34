"""The rows of a materialized result.

Law: the output is the input; state: the sum of all rows passed, without tags, by a lookup key.
Cost: the rows of the change, and merges that each row takes part in a logarithmic number of times.
Bounds of values are not kept: a deleted row has exactly the inserted values. An unknown value (a
sum beyond the greatest double) raises NotExactError. `note` records changes with their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from impctl.data.pages import StoredTable
from impctl.engine.batch import Batch, consolidated, loading, never_held, stacked_or_empty
from impctl.engine.operator import Keeper, Operator
from impctl.engine.trace import RowIndex
from impctl.expr.error_bounds import exactly, is_open, unsure_value

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.types import AttributeId

Runs = Mapping[str, Sequence[tuple[int, StoredTable]]]  # Stored runs by the names of their keepers


class AnswerRows(Protocol):
    """The rows of a materialized result, wherever they are stored. Rows have the columns `columns`,
    of which those `bounded` may have bounds, and can be looked up by `keys`, where there are any.
    The names of all their state have one `beginning`. They are stored one by one, unless a tree
    enumerates them (`are_enumerated`)."""

    beginning: str
    are_enumerated: bool
    keys: tuple[AttributeId, ...]
    bounded: frozenset[AttributeId]

    @property
    def columns(self) -> Sequence[tuple[AttributeId, SqlType]]: ...

    def note(self) -> None:
        """Record changes from now on."""
        ...

    def noted(self) -> Batch:
        """The changes since `note`, row by row; recording ends."""
        ...

    def before(self, noted: Batch) -> Batch:
        """All rows at `note`, also after a failed step; `noted` since."""
        ...

    def whole(self) -> Batch: ...

    def load(self, runs: Runs, code: int | None = None) -> None:
        """Load stored runs for reading: with a code only its rows, where rows are looked up."""
        ...

    def arrangements(self) -> Sequence[Keeper]: ...


class KeptRows(Operator):
    """Keeps `columns` of its input by the columns `keys`; those `bounded` may have bounds."""

    are_enumerated = False

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        keys: Sequence[AttributeId],
        bounded: frozenset[AttributeId] = frozenset(),
    ) -> None:
        self.rows = RowIndex(f"{name}.rows", columns, keys, 0)
        self.beginning = self.rows.name
        self.keys = self.rows.keys
        self.bounded = bounded
        self._noted: list[Batch] | None = None

    def step(self, batch: Batch) -> Batch:
        """Return the change itself, after counting it."""
        if len(batch):
            columns = {name: exactly(batch.columns[name]) for name, _ in self.rows.columns}
            if any(bool(is_open(batch.columns[name]).any()) for name in self.bounded):
                raise unsure_value("A value of the result")
            stored = Batch(columns, batch.weights, ())
            self.rows.add(stored, self.rows.codes_of(stored))
            if self._noted is not None:
                with_bounds = {name: batch.columns[name] for name, _ in self.rows.columns}
                self._noted.append(Batch(with_bounds, batch.weights, ()))
        return batch

    @property
    def columns(self) -> Sequence[tuple[AttributeId, SqlType]]:
        return self.rows.columns

    def note(self) -> None:
        self._noted = []

    def noted(self) -> Batch:
        result, self._noted = self._noted, None
        return stacked_or_empty(result or (), 0)

    def before(self, noted: Batch) -> Batch:
        return consolidated(stacked_or_empty((self.whole(), noted.negated()), 0))

    def load(self, runs: Runs, code: int | None = None) -> None:
        stored = runs.get(self.rows.name, ())
        with loading():
            if code is None:
                self.rows.load(stored)
            else:
                self.rows.load_some(stored, code)

    def whole(self) -> Batch:
        """All rows, each once; an error where more of a row was deleted than inserted."""
        return checked(self.rows.whole())

    def arrangements(self) -> Sequence[RowIndex]:
        return (self.rows,)

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, KeptRows)

    def passes(self, column: AttributeId) -> AttributeId | None:
        return column


def checked(rows: Batch) -> Batch:
    """The rows as a result, validated: none was deleted more often than inserted."""
    if len(rows) and bool((rows.weights < 0).any()):
        raise never_held("rows of the result")
    return rows
