"""Regression tests of soundness attacks, and queries that fail on part of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli


def decimals(scale: int, *values: str) -> pa.Array:
    return pa.array([Decimal(value) for value in values], pa.decimal128(38, scale))


def sketch_cli(folder: Path, capsys: Capsys, sql: str, zone: str = "UTC", tables: str = "t") -> Cli:
    return Cli.asking(
        capsys,
        folder,
        {"q": {"sql": sql, "sketch": {"t": "g"}}},
        tables,
        partitions={"t": {"g": {"boundaries": ["B", "C"]}}},
        spark={"master": "local[2]", "conf": {"spark.sql.session.timeZone": zone}},
    )


TWICE_ROUNDED = "195326090969723374956.00"
"""A decimal whose double differs from unscaled / 100 in double arithmetic."""

CASES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any] | str]] = {
    "a FLOAT constant is single precision": (
        "SELECT g, COUNT(*) n FROM t WHERE f = 0.1F GROUP BY g HAVING COUNT(*) >= 2",
        {"g": ["C", "A"], "f": pa.array([0.1, 0.1], pa.float32())},
        {"g": ["A"], "f": pa.array([0.1], pa.float32())},
    ),
    "a decimal becomes a double by one rounding": (
        "SELECT g, SUM(CAST(d AS DOUBLE)) s FROM t GROUP BY g HAVING SUM(CAST(d AS DOUBLE)) > 1",
        {"g": ["A", "A", "C"], "id": [1, 2, 3], "d": decimals(2, TWICE_ROUNDED, "5.00", "7.00")},
        "id = 1",
    ),
    "equal decimals are one key as doubles": (
        "SELECT CAST(d AS DOUBLE) k, COUNT(*) n FROM t GROUP BY CAST(d AS DOUBLE)"
        " HAVING COUNT(*) >= 2",
        {"g": ["A"], "d": decimals(2, TWICE_ROUNDED)},
        {"g": ["C"], "d": decimals(2, TWICE_ROUNDED)},
    ),
    "a condition inside a sum is decided as Spark does": (
        "SELECT g, COUNT(*) n FROM t GROUP BY g"
        " HAVING SUM(CASE WHEN CAST(d AS DOUBLE) > 1.0D THEN -1 ELSE 1 END) > 0",
        {"g": ["C"], "d": decimals(18, "1.0")},
        {"g": ["A"], "d": decimals(18, "1.0")},
    ),
    "decimals that need more than 38 digits are compared by Spark": (
        "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING SUM(a) <= SUM(b)",
        {"g": ["C"], "a": decimals(18, "1.0"), "b": decimals(0, "1")},
        {"g": ["A"], "a": decimals(18, "1.4"), "b": decimals(0, "1")},
    ),
    "IN brings all options to one type": (
        "SELECT g, COUNT(*) n FROM t WHERE x IN (9007199254740993, 0.5D) GROUP BY g"
        " HAVING COUNT(*) > 0",
        {"g": ["C"], "x": [9007199254740993]},
        {"g": ["A"], "x": [9007199254740992]},
    ),
    "constants keep all 38 digits": (
        "SELECT g, COUNT(*) n FROM t GROUP BY g"
        " HAVING SUM(d) > 12345678901234567890123456789.012345",
        {"g": ["C"], "d": decimals(6, "22345678901234567890123456789.5")},
        {"g": ["A"], "d": decimals(6, "12345678901234567890123456789.5")},
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES)
def test_fixed_attacks(case: str, tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    sql, rows, change = CASES[case]
    table = str(tmp_path / "t")
    create_table(table, pa.table(rows))
    cli = sketch_cli(tmp_path, capsys, sql)
    cli.good("capture")
    if isinstance(change, str):
        DeltaTable(table).delete(change)
    else:
        write_deltalake(table, pa.table(change), mode="append")
    cli.good("maintain")
    assert len(cli.verified(is_exact=False)) == 1


@pytest.mark.spark
def test_zone_is_part_of_the_definition(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    create_table(str(tmp_path / "t"), pa.table({"g": ["A"], "v": [1]}))
    sql = "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 0"
    sketch_cli(tmp_path, capsys, sql).good("capture")
    moved = sketch_cli(tmp_path, capsys, sql, zone="America/New_York")
    assert moved("maintain", "--policy", "incremental").refusal == (7, "definition_changed")


@pytest.mark.spark
def test_no_touch_with_a_join(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    """With a join, changes of the other table matter, and touch mode does not see them."""
    create_table(str(tmp_path / "t"), pa.table({"g": ["A", "B", "C"]}))
    create_table(str(tmp_path / "u"), pa.table({"g": ["A"], "v": [20]}))
    call = "MEDIAN(u.v)"
    sql = f"SELECT t.g, {call} m FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING {call} > 10"
    cli = sketch_cli(tmp_path, capsys, sql, tables="tu")
    assert cli.one("capture")["mode"] == "recapture"
    write_deltalake(str(tmp_path / "u"), pa.table({"g": ["C"], "v": [30]}), mode="append")
    assert cli.actions() == {"recapture"}
    cli.verified(is_exact=False)


@pytest.mark.spark
def test_failed_state_build_is_reported(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    """Too many values tie for the engine, so every change needs a recapture."""
    rows = {"g": ["A"] * 65, "k": [1] * 65, "v": list(range(65))}
    create_table(str(tmp_path / "t"), pa.table(rows))
    sql = "SELECT g, MAX_BY(v, k) m FROM t GROUP BY g HAVING MAX_BY(v, k) >= 0"
    cli = sketch_cli(tmp_path, capsys, sql)
    assert cli.one("capture")["mode"] == "recapture"
    write_deltalake(str(tmp_path / "t"), pa.table({"g": ["B"], "k": [1], "v": [1]}), mode="append")
    ran = cli("maintain", "--policy", "incremental")
    assert ran.refusal == (7, "not_incremental")
    assert "could not build its state" in ran.error["message"]
    done = cli.one("maintain")
    assert (done["action"], done["reason_code"]) == ("recapture", "not_incremental")


TABLES = {
    "a": {"id": [1, 2], "x": [1, 2]},
    "b": {"id": [2, 3], "k": [1, 7]},
    "c": {"id": [1, 2, 3, 4, 5], "g": list("yyxxx"), "k": [1, 1, 9, 9, 9]},
    "r": {"id": [1, 2], "k": [1, 2], "x": [5, 5]},
    "s": {"k": ["1", "01", "2"], "y": [3, 4, 1], "p": [1, 2, 3]},
    "l": {"g": list("aabbb"), "x": [1, 1, 2, 2, 2]},
    "d": {"g": list("AAB"), "p": [1, 2, 1], "d": [10.0, float("nan"), 12.0]},
    "w": {"a": [1, 2, 1, 4], "id": [9, 3, 5, 7], "s": ["apple", "Avocado", "pear", "247"]},
    "v": {"id": [3, 9], "b": [1, 2]},
    "t": {"cmd": ["run !", "run ${x}", "run a"], "n": [5, 1, 1]},
}
SEMANTICS_PARTITIONS = {
    "a": {"id": [2]},
    "c": {"g": ["y"]},
    "r": {"id": [2]},
    "v": {"id": [4]},
    "s": {"p": [2, 3]},
    "d": {"p": [2]},
    "w": {"id": [4, 6, 8]},
    "t": {"cmd": ["run $${x}"]},
}


SPARK_SEMANTICS: list[tuple[str, str, list[Any]]] = [
    (
        "SELECT c.g, COUNT(*) n FROM a CROSS JOIN b RIGHT JOIN c ON b.k = c.k"
        " GROUP BY c.g ORDER BY n DESC, c.g LIMIT 1",
        "{c: g}",
        [["y", 4]],
    ),
    (
        "SELECT id FROM r WHERE x < (SELECT SUM(y) FROM s WHERE CAST(s.k AS INT) = r.k)",
        "{r: id}",
        [[1]],
    ),
    (
        "SELECT id FROM a UNION ALL SELECT id FROM b INTERSECT SELECT id FROM c",
        "{a: id}",
        [[1], [2], [2], [3]],
    ),
    ("SELECT id FROM w WHERE s NOT ILIKE 'a%'", "{w: id}", [[5], [7]]),
    ("SELECT id FROM w WHERE s = '\\247'", "{w: id}", [[7]]),
    ("SELECT p FROM s WHERE +k = '1'", "{s: p}", [[1], [2]]),
    ("SELECT p FROM s WHERE k IN (+'1')", "{s: p}", [[1], [2]]),
    ("SELECT id FROM w ORDER BY (1) LIMIT 1", "{w: id}", [[3]]),
    (
        "SELECT * FROM w LEFT SEMI JOIN v USING (id) ORDER BY 1 LIMIT 1",
        "{w: id}",
        [[3, 2, "Avocado"]],
    ),
    ("SELECT w.* FROM w JOIN v USING (id) ORDER BY 1 LIMIT 1", "{w: id}", [[3, 2, "Avocado"]]),
    (
        "SELECT v.*, w.* FROM w RIGHT JOIN v USING (id) ORDER BY 1 LIMIT 1",
        "{v: id}",
        [[3, 1, 3, 2, "Avocado"]],
    ),
    ("SELECT cmd FROM t WHERE n > 2", "{t: cmd}", [["run !"]]),
    ("SELECT cmd FROM t WHERE cmd LIKE 'run $%' AND n < 2", "{t: cmd}", [["run ${x}"]]),
]
"""Queries, their sketches, and the rows that Spark returns."""


OpenCli = Callable[..., Cli]


@pytest.fixture
def semantics_cli(tmp_path: Path, capsys: Capsys, spark: Any) -> OpenCli:
    def open_with(*queries: tuple[str, str]) -> Cli:
        for name, columns in TABLES.items():
            create_table(str(tmp_path / name), pa.table(columns))
        definitions = {
            f"q{number}": {"sql": sql, "sketch": yaml.safe_load(sketch)}
            for number, (sql, sketch) in enumerate(queries)
        }
        partitions = {
            table: {name: {"boundaries": values} for name, values in ranges.items()}
            for table, ranges in SEMANTICS_PARTITIONS.items()
        }
        return Cli.asking(capsys, tmp_path, definitions, TABLES.keys(), partitions=partitions)

    return open_with


@pytest.mark.spark
def test_sql_semantics_of_spark(semantics_cli: OpenCli) -> None:
    cli = semantics_cli(*(query[:2] for query in SPARK_SEMANTICS)).captured()
    assert all(result["covers"] for result in cli.good("verify").results)
    for number, (sql, _, rows) in enumerate(SPARK_SEMANTICS):
        assert sorted(cli.one("query", "--query", f"q{number}")["rows"]) == rows, sql


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sql", "sketch", "code"),
    [
        (
            "SELECT c.g, COUNT(*) n FROM a, b RIGHT JOIN c ON b.k = c.k GROUP BY c.g"
            " ORDER BY n DESC, c.g LIMIT 1",
            "{c: g}",
            "query_unsupported",
        ),
        (
            "SELECT id FROM r WHERE x < (SELECT SUM(y) FROM s WHERE s.k = r.k)",
            "{r: id}",
            "query_unsupported",
        ),
        (
            "SELECT g, COUNT(*) c FROM l WHERE x IN (SELECT k FROM s) GROUP BY g"
            " ORDER BY c DESC, g LIMIT 1",
            "{s: p}",
            "capture_unsupported",
        ),
        (
            "SELECT g FROM d GROUP BY g HAVING CAST(MAX(d) AS DECIMAL(10, 2)) > 5",
            "{d: p}",
            "sketch_unsafe",
        ),
    ],
)
def test_unsupported(semantics_cli: OpenCli, sql: str, sketch: str, code: str) -> None:
    assert semantics_cli((sql, sketch))("capture").refusal == (3, code)


FILTERED_TOP = (
    "SELECT q.g FROM (SELECT t.g, u.x FROM t JOIN u ON t.k = u.k ORDER BY u.x LIMIT 2) q "
    "WHERE q.g <> 'Z'"
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("join", ["spark", "spark_unfiltered"])
def test_distant_sides_below_a_barrier(
    join: str, tmp_path: Path, capsys: Capsys, spark: Any
) -> None:
    create_table(str(tmp_path / "t"), pa.table({"g": ["A", "B", "C"], "k": [1, 2, 3]}))
    create_table(str(tmp_path / "u"), pa.table({"k": [1, 2, 3], "x": [10, 20, 30]}))
    query = {"sql": FILTERED_TOP, "sketch": {"t": "g"}, "join": join}
    partitions = {"t": {"g": {"boundaries": ["B", "C"]}}}
    cli = Cli.asking(capsys, tmp_path, {"q": query}, "tu", partitions=partitions)
    assert cli.one("capture")["mode"] == "exact"
    assert {side["strategy"] for side in cli.one("explain")["joins"]} == {"spark"}
    write_deltalake(str(tmp_path / "u"), pa.table({"k": [3], "x": [5]}), mode="append")
    assert cli.actions() == {"exact"}
    for verified in cli.good("verify", "--results").results:
        assert verified["covers"], verified
        assert verified["results_equal"] is True, verified


TOP_GROUP = "FROM t GROUP BY g ORDER BY COUNT(*) DESC, g LIMIT 1"
QUERIES = {
    "quotient": (f"SELECT g, SUM(x) / SUM(y) AS r {TOP_GROUP}", [[2, 8.0]]),
    "remainder": (f"SELECT g, SUM(x) % SUM(y) AS r {TOP_GROUP}", [[2, 0]]),
    "cast": (f"SELECT g, CAST(100 + 27 * (3 - SUM(y)) AS TINYINT) AS r {TOP_GROUP}", [[2, 100]]),
}


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    rows = [(1, 1, 5, 0), (1, 11, 6, 3), (2, 2, 7, 1), (2, 3, 8, 1), (2, 4, 9, 1)]
    columns = zip(("g", "id", "x", "y"), zip(*rows, strict=True), strict=True)
    create_table(str(tmp_path / "t"), pa.table({n: pa.array(v, pa.int64()) for n, v in columns}))
    queries = {n: {"sql": sql, "sketch": {"t": "id"}} for n, (sql, _) in QUERIES.items()}
    partitions = {"t": {"id": {"boundaries": [10]}}}
    return Cli.asking(capsys, tmp_path, queries, partitions=partitions).captured()


@pytest.mark.parametrize("name", QUERIES)
def test_engine_computes_outputs_of_result_rows_only(cli: Cli, name: str) -> None:
    ran = cli.good("query", "--query", name, "--sketch", "always", "--by", "engine")
    assert (ran.results[0]["rows"], ran.document["warnings"]) == (QUERIES[name][1], [])


@pytest.mark.spark
@pytest.mark.parametrize("name", QUERIES)
def test_spark_retries_without_sketch(cli: Cli, name: str, spark: object) -> None:
    ran = cli.good("query", "--query", name, "--sketch", "always", "--by", "spark")
    assert ran.results[0]["rows"] == QUERIES[name][1]
    assert ran.document["warnings"]


def test_query_that_always_fails(cli: Cli) -> None:
    cli.edit("COUNT(*) DESC, g LIMIT 1", "COUNT(*), g LIMIT 2")
    cli.edit("SUM(y) AS r", "(SUM(y) - 3) AS r")
    ran = cli("query", "--query", "quotient", "--sketch", "always", "--by", "engine")
    assert ran.refusal == (3, "division_by_zero")


@pytest.mark.parametrize("name", QUERIES)
def test_rewrite_omits_a_sketch_that_may_cause_failure(cli: Cli, name: str) -> None:
    ran = cli.good("rewrite", "--query", name)
    assert ran.results[0]["sketches"] == []
    assert "BETWEEN" not in ran.results[0]["sql"]
    assert "[fails_in_part]" in ran.document["warnings"][0]
    refused = cli("rewrite", "--query", name, "--require-sketch")
    assert refused.refusal == (3, "fails_in_part")


def test_guarded_sql_keeps_its_sketch(cli: Cli) -> None:
    cli.edit("SUM(x) / SUM(y)", "SUM(x) / NULLIF(SUM(y), 0)")
    cli.captured()
    ran = cli.good("rewrite", "--query", "quotient")
    assert (len(ran.results[0]["sketches"]), ran.document["warnings"]) == (1, [])


@pytest.mark.spark
@pytest.mark.parametrize("name", QUERIES)
def test_frame_and_verify_omit_sketch(cli: Cli, name: str, spark: object) -> None:
    with impctl.open(cli.workload) as workload:
        with pytest.warns(impctl.ImpctlWarning, match="fails_in_part"):
            frame = workload.dataframe(name)
        assert [list(row) for row in frame.collect()] == QUERIES[name][1]
    ran = cli.good("verify", "--query", name, "--results")
    result = ran.results[0]
    assert (result["covers"], result["results_equal"]) == (True, None)
    (warning,) = ran.document["warnings"]
    assert "no result with it to compare" in warning


UNNEEDED_ROWS = (
    "SELECT t.g, SUM(x) AS s FROM t JOIN u ON t.g = u.k "
    "GROUP BY t.g HAVING SUM(x) > (SELECT 6 / COUNT(*) FROM u)"
)


@pytest.mark.spark
def test_failing_subquery_without_groups(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    rows = {"id": [1, 2, 3, 4, 5, 6], "g": [1, 1, 2, 2, 3, 3], "x": [1, 2, 3, 4, 5, 6]}
    create_table(str(tmp_path / "t"), pa.table(rows))
    create_table(str(tmp_path / "u"), pa.table({"k": [1, 2, 3]}))
    query = {"sql": UNNEEDED_ROWS, "sketch": {"t": "id"}}
    partitions = {"t": {"id": {"boundaries": [3, 5]}}}
    cli = Cli.asking(capsys, tmp_path, {"q": query}, "tu", partitions=partitions).captured()
    explained = cli.one("explain")
    assert (explained["mode"], "a row fails" in explained["reason"]) == ("recapture", True)
    DeltaTable(str(tmp_path / "u")).delete()
    ran = cli.good("maintain")
    assert ran.results == []
    assert "`q` was not maintained" in ran.document["warnings"][0]
    assert "Division by zero" in ran.document["warnings"][0]
    assert cli.one("query")["rows"] == []
    write_deltalake(str(tmp_path / "u"), pa.table({"k": [2, 3]}), mode="append")
    assert cli.actions() == {"recapture"}
    assert sorted(cli.one("query")["rows"]) == [[2, 7], [3, 11]]
