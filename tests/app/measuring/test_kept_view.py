"""A view kept by hand: what it asks, and that insertions bring it to what asking anew gives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from impctl.app.measuring.kept_view import KeptView, kept_view
from tests.support.random_cases import random_seeds

SQL = "SELECT a, SUM(b) AS s, COUNT(*) AS n FROM t GROUP BY a HAVING AVG(b) < 10 AND MAX(c) > 3"


def asked(view: KeptView, rows: pa.Table) -> pa.Table:
    """The view's definition, by hand."""
    how = [("b", "sum"), ("a", "count"), ("b", "count"), ("c", "max")]
    found = rows.group_by("a").aggregate(how)
    found = found.select(["a", *(f"{column}_{name}" for column, name in how)])
    return found.rename_columns(["a", *(figure.name for figure in view.figures)])


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


@random_seeds(3, 20, 20)
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
