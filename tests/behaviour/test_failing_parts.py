"""A query fails through its sketch only if it fails without it.

Of a group that is dropped in the end the sketch may show a part. What is computed of the part can
fail where that of the whole group does not: here the sum of `y` over part of group 1 is zero.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import impctl
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

LAST = "FROM t GROUP BY g ORDER BY COUNT(*) DESC, g LIMIT 1"
QUERIES = {
    "quotient": (f"SELECT g, SUM(x) / SUM(y) AS r {LAST}", [[2, 8.0]]),
    "remainder": (f"SELECT g, SUM(x) % SUM(y) AS r {LAST}", [[2, 0]]),
    "cast": (f"SELECT g, CAST(100 + 27 * (3 - SUM(y)) AS TINYINT) AS r {LAST}", [[2, 100]]),
}


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    rows = [(1, 1, 5, 0), (1, 11, 6, 3), (2, 2, 7, 1), (2, 3, 8, 1), (2, 4, 9, 1)]
    columns = zip(("g", "id", "x", "y"), zip(*rows, strict=True), strict=True)
    create_table(str(tmp_path / "t"), pa.table({n: pa.array(v, pa.int64()) for n, v in columns}))
    lines = [
        "version: 1",
        "tables: {t: {path: t}}",
        "partitions: {t: {id: {boundaries: [10]}}}",
        "queries:",
        *(f'  {n}: {{sql: "{sql}", sketch: {{t: id}}}}' for n, (sql, _) in QUERIES.items()),
    ]
    return Cli.over(capsys, tmp_path, "\n".join(lines) + "\n").captured()


@pytest.mark.parametrize("name", QUERIES)
def test_the_engine_computes_outputs_of_the_rows_that_stay(cli: Cli, name: str) -> None:
    ran = cli.good("query", "--query", name, "--sketch", "always", "--by", "engine")
    assert (ran.results[0]["rows"], ran.document["warnings"]) == (QUERIES[name][1], [])


@pytest.mark.spark
@pytest.mark.parametrize("name", QUERIES)
def test_spark_reads_again_without_the_sketch(cli: Cli, name: str, spark: object) -> None:
    ran = cli.good("query", "--query", name, "--sketch", "always", "--by", "spark")
    assert ran.results[0]["rows"] == QUERIES[name][1]
    assert ran.document["warnings"]


def test_what_fails_without_the_sketch_fails(cli: Cli) -> None:
    cli.edit("COUNT(*) DESC, g LIMIT 1", "COUNT(*), g LIMIT 2")
    cli.edit("SUM(y) AS r", "(SUM(y) - 3) AS r")
    ran = cli("query", "--query", "quotient", "--sketch", "always", "--by", "engine")
    assert ran.code == 3
    assert ran.error["code"] == "division_by_zero"


@pytest.mark.parametrize("name", QUERIES)
def test_a_text_is_handed_out_without_a_sketch_that_may_make_it_fail(cli: Cli, name: str) -> None:
    ran = cli.good("rewrite", "--query", name)
    assert ran.results[0]["sketches"] == []
    assert "BETWEEN" not in ran.results[0]["sql"]
    assert "[fails_in_part]" in ran.document["warnings"][0]
    refused = cli("rewrite", "--query", name, "--require-sketch")
    assert refused.refusal == (3, "fails_in_part")


def test_a_guarded_text_keeps_its_sketch(cli: Cli) -> None:
    cli.edit("SUM(x) / SUM(y)", "SUM(x) / NULLIF(SUM(y), 0)")
    cli.captured()
    ran = cli.good("rewrite", "--query", "quotient")
    assert (len(ran.results[0]["sketches"]), ran.document["warnings"]) == (1, [])


@pytest.mark.spark
@pytest.mark.parametrize("name", QUERIES)
def test_a_frame_and_verify_do_without_the_sketch(cli: Cli, name: str, spark: object) -> None:
    with impctl.open(cli.workload) as workload:
        with pytest.warns(impctl.ImpctlWarning, match="fails_in_part"):
            frame = workload.dataframe(name)
        assert [list(row) for row in frame.collect()] == QUERIES[name][1]
    ran = cli.good("verify", "--query", name, "--results")
    result = ran.results[0]
    assert (result["covers"], result["results_equal"]) == (True, None)
    (warning,) = ran.document["warnings"]
    assert "no result with it to compare" in warning
