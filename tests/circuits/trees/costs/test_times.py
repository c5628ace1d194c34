"""Times of steps counted by hand, from what changed rows come to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from impctl.circuits.trees.costs import times
from impctl.circuits.trees.costs.index_join import JoinedAccess
from impctl.circuits.trees.costs.times import (
    INDEX,
    STEP_ROWS,
    TREE,
    index_ms,
    rows_joined,
    tree_ms,
    tuples_touched,
)
from impctl.circuits.trees.costs.tree import TouchingAccess, TreeCost
from impctl.engine.trees.spec import Mode
from impctl.plan.nodes import Scan

R, R_AGAIN, S = Scan("r#1", "r", ()), Scan("r#2", "r", ()), Scan("s#1", "s", ())
FIRST = JoinedAccess(R, 0.5, 2, 3.0, 7.0)
AGAIN = JoinedAccess(R_AGAIN, 1.0, 1, 0.0, 11.0)
OTHER = JoinedAccess(S, 1.0, 1, 0.0, 100.0)


def micros_of_first() -> float:
    return STEP_ROWS * (0.5 * INDEX.row + 3.0 * INDEX.kept + 7.0 * INDEX.grouped)


def test_an_index_join_takes_its_steps_its_rows_and_what_they_are_joined_to() -> None:
    one = INDEX.step + 2 * INDEX.join + micros_of_first()
    assert index_ms([FIRST], Mode.RING, {"r": 1}) == pytest.approx(one / 1000)
    found = one + STEP_ROWS * 7.0 * (INDEX.found - INDEX.grouped)
    assert index_ms([FIRST], Mode.BITS, {"r": 1}) == pytest.approx(found / 1000)


def test_a_changed_row_enters_every_access_of_its_table() -> None:
    both = INDEX.step + 3 * INDEX.join + micros_of_first()
    both += STEP_ROWS * (INDEX.row + 11.0 * INDEX.grouped)
    assert index_ms([FIRST, AGAIN], Mode.RING, {"r": 1}) == pytest.approx(both / 1000)
    assert rows_joined([FIRST, AGAIN], {"r": 1}) == 21.0


@pytest.mark.parametrize(
    ("weights", "joined"), [({"r": 3, "s": 1}, 32.5), ({}, 55.0), ({"t": 1}, 55.0), ({"s": 9}, 100)]
)
def test_tables_weigh_as_they_change_and_all_alike_where_none_is_known(
    weights: dict[str, float], joined: float
) -> None:
    assert rows_joined([FIRST, OTHER], weights) == joined


def cost(*accesses: TouchingAccess, mode: Mode = Mode.RING, tuples: float = 1e12) -> TreeCost:
    return TreeCost(accesses, (tuples, tuples), mode, 0.0)


LEAF = TouchingAccess(R, 0.5, ((0, 0.5), (1, 2.0)))
ROOT = TouchingAccess(R_AGAIN, 1.0, ((1, 1.0),))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_tree_takes_its_nodes_its_rows_and_the_tuples_they_touch(mode: Mode) -> None:
    mine = TREE[mode]
    one = mine.step + 2 * mine.node + STEP_ROWS * (0.5 * mine.row + 2.5 * mine.touched)
    many = cost(LEAF, mode=mode)
    assert tree_ms(many, {"r": 1}) == pytest.approx(one / 1000)
    both = mine.step + 2 * mine.node + STEP_ROWS * (1.5 * mine.row + 3.5 * mine.touched)
    assert tree_ms(replace(many, accesses=(LEAF, ROOT)), {}) == pytest.approx(both / 1000)
    assert tuples_touched([LEAF, ROOT], {}) == 3.5


def test_tuples_that_several_rows_touch_are_touched_once() -> None:
    """Of ten tuples all are, of as many as are drawn a share of 1 - 1/e."""
    fixed = TREE[Mode.RING].step + TREE[Mode.RING].node + STEP_ROWS * TREE[Mode.RING].row

    def different(tuples: float) -> float:
        micros = 1000 * tree_ms(cost(ROOT, tuples=tuples), {})
        return (micros - fixed) / TREE[Mode.RING].touched

    assert different(10) == pytest.approx(10)
    assert different(1000) == pytest.approx(1000 * (1 - math.exp(-1)))
    assert different(0) == pytest.approx(0)


def test_there_are_constants_for_every_mode() -> None:
    assert set(times.TREE) == set(Mode)
