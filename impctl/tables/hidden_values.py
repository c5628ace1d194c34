"""Which columns Parquet's own filters may lose rows of, by the footers of the data files.

Law: a column that is not named here holds, in these files, no value that minimum and maximum leave
out though a comparison could ask for it. Three values of FLOAT and DOUBLE are such:
NaN, greater than all others to Spark, which most writers leave out of minimum and maximum; zero,
of which Spark compares both signs as one and a dictionary holds each as its own; and both in a
Bloom filter. Older files of a column that had another type are not judged.
Out of scope: what is done about it (`spark.guarded`, `capture.use`), and statistics in the log
(`tables.statistics`, which tell nothing of NaN).
Cost: one small read per file, and none above `MAX_FOOTERS` files, where all such columns are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq

from impctl.data.schema import Column, Kind
from impctl.tables.data_files import DataFiles
from impctl.tables.failures import READ_FAILURES
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import ColumnName

MAX_FOOTERS = 64
_READERS = 8
_COUNTS_NAN = re.compile(r"parquet-mr version (\d+)\.(\d+)")
_FIRST_COUNTING = (1, 10)
"""Since then NaN makes parquet-mr's statistics void; no other writer is known to tell of it."""
_PHYSICAL = {Kind.FLOAT: "FLOAT", Kind.DOUBLE: "DOUBLE"}


def hiding_columns(
    snapshot: Snapshot,
    columns: Iterable[ColumnName] | None = None,
    files: Sequence[DataFile] | None = None,
) -> frozenset[ColumnName]:
    """Those of these columns that a filter in Parquet may lose rows by, in these files.

    Both default to all. A file that cannot be read makes every column suspect; that it cannot is
    for its reader to say.
    """
    names = snapshot.schema.names if columns is None else columns
    partitions = set(snapshot.partition_columns)
    suspects = [
        column
        for column in map(snapshot.column, dict.fromkeys(names))
        if column.type.is_fractional and column.name not in partitions
    ]
    chosen = snapshot.files if files is None else tuple(files)
    every = frozenset(column.name for column in suspects)
    if not suspects or len(chosen) > MAX_FOOTERS:
        return every
    with ThreadPoolExecutor(_READERS) as readers:
        footers = list(readers.map(_reader(snapshot, chosen), chosen))
    if None in footers:
        return every
    return frozenset(
        column.name
        for column in suspects
        if any(_hides(footer, column, snapshot.columns.physical[column.name]) for footer in footers)
    )


def _reader(snapshot: Snapshot, files: Sequence[DataFile]) -> Any:
    """What reads the footer of one of these files; None for one that cannot be read."""
    opened = DataFiles(snapshot, files)

    def footer(file: DataFile) -> pq.FileMetaData | None:
        try:
            return opened.footer(file)
        except READ_FAILURES:
            return None

    return footer


def _hides(footer: pq.FileMetaData, column: Column, physical: str) -> bool:
    """Whether a filter on the column may skip a row of the file that it should keep."""
    leaves = [footer.schema.column(at) for at in range(len(footer.schema))]
    places = [at for at, leaf in enumerate(leaves) if leaf.path.lower() == physical.lower()]
    counts_nan = _counts_nan(footer.created_by)
    return any(
        leaves[at].physical_type != _PHYSICAL[column.type.kind]
        or any(
            _chunk_hides(footer.row_group(group).column(at), counts_nan=counts_nan)
            for group in range(footer.num_row_groups)
        )
        for at in places
    )


def _counts_nan(writer: str | None) -> bool:
    match = _COUNTS_NAN.match(writer or "")
    return match is not None and (int(match[1]), int(match[2])) >= _FIRST_COUNTING


def _chunk_hides(chunk: pq.ColumnChunkMetaData, *, counts_nan: bool) -> bool:
    stated = chunk.statistics
    if stated is not None and stated.has_null_count and stated.null_count == chunk.num_values:
        return False
    if not counts_nan:
        return True
    # Releases of Arrow that cannot tell whether there is a Bloom filter count as if there were.
    if getattr(chunk, "bloom_filter_offset", 0) is not None:
        return True
    if not any("DICTIONARY" in encoding for encoding in chunk.encodings):
        return False
    if stated is None or not stated.has_min_max:
        return True
    return not (stated.min > 0 or stated.max < 0)
