"""How many rows of files are in each range of a partition, as far as the log alone tells.

Law: what is told is exactly what reading the file would count. A file is told where all of its
values lie in one range by their bounds and its rows and NULLs are known: rows that a deletion
vector removes are not counted, and where one does, a file tells only if it has no NULL or nothing
else. NaN is in the last range and not in the bounds. Of other files the rows are spread: their sum
is right, the ranges are those between the bounds, how many are in each is a guess.
Out of scope: reading files, which counts may be guesses (`compile.fill`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from impctl.data.vector import Ints
from impctl.sketch.partition import RangePartition
from impctl.tables.bounds import UNKNOWN
from impctl.tables.file_spans import file_spans
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import file_bounds


def told_counts(
    snapshot: Snapshot, partition: RangePartition, uris: Collection[str] | None = None
) -> tuple[Ints, tuple[DataFile, ...]]:
    """Rows per fragment of files (default: all) that are told, shape (size,), and those not told.

    Errors as of `Snapshot.readable`.
    """
    counts = np.zeros(partition.size, dtype=np.int64)
    column = snapshot.readable(partition.attribute)
    files = snapshot.files
    if uris is not None:
        files = tuple(file for file in files if file.uri in uris)
    if column.type != partition.type:
        return counts, files
    bounds = file_bounds(snapshot, column.name)
    if uris is not None:
        places = [at for at, file in enumerate(snapshot.files) if file.uri in uris]
        bounds = bounds.take(np.array(places, dtype=np.int64))
    deleted = np.array([_deleted(file) for file in files], dtype=np.int64)
    spans = file_spans(partition, bounds)
    left, nulls = bounds.rows - deleted, np.where(bounds.is_all_null, 0, bounds.null_counts)
    # A deletion vector may remove NULLs or values: which, only a file that holds one kind tells.
    is_told = (nulls == 0) | ((nulls > 0) & (deleted == 0))
    is_told &= (spans.first == spans.last) | bounds.is_all_null
    is_told &= bounds.rows != UNKNOWN
    is_null, is_value = is_told & bounds.is_all_null, is_told & ~bounds.is_all_null
    np.add.at(counts, spans.first[is_value], (left - nulls)[is_value])
    counts[partition.null_fragment] += left[is_null].sum() + nulls[is_value].sum()
    return counts, tuple(files[at] for at in np.flatnonzero(~is_told))


def spread_counts(
    snapshot: Snapshot, partition: RangePartition, files: Sequence[DataFile], like: Ints
) -> Ints:
    """Rows per fragment of files that are not told, shape (size,).

    A file's rows are spread over the ranges between its bounds as the counts `like` are, of other
    files of the table, with one more in each range.
    """
    wanted = {file.uri for file in files}
    places = [at for at, file in enumerate(snapshot.files) if file.uri in wanted]
    bounds = file_bounds(snapshot, partition.attribute).take(np.array(places, dtype=np.int64))
    spans = file_spans(partition, bounds)
    rows = np.array([_likely_rows(snapshot, snapshot.files[at]) for at in places])
    nulls = np.array([b.null_count or 0 for b in bounds], dtype=np.float64)
    nulls = np.where(spans.last < spans.first, rows, np.minimum(nulls, rows))
    weights = like[: partition.ranges] + 1.0
    before = np.concatenate([[0.0], np.cumsum(weights)])
    end = np.maximum(spans.last + 1, spans.first)
    share = (rows - nulls) / np.maximum(before[end] - before[spans.first], 1.0)
    steps = np.zeros(partition.ranges + 1)
    np.add.at(steps, spans.first, share)
    np.add.at(steps, end, -share)
    result = np.append(np.maximum(np.cumsum(steps)[:-1], 0.0) * weights, nulls.sum())
    counts: Ints = np.diff(np.rint(np.cumsum(result)), prepend=0.0).astype(np.int64)
    return counts


def likely_counts(snapshot: Snapshot, partition: RangePartition) -> Ints:
    """Rows per fragment of the whole table, shape (size,): told, or else spread; even where the
    column is of another type by now."""
    if snapshot.readable(partition.attribute).type != partition.type:
        return np.ones(partition.size, dtype=np.int64)
    told, untold = told_counts(snapshot, partition)
    return told + spread_counts(snapshot, partition, untold, told) if untold else told


def _likely_rows(snapshot: Snapshot, file: DataFile) -> float:
    """Rows of a file, by its bytes where the log does not say."""
    if file.rows is None:
        return snapshot.likely_rows * file.size / max(snapshot.bytes, 1)
    return float(file.rows - _deleted(file))


def _deleted(file: DataFile) -> int:
    """Rows that a deletion vector removes."""
    return 0 if file.deleted is None else len(file.deleted)
