"""Tables of which readers of Parquet other than Spark may lose rows with NaN through a sketch.

Law: NaN is greater than every boundary, so that only the highest range holds it; what is not named
here has, in the files that are left, no NaN in that range which minimum and maximum do not tell.
DuckDB and pyarrow pass over parts of a file by these alone, however the condition is written.
Out of scope: Spark, whose conditions are written for it (`spark.predicates`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.preparing.filters import Pruned
from impctl.app.workbench.pinned import PinnedTables
from impctl.sketch.sketch import RangeFilter
from impctl.tables.footers import hiding_columns
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import TableName, TableVersion


def losing_nan(
    tables: PinnedTables, pruned: Pruned, versions: Mapping[TableName, TableVersion]
) -> frozenset[TableName]:
    """The tables whose filter asks for the range of NaN, of files that may hide one."""
    table_names: set[TableName] = set()
    for wanted in dict.fromkeys(pruned.filters.values()):
        table = wanted.partition.table
        snapshot = tables.snapshot(table, versions.get(table))
        if table not in table_names and _may_lose_nan(snapshot, wanted, pruned.files[table]):
            table_names.add(table)
    return frozenset(table_names)


def _may_lose_nan(snapshot: Snapshot, wanted: RangeFilter, left: Sequence[DataFile]) -> bool:
    column = snapshot.column(wanted.partition.attribute)
    is_asked_for = any(interval.high is None for interval in wanted.intervals)
    if not column.type.is_fractional or not is_asked_for:
        return False
    if column.name in snapshot.partition_columns:
        # Not in the files; whether the reader's NaN is greater than all is not known.
        return True
    return column.name in hiding_columns(snapshot, (column.name,), left)
