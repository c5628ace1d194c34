"""A seeded stream of update batches on a scratch table: rows come under fresh keys, and go again.

Law: equal tables, pools and seeds give equal commits. An insertion has rows like the table's own
with keys above all others; a deletion takes back one earlier insertion whole, so base files are
never rewritten and the table keeps about its size. Every commit is settled
(`measure.scratch`).
Out of scope: which rows the pool holds (`drawn_rows`), updates of users (`service.apply`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.bench.timing import milliseconds
from impctl.errors import UsageError
from impctl.measure.scratch import sample_rows, sync_commit
from impctl.service.pinned import PinnedTables
from impctl.tables.rows import read_rows
from impctl.tables.write.apply import UpdateKind, UpdateRequest, apply_update
from impctl.tables.write.maintenance import append_rows
from impctl.types import ColumnName, TableName

_POOL_ROWS = 50_000
"""Rows drawn once, from which every insertion takes its own."""


class Pool(Struct, frozen=True):
    """Rows to insert, and the first key that no row of the table has."""

    table: TableName
    key: ColumnName
    rows: pa.Table
    first_key: int


def pool_of(tables: PinnedTables, table: TableName, key: ColumnName, seed: int) -> Pool:
    """The pool of a table whose column `key` holds whole numbers; UsageError for another one."""
    snapshot = tables.snapshot(table)
    column = snapshot.schema.find(key)
    if column is None or not column.type.is_integral:
        raise UsageError(
            f"Table `{table}` has no column `{key}` of whole numbers for the keys of new rows",
            hint="name such a column with `with.key`",
        )
    rows = sample_rows(snapshot, _POOL_ROWS, np.random.default_rng(seed))
    greatest = pc.max(read_rows(snapshot, [column.name]).column(0)).as_py()
    return Pool(table, column.name, rows, 0 if greatest is None else greatest + 1)


class UpdateStream:
    """The batches on one scratch copy; each call tells the milliseconds its commit took."""

    def __init__(self, tables: PinnedTables, pool: Pool, seed: int) -> None:
        self.tables, self.pool = tables, pool
        self._random = np.random.default_rng(seed)
        self._next_key = pool.first_key
        self._commits = 0
        self._alive: list[tuple[int, int]] = []

    def commit(self, size: int) -> float:
        """One more batch of so many rows: as often a deletion as there is one to take back."""
        if self._alive and self._random.integers(2):
            return self.delete(int(self._random.integers(len(self._alive))))
        return self.insert(size)

    def insert(self, size: int) -> float:
        """Rows from the pool under fresh keys."""
        places = self._random.integers(0, len(self.pool.rows), size)
        rows = self.pool.rows.take(pa.array(places))
        index = rows.schema.get_field_index(self.pool.key)
        keys = pa.array(np.arange(self._next_key, self._next_key + size, dtype=np.int64))
        rows = rows.set_column(
            index, rows.schema.field(index), keys.cast(rows.schema.field(index).type)
        )
        self._alive.append((self._next_key, self._next_key + size))
        self._next_key += size
        path = self.tables.source(self.pool.table).path
        return self._settled(milliseconds(lambda: append_rows(path, rows)))

    def delete(self, index: int) -> float:
        """An earlier insertion taken back."""
        low, high = self._alive.pop(index)
        where = f"`{self.pool.key}` >= {low} AND `{self.pool.key}` < {high}"
        elapsed = milliseconds(lambda: delete_where(self.tables, self.pool.table, where))
        return self._settled(elapsed)

    def _settled(self, elapsed: float) -> float:
        self._commits += 1
        sync_commit(self.tables, self.pool.table, self._commits)
        return elapsed


def delete_where(tables: PinnedTables, table: TableName, where: str) -> None:
    """Commit that the rows are gone for which the condition is true."""
    apply_update(tables.source(table), UpdateRequest(table, UpdateKind.DELETE, where=where))
