"""Rows to insert from a Parquet or CSV file, brought to a table's exact column types.

Law: a value is taken only when the column's type holds it exactly and Spark would store the same;
a file whose column is of another kind is refused, never cast by Arrow's rules. Timestamps without
a zone are read as UTC.
Out of scope: rows that the workload file spells out, what every insert must keep to
(`tables.write.inserted_rows`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from impctl.data.schema import INTEGRAL, Column, Kind
from impctl.errors import StorageError, UsageError
from impctl.tables.arrow_types import arrow_type, to_arrow_type
from impctl.tables.calendars import check_calendar, hybrid_columns
from impctl.tables.failures import READ_FAILURES, failure_text
from impctl.tables.snapshot import Snapshot
from impctl.tables.write.inserted_rows import complete, insertable, known
from impctl.types import ColumnName

_Test = Callable[[pa.DataType], bool]


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    plain = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(plain or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind))


def _is_narrow_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float16(kind) or pa.types.is_float32(kind))


_INTEGER: tuple[_Test, ...] = (pa.types.is_integer,)
_SOURCES: Mapping[Kind, tuple[_Test, ...]] = {
    **dict.fromkeys(INTEGRAL, _INTEGER),
    Kind.BOOLEAN: (pa.types.is_boolean,),
    Kind.FLOAT: (*_INTEGER, _is_narrow_float),
    Kind.DOUBLE: (*_INTEGER, pa.types.is_floating),
    Kind.DECIMAL: (*_INTEGER, pa.types.is_decimal),
    Kind.STRING: (_is_text,),
    Kind.BINARY: (_is_bytes,),
    Kind.DATE: (pa.types.is_date,),
    Kind.TIMESTAMP: (pa.types.is_date, pa.types.is_timestamp),
    Kind.TIMESTAMP_NTZ: (
        pa.types.is_date,
        lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    ),
}
"""Types of a file's column, per type of the table's, between which a checked cast is exact."""


def check_regular(path: str) -> None:
    """UsageError for a folder, a pipe or a device, of which one may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(
            f"The file to insert is not a regular file: {path}", hint="give a Parquet or CSV file"
        )


def file_to_insert(snapshot: Snapshot, path: str) -> pa.Table:
    """The rows of a Parquet or CSV file (by its ending) as a table in the snapshot's columns."""
    data, hybrid = _read_file(snapshot, path)
    given = {
        known(snapshot, name, f"file {path}").name: data.column(at)
        for at, name in enumerate(data.column_names)
    }
    if len(given) != len(data.column_names):
        raise UsageError(
            f"A column name appears twice in {path}", hint="column names are not case-sensitive"
        )
    old = {name.lower() for name in hybrid}
    arrays: list[pa.Array | None] = []
    for column in snapshot.schema:
        values = given.get(column.name)
        kind = insertable(snapshot, column, is_given=values is not None)
        if values is None or kind is None:
            arrays.append(None)
            continue
        converted = _converted(snapshot, column, values, path)
        if column.name.lower() in old:
            check_calendar(converted, column.type, column.name, path)
        arrays.append(converted)
    return complete(snapshot, arrays, data.num_rows)


def _converted(
    snapshot: Snapshot, column: Column, values: pa.ChunkedArray, path: str
) -> pa.ChunkedArray:
    """The values in the column's type; UsageError where one is another value there."""
    reason = None
    if not _means_the_same(values.type, column.type.kind):
        reason = f"it has type `{values.type}`"
    else:
        try:
            return to_arrow_type(values, column.type)
        except pa.ArrowException as error:
            reason = failure_text(error)
    raise UsageError(
        f"Column `{column.name}` of {path} does not fit `{column.type}`: {reason}",
        hint=f"give the file's column the type of `{snapshot.table}.{column.name}`",
    )


def _means_the_same(given: pa.DataType, wanted: Kind) -> bool:
    """Whether a cast keeps the meaning: numbers as numbers, texts as texts, times as times.

    Only then does a checked cast fail or keep the value, in Arrow as in Spark.
    """
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_null(given):
        return True
    return any(is_such(given) for is_such in _SOURCES.get(wanted, ()))


def _read_file(snapshot: Snapshot, path: str) -> tuple[pa.Table, frozenset[ColumnName]]:
    """The file's rows, and its columns in the calendar of Spark 2."""
    try:
        if path.lower().endswith(".parquet"):
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                rows = file.read()
                return rows, hybrid_columns(file.metadata, rows.column_names)
        if path.lower().endswith(".csv"):
            return _read_csv(snapshot, path), frozenset()
    except FileNotFoundError as error:
        raise UsageError(
            f"The file to insert does not exist: {path}",
            hint="a relative path starts at the folder of the workload file",
        ) from error
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"The file to insert cannot be read: {failure_text(error)}", hint=f"correct {path}"
        ) from error
    except READ_FAILURES as error:
        raise StorageError(
            f"Reading the file to insert failed: {failure_text(error)}", hint=f"check {path}"
        ) from error
    raise UsageError(
        f"The file to insert is neither Parquet nor CSV: {path}",
        hint="use the extension `.parquet` or `.csv`",
    )


def _read_csv(snapshot: Snapshot, path: str) -> pa.Table:
    """The file's rows in the columns' types, each column called as the header spells it."""
    with pa_csv.open_csv(path) as opened:
        header = opened.schema.names
    result = {name: snapshot.schema.find(name) for name in header}
    options = pa_csv.ConvertOptions(
        # pyarrow guesses the type of a column whose name is not here to the letter.
        column_types={
            name: arrow_type(column.type)
            for name, column in result.items()
            if column is not None and column.type.kind is not Kind.OTHER
        },
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return pa_csv.read_csv(path, convert_options=options)
