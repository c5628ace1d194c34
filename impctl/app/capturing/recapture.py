"""The pass that finds a query's sketches alone, by Spark.

Law: reads exactly the versions it is given, natively from the file list; of each access the files
that the query's conditions and joins leave, as a query does. It is the fastest capture
there is for the sketch, the oracle of `verify` and the baseline of `bench`, and shares nothing
with the engine but the partition.
Out of scope: the SQL (`capture`), state to maintain it (`app.capturing.fill`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from impctl.aliases import AccessId, TableName, TableVersion
from impctl.app.capturing.kept_plan import kept_plan
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.preparing.wanted_files import wanted_files
from impctl.app.workbench.recursion_limits import limits_of
from impctl.app.workbench.workbench import Workbench
from impctl.plan.fixpoint_tables import is_recursive
from impctl.plan.safety.verdict import Verdict
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition

if TYPE_CHECKING:
    pass


def recaptured(
    desk: Workbench,
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    versions: Mapping[TableName, TableVersion] | None = None,
) -> Mapping[AccessId, FragmentSet]:
    """The sketches alone, at `versions` (default: the pinned ones)."""
    from impctl.spark.recursive_sketches import capture_recursive
    from impctl.spark.sketches import capture_sketches
    from impctl.spark.snapshots import snapshot_frame

    at = versions if versions is not None else {}
    frames = {}
    snapshots = {
        scan.access: desk.tables.snapshot(scan.table, at.get(scan.table)) for scan in prepared.scans
    }
    kept = kept_plan(prepared, verdict, partitions)
    left = wanted_files(kept.query.root, snapshots)
    for scan in prepared.scans:
        snapshot = snapshots[scan.access]
        names = [attribute.name for attribute in scan.attributes]
        if scan.access in partitions:
            names.append(partitions[scan.access].attribute)
        columns = list(dict.fromkeys(names))
        files = [file for file in snapshot.files if file.uri in left[scan.access]]
        frames[scan.access] = snapshot_frame(desk.spark(), snapshot, columns, files)
    spark = desk.spark()
    asked = (spark, kept.query, kept.verdict, partitions, frames)
    if is_recursive(kept.query.root):
        return capture_recursive(*asked, versions=at, limits=limits_of(desk))
    return capture_sketches(*asked, versions=at)
