"""Recursive queries as they are read, against DuckDB's own answers to the texts.

Only linear ones: of two references in a step DuckDB joins the last round's rows alone. Of UNION
ALL rows are counted by both, down to a level, since there are circles. Both the
plan as read and the plan after the rules are tried, over tables with circles, NULLs and duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from impctl.rules.optimize import apply_rules
from tests.plan.network import CLOSURE, REACHED, links, plan_of
from tests.support.random_cases import random_cases
from tests.support.reference_plan import bag, evaluate

duckdb = pytest.importorskip("duckdb")

LONGS = [f"CAST({number} AS BIGINT)" for number in (1, 2, 3)]
ONE = "WITH RECURSIVE r(n) AS (SELECT n FROM nodes WHERE n < 3 UNION {}) SELECT n FROM r"
WALKS = (
    "WITH RECURSIVE r(s, n, l) AS (SELECT dst, dst, 0 FROM links WHERE src = 1 UNION ALL "
    "SELECT r.s, l.dst, r.l + 1 FROM r JOIN links l ON r.n = l.src WHERE r.l < 3) "
)
TO_THREE = (
    "WITH RECURSIVE r(n, l) AS (SELECT n, 0 FROM nodes UNION ALL {} WHERE r.l < 3) "
    "SELECT n, l FROM r"
)
BAGS = [
    WALKS + "SELECT s, n, l FROM r",
    WALKS + "SELECT n, COUNT(*) FROM r GROUP BY n",
    WALKS + "SELECT s FROM r WHERE s = 2 AND n > 1",
    WALKS + "SELECT COUNT(*), MAX(l) FROM r",
    WALKS + "SELECT m.n FROM nodes m WHERE m.n NOT IN (SELECT n FROM r WHERE n IS NOT NULL)",
    WALKS + "SELECT DISTINCT n FROM r WHERE l = 2",
    WALKS + "SELECT a.n, b.l FROM r a JOIN r b ON a.s = b.n WHERE a.s > 1",
    TO_THREE.format("SELECT l.dst, r.l + 1 FROM r LEFT JOIN links l ON r.n = l.src"),
    TO_THREE.format("SELECT r.n, r.l + 1 FROM r SEMI JOIN links l ON r.n = l.src"),
    TO_THREE.format(
        "SELECT q.d, r.l + 1 FROM r JOIN (SELECT DISTINCT src, dst AS d FROM links) q "
        "ON r.n = q.src"
    ),
    TO_THREE.format(
        "SELECT * FROM (SELECT l.dst, r.l + 1 FROM r JOIN links l ON r.n = l.src WHERE r.l < 2 "
        "UNION ALL SELECT r.n + 1, r.l + 2 FROM r"
    ).replace("r.l < 3)", "r.l < 2) x)"),
    "WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION SELECT src FROM links UNION ALL "
    "SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r",
]
QUERIES = [
    *BAGS,
    REACHED + "SELECT n FROM r",
    REACHED + "SELECT n FROM r WHERE n > 2",
    REACHED + "SELECT m.n FROM nodes m WHERE m.n NOT IN (SELECT n FROM r)",
    REACHED + "SELECT COUNT(*), MAX(n) FROM r",
    REACHED + "SELECT a.n, b.n FROM r a JOIN r b ON a.n < b.n",
    CLOSURE + "SELECT x, y FROM c",
    CLOSURE + "SELECT y FROM c WHERE x = 1 AND y > 1",
    CLOSURE + "SELECT x, COUNT(*) FROM c GROUP BY x HAVING COUNT(*) < 3",
    CLOSURE + "SELECT x FROM c WHERE x = y",
    "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION "
    "SELECT l.src, c.y FROM links l JOIN c ON l.dst = c.x) SELECT x, y FROM c WHERE y = 2",
    "WITH RECURSIVE r(n, l) AS (SELECT n, 0 FROM nodes UNION SELECT l.dst, r.l + 1 FROM r "
    "JOIN links l ON r.n = l.src WHERE r.l < 3) SELECT n, MAX(l), COUNT(*) FROM r GROUP BY n",
    "WITH RECURSIVE r(t, n) AS (SELECT t, n FROM seeds UNION SELECT r.t, l.dst FROM r "
    "JOIN links l ON r.n = l.src) SELECT t, COUNT(n) FROM r WHERE t > 1 GROUP BY t",
    "WITH RECURSIVE r(n) AS (SELECT src FROM links GROUP BY src HAVING COUNT(*) > 1 UNION "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r",
    "WITH RECURSIVE r(n) AS (SELECT n FROM (SELECT n FROM nodes WHERE n IS NOT NULL ORDER BY n "
    "LIMIT 1) UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r",
    REACHED[:-1] + ", q(m) AS (SELECT n FROM r UNION SELECT q.m + 1 FROM q JOIN nodes k "
    "ON q.m = k.n WHERE q.m < 5) SELECT m FROM q",
    # Rows written into the text.
    REACHED.replace("SELECT dst FROM links WHERE src = 1", f"VALUES ({LONGS[0]}), ({LONGS[2]})")
    + "SELECT n FROM r",
    REACHED.replace(
        "SELECT dst FROM links WHERE src = 1",
        f"SELECT v.n FROM (VALUES ({LONGS[0]}, 1), ({LONGS[0]}, 2), (NULL, 1)) AS v(n, k) "
        "WHERE k < 2",
    )
    + "SELECT n, COUNT(*) FROM r GROUP BY n",
    f"SELECT v.t, l.dst FROM (VALUES ({LONGS[0]}, 'a'), ({LONGS[1]}, NULL), (NULL, 'c')) "
    "AS v(n, t) JOIN links l ON l.src = v.n",
    f"SELECT n FROM nodes WHERE n NOT IN "
    f"(SELECT x FROM (VALUES ({LONGS[0]}), ({LONGS[2]})) AS v(x))",
    f"WITH v(x) AS (VALUES ({LONGS[0]}), ({LONGS[1]}), ({LONGS[1]})) SELECT x, COUNT(src) FROM v "
    "LEFT JOIN links ON src = x GROUP BY x",
    ONE.format("SELECT DISTINCT l.dst FROM r JOIN links l ON r.n = l.src"),
    ONE.format("SELECT l.dst FROM r LEFT JOIN links l ON r.n = l.src"),
    ONE.format("SELECT l.dst FROM r JOIN (SELECT src, MAX(dst) AS dst FROM links GROUP BY src "
               "HAVING COUNT(*) > 1) l ON r.n = l.src"),
    ONE.format("SELECT n + 1 FROM r WHERE n < 4 AND n NOT IN (SELECT src FROM links "
               "WHERE src IS NOT NULL)"),
    ONE.format("SELECT n + 1 FROM r WHERE n < 4 AND n IN (SELECT src FROM links)"),
    ONE.format("SELECT l.dst FROM (SELECT n + 1 AS n FROM r) q JOIN links l ON q.n = l.src"),
    ONE.format("SELECT CASE WHEN r.n > 1 THEN l.dst ELSE l.src END FROM r "
               "JOIN links l ON r.n = l.src OR r.n = l.dst"),
]  # fmt: skip


def _tables(rng: Random) -> dict[str, list[dict[str, Any]]]:
    values = [*range(1, rng.choice((3, 5))), *([None] if rng.random() < 0.4 else [])]

    def value() -> int | None:
        return rng.choice(values)

    edges = links(*((value(), value()) for _ in range(rng.randint(0, 7))))
    nodes = [{"n": value(), "kind": "x"} for _ in range(rng.randint(0, 4))]
    seeds = [{"t": rng.randint(1, 3), "n": value()} for _ in range(rng.randint(0, 4))]
    return {"links": edges, "nodes": nodes, "seeds": seeds}


@pytest.fixture
def connection() -> Iterator[Any]:
    with duckdb.connect() as result:
        result.execute(
            "CREATE TABLE links (src BIGINT, dst BIGINT, cost INT, region VARCHAR, weight DOUBLE)"
        )
        result.execute("CREATE TABLE nodes (n BIGINT, kind VARCHAR)")
        result.execute("CREATE TABLE seeds (t BIGINT, n BIGINT)")
        yield result


@random_cases(1, 3, 150)
def test_the_answers_are_those_of_duckdb(cases: range, connection: Any) -> None:
    plans = [(sql, plan_of(sql)) for sql in QUERIES]
    rows = 0
    for seed in cases:
        tables = _tables(Random(seed))
        for name, content in tables.items():
            connection.execute(f"DELETE FROM {name}")
            for row in content:
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({marks})", [*row.values()])
        for sql, plan in plans:
            expected = bag(connection.execute(sql).fetchall())
            rows += expected.total()
            assert bag(evaluate(plan, tables)) == expected, (seed, sql)
            assert bag(evaluate(apply_rules(plan), tables)) == expected, (seed, sql)
    assert rows > len(cases) * len(plans) // 2
