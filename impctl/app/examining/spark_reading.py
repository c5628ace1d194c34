"""Whether Spark reads the tables, as findings: one file of each is read, the smallest.

Law: for every table of the workload there is one finding, whatever is wrong with the others.
Out of scope: whether Spark starts (`app.examining.surroundings`), deltalake's own reading
(`app.examining.tables`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from impctl.app.results.findings import Finding, Subject
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECK = "spark_reads"


def spark_findings(desk: Workbench, session: SparkSession) -> Iterator[Finding]:
    """What came of reading a file of each table."""
    for table in desk.workload.tables:
        subject = Subject.of_table(table)
        try:
            rows = _read_one(session, desk.tables.snapshot(table))
        except ImpctlError as error:
            yield subject.failed(_CHECK, error)
            continue
        told = "Spark has no file to read" if rows is None else f"Spark read a file of {rows:,} row"
        yield subject.ok(_CHECK, told + ("" if rows is None or rows == 1 else "s"))


def _read_one(session: SparkSession, snapshot: Snapshot) -> int | None:
    """Rows of the smallest file, by all columns that can be read; None without a file."""
    from impctl.spark.failures import plain_failures
    from impctl.spark.snapshots import snapshot_frame

    if not snapshot.files:
        return None
    smallest = min(snapshot.files, key=lambda file: file.size)
    names = [name for name in snapshot.schema.names if name not in snapshot.columns.opaque]
    frame = snapshot_frame(session, snapshot, names, [smallest], is_guarded=False)
    with plain_failures({snapshot.table: snapshot.version}):
        return int(frame.toArrow().num_rows)
