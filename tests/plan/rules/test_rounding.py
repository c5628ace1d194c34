"""Which columns of an answer get an error beside them; how large, Spark says (tests/behaviour)."""

from __future__ import annotations

import pytest

from impctl.plan.nodes import attributes_of
from impctl.rules.error_columns import with_rounding
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {"t": schema_of("g int, n bigint, m decimal(10,2), x double, f float, s string")}


@pytest.mark.parametrize(
    ("sql", "inexact"),
    [
        ("SELECT g, SUM(n), SUM(m), AVG(m), COUNT(x), MIN(x) FROM t GROUP BY g", ()),
        ("SELECT g, x, x + 1 FROM t", ()),
        ("SELECT g, SUM(x), AVG(n), AVG(f), SUM(f) FROM t GROUP BY g", (1, 2, 3, 4)),
        ("SELECT stddev(n), var_pop(x), stddev(m), AVG(DISTINCT x) FROM t", (0, 1, 2, 3)),
        ("SELECT stddev(DISTINCT x) FROM t", ()),
        ("SELECT g, SUM(x) * 2, -AVG(x), SUM(x) / COUNT(*) AS c FROM t GROUP BY g", (1, 2, 3)),
        ("SELECT abs(SUM(x)), round(SUM(x), 2), coalesce(SUM(x), 0D) FROM t", (0, 1, 2)),
        ("SELECT sqrt(SUM(x)), greatest(SUM(x), 0D) FROM t", (0, 1)),
        ("SELECT exp(SUM(x)), CAST(SUM(x) AS INT) FROM t", ()),
        ("SELECT CASE WHEN SUM(x) > 0 THEN AVG(x) END FROM t", ()),
        ("SELECT MAX(s), SUM(s) FROM (SELECT g, SUM(x) AS s FROM t GROUP BY g)", (0, 1)),
        ("SELECT g, SUM(x) OVER (PARTITION BY g), rank() OVER (ORDER BY n) FROM t", (1,)),
        ("SELECT g, SUM(x) AS v FROM t GROUP BY g UNION ALL SELECT g, x FROM t", (1,)),
        ("SELECT DISTINCT SUM(x) FROM t GROUP BY g", ()),
        (
            "SELECT a.g, v FROM t AS a JOIN (SELECT g, SUM(x) AS v FROM t GROUP BY g) b"
            " ON a.g = b.g",
            (1,),
        ),
        ("SELECT g, SUM(x) AS v FROM t GROUP BY g HAVING COUNT(*) > 1 ORDER BY g LIMIT 3", (1,)),
    ],
)
def test_columns_with_an_error(sql: str, inexact: tuple[int, ...]) -> None:
    root = parse_query(sql, CATALOG).root
    result = with_rounding(root)
    if not inexact:
        assert result is None
        return
    assert result is not None
    plan, positions = result
    assert positions == inexact
    shown = attributes_of(root)
    assert attributes_of(plan)[: len(shown)] == shown
    assert len(attributes_of(plan)) == len(shown) + len(inexact)
