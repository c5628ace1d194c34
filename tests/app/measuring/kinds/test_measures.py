"""The measures beyond the cost of one change, each on small tables, options first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.app.capturing.captured import capture_query
from impctl.app.capturing.chosen_way import restored_verdict
from impctl.app.measuring.generate import generate
from impctl.app.measuring.kinds import answer_ways, duckdb_times
from impctl.app.measuring.kinds.duckdb_recapture import duckdb_plain, duckdb_recapture
from impctl.app.measuring.kinds.duckdb_times import answer_beside
from impctl.app.measuring.kinds.fresh_process import workload_document
from impctl.app.measuring.kinds.maintain_cost import _real_share
from impctl.app.measuring.kinds.update_stream import UpdateStream, pool_of
from impctl.app.measuring.measured import MeasuredQuery
from impctl.app.measuring.registry import MEASURES
from impctl.app.preparing.prepared import prepare
from impctl.app.using.engine_answer import engine_answer
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.scratch import scratch_copy
from impctl.app.workbench.settings import Example, GenerateRequest, Settings
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.bench.parquet_sql import ParquetSql, SqlFailed
from impctl.bench.record import Cell
from impctl.errors import UsageError, WorkloadError
from impctl.workload.suite_models import OptionValue
from tests.support.measured_cells import cells_of, ground_of, values

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
  s: {path: s}
partitions:
  t: {a: {ranges: 20}, b: {ranges: 20}}
queries:
  window:
    sql: SELECT a, AVG(c) AS ac FROM t GROUP BY a HAVING AVG(c) > :low AND AVG(c) < :high
    params: {low: 10, high: 20}
    sketch: {t: a}
  join:
    sql: SELECT t.a, AVG(s.b) AS sb FROM t JOIN s ON t.a = s.a GROUP BY t.a HAVING AVG(t.c) < 20
    sketch: {t: a}
    join: index
  top: {sql: "SELECT id, a FROM t ORDER BY a LIMIT 10", sketch: {t: a}}
  groups: {sql: "SELECT a, MAX(c) AS m FROM t GROUP BY a HAVING MAX(c) > 90", sketch: {t: b}}
  rows: {sql: "SELECT id FROM t WHERE b < 5 AND c > 1", sketch: {t: b}}
  sums: {sql: "SELECT a, SUM(id) AS s, COUNT(*) AS n FROM t GROUP BY a HAVING AVG(id) > 2500"}
  leaders: {sql: "SELECT a, SUM(id) AS s FROM t GROUP BY a ORDER BY s DESC LIMIT 5"}
  mixing:
    sql: SELECT s.b, COUNT(*) AS n FROM t JOIN s ON t.a = s.a GROUP BY s.b HAVING COUNT(*) > 60
    sketch: {t: a, s: c}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 4}}
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    folder = tmp_path_factory.mktemp("suite")
    for table, rows in (("t", 5000), ("s", 500)):
        request = GenerateRequest(folder, Example.SYNTHETIC, table=table, rows=rows, groups=100)
        generate(request, SilentReporter())
    (folder / "w.yaml").write_text(WORKLOAD)
    with open_workbench(Settings(folder / "w.yaml")) as desk:
        yield desk


def cells(desk: Workbench, measure: str, query: str, **options: OptionValue) -> list[Cell]:
    return cells_of(ground_of(desk, measure, query, repeat=1, scale=0.01, **options))


@pytest.mark.parametrize(
    ("measure", "options"),
    [
        ("mixed", {"ratios": "1Q1U"}),
        ("mixed", {"rations": "1U1Q"}),
        ("deletions", {"patterns": "upwards"}),
        ("deletions", {"buffers": ("20", "none")}),
        ("strategies", {"batches": 0}),
        ("memory", {"process": "no"}),
        ("rivals", {"appends": -1}),
        ("answers", {"batches": 1}),
        ("answers", {"changes": 0}),
        ("maintain", {"kind": "delete_old", "changes": 10, "shares": 0.1}),
        ("maintain", {"kind": "delete_old", "changes": 10, "key": ("id", "a")}),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    desk: Workbench, measure: str, options: dict[str, Any]
) -> None:
    with pytest.raises(WorkloadError):
        MEASURES[measure].run(ground_of(desk, measure, "window", scale=0.01, **options))


@pytest.mark.spark
def test_rivals_answer_alike_and_the_view_follows(desk: Workbench) -> None:
    (cell,) = cells(desk, "rivals", "sums", appends=3, append_rows=200)
    found = values(cell)
    assert cell.equal
    ways = {"plain_ms", "pruned_ms", "sketch_ms", "view_ms", "upkeep_ms", "view_upkeep_ms"}
    assert ways <= found.keys()
    if ParquetSql.is_installed():
        assert {"duckdb_plain_ms", "duckdb_sketch_ms"} <= found.keys(), cell.note
    assert 0 < found["files_share"] <= 1
    assert found["bytes_ratio"] >= 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("query", ["sums", "leaders"])
def test_every_way_to_an_answer_gives_the_same_after_each_change(
    desk: Workbench, query: str
) -> None:
    (cell,) = cells(desk, "answers", query, changes=200, batches=4)
    found = values(cell)
    assert cell.equal
    assert {"state_ms", "by_engine_ms", "sketch_ms", "plain_ms"} <= found.keys()
    assert found["state_ms"] > found["maintain_ms"]
    assert all(cell.metrics[name].runs == 4 for name in ("state_ms", "plain_ms"))
    if ParquetSql.is_installed():
        others = {"view_ms", "view_upkeep_ms", "duckdb_plain_ms", "duckdb_sketch_ms"}
        assert others <= found.keys(), cell.note


@pytest.mark.spark
def test_a_way_with_another_answer_is_told(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*args: Any) -> pa.Table:
        return engine_answer(*args).slice(1)

    monkeypatch.setattr(answer_ways, "engine_answer", wrong)
    (cell,) = cells(desk, "answers", "sums", changes=200, batches=2)
    assert cell.equal is False


@pytest.mark.parametrize(
    ("share", "size", "total", "told"),
    [
        (0.1, 100, 1000, 0.1),
        (0.01, 123, 12345, 0.01),
        (0.1, 1, 7, 1 / 7),
        (0.01, 1, 7, 1 / 7),
        (0.1, 1, 0, 0.1),
    ],
)
def test_a_share_is_told_as_it_is(share: float, size: int, total: int, told: float) -> None:
    assert _real_share(share, size, total) == told


def test_sizes_among_the_options_follow_the_scale(desk: Workbench) -> None:
    found = ground_of(desk, "mixed", "window", scale=0.01, operations=1000)
    assert found.scaled("operations", 10, least=1) == 10
    assert found.scaled("operations", 10, least=24) == 24


def test_equal_seeds_give_equal_tables(desk: Workbench) -> None:
    pool = pool_of(desk.tables, "t", "id", 1)
    assert pool.first_key == 5000
    found = []
    for seed in (1, 1, 2):
        with scratch_copy(desk, ("t",)) as scratch:
            stream = UpdateStream(scratch.tables, pool, seed)
            for _ in range(12):
                stream.commit(7)
            snapshot = scratch.tables.repin("t").snapshot()
            found.append(((snapshot.rows or 0) - 5000, snapshot.version))
    assert found[0] == found[1] != found[2]
    assert all(rows % 7 == 0 and version == 12 for rows, version in found)


def test_a_key_must_hold_whole_numbers(desk: Workbench) -> None:
    with pytest.raises(UsageError, match="no column `b` of whole numbers"):
        pool_of(desk.tables, "t", "b", 1)


def test_the_workload_of_a_fresh_process_is_that_of_the_scratch_copy(
    desk: Workbench, tmp_path: Path
) -> None:
    import json

    spec = replace(desk.workload.queries["window"], buffer=7)
    file = tmp_path / "w.yaml"
    file.write_text(json.dumps(workload_document(desk.workload, spec, tmp_path / "store")))
    with open_workbench(Settings(file)) as found:
        read = found.workload.queries["window"]
        assert (read.sql, read.params, read.sketch, read.buffer) == (
            spec.sql,
            spec.params,
            spec.sketch,
            7,
        )
        assert found.store_path == tmp_path / "store"
        assert [(p.table, p.column, p.ranges) for p in found.workload.partitions] == [
            (p.table, p.column, p.ranges) for p in desk.workload.partitions
        ]


@pytest.mark.parametrize("query", ["window", "join", "mixing", "groups", "rows"])
def test_duckdb_finds_the_same_sketch(desk: Workbench, query: str) -> None:
    pytest.importorskip("duckdb")
    spec = desk.workload.queries[query]
    with scratch_copy(desk, ("t", "s")) as scratch:
        prepared = prepare(scratch, spec)
        capture_query(scratch, scratch.store(), prepared, code="asked", reason="test")
        stored = scratch.store().load(query)
        assert stored is not None
        verdict, partitions = restored_verdict(scratch.tables, prepared, stored)
        held = {sketch.access: sketch.fragments for sketch in stored.sketches}
        assert any(len(fragments) for fragments in held.values())
        connection = ParquetSql.open()
        assert connection is not None
        offered = duckdb_recapture(connection, scratch, prepared, verdict, partitions, held)
        assert offered.run is not None, offered.reason
        assert offered.run() == held
        less = {access: fragments.minus(fragments) for access, fragments in held.items()}
        refused = duckdb_recapture(connection, scratch, prepared, verdict, partitions, less)
        assert "a different sketch" in refused.reason
        assert duckdb_plain(connection, scratch.tables, prepared).run is not None
        connection.close()


def test_duckdb_that_fails_later_is_a_note(
    desk: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its memory ends, or a file goes, between the check and the timed runs."""
    pytest.importorskip("duckdb")
    opened: list[ParquetSql] = []
    open_ = ParquetSql.open

    def noted() -> ParquetSql | None:
        opened.append(open_())
        return opened[0]

    def answered_once(run: Callable[[], object]) -> float:
        opened[0].view("t", ["/nowhere/gone.parquet"])
        return 0.0

    monkeypatch.setattr(ParquetSql, "open", noted)
    monkeypatch.setattr(duckdb_times, "milliseconds", answered_once)
    with scratch_copy(desk, ("t",)) as scratch:
        measured = MeasuredQuery(scratch, desk.workload.queries["rows"])
        expected = pa.table({"id": []})
        monkeypatch.setattr(duckdb_times, "same_answer", lambda found, rows: True)
        beside = answer_beside(measured, expected, 3)
        assert not beside.metrics
        assert "DuckDB failed after one successful answer: IO Error" in beside.note
        with pytest.raises(SqlFailed, match="Connection"):
            opened[0].run("SELECT 1")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_mixed_strategies_agree(desk: Workbench, spark: Any) -> None:
    found = cells(
        desk,
        "mixed",
        "window",
        operations=12,
        least=12,
        ratios="1U1Q",
        changes=20,
        constants=("low=10 high=20", "low=12 high=18", "low=50 high=60"),
    )
    assert [cell.labels["strategy"] for cell in found] == ["none", "recapture", "incremental"]
    none, recapture, incremental = found
    assert (none.equal, recapture.equal, incremental.equal) == (None, True, True)
    assert (none.covers, incremental.covers) == (None, True)
    assert values(none)["maintain_ms"] == values(none)["capture_ms"] == 0
    assert values(recapture)["capture_ms"] > 0 < values(incremental)["maintain_ms"]
    for cell in found:
        parts = values(cell)
        total = sum(parts[name] for name in ("update_ms", "query_ms", "maintain_ms", "capture_ms"))
        assert parts["total_ms"] == pytest.approx(total)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("query", ["window", "join"])
def test_eager_and_lazy_reach_the_same_sketch(desk: Workbench, spark: Any, query: str) -> None:
    found = cells(desk, "strategies", query, updates=10, least=10, batches=(1, 4))
    assert [cell.labels["batch"] for cell in found] == ["1", "4", "lazy"]
    assert all(cell.covers and cell.slack == 0 for cell in found)
    assert [cell.note.split(" in ")[1] for cell in found] == ["10 steps", "3 steps", "1 steps"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("query", ["top", "groups"])
def test_bounded_buffers_are_refilled(desk: Workbench, spark: Any, query: str) -> None:
    found = cells(
        desk,
        "deletions",
        query,
        patterns=("minimal", "2:1"),
        buffers=(20, "all"),
        updates=6,
        least=6,
        points=2,
    )
    assert [(c.labels["pattern"], c.labels["buffer"], c.labels["updates"]) for c in found] == [
        (pattern, buffer, updates)
        for pattern in ("minimal", "2:1")
        for buffer in ("20", "all")
        for updates in (3, 6)
    ]
    assert all(cell.covers and cell.slack == 0 for cell in found)
    bounded, whole = values(found[1]), values(found[3])
    assert bounded["state_bytes"] < whole["state_bytes"]
    assert whole["refill_count"] == 0
    assert query != "top" or bounded["refill_count"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_memory_of_a_fresh_process(desk: Workbench, spark: Any) -> None:
    (found,) = cells(desk, "memory", "join", changes=10, ranges=5)
    assert found.covers
    assert found.labels == {"changes": 10, "ranges": 5}
    held = values(found)
    assert 10e6 < held["process_bytes"] < 1e9
    assert held["join_bytes"] > 0 < held["aggregate_bytes"]
    assert held["state_bytes"] >= held["join_bytes"] + held["aggregate_bytes"]
    # A hundred ranges of `s`, which impctl chose, beside five of `t`.
    assert held["sketch_bytes"] == 14


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("query", ["window", "join"])
def test_old_rows_are_deleted_and_come_back(desk: Workbench, spark: Any, query: str) -> None:
    kinds = ("both", "delete_old")
    both, old = cells(desk, "maintain", query, changes=30, kind=kinds)
    assert (old.labels["kind"], old.covers, old.slack) == ("delete_old", True, 0)
    assert (both.metrics["maintain_ms"].runs, old.metrics["maintain_ms"].runs) == (2, 1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_a_fresh_process_is_timed_beside_a_step(desk: Workbench, spark: Any) -> None:
    ten, twenty = cells(desk, "maintain", "window", changes=(10, 20), processes=10)
    assert ten.covers
    assert ten.metrics["process_ms"].runs == 6
    assert values(ten)["process_ms"] > values(ten)["maintain_ms"]
    assert "process_ms" not in twenty.metrics
