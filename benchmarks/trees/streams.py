"""Changes of tables in memory: rows that come and go, windows that move, rows that outlive others.

`there_and_back`: rows like the tables' own come with one step and go with the next. `window`: of
each table so large a share is there, in the order of a column; every step the next rows come and
the oldest go, first in, first out; after the last row comes the first one again. `outlived`: the
rows of the second table that have some keys go with one step and come again with the next, while
those of the first table with these keys live for so many of these rounds: what encloses so many
lives of its partner is touched as often.

Law: equal tables, sizes and seeds give equal steps; each step says what the changed tables are
after it. Streams do not end. Out of scope: who follows a stream (`trees.ways`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from impctl.compile.session import TableChange
from impctl.types import ColumnName, TableName

Tables = Mapping[TableName, pa.Table]

Integers = npt.NDArray[np.int64]


class Step(Struct, frozen=True):
    """Rows that come and go, by table, and the changed tables after it."""

    inserted: Tables
    deleted: Tables
    after: Tables

    @property
    def rows(self) -> int:
        """How many rows change."""
        return sum(len(rows) for part in (self.inserted, self.deleted) for rows in part.values())

    def changes(self) -> dict[TableName, TableChange]:
        """The step as a circuit takes it."""
        result = {}
        for table in dict.fromkeys((*self.inserted, *self.deleted)):
            parts = [(self.inserted.get(table), 1), (self.deleted.get(table), -1)]
            rows = [part for part, _ in parts if part is not None]
            weights = [np.full(len(p), sign, dtype=np.int64) for p, sign in parts if p is not None]
            result[table] = TableChange(pa.concat_tables(rows), np.concatenate(weights))
        return result


class Stream(Struct, frozen=True):
    """All tables before the first step, and the steps."""

    start: Tables
    steps: Iterator[Step]


def there_and_back(tables: Tables, changed: Sequence[TableName], size: int, seed: int) -> Stream:
    """So many rows in a step, of the changed tables by their shares of the rows."""
    return Stream(tables, _there_and_back(tables, _shares(tables, changed, size), seed))


def _there_and_back(tables: Tables, sizes: Mapping[TableName, int], seed: int) -> Iterator[Step]:
    random = np.random.default_rng(seed)
    before = {table: tables[table] for table in sizes}
    while True:
        rows = {
            table: tables[table].take(pa.array(random.integers(0, len(tables[table]), size)))
            for table, size in sizes.items()
        }
        yield Step(rows, {}, {t: pa.concat_tables([before[t], rows[t]]) for t in rows})
        yield Step({}, rows, before)


def window(
    tables: Tables, changed: Sequence[TableName], size: int, *, order: ColumnName, share: float
) -> Stream:
    """Windows over such a share of the changed tables; a step has so many rows that come and go."""
    sizes = _shares(tables, changed, max(size // 2, 1))
    rings = {table: _Ring(_in_order(tables[table], order), share) for table in sizes}
    start = {
        table: rows if table not in rings else rings[table].held for table, rows in tables.items()
    }
    return Stream(start, _moving(rings, sizes))


def _moving(rings: Mapping[TableName, _Ring], sizes: Mapping[TableName, int]) -> Iterator[Step]:
    while True:
        moved = {table: ring.moved(sizes[table]) for table, ring in rings.items()}
        yield Step(
            {table: inserted for table, (inserted, _) in moved.items()},
            {table: deleted for table, (_, deleted) in moved.items()},
            {table: ring.held for table, ring in rings.items()},
        )


class _Ring(Struct):
    """Rows in a circle, of which a window is there."""

    rows: pa.Table
    share: float
    at: int = 0

    @property
    def size(self) -> int:
        return max(int(len(self.rows) * self.share), 1)

    @property
    def held(self) -> pa.Table:
        return self._from(self.at, self.size)

    def moved(self, by: int) -> tuple[pa.Table, pa.Table]:
        """What comes and goes with the window's next step, which is no longer than it."""
        by = min(by, self.size, len(self.rows) - self.size)
        inserted, deleted = self._from(self.at + self.size, by), self._from(self.at, by)
        self.at += by
        return inserted, deleted

    def _from(self, start: int, size: int) -> pa.Table:
        start %= len(self.rows)
        first = self.rows.slice(start, size)
        return pa.concat_tables([first, self.rows.slice(0, size - len(first))])


def outlived(
    tables: Tables,
    changed: Sequence[TableName],
    keys: int,
    *,
    key: ColumnName,
    lives: int,
    seed: int,
) -> Stream:
    """So many keys of the second changed table go and come; rows of the first live `lives` rounds.

    Of the first table's rows with these keys half are there at a time.
    """
    above, below = changed
    random = np.random.default_rng(seed)
    known = np.unique(tables[below].column(key).to_numpy())
    chosen = random.choice(known, min(keys, len(known)), replace=False)
    moving, staying = _with_keys(tables[above], key, chosen)
    ring = _Ring(_key_by_key(moving, key), 0.5)
    leaves, others = _with_keys(tables[below], key, chosen)

    def after(*, is_there: bool) -> Tables:
        return {
            above: pa.concat_tables([staying, ring.held]),
            below: tables[below] if is_there else others,
        }

    start = {**tables, **after(is_there=True)}
    return Stream(start, _rounds(ring, leaves, (above, below), lives, after))


def _rounds(
    ring: _Ring,
    leaves: pa.Table,
    names: tuple[TableName, TableName],
    lives: int,
    after: Callable[..., Tables],
) -> Iterator[Step]:
    above, below = names
    while True:
        yield Step({}, {below: leaves}, after(is_there=False))
        inserted, deleted = ring.moved(max(ring.size // lives, 1))
        yield Step({below: leaves, above: inserted}, {above: deleted}, after(is_there=True))


def _with_keys(rows: pa.Table, key: ColumnName, chosen: Integers) -> tuple[pa.Table, pa.Table]:
    """The rows with one of these keys, and the others."""
    are_in = np.isin(rows.column(key).to_numpy(), chosen)
    return rows.filter(pa.array(are_in)), rows.filter(pa.array(~are_in))


def _key_by_key(rows: pa.Table, key: ColumnName) -> pa.Table:
    """The first row of every key, then the second ones, ..: a window has as many of each."""
    keys = rows.column(key).to_numpy()
    order = np.argsort(keys, kind="stable")
    _, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    places = np.arange(len(keys)) - np.repeat(starts, counts)
    return rows.take(pa.array(order[np.argsort(places, kind="stable")]))


def _in_order(rows: pa.Table, order: ColumnName) -> pa.Table:
    return rows.sort_by([(order, "ascending")]).combine_chunks()


def _shares(tables: Tables, changed: Sequence[TableName], size: int) -> dict[TableName, int]:
    """A step's rows divided among tables as they have rows, one at least."""
    total = sum(len(tables[table]) for table in changed)
    return {table: max(size * len(tables[table]) // max(total, 1), 1) for table in changed}
