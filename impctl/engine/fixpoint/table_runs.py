"""Rows of a table as a fixpoint's step looks them up where all are whole numbers.

Law: as `RowIndex.find` has it, of keys and columns that are whole numbers without NULL: the code of
a key is the key, and rows are taken where they lie, without their tags. Cost: a search per run.
Out of scope: what rows derive (`engine.fixpoint.joined_moves`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from impctl.data.keys import when_many
from impctl.data.pages import search
from impctl.data.vector import Ints, slice_positions
from impctl.engine.fixpoint.plain_step import PlainStep
from impctl.engine.row_index import IndexRun, check_size
from impctl.engine.tags import Tags
from impctl.types import AttributeId
from impctl.values import dataclass

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Places:
    """Rows found: which code asked for each, the run's number, and the position in it."""

    owners: Ints
    source: Ints
    place: Ints
    columns: Mapping[AttributeId, Ints]
    weights: Ints


class TableRuns:
    """The runs of one side; `columns` are those asked for."""

    def __init__(self, runs: Sequence[IndexRun], columns: Sequence[AttributeId]) -> None:
        self.runs = tuple(runs)
        self._columns = [[run.batch.columns[name].values for name in columns] for run in runs]
        self.names = tuple(columns)

    def find(self, codes: Ints) -> Places:
        """All rows with these keys; an asking one finds none, one or many."""
        order, codes = when_many(codes)
        parts: list[tuple[int, Ints, Ints]] = []
        for number, run in enumerate(self.runs):
            first = search(run.pages, run.codes, codes)
            rows = (run.codes.take(first, mode="clip") == codes).nonzero()[0]
            if not len(rows):
                continue
            first = first[rows]
            last = search(run.pages, run.codes, codes[rows], "right")
            check_size(int((last - first).sum()))
            place, owners = slice_positions(first, last)
            run.at(place)
            owners = rows[owners]
            parts.append((number, owners if order is None else order[owners], place))
        return self._taken(parts)

    def _taken(self, parts: Sequence[tuple[int, Ints, Ints]]) -> Places:
        if not parts:
            return Places(_NONE, _NONE, _NONE, dict.fromkeys(self.names, _NONE), _NONE)
        columns = {
            name: _joined([self._columns[number][at][place] for number, _, place in parts])
            for at, name in enumerate(self.names)
        }
        weights = _joined([self.runs[number].batch.weights[place] for number, _, place in parts])
        source = np.repeat([number for number, _, _ in parts], [len(p) for _, _, p in parts])
        owners = _joined([owners for _, owners, _ in parts])
        return Places(owners, source, _joined([place for _, _, place in parts]), columns, weights)

    @property
    def tags(self) -> list[tuple[Tags, ...]]:
        """The tags of all rows, run by run."""
        return [run.batch.tags for run in self.runs]


def table_runs(plain: PlainStep) -> TableRuns | None:
    """The table's rows as they stand; None where some are not whole numbers."""
    if not plain.is_of_numbers:
        return None
    columns = [name for _, name in plain.heads if name is not None]
    wanted = {*columns, *plain.table.keys}
    runs = plain.table.runs()
    if any(run.batch.columns[name].valid is not None for run in runs for name in wanted):
        return None
    return TableRuns(runs, columns)


def _joined(parts: Sequence[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
