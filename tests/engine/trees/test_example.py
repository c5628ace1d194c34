"""The example of a path of three by hand, with its work counted: the numbers are the same on every
machine."""

from __future__ import annotations

import pytest

from impctl.engine.jointree.spec import Edge
from impctl.expr.nodes import CompareOp
from tests.support.hand_trees import SUM, Grown, compared, grown, node


@pytest.fixture
def path() -> Grown:
    """r1 and r3 at both ends of r2, GROUP BY r2.g HAVING SUM(r3.x) > 20."""
    nodes = [
        node(0, "r1", "b", "b"),
        node(1, "r3", "c", "c", argument=True),
        node(2, "r2", "bcg", "g", [(0, Edge.INNER, "b"), (1, Edge.INNER, "c")]),
    ]
    tree = grown(nodes, compared(SUM, CompareOp.GREATER, 20))
    tree.step(
        r1=[((1,), 0, 1), ((1,), 1, 1), ((2,), 2, 1)],
        r2=[((1, 10, 7), 0, 1), ((1, 20, 7), 1, 1), ((2, 10, 8), 2, 1)],
        r3=[((10, 5), 0, 1), ((10, 7), 1, 1)],
    )
    return tree


def test_rows_behind_surviving_groups_are_told(path: Grown) -> None:
    assert path.sketches == {"r1": {0, 1}, "r2": {0}, "r3": {0, 1}}


def test_a_group_that_comes_to_pass_tells_what_it_is_made_of(path: Grown) -> None:
    # Key 2 of r1 and one tuple of r2; key 10 of r3 is wanted once more, which flips nothing.
    assert path.step(r1=[((2,), 3, 1)]) == (2, 2, 3)
    assert path.sketches == {"r1": {0, 1, 2, 3}, "r2": {0, 2}, "r3": {0, 1}}


def test_what_came_goes_again(path: Grown) -> None:
    path.step(r1=[((2,), 3, 1)])
    assert path.step(r1=[((2,), 3, -1)]) == (2, 2, 3)
    assert path.sketches == {"r1": {0, 1}, "r2": {0}, "r3": {0, 1}}


def test_a_row_that_finds_nobody_touches_itself_alone(path: Grown) -> None:
    assert path.step(r1=[((5,), 9, 1)]) == (1, 0, 0)
    assert path.step(r3=[((99, 1), 9, 1)]) == (1, 0, 0)


@pytest.mark.parametrize("partners", [1, 10, 100])
def test_touched_does_not_grow_with_the_joined_rows(partners: int) -> None:
    nodes = [
        node(0, "s", "a", "a", argument=True),
        node(1, "r", "a", "a", [(0, Edge.INNER, "a")]),
    ]
    tree = grown(nodes, compared(SUM, CompareOp.GREATER, 0))
    copies = [((1,), at % 8, 1) for at in range(partners)]
    tree.step(r=copies, s=[((1, 1), at % 8, 1) for at in range(partners)])
    assert tree.step(s=[((1, 5), 0, 1)]) == (2, 0, 0)


def test_a_hub_of_bits_is_touched_only_where_it_comes_or_goes() -> None:
    hub = 1000
    nodes = [
        node(0, "s", "a", "a"),
        node(1, "r", "ab", "b", [(0, Edge.INNER, "a")]),
    ]
    tree = grown(nodes, bits=True)
    tree.step(r=[((1, at), at % 8, 1) for at in range(hub)])
    assert tree.step(s=[((1,), 0, 1)]) == (hub + 1, hub + 1, hub + 1)
    assert tree.step(s=[((1,), 1, 1)]) == (1, 0, 1)
    assert tree.step(s=[((1,), 0, -1)]) == (1, 0, 1)
    assert tree.step(s=[((1,), 1, -1)]) == (hub + 1, hub + 1, hub + 1)
