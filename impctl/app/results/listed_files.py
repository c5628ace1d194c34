"""The data files that a query needs of each table, for engines that read Parquet themselves.

Law: the rows of a table are those of the files, without the deleted ones, with the values of
partition columns put in, and of them those that meet the predicate, where there is one: over just
these rows the query gives its answer. Files and predicate belong together; without the predicate
the query would see groups in part.
Out of scope: which files (`app.files`), reading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from impctl.app.results.results import ReuseEntry, RowValue
from impctl.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """What to read of one table; `path` is its folder or URI.

    `listing` has a row per file: `file` (absolute path or URI), `size`, `rows` (deleted ones too,
    NULL where the log does not say), `deleted` (positions of deleted rows from 0, NULL for none),
    and where the table has partition columns `partition_values`, a struct of typed values.

    `predicate` is SQL that DuckDB and Polars read, times in UTC; None for all rows of the files.
    `names_in_files` is empty unless the table maps column names: then each column's name in the
    files, by the name that predicate and query have for it.
    """

    table: str
    path: str
    version: int
    files_total: int
    listing: pa.Table = field(repr=False)
    predicate: str | None
    names_in_files: Mapping[str, str]

    @property
    def files(self) -> tuple[str, ...]:
        """The files to read, in the order of the log."""
        return tuple(self.listing.column("file").to_pylist())

    @property
    def deleted(self) -> dict[str, pa.Array]:
        """Positions of deleted rows, by file; no file without any."""
        column = self.listing.column("deleted")
        pairs = zip(self.files, column, strict=True)
        return {file: places.values for file, places in pairs if places.is_valid}

    @property
    def deleted_rows(self) -> pa.Table:
        """The same as a table of `file` and `position`, for an anti-join."""
        import pyarrow as pa

        deleted = self.deleted
        files = [file for file, places in deleted.items() for _ in range(len(places))]
        places = pa.chunked_array(list(deleted.values()), pa.int64())
        return pa.table({"file": pa.array(files, pa.string()), "position": places})

    @property
    def partition_values(self) -> dict[str, dict[str, RowValue]]:
        """Values of the partition columns, by file; empty ones where the table has none."""
        if "partition_values" not in self.listing.column_names:
            return {file: {} for file in self.files}
        values = self.listing.column("partition_values").to_pylist()
        return dict(zip(self.files, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFiles:
    """What a query needs of its tables, by name; `action`, `reuse` and the like as for `rewrite`.

    `sql` is the query as Spark reads it, values of parameters in it, ranges not: they are the
    tables' predicates. `left_away`: why a table is read without its sketch, though there is one.
    """

    query: str
    sql: str
    tables: Mapping[str, TableFiles]
    action: str = "none"
    reason: str = ""
    reuse: ReuseEntry | None = None
    left_away: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, int]:
        """The version of each table that all of this holds for."""
        return {name: table.version for name, table in self.tables.items()}
