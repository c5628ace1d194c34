"""Sides and groupings over outer and anti joins and set operations come to the same, kept or not.

What is not kept is computed of the tables for a step: of the rows that a key narrows where it is a
column of the side whose rows go their own way, else of all rows. After every step what groupings
put out and the counts at the root equal those of a circuit that keeps all.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.circuits.test_groups_read import compiled, one_case, readable
from tests.support.random_cases import random_cases

LEFT = "SELECT t.x, t.s, u.g h, u.y FROM t LEFT JOIN u ON t.g = u.g"
FULL = "SELECT t.x, t.g, u.g h, u.y FROM t FULL JOIN u ON t.g = u.g AND t.x < u.y"
ALONE = "SELECT g, x FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.y > t.x)"
JOINED = "SELECT w.x, COUNT(*) FROM ({side}) v JOIN t w ON {on} GROUP BY w.x HAVING COUNT(*) > 1"
NARROWED = {
    "left": JOINED.format(side=LEFT, on="v.x = w.x"),
    "right": JOINED.format(side=LEFT.replace("t LEFT JOIN u", "u RIGHT JOIN t"), on="v.x = w.x"),
    "anti": JOINED.format(side=ALONE, on="v.g = w.g AND v.x >= w.x"),
    "not_in": JOINED.format(
        side="SELECT g, x FROM t WHERE g NOT IN (SELECT g FROM u)", on="v.x = w.x"
    ),
    "semi": JOINED.format(side="SELECT g FROM t WHERE x IN (SELECT y FROM u)", on="v.g <=> w.g"),
    "groups": f"SELECT x, COUNT(y) FROM ({LEFT}) GROUP BY x",
    "once": f"SELECT DISTINCT x, y FROM ({LEFT}) WHERE y IS NULL OR y > 0",
}
WHOLE = {
    "padded": JOINED.format(side=LEFT, on="v.h <=> w.g"),
    "full": JOINED.format(side=FULL, on="v.g <=> w.g"),
    "both": JOINED.format(side=FULL, on="COALESCE(v.g, v.h) = w.g"),
    "union": JOINED.format(side="SELECT g FROM t UNION ALL SELECT g FROM u", on="v.g = w.g"),
    "distinct": JOINED.format(side="SELECT x FROM t UNION SELECT y FROM u", on="v.x = w.x"),
    "common": JOINED.format(side="SELECT g FROM t INTERSECT SELECT g FROM u", on="v.g <=> w.g"),
    "except": JOINED.format(side="SELECT x FROM t EXCEPT SELECT y FROM u", on="v.x = w.x"),
    "copies": JOINED.format(side="SELECT g FROM t EXCEPT ALL SELECT g FROM u", on="v.g = w.g"),
    "groups": f"SELECT y, COUNT(*) FROM ({LEFT}) GROUP BY y",
    "merged": "SELECT g, COUNT(*) FROM (SELECT g FROM t UNION ALL SELECT y FROM u) GROUP BY g",
    "counts": "SELECT c, COUNT(*) FROM (SELECT t.x, COUNT(u.y) c FROM t LEFT JOIN u ON t.g = u.g "
    "GROUP BY t.x) GROUP BY c",
}


@pytest.mark.slow
@random_cases(0, 3, 72, also="5")
@pytest.mark.parametrize("sql", [*NARROWED.values(), *WHOLE.values()])
def test_what_is_read_comes_to_what_is_kept(sql: str, cases: Sequence[int]) -> None:
    assert sum(one_case(sql, seed) for seed in cases) > len(cases)


@pytest.mark.parametrize("sql", [*NARROWED.values(), *WHOLE.values()])
def test_what_no_key_narrows_is_rebuilt(sql: str) -> None:
    can_read = readable(compiled(sql, ()))
    modes = {one.mode for one in compiled(sql, can_read).pieces}
    assert ("rebuilt" in modes) == (sql in WHOLE.values())
    assert modes >= ({"rebuilt"} if sql in WHOLE.values() else {"read"})
