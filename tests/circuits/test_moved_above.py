"""Constants that move above groupings and joins, and on sides that are read: as if filled anew.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 1,920 cases.
"""

from __future__ import annotations

import pytest

from impctl.compile.flows import AsRecorded
from impctl.compile.session import moved_above, untold
from impctl.plan.moved_conditions import moved_conditions
from tests.circuits.moving_cases import kept, several_cases
from tests.support.random_cases import random_cases

LAST = "SELECT g, MAX(day) AS m FROM t GROUP BY g"
QUERIES = {
    "having": (f"{LAST} HAVING MAX(day) >= {{now}}", "g x day"),
    "least": ("SELECT g FROM t GROUP BY g HAVING COUNT(*) > 1 AND MIN(day) < {now} - 1", "g x day"),
    "where too": (
        "SELECT g FROM t WHERE day >= {early} GROUP BY g HAVING MAX(day) > {now} - 1 OR "
        "COUNT(*) > 3",
        "g x",
    ),
    "all rows": ("SELECT MAX(day) AS m FROM t HAVING MAX(day) >= {now} AND COUNT(*) > 1", "g x"),
    "by two": ("SELECT g, x FROM t GROUP BY g, x HAVING MAX(day) <=> {now} OR COUNT(*) > 2", "g x"),
    "column": (
        f"SELECT c, COUNT(*) AS n FROM (SELECT g, CASE WHEN m >= {{now}} THEN 'new' WHEN m IS NULL "
        f"THEN NULL ELSE 'old' END AS c FROM ({LAST})) GROUP BY c HAVING COUNT(*) > 1",
        "g",
    ),
    "stacked": (
        f"SELECT c, COUNT(*) AS n FROM (SELECT m >= {{now}} AS c FROM ({LAST} HAVING MAX(day) > "
        "{now} - 3)) GROUP BY c HAVING COUNT(*) > 1",
        "g",
    ),
    "order": (f"{LAST} HAVING MAX(day) < {{now}} ORDER BY m DESC, g LIMIT 2", "g"),
    "distance": (
        f"SELECT g FROM ({LAST}) ORDER BY (m - {{now}}) * (m - {{now}}), g LIMIT 2",
        "g",
    ),
    "joined groups": (
        f"SELECT q.g FROM ({LAST}) q JOIN u ON q.g = u.g WHERE q.m + u.n > {{now}}",
        "g",
    ),
    "joined rows": ("SELECT t.x FROM t JOIN u ON t.g = u.g WHERE t.day + u.n >= {now}", "g x day"),
    "outer": (
        "SELECT t.g FROM t LEFT JOIN (SELECT g, MAX(n) AS m FROM u GROUP BY g HAVING MAX(n) + 4 > "
        "{now}) q ON t.g = q.g WHERE q.m IS NULL AND t.day < {now}",
        "g x",
    ),
    "distinct": (f"SELECT DISTINCT m FROM ({LAST}) WHERE m >= {{now}}", "g"),
    "ranked": (
        "SELECT g, day FROM (SELECT g, day, RANK() OVER (PARTITION BY g ORDER BY x DESC) AS r "
        "FROM t) WHERE r <= 1 AND day >= {now}",
        "g",
    ),
    "union": (f"SELECT g FROM ({LAST} UNION ALL SELECT g, n FROM u) WHERE m >= {{now}}", "g x"),
    "sets": (
        "SELECT g, x FROM t GROUP BY GROUPING SETS ((g), (x), ()) HAVING MAX(day) >= {now}",
        "g x",
    ),
    "window": (
        "SELECT g FROM (SELECT g, day, MAX(day) OVER (PARTITION BY g) AS m FROM t) "
        "WHERE m - day > {now} - 4",
        "g",
    ),
}
UNSURE = {
    "sums": ("SELECT g FROM t GROUP BY g HAVING SUM(d) > {now} / 10D", "g"),
    "sums in a column": (
        "SELECT g FROM (SELECT g, SUM(d) * ({now} - 5) AS s FROM t GROUP BY g) "
        "ORDER BY s DESC LIMIT 2",
        "g",
    ),
    "sums below": (
        "SELECT COUNT(*) AS n FROM (SELECT g FROM t GROUP BY g HAVING SUM(d) > {now} / 10D) "
        "HAVING COUNT(*) > 1",
        "g",
    ),
}
DISTANT = {
    "far": ("SELECT t.x FROM t JOIN u ON t.g = u.g WHERE u.n >= {early}", "g x"),
    "near": ("SELECT t.x FROM t JOIN u ON t.g = u.g WHERE t.day >= {now} AND u.n > 0", "g x"),
    "both": (
        "SELECT t.g FROM t JOIN u ON t.g = u.g WHERE t.day < {now} AND u.n >= {early} "
        "GROUP BY t.g HAVING COUNT(*) > 2",
        "g x",
    ),
    "twice": (
        "SELECT a.g FROM t a JOIN t b ON a.g = b.g WHERE a.day >= {now} AND b.day < {now}",
        "g",
    ),
    "above": (
        "SELECT t.g FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING MAX(t.day) >= {now}",
        "g x",
    ),
}
SIDES = (("join0.left",), ("join0.right",), ("join0.left", "join0.right"))


@random_cases(
    0, 30, 400, also="1 6 21-23 26 30 39 40 42 45 47 49 50 52 54 63 64 66 82 84 85 87 92 95"
)
def test_what_moves_above_comes_to_what_is_filled_anew(cases: range) -> None:
    seen = several_cases(QUERIES, cases)
    assert seen["moves"] == len(cases) * 4
    for name in QUERIES:
        assert seen[name] > len(cases) // len(QUERIES) // 6, (name, seen)


@random_cases(0, 10, 100, also="7 10 12 14 15")
def test_sums_of_doubles_cover_when_their_constants_move(cases: range) -> None:
    seen = several_cases(UNSURE, cases, is_exact=False)
    assert seen["moves"] > len(cases) * 2, seen


@random_cases(0, 15, 120, also="1 9 23 25 27 28")
def test_sides_that_are_read_follow(cases: range) -> None:
    seen = several_cases(DISTANT, cases, SIDES)
    assert seen["moves"] == len(cases) * 4
    for name in DISTANT:
        assert seen[name] > len(cases) // len(DISTANT) // 6, (name, seen)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT g, MAX(day - {now}) AS m FROM t GROUP BY g HAVING m > 1", "with rows of a table"),
        (
            "SELECT g, SUM(CASE WHEN day > {now} THEN 1 END) AS m FROM t GROUP BY g HAVING m > 0",
            "with rows",
        ),
        (
            "SELECT g FROM (SELECT g, MAX_BY(x, day) AS m FROM t GROUP BY g) WHERE m > {now}",
            "are not all stored",
        ),
    ],
)
def test_what_the_state_cannot_tell_is_said(sql: str, why: str) -> None:
    before, after = kept(sql, 5, "g"), kept(sql, 6, "g")
    conditions = moved_conditions(before.core, after.core, is_open_above=True)
    assert conditions is not None
    result = moved_above(before.compiled(), after.compiled(), conditions)
    assert result is not None
    assert why in str(untold(after.compiled().circuit, result))


def test_pairs_that_are_read_cannot_be_told() -> None:
    sql, sides = QUERIES["joined rows"][0], AsRecorded(SIDES[1])
    before, after = kept(sql, 5, "g"), kept(sql, 6, "g")
    result = moved_above(before.compiled(sides), after.compiled(sides), {})
    assert result is not None
    assert "not all stored" in str(untold(after.compiled(sides).circuit, result))


def test_arguments_that_become_one_make_another_circuit() -> None:
    sql = "SELECT g FROM t GROUP BY g HAVING SUM(x + 5) > 1 AND SUM(x + {now}) > 1"
    before, after = kept(sql, 5, "g"), kept(sql, 6, "g")
    conditions = moved_conditions(before.core, after.core, is_open_above=True)
    if conditions is not None:
        assert moved_above(before.compiled(), after.compiled(), conditions) is None
