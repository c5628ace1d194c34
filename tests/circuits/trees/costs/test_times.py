"""Times of steps counted by hand, from what changed rows come to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from impctl.compile.jointree.cost import (
    INDEX,
    STEP_ROWS,
    TREE,
    JoinedAccess,
    TouchingAccess,
    TreeCost,
    index_ms,
    rows_joined,
    tree_ms,
    tuples_touched,
)
from impctl.engine.jointree.spec import Mode
from impctl.plan.nodes import Scan

R, R_AGAIN, S = Scan("r#1", "r", ()), Scan("r#2", "r", ()), Scan("s#1", "s", ())
FIRST = JoinedAccess(R, 0.5, 2, 3.0, 7.0)
AGAIN = JoinedAccess(R_AGAIN, 1.0, 1, 0.0, 11.0)
OTHER = JoinedAccess(S, 1.0, 1, 0.0, 100.0)


def cost(*accesses: TouchingAccess, mode: Mode = Mode.RING, tuples: float = 1e12) -> TreeCost:
    return TreeCost(accesses, (tuples, tuples), mode, 0.0)


LEAF = TouchingAccess(R, 0.5, ((0, 0.5), (1, 2.0)), 4.0)
ROOT = TouchingAccess(R_AGAIN, 1.0, ((1, 1.0),), 0.0)


@pytest.mark.parametrize("mode", list(Mode))
def test_an_index_join_takes_its_steps_what_is_joined_and_the_groups_that_change(
    mode: Mode,
) -> None:
    mine = INDEX[mode]
    one = mine.step + 2 * mine.join + STEP_ROWS * (3.0 * mine.kept + 7.0 * mine.last)
    some = one + mine.group * STEP_ROWS * 2.0
    assert index_ms([FIRST], cost(LEAF, mode=mode), {"r": 1}) == pytest.approx(some / 1000)
    few = one + mine.group * 5.0
    tree = cost(LEAF, mode=mode, tuples=5.0)
    assert index_ms([FIRST], tree, {"r": 1}) == pytest.approx(few / 1000)


def test_no_more_groups_change_than_rows_are_joined() -> None:
    mine = INDEX[Mode.RING]
    rare = replace(FIRST, kept=0.0, last=0.01)
    result = mine.step + 2 * mine.join + STEP_ROWS * 0.01 * (mine.last + mine.group)
    assert index_ms([rare], cost(LEAF), {"r": 1}) == pytest.approx(result / 1000)


def test_a_changed_row_enters_every_access_of_its_table() -> None:
    mine = INDEX[Mode.BITS]
    both = mine.step + 3 * mine.join + STEP_ROWS * (3.0 * mine.kept + 18.0 * mine.last)
    both += STEP_ROWS * 21.0 * mine.again
    result = index_ms([FIRST, AGAIN], cost(LEAF, ROOT, mode=Mode.BITS), {"r": 1})
    assert result == pytest.approx(both / 1000)
    assert rows_joined([FIRST, AGAIN], {"r": 1}) == 21.0


@pytest.mark.parametrize(
    ("weights", "joined"), [({"r": 3, "s": 1}, 32.5), ({}, 55.0), ({"t": 1}, 55.0), ({"s": 9}, 100)]
)
def test_tables_weigh_as_they_change_and_all_alike_where_none_is_known(
    weights: dict[str, float], joined: float
) -> None:
    assert rows_joined([FIRST, OTHER], weights) == joined


@pytest.mark.parametrize("mode", list(Mode))
def test_a_tree_takes_its_nodes_the_tuples_it_touches_and_the_rows_it_wakes(mode: Mode) -> None:
    mine = TREE[mode]
    one = mine.step + 2 * mine.node + STEP_ROWS * (2.5 * mine.touched + 4.0 * mine.woken)
    assert tree_ms(cost(LEAF, mode=mode), {"r": 1}) == pytest.approx(one / 1000)
    both = one + STEP_ROWS * mine.touched
    assert tree_ms(cost(LEAF, ROOT, mode=mode), {}) == pytest.approx(both / 1000)
    assert tuples_touched([LEAF, ROOT], {}) == 3.5


def test_tuples_that_several_rows_touch_are_touched_once() -> None:
    """Of ten tuples all are, of as many as are drawn a share of 1 - 1/e."""
    fixed = TREE[Mode.RING].step + 2 * TREE[Mode.RING].node

    def different(tuples: float) -> float:
        micros = 1000 * tree_ms(cost(ROOT, tuples=tuples), {})
        return (micros - fixed) / TREE[Mode.RING].touched

    assert different(10) == pytest.approx(10)
    assert different(1000) == pytest.approx(1000 * (1 - math.exp(-1)))
    assert different(0) == pytest.approx(0)


def test_there_are_constants_for_every_mode() -> None:
    assert set(TREE) == set(INDEX) == set(Mode)
