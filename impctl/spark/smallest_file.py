"""One file of a table read by Spark, to see that it can.

Out of scope: what is said about it (`app.examining.spark_reading`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.spark.failures import plain_failures
from impctl.spark.snapshots import snapshot_frame
from impctl.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of_smallest_file(session: SparkSession, snapshot: Snapshot) -> int | None:
    """Its rows, read in all columns that can be read; None where the snapshot has no file."""
    if not snapshot.files:
        return None
    smallest = min(snapshot.files, key=lambda file: file.size)
    names = [name for name in snapshot.schema.names if name not in snapshot.columns.opaque]
    frame = snapshot_frame(session, snapshot, names, [smallest], is_guarded=False)
    with plain_failures({snapshot.table: snapshot.version}):
        return int(frame.toArrow().num_rows)
