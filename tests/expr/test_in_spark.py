"""Every expression the evaluator accepts, against Spark, on values chosen to hurt."""

from __future__ import annotations

import math
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    Column,
    Schema,
    SqlType,
    decimal,
)
from impctl.data.vector import Vector, from_arrow
from impctl.expr.evaluate import evaluate
from impctl.expr.support import find_blocker
from impctl.plan.nodes import Project
from impctl.plan.parse import parse_query

TYPES: dict[str, tuple[SqlType, pa.DataType, list[Any]]] = {
    "i": (INTEGER, pa.int32(), [None, 0, 1, -1, 7, 2**31 - 1, -(2**31), 3]),
    "l": (LONG, pa.int64(), [None, 0, 2, -3, 2**53 + 1, -(2**62), 5, 10]),
    "d": (DOUBLE, pa.float64(), [None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e16]),
    "e": (DOUBLE, pa.float64(), [1.0, math.nan, 0.0, 1.5, math.nan, 2.0, None, -1e300]),
    "f": (FLOAT, pa.float32(), [None, 0.5, -0.0, 0.1, math.nan, math.inf, 3.25, 1e10]),
    "m": (
        decimal(10, 2),
        pa.decimal128(10, 2),
        [
            None,
            Decimal("0.00"),
            Decimal("1.25"),
            Decimal("-2.50"),
            Decimal("99999999.99"),
            Decimal("0.01"),
            Decimal("-0.01"),
            Decimal("3.10"),
        ],
    ),
    "n": (
        decimal(38, 4),
        pa.decimal128(38, 4),
        [
            Decimal("1.0000"),
            None,
            Decimal("-12345678901234567890.1234"),
            Decimal("2.5000"),
            Decimal("0.0001"),
            Decimal("9007199254740993.0000"),
            Decimal("-7.0000"),
            Decimal("3.3333"),
        ],
    ),
    "s": (STRING, pa.string(), [None, "", "a", "ab", "é", "B", "a%", "z\U0001f600"]),
    "b": (BOOLEAN, pa.bool_(), [None, True, False, True, False, None, True, False]),
    "t": (DATE, pa.date32(), [None, 0, 19000, -5, 18993, 1, 2, 3]),
}
SCHEMA = Schema(tuple(Column(name, found[0]) for name, found in TYPES.items()))

EXPRESSIONS = [
    "i % 3", "l div 2", "l % -4", "-m", "i * 2.5", "m + 1", "m - n", "m * m", "m * 3",
    "m / 3", "n / 7", "m % 0.7", "m * 0.001", "l + m", "i + d", "d + e", "d - e",
    "d * e", "l / 4", "i / 7", "m * d", "abs(m)", "abs(d)", "abs(l)", "abs(i % 5)",
    "CAST(i AS BIGINT) * 2", "CAST(l AS DOUBLE)", "CAST(m AS DOUBLE)", "CAST(n AS DOUBLE)",
    "CAST(m AS DECIMAL(12,1))", "CAST(m AS INT)", "CAST(i AS DECIMAL(13,3))",
    "CAST(b AS INT)", "CAST(f AS DOUBLE)",
    "CAST(m AS DECIMAL(20,4)) * 3", "CAST(i % 5 AS TINYINT)",
    "i > 2", "l >= 2.5", "d > e", "d = e", "d <> e", "d < e", "d <= 0", "f > 0.1", "f = 0.1",
    "m > 1.2", "m = n", "n > 9007199254740992", "l = d", "i <=> NULLIF(i, 7)", "d <=> e",
    "s = 'a'", "s > 'a'", "s <> 'é'", "s >= 'B'", "b = true", "t > DATE '2022-01-01'",
    "t = DATE '1970-01-01'", "s IN ('a', 'B')", "i IN (1, 7)", "m IN (1.25, 3.1)",
    "s LIKE 'a%'", "s LIKE '_'", "s LIKE '%b'", "NOT (i > 1)",
    "i > 1 AND d > 1", "i > 1 OR d > 1", "i IS NULL", "d IS NOT NULL", "b AND i > 0", "NOT b",
    "i BETWEEN 0 AND 7", "CASE WHEN i > 2 THEN l ELSE 0 END", "CASE WHEN b THEN m ELSE 1 END",
    "CASE WHEN d > 1 THEN 'x' WHEN i > 0 THEN s END", "COALESCE(i, 5)", "COALESCE(m, n, 1)",
    "COALESCE(s, 'none')", "NULLIF(l, 2)", "IF(i > 0, 1.5, 2)", "i <> 0 AND 10 / i > 2",
    "CASE WHEN i = 0 THEN 0 ELSE 10 div i END", "i % 2 = 1", "m BETWEEN 0 AND 2.5",
]  # fmt: skip

FUNCTIONS = [
    "year(t)", "month(t)", "day(t)", "dayofmonth(t)", "quarter(t)", "EXTRACT(YEAR FROM t)",
    "EXTRACT(MONTH FROM t)", "date_add(t, 30)", "date_sub(t, i % 100)",
    "datediff(t, DATE '2000-02-29')", "date_add(t, i % 7) > DATE '1970-01-01'",
    "IF(s IN ('', 'a', 'ab', 'B', 'a%'), upper(s), 'x')",
    "IF(s IN ('', 'a', 'ab', 'B', 'a%'), lower(s), 'x')",
    "length(s)", "char_length(concat(s, s))", "concat(s, '-', s)", "s || 'é'", "concat(s)",
    "substring(s, 1, 1)", "substring(s, 2)", "substr(s, 0, 2)", "substring(s, 1, 0)",
    "trim(concat('  ', s, ' '))", "ltrim(concat('  ', s, ' '))", "rtrim(concat('\t', s, ' '))",
    "startswith(s, 'a')", "endswith(s, 'b')", "contains(s, '%')", "contains(s, '')",
    "year(t) = 1970 AND length(s) > 0",
]  # fmt: skip
"""Calls, which the reference evaluator does not know."""


def rows() -> pa.Table:
    arrays = {name: pa.array(values, kind) for name, (_, kind, values) in TYPES.items()}
    return pa.table(arrays)


def shown(value: Any) -> Any:
    """A value in which NaN equals NaN and -0.0 equals 0.0, as in SQL."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def ours(sql: str) -> Vector:
    query = parse_query(f"SELECT {sql} AS x FROM t", {"t": SCHEMA})
    assert isinstance(query.root, Project)
    expr = query.root.outputs[0].expr
    assert find_blocker(expr) is None, find_blocker(expr)
    table = rows()
    columns = {f"t#1.{c.name}": from_arrow(table[c.name], c.type) for c in SCHEMA}
    return evaluate(expr, columns, len(table))


def agrees(found: Any, expected: Any, bound: float) -> bool:
    """Equal to the last digit; a double with an error bound may be off by as much."""
    if bound and isinstance(found, float) and isinstance(expected, float):
        return abs(found - expected) <= bound
    if isinstance(found, Decimal) or isinstance(expected, Decimal):
        return str(found) == str(expected)
    return bool(found == expected)


def value_at(vector: Vector, row: int) -> Any:
    if vector.valid is not None and not vector.valid[row]:
        return None
    if vector.is_textual:
        return vector.values[row].as_py()
    value = vector.values[row]
    if vector.type.kind == "decimal":
        return Decimal(int(value)).scaleb(-vector.type.scale)
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.spark
def test_every_expression_is_sparks(spark: Any) -> None:
    from impctl.spark.run import run_sql

    view = spark.createDataFrame(rows())
    wrong = []
    for sql in (*EXPRESSIONS, *FUNCTIONS):
        expected = [
            shown(v)
            for v in run_sql(spark, f"SELECT {sql} AS x FROM t", {"t": view})["x"].to_pylist()
        ]
        vector = ours(sql)
        for row, value in enumerate(expected):
            bound = 0.0 if vector.error is None else float(vector.error[row])
            found = shown(value_at(vector, row))
            if vector.type == DATE and found is not None:
                found = date(1970, 1, 1) + timedelta(days=found)
            if not agrees(found, value, bound):
                wrong.append((sql, row, found, value))
    assert wrong == []
