"""Steps over at most one row are left out, and no others."""

from __future__ import annotations

import pytest

from impctl.rules.normalize import single_rows
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from tests.plan.catalogs import plan_of, read, tree

_ONE = "SELECT COUNT(*) AS n, AVG(price) AS a FROM sales WHERE numsold > 1"
_TWO = "SELECT * FROM (SELECT MAX(price) m FROM sales) x, (SELECT SUM(shelf) s FROM stock) y"


@pytest.mark.parametrize(
    ("long", "short"),
    [
        (f"{_ONE} ORDER BY n LIMIT 100", _ONE),
        (f"{_ONE} ORDER BY n", _ONE),
        (f"{_ONE} LIMIT 1", _ONE),
        (f"{_TWO} LIMIT 7", _TWO),
        (f"SELECT DISTINCT * FROM ({_ONE}) LIMIT 1", f"SELECT * FROM ({_ONE})"),
        (f"{_ONE} HAVING COUNT(*) > 2 LIMIT 1", f"{_ONE} HAVING COUNT(*) > 2"),
    ],
)
def test_what_one_row_passes_is_left_out(long: str, short: str) -> None:
    assert tree(single_rows(plan_of(long))) == tree(plan_of(short))


@pytest.mark.parametrize(
    "sql",
    [
        f"{_ONE} LIMIT 0",
        f"{_ONE} LIMIT 1 OFFSET 1",
        f"{_ONE} GROUP BY brand ORDER BY n LIMIT 1",
        f"{_ONE} GROUP BY GROUPING SETS ((brand), ()) ORDER BY n LIMIT 1",
        "SELECT * FROM (SELECT MAX(price) m FROM sales) x, stock y ORDER BY shelf LIMIT 1",
        "SELECT * FROM stock FULL JOIN (SELECT MAX(price) m FROM sales) ON m = shelf LIMIT 1",
        "SELECT * FROM (SELECT MAX(price) m FROM sales) FULL JOIN (SELECT SUM(shelf) s FROM stock)"
        " ON m = s LIMIT 1",
        f"({_ONE}) UNION ALL ({_ONE}) LIMIT 1",
        f"SELECT DISTINCT n FROM (({_ONE}) UNION ALL ({_ONE}))",
    ],
)
def test_what_may_drop_a_row_stays(sql: str) -> None:
    plan = plan_of(sql)
    assert single_rows(plan) == plan


def test_an_aggregate_of_all_rows_with_a_limit_is_safe() -> None:
    query = read(f"{_ONE} ORDER BY a DESC LIMIT 100")
    assert not check_safety(query, {"sales#1": "numsold"}, ()).safe
    ruled = read(query.sql)
    root = apply_rules(ruled.root)
    assert check_safety(type(query)(query.sql, root), {"sales#1": "numsold"}, ()).safe
