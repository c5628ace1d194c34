"""Random commits to a table of whatever columns: what goes comes again, and some come changed.

Law: all is drawn from the generator given, so that a seed names a run; a table stays about as large
as it was, and a row that is added has values that the table had in each of its columns, or NULL.
Out of scope: who reads the changes (`tests.behaviour.answers_replayed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

_SMALL = 100
"""A table of fewer rows gets no copies once it has grown: joined ones would multiply."""


class RandomBatches:
    """Commits to the table at `path`; about `few` rows go and come with each."""

    def __init__(self, path: str, rng: Random, few: int) -> None:
        self._path, self._rng = path, rng
        self._first = DeltaTable(path).count()
        self._few = max(1, min(few, self._first // 10))
        self._gone: pa.Table | None = None

    def commit(self) -> None:
        """Rows that went with the last batch and copies with other values come; others go."""
        table = DeltaTable(self._path)
        some = self._some_rows(table)
        is_grown = self._first < _SMALL and table.count() > self._first
        coming = [] if is_grown else [self._mixed(some)]
        coming += [] if self._gone is None else [self._gone]
        self._gone = self._taken(table, some)
        if coming:
            write_deltalake(self._path, pa.concat_tables(coming), mode="append")

    def _some_rows(self, table: DeltaTable) -> pa.Table:
        """Rows of one row group of one file."""
        schema = pa.schema(table.schema())
        file = pq.ParquetFile(self._rng.choice(sorted(table.file_uris())))
        group = file.read_row_group(self._rng.randrange(file.num_row_groups)).cast(schema)
        count = min(self._few, group.num_rows)
        return group.take(sorted(self._rng.sample(range(group.num_rows), count)))

    def _taken(self, table: DeltaTable, some: pa.Table) -> pa.Table | None:
        """What goes: all rows with half of these values of the first column of numbers or texts."""
        name = next(one.name for one in some.schema if _is_listed(one.type))
        column = pc.drop_null(some[name])
        values = pc.unique(column.slice(0, max(1, self._few // 2))).to_pylist()
        if not values:
            return None
        wanted = pa.array(values, some.schema.field(name).type)
        gone = pa.concat_tables(
            _rows_with(file, name, wanted, some.schema) for file in table.file_uris()
        )
        listed = ", ".join(map(_literal, values))
        table.delete(f'"{name}" IN ({listed})')
        return gone

    def _mixed(self, rows: pa.Table) -> pa.Table:
        """The rows, with each other's values in some columns, and NULL in others that may."""
        columns = []
        for at, field in enumerate(rows.schema):
            column = rows.column(at)
            if self._rng.random() < 0.3:
                column = column.take(self._shuffled(len(rows)))
            elif field.nullable and self._rng.random() < 0.1:
                kept = [self._rng.random() < 0.9 for _ in range(len(rows))]
                column = pc.if_else(pa.array(kept), column, pa.scalar(None, field.type))
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=rows.schema)

    def _shuffled(self, count: int) -> Sequence[int]:
        places = [*range(count)]
        self._rng.shuffle(places)
        return places


def _rows_with(file: str, name: str, values: pa.Array, schema: pa.Schema) -> pa.Table:
    """The rows of one file with one of these values in the column."""
    if pa.types.is_integer(values.type):
        return pq.read_table(file, schema=schema, filters=pc.field(name).isin(values))
    # Arrow compares no views of texts, as files have them.
    rows = pq.read_table(file).cast(schema)
    return rows.filter(pc.is_in(rows[name], value_set=values))


def _is_listed(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind)


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    assert isinstance(value, int), value
    return str(value)
