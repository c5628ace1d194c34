"""The ranges of a sketch as SQL for other engines: the words that DuckDB and Polars both read.

Law: for these engines the text keeps exactly the rows of the ranges; what they would not surely
take for the same value has no text. Names are in double quotes, numbers of their column's type,
times in UTC. No NaN is asked for: an engine that prunes files by statistics, which leave NaN out,
may lose its rows however the text asks, so that who writes it must know that there is none.
Out of scope: Spark (`capture.use`), which columns may hide a NaN (`tables.hidden_values`).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING

from sqlglot import exp

from impctl.data.schema import Kind, SqlType
from impctl.plan.nodes import LiveRows
from impctl.sketch.partition import BoundaryValue
from impctl.sketch.sketch import Interval, RangeFilter
from impctl.types import ColumnName

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Sql

PLAIN_DIALECT = "duckdb"
"""As sqlglot calls it; names in double quotes are SQL's own."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = (Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG)


def plain_condition(wanted: RangeFilter, name: ColumnName) -> str | None:
    """The filter on the column called `name` as text; None where a boundary has none."""
    result = plain_filter(wanted, name)
    return None if result is None else result.sql(PLAIN_DIALECT)


def plain_filter(wanted: RangeFilter, name: ColumnName) -> Sql | None:
    """The same as a tree."""
    column = exp.column(exp.to_identifier(name, quoted=True))
    parts: list[Sql] = []
    for interval in wanted.intervals:
        part = _range(interval, wanted.partition.type, column)
        if part is None:
            return None
        parts.append(part)
    if wanted.includes_null:
        parts.append(exp.Is(this=column.copy(), expression=exp.null()))
    if not parts:
        return exp.false()
    closed = [part if len(parts) == 1 else exp.Paren(this=part) for part in parts]
    return reduce(lambda left, right: exp.Or(this=left, expression=right), closed)


def plain_live(live: LiveRows, name: ColumnName, beside: str | None) -> str | None:
    """What an expiry asks of the column called `name`, and what else is asked `beside` it."""
    constant = plain_edge(live)
    if constant is None:
        return None
    column = exp.column(exp.to_identifier(name, quoted=True))
    result = exp.GT(this=column, expression=constant).sql(PLAIN_DIALECT)
    return result if beside is None else f"{result} AND ({beside})"


def plain_edge(live: LiveRows) -> Sql | None:
    """What rows have to be later than; None for a time without a text."""
    value = live.later_than.value
    return _constant(value, live.later_than.type) if isinstance(value, int) else None


def _range(interval: Interval, kind: SqlType, column: exp.Column) -> Sql | None:
    parts: list[Sql] = []
    for value, compared in ((interval.low, exp.GTE), (interval.high, exp.LT)):
        if value is None:
            continue
        constant = _constant(value, kind)
        if constant is None:
            return None
        parts.append(compared(this=column.copy(), expression=constant))
    if not parts:
        return exp.Not(this=exp.Paren(this=exp.Is(this=column.copy(), expression=exp.null())))
    return parts[0] if len(parts) == 1 else exp.And(this=parts[0], expression=parts[1])


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
