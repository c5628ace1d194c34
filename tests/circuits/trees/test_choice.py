"""When joins become trees of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import pytest

from impctl.compile import compile as compile_module
from impctl.compile.compile import compile_plan
from impctl.compile.jointree.cost import (
    Estimate,
    FanOuts,
    KeySide,
    SideSize,
    TreeChoice,
    TreesAsRecorded,
    TreesByFanOut,
    is_better_as_tree,
)
from impctl.data.schema import LONG
from impctl.errors import TableError
from impctl.plan.nodes import scans_of
from impctl.sketch.partition import RangePartition
from tests.circuits.trees.drawn import core

PAIR = "SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING SUM(s.d) > 1"
COMPUTED = PAIR.replace("r.a = s.a", "r.a + 1 = s.a")
CIRCLE = PAIR.replace("GROUP", "JOIN t ON s.b = t.a AND t.b = r.b GROUP")
NONE = "SELECT r.a FROM r JOIN s ON r.a < s.a GROUP BY r.a HAVING SUM(s.d) > 1"


@dataclass(frozen=True)
class Evenly:
    """Tables of a million rows, of which a share is kept; every key meets so many."""

    partners: float
    share: float = 1.0

    def met(self, changed: KeySide, other: KeySide) -> float:
        return self.partners if other.columns.counted is None else 1.0

    def alone(self, side: KeySide) -> float:
        return 1.0 / max(self.partners, 1.0)

    def size(self, side: KeySide) -> SideSize:
        rows = 1e6 * (self.share if side.columns.where is not None else 1.0)
        keys = rows / max(self.partners, 1.0)
        return SideSize(rows, rows / 1e6, keys, keys)


class Gone:
    """Tables that cannot be read."""

    def _read(self, *_: KeySide) -> NoReturn:
        raise TableError("a file is gone")

    met = alone = size = _read


def chosen(sql: str, fan_outs: FanOuts) -> TreeChoice:
    return TreesByFanOut(fan_outs, {"r": 1, "s": 1}).choose(core(sql))


@pytest.mark.parametrize(("partners", "is_tree"), [(1, False), (3, False), (30, True), (200, True)])
def test_many_partners_make_a_tree_and_keys_of_one_row_an_index(
    partners: float, is_tree: bool
) -> None:
    choice = chosen(PAIR, Evenly(partners))
    assert choice.is_tree is is_tree
    estimate = choice.estimate
    assert estimate is not None
    assert (estimate.joined, estimate.touched) == (partners, 2)
    assert (estimate.tree_ms < estimate.index_ms) is is_tree


@pytest.mark.parametrize(
    ("share", "said", "is_tree"), [(1.0, "100%", True), (0.5, "50%", True), (0.001, "0.1%", False)]
)
def test_conditions_that_leave_few_rows_leave_little_to_join(
    share: float, said: str, is_tree: bool
) -> None:
    """Of a thousand changed rows one is joined: both ways only look."""
    sql = PAIR.replace("GROUP", "WHERE r.b < 3 AND s.b < 3 GROUP")
    choice = chosen(sql, Evenly(60, share))
    assert choice.is_tree is is_tree
    assert "r where b < 3" in choice.reason
    assert f"({said})" in choice.reason


def estimate_of(tree_ms: float, tree_bytes: float) -> Estimate:
    """Against an index join that takes 100 ms and keeps 100 bytes."""
    return Estimate(1, 1, 100.0, tree_ms, 100.0, tree_bytes)


@pytest.mark.parametrize(
    ("tree_ms", "tree_bytes", "is_tree"),
    [
        (90, 1000, True),
        (91, 1000, False),
        (91, 67, False),
        (91, 66, True),
        (110, 66, True),
        (111, 1, False),
    ],
)
def test_where_times_are_alike_far_larger_state_decides(
    tree_ms: float, tree_bytes: float, is_tree: bool
) -> None:
    assert is_better_as_tree(estimate_of(tree_ms, tree_bytes)) is is_tree


def test_all_blocks_of_a_plan_are_estimated_together() -> None:
    both = f"{PAIR} UNION ALL {PAIR}"
    one, two = (chosen(sql, Evenly(60)).estimate for sql in (PAIR, both))
    assert one is not None
    assert two is not None
    for name in ("joined", "touched", "index_ms", "tree_ms", "index_bytes", "tree_bytes"):
        assert getattr(two, name) == pytest.approx(2 * getattr(one, name)), name


@pytest.mark.parametrize("sql", [COMPUTED, CIRCLE, NONE])
def test_what_is_not_known_stays_with_the_index(sql: str) -> None:
    assert not TreesByFanOut(Evenly(10**6), {}).choose(core(sql)).is_tree


def test_tables_that_cannot_be_read_stay_with_the_index() -> None:
    choice = TreesByFanOut(Gone(), {}).choose(core(PAIR))
    assert (choice.is_tree, choice.estimate) == (False, None)
    assert "a file is gone" in choice.reason


def test_what_was_planned_to_choose_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    root = core(PAIR)
    ranges = {s.access: RangePartition(s.table, "c", LONG, (1, 2)) for s in scans_of(root)}
    choice = TreesByFanOut(Evenly(9), {"r": 1, "s": 1}).choose(root)
    again = compile_plan(root, ranges, {}, barriers=(), trees={})

    def planned(*_: object, **__: object) -> None:
        pytest.fail("it is planned twice")

    monkeypatch.setattr(compile_module, "planned_blocks", planned)
    built = compile_plan(root, ranges, {}, barriers=(), trees={}, blocks=choice.blocks)
    assert built.shapes == again.shapes
    names = [keeper.name for keeper in built.circuit.arrangements()]
    assert names == [keeper.name for keeper in again.circuit.arrangements()]


@pytest.mark.parametrize("is_tree", [True, False])
def test_what_the_capture_chose_holds(is_tree: bool) -> None:
    assert TreesAsRecorded(is_tree).choose(core(PAIR)).is_tree is is_tree
