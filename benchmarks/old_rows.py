"""Deletions of rows that a table has always had, and how they come back.

Law: a deletion takes rows of one file, drawn from all over it, so that the writer rewrites that
file and not the table; writing is never timed. The rows are inserted again afterwards, so the table
holds what it held, in other files. Rows are told apart by a column of distinct whole numbers.
Out of scope: deletions that go back to before an insertion (`measure.scratch`), patterns of
many deletions (`deletions`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.update_stream import delete_where
from impctl.errors import UsageError
from impctl.measure.scratch import (
    AgainstRecapture,
    MeasuredQuery,
    sync_commit,
    worse_of,
)
from impctl.service.step import StepDone
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot


def old_rows_deleted(
    measured: MeasuredQuery, key: str, size: int, repeat: int, seed: int
) -> tuple[AgainstRecapture, list[StepDone]]:
    """So many deletions maintained, after one that is only checked, gone and come back.

    `key` is the column that tells rows apart.
    """
    before = measured.scratch.tables.snapshot(measured.table)
    key = _spelled(before, key)
    checked: AgainstRecapture | None = None
    steps: list[StepDone] = []
    for turn in range(1 + repeat):
        rows = _rows_of_a_file(before, size, np.random.default_rng(seed + turn))
        step = _deleted(measured, key, rows)
        if checked is None:
            checked = measured.checked()
        else:
            steps.append(step)
        measured.maintain(rows, forth=True)
    assert checked is not None, "the first turn checks"
    return worse_of(checked, measured.checked(measured.unchanged)), steps


def _deleted(measured: MeasuredQuery, key: str, rows: pa.Table) -> StepDone:
    """The rows gone, and that maintained."""
    table = measured.table
    keys = rows.column(key).to_pylist()
    # The bounds leave other files unread where rows lie in the order of their keys.
    where = f"`{key}` >= {min(keys)} AND `{key}` <= {max(keys)}"
    listed = ", ".join(map(str, keys))
    commits = measured.scratch.tables.source(table).version
    delete_where(measured.scratch.tables, table, f"{where} AND `{key}` IN ({listed})")
    sync_commit(measured.scratch.tables, table, commits)
    return measured.followed(len(keys))


def _spelled(snapshot: Snapshot, key: str) -> str:
    """The column's name as the table spells it."""
    column = snapshot.schema.find(key)
    if column is None or not column.type.is_integral:
        raise UsageError(
            f"Table `{snapshot.table}` has no column `{key}` of whole numbers to identify rows by",
            hint="name one with `with.key`, or a query over another table in the figure's cases",
        )
    return column.name


def _rows_of_a_file(snapshot: Snapshot, size: int, random: np.random.Generator) -> pa.Table:
    """Rows with all their columns, each drawn once."""
    large = [file for file in snapshot.files if (file.rows or 0) >= size]
    if not large:
        raise UsageError(
            f"No file of table `{snapshot.table}` has {size} rows to delete",
            hint="delete fewer with `with.changes`, or generate more with a larger `--scale`",
        )
    file = large[int(random.integers(len(large)))]
    rows = read_rows(snapshot, snapshot.schema.names, [file])
    return rows.take(pa.array(random.choice(len(rows), size, replace=False)))
