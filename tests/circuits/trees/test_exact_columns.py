"""Sums of doubles are followed through whatever is made of them; nothing else is taken for one."""

from __future__ import annotations

import pytest

from impctl.compile.jointree.graph import bounded_columns
from impctl.plan.nodes import attributes_of
from impctl.sql.statement import parse_query
from tests.circuits.trees.drawn import CATALOG

SUMS = "(SELECT a, c, SUM(rate) AS x, SUM(b) AS y, MAX(rate) AS m FROM r GROUP BY a, c)"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (f"SELECT a, x, y, m FROM {SUMS}", "x"),
        (f"SELECT x + 1 AS z, y + 1 AS n, CASE WHEN x > 1 THEN a END AS w FROM {SUMS}", "z w"),
        (f"SELECT a, MAX(x) AS z, COUNT(*) AS n, MAX(y) AS k FROM {SUMS} GROUP BY a", "z"),
        (f"SELECT x, COUNT(*) FILTER (WHERE x > 1) AS n FROM {SUMS} GROUP BY x", "x n"),
        (f"SELECT x, y, SUM(m) OVER (PARTITION BY a) AS w FROM {SUMS}", "x w"),
        (f"SELECT y, MAX(x) OVER (PARTITION BY a) AS w FROM {SUMS}", "w"),
        (f"SELECT x AS z, m AS n FROM {SUMS} UNION ALL SELECT rate, rate FROM s", "z"),
        (f"SELECT rate AS z, rate AS n FROM s UNION ALL SELECT x, m FROM {SUMS}", "z"),
        (f"SELECT q.x, s.rate FROM {SUMS} q JOIN s ON q.a = s.a WHERE q.x > 2", "x"),
        ("SELECT STDDEV(b) AS d, AVG(cost) AS e, SUM(cost) AS f FROM r", "d"),
    ],
)
def test_the_columns_with_a_bound(sql: str, expected: str) -> None:
    root = parse_query(sql, CATALOG).root
    result = bounded_columns(root)
    assert [a.name for a in attributes_of(root) if a.id in result] == expected.split()
