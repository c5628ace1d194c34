"""Rows of a table read again for a bounded buffer, from as few files as their statistics allow.

Law: every row whose columns have one of the values asked for, and of which the conditions on the
source are true, is among the batches; the snapshot is that of the version the step maintains to.
Rows pass in batches, so memory is a batch's and what the operator keeps of it. No JVM is started.
Out of scope: when a buffer is used up (`engine.lookups`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from impctl.app.preparing.wanted_files import own_files
from impctl.compile.flows import Source
from impctl.data.vector import Vector
from impctl.errors import count_text
from impctl.tables.prune import prune_to_values
from impctl.tables.rows import read_batches
from impctl.tables.snapshot import Snapshot
from impctl.types import ColumnName


def rows_with(
    snapshot: Snapshot, source: Source, keys: Mapping[ColumnName, Vector]
) -> Iterator[pa.Table]:
    """The rows of the files that may hold these values; without keys, all that come further."""
    wanted = {file.uri for file in own_files(snapshot, source)}
    files = [file for file in prune_to_values(snapshot, keys) if file.uri in wanted]
    yield from read_batches(snapshot, source.scan.table_columns, files)


def refill_text(groups: int, rows: int) -> str:
    """What refilling came to, as history and results say it; empty if there was none."""
    if groups == 0:
        return ""
    # A grouping's state refills what lies above it; then no row was read.
    origin = f" from {count_text(rows, 'row')} of the table" if rows else ""
    return f"refilled the buffers of {count_text(groups, 'group')}{origin}"
