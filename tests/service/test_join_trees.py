"""`join: tree` from the file to the store: as the index join, refused by name, explained."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from impctl.errors import TableError
from impctl.service import maintenance_plan
from impctl.service.context import SilentReporter
from impctl.service.doctor import Checkup, check_trees
from impctl.service.pinned import PinnedTables
from impctl.store.store import Store
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli, CliOnce, MonkeyPatch, write_files

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
def cli(cli_once: CliOnce) -> Cli:
    return cli_once("join trees", write_both_ways)


def write_both_ways(folder: Path) -> None:
    rng = random.Random(5)
    tables = {table: rows(rng, 0, 40) for table in "rs"}
    queries: dict[str, Any] = {}
    for name, sql in QUERIES.items():
        of_one = "s." not in sql or name == "without"
        sketch = {"r": "id"} if of_one else {"r": "id", "s": "id"}
        for way in WAYS:
            said = {"join": way, "policy": "incremental", "sketch": sketch}
            queries[f"{name}_{way}"] = {"sql": sql, **said}
    partitions = {name: {"id": {"ranges": 20}} for name in tables}
    write_files(folder, {"partitions": partitions, "queries": queries}, **tables)
    DeltaTable(str(folder / "s")).alter.add_constraint({"never_negative": "b >= 0"})


@contextmanager
def altered(cli: Cli) -> Iterator[dict[str, Any]]:
    """The queries of the workload, to be changed in the block."""
    document = json.loads(cli.workload.read_text())
    yield document["queries"]
    cli.workload.write_text(json.dumps(document))


WAYS = ("tree", "index")
BOTH_WAYS = tuple(f"{name}_{way}" for name in QUERIES for way in WAYS)


def sketches(cli: Cli) -> dict[str, dict[str, tuple[int, ...]]]:
    held = {name: stored(cli.folder, name).sketches for name in BOTH_WAYS}
    return {n: {s.access: tuple(s.ranges.ids) for s in one} for n, one in held.items()}


def changed(folder: Path, rng: random.Random, step: int) -> None:
    """Some rows come, some go, one column of some changes."""
    for table in ("r", "s"):
        path = str(folder / table)
        write_deltalake(path, rows(rng, 40 + 10 * step, 10), mode="append")
        DeltaTable(path).delete(f"id % 7 = {step} AND c > 1")
    DeltaTable(str(folder / "r")).update(predicate=f"id % 11 = {step}", updates={"a": "a + 1"})


@pytest.mark.slow
def test_trees_give_the_sketches_of_joins_and_go_on_from_the_store(cli: Cli) -> None:
    assert {result["mode"] for result in cli.good("capture").results} == {"exact"}
    steps, rng, several = 4, random.Random(6), set()
    for step in range(steps + 1):
        held = sketches(cli)
        for name in QUERIES:
            assert held[f"{name}_tree"] == held[f"{name}_index"], (step, name)
        if step < steps:
            several |= {tuple(map(len, held[f"{name}_tree"].values())) for name in QUERIES}
            changed(cli.folder, rng, step)
            assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
    assert len(several) > 2 * steps


def test_calls_that_a_tree_does_not_keep_are_refused_too(cli: Cli) -> None:
    sql = "SELECT r.c FROM r JOIN s ON r.a = s.a GROUP BY r.c HAVING COUNT(DISTINCT s.b) > 1"
    with altered(cli) as queries:
        queries.clear()
        for way in WAYS:
            queries[way] = {"sql": sql, "sketch": {"r": "id"}, "join": way}
    ran = cli("capture")
    assert ran.refusal == (3, "no_join_tree")
    assert [result["mode"] for result in ran.results] == ["exact"]


@pytest.mark.slow
def test_explain_draws_the_tree_and_names_what_stands_in_the_way(cli: Cli) -> None:
    results = cli.by_query("explain")
    (tree,) = results["path_tree"]["trees"]
    assert tree["used"]
    assert tree["mode"] == "ring"
    assert [node["bag"] for node in tree["nodes"]] == [["r"], ["s"], ["r#2"]]
    assert [node["parent"] for node in tree["nodes"]] == [None, 0, 1]
    assert tree["drawn"][2].strip().startswith("'- r#2  inner on a")
    (other,) = results["path_index"]["trees"]
    assert not other["used"]
    assert "request it with `join: tree`" in other["reason"]
    assert results["one_tree"]["trees"] == []


@pytest.mark.slow
def test_state_of_another_tree_is_not_taken_up(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    """As a release would write it that hangs the same tables together otherwise."""
    with monkeypatch.context() as patched:
        patched.setattr("impctl.service.capture.trees_id", lambda shapes: "another")
        cli.good("capture", "--query", "path_tree", "--query", "path_index")
    changed(cli.folder, random.Random(7), 0)
    assert cli("maintain", "--query", "path_tree").refusal == (7, "engine_changed")


def with_answers(cli: Cli, **more: str) -> None:
    """Keep the answers of all queries that join, and of those named with this SQL."""
    with altered(cli) as queries:
        for name, sql in more.items():
            for way in WAYS:
                queries[f"{name}_{way}"] = {**queries[f"without_{way}"], "sql": sql}
        for query in queries.values():
            query["answer"] = True


def answer(cli: Cli, name: str) -> list[str]:
    return sorted(map(repr, cli.one("query", "--query", name, "--by", "state")["rows"]))


@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_trees_keep_the_answers_that_joins_do(cli: Cli, steps: int) -> None:
    """Every second query, and the others with one step more."""
    more = {
        "padded": "SELECT r.id, s.b FROM r LEFT JOIN s ON s.a = r.a AND s.b > 5",
        "single": "SELECT DISTINCT r.c FROM r JOIN s ON s.a = r.a",
        "counted": "SELECT r.c, COUNT(DISTINCT s.b) AS n FROM r JOIN s ON s.a = r.a GROUP BY r.c",
    }
    with_answers(cli, **more)
    names = ["top", "rows", *more][steps - 1 :: 2]
    rng, several = random.Random(6), set()
    both = [f"{name}_{way}" for name in names for way in WAYS]
    results = cli.good("capture", *(f"--query={name}" for name in both)).results
    assert {result["mode"] for result in results} == {"exact"}
    for step in range(steps):
        for name in names:
            match = answer(cli, f"{name}_tree")
            assert match == answer(cli, f"{name}_index"), (step, name)
            assert match or step, name
            several.add((name, *match))
        changed(cli.folder, rng, step)
        told = {name: cli.one("changes", "--query", name) for name in both}
        assert {one["by"] for one in told.values()} == {"state"}
        for name in names:
            mine, theirs = (told[f"{name}_{way}"]["rows"] for way in WAYS)
            assert mine == theirs, (step, name)
        assert sum(bool(told[f"{name}_tree"]["rows"]) for name in names) >= len(names) - 1
    assert len(several) > len(names) * steps // 2


def test_an_answer_that_no_tree_tells_is_refused_by_name(cli: Cli) -> None:
    sql = (
        "SELECT r.a, SUM(s.b) AS t, COUNT(DISTINCT s.c) + COUNT(DISTINCT r.c) AS n "
        "FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 40"
    )
    with_answers(cli, counted=sql)
    result = cli.one("explain", "--query", "counted_tree")
    assert not result["answer"]["kept"]
    assert "COUNT" in result["answer"]["reason"]
    assert result["trees"][0]["used"]
    assert any("COUNT" in text for text in cli.warnings("capture", "--query", "counted_tree"))
    assert cli.one("explain", "--query", "counted_index")["answer"]["kept"]


def test_a_tree_with_the_answer_needs_no_other_circuit(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    with_answers(cli)
    unused = Mock(side_effect=AssertionError("it was built"))
    monkeypatch.setattr(maintenance_plan, "plan_maintenance", unused)
    cli.good("capture", "--query", "rows_tree", "--query", "top_tree")


@pytest.mark.slow
def test_rows_that_a_tree_tells_are_stored_nowhere(cli: Cli) -> None:
    with_answers(cli)
    name = "rows_tree"
    cli.good("capture", "--query", name)
    kept = cli.one("explain", "--query", name)["answer"]
    assert (kept["kept"], kept["row_bytes"], kept["state_bytes"]) == (True, 0, 0)
    with Store.open(cli.folder / ".impctl") as store:
        assert not store.load_runs(name, "answer")
        assert store.load_runs(name, "tree")
    whole = answer(cli, name)
    asked = cli.one("query", "--query", name, "--by", "state", "--where", "b = 8")
    assert [repr(row) for row in asked["rows"]] == [row for row in whole if row.endswith("8]")]
    told = cli.one("changes", "--query", name, "--all")
    assert sum(row[1] for row in told["rows"]) == len(whole) > 0


@pytest.mark.slow
def test_rows_of_a_damaged_tree_are_refused_to_who_asks_for_them(cli: Cli) -> None:
    with_answers(cli)
    cli.good("capture", "--query", "rows_tree")
    whole = answer(cli, "rows_tree")
    with closing(sqlite3.connect(cli.folder / ".impctl" / "catalog.sqlite")) as catalog, catalog:
        catalog.execute("UPDATE run SET content = substr(content, 2) WHERE arrangement LIKE 't%'")
    assert cli("query", "--query", "rows_tree", "--by", "state").refusal == (7, "state_corrupt")
    ran = cli.one("query", "--query", "rows_tree", "--by", "engine")
    assert sorted(map(repr, ran["rows"])) == whole


PAIRS = "SELECT r.a, SUM(s.b) AS t FROM r JOIN s ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 40"


def keyed_rows(keys: int, each: int, start: int = 0) -> pa.Table:
    """`each` rows for each of so many keys."""
    count = keys * each
    ids = pa.array(range(start, start + count), pa.int64())
    return pa.table({"id": ids, "a": [at % keys for at in range(count)], "b": [1] * count})


@pytest.fixture
def choosing(cli_once: CliOnce) -> Cli:
    return cli_once("trees to choose", write_keyed)


@pytest.fixture
def chosen(cli_once: CliOnce) -> Cli:
    return cli_once("trees chosen", write_keyed, Cli.captured)


def write_keyed(folder: Path) -> None:
    """`many` has twenty rows a key, `one` has one."""
    sizes = {"many": (10, 20), "other": (10, 20), "one": (200, 1)}
    for table, size in sizes.items():
        write_deltalake(str(folder / table), keyed_rows(*size))
    queries = {}
    for name, table in (("pairs", "other"), ("keyed", "one")):
        sql = PAIRS.replace("FROM r JOIN s", f"FROM many r JOIN {table} s")
        queries[name] = {"sql": sql, "sketch": {"many": "id"}, "policy": "incremental"}
    partitions = {"many": {"id": {"ranges": 20}}}
    write_files(folder, {"tables": [*sizes], "partitions": partitions, "queries": queries})


def trees(choosing: Cli) -> dict[str, Any]:
    metas = {name: stored(choosing.folder, name).state_meta for name in ("pairs", "keyed")}
    return {name: (meta.get("trees", ""), meta.get("estimate")) for name, meta in metas.items()}


def ranges(choosing: Cli, name: str) -> tuple[int, ...]:
    return tuple(stored(choosing.folder, name).sketches[0].ranges.ids)


@pytest.mark.slow
def test_many_to_many_is_a_tree_and_a_key_is_looked_up(choosing: Cli) -> None:
    results = choosing.by_query("explain")
    (pairs,), (keyed,) = results["pairs"]["trees"], results["keyed"]["trees"]
    assert (pairs["used"], pairs["joined"], pairs["touched"]) == (True, 20.0, 2.0)
    assert pairs["reason"].startswith("chosen: a changed row joins about 20 rows")
    assert (keyed["used"], keyed["joined"] < 11, keyed["touched"] < 4) == (False, True, True)
    assert "request it with `join: tree`" in keyed["reason"]
    choosing.good("capture")
    kept = trees(choosing)
    assert kept["pairs"][0]
    assert kept["pairs"][1] == {"joined": 20.0, "touched": 2.0}
    assert kept["keyed"] == ("", None)


@pytest.mark.slow
def test_a_condition_on_rows_turns_the_choice_and_is_told(choosing: Cli) -> None:
    """Of each table few rows are kept: there is hardly anything to join."""
    with altered(choosing) as queries:
        for name, least in (("few", 3), ("most", 10_000)):
            limited = f"WHERE r.id < {least} AND s.id < {least} GROUP BY"
            sql = queries["pairs"]["sql"].replace("GROUP BY", limited)
            queries[name] = {**queries["pairs"], "sql": sql}
    results = choosing.by_query("explain")
    (pairs,), (few,), (most,) = (results[name]["trees"] for name in ("pairs", "few", "most"))
    assert (pairs["used"], few["used"], most["used"]) == (True, False, True)
    assert few["index_ms"] < few["tree_ms"]
    assert most["tree_ms"] < most["index_ms"]
    assert most["joined"] == pairs["joined"]
    assert few["index_bytes"] < most["index_bytes"] / 10
    assert few["reason"].endswith(
        "keys were counted only for these rows: many where id < 3 (1.5%), other where id < 3 (1.5%)"
        "; request it with `join: tree`"
    )
    assert "counted" not in pairs["reason"]


@pytest.mark.slow
def test_the_choice_holds_while_the_tables_grow_until_the_next_capture(chosen: Cli) -> None:
    before = trees(chosen)
    for each in range(3):
        chosen.append("one", keyed_rows(10, 20, 200 + 200 * each))
        chosen.append("other", keyed_rows(10, 2, 200 + 20 * each))
        done = chosen.good("maintain").results
        assert {one["action"] for one in done} == {"exact"}
        assert trees(chosen) == before
    held = [ranges(chosen, name) for name in ("pairs", "keyed")]
    chosen.good("capture")
    assert trees(chosen)["keyed"][0], "by now a key has many rows there too"
    assert held == [ranges(chosen, name) for name in ("pairs", "keyed")]


@pytest.mark.slow
def test_another_way_that_is_asked_for_is_captured_anew(chosen: Cli) -> None:
    with altered(chosen) as queries:
        queries["pairs"]["join"] = "index"
    held = ranges(chosen, "pairs")
    chosen.good("capture")
    assert trees(chosen)["pairs"] == ("", None)
    assert ranges(chosen, "pairs") == held


def test_constants_that_move_with_the_clock_stay_with_the_index(choosing: Cli) -> None:
    with altered(choosing) as queries:
        for query in queries.values():
            moving = "WHERE s.b < year(current_date) GROUP BY"
            query["sql"] = query["sql"].replace("GROUP BY", moving)
    (entry,) = choosing.one("explain", "--query", "pairs")["trees"]
    assert not entry["used"]
    assert "time-dependent" in entry["reason"]


def test_check_reads_no_rows_of_keys(choosing: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(PinnedTables, "key_counts", Mock(side_effect=TableError("a file is gone")))
    assert {one["mode"] for one in choosing.good("check").results} == {"exact"}
    (entry,) = choosing.one("explain", "--query", "pairs")["trees"]
    assert (entry["used"], entry["joined"]) == (False, None)
    assert "fan-out is unknown: a file is gone" in entry["reason"]


@pytest.mark.slow
def test_what_trees_did_is_told_of_a_run_and_since_the_capture(chosen: Cli) -> None:
    """The rows of a key are one tuple of `many`, and its group another."""
    (tree,) = chosen.one("explain", "--query", "pairs")["trees"]
    assert all(node["bytes"] > 0 for node in tree["nodes"])
    for run in range(3):
        chosen.append("many", keyed_rows(10, 5, 200 + 50 * run))
        done = chosen.good("maintain", "--query", "pairs").results[0]["tree"]
        assert done["touched"] == 20, "ten keys and their groups"
        assert done["pairs"] == 0, "each key had rows in their range"
    status = chosen.one("status", "--query", "pairs")
    assert status["tree"]["touched"] == 60
    assert (status["tree"]["changes"], status["tree"]["expected"]) == (150, 2.0)
    assert "trees: 20 tuples touched" in status["runs"][0]["reason"]
    levels = {(one["subject"], one["check"]): one["level"] for one in chosen("doctor").results}
    assert levels["pairs", "tree_touches_more"] == "ok"


@pytest.mark.parametrize(
    ("touched", "changes", "level"), [(4000, 200, "ok"), (4002, 200, "warning"), (990, 99, None)]
)
def test_doctor_tells_of_trees_that_touch_far_more_than_expected(
    chosen: Cli, touched: int, changes: int, level: str | None
) -> None:
    """Two tuples per changed row are expected: twenty are not yet too many."""
    held = stored(chosen.folder, "pairs")
    work = {"changes": changes, "touched": touched, "flips": 0, "pairs": 0}
    changed = replace(held, state_meta={**held.state_meta, "work": work})
    run = Checkup(SilentReporter(), stored=[changed])
    result = list(check_trees(run))
    assert [one.level for one in result] == ([] if level is None else [level])


def test_an_answer_goes_along_with_the_choice_or_decides_it(choosing: Cli) -> None:
    more = "AS t, COUNT(DISTINCT s.id) + COUNT(DISTINCT r.id) AS n"
    with altered(choosing) as queries:
        pairs = queries["pairs"] = {**queries["pairs"], "answer": True}
        queries["keyed"] = {**pairs, "sql": pairs["sql"].replace("AS t", more)}
    results = choosing.by_query("explain")
    for name, is_used in (("pairs", True), ("keyed", False)):
        (tree,) = results[name]["trees"]
        assert (tree["used"], bool(results[name]["answer"]["kept"])) == (is_used, True)
    assert "COUNT" in results["keyed"]["trees"][0]["reason"]
    choosing.good("capture")
    kept = trees(choosing)
    assert (bool(kept["pairs"][0]), bool(kept["keyed"][0])) == (True, False)
    choosing.append("many", keyed_rows(10, 1, 900))
    for name in ("pairs", "keyed"):
        told = choosing.one("changes", "--query", name)
        assert told["by"] == "state"
        assert {row[0] for row in told["rows"]} == {"delete", "insert"}
