"""What the Parquet footers of a snapshot's files say and the Delta log does not.

Law: a column is named when any file stores it so that deltalake reads it wrongly (and writes it
back wrongly), while Spark and `tables.rows` read it right: as INT96, wrong outside 1677..2262, or
under its name in other letters, of which deltalake makes NULL.
Cost: one small read per file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.parquet as pq

from impctl.aliases import ColumnName
from impctl.tables.failures import READ_FAILURES
from impctl.tables.rows import file_name, file_system, read_failure
from impctl.tables.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Miscopied:
    """The columns that deltalake would copy wrongly: stored as INT96, or in other letters."""

    as_int96: frozenset[ColumnName]
    respelled: frozenset[ColumnName]


def miscopied_columns(snapshot: Snapshot) -> Miscopied:
    """The columns of which some file of the snapshot makes deltalake write something else.

    Raises HistoryGoneError for a file that is gone.
    """
    names = {physical.lower(): column for column, physical in snapshot.columns.physical.items()}
    exact = frozenset(snapshot.columns.physical.values())
    int96: set[ColumnName] = set()
    respelled: set[ColumnName] = set()
    for schema in _file_schemas(snapshot):
        stored = (schema.column(at) for at in range(len(schema)))
        tops = (leaf.path.split(".")[0].lower() for leaf in stored if leaf.physical_type == "INT96")
        int96.update(names[top] for top in tops if top in names)
        others = (name.lower() for name in stored_names(schema) - exact)
        respelled.update(names[name] for name in others if name in names)
    return Miscopied(frozenset(int96), frozenset(respelled))


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
