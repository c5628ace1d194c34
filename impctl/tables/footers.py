"""What the Parquet footers of a snapshot's files say and the Delta log does not.

Law: a column is named when any file stores it so that deltalake reads it wrongly (and writes it
back wrongly), while Spark and `tables.rows` read it right: as INT96, wrong outside 1677..2262, or
under its name in other letters, of which deltalake makes NULL.
Cost: one small read per file; INT96 is looked for only in tables with a TIMESTAMP column.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq

from impctl.aliases import ColumnName
from impctl.data.schema import Kind
from impctl.tables.failures import READ_FAILURES
from impctl.tables.rows import file_name, file_system, read_failure
from impctl.tables.snapshot import Snapshot


def int96_columns(snapshot: Snapshot) -> frozenset[ColumnName]:
    """The columns that some file of the snapshot stores as INT96.

    Raises HistoryGoneError for a file that is gone.
    """
    names = {
        snapshot.columns.physical[column.name].lower(): column.name
        for column in snapshot.schema
        if column.type.kind in (Kind.TIMESTAMP, Kind.OTHER)
    }
    if not names:
        return frozenset()
    found: set[ColumnName] = set()
    for schema in _file_schemas(snapshot):
        stored = (schema.column(at) for at in range(len(schema)))
        tops = (leaf.path.split(".")[0].lower() for leaf in stored if leaf.physical_type == "INT96")
        found.update(names[top] for top in tops if top in names)
    return frozenset(found)


def respelled_columns(snapshot: Snapshot) -> frozenset[ColumnName]:
    """The columns that some file of the snapshot has under their name in other letters.

    Raises HistoryGoneError for a file that is gone.
    """
    names = {physical.lower(): column for column, physical in snapshot.columns.physical.items()}
    exact = frozenset(snapshot.columns.physical.values())
    present = {name for schema in _file_schemas(snapshot) for name in stored_names(schema)}
    return frozenset(names[name.lower()] for name in present - exact if name.lower() in names)


def stored_names(schema: pq.ParquetSchema) -> frozenset[ColumnName]:
    """The names of a file's columns, whatever their types, and with them those of nested ones.

    A name may hold a dot, and then looks like that of a nested column.
    """
    paths = [schema.column(at).path for at in range(len(schema))]
    return frozenset([*paths, *(path.split(".")[0] for path in paths)])


def _file_schemas(snapshot: Snapshot) -> Iterator[pq.ParquetSchema]:
    store = file_system(snapshot)
    for file in snapshot.files:
        try:
            yield pq.read_metadata(file_name(file, store), filesystem=store).schema
        except READ_FAILURES as error:
            raise read_failure(snapshot, file, error) from error
