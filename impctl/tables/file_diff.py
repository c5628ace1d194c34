"""The difference of two snapshots, by comparing their data files and deletion vectors.

Law: a file in both snapshots contributes only the rows whose deletion changed; a file in one of
them contributes all its rows. The sum is snapshot(after) minus snapshot(before), as a bag.
Cost: the rows of the differing files. Out of scope: finding rows that cancel out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.aliases import ColumnName
from impctl.tables.rows import FileReader, kept_positions
from impctl.tables.snapshot import DataFile, Positions, Snapshot

_NONE: Positions = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DiffRows:
    """Columns as asked for and a weight per row."""

    table: pa.Table
    weights: npt.NDArray[np.int64]


def read_file_diff(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> DiffRows:
    """The rows that came and went between two snapshots of one table.

    Raises HistoryGoneError when a file of either snapshot is gone.
    """
    old = {file.uri: file for file in before.files}
    new = {file.uri: file for file in after.files}
    readers = (
        FileReader(before, [before.readable(name) for name in columns]),
        FileReader(after, [after.readable(name) for name in columns]),
    )
    tables = [readers[1].empty()]
    weights = [np.zeros(0, dtype=np.int64)]

    def add(reader: FileReader, file: DataFile, positions: Positions | None, weight: int) -> None:
        if positions is not None and not len(positions):
            return
        rows = reader.read(file, positions)
        tables.append(rows.rename_columns(list(columns)))
        weights.append(np.full(len(rows), weight, dtype=np.int64))

    for uri, file in old.items():
        if uri not in new:
            add(readers[0], file, kept_positions(file), -1)
    for uri, file in new.items():
        if uri not in old:
            add(readers[1], file, kept_positions(file), 1)
            continue
        gone_before, gone_after = _deleted(old[uri]), _deleted(file)
        add(readers[0], old[uri], np.setdiff1d(gone_after, gone_before), -1)
        add(readers[1], file, np.setdiff1d(gone_before, gone_after), 1)
    return DiffRows(pa.concat_tables(tables), np.concatenate(weights))


def _deleted(file: DataFile) -> Positions:
    return _NONE if file.deleted is None else file.deleted
