"""Queries with other constants in Spark: with the sketch they give what they give without it.

Every kind of parameter, values that invite injection, sketches before and after a change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.capture import capture
from impctl.app.preparing.filters import filters_of
from impctl.app.using.answers import answer
from impctl.app.using.request import asked
from impctl.app.using.same_rows import same_rows
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.tables.write.create import create_table
from tests.support.random_cases import quarter_then_rest

pytestmark = pytest.mark.spark

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {fragments: 16}
    v: {fragments: 16}
    day: {fragments: 8}
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
    found = asked(desk, query, params, sql)
    pruned = filters_of(desk.tables, found.prepared, found.sketches, found.versions)
    with_sketch = answer(desk, found.prepared, found.versions, pruned)
    without = answer(desk, found.prepared, found.versions)
    assert same_rows(with_sketch.rows, without.rows), (query, params)
    assert without.rows
    assert found.reuse is not None
    return found.reuse.query


@pytest.mark.parametrize(("query", "params", "used"), quarter_then_rest(ASKED))
def test_with_the_sketch_as_without(
    desk: Workbench, query: str, params: tuple[str, ...], used: str | None
) -> None:
    assert _check(desk, query, params, None) == used


def test_a_text_given_for_a_parameter_is_compared_as_text(desk: Workbench, folder: Path) -> None:
    names = DeltaTable(str(folder / "t")).to_pyarrow_table().column("name").to_pylist()
    days = DeltaTable(str(folder / "t")).to_pyarrow_table().column("day").to_pylist()
    for name in NAMES[1:]:
        found = asked(desk, "named", (f"name={name}",), None)
        rows = answer(desk, found.prepared, found.versions).rows
        wanted = {day for value, day in zip(names, days, strict=True) if value == name}
        assert {day for day, _ in rows} == wanted
        assert sum(int(str(count)) for _, count in rows) == names.count(name)


def test_other_texts_and_queries_of_the_command_line(desk: Workbench) -> None:
    sql = "select g, sum(v) w, max(d) m from t as z where d < 100e0 and g is not null group by g"
    assert _check(desk, None, (), f"{sql} order by w desc, g limit 2") == "best"
    assert _check(desk, None, (), f"{sql} order by w, g limit 2") is None


def test_after_a_change_the_sketch_is_maintained_first(desk: Workbench, folder: Path) -> None:
    write_deltalake(DeltaTable(str(folder / "t")), _rows(2, 200), mode="append")
    for query, params, used in ASKED[:10]:
        assert _check(desk, query, params, None) == used
