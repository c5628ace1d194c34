"""Trees that nobody asked for: chosen by the tables at capture, kept until the next one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.examining.tree_work import tree_findings
from impctl.app.workbench.pinned import PinnedTables
from impctl.errors import TableError
from impctl.store.store import Store
from tests.support.run_cli import Cli

PAIRS = "SELECT r.a, SUM(s.b) AS t FROM r JOIN s ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 40"


def rows(keys: int, each: int, start: int = 0) -> pa.Table:
    """`each` rows for each of so many keys."""
    count = keys * each
    ids = pa.array(range(start, start + count), pa.int64())
    return pa.table({"id": ids, "a": [at % keys for at in range(count)], "b": [1] * count})


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`many` has twenty rows a key, `one` has one."""
    for table, keys, each in (("many", 10, 20), ("other", 10, 20), ("one", 200, 1)):
        write_deltalake(str(tmp_path / table), rows(keys, each))
    file = tmp_path / "w.yaml"
    document: dict[str, Any] = {
        "version": 1,
        "store": "store",
        "tables": {name: {"path": name} for name in ("many", "other", "one")},
        "partitions": {"many": {"id": {"fragments": 20}}},
        "queries": {
            "pairs": {"sql": PAIRS.replace("FROM r JOIN s", "FROM many r JOIN other s")},
            "keyed": {"sql": PAIRS.replace("FROM r JOIN s", "FROM many r JOIN one s")},
        },
    }
    for query in document["queries"].values():
        query |= {"sketch": {"many": "id"}, "policy": "incremental"}
    file.write_text(json.dumps(document))
    return Cli(capsys, file)


@contextmanager
def altered(cli: Cli) -> Iterator[dict[str, Any]]:
    """The queries of the workload, to be changed in the block."""
    document = json.loads(cli.workload.read_text())
    yield document["queries"]
    cli.workload.write_text(json.dumps(document))


def trees(cli: Cli) -> dict[str, Any]:
    """What is stored of the trees of each query."""
    found = {}
    with Store.open(cli.workload.parent / "store") as store:
        for name in ("pairs", "keyed"):
            held = store.load(name)
            assert held is not None
            meta = held.state_meta
            found[name] = (meta.get("trees", ""), meta.get("estimate"))
    return found


def ranges(cli: Cli, name: str) -> tuple[int, ...]:
    with Store.open(cli.workload.parent / "store") as store:
        held = store.load(name)
        assert held is not None
        return tuple(held.sketches[0].fragments.ids)


@pytest.mark.slow
def test_many_to_many_is_a_tree_and_a_key_is_looked_up(cli: Cli) -> None:
    results = {one["query"]: one for one in cli.good("explain").results}
    (pairs,), (keyed,) = results["pairs"]["trees"], results["keyed"]["trees"]
    assert (pairs["used"], pairs["joined"], pairs["touched"]) == (True, 20.0, 2.0)
    assert pairs["reason"].startswith("chosen: a changed row is joined to some 20")
    assert (keyed["used"], keyed["joined"] < 11, keyed["touched"] < 4) == (False, True, True)
    assert "`join: tree` asks for it" in keyed["reason"]
    cli.good("capture")
    stored = trees(cli)
    assert stored["pairs"][0]
    assert stored["pairs"][1] == {"joined": 20.0, "touched": 2.0}
    assert stored["keyed"] == ("", None)


@pytest.mark.slow
def test_a_condition_on_rows_turns_the_choice_and_is_told(cli: Cli) -> None:
    """Of each table few rows are kept: there is hardly anything to join."""
    with altered(cli) as queries:
        for name, least in (("few", 3), ("most", 10_000)):
            limited = f"WHERE r.id < {least} AND s.id < {least} GROUP BY"
            sql = queries["pairs"]["sql"].replace("GROUP BY", limited)
            queries[name] = {**queries["pairs"], "sql": sql}
    results = {one["query"]: one for one in cli.good("explain").results}
    (pairs,), (few,), (most,) = (results[name]["trees"] for name in ("pairs", "few", "most"))
    assert (pairs["used"], few["used"], most["used"]) == (True, False, True)
    assert few["index_ms"] < few["tree_ms"]
    assert most["tree_ms"] < most["index_ms"]
    assert most["joined"] == pairs["joined"]
    assert few["index_bytes"] < most["index_bytes"] / 10
    assert few["reason"].endswith(
        "of these rows alone keys were counted: many where id < 3 (1.5%), other where id < 3 (1.5%)"
        "; `join: tree` asks for it"
    )
    assert "counted" not in pairs["reason"]


@pytest.mark.slow
def test_the_choice_holds_while_the_tables_grow_until_the_next_capture(cli: Cli) -> None:
    cli.good("capture")
    before, folder = trees(cli), cli.workload.parent
    for each in range(3):
        write_deltalake(str(folder / "one"), rows(10, 20, 200 + 200 * each), mode="append")
        write_deltalake(str(folder / "other"), rows(10, 2, 200 + 20 * each), mode="append")
        done = cli.good("maintain").results
        assert {one["action"] for one in done} == {"exact"}
        assert trees(cli) == before
    held = [ranges(cli, name) for name in ("pairs", "keyed")]
    cli.good("capture")
    assert trees(cli)["keyed"][0], "by now a key has many rows there too"
    assert held == [ranges(cli, name) for name in ("pairs", "keyed")]


@pytest.mark.slow
def test_another_way_that_is_asked_for_is_captured_anew(cli: Cli) -> None:
    cli.good("capture")
    with altered(cli) as queries:
        queries["pairs"]["join"] = "index"
    held = ranges(cli, "pairs")
    cli.good("capture")
    assert trees(cli)["pairs"] == ("", None)
    assert ranges(cli, "pairs") == held


def test_constants_that_move_with_the_clock_stay_with_the_index(cli: Cli) -> None:
    with altered(cli) as queries:
        for query in queries.values():
            moving = "WHERE s.b < year(current_date) GROUP BY"
            query["sql"] = query["sql"].replace("GROUP BY", moving)
    (entry,) = cli.good("explain", "--query", "pairs").results[0]["trees"]
    assert not entry["used"]
    assert "move with the clock" in entry["reason"]


def test_check_reads_no_rows_of_keys(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*_: object) -> None:
        raise TableError("a file is gone")

    monkeypatch.setattr(PinnedTables, "key_counts", unread)
    assert {one["mode"] for one in cli.good("check").results} == {"exact"}
    (entry,) = cli.good("explain", "--query", "pairs").results[0]["trees"]
    assert (entry["used"], entry["joined"]) == (False, None)
    assert "fan-out is not known: a file is gone" in entry["reason"]


@pytest.mark.slow
def test_what_trees_did_is_told_of_a_run_and_since_the_capture(cli: Cli) -> None:
    """The rows of a key are one tuple of `many`, and its group another."""
    cli.good("capture")
    (tree,) = cli.good("explain", "--query", "pairs").results[0]["trees"]
    assert all(node["bytes"] > 0 for node in tree["nodes"])
    for run in range(3):
        more = rows(10, 5, 200 + 50 * run)
        write_deltalake(str(cli.workload.parent / "many"), more, mode="append")
        done = cli.good("maintain", "--query", "pairs").results[0]
        assert done["tree"]["touched"] == 20, "ten keys and their groups"
        assert done["tree"]["pairs"] == 0, "each key had rows in their range"
    (status,) = cli.good("status", "--query", "pairs").results
    assert status["tree"]["touched"] == 60
    assert (status["tree"]["changes"], status["tree"]["expected"]) == (150, 2.0)
    assert "trees: 20 tuples touched" in status["runs"][0]["reason"]
    found = {(one["subject"], one["check"]): one for one in cli("doctor").results}
    assert found["pairs", "tree_touches_more"]["level"] == "ok"


@pytest.mark.parametrize(
    ("touched", "changes", "level"), [(4000, 200, "ok"), (4002, 200, "warning"), (990, 99, None)]
)
def test_doctor_tells_of_trees_that_touch_far_more_than_expected(
    cli: Cli, touched: int, changes: int, level: str | None
) -> None:
    """Two tuples per changed row are expected: twenty are not yet too many."""
    cli.good("capture")
    with Store.open(cli.workload.parent / "store") as store:
        held = store.load("pairs")
    assert held is not None
    work = {"changes": changes, "touched": touched, "flips": 0, "pairs": 0}
    found = list(tree_findings([replace(held, state_meta={**held.state_meta, "work": work})]))
    assert [one.level for one in found] == ([] if level is None else [level])


def test_an_answer_goes_along_with_the_choice_or_decides_it(cli: Cli) -> None:
    document = json.loads(cli.workload.read_text())
    pairs = document["queries"]["pairs"]
    counted = pairs["sql"].replace("AS t", "AS t, COUNT(DISTINCT s.id) + COUNT(DISTINCT r.id) AS n")
    document["queries"] = {
        "pairs": {**pairs, "answer": True},
        "keyed": {**pairs, "answer": True, "sql": counted},
    }
    cli.workload.write_text(json.dumps(document))
    results = {one["query"]: one for one in cli.good("explain").results}
    for name, is_used in (("pairs", True), ("keyed", False)):
        (tree,) = results[name]["trees"]
        assert tree["used"] == is_used
        assert results[name]["answer"]["kept"]
    assert "COUNT" in results["keyed"]["trees"][0]["reason"]
    cli.good("capture")
    stored = trees(cli)
    assert (bool(stored["pairs"][0]), bool(stored["keyed"][0])) == (True, False)
    write_deltalake(str(cli.workload.parent / "many"), rows(10, 1, 900), mode="append")
    for name in ("pairs", "keyed"):
        (told,) = cli.good("changes", "--query", name).results
        assert told["by"] == "state"
        assert {row[0] for row in told["rows"]} == {"delete", "insert"}
