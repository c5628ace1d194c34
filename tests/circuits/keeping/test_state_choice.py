"""The choice for one query against every choice there is.

By hand, 10,000 trees, 2,000 shared graphs and the circuits of TPC-H: `-m "slow and long"`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from random import Random

import numpy as np
import pytest

from impctl.placement.graph import Graph, KindOfChange, Mode, Node, Piece, Work, graph_of
from impctl.placement.search import THIN, Frontier, added, choices_of, of_choices, per_day, single
from tests.circuits.keeping import tpch
from tests.circuits.keeping.drawn import dag, tree
from tests.circuits.keeping.reference import Exhaustive
from tests.support.random_cases import random_cases

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
    for at in range(len(frontier)) if each_point else ():
        modes = frontier.modes(at)
        assert modes.keys() == {piece.name for piece in graph.pieces}
        assert graph.bytes_of(modes) == frontier.bytes[at]
        assert per_day(graph, modes) == pytest.approx(frontier.cost[at], **CLOSE)
    return choices.is_exact


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
@pytest.mark.parametrize("allowed", [tuple(Mode), (Mode.KEPT, Mode.READ)])
def test_circuits(name: str, allowed: tuple[Mode, ...]) -> None:
    compiled = tpch.compiled(name)
    graph = graph_of(compiled, tpch.KINDS, tpch.numbers(compiled), allowed=allowed)
    if prod(len(piece.modes) for piece in graph.pieces) > LARGEST:
        pytest.skip("too many combinations to look at each")
    assert check(graph, 21)


@cache
def small_circuits() -> tuple[Graph, ...]:
    graphs = [tpch.graph(name) for name in ("q3", "q4", "q12", "q13", "q22")]
    return tuple(graphs)


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
    best = count = 0
    for seed in cases:
        graph = dag(Random(seed))
        if not graph.shared:
            continue
        choices = choices_of(graph, most_assumptions=0)
        assert not choices.is_exact
        every = Exhaustive(graph)
        frontier = choices.frontier
        for at in range(len(frontier)):
            modes = frontier.modes(at)
            assert graph.bytes_of(modes) == frontier.bytes[at]
            assert per_day(graph, modes) == pytest.approx(frontier.cost[at], **CLOSE)
            least = every.least(int(frontier.bytes[at]))
            assert frontier.cost[at] >= least * (1 - 1e-9)
            best += frontier.cost[at] <= least * (1 + 1e-9)
            count += 1
    assert best > 0.8 * count


KINDS = (KindOfChange(frozenset({"a"}), 1.0), KindOfChange(frozenset({"b"}), 3.0))


def asking(shared: int, table: int, name: str) -> Node:
    """A join that needs all rows of a shared flow in runs that change its other table."""
    left = Piece(name=f"{name}.left", sizes={Mode.REBUILT: 0}, build=(1.0, 1.0))
    return Node(
        work=Work.JOIN,
        inputs=(shared, table),
        pieces=(left, Piece(name=f"{name}.right", sizes={Mode.KEPT: 1})),
    )


def scans(*tables: str) -> tuple[Node, ...]:
    return tuple(Node(work=Work.SCAN, table=table, whole=(7.0, 5.0)) for table in tables)


def test_readers_that_ask_for_all_in_different_runs_ask_for_it_in_both() -> None:
    joins = (asking(0, 1, "one"), asking(0, 2, "two"))
    graph = Graph((*scans("s", "a", "b"), *joins, Node(work=Work.ROWS, inputs=(3, 4))), KINDS)
    assert graph.shared == (0,)
    assert check(graph, 3)


def test_flows_that_shared_ones_decide_are_asked_the_most() -> None:
    """The scan is asked for all by the first of two projections alone, that two joins read each."""
    rows = (Node(work=Work.ROWS, inputs=(0,)), Node(work=Work.ROWS, inputs=(0,)))
    joins = (asking(3, 1, "one"), asking(3, 1, "two"))
    last = Node(work=Work.ROWS, inputs=(4, 4, 5, 6))
    graph = Graph((*scans("s", "a", "b"), *rows, *joins, last), KINDS)
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
            [
                (random.randint(0, 6), float(random.randint(0, 6)))
                for _ in range(random.randint(1, 9))
            ]
            for _ in range(2)
        ]
        frontiers = [of_choices([({}, *point) for point in points]) for points in drawn]
        for points, frontier in zip(drawn, frontiers, strict=True):
            assert pairs(frontier) == naive(points)
        both = [(a + c, b + d) for a, b in drawn[0] for c, d in drawn[1]]
        assert pairs(added(frontiers[0], frontiers[1], 0.0)) == naive(both)


def test_a_single_point_with_modes_is_not_lost() -> None:
    one = single([("p", Mode.READ)], 0, 0.0)
    two = single([("q", Mode.KEPT)], 0, 0.0)
    assert added(one, two, 0.0).modes(0) == {"p": Mode.READ, "q": Mode.KEPT}
