"""Candidate partitions: boundaries as the file gives them, or equi-depth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from typing import TYPE_CHECKING

from impctl.data.schema import Column, Kind, SqlType
from impctl.errors import UsageError
from impctl.expr.numeric import INTEGRAL_BITS
from impctl.sketch.boundaries import aligned_boundaries, equidepth_boundaries
from impctl.sketch.sketch import PARTITIONABLE, BoundaryValue, RangePartition, RangeSet
from impctl.tables.sample import sample_values, starts_of, value_weights, with_overlaps
from impctl.tables.statistics import file_bounds
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.plan.nodes import Scan
    from impctl.service.context import Context
    from impctl.service.pinned import PinnedTables
    from impctl.service.prepare import PreparedQuery
    from impctl.tables.snapshot import ColumnBounds
    from impctl.types import AccessId, ColumnName, TableName
    from impctl.workload.models import BoundaryLiteral, PartitionSpec

# Labels of a query's accesses. Law: unique; the table's name if it is read once, else the alias if
# the text has one.

_ALIAS = re.compile(r"\s+(?:as\s+)?`?([a-z_]\w*)`?", re.IGNORECASE)
_CLAUSES = frozenset(
    (
        *("anti", "cluster", "cross", "distribute", "except", "full", "group", "having", "inner"),
        *("intersect", "join", "lateral", "left", "limit", "minus", "natural", "on", "order"),
        *("pivot", "qualify", "right", "semi", "sort", "tablesample", "union", "unpivot", "using"),
        *("where", "window"),
    )
)
"""Words that may follow a table's name and are no alias."""


def occurrences(prepared: PreparedQuery) -> Mapping[AccessId, str]:
    """`a`, `b` (aliases), or `1st`, `2nd`; empty for a table that is read once."""
    result: dict[AccessId, str] = {}
    for table in prepared.tables:
        scans = [scan for scan in prepared.scans if scan.table == table]
        names = [_alias(prepared.query.sql, scan) for scan in scans]
        has_distinct_names = "" not in names and len(set(names)) == len(names)
        for number, (scan, name) in enumerate(zip(scans, names, strict=True), start=1):
            ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
            ordinal = f"{number}{'th' if 10 < number % 100 < 14 else ending}"
            label = name if has_distinct_names else ordinal
            result[scan.access] = label if len(scans) > 1 else ""
    return result


def _alias(sql: str, scan: Scan) -> str:
    """The alias of an occurrence; empty if it equals the table's name or is not known."""
    if scan.span is None:
        return ""
    written = _ALIAS.match(sql, scan.span.end)
    return "" if written is None or written[1].lower() in _CLAUSES else written[1]


# Ranges. Law: a boundary is converted to the column's type exactly or refused with its location;
# nothing is rounded. Without candidates impctl proposes equi-depth ranges over the pinned version.

DEFAULT_RANGES = 1000
"""Ranges, unless the workload file or the table's files ask for more."""

MOST_RANGES = 1 << 15
"""Most ranges proposed, file overlaps aside: a sketch of some KB, which is read whole."""
_RANGES_PER_OVERLAP = 4
"""Ranges per overlapping file: more would skip hardly another file."""

SAMPLE_ROWS = 100_000
_SEED = 20_220_117
_EXACT_DIGITS = 500
_LARGEST_EXPONENT = 400
"""Beyond the range of every column type; keeps absurd numbers from being written out."""
_EPOCH = date(1970, 1, 1)
_DAYS = range((date.min - _EPOCH).days, (date.max - _EPOCH).days + 1)
"""Years of four digits, in which every date and timestamp has a text."""
_MICROSECONDS_A_DAY = 86_400 * 1_000_000


def is_partitionable(column: Column) -> bool:
    """Whether the column's type can have ranges."""
    return column.type.kind in PARTITIONABLE


def candidates(ctx: Context, table: TableName) -> tuple[ColumnName, ...]:
    """The file's candidate columns for a table, spelled as in the schema."""
    return tuple(
        _column(ctx.tables, part).name for part in ctx.workload.partitions if part.table == table
    )


def _spec(ctx: Context, table: TableName, name: ColumnName) -> PartitionSpec | None:
    parts = (part for part in ctx.workload.partitions if part.table == table)
    return next((part for part in parts if part.column.lower() == name.lower()), None)


def _requested_ranges(ctx: Context, table: TableName, name: ColumnName) -> int | None:
    spec = _spec(ctx, table, name)
    return None if spec is None else spec.ranges


def _column(tables: PinnedTables, part: PartitionSpec) -> Column:
    result = tables.snapshot(part.table).schema.find(part.column)
    if result is None:
        names = tables.snapshot(part.table).schema.names
        raise UsageError(
            f"Table `{part.table}` has no column `{part.column}` to partition",
            hint=suggestion(part.column, names, "its columns"),
            code="column_unknown",
            location=part.location,
        )
    if not is_partitionable(result):
        raise UsageError(
            f"Column `{part.table}.{result.name}` of type `{result.type}` cannot be split "
            "into ranges",
            hint="choose a column of a number, text, date or timestamp type",
            code="column_not_partitionable",
            location=part.location,
        )
    return result


def partition_of(
    ctx: Context, table: TableName, name: ColumnName, together: int = 1
) -> RangePartition:
    """The partition of a table on a column, given in the file or proposed. Every `together`
    proposed ranges are merged into one."""
    result = _given(ctx, table, name)
    if result is not None:
        return result

    def make() -> RangePartition:
        ctx.reporter.step(f"choosing ranges of {table}.{name}")
        snapshot = ctx.tables.snapshot(table)
        column = snapshot.readable(name)
        sample = sample_values(snapshot, name, SAMPLE_ROWS, _SEED)
        files = file_bounds(snapshot, column.name)
        weights, depth = value_weights(files, sample)
        requested = _requested_ranges(ctx, table, name)
        proposed = _proposed_ranges(depth, len(files)) // together
        count = max(proposed, DEFAULT_RANGES) if requested is None else requested
        boundaries = aligned_boundaries(weights, count, starts_of(files))
        return _fitted(table, column, boundaries, files if requested is None else None)

    version = ctx.tables.source(table).version
    return ctx.tables.fact(table, ("partition", version, name, together), make)


def partition_about(
    ctx: Context,
    table: TableName,
    name: ColumnName,
    values: Sequence[BoundaryValue],
    bounds: ColumnBounds,
    depth: float,
) -> RangePartition:
    """A quick `partition_of` from a sample of `values`, file bounds, and the mean files per
    value."""
    result = _given(ctx, table, name)
    if result is not None:
        return result
    snapshot = ctx.tables.snapshot(table)
    column = snapshot.readable(name)
    requested, starts = _requested_ranges(ctx, table, name), starts_of(bounds)
    count = _proposed_ranges(depth, len(snapshot.files)) if requested is None else requested
    boundaries = equidepth_boundaries(values, count)
    if len(starts) <= count:
        between = equidepth_boundaries(values, count - len(starts) + 1)
        boundaries = tuple(sorted({*starts, *between}))
    return _fitted(table, column, boundaries, bounds if requested is None else None)


def _fitted(
    table: TableName,
    column: Column,
    boundaries: Sequence[BoundaryValue],
    overlapping: ColumnBounds | None,
) -> RangePartition:
    """Ranges with boundaries of the column's type, refined by files that overlap, if given."""
    if overlapping is not None:
        boundaries = with_overlaps(boundaries, overlapping)
    # Statistics are rounded outwards, and the next value above a column's last is of no type.
    fitting = tuple(value for value in boundaries if _is_exact(value, column.type))
    return RangePartition(table, column.name, column.type, fitting)


def _given(ctx: Context, table: TableName, name: ColumnName) -> RangePartition | None:
    spec = _spec(ctx, table, name)
    column = ctx.tables.snapshot(table).schema.find(name)
    assert column is not None
    if spec is None or spec.boundaries is None:
        return None
    values = []
    for boundary in spec.boundaries:
        value = _converted(boundary, column)
        if value is None:
            raise UsageError(
                f"Boundary {boundary!r} is not a value of `{table}.{column.name}` "
                f"(`{column.type}`)",
                hint="write boundaries in the column's own type",
                code="boundary_type",
                location=spec.location,
            )
        values.append(value)
    return RangePartition(table, column.name, column.type, tuple(values))


def _proposed_ranges(depth: float, files: int) -> int:
    """As many ranges as files that hardly overlap, so that a range is in one or two files."""
    useful = files * min(1.0, _RANGES_PER_OVERLAP / max(depth, 1.0))
    return min(MOST_RANGES, max(DEFAULT_RANGES, round(useful)))


def ranges_to_spare(ctx: Context, table: TableName, name: ColumnName, ranges: int) -> int:
    """How many of these ranges can be merged into one; 1 where the file sets their number."""
    spec = _spec(ctx, table, name)
    is_asked = spec is not None and (spec.ranges is not None or spec.boundaries is not None)
    return 1 if is_asked else max(1, ranges // DEFAULT_RANGES)


def wanted_ranges(ctx: Context, partition: RangePartition) -> int:
    requested = _requested_ranges(ctx, partition.table, partition.attribute)
    return max(DEFAULT_RANGES, partition.ranges) if requested is None else requested


def values_within(ctx: Context, partition: RangePartition, ranges: RangeSet) -> list[BoundaryValue]:
    """A sample of the attribute's values in these ranges."""
    ctx.reporter.step(f"choosing ranges of {partition.table}.{partition.attribute}")
    snapshot = ctx.tables.snapshot(partition.table)
    within = (partition, ranges)
    return sample_values(snapshot, partition.attribute, SAMPLE_ROWS, _SEED, within)


def _converted(value: BoundaryLiteral, column: Column) -> BoundaryValue | None:
    """A boundary of the file in the column's canonical form; None if it does not fit."""
    kind = column.type.kind
    if kind is Kind.STRING:
        return value if isinstance(value, str) else None
    if kind is Kind.DATE:
        return _days(value)
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ):
        return _microseconds(value)
    if isinstance(value, date | bool):
        return None
    return _number(value, column)


def _number(value: int | float | str, column: Column) -> BoundaryValue | None:
    """A number that the column's type holds exactly; None otherwise."""
    try:
        exact = Decimal(str(value))
    except InvalidOperation:
        return None
    if not exact.is_finite() or abs(exact.adjusted()) > _LARGEST_EXPONENT:
        return None
    kind = column.type.kind
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        # The nearest double, as the file's own numbers are read; digits it drops are refused.
        return float(exact) if Decimal(repr(float(exact))) == exact else None
    # Python's default context would round to 28 digits.
    with localcontext(prec=_EXACT_DIGITS):
        scaled = exact.scaleb(column.type.scale)
        if scaled != scaled.to_integral_value():
            return None
    integer = int(scaled)
    return integer if _is_exact(integer, column.type) else None


def _is_exact(value: BoundaryValue, kind: SqlType) -> bool:
    if not isinstance(value, int):
        return True
    match kind.kind:
        case Kind.DECIMAL:
            return len(str(abs(value))) <= kind.precision
        case Kind.DATE:
            return value in _DAYS
        case Kind.TIMESTAMP | Kind.TIMESTAMP_NTZ:
            return value // _MICROSECONDS_A_DAY in _DAYS
    half = 1 << (INTEGRAL_BITS[kind.kind] - 1)
    return -half <= value < half


def _days(value: BoundaryLiteral) -> int | None:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime) or not isinstance(value, date):
        return None
    return (value - _EPOCH).days


def _microseconds(value: BoundaryLiteral) -> int | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        return None
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * _MICROSECONDS_A_DAY + since.seconds * 1_000_000 + since.microseconds
