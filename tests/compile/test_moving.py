"""Moving constants and expiring rows, in random steps with changes of the tables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pytest

from impctl.compile.compile import compile_plan, plan_maintenance
from impctl.compile.flows import StoredChoices
from impctl.compile.session import (
    TouchedQuery,
    differing_rows,
    judged_alone,
    moved_above,
    touched_source,
    why_not_computable,
)
from impctl.data.schema import INTEGER
from impctl.data.vector import Ints, from_arrow
from impctl.engine.fixpoint.absorption import AbsorbedFixpoint, Absorbs, Shipping
from impctl.expr.nodes import Call, Compare, CompareOp, Expr, Literal
from impctl.plan.lineage import MovedConditions, moved_conditions
from impctl.sketch.sketch import MaintenanceMode, RangeSet
from tests.compile.cases import (
    Case,
    arrow,
    planned_query,
    random_row,
    several_cases,
)
from tests.support.diagrams import with_diagrams
from tests.support.random_cases import random_cases
from tests.support.reference_plan import annotate

EXPIRING = {
    "sums": "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 3",
    "few": "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) < 3",
    "extremes": "SELECT g FROM t GROUP BY g HAVING MAX(x) > 3 AND MIN(x) < 2",
    "latest": "SELECT g, MAX(at) AS m FROM t GROUP BY g ORDER BY m DESC, g LIMIT 2",
    "rows": "SELECT g, x FROM t WHERE x > 1 ORDER BY x DESC, g LIMIT 3",
    "kinds": "SELECT DISTINCT g, x FROM t WHERE x < 4",
    "joined": "SELECT t.g FROM t JOIN u ON t.x = u.n GROUP BY t.g HAVING COUNT(*) > 1",
    "left": "SELECT t.g FROM t LEFT JOIN u ON t.x = u.n WHERE u.g IS NULL",
    "there": "SELECT g FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.n = t.x)",
    "missing": "SELECT g FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.n = t.x)",
    "twice": "SELECT a.g FROM t a JOIN t b ON a.x = b.g WHERE a.g < 4",
    "bag": "SELECT g, COUNT(*) AS n FROM (SELECT g FROM t UNION ALL SELECT n FROM u) GROUP BY g",
    "halves": "SELECT g FROM t WHERE x < 3 UNION ALL SELECT g FROM t WHERE x >= 3 OR x IS NULL",
    "reach": """WITH RECURSIVE r(n) AS (SELECT x FROM t WHERE g = 0 UNION
        SELECT l.x FROM r JOIN t l ON r.n = l.g) SELECT n FROM r""",
    "seeds": """WITH RECURSIVE r(n) AS (SELECT g FROM u WHERE n < 2 UNION
        SELECT l.x FROM r JOIN t l ON r.n = l.g) SELECT n FROM r WHERE n > 0""",
}


def expiring(names: Sequence[str], cases: Sequence[int]) -> Counter[str]:
    queries = {name: (EXPIRING[name], "g") for name in names}
    sides = ((), ("join0.left",), ("join0.right",))
    return several_cases(queries, cases, sides, expires=True)


@pytest.mark.slow
@random_cases(0, 30, 340, also="18 20 22 27 29 30 32 36 53-55 61 64 71 73")
def test_rows_expire(cases: Sequence[int]) -> None:
    counts = expiring(list(EXPIRING), cases)
    assert counts["moves"] == len(cases) * 4
    for name in EXPIRING:
        assert counts[name] > len(cases) // len(EXPIRING) // 6, (name, counts)


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize("ship", list(Shipping))
@random_cases(4, 5, 200)
def test_rows_expire_with_absorption(
    cases: range, ship: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves are removed when a row expires, although it is still in the table."""
    by_functions = partial(compile_plan, absorbs=Absorbs(ship, 100_000))
    monkeypatch.setattr("tests.compile.cases.compile_plan", by_functions)
    circuit = planned_query(EXPIRING["reach"], 6, "g", expires=True).compiled().circuit
    assert any(isinstance(one, AbsorbedFixpoint) for one in circuit)
    counts = expiring(["reach", "seeds"], cases)
    assert all(counts[name] > len(cases) // 4 for name in ("reach", "seeds")), counts


@pytest.mark.parametrize("name", ["sums", "latest", "bag", "twice", "halves", "reach"])
def test_expired_rows_are_counted_once(name: str) -> None:
    """However many accesses of a query read it."""
    case = Case(random.Random(name), EXPIRING[name], "g", expires=True)
    total = 0
    for now in (8, 9, 14, 11):
        before = case.now
        moved = case.move(now)
        assert moved == case.expired(before, now)
        total += moved
    assert total > 0


LAST = "SELECT g, MAX(day) AS m FROM t GROUP BY g"
MOVED_QUERIES = {
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
    "distance": (f"SELECT g FROM ({LAST}) ORDER BY (m - {{now}}) * (m - {{now}}), g LIMIT 2", "g"),
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
MOVED_SIDES = (("join0.left",), ("join0.right",), ("join0.left", "join0.right"))


@random_cases(
    0, 4, 400, also="1 6 21-23 26 30 39 40 42 45 47 49 50 52 54 63 64 66 82 84 85 87 92 95"
)
def test_moved_constants_match_a_refill(cases: range) -> None:
    counts = several_cases(MOVED_QUERIES, cases)
    assert counts["moves"] == len(cases) * 4
    for name in MOVED_QUERIES:
        assert counts[name] > len(cases) // len(MOVED_QUERIES) // 6, (name, counts)


@random_cases(0, 2, 100, also="7 10 12 14 15")
def test_sketches_cover_moved_sums_of_doubles(cases: range) -> None:
    counts = several_cases(UNSURE, cases, is_exact=False)
    assert counts["moves"] > len(cases) * 2, counts


@random_cases(0, 4, 120, also="1 9 23 25 27 28")
def test_constants_move_with_read_sides(cases: range) -> None:
    counts = several_cases(DISTANT, cases, MOVED_SIDES)
    assert counts["moves"] == len(cases) * 4
    for name in DISTANT:
        assert counts[name] > len(cases) // len(DISTANT) // 6, (name, counts)


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
def test_moves_that_need_table_rows_are_refused(sql: str, why: str) -> None:
    before, after = planned_query(sql, 5, "g"), planned_query(sql, 6, "g")
    conditions = moved_conditions(before.core, after.core, is_open_above=True)
    result = moved_above(before.compiled(), after.compiled(), conditions)
    assert why in str(why_not_computable(after.compiled().circuit, result))


def test_moves_over_read_pairs_are_refused() -> None:
    sql, sides = MOVED_QUERIES["joined rows"][0], StoredChoices(MOVED_SIDES[1])
    before, after = (planned_query(sql, now, "g").compiled(sides) for now in (5, 6))
    result = moved_above(before, after, {})
    assert "not all stored" in str(why_not_computable(after.circuit, result))


def test_merged_arguments_change_the_circuit() -> None:
    sql = "SELECT g FROM t GROUP BY g HAVING SUM(x + 5) > 1 AND SUM(x + {now}) > 1"
    before, after = planned_query(sql, 5, "g"), planned_query(sql, 6, "g")
    assert moved_conditions(before.core, after.core, is_open_above=True) is None


NUMBERED = "SELECT g, x, COUNT(*) OVER (PARTITION BY g ORDER BY x, day, d) AS r FROM t"
TOUCHED_QUERIES = (
    f"SELECT g, r FROM ({NUMBERED} WHERE day >= {{now}}) WHERE r > 1",
    f"SELECT g, r FROM ({NUMBERED} WHERE day > {{early}} AND day <= {{now}} AND x > 0) WHERE r > 1",
    f"SELECT g, r FROM ({NUMBERED} WHERE day < {{now}} OR x = 1) WHERE r <> 3 AND r > 1 AND x > 2",
)


class Touched(Case):
    """A case whose sketch is maintained by touch."""

    def __post_init__(self) -> None:
        self.tables["t"] = [random_row(self.rng, "t") for _ in range(self.rng.choice((0, 4, 9)))]
        result = self._planned(self.now)
        plan = plan_maintenance(result.core, result.whole, result.verdict, result.partitions)
        assert plan.mode is MaintenanceMode.TOUCH, plan.reason
        (self.partition,) = result.partitions.values()
        ids = np.zeros(self.partition.size, dtype=np.bool_)
        ids[list(self.needed())] = True
        self.touched = TouchedQuery(self.partition, RangeSet.from_mask(ids))
        rows = self._ranges(range(len(self.tables["t"])))
        self.touched.range_rows.count(0, rows, np.ones(len(rows), dtype=np.int64))

    def needed(self) -> set[int]:
        """The ranges that the answer is derived from."""
        result = annotate(self._planned(self.now).query.root, self.tables)
        return set(self._ranges(row for _, row in result.lineage).tolist())

    def _ranges(self, rows: Iterable[int]) -> Ints:
        values = arrow("t", [self.tables["t"][row] for row in rows]).column("g")
        return self.partition.range_ids_of(from_arrow(values, INTEGER)).astype(np.int64)

    def move(self, now: int) -> int:
        before, after = self._planned(self.now), self._planned(now)
        conditions = moved_conditions(before.core, after.core)
        assert conditions is not None
        changes, self.now = self.changed(), now
        if "t" in changes:
            self.touched.step(changes["t"])
        (scan,) = after.core.scans
        if scan.access not in conditions:
            return 0
        moved = judged_alone(conditions[scan.access])
        assert moved is not None
        source = touched_source(scan, moved, self.partition)
        assert source is not None
        rows = differing_rows(source, moved, arrow("t", self.tables["t"]))[0]
        return self.touched.move([rows])


def _several(cases: Iterable[int]) -> tuple[int, int]:
    """The total of moved rows, and of ranges missing from the sketches."""
    moved = missing = 0
    for seed in cases:
        rng = random.Random(seed)
        case = Touched(rng, TOUCHED_QUERIES[seed % len(TOUCHED_QUERIES)], "g")
        for _ in range(4):
            moved += case.move(case.now + rng.choice((0, 1, 1, 2, -1, -3)))
            ranges = set(case.touched.ranges.ids)
            assert ranges >= case.needed(), (case.sql, case.now, case.tables)
        missing += case.partition.size - len(ranges)
    return moved, missing


@random_cases(0, 10, 300, also="0-5 10 15 24 53")
def test_moved_rows_are_touched(cases: range) -> None:
    moved, missing = _several(cases)
    assert moved > len(cases)
    assert missing > len(cases) // 4


def _at_least(value: int) -> Expr:
    return Compare(CompareOp.GREATER_EQUAL, Literal(1, INTEGER), Literal(value, INTEGER))


def test_conditions_for_spark_are_skipped_unless_they_moved() -> None:
    spark = [Call("hash", (Literal(number, INTEGER),), None) for number in (1, 2)]
    both = MovedConditions((_at_least(1), spark[0]), (_at_least(2), spark[0]))
    assert judged_alone(both) == MovedConditions((_at_least(1),), (_at_least(2),))
    assert judged_alone(MovedConditions((spark[0],), (spark[1],))) is None


def test_a_constant_above_is_not_followed() -> None:
    sql = f"SELECT g, r FROM ({NUMBERED}) WHERE r > {{now}}"
    assert (
        moved_conditions(planned_query(sql, 5, "g").core, planned_query(sql, 6, "g").core) is None
    )
