"""Recursive queries of UNION ALL from capture to answer, on real tables, against DuckDB."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.sql.text import without_levels
from tests.behaviour.recursive_workload import (
    BAGS,
    all_by_duckdb,
    answers,
    change,
    check_maintained,
    fragments,
    network,
    through_sketches,
)
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli

ENDLESS = ["as_deep"]


@pytest.mark.slow
@random_seeds(1, 3, 9)
def test_maintained_sketches_are_those_of_fresh_captures_and_give_the_answers_of_all_rows(
    tmp_path: Path, capsys: Capsys, seed: int
) -> None:
    cli = network(tmp_path, capsys, list(BAGS))
    check_maintained(cli, change, seed, turns=3)
    texts = {name: without_levels(sql).replace("LEFT SEMI", "SEMI") for name, sql in BAGS.items()}
    assert through_sketches(cli, BAGS) == all_by_duckdb(cli, texts)


def chained(tmp_path: Path, capsys: Capsys, *links: tuple[int, int]) -> Cli:
    """Over these links alone, as deep as rows lead, four levels at most."""
    cli = network(tmp_path, capsys, ENDLESS)
    cli.workload.write_text(cli.workload.read_text().replace(" WHERE k < 3", ""))
    DeltaTable(str(tmp_path / "links")).delete()
    add_links(tmp_path, *links)
    return cli


def add_links(folder: Path, *links: tuple[int, int]) -> None:
    sources, targets = zip(*links, strict=True)
    rows = pa.table({"src": pa.array(sources, pa.int64()), "dst": pa.array(targets, pa.int64())})
    write_deltalake(str(folder / "links"), rows, mode="append")


def test_a_level_too_many_is_an_error_and_nothing_is_stored(tmp_path: Path, capsys: Capsys) -> None:
    cli = chained(tmp_path, capsys, (19, 30), (30, 31), (31, 32), (32, 33), (33, 34))
    ran = cli("capture")
    assert (ran.code, ran.error["code"]) == (3, "recursion_limit")
    assert "4 levels" in ran.error["message"]
    assert cli.good("status").results[0]["versions"] == {}


@pytest.mark.slow
def test_a_change_that_closes_a_circle_leaves_the_store_as_it_was(
    tmp_path: Path, capsys: Capsys
) -> None:
    cli = chained(tmp_path, capsys, (19, 30), (30, 31), (31, 32))
    cli.good("capture")
    before = fragments(cli)
    add_links(tmp_path, (32, 30))
    ran = cli("maintain")
    assert (ran.code, ran.error["code"]) == (3, "recursion_limit")
    assert fragments(cli) == before
    DeltaTable(str(tmp_path / "links")).delete("src = 32")
    assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
    (name,) = ENDLESS
    match = answers(cli, name, "--sketch", "always", "--by", "engine")
    assert match == {(1, 1): 1, (2, 1): 1, (3, 1): 1}
