"""Range filters of a query's sketches, and the files that they and its conditions keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.vector import from_arrow
from impctl.expr.nodes import And, Expr
from impctl.plan.nodes import Plan, Select
from impctl.plan.properties import scan_conditions
from impctl.plan.recursion import is_recursive
from impctl.rules.pushdown import ColumnTie, ScanColumn, push_selections, tied_columns
from impctl.safety.judge import Judges, keyed_groups
from impctl.sketch.sketch import (
    MAX_INTERVALS,
    BoundaryValue,
    Interval,
    RangeFilter,
    RangeSet,
    range_filter,
)
from impctl.spark.expressions import DIALECT, boundary
from impctl.spark.predicates import Guard, place_filters, table_filters
from impctl.tables.files import hiding_columns
from impctl.tables.rows import ReadPart, parted_read, read_rows
from impctl.tables.snapshot import DataFile, Snapshot, bytes_of
from impctl.tables.statistics import (
    file_bounds,
    key_spans,
    prune,
    prune_by_condition,
    prune_to_values,
)
from impctl.types import AccessId, AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.compile import Dataflow
    from impctl.compile.flows import Source
    from impctl.service.context import Versions
    from impctl.service.pinned import PinnedTables
    from impctl.service.prepare import PreparedQuery
    from impctl.store.records import StoredSketch


Snapshots = Mapping[AccessId, Snapshot]


# Files that a query's conditions keep of each access. Law: a file is skipped only if statistics
# prove that no row passes the conditions right above the access (`files_by_conditions`), or that
# the result is the same without it, by conditions on joined columns and the other side's remaining
# files (`wanted_files`). Circuits store rows that have no partner yet and are filled from the
# former.


def wanted_files(
    root: Plan, snapshots: Snapshots, filters: Mapping[AccessId, RangeFilter] | None = None
) -> Uris:
    """The files each access may need by its range filter, conditions right above it, conditions
    right above others on shared join columns, and join partners."""
    ties = tied_columns(root)
    left = _remaining(root, snapshots, {} if filters is None else filters, ties)
    narrow(ties, snapshots, left)
    return left


def files_by_conditions(snapshot: Snapshot, source: Source) -> tuple[DataFile, ...]:
    """The files with rows that may pass the conditions on a source."""
    if not source.conditions:
        return snapshot.files
    columns = {identity: name for identity, name, _ in source.scan.columns}
    return _prune(snapshot, source.conditions, columns)


def files_satisfying(
    snapshot: Snapshot, source: Source, alternatives: Sequence[Sequence[Expr]]
) -> tuple[DataFile, ...]:
    """The files with rows that may satisfy all of one of these lists of conditions."""
    columns = {identity: name for identity, name, _ in source.scan.columns}
    uris = {
        file.uri for conditions in alternatives for file in _prune(snapshot, conditions, columns)
    }
    return tuple(file for file in snapshot.files if file.uri in uris)


def files_under(rows: Plan, conditions: Sequence[Expr], snapshot: Snapshot) -> set[str]:
    """The files under a plan over one table with rows that may satisfy all conditions."""
    (scan,) = rows.scans
    plan = push_selections(Select(rows, And(tuple(conditions)))) if conditions else rows
    return wanted_files(plan, {scan.access: snapshot})[scan.access]


def files_of_table(
    snapshot: Snapshot, compiled: Dataflow, sources: Collection[int] | None = None
) -> tuple[DataFile, ...]:
    """The files of a table needed to fill a circuit's sources, or `sources` alone, given what is
    known of the scalars that select their rows."""
    uris: set[str] = set()
    for index, source in enumerate(compiled.sources):
        if source.table != snapshot.table or (sources is not None and index not in sources):
            continue
        files = {file.uri for file in files_by_conditions(snapshot, source)}
        for join in compiled.distant:
            known = join.operator.known_condition()
            if known is not None and join.sides[0].reads(source.access):
                files &= files_under(join.sides[0].rows, (known,), snapshot)
        uris |= files
    return tuple(file for file in snapshot.files if file.uri in uris)


def files_by_table(snapshots: Snapshots, left: Uris) -> dict[TableName, tuple[DataFile, ...]]:
    """The files that some access needs, by table, in snapshot order."""
    uris: dict[TableName, set[str]] = {}
    for access, snapshot in snapshots.items():
        uris.setdefault(snapshot.table, set()).update(left[access])
    tables = {snapshot.table: snapshot for snapshot in snapshots.values()}
    return {
        table: tuple(file for file in snapshot.files if file.uri in uris[table])
        for table, snapshot in tables.items()
    }


def _remaining(
    root: Plan,
    snapshots: Snapshots,
    filters: Mapping[AccessId, RangeFilter],
    ties: Sequence[ColumnTie],
) -> Uris:
    conditions, scans = scan_conditions(root), root.scans
    implied: dict[AccessId, list[Expr]] = {scan.access: [] for scan in scans}
    for tied in ties:
        joined = {tied.to.attribute.id}
        refs: dict[AttributeId, Expr] = {tied.to.attribute.id: tied.column.attribute.ref()}
        implied[tied.column.access] += (
            condition.substitute(refs)
            for condition in conditions.get(tied.to.access, ())
            if condition.columns == joined
        )
    left: Uris = {}
    for scan in scans:
        snapshot, result = snapshots[scan.access], filters.get(scan.access)
        chosen = snapshot.files if result is None else prune(snapshot, [result])
        uris = {file.uri for file in chosen}
        asked_conditions = (*conditions.get(scan.access, ()), *implied[scan.access])
        if asked_conditions:
            columns = {attribute.id: attribute.name for attribute in scan.attributes}
            uris &= {file.uri for file in _prune(snapshot, asked_conditions, columns)}
        left[scan.access] = uris
    return left


def _prune(
    snapshot: Snapshot, conditions: Sequence[Expr], columns: Mapping[AttributeId, ColumnName]
) -> tuple[DataFile, ...]:
    return prune_by_condition(snapshot, And(tuple(conditions)), columns)


# Files without partners on a join's other side, once that side is narrowed. Law: the result over
# the remaining files is the result. An access's side of a tie is judged by all its remaining rows,
# and each tie is applied to what the ties before it left.

_FEW_ROWS = 50_000
"""Keys of so many rows are read: some milliseconds."""
_TIMES_AS_LARGE = 50
_ROUNDS = 3

Uris = dict[AccessId, set[str]]


def narrow(ties: Sequence[ColumnTie], snapshots: Snapshots, left: Uris) -> None:
    """Drop files without join partners, by access."""
    for _ in range(_ROUNDS):
        if not [tied for tied in ties if _has_narrowed(tied, snapshots, left)]:
            return


def _has_narrowed(tied: ColumnTie, snapshots: Snapshots, left: Uris) -> bool:
    """Apply one tie; returns whether it dropped files."""
    uris, access = left[tied.column.access], tied.column.access
    columns = (tied.column, tied.to)
    if len(uris) < 2 or not all(_is_known(column, snapshots) for column in columns):  # noqa: PLR2004
        return False
    meeting = _files_matching(tied, snapshots, left)
    if meeting is None or uris <= meeting:
        return False
    left[access] = uris & meeting
    return True


def _is_known(column: ScanColumn, snapshots: Snapshots) -> bool:
    snapshot, attribute = snapshots[column.access], column.attribute
    result = snapshot.schema.find(attribute.name)
    if result is None or result.type != attribute.type:
        return False
    return result.name not in snapshot.columns.opaque


def _files_matching(tied: ColumnTie, snapshots: Snapshots, left: Uris) -> set[str] | None:
    """Files of the tied column that may hold a value of the other one; None for all. The other
    column's values are read if that is cheap compared with what they may skip."""
    snapshot, other = snapshots[tied.column.access], snapshots[tied.to.access]
    accesses = (access for access, one in snapshots.items() if one.table == other.table)
    uris = set[str]().union(*(left[access] for access in accesses))
    files = [file for file in other.files if file.uri in uris]
    rows = [file.rows for file in files]
    size = bytes_of(file for file in snapshot.files if file.uri in left[tied.column.access])
    is_small = None not in rows and sum(count or 0 for count in rows) <= _FEW_ROWS
    name, attribute = tied.column.attribute.name, tied.to.attribute
    if is_small and size >= _TIMES_AS_LARGE * bytes_of(files):
        column = read_rows(other, [attribute.name], files).column(0)
        vector = from_arrow(column, other.readable(attribute.name).type)
        keys = vector.take(np.flatnonzero(vector.validity()))
        return {file.uri for file in prune_to_values(snapshot, {name: keys})}
    is_seen = np.array([uri in uris for uri in other.uris], dtype=np.bool_)
    spans = key_spans(file_bounds(other, attribute.name).keep(is_seen))
    if spans is None:
        return None
    meets = spans.meets(file_bounds(snapshot, name))
    return {snapshot.uris[index] for index in np.flatnonzero(meets).tolist()}


# Files that sketches and conditions keep. Law: a filter has every row that the sketch covers. A
# file is skipped only if statistics prove that it has no row of the *filter*, or none that passes
# the conditions right above the access. All rows of a range that passes are read, because a partial
# group may pass where the whole does not. An access with neither reads everything.

_SHOWN = MAX_INTERVALS
"""Intervals of a filter shown to people; a read in parts may have hundreds."""


class Pruned(Struct, frozen=True):
    """What a query reads at these versions through these sketches: filters by access, and per table
    the files that some access may need. `parts`: how a table is read whose only access has a
    filter; together these may have more intervals than a text can."""

    versions: Versions
    sketches: tuple[StoredSketch, ...]
    filters: Mapping[AccessId, RangeFilter]
    files: Mapping[TableName, tuple[DataFile, ...]]
    files_total: int
    parts: Mapping[TableName, tuple[ReadPart, ...]]

    @property
    def files_kept(self) -> int:
        return sum(len(files) for files in self.files.values())


def filters_of(
    tables: PinnedTables,
    prepared: PreparedQuery,
    sketches: Sequence[StoredSketch],
    versions: Versions,
    *,
    for_text: bool = False,
    by_table: bool = False,
    limit: int = MAX_INTERVALS,
) -> Pruned:
    """What the sketches say of each access, at their versions. `for_text`: by the few ranges that a
    text can have, nothing read in parts; with `by_table`, filters apply to a table's rows before
    the query reads them. A filter has at most `limit` intervals, unless its table is read in
    parts."""
    sketches = united_groups(prepared, sketches)
    ranges = {
        sketch.access: range_filter(sketch.ranges, sketch.partition, limit=limit)
        for sketch in sketches
    }
    if by_table:
        # Accesses of one table have one filter there, and so have those of a group.
        filters = table_filters(prepared.query, ranges)
    else:
        filters = place_filters(prepared.query, ranges, groups_of(prepared, sketches))
    parts: dict[TableName, tuple[ReadPart, ...]] = {}
    accesses = Counter(scan.table for scan in prepared.query.root.scans)
    for sketch in () if for_text else sketches:
        table = sketch.partition.table
        if accesses[table] != 1:
            continue
        snapshot = tables.snapshot(table, versions.get(table))
        read = parted_read(snapshot, sketch.ranges, sketch.partition)
        filters[sketch.access], parts[table] = read.wanted, read.parts
    snapshots = {
        scan.access: tables.snapshot(scan.table, versions.get(scan.table))
        for scan in prepared.scans
    }
    files = files_by_table(snapshots, wanted_files(prepared.root, snapshots, filters))
    for table in parts:
        uris = {file.uri for file in files[table]}
        narrowed = (part.within(uris) for part in parts[table])
        parts[table] = tuple(part for part in narrowed if part.files)
    total = sum(len(tables.snapshot(t, versions.get(t)).files) for t in files)
    return Pruned(versions, sketches, filters, files, total, parts)


def files_in(tables: PinnedTables, versions: Versions) -> int:
    """How many files the tables have, read or not."""
    return sum(len(tables.snapshot(*pinned).files) for pinned in versions.items())


def guards_of(tables: PinnedTables, pruned: Pruned) -> dict[TableName, Guard]:
    """The columns to guard, by table, in the files to read."""
    guards: dict[TableName, Guard] = {}
    for table, files in pruned.files.items():
        snapshot = tables.snapshot(table, pruned.versions.get(table))
        hiding = hiding_columns(snapshot, files=files)
        if hiding:
            guards[table] = Guard(hiding, snapshot.schema.names)
    return guards


def interval_texts(result: RangeFilter) -> tuple[str, ...]:
    """The filter's intervals as text, such as `price >= 1001`."""
    name = result.partition.attribute
    texts = [_interval_text(name, interval, result) for interval in result.intervals]
    if len(texts) > _SHOWN:
        texts = [*texts[:_SHOWN], f"{len(texts) - _SHOWN} more ranges"]
    return (*texts, f"{name} is NULL") if result.includes_null else tuple(texts)


def _interval_text(name: str, interval: Interval, result: RangeFilter) -> str:
    low = None if interval.low is None else _boundary_text(interval.low, result)
    high = None if interval.high is None else _boundary_text(interval.high, result)
    if low is None and high is None:
        return f"{name} is not NULL"
    if low is None:
        return f"{name} < {high}"
    return f"{name} >= {low}" if high is None else f"{low} <= {name} < {high}"


def _boundary_text(value: BoundaryValue, result: RangeFilter) -> str:
    return boundary(value, result.partition.type).sql(DIALECT)


# Accesses below a keyed fixpoint share one sketch. Law: rows of a keyed fixpoint are complete or
# absent only if all its accesses read the same ranges. This holds for any fixpoint that can be
# keyed, even if its sketches were captured at its barrier: a wider sketch gives the same answer.

Groups = Collection[frozenset[AccessId]]


def groups_of(prepared: PreparedQuery, sketches: Sequence[StoredSketch]) -> Groups:
    """Per fixpoint that can be keyed with these sketches, the accesses that share a filter: by the
    plan that runs, and by the plan that sketches are maintained by."""
    judges, result = Judges(), set[frozenset[AccessId]]()
    for root in (prepared.core, prepared.root):
        if sketches and is_recursive(root):
            by = judges.of(replace(prepared.query, root=root))
            attributes = {s.access: s.attribute for s in sketches if s.access in by.accesses}
            result.update(keyed_groups(root, attributes, by))
    return result


def united_groups(
    prepared: PreparedQuery, sketches: Sequence[StoredSketch]
) -> tuple[StoredSketch, ...]:
    """The sketches, each group united; none if their ranges differ."""
    result = {sketch.access: sketch for sketch in sketches}
    for group in groups_of(prepared, sketches):
        shared = [result.pop(access) for access in group if access in result]
        if len({sketch.partition.id for sketch in shared}) == 1:
            ids = {id_ for sketch in shared for id_ in sketch.ranges.ids}
            union = RangeSet.of(sorted(ids), shared[0].partition.size)
            result |= {sketch.access: replace(sketch, ranges=union) for sketch in shared}
    return tuple(result[sketch.access] for sketch in sketches if sketch.access in result)


# Law: the same items in the same order; one item is prefetched, so memory is that of two.

_FIRST_SLICE = 1_000
_LEAST_SLICE, _GROWTH = 100, 8
_JOINED_AT_ONCE = 8_000_000
"""Joined rows of a slice: some hundreds of MB, and many enough for NumPy."""
_ROOM = 1_600
"""Bytes of the limit per joined row of a slice, which several operators copy a few times."""

T = TypeVar("T")


def one_ahead(items: Iterator[T], reader: Executor) -> Iterator[T]:
    """The items; `reader` makes the next one while one is worked on."""
    # The same memory limit holds in the reader's thread.
    context = copy_context()

    def ahead() -> T | None:
        return next(items, None)

    following = reader.submit(context.run, ahead)
    while (item := following.result()) is not None:
        following = reader.submit(context.run, ahead)
        yield item


class Slices:
    """Rows of tables in turn, cut into slices with a bounded number of joined rows, learned from
    the slice before. `check` is called after each slice; `limit`: bytes that the run may take."""

    def __init__(self, compiled: Dataflow, limit: int | None, check: Callable[[], None]) -> None:
        self._circuit, self._check = compiled.circuit, check
        self._most = _JOINED_AT_ONCE
        if limit is not None:
            self._most = min(self._most, limit // _ROOM)
        self._size = _FIRST_SLICE if compiled.writes_joins else None

    def of(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The rows; work on each slice before requesting the next."""
        start = 0
        while start < len(rows):
            # A slice of rows without columns has the requested length, whatever their number.
            part = rows.slice(start, min(self._size or len(rows), len(rows) - start))
            before = self._circuit.joined_rows
            yield part
            self._check()
            joined = self._circuit.joined_rows - before
            start += len(part)
            if self._size is not None:
                size = self._most * len(part) // max(joined, len(part))
                # Sides fill meanwhile, so this says little about far longer slices.
                self._size = max(_LEAST_SLICE, min(size, _GROWTH * len(part)))
