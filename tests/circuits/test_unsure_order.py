"""Top-k, joins and unions over sums of doubles: whatever order Spark adds in, the sketch covers.

Rows cancel to the last digit, are NaN, infinite, of both signs; each answer is computed in several
orders of the rows, and every one of them must stem from the maintained sketch alone.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 2,800 cases.
"""

from __future__ import annotations

import pytest

from tests.circuits.unsure_cases import SUMS, add_in_order, compiled, several_cases
from tests.support.random_cases import random_cases

QUERIES = (
    f"{SUMS} ORDER BY s DESC LIMIT 2",
    f"{SUMS} ORDER BY s LIMIT 1",
    f"{SUMS} ORDER BY s DESC NULLS FIRST, g LIMIT 2 OFFSET 1",
    "SELECT g, AVG(d) AS s FROM t GROUP BY g ORDER BY s DESC, g DESC LIMIT 2",
    "SELECT g, SUM(d) / COUNT(*) AS s FROM t GROUP BY g ORDER BY s LIMIT 2",
    f"SELECT g FROM (SELECT g, RANK() OVER (ORDER BY s DESC) AS r FROM ({SUMS})) WHERE r <= 2",
    f"SELECT g FROM (SELECT g, DENSE_RANK() OVER (ORDER BY s DESC) AS r FROM ({SUMS})) "
    "WHERE r <= 2",
    "SELECT g, h FROM (SELECT g, h, DENSE_RANK() OVER (PARTITION BY g ORDER BY SUM(d), h) AS r "
    "FROM t GROUP BY g, h) WHERE r <= 1",
    "SELECT g, h FROM (SELECT g, h, ROW_NUMBER() OVER (PARTITION BY g ORDER BY SUM(d), h) AS r "
    "FROM t GROUP BY g, h) WHERE r <= 1",
    f"SELECT q.g, COUNT(*) AS n FROM (SELECT g, s FROM ({SUMS}) ORDER BY s DESC LIMIT 2) q "
    "JOIN side ON q.g = side.k GROUP BY q.g",
    f"SELECT q.g FROM ({SUMS}) q JOIN side ON q.g = side.k AND q.s > side.w",
    f"SELECT q.g, side.w FROM ({SUMS}) q JOIN side ON q.g = side.k WHERE q.s + side.w >= 1",
    "SELECT g, AVG(d) AS s FROM t GROUP BY g HAVING AVG(d) > (SELECT AVG(d) FROM t)",
    "SELECT a.g FROM (SELECT g, SUM(d) AS s FROM t GROUP BY g) a "
    "JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k) b ON a.g = b.k AND a.s > b.s",
    f"SELECT g, s FROM ({SUMS}) WHERE s > 1 UNION ALL SELECT k, w FROM side WHERE w > 2",
    f"SELECT g, s FROM ({SUMS} UNION ALL SELECT k, w FROM side) ORDER BY s DESC LIMIT 2",
)
_POSITIVE = "SELECT k FROM side GROUP BY k HAVING SUM(w) > 0"
WITHOUT_PARTNER = (
    f"SELECT g, h FROM t WHERE NOT EXISTS (SELECT 1 FROM ({_POSITIVE}) x WHERE x.k = t.g)",
    f"SELECT t.g FROM t LEFT JOIN ({_POSITIVE}) x ON x.k = t.g WHERE x.k IS NULL",
)
"""Where it is unsure whether a row has a partner, it is unsure whether it belongs to the result."""


@pytest.fixture(autouse=True)
def _added_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    add_in_order(monkeypatch)


@random_cases(0, 40, 1_000, also="0-4 6 17 22 38 62 79 86")
def test_sketches_cover_whatever_order_sums_are_added_in(cases: range) -> None:
    seen = several_cases(QUERIES, cases)
    assert seen["cases"] > len(cases) * 8, seen
    assert seen["unsure"] > len(cases) // 10, seen
    assert seen["not exact"] == 0, seen


@random_cases(0, 12, 300, also="29 34 37")
def test_partners_that_are_unsure_are_never_taken_for_sure(cases: range) -> None:
    seen = several_cases(WITHOUT_PARTNER, cases)
    assert seen["cases"] >= len(cases), seen
    assert seen["not exact"] > 0, seen


@pytest.mark.parametrize("sql", QUERIES)
def test_such_queries_have_a_circuit(sql: str) -> None:
    assert compiled(sql).circuit is not None
