"""Queries the engine cannot maintain, state of other releases, and witness sketches."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.compile import build
from impctl.errors import RecaptureNeededError
from impctl.rules import optimize
from impctl.service import prepare
from impctl.tables.write.maintenance import create_table
from tests.support.kept_workload import stored
from tests.support.run_cli import WORKLOAD, Capsys, Cli, refused

CONSTRUCTS_WORKLOAD = """\
version: 1
tables:
  t: {path: t}
  names: {path: names}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {boundaries: [10, 20]}
queries:
  median: {sql: "SELECT g, MEDIAN(x) AS m FROM t GROUP BY g HAVING MEDIAN(x) > 10", sketch: {t: g}}
  distinct:
    sql: SELECT g, COUNT(DISTINCT x) n FROM t GROUP BY g HAVING COUNT(DISTINCT x) < 3
    sketch: {t: g}
  hashed: {sql: "SELECT g FROM t WHERE md5(note) > '' GROUP BY g HAVING MAX(x) > 1", sketch: {t: x}}
  most: {sql: "SELECT g, MAX(x) AS m FROM t GROUP BY g HAVING MAX(x) > 20", sketch: {t: x}}
  top: {sql: "SELECT g, COUNT(*) AS n FROM t GROUP BY g ORDER BY n DESC, g LIMIT 1", sketch: {t: g}}
  join:
    sql: |
      SELECT n.name, SUM(t.x) AS s FROM t JOIN names n ON t.g = n.g
      GROUP BY n.name HAVING COUNT(*) > 2
    sketch: {t: x}
store: .impctl
"""
EXPECTED = {
    "median": "touch",
    "distinct": "exact",
    "hashed": "recapture",
    "most": "exact",
    "top": "exact",
    "join": "exact",
}


@pytest.fixture
def constructs_cli(tmp_path: Path, table: str, capsys: Capsys) -> Cli:
    create_table(str(tmp_path / "names"), pa.table({"g": [0, 1, 3, 5], "name": list("abca")}))
    return Cli.over(capsys, tmp_path, CONSTRUCTS_WORKLOAD)


@pytest.mark.spark
def test_modes_are_sound(constructs_cli: Cli, table: str, spark: Any) -> None:
    cli = constructs_cli
    assert {r["query"]: r["mode"] for r in cli.good("capture").results} == EXPECTED
    more = pa.table({"g": [7, 7, 7, 5], "x": [30, 31, 32, 50], "note": list("abcd")})
    write_deltalake(table, more, mode="append")
    maintained = cli.good("maintain").results
    assert {r["query"]: r["action"] for r in maintained} == EXPECTED
    assert all(r["reason"] for r in maintained)
    cli.verified(is_exact=False)
    DeltaTable(table).delete("g = 0 OR g = 7")
    cli.good("maintain")
    cli.verified(is_exact=False)


@pytest.mark.spark
def test_policies_forbid_modes(constructs_cli: Cli, table: str, spark: Any) -> None:
    cli = constructs_cli
    cli.good("capture", "--query", "hashed", "--query", "median")
    write_deltalake(table, pa.table({"g": [7], "x": [30], "note": ["a"]}), mode="append")
    ran = cli("maintain", "--query", "hashed", "--policy", "incremental")
    assert ran.refusal == (7, "not_incremental")
    assert "md5" in ran.error["message"]
    assert ran.error["location"]["line"] == 14
    median = ("maintain", "--query", "median", "--policy")
    assert cli(*median, "strict").refusal == (4, "policy_refused")
    assert cli.one(*median, "full")["action"] == "recapture"


def test_explain_names_what_blocks_exact_maintenance(constructs_cli: Cli) -> None:
    result = {r["query"]: r for r in constructs_cli.good("explain").results}
    assert "MEDIAN" in result["median"]["reason"].upper()
    assert any(line["why"] for line in result["hashed"]["plan"])
    assert "every operator" in result["join"]["reason"]


def parses_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a fixed parser bug: no group satisfies HAVING."""
    parse = optimize.parse_query

    def read(sql: str, *arguments: Any, **named: Any) -> Any:
        return parse(sql.replace("> 2", "> 9"), *arguments, **named)

    monkeypatch.setattr(optimize, "parse_query", read)


def is_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "stamped", "0.0.9:{}".format)


def is_no_known_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate state that was stored without a release."""
    monkeypatch.setattr("impctl.service.capture.template_id", lambda _: "")


BEFORE = [parses_differently, is_another_release, is_no_known_release]
RELEASES = [is_another_release, is_no_known_release]


def set_policy(folder: Path, policy: str) -> None:
    (folder / "w.yaml").write_text(WORKLOAD.replace("POLICY", policy))


def ranges(folder: Path) -> tuple[int, ...]:
    return tuple(stored(folder, "q").sketches[0].ranges.ids)


@pytest.fixture(params=BEFORE)
def captured_by_older(
    request: pytest.FixtureRequest, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> Cli:
    with monkeypatch.context() as patch:
        request.param(patch)
        cli.good("capture")
    return cli


@pytest.mark.slow
def test_recaptured_before_it_is_used(captured_by_older: Cli, tmp_path: Path) -> None:
    set_policy(tmp_path, "auto")
    captured_by_older.good("rewrite")
    assert ranges(tmp_path) == (0, 1)
    assert captured_by_older.good("maintain").results[0]["action"] == "none"


@pytest.mark.slow
def test_policy_may_forbid_recapture(captured_by_older: Cli, tmp_path: Path) -> None:
    before = ranges(tmp_path)
    assert captured_by_older.one("rewrite")["sketches"] == []
    ran = captured_by_older("rewrite", "--require-sketch")
    assert ran.refusal == (7, "engine_changed")
    assert "impctl capture" in ran.error["hint"]
    set_policy(tmp_path, "strict")
    assert captured_by_older("rewrite").code == 4
    assert ranges(tmp_path) == before


@pytest.mark.parametrize("before", RELEASES)
def test_release_change_is_detected_without_sql(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, before: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with monkeypatch.context() as patch:
        before(patch)
        cli.good("capture")
    assert "another release" in cli.one("status")["stale_reason"]
    assert cli("maintain").refusal == (7, "engine_changed")
    ran = cli.one("maintain", "--policy", "auto")
    assert (ran["action"], ran["reason_code"]) == ("recapture", "engine_changed")
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "bind", None)
        assert cli.actions() == {"none"}


def test_api_and_old_versions_get_the_error(captured_by_older: Cli, tmp_path: Path) -> None:
    with (
        impctl.open(tmp_path / "w.yaml") as opened,
        refused(RecaptureNeededError, "engine_changed"),
    ):
        opened.rewrite("q", require_sketch=True)
    assert captured_by_older("rewrite", "--at", "0").refusal == (7, "engine_changed")


@pytest.mark.slow
def test_rebalance_recaptures(captured_by_older: Cli, tmp_path: Path) -> None:
    set_policy(tmp_path, "auto")
    captured_by_older.good("capture", "--rebalance")
    assert ranges(tmp_path) == (0, 1)


ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "d": pa.array([1.5, None]),
        "ts": pa.array([1_774_744_200_000_000, None], pa.timestamp("us", "UTC")),
        "s": ["a", None],
    }
)


def materialized_cli(
    folder: Path, capsys: Capsys, sql: str, rows: pa.Table = ROWS, *cuts: int
) -> Cli:
    """A CLI for a query with a materialized result."""
    create_table(str(folder / "t"), rows)
    return Cli.asking(
        capsys,
        folder,
        {"q": {"answer": True, "sql": sql}},
        partitions={"t": {"id": {"boundaries": [*cuts] or [2]}}},
        spark={"conf": {"spark.sql.session.timeZone": "Europe/Berlin"}},
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, hour(ts) AS v FROM t WHERE id < 9",
        "SELECT id, CAST(ts AS DATE) AS v FROM t WHERE id < 9",
        "SELECT id, CAST(d AS STRING) AS v FROM t WHERE id < 9",
        "SELECT id, ascii(s) AS v FROM t WHERE id < 9",
        "SELECT id, id LIKE '1%' AS v FROM t WHERE id < 9",
        "SELECT id FROM t WHERE id < 9 ORDER BY CAST(d AS STRING)",
        "SELECT id, CASE WHEN hour(ts) > 1 THEN 1 END AS v FROM t WHERE id < 9",
        "SELECT s, CAST(MAX(d) AS STRING) AS v FROM t GROUP BY s",
    ],
)
def test_spark_only_result_is_not_kept(tmp_path: Path, capsys: Capsys, sql: str) -> None:
    cli = materialized_cli(tmp_path, capsys, sql)
    answer = cli.one("check")["answer"]
    assert not answer["kept"]
    assert "the engine does not support" in answer["reason"]
    cli.good("capture")
    assert cli("query", "--by", "state").refusal == (2, "answer_not_kept")
    assert cli("query", "--by", "engine").refusal == (3, "engine_cannot")


def test_engine_result_is_kept(tmp_path: Path, capsys: Capsys) -> None:
    sql = "SELECT id, d * 2 AS v, upper(s) AS u FROM t WHERE id < 9 ORDER BY d DESC"
    cli = materialized_cli(tmp_path, capsys, sql).captured()
    rows = [[1, 3.0, "A"], [2, None, None]]
    for by in ("state", "engine"):
        assert cli.one("query", "--by", by)["rows"] == rows


QUERIES = {
    "SELECT g, COALESCE(city, (SELECT 'none')) AS c FROM t WHERE id > 3": (
        [[1, "none"], [2, "c"]],
        [[1, "none"], [2, "c"], [3, "none"]],
    ),
    "SELECT (SELECT MAX(id) FROM t) AS m": ([[12]], [[20]]),
    "WITH k AS (SELECT 5 AS v) SELECT g FROM t WHERE id > (SELECT v FROM k)": (
        [[1], [2]],
        [[1], [2], [3]],
    ),
}


@pytest.mark.parametrize("sql", QUERIES)
def test_results_are_kept_and_maintained(tmp_path: Path, capsys: Capsys, sql: str) -> None:
    rows = pa.table({"g": [1, 1, 2, 2], "id": [1, 11, 2, 12], "city": ["a", None, "b", "c"]})
    cli = materialized_cli(tmp_path, capsys, sql, rows, 4, 10).captured()
    before, after = QUERIES[sql]
    assert sorted(cli.one("query", "--by", "state")["rows"]) == before
    more = pa.table({"g": [3], "id": [20], "city": pa.array([None], pa.string())})
    write_deltalake(str(tmp_path / "t"), more, mode="append")
    cli.good("maintain", "--policy", "incremental")
    assert sorted(cli.one("query", "--by", "state")["rows"]) == after


SUMS = "SELECT b, MAX(s) AS m FROM (SELECT b, c, SUM(p) AS s FROM t GROUP BY b, c) GROUP BY b"


def workload(folder: Path, capsys: Capsys, sql: str, column: str) -> Cli:
    query = {"sql": sql, "sketch": {"t": column}, "lineage": "witness", "policy": "incremental"}
    cuts: dict[str, list[object]] = {"id": [100, 200], "b": ["g", "p"]}
    partitions = {"t": {column: {"boundaries": cuts[column]}}}
    return Cli.asking(capsys, folder, {"q": query}, partitions=partitions)


@pytest.fixture
def witness_table(tmp_path: Path) -> DeltaTable:
    """Group `a` is in the first range, `b` in the second."""
    rows = {"id": [1, 2, 150], "b": ["a", "a", "b"], "c": [1, 2, 1], "p": [10, 3, 7]}
    create_table(str(tmp_path / "t"), pa.table({**rows, "d": [1.5, 2.5, 3.5]}))
    return DeltaTable(str(tmp_path / "t"))


def test_dropped_check_needs_a_recapture(
    tmp_path: Path, capsys: Capsys, witness_table: DeltaTable
) -> None:
    witness_table.alter.add_constraint({"positive": "p >= 0"})
    cli = workload(tmp_path, capsys, SUMS, "id").captured()
    cli.good("maintain")
    witness_table.alter.drop_constraint("positive")
    DeltaTable(str(tmp_path / "t")).delete("id = 2")
    assert cli("maintain").refusal == (7, "engine_changed")
    assert (cli("rewrite", "--require-sketch").code, cli.one("rewrite")["sketches"]) == (7, [])
    cli.good("capture")
    assert cli.one("rewrite")["sketches"][0]["ranges"] == [0, 1]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT c FROM t WHERE md5(b) > 'a'",
        "SELECT c, MAX(p) AS m FROM t WHERE md5(b) > 'a' GROUP BY c",
    ],
)
def test_no_touch_for_witnesses(
    tmp_path: Path, capsys: Capsys, witness_table: DeltaTable, sql: str
) -> None:
    cli = workload(tmp_path, capsys, sql, "b")
    assert cli.one("explain")["mode"] == "recapture"
    cli.edit('"witness"', '"all"')
    assert cli.one("explain")["mode"] == "touch"


def operator_reasons(result: dict[str, Any]) -> str:
    return " | ".join(line["why"] for line in result["plan"])


DOUBLE_SUMS_VARY = "sums of doubles vary from run to run"


def test_full_lineage_above_sums_of_doubles(
    tmp_path: Path, capsys: Capsys, witness_table: DeltaTable
) -> None:
    def reasons(sql: str, column: str = "id") -> str:
        return operator_reasons(workload(tmp_path, capsys, sql, column).one("explain"))

    distinct = "SELECT b FROM (SELECT b, SUM(d) AS s FROM t GROUP BY b, c) GROUP BY b"
    assert "its sketch holds only the rows that decide the result" in reasons(distinct)
    witness_table.alter.add_constraint({"up": "d >= 0"})
    of_sums = "SELECT b, MAX(s) AS m FROM (SELECT b, SUM(d) AS s FROM t GROUP BY b, c) GROUP BY b"
    assert DOUBLE_SUMS_VARY in reasons(of_sums)
    of_windows = (
        "SELECT c, MAX(s) AS m FROM (SELECT c, SUM(d) OVER (PARTITION BY b) AS s FROM t) GROUP BY c"
    )
    assert DOUBLE_SUMS_VARY in reasons(of_windows, "b")


WITNESS_QUERIES = {
    "best": "SELECT g, MAX(v) AS best FROM t GROUP BY g HAVING MAX(v) > 60",
    "both": "SELECT g, MAX(d) AS m, MIN(v) AS b FROM t GROUP BY g ORDER BY b NULLS LAST, g LIMIT 4",
    "one": "SELECT MAX(v) AS top, MIN(d) AS low FROM t WHERE g IS NOT NULL",
    "once": "SELECT DISTINCT g FROM t WHERE v > 20",
    "partner": "SELECT k, w FROM s WHERE EXISTS (SELECT 1 FROM t WHERE t.g = s.k AND t.v > 60)",
    "among": "SELECT k FROM s WHERE k IN (SELECT g FROM t WHERE v > 70)",
    "filtered": "SELECT g, MAX(v) FILTER (WHERE d > 1) AS b FROM t GROUP BY g HAVING MAX(v) > 50",
    "nested": "SELECT MAX(b) AS m FROM (SELECT g, MIN(v) AS b FROM t GROUP BY g)",
    "joined": "SELECT w, MAX(v) AS b FROM t JOIN s ON g = k GROUP BY w HAVING MAX(v) > 30",
    "counted": "SELECT g, MAX(v) AS b, COUNT(*) AS n FROM t GROUP BY g HAVING MAX(v) > 60",
}
FULL_LINEAGE = {"counted"}
"""Queries that need all rows of a group."""
WITNESS_ROWS = 600


def rows_of(rng: random.Random, start: int, count: int) -> pa.Table:
    values: tuple[list[Any], ...] = (
        [*range(12), None],
        [*range(100), 99, None, None],
        [-0.0, 0.0, 0.5, 2.5, math.nan, math.inf, None],
    )
    drawn = [[rng.choice(some) for _ in range(count)] for some in values]
    schema = pa.schema({"id": pa.int64(), "g": pa.int64(), "v": pa.int32(), "d": pa.float64()})
    return pa.table([[*range(start, start + count)], *drawn], schema=schema)


@pytest.fixture
def witness_cli(tmp_path: Path, capsys: Capsys) -> Cli:
    create_table(str(tmp_path / "t"), rows_of(random.Random(1), 0, WITNESS_ROWS))
    keys = pa.table({"k": [*range(14), None], "w": [n % 5 for n in range(15)]})
    create_table(str(tmp_path / "s"), keys)
    common = {"sketch": {"t": "id"}, "policy": "incremental"}
    queries = {
        f"{name}_{lineage}": {"sql": sql, "lineage": lineage, **common}
        for name, sql in WITNESS_QUERIES.items()
        for lineage in ("all", "witness")
    }
    partitions = {"t": {"id": {"boundaries": [*range(20, WITNESS_ROWS + 400, 20)]}}}
    return Cli.asking(capsys, tmp_path, queries, "ts", partitions=partitions)


def fragments_by_query(results: list[dict[str, Any]]) -> dict[str, set[int]]:
    return {
        result["query"]: set(sketch["ranges"])
        for result in results
        for sketch in result["sketches"]
        if sketch["table"] == "t"
    }


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_witness_sketches_are_maintained(witness_cli: Cli) -> None:
    captured = witness_cli.good("capture").results
    assert {result["mode"] for result in captured} == {"exact"}
    stored_ranges = fragments_by_query(captured)
    for name in WITNESS_QUERIES:
        full, witnesses = stored_ranges[f"{name}_all"], stored_ranges[f"{name}_witness"]
        assert witnesses <= full
        assert (witnesses == full) is (name in FULL_LINEAGE), name
    witness_cli.verified()
    rng, folder = random.Random(2), witness_cli.workload.parent
    for step in range(4):
        write_deltalake(
            str(folder / "t"), rows_of(rng, WITNESS_ROWS + 90 * step, 90), mode="append"
        )
        condition = f"id % 7 = {step} OR (v >= 97 AND id % 2 = {step % 2})"
        DeltaTable(str(folder / "t")).delete(condition)
        for result in witness_cli.good("maintain").results:
            assert result["action"] == "exact", result
        if step % 2:
            witness_cli.verified()


@pytest.mark.spark
def test_witness_sketch_is_not_reused(witness_cli: Cli) -> None:
    witness_cli.good("capture", "--query", "best_witness")
    sql = "SELECT g, MAX(v) AS best FROM t GROUP BY g HAVING MAX(v) > 80"
    (candidate,) = witness_cli.one("rewrite", "--sql", sql)["reuse"]["candidates"]
    assert not candidate["allowed"]
    assert "witness" in candidate["reason"]
    witness_cli.good("capture", "--query", "best_all")
    assert witness_cli.one("rewrite", "--sql", sql)["reuse"]["query"] == "best_all"


@pytest.mark.spark
def test_lineage_is_part_of_the_definition(witness_cli: Cli) -> None:
    witness_cli.good("capture", "--query", "best_all", "--query", "best_witness")
    witness_cli.edit('"lineage": "all"', '"lineage": "witness"')
    assert witness_cli("maintain", "--query", "best_all").refusal == (7, "definition_changed")


@pytest.mark.spark
def test_explain_shows_witnesses(witness_cli: Cli) -> None:
    plans = {
        result["query"]: operator_reasons(result) for result in witness_cli.good("explain").results
    }
    assert "its sketch holds only the rows that decide the result" in plans["best_witness"]
    assert "COUNT needs all rows of a group" in plans["counted_witness"]
    assert "its sketch holds" not in plans["best_all"]
