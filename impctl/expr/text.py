"""Functions of text.

Law: text is a sequence of code points, compared and searched by bytes, as Spark's UTF8_BINARY has
it. Upper and lower case of letters outside ASCII depend on Java's tables, so a column that holds
such letters is refused when it is met.
Out of scope: LIKE (`expr.compare`), other collations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.vector import Vector
from impctl.errors import NotExactError
from impctl.expr.signature import (
    TEXT,
    Function,
    all_valid,
    constants_after,
    either,
    kinds,
    value_of,
)

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.expr.nodes import Expr


def _text(function: Callable[[pa.Array], pa.Array]) -> Function:
    def compute_text(arguments: Sequence[Vector], result: SqlType) -> Vector:
        return Vector(result, function(arguments[0].values), arguments[0].valid)

    return Function(kinds(TEXT), compute_text)


def _ascii(function: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    def checked(values: pa.Array) -> pa.Array:
        if not pc.all(pc.string_is_ascii(values), min_count=0).as_py():
            raise NotExactError(
                "The engine does not change the case of letters outside ASCII",
                hint="recapture with `impctl capture`, or compare the column as it is",
            )
        return function(values)

    return checked


def _size(function: Callable[[pa.Array], pa.Array], factor: int = 1) -> Function:
    def compute_size(arguments: Sequence[Vector], result: SqlType) -> Vector:
        sizes = function(arguments[0].values).fill_null(0).to_numpy().astype(np.int64)
        return Vector(result, sizes * factor, arguments[0].valid)

    return Function(kinds(TEXT), compute_size)


def _concat_takes(arguments: Sequence[Expr]) -> bool:
    return bool(arguments) and all(kinds(TEXT)([argument]) for argument in arguments)


def _concat(arguments: Sequence[Vector], result: SqlType) -> Vector:
    parts = [argument.values for argument in arguments]
    joined = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))
    return Vector(result, joined, all_valid(arguments))


def _sliced(vector: Vector, start: int, end: int | None, result: SqlType) -> Vector:
    values = pc.utf8_slice_codeunits(vector.values, start, end)
    return Vector(result, values, vector.valid)


def _substring(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """From a place counted from 1, or from the end where it is below 0."""
    values = arguments[0]
    if not len(values):
        return Vector(result, values.values)
    place = int(value_of(arguments[1]))
    size = max(int(value_of(arguments[2])), 0) if len(arguments) == 3 else None
    start = place - 1 if place > 0 else place
    if size is None:
        return _sliced(values, start, None, result)
    # Before the start there are no characters, but the length counts from there.
    end = start + size
    is_to_the_end = start < 0 <= end
    return _sliced(values, start, None if is_to_the_end else end, result)


def _left(arguments: Sequence[Vector], result: SqlType) -> Vector:
    size = int(value_of(arguments[1])) if len(arguments[0]) else 0
    return _sliced(arguments[0], 0, max(size, 0), result)


def _right(arguments: Sequence[Vector], result: SqlType) -> Vector:
    size = int(value_of(arguments[1])) if len(arguments[0]) else 0
    if size <= 0:
        return _sliced(arguments[0], 0, 0, result)
    return _sliced(arguments[0], -size, None, result)


def _replace(arguments: Sequence[Vector], result: SqlType) -> Vector:
    values = arguments[0].values
    if len(values):
        search = value_of(arguments[1])
        by = value_of(arguments[2]) if len(arguments) == 3 else ""
        if search:
            values = pc.replace_substring(values, pattern=search, replacement=by)
    return Vector(result, values, arguments[0].valid)


def _instr(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """Place in code points, from 1; a loop over the rows of the batch."""
    text, wanted = (argument.values.to_pylist() for argument in arguments)
    places = [
        0 if one is None or other is None else one.find(other) + 1
        for one, other in zip(text, wanted, strict=True)
    ]
    return Vector(result, np.array(places, dtype=np.int64), all_valid(arguments))


def _locate(arguments: Sequence[Vector], result: SqlType) -> Vector:
    return _instr(arguments[::-1], result)


def _matches(function: Callable[..., pa.Array]) -> Function:
    def compute_match(arguments: Sequence[Vector], result: SqlType) -> Vector:
        values = arguments[0].values
        if not len(values):
            return Vector(result, np.zeros(0, dtype=np.bool_))
        match = function(values, value_of(arguments[1])).fill_null(False)
        return Vector(result, match.to_numpy(zero_copy_only=False), arguments[0].valid)

    return Function(constants_after(TEXT, str), compute_match)


def _trimmed(function: Callable[..., pa.Array], *, is_turned: bool = False) -> Function:
    """Blanks off the ends, or the characters of a constant; `is_turned`: these come first."""

    def turned(arguments: Sequence[Any]) -> Sequence[Any]:
        return arguments[::-1] if is_turned else arguments

    def takes(arguments: Sequence[Expr]) -> bool:
        return either(kinds(TEXT), constants_after(TEXT, str))(turned(arguments))

    def compute_trim(arguments: Sequence[Vector], result: SqlType) -> Vector:
        text, *given = turned(arguments)
        values = text.values
        characters = value_of(given[0]) if given and len(values) else " "
        if characters:
            values = function(values, characters=characters)
        return Vector(result, values, text.valid)

    return Function(takes, compute_trim)


_LENGTH = _size(pc.utf8_length)
_SUBSTRING = Function(
    either(constants_after(TEXT, int), constants_after(TEXT, int, int)), _substring
)
_CUT = constants_after(TEXT, int)
TEXT_FUNCTIONS: dict[str, Function] = {
    "upper": _text(_ascii(pc.ascii_upper)),
    "ucase": _text(_ascii(pc.ascii_upper)),
    "lower": _text(_ascii(pc.ascii_lower)),
    "lcase": _text(_ascii(pc.ascii_lower)),
    "trim": _trimmed(pc.utf8_trim),
    "btrim": _trimmed(pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim, is_turned=True),
    "rtrim": _trimmed(pc.utf8_rtrim, is_turned=True),
    "length": _LENGTH,
    "len": _LENGTH,
    "char_length": _LENGTH,
    "character_length": _LENGTH,
    "octet_length": _size(pc.binary_length),
    "bit_length": _size(pc.binary_length, 8),
    "concat": Function(_concat_takes, _concat),
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "left": Function(_CUT, _left),
    "right": Function(_CUT, _right),
    "replace": Function(
        either(constants_after(TEXT, str), constants_after(TEXT, str, str)), _replace
    ),
    "reverse": _text(pc.utf8_reverse),
    "instr": Function(kinds(TEXT, TEXT), _instr),
    "locate": Function(kinds(TEXT, TEXT), _locate),
    "position": Function(kinds(TEXT, TEXT), _locate),
    "startswith": _matches(pc.starts_with),
    "endswith": _matches(pc.ends_with),
    "contains": _matches(pc.match_substring),
}
