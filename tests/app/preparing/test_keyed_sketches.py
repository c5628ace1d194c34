"""Sketches of accesses that are one: all with what any of them has, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from impctl.data.schema import INTEGER
from impctl.errors import Location
from impctl.plan.nodes import Query
from impctl.rules.optimize import apply_rules, core_of
from impctl.service.choose import evened, groups_of
from impctl.service.prepare import PreparedQuery
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet
from impctl.sql.parameters import BoundSql
from impctl.store.records import StoredSketch
from impctl.workload.models import JoinStrategy, MaintainMode, Policy, QuerySpec, SqlOrigin
from tests.plan.network import read

ENTRY = (
    "WITH RECURSIVE r(t, n) AS (SELECT cost, dst FROM links WHERE src = 1 UNION "
    "SELECT r.t, l.dst FROM r JOIN links l ON r.n = l.src{}) "
)
KEYED = ENTRY.format(" AND r.t = l.cost")
FEW = "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= 1"
BOTH = frozenset({"links#1", "links#2"})


def _prepared(sql: str) -> PreparedQuery:
    query, place = read(sql), Location("w.yaml", 1, 1)
    spec = QuerySpec(
        name="q",
        sql="",
        sketch={},
        policy=Policy.AUTO,
        maintain=MaintainMode.LAZY,
        join=JoinStrategy.AUTO,
        location=place,
        sql_origin=SqlOrigin(place, (), ()),
    )
    planned = Query(query.sql, apply_rules(query.root))
    return PreparedQuery(spec, BoundSql(sql), query, planned, core_of(query.root))


def _stored(access: str, ids: Sequence[int], boundaries: tuple[int, ...] = (1, 2)) -> StoredSketch:
    partition = RangePartition("links", "cost", INTEGER, boundaries)
    fragments = FragmentSet.of(ids, partition.size)
    return StoredSketch(access, "links", "cost", partition, fragments)


def _held(stored_sketches: Sequence[StoredSketch]) -> Mapping[str, tuple[int, ...]]:
    return {sketch.access: sketch.fragments.ids for sketch in stored_sketches}


@pytest.mark.parametrize("above", [FEW, "SELECT t, n FROM r", "SELECT AVG(n) FROM r"])
def test_those_of_a_fixpoint_that_can_be_keyed_are_one(above: str) -> None:
    """Whether it is or not: what another build captured with a barrier is wider, not wrong."""
    prepared = _prepared(KEYED + above)
    sketches = [_stored("links#1", (0, 1)), _stored("links#2", (1, 3))]
    assert groups_of(prepared, sketches) == {BOTH}
    assert _held(evened(prepared, sketches)) == dict.fromkeys(BOTH, (0, 1, 3))
    same = [_stored("links#1", (0, 1)), _stored("links#2", (0, 1))]
    assert [*evened(prepared, same)] == same


def test_over_other_ranges_each_there_are_none() -> None:
    prepared = _prepared(KEYED + FEW)
    assert evened(prepared, [_stored("links#1", (0,)), _stored("links#2", (0,), (1, 2, 3))]) == ()


def test_others_are_left_as_they_are() -> None:
    for sql in (ENTRY.format("") + FEW, "SELECT a.dst FROM links a JOIN links b ON a.src = b.dst"):
        sketches = (_stored("links#1", (0, 1)), _stored("links#2", (1, 3)))
        assert groups_of(_prepared(sql), sketches) == set()
        assert evened(_prepared(sql), sketches) == sketches


def test_a_base_by_itself_is_a_group_of_one() -> None:
    sketches = (_stored("links#1", (0, 1)),)
    assert groups_of(_prepared(KEYED + FEW), sketches) == {frozenset({"links#1"})}
    assert evened(_prepared(KEYED + FEW), sketches) == sketches
