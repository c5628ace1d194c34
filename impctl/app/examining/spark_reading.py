"""Whether Spark reads the tables, as findings: one file of each is read, the smallest.

Law: for every table of the workload there is one finding, whatever is wrong with the others.
Out of scope: whether Spark starts (`app.examining.surroundings`), deltalake's own reading
(`app.examining.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from impctl.app.results.findings import Finding, Subject
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, count_text
from impctl.tables.snapshot import Snapshot

FileReading = Callable[[Snapshot], int | None]
"""Rows of one file of a snapshot, by Spark; None where there is no file."""

_CHECK = "spark_reads"


def spark_findings(desk: Workbench, read_one: FileReading) -> Iterator[Finding]:
    """What came of reading a file of each table."""
    for table in desk.workload.tables:
        subject = Subject.of_table(table)
        try:
            rows = read_one(desk.tables.snapshot(table))
        except ImpctlError as error:
            yield subject.failed(_CHECK, error)
            continue
        if rows is None:
            yield subject.ok(_CHECK, "the table has no file for Spark to read")
        else:
            counted = count_text(rows, "row")
            yield subject.ok(_CHECK, f"Spark read a file of {counted}")
