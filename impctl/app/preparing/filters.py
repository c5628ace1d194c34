"""The range filters of a query's sketches, and the files that these and its conditions leave.

Law: a filter contains every row the sketch stands for; a file is left out only if its statistics
prove that it has no row of the *filter*, or none that the conditions right above the access keep:
of a fragment that the filter lets through all rows are read, those too that the sketch has no need
of, since a group seen in part may pass where the whole does not. An access with neither reads
everything.
Out of scope: SQL text (`capture.use`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from impctl.aliases import AccessId, TableName, TableVersion
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.pinned import PinnedTables
from impctl.capture.literals import DIALECT, boundary
from impctl.capture.use import Guard, place_filters
from impctl.expr.nodes import And, Expr
from impctl.plan.nodes import Scan
from impctl.plan.scan_conditions import scan_conditions
from impctl.sketch.intervals import Interval, RangeFilter, range_filter
from impctl.sketch.partition import BoundaryValue
from impctl.store.records import StoredSketch
from impctl.tables.hidden_values import hiding_columns
from impctl.tables.prune import prune
from impctl.tables.prune_condition import prune_by_condition
from impctl.tables.snapshot import DataFile, Snapshot


@dataclass(frozen=True, slots=True)
class Pruned:
    """Filters by access, and per table the files that some access may need."""

    filters: Mapping[AccessId, RangeFilter]
    files: Mapping[TableName, tuple[DataFile, ...]]
    files_total: int

    @property
    def files_kept(self) -> int:
        return sum(len(files) for files in self.files.values())


def filters_of(
    tables: PinnedTables,
    prepared: PreparedQuery,
    sketches: Sequence[StoredSketch],
    versions: Mapping[TableName, TableVersion],
) -> Pruned:
    """What the sketches say about each access, at the versions they stand for."""
    ranges = {
        sketch.access: range_filter(sketch.fragments, sketch.partition) for sketch in sketches
    }
    filters = place_filters(prepared.query, ranges)
    conditions = scan_conditions(prepared.root)
    files: dict[TableName, tuple[DataFile, ...]] = {}
    total = 0
    for table in prepared.tables:
        snapshot = tables.snapshot(table, versions.get(table))
        total += len(snapshot.files)
        kept: set[str] = set()
        for scan in prepared.scans:
            if scan.table == table:
                found, own = filters.get(scan.access), conditions.get(scan.access, ())
                kept |= _left(snapshot, scan, found, own)
        files[table] = tuple(file for file in snapshot.files if file.uri in kept)
    return Pruned(filters, files, total)


def _left(
    snapshot: Snapshot, scan: Scan, found: RangeFilter | None, conditions: Sequence[Expr]
) -> set[str]:
    """The files that an access may need, by its sketch and by the conditions right above it."""
    chosen = snapshot.files if found is None else prune(snapshot, [found])
    left = {file.uri for file in chosen}
    if conditions:
        columns = {attribute.id: attribute.name for attribute in scan.attributes}
        left &= {f.uri for f in prune_by_condition(snapshot, And(tuple(conditions)), columns)}
    return left


def guards_of(
    tables: PinnedTables, pruned: Pruned, versions: Mapping[TableName, TableVersion]
) -> dict[TableName, Guard]:
    """The columns to guard, by table, in the files that are left to read."""
    guards: dict[TableName, Guard] = {}
    for table, files in pruned.files.items():
        snapshot = tables.snapshot(table, versions.get(table))
        hiding = hiding_columns(snapshot, files=files)
        if hiding:
            guards[table] = Guard(hiding, snapshot.schema.names)
    return guards


def interval_texts(found: RangeFilter) -> tuple[str, ...]:
    """The filter's intervals for people, such as `price >= 1001`."""
    name = found.partition.attribute
    texts = [_interval_text(name, interval, found) for interval in found.intervals]
    return (*texts, f"{name} is NULL") if found.includes_null else tuple(texts)


def _interval_text(name: str, interval: Interval, found: RangeFilter) -> str:
    low = None if interval.low is None else _shown(interval.low, found)
    high = None if interval.high is None else _shown(interval.high, found)
    if low is None and high is None:
        return f"{name} is not NULL"
    if low is None:
        return f"{name} < {high}"
    return f"{name} >= {low}" if high is None else f"{low} <= {name} < {high}"


def _shown(value: BoundaryValue, found: RangeFilter) -> str:
    return boundary(value, found.partition.type).sql(DIALECT)
