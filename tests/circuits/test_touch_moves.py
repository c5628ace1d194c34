"""Sketches kept by touch follow conditions on rows that move, and no other constant.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 1,200 cases.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from impctl.compile.compile import choose_way
from impctl.compile.session import TouchedQuery, differing_rows, judged_alone, touched_source
from impctl.data.schema import INTEGER
from impctl.data.vector import Ints, from_arrow
from impctl.expr.nodes import Call, Compare, CompareOp, Expr, Literal
from impctl.plan.moved_conditions import MovedConditions, moved_conditions
from impctl.plan.nodes import scans_of
from impctl.sketch.sketch import FragmentSet, Mode
from tests.circuits.moving_cases import Case, arrow, kept, random_row
from tests.support.random_cases import random_cases
from tests.support.reference_plan import annotate

NUMBERED = "SELECT g, x, COUNT(*) OVER (PARTITION BY g ORDER BY x, day, d) AS r FROM t"
QUERIES = (
    f"SELECT g, r FROM ({NUMBERED} WHERE day >= {{now}}) WHERE r > 1",
    f"SELECT g, r FROM ({NUMBERED} WHERE day > {{early}} AND day <= {{now}} AND x > 0) WHERE r > 1",
    f"SELECT g, r FROM ({NUMBERED} WHERE day < {{now}} OR x = 1) WHERE r <> 3 AND r > 1 AND x > 2",
)


class Touched(Case):
    """A case whose sketch is kept by touch, by nothing but what it is given."""

    def __post_init__(self) -> None:
        self.tables["t"] = [random_row(self.rng, "t") for _ in range(self.rng.choice((0, 4, 9)))]
        result = self._kept(self.now)
        way = choose_way(result.core, result.whole, result.verdict, result.partitions)
        assert way.mode is Mode.TOUCH, way.reason
        (self.partition,) = result.partitions.values()
        ids = np.zeros(self.partition.size, dtype=np.bool_)
        ids[list(self.needed())] = True
        self.touched = TouchedQuery(self.partition, FragmentSet.from_mask(ids))
        rows = self._fragments(range(len(self.tables["t"])))
        self.touched.range_rows.count(0, rows, np.ones(len(rows), dtype=np.int64))

    def needed(self) -> set[int]:
        """The fragments that the answer stems from."""
        result = annotate(self._kept(self.now).query.root, self.tables)
        return set(self._fragments(row for _, row in result.lineage).tolist())

    def _fragments(self, rows: Iterable[int]) -> Ints:
        values = arrow("t", [self.tables["t"][row] for row in rows]).column("g")
        return self.partition.fragments_of(from_arrow(values, INTEGER)).astype(np.int64)

    def move(self, now: int) -> int:
        before, after = self._kept(self.now), self._kept(now)
        conditions = moved_conditions(before.core, after.core)
        assert conditions is not None
        changes, self.now = self.changed(), now
        if "t" in changes:
            self.touched.step(changes["t"])
        (scan,) = scans_of(after.core)
        if scan.access not in conditions:
            return 0
        moved = judged_alone(conditions[scan.access])
        assert moved is not None
        source = touched_source(scan, moved, self.partition)
        assert source is not None
        rows = differing_rows(source, moved, arrow("t", self.tables["t"]))[0]
        return self.touched.move([rows])


def _several(cases: Iterable[int]) -> tuple[int, int]:
    """Rows that moved in all, and ranges that no sketch ever had."""
    moved = left_out = 0
    for seed in cases:
        rng = random.Random(seed)
        case = Touched(rng, QUERIES[seed % len(QUERIES)], "g")
        for _ in range(4):
            moved += case.move(case.now + rng.choice((0, 1, 1, 2, -1, -3)))
            held = set(case.touched.fragments.ids)
            assert held >= case.needed(), (case.sql, case.now, case.tables)
        left_out += case.partition.size - len(held)
    return moved, left_out


@random_cases(0, 30, 300, also="0-5 10 15 24 53")
def test_what_moves_is_touched(cases: range) -> None:
    moved, left_out = _several(cases)
    assert moved > len(cases)
    assert left_out > len(cases) // 4


def _at_least(value: int) -> Expr:
    return Compare(CompareOp.GREATER_EQUAL, Literal(1, INTEGER), Literal(value, INTEGER))


def test_what_only_spark_can_judge_is_left_out_unless_it_moved() -> None:
    spark = [Call("hash", (Literal(at, INTEGER),), None) for at in (1, 2)]
    both = MovedConditions((_at_least(1), spark[0]), (_at_least(2), spark[0]))
    assert judged_alone(both) == MovedConditions((_at_least(1),), (_at_least(2),))
    assert judged_alone(MovedConditions((spark[0],), (spark[1],))) is None


def test_a_constant_above_is_not_followed() -> None:
    sql = f"SELECT g, r FROM ({NUMBERED}) WHERE r > {{now}}"
    assert moved_conditions(kept(sql, 5, "g").core, kept(sql, 6, "g").core) is None
