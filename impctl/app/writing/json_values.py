"""Arrow columns as values that JSON can say.

Law: strict JSON, with every digit: decimals are texts, numbers that JSON lacks the texts "NaN",
"Infinity" and "-Infinity", dates and times ISO 8601 (years after 9999 too), binary hexadecimal. A
struct is an object, a list an array, a map an array of [key, value] pairs, since keys may be of any
type. Out of scope: objects and lines (`app.writing.lines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_UTC = ("UTC", "Etc/UTC", "Z", "+00:00")


def json_rows(table: pa.Table) -> list[Json]:
    """The rows, each an array in the order of the columns."""
    columns = [json_column(column) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def json_column(column: pa.ChunkedArray) -> list[Json]:
    """The values of one column."""
    return [value for chunk in column.chunks for value in json_values(chunk)]


def json_values(array: pa.Array) -> list[Json]:
    """The values of an array."""
    kind = array.type
    if pa.types.is_floating(kind):
        return numbers(array)
    if pa.types.is_decimal(kind):
        return list(_digits(array))
    if pa.types.is_temporal(kind):
        return list(moments(array))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else value.hex() for value in array.to_pylist()]
    if pa.types.is_map(kind):
        return _lists(array, [array.keys, array.items])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array, [array.values])
    if pa.types.is_struct(kind):
        return _objects(array)
    values: list[Json] = array.to_pylist()
    return values


def number_or_name(value: float | None) -> Json:
    """The number, or the name of one that JSON lacks."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def numbers(array: pa.Array) -> list[Json]:
    """Numbers, by name where JSON lacks them."""
    values: list[Json] = array.to_pylist()
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return values
    return [number_or_name(value) for value in array.to_pylist()]


def moments(array: pa.Array, separator: str = "T") -> list[str | None]:
    """Dates, times and durations as ISO 8601, with a zone where the type has one.

    A year that Python lacks is told in UTC: the rules of other zones end before.
    """
    kind = array.type
    if pa.types.is_duration(kind):
        return [_duration(value) for value in array.to_pylist()]
    if pa.types.is_date(kind):
        return _signed(array.cast(pa.string()))
    if not pa.types.is_timestamp(kind):
        return [None if value is None else value.isoformat() for value in array.to_pylist()]
    if kind.tz is None:
        return _instants(array, separator, "")
    return _zoned(array, separator)


def unique_names(names: Iterable[str]) -> list[str]:
    """The names; one that stood before gets the next number that is free, as `x_2`."""
    given = list(names)
    taken, result = set(given), dict[str, None]()
    for name in given:
        own, number = name, 2
        while own in result or (own != name and own in taken):
            own, number = f"{name}_{number}", number + 1
        result[own] = None
    return list(result)


def _digits(array: pa.Array) -> list[str | None]:
    """Decimals, with all their digits; Arrow gives small ones an exponent."""
    texts: list[str | None] = array.cast(pa.string()).to_pylist()
    return [text if text is None or "E" not in text else f"{Decimal(text):f}" for text in texts]


def _instants(array: pa.Array, separator: str, zone: str) -> list[str | None]:
    """Timestamps as they stand, with a fraction where there is one."""
    texts = array.cast(pa.timestamp(array.type.unit)).cast(pa.string())
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    texts = pc.replace_substring(texts, " ", separator, max_replacements=1)
    return _signed(pc.binary_join_element_wise(texts, zone, "") if zone else texts)


def _zoned(array: pa.Array, separator: str) -> list[str | None]:
    """Timestamps with the zone's own hours, of which Arrow does not tell the seconds."""
    told = _instants(array.cast(pa.timestamp(array.type.unit, "UTC")), separator, "+00:00")
    if array.type.tz in _UTC:
        return told
    for at, scalar in enumerate(array):
        with suppress(OverflowError, ValueError):
            value = scalar.as_py()
            told[at] = None if value is None else value.isoformat(separator)
    return told


def _signed(texts: pa.Array) -> list[str | None]:
    """A year of more than four digits has a sign, in ISO 8601 and in Spark."""
    result: list[str | None] = pc.replace_substring_regex(texts, r"^(\d{5})", r"+\1").to_pylist()
    return result


def _duration(value: timedelta | None) -> str | None:
    """Days and seconds, as ISO 8601 writes them."""
    if value is None:
        return None
    sign, rest = ("-", -value) if value < timedelta(0) else ("", value)
    seconds = f"{rest.seconds}.{rest.microseconds:06}".rstrip("0").rstrip(".")
    return f"{sign}P{rest.days}DT{seconds}S"


def _lists(array: pa.Array, parts: list[pa.Array]) -> list[Json]:
    """Each list's values; of several parts, such as keys and items, arrays of one of each."""
    bounds = array.offsets.to_pylist()
    # The parts are those of the whole array, of which this may be a slice.
    start, length = bounds[0], bounds[-1] - bounds[0]
    columns = [json_values(part.slice(start, length)) for part in parts]
    values: list[Json] = (
        columns[0] if len(columns) == 1 else [list(pair) for pair in zip(*columns, strict=True)]
    )
    return [
        values[bounds[at] - start : bounds[at + 1] - start] if is_there else None
        for at, is_there in enumerate(array.is_valid().to_pylist())
    ]


def _objects(array: pa.Array) -> list[Json]:
    names = unique_names(field.name for field in array.type)
    columns = [json_values(part) for part in array.flatten()]
    rows: Iterable[Any] = zip(*columns, strict=True) if columns else ((),) * len(array)
    valid = array.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if is_there else None
        for row, is_there in zip(rows, valid, strict=True)
    ]
