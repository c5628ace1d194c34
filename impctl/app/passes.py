"""The passes over a snapshot: one that fills a circuit, one that finds the sketch alone.

Law: both read exactly the versions they are given, natively from the file list. The first gives
sketch and state, by the engine itself or from partial aggregates of Spark, whichever is quicker;
the second runs in Spark, is the fastest capture there is for the sketch, the oracle of `verify`
and the baseline of `bench`, and shares nothing with the engine but the partition.
Out of scope: the SQL (`capture`), the state (`maintain.partials`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from impctl.aliases import AccessId, TableName, TableVersion
from impctl.app.frames import tagged_frame
from impctl.app.loading import is_loaded_here, loaded
from impctl.app.prepared import PreparedQuery
from impctl.app.restored import capture_way
from impctl.app.workbench import Workbench
from impctl.capture.render import render_plan
from impctl.data.vector import Ints
from impctl.errors import EvaluationError
from impctl.maintain.compile import Compiled
from impctl.maintain.partials import Partials
from impctl.maintain.session import MaintainedQuery
from impctl.maintain.touch import TouchedQuery
from impctl.maintain.way import Way
from impctl.plan.nodes import Scan
from impctl.plan.safety import Verdict
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition
from impctl.tables.snapshot import DataFile, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_VIEW = "impctl_pass"


@dataclass(frozen=True, slots=True)
class Filled:
    """A circuit that stands at the pinned version, and who filled it."""

    session: MaintainedQuery
    uses_spark: bool


def filled_circuit(
    bench: Workbench,
    prepared: PreparedQuery,
    way: Way,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
) -> Filled | None:
    """A session whose circuit, that of `way`, stands at the pinned versions of its tables.

    By the engine where that is quicker and possible; else from a pass of Spark; None where neither
    comes to a state, and the sketch alone has to be captured.
    """
    compiled = _compiled(way)
    if is_loaded_here(bench, compiled):
        session = loaded(bench, compiled, partitions)
        if session is not None:
            return Filled(session, uses_spark=bool(compiled.distant))
        if compiled.chain is None:
            return None
        # Part of the table already went through that circuit.
        compiled = _compiled(capture_way(bench, prepared, verdict, partitions))
    try:
        return Filled(_from_partials(bench, compiled, partitions), uses_spark=True)
    except EvaluationError:
        # The pass, or the engine on its result, met a value it cannot compute. If Spark cannot
        # compute it either, the capture of the sketch alone fails and says so.
        return None


def _compiled(way: Way) -> Compiled:
    assert way.compiled is not None
    return way.compiled


def _from_partials(
    bench: Workbench,
    compiled: Compiled,
    partitions: Mapping[AccessId, RangePartition],
) -> MaintainedQuery:
    chain = compiled.chain
    assert chain is not None
    scan = chain.scan
    partition = partitions[scan.access]
    snapshot = bench.snapshot(scan.table)
    pass_ = chain.partials()
    table = run_pass(bench, scan, partition, pass_, snapshot)
    if pass_.needs_specials(table):
        pass_ = chain.partials(counts_specials=True)
        table = run_pass(bench, scan, partition, pass_, snapshot)
    session = MaintainedQuery(compiled)
    session.fill(pass_, table, partition)
    counted = counted_rows(bench, pass_, table, partition, snapshot)
    session.range_rows.fill(partition, counted)
    return session


def counted_rows(
    bench: Workbench,
    pass_: Partials,
    table: pa.Table,
    partition: RangePartition,
    snapshot: Snapshot,
    files: Sequence[DataFile] | None = None,
) -> Ints:
    """Rows per fragment of what a pass went over, by its result `table` where that tells."""
    counted = pass_.rows_told_by(table, partition)
    return rows_by_spark(bench, partition, snapshot, files) if counted is None else counted


def touched(
    bench: Workbench,
    partitions: Mapping[AccessId, RangePartition],
    found: Mapping[AccessId, FragmentSet],
) -> TouchedQuery:
    """What touch mode remembers of its one sketch, at the pinned version."""
    ((access, partition),) = partitions.items()
    query = TouchedQuery(partition, found[access])
    snapshot = bench.snapshot(partition.table)
    query.range_rows.fill(partition, rows_by_spark(bench, partition, snapshot))
    return query


def rows_by_spark(
    bench: Workbench,
    partition: RangePartition,
    snapshot: Snapshot,
    files: Sequence[DataFile] | None = None,
) -> Ints:
    """Rows per fragment of a snapshot or some of its files: one column, read by Spark."""
    from impctl.spark.fragments import rows_per_fragment
    from impctl.spark.snapshots import snapshot_frame

    frame = snapshot_frame(bench.spark(), snapshot, [partition.attribute], files)
    return rows_per_fragment(frame, partition)


def run_pass(
    bench: Workbench,
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
    frame = tagged_frame(bench, snapshot, columns, partitioned, files)
    rendered = render_plan(pass_.plan, {scan.access: _VIEW})
    versions = {scan.table: snapshot.version}
    return run_sql(bench.spark(), rendered.sql, {_VIEW: frame}, versions=versions)


def recaptured(
    bench: Workbench,
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    versions: Mapping[TableName, TableVersion] | None = None,
) -> Mapping[AccessId, FragmentSet]:
    """The sketches alone, at `versions` (default: the pinned ones)."""
    from impctl.spark.sketches import capture_sketches
    from impctl.spark.snapshots import snapshot_frame

    at = versions if versions is not None else {}
    frames = {}
    for scan in prepared.scans:
        snapshot = bench.snapshot(scan.table, at.get(scan.table))
        names = [attribute.name for attribute in scan.attributes]
        if scan.access in partitions:
            names.append(partitions[scan.access].attribute)
        columns = list(dict.fromkeys(names))
        frames[scan.access] = snapshot_frame(bench.spark(), snapshot, columns)
    query = prepared.planned
    return capture_sketches(bench.spark(), query, verdict, partitions, frames, versions=at)
