"""The choice for one query against every choice there is, and for several under one budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.state.simpler_choices import SIMPLER_CHOICES
from impctl.placement.graph import CostNode, Graph, KindOfChange, Piece, PieceMode, Work, graph_of
from impctl.placement.search import (
    THIN,
    Frontier,
    PieceChoice,
    StateChoice,
    added,
    choices_of,
    choose,
    divided,
    of_choices,
    per_day,
    per_day_together,
    single,
)
from tests.placement import tpch
from tests.placement.graphs import Exhaustive, dag, scans, tree
from tests.support.random_cases import random_cases, random_seeds

LARGEST = 180_000
"""Combinations that are looked at one by one: those of q5, q7 and q9 are 177,147."""
CLOSE = {"rel": 1e-9, "abs": 1e-9}


def check(graph: Graph, budgets: int, *, each_point: bool = True) -> bool:
    """The choice at so many budgets from nothing to all; whether it was to be exact."""
    every = Exhaustive(graph)
    choices = choices_of(graph, thin=0.0)
    frontier = choices.frontier
    top = int(every.bytes.max())
    for budget in {top * at // (budgets - 1) for at in range(budgets)}:
        best = every.least(budget)
        at = frontier.best_within(budget)
        mine = frontier.cost[at] if frontier.bytes[at] <= budget else np.inf
        if choices.is_exact:
            assert mine == pytest.approx(best, **CLOSE), budget
        else:
            assert mine >= best * (1 - 1e-9)
    if each_point:
        check_points(graph, frontier)
    return choices.is_exact


def check_points(graph: Graph, frontier: Frontier) -> None:
    """That each point of the frontier takes and costs what it says."""
    for at in range(len(frontier)):
        modes = frontier.modes(at)
        assert modes.keys() == {piece.name for piece in graph.pieces}
        assert graph.bytes_of(modes) == frontier.bytes[at]
        assert per_day(graph, modes) == pytest.approx(frontier.cost[at], **CLOSE)


@random_cases(40, 95, 10_000)
def test_trees(cases: range) -> None:
    for seed in cases:
        assert check(tree(Random(seed)), 6), seed


@random_cases(40, 100, 4_000)
def test_shared_flows(cases: range) -> None:
    """Graphs without a shared flow are left out, and those that have too many demands."""
    graphs = (dag(Random(seed)) for seed in cases)
    assert sum(check(graph, 6) for graph in graphs if graph.shared) > len(cases) // 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one == "q18" else [pytest.mark.long]) for one in tpch.NAMES],
)
@pytest.mark.parametrize("allowed", [tuple(PieceMode), (PieceMode.KEPT, PieceMode.READ)])
def test_circuits(name: str, allowed: tuple[PieceMode, ...]) -> None:
    compiled = tpch.compiled(name)
    graph = graph_of(compiled, tpch.KINDS, tpch.numbers(compiled), allowed=allowed)
    if prod(len(piece.modes) for piece in graph.pieces) > LARGEST:
        pytest.skip("too many combinations to look at each")
    assert check(graph, 21)


@cache
def small_circuits() -> tuple[Graph, ...]:
    return tuple(tpch.graph(name) for name in ("q3", "q4", "q12", "q13", "q22"))


def test_circuits_of_few_pieces() -> None:
    for graph in small_circuits():
        assert check(graph, 21, each_point=False)


@pytest.mark.parametrize("draw", [tree, dag])
@random_cases(15, 38, 120)
def test_thinned_points_are_a_little_dearer_at_most(
    draw: Callable[[Random], Graph], cases: range
) -> None:
    dropped = 0
    for seed in cases:
        graph = draw(Random(seed))
        for thin in (THIN, 0.2):
            all_points = choices_of(graph, thin=0.0).frontier
            thinned = choices_of(graph, thin=thin).frontier
            dropped += len(all_points) - len(thinned)
            most = (1 + thin) ** (2 * len(graph.nodes))
            for size, cost in zip(all_points.bytes, all_points.cost, strict=True):
                at = thinned.best_within(int(size))
                assert thinned.bytes[at] <= size
                assert thinned.cost[at] <= cost * most + 1e-9
    assert dropped > 0


@random_cases(20, 40, 120)
def test_too_many_demands_are_told_and_cost_what_they_say(cases: range) -> None:
    """How good such choices are is not promised; here most are the best there is."""
    are_best: list[bool] = []
    for graph in (dag(Random(seed)) for seed in cases):
        if graph.shared:
            choices = choices_of(graph, most_assumptions=0)
            assert not choices.is_exact
            frontier, every = choices.frontier, Exhaustive(graph)
            check_points(graph, frontier)
            least = np.array([every.least(int(size)) for size in frontier.bytes])
            assert (frontier.cost >= least * (1 - 1e-9)).all()
            are_best += (frontier.cost <= least * (1 + 1e-9)).tolist()
    assert sum(are_best) > 0.8 * len(are_best)


KINDS = (KindOfChange(frozenset({"a"}), 1.0), KindOfChange(frozenset({"b"}), 3.0))


def asking(shared: int, table: int, name: str) -> CostNode:
    """A join that needs all rows of a shared flow in runs that change its other table."""
    left = Piece(name=f"{name}.left", sizes={PieceMode.REBUILT: 0}, build=(1.0, 1.0))
    return CostNode(
        work=Work.JOIN,
        inputs=(shared, table),
        pieces=(left, Piece(name=f"{name}.right", sizes={PieceMode.KEPT: 1})),
    )


def test_readers_of_shared_flows_ask_for_the_most_in_each_run() -> None:
    tables = scans("s", "a", "b", whole=(7.0, 5.0))
    joins = (asking(0, 1, "one"), asking(0, 2, "two"))
    graph = Graph((*tables, *joins, CostNode(work=Work.ROWS, inputs=(3, 4))), KINDS)
    assert graph.shared == (0,)
    assert check(graph, 3)
    # The scan is asked for all by the first of two projections alone, that two joins read each.
    rows = (CostNode(work=Work.ROWS, inputs=(0,)), CostNode(work=Work.ROWS, inputs=(0,)))
    joins = (asking(3, 1, "one"), asking(3, 1, "two"))
    last = CostNode(work=Work.ROWS, inputs=(4, 4, 5, 6))
    graph = Graph((*tables, *rows, *joins, last), KINDS)
    assert graph.shared == (0, 1, 3, 4)
    assert check(graph, 3)


def naive(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted(
        {
            (size, cost)
            for size, cost in points
            if not any((a <= size and b < cost) or (a < size and b <= cost) for a, b in points)
        }
    )


def pairs(frontier: Frontier) -> list[tuple[int, float]]:
    return list(zip(frontier.bytes.tolist(), frontier.cost.tolist(), strict=True))


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_sums_of_frontiers(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """With equal sizes and equal costs, in lots of any size."""
    monkeypatch.setattr("impctl.placement.search._AT_ONCE", at_once)
    random = Random(3)
    for _ in range(50):
        drawn = [
            [(random.randint(0, 6), float(random.randint(0, 6))) for _ in range(count)]
            for count in (random.randint(1, 9), random.randint(1, 9))
        ]
        frontiers = [of_choices([({}, *point) for point in points]) for points in drawn]
        for points, frontier in zip(drawn, frontiers, strict=True):
            assert pairs(frontier) == naive(points)
        both = [(a + c, b + d) for a, b in drawn[0] for c, d in drawn[1]]
        assert pairs(added(frontiers[0], frontiers[1], 0.0)) == naive(both)


def test_a_single_point_with_modes_is_not_lost() -> None:
    one = single([("p", PieceMode.READ)], 0, 0.0)
    two = single([("q", PieceMode.KEPT)], 0, 0.0)
    assert added(one, two, 0.0).modes(0) == {"p": PieceMode.READ, "q": PieceMode.KEPT}


KINDS_OF_CHANGE = (KindOfChange(frozenset({"r"}), 2.0), KindOfChange(frozenset({"s"}), 0.1))


def frontier(random: Random, points: int, largest: int) -> Frontier:
    drawn = [(random.randint(0, largest), 10 ** random.uniform(0, 4)) for _ in range(points)]
    return of_choices([({}, *point) for point in drawn])


def by_rounding_up(frontiers: list[Frontier], budget: int, cells: int = 1000) -> float:
    """The least cost where every size is rounded up to cells by itself."""
    best = [0.0] * (cells + 1)
    for one in frontiers:
        points = [(-(-size * cells // budget), cost) for size, cost in pairs(one)]
        best = [
            min((best[at - size] + cost for size, cost in points if size <= at), default=np.inf)
            for at in range(cells + 1)
        ]
    return best[-1]


def total(frontiers: list[Frontier], points: list[int]) -> tuple[int, float]:
    chosen = [pairs(one)[at] for one, at in zip(frontiers, points, strict=True)]
    return sum(size for size, _ in chosen), sum(cost for _, cost in chosen)


@pytest.mark.slow
@random_seeds(6, 12, 60)
def test_a_divided_budget_is_kept_and_well_used(seed: int) -> None:
    random = Random(seed)
    largest = random.choice([9, 5000, 10**12])
    frontiers = [frontier(random, random.randint(1, 6), largest) for _ in range(4)]
    most = sum(int(one.bytes[-1]) for one in frontiers)
    every = [total(frontiers, list(at)) for at in product(*(range(len(one)) for one in frontiers))]
    least = min(size for size, _ in every)
    # One byte less than a choice has.
    close = {size - 1 for size, _ in random.sample(every, min(20, len(every))) if size}
    for budget in {0, 1, least, most // 7, most // 3, most // 2, most, most + 1} | close:
        size, cost = total(frontiers, divided(frontiers, budget))
        assert size <= max(budget, least)
        fitting = [cost for size, cost in every if size <= budget]
        if fitting:
            assert cost >= min(fitting) * (1 - 1e-12)
            assert budget == 0 or cost <= by_rounding_up(frontiers, budget) * (1 + 1e-12)
        if budget >= most:
            assert cost == pytest.approx(min(fitting))


@random_seeds(12, 36, 120)
def test_urgency_is_chosen_by_and_not_told(seed: int) -> None:
    random = Random(seed)
    graph = tree(random)
    budget = random.randint(0, sum(max(piece.sizes.values()) for piece in graph.pieces))
    urgency = [random.choice([1.0, 2.0, 1024.0]) for _ in graph.kinds]
    result = choose({"q": graph}, budget, urgency=urgency)
    kinds = zip(graph.kinds, urgency, strict=True)
    often = Graph(graph.nodes, tuple(replace(kind, rate=kind.rate * u) for kind, u in kinds))
    mine = result.queries["q"]
    assert mine.modes == choose({"q": often}, budget).queries["q"].modes
    assert result.ms_per_day == pytest.approx(per_day(graph, mine.modes))
    assert mine.ms_per_day == pytest.approx(per_day(graph, mine.modes))


def test_one_query_needs_no_grid() -> None:
    random = Random(1)
    one = frontier(random, 200, 10**6)
    for budget in range(0, 10**6, 9973):
        (at,) = divided([one], budget)
        assert at == one.best_within(budget)
    assert not divided([], 10)


def test_what_cells_are_too_wide_for_is_found_all_the_same() -> None:
    """A cell holds the cheapest of those that fall into it, with which the second does not fit."""
    one = of_choices([({}, 1, 100.0), ({}, 4, 80.0), ({}, 9, 50.0)])
    other = of_choices([({}, 9995, 1.0)])
    for frontiers in ([one, other], [other, one]):
        size, cost = total(frontiers, divided(frontiers, 10_000))
        assert (size, cost) == (9999, 81.0)


def choices(graphs: list[Graph], budget: int | None) -> StateChoice:
    return choose({f"q{at}": graph for at, graph in enumerate(graphs)}, budget, thin=0.0)


def largest(graph: Graph) -> int:
    return sum(max(piece.sizes.values()) for piece in graph.pieces)


@pytest.mark.parametrize("draw", [tree, dag])
@random_cases(10, 25, 80)
def test_what_is_told_is_true(draw: object, cases: range) -> None:
    for seed in cases:
        graph = draw(Random(seed))  # type: ignore[operator]
        for budget in (0, largest(graph) // 3, None):
            result = choices([graph], budget)
            query = result.queries["q0"]
            assert result.bytes == query.bytes == graph.bytes_of(query.modes)
            assert result.bytes == sum(piece.bytes for piece in query.pieces.values())
            assert query.ms_per_day == pytest.approx(per_day(graph, query.modes))
            assert result.ms_per_day == pytest.approx(query.ms_per_day)
            assert result.exceeds == (budget is not None and result.bytes > budget)
            assert all(piece.reason for piece in query.pieces.values())


@random_cases(10, 25, 80)
def test_one_query_has_its_best_choice(cases: range) -> None:
    for seed in cases:
        graph = tree(Random(seed))
        best = choices_of(graph, thin=0.0).frontier
        for budget in (0, largest(graph) // 5, largest(graph) // 2, largest(graph)):
            at = best.best_within(budget)
            result = choices([graph], budget)
            assert (result.bytes, result.exceeds) == (best.bytes[at], best.bytes[at] > budget)
            assert result.ms_per_day == pytest.approx(best.cost[at], rel=1e-9, abs=1e-9)


def reading(name: str, size: int, read: float, rate: float = 2.0, table: str = "t") -> Graph:
    """A query with a side that `r` asks for, kept or read from another table."""
    right = Piece(
        name=f"{name}.right",
        sizes={PieceMode.KEPT: size, PieceMode.READ: 0},
        upkeep=(0.0, 0.0),
        probe=(1.0, 0.0),
        read=(read, 0.0),
        source=(table,),
    )
    left = Piece(name=f"{name}.left", sizes={PieceMode.KEPT: 0})
    join = CostNode(work=Work.JOIN, inputs=(0, 1), pieces=(left, right))
    kinds = (KindOfChange(frozenset({"r"}), rate), KINDS_OF_CHANGE[1])
    return Graph((*scans("r", table), join), kinds)


def test_reads_that_are_shared_are_counted_once() -> None:
    """By itself a read of `t` is dearer than that of `u`; but three queries have it together."""
    graphs = [reading(name, 10, 30.0) for name in ("a", "b", "c")]
    result = choices([*graphs, reading("d", 10, 25.0, table="u")], 10)
    modes = {name: mode for query in result.queries.values() for name, mode in query.modes.items()}
    kept = {name for name, mode in modes.items() if mode is PieceMode.KEPT}
    assert {name for name in kept if name.endswith("right")} == {"d.right"}
    assert result.ms_per_day == 2 * (30 + 1)
    assert sum(query.ms_per_day for query in result.queries.values()) == 2 * (3 * 30 + 1)


@pytest.mark.slow
def test_the_correction_is_kept_only_where_it_helps() -> None:
    """Against the choice that knows nothing of shared reads; random prices of two tables."""
    random = Random(3)
    better = 0
    for _ in range(25):
        graphs = [
            reading(f"q{at}", random.randint(1, 20), random.uniform(1, 60), table=table)
            for at, table in enumerate(random.choices("tu", k=6))
        ]
        frontiers = [choices_of(graph, thin=0.0).frontier for graph in graphs]
        budget = random.randint(0, 60)
        points = divided(frontiers, budget)
        first = [one.modes(at) for one, at in zip(frontiers, points, strict=True)]
        alone = per_day_together(graphs, first)
        result = choices(graphs, budget)
        assert result.bytes <= budget
        assert result.ms_per_day <= alone * (1 + 1e-12)
        better += result.ms_per_day < alone
    assert better


def test_reasons_name_the_change_and_what_it_costs() -> None:
    def piece(name: str, *costs: float, budget: int | None = None) -> PieceChoice:
        return choices([reading("a", 10, *costs)], budget).queries["q0"].pieces[name]

    kept, read = piece("a.right", 41.0), piece("a.right", 41.0, 0.5, budget=0)
    assert kept.reason == (
        "r changes 2 times a day, and each change takes 40 ms more if it is read"
    )
    assert read.reason == (
        "r changes once every 2 days, and each change takes 40 ms more because it is read"
    )
    assert (kept.mode, kept.bytes, kept.kept_bytes) == (PieceMode.KEPT, 10, 10)
    assert (read.mode, read.bytes, read.kept_bytes) == (PieceMode.READ, 0, 10)
    unused = piece("a.right", 0.0, 0.0)
    assert (unused.mode, unused.reason) == (PieceMode.READ, "no change needs it")
    assert piece("a.left", 0.0).reason == "nothing can replace it"


def test_bad_arguments() -> None:
    graph = reading("a", 10, 1.0)
    with pytest.raises(ValueError, match="below zero"):
        choices([graph], -1)
    with pytest.raises(ValueError, match="different ways"):
        choices([graph, reading("b", 10, 1.0, 7.0)], 1)
    assert choices([], 5) == StateChoice({}, 0, 0, exceeds=False)


def test_what_cannot_fit_is_told_with_the_least_that_would() -> None:
    piece = Piece(name="only", sizes={PieceMode.KEPT: 50, PieceMode.BOUNDED: 30})
    scan = CostNode(work=Work.SCAN, table="r")
    graph = Graph((scan, CostNode(work=Work.KEYED, inputs=(0,), pieces=(piece,))), KINDS_OF_CHANGE)
    for budget, exceeds in ((59, True), (60, False)):
        result = choices([graph, graph], budget)
        assert (result.bytes, result.exceeds) == (60, exceeds)


MANY = [pytest.mark.slow, pytest.mark.long]


FEW = ("q3", "q12", "q4")


@pytest.mark.parametrize(
    ("queries", "simpler"),
    [
        (FEW, [one for one in SIMPLER_CHOICES if one != "greedy"]),
        pytest.param(FEW, ["greedy"], marks=MANY),
        # One change after the other is too slow for 170 pieces.
        pytest.param(tpch.NAMES, [one for one in SIMPLER_CHOICES if one != "greedy"], marks=MANY),
    ],
)
def test_no_simpler_choice_is_cheaper_for_all_queries_together(
    queries: tuple[str, ...], simpler: list[str]
) -> None:
    """For simpler choices the circuits are one graph, whose pieces have the queries' names."""
    graphs = {name: tpch.graph(name) for name in queries}
    whole = together(graphs)
    for share in range(0, 21, 4):
        budget = largest(whole) * share // 20
        result = choose(graphs, budget)
        mine = per_day_together(list(graphs.values()), [q.modes for q in result.queries.values()])
        assert result.bytes <= budget
        assert mine == pytest.approx(result.ms_per_day)
        for name in simpler:
            modes = SIMPLER_CHOICES[name](whole, budget)
            own = [
                {piece.name: modes[f"{query}.{piece.name}"] for piece in graph.pieces}
                for query, graph in graphs.items()
            ]
            theirs = per_day_together(list(graphs.values()), own)
            assert mine <= theirs * (1 + THIN), (name, share)


def together(graphs: dict[str, Graph]) -> Graph:
    """One graph of all, a union at its root."""
    nodes: list[CostNode] = []
    roots = []
    for query, graph in graphs.items():
        start = len(nodes)
        nodes += [moved(node, query, start) for node in graph.nodes]
        roots.append(len(nodes) - 1)
    nodes.append(CostNode(work=Work.ROWS, inputs=tuple(roots)))
    kinds = next(iter(graphs.values())).kinds
    return Graph(tuple(nodes), kinds)


def moved(node: CostNode, query: str, start: int) -> CostNode:
    pieces = tuple(replace(piece, name=f"{query}.{piece.name}") for piece in node.pieces)
    return replace(node, inputs=tuple(wire + start for wire in node.inputs), pieces=pieces)
