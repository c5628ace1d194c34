"""The difference of two snapshots, by comparing their data files and deletion vectors.

Law: a file in both snapshots contributes only the rows whose deletion changed; a file in one of
them contributes all its rows, but for those that a writer only copied, where it is said by which
columns a row is the same. The sum is snapshot(after) minus snapshot(before), as a bag.
Cost: the rows of the differing files. Out of scope: reading files in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.tables.change.net import netted
from impctl.tables.rows import FileReader, bare_rows
from impctl.tables.snapshot import DataFile, Positions, Snapshot
from impctl.types import ColumnName
from impctl.values import dataclass

_NONE: Positions = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DiffRows:
    """Columns as asked for and a weight per row."""

    table: pa.Table
    weights: npt.NDArray[np.int64]


def read_net_diff(
    before: Snapshot,
    after: Snapshot,
    columns: Sequence[ColumnName],
    net_by: Sequence[ColumnName],
) -> DiffRows:
    """The same, with rows left out that went and came again the same in `columns` and `net_by`.

    A row that is not the same there is on both sides, even if it is in `columns`: who reads a few
    columns learns that another one of the row changed. Rows come in no order, with weights above 1.
    """
    wanted = {name.lower(): name for name in (*net_by, *columns)}
    whole = read_file_diff(before, after, list(wanted.values()))
    table, weights = netted(whole.table, whole.weights)
    return DiffRows(table.select([after.readable(name).name for name in columns]), weights)


def read_file_diff(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> DiffRows:
    """The rows that came and went between two snapshots of one table.

    Raises HistoryGoneError when a file of either snapshot is gone.
    """
    old = {file.uri: file for file in before.files}
    new = {file.uri: file for file in after.files}
    columns_before = [before.readable(name) for name in columns]
    columns_after = [after.readable(name) for name in columns]
    reader_before = FileReader(before, columns_before, before.files)
    reader_after = FileReader(after, columns_after, after.files)
    names = [column.name for column in columns_after]
    tables = [reader_after.empty()]
    weights = [np.zeros(0, dtype=np.int64)]

    def add(rows: pa.Table, weight: int) -> None:
        tables.append(rows.rename_columns(names))
        weights.append(np.full(len(rows), weight, dtype=np.int64))

    for uri, file in old.items():
        if uri not in new:
            add(reader_before.read_live(file), -1)
    for uri, file in new.items():
        if uri not in old:
            add(reader_after.read_live(file), 1)
            continue
        gone_before, gone_after = _deleted(old[uri]), _deleted(file)
        if len(removed := np.setdiff1d(gone_after, gone_before)):
            add(reader_before.read_at(old[uri], removed), -1)
        if len(restored := np.setdiff1d(gone_before, gone_after)):
            add(reader_after.read_at(file, restored), 1)
    total = np.concatenate(weights)
    return DiffRows(pa.concat_tables(tables) if names else bare_rows(len(total)), total)


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """Files whose live rows went, and files whose live rows came; both may hold the same rows."""

    went: tuple[DataFile, ...]
    came: tuple[DataFile, ...]


def changed_files(before: Snapshot, after: Snapshot) -> ChangedFiles:
    """The files in which two snapshots differ; one with other deletions is on both sides."""
    old = {file.uri: file for file in before.files}
    new = {file.uri: file for file in after.files}

    def alone(files: dict[str, DataFile], others: dict[str, DataFile]) -> tuple[DataFile, ...]:
        return tuple(
            file
            for uri, file in files.items()
            if uri not in others or not np.array_equal(_deleted(file), _deleted(others[uri]))
        )

    return ChangedFiles(alone(old, new), alone(new, old))


def _deleted(file: DataFile) -> Positions:
    return _NONE if file.deleted is None else file.deleted
