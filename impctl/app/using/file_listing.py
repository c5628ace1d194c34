"""Data files of a snapshot as an Arrow table, for engines that read them themselves.

Law: says all that the log knows of a file and its bytes do not: rows that are deleted, and values
of partition columns, in the types of the table. Out of scope: reading rows (`tables.rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from impctl.data.schema import Column
from impctl.tables.rows import partition_literal
from impctl.tables.schema import arrow_type
from impctl.tables.snapshot import DataFile, Snapshot


def file_listing(snapshot: Snapshot, files: Sequence[DataFile]) -> pa.Table:
    """A row per file: `file`, `size`, `rows`, `deleted`, and `partition_values` where there are.

    Raises TableError for a partition value that Arrow cannot read.
    """
    deleted = [None if file.deleted is None else file.deleted for file in files]
    columns = {
        "file": pa.array([file.uri for file in files], pa.string()),
        "size": pa.array([file.size for file in files], pa.int64()),
        "rows": pa.array([file.rows for file in files], pa.int64()),
        "deleted": pa.array(deleted, pa.list_(pa.int64())),
    }
    if snapshot.partition_columns:
        own = [snapshot.column(name) for name in snapshot.partition_columns]
        values = [_values(column, [file.partition_values for file in files]) for column in own]
        names = [column.name for column in own]
        columns["partition_values"] = pa.StructArray.from_arrays(values, names=names)
    return pa.table(columns)


def _values(column: Column, texts: Sequence[Mapping[str, str | None]]) -> pa.Array:
    """The values of one partition column, each text read once."""
    result = [values[column.name] for values in texts]
    distinct = list(dict.fromkeys(result))
    if not distinct:
        return pa.array([], arrow_type(column.type))
    read = pa.concat_arrays([partition_literal(column, text, 1) for text in distinct])
    places = {text: at for at, text in enumerate(distinct)}
    return read.take(pa.array([places[text] for text in result], pa.int64()))
