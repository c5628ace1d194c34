"""The measure `rewritten`: what a sketch leaves to read, told as the tables have it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from impctl.app.measuring.kinds import rewritten_cost
from impctl.app.workbench.workbench import Workbench
from impctl.bench.parquet_sql import ParquetSql
from impctl.bench.record import Cell
from tests.app.measuring.recursion.network_desk import generated_desk
from tests.support.measured_cells import cells_of, ground_of, values

WORKLOAD = """\
version: 1
tables:
  trees: {path: trees}
  near: {path: field/near}
  seed: {path: field/seed}
  triggered: {path: field/triggered}
partitions: {trees: {src: {fragments: 10}}}
queries:
  one_tree:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT dst FROM trees WHERE src = 0 UNION
      SELECT l.dst FROM r JOIN trees l ON r.n = l.src) SELECT n FROM r
    sketch: {trees: src}
  regions:
    sql: >-
      WITH RECURSIVE a(region, sensor) AS (SELECT s.region, s.sensor FROM seed s
      JOIN triggered t ON s.sensor = t.sensor UNION SELECT a.region, n.dst FROM a
      JOIN triggered t ON a.sensor = t.sensor JOIN near n ON a.sensor = n.src)
      SELECT region, sensor FROM a
    sketch: {near: src, triggered: sensor}
store: .impctl
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """Ten trees of 1,000 nodes in as many files, and a field."""
    folder = tmp_path_factory.mktemp("files")
    made = {"trees": ("forest", 10_000, 1_000, 10), "field": ("alarms", 2_500, None, 20)}
    with generated_desk(folder, WORKLOAD, made) as desk:
        yield desk


def cell_of(desk: Workbench, query: str) -> Cell:
    (cell,) = cells_of(ground_of(desk, "rewritten", query))
    return cell


def test_one_tree_of_ten(desk: Workbench) -> None:
    cell = cell_of(desk, "one_tree")
    found = values(cell)
    # Its links are the first range, as near as ranges are cut, which may share a file.
    assert found["answer_rows"] == 999
    assert found["sketched_rows"] == 10_000
    assert 0.0999 <= found["rows_share"] <= 0.21
    assert found["files_share"] in (pytest.approx(0.1), pytest.approx(0.2))
    assert found["fragments_share"] <= 0.2
    if ParquetSql.is_installed():
        assert (cell.equal, cell.note) == (True, "")
        for ratio, way, unit in (
            ("gain_ratio", "plain", "_ms"),
            ("loaded_ratio", "loaded", "_ms"),
            ("cpu_gain_ratio", "plain", "_cpu_ms"),
            ("loaded_cpu_ratio", "loaded", "_cpu_ms"),
        ):
            expected = found[f"duckdb_{way}{unit}"] / found[f"duckdb_sketch{unit}"]
            assert found[ratio] == pytest.approx(expected)
        assert cell.metrics["duckdb_plain_ms"].runs == 2


def test_without_duckdb_a_note_says_so(desk: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetSql, "is_installed", staticmethod(lambda: False))
    cell = cell_of(desk, "one_tree")
    assert (cell.equal, cell.note) == (None, "DuckDB is not installed")
    assert {"rows_share", "answer_rows"} <= cell.metrics.keys()
    assert not any(name.endswith("_ms") for name in cell.metrics)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_another_answer_is_told(desk: Workbench, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Of any of the three runs."""
    pytest.importorskip("duckdb")
    right, calls = rewritten_cost._rows_of, iter(range(10))

    def wrong(run: object) -> object:
        rows = right(run)  # type: ignore[arg-type]
        return (lambda: pa.table({"n": pa.array([0])})) if next(calls) == at else rows

    monkeypatch.setattr(rewritten_cost, "_rows_of", wrong)
    assert cell_of(desk, "one_tree").equal is False
