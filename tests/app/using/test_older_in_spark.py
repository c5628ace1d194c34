"""`--at` in Spark: at every version with a sketch the answer is that of the rows of then.

The rows of a version are read by deltalake's own scan, and by nothing of impctl. With the sketches
of another version in place of the right ones (`store.load_kept` made to load the newest), the
first test fails for two of the queries, as was tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.capture import capture
from impctl.app.dataframe import dataframe
from impctl.app.maintain import maintain
from impctl.app.query import query
from impctl.app.results.results import QueryResult, RewriteResult
from impctl.app.rewrite import rewrite
from impctl.app.using.same_rows import same_rows
from impctl.app.workbench.settings import AnsweredBy, Settings
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.errors import ImpctlError
from impctl.spark.run import run_sql
from impctl.store.store import Store
from impctl.tables.write.create import create_table
from tests.support.random_cases import quarter_then_rest

pytestmark = pytest.mark.spark

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
  u: {path: u}
partitions:
  t:
    g: {boundaries: [2, 4, 6, 8]}
    x: {boundaries: [10, 20, 40]}
queries:
  grouped:
    sql: SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 1 AND SUM(x) > 30
    sketch: {t: g}
    maintain: eager
  touched:
    sql: SELECT g, MEDIAN(x) AS m FROM t GROUP BY g HAVING MEDIAN(x) > 12
    sketch: {t: g}
    maintain: eager
  first:
    sql: SELECT g, x FROM t WHERE x > 5 ORDER BY x DESC, g LIMIT 4
    sketch: {t: x}
    maintain: eager
  joined:
    sql: SELECT name, SUM(x) AS s FROM t JOIN u ON t.g = u.g GROUP BY name HAVING SUM(x) > 60
    sketch: {t: g}
    maintain: eager
store: .impctl
spark: {master: "local[2]"}
"""
T = pa.table(
    {"g": pa.array([0, 0, 1, 3, 3, 5, 7, 9, None], pa.int64()),
     "x": pa.array([5, 35, 9, 15, 25, 8, 50, 3, 25], pa.int64())}
)  # fmt: skip
U = pa.table({"g": pa.array([0, 1, 3, 5, 7, 9], pa.int64()), "name": list("aabbcc")})


@pytest.fixture
def desk(tmp_path: Path, spark: Any) -> Iterator[Workbench]:
    """Captured at version 0; then rows come, change and go, and a sketch is stored for each."""
    create_table(str(tmp_path / "t"), T)
    create_table(str(tmp_path / "u"), U)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    settings = Settings(tmp_path / "w.yaml")
    with open_workbench(settings) as found:
        assert not capture(found, None).failures
    t = str(tmp_path / "t")
    append(t, [(9, 60), (5, 30), (5, 1)])
    DeltaTable(t).delete("g = 0")
    DeltaTable(t).update(updates={"x": "x + 40"}, predicate="g = 1 OR g IS NULL")
    append(t, [(0, 99), (1, 99)])
    DeltaTable(str(tmp_path / "u")).delete("g = 7")
    DeltaTable(t).restore(1)
    append(t, [(7, 2), (3, 2), (2, 70)])
    with open_workbench(settings) as found:
        assert not maintain(found, None).failures
        yield found


def append(path: str, rows: list[tuple[int, int]]) -> None:
    table = pa.table(
        {name: [row[at] for row in rows] for at, name in enumerate("gx")}, schema=T.schema
    )
    write_deltalake(path, table, mode="append")


def versions_of(desk: Workbench, name: str) -> list[Mapping[str, int]]:
    with Store.open(desk.store_path, create=False) as store:
        return [kept.versions for kept in store.kept(name)]


def plainly(desk: Workbench, sql: str, versions: Mapping[str, int]) -> list[tuple[Any, ...]]:
    """The SQL text in Spark over the rows that the tables had."""
    spark = desk.spark()
    views = {
        table: spark.createDataFrame(
            pa.table(DeltaTable(desk.workload.tables[table].path, version=version).scan()),
            {"t": "g BIGINT, x BIGINT", "u": "g BIGINT, name STRING"}[table],
        )
        for table, version in versions.items()
    }
    found = run_sql(spark, sql, views)
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("name", quarter_then_rest(["joined", "grouped", "touched", "first"]))
def test_every_version_answers_as_it_was(desk: Workbench, name: str) -> None:
    sql = desk.workload.queries[name].sql
    answers, ranged = set(), 0
    kept = versions_of(desk, name)
    assert len(kept) == len({tuple(found.items()) for found in kept}) >= 7
    for versions in kept:
        with open_workbench(desk.settings) as run:
            (got,) = query(run, name, at=versions, by=AnsweredBy.SPARK).results
        with open_workbench(desk.settings) as run:
            (text,) = rewrite(run, name, at=versions).results
        assert isinstance(got, QueryResult)
        assert isinstance(text, RewriteResult)
        assert got.versions == text.versions == versions
        wanted = plainly(desk, sql, versions)
        assert same_rows(got.rows, wanted), versions
        ranged += text.sql != sql
        assert same_rows(plainly(desk, text.sql, versions), wanted), versions
        answers.add(tuple(sorted(map(repr, wanted))))
    assert len(answers) >= 4
    assert ranged


def test_a_frame_of_an_older_version(desk: Workbench) -> None:
    with open_workbench(desk.settings) as run:
        frame = dataframe(run, "grouped", at=1).frame
    rows = [tuple(row) for row in frame.collect()]
    assert same_rows(rows, plainly(desk, desk.workload.queries["grouped"].sql, {"t": 1}))


def test_files_that_were_vacuumed(desk: Workbench) -> None:
    table = DeltaTable(desk.workload.tables["t"].path)
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with open_workbench(desk.settings) as run, pytest.raises(ImpctlError) as caught:
        query(run, "grouped", at=4, by=AnsweredBy.SPARK)
    assert (caught.value.exit_code, caught.value.code) == (7, "data_files_gone")
