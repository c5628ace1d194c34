"""WITH entries that nothing uses are read all the same: Spark is handed the text as it is."""

from __future__ import annotations

import pytest

from impctl.errors import QueryError
from tests.plan.catalogs import read


@pytest.mark.parametrize(
    "sql",
    [
        "WITH c AS (INSERT INTO t VALUES (1)) SELECT 1 AS one",
        "SELECT one FROM (WITH c AS (DELETE FROM t) SELECT 1 AS one) s",
        "WITH c AS (SELECT reflect('java.lang.System', 'exit', 1) AS x) SELECT 1 AS one",
        "SELECT java_method('java.lang.System', 'exit', 1) AS x",
    ],
)
def test_what_does_more_than_read_is_refused(sql: str) -> None:
    with pytest.raises(QueryError):
        read(sql)
