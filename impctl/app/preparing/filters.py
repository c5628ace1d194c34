"""The range filters of a query's sketches, and the files that these and its conditions leave.

Law: a filter contains every row the sketch stands for; a file is left out only if its statistics
prove that it has no row of the *filter*, or none that the conditions right above the access keep:
of a fragment that the filter lets through all rows are read, those too that the sketch has no need
of, since a group seen in part may pass where the whole does not. An access with neither reads
everything.
Out of scope: SQL text (`spark.predicates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from impctl.app.preparing.keyed_sketches import evened, groups_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.preparing.wanted_files import files_by_table, wanted_files
from impctl.app.workbench.pinned import PinnedTables
from impctl.plan.nodes import scans_of
from impctl.sketch.partition import BoundaryValue
from impctl.sketch.sketch import MAX_INTERVALS, Interval, RangeFilter, range_filter
from impctl.spark.expressions import DIALECT, boundary
from impctl.spark.predicates import Guard, place_filters, table_filters
from impctl.store.records import StoredSketch
from impctl.tables.footers import hiding_columns
from impctl.tables.rows import ReadPart, parted_read
from impctl.tables.snapshot import DataFile
from impctl.types import AccessId, TableName, TableVersion
from impctl.values import dataclass

_SHOWN = MAX_INTERVALS
"""Intervals of a filter for people; a read in parts may have hundreds."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Filters by access, and per table the files that some access may need.

    `parts`: how a table is read whose only access has a filter; that filter, theirs together, may
    have more intervals than a text can.
    """

    filters: Mapping[AccessId, RangeFilter]
    files: Mapping[TableName, tuple[DataFile, ...]]
    files_total: int
    parts: Mapping[TableName, tuple[ReadPart, ...]] = field(default_factory=dict)

    @property
    def files_kept(self) -> int:
        return sum(len(files) for files in self.files.values())


def filters_of(
    tables: PinnedTables,
    prepared: PreparedQuery,
    sketches: Sequence[StoredSketch],
    versions: Mapping[TableName, TableVersion],
    *,
    for_text: bool = False,
    by_table: bool = False,
    limit: int = MAX_INTERVALS,
) -> Pruned:
    """What the sketches say about each access, at the versions they stand for.

    `for_text`: by the few ranges that a text can have, nothing read in parts; with `by_table`
    filters are such as can be asked of a table's rows before the query reads them. A filter has at
    most `limit` intervals, unless its table is read in parts.
    """
    sketches = evened(prepared, sketches)
    ranges = {
        sketch.access: range_filter(sketch.fragments, sketch.partition, limit=limit)
        for sketch in sketches
    }
    if by_table:
        # Accesses of one table have one filter there, and so have those of a group.
        filters = table_filters(prepared.query, ranges)
    else:
        filters = place_filters(prepared.query, ranges, groups_of(prepared, sketches))
    parts: dict[TableName, tuple[ReadPart, ...]] = {}
    for sketch in () if for_text else _alone(prepared, sketches):
        table = sketch.partition.table
        snapshot = tables.snapshot(table, versions.get(table))
        read = parted_read(snapshot, sketch.fragments, sketch.partition)
        filters[sketch.access], parts[table] = read.wanted, read.parts
    snapshots = {
        scan.access: tables.snapshot(scan.table, versions.get(scan.table))
        for scan in prepared.scans
    }
    left = wanted_files(prepared.root, snapshots, filters)
    files = files_by_table(snapshots, left)
    for table in parts:
        kept = {file.uri for file in files[table]}
        narrowed = (part.within(kept) for part in parts[table])
        parts[table] = tuple(part for part in narrowed if part.files)
    total = sum(len(tables.snapshot(t, versions.get(t)).files) for t in files)
    return Pruned(filters, files, total, parts)


def _alone(prepared: PreparedQuery, sketches: Sequence[StoredSketch]) -> Iterator[StoredSketch]:
    """The sketches of accesses that are the only one of their table."""
    accesses: dict[TableName, int] = {}
    for scan in scans_of(prepared.query.root):
        accesses[scan.table] = accesses.get(scan.table, 0) + 1
    return (sketch for sketch in sketches if accesses.get(sketch.partition.table) == 1)


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


def interval_texts(result: RangeFilter) -> tuple[str, ...]:
    """The filter's intervals for people, such as `price >= 1001`."""
    name = result.partition.attribute
    texts = [_interval_text(name, interval, result) for interval in result.intervals]
    if len(texts) > _SHOWN:
        texts = [*texts[:_SHOWN], f"{len(texts) - _SHOWN} more ranges"]
    return (*texts, f"{name} is NULL") if result.includes_null else tuple(texts)


def _interval_text(name: str, interval: Interval, result: RangeFilter) -> str:
    low = None if interval.low is None else _shown(interval.low, result)
    high = None if interval.high is None else _shown(interval.high, result)
    if low is None and high is None:
        return f"{name} is not NULL"
    if low is None:
        return f"{name} < {high}"
    return f"{name} >= {low}" if high is None else f"{low} <= {name} < {high}"


def _shown(value: BoundaryValue, result: RangeFilter) -> str:
    return boundary(value, result.partition.type).sql(DIALECT)
