"""The engine computes every expression that it claims to support, with Spark's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import Struct

from impctl.compile.answers import arrow_column, arrow_type
from impctl.data.schema import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    Kind,
    Schema,
    SqlType,
    decimal,
)
from impctl.data.vector import Vector, from_arrow
from impctl.errors import EvaluationError, ImpctlError, NotExactError, UnsupportedExpressionError
from impctl.expr.error_bounds import exactly
from impctl.expr.evaluate import Columns, Condition, Evaluator, find_blocker
from impctl.expr.functions import FUNCTIONS, ONE_ROW
from impctl.expr.nodes import Expr
from impctl.expr.types import type_of
from impctl.plan.nodes import Project
from impctl.sql.statement import parse_query
from tests.expr.test_in_spark import decimals, view_of
from tests.support.spark_values import asked

MOMENTS = [
    None, 0, -1, 1_711_846_799_999_999, 1_711_846_800_000_000, -12_219_292_800_000_001,
    1_635_642_000_000_000, 1_774_744_200_000_000,
]  # fmt: skip
"""Values around the epoch, European daylight saving changes, and 1582."""


TYPES: dict[str, tuple[SqlType, pa.DataType, list[Any]]] = {
    "y": (SqlType(Kind.BYTE), pa.int8(), [None, 0, 1, -1, 127, -128, 7, 3]),
    "w": (SHORT, pa.int16(), [None, 0, 1, -1, 32767, -32768, 7, 3]),
    "i": (INTEGER, pa.int32(), [None, 0, 1, -1, 7, 2**31 - 1, -(2**31), 3]),
    "l": (LONG, pa.int64(), [None, 0, 2, -3, 2**53 + 1, -(2**62), 2**63 - 1, 10]),
    "f": (FLOAT, pa.float32(), [None, 0.5, -0.0, 0.1, math.nan, math.inf, 3.25, 3.1415]),
    "d": (DOUBLE, pa.float64(), [None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e16]),
    "m": (
        decimal(10, 2),
        pa.decimal128(10, 2),
        decimals("NULL 0.00 1.25 -2.50 99999999.99 0.01 -0.01 12.34"),
    ),
    "n": (
        decimal(38, 4),
        pa.decimal128(38, 4),
        decimals("1 NULL -12345678901234567890.1234 2.5 0.0001 9007199254740993 -7 3.3333"),
    ),
    "s": (STRING, pa.string(), [None, "", "a", "ab", "é", "B", "a%", "40"]),
    "b": (BOOLEAN, pa.bool_(), [None, True, False, True, False, None, True, False]),
    "x": (SqlType(Kind.BINARY), pa.binary(), [None, b"", b"a", b"b", b"\xff", b"B", b"a%", b"4"]),
    "t": (DATE, pa.date32(), [None, 0, 19000, -5, 18993, -141428, 2, 3]),
    "h": (TIMESTAMP, pa.timestamp("us", "UTC"), MOMENTS),
    "k": (TIMESTAMP_NTZ, pa.timestamp("us"), MOMENTS),
}
SCHEMA = Schema(tuple(Column(name, kind) for name, (kind, _, _) in TYPES.items()))
ROWS = pa.table({name: pa.array(values, kind) for name, (_, kind, values) in TYPES.items()})
EVERY = tuple(range(len(ROWS)))
CONSTANTS = (
    "1", "-1", "0", "2.5", "'a'", "NULL", "'MONTH'", "'1'", "DATE '2020-02-29'", "1.5D", "true",
)  # fmt: skip
OPERANDS = (*TYPES, *CONSTANTS)
FEW = ("i", "m", "s", "1", "'a'")
_TARGETS = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,10)",
    "DECIMAL(4,0)", "STRING", "BOOLEAN", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ",
)  # fmt: skip
_OPERATORS = (
    "+", "-", "*", "/", "%", "DIV", "||", "=", "<=>", "<", ">=", "<>", "AND", "OR",
    "IS DISTINCT FROM", "LIKE", "&", "|", "^", "RLIKE", "ILIKE",
)  # fmt: skip
_FIELDS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOW", "DOY", "HOUR", "MINUTE", "SECOND")


class Claim(Struct, frozen=True):
    """An expression that the engine claims to compute, and the session time zone."""

    sql: str
    expr: Expr
    zone: str


@cache
def columns(rows: tuple[int, ...]) -> Columns:
    """Return the operands on these rows."""
    selected = ROWS.take([*rows])
    return {f"t#1.{c.name}": from_arrow(selected[c.name], c.type) for c in SCHEMA}


def read(sql: str, zone: str = "UTC") -> Expr | None:
    """Parse the expression; None if the reader refuses it."""
    try:
        root = parse_query(f"SELECT {sql} AS v FROM t", {"t": SCHEMA}, zone=zone).root
    except ImpctlError:
        return None
    return root.outputs[0].expr if isinstance(root, Project) else None


def claims(texts: Iterable[str], zone: str = "UTC") -> Iterator[Claim]:
    for sql in dict.fromkeys(texts):
        expr = read(sql, zone)
        if expr is not None and find_blocker(expr) is None:
            yield Claim(sql, expr, zone)


def computed(claim: Claim, rows: tuple[int, ...] = EVERY) -> tuple[pa.Array, Vector]:
    """Return the values as in a result, and the vector with its error bounds."""
    vector = Evaluator(claim.expr).values(columns(rows), len(rows))
    ones = np.ones(len(rows), dtype=np.int64)
    return arrow_column(exactly(vector), ones, arrow_type(vector.type, claim.zone)), vector


def supported_calls(triples: Sequence[str]) -> Iterator[str]:
    """Calls that the functions accept, with one or two operands, or three of `triples`."""
    operands = {sql: expr for sql in OPERANDS if (expr := read(sql)) is not None}
    for name, function in FUNCTIONS.items():
        if name == ONE_ROW:
            continue
        for count in (1, 2, 3):
            for chosen in product(operands if count < 3 else triples, repeat=count):
                if function.takes([operands[sql] for sql in chosen]):
                    yield f"{name}({', '.join(chosen)})"


@cache
def all_supported_calls() -> tuple[str, ...]:
    return tuple(supported_calls(OPERANDS))


def calls_of(names: Iterable[str]) -> Iterator[str]:
    """Calls of these functions with up to two arguments, supported or not."""
    for name in names:
        yield f"{name}()"
        for count in (1, 2):
            for chosen in product(OPERANDS, repeat=count):
                yield f"{name}({', '.join(chosen)})"


def casts() -> Iterator[str]:
    for operand, target in product(OPERANDS, _TARGETS):
        yield f"CAST({operand} AS {target})"
        yield f"TRY_CAST({operand} AS {target})"
        yield f"{operand}::{target}"


def operations() -> Iterator[str]:
    for left, right in product(OPERANDS, repeat=2):
        yield from (f"{left} {operator} {right}" for operator in _OPERATORS)
        yield f"{left} IN ({right}, {left})"
        yield f"{left} BETWEEN {right} AND {left}"
        yield f"CASE WHEN b THEN {left} ELSE {right} END"
        yield from (f"{name}({left}, {right})" for name in ("coalesce", "nullif"))
    for operand in OPERANDS:
        yield from (f"-{operand}", f"NOT {operand}", f"{operand} IS NULL", f"{operand} IS TRUE")
        for unit in _FIELDS:
            yield f"EXTRACT({unit} FROM {operand})"
            yield f"date_trunc('{unit}', {operand})"
            yield f"trunc({operand}, '{unit}')"


def shown(array: pa.ChunkedArray | pa.Array) -> Sequence[Any]:
    """Values for bitwise comparison: dates as days, times as microseconds, NaN as text."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())  # Spark strings may not be UTF-8.
    return [_shown(value) for value in array.to_pylist()]


def _shown(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    return str(value) if isinstance(value, Decimal) else value


def is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Compare types, ignoring the time zone of timestamps."""
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    return one == other


ZONES = ("UTC", "Europe/Berlin", "+05:30")


@pytest.mark.parametrize(
    "are_all", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_claimed_expressions_have_the_expected_type(are_all: bool) -> None:
    """The evaluator knows every accepted function and cast."""
    calls = all_supported_calls() if are_all else supported_calls(FEW)
    others = [*casts(), *operations()]
    if not are_all:
        others = Random(1).sample(others, 300)
    tried = 0
    for claim in claims([*calls, *others]):
        tried += 1
        try:
            _, vector = computed(claim)
        except (EvaluationError, NotExactError):
            continue
        assert (len(vector), vector.type) == (len(ROWS), type_of(claim.expr)), claim.sql
    assert tried > 700


@pytest.mark.parametrize("sql", ["i", "s", "upper(s)", "d + 1"])
def test_only_boolean_values_are_conditions(sql: str) -> None:
    (claim,) = claims([sql])
    with pytest.raises(UnsupportedExpressionError, match="the engine does not support"):
        Condition(claim.expr)


@pytest.fixture
def view(spark: Any) -> Any:
    """The numbered rows, in Spark."""
    return view_of(spark, ROWS.append_column("at", pa.array(EVERY, pa.int32())))


def differences(result: Sequence[Claim], view: Any) -> list[str]:
    """Describe claims with other values or types in Spark, or values where the engine fails.

    If one of the two fails on some row, only the rows that the engine computes are compared.
    """
    sound = [claim for claim in result if is_computable(claim, EVERY)]
    failing = [claim for claim in result if not is_computable(claim, EVERY)]
    columns = asked(view, [claim.sql for claim in sound])
    # Most of them fail in Spark too; in one batch they would be evaluated twice.
    columns += [column for claim in failing for column in asked(view, [claim.sql])]
    wrong, guarded = [], []
    for claim, expected in zip([*sound, *failing], columns, strict=True):
        if not isinstance(expected, Exception):
            wrong.append(difference(claim, expected, EVERY))
        elif rows := tuple(row for row in EVERY if is_computable(claim, (row,))):
            guarded.append((claim, rows))
    texts = [
        f"CASE WHEN at IN ({', '.join(map(str, rows))}) THEN {claim.sql} END"
        for claim, rows in guarded
    ]
    for (claim, rows), expected in zip(guarded, asked(view, texts), strict=True):
        if isinstance(expected, Exception):
            wrong.append(f"rows {rows}: {claim.sql} in {claim.zone}: Spark fails")
        else:
            wrong.append(difference(claim, expected.take([*rows]), rows))
    return [message for message in wrong if message is not None]


def is_computable(claim: Claim, rows: tuple[int, ...]) -> bool:
    try:
        computed(claim, rows)
    except (EvaluationError, NotExactError):
        return False
    return True


def difference(claim: Claim, expected: pa.ChunkedArray, rows: tuple[int, ...]) -> str | None:
    try:
        array, vector = computed(claim, rows)
    except NotExactError:
        # Left to Spark at run time.
        return None
    except EvaluationError as error:
        return f"{claim.sql} in {claim.zone} fails: {error}"
    if not is_alike(array.type, expected.type):
        return f"{claim.sql} in {claim.zone} is {array.type} instead of {expected.type}"
    ours, theirs = shown(array), shown(expected)
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        bound = 0.0 if vector.error is None else float(vector.error[index])
        is_close = bound > 0 and abs(one[0] - other[0]) <= bound
        if one != other and not is_close:
            return f"{claim.sql} in {claim.zone} is {one} instead of {other}"
    return None


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_sampled_claims_match_spark(zone: str, view: Any, in_zone: Callable[[str], None]) -> None:
    in_zone(zone)
    texts = Random(zone).sample([*all_supported_calls(), *casts(), *operations()], 150)
    result = list(claims(texts, zone))
    assert len(result) > 30
    wrong = differences(result, view)
    assert not wrong, "\n".join(wrong)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("zone", ZONES)
def test_all_claims_match_spark(
    zone: str, spark: Any, view: Any, in_zone: Callable[[str], None]
) -> None:
    in_zone(zone)
    listed = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    names = [name for name in listed if name.replace("_", "").isalnum()]
    result = list(claims([*calls_of(names), *all_supported_calls(), *casts(), *operations()], zone))
    wrong = differences(result, view)
    assert not wrong, "\n".join(wrong)
