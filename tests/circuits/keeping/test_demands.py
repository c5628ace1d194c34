"""What operators cost and ask: by hand where a rule is easily got wrong, and against arrays."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from impctl.placement.graph import (
    Demand,
    Graph,
    KindOfChange,
    Mode,
    Node,
    Piece,
    Work,
    chance_of_hit,
    own,
    pinned,
)
from impctl.placement.search import evaluate, per_day, per_day_together
from tests.circuits.keeping.drawn import dag, tree
from tests.circuits.keeping.reference import Exhaustive

KEPT, READ, REBUILT, BOUNDED = Mode
R_AND_S, S_ALONE = (
    KindOfChange(frozenset({"r", "s"}), 1.0),
    KindOfChange(frozenset({"s"}), 1.0),
)


def scan(table: str, keys: float = 0.0, whole: float = 0.0, kinds: int = 1) -> Node:
    return Node(work=Work.SCAN, table=table, keys=(keys,) * kinds, whole=(whole,) * kinds)


def side(name: str, modes: tuple[Mode, ...] = (KEPT, READ, REBUILT), **costs: float) -> Piece:
    """A side with costs that add up to numbers which tell what was paid."""
    usual = {"upkeep": 1.0, "probe": 10.0, "read": 100.0, "build": 1000.0, "stream": 10_000.0}
    return Piece(
        name=name,
        sizes=dict.fromkeys(modes, 0),
        hit=(costs.pop("hit", 1.0),),
        **{key: (cost,) for key, cost in (usual | costs).items()},
    )


def joined(*above: Node, kind: KindOfChange = R_AND_S, **costs: float) -> Graph:
    nodes = (
        scan("r", 3e5, 1e5),
        scan("s", 3e5, 2e5),
        Node(work=Work.JOIN, inputs=(0, 1), pieces=(side("left", **costs), side("right", **costs))),
        *above,
    )
    return Graph(nodes, (kind,))


def cost_of(graph: Graph, *modes: Mode) -> float:
    names = [piece.name for piece in graph.pieces]
    (cost,) = evaluate(graph, dict(zip(names, modes, strict=True))).per_kind
    return cost


def test_a_kept_side_has_upkeep_and_is_probed() -> None:
    assert cost_of(joined(), KEPT, KEPT) == 2 + 20


def test_a_side_that_its_own_table_alone_moves_is_not_probed() -> None:
    assert cost_of(joined(kind=S_ALONE), KEPT, KEPT) == 1 + 10
    # The right side is not asked, so nothing has to be there of it.
    assert cost_of(joined(kind=S_ALONE), KEPT, READ) == 10
    assert cost_of(joined(kind=S_ALONE), KEPT, REBUILT) == 10
    assert cost_of(joined(kind=S_ALONE), REBUILT, KEPT) == 1 + 10 + 1000 + 1e5


def test_a_read_is_paid_by_its_chance_of_a_hit() -> None:
    assert cost_of(joined(hit=0.25), READ, READ) == 2 * 25


def test_a_side_that_is_rebuilt_asks_for_all_rows() -> None:
    assert cost_of(joined(), REBUILT, KEPT) == 1010 + 1e5 + 11


def over_union() -> Graph:
    """A grouping without state over a union of two joins."""
    scans = [scan(table, 0, cost) for table, cost in (("r", 1e6), ("s", 2e6), ("t", 4e6))]
    first = Node(work=Work.JOIN, inputs=(0, 1), pieces=(side("a"), side("b")))
    union = Node(work=Work.ROWS, inputs=(3, 2), delta=(0.5,), whole=(0.25,))
    grouping = Piece(
        name="g", sizes=dict.fromkeys(Mode, 0), upkeep=(3.0,), build=(7.0,), stream=(9.0,)
    )
    nodes = (*scans, first, union, Node(work=Work.KEYED, inputs=(4,), pieces=(grouping,)))
    return Graph(nodes, (R_AND_S,))


def test_all_rows_come_with_the_change() -> None:
    # Both kept sides take in their change and look up the other's, and one is streamed besides.
    changes = 2 + 20 + 0.5
    assert cost_of(over_union(), KEPT, KEPT, KEPT) == changes + 3
    assert cost_of(over_union(), KEPT, KEPT, REBUILT) == changes + 10_000 + 0.25 + 7 + 4e6


def test_every_input_of_a_union_is_asked() -> None:
    """The table `t` does not change, and is read whole all the same."""
    read = [cost_of(over_union(), KEPT, mode, REBUILT) for mode in (READ, REBUILT)]
    for result in read:
        assert result // 1e6 == 4 + 2
    assert cost_of(over_union(), REBUILT, REBUILT, REBUILT) // 1e6 == 4 + 2 + 1


def test_of_a_join_asked_for_all_the_cheaper_side_is_streamed() -> None:
    def asked(left: float, right: float, build: float) -> float:
        pieces = (side("left", stream=left, build=build), side("right", stream=right))
        nodes = (
            scan("r"),
            scan("t"),
            Node(work=Work.JOIN, inputs=(0, 1), pieces=pieces),
            Node(work=Work.KEYED, inputs=(2,), pieces=(Piece(name="g", sizes={REBUILT: 0}),)),
        )
        graph = Graph(nodes, (R_AND_S,))
        return cost_of(graph, REBUILT, KEPT, REBUILT)

    # The left side moves and is the only one: nobody asks it, so it is built only to be passed.
    assert asked(5, 70, 1000) == 10 + 5
    assert asked(5000, 70, 100) == 10 + 70 + 100
    assert asked(150, 70, 100) == 10 + 150


def test_a_side_told_by_a_grouping_asks_it_for_keys() -> None:
    sizes = dict.fromkeys(Mode, 0)
    grouping = Piece(
        name="g",
        sizes=sizes,
        upkeep=(3.0,),
        lookup=(5.0,),
        build=(700.0,),
        stream=(9000.0,),
        read=(40.0,),
    )
    told = Piece(name="told", sizes={READ: 0}, read=(0.5,), reads_below=True)
    nodes = (
        scan("s", 0, 1e6),
        Node(work=Work.KEYED, inputs=(0,), pieces=(grouping,)),
        Node(work=Work.ROWS, inputs=(1,), keys=(0.25,), whole=(0.5,)),
        scan("r"),
        Node(work=Work.JOIN, inputs=(2, 3), pieces=(told, Piece(name="o", sizes={KEPT: 0}))),
    )
    graph = Graph(nodes, (R_AND_S,))
    assert cost_of(graph, KEPT, READ, KEPT) == 3 + 5 + 0.25 + 0.5
    assert cost_of(graph, READ, READ, KEPT) == 40 + 40 + 0.25 + 0.5
    assert cost_of(graph, REBUILT, READ, KEPT) == 700 + 1e6 + 0.25 + 0.5


def test_a_bounded_piece_is_refilled() -> None:
    piece = Piece(name="top", sizes=dict.fromkeys(Mode, 0), upkeep=(3.0,), refill=(20.0,))
    graph = Graph((scan("r"), Node(work=Work.KEYED, inputs=(0,), pieces=(piece,))), (R_AND_S,))
    assert [cost_of(graph, mode) for mode in (KEPT, BOUNDED)] == [3, 23]


def test_keys_that_come_with_the_step_hit_nothing() -> None:
    """New orders with their lines: the lines ask for orders that are not there before the step."""
    assert chance_of_hit(1000, 1000, 1.0) == 0
    assert chance_of_hit(1000, 999, 1.0) == 1
    assert chance_of_hit(0, 5, 1.0) == 0
    assert chance_of_hit(2, 0, 0.5) == pytest.approx(0.75)
    assert chance_of_hit(3, 1, 0.5) == pytest.approx(0.75)
    assert chance_of_hit(0.05, 0, 1.0) == pytest.approx(0.05)


def test_a_shared_flow_is_paid_once_for_the_most_that_is_asked() -> None:
    piece = Piece(name="g", sizes={KEPT: 0, REBUILT: 0}, build=(1.0,), upkeep=(2.0,))
    nodes = (
        scan("r", 0, 100.0),
        Node(work=Work.ROWS, inputs=(0,), delta=(10.0,), whole=(30.0,)),
        Node(work=Work.KEYED, inputs=(1,), pieces=(piece,)),
        Node(work=Work.ROWS, inputs=(1, 2)),
    )
    graph = Graph(nodes, (R_AND_S,))
    assert graph.shared == (1,)
    assert cost_of(graph, KEPT) == 10 + 2
    assert cost_of(graph, REBUILT) == 10 + 30 + 100 + 1


def test_queries_share_the_longest_read_of_the_same_tables() -> None:
    def query(read: float, source: tuple[str, ...]) -> Graph:
        right = Piece(name="right", sizes={READ: 0}, read=(read,), source=source)
        sides = (Piece(name="left", sizes={KEPT: 0}, upkeep=(1.0,)), right)
        join = Node(work=Work.JOIN, inputs=(0, 1), pieces=sides)
        return Graph((scan("r"), scan("t"), join), (KindOfChange(frozenset({"r"}), 2.0),))

    modes = {"left": KEPT, "right": READ}
    graphs = [query(30, ("t",)), query(50, ("t",)), query(7, ("t", "u"))]
    assert [per_day(graph, modes) for graph in graphs] == [62, 102, 16]
    assert per_day_together(graphs, [modes] * 3) == 2 * (3 + 50 + 7)
    assert per_day_together([query(30, ()), query(50, ())], [modes] * 2) == 2 * (2 + 80)
    assert per_day_together([], []) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_the_evaluator_says_what_the_arrays_say(seed: int) -> None:
    random = Random(seed)
    for graph in (tree(random), dag(random)):
        every = Exhaustive(graph)
        for at in random.choices(range(len(every.modes)), k=20):
            modes = every.named(at)
            assert graph.bytes_of(modes) == every.bytes[at]
            assert per_day(graph, modes) == pytest.approx(every.cost[at], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_more_is_never_cheaper_and_never_asks_for_less(seed: int) -> None:
    graph = tree(Random(seed))
    for at, node in enumerate(graph.nodes):
        for kind in range(len(graph.kinds)):
            active = [graph.active[wire][kind] for wire in node.inputs or (at,)]
            modes = [Random(seed).choice(piece.modes) for piece in node.pieces]
            result = [own(node, active, modes, kind, demand) for demand in Demand]
            for less, more in pairwise(result):
                assert less.cost <= more.cost
                assert all(one <= other for one, other in zip(less.asks, more.asks, strict=True))


def test_what_is_no_graph_is_refused() -> None:
    kinds = (R_AND_S,)
    piece = Piece(name="p", sizes={KEPT: 1})
    bad = (
        (Node(work=Work.ROWS, inputs=(0,)),),
        (scan("r"), Node(work=Work.ROWS)),
        (scan("r"), Node(work=Work.JOIN, inputs=(0,), pieces=(piece, piece))),
        (scan("r"), Node(work=Work.KEYED, inputs=(0,))),
        (scan("r"), Node(work=Work.JOIN, inputs=(0, 0), pieces=(piece, piece))),
        (scan("r"), Node(work=Work.KEYED, inputs=(0,), pieces=(Piece(name="p", sizes={}),))),
        (scan("r"), Node(work=Work.ROWS, inputs=(0,), delta=(1.0, 2.0))),
    )
    for nodes in bad:
        with pytest.raises(ValueError, match=r"node|modes|name"):
            Graph(nodes, kinds)
    sides = (side("l", (BOUNDED,)), side("r"))
    with pytest.raises(ValueError, match="modes bounded"):
        Graph((scan("r"), Node(work=Work.JOIN, inputs=(0, 0), pieces=sides)), kinds)


def test_a_pinned_piece_has_one_mode() -> None:
    graph = pinned(joined(), {"left": READ})
    assert [piece.modes for piece in graph.pieces] == [(READ,), (KEPT, READ, REBUILT)]
    with pytest.raises(ValueError, match="left cannot be bounded"):
        pinned(joined(), {"left": BOUNDED})
