"""SQL over Parquet files in DuckDB, an optional second yardstick beside Spark.

Law: a connection stores nothing on disk and reads exactly the files it was given. Without DuckDB
(`pip install duckdb`) there is no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetSql:
    """A connection that is reused, so that it is warm."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @staticmethod
    def is_installed() -> bool:
        return find_spec("duckdb") is not None

    @classmethod
    def open(cls) -> Self | None:
        """Connect to a database in memory; None if DuckDB is not installed."""
        if not cls.is_installed():
            return None
        import duckdb

        return cls(duckdb.connect(":memory:"))

    def view(self, name: str, files: Sequence[str], *, has_folders: bool = False) -> None:
        """Let `name` stand for the rows of these files; SqlFailed if one is missing. With
        `has_folders` their folders' names are values of columns, typed as DuckDB guesses."""
        with _as_sql_failures():
            rows = self._connection.read_parquet(list(files), hive_partitioning=has_folders)
            rows.create_view(name, replace=True)

    def put(self, name: str, rows: pa.Table) -> None:
        """Let `name` stand for these rows."""
        with _as_sql_failures():
            self._connection.register(name, rows)

    def change(self, sql: str) -> None:
        """Run a statement without a result; SqlFailed if DuckDB refuses it."""
        with _as_sql_failures():
            self._connection.execute(sql)

    def run(self, sql: str) -> pa.Table:
        """Run a SELECT; SqlFailed if DuckDB refuses it."""
        with _as_sql_failures():
            result: pa.Table = self._connection.sql(sql).to_arrow_table()
            return result

    def close(self) -> None:
        """Free its memory and threads."""
        self._connection.close()


@contextmanager
def _as_sql_failures() -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise SqlFailed(str(error).splitlines()[0]) from error
    except RuntimeError as error:
        # Ctrl-C while DuckDB runs comes out of it as an error of no particular kind.
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


class SqlFailed(Exception):  # noqa: N818  # a finding of a measurement, never an error of impctl
    """DuckDB refused the text; the message is the first line of its own."""
