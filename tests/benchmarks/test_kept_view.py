"""Views kept by hand: what they ask, and that changes bring them to what asking anew gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.kept_view import KeptView, kept_view
from benchmarks.signed_view import SignedView, signed_view
from impctl.bench.parquet_sql import ParquetSql
from tests.support.random_cases import random_cases, random_seeds

SQL = "SELECT a, SUM(b) AS s, COUNT(*) AS n FROM t GROUP BY a HAVING AVG(b) < 10 AND MAX(c) > 3"


def asked(view: KeptView, rows: pa.Table) -> pa.Table:
    """The view's definition, by hand."""
    how = [("b", "sum"), ("a", "count"), ("b", "count"), ("c", "max")]
    result = rows.group_by("a").aggregate(how)
    result = result.select(["a", *(f"{column}_{name}" for column, name in how)])
    return result.rename_columns(["a", *(figure.name for figure in view.figures)])


def drawn(seed: int, size: int) -> pa.Table:
    random = np.random.default_rng(seed)
    values = {name: random.integers(0, 20, size) for name in ("a", "b", "c")}
    return pa.table(values)


def test_what_is_asked_of_the_table_and_of_the_view() -> None:
    view = kept_view(SQL)
    assert view is not None
    assert view.keys == ("a",)
    assert view.definition == (
        "SELECT a, SUM(b) AS figure_0, COUNT(*) AS figure_1, COUNT(b) AS figure_2, "
        "MAX(c) AS figure_3 FROM t GROUP BY a"
    )
    assert view.through == (
        "SELECT a, figure_0 AS s, figure_1 AS n FROM kept_view "
        "WHERE (figure_0 / figure_2) < 10 AND figure_3 > 3"
    )


def test_order_and_limit_are_asked_of_the_view() -> None:
    view = kept_view("SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY COUNT(*) DESC, s LIMIT 3")
    assert view is not None
    assert view.definition == (
        "SELECT a, SUM(b) AS figure_0, COUNT(*) AS figure_1 FROM t GROUP BY a"
    )
    assert view.through == (
        "SELECT a, figure_0 AS s FROM kept_view ORDER BY figure_1 DESC, s LIMIT 3"
    )


@random_seeds(3, 12, 20)
def test_insertions_bring_it_to_what_asking_anew_gives(seed: int) -> None:
    view = kept_view(SQL)
    assert view is not None
    rows = drawn(seed, 30)
    kept = asked(view, rows)
    for step in range(5):
        more = drawn(100 * seed + step, step * 7)
        kept, rows = view.added(kept, more), pa.concat_tables([rows, more])
        assert kept.sort_by("a").equals(asked(view, rows).sort_by("a"))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t",
        "SELECT a, SUM(b) AS s FROM t WHERE b > 1 GROUP BY a",
        "SELECT a, SUM(b + 1) AS s FROM t GROUP BY a",
        "SELECT a, COUNT(DISTINCT b) AS s FROM t GROUP BY a",
        "SELECT DISTINCT SUM(b) AS s FROM t GROUP BY a",
        "SELECT a, SUM(b) AS s, RANK() OVER (ORDER BY SUM(b)) AS r FROM t GROUP BY a",
        "SELECT a + 1 AS k, SUM(b) AS s FROM t GROUP BY a + 1",
        "SELECT t.a, SUM(b) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.a",
        "SELECT a, SUM(b) AS s FROM t GROUP BY a UNION ALL SELECT a, b FROM t",
    ],
)
def test_others_have_none(sql: str) -> None:
    assert kept_view(sql) is None


SIGNED = (
    "SELECT a, SUM(b) AS s, COUNT(*) AS n, COUNT(c) AS m FROM t GROUP BY a "
    "HAVING AVG(b) > 5 ORDER BY s DESC, a LIMIT 8"
)


@pytest.fixture
def connection() -> Iterator[ParquetSql]:
    result = ParquetSql.open()
    if result is None:
        pytest.skip("DuckDB is not installed")
    with closing(result):
        yield result


def drawn_signed(random: np.random.Generator, size: int) -> pa.Table:
    columns = {name: pa.array(random.integers(0, 20, size)) for name in ("a", "b")}
    columns["c"] = pa.array(random.integers(0, 3, size), mask=random.random(size) < 0.3)
    return pa.table(columns)


def made(connection: ParquetSql, rows: pa.Table) -> SignedView:
    connection.put("t", rows)
    view = signed_view(connection, SIGNED)
    assert view is not None
    return view


@pytest.mark.slow
@random_cases(fast=2, check=6, total=10)
def test_rows_that_come_and_go_bring_it_to_what_asking_anew_gives(
    connection: ParquetSql, cases: range
) -> None:
    for seed in cases:
        random = np.random.default_rng(seed)
        rows = drawn_signed(random, 60)
        view = made(connection, rows)
        assert view.columns == ("a", "b", "c")
        for _ in range(6):
            gone = random.permutation(len(rows))[: random.integers(0, len(rows) + 1)]
            came = drawn_signed(random, int(random.integers(0, 40)))
            kept = np.setdiff1d(np.arange(len(rows)), gone)
            signs = pa.array(np.repeat([1, -1], [len(came), len(gone)]))
            view.bring_on(pa.concat_tables([came, rows.take(pa.array(gone))]), signs)
            rows = pa.concat_tables([rows.take(pa.array(kept)), came])
            connection.put("t", rows)
            assert view.answer().to_pylist() == connection.run(SIGNED).to_pylist()


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
def test_others_have_no_signed_view(connection: ParquetSql, sql: str) -> None:
    connection.put("t", pa.table({"a": [1], "b": [2]}))
    assert signed_view(connection, sql) is None
