"""Networks of plain shapes are what they say, and the same for the same seed; sensors stand where
they say, and know who is near; lists of links as people have them, and what is no list told."""

from __future__ import annotations

import bz2
import gzip
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.bench.networks.alarms import alarm_tables
from impctl.bench.networks.circles import circle_links
from impctl.bench.networks.communities import COMMUNITY_NODES, community_links
from impctl.bench.networks.edge_list import listed_links
from impctl.bench.networks.sensors import SEEDS, sensor_tables
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
        (lambda: grid_links(7, 1), "at least 8 links"),
        (lambda: chain_links(0, 1), "at least 1 links"),
        (lambda: forest_links(5, 1, 1), "at least 1 links"),
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


@pytest.mark.parametrize("sensors", [36, 100, 110, 400])
def test_near_are_those_below_twenty_metres(sensors: int) -> None:
    tables = {name: table.to_pydict() for name, table in sensor_tables(sensors, 1).items()}
    sensor = tables["sensor"]
    at = dict(zip(sensor["id"], zip(sensor["x"], sensor["y"], strict=True), strict=True))
    assert len(at) == {36: 36, 100: 100, 110: 100, 400: 400}[sensors]
    expected = {}
    for one, (x, y) in at.items():
        for other, (u, v) in at.items():
            squared = (x - u) ** 2 + (y - v) ** 2
            if one != other and squared < 2000**2:
                expected[one, other] = round(squared**0.5)
    near = tables["near"]
    found = dict(zip(zip(near["src"], near["dst"], strict=True), near["cost"], strict=True))
    assert found == expected
    assert len(near["src"]) == len(expected)
    assert max(map(max, at.values())) < 10_000


def test_seeds_are_triggered_first_and_half_of_the_others() -> None:
    tables = {name: table.to_pydict() for name, table in sensor_tables(100, 1).items()}
    seeds, triggered = tables["seed"], tables["triggered"]
    assert seeds["region"] == list(range(SEEDS))
    assert triggered["sensor"][:SEEDS] == seeds["sensor"]
    assert len({*triggered["sensor"]}) == len(triggered["sensor"]) == SEEDS + (100 - SEEDS) // 2
    assert triggered["at"] == [0] * SEEDS + list(range(1, len(triggered["at"]) - SEEDS + 1))
    assert sensor_tables(100, 1)["triggered"].equals(sensor_tables(100, 1)["triggered"])
    assert not sensor_tables(100, 2)["triggered"].equals(sensor_tables(100, 1)["triggered"])


def test_a_field_needs_sensors() -> None:
    with pytest.raises(UsageError, match="too small"):
        sensor_tables(35, 1)
    with pytest.raises(UsageError, match="too small for alarms"):
        alarm_tables(399, 1)


def test_around_alarms_all_sensors_are_triggered() -> None:
    tables = {name: table.to_pydict() for name, table in alarm_tables(2_000, 1).items()}
    sensor, triggered, seeds = tables["sensor"], tables["triggered"], tables["seed"]["sensor"]
    at = dict(zip(sensor["id"], zip(sensor["x"], sensor["y"], strict=True), strict=True))
    assert sensor["id"] == list(range(44 * 44))
    assert {*at.values()} == {(x * 1000, y * 1000) for x in range(44) for y in range(44)}
    there = {*triggered["sensor"]}
    assert len(there) == len(triggered["sensor"])
    assert triggered["sensor"][:SEEDS] == seeds
    assert triggered["at"] == [0] * SEEDS + list(range(1, len(there) - SEEDS + 1))
    around = {
        one
        for one, (x, y) in at.items()
        for u, v in (at[seed] for seed in seeds)
        if (x - u) ** 2 + (y - v) ** 2 <= 5_000**2
    }
    assert around <= there
    others = len(there - around) / (len(at) - len(around))
    assert 0.15 < others < 0.25
    assert alarm_tables(2_000, 1)["triggered"].equals(alarm_tables(2_000, 1)["triggered"])


def test_sensors_of_alarms_know_the_eight_around_them() -> None:
    tables = {name: table.to_pydict() for name, table in alarm_tables(500, 2).items()}
    sensor, near = tables["sensor"], tables["near"]
    places = list(zip(sensor["x"], sensor["y"], strict=True))
    expected = {}
    for one, (x, y) in enumerate(places):
        for other, (u, v) in enumerate(places):
            squared = (x - u) ** 2 + (y - v) ** 2
            if 0 < squared < 2000**2:
                expected[one, other] = round(squared**0.5)
    found = dict(zip(zip(near["src"], near["dst"], strict=True), near["cost"], strict=True))
    assert found == expected
    assert len(near["src"]) == len(expected)
    # Numbers follow places: who has the next one stands beside it, but where the field ends.
    steps = [abs(x - u) + abs(y - v) for (x, y), (u, v) in pairwise(places)]
    assert steps.count(1000) > 0.9 * len(steps)
    # All of them where the field is as wide as the curve.
    whole = alarm_tables(1024, 1)["sensor"].to_pydict()
    places = list(zip(whole["x"], whole["y"], strict=True))
    assert {abs(x - u) + abs(y - v) for (x, y), (u, v) in pairwise(places)} == {1000}


def links_of(table: pa.Table) -> list[tuple[int, int, int]]:
    return list(zip(*(table[name].to_pylist() for name in ("src", "dst", "cost")), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# a list\n10 20\n20 30\n10 20\n30 30\n", [(0, 1, 1), (1, 2, 1)]),
        ("src,dst,cost\n1,2,7\n2,1,3\n", [(0, 1, 7), (1, 0, 3)]),
        ("5\t3\t2\t99\n\n3\t5\t4\t1\n", [(1, 0, 2), (0, 1, 4)]),
        ("% konect\nb a\na c\n", [(1, 0, 1), (0, 2, 1)]),
        ("9 10\n10 9\n", [(0, 1, 1), (1, 0, 1)]),
        ("a 9\n9 10\n", [(2, 1, 1), (1, 0, 1)]),
        ("1 2\n1 2 5\n", [(0, 1, 1)]),
        ("1, 2\n2, 3\n", [(0, 1, 1), (1, 2, 1)]),
        ("\ufeffid;to;km\r\n1;2;7\r\n", [(0, 1, 7)]),
        ("source,target\nann lee,bob\nbob,cy\n", [(0, 1, 1), (1, 2, 1)]),
        ('"from","to"\n"a","b"\n', [(0, 1, 1)]),
        ("# FromNodeId\tToNodeId\n3\t1\n1\t 2\n", [(2, 0, 1), (0, 1, 1)]),
    ],
)
def test_text(text: str, expected: list[tuple[int, int, int]], tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text, encoding="utf-8")
    table = listed_links(file)
    assert links_of(table) == expected
    assert table["id"].to_pylist() == list(range(len(expected)))
    assert all(kind == pa.int64() for kind in table.schema.types)


def test_parquet(tmp_path: Path) -> None:
    file = tmp_path / "links.parquet"
    columns = {"a": [7, 8, 7], "b": [8, 9, 8], "c": [2, 3, 2]}
    pq.write_table(pa.table(columns), file)
    assert links_of(listed_links(file)) == [(0, 1, 2), (1, 2, 3)]
    pq.write_table(pa.table({**columns, "c": [0.5, 0.5, 0.5]}), file)
    assert links_of(listed_links(file)) == [(0, 1, 1), (1, 2, 1)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line with a link"),
        ("# 1 2\n", "no line with a link"),
        ("1\n2\n", "line 1 has fewer than two columns"),
        ("# a list\n1,2\n\n3\n", "line 4 has fewer than two columns"),
        ("1 1\n", "no link between two nodes"),
        ("1 2 3\n1 2 0\n", "line 2 has a cost that is not a number above 0: 0"),
        ("1 2 x\n", "line 1 has a cost that is not a number above 0: x"),
        ("1 2 -4\n", "not a number above 0: -4"),
        ("1 2 0.5\n", "not a number above 0: 0.5"),
        ("1 2 99999999999999999999\n", "not a number above 0"),
    ],
)
def test_what_is_no_list(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        listed_links(file)


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_packed_text(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / f"links.txt{ending}"
    file.write_bytes(pack(b"# packed\n1 2\n2 1\n"))
    assert links_of(listed_links(file)) == [(0, 1, 1), (1, 0, 1)]
    file.write_bytes(b"1 2\n")
    with pytest.raises(UsageError, match="cannot be unpacked"):
        listed_links(file)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        listed_links(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 1\n")
    with pytest.raises(UsageError, match="cannot be read as text"):
        listed_links(tmp_path / "latin.txt")
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="No list of links"):
        listed_links(tmp_path / "broken.parquet")
    pq.write_table(pa.table({"a": [1, None], "b": [2, 3]}), tmp_path / "gap.parquet")
    with pytest.raises(UsageError, match="NULL"):
        listed_links(tmp_path / "gap.parquet")
