"""Write results as CSV, JSON, Markdown and Parquet."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import StorageError, UnsupportedError
from impctl.service.output import check_output, not_written, whole_file
from impctl.service.results import ArrowAnswer
from impctl.service.text import Json, RowsFormat, ending_of, number_or_name, plain

# Arrow columns as JSON values. Law: strict JSON with all digits: decimals are texts, numbers that
# JSON lacks the texts "NaN", "Infinity" and "-Infinity", dates and times ISO 8601 (after year 9999
# too), binary values hexadecimal. A struct is an object, a list an array, a map an array of [key,
# value] pairs, since keys may have any type.

_UTC = ("UTC", "Etc/UTC", "Z", "+00:00")


def json_rows(table: pa.Table) -> list[Json]:
    columns = [json_column(column) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def json_column(column: pa.ChunkedArray) -> list[Json]:
    return [value for chunk in column.chunks for value in json_values(chunk)]


def json_values(array: pa.Array) -> list[Json]:
    kind = array.type
    if pa.types.is_floating(kind):
        return numbers(array)
    if pa.types.is_decimal(kind):
        # Arrow gives small decimals an exponent.
        texts = array.cast(pa.string()).to_pylist()
        return [t if t is None or "E" not in t else f"{Decimal(t):f}" for t in texts]
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


def numbers(array: pa.Array) -> list[Json]:
    values: list[Json] = array.to_pylist()
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return values
    return [value if value is None else number_or_name(value) for value in array.to_pylist()]


def moments(array: pa.Array, separator: str = "T") -> list[str | None]:
    """Dates, times and durations as ISO 8601, with a zone if the type has one. A year that Python
    lacks is in UTC: the rules of other zones end before."""
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
    """The names; a repeated one gets the next free number, as `x_2`."""
    all_names = list(names)
    used, result = set(all_names), dict[str, None]()
    for name in all_names:
        unique, number = name, 2
        while unique in result or (unique != name and unique in used):
            unique, number = f"{name}_{number}", number + 1
        result[unique] = None
    return list(result)


def _instants(array: pa.Array, separator: str, zone: str) -> list[str | None]:
    """Timestamps without conversion, with a fraction if there is one."""
    texts = array.cast(pa.timestamp(array.type.unit)).cast(pa.string())
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    texts = pc.replace_substring(texts, " ", separator, max_replacements=1)
    return _signed(pc.binary_join_element_wise(texts, zone, "") if zone else texts)


def _zoned(array: pa.Array, separator: str) -> list[str | None]:
    """Timestamps in the zone's hours; Arrow omits the seconds of offsets."""
    texts = _instants(array.cast(pa.timestamp(array.type.unit, "UTC")), separator, "+00:00")
    if array.type.tz in _UTC:
        return texts
    for index, scalar in enumerate(array):
        with suppress(OverflowError, ValueError):
            value = scalar.as_py()
            texts[index] = None if value is None else value.isoformat(separator)
    return texts


def _signed(texts: pa.Array) -> list[str | None]:
    """Add a sign to years of more than four digits, as ISO 8601 and Spark do."""
    result: list[str | None] = pc.replace_substring_regex(texts, r"^(\d{5})", r"+\1").to_pylist()
    return result


def _duration(value: timedelta | None) -> str | None:
    """Days and seconds in ISO 8601."""
    if value is None:
        return None
    sign, rest = ("-", -value) if value < timedelta(0) else ("", value)
    seconds = f"{rest.seconds}.{rest.microseconds:06}".rstrip("0").rstrip(".")
    return f"{sign}P{rest.days}DT{seconds}S"


def _lists(array: pa.Array, parts: list[pa.Array]) -> list[Json]:
    """Each list's values; several parts, such as keys and items, are zipped into arrays."""
    bounds = array.offsets.to_pylist()
    # The parts belong to the whole array, of which this may be a slice.
    start, length = bounds[0], bounds[-1] - bounds[0]
    valid = array.is_valid().to_pylist()
    columns = [json_values(part.slice(start, length)) for part in parts]
    values: list[Json] = (
        columns[0] if len(columns) == 1 else [list(pair) for pair in zip(*columns, strict=True)]
    )
    return [
        values[begin - start : end - start] if is_valid else None
        for (begin, end), is_valid in zip(pairwise(bounds), valid, strict=True)
    ]


def _objects(array: pa.Array) -> list[Json]:
    names = unique_names(field.name for field in array.type)
    columns = [json_values(part) for part in array.flatten()]
    rows: Iterable[Any] = zip(*columns, strict=True) if columns else ((),) * len(array)
    valid = array.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for row, is_valid in zip(rows, valid, strict=True)
    ]


# Arrow columns as texts. Law: a number has the digits of its type, so that a FLOAT of 0.1 is no
# longer than that. NULL is None.

Texts = list[str | None]


class TextColumn(Struct, frozen=True):
    name: str
    is_number: bool
    texts: Texts


def text_columns(table: pa.Table, separator: str = "T") -> list[TextColumn]:
    """All columns, in order; `separator` is between date and time."""
    return [
        TextColumn(
            name,
            is_number(column.type),
            [text for chunk in column.chunks for text in texts_of(chunk, separator)],
        )
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]


def is_number(kind: pa.DataType) -> bool:
    """Whether values of the type are numbers."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Whether texts of the type are never empty and have no quote, comma or line end."""
    return is_number(kind) or bool(pa.types.is_temporal(kind) or pa.types.is_boolean(kind))


def texts_of(array: pa.Array, separator: str = "T") -> Texts:
    kind = array.type
    if pa.types.is_float32(kind):
        # Arrow gives the shortest digits of a float; Python has doubles only.
        texts = array.cast(pa.string()).to_pylist()
        return [None if text is None else str(number_or_name(float(text))) for text in texts]
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


# Rows as CSV, JSON, JSON lines or Markdown, in pieces of some thousand rows, so that a pipe gets
# them at once. In CSV, NULL is nothing and an empty text is `""`. In JSON each row is an object;
# repeated column names get numbers.

_ROWS = 8192

_QUOTED = re.compile(r'[",\r\n]|^$|^\s|\s$')
"""Texts that need quotes: they would end the value, or readers would take them for NULL or strip
them."""

_LINE_END = re.compile(r"\r\n|\r")
_FORMULA = re.compile(r"[=+\-@\t\r]")
"""Starts of a formula for spreadsheets (https://owasp.org, CSV Injection)."""

_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def text_of(
    table: pa.Table, rows_format: RowsFormat, *, escape_formulas: bool = False
) -> Iterator[str]:
    """The rows in one of the text formats."""
    match rows_format:
        case RowsFormat.CSV:
            return csv_text(table, escape_formulas=escape_formulas)
        case RowsFormat.JSON:
            return json_text(table)
        case RowsFormat.JSONL:
            return json_lines(table)
        case RowsFormat.MARKDOWN:
            return markdown_text(table)
    raise ValueError(rows_format)


def csv_text(table: pa.Table, *, escape_formulas: bool = False) -> Iterator[str]:
    """CSV by RFC 4180 with newlines; `escape_formulas` puts a `'` before spreadsheet formulas."""
    field = _harmless_field if escape_formulas else _field
    yield ",".join(map(field, table.column_names)) + "\n"
    for batch in table.to_batches(max_chunksize=_ROWS):
        columns = [_fields(array, field) for array in batch.columns]
        yield "".join(",".join(row) + "\n" for row in zip(*columns, strict=True))


def json_lines(table: pa.Table) -> Iterator[str]:
    """One JSON object per row and line."""
    for objects in _json_objects(table):
        yield "".join(f"{text}\n" for text in objects)


def json_text(table: pa.Table) -> Iterator[str]:
    """One array of objects, one per line."""
    before = "[\n"
    for objects in _json_objects(table):
        yield before + ",\n".join(objects)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def markdown_text(table: pa.Table) -> Iterator[str]:
    """A GitHub table: numbers aligned to the right, NULL as `NULL`."""
    columns = text_columns(table, " ")
    yield _piped([_cell(column.name) for column in columns])
    yield _piped(["---:" if column.is_number else "---" for column in columns])
    for row in zip(*(column.texts for column in columns), strict=True):
        yield _piped(["NULL" if text is None else _cell(text) for text in row])


def _fields(array: pa.Array, field: Callable[[str], str]) -> list[str]:
    texts: Texts = texts_of(array)
    if is_plain(array.type):
        return ["" if text is None else text for text in texts]
    return ["" if text is None else field(text) for text in texts]


def _harmless_field(text: str) -> str:
    return _field(f"'{text}" if _FORMULA.match(text) else text)


def _field(text: str) -> str:
    return text if _QUOTED.search(text) is None else '"' + text.replace('"', '""') + '"'


def _json_objects(table: pa.Table) -> Iterator[list[str]]:
    names = unique_names(table.column_names)
    for batch in table.to_batches(max_chunksize=_ROWS):
        columns = [json_values(array) for array in batch.columns]
        result = [
            _encoded(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
        ]
        if result:
            yield result


def _cell(text: str) -> str:
    """Escape a text so that it stays in its cell and controls neither table nor terminal."""
    text = plain(_LINE_END.sub("\n", text))
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


# A result written to a file. Law: the file is complete or as before. What can be checked before the
# query runs is checked then.

_TEXTS = {".csv": RowsFormat.CSV, ".jsonl": RowsFormat.JSONL}

Answer = TypeVar("Answer", bound=ArrowAnswer)


def check_goal(path: Path, reserved: Mapping[str, str]) -> None:
    """UsageError or StorageError if no answer can be written to this file."""
    ending_of(path)
    check_output(path, reserved)
    if not path.parent.is_dir():
        command = f"mkdir -p {shlex.quote(str(path.parent))}"
        raise StorageError(
            f"The result cannot be written to `{path}`: the folder `{path.parent}` does not exist",
            hint=f"create it first, `{command}`, or name a file in another folder",
            code="answer_not_written",
        )
    if path.is_dir():
        raise StorageError(
            f"The result cannot be written to `{path}`: it is a folder",
            hint="name a file in it",
            code="answer_not_written",
        )


def shown(result: Answer, limit: int | None, out: Path | None, *, escape_formulas: bool) -> Answer:
    """The result that shows so many rows, which are written to the file `out`, if any."""
    result = replace(result, limit=limit, written=None if out is None else str(out))
    if out is not None:
        write_answer(result.shown, out, escape_formulas=escape_formulas)
    return result


def write_answer(table: pa.Table, path: Path, *, escape_formulas: bool = False) -> None:
    """Write all rows in the format of the file's ending; formulas are escaped in CSV only."""
    ending = ending_of(path)
    try:
        with whole_file(path) as file:
            if ending == ".parquet":
                _write_parquet(table, file)
            else:
                for text in text_of(table, _TEXTS[ending], escape_formulas=escape_formulas):
                    file.write(text.encode())
    except OSError as error:
        hint = "name a file in a folder with write access, on a disk with enough space"
        raise not_written("The result", path, error, "answer_not_written", hint) from error


def _write_parquet(table: pa.Table, file: object) -> None:
    """Write with unique names: Parquet's readers find columns by name."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(table.rename_columns(unique_names(table.column_names)), file)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UnsupportedError(
            f"The result has a type that Parquet does not support: {error}",
            hint="write a file that ends in .csv or .jsonl, or cast the column in the query",
            code="answer_type",
        ) from error
