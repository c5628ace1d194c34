"""The pass that finds a query's sketches alone, by Spark.

Law: reads exactly the versions it is given, natively from the file list; of each access the files
that the query's conditions and joins leave, as a query does. It is the fastest capture
there is for the sketch, the oracle of `verify` and the baseline of `bench`, and shares nothing
with the engine but the partition. Where it holds the lineage of the answer alone, Spark goes back
from the answer by itself. Where a sketch holds one derivation of each row of a fixpoint,
which one is the engine's choice: it is held against the rows themselves.
Out of scope: the SQL (`capture`), state to maintain it (`app.capturing.fill`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from impctl.app.capturing.kept_plan import KeptPlan, kept_plan
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.preparing.wanted_files import wanted_files
from impctl.app.workbench.recursion_limits import limits_of
from impctl.app.workbench.workbench import Workbench
from impctl.plan.nodes import Fixpoint, scans_of
from impctl.plan.recursion import is_recursive, outer_fixpoints
from impctl.safety.judge import Verdict
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet
from impctl.types import AccessId, QueryName, TableName, TableVersion
from impctl.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def recaptured(
    desk: Workbench,
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    versions: Mapping[TableName, TableVersion] | None = None,
) -> Mapping[AccessId, FragmentSet]:
    """The sketches alone, at `versions` (default: the pinned ones)."""
    at = versions if versions is not None else {}
    return _Pass.of(desk, prepared, verdict, partitions, at).sketches()


def needed(
    desk: Workbench,
    prepared: PreparedQuery,
    verdict: Verdict,
    held: Mapping[AccessId, tuple[RangePartition, FragmentSet]],
    versions: Mapping[TableName, TableVersion],
) -> Mapping[AccessId, FragmentSet]:
    """What the sketches `held` have to hold, at these versions.

    That is what a recapture has; but of derivations of which one for each row is enough those that
    are held, if over them all rows are derived. Then only what no derivation uses is held in vain.
    """
    partitions = {access: partition for access, (partition, _) in held.items()}
    one = _Pass.of(desk, prepared, verdict, partitions, versions)
    result = dict(one.sketches())
    fragments = {access: kept for access, (_, kept) in held.items()}
    for fixpoint in outer_fixpoints(one.kept.query.root):
        if fixpoint.chooses and one.derives_all(fixpoint, fragments):
            for access in {scan.access for scan in scans_of(fixpoint)} & held.keys():
                unneeded = result[access].minus(fragments[access])
                result[access] = result[access].minus(unneeded)
    return result


@dataclass(frozen=True, slots=True)
class _Pass:
    """One reading of the tables at some versions."""

    desk: Workbench
    name: QueryName
    kept: KeptPlan
    partitions: Mapping[AccessId, RangePartition]
    versions: Mapping[TableName, TableVersion]
    frames: Mapping[AccessId, DataFrame]

    @classmethod
    def of(
        cls,
        desk: Workbench,
        prepared: PreparedQuery,
        verdict: Verdict,
        partitions: Mapping[AccessId, RangePartition],
        at: Mapping[TableName, TableVersion],
    ) -> _Pass:
        from impctl.spark.snapshots import snapshot_frame

        frames = {}
        snapshots = {
            scan.access: desk.tables.snapshot(scan.table, at.get(scan.table))
            for scan in prepared.scans
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
        return cls(desk, prepared.spec.name, kept, partitions, at, frames)

    def sketches(self) -> Mapping[AccessId, FragmentSet]:
        """The accurate ones; of fixpoints those of all derivations, of all rows or of those that
        the answer stems from."""
        from impctl.spark.recursion import capture_recursive
        from impctl.spark.sketches import capture_sketches

        kept, at = self.kept, self.versions
        asked = (self.desk.spark(), kept.query, kept.verdict, self.partitions, self.frames)
        if is_recursive(kept.query.root):
            limits = limits_of(self.desk)
            return capture_recursive(*asked, versions=at, limits=limits, tell=self._tell)
        return capture_sketches(*asked, versions=at)

    def derives_all(self, fixpoint: Fixpoint, held: Mapping[AccessId, FragmentSet]) -> bool:
        """Whether over the sketches the fixpoint has all its rows."""
        from impctl.spark.recursion import derives_all

        return derives_all(
            self.desk.spark(),
            fixpoint,
            self.partitions,
            held,
            self.frames,
            versions=self.versions,
            limits=limits_of(self.desk),
            tell=self._tell,
        )

    def _tell(self, line: str) -> None:
        self.desk.reporter.step(f"{self.name}: {line}")
