"""The measure `trees`: cells of every kind of stream, what is not run told, what differs told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from impctl.app.measuring.registry import MEASURES
from impctl.app.measuring.trees import semi_joins
from impctl.app.measuring.trees.streams import Step
from impctl.app.measuring.trees.ways import Followed
from impctl.app.workbench.workbench import Workbench
from impctl.bench.parquet_sql import ParquetSql
from impctl.bench.record import Cell
from impctl.errors import UnsupportedError, WorkloadError
from impctl.sketch.fragments import FragmentSet
from impctl.workload.suite_models import OptionValue
from tests.app.measuring.trees.joined_desk import joined_desk
from tests.support.measured_cells import cells_of, ground_of, values
from tests.support.refused import refused

NO_DUCKDB = "DuckDB is not installed"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with joined_desk(tmp_path_factory.mktemp("joined")) as desk:
        yield desk


def cells(desk: Workbench, query: str, **options: OptionValue) -> list[Cell]:
    return cells_of(ground_of(desk, "trees", query, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"change": 3},
        {"changes": 0},
        {"kind": "windows"},
        {"kind": "window", "share": 1.0},
        {"kind": "outlived"},
        {"kind": "outlived", "changed": "m"},
        {"lives": 0},
        {"steps": 3, "parts": 4},
        {"regret": "yes"},
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    desk: Workbench, options: dict[str, Any]
) -> None:
    with pytest.raises(WorkloadError):
        MEASURES["trees"].run(ground_of(desk, "trees", "path", **options))


@pytest.mark.parametrize(
    ("query", "kind"), [("pair", "both"), pytest.param("path", "window", marks=pytest.mark.slow)]
)
def test_all_ways_agree_and_are_timed(desk: Workbench, query: str, kind: str) -> None:
    (cell,) = cells(desk, query, kind=kind, changes=40)
    found = values(cell)
    assert (cell.covers, cell.slack) == (True, 0)
    assert {"tree_ms", "index_ms", "index_ratio", "joined_rows"} <= found.keys()
    assert found["touched_count"] > 0 <= found["flips_count"]
    assert cell.metrics["tree_ms"].runs == cell.metrics["index_ms"].runs == 4
    assert found["index_ratio"] == pytest.approx(found["index_ms"] / found["tree_ms"])
    assert found["joined_rows"] > 400 < found["state_bytes"]
    if ParquetSql.is_installed():
        assert {"duckdb_ms", "duckdb_ratio"} <= found.keys(), cell.note
        assert cell.note == ""


@pytest.mark.slow
def test_an_index_with_too_many_joined_rows_is_named_not_run(desk: Workbench) -> None:
    (cell,) = cells(desk, "pair", changes=10, most_joined=1999)
    found = values(cell)
    assert found["joined_rows"] == 2000
    assert cell.note.startswith("index join not run: 2,000 joined rows")
    assert not any(name.startswith("index") for name in found)
    (run,) = cells(desk, "pair", changes=10, most_joined=2000)
    assert "index_ms" in values(run)


@pytest.mark.slow
def test_without_duckdb_a_note_says_so(desk: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetSql, "is_installed", staticmethod(lambda: False))
    (cell,) = cells(desk, "pair", changes=10)
    assert (cell.covers, cell.note) == (True, NO_DUCKDB)
    assert "duckdb_ms" not in cell.metrics
    (alone,) = cells(desk, "pair", changes=10, most_joined=1)
    assert (alone.covers, alone.slack) == (True, 0)
    assert alone.note.endswith(f"{NO_DUCKDB}; compared with a separately filled tree")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "when"), [("tree", "before"), ("tree", "last"), ("index", "before"), ("duckdb", "last")]
)
def test_a_way_with_another_sketch_is_told(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch, way: str, when: str
) -> None:
    """The way's sketches are empty before anything is timed, or at the end alone."""
    timed: list[bool] = []
    steps = Followed.step

    def step(self: Followed, given: Step) -> float:
        timed.append(True)
        return steps(self, given)

    def changed(held: Mapping[str, FragmentSet]) -> Mapping[str, FragmentSet]:
        # Of two ways each is stepped twice before.
        if (len(timed) > 4) != (when == "last"):
            return held
        return {access: part.minus(part) for access, part in held.items()}

    monkeypatch.setattr(Followed, "step", step)

    if way == "duckdb":
        pytest.importorskip("duckdb")
        right = semi_joins.SketchQuestion.asked
        monkeypatch.setattr(
            semi_joins.SketchQuestion, "asked", lambda self, c: changed(right(self, c))
        )
    else:
        fragments = Followed.fragments

        def wrong(self: Followed) -> Mapping[str, FragmentSet]:
            held = fragments(self)
            return changed(held) if (self.work[0] > 0) == (way == "tree") else held

        monkeypatch.setattr(Followed, "fragments", wrong)
    (cell,) = cells(desk, "pair", changes=40)
    if way == "tree":
        assert cell.covers is False
    else:
        assert (cell.slack or 0) > 0


def test_a_query_that_joins_nothing_is_refused(desk: Workbench) -> None:
    with refused(UnsupportedError, "no_join_tree"):
        cells(desk, "single")


def test_a_table_that_is_not_read_cannot_change(desk: Workbench) -> None:
    with pytest.raises(WorkloadError, match="problem"):
        cells(desk, "pair", changed="g")
