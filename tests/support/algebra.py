"""One query for every operator of the algebra, over two tables of values chosen to hurt."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

QUERIES = {
    "inner": "SELECT t.g, SUM(u.y) s FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING COUNT(*) > 2",
    "self": "SELECT a.g, b.x FROM t a JOIN t b ON a.g = b.g AND a.x < b.x WHERE a.s = 'a'",
    "left": "SELECT t.g, u.y FROM t LEFT JOIN u ON t.g = u.g AND u.y > 1 WHERE t.x > 0",
    "full": "SELECT t.x, u.y FROM t FULL JOIN u ON t.g = u.g",
    "exists": "SELECT g, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.y > t.x)",
    "not_in": "SELECT g, x FROM t WHERE g NOT IN (SELECT g FROM u WHERE y > 3)",
    "except": "SELECT g FROM t EXCEPT SELECT g FROM u",
    "except_all": "SELECT g FROM t EXCEPT ALL SELECT g FROM u",
    "except_all_grouped": "SELECT g, COUNT(*) n FROM (SELECT g, x FROM t WHERE x > 0 EXCEPT ALL "
    "SELECT g, y FROM u) q GROUP BY g HAVING COUNT(*) > 3",
    "intersect_all": "SELECT g, x FROM t INTERSECT ALL SELECT g, y FROM u",
    "distinct_below": "SELECT g, COUNT(*) n FROM (SELECT DISTINCT g, y FROM u) q GROUP BY g "
    "HAVING COUNT(*) > 1",
    "union": "SELECT g, s FROM t UNION SELECT g, 'u' FROM u",
    "extremes": "SELECT g, MAX(x) m FROM t GROUP BY g HAVING MAX(x) > 4",
    "text": "SELECT g, MIN(s) m FROM t GROUP BY g HAVING MIN(s) < 'b' AND MAX(s) >= 'a'",
    "spread": "SELECT g, STDDEV(x) v FROM t GROUP BY g HAVING STDDEV(x) > 2.1 OR VAR_POP(x) < 1.1",
    "beside": "SELECT g, MAX_BY(x, x) m FROM t GROUP BY g HAVING MAX_BY(x, x) > 2",
    "distinct": "SELECT g, COUNT(DISTINCT s) n FROM t GROUP BY g HAVING COUNT(DISTINCT s) > 1",
    "top": "SELECT g, COUNT(*) n, MIN(x) low FROM t GROUP BY g ORDER BY n DESC, g LIMIT 2",
    "single": "SELECT g, x FROM t WHERE g > (SELECT MIN(g) FROM u WHERE y > 0)",
    "per_group": "SELECT g, x FROM t WHERE x >= (SELECT 1 + MAX(y) FROM u WHERE u.g = t.g)",
    "per_own": "SELECT g, x FROM t WHERE x < (SELECT MAX(x) FROM t o WHERE t.g = o.g AND s = 'a')",
    "dated": "SELECT year(d) y, COUNT(*) n FROM t GROUP BY year(d) HAVING COUNT(*) > 3",
}

FIRST_ROWS = {
    "top_joined": "SELECT q.x, u.y FROM (SELECT g, x FROM t ORDER BY x DESC NULLS LAST, g"
    " LIMIT 4) q JOIN u ON q.g = u.g",
    "top_counted": "SELECT g, COUNT(*) n FROM (SELECT g, x FROM t ORDER BY x DESC LIMIT 6) q"
    " GROUP BY g HAVING COUNT(*) > 1",
    "top_filtered": "SELECT g FROM (SELECT g, SUM(x) s FROM t GROUP BY g"
    " ORDER BY s NULLS LAST, g DESC LIMIT 3 OFFSET 1) q WHERE s > 0",
    "top_skipping": "SELECT g, x FROM t ORDER BY x NULLS LAST, g DESC LIMIT 4 OFFSET 2",
    "top_united": "(SELECT g FROM t ORDER BY g DESC LIMIT 2) UNION ALL (SELECT g FROM u)",
    "top_in": "SELECT g, x FROM t WHERE g IN (SELECT g FROM u ORDER BY y DESC, g LIMIT 2)",
    "top_twice": "SELECT g FROM (SELECT g, x FROM t ORDER BY x DESC, g LIMIT 6) q"
    " ORDER BY g DESC LIMIT 2",
    "numbered": "SELECT g, x FROM (SELECT g, x, row_number() OVER (PARTITION BY g"
    " ORDER BY x DESC NULLS LAST) n FROM t) q WHERE n <= 2",
    "numbered_joined": "SELECT q.n, u.y FROM (SELECT g, x, row_number() OVER (PARTITION BY g"
    " ORDER BY x) n FROM t) q JOIN u ON q.g = u.g AND q.n = u.y WHERE n < 4",
    "ranked_second": "SELECT s, x FROM (SELECT s, x, rank() OVER (PARTITION BY s"
    " ORDER BY x DESC) r FROM t) q WHERE r = 2",
    "ranked_densely": "SELECT s, r, COUNT(*) n FROM (SELECT s, dense_rank() OVER (PARTITION BY s"
    " ORDER BY d) r FROM t) q WHERE r < 3 GROUP BY s, r HAVING COUNT(*) > 2",
    "ranked_groups": "SELECT s, g FROM (SELECT s, g, COUNT(*) n, rank() OVER (PARTITION BY s"
    " ORDER BY COUNT(*) DESC, g) r FROM t GROUP BY s, g) q WHERE r <= 1 AND n > 1",
}
"""First rows below other operators, per partition, with OFFSET: one query for every shape."""


def rows(rng: random.Random, count: int, *, is_left: bool) -> pa.Table:
    def some(values: list[Any]) -> list[Any]:
        return [rng.choice(values) for _ in range(count)]

    groups = pa.array(some([None, 0, 1, 2, 3, 4, 5]), pa.int32())
    if not is_left:
        return pa.table({"g": groups, "y": pa.array(some([None, -1, 0, 1, 2, 3, 4]), pa.int64())})
    return pa.table(
        {
            "g": groups,
            "x": pa.array(some([None, -1, 0, 1, 2, 3, 5]), pa.int64()),
            "s": pa.array(some([None, "a", "b", ""]), pa.string()),
            "d": pa.array(some([None, 0, 364, 365, 19000]), pa.int32()).cast(pa.date32()),
        }
    )
