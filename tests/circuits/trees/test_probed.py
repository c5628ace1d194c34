"""Relations that equal columns join in a circle are probed: sketches are those of the lineage."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.jointree.graph import TreeShape
from impctl.compile.jointree.shape import tree_entry, tree_lines
from impctl.data.schema import LONG
from impctl.engine.join import Join
from impctl.engine.jointree.cyclic import Probe
from impctl.plan.nodes import scans_of
from impctl.sketch.partition import RangePartition
from tests.circuits.trees.drawn import core, shape_of
from tests.circuits.trees.test_built import follow
from tests.support.random_cases import random_cases, seen_in

TRIANGLE = "r.a = s.a AND s.b = t.b AND t.c = r.c"
EDGES = "x.a = y.b AND y.a = z.b AND z.a = x.b"
CASES = {
    "triangle": f"SELECT r.b FROM r, s, t WHERE {TRIANGLE} GROUP BY r.b HAVING SUM(s.c) > 1",
    "of classes": f"SELECT r.a FROM r, s, t WHERE {TRIANGLE} GROUP BY r.a HAVING COUNT(*) > 1",
    "rows": f"SELECT r.b FROM r, s, t WHERE {TRIANGLE}",
    "global": f"SELECT COUNT(*) FROM r, s, t WHERE {TRIANGLE} HAVING COUNT(*) > 1",
    "edges": f"SELECT x.a FROM r x, r y, r z WHERE {EDGES} GROUP BY x.a HAVING COUNT(*) > 1",
    "other columns": f"SELECT x.c FROM r x, r y, r z WHERE {EDGES} "
    "GROUP BY x.c HAVING SUM(y.i) > 1",
    "conditions": f"SELECT x.a FROM r x, r y, r z WHERE {EDGES} AND x.c >= 1 AND y.c >= 1 "
    "GROUP BY x.a HAVING COUNT(*) > 0",
    "other conditions": f"SELECT x.a FROM r x, r y, r z WHERE {EDGES} AND x.c >= 1 AND y.c < 2 "
    "AND z.c <> 0 GROUP BY x.a HAVING COUNT(*) > 0",
    "null-safe": "SELECT r.b FROM r JOIN s ON r.a <=> s.a JOIN t ON s.b <=> t.b AND t.c <=> r.c "
    "GROUP BY r.b HAVING COUNT(*) > 1",
    "circle of four": "SELECT r.b FROM r, s, t, u WHERE r.a = s.a AND s.b = t.b AND t.c = u.c "
    "AND u.i = r.i GROUP BY r.b HAVING COUNT(*) > 1",
    "dumbbell": "SELECT x.c FROM r x, r y, r z, s, t x2, t y2, t z2 WHERE "
    f"{EDGES} AND x.c = s.a AND s.b = x2.c AND x2.a = y2.b AND y2.a = z2.b AND z2.a = x2.b",
    "with a leaf": f"SELECT u.c, COUNT(*) FROM r, s, t, u WHERE {TRIANGLE} AND u.b = r.b "
    "GROUP BY u.c HAVING SUM(t.i) > 1",
    "computed": "SELECT r.b FROM r, s, t WHERE r.a = s.a + 1 AND s.b = t.b AND t.c = r.c "
    "GROUP BY r.b HAVING COUNT(*) > 0",
    "two columns of one": f"SELECT r.b FROM r, s, t WHERE {TRIANGLE} AND s.c = r.a "
    "GROUP BY r.b HAVING COUNT(*) > 0",
}


def compiled(sql: str) -> Compiled:
    root = core(sql)
    ranges = {scan.access: RangePartition(scan.table, "a", LONG, (1, 2)) for scan in scans_of(root)}
    return compile_plan(root, ranges, {}, barriers=(), trees={})


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@random_cases(0, 5, 250, also="3 5")
def test_sketches_of_circles_are_those_of_the_lineage(name: str, cases: Sequence[int]) -> None:
    assert any(isinstance(one, Probe) for one in compiled(CASES[name]).circuit)
    assert not any(isinstance(one, Join) for one in compiled(CASES[name]).circuit)
    seen = seen_in(cases, lambda at, seen: follow(core(CASES[name]), Random(at), seen, f"{at}"))
    assert seen["trees"] == len(cases)
    assert seen["filled sketches"] > 0


@pytest.mark.parametrize(
    "source",
    [
        f"r, s, t WHERE {TRIANGLE} AND r.i < s.i",
        f"r, s, t WHERE {TRIANGLE} AND (r.i = 1 OR s.i = 1)",
        "r, s, t, u WHERE r.a = s.a AND s.b = t.b AND t.c = u.c AND u.i = r.i AND r.c < s.c",
        "r, s, t WHERE r.a = s.a AND s.b = t.b AND t.name = r.c",
        "r, s, t WHERE r.a = s.a AND s.a = t.a AND r.b < t.b",
        "r JOIN s ON r.a = s.a JOIN t ON s.b = t.b AND t.c = r.c "
        "LEFT JOIN u ON u.a = r.a AND u.b = s.b AND u.c < t.b",
    ],
)
def test_what_holds_more_than_equalities_is_joined_in_turn(source: str) -> None:
    shape = shape_of(f"SELECT r.d FROM {source} GROUP BY r.d HAVING COUNT(*) > 1")
    nodes = shape.nodes if isinstance(shape, TreeShape) else ()
    assert all(node.circle is None for node in nodes)


def test_accesses_of_one_table_share_their_rows() -> None:
    def indexes(sql: str) -> int:
        (probe,) = (one for one in compiled(sql).circuit if isinstance(one, Probe))
        return len(probe.arrangements())

    assert indexes(CASES["edges"]) == 3
    # Other conditions, other rows; the same conditions in another order, the same rows.
    assert indexes(CASES["conditions"]) == 6
    assert indexes(CASES["other conditions"]) == 9
    twice = f"{EDGES} AND x.c >= 1 AND x.b > 0 AND y.b > 0 AND y.c >= 1 AND z.b > 0 AND z.c >= 1"
    query = f"SELECT x.a FROM r x, r y, r z WHERE {twice} GROUP BY x.a HAVING COUNT(*) > 0"
    assert indexes(query) == 3


def test_what_is_probed_says_so() -> None:
    shape = shape_of(CASES["with a leaf"])
    assert isinstance(shape, TreeShape)
    entry = tree_entry(shape, {"r#1": "id"})
    assert [node.probed for node in entry.nodes] == [len(node.bag) == 3 for node in entry.nodes]
    assert any("r + s + t  probed  " in line for line in tree_lines(entry))
