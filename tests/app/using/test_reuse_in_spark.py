"""Queries with other constants in Spark, and queries with `--at`: with the sketch they give what
they give without it, and at every version with a sketch what the rows of then give.

Every kind of parameter, values that invite injection, sketches before and after a change. The rows
of a version are read by deltalake's own scan, and by nothing of impctl. With the sketches of
another version in place of the right ones (`store.load_kept` made to load the newest), the first
test of older versions fails for two of the queries, as was tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import ImpctlError
from impctl.service.capture import capture
from impctl.service.context import Workbench, open_workbench
from impctl.service.filters import filters_of
from impctl.service.maintain import maintain
from impctl.service.query import query
from impctl.service.resolve import asked
from impctl.service.results import QueryResult, RewriteResult
from impctl.service.rewrite import dataframe, rewrite
from impctl.service.settings import AnsweredBy, Settings
from impctl.service.spark_answer import answer
from impctl.service.verify import same_rows
from impctl.spark.run import run_sql
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.random_cases import quarter_then_rest

pytestmark = pytest.mark.spark

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {ranges: 16}
    v: {ranges: 16}
    day: {ranges: 8}
queries:
  having:
    sql: |
      SELECT g, COUNT(*) AS n, SUM(v) AS s FROM t
      WHERE v >= :low AND v < :high GROUP BY g HAVING COUNT(*) >= :few AND MAX(v) > :top
    params: {low: 5, high: 90, few: 3, top: 50}
    sketch: {t: g}
  on_values:
    sql: |
      SELECT g, SUM(v) AS s FROM t WHERE day >= :since GROUP BY g HAVING SUM(v) > :much
    params: {since: 2024-01-05, much: 100.5}
    sketch: {t: v}
  best:
    sql: |
      SELECT g, SUM(v) AS s FROM t WHERE d < :limit AND g IS NOT NULL
      GROUP BY g ORDER BY s DESC, g LIMIT :count
    params: {limit: 1.0e+2, count: 6}
    sketch: {t: v}
  keyed:
    sql: |
      SELECT g, AVG(d) AS a FROM t WHERE g < :below AND at < :until AND flag = :flagged
      GROUP BY g HAVING AVG(d) > 0.5
    params: {below: 30, until: 2024-02-01T00:00:00Z, flagged: true}
    sketch: {t: g}
  named:
    sql: SELECT day, COUNT(*) AS n FROM t WHERE name = :name GROUP BY day HAVING COUNT(*) >= 1
    params: {name: plain}
    sketch: {t: day}
store: .impctl
spark: {master: "local[2]"}
"""
NAMES = ("plain", "it's", "a' OR 1=1 --", "\\", "\\' OR TRUE --", "${env:HOME}", "ünï\U0001f600",
         'say "x"', "line\nbreak", "%_", "")  # fmt: skip
ASKED: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("having", ("few=5",), "having"),
    ("having", ("low=10", "high=80", "top=60"), "having"),
    ("having", ("few=2",), None),
    ("having", ("high=95",), None),
    ("on_values", ("much=150",), "on_values"),
    ("on_values", ("since=2024-01-10", "much=100.75"), "on_values"),
    ("on_values", ("since=2024-01-01",), None),
    ("best", ("count=3",), "best"),
    ("best", ("limit=50",), None),
    ("keyed", ("below=10",), "keyed"),
    ("keyed", ("below=40",), None),
    ("keyed", ("until=2024-01-15 00:00:00",), None),
    ("keyed", ("flagged=false",), None),
    *(("named", (f"name={name}",), None) for name in NAMES[1:]),
)
SCHEMA = pa.schema(
    [
        ("g", pa.int64()),
        ("v", pa.int64()),
        ("d", pa.float64()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
    ]
)


def _rows(seed: int, count: int) -> pa.Table:
    rng = random.Random(seed)

    def row() -> tuple[object, ...]:
        values = (
            rng.randrange(50),
            rng.randrange(100),
            rng.choice((0.5, 1.25, 75.0, float("nan"), -0.0)),
            rng.choice(NAMES),
            date(2024, 1, 1) + timedelta(days=rng.randrange(20)),
            datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=rng.randrange(800)),
            rng.random() < 0.7,
        )
        return tuple(None if rng.random() < 0.05 else value for value in values)

    rows = [row() for _ in range(count)]
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reuse")
    create_table(str(folder / "t"), _rows(1, 2000))
    (folder / "w.yaml").write_text(WORKLOAD)
    with open_workbench(Settings(folder / "w.yaml")) as desk:
        outcome = capture(desk, None)
        assert not outcome.failures
    return folder


@pytest.fixture
def desk(folder: Path) -> Iterator[Workbench]:
    with open_workbench(Settings(folder / "w.yaml")) as desk:
        yield desk


def _check(
    desk: Workbench, query: str | None, params: tuple[str, ...], sql: str | None
) -> str | None:
    """Whose sketch was used; the answers with and without it are compared, and hold something."""
    result = asked(desk, query, params, sql)
    pruned = filters_of(desk.tables, result.prepared, result.sketches, result.versions)
    with_sketch = answer(desk, result.prepared, result.versions, pruned)
    without = answer(desk, result.prepared, result.versions)
    assert same_rows(with_sketch.rows, without.rows), (query, params)
    assert without.rows
    assert result.reuse is not None
    return result.reuse.query


@pytest.mark.parametrize(("query", "params", "used"), quarter_then_rest(ASKED))
def test_with_the_sketch_as_without(
    desk: Workbench, query: str, params: tuple[str, ...], used: str | None
) -> None:
    assert _check(desk, query, params, None) == used


def test_a_text_given_for_a_parameter_is_compared_as_text(desk: Workbench, folder: Path) -> None:
    names = DeltaTable(str(folder / "t")).to_pyarrow_table().column("name").to_pylist()
    days = DeltaTable(str(folder / "t")).to_pyarrow_table().column("day").to_pylist()
    for name in NAMES[1:]:
        result = asked(desk, "named", (f"name={name}",), None)
        rows = answer(desk, result.prepared, result.versions).rows
        wanted = {day for value, day in zip(names, days, strict=True) if value == name}
        assert {day for day, _ in rows} == wanted
        assert sum(int(str(count)) for _, count in rows) == names.count(name)


def test_other_texts_and_queries_of_the_command_line(desk: Workbench) -> None:
    sql = "select g, sum(v) w, max(d) m from t as z where d < 100e0 and g is not null group by g"
    assert _check(desk, None, (), f"{sql} order by w desc, g limit 2") == "best"
    assert _check(desk, None, (), f"{sql} order by w, g limit 2") is None


def test_after_a_change_the_sketch_is_maintained_first(desk: Workbench, folder: Path) -> None:
    write_deltalake(DeltaTable(str(folder / "t")), _rows(2, 200), mode="append")
    for name, params, used in ASKED[:10]:
        assert _check(desk, name, params, None) == used


AGING = """\
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
def aging(tmp_path: Path, spark: Any) -> Iterator[Workbench]:
    """Captured at version 0; then rows come, change and go, and a sketch is stored for each."""
    create_table(str(tmp_path / "t"), T)
    create_table(str(tmp_path / "u"), U)
    (tmp_path / "w.yaml").write_text(AGING)
    settings = Settings(tmp_path / "w.yaml")
    with open_workbench(settings) as result:
        assert not capture(result, None).failures
    t = str(tmp_path / "t")
    append(t, [(9, 60), (5, 30), (5, 1)])
    DeltaTable(t).delete("g = 0")
    DeltaTable(t).update(updates={"x": "x + 40"}, predicate="g = 1 OR g IS NULL")
    append(t, [(0, 99), (1, 99)])
    DeltaTable(str(tmp_path / "u")).delete("g = 7")
    DeltaTable(t).restore(1)
    append(t, [(7, 2), (3, 2), (2, 70)])
    with open_workbench(settings) as result:
        assert not maintain(result, None).failures
        yield result


def append(path: str, rows: list[tuple[int, int]]) -> None:
    table = pa.table(
        {name: [row[at] for row in rows] for at, name in enumerate("gx")}, schema=T.schema
    )
    write_deltalake(path, table, mode="append")


def versions_of(aging: Workbench, name: str) -> list[Mapping[str, int]]:
    with Store.open(aging.store_path, create=False) as store:
        return [kept.versions for kept in store.kept(name)]


def plainly(aging: Workbench, sql: str, versions: Mapping[str, int]) -> list[tuple[Any, ...]]:
    """The SQL text in Spark over the rows that the tables had."""
    spark = aging.spark()
    views = {
        table: spark.createDataFrame(
            pa.table(DeltaTable(aging.workload.tables[table].path, version=version).scan()),
            {"t": "g BIGINT, x BIGINT", "u": "g BIGINT, name STRING"}[table],
        )
        for table, version in versions.items()
    }
    result = run_sql(spark, sql, views)
    return [tuple(row.values()) for row in result.to_pylist()]


@pytest.mark.parametrize("name", quarter_then_rest(["joined", "grouped", "touched", "first"]))
def test_every_version_answers_as_it_was(aging: Workbench, name: str) -> None:
    sql = aging.workload.queries[name].sql
    answers, ranged = set(), 0
    kept = versions_of(aging, name)
    assert len(kept) == len({tuple(result.items()) for result in kept}) >= 7
    for versions in kept:
        with open_workbench(aging.settings) as run:
            (got,) = query(run, name, at=versions, by=AnsweredBy.SPARK).results
        with open_workbench(aging.settings) as run:
            (text,) = rewrite(run, name, at=versions).results
        assert isinstance(got, QueryResult)
        assert isinstance(text, RewriteResult)
        assert got.versions == text.versions == versions
        wanted = plainly(aging, sql, versions)
        assert same_rows(got.rows, wanted), versions
        ranged += text.sql != sql
        assert same_rows(plainly(aging, text.sql, versions), wanted), versions
        answers.add(tuple(sorted(map(repr, wanted))))
    assert len(answers) >= 4
    assert ranged


def test_a_frame_of_an_older_version(aging: Workbench) -> None:
    with open_workbench(aging.settings) as run:
        frame = dataframe(run, "grouped", at=1).frame
    rows = [tuple(row) for row in frame.collect()]
    assert same_rows(rows, plainly(aging, aging.workload.queries["grouped"].sql, {"t": 1}))


def test_files_that_were_vacuumed(aging: Workbench) -> None:
    table = DeltaTable(aging.workload.tables["t"].path)
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with open_workbench(aging.settings) as run, pytest.raises(ImpctlError) as caught:
        query(run, "grouped", at=4, by=AnsweredBy.SPARK)
    assert (caught.value.exit_code, caught.value.code) == (7, "data_files_gone")
