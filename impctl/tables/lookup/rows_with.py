"""Rows of a snapshot whose columns have some of the values asked for, from its files.

Law: every row of the files that has a wanted value in each of the columns asked by is there once,
and hardly any other; deleted rows are not. Files are left out by statistics, row groups by the
columns asked by, which alone are read of all the others.
Cost: some 10 ns a row for each column asked by, and all columns of the row groups that hold one.
Out of scope: which values (`app.capturing.partners`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from impctl.aliases import ColumnName
from impctl.data.vector import Bools, Vector, from_arrow
from impctl.tables.lookup.wanted_values import WantedValues
from impctl.tables.prune import prune_to_values
from impctl.tables.rows import FileReader
from impctl.tables.snapshot import DataFile, Snapshot


def rows_with(
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    values: Mapping[ColumnName, Sequence[Vector]],
    files: Sequence[DataFile],
) -> Iterator[pa.Table]:
    """The rows in these files, exactly these columns, which have one value of each of the lists.

    Raises HistoryGoneError for a file that is gone, TableError for a column that cannot be read.
    """
    wanted = {name: [WantedValues.of(one) for one in lists] for name, lists in values.items()}
    left = {file.uri for file in files}
    for name, lists in values.items():
        for one in lists:
            left &= {file.uri for file in prune_to_values(snapshot, {name: one})}
    files = [file for file in files if file.uri in left]
    keys = FileReader(snapshot, [snapshot.readable(name) for name in values], files)
    rest = FileReader(snapshot, [snapshot.readable(name) for name in columns], files)
    for file in files:
        for group, kept in _groups(snapshot, keys, file, wanted):
            yield rest.read_some(file, _only(group)).filter(pa.array(kept))


def _only(group: int) -> Callable[[int], Sequence[int]]:
    return lambda _: (group,)


def _groups(
    snapshot: Snapshot,
    keys: FileReader,
    file: DataFile,
    wanted: Mapping[ColumnName, Sequence[WantedValues]],
) -> Iterator[tuple[int, Bools]]:
    """The row groups of a file with a row to be found, and which rows of them that are."""
    for group, start, table in keys.groups(file):
        kept = np.ones(len(table), dtype=np.bool_)
        for name, lists in wanted.items():
            column = from_arrow(table.column(name), snapshot.readable(name).type)
            for values in lists:
                kept &= values.held_by(column)
        if file.deleted is not None:
            low, high = np.searchsorted(file.deleted, [start, start + len(table)])
            kept[file.deleted[low:high] - start] = False
        if bool(kept.any()):
            yield group, kept
