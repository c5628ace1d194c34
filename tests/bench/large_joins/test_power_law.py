"""Graphs whose degrees follow a power law: simple, seeded, with hubs."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.bench.large_joins.power_law import power_law_graph
from impctl.errors import UsageError


@pytest.mark.parametrize(("edges", "nodes"), [(1, 2), (3, 3), (45, 10), (5000, 700)])
def test_no_edge_twice_and_none_to_itself(edges: int, nodes: int) -> None:
    graph = power_law_graph(edges, nodes, 2.2, 3)
    pairs = list(zip(graph.column("src").to_pylist(), graph.column("dst").to_pylist(), strict=True))
    assert len(set(pairs)) == len(pairs) == edges
    assert all(src != dst for src, dst in pairs)
    assert {node for pair in pairs for node in pair} <= set(range(nodes))
    assert graph.column("id").to_pylist() == list(range(edges))


def test_a_smaller_exponent_has_larger_hubs_at_both_ends() -> None:
    def most(exponent: float, end: str) -> int:
        ends = power_law_graph(20_000, 3000, exponent, 1).column(end).to_numpy()
        return int(np.bincount(ends).max())

    assert most(2.2, "src") > 2 * most(3.0, "src") > 4 * 7
    graph = power_law_graph(20_000, 3000, 2.2, 1)
    degrees = [np.bincount(graph.column(end).to_numpy(), minlength=3000) for end in ("src", "dst")]
    assert np.corrcoef(*degrees)[0, 1] > 0.9, "who has many followers follows many"
    hub = int(degrees[0].argmax())
    ids = graph.filter(np.asarray(graph.column("src")) == hub).column("id").to_numpy()
    assert abs(ids.mean() - 10_000) < 2000, "a hub's edges come at any time"


def test_hubs_that_know_everybody_do_so_at_any_time() -> None:
    graph = power_law_graph(2000, 70, 2.2, 1)
    degrees = np.bincount(graph.column("src").to_numpy())
    ids = graph.filter(np.asarray(graph.column("src")) == int(degrees.argmax())).column("id")
    assert len(ids) > 60
    assert abs(ids.to_numpy().mean() - 1000) < 250


def test_a_value_is_its_ends_and_keeps_a_share_of_them() -> None:
    graph = power_law_graph(20_000, 3000, 2.2, 1).to_pydict()
    of_ends = dict(zip(graph["dst"], graph["value"], strict=True))
    assert all(of_ends[dst] == of for dst, of in zip(graph["dst"], graph["value"], strict=True))
    assert 0.08 < sum(value < 100 for value in of_ends.values()) / len(of_ends) < 0.12


def test_the_seed_decides() -> None:
    assert power_law_graph(50, 20, 2.5, 1).equals(power_law_graph(50, 20, 2.5, 1))
    assert not power_law_graph(50, 20, 2.5, 1).equals(power_law_graph(50, 20, 2.5, 2))


@pytest.mark.parametrize(
    ("edges", "nodes", "exponent"), [(46, 10, 2.0), (0, 10, 2.0), (5, 10, 1.0), (5, 10, np.nan)]
)
def test_what_is_no_such_graph_is_refused(edges: int, nodes: int, exponent: float) -> None:
    with pytest.raises(UsageError):
        power_law_graph(edges, nodes, exponent, 1)
