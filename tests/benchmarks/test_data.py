"""Tables of a suite: deterministic, written once, with some rows held back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from benchmarks.data import make_data, requests_of
from benchmarks.layout import DAYS, Order, layout_files
from benchmarks.networks.communities import COMMUNITY_NODES, circle_links, community_links
from benchmarks.networks.edge_list import listed_links
from benchmarks.networks.sensors import sensor_tables
from benchmarks.networks.shapes import (
    chain_links,
    forest_links,
    grid_links,
    power_law_links,
    random_links,
)
from benchmarks.networks.transit_stub import transit_stub_links
from benchmarks.state.held_back import commit, hold_back
from benchmarks.suite import DataSpec
from impctl.errors import Location, UsageError, WorkloadError
from impctl.service.context import Context, SilentReporter, open_context
from impctl.service.settings import Settings
from impctl.tables.rows import read_rows
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import refused

LOCATION = Location("s.yaml", 3, 5)


def spec(example: str = "synthetic", **options: Any) -> DataSpec:
    rows, least = options.pop("rows", None), options.pop("least", 1)
    return DataSpec("t", example, rows, least, options, options.pop("source", None), LOCATION)


def make(folder: Path, data: DataSpec, scale: float = 1.0, seed: int = 1) -> DeltaTable:
    requests = requests_of([data], scale=scale, seed=seed, source=None)
    make_data(requests, folder, SilentReporter())
    return DeltaTable(folder / "t")


def rows_of(table: DeltaTable) -> int:
    return int(table.to_pyarrow_table().num_rows)


def request_of(data: DataSpec, scale: float = 1, seed: int = 1, source: Path | None = None) -> Any:
    """Return the only request."""
    (result,) = requests_of([data], scale=scale, seed=seed, source=source)
    return result


def test_a_table_is_rewritten_for_another_request(tmp_path: Path) -> None:
    data = spec(rows=1000, groups=5)
    first = make(tmp_path, data).metadata().id
    assert rows_of(make(tmp_path, data)) == 1000
    assert make(tmp_path, data).metadata().id == first
    assert make(tmp_path, data, seed=2).metadata().id != first
    assert rows_of(make(tmp_path, data, scale=0.1)) == 100


@pytest.mark.parametrize(
    ("data", "scale", "expected"),
    [
        (spec(rows=1000, least=300), 0.1, {"rows": 300}),
        (spec(rows=1000, per_group=20), 0.5, {"rows": 500, "groups": 25}),
        (spec(seed=7, sorted=True), 1, {"seed": 7, "sort_rows": True}),
        (spec(), 1, {"seed": 4, "sort_rows": False}),
        (spec("partners", rows=900), 1, {"groups": None, "order": None, "sort_rows": False}),
    ],
)
def test_a_request_follows_scale_and_options(
    data: DataSpec, scale: float, expected: dict[str, object]
) -> None:
    request = request_of(data, scale, seed=4)
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize("example", ["partners", "graph", "social"])
def test_tables_with_large_joins(example: str, tmp_path: Path) -> None:
    data = spec(example, rows=4000, least=400)
    request = request_of(data, 0.5)
    assert request.rows == 2000
    make_data([request], tmp_path, SilentReporter())
    marker = (tmp_path / ".t.request.json").read_text()
    path = tmp_path / "t" / "message" if example == "social" else tmp_path / "t"
    first = DeltaTable(path)
    assert rows_of(first) == 2000
    make_data([request], tmp_path, SilentReporter())
    assert DeltaTable(path).metadata().id == first.metadata().id
    other = request_of(data, 0.5, seed=2)
    assert other.text() != marker == request.text()


def test_networks_by_their_shapes(tmp_path: Path) -> None:
    specs = [
        replace(spec("network", shape="transit_stub", groups=25), name="links"),
        replace(spec("network", shape="chain", rows=40, least=30), name="chain"),
        replace(spec("network", shape="sensors", rows=100, least=64), name="field"),
        replace(spec("network", shape="forest", rows=60, groups=7), name="trees"),
    ]
    specs[0] = replace(specs[0], rows=100, least=100)
    requests = requests_of(specs, scale=0.5, seed=3, source=None)
    assert [request.rows for request in requests] == [100, 30, 64, 30]
    make_data(requests, tmp_path, SilentReporter())
    for name, rows in (("links", 100), ("chain", 30), ("field/sensor", 64), ("trees", 30)):
        assert rows_of(DeltaTable(tmp_path / name)) == rows
    trees = DeltaTable(tmp_path / "trees").to_pyarrow_table().to_pydict()
    assert all(a // 7 == b // 7 for a, b in zip(trees["src"], trees["dst"], strict=True))


def test_listed_and_default_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, links = spec("network", shape="given", rows=500), tmp_path / "links.csv"
    default = request_of(data)
    assert (default.shape, default.rows, default.source) == ("power_law", 500, None)
    with refused(UsageError, "source_missing"):
        requests_of([data], scale=1, seed=1, source=links)
    links.write_text("1,2\n2,3\n")
    listed = request_of(data, 1, source=links)
    assert (listed.shape, listed.rows, listed.source) == ("given", None, str(links))
    make_data([listed], tmp_path / "data", SilentReporter())
    assert rows_of(DeltaTable(tmp_path / "data" / "t")) == 2
    marker = listed.text()
    links.write_text("1,2\n2,3\n3,4\n")
    assert listed.text() != marker, "another list"
    # `--source` may also name the crimes data.
    monkeypatch.setenv("IMPCTL_CRIMES", str(links))
    assert requests_of([data], scale=1, seed=1, source=links) == (default,)


def test_files_of_others_are_kept(tmp_path: Path) -> None:
    note = tmp_path / "t" / "notes.txt"
    note.parent.mkdir()
    note.write_text("mine")
    with refused(UsageError, "data_not_ours"):
        make(tmp_path, spec(rows=10))
    assert note.read_text() == "mine"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (spec(group=5), "Example `synthetic` has no option `group`"),
        (spec(groups=0), "Option `groups` of `t` must be above 0"),
        (spec(groups="x"), "Option `groups` of `t` must be a number"),
        (spec(groups=True), "Option `groups` of `t` must be a number"),
        (spec(groups=(1, 2)), "Option `groups` of `t` must be a number"),
        (spec(sorted=1), "Option `sorted` of `t` must be true or false"),
        (spec(groups=2, per_group=2), "`t` has both `groups` and `per_group`"),
        (spec("graph", exponent="x"), "Option `exponent` of `t` must be a number"),
        (
            spec("network", shape="ring"),
            "Option `shape` of `t` must be one of transit_stub, grid"
            ", chain, forest, random, power_law, communities, circles, sensors, alarms"
            ", worked_example, given",
        ),
        (spec("network", exponent=2), "Example `network` has no option `exponent`"),
        (spec("social", groups=2), "Example `social` has no option `groups`"),
        (spec("crimes", groups=2), "Example `crimes` has no option `groups`"),
        (spec("tpch", scale_factor="x"), "Option `scale_factor` of `t` must be a number"),
    ],
)
def test_wrong_options_are_reported_before_writing(data: DataSpec, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        requests_of([data, data], scale=1, seed=1, source=None)
    assert [problem.message for problem in caught.value.problems] == [message, message]
    assert all(problem.location == LOCATION and problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize("example", ["crimes", "tpch"])
def test_a_missing_source_has_a_hint(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.data._generator", lambda: None)
    with refused(UsageError, "source_missing") as caught:
        requests_of([spec(example)], scale=1, seed=1, source=Path("nowhere"))
    assert "--source" in (caught.value.hint or "")
    assert caught.value.location == LOCATION


def test_a_crimes_file_is_no_tpch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable names either source, so a source of the wrong kind is ignored."""
    monkeypatch.setattr("benchmarks.data._generator", lambda: "tpchgen-cli")
    file = tmp_path / "crimes.parquet"
    file.write_text("")
    request = request_of(spec("tpch", scale_factor=2), 0.5, source=file)
    assert (request.source, request.scale_factor) == (None, 1.0)
    with pytest.raises(UsageError):
        requests_of([spec("crimes")], scale=1, seed=1, source=tmp_path)


MakeLinks = Callable[[int], pa.Table]
LINK_MAKERS: dict[str, MakeLinks] = {
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


@pytest.mark.parametrize("make_links", LINK_MAKERS.values(), ids=LINK_MAKERS)
def test_links_are_unique_and_deterministic(make_links: MakeLinks) -> None:
    table = make_links(3)
    pairs = pairs_of(table)
    assert len({*pairs}) == len(pairs) > 40
    assert all(src != dst for src, dst in pairs)
    assert min(map(min, pairs)) >= 0
    assert table["id"].to_pylist() == list(range(len(pairs)))
    assert min(table["cost"].to_pylist()) >= 1
    assert table.equals(make_links(3))
    assert not table.equals(make_links(4))


def test_communities_are_dense_and_connected() -> None:
    pairs = pairs_of(community_links(10_000, 1000, 1))
    assert len(pairs) == 10_000
    across = [(a, b) for a, b in pairs if a // COMMUNITY_NODES != b // COMMUNITY_NODES]
    # A ring of ten, and one in five hundred links.
    assert len(across) == 10 + 20
    assert {a // COMMUNITY_NODES for a, b in pairs} == {*range(10)}
    # With few links, all but one between communities form the ring.
    for links in (10_000, 400):
        between = {
            (a // COMMUNITY_NODES, b // COMMUNITY_NODES)
            for a, b in pairs_of(community_links(links, 1000, 1))
        }
        assert {(community, (community + 1) % 10) for community in range(10)} <= between


def test_the_first_of_a_circle_knows_all_others() -> None:
    pairs = {*pairs_of(circle_links(8000, 1200, 1))}
    assert len(pairs) == 8000
    assert {(dst, src) for src, dst in pairs} == pairs
    # 1,200 in shares of 1, 0.71 and 0.58: circles begin at these numbers.
    starts = (0, 526, 897)
    circle = np.searchsorted(starts, np.arange(1200), side="right") - 1
    assert all((starts[circle[node]], node) in pairs for node in range(1200) if node not in starts)
    across = [(a, b) for a, b in pairs if circle[a] != circle[b]]
    # A ring of three, and one in five hundred links.
    assert len(across) == 6 + 16
    assert reached_from(5, [*pairs]) == {*range(1200)}


def reached_from(start: int, pairs: list[tuple[int, int]]) -> set[int]:
    result = {start}
    while more := {dst for src, dst in pairs if src in result} - result:
        result |= more
    return result


@pytest.mark.parametrize(("links", "nodes"), [(400, 100), (200, 100), (800, 200), (100, 25)])
def test_routers_are_connected_and_dense(links: int, nodes: int) -> None:
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
            assert (src - transits) // 8 == (dst - transits) // 8, (
                "stubs have no links to other stubs"
            )


def positions_of(sensor: dict[str, list[int]]) -> dict[int, tuple[int, int]]:
    return dict(zip(sensor["id"], zip(sensor["x"], sensor["y"], strict=True), strict=True))


@pytest.mark.parametrize("sensors", [36, 100, 110, 400])
def test_sensors_within_20_metres_are_near(sensors: int) -> None:
    tables = {name: table.to_pydict() for name, table in sensor_tables(sensors, 1).items()}
    positions = positions_of(tables["sensor"])
    assert len(positions) == {36: 36, 100: 100, 110: 100, 400: 400}[sensors]
    expected = {}
    for src, (x, y) in positions.items():
        for dst, (u, v) in positions.items():
            squared = (x - u) ** 2 + (y - v) ** 2
            if src != dst and squared < 2000**2:
                expected[src, dst] = round(squared**0.5)
    near = tables["near"]
    result = dict(zip(zip(near["src"], near["dst"], strict=True), near["cost"], strict=True))
    assert result == expected
    assert len(near["src"]) == len(expected)
    assert max(map(max, positions.values())) < 10_000


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
def test_lists_of_links(text: str, expected: list[tuple[int, int, int]], tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text, encoding="utf-8")
    table = listed_links(file)
    assert links_of(table) == expected
    assert table["id"].to_pylist() == list(range(len(expected)))
    assert all(kind == pa.int64() for kind in table.schema.types)


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_invalid_lists_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        listed_links(file)


def values(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy()


ROWS, GROUPS, FILES = 4_000, 400, 50


def files(order: Order, count: int = FILES, seed: int = 1) -> list[pa.Table]:
    return list(layout_files(ROWS, GROUPS, order, count, seed))


def mean_span(parts: list[pa.Table], name: str) -> float:
    spans = (pc.min_max(part[name]).as_py() for part in parts)
    return float(np.mean([span["max"] - span["min"] for span in spans]))


def test_orders_of_rows() -> None:
    starts = [part["a"][0].as_py() for part in files(Order.SORTED)]
    assert all(low < high for low, high in pairwise(starts))
    span = {order: mean_span(files(order), "a") for order in Order}
    assert span[Order.SORTED] < span[Order.NEARLY] < span[Order.ZORDER] < span[Order.RANDOM]
    assert span[Order.NEARLY] < 0.1 * GROUPS
    days = {order: mean_span(files(order), "day") for order in (Order.ZORDER, Order.NEARLY)}
    assert days[Order.ZORDER] < 0.3 * DAYS < days[Order.NEARLY]


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    for table, rows in (("t", 1000), ("u", 30)):
        # Some rows occur twice, and count as two.
        ids = [number // 2 for number in range(rows)]
        create_table(str(tmp_path / table), pa.table({"id": pa.array(ids, pa.int64())}))
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\nqueries: {q: {sql: SELECT id FROM t}}\n"
    )
    with open_context(Settings(tmp_path / "w.yaml"), SilentReporter()) as ctx:
        yield ctx


def stored_ids(ctx: Context, table: str) -> Counter[int]:
    ctx.tables.advance(table)
    return Counter(read_rows(ctx.tables.snapshot(table), ["id"]).column(0).to_pylist())


@pytest.mark.slow
def test_held_back_rows_are_inserted(ctx: Context) -> None:
    original = {table: stored_ids(ctx, table) for table in ("t", "u")}
    changes = hold_back(ctx, dict.fromkeys(("t", "u"), (0.2, 0.02, 0.001)), 0.0, seed=1)
    assert [len(change["t"].comes) for change in changes] == [200, 20, 1]
    # At least one row is inserted into every table.
    assert [len(change["u"].comes) for change in changes] == [6, 1, 1]
    assert stored_ids(ctx, "t").total() == 779
    rows = [commit(ctx, change) for change in changes]
    assert rows == [206, 21, 2]
    assert {table: stored_ids(ctx, table) for table in ("t", "u")} == original


def test_deletions_remove_original_rows(ctx: Context) -> None:
    original = stored_ids(ctx, "t")
    (change,) = hold_back(ctx, {"t": (0.1,)}, 0.25, seed=1)
    before = stored_ids(ctx, "t")
    assert before.total() == 925
    assert (len(change["t"].comes), change["t"].goes) == (75, 25)
    assert commit(ctx, change) == 100
    after = stored_ids(ctx, "t")
    deleted = original - after
    # Deleted rows were in the table, and are not among the inserted ones.
    assert (after.total(), deleted.total()) == (975, 25)
    assert not after - original
    inserted = Counter(change["t"].comes.column(0).to_pylist())
    assert inserted + deleted == original - (before - deleted)
