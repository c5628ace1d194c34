"""Rows of a snapshot whose columns have some of the values asked for, from its files.

Law: every row of the files that has a wanted value in each of the columns asked by is there once,
and hardly any other; deleted rows are not. Files and row groups are left out by
statistics, other row groups by the columns asked by, which alone are read of these.
Cost: some 10 ns a row for each column asked by, and all columns of the row groups that hold one.
Out of scope: which values (`app.capturing.partners`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from impctl.data.vector import Bools, Vector, from_arrow
from impctl.tables.lookup.read_once import ReadOnce
from impctl.tables.lookup.row_groups import RowGroup
from impctl.tables.lookup.wanted_values import WantedValues
from impctl.tables.prune import prune_to_values
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import ColumnName


def rows_with(
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    values: Mapping[ColumnName, Sequence[Vector]],
    files: Sequence[DataFile],
    once: ReadOnce,
) -> Iterator[pa.Table]:
    """The rows in these files, exactly these columns, which have one value of each of the lists.

    Raises HistoryGoneError for a file that is gone, TableError for a column that cannot be read.
    """
    wanted = {name: [WantedValues.of(one) for one in lists] for name, lists in values.items()}
    left = {file.uri for file in files}
    for name, lists in values.items():
        for one in lists:
            left &= {file.uri for file in prune_to_values(snapshot, {name: one})}
    for file in files:
        if file.uri in left:
            for group, rows, kept in _groups(snapshot, file, wanted, once):
                yield once.columns(snapshot, columns, file, group, rows).filter(pa.array(kept))


def _groups(
    snapshot: Snapshot,
    file: DataFile,
    wanted: Mapping[ColumnName, Sequence[WantedValues]],
    once: ReadOnce,
) -> Iterator[tuple[int, int, Bools]]:
    """The row groups of a file with a row to be found, their rows, and which of them these are."""
    names = list(wanted)
    start = 0
    for number, group in enumerate(once.groups(snapshot, names, file)):
        first, start = start, start + group.rows
        if not _may_hold(group, wanted):
            continue
        table = once.columns(snapshot, names, file, number, group.rows)
        kept = np.ones(group.rows, dtype=np.bool_)
        for name, lists in wanted.items():
            column = from_arrow(table.column(name), snapshot.readable(name).type)
            for values in lists:
                kept &= values.held_by(column)
        if file.deleted is not None:
            low, high = np.searchsorted(file.deleted, [first, start])
            kept[file.deleted[low:high] - first] = False
        if bool(kept.any()):
            yield number, group.rows, kept


def _may_hold(group: RowGroup, wanted: Mapping[ColumnName, Sequence[WantedValues]]) -> bool:
    """Whether a row may have a value of every list, by the bounds of the group's columns."""
    return all(
        values.may_lie(bounds.low, bounds.high, has_null=bounds.has_null)
        for name, bounds in group.bounds.items()
        for values in wanted[name]
    )
