"""Networks of plain shapes are what they say, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from impctl.bench.networks.circles import circle_links
from impctl.bench.networks.communities import COMMUNITY_NODES, community_links
from impctl.bench.networks.shapes import (
    chain_links,
    forest_links,
    grid_links,
    power_law_links,
    random_links,
    worked_example_links,
)
from impctl.bench.networks.transit_stub import transit_stub_links
from impctl.errors import UsageError

Made = Callable[[int], pa.Table]
MADE: dict[str, Made] = {
    "grid": partial(grid_links, 130),
    "chain": partial(chain_links, 50),
    "forest": partial(forest_links, 95, 10),
    "random": partial(random_links, 300, 40),
    "nearly all": partial(random_links, 85, 10),
    "all": partial(random_links, 90, 10),
    "power law": partial(power_law_links, 500, 100),
    "communities": partial(community_links, 2000, 400),
    "one community": partial(community_links, 300, 60),
    "circles": partial(circle_links, 6000, 1200),
    "two circles": partial(circle_links, 4000, 900),
    "one circle": partial(circle_links, 2000, 200),
    "dense": partial(transit_stub_links, 400, 100),
    "sparse": partial(transit_stub_links, 200, 100),
}


def pairs_of(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["src"].to_pylist(), table["dst"].to_pylist(), strict=True))


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_no_link_twice_and_the_same_again(made: Made) -> None:
    table = made(3)
    pairs = pairs_of(table)
    assert len({*pairs}) == len(pairs) > 40
    assert all(src != dst for src, dst in pairs)
    assert min(map(min, pairs)) >= 0
    assert table["id"].to_pylist() == list(range(len(pairs)))
    assert min(table["cost"].to_pylist()) >= 1
    assert table.equals(made(3))
    assert not table.equals(made(4))


def test_a_grid_has_both_ways_between_neighbours() -> None:
    pairs = pairs_of(grid_links(130, 1))
    # A side of six has 120 links, one of seven 168.
    assert len(pairs) == 120
    assert {(dst, src) for src, dst in pairs} == {*pairs}
    assert all(abs(a // 6 - b // 6) + abs(a % 6 - b % 6) == 1 for a, b in pairs)


def test_a_chain_is_in_order() -> None:
    assert pairs_of(chain_links(4, 1)) == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_trees_of_a_forest_have_so_many_nodes_and_one_root() -> None:
    pairs = pairs_of(forest_links(95, 10, 1))
    parents = {dst: src for src, dst in pairs}
    assert len(parents) == 95
    assert all(parent < child and parent // 10 == child // 10 for child, parent in parents.items())
    roots = {*range(max(parents) + 1)} - parents.keys()
    assert roots == {number * 10 for number in range(11)}
    assert max(Counter(parents.values()).values()) > 2, "they are bushy"


def test_hubs_of_a_power_law() -> None:
    found = np.bincount(power_law_links(5000, 1000, 1)["src"].to_numpy())
    even = np.bincount(random_links(5000, 1000, 1)["src"].to_numpy())
    assert found.max() > 5 * even.max()


def test_communities_are_dense_inside_and_all_of_them_are_found() -> None:
    pairs = pairs_of(community_links(10_000, 1000, 1))
    assert len(pairs) == 10_000
    apart = [(a, b) for a, b in pairs if a // COMMUNITY_NODES != b // COMMUNITY_NODES]
    # A ring of ten, and one link in five hundred.
    assert len(apart) == 10 + 20
    assert {a // COMMUNITY_NODES for a, b in pairs} == {*range(10)}
    # Of few links all but one from one to another are the ring.
    for links in (10_000, 400):
        between = {
            (a // COMMUNITY_NODES, b // COMMUNITY_NODES)
            for a, b in pairs_of(community_links(links, 1000, 1))
        }
        assert {(one, (one + 1) % 10) for one in range(10)} <= between


def test_whoever_is_first_in_a_circle_knows_all_of_it() -> None:
    pairs = {*pairs_of(circle_links(8000, 1200, 1))}
    assert len(pairs) == 8000
    assert {(dst, src) for src, dst in pairs} == pairs
    # Shares as 1, 0.71 and 0.58 of 1,200: circles begin at these numbers.
    starts = (0, 526, 897)
    circle = np.searchsorted(starts, np.arange(1200), side="right") - 1
    assert all((starts[circle[node]], node) in pairs for node in range(1200) if node not in starts)
    apart = [(a, b) for a, b in pairs if circle[a] != circle[b]]
    # A ring of three, and one link in five hundred.
    assert len(apart) == 6 + 16
    assert reached_from(5, [*pairs]) == {*range(1200)}


def test_the_worked_example() -> None:
    assert pairs_of(worked_example_links()) == [(0, 1), (1, 2), (2, 0), (2, 1)]


def reached_from(start: int, pairs: list[tuple[int, int]]) -> set[int]:
    found = {start}
    while more := {dst for src, dst in pairs if src in found} - found:
        found |= more
    return found


@pytest.mark.parametrize(("links", "nodes"), [(400, 100), (200, 100), (800, 200), (100, 25)])
def test_routers_are_connected_and_as_dense_as_asked(links: int, nodes: int) -> None:
    table = transit_stub_links(links, nodes, 2)
    pairs = pairs_of(table)
    assert len(pairs) == links
    assert {(dst, src) for src, dst in pairs} == {*pairs}
    assert reached_from(0, pairs) == {*range(nodes)}
    transits = nodes // 25
    costs = dict(zip(pairs, table["cost"].to_pylist(), strict=True))
    for (src, dst), cost in costs.items():
        ends = (src < transits) + (dst < transits)
        assert cost == costs[dst, src] == {2: 50, 1: 10, 0: 2}[ends]
        if ends == 0:
            assert (src - transits) // 8 == (dst - transits) // 8, "stubs know no other stub"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: grid_links(7, 1), "8 links at least"),
        (lambda: chain_links(0, 1), "1 links at least"),
        (lambda: forest_links(5, 1, 1), "1 links at least"),
        (lambda: random_links(91, 10, 1), "too few"),
        (lambda: power_law_links(46, 10, 1), "too few"),
        (lambda: community_links(19, 1000, 1), "10 communities do not have 19 links"),
        (lambda: community_links(5000, 100, 1), "1 communities do not have 5000 links"),
        (lambda: circle_links(2400, 1200, 1), "Circles of 1200 nodes do not have 2400 links"),
        (lambda: circle_links(7000, 100, 1), "Circles of 100 nodes do not have 7000 links"),
        (lambda: transit_stub_links(190, 100, 1), "do not connect"),
        (lambda: transit_stub_links(900, 100, 1), "too many"),
    ],
)
def test_what_cannot_be_is_refused(made: Callable[[], pa.Table], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        made()
    assert caught.value.hint
