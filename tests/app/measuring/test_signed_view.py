"""A view kept by hand in DuckDB: feed rows, come and gone, bring it to what asking anew gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from impctl.app.measuring.signed_view import SignedView, signed_view
from impctl.bench.parquet_sql import ParquetSql
from tests.support.random_cases import random_cases

pytestmark = pytest.mark.skipif(not ParquetSql.is_installed(), reason="DuckDB is not installed")

SQL = (
    "SELECT a, SUM(b) AS s, COUNT(*) AS n, COUNT(c) AS m FROM t GROUP BY a "
    "HAVING AVG(b) > 5 ORDER BY s DESC, a LIMIT 8"
)


@pytest.fixture
def connection() -> Iterator[ParquetSql]:
    found = ParquetSql.open()
    assert found is not None
    with closing(found):
        yield found


def drawn(random: np.random.Generator, size: int) -> pa.Table:
    columns = {name: pa.array(random.integers(0, 20, size)) for name in ("a", "b")}
    columns["c"] = pa.array(random.integers(0, 3, size), mask=random.random(size) < 0.3)
    return pa.table(columns)


def made(connection: ParquetSql, rows: pa.Table) -> SignedView:
    connection.put("t", rows)
    view = signed_view(connection, SQL)
    assert view is not None
    return view


@random_cases(fast=2, check=10, total=10)
def test_rows_that_come_and_go_bring_it_to_what_asking_anew_gives(
    connection: ParquetSql, cases: range
) -> None:
    for seed in cases:
        random = np.random.default_rng(seed)
        rows = drawn(random, 60)
        view = made(connection, rows)
        assert view.columns == ("a", "b", "c")
        for _ in range(6):
            gone = random.permutation(len(rows))[: random.integers(0, len(rows) + 1)]
            came = drawn(random, int(random.integers(0, 40)))
            kept = np.setdiff1d(np.arange(len(rows)), gone)
            signs = pa.array(np.repeat([1, -1], [len(came), len(gone)]))
            view.bring_on(pa.concat_tables([came, rows.take(pa.array(gone))]), signs)
            rows = pa.concat_tables([rows.take(pa.array(kept)), came])
            connection.put("t", rows)
            assert view.answer().to_pylist() == connection.run(SQL).to_pylist()


def test_a_group_whose_rows_are_gone_is_gone(connection: ParquetSql) -> None:
    rows = pa.table({"a": [1, 2], "b": [10, 10], "c": [1, 1]})
    view = made(connection, rows)
    view.bring_on(rows.slice(1), pa.array([-1]))
    assert [row["a"] for row in view.answer().to_pylist()] == [1]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a, MAX(b) AS m FROM t GROUP BY a",
        "SELECT a, b FROM t",
        "SELECT a, SUM(b) AS s FROM t WHERE b > 1 GROUP BY a",
        "SELECT a, SUM(nothing) AS s FROM t GROUP BY a",
    ],
)
def test_others_have_none(connection: ParquetSql, sql: str) -> None:
    connection.put("t", pa.table({"a": [1], "b": [2]}))
    assert signed_view(connection, sql) is None
