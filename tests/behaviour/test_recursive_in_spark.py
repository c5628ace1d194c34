"""Recursive queries verified by Spark's own rounds: sketches, answers both ways, kept rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from tests.behaviour.recursive_workload import (
    BAGS,
    BEST,
    KEPT,
    LEFT_TO_SPARK,
    answers,
    change,
    network,
)

pytestmark = pytest.mark.spark

NAMES = (KEPT, "from_one", "not_reached", "by_groups", "running", *BEST)


@pytest.mark.slow
@pytest.mark.long
def test_spark_derives_what_was_maintained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = network(tmp_path, capsys, NAMES)
    cli.good("capture")
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    match = cli.verified()
    assert {result["query"] for result in match} == {*NAMES}
    for result in match:
        assert result["answer_equal"] in (None, True), result
    assert any(result["answer_equal"] for result in match)
    (ran,) = cli.good("query", "--query", "running", "--sketch", "always").results
    assert ran["by"] == "spark"
    rows = DeltaTable(str(tmp_path / "links")).to_pyarrow_table()
    with duckdb.connect() as connection:
        connection.register("links", rows)
        expected = connection.execute(LEFT_TO_SPARK["running"]).fetchall()
    assert Counter(map(tuple, ran["rows"])) == Counter(expected)


@pytest.mark.parametrize(
    "names", [["walks", "walks_of_reached"], pytest.param([*BAGS], marks=pytest.mark.long)]
)
def test_spark_runs_those_of_union_all_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    """With the ranges of the sketch in it, what is by UNION besides derived for it."""
    cli = network(tmp_path, capsys, names)
    cli.good("capture")
    change(tmp_path, random.Random(6))
    cli.good("maintain")
    cli.verified()
    for name in names:
        by_engine = answers(cli, name, "--sketch", "always", "--by", "engine")
        assert by_engine
        assert answers(cli, name, "--sketch", "always", "--by", "spark") == by_engine, name


def test_spark_gives_some_rows_of_what_has_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It derives no more than a LIMIT asks for; the engine derives all, and gives up."""
    cli = network(tmp_path, capsys, ["walks"])
    endless = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM seeds WHERE n < 9 UNION ALL SELECT "
        "CAST(n + 1 AS BIGINT) FROM r) SELECT n FROM r"
    )
    text = cli.workload.read_text().replace("{links: src}", "none")
    cli.workload.write_text(text.replace(BAGS["walks"], endless))
    ran = cli("query", "--query", "walks")
    assert (ran.code, ran.error["code"]) == (3, "recursion_limit")
    cli.workload.write_text(text.replace(BAGS["walks"], f"{endless} LIMIT 3"))
    assert answers(cli, "walks") == {(7,): 1, (8,): 1, (9,): 1}
    ran = cli("query", "--query", "walks", "--by", "engine")
    assert (ran.code, ran.error["code"]) == (3, "recursion_limit")
