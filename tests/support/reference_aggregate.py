"""Aggregate functions over lists of rows, in plain Python.

Law: sums are exact whatever the order of rows (doubles through fractions, rounded once), so two
runs over the same rows agree; a result that does not fit its Spark type raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from impctl.data.schema import SqlType
from impctl.expr.types import average_type, sum_type, type_of
from impctl.plan.nodes import AggregateCall
from tests.support.reference_expr import (
    ReferenceLimit,
    Row,
    Value,
    fit_decimal,
    fit_integer,
    identity,
    is_true,
    mean_of,
    sort_key,
    value_of,
)


def aggregate_value(call: AggregateCall, rows: Sequence[Row]) -> Value:
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
    """The value beside the extreme key; of several, one that the rows' order does not decide."""
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
    """SUM of known values: exact, with an error where the result type does not hold it."""
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
