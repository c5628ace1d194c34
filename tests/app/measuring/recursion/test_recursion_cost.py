"""The measure `recursion`: all ways agree, who is not there is told, a wrong answer is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.app.measuring.follower import AgainstRecapture
from impctl.app.measuring.kinds import recursion_cost
from impctl.app.measuring.kinds.recursion_cost import are_same_rows
from impctl.app.measuring.recursion import anew, searches
from impctl.app.measuring.recursion.circuit import Kept
from impctl.app.measuring.recursion.took import Took
from impctl.app.measuring.registry import MEASURES
from impctl.app.workbench.workbench import Workbench
from impctl.bench.networks.shapes import random_links
from impctl.bench.parquet_sql import ParquetSql
from impctl.bench.record import Cell
from impctl.errors import UnsupportedError, UsageError, WorkloadError
from impctl.workload.suite_models import OptionValue
from tests.app.measuring.recursion.network_desk import network_desk
from tests.support.measured_cells import cells_of, ground_of, values
from tests.support.random_cases import random_seeds

NO_SCIPY = "scipy is not installed"
LEAST_COSTS = (
    "WITH RECURSIVE p(n, c) USING KEY (n) AS ("
    "SELECT dst, min(cost) FROM links WHERE src < 2 GROUP BY dst UNION "
    "SELECT l.dst, min(p.c + l.cost) FROM p JOIN links l ON p.n = l.src "
    "LEFT JOIN recurring.p AS o ON o.n = l.dst "
    "WHERE o.c IS NULL OR p.c + l.cost < o.c GROUP BY l.dst) SELECT n, c FROM p"
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with network_desk(tmp_path_factory.mktemp("network")) as desk:
        yield desk


@pytest.fixture(autouse=True)
def _no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursion_cost, "has_scipy", lambda: False)


def cells(desk: Workbench, query: str, **options: OptionValue) -> list[Cell]:
    return cells_of(ground_of(desk, "recursion", query, **options))


@pytest.mark.parametrize(
    "options",
    [
        *({"change": 1}, {"changes": 0}, {"sources": -1}, {"ranges": 0}, {"start": 1}),
        *({"search": "depth"}, {"steps": 0}, {"duckdb": ("SELECT 1", "SELECT 2")}),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    desk: Workbench, options: dict[str, Any]
) -> None:
    with pytest.raises(WorkloadError):
        MEASURES["recursion"].run(ground_of(desk, "recursion", "few", **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "options", "rows"),
    [
        ("few", {"sources": 2}, 25),
        ("pairs", {}, 625),
        ("regions", {"changed": "triggered"}, None),
    ],
)
def test_all_ways_agree_and_are_timed(
    desk: Workbench, query: str, options: dict[str, Any], rows: int | None
) -> None:
    one, ten = cells(desk, query, changes=(1, 10), ranges=5, **options)
    for cell, changes in ((one, 1), (ten, 10)):
        found = values(cell)
        assert cell.labels == {"changes": changes}
        assert (cell.covers, cell.slack, cell.equal) == (True, 0, True)
        assert cell.metrics["delete_ms"].runs == cell.metrics["insert_ms"].runs == 2
        assert rows in (None, found["answer_rows"])
        assert found["state_bytes"] > 0
        assert found["anew_ratio"] == pytest.approx(found["anew_ms"] / found["delete_ms"])
        assert ("search_ms" in found) == ("sources" in options)
        assert found["delete_wall_ms"] > 0 < found["insert_wall_ms"]
        if ParquetSql.is_installed():
            lesser = min(found["duckdb_cpu_ms"], found["duckdb_wall_ms"])
            assert found["duckdb_answer_ms"] <= lesser
            for name, other, under in (
                ("duckdb_answer_ratio", "duckdb_answer_ms", "delete_ms"),
                ("duckdb_cpu_ratio", "duckdb_cpu_ms", "delete_ms"),
                ("duckdb_wall_ratio", "duckdb_wall_ms", "delete_wall_ms"),
            ):
                assert found[name] == pytest.approx(found[other] / found[under])
            assert cell.note == (NO_SCIPY if "sources" in options else "")


@pytest.mark.slow
def test_cheapest_ways_and_a_text_in_the_words_of_duckdb(desk: Workbench) -> None:
    pytest.importorskip("duckdb")
    (cell,) = cells(
        desk, "costs", changes=5, sources=2, search="paths", duckdb=LEAST_COSTS, steps=7
    )
    assert (cell.covers, cell.equal, cell.note) == (True, True, NO_SCIPY)
    assert cell.metrics["delete_ms"].runs == cell.metrics["insert_wall_ms"].runs == 7
    assert cell.metrics["duckdb_cpu_ms"].runs == 2
    (wrong,) = cells(desk, "costs", changes=5, duckdb=LEAST_COSTS.replace("src < 2", "src < 1"))
    assert wrong.equal is False


def test_without_duckdb_a_note_says_so(desk: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetSql, "is_installed", staticmethod(lambda: False))
    (cell,) = cells(desk, "few", changes=5)
    assert (cell.covers, cell.equal, cell.note) == (True, True, "DuckDB is not installed")


@pytest.mark.parametrize("who", ["duckdb", "search"])
def test_who_asks_anew_and_has_another_answer_is_told(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    def wrong(*_: object) -> tuple[pa.Table, Took]:
        return pa.table({"n": pa.array([0], pa.int64())}), Took(1.0, 1.0)

    if who == "duckdb":
        pytest.importorskip("duckdb")
        monkeypatch.setattr(anew.DuckDb, "asked", wrong)
    else:
        monkeypatch.setattr(recursion_cost, "searched", wrong)
    (cell,) = cells(desk, "few", changes=5, sources=2)
    assert (cell.equal, cell.covers) == (False, True)


def test_a_table_too_small_is_told(desk: Workbench) -> None:
    few, many = cells(desk, "few", changes=(5, 101))
    assert few.equal
    assert (many.metrics, many.note) == ({}, "not run: `links` has 100 rows")


@pytest.mark.parametrize("what", ["sketch", "answer"])
def test_a_circuit_that_went_astray_is_told(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    right = Kept.answer
    monkeypatch.setattr(ParquetSql, "is_installed", staticmethod(lambda: False))
    if what == "sketch":
        monkeypatch.setattr(Kept, "against", lambda *_: AgainstRecapture(False, 0))
    else:
        lengths = iter(range(1, 100))
        monkeypatch.setattr(Kept, "answer", lambda self: right(self).slice(next(lengths) % 2))
    (cell,) = cells(desk, "few", changes=5)
    assert (cell.covers, cell.equal) == (what == "answer", what == "sketch")


def test_a_table_or_column_that_is_not_there(desk: Workbench) -> None:
    with pytest.raises(WorkloadError):
        cells(desk, "few", changed="near")
    with pytest.raises(UsageError, match="which `triggered` lacks"):
        cells(desk, "strange")
    with pytest.raises(UnsupportedError, match="no sketch to maintain"):
        cells(desk, "unsketched")


@random_seeds(3, 12, 20)
def test_a_search_finds_what_is_reached_by_one_link_at_least(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 12))
    links = random_links(int(rng.integers(1, nodes * (nodes - 1) // 2 + 1)), nodes, seed)
    pairs = list(zip(links["src"].to_pylist(), links["dst"].to_pylist(), strict=True))
    for sources in (1, 2, nodes + 3):
        found = {dst for src, dst in pairs if src < sources}
        while more := {dst for src, dst in pairs if src in found} - found:
            found |= more
        rows, _ = searches.searched(links, sources, searches.REACH)
        assert set(rows["n"].to_pylist()) == found
        assert len(rows) == len(found)


@random_seeds(3, 12, 20)
def test_a_search_finds_the_least_costs(seed: int) -> None:
    """Beside sums that are made less until none can be."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 12))
    links = random_links(int(rng.integers(1, nodes * (nodes - 1) // 2 + 1)), nodes, seed)
    rows = list(zip(*(links[name].to_pylist() for name in ("src", "dst", "cost")), strict=True))
    for sources in (1, 2, nodes + 3):
        least: dict[int, int] = {}
        before: dict[int, int] | None = None
        while before != least:
            before = dict(least)
            for src, dst, cost in rows:
                ways = [cost] if src < sources else []
                ways += [least[src] + cost] if src in least else []
                if ways:
                    least[dst] = min([*ways, least.get(dst, ways[0])])
        found, took = searches.searched(links, sources, searches.PATHS)
        assert dict(zip(found["n"].to_pylist(), found["cost"].to_pylist(), strict=True)) == least
        assert took.lesser_ms == min(took.cpu_ms, took.wall_ms)


def test_same_rows_in_any_order_and_as_often() -> None:
    one = pa.table({"a": [1, 2, 2], "b": [3, 4, 4]})
    assert are_same_rows(one, pa.table({"x": [2, 1, 2], "y": [4, 3, 4]}))
    assert are_same_rows(one, one.cast(pa.schema({"a": pa.int32(), "b": pa.int64()})))
    assert not are_same_rows(one, pa.table({"a": [1, 1, 2], "b": [3, 3, 4]}))
    assert not are_same_rows(one, one.slice(1))
    assert not are_same_rows(one, one.select(["a"]))
