"""What decides between both ways: first groups with ties, other constants; and a virtual root."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from impctl.data.schema import LONG
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.extremes import OrderKey
from impctl.engine.jointree.spec import Access, Edge, JoinTree, Link, Mode, Node
from impctl.engine.jointree.tree import Live, Tree
from impctl.engine.linear import Merge, Select
from impctl.engine.topk import Cut, Limit, Top
from impctl.errors import CountBelowZeroError
from impctl.expr.nodes import CompareOp
from impctl.sketch.partition import RangePartition
from tests.support.circuits import Rooted
from tests.support.hand_trees import FRAGMENTS, SUM, Grown, N, compared, grown, node, pair

CHAIN = (
    node(0, "t", "b", "b"),
    node(1, "s", "ab", "a", [(0, Edge.INNER, "b")]),
    node(2, "r", "ag", "g", [(1, Edge.INNER, "a")], argument=True),
)


def first_groups(size: int, nodes: Sequence[Node] = CHAIN) -> Grown:
    """The groups with the greatest COUNT(*), by one column; ties of the last one too."""
    plain = grown(nodes)
    tree = next(iter(plain.rooted.circuit))
    assert isinstance(tree, Tree)
    columns = ((tree.tree.root.key[0], LONG), (N, LONG), (tree.tree.group, LONG))
    order = (OrderKey(N, descending=True, nulls_first=False),)
    top = Top("top0", columns, order, Limit(size, Cut.RANK), 0)
    wires = tuple(-1 - at for at in range(tree.tree.inputs))
    circuit = Circuit([tree, top, Live(tree)], [wires, (0,), (1, 0)])
    return Grown(nodes, Rooted(circuit, Merge([FRAGMENTS] * tree.tree.accesses)), "tree0")


def test_the_last_of_the_first_groups_loses_its_rows_far_below() -> None:
    tree = first_groups(1)
    tree.step(
        t=[((1,), 1, 2), ((2,), 2, 1)],
        s=[((1, 1), 11, 1), ((2, 2), 12, 1), ((3, 2), 13, 1)],
        r=[((1, 7, 0), 21, 1), ((2, 8, 0), 22, 1), ((3, 9, 0), 23, 1)],
    )
    assert tree.sketches == {"t": {1}, "s": {11}, "r": {21}}
    # One copy less, two joins away: now three groups tie, and two come in that nothing touched.
    tree.step(t=[((1,), 1, -1)])
    assert tree.sketches == {"t": {1, 2}, "s": {11, 12, 13}, "r": {21, 22, 23}}
    tree.step(t=[((1,), 1, -1)])
    assert tree.sketches == {"t": {2}, "s": {12, 13}, "r": {22, 23}}
    tree.step(t=[((1,), 3, 5)])
    assert tree.sketches == {"t": {3}, "s": {11}, "r": {21}}


def test_a_group_that_comes_in_untouched_brings_what_it_is_made_of() -> None:
    tree = first_groups(1)
    tree.step(
        t=[((1,), 1, 1)],
        s=[((1, 1), 11, 3), ((2, 1), 12, 2)],
        r=[((1, 7, 0), 21, 1), ((2, 8, 0), 22, 1)],
    )
    assert tree.sketches == {"t": {1}, "s": {11}, "r": {21}}
    # Of r and s only the rows of group 7 are touched: one leaves, the other comes in.
    tree.step(r=[((1, 7, 0), 21, -1)])
    assert tree.sketches == {"t": {1}, "s": {12}, "r": {22}}


def test_a_circuit_goes_on_with_other_constants() -> None:
    tree = pair(having=compared(SUM, CompareOp.GREATER, 5))
    tree.step(s=[((1, 4), 0, 1), ((2, 9), 1, 1)], r=[((1, 7), 0, 1), ((2, 8), 1, 1)])
    assert tree.sketches == {"s": {1}, "r": {1}}
    circuit = tree.rooted.circuit
    ways = [operator for operator in circuit if isinstance(operator, Tree | Select)]
    rows = ways[0].output()
    moved = Select(compared(SUM, CompareOp.GREATER, 3), must_be_sure=False)
    output = circuit.step_past([None, None], {}, {1: moved.turned(rows, ways[1])})
    assert output is not None
    tree.rooted.merge.step(output)
    assert tree.sketches == {"s": {0, 1}, "r": {0, 1}}
    # What the way up left behind was told once already.
    assert [int(counts.max()) for counts in tree.rooted.merge.counts] == [1, 1]


def test_a_group_that_leaves_the_result_without_having_come_is_an_error() -> None:
    tree = Tree(JoinTree("tree0", CHAIN[:1], Mode.RING, (), 1))
    groups = Batch({tree.tree.group: Vector(LONG, np.array([1]))}, np.array([-1]), ())
    with pytest.raises(CountBelowZeroError, match="was not in the result"):
        Live(tree).step(groups)


def virtual(*edges: Edge, bits: bool = False) -> Grown:
    """As many nodes as edges that all hang on a root of their common column."""
    names = "stu"[: len(edges)]
    nodes = [node(at, name, "a", "a", argument=not at) for at, name in enumerate(names)]
    links = tuple(Link(at, edge, ("v.a",)) for at, edge in enumerate(edges))
    nodes.append(Node("v", None, (("v.a", LONG),), ("v.a",), (), links))
    return grown(nodes, None if bits else compared(SUM, CompareOp.GREATER, 10))


def test_a_change_under_a_virtual_root_touches_its_key_alone() -> None:
    tree = virtual(Edge.INNER, Edge.INNER, Edge.INNER)
    tree.step(s=[((1, 3), 1, 1)], t=[((1,), 2, 2)], u=[((1,), 3, 1)])
    assert tree.sketches == {"s": set(), "t": set(), "u": set()}
    # Its own tuple and the root's; the root and all three children flip.
    assert tree.step(u=[((1,), 4, 1)]) == (2, 4, 4)
    assert tree.sketches == {"s": {1}, "t": {2}, "u": {3, 4}}
    assert tree.step(t=[((1,), 2, -2)])[1] == 4
    assert tree.sketches == {"s": set(), "t": set(), "u": set()}
    assert tree.step(t=[((1,), 6, 9)])[1] == 4
    assert tree.sketches == {"s": {1}, "t": {6}, "u": {3, 4}}


def test_a_group_of_a_virtual_root_is_reached_without_being_touched() -> None:
    links = (Link(0, Edge.INNER, ("v.a",)), Link(1, Edge.INNER, ("v.a",)))
    root = Node("v", None, (("v.a", LONG),), ("v.a",), (), links)
    tree = first_groups(1, [node(0, "s", "a", "a"), node(1, "t", "a", "a"), root])
    tree.step(s=[((1,), 1, 3), ((2,), 2, 2)], t=[((1,), 11, 1), ((2,), 12, 1)])
    assert tree.sketches == {"s": {1}, "t": {11}}
    tree.step(s=[((1,), 1, -2)])
    assert tree.sketches == {"s": {2}, "t": {12}}


def test_other_edges_below_a_virtual_root() -> None:
    tree = virtual(Edge.INNER, Edge.LEFT, Edge.ANTI)
    tree.step(s=[((1, 6), 1, 2)])
    assert tree.sketches == {"s": {1}, "t": set(), "u": set()}
    tree.step(t=[((1,), 2, 3)])
    assert tree.sketches == {"s": {1}, "t": {2}, "u": set()}
    tree.step(u=[((1,), 3, 1)])
    assert tree.sketches == {"s": set(), "t": set(), "u": set()}


def test_ranges_of_a_kept_column_need_no_counts() -> None:
    ranges = RangePartition("r", "g", LONG, (2, 4, 6))
    leaf = Node("s", 0, (("s.a", LONG),), ("s.a",), (False,), accesses=(Access(0),))
    kept = (("r.a", LONG), ("r.g", LONG))
    links = (Link(0, Edge.INNER, ("r.a",)),)
    root = Node("r", 1, kept, (), (), links, accesses=(Access(1, ("r.g", ranges)),))
    tree = Tree(JoinTree("tree0", (leaf, root), Mode.BITS, (), 2))
    assert not [keeper for keeper in tree.arrangements() if "r.fragments" in keeper.name]
    told = grown([leaf, root], bits=True)
    told.step(s=[((1,), 0, 1)], r=[((1, 1), 0, 1), ((1, 5), 2, 1), ((2, 7), 3, 1)])
    assert told.sketches == {"s": {0}, "r": {0, 2}}
    told.step(r=[((1, 5), 2, -1), ((1, None), ranges.size - 1, 1)])
    assert told.sketches == {"s": {0}, "r": {0, ranges.size - 1}}
