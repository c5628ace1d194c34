"""Plans over lists of dicts by bag algebra, in plain Python: slow, short, obviously right."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import LONG, Kind, SqlType, decimal
from impctl.expr import nodes as e
from impctl.expr.types import arithmetic_type, average_type, narrowed, sum_type, type_of
from impctl.plan import nodes as p
from impctl.types import AccessId, AttributeId, ColumnName, FixpointId, TableName

Value = bool | int | float | str | bytes | Decimal | None
Row = Mapping[AttributeId, Value]

_BITS = {Kind.BYTE: 8, Kind.SHORT: 16, Kind.INTEGER: 32, Kind.LONG: 64}


class ReferenceFailure(Exception):
    """The query itself fails on this row, as it would in Spark."""


class ReferenceLimit(Exception):
    """This evaluator does not know the construct."""


def value_of(expr: e.Expr, row: Row) -> Value:
    """The expression's value on one row."""
    match expr:
        case e.Literal():
            return _typed(expr.value, expr.type)
        case e.ColumnRef():
            return row[expr.id]
        case e.Arithmetic():
            return _arithmetic(expr, row)
        case e.Negate():
            return _negated(value_of(expr.operand, row), type_of(expr.operand))
        case e.Compare():
            return compared(expr.op, value_of(expr.left, row), value_of(expr.right, row))
        case e.And():
            return _all([value_of(part, row) for part in expr.operands])
        case e.Or():
            match = _all([_not(value_of(part, row)) for part in expr.operands])
            return _not(match)
        case e.Not():
            return _not(value_of(expr.operand, row))
        case e.IsNull():
            return value_of(expr.operand, row) is None
        case e.InList():
            operand = value_of(expr.operand, row)
            equal = [compared(e.CompareOp.EQUAL, operand, value_of(o, row)) for o in expr.options]
            return _not(_all([_not(one) for one in equal]))
        case e.Like():
            return _like(value_of(expr.operand, row), expr.pattern, expr.escape)
        case e.Case():
            for condition, result in expr.branches:
                if value_of(condition, row) is True:
                    return _typed(value_of(result, row), type_of(expr))
            return _typed(value_of(expr.default, row), type_of(expr))
        case e.Coalesce():
            for part in expr.operands:
                match = value_of(part, row)
                if match is not None:
                    return _typed(match, type_of(expr))
            return None
        case e.Cast():
            return cast_value(value_of(expr.operand, row), type_of(expr.operand), expr.type)
        case e.Mean():
            return mean_of(value_of(expr.total, row), value_of(expr.count, row), expr.type)
        case e.Call():
            return _call(expr, row)


def is_true(expr: e.Expr | None, row: Row) -> bool:
    """Whether a condition lets the row through; no condition does."""
    return expr is None or value_of(expr, row) is True


def _all(parts: list[Value]) -> Value:
    if any(part is False for part in parts):
        return False
    return None if any(part is None for part in parts) else True


def _not(value: Value) -> Value:
    return None if value is None else not value


def sort_key(value: Value) -> tuple[int, object]:
    """A key that orders the known values of one column as Spark does."""
    if isinstance(value, float):
        return (1, 0) if math.isnan(value) else (0, value + 0.0)
    return (0, value)


def identity(value: Value) -> object:
    """A hashable key that is equal for values which GROUP BY puts together."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (0.0 if value == 0 else value)
    return ("null",) if value is None else value


def _number(value: Value) -> Fraction:
    assert isinstance(value, int | Decimal)
    return Fraction(value)


def compared(op: e.CompareOp, left: Value, right: Value) -> Value:
    """`left op right` in three-valued logic."""
    if op is e.CompareOp.NULL_SAFE_EQUAL:
        if left is None or right is None:
            return left is None and right is None
        return compared(e.CompareOp.EQUAL, left, right)
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    a, b = sort_key(left), sort_key(right)
    match op:
        case e.CompareOp.EQUAL:
            return a == b
        case e.CompareOp.NOT_EQUAL:
            return a != b
        case e.CompareOp.LESS:
            return a < b
        case e.CompareOp.LESS_EQUAL:
            return a <= b
        case e.CompareOp.GREATER:
            return a > b
        case e.CompareOp.GREATER_EQUAL:
            return a >= b


def _typed(value: Value, sql_type: SqlType | None) -> Value:
    """The value in the Python form of the type."""
    if value is None or sql_type is None or isinstance(value, bool):
        return value
    if sql_type.is_fractional and not isinstance(value, str):
        return float(value)
    if sql_type.kind is Kind.DECIMAL and isinstance(value, int | Decimal | str):
        return fit_decimal(Fraction(Decimal(str(value))), sql_type)
    return value


def fit_decimal(value: Fraction, sql_type: SqlType) -> Decimal:
    """Rounded half up to the scale; fails if the precision is too small."""
    unit = 10**sql_type.scale
    whole = half_up(value * unit)
    if abs(whole) >= 10**sql_type.precision:
        raise ReferenceFailure(f"{value} does not fit {sql_type}")
    return Decimal(whole).scaleb(-sql_type.scale, context=_WIDE)


def half_up(value: Fraction) -> int:
    size = (2 * abs(value.numerator) + value.denominator) // (2 * value.denominator)
    return -size if value < 0 else size


def _wide() -> Context:
    return Context(prec=120)


_WIDE = _wide()


def fit_integer(value: int, sql_type: SqlType) -> int:
    """The value; fails if it does not fit the integral type."""
    half = 1 << (_BITS[sql_type.kind] - 1)
    if not -half <= value < half:
        raise ReferenceFailure(f"{value} does not fit {sql_type}")
    return value


def _arithmetic(expr: e.Arithmetic, row: Row) -> Value:
    left, right = value_of(expr.left, row), value_of(expr.right, row)
    types = type_of(expr.left), type_of(expr.right)
    if types[0] is None or types[1] is None:
        raise ReferenceLimit(f"types of {expr}")
    left_type = narrowed(expr.left, types[0], types[1])
    right_type = narrowed(expr.right, types[1], types[0])
    result = arithmetic_type(expr.op, left_type, right_type)
    if result is None:
        raise ReferenceLimit(f"arithmetic on {types}")
    if left is None or right is None:
        return None
    if result.is_fractional:
        value = _of_doubles(expr.op, float(left), float(right))
        return _single(value) if result.kind is Kind.FLOAT else value
    exact = _of_numbers(expr.op, _number(left), _number(right))
    if expr.op is e.ArithmeticOp.INTEGER_DIVIDE and Kind.DECIMAL in (
        left_type.kind,
        right_type.kind,
    ):
        whole = int(fit_decimal(exact, decimal(38, 0)))
        # Spark keeps the last 64 bits.
        return (whole + 2**63) % 2**64 - 2**63
    if result.is_integral:
        return fit_integer(int(exact), result)
    return fit_decimal(exact, result)


def _single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _of_doubles(op: e.ArithmeticOp, a: float, b: float) -> float:
    if op in (e.ArithmeticOp.DIVIDE, e.ArithmeticOp.REMAINDER) and b == 0:
        raise ReferenceFailure("division by zero")
    match op:
        case e.ArithmeticOp.ADD:
            return a + b
        case e.ArithmeticOp.SUBTRACT:
            return a - b
        case e.ArithmeticOp.MULTIPLY:
            return a * b
        case e.ArithmeticOp.DIVIDE:
            return a / b
        case e.ArithmeticOp.REMAINDER:
            return math.nan if math.isinf(a) or math.isnan(a) else math.fmod(a, b)
        case e.ArithmeticOp.INTEGER_DIVIDE:
            raise ReferenceLimit("div of doubles")


def _of_numbers(op: e.ArithmeticOp, a: Fraction, b: Fraction) -> Fraction:
    dividing = op not in (e.ArithmeticOp.ADD, e.ArithmeticOp.SUBTRACT, e.ArithmeticOp.MULTIPLY)
    if dividing and b == 0:
        raise ReferenceFailure("division by zero")
    match op:
        case e.ArithmeticOp.ADD:
            return a + b
        case e.ArithmeticOp.SUBTRACT:
            return a - b
        case e.ArithmeticOp.MULTIPLY:
            return a * b
        case e.ArithmeticOp.DIVIDE:
            return a / b
        case e.ArithmeticOp.INTEGER_DIVIDE:
            return Fraction(math.trunc(a / b))
        case e.ArithmeticOp.REMAINDER:
            return a - b * math.trunc(a / b)


def _negated(value: Value, sql_type: SqlType | None) -> Value:
    if value is None:
        return None
    if isinstance(value, float):
        return -value
    if isinstance(value, int) and sql_type is not None and sql_type.is_integral:
        return fit_integer(-value, sql_type)
    if isinstance(value, Decimal) and sql_type is not None:
        # Java's DECIMAL128: 34 digits, halves to even.
        few = Context(prec=34, rounding=ROUND_HALF_EVEN).minus(value)
        return fit_decimal(Fraction(few), sql_type)
    raise ReferenceLimit(f"-{value!r}")


def _like(value: Value, pattern: str, escape: str) -> Value:
    if value is None:
        return None
    text, position = "", 0
    while position < len(pattern):
        sign = pattern[position]
        if sign == escape:
            position += 1
            sign = re.escape(pattern[position])
        else:
            sign = {"%": ".*", "_": "."}.get(sign, re.escape(sign))
        text, position = text + sign, position + 1
    return re.fullmatch(text, str(value), re.DOTALL) is not None


def cast_value(value: Value, source: SqlType | None, target: SqlType) -> Value:
    """CAST under ANSI rules, between numbers and from BOOLEAN; others are not supported."""
    if value is None or source == target:
        return value
    if source is not None and source.kind is Kind.BOOLEAN:
        value = int(bool(value))
    elif source is None or not source.is_numeric:
        raise ReferenceLimit(f"cast from {source} to {target}")
    if target.is_fractional:
        return _single(float(value)) if target.kind is Kind.FLOAT else float(value)
    if isinstance(value, float) and target.kind is Kind.DECIMAL:
        # By its text, rounded half up; NaN and infinities give NULL.
        exact = Fraction(Decimal(repr(value))) if math.isfinite(value) else None
        return None if exact is None else fit_decimal(exact, target)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ReferenceFailure(f"{value} does not fit {target}")
        exact = Fraction(value)
    else:
        exact = _number(value)
    if target.is_integral:
        return fit_integer(math.trunc(exact), target)
    if target.kind is Kind.DECIMAL:
        return fit_decimal(exact, target)
    raise ReferenceLimit(f"cast from {source} to {target}")


def mean_of(total: Value, count: Value, sql_type: SqlType) -> Value:
    """AVG's last step."""
    if total is None or not count:
        return None
    assert isinstance(count, int)
    if sql_type.is_fractional:
        return float(total) / count
    if sql_type.precision <= 15:
        # Spark averages decimals of at most eleven digits as doubles and casts their text.
        scale = sql_type.scale - 4
        average = float(_number(total) * 10**scale) / count / 10.0**scale
        return fit_decimal(Fraction(Decimal(repr(average))), sql_type)
    return fit_decimal(_number(total) / count, sql_type)


def _call(expr: e.Call, row: Row) -> Value:
    values = [value_of(argument, row) for argument in expr.arguments]
    match expr.name.lower(), values:
        case "abs", [None]:
            return None
        case "abs", [int() as value]:
            result = type_of(expr.arguments[0])
            return fit_integer(abs(value), result) if result is not None else abs(value)
        case "abs", [float() as value]:
            return abs(value)
        case "one_row", [int() as rows]:
            if rows > 1:
                raise ReferenceFailure("more than one row returned by a subquery")
            return True
        case "abs", [Decimal() as value]:
            return _negated(value, type_of(expr.arguments[0])) if value < 0 else value
        case name, _:
            return function_value(name, values)


def function_value(name: str, values: Sequence[Value]) -> Value:
    """The function's value; NULL if an argument is NULL, except for GREATEST and LEAST."""
    known = [value for value in values if value is not None]
    if name == "greatest":
        return max(known, key=sort_key, default=None)
    if name == "least":
        return min(known, key=sort_key, default=None)
    function = _FUNCTIONS.get(name)
    if function is None:
        raise ReferenceLimit(f"function {name}")
    return function(*known) if len(known) == len(values) else None


def _whole(function: Callable[[Any], int]) -> Callable[..., Value]:
    def result(value: Any) -> Value:
        if not isinstance(value, int | float):
            raise ReferenceLimit(f"a whole number for {value!r}")
        if not math.isfinite(value):
            raise ReferenceFailure(f"no whole number for {value}")
        return fit_integer(function(value), LONG)

    return result


def _rounded(value: Any, digits: int = 0) -> Value:
    if isinstance(value, int) and digits >= 0:
        return value
    if not isinstance(value, float):
        raise ReferenceLimit(f"{value!r} rounded")
    if not abs(value) < 2**53:
        return value
    scaled = Fraction(Decimal(repr(value))) * Fraction(10) ** digits
    return float(half_up(scaled) / Fraction(10) ** digits)


def _sqrt(value: float) -> Value:
    return math.sqrt(value) if value >= 0 else math.nan


def _exp(value: float) -> Value:
    return math.inf if value > 700 else math.exp(value)


def _ln(value: float) -> Value:
    return None if value <= 0 else math.log(value)


def _pow(value: float, exponent: float) -> Value:
    """As in Java: NaN where C gives 1 for a power of one."""
    if math.isnan(exponent) or (abs(value) == 1 and math.isinf(exponent)):
        return math.nan
    with np.errstate(all="ignore"):
        return float(np.power(np.float64(value), np.float64(exponent)))


def _day(day: date | int) -> date:
    """Tests of the engine pass days since 1970, tests of whole queries pass dates."""
    return date(1970, 1, 1) + timedelta(day) if isinstance(day, int) else day


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "round": _rounded,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "sqrt": _sqrt,
    "exp": _exp,
    "ln": _ln,
    "pow": _pow,
    "year": lambda day: _day(day).year,
    "month": lambda day: _day(day).month,
    "datediff": lambda end, start: (_day(end) - _day(start)).days,
}


def aggregate_value(call: p.AggregateCall, rows: Sequence[Row]) -> Value:
    """One aggregate over the rows of a group."""
    rows = [row for row in rows if is_true(call.condition, row)]
    arguments = [tuple(value_of(x, row) for x in call.arguments) for row in rows]
    known = [values for values in arguments if None not in values]
    if call.distinct:
        known = list({tuple(map(identity, values)): values for values in known}.values())
    if call.function == "count":
        return len(known) if call.arguments else len(rows)
    if call.function in ("min_by", "max_by"):
        return _beside_extreme(call.function, arguments)
    if len(call.arguments) != 1:
        raise ReferenceLimit(f"aggregate {call.function} of {len(call.arguments)} arguments")
    return _of_values(call.function, [values[0] for values in known], type_of(call.arguments[0]))


def _beside_extreme(function: str, pairs: Sequence[tuple[Value, Value]]) -> Value:
    """The value in the row of the extreme key; among ties, the rows' order does not matter."""
    known = [(value, sort_key(key)) for value, key in pairs if key is not None]
    if not known:
        return None
    keys = [key for _, key in known]
    best = min(keys) if function == "min_by" else max(keys)  # type: ignore[type-var]  # one type
    return min((value for value, key in known if key == best), key=lambda v: repr(identity(v)))


def _of_values(function: str, values: list[Value], sql_type: SqlType | None) -> Value:
    match function:
        case "count_if":
            return sum(1 for value in values if value is True)
        case "sum":
            return total_of(values, sql_type)
        case "avg" | "mean":
            average = None if sql_type is None else average_type(sql_type)
            if average is None:
                raise ReferenceLimit(f"avg of {sql_type}")
            return _average(values, average)
        case "min" | "bool_and" | "every":
            return min(values, key=sort_key, default=None)
        case "max" | "bool_or" | "any" | "some":
            return max(values, key=sort_key, default=None)
        case "variance" | "var_pop" | "stddev" | "stddev_pop":
            return _spread(function, values)
        case _:
            raise ReferenceLimit(f"aggregate {function}")


def _spread(function: str, values: list[Value]) -> Value:
    """Exact for the values as doubles, then rounded."""
    numbers = [float(value) for value in values]  # type: ignore[arg-type]  # known numbers
    divisor = len(numbers) - (function in ("variance", "stddev"))
    if divisor <= 0:
        return None
    if not all(math.isfinite(number) for number in numbers):
        return math.nan
    exact = [Fraction(number) for number in numbers]
    mean = sum(exact, Fraction()) / len(exact)
    try:
        spread = float(sum(((number - mean) ** 2 for number in exact), Fraction()) / divisor)
    except OverflowError:
        spread = math.inf
    return math.sqrt(spread) if function.startswith("stddev") else spread


def _average(values: list[Value], sql_type: SqlType) -> Value:
    if not values:
        return None
    if sql_type.is_fractional:
        return mean_of(_double_total(values), len(values), sql_type)
    exact = sum((Fraction(Decimal(str(value))) for value in values), Fraction())
    wide = SqlType(sql_type.kind, 38, sql_type.scale)
    return mean_of(fit_decimal(exact, wide), len(values), sql_type)


def total_of(values: list[Value], sql_type: SqlType | None) -> Value:
    """SUM of known values: exact; fails if it does not fit the result type."""
    result = None if sql_type is None else sum_type(sql_type)
    if result is None:
        raise ReferenceLimit(f"sum of {sql_type}")
    if not values:
        return None
    if result.is_fractional:
        return _double_total(values)
    exact = sum((Fraction(Decimal(str(value))) for value in values), Fraction())
    return fit_integer(int(exact), result) if result.is_integral else fit_decimal(exact, result)


def _double_total(values: list[Value]) -> float:
    numbers = [float(value) for value in values]  # type: ignore[arg-type]  # known numbers
    if all(math.isfinite(number) for number in numbers):
        return float(sum((Fraction(number) for number in numbers), Fraction()))
    return sum(number for number in numbers if not math.isfinite(number))


Values = Mapping[AttributeId, Value]


def window_values(
    call: p.WindowCall, rows: Sequence[Values], sort_keys: list[tuple[object, ...]]
) -> list[Value]:
    """The call's value for each row of one ordered partition."""
    match call.function:
        case "row_number":
            return list(range(1, len(rows) + 1))
        case "rank":
            return [sort_keys.index(one) + 1 for one in sort_keys]
        case "dense_rank":
            distinct = list(dict.fromkeys(sort_keys))
            return [distinct.index(one) + 1 for one in sort_keys]
        case "percent_rank":
            others = len(rows) - 1
            return [sort_keys.index(one) / others if others else 0.0 for one in sort_keys]
        case "cume_dist":
            ends = [len(rows) - sort_keys[::-1].index(one) for one in sort_keys]
            return [end / len(rows) for end in ends]
        case "lag" | "lead":
            return [_elsewhere(call, rows, index) for index in range(len(rows))]
        case "count" | "sum" | "avg" | "min" | "max":
            plain = p.AggregateCall(call.function, call.arguments)
            return [
                aggregate_value(plain, list(rows[: _frame_end(call, sort_keys, index)]))
                for index in range(len(rows))
            ]
        case _:
            raise ReferenceLimit(f"window function {call.function}")


def _elsewhere(call: p.WindowCall, rows: Sequence[Values], index: int) -> Value:
    """The argument of the row `offset` positions before or after, or the default."""
    argument, *rest = call.arguments
    offset = int(value_of(rest[0], rows[index])) if rest else 1  # type: ignore[arg-type]  # a number
    target = index - offset if call.function == "lag" else index + offset
    if 0 <= target < len(rows):
        return value_of(argument, rows[target])
    return value_of(rest[1], rows[index]) if len(rest) > 1 else None


def sees_whole(call: p.WindowCall) -> bool:
    """Whether the frame of each row is the whole partition, by the rules of SQL."""
    if call.frame is None:
        return len(call.order) == 0
    return call.frame.lower().endswith("between unbounded preceding and unbounded following")


def _frame_end(call: p.WindowCall, sort_keys: list[tuple[object, ...]], index: int) -> int:
    if sees_whole(call):
        return len(sort_keys)
    if call.frame is None:
        return len(sort_keys) - sort_keys[::-1].index(sort_keys[index])
    if call.frame.lower() == "rows between unbounded preceding and current row":
        return index + 1
    raise ReferenceLimit(f"frame {call.frame}")


Lineage = frozenset[tuple[AccessId, int]]
DerivedRow = tuple[tuple[Value, ...], Lineage]
"""Values by position, and their lineage."""

NOTHING: Lineage = frozenset()
MOST_ROUNDS = 200
MOST_ROWS = 5_000
"""Limit for the rows of a bag fixpoint; the engine's limit is higher."""


class Tuple(Struct, frozen=True):
    """A row of a node, and its lineage."""

    values: Mapping[AttributeId, Value]
    lineage: Lineage


def key_of(row: Tuple) -> tuple[object, ...]:
    return tuple(identity(value) for _, value in sorted(row.values.items()))


def grouped(rows: Iterable[Tuple]) -> dict[object, list[Tuple]]:
    groups: dict[object, list[Tuple]] = {}
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    return groups


def lineage_of(rows: Iterable[Tuple]) -> Lineage:
    return NOTHING.union(*(row.lineage for row in rows))


def distinct(rows: list[Tuple]) -> list[Tuple]:
    return [Tuple(same[0].values, lineage_of(same)) for same in grouped(rows).values()]


def by_levels(
    base: Sequence[DerivedRow],
    step: Callable[[list[DerivedRow]], list[DerivedRow]],
    most: int | None,
) -> list[DerivedRow]:
    """The rows of the base and of repeated steps, until a step yields none.

    Raises ReferenceFailure if `most` levels (default: 100) are not enough, or for too many rows.
    """
    result: list[DerivedRow] = []
    level = list(base)
    for _ in range(100 if most is None else most):
        result += level
        if not level:
            # The rest of the step is evaluated even without rows, because it may fail.
            assert not step(level)
            return result
        if len(result) >= MOST_ROWS:
            raise ReferenceFailure(f"there are {MOST_ROWS} rows and more")
        level = step(level)
    if level:
        raise ReferenceFailure("there are rows in too many levels")
    return result


def least(
    base: Sequence[DerivedRow],
    step: Callable[[list[DerivedRow]], list[DerivedRow]],
    best: p.BestOnly | None = None,
    *,
    with_lineage: bool = True,
) -> list[DerivedRow]:
    """The least solution of T = base UNION step(T); with `best`, rounds keep only the best rows.

    The lineage of a row covers all its derivations from these rows. For `best` rows it is computed
    once the rows are known, so that rows beaten later do not contribute, even if rows derived from
    them form a cycle. Without lineage, the rounds end once the rows are known. Raises
    ReferenceFailure if there are too many rounds.
    """
    rows: dict[object, DerivedRow] = {}
    are_known = best is None
    for _ in range(MOST_ROUNDS if best is None else 2 * MOST_ROUNDS):
        result: dict[object, DerivedRow] = {}
        for values, lineage in [*base, *step(list(rows.values()))]:
            key = tuple(identity(value) for value in values)
            known = result.get(key, (values, NOTHING))
            result[key] = known[0], known[1] | lineage
        if best is not None:
            result = _best(result, best)
        is_same = result.keys() == rows.keys()
        if is_same and not with_lineage:
            return list(rows.values())
        if is_same and are_known and all(row[1] == rows[key][1] for key, row in result.items()):
            return list(rows.values())
        if is_same and not are_known:
            are_known = True
            result = {key: (values, NOTHING) for key, (values, _) in rows.items()}
        rows = result
    raise ReferenceFailure(f"rows still come after {MOST_ROUNDS} rounds")


def _best(rows: Mapping[object, DerivedRow], best: p.BestOnly) -> dict[object, DerivedRow]:
    """The rows that are best of their group by one of the values."""
    groups: dict[object, list[object]] = {}
    for key, (values, _) in rows.items():
        groups.setdefault(tuple(identity(values[index]) for index in best.keys), []).append(key)
    kept: dict[object, DerivedRow] = {}
    for keys in groups.values():
        for value in best.values:
            result = {key: rows[key][0][value.place] for key in keys}
            known = [sort_key(one) for one in result.values() if one is not None]
            first = (max(known) if value.greatest else min(known)) if known else None
            for key, one in result.items():
                is_first = (None if one is None else sort_key(one)) == first
                if is_first or (one is None and best.keeps_null):
                    kept[key] = rows[key]
    return {key: row for key, row in rows.items() if key in kept}


def named(attributes: Sequence[p.Attribute], rows: Iterable[DerivedRow]) -> list[Tuple]:
    """The rows with their values under these columns."""
    return [
        Tuple({a.id: value for a, value in zip(attributes, values, strict=True)}, lineage)
        for values, lineage in rows
    ]


def unnamed(attributes: Sequence[p.Attribute], rows: Iterable[Tuple]) -> list[DerivedRow]:
    """The rows with their values in the order of these columns."""
    return [(tuple(row.values[a.id] for a in attributes), row.lineage) for row in rows]


Tables = Mapping[TableName, Sequence[Mapping[ColumnName, Value]]]
Instances = Mapping[AccessId, Collection[int]]
"""Row numbers an access may see; an access not named sees the whole table."""


class Annotated(Struct, frozen=True):
    """Result rows with lineage, and that of each barrier's rows (by position in `walk()`)."""

    rows: tuple[tuple[tuple[Value, ...], Lineage], ...]
    first_rows: Mapping[int, Lineage]

    @property
    def lineage(self) -> Lineage:
        """The lineage of all result rows."""
        return NOTHING.union(*(lineage for _, lineage in self.rows))


def evaluate(
    root: p.Plan,
    tables: Tables,
    instances: Instances | None = None,
    shuffle: Callable[[list[Tuple]], None] | None = None,
) -> list[tuple[Value, ...]]:
    """The rows of the plan, as tuples in the order of `attributes_of(root)`."""
    run = _Run(tables, {} if instances is None else instances, shuffle, False, with_lineage=False)
    return [row for row, _ in unnamed(root.attributes, run.rows_of(root, 0))]


def annotate(
    root: p.Plan,
    tables: Tables,
    instances: Instances | None = None,
    shuffle: Callable[[list[Tuple]], None] | None = None,
    *,
    whole_windows: bool = False,
) -> Annotated:
    """The rows of the plan with their lineage; with `whole_windows` as captures count it.

    Captures attribute a row of a window to all rows of its partition, for any function.
    """
    run = _Run(tables, {} if instances is None else instances, shuffle, whole_windows)
    return Annotated(tuple(unnamed(root.attributes, run.rows_of(root, 0))), run.first_rows)


def bag(rows: Iterable[Sequence[Value]]) -> Counter[tuple[object, ...]]:
    """Rows with their multiplicities, so that two results can be compared."""
    return Counter(tuple(identity(value) for value in row) for row in rows)


def listed(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows of a table, each value by its identity."""
    columns = [[identity(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * len(table)


def size_of(plan: p.Plan) -> int:
    return sum(1 for _ in plan.walk())


class _Run(Struct, dict=True):
    tables: Tables
    instances: Instances
    shuffle: Callable[[list[Tuple]], None] | None
    whole_windows: bool
    with_lineage: bool = True
    first_rows: dict[int, Lineage] = field(default_factory=dict)
    derived: dict[FixpointId, list[DerivedRow]] = field(default_factory=dict)
    reads_derived: dict[int, bool] = field(default_factory=dict)
    cached: dict[int, list[Tuple]] = field(default_factory=dict)
    """Rows, by position, of nodes in a step that read no rows of an outer fixpoint; they are equal
    in all rounds."""

    def rows_of(self, node: p.Plan, position: int) -> list[Tuple]:
        if not self.derived:
            return self._rows_of(node, position)
        if position not in self.reads_derived:
            leaves = {n.fixpoint for n in node.walk() if isinstance(n, p.Recursive)}
            inner = {n.id for n in node.walk() if isinstance(n, p.Fixpoint)}
            self.reads_derived[position] = not leaves <= inner
        if self.reads_derived[position]:
            return self._rows_of(node, position)
        if position not in self.cached:
            self.cached[position] = self._rows_of(node, position)
        return self.cached[position]

    def _rows_of(self, node: p.Plan, position: int) -> list[Tuple]:
        match node:
            case p.Scan():
                return self._scan(node)
            case p.Select():
                rows = self.rows_of(node.child, position + 1)
                return [row for row in rows if is_true(node.predicate, row.values)]
            case p.Project():
                rows = self.rows_of(node.child, position + 1)
                return [
                    Tuple(
                        {o.attribute.id: value_of(o.expr, row.values) for o in node.outputs},
                        row.lineage,
                    )
                    for row in rows
                ]
            case p.Sort():
                return self.rows_of(node.child, position + 1)
            case p.Join():
                left, right = self._sides(node, position)
                return _join(node, left, right)
            case p.SetOperation():
                left, right = self._sides(node, position)
                return _combine(
                    node, _renamed(node, node.left, left), _renamed(node, node.right, right)
                )
            case p.Distinct():
                return distinct(self.rows_of(node.child, position + 1))
            case p.Aggregate():
                return _aggregate(node, self.rows_of(node.child, position + 1))
            case p.TopK():
                return self._top(node, position)
            case p.Window():
                rows = self.rows_of(node.child, position + 1)
                return self._window(node, rows, is_whole=self.whole_windows)
            case p.OneRow():
                return [Tuple({}, frozenset())]
            case p.Recursive():
                return named(node.attributes, self.derived[node.fixpoint])
            case p.Fixpoint():
                return self._fixpoint(node, position)
            case p.Witness():
                return self._witnesses(node, self.rows_of(node.child, position + 1))

    def _sides(self, node: p.Plan, position: int) -> tuple[list[Tuple], list[Tuple]]:
        left, right = node.inputs
        rows = self.rows_of(left, position + 1)
        return rows, self.rows_of(right, position + 1 + size_of(left))

    def _fixpoint(self, node: p.Fixpoint, position: int) -> list[Tuple]:
        """Every row belongs to the barrier, used above or not."""

        def base() -> list[DerivedRow]:
            return unnamed(node.base.attributes, self.rows_of(node.base, position + 1))

        def step(rows: list[DerivedRow]) -> list[DerivedRow]:
            self.derived[node.id], step_position = rows, position + 1 + size_of(node.base)
            return unnamed(node.step.attributes, self.rows_of(node.step, step_position))

        if node.is_set:
            result = least(base(), step, node.best, with_lineage=self.with_lineage)
        else:
            result = by_levels(base(), step, node.levels)
        self.first_rows[position] = lineage_of(rows := named(node.attributes, result))
        return rows

    def _scan(self, node: p.Scan) -> list[Tuple]:
        rows = self.tables[node.table]
        visible = self.instances.get(node.access, range(len(rows)))
        names = {name.lower(): name for name in rows[0]} if rows else {}
        result = []
        for index in sorted(visible):
            values = {a.id: rows[index][names[a.name.lower()]] for a in node.attributes}
            result.append(Tuple(values, frozenset({(node.access, index)})))
        return result

    def _ordered(self, rows: list[Tuple], order: Sequence[p.SortKey]) -> list[Tuple]:
        """Sorted by the keys; ties by contents, or as `shuffle` leaves them."""
        rows = list(rows)
        if self.shuffle is None:
            rows.sort(key=lambda row: repr([identity(v) for _, v in sorted(row.values.items())]))
        else:
            self.shuffle(rows)
        for key in reversed(order):
            valued = [(value_of(key.expr, row.values), row) for row in rows]
            nulls = [row for value, row in valued if value is None]
            sortable = [pair for pair in valued if pair[0] is not None]
            sortable.sort(key=lambda pair: sort_key(pair[0]), reverse=key.descending)
            known = [row for _, row in sortable]
            rows = [*nulls, *known] if key.nulls_first else [*known, *nulls]
        return rows

    def _top(self, node: p.TopK, position: int) -> list[Tuple]:
        rows = self.rows_of(node.child, position + 1)
        if node.rank is not None:
            return self._first_ranks(node, node.rank, rows, position)
        rows = self._ordered(rows, node.order)
        end = len(rows) if node.count is None else node.offset + node.count
        last = _sort_key_of(node.order, rows[end - 1]) if 0 < end <= len(rows) else None
        first = [
            row for i, row in enumerate(rows) if i < end or _sort_key_of(node.order, row) == last
        ]
        first_rows = first if end > 0 else []
        self.first_rows[position] = NOTHING.union(*(row.lineage for row in first_rows))
        return rows[node.offset : end]

    def _witnesses(self, node: p.Witness, rows: list[Tuple]) -> list[Tuple]:
        parts: dict[object, list[Tuple]] = {}
        for row in rows:
            key = tuple(identity(value_of(expr, row.values)) for expr in node.partition_by)
            parts.setdefault(key, []).append(row)
        result = []
        for part in parts.values():
            for order in node.orders:
                best = _sort_key_of(order, self._ordered(part, order)[0])
                result.extend(row for row in part if _sort_key_of(order, row) == best)
        return result

    def _first_ranks(
        self, node: p.TopK, rank: p.WindowCall, rows: list[Tuple], position: int
    ) -> list[Tuple]:
        tied = replace(rank.attribute, id=f"{rank.attribute.id}/tied")
        function = "dense_rank" if rank.function == "dense_rank" else "rank"
        calls = (rank, replace(rank, attribute=tied, function=function))
        ranked = self._window(p.Window(node.child, calls), rows, is_whole=False)
        first = [row for row in ranked if _is_within(row, tied, node)]
        self.first_rows[position] = lineage_of(first)
        names = [attribute.id for attribute in node.attributes]
        result = [row for row in ranked if _is_within(row, rank.attribute, node)]
        return [Tuple({name: row.values[name] for name in names}, row.lineage) for row in result]

    def _window(self, node: p.Window, rows: list[Tuple], *, is_whole: bool) -> list[Tuple]:
        """`is_whole`: the lineage of every row is its whole partition."""
        rows = [Tuple(row.values, row.lineage) for row in rows]  # one object per copy of a row
        results = [dict(row.values) for row in rows]
        lineages = [row.lineage for row in rows]
        for call in node.calls:
            parts: dict[object, list[int]] = {}
            for index, row in enumerate(rows):
                key = tuple(identity(value_of(expr, row.values)) for expr in call.partition_by)
                parts.setdefault(key, []).append(index)
            for part in parts.values():
                if is_whole or sees_whole(call):
                    both = lineage_of([rows[index] for index in part])
                    for index in part:
                        lineages[index] |= both
                index_of = {id(rows[index]): index for index in part}
                ordered = self._ordered([rows[index] for index in part], call.order)
                sort_keys = [_sort_key_of(call.order, row) for row in ordered]
                values = window_values(call, [row.values for row in ordered], sort_keys)
                for row, value in zip(ordered, values, strict=True):
                    results[index_of[id(row)]][call.attribute.id] = value
        return [Tuple(v, result) for v, result in zip(results, lineages, strict=True)]


def _is_within(row: Tuple, rank: p.Attribute, node: p.TopK) -> bool:
    assert node.count is not None
    return int(row.values[rank.id]) <= node.count  # type: ignore[arg-type]  # a rank


def _sort_key_of(order: Sequence[p.SortKey], row: Tuple) -> tuple[object, ...]:
    return tuple(identity(value_of(key.expr, row.values)) for key in order)


def _join(node: p.Join, left: list[Tuple], right: list[Tuple]) -> list[Tuple]:
    names = [a.id for a in node.left.attributes], [a.id for a in node.right.attributes]
    result: list[Tuple] = []
    matched: set[int] = set()
    candidates = _candidates(node.condition, right, frozenset(names[1]))
    for row in left:
        partners = []
        for index in candidates(row):
            other = right[index]
            values = {**row.values, **other.values}
            if is_true(node.condition, values):
                partners.append(Tuple(values, row.lineage | other.lineage))
                matched.add(index)
        result.extend(_of_left_row(node, row, right, partners, names[1]))
    if node.kind in (p.JoinKind.RIGHT, p.JoinKind.FULL):
        padding: dict[AttributeId, Value] = dict.fromkeys(names[0])
        result.extend(
            Tuple({**padding, **other.values}, other.lineage)
            for index, other in enumerate(right)
            if index not in matched
        )
    return result


def _candidates(
    condition: e.Expr | None, right: Sequence[Tuple], ids: frozenset[AttributeId]
) -> Callable[[Tuple], Sequence[int]]:
    """For a row of the left side, the positions on the right where the condition can hold.

    Rows that differ in a column that must be equal are not compared, unless comparing may fail.
    """
    parts = condition.operands if isinstance(condition, e.And) else (condition,)
    pairs = [pair for part in parts for pair in _equal_columns(part, ids)]
    if not pairs or not all(map(_cannot_fail, parts)):
        return lambda row: range(len(right))
    positions: dict[object, list[int]] = {}
    for index, other in enumerate(right):
        key = tuple(identity(other.values[theirs]) for _, theirs in pairs)
        positions.setdefault(key, []).append(index)
    return lambda row: positions.get(tuple(identity(row.values[mine]) for mine, _ in pairs), ())


def _equal_columns(
    part: e.Expr | None, ids: frozenset[AttributeId]
) -> list[tuple[AttributeId, AttributeId]]:
    """The columns of the left and the right side that the condition says are equal."""
    match part:
        case e.Compare(
            op=e.CompareOp.EQUAL | e.CompareOp.NULL_SAFE_EQUAL,
            left=e.ColumnRef() as one,
            right=e.ColumnRef() as other,
        ) if one.type == other.type and (one.id in ids) != (other.id in ids):
            return [(other.id, one.id) if one.id in ids else (one.id, other.id)]
    return []


def _cannot_fail(part: e.Expr | None) -> bool:
    return isinstance(part, e.Compare) and all(
        isinstance(side, e.ColumnRef | e.Literal) for side in (part.left, part.right)
    )


def _of_left_row(
    node: p.Join, row: Tuple, right: list[Tuple], partners: list[Tuple], padding: list[AttributeId]
) -> list[Tuple]:
    match node.kind:
        case p.JoinKind.INNER | p.JoinKind.RIGHT:
            return partners
        case p.JoinKind.LEFT | p.JoinKind.FULL:
            return partners or [Tuple({**row.values, **dict.fromkeys(padding)}, row.lineage)]
        case p.JoinKind.SEMI:
            lineage = NOTHING.union(*(partner.lineage for partner in partners))
            return [Tuple(row.values, row.lineage | lineage)] if partners else []
        case p.JoinKind.ANTI:
            hit = bool(partners)
            if node.null_aware and node.condition is not None:
                hit = any(
                    value_of(node.condition, {**row.values, **other.values}) is not False
                    for other in right
                )
            return [] if hit else [row]


def _renamed(node: p.SetOperation, side: p.Plan, rows: list[Tuple]) -> list[Tuple]:
    pairs = list(zip(node.attributes, side.attributes, strict=True))
    result = []
    for row in rows:
        values: dict[AttributeId, Value] = {}
        for output, source in pairs:
            value = row.values[source.id]
            if value is not None and output.type is not None and output.type.is_fractional:
                value = float(value)  # type: ignore[arg-type]  # a number by its column's type
            values[output.id] = value
        result.append(Tuple(values, row.lineage))
    return result


def _combine(node: p.SetOperation, left: list[Tuple], right: list[Tuple]) -> list[Tuple]:
    if node.kind is p.SetKind.UNION:
        return [*left, *right] if node.all else distinct([*left, *right])
    others = grouped(right)
    result: list[Tuple] = []
    for key, same in grouped(left).items():
        matches = others.get(key, [])
        if node.kind is p.SetKind.EXCEPT:
            copies = len(same) - len(matches) if node.all else int(not matches)
            lineage = lineage_of(same)
        else:
            copies = min(len(same), len(matches))
            copies = copies if node.all else min(copies, 1)
            lineage = lineage_of([*same, *matches])
        result.extend([Tuple(same[0].values, lineage)] * max(copies, 0))
    return result


def _aggregate(node: p.Aggregate, rows: list[Tuple]) -> list[Tuple]:
    if node.grouping_sets is None:
        chosen = range(len(node.keys))
        return _groups(node, rows, set(chosen), exists_empty=not node.keys)
    return [
        row
        for indexes in node.grouping_sets
        for row in _groups(node, rows, set(indexes), exists_empty=False)
    ]


def _groups(
    node: p.Aggregate, rows: list[Tuple], used: set[int], *, exists_empty: bool
) -> list[Tuple]:
    groups: dict[tuple[object, ...], list[Tuple]] = {(): []} if exists_empty else {}
    keys: dict[tuple[object, ...], list[Value]] = {(): []}
    for row in rows:
        values = [
            value_of(output.expr, row.values) if index in used else None
            for index, output in enumerate(node.keys)
        ]
        key = tuple(identity(value) for value in values)
        groups.setdefault(key, []).append(row)
        keys.setdefault(key, values)
    result = []
    for key, members in groups.items():
        outputs = {
            output.attribute.id: value for output, value in zip(node.keys, keys[key], strict=True)
        }
        for output in node.aggregates:
            outputs[output.attribute.id] = aggregate_value(
                output.call, [row.values for row in members]
            )
        result.append(Tuple(outputs, lineage_of(members)))
    return result
