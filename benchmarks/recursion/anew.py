"""A recursive query asked anew of DuckDB over rows in memory.

Law: DuckDB has the rows in tables of its own, and is asked the query's text, or one that says the
same in its own words; putting rows where they are asked is not timed.
Out of scope: searches written for a query (`searches`), comparing answers
(`measures.recursion_cost`).
"""

from __future__ import annotations

import pyarrow as pa

from impctl.bench.parquet_sql import ParquetSql
from impctl.measure.took import Took, timed
from impctl.types import TableName

_HELD = "held_"


class DuckDb:
    """A connection with the rows of the tables that a query reads."""

    def __init__(self, connection: ParquetSql, sql: str) -> None:
        self._connection = connection
        self._sql = sql

    def put(self, table: TableName, rows: pa.Table) -> None:
        """From now on the table has these rows; SqlFailed where DuckDB cannot."""
        self._connection.put(_HELD + table, rows)
        self._connection.change(
            f'CREATE OR REPLACE TABLE "{table}" AS SELECT * FROM "{_HELD}{table}"'
        )

    def asked(self) -> tuple[pa.Table, Took]:
        """The answer, and what it took; SqlFailed where DuckDB cannot."""
        return timed(lambda: self._connection.run(self._sql))
