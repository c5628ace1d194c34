"""Rows per range of files that a capture has no other need of.

Law: exactly the rows of the files, whatever the query makes of them (`circuits.range_rows`). What
the log tells is not read; of the other files one column is.
Out of scope: files that pass through the circuit, which counts them itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from impctl.data.vector import from_arrow
from impctl.tables.range_counts import told_counts
from impctl.tables.rows import read_batches

if TYPE_CHECKING:
    from impctl.app.workbench.workbench import Workbench
    from impctl.data.vector import Ints
    from impctl.sketch.partition import RangePartition
    from impctl.tables.snapshot import DataFile, Snapshot


def rows_by_engine(
    snapshot: Snapshot, partition: RangePartition, uris: Collection[str] | None = None
) -> Ints:
    """Rows per fragment of some of the files (default: all), shape (fragments,), without a JVM."""
    counts, untold = told_counts(snapshot, partition, uris)
    for rows in read_batches(snapshot, [partition.attribute], untold):
        fragments = partition.fragments_of(from_arrow(rows.column(0), partition.type))
        counts += np.bincount(fragments, minlength=partition.size)
    return counts


def rows_by_spark(
    desk: Workbench,
    partition: RangePartition,
    snapshot: Snapshot,
    files: Sequence[DataFile] | None = None,
) -> Ints:
    """The same, where Spark reads what the log does not tell."""
    from impctl.spark.fragments import rows_per_fragment
    from impctl.spark.snapshots import snapshot_frame

    uris = None if files is None else {file.uri for file in files}
    counts, untold = told_counts(snapshot, partition, uris)
    if not untold:
        return counts
    frame = snapshot_frame(desk.spark(), snapshot, [partition.attribute], untold)
    return counts + rows_per_fragment(frame, partition)
