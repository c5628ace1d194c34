"""`join: tree` from the file to the store: as the index join, refused by name, explained."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.capturing import chosen_way
from impctl.store.store import Store
from tests.support.run_cli import Cli

QUERIES = {
    "groups": "SELECT r.a, SUM(s.b) AS t FROM s JOIN r ON s.a = r.a GROUP BY r.a "
    "HAVING SUM(s.b) > 40",
    "top": "SELECT r.c, COUNT(*) AS n FROM r JOIN s ON s.a = r.a GROUP BY r.c "
    "ORDER BY n DESC LIMIT 2",
    "rows": "SELECT r.id, s.b FROM r JOIN s ON s.a = r.a WHERE s.b > 6 AND r.c = 3",
    "path": "SELECT r.c FROM r JOIN s ON s.a = r.a JOIN r q ON q.a = s.b GROUP BY r.c "
    "HAVING COUNT(*) > 3",
    "without": "SELECT r.id FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.a = r.a)",
    "circle": "SELECT x.c, COUNT(*) AS n FROM r x, r y, r z WHERE x.a = y.c AND y.a = z.c "
    "AND z.a = x.c GROUP BY x.c HAVING COUNT(*) > 9",
    "one": "SELECT c, COUNT(*) AS n FROM r GROUP BY c HAVING COUNT(*) > 2",
}


def rows(rng: random.Random, start: int, count: int) -> pa.Table:
    def some(values: range) -> pa.Array:
        return pa.array([rng.choice([*values, None]) for _ in range(count)], pa.int64())

    ids = pa.array(range(start, start + count), pa.int64())
    b = pa.array([rng.randrange(9) for _ in range(count)], pa.int64())
    return pa.table({"id": ids, "a": some(range(9)), "b": b, "c": some(range(5))})


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    rng = random.Random(5)
    for table in ("r", "s"):
        write_deltalake(str(tmp_path / table), rows(rng, 0, 40))
    DeltaTable(str(tmp_path / "s")).alter.add_constraint({"never_negative": "b >= 0"})
    queries: dict[str, Any] = {
        f"{name}_{way}": {
            "sql": sql,
            "join": way,
            "policy": "incremental",
            "sketch": {"r": "id"} if "s." not in sql else {"r": "id", "s": "id"},
        }
        for name, sql in QUERIES.items()
        for way in ("tree", "index")
    }
    for way in ("tree", "index"):
        queries[f"without_{way}"]["sketch"] = {"r": "id"}
    file = tmp_path / "w.yaml"
    file.write_text(
        json.dumps(
            {
                "version": 1,
                "store": "store",
                "tables": {name: {"path": name} for name in "rs"},
                "partitions": {name: {"id": {"fragments": 20}} for name in "rs"},
                "queries": queries,
            }
        )
    )
    return Cli(capsys, file)


BOTH_WAYS = tuple(f"{name}_{way}" for name in QUERIES for way in ("tree", "index"))


def sketches(cli: Cli, names: Iterable[str] = BOTH_WAYS) -> dict[str, dict[str, tuple[int, ...]]]:
    found = {}
    with Store.open(cli.workload.parent / "store") as store:
        for name in names:
            held = store.load(name)
            assert held is not None
            found[name] = {s.access: tuple(s.fragments.ids) for s in held.sketches}
    return found


def changed(folder: Path, rng: random.Random, step: int) -> None:
    """Some rows come, some go, one column of some changes."""
    for table in ("r", "s"):
        path = str(folder / table)
        write_deltalake(path, rows(rng, 40 + 10 * step, 10), mode="append")
        DeltaTable(path).delete(f"id % 7 = {step} AND c > 1")
    DeltaTable(str(folder / "r")).update(predicate=f"id % 11 = {step}", updates={"a": "a + 1"})


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_trees_give_the_sketches_of_joins_and_go_on_from_the_store(cli: Cli, steps: int) -> None:
    assert {result["mode"] for result in cli.good("capture").results} == {"exact"}
    rng, several = random.Random(6), set()
    for step in range(steps):
        held = sketches(cli)
        for name in QUERIES:
            assert held[f"{name}_tree"] == held[f"{name}_index"], (step, name)
            several.add(tuple(map(len, held[f"{name}_tree"].values())))
        changed(cli.workload.parent, rng, step)
        assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
    held = sketches(cli)
    for name in QUERIES:
        assert held[f"{name}_tree"] == held[f"{name}_index"], name
    assert len(several) > 2 * steps


def test_calls_that_a_tree_does_not_keep_are_refused_too(cli: Cli) -> None:
    document = json.loads(cli.workload.read_text())
    sql = "SELECT r.c FROM r JOIN s ON r.a = s.a GROUP BY r.c HAVING COUNT(DISTINCT s.b) > 1"
    one = {"sql": sql, "sketch": {"r": "id"}}
    document["queries"] = {"tree": {**one, "join": "tree"}, "index": {**one, "join": "index"}}
    cli.workload.write_text(json.dumps(document))
    ran = cli("capture")
    assert ran.code == 3
    assert ran.error["code"] == "no_join_tree"
    assert [result["mode"] for result in ran.results] == ["exact"]


@pytest.mark.slow
def test_explain_draws_the_tree_and_names_what_stands_in_the_way(cli: Cli) -> None:
    results = {result["query"]: result for result in cli.good("explain").results}
    (tree,) = results["path_tree"]["trees"]
    assert tree["used"]
    assert tree["mode"] == "ring"
    assert [node["bag"] for node in tree["nodes"]] == [["r"], ["s"], ["r#2"]]
    assert [node["parent"] for node in tree["nodes"]] == [None, 0, 1]
    assert tree["drawn"][2].strip().startswith("'- r#2  inner on a")
    (other,) = results["path_index"]["trees"]
    assert not other["used"]
    assert "`join: tree` asks for it" in other["reason"]
    assert results["one_tree"]["trees"] == []


@pytest.mark.slow
def test_state_of_another_tree_is_not_taken_up(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a release would write it that hangs the same tables together otherwise."""
    with monkeypatch.context() as patched:
        patched.setattr("impctl.app.capturing.commit.trees_id", lambda shapes: "another")
        cli.good("capture", "--query", "path_tree", "--query", "path_index")
    changed(cli.workload.parent, random.Random(7), 0)
    ran = cli("maintain", "--query", "path_tree")
    assert ran.code == 7
    assert ran.error["code"] == "engine_changed"


def with_answers(cli: Cli, **more: str) -> None:
    """Keep the answers of all queries that join, and of those named with this SQL."""
    document = json.loads(cli.workload.read_text())
    queries = document["queries"]
    for name, sql in more.items():
        for way in ("tree", "index"):
            queries[f"{name}_{way}"] = {**queries[f"without_{way}"], "sql": sql}
    for query in queries.values():
        query["answer"] = True
    cli.workload.write_text(json.dumps(document))


def answer(cli: Cli, name: str) -> list[str]:
    (result,) = cli.good("query", "--query", name, "--by", "state").results
    return sorted(map(repr, result["rows"]))


@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_trees_keep_the_answers_that_joins_do(cli: Cli, steps: int) -> None:
    more = {
        "padded": "SELECT r.id, s.b FROM r LEFT JOIN s ON s.a = r.a AND s.b > 5",
        "single": "SELECT DISTINCT r.c FROM r JOIN s ON s.a = r.a",
        "counted": "SELECT r.c, COUNT(DISTINCT s.b) AS n FROM r JOIN s ON s.a = r.a GROUP BY r.c",
    }
    with_answers(cli, **more)
    names, rng, several = ["top", "rows", *more], random.Random(6), set()
    asked = [f"--query={name}_{way}" for name in names for way in ("tree", "index")]
    results = cli.good("capture", *asked).results
    assert {result["mode"] for result in results} == {"exact"}
    for step in range(steps):
        for name in names:
            found = answer(cli, f"{name}_tree")
            assert found == answer(cli, f"{name}_index"), (step, name)
            assert found or step, name
            several.add((name, *found))
        changed(cli.workload.parent, rng, step)
        told = {}
        for name in (f"{name}_{way}" for name in names for way in ("tree", "index")):
            (told[name],) = cli.good("changes", "--query", name).results
            assert told[name]["by"] == "state", name
        for name in names:
            mine, theirs = (told[f"{name}_{way}"]["rows"] for way in ("tree", "index"))
            assert mine == theirs, (step, name)
        assert sum(bool(told[f"{name}_tree"]["rows"]) for name in names) >= 4
    assert len(several) > 5 * steps // 2


def test_an_answer_that_no_tree_tells_is_refused_by_name(cli: Cli) -> None:
    sql = (
        "SELECT r.a, SUM(s.b) AS t, COUNT(DISTINCT s.c) + COUNT(DISTINCT r.c) AS n "
        "FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 40"
    )
    with_answers(cli, counted=sql)
    (result,) = cli.good("explain", "--query", "counted_tree").results
    assert not result["answer"]["kept"]
    assert "COUNT" in result["answer"]["reason"]
    assert result["trees"][0]["used"]
    ran = cli.good("capture", "--query", "counted_tree")
    assert any("COUNT" in warning for warning in ran.document["warnings"])
    (result,) = cli.good("explain", "--query", "counted_index").results
    assert result["answer"]["kept"]


def test_where_a_tree_tells_the_answer_no_other_circuit_is_built(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_answers(cli)
    monkeypatch.setattr(chosen_way, "choose_way", lambda *_, **__: pytest.fail("it was built"))
    cli.good("capture", "--query", "rows_tree", "--query", "top_tree")


@pytest.mark.slow
def test_rows_that_a_tree_tells_are_stored_nowhere(cli: Cli) -> None:
    with_answers(cli)
    name = "rows_tree"
    cli.good("capture", "--query", name)
    (found,) = cli.good("explain", "--query", name).results
    assert found["answer"]["kept"]
    assert found["answer"]["row_bytes"] == found["answer"]["state_bytes"] == 0
    with Store.open(cli.workload.parent / "store") as store:
        assert not store.load_runs(name, "answer")
        assert store.load_runs(name, "tree")
    whole = answer(cli, name)
    asked = cli.good("query", "--query", name, "--by", "state", "--where", "b = 8").results
    assert [repr(row) for row in asked[0]["rows"]] == [row for row in whole if row.endswith("8]")]
    (told,) = cli.good("changes", "--query", name, "--all").results
    assert sum(row[1] for row in told["rows"]) == len(whole) > 0


@pytest.mark.slow
def test_rows_of_a_damaged_tree_are_refused_to_who_asks_for_them(cli: Cli) -> None:
    with_answers(cli)
    cli.good("capture", "--query", "rows_tree")
    whole = answer(cli, "rows_tree")
    with sqlite3.connect(cli.workload.parent / "store" / "catalog.sqlite") as connection:
        connection.execute(
            "UPDATE run SET content = substr(content, 2) WHERE arrangement LIKE 't%'"
        )
    connection.close()
    ran = cli("query", "--query", "rows_tree", "--by", "state")
    assert ran.code == 7
    assert ran.error["code"] == "state_corrupt"
    ran = cli.good("query", "--query", "rows_tree", "--by", "engine")
    assert sorted(map(repr, ran.results[0]["rows"])) == whole
