"""Arrow columns as texts, for formats that know nothing but text.

Law: a text says the value, and NULL is none; numbers in the digits of their own type, so that a
FLOAT of 0.1 is no longer than that. Out of scope: quoting (`app.writing.lines`).
"""

from __future__ import annotations

import json

import pyarrow as pa

from impctl.app.writing.json_values import json_values, moments, number_or_name, numbers
from impctl.values import dataclass

Texts = list[str | None]


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of texts; None is NULL."""

    name: str
    is_number: bool
    texts: Texts


def text_columns(table: pa.Table, separator: str = "T") -> list[TextColumn]:
    """All columns, in order; `separator` stands between a date and its time."""
    names = table.column_names
    return [
        TextColumn(name, is_number(column.type), _column(column, separator))
        for name, column in zip(names, table.columns, strict=True)
    ]


def is_number(kind: pa.DataType) -> bool:
    """Whether values of the type are numbers."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def is_plain(kind: pa.DataType) -> bool:
    """Whether the texts of the type are never empty, and have no quote, comma or line end."""
    return is_number(kind) or bool(pa.types.is_temporal(kind) or pa.types.is_boolean(kind))


def texts_of(array: pa.Array, separator: str = "T") -> Texts:
    """The values of an array."""
    kind = array.type
    if pa.types.is_float32(kind):
        # Arrow knows the shortest digits of a float; Python has doubles only.
        return [_float_text(text) for text in array.cast(pa.string()).to_pylist()]
    if pa.types.is_floating(kind):
        return [None if value is None else str(value) for value in numbers(array)]
    if pa.types.is_temporal(kind):
        return moments(array, separator)
    if pa.types.is_nested(kind):
        return [
            None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)
            for value in json_values(array)
        ]
    if pa.types.is_boolean(kind):
        return [None if value is None else str(value).lower() for value in array.to_pylist()]
    return [None if value is None else str(value) for value in json_values(array)]


def _column(column: pa.ChunkedArray, separator: str) -> Texts:
    return [text for chunk in column.chunks for text in texts_of(chunk, separator)]


def _float_text(text: str | None) -> str | None:
    """What Arrow calls it, in the words and the form that a double has."""
    if text is None:
        return None
    number = float(text)
    if number != number or number in (float("inf"), float("-inf")):
        return str(number_or_name(number))
    return str(number)
