"""Top-k, joins and unions over sums of doubles: whatever order Spark adds in, the sketch covers.

Rows cancel to the last digit, are NaN, infinite, of both signs; each answer is computed in several
orders of the rows, and every one of them must stem from the maintained sketch alone.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 2,800 cases.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from impctl.engine.operators import likely_top
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


@pytest.fixture(autouse=True)
def _added_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    add_in_order(monkeypatch)


@random_cases(24, 56, 280)
def test_sketches_cover_whatever_order_sums_are_added_in(cases: range) -> None:
    seen = several_cases(QUERIES, cases)
    assert seen["cases"] > len(cases) * 8, seen
    assert seen["unsure"] > len(cases) // 10, seen
    assert seen["not exact"] == 0, seen


@pytest.mark.parametrize("sql", QUERIES)
def test_such_queries_have_a_circuit(sql: str) -> None:
    assert compiled(sql).circuit is not None


def _best_as_worst(true: object) -> object:
    def reached(self: likely_top.LikelyTop, batch: object, *, is_best: bool) -> object:
        return true(self, batch, is_best=False)  # type: ignore[operator]  # the method itself

    return reached


def test_an_order_by_worst_values_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    true = likely_top.LikelyTop._reached
    monkeypatch.setattr(likely_top.LikelyTop, "_reached", _best_as_worst(true))
    with pytest.raises(AssertionError):
        several_cases(QUERIES, range(2800))


def test_standings_counted_as_rows_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    true = likely_top.LikelyTop._border

    def by_rows(self: likely_top.LikelyTop, *given: object) -> object:
        self._rows_count = True
        return true(self, *given)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(likely_top.LikelyTop, "_border", by_rows)
    with pytest.raises(AssertionError):
        several_cases([sql for sql in QUERIES if "DENSE" in sql], range(2800))


def test_a_bound_that_is_lost_in_a_join_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from impctl.engine.operators.bounds import Parted

    whole = Parted.step

    def exact(self: Parted, batch: object) -> object:
        found = whole(self, batch)  # type: ignore[arg-type]  # passed through
        columns = dict(found.columns)
        for bound in self.bounds.values():
            if bound in columns:
                columns[bound] = replace(columns[bound], values=np.zeros(len(found)))
        return replace(found, columns=columns)

    monkeypatch.setattr(Parted, "step", exact)
    with pytest.raises(AssertionError):
        several_cases(QUERIES, range(2800))
