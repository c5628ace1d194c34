"""Recursive queries from capture to answer, on real tables, against DuckDB over all their rows."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.behaviour.recursive_workload import (
    BEST,
    KEPT,
    OF_CONSTANTS,
    QUERIES,
    change,
    network,
    some_links,
)
from tests.support.run_cli import Cli

TABLES = ("links", "seeds")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return network(tmp_path, capsys, list(QUERIES))


def rows_of(cli: Cli, table: str) -> Any:
    return DeltaTable(str(cli.workload.parent / table)).to_pyarrow_table()


def by_duckdb(cli: Cli, sql: str) -> Counter[tuple[object, ...]]:
    with duckdb.connect() as connection:
        for table in TABLES:
            connection.register(table, rows_of(cli, table))
        return Counter(connection.execute(sql).fetchall())


def by_sqlite(cli: Cli, sql: str) -> Counter[tuple[object, ...]]:
    connection = sqlite3.connect(":memory:")
    try:
        for table in TABLES:
            rows = rows_of(cli, table)
            names = ", ".join(rows.column_names)
            connection.execute(f"CREATE TABLE {table} ({names})")
            marks = ", ".join("?" for _ in rows.column_names)
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        return Counter(connection.execute(sql).fetchall())
    finally:
        connection.close()


def answers(cli: Cli, name: str, *arguments: str) -> Counter[tuple[object, ...]]:
    (result,) = cli.good("query", "--query", name, *arguments).results
    return Counter(map(tuple, result["rows"]))


def fragments(cli: Cli, *arguments: str) -> dict[str, list[object]]:
    return {
        result["query"]: [one["fragments"] for one in result["sketches"]]
        for result in cli.good("status", *arguments).results
    }


@pytest.mark.parametrize("seed", range(4))
def test_answers_through_maintained_sketches_are_those_of_all_rows(cli: Cli, seed: int) -> None:
    rng = random.Random(seed)
    for result in cli.good("capture").results:
        assert result["mode"] == "exact", result
    for _ in range(3):
        change(cli.workload.parent, rng)
        for result in cli.good("maintain").results:
            assert result["action"] in ("exact", "none"), result
        for name, sql in QUERIES.items():
            expected = by_duckdb(cli, sql)
            assert answers(cli, name, "--sketch", "always", "--by", "engine") == expected, name
            (written,) = cli.good("rewrite", "--query", name).results
            assert by_duckdb(cli, written["sql"]) == expected, name
            assert by_sqlite(cli, written["sql"]) == expected, name
        assert answers(cli, KEPT, "--by", "state") == by_duckdb(cli, QUERIES[KEPT])


def test_a_maintained_sketch_is_that_of_a_fresh_capture(cli: Cli) -> None:
    rng = random.Random(9)
    cli.good("capture")
    for _ in range(6):
        change(cli.workload.parent, rng)
        cli.good("maintain")
        store = ("--store", str(cli.workload.parent / "fresh"))
        cli.good("capture", *store)
        assert fragments(cli) == fragments(cli, *store)


def test_with_the_least_state_sketches_are_those_of_a_fresh_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = network(tmp_path, capsys, [*QUERIES, *OF_CONSTANTS])
    monkeypatch.setenv("IMPCTL_DISK", "0")
    rng = random.Random(4)
    cli.good("capture")
    for _ in range(3):
        change(cli.workload.parent, rng)
        cli.good("maintain")
        store = ("--store", str(cli.workload.parent / "fresh"))
        monkeypatch.delenv("IMPCTL_DISK")
        cli.good("capture", *store)
        monkeypatch.setenv("IMPCTL_DISK", "0")
        assert fragments(cli) == fragments(cli, *store)
        for name, sql in {**QUERIES, **OF_CONSTANTS}.items():
            found = answers(cli, name, "--sketch", "always", "--by", "engine")
            assert found == by_duckdb(cli, sql), name


def test_a_sketch_of_what_is_reached_leaves_the_rest_out(cli: Cli) -> None:
    (result,) = cli.good("capture", "--query", "from_one").results
    held = {fragment for one in result["sketches"] for fragment in one["fragments"]}
    assert len(held) < 10, held


def test_a_recursion_without_end_is_an_error_and_nothing_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_a_change_that_closes_a_circle_leaves_the_store_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def cheapest(cli: Cli, add: Callable[[int, int], int]) -> Counter[tuple[object, ...]]:
    """What it takes at least to get from 7 to each node, by Dijkstra's rule."""
    rows = rows_of(cli, "links").to_pydict()
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


def test_the_best_rows_of_circles_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = network(tmp_path, capsys, list(BEST))
    rng = random.Random(12)
    for result in cli.good("capture").results:
        assert result["mode"] == "exact", result
    for _ in range(4):
        change(tmp_path, rng)
        for result in cli.good("maintain").results:
            assert result["action"] in ("exact", "none"), result
        found = answers(cli, "cheapest", "--sketch", "always", "--by", "engine")
        assert found == cheapest(cli, lambda cost, more: cost + more)
        nodes = {node for node, _ in found}
        ways = answers(cli, "ways", "--sketch", "always", "--by", "engine")
        assert {node for node, _ in ways} == nodes
        store = ("--store", str(tmp_path / "fresh"))
        cli.good("capture", *store)
        assert fragments(cli) == fragments(cli, *store)
