"""A materialized view in DuckDB, kept by hand: sums and counts of groups, which feed rows change.

Law: the view has the groups of `measure.kept_view` and how many rows each has; a row that
came adds to its group, one that went is taken off, a group without rows is gone. Only for queries
whose figures are sums and counts: of MIN and MAX nobody can take a row back. It lies in memory and
no step of it is durable, which is in its favour.
Out of scope: reading the change (the caller's matter).
"""

from __future__ import annotations

import pyarrow as pa
import sqlglot
from msgspec import Struct
from sqlglot import exp
from sqlglot.errors import SqlglotError

from benchmarks.kept_view import VIEW, KeptView, kept_view
from impctl.measure.duckdb import ParquetSql, SqlFailed
from impctl.spark.expressions import DIALECT

_TARGET = "duckdb"
_FEED, _SIGN, _ROWS = "feed_rows", "feed_sign", "figure_rows"


class SignedView(Struct, frozen=True):
    """The view of one query, filled; a change is read with these `columns` of the table."""

    connection: ParquetSql
    columns: tuple[str, ...]
    added: str
    emptied: str
    through: str

    def bring_on(self, rows: pa.Table, signs: pa.Array) -> None:
        """Count rows in, or out where their sign is below zero."""
        self.connection.put(_FEED, rows.append_column(_SIGN, signs))
        self.connection.change(self.added)
        self.connection.change(self.emptied)

    def answer(self) -> pa.Table:
        """The query's answer through the view."""
        return self.connection.run(self.through)


def signed_view(connection: ParquetSql, sql: str) -> SignedView | None:
    """The view of a query in Spark's SQL, made of the table that `connection` has by its name.

    None for a query that has no such view, or where DuckDB cannot make it.
    """
    kept = kept_view(sql)
    if kept is None or not all(isinstance(one.call, exp.Sum | exp.Count) for one in kept.figures):
        return None
    try:
        connection.change(_created(kept).sql(_TARGET))
        connection.change(_indexed(kept).sql(_TARGET))
    except (SqlFailed, SqlglotError):
        return None
    columns = [*kept.keys, *(one.column for one in kept.figures if one.column)]
    return SignedView(
        connection,
        tuple(dict.fromkeys(columns)),
        _added(kept).sql(_TARGET),
        exp.delete(VIEW).where(exp.EQ(this=exp.column(_ROWS), expression=_zero())).sql(_TARGET),
        sqlglot.transpile(kept.through, read=DIALECT, write=_TARGET)[0],
    )


def _created(kept: KeptView) -> exp.Create:
    select = sqlglot.parse_one(kept.definition, dialect=DIALECT)
    assert isinstance(select, exp.Select)
    select.select(exp.alias_(exp.Count(this=exp.Star()), _ROWS), copy=False)
    return exp.Create(this=exp.to_table(VIEW), kind="TABLE", expression=select, replace=True)


def _indexed(kept: KeptView) -> exp.Create:
    """The index by which a row's group is found, as whoever keeps a view has one."""
    named = exp.Index(
        this=exp.to_identifier(f"{VIEW}_keys"),
        table=exp.to_table(VIEW),
        params=exp.IndexParameters(columns=[exp.Ordered(this=exp.column(k)) for k in kept.keys]),
    )
    return exp.Create(this=named, kind="INDEX", unique=True)


def _added(kept: KeptView) -> exp.Insert:
    """The change of every group, put in or added to what is there."""
    signed = [exp.alias_(_signed(one.call), one.name) for one in kept.figures]
    signed.append(exp.alias_(exp.Sum(this=exp.column(_SIGN)), _ROWS))
    change = exp.select(*kept.keys, *signed).from_(_FEED).group_by(*kept.keys)
    names = [*(one.name for one in kept.figures), _ROWS]
    sums = [
        exp.EQ(
            this=exp.column(name),
            expression=exp.Add(
                this=exp.column(name, table=VIEW), expression=exp.column(name, table="excluded")
            ),
        )
        for name in names
    ]
    conflict = exp.OnConflict(
        conflict_keys=[exp.to_identifier(key) for key in kept.keys],
        action=exp.var("DO UPDATE"),
        expressions=sums,
    )
    return exp.Insert(this=exp.to_table(VIEW), expression=change, conflict=conflict)


def _signed(call: exp.AggFunc) -> exp.Expression:
    """A figure's change: its argument as often as it came, less as often as it went."""
    sign = exp.column(_SIGN)
    argument = call.this
    if isinstance(call, exp.Sum):
        return exp.Sum(this=exp.Mul(this=argument.copy(), expression=sign))
    if isinstance(argument, exp.Star):
        return exp.Sum(this=sign)
    is_there = exp.not_(exp.Is(this=argument.copy(), expression=exp.Null()))
    counted = exp.Case(ifs=[exp.If(this=is_there, true=sign)], default=_zero())
    return exp.Sum(this=counted)


def _zero() -> exp.Expression:
    return exp.Literal.number(0)
