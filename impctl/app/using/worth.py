"""Whether a sketch is worth its filter: what it leaves out against what asking every row costs.

Law: what is decided changes what is read, never the answer; where a sketch is left away, all is
read as if it were not there: of tables joined with its own, too, nothing is left out because of it.
The rates are measured on Spark (decision 0042).
Out of scope: what the sketch leaves to read (`app.preparing.filters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.preparing.filters import Pruned, filters_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.workbench.pinned import PinnedTables
from impctl.plan.nodes import Scan
from impctl.sketch.sketch import RangeFilter, fragments_between
from impctl.store.records import StoredSketch
from impctl.tables.rows import ReadPart
from impctl.tables.snapshot import bytes_of
from impctl.types import TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import SketchUse

_FILTERED, _FILTERED_BY_SHARE = 0.75, 0.65
"""What a byte read through a filter costs where a share of the rows passes: 0.75 of one read
without where hardly any does, 1.4 where all do."""
_ONE_MORE_PART, _MOST_PARTS = 0.25, 4
"""What each further part read through a filter of its own adds, up to so many parts."""
_ONE_MORE_COLUMN = 4.0
"""What decoding and asking a column costs that the query does not read, over its other columns."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What to read, what the query would read by its own conditions alone, and per table whose
    sketch is left away the reason."""

    pruned: Pruned
    plain: Pruned
    left_away: Mapping[TableName, str]


def what_is_read(tables: PinnedTables, result: Fresh, use: SketchUse) -> Weighed:
    """What the query reads through the sketches found for it; with `auto`, where they pay."""
    if use is SketchUse.AUTO:
        return weighed(tables, result.prepared, result.sketches, result.versions)
    pruned = filters_of(tables, result.prepared, result.sketches, result.versions)
    plain = filters_of(tables, result.prepared, (), result.versions)
    return Weighed(pruned, plain, {})


def worth_using(
    tables: PinnedTables, result: Fresh, use: SketchUse
) -> tuple[tuple[StoredSketch, ...], Mapping[TableName, str]]:
    """The sketches to read through, and per table whose own is left away the reason."""
    if use is not SketchUse.AUTO:
        return tuple(result.sketches), {}
    left_away = weighed(tables, result.prepared, result.sketches, result.versions).left_away
    return tuple(one for one in result.sketches if one.table not in left_away), left_away


def weighed(
    tables: PinnedTables,
    prepared: PreparedQuery,
    sketches: Sequence[StoredSketch],
    versions: Mapping[TableName, TableVersion],
) -> Weighed:
    """What the query reads through these sketches where they pay."""
    plain = filters_of(tables, prepared, (), versions)
    if not sketches:
        return Weighed(plain, plain, {})
    left_away: dict[TableName, str] = {}
    pruned = filters_of(tables, prepared, sketches, versions)
    while away := _not_worth_it(prepared, pruned, plain):
        left_away |= away
        # Anew: what a sketch leaves of its table narrows the tables that it is joined with.
        used = [sketch for sketch in sketches if sketch.table not in left_away]
        pruned = filters_of(tables, prepared, used, versions) if used else plain
    return Weighed(pruned, plain, left_away)


def _not_worth_it(prepared: PreparedQuery, pruned: Pruned, plain: Pruned) -> dict[TableName, str]:
    """The tables whose sketches cost more than they save, with the reason."""
    result: dict[TableName, str] = {}
    for table in prepared.tables:
        scans = [scan for scan in prepared.scans if scan.table == table]
        if any(scan.access in pruned.filters for scan in scans):
            total = bytes_of(plain.files[table])
            if _cost(scans, pruned, table) >= total:
                result[table] = _reason(pruned, plain, table)
    return result


def _cost(scans: list[Scan], pruned: Pruned, table: TableName) -> float:
    """Bytes read with the sketch, those through a filter at their rate."""
    filters = [pruned.filters[scan.access] for scan in scans if scan.access in pruned.filters]
    parts = pruned.parts.get(table)
    if parts is None:
        parts = (ReadPart(pruned.files[table], filters[0]),)
    inside = bytes_of(file for part in parts if part.filter is None for file in part.files)
    filtered = bytes_of(file for part in parts if part.filter is not None for file in part.files)
    if not filtered:
        return inside
    share = max(_share(wanted) for wanted in filters)
    columns = {attribute.name for scan in scans for attribute in scan.attributes}
    filtered_parts = sum(part.filter is not None for part in parts)
    rate = _FILTERED + _FILTERED_BY_SHARE * share
    rate += _ONE_MORE_PART * (min(filtered_parts, _MOST_PARTS) - 1)
    if not all(wanted.partition.attribute in columns for wanted in filters):
        rate += _ONE_MORE_COLUMN / max(len(columns), 1)
    return inside + filtered * rate


def _share(wanted: RangeFilter) -> float:
    """The share of the rows that pass, by ranges of the partition, which are about even."""
    partition = wanted.partition
    passing = sum(len(fragments_between(result, partition)) for result in wanted.intervals)
    return passing / partition.ranges


def _reason(pruned: Pruned, plain: Pruned, table: TableName) -> str:
    kept, total = len(pruned.files[table]), len(plain.files[table])
    if total == 1:
        return "it cannot skip the table's only file"
    if kept == total:
        return f"it skips none of the {total:,} files"
    costs = "checking rows against its ranges costs more"
    return f"it skips only {total - kept:,} of {total:,} files, and {costs}"
