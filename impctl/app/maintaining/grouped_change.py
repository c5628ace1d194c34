"""A large change of one table, selected and grouped by Spark before it reaches the engine.

Law: sketch and state are those that the changed rows would have led to one by one. Spark reads the
files in which the two versions differ; rows that are in files of both cancel out in the state. So
neither the change nor its rows need fit this process: only one row per group and fragment does.
Only a plan over one table whose first grouping partial aggregates can feed goes this way.
Out of scope: small changes (`app.maintaining.changes`), filling a fresh circuit
(`app.capturing.fill`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.capturing.fill_by_spark import counted_rows, run_pass
from impctl.app.maintaining.changes import Need, SharedChanges
from impctl.app.preparing.facts import broken_assumption
from impctl.app.preparing.wanted_files import files_of_table
from impctl.app.workbench.settings import Settings, large_change_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.builder import Partials
from impctl.compile.compile import Compiled
from impctl.compile.session import GroupedRows
from impctl.expr.nodes import ColumnRef
from impctl.safety.facts import FactKind, broken_by
from impctl.sketch.partition import RangePartition
from impctl.spark.expressions import DIALECT, render_expr
from impctl.store.records import Assumption
from impctl.tables.changes import changed_files, check_same_columns, files_mark
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.source import other_history
from impctl.types import AccessId
from impctl.values import dataclass

_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class GroupedChange:
    """What came and what went between two versions, grouped by the same pass."""

    pass_: Partials
    came: GroupedRows
    went: GroupedRows
    partition: RangePartition

    @property
    def rows(self) -> int:
        """Rows of the files that differ."""
        return int(self.came.range_rows.sum() + self.went.range_rows.sum())


def is_large(
    shared: SharedChanges, settings: Settings, compiled: Compiled | None, needs: Sequence[Need]
) -> bool:
    """Whether Spark is to group the change first: enough bytes changed, and the plan allows it."""
    if compiled is None or compiled.chain is None or len(needs) != 1:
        return False
    commits = shared.commits(needs[0])
    limit = large_change_of(settings) * _MEGABYTE
    return commits is not None and commits.changed_bytes > limit


def grouped_change(
    desk: Workbench,
    compiled: Compiled,
    partitions: Mapping[AccessId, RangePartition],
    need: Need,
    assumptions: Sequence[Assumption],
) -> GroupedChange:
    """The change, read and grouped by Spark.

    Raises AssumptionBrokenError for an inserted row that breaks what made the sketch safe,
    SchemaChangedError, HistoryGoneError and TableRecreatedError as reading the change would.
    """
    chain = compiled.chain
    assert chain is not None
    partition = partitions[chain.scan.access]
    before = desk.tables.snapshot(need.table, need.since)
    after = desk.tables.snapshot(need.table, need.until)
    check_same_columns(before.columns, before.version, after, need.columns)
    if need.held is not None and files_mark(before).digest != need.held.digest:
        raise other_history(desk.tables.source(need.table))
    files = changed_files(before, after)
    desk.reporter.step(f"grouping the change of {need.table} with Spark")
    sides = ((after, files.came), (before, files.went))
    _recheck(desk, after, files.came, assumptions)
    pass_ = chain.partials()
    read = [(snapshot, _left(compiled, snapshot, files)) for snapshot, files in sides]
    tables = [run_pass(desk, chain.scan, partition, pass_, *side) for side in read]
    if any(pass_.needs_specials(table) for table in tables):
        pass_ = chain.partials(counts_specials=True)
        tables = [run_pass(desk, chain.scan, partition, pass_, *side) for side in read]
    came, went = (
        GroupedRows(table, counted_rows(desk, pass_, table, partition, *side))
        for table, side in zip(tables, sides, strict=True)
    )
    return GroupedChange(pass_, came, went, partition)


def _left(compiled: Compiled, snapshot: Snapshot, files: Sequence[DataFile]) -> list[DataFile]:
    """Of these files those with rows that come through the conditions right above the access."""
    kept = {file.uri for file in files_of_table(snapshot, compiled)}
    return [file for file in files if file.uri in kept]


def _recheck(
    desk: Workbench,
    snapshot: Snapshot,
    files: Sequence[DataFile],
    assumptions: Sequence[Assumption],
) -> None:
    """AssumptionBrokenError where a row of the files breaks an assumption about its table."""
    from impctl.spark.snapshots import snapshot_frame

    for assumption in assumptions:
        if assumption.table != snapshot.table:
            continue
        frame = snapshot_frame(desk.spark(), snapshot, [assumption.column], files)
        if not frame.where(_broken_by(snapshot, assumption)).isEmpty():
            raise broken_assumption(assumption)


def _broken_by(snapshot: Snapshot, assumption: Assumption) -> str:
    """The condition, as Spark's SQL, that is true of a row that breaks the assumption."""
    column = snapshot.column(assumption.column)
    broken = broken_by(FactKind(assumption.kind), ColumnRef(column.name, column.type))
    return render_expr(broken, {column.name: column.name}).sql(DIALECT)
