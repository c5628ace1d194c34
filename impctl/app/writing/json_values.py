"""Arrow columns as values that JSON can say.

Law: strict JSON, with every digit: decimals are texts, numbers that JSON lacks the texts "NaN",
"Infinity" and "-Infinity", dates and times ISO 8601 (years after 9999 too), binary hexadecimal. A
struct is an object, a list an array, a map an array of [key, value] pairs, since keys may be of any
type. Out of scope: objects and lines (`app.writing.lines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


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
        return [number_or_name(value) for value in array.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
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


def moments(array: pa.Array, separator: str = "T") -> Iterator[str | None]:
    """Dates, times and durations as ISO 8601, with a zone where the type has one."""
    if pa.types.is_duration(array.type):
        yield from map(_duration, array.to_pylist())
        return
    words = (separator,) if pa.types.is_timestamp(array.type) else ()
    try:
        values = array.to_pylist()
    except (OverflowError, ValueError):
        for scalar in array:
            yield _one_moment(scalar, separator)
        return
    for value in values:
        yield None if value is None else value.isoformat(*words)


def unique_names(names: Iterable[str]) -> list[str]:
    """The names; one that stood before gets the next number that is free, as `x_2`."""
    given = list(names)
    taken, found = set(given), dict[str, None]()
    for name in given:
        own, number = name, 2
        while own in found or (own != name and own in taken):
            own, number = f"{name}_{number}", number + 1
        found[own] = None
    return list(found)


def _one_moment(scalar: Any, separator: str) -> str | None:
    """One of a column in which some year is beyond Python; that one is given in UTC."""
    kind = scalar.type
    try:
        value = scalar.as_py()
    except (OverflowError, ValueError):
        return _beyond(scalar, separator)
    words = (separator,) if pa.types.is_timestamp(kind) else ()
    return None if value is None else str(value.isoformat(*words))


def _beyond(scalar: Any, separator: str) -> str:
    kind = scalar.type
    if not pa.types.is_timestamp(kind):
        return _signed(str(scalar.cast(pa.string()).as_py()))
    text = str(scalar.cast(pa.int64()).cast(pa.timestamp(kind.unit)).cast(pa.string()).as_py())
    whole, _, fraction = text.replace(" ", separator).partition(".")
    text = _signed(f"{whole}.{fraction}" if fraction.strip("0") else whole)
    return text if kind.tz is None else text + "+00:00"


def _signed(text: str) -> str:
    """A year of more than four digits has a sign, in ISO 8601 and in Spark."""
    return f"+{text}" if text.partition("-")[0].isdecimal() and text.index("-") > 4 else text


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
