"""Rows drawn from all over a table, to make changes that look like the table itself.

Law: equal snapshots and equal random states give equal rows; every row of the table is equally
likely, and the values of a file are read at most once.
Out of scope: committing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from impctl.errors import UsageError
from impctl.tables.rows import read_rows

if TYPE_CHECKING:
    from impctl.tables.snapshot import DataFile, Snapshot


def drawn_rows(snapshot: Snapshot, size: int, random: np.random.Generator) -> pa.Table:
    """So many rows of the table, with all its columns; UsageError for an empty table."""
    counts = [(file, _rows_of(snapshot, file)) for file in snapshot.files]
    filled = [(file, rows) for file, rows in counts if rows]
    if not filled:
        raise UsageError(
            f"Table `{snapshot.table}` is empty, so there are no rows to make changes from",
            code="bench_empty_table",
            hint="use a table with rows; `impctl bench --generate` writes some",
        )
    names = snapshot.schema.names
    weights = np.array([float(rows) for _, rows in filled])
    shares = random.multinomial(size, weights / weights.sum())
    parts = []
    for (file, _), share in zip(filled, shares.tolist(), strict=True):
        if share:
            held = read_rows(snapshot, names, [file])
            parts.append(held.take(pa.array(random.integers(0, len(held), share))))
    return pa.concat_tables(parts)


def _rows_of(snapshot: Snapshot, file: DataFile) -> int:
    """Rows of the file that are not deleted; counted in it where the log does not say."""
    if file.rows is None:
        return len(read_rows(snapshot, (), [file]))
    return file.rows - (0 if file.deleted is None else len(file.deleted))
