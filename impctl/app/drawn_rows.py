"""Rows drawn from all over a table, to make changes that look like the table itself.

Law: equal snapshots and equal random states give equal rows; every row of the table is equally
likely, and a file is read at most once.
Out of scope: committing them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from impctl.errors import UsageError
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot


def drawn_rows(snapshot: Snapshot, size: int, random: np.random.Generator) -> pa.Table:
    """So many rows of the table, with all its columns; UsageError for an empty table."""
    if not snapshot.rows:
        raise UsageError(
            f"Table `{snapshot.table}` is empty, so there are no rows to make changes from",
            code="bench_empty_table",
            hint="bench a table with rows; `impctl bench --generate` writes some",
        )
    names = snapshot.schema.names
    files = [file for file in snapshot.files if file.rows]
    weights = np.array([float(file.rows or 0) for file in files])
    shares = random.multinomial(size, weights / weights.sum())
    parts = []
    for file, share in zip(files, shares.tolist(), strict=True):
        if share:
            held = read_rows(snapshot, names, [file])
            parts.append(held.take(pa.array(random.integers(0, len(held), share))))
    return pa.concat_tables(parts)
