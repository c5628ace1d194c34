"""A circuit filled from partial aggregates that Spark computes, and rows counted by Spark.

Law: reads exactly the versions it is given, natively from the file list; of these the files that
the query's conditions leave.
Out of scope: whether Spark or the engine fills (`app.capturing.fill`), the state
(`compile.builder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from impctl.app.capturing.counts import count_left_out, rows_by_spark
from impctl.app.capturing.frames import tagged_frame
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.preparing.wanted_files import files_of_table, wanted_files
from impctl.app.workbench.workbench import Workbench
from impctl.compile.builder import Partials
from impctl.compile.compile import Compiled
from impctl.compile.session import MaintainedQuery, TouchedQuery
from impctl.data.vector import Ints
from impctl.plan.nodes import Scan
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet
from impctl.spark.render import render_plan
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import AccessId

if TYPE_CHECKING:
    import pyarrow as pa


_VIEW = "impctl_pass"


def from_partials(
    desk: Workbench,
    compiled: Compiled,
    partitions: Mapping[AccessId, RangePartition],
) -> MaintainedQuery:
    chain = compiled.chain
    assert chain is not None
    scan = chain.scan
    partition = partitions[scan.access]
    snapshot = desk.tables.snapshot(scan.table)
    files = files_of_table(snapshot, compiled)
    pass_ = chain.partials()
    table = run_pass(desk, scan, partition, pass_, snapshot, files)
    if pass_.needs_specials(table):
        pass_ = chain.partials(counts_specials=True)
        table = run_pass(desk, scan, partition, pass_, snapshot, files)
    session = MaintainedQuery(compiled)
    session.fill(pass_, table, partition)
    counted = counted_rows(desk, pass_, table, partition, snapshot, files)
    session.range_rows.fill(partition, counted)
    count_left_out(session.range_rows, partition, snapshot, files)
    return session


def counted_rows(
    desk: Workbench,
    pass_: Partials,
    table: pa.Table,
    partition: RangePartition,
    snapshot: Snapshot,
    files: Sequence[DataFile] | None = None,
) -> Ints:
    """Rows per fragment of these files (default: all), by the result of a pass over them where that
    counts every row: then nothing below its grouping leaves out a file either."""
    counted = pass_.rows_told_by(table, partition)
    return rows_by_spark(desk, partition, snapshot, files) if counted is None else counted


def touched(
    desk: Workbench,
    prepared: PreparedQuery,
    partitions: Mapping[AccessId, RangePartition],
    result: Mapping[AccessId, FragmentSet],
) -> TouchedQuery:
    """What touch mode remembers of its one sketch, at the pinned version."""
    ((access, partition),) = partitions.items()
    query = TouchedQuery(partition, result[access])
    snapshot = desk.tables.snapshot(partition.table)
    snapshots = {scan.access: desk.tables.snapshot(scan.table) for scan in prepared.scans}
    left = wanted_files(prepared.root, snapshots)[access]
    files = [file for file in snapshot.files if file.uri in left]
    query.range_rows.fill(partition, rows_by_spark(desk, partition, snapshot, files))
    count_left_out(query.range_rows, partition, snapshot, files)
    return query


def run_pass(
    desk: Workbench,
    scan: Scan,
    partition: RangePartition,
    pass_: Partials,
    snapshot: Snapshot,
    files: Sequence[DataFile] | None = None,
) -> pa.Table:
    """The pass over the scan's table at a snapshot, or over some of its files."""
    from impctl.spark.run import run_sql

    columns = [a.name for a in scan.attributes]
    partitioned = partition if pass_.has_fragment else None
    frame = tagged_frame(desk, snapshot, columns, partitioned, files)
    rendered = render_plan(pass_.plan, {scan.access: _VIEW})
    versions = {scan.table: snapshot.version}
    return run_sql(desk.spark(), rendered.sql, {_VIEW: frame}, versions=versions)
