"""Rows of a snapshot in Spark, with the fragment of each row where a sketch asks for it.

Law: the fragment is that of the engine's own scan. Out of scope: what is made of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import FRAGMENT_COLUMN
from impctl.sketch.partition import RangePartition
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import ColumnName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def tagged_frame(
    desk: Workbench,
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    partition: RangePartition | None,
    files: Sequence[DataFile] | None = None,
) -> DataFrame:
    """The snapshot's rows, or those of some of its files, in at least these columns.

    With a partition also its attribute, and the fragment as `FRAGMENT_COLUMN`.
    """
    from impctl.spark.sketches import with_fragment
    from impctl.spark.snapshots import snapshot_frame

    if partition is None:
        return snapshot_frame(desk.spark(), snapshot, columns, files)
    read = list(dict.fromkeys([*columns, partition.attribute]))
    frame = snapshot_frame(desk.spark(), snapshot, read, files)
    return with_fragment(frame, partition, partition.attribute, FRAGMENT_COLUMN)
