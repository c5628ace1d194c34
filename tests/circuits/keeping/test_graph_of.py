"""Graphs of compiled circuits: names, what may be read, which changes arrive, priors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.compile.flows import AsRecorded, SideChoice, SideFacts, Strategy
from impctl.placement.graph import (
    PRIORS,
    Bounded,
    Demand,
    Graph,
    KindOfChange,
    Mode,
    Node,
    Numbers,
    Piece,
    Priors,
    Work,
    graph_of,
)
from impctl.placement.search import evaluate
from tests.circuits.keeping import tpch
from tests.circuits.trees.drawn import core


class Recorded(AsRecorded):
    """Chooses as recorded, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "asked", [])

    def choose(self, facts: SideFacts) -> SideChoice:
        self.asked.append(facts)  # type: ignore[attr-defined]
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
    assert graph.bytes_of(dict.fromkeys(pieces_of(graph), Mode.KEPT)) == size
    sides = {name for name in stored if name.endswith((".left", ".right"))}
    grouped = {name.partition(".")[0] for name in stored if name not in sides}
    pieces = {name if name in sides else name.partition(".")[0] for name in pieces_of(graph)}
    assert pieces == sides | grouped
    assert all(piece.modes == (Mode.KEPT,) for piece in graph.pieces)


@pytest.mark.slow
@pytest.mark.parametrize("name", tpch.NAMES)
def test_sides_are_read_where_circuits_say_that_they_can_be(name: str) -> None:
    chooser = Recorded()
    compiled = tpch.compiled(name, chooser)
    asked: list[SideFacts] = chooser.asked  # type: ignore[attr-defined]
    graph = graph_of(compiled, tpch.KINDS, tpch.numbers(compiled))
    pieces = pieces_of(graph)
    readable = {name for name, p in pieces.items() if Mode.READ in p.sizes and not p.reads_below}
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
    assert side.sizes[Mode.READ] > 0


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
    assert (Mode.READ in pieces["join0.right"].sizes) == is_told


def test_what_was_never_asked_for_is_not_kept() -> None:
    """Of a side nothing is asked where the other side's tables do not change."""
    kinds = (KindOfChange(frozenset({"customer"}), 5.0),)
    circuit = tpch.circuit("q3")
    graph = graph_of(circuit, kinds, tpch.numbers(circuit))
    modes = {piece.name: Mode.KEPT for piece in graph.pieces}
    before = evaluate(graph, modes).per_kind
    # `join0` joins customers with orders: orders ask nothing, customers do.
    left = evaluate(graph, {**modes, "join0.left": Mode.REBUILT}).per_kind
    right = evaluate(graph, {**modes, "join0.right": Mode.REBUILT}).per_kind
    assert left[0] < before[0] < right[0]


def test_a_side_takes_in_its_own_changes_and_is_asked_by_the_others() -> None:
    """Customers on the left of `join0`, orders on its right."""
    pieces = pieces_of(tpch.graph("q3"))
    orders, customers = 0, 1
    left, right = pieces["join0.left"], pieces["join0.right"]
    for own, piece in ((customers, left), (orders, right)):
        other = orders + customers - own
        assert piece.upkeep[own] > 0 == piece.upkeep[other]
        assert piece.probe[other] > 0 == piece.probe[own]
        assert piece.hit[own] == 0
    assert left.source == ("customer",)
    assert right.source == ("orders",)


def test_other_modes_are_choices_where_they_are_allowed() -> None:
    circuit = tpch.circuit("q3")
    numbers = tpch.numbers(circuit)
    bounded = Numbers(
        rows=numbers.rows,
        changed=numbers.changed,
        bytes=numbers.bytes,
        bounded={"top0": Bounded(7, lambda kind: 0.5, 30.0)},
    )
    pieces = pieces_of(graph_of(circuit, tpch.KINDS, bounded))
    assert pieces["top0"].sizes[Mode.BOUNDED] == 7
    assert pieces["top0"].refill == (15.0,) * len(tpch.KINDS)
    assert Mode.BOUNDED not in pieces["aggregate0"].sizes
    allowed = graph_of(circuit, tpch.KINDS, bounded, allowed=[Mode.READ])
    every = {mode for piece in allowed.pieces for mode in piece.modes}
    assert every == {Mode.KEPT, Mode.READ}


def test_new_rows_on_both_sides_make_reads_rare() -> None:
    """With orders and their lines in one run, as of before the step."""
    circuit = tpch.circuit("q3")
    numbers = tpch.numbers(circuit)

    def hits(fresh: float) -> tuple[float, float]:
        known = Numbers(
            rows=numbers.rows,
            changed=numbers.changed,
            bytes=numbers.bytes,
            fresh=lambda side, kind: fresh if len(kind.tables) > 1 else 0.0,
            known=lambda side, kind: 0.01,
        )
        piece = pieces_of(graph_of(circuit, tpch.KINDS, known))["join1.left"]
        return piece.hit[0], piece.hit[1]

    all_old, all_new = hits(0.0), hits(1.0)
    assert 0 < all_old[0] < 1
    assert all_new[0] == 0
    # Customers alone are on the left of this join, whose right side they do not move.
    assert all_old[1] == all_new[1] == 0


def test_priors_are_prices() -> None:
    priors = Priors(opened_ms=1.0, touched_block_ns=1e6, block_rows=10)
    assert priors.opened(1000, 5) == 6
    assert priors.opened(30, 5) == 4
    assert PRIORS.opened(0, 100) == PRIORS.opened_ms
    dear = Priors(build_row_ns=PRIORS.build_row_ns * 10)
    circuit = tpch.circuit("q3")
    one, other = (
        pieces_of(graph_of(circuit, tpch.KINDS, tpch.numbers(circuit), priors=priors))[
            "join1.right"
        ]
        for priors in (PRIORS, dear)
    )
    assert other.build[0] == pytest.approx(10 * one.build[0])
    assert other.read == one.read


def test_a_scan_is_no_dearer_by_keys_than_whole() -> None:
    scan = Node(work=Work.SCAN, table="r", keys=(9.0,), whole=(4.0,))
    piece = Piece(name="left", sizes={Mode.READ: 0}, reads_below=True)
    other = Piece(name="right", sizes={Mode.KEPT: 0})
    nodes = (scan, Node(work=Work.SCAN, table="s"))
    join = Node(work=Work.JOIN, inputs=(0, 1), pieces=(piece, other))
    graph = Graph((*nodes, join), (KindOfChange(frozenset({"s"}), 1.0),))
    modes = {"left": Mode.READ, "right": Mode.KEPT}
    assert evaluate(graph, modes).per_kind == (4.0,)
    assert list(Demand) == sorted(Demand)


def test_a_filter_that_is_stored_takes_what_it_takes() -> None:
    """Of many rows with few keys it is far smaller than a key for each row."""
    circuit = tpch.circuit("q3")
    numbers = tpch.numbers(circuit)
    sizes = {"join1.right.filter": 21_000}

    def size(name: str) -> int:
        return sizes.get(name) or numbers.bytes(name)

    before = pieces_of(graph_of(circuit, tpch.KINDS, numbers))
    after = pieces_of(graph_of(circuit, tpch.KINDS, replace(numbers, bytes=size)))
    assert after["join1.right"].sizes[Mode.READ] == 21_000 < before["join1.right"].sizes[Mode.READ]
    assert after["join0.right"].sizes == before["join0.right"].sizes
