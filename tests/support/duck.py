"""One DuckDB for each process, since opening one costs ten times what asking it does."""

from __future__ import annotations

from functools import cache

import duckdb


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def duck() -> duckdb.DuckDBPyConnection:
    """A connection whose tables and settings no other one sees."""
    return _database().cursor()
