"""Sketches as range predicates in the user's SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from sqlglot import exp, parse_one

from impctl.data.schema import Kind, SqlType, name_parts
from impctl.errors import QueryError
from impctl.expr.nodes import Span
from impctl.plan.nodes import LiveRows, Query, Scan
from impctl.sketch.sketch import Interval, RangeFilter, RangeSet, range_filter, ranges_between
from impctl.spark.expressions import DIALECT, boundary, bracketed, column, conjunction, literal
from impctl.sql.text import without_recursion_limits
from impctl.types import AccessId, AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Sql

    from impctl.sketch.sketch import BoundaryValue


# A sketch's ranges as SQL that DuckDB and Polars both read: exactly the rows of the ranges, or no
# text if an engine may compare a value differently. Names are in double quotes, numbers in their
# column's type, times in UTC. NaN is never requested: engines that prune by statistics, which
# ignore NaN, may lose its rows, so the caller must know that there is none.

PLAIN_DIALECT = "duckdb"
"""sqlglot's name; names in double quotes are SQL's own."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = (Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG)


def plain_filter(range_filter: RangeFilter, name: ColumnName) -> Sql | None:
    """The filter on the column called `name`; None where a boundary has no text."""
    both = ((interval.low, interval.high) for interval in range_filter.intervals)
    edges = [edge for pair in both for edge in pair if edge is not None]
    written = ((edge, _constant(edge, range_filter.partition.type)) for edge in edges)
    constants = {edge: constant for edge, constant in written if constant is not None}
    if not constants.keys() >= set(edges):
        return None
    ranges = [
        _range(interval, column(name), constants.__getitem__) for interval in range_filter.intervals
    ]
    return _either(ranges, range_filter, column(name), lambda part: exp.Paren(this=part))


def _constant(value: BoundaryValue, kind: SqlType) -> Sql | None:
    """A boundary in canonical form as a constant; None for one that engines may read otherwise."""
    match kind.kind:
        case Kind.BOOLEAN:
            return exp.Boolean(this=bool(value))
        case Kind.FLOAT | Kind.DOUBLE:
            return _cast(repr(float(value)), "DOUBLE")
        case Kind.DECIMAL:
            text = f"{Decimal(f'{int(value)}e-{kind.scale}'):f}"
            return _cast(text, f"DECIMAL({kind.precision}, {kind.scale})")
        case Kind.STRING:
            return None if "\0" in str(value) else exp.Literal.string(str(value))
        case Kind.DATE:
            return _moment(timedelta(days=int(value)), kind.kind)
        case Kind.TIMESTAMP | Kind.TIMESTAMP_NTZ:
            return _moment(timedelta(microseconds=int(value)), kind.kind)
        case whole if whole in _WHOLE:
            return exp.Literal(this=str(int(value)), is_string=False)
    return None


def _moment(since: timedelta, kind: Kind) -> Sql | None:
    try:
        moment = _EPOCH + since
    except OverflowError:
        return None
    if kind is Kind.DATE:
        return _cast(date.isoformat(moment), "DATE")
    if kind is Kind.TIMESTAMP:
        return _cast(moment.isoformat(sep=" "), "TIMESTAMPTZ")
    return _cast(moment.replace(tzinfo=None).isoformat(sep=" "), "TIMESTAMP")


def _cast(text: str, kind: str) -> Sql:
    return exp.Cast(
        this=exp.Literal.string(text), to=exp.DataType.build(kind, dialect=PLAIN_DIALECT)
    )


# The user's SQL with a sketch's ranges: only table names change, a sketched one into `(SELECT *
# FROM t WHERE ranges)`, with the conditions of its expiry. The filter keeps every row of every
# range, also where Spark's own use of Parquet statistics would not (NaN, -0.0). Columns of the
# query's own conditions that may hide such values are guarded: `COALESCE(d, d)` is `d`, and Spark
# does not push it down.


class Guard(Struct, frozen=True):
    """Guarded columns of a table, and all of its columns, in order."""

    guarded: frozenset[ColumnName]
    columns: tuple[ColumnName, ...]


def rewrite_sql(
    query: Query,
    filters: Mapping[AccessId, RangeFilter],
    *,
    nan_free: Collection[AccessId] = (),
    guards: Mapping[TableName, Guard] = MappingProxyType({}),
    entries: Mapping[Span, str] = MappingProxyType({}),
    is_local: bool = False,
    is_plain: bool = False,
) -> str:
    """The query's text over the filtered tables; unchanged if nothing is filtered or guarded. The
    filters are those of `place_filters`, or are converted to such. For accesses in `nan_free`,
    whose partition attribute hides no NaN, Parquet statistics are fully used. `guards` has the
    tables with columns to guard. If the text `is_local`, it reads views called by `local_name`.
    `entries` are views with the rows of the WITH entries at these places. If it `is_plain`, it is
    for other engines than Spark, without guards; all filters have a plain text."""
    filters, live = place_filters(query, filters), dict(query.live)
    # No condition is on a column that no expression reads.
    used = frozenset[AttributeId]().union(
        *(expr.columns for node in query.root.walk() for expr in node.expressions)
    )
    news: dict[tuple[int, int], tuple[Sql | None, Guard | None]] = {}
    for place, scans in _places(query).items():
        condition, guard = None, guards.get(scans[0].table)
        filter_ = filters.get(scans[0].access)
        if filter_ is not None and is_plain:
            condition = plain_filter(filter_, filter_.partition.attribute)
        elif filter_ is not None:
            is_nan_free = all(scan.access in nan_free for scan in scans)
            condition = filter_condition(filter_, is_nan_free=is_nan_free)
        if scans[0].table in live:
            condition = live_condition(live[scans[0].table], condition, is_plain=is_plain)
        if guard is not None:
            guarded = guard.guarded & {a.name for s in scans for a in s.attributes if a.id in used}
            guard = replace(guard, guarded=guarded) if guarded else None
        news[place] = (condition, guard)
    views = {table: local_name(query, table) for table in query.tables} if is_local else {}
    names = {
        (span.start, span.end): views[table]
        for span, table in query.mentions
        if table in views and not _is_written(query, span, views[table])
    }
    if not names and not entries and all(new == (None, None) for new in news.values()):
        return query.sql
    tree = parse_one(without_recursion_limits(query.sql), dialect=DIALECT)
    tables = {_start(node.parts[0]): node for node in tree.find_all(exp.Table)}
    # A filtered table is called by the last part of its name, so columns drop what precedes it.
    edits = [
        (_start(node.parts[0]), _start(node.parts[-2]), "")
        for node in tree.find_all(exp.Column)
        if len(node.parts) > 2
    ]
    for place in {*news, *names}:
        condition, guard = news.get(place, (None, None))
        if condition is not None or guard is not None or place in names:
            table = _named(tables[place[0]], names.get(place))
            new = _rows(table, condition, guard, PLAIN_DIALECT if is_plain else DIALECT)
            edits.append((*place, new))
    # Entries read their views instead of their contents.
    edits = [
        edit
        for edit in edits
        if not any(span.start <= edit[0] and edit[1] <= span.end for span in entries)
    ]
    for span, name in entries.items():
        view = exp.Table(this=exp.to_identifier(name, quoted=True))
        edits.append((span.start, span.end, exp.select(exp.Star()).from_(view).sql(DIALECT)))
    text = query.sql
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def live_condition(live: LiveRows, beside: Sql | None = None, *, is_plain: bool = False) -> Sql:
    """An expiry's condition, `beside` another; if it `is_plain`, in a form other engines read
    alike."""
    value, kind = live.later_than.value, live.later_than.type
    after: Sql | None = None if is_plain else literal(value, kind)
    if is_plain and isinstance(value, int):
        after = _constant(value, kind)
    assert after is not None, "an expiry ends within what has a text"
    result = exp.GT(this=column(live.column), expression=after)
    return result if beside is None else exp.And(this=result, expression=bracketed(beside))


def local_name(query: Query, table: TableName) -> str:
    """The view name of a table where the text runs locally: its name in the workload file. If the
    text uses another name, a WITH entry may have the file's, which hides the view: then a name that
    is nowhere in the text."""
    text = query.sql.lower()
    spans = [span for span, other in query.mentions if other == table]
    if "with" not in text or all(_is_written(query, span, table) for span in spans):
        return table
    # The number separates names built from two tables' names.
    result = f"{table}_{query.tables.index(table)}"
    while result.lower() in text:
        result += "_"
    return result


def _is_written(query: Query, span: Span, name: str) -> bool:
    parts = name_parts(query.sql[span.start : span.end]) or ()
    return [part.lower() for part in parts] == [name.lower()]


def _start(part: Sql) -> int:
    return int(part.meta.get("start", -1))


def place_filters(
    query: Query,
    filters: Mapping[AccessId, RangeFilter],
    groups: Iterable[Collection[AccessId]] = (),
) -> dict[AccessId, RangeFilter]:
    """The possible filter of each access in the query's text; none for one that reads all. A table
    named once in the text but read by several accesses (a CTE used twice) gets a filter only if all
    of them have one over one partition, and then their union; with two partitions, each access
    would see only part of its ranges. The same holds for `groups` of accesses whose filter must be
    the same, wherever they stand in the text."""
    tied: list[list[Scan]] = [list(scans) for scans in _places(query).values()]
    for group in groups:
        met = [scans for scans in tied if any(scan.access in group for scan in scans)]
        tied = [scans for scans in tied if scans not in met]
        tied.append([scan for scans in met for scan in scans])
    return _shared(tied, filters)


def table_filters(
    query: Query, filters: Mapping[AccessId, RangeFilter]
) -> dict[AccessId, RangeFilter]:
    """The possible filter of each access where tables are filtered before the query reads them: all
    accesses of a table share one filter, or have none."""
    scans: dict[TableName, list[Scan]] = {}
    for scan in query.root.scans:
        scans.setdefault(scan.table, []).append(scan)
    return _shared(scans.values(), filters)


def _shared(
    groups: Iterable[Sequence[Scan]], filters: Mapping[AccessId, RangeFilter]
) -> dict[AccessId, RangeFilter]:
    """One filter for all accesses of a group that reads the same rows, where possible."""
    result: dict[AccessId, RangeFilter] = {}
    for scans in groups:
        found_filters = [filters[scan.access] for scan in scans if scan.access in filters]
        is_one = len({filter_.partition.id for filter_ in found_filters}) == 1
        if len(found_filters) < len(scans) or not is_one:
            continue
        united = _united(found_filters)
        if not united.is_everything:
            result |= {scan.access: united for scan in scans}
    return result


def _places(query: Query) -> dict[tuple[int, int], list[Scan]]:
    places: dict[tuple[int, int], list[Scan]] = {}
    for scan in query.root.scans:
        if scan.span is None:
            raise QueryError(
                f"The query cannot be rewritten, because the position of table `{scan.table}` in "
                "it is unknown",
                hint="write the table's name in the query's own text",
            )
        places.setdefault((scan.span.start, scan.span.end), []).append(scan)
    return places


def filter_condition(range_filter: RangeFilter, *, is_nan_free: bool = False) -> Sql:
    """The filter as a sorted OR of ranges on the bare column."""
    if range_filter.is_everything:
        return exp.true()
    name, kind = column(range_filter.partition.attribute), range_filter.partition.type
    ranges: list[Sql] = []
    for interval in range_filter.intervals:
        part = _range(interval, name, lambda edge: boundary(edge, kind))
        if isinstance(part, exp.GTE) and kind.is_fractional and not is_nan_free:
            # NaN is greater than any bound, but file statistics ignore it, so Spark would skip a
            # row group that has one. IsNaN is not pushed, so nothing is skipped.
            part = exp.Or(this=part, expression=exp.Anonymous(this="ISNAN", expressions=[name]))
        ranges.append(part)
    return _either(
        ranges,
        range_filter,
        name,
        lambda part: part if isinstance(part, exp.GTE | exp.LT | exp.Is) else bracketed(part),
    )


def _range(interval: Interval, name: exp.Column, constant: Callable[[BoundaryValue], Sql]) -> Sql:
    parts: list[Sql] = []
    if interval.low is not None:
        parts.append(exp.GTE(this=name.copy(), expression=constant(interval.low)))
    if interval.high is not None:
        parts.append(exp.LT(this=name.copy(), expression=constant(interval.high)))
    if not parts:
        return exp.Not(this=exp.Paren(this=exp.Is(this=name.copy(), expression=exp.null())))
    return conjunction(parts)


def _either(
    ranges: list[Sql], range_filter: RangeFilter, name: exp.Column, bracket: Callable[[Sql], Sql]
) -> Sql:
    """An OR of the ranges, and NULL if included; `bracket` applies if there are several."""
    parts = list(ranges)
    if range_filter.includes_null:
        parts.append(exp.Is(this=name.copy(), expression=exp.null()))
    if not parts:
        return exp.false()
    closed = parts if len(parts) == 1 else list(map(bracket, parts))
    return reduce(lambda left, right: exp.Or(this=left, expression=right), closed)


def _united(filters: list[RangeFilter]) -> RangeFilter:
    if len(filters) == 1:
        return filters[0]
    partition = filters[0].partition
    ids: set[int] = set()
    for filter_ in filters:
        if filter_.includes_null:
            ids.add(partition.null_range)
        for interval in filter_.intervals:
            ids.update(ranges_between(interval, partition))
    return range_filter(RangeSet.of(ids, partition.size), partition)


def _named(table: exp.Table, name: str | None) -> exp.Table:
    """The table alone, under this name or its own; an alias keeps the text's name."""
    bare = table.copy()
    for part in ("joins", "laterals", "pivots"):
        bare.set(part, None)
    bare.set("alias", None)
    if not table.alias:
        identifier = exp.to_identifier(table.name, quoted=table.this.quoted)
        bare.set("alias", exp.TableAlias(this=identifier))
    if name is not None:
        bare.set("this", exp.to_identifier(name, quoted=True))
        bare.set("db", None)
        bare.set("catalog", None)
    return bare


def _rows(
    table: exp.Table, condition: Sql | None, guard: Guard | None, dialect: str = DIALECT
) -> str:
    """The table, or `(SELECT * FROM t WHERE condition)` with its alias behind."""
    if condition is None and guard is None:
        return table.sql(dialect)
    alias = table.args.get("alias")
    table.set("alias", None)
    columns: list[Sql] = [exp.Star()]
    if guard is not None:
        columns = []
        for name in guard.columns:
            value: Sql = column(name)
            if name in guard.guarded:
                twice = exp.Coalesce(this=value, expressions=[value.copy()])
                value = exp.alias_(twice, exp.to_identifier(name, quoted=True))
            columns.append(value)
    rows = exp.select(*columns).from_(table)
    if condition is not None:
        rows = rows.where(condition)
    return rows.subquery(None if alias is None else alias.this).sql(dialect)
