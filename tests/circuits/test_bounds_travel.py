"""Sums of doubles joined, grouped, summed and rounded: the sketch covers in every order of adding.

What is looked up, grouped by or cast may turn out to be unsure; then the run says so. Whole numbers
never are.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 3,000 cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.session import MaintainedQuery
from impctl.data.schema import DOUBLE, INTEGER, LONG, Column, Schema, SqlType
from impctl.errors import NotExactError
from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.sql.statement import parse_query
from tests.circuits.unsure_cases import BY_G, SUMS, add_in_order, compiled, several_cases
from tests.support.random_cases import random_cases

PARTS = "SELECT g, h, SUM(d) AS s FROM t GROUP BY g, h"
MEANS = "SELECT g, AVG(h) AS a FROM t GROUP BY g"
SAFE = (
    f"SELECT g, SUM(s) AS s FROM ({PARTS}) GROUP BY g HAVING SUM(s) > 1",
    f"SELECT g, AVG(s) AS s FROM ({PARTS}) GROUP BY g HAVING AVG(s) > 1",
    f"SELECT g, MAX(s) AS s FROM ({PARTS}) GROUP BY g HAVING MAX(s) > 1",
    f"SELECT g, MIN(s) AS s FROM ({PARTS}) GROUP BY g ORDER BY s LIMIT 2",
    f"SELECT g, COUNT(s) AS n FROM ({PARTS}) GROUP BY g HAVING COUNT(s) > 1",
    f"SELECT g, SUM(s) AS x FROM ({PARTS}) GROUP BY g ORDER BY x DESC LIMIT 2",
    f"SELECT g, SUM(2 * s - 1) AS x FROM ({PARTS}) GROUP BY g HAVING SUM(2 * s - 1) < 2",
    f"SELECT g, MIN(s) FILTER (WHERE h = 1) AS x FROM ({PARTS}) GROUP BY g "
    "HAVING MIN(s) FILTER (WHERE h = 1) < 1",
    "SELECT g FROM t GROUP BY g HAVING ROUND(SUM(d), 1) > 1",
    "SELECT g, ROUND(SUM(d), 1) AS s FROM t GROUP BY g ORDER BY s DESC LIMIT 2",
    "SELECT g FROM t GROUP BY g HAVING SQRT(SUM(d)) <= 1",
    "SELECT g FROM t GROUP BY g HAVING COALESCE(SUM(d), 0) < 1",
    "SELECT g FROM t GROUP BY g HAVING GREATEST(SUM(d), AVG(d), 1D) > 1",
    "SELECT g FROM t GROUP BY g HAVING CASE WHEN COUNT(*) > 1 THEN SUM(d) ELSE 2D END > 1",
    f"SELECT DISTINCT s FROM ({SUMS} HAVING SUM(d) > 1)",
    f"SELECT s, COUNT(*) AS n, VAR_POP(s) AS v FROM ({SUMS} HAVING SUM(d) > 1) GROUP BY s",
    f"SELECT s FROM ({SUMS} HAVING SUM(d) > 1) UNION SELECT w FROM side",
    f"SELECT q.g FROM ({SUMS}) q WHERE EXISTS (SELECT 1 FROM side WHERE side.k = q.g) AND q.s > 1",
    f"SELECT q.g FROM ({SUMS}) q LEFT JOIN side ON q.g = side.k WHERE q.s > 1",
    f"SELECT q.g FROM ({SUMS}) q LEFT JOIN side ON q.g = side.k WHERE q.s > side.w",
    f"SELECT q.g FROM ({SUMS}) q WHERE q.g NOT IN (SELECT k FROM side) AND q.s > 1",
    f"SELECT q.g FROM ({SUMS}) q WHERE q.s > 1 AND EXISTS (SELECT 1 FROM side WHERE k = q.g "
    "AND w < q.s)",
    "SELECT t.g, t.h FROM t LEFT JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k) b ON t.g = b.k "
    "WHERE b.s > 1",
)
"""Never too close to call: what is unsure is kept."""
WHOLE = (
    f"SELECT a, COUNT(*) AS n FROM ({MEANS}) GROUP BY a HAVING COUNT(*) > 1",
    f"SELECT DISTINCT a FROM ({MEANS}) WHERE a > 0",
    f"SELECT x.g FROM ({MEANS}) x JOIN (SELECT k, AVG(k) AS b FROM side GROUP BY k) y ON x.a = y.b",
    f"SELECT g FROM ({MEANS}) WHERE a IN (SELECT AVG(k) FROM side GROUP BY k)",
    f"SELECT g FROM ({MEANS}) WHERE a NOT IN (SELECT AVG(k) FROM side GROUP BY k)",
    f"SELECT g, a FROM ({MEANS}) ORDER BY a DESC, g LIMIT 2",
    f"SELECT COUNT(*) AS n FROM (SELECT g, a FROM ({MEANS}) ORDER BY a, g LIMIT 2)",
    f"SELECT a, g FROM ({MEANS}) EXCEPT SELECT AVG(k), k FROM side GROUP BY k",
    "SELECT g, h FROM t WHERE h >= (SELECT AVG(h) FROM t)",
    "SELECT g FROM t GROUP BY g HAVING AVG(h) > (SELECT AVG(k) / 5 FROM side)",
    "SELECT u.g, u.h FROM t u JOIN (SELECT g, AVG(h) AS a FROM t GROUP BY g) q "
    "ON u.g = q.g AND u.h >= q.a",
    f"SELECT g, MAX(a) AS a FROM ({MEANS}) GROUP BY g HAVING MAX(a) > 0",
    f"SELECT q.g FROM ({MEANS}) q LEFT JOIN side ON q.g = side.k AND side.w > q.a WHERE q.a > 0",
)
"""Averages of whole numbers, used as any exact value: no range too many."""
BEYOND = (
    f"SELECT x.g FROM ({MEANS}) x JOIN (SELECT k, AVG(w) AS b FROM side GROUP BY k) y ON x.a = y.b",
    f"SELECT g FROM ({MEANS}) WHERE a IN (SELECT AVG(w) FROM side GROUP BY k)",
    f"SELECT x.g FROM ({MEANS}) x LEFT JOIN (SELECT k, AVG(w) AS b FROM side GROUP BY k) y "
    "ON x.a = y.b",
    f"SELECT COUNT(*) AS n FROM (SELECT g, a FROM ({MEANS}) ORDER BY a, g LIMIT 1)",
)
"""Averages of whole numbers that are too large for it: looked up by, and in an order with ties."""
TOO_CLOSE = (
    "SELECT g FROM t EXCEPT SELECT k FROM side GROUP BY k HAVING SUM(w) >= 0.6D",
    "SELECT g FROM (SELECT g, SUM(h) AS s FROM t GROUP BY g) WHERE s >= 0.6D ORDER BY g LIMIT 2",
)
"""Conditions whose rows take others away, or leave them no place."""
STRICT = (
    f"SELECT s, COUNT(*) AS n FROM ({SUMS}) GROUP BY s HAVING COUNT(*) > 1",
    f"SELECT s FROM (SELECT DISTINCT s FROM ({SUMS})) JOIN side ON s > w",
    f"SELECT ROUND(s, 1) AS r, COUNT(*) AS n FROM ({SUMS}) GROUP BY ROUND(s, 1) "
    "HAVING COUNT(*) > 1",
    f"SELECT FLOOR(s) AS r, COUNT(*) AS n FROM ({SUMS}) GROUP BY FLOOR(s) HAVING COUNT(*) > 1",
    "SELECT g FROM t GROUP BY g HAVING CAST(SUM(d) AS DECIMAL(30, 1)) > 1",
    "SELECT g FROM t GROUP BY g HAVING SUM(CAST(d AS DECIMAL(30, 1))) > 1",
    f"SELECT g, SUM(s) AS s FROM ({PARTS} HAVING SUM(d) > 1) GROUP BY g HAVING SUM(s) > 2",
    f"SELECT g, COUNT(DISTINCT s) AS n FROM ({PARTS}) GROUP BY g HAVING COUNT(DISTINCT s) > 1",
    f"SELECT g, VAR_POP(s) AS n FROM ({PARTS}) GROUP BY g HAVING VAR_POP(s) > 1",
    f"SELECT q.g FROM ({SUMS}) q LEFT JOIN side ON q.g = side.k AND q.s > side.w",
    f"SELECT q.g FROM ({SUMS}) q WHERE NOT EXISTS (SELECT 1 FROM side WHERE k = q.g AND w > q.s)",
    f"SELECT g, s FROM ({SUMS}) WHERE s > 1 EXCEPT SELECT k, w FROM side",
    "SELECT t.g FROM t LEFT JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k HAVING SUM(w) > 1) b "
    "ON t.g = b.k WHERE b.s IS NULL",
    "SELECT t.g FROM t WHERE t.g NOT IN (SELECT k FROM side GROUP BY k HAVING SUM(w) > 1)",
    "SELECT g FROM t GROUP BY g HAVING CASE WHEN SUM(d) > 1 THEN 1 ELSE 0 END = 1",
)
"""Refused where it happens that the order of adding decides."""
FIRST = (
    f"SELECT COUNT(*) AS n FROM (SELECT g, s FROM ({SUMS}) ORDER BY s DESC LIMIT 2)",
    f"SELECT g, SUM(s) AS x FROM (SELECT g, s FROM ({SUMS}) ORDER BY s LIMIT 3) GROUP BY g "
    "HAVING SUM(s) > 1",
    f"SELECT h, SUM(s) AS x FROM (SELECT g, h, s FROM ({PARTS}) ORDER BY s DESC LIMIT 3) "
    "GROUP BY h HAVING SUM(s) > 1",
    "SELECT h, COUNT(*) AS n FROM "
    "(SELECT g, h, RANK() OVER (PARTITION BY g ORDER BY s DESC) AS r "
    f"FROM ({PARTS})) WHERE r <= 1 GROUP BY h HAVING COUNT(*) > 1",
    "SELECT g, MAX(s) AS x FROM "
    "(SELECT g, s, ROW_NUMBER() OVER (PARTITION BY g ORDER BY s, h) AS r "
    f"FROM ({PARTS})) WHERE r <= 1 GROUP BY g HAVING COUNT(*) < 2 AND MAX(s) < 2",
    f"SELECT h, COUNT(*) AS n FROM (SELECT g, h, s FROM ({PARTS}) ORDER BY h, s LIMIT 3) "
    "GROUP BY h HAVING COUNT(*) > 1",
)
SKIPPED = (
    f"SELECT t.g, t.h FROM t JOIN (SELECT g, s FROM ({SUMS}) ORDER BY s DESC LIMIT 2 OFFSET 1) q "
    "ON t.g = q.g",
    f"SELECT t.g, COUNT(*) AS n FROM t JOIN (SELECT g, s FROM ({SUMS}) ORDER BY s, g LIMIT 3 "
    "OFFSET 2) q ON t.g = q.g GROUP BY t.g HAVING COUNT(*) > 1",
    "SELECT t.g, t.h FROM t JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k ORDER BY s, k LIMIT 2 "
    "OFFSET 1) q ON t.g = q.k",
)
"""OFFSET above or beside what is sketched: the rows that are skipped have to be sure, too."""
STANDINGS = (
    "SELECT h, COUNT(*) AS n FROM (SELECT g, h, DENSE_RANK() OVER (PARTITION BY g ORDER BY s DESC) "
    f"AS r FROM ({PARTS})) WHERE r <= 1 GROUP BY h HAVING COUNT(*) > 1",
    "SELECT g, MAX(s) AS x FROM (SELECT g, s, DENSE_RANK() OVER (PARTITION BY g ORDER BY s) AS r "
    f"FROM ({PARTS})) WHERE r <= 1 GROUP BY g HAVING COUNT(*) < 2 AND MAX(s) < 2",
    "SELECT t.g, t.h FROM t JOIN (SELECT g, DENSE_RANK() OVER (ORDER BY s DESC) AS r FROM "
    f"({SUMS})) q ON t.g = q.g WHERE q.r <= 2",
)
"""DENSE_RANK: how many values there are has to be sure."""
"""First rows below a grouping: refused where it happens that they are not sure."""


@pytest.fixture(autouse=True)
def _added_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    add_in_order(monkeypatch)


@pytest.mark.parametrize("sql", [*SAFE, *WHOLE, *STRICT, *FIRST, *SKIPPED, *STANDINGS])
def test_such_queries_have_a_circuit(sql: str) -> None:
    assert compiled(sql).circuit is not None


@random_cases(
    0, 40, 1_000, also="1 8 10 12 25 29 33 36 39 77 104 127 131 138 163 207 253 508 583 859"
)
def test_bounds_are_added_up_and_kept(cases: Sequence[int]) -> None:
    seen = several_cases(SAFE, cases)
    assert seen["cases"] > len(cases) * 6, seen
    assert seen["unsure"] > len(cases) // 12, seen
    assert seen["not exact"] == 0, seen


@random_cases(0, 20, 200, also="0-7 18 19 44")
def test_averages_of_whole_numbers_are_exact(cases: Sequence[int]) -> None:
    seen = several_cases(WHOLE, cases)
    assert seen["cases"] == len(cases) * 12, seen
    assert seen["unsure"] == seen["slack"] == 0, seen


def loaded(sql: str, kind: SqlType, *, of_t: Sequence[Any], of_side: Sequence[Any]) -> None:
    """Load rows of one group, which have these values of that type."""
    catalog = {
        "t": Schema((Column("g", INTEGER), Column("h", kind))),
        "side": Schema((Column("k", INTEGER), Column("w", kind))),
    }
    root = core_of(apply_rules(parse_query(sql, catalog).root))
    sketched = {scan.access: BY_G for scan in scans_of(root) if scan.table == "t"}
    session = MaintainedQuery(compile_plan(root, sketched, {}))
    tables = {
        "t": {"g": [1] * len(of_t), "h": of_t},
        "side": {"k": [1] * len(of_side), "w": of_side},
    }
    types = {"g": pa.int32(), "k": pa.int32()}
    for name in session.compiled.tables:
        columns = {at: pa.array(values, types.get(at)) for at, values in tables[name].items()}
        session.load([(name, pa.table(columns))])


@pytest.mark.parametrize("sql", BEYOND)
def test_averages_of_whole_numbers_beyond_doubles_are_refused_where_they_decide(sql: str) -> None:
    loaded(sql, LONG, of_t=[1 << 40, 1], of_side=[1 << 40, 1])
    with pytest.raises(NotExactError):
        loaded(sql, LONG, of_t=[1 << 60, 1], of_side=[1 << 40, 1])


@pytest.mark.parametrize("sql", TOO_CLOSE)
def test_a_row_too_close_to_call_is_refused_where_it_could_take_the_place_of_others(
    sql: str,
) -> None:
    values = [0.1, 0.2, 0.3]
    loaded(sql, DOUBLE, of_t=values[1:], of_side=values[1:])
    with pytest.raises(NotExactError):
        loaded(sql, DOUBLE, of_t=values, of_side=values)


@random_cases(
    0, 30, 1_000, also="0 2-6 9 10 12 17 18 29-31 33-35 37 38 46-49 51 54 56-58 62 64 511 706"
)
def test_what_is_unsure_is_said_when_it_happens(cases: Sequence[int]) -> None:
    seen = several_cases(STRICT, cases)
    assert seen["cases"] > len(cases) * 3, seen
    assert 0 < seen["not exact"] < len(cases) * 3 // 4, seen


@random_cases(0, 20, 200, also="10 11 23 34 39 40")
def test_first_rows_below_a_grouping_are_sure_or_refused(cases: Sequence[int]) -> None:
    are_sure_or_refused(FIRST, cases)


@random_cases(0, 20, 200, also="2 5 6 37-39")
def test_rows_that_are_skipped_are_sure_or_refused(cases: Sequence[int]) -> None:
    are_sure_or_refused(SKIPPED, cases)


@random_cases(0, 20, 200, also="10 11 14 17 23 31 34 35 39")
def test_standings_are_sure_or_refused(cases: Sequence[int]) -> None:
    are_sure_or_refused(STANDINGS, cases)


def are_sure_or_refused(queries: tuple[str, ...], cases: Sequence[int]) -> None:
    seen = several_cases(queries, cases)
    assert seen["cases"] > len(cases) * 3, seen
    assert 0 < seen["not exact"] < len(cases), seen


@random_cases(5, 9, 60)
def test_doubles_that_are_whole_numbers_are_exact(cases: Sequence[int]) -> None:
    pools = ((1.0, 2.0, 3.0, -0.0, 0.0), (None, -7.0, 1e9, 3.0), (2.0**40, -(2.0**40), 1.0))
    for queries in (SAFE, STRICT):
        chosen = [sql for sql in queries if "ROUND" not in sql and "VAR_POP" not in sql]
        seen = several_cases(chosen, cases, pools)
        assert seen["not exact"] == seen["unsure"] == 0, seen
