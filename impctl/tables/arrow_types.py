"""The one Arrow type per SQL type in which this room hands out columns.

Law: readers differ (string views, milliseconds, dictionary codes), what leaves this room does not;
a cast that would lose anything raises.
Out of scope: canonical values (`data.vector`).
"""

from __future__ import annotations

import pyarrow as pa

from impctl.data.schema import Kind, SqlType
from impctl.errors import TableError

_SIMPLE = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.BYTE: pa.int8(),
    Kind.SHORT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.large_string(),
    Kind.BINARY: pa.large_binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
}


def arrow_type(kind: SqlType) -> pa.DataType:
    """The Arrow type for a SQL type; TableError where impctl never reads values of it."""
    if kind.kind is Kind.DECIMAL:
        return pa.decimal128(kind.precision, kind.scale)
    result = _SIMPLE.get(kind.kind)
    if result is None:
        raise TableError(
            f"impctl itself cannot read a column of type `{kind}`",
            hint="remove the column from the query, or use it only in parts that Spark evaluates",
            code="column_type_unsupported",
        )
    return result


def to_arrow_type(column: pa.ChunkedArray, kind: SqlType) -> pa.ChunkedArray:
    """The column in the type of `arrow_type`."""
    wanted = arrow_type(kind)
    if column.type == wanted:
        return column
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    elif pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary())
    return column.cast(wanted)
