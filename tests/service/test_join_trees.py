"""`join: tree` from the workload file to the store: equal to the index join, refusals, explain."""

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
    return cli_once("join trees", write_both_variants)


def write_both_variants(folder: Path) -> None:
    rng = random.Random(5)
    tables = {table: rows(rng, 0, 40) for table in "rs"}
    queries: dict[str, Any] = {}
    for name, sql in QUERIES.items():
        on_r = "s." not in sql or name == "without"
        sketch = {"r": "id"} if on_r else {"r": "id", "s": "id"}
        for join in JOINS:
            settings = {"join": join, "policy": "incremental", "sketch": sketch}
            queries[f"{name}_{join}"] = {"sql": sql, **settings}
    partitions = {name: {"id": {"ranges": 20}} for name in tables}
    write_files(folder, {"partitions": partitions, "queries": queries}, **tables)
    DeltaTable(str(folder / "s")).alter.add_constraint({"never_negative": "b >= 0"})


@contextmanager
def edited_queries(cli: Cli) -> Iterator[dict[str, Any]]:
    """Yield the workload's queries; write them back after the block."""
    document = json.loads(cli.workload.read_text())
    yield document["queries"]
    cli.workload.write_text(json.dumps(document))


JOINS = ("tree", "index")
ALL_NAMES = tuple(f"{name}_{way}" for name in QUERIES for way in JOINS)


def sketches(cli: Cli) -> dict[str, dict[str, tuple[int, ...]]]:
    all_sketches = {name: stored(cli.folder, name).sketches for name in ALL_NAMES}
    return {n: {s.access: tuple(s.ranges.ids) for s in one} for n, one in all_sketches.items()}


def change_tables(folder: Path, rng: random.Random, step: int) -> None:
    """Insert, delete and update some rows."""
    for table in ("r", "s"):
        path = str(folder / table)
        write_deltalake(path, rows(rng, 40 + 10 * step, 10), mode="append")
        DeltaTable(path).delete(f"id % 7 = {step} AND c > 1")
    DeltaTable(str(folder / "r")).update(predicate=f"id % 11 = {step}", updates={"a": "a + 1"})


@pytest.mark.slow
def test_trees_maintain_the_same_sketches_as_index_joins(cli: Cli) -> None:
    assert {result["mode"] for result in cli.good("capture").results} == {"exact"}
    steps, rng, sizes = 4, random.Random(6), set()
    for step in range(steps + 1):
        by_query = sketches(cli)
        for name in QUERIES:
            assert by_query[f"{name}_tree"] == by_query[f"{name}_index"], (step, name)
        if step < steps:
            sizes |= {tuple(map(len, by_query[f"{name}_tree"].values())) for name in QUERIES}
            change_tables(cli.folder, rng, step)
            assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
    assert len(sizes) > 2 * steps


def test_aggregates_unsupported_by_trees_are_refused(cli: Cli) -> None:
    sql = "SELECT r.c FROM r JOIN s ON r.a = s.a GROUP BY r.c HAVING COUNT(DISTINCT s.b) > 1"
    with edited_queries(cli) as queries:
        queries.clear()
        for join in JOINS:
            queries[join] = {"sql": sql, "sketch": {"r": "id"}, "join": join}
    ran = cli("capture")
    assert ran.refusal == (3, "no_join_tree")
    assert [result["mode"] for result in ran.results] == ["exact"]


@pytest.mark.slow
def test_explain_draws_the_tree_or_says_why_it_is_unused(cli: Cli) -> None:
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
def test_state_of_another_tree_is_not_loaded(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    """The state is as if written by a release that builds another tree."""
    with monkeypatch.context() as patched:
        patched.setattr("impctl.service.capture.trees_id", lambda shapes: "another")
        cli.good("capture", "--query", "path_tree", "--query", "path_index")
    change_tables(cli.folder, random.Random(7), 0)
    assert cli("maintain", "--query", "path_tree").refusal == (7, "engine_changed")


def materialize_results(cli: Cli, **more: str) -> None:
    """Materialize the results of all queries, and add queries with this SQL."""
    with edited_queries(cli) as queries:
        for name, sql in more.items():
            for join in JOINS:
                queries[f"{name}_{join}"] = {**queries[f"without_{join}"], "sql": sql}
        for query in queries.values():
            query["answer"] = True


def materialized_rows(cli: Cli, name: str) -> list[str]:
    return sorted(map(repr, cli.one("query", "--query", name, "--by", "state")["rows"]))


@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_trees_give_the_results_of_index_joins(cli: Cli, steps: int) -> None:
    """One step tests every second query, two steps the others."""
    more = {
        "padded": "SELECT r.id, s.b FROM r LEFT JOIN s ON s.a = r.a AND s.b > 5",
        "single": "SELECT DISTINCT r.c FROM r JOIN s ON s.a = r.a",
        "counted": "SELECT r.c, COUNT(DISTINCT s.b) AS n FROM r JOIN s ON s.a = r.a GROUP BY r.c",
    }
    materialize_results(cli, **more)
    names = ["top", "rows", *more][steps - 1 :: 2]
    rng, distinct = random.Random(6), set()
    both = [f"{name}_{join}" for name in names for join in JOINS]
    results = cli.good("capture", *(f"--query={name}" for name in both)).results
    assert {result["mode"] for result in results} == {"exact"}
    for step in range(steps):
        for name in names:
            match = materialized_rows(cli, f"{name}_tree")
            assert match == materialized_rows(cli, f"{name}_index"), (step, name)
            assert match or step, name
            distinct.add((name, *match))
        change_tables(cli.folder, rng, step)
        changes = {name: cli.one("changes", "--query", name) for name in both}
        assert {one["by"] for one in changes.values()} == {"state"}
        for name in names:
            of_tree, of_index = (changes[f"{name}_{join}"]["rows"] for join in JOINS)
            assert of_tree == of_index, (step, name)
        assert sum(bool(changes[f"{name}_tree"]["rows"]) for name in names) >= len(names) - 1
    assert len(distinct) > len(names) * steps // 2


def test_result_unsupported_by_the_tree_is_refused(cli: Cli) -> None:
    sql = (
        "SELECT r.a, SUM(s.b) AS t, COUNT(DISTINCT s.c) + COUNT(DISTINCT r.c) AS n "
        "FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 40"
    )
    materialize_results(cli, counted=sql)
    result = cli.one("explain", "--query", "counted_tree")
    assert not result["answer"]["kept"]
    assert "COUNT" in result["answer"]["reason"]
    assert result["trees"][0]["used"]
    assert any("COUNT" in text for text in cli.warnings("capture", "--query", "counted_tree"))
    assert cli.one("explain", "--query", "counted_index")["answer"]["kept"]


def test_tree_with_result_needs_no_second_circuit(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    materialize_results(cli)
    unused = Mock(side_effect=AssertionError("it was built"))
    monkeypatch.setattr(maintenance_plan, "plan_maintenance", unused)
    cli.good("capture", "--query", "rows_tree", "--query", "top_tree")


@pytest.mark.slow
def test_rows_computed_from_a_tree_are_not_stored(cli: Cli) -> None:
    materialize_results(cli)
    name = "rows_tree"
    cli.good("capture", "--query", name)
    explained = cli.one("explain", "--query", name)["answer"]
    assert (explained["kept"], explained["row_bytes"], explained["state_bytes"]) == (True, 0, 0)
    with Store.open(cli.folder / ".impctl") as store:
        assert not store.load_runs(name, "answer")
        assert store.load_runs(name, "tree")
    all_rows = materialized_rows(cli, name)
    selected = cli.one("query", "--query", name, "--by", "state", "--where", "b = 8")
    assert [repr(row) for row in selected["rows"]] == [
        row for row in all_rows if row.endswith("8]")
    ]
    changes = cli.one("changes", "--query", name, "--all")
    assert sum(row[1] for row in changes["rows"]) == len(all_rows) > 0


@pytest.mark.slow
def test_query_by_state_refuses_a_damaged_tree(cli: Cli) -> None:
    materialize_results(cli)
    cli.good("capture", "--query", "rows_tree")
    all_rows = materialized_rows(cli, "rows_tree")
    with closing(sqlite3.connect(cli.folder / ".impctl" / "catalog.sqlite")) as catalog, catalog:
        catalog.execute("UPDATE run SET content = substr(content, 2) WHERE arrangement LIKE 't%'")
    assert cli("query", "--query", "rows_tree", "--by", "state").refusal == (7, "state_corrupt")
    ran = cli.one("query", "--query", "rows_tree", "--by", "engine")
    assert sorted(map(repr, ran["rows"])) == all_rows


PAIRS = "SELECT r.a, SUM(s.b) AS t FROM r JOIN s ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 40"


def keyed_rows(keys: int, each: int, start: int = 0) -> pa.Table:
    """`each` rows for each of `keys` keys."""
    count = keys * each
    ids = pa.array(range(start, start + count), pa.int64())
    return pa.table({"id": ids, "a": [index % keys for index in range(count)], "b": [1] * count})


@pytest.fixture
def undecided(cli_once: CliOnce) -> Cli:
    return cli_once("trees to choose", write_keyed)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    return cli_once("trees chosen", write_keyed, Cli.captured)


def write_keyed(folder: Path) -> None:
    """`many` has twenty rows per key, `one` has one."""
    sizes = {"many": (10, 20), "other": (10, 20), "one": (200, 1)}
    for table, size in sizes.items():
        write_deltalake(str(folder / table), keyed_rows(*size))
    queries = {}
    for name, table in (("pairs", "other"), ("keyed", "one")):
        sql = PAIRS.replace("FROM r JOIN s", f"FROM many r JOIN {table} s")
        queries[name] = {"sql": sql, "sketch": {"many": "id"}, "policy": "incremental"}
    partitions = {"many": {"id": {"ranges": 20}}}
    write_files(folder, {"tables": [*sizes], "partitions": partitions, "queries": queries})


def stored_trees(cli: Cli) -> dict[str, Any]:
    metas = {name: stored(cli.folder, name).state_meta for name in ("pairs", "keyed")}
    return {name: (meta.get("trees", ""), meta.get("estimate")) for name, meta in metas.items()}


def sketch_ranges(cli: Cli, name: str) -> tuple[int, ...]:
    return tuple(stored(cli.folder, name).sketches[0].ranges.ids)


@pytest.mark.slow
def test_many_to_many_uses_a_tree_and_a_key_join_the_index(undecided: Cli) -> None:
    results = undecided.by_query("explain")
    (pairs,), (keyed,) = results["pairs"]["trees"], results["keyed"]["trees"]
    assert (pairs["used"], pairs["joined"], pairs["touched"]) == (True, 20.0, 2.0)
    assert pairs["reason"].startswith("chosen: a changed row joins about 20 rows")
    assert (keyed["used"], keyed["joined"] < 11, keyed["touched"] < 4) == (False, True, True)
    assert "request it with `join: tree`" in keyed["reason"]
    undecided.good("capture")
    by_query = stored_trees(undecided)
    assert by_query["pairs"][0]
    assert by_query["pairs"][1] == {"joined": 20.0, "touched": 2.0}
    assert by_query["keyed"] == ("", None)


@pytest.mark.slow
def test_selective_condition_favors_the_index(undecided: Cli) -> None:
    """`few` selects three rows per table, so there is hardly anything to join."""
    with edited_queries(undecided) as queries:
        for name, limit in (("few", 3), ("most", 10_000)):
            limited = f"WHERE r.id < {limit} AND s.id < {limit} GROUP BY"
            sql = queries["pairs"]["sql"].replace("GROUP BY", limited)
            queries[name] = {**queries["pairs"], "sql": sql}
    results = undecided.by_query("explain")
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
def test_choice_changes_only_at_the_next_capture(captured: Cli) -> None:
    before = stored_trees(captured)
    for each in range(3):
        captured.append("one", keyed_rows(10, 20, 200 + 200 * each))
        captured.append("other", keyed_rows(10, 2, 200 + 20 * each))
        done = captured.good("maintain").results
        assert {one["action"] for one in done} == {"exact"}
        assert stored_trees(captured) == before
    maintained = [sketch_ranges(captured, name) for name in ("pairs", "keyed")]
    captured.good("capture")
    assert stored_trees(captured)["keyed"][0], "by now a key has many rows there too"
    assert maintained == [sketch_ranges(captured, name) for name in ("pairs", "keyed")]


@pytest.mark.slow
def test_changed_join_setting_causes_a_recapture(captured: Cli) -> None:
    with edited_queries(captured) as queries:
        queries["pairs"]["join"] = "index"
    before = sketch_ranges(captured, "pairs")
    captured.good("capture")
    assert stored_trees(captured)["pairs"] == ("", None)
    assert sketch_ranges(captured, "pairs") == before


def test_time_dependent_conditions_use_the_index(undecided: Cli) -> None:
    with edited_queries(undecided) as queries:
        for query in queries.values():
            condition = "WHERE s.b < year(current_date) GROUP BY"
            query["sql"] = query["sql"].replace("GROUP BY", condition)
    (entry,) = undecided.one("explain", "--query", "pairs")["trees"]
    assert not entry["used"]
    assert "time-dependent" in entry["reason"]


def test_check_works_without_key_counts(undecided: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(PinnedTables, "key_counts", Mock(side_effect=TableError("a file is gone")))
    assert {one["mode"] for one in undecided.good("check").results} == {"exact"}
    (entry,) = undecided.one("explain", "--query", "pairs")["trees"]
    assert (entry["used"], entry["joined"]) == (False, None)
    assert "fan-out is unknown: a file is gone" in entry["reason"]


@pytest.mark.slow
def test_tree_work_is_reported_per_run_and_since_capture(captured: Cli) -> None:
    """A key's rows are one tuple of `many`; its group is another."""
    (tree,) = captured.one("explain", "--query", "pairs")["trees"]
    assert all(node["bytes"] > 0 for node in tree["nodes"])
    for run in range(3):
        captured.append("many", keyed_rows(10, 5, 200 + 50 * run))
        done = captured.good("maintain", "--query", "pairs").results[0]["tree"]
        assert done["touched"] == 20, "ten keys and their groups"
        assert done["pairs"] == 0, "each key had rows in their range"
    status = captured.one("status", "--query", "pairs")
    assert status["tree"]["touched"] == 60
    assert (status["tree"]["changes"], status["tree"]["expected"]) == (150, 2.0)
    assert "trees: 20 tuples touched" in status["runs"][0]["reason"]
    levels = {(one["subject"], one["check"]): one["level"] for one in captured("doctor").results}
    assert levels["pairs", "tree_touches_more"] == "ok"


@pytest.mark.parametrize(
    ("touched", "changes", "level"), [(4000, 200, "ok"), (4002, 200, "warning"), (990, 99, None)]
)
def test_doctor_warns_of_trees_that_touch_too_much(
    captured: Cli, touched: int, changes: int, level: str | None
) -> None:
    """Two tuples per changed row are expected; a factor of ten is still allowed."""
    before = stored(captured.folder, "pairs")
    work = {"changes": changes, "touched": touched, "flips": 0, "pairs": 0}
    busy = replace(before, state_meta={**before.state_meta, "work": work})
    run = Checkup(SilentReporter(), stored=[busy])
    result = list(check_trees(run))
    assert [one.level for one in result] == ([] if level is None else [level])


def test_result_that_needs_the_index_decides_the_choice(undecided: Cli) -> None:
    more = "AS t, COUNT(DISTINCT s.id) + COUNT(DISTINCT r.id) AS n"
    with edited_queries(undecided) as queries:
        pairs = queries["pairs"] = {**queries["pairs"], "answer": True}
        queries["keyed"] = {**pairs, "sql": pairs["sql"].replace("AS t", more)}
    results = undecided.by_query("explain")
    for name, is_used in (("pairs", True), ("keyed", False)):
        (tree,) = results[name]["trees"]
        assert (tree["used"], bool(results[name]["answer"]["kept"])) == (is_used, True)
    assert "COUNT" in results["keyed"]["trees"][0]["reason"]
    undecided.good("capture")
    by_query = stored_trees(undecided)
    assert (bool(by_query["pairs"][0]), bool(by_query["keyed"][0])) == (True, False)
    undecided.append("many", keyed_rows(10, 1, 900))
    for name in ("pairs", "keyed"):
        changes = undecided.one("changes", "--query", name)
        assert changes["by"] == "state"
        assert {row[0] for row in changes["rows"]} == {"delete", "insert"}
