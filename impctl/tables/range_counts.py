"""How many rows of files are in each range of a partition, as far as the log alone tells.

Law: what is counted is exactly what reading the file would count. A file is told where all of its
values lie in one range by their bounds and its rows and NULLs are known: rows that a deletion
vector removes are not counted, and where one does, a file tells only if it has no NULL or nothing
else. NaN is in the last range and not in the bounds.
Out of scope: reading the files that are left (`app.capturing.counts`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from impctl.data.vector import Ints
from impctl.sketch.partition import RangePartition
from impctl.tables.file_spans import file_spans
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import FileBounds, file_bounds


def told_counts(
    snapshot: Snapshot, partition: RangePartition, uris: Collection[str] | None = None
) -> tuple[Ints, tuple[DataFile, ...]]:
    """Rows per fragment of files (default: all) that are told, shape (size,), and those not told.

    Errors as of `Snapshot.readable`.
    """
    counts = np.zeros(partition.size, dtype=np.int64)
    column = snapshot.readable(partition.attribute)
    is_alike = column.type == partition.type
    bounds = file_bounds(snapshot, column.name)
    spans = file_spans(partition, bounds)
    untold = []
    ends = zip(spans.first.tolist(), spans.last.tolist(), strict=True)
    for file, bound, (first, last) in zip(snapshot.files, bounds, ends, strict=True):
        if uris is not None and file.uri not in uris:
            continue
        told = _told(file, bound, is_one_range=first == last) if is_alike else None
        if told is None:
            untold.append(file)
            continue
        rows, nulls = told
        counts[first] += rows
        counts[partition.null_fragment] += nulls
    return counts, tuple(untold)


def _told(file: DataFile, bound: FileBounds, *, is_one_range: bool) -> tuple[int, int] | None:
    """Rows of `file` with a value and without one; None where statistics do not tell."""
    if file.rows is None:
        return None
    deleted = 0 if file.deleted is None else len(file.deleted)
    left = file.rows - deleted
    if bound.is_all_null:
        return 0, left
    if bound.null_count is None or (bound.null_count > 0 and deleted):
        return None
    return (left - bound.null_count, bound.null_count) if is_one_range else None
