"""What is no tree is refused with the reason, and what a tree cannot tell by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from impctl.data.schema import DOUBLE, LONG, STRING
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum
from impctl.engine.extremes import Extreme, First
from impctl.engine.jointree.spec import Access, Edge, JoinTree, Link, Mode, Node
from impctl.engine.jointree.tree import Tree
from impctl.errors import InvariantError, UnsupportedError

X = Count("x", 0)
SUM = AggregateColumn("sum", LONG, ExactSum("x", 0, LONG), X)
LEAF = Node("s", 0, (("s.a", LONG),), ("s.a",), (False,), (), (("x", LONG),), (Access(0),))
ROOT = Node("r", 1, (("r.a", LONG),), ("r.a",), (), (Link(0, Edge.INNER, ("r.a",)),))
GOOD = JoinTree("tree0", (LEAF, ROOT), Mode.RING, (SUM,), 1)


def with_leaf(**changes: object) -> JoinTree:
    return replace(GOOD, nodes=(replace(LEAF, **changes), ROOT))  # type: ignore[arg-type]


def with_root(**changes: object) -> JoinTree:
    return replace(GOOD, nodes=(LEAF, replace(ROOT, **changes)))  # type: ignore[arg-type]


def test_a_tree_is_taken() -> None:
    assert Tree(GOOD).tree == GOOD
    assert GOOD.inputs == 2
    assert [edge[0].name + edge[2].name for edge in GOOD.edges()] == ["rs"]


NO_TREES: dict[str, Callable[[], JoinTree]] = {
    "every node but the root is the child": lambda: with_root(links=()),
    "every input belongs to one node": lambda: with_leaf(input=1),
    "two nodes have one name": lambda: with_leaf(name="r"),
    "every access belongs to one node": lambda: replace(GOOD, accesses=2),
    "only a root is virtual": lambda: replace(
        GOOD, nodes=(replace(LEAF, input=None), replace(ROOT, input=0))
    ),
    "does not keep its key": lambda: with_leaf(key=("s.b",)),
    "does not say what NULL is": lambda: with_leaf(null_safe=()),
    "stands before its child": lambda: replace(
        GOOD, nodes=(replace(ROOT, null_safe=(False,)), replace(LEAF, links=()))
    ),
    "have different keys": lambda: with_root(links=(Link(0, Edge.INNER, ()),)),
    "does not keep a key of its child": lambda: with_root(links=(Link(0, Edge.INNER, ("r.b",)),)),
    "a virtual root has an inner edge": lambda: with_root(
        input=None, links=(Link(0, Edge.LEFT, ("r.a",)),)
    ),
    "a child of a virtual root has all its columns": lambda: with_root(
        input=None, kept=(("r.a", LONG), ("r.b", LONG)), key=("r.a", "r.b")
    ),
    "nothing but its group columns": lambda: with_root(input=None, key=()),
    "does not keep the column of its ranges": lambda: with_leaf(
        accesses=(Access(0, ("s.b", None)),)  # type: ignore[arg-type]  # not even looked at
    ),
    "every argument belongs to one node": lambda: with_leaf(arguments=()),
    "bits have no columns": lambda: replace(GOOD, mode=Mode.BITS),
    "is seen above it": lambda: with_root(links=(Link(0, Edge.SEMI, ("r.a",)),)),
    "an extreme has a rank": lambda: replace(
        with_leaf(arguments=(("x", STRING),)),
        columns=(AggregateColumn("min", STRING, Extreme("x", 0, False), X),),
    ),
    "stands beside the count": lambda: replace(
        GOOD, columns=(AggregateColumn("min", LONG, Extreme("x", 0, False), None),)
    ),
}


@pytest.mark.parametrize("reason", NO_TREES)
def test_what_is_no_tree_is_refused(reason: str) -> None:
    with pytest.raises(InvariantError, match=reason):
        Tree(NO_TREES[reason]())


def test_a_call_that_a_tree_cannot_keep_is_refused_by_name() -> None:
    part = Extreme("x", 0, False, 10)
    tree = replace(GOOD, columns=(SUM, AggregateColumn("y", LONG, part, X)))
    with pytest.raises(UnsupportedError, match="a bounded MIN or MAX") as error:
        Tree(tree)
    assert error.value.code == "no_join_tree"


ONCE = replace(
    GOOD,
    nodes=(replace(LEAF, arguments=()), ROOT),
    once=(("x", "r.a"),),
)


def test_an_argument_that_counts_once_is_a_column_of_the_root() -> None:
    assert [column.kept for column in Tree(ONCE).nodes[-1].once] == ["r.a"]
    with pytest.raises(InvariantError, match="does not keep a column whose values count once"):
        Tree(replace(ONCE, once=(("x", "s.a"),)))
    with pytest.raises(InvariantError, match="a virtual root has no values that count once"):
        Tree(replace(ONCE, nodes=(replace(LEAF, arguments=()), replace(ROOT, input=None))))
    with pytest.raises(InvariantError, match="every argument belongs to one node"):
        Tree(replace(GOOD, once=(("x", "r.a"),)))
    spread = AggregateColumn("y", LONG, Extreme("x", 0, False), X)
    with pytest.raises(InvariantError, match="is counted or summed up exactly"):
        Tree(replace(ONCE, columns=(SUM, spread)))


FIRST = AggregateColumn("first", STRING, First("k", "v", 1, 2, False), Count("k", 1))
TEXT_ROOT = replace(ROOT, kept=(("r.a", LONG), ("r.k", LONG), ("r.v", STRING)))
ORDERED = replace(
    GOOD,
    nodes=(LEAF, TEXT_ROOT),
    columns=(SUM, FIRST),
    ordered=(("k", "r.k"), ("v", "r.v")),
)
NOT_ORDERED: dict[str, Callable[[], JoinTree]] = {
    "the first values of a group are of columns that are ordered": lambda: replace(
        ORDERED, ordered=(("k", "r.k"),)
    ),
    "does not keep a column that is ordered": lambda: replace(
        ORDERED, ordered=(("k", "s.a"), ("v", "r.v"))
    ),
    "a virtual root has no values that are ordered": lambda: replace(
        ORDERED,
        nodes=(LEAF, replace(ROOT, input=None)),
        columns=(SUM, replace(FIRST, type=LONG)),
        ordered=(("k", "r.a"), ("v", "r.a")),
    ),
    "what is ordered alone is only counted": lambda: replace(
        ORDERED, columns=(SUM, FIRST, AggregateColumn("k", LONG, ExactSum("k", 1, LONG), None))
    ),
    "every argument belongs to one node": lambda: replace(ORDERED, columns=(FIRST,)),
    "exactly what is kept": lambda: replace(
        ORDERED, nodes=(LEAF, replace(TEXT_ROOT, kept=(*TEXT_ROOT.kept[:2], ("r.v", LONG))))
    ),
    "a first value is": lambda: replace(
        ORDERED,
        nodes=(LEAF, replace(TEXT_ROOT, kept=(*TEXT_ROOT.kept[:2], ("r.v", DOUBLE)))),
        columns=(SUM, replace(FIRST, type=DOUBLE)),
    ),
}


@pytest.mark.parametrize("reason", NOT_ORDERED)
def test_what_is_ordered_is_a_column_of_the_root(reason: str) -> None:
    assert Tree(ORDERED).tree == ORDERED
    with pytest.raises(InvariantError, match=reason):
        Tree(NOT_ORDERED[reason]())


def test_of_an_argument_that_is_ordered_something_else_may_be_asked_too() -> None:
    (root,) = (one for one in Tree(ORDERED).nodes if one.is_root)
    assert root.ordered is not None
    assert root.ordered.counts == (Count("k", 1),)
    kept = replace(TEXT_ROOT, arguments=(("k", LONG),))
    (root,) = (one for one in Tree(replace(ORDERED, nodes=(LEAF, kept))).nodes if one.is_root)
    assert root.ordered is not None
    assert root.ordered.counts == ()
