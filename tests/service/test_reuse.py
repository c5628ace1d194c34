"""Sketches reused for queries with other constants and text, from the command line and in Spark."""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from impctl.errors import ImpctlError
from impctl.plan.nodes import Fixpoint
from impctl.service.answer import answer_table
from impctl.service.capture import capture
from impctl.service.context import Context, open_context
from impctl.service.filters import filters_of
from impctl.service.maintain import maintain
from impctl.service.query import query
from impctl.service.resolve import is_for_others, resolved
from impctl.service.results import rows_of
from impctl.service.rewrite import dataframe, rewrite
from impctl.service.settings import AnsweredBy, QueryRequest, Settings, SketchPolicy
from impctl.service.verify import same_rows
from impctl.spark.run import run_sql
from impctl.store.store import Store
from tests.behaviour.test_bad_input import held_lock
from tests.plan.catalogs import read_net
from tests.support.run_cli import Cli, CliOf, CliOnce, MadeOnce, Ran, write_files

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {boundaries: [10, 20]}
queries:
  wide:
    sql: |
      SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t
      WHERE x >= :low AND note <> :skipped
      GROUP BY g HAVING COUNT(*) >= :few
    params: {low: 5, few: 2, skipped: none}
    sketch: {t: g}
  narrow:
    sql: "SELECT g FROM t WHERE note <> 'none' AND x >= 5 GROUP BY g HAVING COUNT(*) >= 3"
    sketch: {t: g}
  other:
    sql: "SELECT g, MAX(x) AS m FROM t GROUP BY g HAVING MAX(x) > 10"
    sketch: {t: x}
store: .impctl
"""
ROWS = {
    "g": [0, 0, 0, 1, 3, 3, 3, 5, 7, None, 5],
    "x": [5, 15, 25, 5, 5, 15, 25, 5, 15, 25, 7],
    "note": list("abcdefghijk"),
}
SCHEMA = pa.schema([("g", pa.int64()), ("x", pa.int64()), ("note", pa.string())])


WRITE = partial(write_files, workload=WORKLOAD, t=pa.table(ROWS, schema=SCHEMA))


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    return cli_once("reuse", WRITE)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    return cli_once("reuse captured", WRITE, Cli.captured)


def _insert(cli: Cli, *rows: tuple[int, int, str]) -> None:
    cli.append("t", pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA))


def wide(cli: Cli, *params: str, more: tuple[str, ...] = ()) -> Ran:
    words = [word for value in params for word in ("--param", value)]
    return cli.good("rewrite", "--query", "wide", *words, *more)


def _reuse(ran: Ran) -> dict[str, Any]:
    return ran.results[0]["reuse"]


def _reasons(ran: Ran) -> dict[str, str]:
    return {entry["query"]: entry["reason"] for entry in _reuse(ran)["candidates"]}


IMPLIED = "the query needs only rows that the sketch was captured for"


@pytest.mark.slow
def test_the_smallest_usable_sketch_is_used(captured: Cli) -> None:
    ran = wide(captured, "few=4", "low=6")
    assert _reuse(ran)["query"] == "narrow"
    other = "also usable, but a smaller one was chosen"
    assert _reasons(ran) == {"wide": other, "narrow": IMPLIED}
    assert ran.results[0]["sql"] == (
        "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM (SELECT * FROM t WHERE `g` < 4L) AS t\n"
        "WHERE x >= 6 AND note <> 'none'\n"
        "GROUP BY g HAVING COUNT(*) >= 4\n"
    )
    ran = wide(captured, "low=6")
    assert _reuse(ran)["query"] == "wide"
    assert _reasons(ran)["narrow"].startswith("HAVING does not imply the condition")


def test_default_parameters_use_the_querys_sketch(captured: Cli) -> None:
    (result,) = wide(captured, "few=2").results
    assert (result["reuse"], result["sketches"][0]["ranges"]) == (None, [0, 1, 2])


@pytest.mark.slow
def test_without_a_usable_sketch_the_table_is_read(captured: Cli) -> None:
    ran = wide(captured, "few=1")
    assert ran.results[0]["sketches"] == []
    assert "(SELECT" not in ran.results[0]["sql"]
    assert _reuse(ran)["query"] is None
    assert _reasons(ran)["wide"] == (
        "HAVING does not imply the condition the sketch was captured for: `COUNT(*) >= 2`, but "
        "the query says `COUNT(*) >= 1`"
    )
    warning = "query `wide` runs without a sketch, because no stored sketch can be used"
    assert ran.document["warnings"] == [warning]
    ran = captured("rewrite", "--query", "wide", "--param", "few=1", "--policy", "strict")
    assert ran.refusal == (4, "no_sketch_to_reuse")


def test_reuse_reports_uncaptured_queries(cli: Cli) -> None:
    uncaptured = {"wide": "it has not been captured"}
    assert _reasons(wide(cli, "few=3")) == uncaptured
    cli.good("capture", "--query", "narrow")
    assert _reasons(wide(cli, "few=3")) == {**uncaptured, "narrow": IMPLIED}


@pytest.mark.slow
def test_equivalent_sql_reuses_the_sketch(captured: Cli) -> None:
    sql = "select avg(x) from t as z where note<>'none' and z.x>=5 group by g having count(*)>=3"
    ran = captured.good("rewrite", "--sql", sql)
    assert _reuse(ran)["query"] == "narrow"
    assert _reuse(ran)["reason"] == "it was captured for the same conditions and limits"
    assert "`g` < 4L) as z where" in ran.results[0]["sql"]
    ran = captured.good("rewrite", "--sql", "SELECT g FROM t GROUP BY g HAVING MAX(x) > 20")
    assert (_reuse(ran)["query"], _reuse(ran)["reason"]) == ("other", IMPLIED)
    ran = captured.good("rewrite", "--sql", "SELECT g FROM t GROUP BY g HAVING MIN(x) > 20")
    reason = "no captured query has the same template"
    assert _reuse(ran) == {"query": None, "reason": reason, "candidates": []}


@pytest.mark.slow
def test_a_stale_sketch_is_maintained_first(captured: Cli) -> None:
    _insert(captured, (7, 15, "l"), (7, 15, "m"), (1, -9, "n"))
    ran = wide(captured, "few=3")
    assert _reuse(ran)["query"] == "narrow"
    (result,) = ran.results
    assert (result["action"], result["versions"]) == ("exact", {"t": 1})
    assert result["sketches"][0]["ranges"] == [0, 1, 3]
    stale = {r["query"]: r["stale"] for r in captured.good("status").results}
    assert stale == {"wide": True, "narrow": False, "other": True}


def test_reuse_works_despite_a_held_lock(captured: Cli) -> None:
    """Regression: the run failed with the lock's error instead of using other sketches."""
    _insert(captured, (7, 15, "l"))
    captured.good("maintain", "--query", "wide")
    wait = ("--lock-timeout", "0.1")
    with held_lock(captured.folder / ".impctl"):
        # `narrow` is stale, `wide` can be used as it is.
        ran = wide(captured, "few=3", more=wait)
        assert _reuse(ran)["query"] == "wide"
        assert _reasons(ran)["narrow"].startswith("it could not be maintained: ")
        _insert(captured, (7, 15, "m"))
        ran = wide(captured, "few=3", more=wait)
        assert (_reuse(ran)["query"], ran.results[0]["sketches"]) == (None, [])
        assert ran.document["warnings"]
        strict = ("--query", "wide", "--param", "few=3", *wait, "--policy", "strict")
        assert captured("rewrite", *strict).refusal == (6, "lock_held")
    assert _reuse(wide(captured, "few=3", more=wait))["query"] == "narrow"


def test_changed_definitions_are_not_reused(captured: Cli) -> None:
    captured.edit("few: 2", "few: 3")
    reasons = {"wide": "it changed since the capture", "narrow": IMPLIED}
    assert _reasons(wide(captured, "few=4")) == reasons


SUMS = """\
queries:
  sums:
    sql: SELECT g, SUM(x) AS s FROM t WHERE x > :low GROUP BY g HAVING SUM(x) > 20
    params: {low: 0}
    sketch: {t: x}
"""


def test_safety_is_checked_for_the_new_constants(cli: Cli) -> None:
    cli.edit("queries:\n", SUMS)
    _insert(cli, (0, -50, "neg"))
    cli.good("capture", "--query", "sums")
    ran = cli.good("rewrite", "--query", "sums", "--param", "low=1")
    assert _reuse(ran)["query"] == "sums"
    ran = cli.good("rewrite", "--query", "sums", "--param", "low=-100")
    assert _reuse(ran)["query"] is None
    assert "is never negative" in _reasons(ran)["sums"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--query", "wide", "--param", "fw=1"), "parameter_unknown"),
        (("--query", "narrow", "--param", "few=1"), "parameter_unknown"),
        *(
            (("--query", "wide", "--param", f"few={value}"), "parameter_type")
            for value in ("1.5", "1 OR 1=1", "", str(2**63))
        ),
        (("--query", "wide", "--param", "few=1", "--param", "few=2"), "parameter_syntax"),
        (("--sql", "SELECT 1", "--param", "few=1"), "sql_and_query"),
        (("--sql", "SELECT g FROM t WHERE x > :low"), "parameter_unknown"),
        (("--query", "unknown", "--param", "few=1"), "query_unknown"),
    ],
)
def test_invalid_requests_are_refused(cli: Cli, arguments: tuple[str, ...], code: str) -> None:
    ran = cli("rewrite", *arguments)
    assert ran.refusal == (2, code)
    assert ran.error["hint"]


def test_errors_in_command_line_sql_have_a_location(cli: Cli) -> None:
    ran = cli("rewrite", "--sql", "SELECT g\nFROM t WHERE nope > 1")
    assert ran.code == 3
    assert ran.error["location"] == {"file": "--sql", "line": 2, "column": 14}


@pytest.mark.slow
def test_text_parameters_are_escaped(captured: Cli) -> None:
    ran = wide(captured, "skipped=none' OR 1=1 --")
    assert _reuse(ran)["query"] is None
    assert "note <> 'none\\u0027 OR 1=1 --'\n" in ran.results[0]["sql"]


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("few: 2", "few: null", "`queries.wide.params.few` has no value for", 14),
        ("few: 2", "few: .nan", "`queries.wide.params.few` has no value for", 14),
        ("few: 2", "few: [2]", "`queries.wide.params.few` must be a single value", 14),
        ("few: 2", "few-er: 2", "`few-er` cannot be the name of a parameter", 14),
        ("x >= :low", "zz >= :low", "Column `zz` is unknown in query `wide`", 12),
        ("note <>", "nota <>", "Column `nota` is unknown in query `wide`", 12),
    ],
)
def test_file_errors_have_a_location(cli: Cli, old: str, new: str, message: str, line: int) -> None:
    cli.edit(old, new, 1)
    ran = cli("check", "--query", "wide")
    assert ran.code in (2, 3)
    assert message in ran.error["message"] + str(ran.error.get("problems", ""))
    location = ran.error["location"]
    assert location["line"] == line
    if "nota" in new:
        assert location["column"] == WORKLOAD.split("\n")[11].index("note") + 1


def test_new_default_changes_the_definition(captured: Cli) -> None:
    assert not captured.one("status", "--query", "wide")["stale"]
    captured.edit("skipped: none", "skipped: '5'")
    assert captured.one("status", "--query", "wide")["stale"]
    assert captured.one("maintain", "--query", "wide")["reason_code"] == "definition_changed"


@pytest.mark.slow
def test_materialized_result_is_not_reused_for_other_constants(cli: Cli) -> None:
    sketch = "    sketch: {t: g}\n  narrow"
    cli.edit(sketch, f"    answer: true\n{sketch}")
    cli.good("capture")
    command = ("query", "--sketch", "auto")
    default = cli.one(*command, "--query", "wide")
    assert (default["by"], len(default["rows"])) == ("state", 3)
    ran = cli.one(*command, "--query", "wide", "--param", "low=15")
    assert (ran["reuse"]["query"], ran["rows"]) == ("wide", [[0, 2, 40], [3, 2, 40]])
    text = "SELECT g FROM t WHERE note <> 'none' AND x >= 15 GROUP BY g HAVING COUNT(*) >= 2"
    assert cli.one(*command, "--sql", text)["rows"] == [[0], [3]]


SPARK_WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {ranges: 16}, v: {ranges: 16}, day: {ranges: 8}}}
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
REQUESTS: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("having", ("low=10", "high=80", "few=5", "top=60"), "having"),
    ("having", ("high=95",), None),
    ("on_values", ("since=2024-01-10", "much=100.75"), "on_values"),
    ("best", ("count=3",), "best"),
    ("keyed", ("below=10",), "keyed"),
    ("keyed", ("until=2024-01-15 00:00:00",), None),
    ("keyed", ("flagged=false",), None),
)
SPARK_SCHEMA = pa.schema(
    {
        "g": pa.int64(),
        "v": pa.int64(),
        "d": pa.float64(),
        "name": pa.string(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "flag": pa.bool_(),
    }
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
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=SPARK_SCHEMA)


@pytest.fixture(scope="module")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reuse")
    file = write_files(folder, SPARK_WORKLOAD, t=_rows(1, 2000))
    with open_context(Settings(file)) as ctx:
        assert not capture(ctx, None).failures
    return folder


@pytest.fixture
def ctx(spark_folder: Path) -> Iterator[Context]:
    with open_context(Settings(spark_folder / "w.yaml")) as ctx:
        yield ctx


def _check(ctx: Context, query: str | None, params: tuple[str, ...], sql: str | None) -> str | None:
    """Check that results with and without a sketch are equal and not empty; return its query."""
    result = resolved(ctx, QueryRequest(query, params, sql))
    pruned = filters_of(ctx.tables, result.prepared, result.sketches, result.versions)
    with_sketch = rows_of(answer_table(ctx, result.prepared, result.versions, pruned))
    without = rows_of(answer_table(ctx, result.prepared, result.versions))
    assert same_rows(with_sketch, without), (query, params)
    assert without
    return result.reuse.query


@pytest.mark.spark
@pytest.mark.parametrize(("query", "params", "used"), REQUESTS)
def test_reused_sketches_do_not_change_results(
    ctx: Context, query: str, params: tuple[str, ...], used: str | None
) -> None:
    assert _check(ctx, query, params, None) == used


@pytest.mark.spark
def test_text_parameters_are_compared_as_text(ctx: Context, spark_folder: Path) -> None:
    requests = (QueryRequest("named", (f"name={name}",)) for name in NAMES)
    texts = [rewritten.sql for one in requests for rewritten in rewrite(ctx, one).results]
    rows = DeltaTable(str(spark_folder / "t")).to_pyarrow_table()
    view = ctx.spark().createDataFrame(rows.select(["name", "day"]))
    names, days = (rows.column(name).to_pylist() for name in ("name", "day"))
    for name, result in zip(NAMES, answers_of(ctx, texts, {"t": view}), strict=True):
        expected = Counter(day for value, day in zip(names, days, strict=True) if value == name)
        assert dict(result) == expected


@pytest.mark.spark
def test_command_line_sql_reuses_sketches(ctx: Context) -> None:
    sql = "select g, sum(v) w, max(d) m from t as z where d < 100e0 and g is not null group by g"
    assert _check(ctx, None, (), f"{sql} order by w desc, g limit 2") == "best"
    assert _check(ctx, None, (), f"{sql} order by w, g limit 2") is None


@pytest.mark.spark
def test_reused_sketch_is_maintained_after_a_change(ctx: Context, spark_folder: Path) -> None:
    write_deltalake(DeltaTable(str(spark_folder / "t")), _rows(2, 200), mode="append")
    for name, params, used in REQUESTS:
        if used is not None:
            assert _check(ctx, name, params, None) == used


AGING = {
    "grouped": (
        "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 1 AND SUM(x) > 30"
    ),
    "joined": (
        "SELECT name, SUM(x) AS s FROM t JOIN u ON t.g = u.g GROUP BY name HAVING SUM(x) > 60"
    ),
}
AGING_T = pa.table(
    {"g": pa.array([0, 0, 1, 3, 3, 5, 7, 9, None], pa.int64()),
     "x": pa.array([5, 35, 9, 15, 25, 8, 50, 3, 25], pa.int64())}
)  # fmt: skip
AGING_U = pa.table({"g": pa.array([0, 1, 3, 5, 7, 9], pa.int64()), "name": list("aabbcc")})


@pytest.fixture
def aging(made_once: MadeOnce, spark: Any) -> Iterator[Context]:
    """Captured at version 0, then changed several times, with a sketch for each version."""
    with open_context(Settings(made_once.folder("aging", age) / "w.yaml")) as result:
        yield result


def age(folder: Path) -> None:
    queries = {
        name: {"sql": sql, "sketch": {"t": "g"}, "maintain": "eager"} for name, sql in AGING.items()
    }
    ranges = {"t": {"g": {"boundaries": [2, 4, 6, 8]}}}
    workload = {"partitions": ranges, "queries": queries, "spark": {"master": "local[2]"}}
    settings = Settings(write_files(folder, workload, t=AGING_T, u=AGING_U))
    with open_context(settings) as result:
        assert not capture(result, None).failures
    t = str(folder / "t")
    append(t, [(9, 60), (5, 30), (5, 1)])
    DeltaTable(t).delete("g = 0")
    DeltaTable(t).update(updates={"x": "x + 40"}, predicate="g = 1 OR g IS NULL")
    append(t, [(0, 99), (1, 99)])
    DeltaTable(str(folder / "u")).delete("g = 7")
    DeltaTable(t).restore(1)
    append(t, [(7, 2), (3, 2), (2, 70)])
    with open_context(settings) as result:
        assert not maintain(result, None).failures


def append(path: str, rows: list[tuple[int, int]]) -> None:
    table = pa.table(
        {name: [row[index] for row in rows] for index, name in enumerate("gx")},
        schema=AGING_T.schema,
    )
    write_deltalake(path, table, mode="append")


def answers_of(
    ctx: Context, texts: Sequence[str], views: Mapping[str, Any]
) -> list[list[tuple[Any, ...]]]:
    """The results of SQL texts with the same columns, by one Spark statement."""
    numbered = (
        f"SELECT {number} AS text, * FROM (\n{text}\n)" for number, text in enumerate(texts)
    )
    result: list[list[tuple[Any, ...]]] = [[] for _ in texts]
    for row in run_sql(ctx.spark(), " UNION ALL ".join(numbered), views).to_pylist():
        number, *values = row.values()
        result[number].append(tuple(values))
    return result


def spark_rows(
    aging: Context, texts: Iterable[tuple[str, Mapping[str, int]]]
) -> list[list[tuple[Any, ...]]]:
    """The results of SQL texts in Spark over full tables, each at its versions."""
    schemas = {"t": "g BIGINT, x BIGINT", "u": "g BIGINT, name STRING"}
    views: dict[str, Any] = {}
    named = []
    for sql, versions in texts:
        for table, version in versions.items():
            if f"{table}_{version}" not in views:
                path = aging.workload.tables[table].path
                rows = pa.table(DeltaTable(path, version=version).scan())
                view = aging.spark().createDataFrame(rows, schemas[table])
                views[f"{table}_{version}"] = view
        tables = ", ".join(f"{t} AS (SELECT * FROM {t}_{number})" for t, number in versions.items())
        named.append(f"WITH {tables} {sql}")
    return answers_of(aging, named, views)


@pytest.mark.spark
def test_past_versions_give_their_results(aging: Context) -> None:
    sql = AGING["joined"]
    with Store.open(aging.store_path, create=False) as store:
        versions_of_sketches = [one.versions for one in store.kept("joined")]
    assert (
        len(versions_of_sketches)
        == len({tuple(result.items()) for result in versions_of_sketches})
        >= 7
    )
    results, texts = [], []
    for versions in versions_of_sketches:
        request = QueryRequest("joined", at=versions)
        with open_context(aging.settings) as run:
            (result,) = query(run, request, AnsweredBy.SPARK).results
        with open_context(aging.settings) as run:
            (text,) = rewrite(run, replace(request, sketch=SketchPolicy.ALWAYS)).results
        assert result.versions == text.versions == versions
        results.append(result.rows)
        texts.append(text.sql)
    assert any(text != sql for text in texts)
    answers = spark_rows(
        aging, zip([sql] * len(versions_of_sketches) + texts, versions_of_sketches * 2, strict=True)
    )
    for versions, rows, expected, rewritten in zip(
        versions_of_sketches,
        results,
        answers[: len(versions_of_sketches)],
        answers[len(versions_of_sketches) :],
        strict=True,
    ):
        assert same_rows(rows, expected), versions
        assert same_rows(rewritten, expected), versions
    assert (
        len(
            {
                tuple(sorted(map(repr, expected)))
                for expected in answers[: len(versions_of_sketches)]
            }
        )
        >= 4
    )


@pytest.mark.spark
def test_dataframe_of_an_older_version(aging: Context) -> None:
    with open_context(aging.settings) as run:
        frame, _ = dataframe(run, QueryRequest("grouped", at=1))
    rows = [tuple(row) for row in frame.collect()]
    (expected,) = spark_rows(aging, [(AGING["grouped"], {"t": 1})])
    assert same_rows(rows, expected)


@pytest.mark.spark
def test_vacuumed_version_is_refused(aging: Context) -> None:
    table = DeltaTable(aging.workload.tables["t"].path)
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with open_context(aging.settings) as run, pytest.raises(ImpctlError) as error:
        query(run, QueryRequest("grouped", at=4), AnsweredBy.SPARK)
    assert (error.value.exit_code, error.value.code) == (7, "data_files_gone")


REACH = (
    "WITH RECURSIVE {r}(n) AS (SELECT dst FROM links WHERE src = 1 "
    "UNION SELECT l.dst FROM {r} JOIN links l ON {r}.n = l.src AND l.cost < {cost}) "
)
OTHERS = (
    "SELECT COUNT(*), MAX(w) FROM q JOIN nodes ON nodes.n = q.n WHERE q.n < 30",
    "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM q) AND w > 4",
    "SELECT l.dst, COUNT(*) FROM q JOIN links l ON q.n = l.src GROUP BY l.dst HAVING COUNT(*) < 3",
    "SELECT a.n, b.n FROM q a JOIN q b ON a.n = b.n + 1",
)
RECURSIVE = {
    "partitions": {"links": {"src": {"boundaries": list(range(0, 60, 4))}}},
    "queries": {
        "reach": {
            "sql": f"{REACH.format(r='r', cost=3)} SELECT n FROM r WHERE n > 3",
            "sketch": {"links": "src"},
        },
        "counted": {
            "sql": "SELECT src FROM links GROUP BY src HAVING COUNT(*) > 1",
            "sketch": {"links": "src"},
        },
        "unread": "SELECT src FROM links WHERE dst > 1",
    },
}
LINKS = [(1, 7, 0), (7, 12, 1), (12, 7, 2), (12, 29, 2), (29, 40, 9), (40, 41, 0), (7, 13, 5)]
NODES = [(n, n % 7) for n in range(50)]


def _table(names: tuple[str, ...], rows: list[Any]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(names, (pa.array(c, pa.int64()) for c in columns), strict=True)))


@pytest.fixture
def recursive(cli_once: CliOnce, monkeypatch: Any) -> Cli:
    monkeypatch.setenv("IMPCTL_BY", "engine")
    links, nodes = _table(("src", "dst", "cost"), LINKS), _table(("n", "w"), NODES)
    write = partial(write_files, workload=RECURSIVE, links=links, nodes=nodes)
    names = ("--query", "reach", "--query", "counted")
    return cli_once("recursions reused", write, lambda cli: cli.captured(*names))


def _by_sqlite(
    sql: str, links: list[Any], ends: tuple[str, ...] = ("src", "dst", "cost")
) -> list[Any]:
    database = sqlite3.connect(":memory:")
    for name, columns, rows in (("links", ends, links), ("nodes", ("n", "w"), NODES)):
        database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    return sorted(map(list, database.execute(sql).fetchall()), key=str)


@pytest.mark.slow
@pytest.mark.parametrize("above", OTHERS)
def test_query_with_the_same_recursion_reuses_its_sketch(recursive: Cli, above: str) -> None:
    sql = REACH.format(r="q", cost=3) + above
    links = list(LINKS)
    for more in ([], [(1, 50, 2)], [(50, 45, 1), (29, 3, 0)]):
        if more:
            links += more
            recursive.append("links", _table(("src", "dst", "cost"), more))
        result = recursive.one("query", "--sql", sql)
        assert result["reuse"]["query"] == "reach"
        assert result["reuse"]["reason"] == "it holds all rows that the same recursion needs"
        # Queries without this recursion are not listed.
        assert [entry["query"] for entry in result["reuse"]["candidates"]] == ["reach"]
        assert sorted(result["rows"], key=str) == _by_sqlite(sql, links)
        assert result["files_kept"] > 0
        assert set(result["versions"]) == {"links", *(["nodes"] if "nodes" in above else [])}
    rewritten = recursive.one("rewrite", "--sql", sql)
    assert "src" in rewritten["sql"].split("UNION")[0].replace("src = 1", "")
    assert _by_sqlite(rewritten["sql"], links) == _by_sqlite(sql, links)


def test_other_constants_in_the_recursion_are_refused(recursive: Cli) -> None:
    ran = recursive.good("query", "--sql", REACH.format(r="q", cost=4) + "SELECT COUNT(*) FROM q")
    assert _reuse(ran)["query"] is None
    reason = "the constants inside WITH RECURSIVE differ, which changes what it derives"
    assert _reasons(ran) == {"reach": reason}


QUERIES = {
    "reach": (
        "WITH RECURSIVE r(n) AS (VALUES (CAST(1 AS BIGINT)), (CAST(30 AS BIGINT)) UNION "
        "SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    ),
    "counted": (
        "WITH v(x, t) AS (VALUES (CAST(1 AS BIGINT), 'a'), (CAST(2 AS BIGINT), NULL)) "
        "SELECT t, COUNT(*) AS c FROM v JOIN links ON src = x GROUP BY t HAVING COUNT(*) > 1"
    ),
}
LINK_COLUMNS = ("src", "dst")
PAIRS = [(1, 2), (2, 3), (3, 1), (30, 31), (31, 32), (40, 41), (2, 5), (1, 7)]


@pytest.fixture
def values_cli(cli_of: CliOf) -> Cli:
    settings = {"sketch": {"links": "src"}, "policy": "incremental"}
    queries = {name: {"sql": sql, **settings} for name, sql in QUERIES.items()}
    partitions = {"links": {"src": {"boundaries": [2, 10, 20, 31, 40]}}}
    return cli_of({"partitions": partitions, "queries": queries}, links=_table(LINK_COLUMNS, PAIRS))


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_queries_with_values_are_maintained(values_cli: Cli, query: str) -> None:
    values_cli.good("capture", "--query", query)
    links = list(PAIRS)
    for inserted, deleted in (([(32, 33), (2, 9)], None), ([], (2, 3)), ([(41, 1)], (1, 2))):
        if inserted:
            values_cli.append("links", _table(LINK_COLUMNS, inserted))
        if deleted is not None:
            values_cli.table("links").delete(f"src = {deleted[0]} AND dst = {deleted[1]}")
        links = [link for link in links + inserted if link != deleted]
        assert values_cli.one("maintain", "--query", query)["action"] == "exact"
        expected = _by_sqlite(QUERIES[query], links, LINK_COLUMNS)
        result = values_cli.one("query", "--query", query, "--by", "engine")
        assert sorted(result["rows"], key=str) == expected
        rewritten = values_cli.one("rewrite", "--query", query)["sql"]
        assert _by_sqlite(re.sub(r"(\d)L\b", r"\1", rewritten), links, LINK_COLUMNS) == expected


@pytest.mark.spark
def test_spark_agrees_on_queries_with_values(values_cli: Cli, spark: Any) -> None:
    values_cli.good("capture")
    for name, sql in QUERIES.items():
        result = values_cli.one("query", "--query", name, "--by", "spark")
        assert sorted(result["rows"], key=str) == _by_sqlite(sql, PAIRS, LINK_COLUMNS)
    assert values_cli.good("verify").document["ok"]


REFUSED_WORKLOAD = """\
version: 1
tables: {links: {path: links}}
queries:
  set:
    sql: |
      WITH RECURSIVE r(n) AS (
        SELECT dst FROM links WHERE src = 1
        UNION
        SELECT dst FROM links WHERE src NOT IN (SELECT n FROM r))
      SELECT n FROM r
  plain:
    sql: |
      WITH RECURSIVE r(n) AS (
        SELECT dst FROM links WHERE src = 1
        UNION
        SELECT dst FROM links JOIN r ON src = n)
      SELECT n FROM r SORT BY n
    sketch: none
  bag:
    sql: |
      WITH RECURSIVE r(n) AS (
        SELECT dst FROM links WHERE src = 1
        UNION ALL
        SELECT DISTINCT dst FROM links JOIN r ON src = n)
      SELECT n FROM r
store: .impctl
"""


class _StartedError(Exception):
    """Spark was requested."""


@pytest.fixture
def refusing_cli(cli_of: CliOf, monkeypatch: Any) -> Cli:
    monkeypatch.setattr(Context, "spark", Mock(side_effect=_StartedError))
    return cli_of(REFUSED_WORKLOAD, links=pa.table({"src": [1, 2], "dst": [2, 3]}))


@pytest.mark.slow
@pytest.mark.parametrize(("query", "line"), [("set", 9), ("plain", 17)])
@pytest.mark.parametrize("command", ["query", "rewrite", "explain"])
def test_commands_fail_like_check(refusing_cli: Cli, query: str, line: int, command: str) -> None:
    checked = refusing_cli("check", "--query", query)
    ran = refusing_cli(command, "--query", query)
    assert checked.refusal == ran.refusal == (3, "query_unsupported")
    assert ran.error["location"]["line"] == line
    for part in ("code", "message", "hint", "location"):
        assert ran.error[part] == checked.error[part]


def test_unsupported_union_all_recursion_runs_in_spark(refusing_cli: Cli) -> None:
    checked = refusing_cli.one("check", "--query", "bag")
    assert checked["supported"] is False
    # The location is reported by all commands.
    assert checked["place"] == refusing_cli("explain", "--query", "bag").error["location"]
    assert checked["place"]["line"] == 24
    assert "_StartedError" in refusing_cli("query", "--query", "bag").error["message"]


SET = "(SELECT dst FROM links UNION SELECT l.dst FROM {r} JOIN links l ON {r}.n = l.src)"
UNUSED = {
    "alone": f"WITH RECURSIVE u(n) AS {SET.format(r='u')} SELECT a FROM t WHERE a > 1",
    "read by another": (
        f"WITH RECURSIVE u(n) AS {SET.format(r='u')}, v AS (SELECT n + 1 AS m FROM u) "
        "SELECT a FROM t WHERE a > 1"
    ),
    "within another": (
        f"WITH v AS (WITH RECURSIVE u(n) AS {SET.format(r='u')} SELECT n FROM u) "
        "SELECT a FROM t WHERE a > 1"
    ),
    "beside one that is used": (
        f"WITH RECURSIVE u(n) AS {SET.format(r='u')}, r(n) AS {SET.format(r='r')} "
        "SELECT a FROM t JOIN r ON t.a = r.n WHERE a > 1"
    ),
}


@pytest.fixture
def unused(cli_of: CliOf) -> Cli:
    queries: dict[str, Any] = {f"q{n}": sql for n, sql in enumerate(UNUSED.values())}
    queries["wished"] = {"sql": UNUSED["alone"], "sketch": {"links": "src"}}
    links = pa.table({"src": [1, 2, 3], "dst": [2, 3, 1]})
    return cli_of({"queries": queries}, t=pa.table({"a": [1, 2, 3]}), links=links)


@pytest.mark.spark
def test_spark_runs_queries_with_unused_recursions(unused: Cli, spark: Any) -> None:
    for number in range(len(UNUSED)):
        result = unused.one("query", "--query", f"q{number}", "--by", "spark", "--sketch", "never")
        assert (result["by"], sorted(result["rows"])) == ("spark", [[2], [3]])


def test_rewritten_unused_recursion_is_not_for_spark(unused: Cli) -> None:
    unused.good("capture", "--query", "q0")
    assert unused.one("rewrite", "--query", "q0")["runs_on_spark"] is False


def test_sketch_of_an_unused_table_is_refused(unused: Cli) -> None:
    ran = unused("capture", "--query", "wished")
    error = ran.document["error"] or ran.results[0]["error"]
    assert error["code"] == "sketch_table_unused"
    assert error["message"].endswith("`links`, which only an unused WITH entry names")


def test_unused_union_all_recursion_is_ignored() -> None:
    query = read_net(
        "WITH RECURSIVE u(n) AS (SELECT dst FROM links UNION ALL SELECT n + 1 FROM u WHERE n < 9) "
        "SELECT n FROM nodes"
    )
    assert not any(isinstance(node, Fixpoint) for node in query.root.walk())
    assert [one.is_set for one in query.unused] == [False]
    assert not is_for_others(query)


def test_recursion_that_keeps_only_best_rows_is_warned_of(unused: Cli) -> None:
    best = (
        "WITH RECURSIVE r(n, k) AS (SELECT dst, 1 FROM links WHERE src = 1 UNION "
        "SELECT l.dst, r.k + 1 FROM r JOIN links l ON r.n = l.src) "
        "SELECT n, MIN(k) AS k FROM r GROUP BY n"
    )
    texts = {"best": best, "plain": "SELECT dst FROM links WHERE src > 1"}
    queries = {name: {"sql": sql, "sketch": {"links": "src"}} for name, sql in texts.items()}
    partitions = {"links": {"src": {"boundaries": [2, 3]}}}
    workload = {"tables": ["links"], "partitions": partitions, "queries": queries}
    write_files(unused.folder, workload)
    unused.good("capture")
    warnings = {
        q: unused.good("rewrite", "--query", q).document["warnings"] for q in ("best", "plain")
    }
    assert "[best_rows_only]" in warnings["best"][-1]
    assert not any("best_rows_only" in one for one in warnings["plain"])
