"""A query judged over one small catalog, for the tests of verdicts."""

from __future__ import annotations

from impctl.data.schema import Column, Schema, other
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Verdict, check_safety
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {
    "t": Schema(
        (
            *schema_of("g string, p int, v int, n int, d double, m decimal(10,2)"),
            Column("c", other("string collate UTF8_LCASE")),
        )
    ),
    "fine": schema_of("g string, p int, x decimal(38,30)"),
    "u": schema_of("h string, q int, w int"),
    "times": schema_of("g string, p int, at timestamp, local timestamp_ntz, day date"),
}


def fact(column: str, kind: FactKind, source: FactSource = FactSource.STATISTICS) -> Fact:
    return Fact("t", column, kind, source)


def judged(sql: str, *facts: Fact, **columns: str) -> Verdict:
    """`t="p"` sketches every access of t on p; `t2="p"` only its second."""
    query = parse_query(sql, CATALOG)
    sketched = {}
    for key, column in columns.items():
        table, number = (key[:-1], key[-1]) if key[-1].isdigit() else (key, "1")
        sketched[f"{table}#{number}"] = column
    return check_safety(query, sketched, facts)


NONNEGATIVE = fact("v", FactKind.NONNEGATIVE)
