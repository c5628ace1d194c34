"""A query judged over one small catalog, for the tests of verdicts."""

from __future__ import annotations

from impctl.data.schema import (
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    Schema,
    decimal,
    other,
)
from impctl.plan.safety.facts import Fact, FactKind, FactSource
from impctl.plan.safety.verdict import Verdict, check_safety
from impctl.plan.sql.statement import parse_query

CATALOG = {
    "t": Schema(
        (
            Column("g", STRING),
            Column("p", INTEGER),
            Column("v", INTEGER),
            Column("n", INTEGER),
            Column("d", DOUBLE),
            Column("m", decimal(10, 2)),
            Column("c", other("string collate UTF8_LCASE")),
        )
    ),
    "fine": Schema((Column("g", STRING), Column("p", INTEGER), Column("x", decimal(38, 30)))),
    "u": Schema((Column("h", STRING), Column("q", INTEGER), Column("w", INTEGER))),
    "times": Schema(
        (
            Column("g", STRING),
            Column("p", INTEGER),
            Column("at", TIMESTAMP),
            Column("local", TIMESTAMP_NTZ),
            Column("day", DATE),
        )
    ),
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
