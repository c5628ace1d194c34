"""Rows per range of files that a capture has no other need of.

Law: none of these files is opened. What the log tells of them is exact, the rest is spread like the
rows that were read (`compile.fill`): counts are for how even ranges are, and no sketch rests
on them.
Out of scope: files that are read, whose rows the circuit, or Spark, counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.compile.fill import RangeRows
from impctl.sketch.partition import RangePartition
from impctl.tables.prune import spread_counts, told_counts

if TYPE_CHECKING:
    from impctl.app.workbench.workbench import Workbench
    from impctl.data.vector import Ints
    from impctl.tables.snapshot import DataFile, Snapshot


def count_left_out(
    counted: RangeRows, partition: RangePartition, snapshot: Snapshot, read: Sequence[DataFile]
) -> None:
    """Add the rows of all files but these, whose rows are counted already."""
    uris = {file.uri for file in read}
    left_out = {uri for uri in snapshot.uris if uri not in uris}
    if not left_out:
        return
    like = counted.counts(partition)
    told, untold = told_counts(snapshot, partition, left_out)
    counted.fill(partition, told)
    if untold:
        counted.estimate(partition, spread_counts(snapshot, partition, untold, like))


def rows_by_spark(
    desk: Workbench,
    partition: RangePartition,
    snapshot: Snapshot,
    files: Sequence[DataFile] | None = None,
) -> Ints:
    """Rows per fragment of these files (default: all), exactly; what the log tells is not read."""
    from impctl.spark.sketches import rows_per_fragment
    from impctl.spark.snapshots import snapshot_frame

    uris = None if files is None else {file.uri for file in files}
    counts, untold = told_counts(snapshot, partition, uris)
    if not untold:
        return counts
    frame = snapshot_frame(desk.spark(), snapshot, [partition.attribute], untold)
    return counts + rows_per_fragment(frame, partition)
