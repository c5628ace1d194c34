"""Random SQL texts over numbers of every type and width, and rows of numbers at their limits.

Law: what is drawn depends on the seed alone. Every literal form of Spark, every type of number and
every operator and function of numbers that the evaluator takes is drawn, NULL among the values.
Out of scope: evaluating (`test_numbers_in_spark`).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import pyarrow as pa

from impctl.data.schema import (
    BOOLEAN,
    BYTE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    Column,
    Schema,
    SqlType,
    decimal,
)
from impctl.expr.numeric import INTEGRAL_BITS

WIDTHS = (
    (1, 0), (3, 3), (5, 2), (10, 4), (12, 12), (18, 9), (19, 19), (20, 0), (25, 19), (34, 0),
    (35, 10), (38, 0), (38, 6), (38, 18), (38, 30), (38, 38),
)  # fmt: skip
"""Digits and digits after the point."""
_ARROW = {
    BYTE: pa.int8(), SHORT: pa.int16(), INTEGER: pa.int32(), LONG: pa.int64(),
    FLOAT: pa.float32(), DOUBLE: pa.float64(), BOOLEAN: pa.bool_(),
}  # fmt: skip
NUMBERS: dict[str, SqlType] = {
    **{f"c{digits}_{scale}": decimal(digits, scale) for digits, scale in WIDTHS},
    "y": BYTE, "h": SHORT, "i": INTEGER, "l": LONG, "f": FLOAT, "d": DOUBLE,
}  # fmt: skip
COLUMNS: dict[str, SqlType] = {**NUMBERS, "b": BOOLEAN}
SCHEMA = Schema(tuple(Column(name, kind) for name, kind in COLUMNS.items()))
_FLOATS = [0.0, -0.0, 1.5, -2.5, float("nan"), float("inf"), -1e300, 1e-300, 9.3e18, 0.1]
LITERALS = (
    "3Y", "-3Y", "127Y", "-128Y", "0Y", "10S", "-300S", "0S", "32767S", "7L", "-10L", "0L",
    "9223372036854775807L", "-9223372036854775808L", "0", "1", "-1", "3", "-7", "10", "1000",
    "2147483647", "-2147483648", "2147483648", "-9223372036854775808", "9223372036854775807",
    "9223372036854775808", "99999999999999999999999999999999999999", "3BD", "-3BD", "0BD",
    "1.50BD", "-0.001BD", "1e3BD", "1.5e3BD", "-1.5e-3BD", "1E-30BD", "12e20BD", "0.0", "-0.0",
    "1.5", "-2.50", "0.333333", "1.", ".5", "100.00", "0.00000000000000000001",
    "-12345678901234567890.12345678901235", "12345678901234567890.123456789012345678",
    "0.00000000000000000000000000000000000001", "1e3", "1.5e3", "-1e-3", "2D", "-1.5D", "0.1F",
    "-2F", "1e2F", "+3", "+(3)", "-(3)", "(3)", "(3Y)", "-(3Y)", "- 3", "-(2.5)", "+1.50BD",
    "CAST(3 AS BIGINT)", "CAST(NULL AS INT)",
    "-(12345678901234567890.123456789012345678)", "CAST(NULL AS DECIMAL(38,30))", "- -3", "NULL",
)  # fmt: skip
"""Every form in which Spark reads a number, signs and brackets included."""
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def values_of(kind: SqlType, rng: Random, count: int) -> list[Any]:
    """Limits of the type, ties of rounding, small numbers, any number of digits, NULL."""
    if kind == BOOLEAN:
        return [rng.choice([None, True, False]) for _ in range(count)]
    if kind.is_fractional:
        return [None if rng.random() < 0.15 else rng.choice(_FLOATS) for _ in range(count)]
    if kind.is_integral:
        half = 1 << (INTEGRAL_BITS[kind.kind] - 1)
        often = [None, 0, 1, -1, 2, 3, 10, -7, half - 1, -half, -half + 1]
        return [rng.choice(often) for _ in range(count)]
    return [_decimal(kind, rng) for _ in range(count)]


def _decimal(kind: SqlType, rng: Random) -> Decimal | None:
    largest, unit = 10**kind.precision - 1, 10**kind.scale
    digits = rng.randint(1, kind.precision)
    chosen = rng.randrange(9)
    if chosen == 0:
        return None
    size = (
        0, largest, largest - rng.randint(0, 6), 1, unit, 10 ** (digits - 1) * 5,
        # So many digits and a five: where a tie is rounded.
        rng.randrange(10**digits) // 10 * 10 + 5, rng.randrange(10**digits),
    )[chosen - 1]  # fmt: skip
    size = min(size, largest)
    with localcontext(prec=60):
        return Decimal(-size if rng.random() < 0.5 else size).scaleb(-kind.scale)


def rows_of(rng: Random, count: int) -> pa.Table:
    """A table of so many rows with the columns of `SCHEMA`, and `at`, which counts them."""
    arrays = {
        name: pa.array(
            values_of(kind, rng, count),
            _ARROW.get(kind) or pa.decimal128(kind.precision, kind.scale),
        )
        for name, kind in COLUMNS.items()
    }
    return pa.table({"at": pa.array(range(count), pa.int32()), **arrays})


@dataclass
class TextMaker:
    """Draws one expression after another."""

    rng: Random

    def any(self) -> str:
        """A number or a condition."""
        depth = self.rng.choice((1, 1, 1, 2, 2, 3))
        return self.condition(depth) if self.rng.random() < 0.4 else self.number(depth)

    def number(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0:
            return rng.choice(LITERALS) if rng.random() < 0.35 else rng.choice([*NUMBERS])
        one = self.number(depth - 1)
        match rng.randrange(13):
            case 0:
                form = rng.choice(("-({})", "negative({})", "positive({})", "+({})"))
                return form.format(one)
            case 1 | 2 | 3 | 4:
                op = rng.choice(("+", "-", "*", "/", "%", "div", "div"))
                return f"({one}) {op} ({self.number(depth - 1)})"
            case 5:
                name = rng.choice(("abs", "abs", "sign", "signum", "floor", "ceil", "sqrt"))
                return f"{name}({one})"
            case 6:
                name = rng.choice(("round", "bround"))
                digits = rng.choice(("", ", 0", ", 1", ", 2", ", -1", ", -3", ", 10", ", 33"))
                return f"{name}({one}{digits})"
            case 7:
                return f"CAST({one} AS {self._type()})"
            case 8:
                name = rng.choice(("greatest", "least", "coalesce", "nvl", "nullif", "mod"))
                return f"{name}({one}, {self.number(depth - 1)})"
            case 9:
                return f"coalesce({one}, {self.number(depth - 1)}, {self.number(0)})"
            case 10:
                return f"if({self.condition(depth - 1)}, {one}, {self.number(depth - 1)})"
            case 11:
                return f"CASE WHEN {self.condition(0)} THEN {one} ELSE {self.number(0)} END"
            case _:
                when = f"CASE {self.number(0)} WHEN {self.number(0)} THEN {one}"
                return f"{when} WHEN {self.number(0)} THEN {self.number(0)} END"

    def _type(self) -> str:
        rng = self.rng
        if rng.random() < 0.6:
            digits, scale = rng.choice(WIDTHS)
            return f"DECIMAL({digits}, {scale})"
        return rng.choice(("INT", "BIGINT", "TINYINT", "SMALLINT", "DOUBLE", "FLOAT", "BOOLEAN"))

    def condition(self, depth: int) -> str:
        rng = self.rng
        if depth > 1 and rng.random() < 0.2:
            op = rng.choice(("AND", "OR"))
            return f"({self.condition(depth - 1)}) {op} ({self.condition(depth - 1)})"
        one, other = self.number(depth), self.number(rng.choice((0, 0, depth)))
        match rng.randrange(9):
            case 0 | 1 | 2 | 3 | 4:
                return f"({one}) {rng.choice(COMPARISONS)} ({other})"
            case 5:
                return f"({one}) IN ({other}, {self.number(0)})"
            case 6:
                return f"({one}) BETWEEN {self.number(0)} AND {self.number(0)}"
            case 7:
                return f"({one}) IS NULL"
            case _:
                return f"NOT (({one}) {rng.choice(COMPARISONS)} ({other}))"
