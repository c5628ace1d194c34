"""Recursive queries with `lineage: witness`, from capture to answer, on real tables.

Sketches hold one derivation of each row; answers are held against DuckDB over all rows.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.behaviour.recursive_workload import (
    BAGS,
    QUERIES,
    actions_by_strict,
    answers,
    by_duckdb,
    change,
    check_answers,
    fragments,
    network,
    of_all,
    some_links,
)
from tests.support.random_cases import random_seeds

ROUTES = "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 7 UNION SELECT l.dst FROM r "
CAPPED = ROUTES + "JOIN links l ON r.n = l.src WHERE l.dst >= {}) SELECT n FROM r WHERE n > {}"


@random_seeds(1, 3, 9)
def test_answers_over_what_is_chosen_are_those_of_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    check_answers(network(tmp_path, capsys, list(QUERIES), "witness"), QUERIES, QUERIES, seed)


@pytest.mark.slow
def test_it_is_less_where_there_are_many_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = network(tmp_path, capsys, ["reach"], "witness")
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(5), 400), mode="append")
    cli.good("capture")
    held, every = fragments(cli)["reach"], of_all(cli)["reach"]
    assert sum(map(len, held)) < sum(map(len, every)), (held, every)


@pytest.mark.slow
def test_a_sketch_left_as_it_is_would_lack_a_row_and_is_never_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CE-R4: two ways to 30, of which the one chosen goes."""
    cli = network(tmp_path, capsys, ["reach"], "witness")
    table = str(tmp_path / "links")
    links = {"src": [7, 7, 18, 24], "dst": [18, 24, 30, 30]}
    write_deltalake(table, pa.table(links), mode="overwrite")
    cli.good("capture")
    (stale,) = cli.good("rewrite", "--query", "reach").results
    DeltaTable(table).delete("src = 18")
    assert by_duckdb(cli, QUERIES["reach"]) == {(18,): 1, (24,): 1, (30,): 1}
    assert by_duckdb(cli, stale["sql"]) == {(18,): 1, (24,): 1}, "the old choice"
    assert answers(cli, "reach", "--sketch", "always") == {(18,): 1, (24,): 1, (30,): 1}
    (kept,) = cli.good("status").results
    assert kept["mode"] == "exact"


@pytest.mark.slow
def test_it_serves_no_other_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CE-R6: with a narrower condition inside, the way chosen is not there."""
    cli = network(tmp_path, capsys, ["reach"], "witness")
    text = cli.workload.read_text().replace(QUERIES["reach"], CAPPED.format(10, 3))
    cli.workload.write_text(text)
    links = {"src": [7, 15, 15, 18, 24], "dst": [15, 18, 24, 28, 28]}
    write_deltalake(str(tmp_path / "links"), pa.table(links), mode="overwrite")
    cli.good("capture")
    (own,) = cli.good("rewrite", "--query", "reach").results
    narrower = CAPPED.format(20, 3)
    assert by_duckdb(cli, narrower) == {(15,): 1, (24,): 1, (28,): 1}
    naive = own["sql"].replace(">= 10", ">= 20")
    assert naive != own["sql"]
    assert by_duckdb(cli, naive) == {(15,): 1, (24,): 1}, "by the sketch as it is"
    # Inside, and above, where it would do.
    for asked in (narrower, CAPPED.format(10, 4)):
        (result,) = cli.good("rewrite", "--sql", asked, "--sketch", "auto").results
        (candidate,) = result["reuse"]["candidates"]
        assert not candidate["allowed"]
        assert "witness" in candidate["reason"]


def test_explain_says_what_is_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of UNION ALL all derivations (CE-R5)."""
    cli = network(tmp_path, capsys, ["reach", "walks"], "witness")
    results = cli.good("explain").results
    text = {
        result["query"]: " | ".join(line["why"] for line in result["plan"]) for result in results
    }
    # Where they are held, rows that did not change may come to be chosen: never by touch.
    whys = {result["query"]: result["reason"] for result in results}
    assert ["witnesses" in whys[name] for name in ("reach", "walks")] == [True, False]
    assert "one derivation of each row" in text["reach"]
    assert "UNION ALL counts all derivations" in text["walks"]
    assert "whole lineage" in text["walks"]
    cli.good("capture")
    for name, sql in (("reach", QUERIES["reach"]), ("walks", BAGS["walks"])):
        assert answers(cli, name, "--sketch", "always", "--by", "engine") == by_duckdb(cli, sql)
    assert fragments(cli)["walks"] == of_all(cli)["walks"]


def test_a_strict_policy_takes_it_since_it_is_maintained_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = network(tmp_path, capsys, ["reach"], "witness")
    assert actions_by_strict(cli) <= {"exact", "none"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_verify_derives_the_rows_over_the_sketch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["reach", "not_reached"]
    cli = network(tmp_path, capsys, names, "witness")
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(5), 400), mode="append")
    cli.good("capture")
    change(tmp_path, random.Random(4))
    cli.good("maintain")
    cli.verified()
    of_links = fragments(cli)["reach"]
    assert sum(map(len, of_links)) < sum(map(len, of_all(cli)["reach"]))
