"""Files whose statistics tell one double only, beside which NaN may be hidden.

Law: statistics leave NaN out, and delta-rs 1.6.6 takes a column whose least and greatest value are
one for that value in every row: its reader of the feed gives it for NaN, and its DELETE, UPDATE and
MERGE write it, into change data and into rows that they copy. Such a file is compared, not fed.
Out of scope: other ways in which a feed is wrong (`tables.change.whole_feed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow.parquet as pq

from impctl.tables.data_files import DataFiles
from impctl.tables.failures import READ_FAILURES
from impctl.tables.snapshot import Snapshot, logged_file
from impctl.types import ColumnName


def has_lone_doubles(footer: pq.FileMetaData, doubles: Iterable[ColumnName]) -> bool:
    """Whether a row group has one value only in one of these columns, as far as it tells."""
    wanted = set(doubles)
    return any(
        told.has_min_max and told.min == told.max
        for group in map(footer.row_group, range(footer.num_row_groups))
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema in wanted and (told := chunk.statistics) is not None
    )


def doubles_of(after: Snapshot, columns: Iterable[ColumnName]) -> list[ColumnName]:
    """Those of the columns that may hold NaN."""
    return [name for name in columns if after.column(name).type.is_fractional]


def rewrote_lone_doubles(
    after: Snapshot, removed: Sequence[str], doubles: Sequence[ColumnName]
) -> bool:
    """Whether one of these removed files may have hidden NaN; so too where it cannot be read."""
    if not doubles:
        return False
    opened = DataFiles(after)
    for path in removed:
        try:
            footer = opened.footer(logged_file(after.path, path))
        except READ_FAILURES:
            return True
        if has_lone_doubles(footer, doubles):
            return True
    return False
