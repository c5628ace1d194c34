"""Mistakes that are easily made on the way up or down, each met head-on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from impctl.data import keys as data_keys
from impctl.engine.jointree.spec import Edge
from impctl.engine.jointree.tree import Tree
from impctl.errors import CountBelowZeroError, NotExactError
from impctl.expr.nodes import CompareOp
from tests.support.hand_trees import ANY, SUM, Grown, N, Rows, compared, grown, node, pair


def groups(tree: Grown) -> dict[Any, dict[str, Any]]:
    """(n, sum) per group of one column."""
    operator = next(iter(tree.rooted.circuit))
    assert isinstance(operator, Tree)
    batch = operator.output()
    if not len(batch):
        return {}
    (key,) = operator.tree.root.key
    lists = [batch.columns[name].to_arrow().to_pylist() for name in (key, N, SUM)]
    return {group: {N: n, SUM: total} for group, n, total in zip(*lists, strict=True)}


TWO_BELOW = (
    node(0, "s", "a", "a"),
    node(1, "t", "a", "a"),
    node(2, "r", "a", "a", [(0, Edge.INNER, "a"), (1, Edge.INNER, "a")]),
)


def test_a_changed_key_has_its_old_value_before_also_for_a_tuple_that_is_new() -> None:
    tree = pair()
    tree.step(s=[((1, 10), 0, 1)], r=[((1, 7), 0, 1)])
    # Both sides of one key at once: the new row of r meets the new s, the old row its change.
    tree.step(s=[((1, 5), 0, 2)], r=[((1, 7), 1, 1), ((1, 8), 2, 1)])
    assert groups(tree) == {7: {N: 6, SUM: 40}, 8: {N: 3, SUM: 20}}


def test_a_tuple_reached_through_two_children_counts_once() -> None:
    nodes = [
        node(0, "s", "a", "a", argument=True),
        node(1, "t", "b", "b"),
        node(2, "r", "abg", "g", [(0, Edge.INNER, "a"), (1, Edge.INNER, "b")]),
    ]
    tree = grown(nodes, ANY)
    tree.step(r=[((1, 2, 7), 0, 1)])
    assert tree.step(s=[((1, 5), 0, 1)], t=[((2,), 0, 1)]) == (3, 3, 3)
    assert groups(tree) == {7: {N: 1, SUM: 5}}


@pytest.mark.parametrize("edge", [Edge.SEMI, Edge.ANTI])
def test_existence_multiplies_by_one(edge: Edge) -> None:
    tree = pair(edge, having=compared(N, CompareOp.EQUAL, 2))
    at = 1 if edge is Edge.SEMI else 2
    tree.step(s=[((1,), 0, 3), ((1,), 1, 4)], r=[((at, 7, 5), 0, 2)])
    assert groups(tree) == {7: {N: 2, SUM: 10}}
    assert tree.sketches == {"r": {0}, "s": {0, 1} if edge is Edge.SEMI else set()}
    if edge is Edge.ANTI:
        keepers = {keeper.name: keeper for keeper in tree.rooted.arrangements()}
        assert keepers["tree0.s.live"].bytes_held == 0  # type: ignore[attr-defined]  # an arrangement
    # Another copy crosses no zero: nobody above looks.
    assert tree.step(s=[((1,), 2, 1)])[0] == 1


@pytest.mark.parametrize("edge", [Edge.LEFT, Edge.ANTI])
def test_null_has_no_partner_but_is_alive(edge: Edge) -> None:
    is_seen = edge is Edge.LEFT
    tree = pair(edge)
    s: Rows = [((None, 1), 0, 1)] if is_seen else [((None,), 0, 1)]
    tree.step(s=s, r=[((None, 7), 3, 1) if is_seen else ((None, 7, 1), 3, 1)])
    assert tree.sketches == {"s": set(), "r": {3}}
    assert groups(tree)[7][N] == 1


@pytest.mark.parametrize("edge", [Edge.INNER, Edge.SEMI])
def test_null_without_a_partner_is_dropped(edge: Edge) -> None:
    nodes = [node(0, "s", "a", "a"), node(1, "r", "a", "", [(0, edge, "a")])]
    tree = grown(nodes, bits=True)
    tree.step(s=[((None,), 0, 1)], r=[((None,), 0, 1), ((1,), 1, 1)])
    assert tree.sketches == {"s": set(), "r": set()}
    # Rows that were never kept go without a word.
    tree.step(s=[((None,), 0, -1)], r=[((None,), 0, -1)])


def test_null_is_a_value_where_the_key_compares_it_as_one() -> None:
    tree = pair(safe=True)
    tree.step(s=[((None, 1), 4, 1)], r=[((None, 7), 3, 1)])
    assert tree.sketches == {"s": {4}, "r": {3}}


def test_a_left_key_is_wanted_before_it_has_rows() -> None:
    tree = pair(Edge.LEFT)
    tree.step(r=[((1, 7), 0, 1)])
    assert tree.sketches == {"s": set(), "r": {0}}
    tree.step(s=[((1, 5), 4, 1)])
    assert tree.sketches == {"s": {4}, "r": {0}}
    assert groups(tree) == {7: {N: 1, SUM: 5}}
    tree.step(s=[((1, 5), 4, -1)])
    assert groups(tree) == {7: {N: 1, SUM: None}}
    assert tree.sketches == {"s": set(), "r": {0}}


def test_a_null_before_a_key_is_not_taken_for_its_wish() -> None:
    nodes = [node(0, "s", "a", "a"), node(1, "r", "a", "a", [(0, Edge.LEFT, "a")])]
    tree = grown(nodes, ANY)
    # By its code it stands behind NULL.
    late = 2**62
    tree.step(s=[((late,), 4, 1)], r=[((None,), 1, 1)])
    assert tree.sketches == {"s": set(), "r": {1}}
    tree.step(r=[((None,), 1, -1), ((late,), 2, 1)])
    assert tree.sketches == {"s": {4}, "r": {2}}


def test_a_tuple_that_flips_and_moves_tells_its_old_set_and_the_crossings() -> None:
    tree = pair(having=compared(N, CompareOp.GREATER, 1))
    tree.step(s=[((1, 1), 0, 1), ((1, 1), 1, 1)], r=[((1, 7), 5, 1)])
    assert tree.sketch("r") == {5}
    # It leaves the result, and fragment 5, at once; then comes back from 6 into 8.
    tree.step(r=[((1, 7), 5, -1), ((1, 7), 6, 1)], s=[((1, 1), 1, -1)])
    assert tree.sketches == {"s": set(), "r": set()}
    tree.step(r=[((1, 7), 6, -1), ((1, 7), 8, 1)], s=[((1, 1), 2, 1)])
    assert tree.sketches == {"s": {0, 2}, "r": {8}}


def test_an_update_of_the_sketched_column_alone_moves_fragments() -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1)], r=[((1, 7), 5, 1)])
    assert tree.step(s=[((1, 1), 0, -1), ((1, 1), 9, 1)])[1:] == (0, 2)
    assert tree.sketches == {"s": {9}, "r": {5}}


def test_a_group_that_vanishes_and_comes_back_in_one_batch_keeps_its_number() -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1), ((2, 1), 1, 1)], r=[((1, 7), 5, 1)])
    tree.step(r=[((1, 7), 5, -1), ((2, 7), 6, 1)])
    assert tree.sketches == {"s": {1}, "r": {6}}


@pytest.mark.slow
def test_a_group_keeps_its_number_while_dead_tuples_refer_to_it() -> None:
    tree = pair(having=compared(N, CompareOp.GREATER, 1))
    tree.step(s=[((2, 1), 2, 1), ((3, 1), 3, 1)], r=[((2, 7), 12, 1), ((3, 7), 13, 1)])
    assert tree.sketches == {"s": {2, 3}, "r": {12, 13}}
    # The group dies with its tuples still there, for so long that runs merge.
    tree.step(s=[((2, 1), 2, -1), ((3, 1), 3, -1)])
    for weight in (1, -1):
        for at in range(40):
            tree.step(s=[((9, 1), 0, weight)], r=[((9, 100 + at), 0, weight)])
    assert tree.sketches == {"s": set(), "r": set()}
    # The second tuple makes the group pass; the first is reached by the group's number alone.
    tree.step(s=[((2, 1), 2, 1)])
    tree.step(s=[((3, 1), 3, 1)])
    assert tree.sketches == {"s": {2, 3}, "r": {12, 13}}


def test_one_batch_in_both_nodes_of_a_self_join() -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1)], r=[((1, 7), 0, 1)])
    both = [((1, 1), 2, 1), ((1, 1), 0, -1)]
    tree.step(s=both, r=[((1, 7), 2, 1), ((1, 7), 0, -1)])
    assert tree.sketches == {"s": {2}, "r": {2}}
    assert groups(tree) == {7: {N: 1, SUM: 1}}


def test_fragments_of_a_dead_tuple_keep_counting() -> None:
    tree = pair()
    tree.step(r=[((1, 7), 3, 1)])
    tree.step(r=[((1, 7), 4, 1)])
    tree.step(r=[((1, 7), 3, -1)])
    tree.step(s=[((1, 1), 0, 1)])
    assert tree.sketch("r") == {4}


def test_a_group_leaves_where_growing_makes_it_fail() -> None:
    tree = pair(having=compared(SUM, CompareOp.LESS, 10))
    tree.step(s=[((1, 4), 0, 1)], r=[((1, 7), 0, 1), ((1, 8), 1, 1), ((1, 8), 2, 1)])
    assert tree.sketches == {"s": {0}, "r": {0, 1, 2}}
    tree.step(s=[((1, 3), 1, 1)])
    assert tree.sketches == {"s": {0, 1}, "r": {0}}
    tree.step(s=[((1, 3), 1, 1)])
    assert tree.sketches == {"s": set(), "r": set()}


def test_everything_goes_and_comes_again() -> None:
    tree = pair()
    s: Rows = [((at % 5, at), at % 7, 1) for at in range(60)]
    r: Rows = [((at % 5, at % 3), at % 9, 1) for at in range(60)]
    tree.step(s=s, r=r)
    before, told = tree.sketches, groups(tree)
    tree.step(s=[(v, f, -w) for v, f, w in s], r=[(v, f, -w) for v, f, w in r])
    assert groups(tree) == {}
    assert tree.sketches == {"s": set(), "r": set()}
    tree.step(s=s, r=r)
    assert (tree.sketches, groups(tree)) == (before, told)


def test_keys_that_share_a_code_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    real = data_keys.key_codes

    def crowded(columns: Any, length: int) -> Any:
        codes = real(columns, length)
        return codes if len(columns) < 2 else codes % np.int64(3)

    trees = (f"engine.trees.{name}" for name in ("node", "keyed", "way_down"))
    for module in ("data.keys", "engine.row_index", *trees):
        monkeypatch.setattr(f"impctl.{module}.key_codes", crowded)
    nodes = [
        node(0, "s", "ab", "ab", argument=True),
        node(1, "r", "abg", "g", [(0, Edge.INNER, "ab")]),
    ]
    tree = grown(nodes, ANY)
    cells = [(a, b) for a in range(4) for b in range(4)]
    tree.step(s=[((a, b, 4 * a + b), a, 1) for a, b in cells])
    tree.step(r=[((a, b, 4 * a + b), b, 1) for a, b in cells])
    assert groups(tree) == {4 * a + b: {N: 1, SUM: 4 * a + b} for a, b in cells}
    tree.step(s=[((a, b, 4 * a + b), a, -1) for a, b in cells if a != 2])
    assert tree.sketches == {"s": {2}, "r": {0, 1, 2, 3}}


@pytest.mark.parametrize(("of_s", "of_t"), [(2**31, 2**31), (2**33, 2**33), (2**61, 2**61)])
def test_more_joined_rows_than_can_be_counted_stop_the_step(of_s: int, of_t: int) -> None:
    tree = grown(TWO_BELOW, ANY)
    least = (2**62 - 1) // of_s
    tree.step(s=[((1,), 0, of_s)], t=[((1,), 0, least)], r=[((1,), 0, 1)])
    assert tree.sketch("r") == {0}
    # The product of the second pair is 0 in 64 bits.
    with pytest.raises(NotExactError) as error:
        tree.step(t=[((1,), 0, of_t - least)])
    assert error.value.code == "count_too_large"


def test_many_rows_without_a_partner_are_not_too_many() -> None:
    tree = grown(TWO_BELOW, ANY)
    tree.step(s=[((1,), 0, 2**40)], r=[((1,), 0, 2**40)])
    assert tree.sketches == {"s": set(), "t": set(), "r": set()}


def test_groups_that_add_up_to_too_many_stop_the_step() -> None:
    nodes = [node(0, "s", "a", "a"), node(1, "r", "ag", "g", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, ANY)
    s: Rows = [((at,), 0, 2**30) for at in range(4)]
    with pytest.raises(NotExactError, match="2\\^62"):
        tree.step(s=s, r=[((at, 7), 0, 2**31) for at in range(4)])


@pytest.mark.parametrize("where", ["r", "s"])
def test_rows_that_were_never_there_are_an_error_that_names_the_node(where: str) -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1)], r=[((1, 7), 0, 1)])
    gone: Rows = [((1, 1) if where == "s" else (1, 7), 0, -2)]
    with pytest.raises(CountBelowZeroError, match=f"`{where}`.*never contained"):
        tree.step(**{where: gone})


def test_rows_that_cancel_in_their_tuple_but_not_in_their_ranges_are_an_error() -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1)], r=[((1, 7), 0, 1)])
    assert tree.step(r=[((5, 7), 3, 1), ((5, 7), 3, -1)]) == (1, 0, 0)
    with pytest.raises(CountBelowZeroError, match="from a range"):
        tree.step(r=[((5, 7), 3, 1), ((5, 7), 4, -1)], s=[((1, 1), 0, 1)])


def test_without_group_columns_there_is_one_group_even_of_nothing() -> None:
    nodes = [node(0, "s", "a", "a"), node(1, "r", "a", "", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, compared(N, CompareOp.LESS, 2))
    tree.step(s=[((1,), 0, 1)], r=[((1,), 4, 1)])
    assert tree.sketches == {"s": {0}, "r": {4}}
    tree.step(r=[((1,), 5, 1)])
    assert tree.sketches == {"s": set(), "r": set()}
    tree.step(s=[((1,), 0, -1)])
    assert tree.sketches == {"s": set(), "r": set()}
    tree.step(s=[((1,), 1, 1)], r=[((1,), 5, -1)])
    assert tree.sketches == {"s": {1}, "r": {4}}
