"""Recursive queries from capture to answer, on real tables, against DuckDB over all their rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.behaviour.recursive_workload import (
    BEST,
    KEPT,
    OF_CONSTANTS,
    QUERIES,
    Answer,
    all_by_duckdb,
    all_by_sqlite,
    answers,
    change,
    check_maintained,
    fragments,
    network,
    some_links,
    tables_beside,
    through_sketches,
    written,
)
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli


@random_seeds(2, 4, 12)
def test_maintained_sketches_are_those_of_fresh_captures_and_give_the_answers_of_all_rows(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every second seed keeps the least state, and reads the rest from tables again."""
    if seed % 2:
        monkeypatch.setenv("IMPCTL_DISK", "0")
    queries = {**QUERIES, **OF_CONSTANTS}
    cli = network(tmp_path, capsys, [*queries])
    check_maintained(cli, change, seed, turns=2)
    expected = all_by_duckdb(cli, queries)
    assert through_sketches(cli, queries) == expected
    assert answers(cli, KEPT, "--by", "state") == expected[KEPT]
    texts = written(cli, QUERIES)
    for result in (all_by_duckdb(cli, texts), all_by_sqlite(cli, texts)):
        assert result == {name: expected[name] for name in texts}


def test_a_sketch_of_what_is_reached_skips_the_rest(tmp_path: Path, capsys: Capsys) -> None:
    (result,) = network(tmp_path, capsys, ["from_one"]).good("capture").results
    held = {fragment for one in result["sketches"] for fragment in one["fragments"]}
    assert len(held) < 10, held


def test_a_recursion_without_end_is_an_error_and_nothing_is_stored(
    tmp_path: Path, capsys: Capsys
) -> None:
    cli = network(tmp_path, capsys, ["levels"])
    text = cli.workload.read_text().replace(" WHERE k < 3", "")
    cli.workload.write_text(text + "limits: {rounds: 50}\n")
    # The links of one region lead in circles.
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(3), 60), mode="append")
    ran = cli("capture")
    assert (ran.code, ran.error["code"]) == (3, "recursion_limit")
    assert "raise `limits: {rounds: 50}` in the workload file" in ran.error["hint"]
    assert cli.good("status").results[0]["versions"] == {}
    cli.workload.write_text(text + "limits: {rows: 7}\n")
    assert "raise `limits: {rows: 7}` in the workload file" in cli("capture").error["hint"]


@pytest.mark.slow
def test_a_change_that_closes_a_circle_leaves_the_store_as_it_was(
    tmp_path: Path, capsys: Capsys
) -> None:
    cli = network(tmp_path, capsys, ["levels"])
    text = cli.workload.read_text().replace(" WHERE k < 3", "")
    cli.workload.write_text(text + "limits: {rounds: 50}\n")
    DeltaTable(str(tmp_path / "links")).delete()
    chain = {"src": [7, 8, 9], "dst": [8, 9, 10]}
    write_deltalake(str(tmp_path / "links"), pa.table(chain), mode="append")
    cli.good("capture")
    before = fragments(cli)
    write_deltalake(str(tmp_path / "links"), pa.table({"src": [10], "dst": [7]}), mode="append")
    ran = cli("maintain")
    assert (ran.code, ran.error["code"]) == (3, "recursion_limit")
    assert fragments(cli) == before
    DeltaTable(str(tmp_path / "links")).delete("src = 10")
    assert {result["action"] for result in cli.good("maintain").results} == {"exact"}


def cheapest(cli: Cli, add: Callable[[int, int], int]) -> Answer:
    """What it takes at least to get from 7 to each node, by Dijkstra's rule."""
    rows = tables_beside(cli)["links"].to_pydict()
    ends: dict[object, set[int | None]] = {}
    for src, dst in zip(rows["src"], rows["dst"], strict=True):
        ends.setdefault(src, set()).add(dst)
    least: dict[object, int] = {}
    waiting = [(1, dst) for dst in ends.get(7, ())]
    while waiting:
        at = min(range(len(waiting)), key=lambda one: waiting[one][0])
        cost, node = waiting.pop(at)
        if node in least:
            continue
        least[node] = cost
        if node is not None:
            waiting += [(add(cost, node % 3), dst) for dst in ends.get(node, ())]
    return Counter(least.items())


@pytest.mark.slow
def test_the_best_rows_of_circles_are_kept(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, list(BEST))
    check_maintained(cli, change, 12, turns=3)
    result = through_sketches(cli, ("cheapest", "ways"))
    assert result["cheapest"] == cheapest(cli, lambda cost, more: cost + more)
    assert {node for node, _ in result["ways"]} == {node for node, _ in result["cheapest"]}
