"""What the Parquet footers of a snapshot's files say and the Delta log does not.

Law: a column is named when any file stores it as INT96; deltalake reads such timestamps wrongly
outside 1677..2262 (and writes them back wrongly), Spark and `tables.rows` read them right.
Cost: one small read per file, only for tables with a TIMESTAMP column.
"""

from __future__ import annotations

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
    store = file_system(snapshot)
    found: set[ColumnName] = set()
    for file in snapshot.files:
        try:
            schema = pq.read_metadata(file_name(file, store), filesystem=store).schema
        except READ_FAILURES as error:
            raise read_failure(snapshot, file, error) from error
        stored = (schema.column(at) for at in range(len(schema)))
        tops = (leaf.path.split(".")[0].lower() for leaf in stored if leaf.physical_type == "INT96")
        found.update(names[top] for top in tops if top in names)
    return frozenset(found)
