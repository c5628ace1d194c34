"""Scalar functions by name: what they take and how they are computed.

Law: each gives what Spark gives, or is not listed for these types; every entry is tested against
Spark. A NULL argument gives NULL. Upper and lower case of letters outside ASCII depend on Java's
tables, so a column that holds such letters is refused when it is met.
Out of scope: timestamps with a time zone, whose parts depend on the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.schema import Kind, SqlType
from impctl.data.vector import INT64_MAX, Bools, Vector
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.nodes import Call, Expr, Literal
from impctl.expr.numbers import fit_integers
from impctl.expr.types import type_of

_SMALLEST_DAY, _LARGEST_DAY = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Function:
    """`takes` tells whether these argument expressions are computed here; `compute` does it."""

    takes: Callable[[Sequence[Expr]], bool]
    compute: Callable[[Sequence[Vector], SqlType], Vector]


def is_computed(call: Call) -> bool:
    """Whether the engine computes this call as Spark does."""
    found = _FUNCTIONS.get(call.name)
    return found is not None and found.takes(call.arguments)


def compute(call: Call, arguments: Sequence[Vector], result: SqlType) -> Vector:
    """The call's value per row; the call `is_computed`."""
    return _FUNCTIONS[call.name].compute(arguments, result)


def _kinds(*wanted: frozenset[Kind]) -> Callable[[Sequence[Expr]], bool]:
    """Exactly so many arguments, each of one of these kinds."""

    def takes(arguments: Sequence[Expr]) -> bool:
        found = [type_of(argument) for argument in arguments]
        return len(found) == len(wanted) and all(
            kind is not None and kind.kind in kinds
            for kind, kinds in zip(found, wanted, strict=True)
        )

    return takes


_TEXT = frozenset({Kind.STRING})
_DATE = frozenset({Kind.DATE})
_WHOLE = frozenset({Kind.BYTE, Kind.SHORT, Kind.INTEGER})
_NUMBER = _WHOLE | {Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL}


def _both_valid(arguments: Sequence[Vector]) -> Bools | None:
    masks = [argument.valid for argument in arguments if argument.valid is not None]
    return np.logical_and.reduce(masks) if masks else None


def _days(vector: Vector) -> Any:
    """Days as NumPy dates; a NULL is day 0."""
    values = vector.values if vector.valid is None else np.where(vector.valid, vector.values, 0)
    return values.astype("datetime64[D]")


def _date_field(name: str) -> Function:
    def compute_field(arguments: Sequence[Vector], result: SqlType) -> Vector:
        days = _days(arguments[0])
        months = days.astype("datetime64[M]").astype(np.int64)
        if name == "year":
            values = months // 12 + 1970
        elif name == "month":
            values = months % 12 + 1
        elif name == "quarter":
            values = months % 12 // 3 + 1
        else:
            values = (days - days.astype("datetime64[M]")).astype(np.int64) + 1
        return Vector(result, values, arguments[0].valid)

    return Function(_kinds(_DATE), compute_field)


def _moved_date(sign: int) -> Function:
    def compute_move(arguments: Sequence[Vector], result: SqlType) -> Vector:
        valid = _both_valid(arguments)
        days = arguments[0].values + sign * arguments[1].values
        shown = days if valid is None else days[valid]
        if bool(((shown < _SMALLEST_DAY) | (shown > _LARGEST_DAY)).any()):
            raise EvaluationError(
                "Adding days to a date leaves the range of dates",
                code="arithmetic_overflow",
                hint="narrow the query's condition; Spark fails too or wraps around",
            )
        return Vector(result, days, valid)

    return Function(_kinds(_DATE, _WHOLE), compute_move)


def _datediff(arguments: Sequence[Vector], result: SqlType) -> Vector:
    return Vector(result, arguments[0].values - arguments[1].values, _both_valid(arguments))


def _text(function: Callable[[pa.Array], pa.Array]) -> Function:
    def compute_text(arguments: Sequence[Vector], result: SqlType) -> Vector:
        return Vector(result, function(arguments[0].values), arguments[0].valid)

    return Function(_kinds(_TEXT), compute_text)


def _ascii(function: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    def checked(values: pa.Array) -> pa.Array:
        if not pc.all(pc.string_is_ascii(values), min_count=0).as_py():
            raise NotExactError(
                "Changing the case of letters outside ASCII is left to Spark",
                hint="recapture with `impctl capture`, or compare the column as it is",
            )
        return function(values)

    return checked


def _length(arguments: Sequence[Vector], result: SqlType) -> Vector:
    lengths = pc.utf8_length(arguments[0].values).fill_null(0)
    return Vector(result, lengths.to_numpy().astype(np.int64), arguments[0].valid)


def _concat_takes(arguments: Sequence[Expr]) -> bool:
    return bool(arguments) and all(_kinds(_TEXT)([argument]) for argument in arguments)


def _concat(arguments: Sequence[Vector], result: SqlType) -> Vector:
    parts = [argument.values for argument in arguments]
    joined = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))
    return Vector(result, joined, _both_valid(arguments))


def _substring_takes(arguments: Sequence[Expr]) -> bool:
    """From the start or a position counted from it; Spark counts others from the end."""
    if len(arguments) not in (2, 3) or not _kinds(_TEXT)(arguments[:1]):
        return False
    numbers = [a.value for a in arguments[1:] if isinstance(a, Literal)]
    known = [number for number in numbers if isinstance(number, int)]
    return len(known) == len(arguments) - 1 and known[0] >= 0


def _substring(arguments: Sequence[Vector], result: SqlType) -> Vector:
    values = arguments[0].values
    if not len(values):
        return Vector(result, values)
    start = max(int(arguments[1].values[0]) - 1, 0)
    end = None
    if len(arguments) == 3:
        end = start + max(int(arguments[2].values[0]), 0)
    return Vector(result, pc.utf8_slice_codeunits(values, start, end), arguments[0].valid)


def _matches(function: Callable[..., pa.Array]) -> Function:
    def takes(arguments: Sequence[Expr]) -> bool:
        is_constant = len(arguments) == 2 and isinstance(arguments[1], Literal)
        return is_constant and _kinds(_TEXT, _TEXT)(arguments)

    def compute_match(arguments: Sequence[Vector], result: SqlType) -> Vector:
        values, pattern = arguments[0].values, arguments[1].values
        if not len(values):
            return Vector(result, np.zeros(0, dtype=np.bool_))
        found = function(values, pattern[0].as_py()).fill_null(False)
        return Vector(result, found.to_numpy(zero_copy_only=False), arguments[0].valid)

    return Function(takes, compute_match)


def _abs(arguments: Sequence[Vector], result: SqlType) -> Vector:
    (argument,) = arguments
    if not argument.type.is_integral:
        return Vector(argument.type, np.abs(argument.values), argument.valid, argument.error)
    kept = argument.values
    if argument.valid is not None:
        kept = np.where(argument.valid, kept, 0)
    if len(kept) and int(kept.min()) < -INT64_MAX:
        kept = kept.astype(object)
    return Vector(argument.type, fit_integers(np.abs(kept), argument.type), argument.valid)


def _trimmed(function: Callable[..., pa.Array]) -> Function:
    return _text(lambda values: function(values, characters=" "))


_LENGTH = Function(_kinds(_TEXT), _length)
_SUBSTRING = Function(_substring_takes, _substring)
_FUNCTIONS: dict[str, Function] = {
    "abs": Function(_kinds(_NUMBER), _abs),
    "year": _date_field("year"),
    "month": _date_field("month"),
    "quarter": _date_field("quarter"),
    "day": _date_field("day"),
    "dayofmonth": _date_field("day"),
    "date_add": _moved_date(1),
    "date_sub": _moved_date(-1),
    "datediff": Function(_kinds(_DATE, _DATE), _datediff),
    "date_diff": Function(_kinds(_DATE, _DATE), _datediff),
    "upper": _text(_ascii(pc.ascii_upper)),
    "ucase": _text(_ascii(pc.ascii_upper)),
    "lower": _text(_ascii(pc.ascii_lower)),
    "lcase": _text(_ascii(pc.ascii_lower)),
    "trim": _trimmed(pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim),
    "length": _LENGTH,
    "char_length": _LENGTH,
    "character_length": _LENGTH,
    "concat": Function(_concat_takes, _concat),
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "startswith": _matches(pc.starts_with),
    "endswith": _matches(pc.ends_with),
    "contains": _matches(pc.match_substring),
}
