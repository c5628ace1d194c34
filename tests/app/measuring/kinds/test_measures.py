"""The measures beyond the cost of one change, each on small tables, options first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from impctl.bench.parquet_sql import ParquetSql, SqlFailed
from impctl.bench.record import Cell
from impctl.measure import duckdb
from impctl.measure.duckdb import answer_beside, duckdb_plain, duckdb_recapture
from impctl.measure.figures import OptionValue
from impctl.measure.generate import generate
from impctl.measure.kinds import _real_share
from impctl.measure.scratch import MeasuredQuery, scratch_copy
from impctl.service.capture import capture_query
from impctl.service.context import SilentReporter, Workbench, open_workbench
from impctl.service.maintenance_plan import restored_verdict
from impctl.service.prepare import prepare
from impctl.service.settings import Example, GenerateRequest, Settings
from tests.support.measured_cells import cells_of, ground_of

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
    monkeypatch.setattr(duckdb, "milliseconds", answered_once)
    with scratch_copy(desk, ("t",)) as scratch:
        measured = MeasuredQuery(scratch, desk.workload.queries["rows"])
        expected = pa.table({"id": []})
        monkeypatch.setattr(duckdb, "same_answer", lambda result, rows: True)
        beside = answer_beside(measured, expected, 3)
        assert not beside.metrics
        assert "DuckDB failed after one successful answer: IO Error" in beside.note
        with pytest.raises(SqlFailed, match="Connection"):
            opened[0].run("SELECT 1")
