"""Graphs of compiled circuits: names, what may be read, what operators cost and ask."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from impctl.compile.flows import SideChoice, SideFacts, StoredChoices, Strategy
from impctl.costs import STATE, StateTimes
from impctl.placement.graph import (
    Bounded,
    CostNode,
    Demand,
    Graph,
    KindOfChange,
    Piece,
    PieceMode,
    Work,
    chance_of_hit,
    graph_of,
    own,
    restricted,
)
from impctl.placement.search import conversion_ms, evaluate, per_day, per_day_together
from tests.compile.jointree.shapes import core
from tests.placement import tpch
from tests.placement.graphs import Exhaustive, dag, tree


class Recorded(StoredChoices, frozen=True, dict=True):
    """Chooses as recorded, and keeps what it was asked."""

    @cached_property
    def asked(self) -> list[SideFacts]:
        return []

    def choose(self, facts: SideFacts) -> SideChoice:
        self.asked.append(facts)
        return super().choose(facts)


def pieces_of(graph: Graph) -> dict[str, Piece]:
    return {piece.name: piece for piece in graph.pieces}


@pytest.mark.parametrize("name", tpch.NAMES)
@pytest.mark.parametrize("trees", [None, {"lineitem": 1000, "orders": 250}])
def test_pieces_are_all_of_the_state(name: str, trees: dict[str, int] | None) -> None:
    """Join trees among them, whose state several operators have."""
    result = tpch.circuit(name) if trees is None else tpch.compiled(name, trees=trees)
    graph = graph_of(result, tpch.KINDS, tpch.numbers(result), allowed=())
    stored = [keeper.name for keeper in result.circuit.arrangements()]
    size = sum(map(tpch.numbers(result).bytes, stored))
    assert graph.bytes_of(dict.fromkeys(pieces_of(graph), PieceMode.KEPT)) == size

    def owners(names: Iterable[str]) -> set[str]:
        """Sides, and the operators of what is no side."""
        sides = {name for name in stored if name.endswith((".left", ".right"))}
        return {name if name in sides else name.partition(".")[0] for name in names}

    assert owners(pieces_of(graph)) == owners(stored)
    assert all(piece.modes == (PieceMode.KEPT,) for piece in graph.pieces)


@pytest.mark.slow
@pytest.mark.parametrize("name", tpch.NAMES)
def test_sides_are_read_where_circuits_say_that_they_can_be(name: str) -> None:
    chooser = Recorded()
    compiled = tpch.compiled(name, chooser)
    asked: list[SideFacts] = chooser.asked
    graph = graph_of(compiled, tpch.KINDS, tpch.numbers(compiled))
    pieces = pieces_of(graph)
    readable = {
        name for name, p in pieces.items() if PieceMode.READ in p.sizes and not p.reads_below
    }
    sides = {facts.name for facts in asked if not facts.is_grouping}
    can_be = {facts.name for facts in asked if Strategy.FILES in facts.readers}
    assert readable & sides == can_be & sides
    # Groups may have to be kept although their rows are there (`compile.flows`).
    assert can_be <= readable
    for facts in asked:
        if Strategy.FILES in facts.readers:
            assert set(pieces[facts.name].source) == set(facts.tables)


@pytest.mark.slow
@pytest.mark.parametrize("name", tpch.NAMES)
def test_changes_arrive_where_their_tables_are_below(name: str) -> None:
    """Node s is source s, and the operators follow in order."""
    circuit = tpch.circuit(name)
    graph = tpch.graph(name)
    for at, source in enumerate(circuit.sources):
        assert graph.nodes[at].table == source.table
    for kind in range(len(tpch.KINDS)):
        assert graph.active[-1][kind] == bool(tpch.KINDS[kind].tables & set(circuit.tables))
    for at, wires in enumerate(circuit.circuit.wires):
        inputs = graph.nodes[len(circuit.sources) + at].inputs
        assert inputs == tuple(
            -1 - wire if wire < 0 else len(circuit.sources) + wire for wire in wires
        )


@pytest.mark.parametrize("name", ["q4", "q18"])
def test_a_side_over_groupings_of_tables_is_read_from_them(name: str) -> None:
    """q4: orders with some line; the lines' keys, each once, are groups of that key. q18: orders
    whose groups of lines pass a condition; their keys are groups of a grouping of these groups."""
    side = pieces_of(tpch.graph(name))["join0.right"]
    assert not side.reads_below
    assert side.source == ("lineitem",)
    assert side.sizes[PieceMode.READ] > 0


@pytest.mark.parametrize(("column", "is_told"), [("x.a", True), ("x.n", False)])
def test_only_the_key_of_a_grouping_finds_its_groups(column: str, is_told: bool) -> None:
    sql = (
        "SELECT r.a, COUNT(*) FROM r JOIN "
        # First rows are the engine's own, so groups of them cannot be read.
        "(SELECT a, COUNT(*) AS n FROM (SELECT a, b FROM s ORDER BY b LIMIT 9) GROUP BY a) x "
        f"ON r.b = {column} GROUP BY r.a HAVING COUNT(*) > 3"
    )
    compiled_plan = tpch.compiled_plan(core(sql), {"r": "a"})
    pieces = pieces_of(graph_of(compiled_plan, tpch.KINDS, tpch.numbers(compiled_plan)))
    told = {name for name, piece in pieces.items() if piece.reads_below}
    assert told == ({"join0.right"} if is_told else set())
    assert (PieceMode.READ in pieces["join0.right"].sizes) == is_told


def test_what_was_never_asked_for_is_not_kept() -> None:
    """Of a side nothing is asked where the other side's tables do not change."""
    kinds = (KindOfChange(frozenset({"customer"}), 5.0),)
    circuit = tpch.circuit("q3")
    graph = graph_of(circuit, kinds, tpch.numbers(circuit))
    modes = {piece.name: PieceMode.KEPT for piece in graph.pieces}
    before = evaluate(graph, modes).per_kind
    # `join0` joins customers with orders: orders ask nothing, customers do.
    left = evaluate(graph, {**modes, "join0.left": PieceMode.REBUILT}).per_kind
    right = evaluate(graph, {**modes, "join0.right": PieceMode.REBUILT}).per_kind
    assert left[0] < before[0] < right[0]


def test_a_side_takes_in_its_own_changes_and_is_asked_by_the_others() -> None:
    """Customers on the left of `join0`, orders on its right."""
    pieces = pieces_of(tpch.graph("q3"))
    for own_kind, other, name, table in ((1, 0, "left", "customer"), (0, 1, "right", "orders")):
        piece = pieces[f"join0.{name}"]
        assert piece.source == (table,)
        assert piece.upkeep[own_kind] > 0 == piece.upkeep[other]
        assert piece.probe[other] > 0 == piece.probe[own_kind]
        assert piece.hit[own_kind] == 0


def test_other_modes_are_choices_where_they_are_allowed() -> None:
    circuit = tpch.circuit("q3")
    sometimes, always = (Bounded(7, lambda kind: 0.5), Bounded(7, lambda kind: 1.0))
    numbers = replace(tpch.numbers(circuit), bounded={"top0": sometimes})
    pieces = pieces_of(graph_of(circuit, tpch.KINDS, numbers))
    assert pieces["top0"].sizes[PieceMode.BOUNDED] == 7
    often = graph_of(circuit, tpch.KINDS, replace(numbers, bounded={"top0": always}))
    for half, whole in zip(pieces["top0"].refill, pieces_of(often)["top0"].refill, strict=True):
        assert 0 < half == whole / 2
    assert PieceMode.BOUNDED not in pieces["aggregate0"].sizes
    allowed = graph_of(circuit, tpch.KINDS, numbers, allowed=[PieceMode.READ])
    every = {mode for piece in allowed.pieces for mode in piece.modes}
    assert every == {PieceMode.KEPT, PieceMode.READ}


def test_new_rows_on_both_sides_make_reads_rare() -> None:
    """With orders and their lines in one run, as of before the step."""
    circuit = tpch.circuit("q3")

    def hits(fresh: float) -> tuple[float, float]:
        known = replace(
            tpch.numbers(circuit),
            fresh=lambda side, kind: fresh if len(kind.tables) > 1 else 0.0,
            known=lambda side, kind: 0.01,
        )
        return pieces_of(graph_of(circuit, tpch.KINDS, known))["join1.left"].hit[:2]

    (old, customers), (new, also_customers) = hits(0.0), hits(1.0)
    assert new == 0 < old < 1
    # Customers alone are on the left of this join, whose right side they do not move.
    assert customers == also_customers == 0


def test_priors_are_prices() -> None:
    times = StateTimes(opened_ms=1.0, touched_block_ns=1e6, block_rows=10)
    assert (times.opened(1000, 5), times.opened(30, 5)) == (6, 4)
    assert STATE.opened(0, 100) == STATE.opened_ms
    circuit, costly = tpch.circuit("q3"), StateTimes(build_row_ns=STATE.build_row_ns * 10)
    one, other = (
        pieces_of(graph_of(circuit, tpch.KINDS, tpch.numbers(circuit), times=times))
        for times in (STATE, costly)
    )
    assert other["join1.right"].build[0] == pytest.approx(10 * one["join1.right"].build[0])
    assert other["join1.right"].read == one["join1.right"].read


def test_a_filter_that_is_stored_takes_what_it_takes() -> None:
    """Of many rows with few keys it is far smaller than a key for each row."""
    circuit, name = tpch.circuit("q3"), "join1.right.filter"
    numbers = tpch.numbers(circuit)
    stored = replace(numbers, bytes=lambda of: 21_000 if of == name else numbers.bytes(of))
    before, after = (pieces_of(graph_of(circuit, tpch.KINDS, one)) for one in (numbers, stored))
    sizes = [one["join1.right"].sizes[PieceMode.READ] for one in (after, before)]
    assert sizes[0] == 21_000 < sizes[1]
    assert after["join0.right"].sizes == before["join0.right"].sizes


KEPT, READ, REBUILT, BOUNDED = PieceMode
R_AND_S, S_ALONE = (KindOfChange(frozenset(tables), 1.0) for tables in ("rs", "s"))


def scan(table: str, keys: float = 0.0, whole: float = 0.0, kinds: int = 1) -> CostNode:
    return CostNode(work=Work.SCAN, table=table, keys=(keys,) * kinds, whole=(whole,) * kinds)


def side(name: str, modes: tuple[PieceMode, ...] = (KEPT, READ, REBUILT), **costs: float) -> Piece:
    """A side with costs that add up to numbers which tell what was paid."""
    usual = {"upkeep": 1.0, "probe": 10.0, "read": 100.0, "build": 1e3, "stream": 1e4, "hit": 1.0}
    given = {key: (cost,) for key, cost in (usual | costs).items()}
    return Piece(name=name, sizes=dict.fromkeys(modes, 0), **given)


def joined(*above: CostNode, kind: KindOfChange = R_AND_S, **costs: float) -> Graph:
    nodes = (
        scan("r", 3e5, 1e5),
        scan("s", 3e5, 2e5),
        CostNode(
            work=Work.JOIN, inputs=(0, 1), pieces=(side("left", **costs), side("right", **costs))
        ),
        *above,
    )
    return Graph(nodes, (kind,))


def cost_of(graph: Graph, *modes: PieceMode) -> float:
    names = [piece.name for piece in graph.pieces]
    (cost,) = evaluate(graph, dict(zip(names, modes, strict=True))).per_kind
    return cost


@pytest.mark.parametrize(
    ("graph", "modes", "cost"),
    [
        (joined(), (KEPT, KEPT), 2 + 20),
        # A side that its own table alone moves is not probed; the right one is not asked, so
        # nothing has to be there of it.
        (joined(kind=S_ALONE), (KEPT, KEPT), 1 + 10),
        (joined(kind=S_ALONE), (KEPT, READ), 10),
        (joined(kind=S_ALONE), (KEPT, REBUILT), 10),
        (joined(kind=S_ALONE), (REBUILT, KEPT), 1 + 10 + 1000 + 1e5),
        # A read is paid by its chance of a hit; one that is rebuilt asks for all rows.
        (joined(hit=0.25), (READ, READ), 2 * 25),
        (joined(), (REBUILT, KEPT), 1010 + 1e5 + 11),
    ],
)
def test_what_the_sides_of_a_join_cost(
    graph: Graph, modes: tuple[PieceMode, ...], cost: float
) -> None:
    assert cost_of(graph, *modes) == cost


def test_a_side_told_by_a_grouping_asks_it_for_keys() -> None:
    costs = {"upkeep": 3.0, "lookup": 5.0, "build": 700.0, "stream": 9000.0, "read": 40.0}
    grouping = Piece(
        name="g",
        sizes=dict.fromkeys(PieceMode, 0),
        **{name: (cost,) for name, cost in costs.items()},
    )
    told = Piece(name="told", sizes={READ: 0}, read=(0.5,), reads_below=True)
    nodes = (
        scan("s", 0, 1e6),
        CostNode(work=Work.KEYED, inputs=(0,), pieces=(grouping,)),
        CostNode(work=Work.ROWS, inputs=(1,), keys=(0.25,), whole=(0.5,)),
        scan("r"),
        CostNode(work=Work.JOIN, inputs=(2, 3), pieces=(told, Piece(name="o", sizes={KEPT: 0}))),
    )
    graph = Graph(nodes, (R_AND_S,))
    for mode, cost in ((KEPT, 3 + 5), (READ, 40 + 40), (REBUILT, 700 + 1e6)):
        assert cost_of(graph, mode, READ, KEPT) == cost + 0.25 + 0.5


@pytest.mark.parametrize(
    ("keys", "fresh", "known", "chance"),
    [
        # New orders with their lines ask for orders that are not there before the step.
        (1000, 1000, 1.0, 0),
        (1000, 999, 1.0, 1),
        (0, 5, 1.0, 0),
        (2, 0, 0.5, pytest.approx(0.75)),
        (3, 1, 0.5, pytest.approx(0.75)),
        (0.05, 0, 1.0, pytest.approx(0.05)),
    ],
)
def test_the_chance_of_a_hit(keys: float, fresh: float, known: float, chance: float) -> None:
    assert chance_of_hit(keys, fresh, known) == chance


def test_queries_share_the_longest_read_of_the_same_tables() -> None:
    def query(read: float, source: tuple[str, ...]) -> Graph:
        right = Piece(name="right", sizes={READ: 0}, read=(read,), source=source)
        sides = (Piece(name="left", sizes={KEPT: 0}, upkeep=(1.0,)), right)
        join = CostNode(work=Work.JOIN, inputs=(0, 1), pieces=sides)
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


def test_what_is_no_graph_is_refused_and_a_pinned_piece_has_one_mode() -> None:
    kinds = (R_AND_S,)
    piece = Piece(name="p", sizes={KEPT: 1})
    bad = (
        (CostNode(work=Work.ROWS, inputs=(0,)),),
        (scan("r"), CostNode(work=Work.ROWS)),
        (scan("r"), CostNode(work=Work.JOIN, inputs=(0,), pieces=(piece, piece))),
        (scan("r"), CostNode(work=Work.KEYED, inputs=(0,))),
        (scan("r"), CostNode(work=Work.JOIN, inputs=(0, 0), pieces=(piece, piece))),
        (scan("r"), CostNode(work=Work.KEYED, inputs=(0,), pieces=(Piece(name="p", sizes={}),))),
        (scan("r"), CostNode(work=Work.ROWS, inputs=(0,), delta=(1.0, 2.0))),
    )
    for nodes in bad:
        with pytest.raises(ValueError, match=r"node|modes|name"):
            Graph(nodes, kinds)
    sides = (side("l", (BOUNDED,)), side("r"))
    with pytest.raises(ValueError, match="modes bounded"):
        Graph((scan("r"), CostNode(work=Work.JOIN, inputs=(0, 0), pieces=sides)), kinds)
    graph = restricted(joined(), {"left": (READ,)})
    assert [piece.modes for piece in graph.pieces] == [(READ,), (KEPT, READ, REBUILT)]
    with pytest.raises(ValueError, match="left cannot be bounded"):
        restricted(joined(), {"left": (BOUNDED,)})


def test_groups_are_made_of_all_rows_below_and_told_by_their_keys() -> None:
    names = ("upkeep", "probe", "noted", "read", "lookup", "opened")
    left, right, groups = (
        Piece(
            name=name,
            sizes={KEPT: 9, READ: 1},
            build=(build,),
            stream=(stream,),
            **dict.fromkeys(names, (0.0,)),
        )
        for name, build, stream in (
            ("left", 2.0, 50.0),
            ("right", 3.0, 60.0),
            ("groups", 20.0, 7.0),
        )
    )
    free = {"delta": (0.0,), "keys": (0.0,), "whole": (0.0,)}
    nodes = (
        scan("r", whole=100.0),
        scan("s", whole=1000.0),
        CostNode(work=Work.JOIN, inputs=(0, 1), pieces=(left, right), **free),
        CostNode(work=Work.KEYED, inputs=(2,), pieces=(groups,), **free),
    )
    graph = Graph(nodes, (KindOfChange(frozenset({"r"}), 1.0),))
    assert conversion_ms(graph) == {
        "left": {KEPT: 102.0, READ: 2.0},
        "right": {KEPT: 1003.0, READ: 3.0},
        "groups": {KEPT: 1120.0, READ: 7.0, BOUNDED: 7.0},
    }
