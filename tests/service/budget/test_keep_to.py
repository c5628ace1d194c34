"""Under a budget sides of joins are read, kept again, and read: sketches stay those of all kept."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from impctl.compile import session
from impctl.data.pages import table_of
from impctl.errors import HistoryGoneError, StorageError, WorkloadError
from impctl.service import state_cache
from impctl.service.budget import choice
from impctl.service.budget.choice import BOUND_IMPOSSIBLE, StateTarget, WeighedState, enough_text
from impctl.service.context import SilentReporter
from impctl.service.memory_limit import largest_side, machine_memory, memory_of
from impctl.service.schedule import daemon as follow_case
from impctl.service.settings import FollowRequest, Settings
from impctl.service.state_cache import StateCache
from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from impctl.workload.load import load_workload
from impctl.workload.scalars import size_from
from tests.behaviour.typed_joins import OTHERS, QUERIES, change, write_workload
from tests.support.kept_workload import fragments_by_access, run_record, stored
from tests.support.run_cli import Capsys, Cli, CliOf, CliOnce, MonkeyPatch, write_files


def read_pieces(folder: Path, name: str) -> list[str]:
    """The sides of joins and the groupings that are read from the tables."""
    return stored(folder, name).state_meta.get("from_files", [])


def stored_pieces(folder: Path, name: str) -> set[str]:
    """All of which the store has rows."""
    with Store.open(folder / ".impctl", create=False) as held:
        return {run.arrangement for run in held.run_refs(name)}


def ranges(folder: Path, name: str) -> dict[str, set[int]]:
    return fragments_by_access(stored(folder, name))


def assert_alike(folder: Path, names: Iterable[str], twin: str = "{}_kept") -> None:
    """Each query and its twin, whose state is kept, have the same sketches of the same versions."""
    for name in names:
        one, other = stored(folder, name), stored(folder, twin.format(name))
        assert one.versions == other.versions
        assert fragments_by_access(one) == fragments_by_access(other), name
        assert one.state_meta.get("unsure") == other.state_meta.get("unsure")


def describe(folder: Path, name: str, **said: Any) -> None:
    held = stored(folder, name)
    record = run_record("exact", versions=held.versions)
    meta = {**held.state_meta, **said}
    commit = MaintainCommit(name, held.generation, held.pins, record, state_meta=meta)
    with Store.open(folder / ".impctl") as store, store.lock(10, "a test"):
        store.commit_maintain(commit)


FEW = ("l", "s", "two")
NAMES = (*FEW, "self", "computed")


def write_pairs(folder: Path, names: Iterable[str], queries: Mapping[str, str] = QUERIES) -> Path:
    asked = [(name, queries[name], "auto") for name in names]
    pinned = [(f"{name}_kept", queries[name], "index") for name in names]
    return write_workload(folder, [*asked, *pinned])


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    return cli_once(f"{len(FEW)} pairs", lambda to: write_pairs(to, FEW), Cli.captured)


def state_bytes(folder: Path, names: tuple[str, ...]) -> int:
    with Store.open(folder / ".impctl", create=False) as held:
        return sum(run.bytes for name in names for run in held.run_refs(name))


@pytest.mark.parametrize("names", [FEW, pytest.param(NAMES, marks=pytest.mark.slow)])
def test_state_goes_and_comes_back_and_no_sketch_notices(
    cli_once: CliOnce, names: tuple[str, ...]
) -> None:
    cli = cli_once(f"{len(names)} pairs", lambda to: write_pairs(to, names), Cli.captured)
    folder = cli.folder
    whole = state_bytes(folder, names)
    rng = random.Random(7)
    change(folder, rng, 0)
    (said,) = [t for t in cli.warnings("maintain", "--disk", "0") if "more than its budget" in t]
    assert said.endswith("[budget_exceeded]")
    for name in names:
        read = read_pieces(folder, name)
        assert read
        assert not read_pieces(folder, f"{name}_kept")
        # Their rows are gone from the store, not only from its description.
        assert not set(read) & stored_pieces(folder, name)
    assert_alike(folder, names)
    change(folder, rng, 1)
    assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
    assert_alike(folder, names)
    # Without a budget what was chosen stays; with one that has room, captures keep all again.
    assert all(read_pieces(folder, name) for name in names)
    cli.good("capture", "--disk", "1GB")
    assert state_bytes(folder, names) > whole // 2
    change(folder, rng, 4)
    cli.good("maintain", "--disk", "1GB")
    assert_alike(folder, names)


def say(cli: Cli, text: str) -> None:
    cli.workload.write_text(cli.workload.read_text() + text + "\n")


@pytest.mark.slow
def test_a_budget_in_the_file_holds_and_a_flag_wins(
    tmp_path: Path, capsys: Capsys, monkeypatch: MonkeyPatch
) -> None:
    """From the first capture on, and for queries that are versions behind, at these versions."""
    # How often tables change here goes by how quick the machine is.
    monkeypatch.setattr(choice, "is_worth", lambda *_, **__: True)
    cli = Cli(capsys, write_pairs(tmp_path, FEW))
    say(cli, "budget: {disk: 0}")
    cli.good("capture")
    assert all(read_pieces(tmp_path, name) for name in FEW)
    assert_alike(tmp_path, FEW)
    rng = random.Random(2)
    for turn in range(3):
        change(tmp_path, rng, turn)
    behind = stored(tmp_path, "two").versions
    cli.good("capture", "--query", "l", "--disk", "1GB")
    assert stored(tmp_path, "two").versions == behind
    assert len(read_pieces(tmp_path, "two")) < 2
    assert {result["action"] for result in cli.good("maintain").results} <= {"exact", "none"}
    assert_alike(tmp_path, FEW)
    assert all(read_pieces(tmp_path, name) for name in FEW)


def test_what_the_budget_did_is_told_and_makes_nothing_fresher(captured: Cli) -> None:
    folder = captured.folder
    before = stored(folder, "two").maintained_at
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "s")
    after = stored(folder, "two")
    assert read_pieces(folder, "two")
    assert after.versions != stored(folder, "s").versions
    assert after.maintained_at == before
    latest = captured.one("status", "--query", "two")["runs"][0]
    assert (latest["action"], latest["reason_code"]) == ("convert", choice.CONVERTED)
    assert "join0" in latest["reason"]


@pytest.mark.slow
def test_a_plan_tells_what_would_be_kept_and_why(captured: Cli) -> None:
    def planned(query: str, *words: str) -> list[dict[str, Any]]:
        return captured.one("plan", "--query", query, *words)["state"]

    assert planned("two") == []
    least = planned("two", "--disk", "0")
    pieces = {one["name"]: (one["mode"], one["now"]) for one in least}
    assert pieces == dict.fromkeys(("join0.left", "join0.right", "aggregate0"), ("read", "kept"))
    for one in least:
        assert one["bytes"] < one["kept_bytes"]
        assert one["reason"]
    pinned = planned("two_kept", "--disk", "0")
    assert {(one["mode"], one["now"]) for one in pinned} == {("kept", "kept")}
    assert not read_pieces(captured.folder, "two")


KEPT_SIDES = {("index", "small enough to keep")}


def explained(cli: Cli, name: str = "two") -> dict[str, tuple[str, str]]:
    """How each side of the query's joins is found, and why."""
    entry = cli.one("explain", "--query", name)
    return {side["side"]: (side["strategy"], side["reason"]) for side in entry["joins"]}


@pytest.mark.slow
def test_explain_says_what_is_read_and_why(captured: Cli) -> None:
    """As it is stored, whatever a capture without the budget would choose; and ever after."""
    assert set(explained(captured).values()) == KEPT_SIDES
    change(captured.folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "two")
    result = explained(captured)
    assert {strategy for strategy, _ in result.values()} == {"files"}
    (tree,) = captured.one("explain", "--query", "two")["trees"]
    assert tree["reason"].startswith("possible, not chosen: a changed row joins")
    history = captured.one("status", "--query", "two")["runs"][0]["reason"]
    for side, (_, reason) in result.items():
        assert f"{side}: {reason}" in history
    change(captured.folder, random.Random(2), 1)
    captured.good("maintain", "--query", "two")
    assert explained(captured) == result
    text = captured.workload.read_text()
    say(captured, "budget: {disk: 0}")
    captured.good("capture", "--query", "two")
    again = explained(captured)
    assert again.keys() == result.keys()
    assert "as captured" not in {reason for _, reason in again.values()}
    captured.workload.write_text(text)
    captured.good("capture", "--query", "two")
    assert set(explained(captured).values()) == KEPT_SIDES


GONE, NO_LOG = HistoryGoneError("gone"), StorageError("no log")


@pytest.mark.parametrize(
    ("part", "error", "told"),
    [
        pytest.param(
            *((session, "transfer_state"), GONE, "does not change: gone"), id="a conversion"
        ),
        pytest.param(
            *((choice, "choose_state"), NO_LOG, "whatever its budget: no log"), id="a choice"
        ),
    ],
)
def test_a_failure_changes_no_query(
    captured: Cli, monkeypatch: MonkeyPatch, part: Any, error: Exception, told: str
) -> None:
    folder = captured.folder
    before = state_bytes(folder, FEW)
    monkeypatch.setattr(*part, Mock(side_effect=error))
    change(folder, random.Random(1), 0)
    assert any(told in one for one in captured.warnings("maintain", "--disk", "0"))
    assert not any(read_pieces(folder, name) for name in FEW)
    assert state_bytes(folder, FEW) >= before // 2
    assert_alike(folder, FEW)


def with_query_over(cli: Cli, table: str, sql: str) -> None:
    """Capture one more query over one more table."""
    cli.edit("tables: {", f"tables: {{{table}: {{path: {table}}}, ")
    cli.edit("queries:\n", f'queries:\n  other: {{sql: "{sql}"}}\n')
    cli.good("capture", "--query", "other")


def test_a_query_that_cannot_be_opened_fails_no_run_of_others(captured: Cli) -> None:
    """Its table is gone: the state of the others is brought within the budget, its own counts."""
    folder = captured.folder
    create_table(str(folder / "far"), pa.table({"k": [1, 1, 2]}))
    sql = "SELECT k, COUNT(*) AS n FROM far GROUP BY k HAVING COUNT(*) > 1"
    with_query_over(captured, "far", sql)
    whole = state_bytes(folder, ("other",))
    (folder / "far").rename(folder / "away")
    change(folder, random.Random(1), 0)
    ran = captured.good("maintain", "--disk", "0", "--query", "two", "--query", "two_kept")
    assert any("`other` does not change: Table `far`" in one for one in ran.document["warnings"])
    assert {result["action"] for result in ran.results} == {"exact"}
    assert read_pieces(folder, "two")
    assert state_bytes(folder, ("other",)) == whole > 0


@pytest.mark.slow
def test_a_query_that_cannot_be_read_any_more_stops_no_capture_of_others(captured: Cli) -> None:
    folder, path = captured.folder, captured.path("v")
    rows = captured.table("u").to_pyarrow_table()
    create_table(path, rows)
    with_query_over(captured, "v", "SELECT t.x FROM t JOIN v ON t.l = v.l")
    write_deltalake(path, rows.drop_columns(["l"]), mode="overwrite", schema_mode="overwrite")
    change(folder, random.Random(1), 0)
    captured.good("capture", "--disk", "0", "--query", "two")
    assert read_pieces(folder, "two")


@pytest.mark.parametrize("size", [0, 7, 999, 1_001, 708_400, 999_501, 1_000_000, 12_345_678_901])
def test_what_is_said_to_be_enough_is(size: int) -> None:
    said = enough_text(size)
    assert size <= size_from(said) <= size * 1.01


def test_a_capture_puts_a_damaged_description_right(captured: Cli) -> None:
    folder = captured.folder
    describe(folder, "l", from_files=7)
    captured.good("capture", "--query", "l", "--disk", "0")
    assert read_pieces(folder, "l")


@pytest.mark.slow
def test_sides_that_spark_reads_stay_so(captured: Cli) -> None:
    folder = captured.folder
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "l", "--query", "s")
    sides = read_pieces(folder, "l")
    assert sides
    # Of either kind of side a filter is all that is kept.
    describe(folder, "l", from_files=[], distant=sides)
    change(folder, random.Random(1), 1)
    captured.good("maintain", "--disk", "0", "--query", "s")
    after = stored(folder, "l").state_meta
    assert (after["distant"], after.get("from_files", [])) == (sides, [])


def write_pinned(folder: Path) -> Path:
    ways = {"kept": "auto, state: keep", "least": "auto, state: least", "free": "auto"}
    ways["twin"] = "index"
    return write_workload(folder, [(name, QUERIES["two"], way) for name, way in ways.items()])


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_pinned(tmp_path))


@pytest.fixture
def captured_pins(cli_once: CliOnce) -> Cli:
    return cli_once("pinned", write_pinned, Cli.captured)


def how_many(folder: Path, *names: str) -> tuple[int, ...]:
    """How many of their two sides and one grouping these queries read."""
    return tuple(len(read_pieces(folder, name)) for name in names)


@pytest.mark.slow
def test_the_word_of_the_file_holds_with_and_without_a_budget(captured_pins: Cli) -> None:
    folder = captured_pins.folder
    assert how_many(folder, "kept", "least") == (0, 3)
    rng = random.Random(1)
    for turn, (words, free) in enumerate((([], 0), (["--disk", "0"], 3), (["--disk", "1GB"], 0))):
        change(folder, rng, turn)
        ran = captured_pins.good("maintain", *words)
        assert {result["action"] for result in ran.results} == {"exact"}
        assert how_many(folder, "kept", "least") == (0, 3)
        if words != ["--disk", "1GB"]:
            assert how_many(folder, "free") == (free,)
        assert_alike(folder, ("kept", "least", "free"), "twin")


def test_what_is_to_be_kept_is_built_by_the_capture(cli: Cli) -> None:
    cli.good("capture", "--disk", "0", "--query", "kept", "--query", "least")
    assert how_many(cli.folder, "kept", "least") == (0, 3)
    for name in ("kept", "least"):
        runs = [run["action"] for run in cli.one("status", "--query", name)["runs"]]
        assert runs == ["capture"], "and not converted after it"


@pytest.mark.slow
def test_another_word_is_carried_out_by_the_next_run_under_a_budget(captured_pins: Cli) -> None:
    """Without one it waits for a capture."""
    folder = captured_pins.folder
    captured_pins.edit("state: least", "state: keep")
    captured_pins.good("maintain")
    assert how_many(folder, "least") == (3,)
    ran = captured_pins.good("maintain", "--disk", "1GB")
    assert {result["action"] for result in ran.results} == {"none"}, "no capture is asked for"
    assert how_many(folder, "least") == (0,)
    captured_pins.edit("state: keep", "state: least")
    captured_pins.good("maintain", "--disk", "1GB")
    assert how_many(folder, "kept", "least") == (3, 3)
    change(folder, random.Random(1), 1)
    captured_pins.good("maintain")
    assert_alike(folder, ("kept", "least", "free"), "twin")
    captured_pins.edit("state: least", "state: keep")
    captured_pins.good("capture", "--query", "least")
    assert how_many(folder, "least") == (0,)


RARE = "{path: PATH, changes: {every: 10d, rows: 10, deletes: 50%}}"


@pytest.mark.slow
def test_a_bound_that_no_state_within_the_budget_holds_is_told(cli: Cli) -> None:
    cli.edit("t: {path: t}", "t: " + RARE.replace("PATH", "t").replace("10d", "1h"))
    cli.edit("join: auto}", "join: auto, trigger: {fresh_within: 2ms}}")
    (said,) = [t for t in cli.warnings("capture", "--disk", "0") if f"[{BOUND_IMPOSSIBLE}]" in t]
    assert said in cli.warnings("plan", "--disk", "0")
    assert said.startswith("query `free` may miss fresh_within 2ms: when ")
    assert "of state for all queries it would take" in said
    # Too seldom for it to pay, and yet it is kept again for the bound.
    cli.edit("every: 1h", "every: 10d")
    cli.edit("u: {path: u}", "u: " + RARE.replace("PATH", "u"))
    assert not any(BOUND_IMPOSSIBLE in one for one in cli.warnings("maintain", "--disk", "1GB"))
    assert how_many(cli.folder, "free") == (0,)


@pytest.mark.slow
def test_without_a_bound_what_does_not_pay_stays(cli: Cli) -> None:
    for name in ("t", "u"):
        cli.edit(f"{name}: {{path: {name}}}", f"{name}: " + RARE.replace("PATH", name))
    cli.good("capture", "--disk", "0", "--query", "free")
    cli.good("maintain", "--disk", "1GB", "--query", "free")
    assert how_many(cli.folder, "free") == (3,)


SQL = "SELECT t.g FROM t JOIN u ON t.k = u.k WHERE date_add(t.d, u.n) > current_date()"


def left_rows() -> pa.Table:
    days = [dt.date(2026, 1, day) for day in (1, 5, 10, 15, 20)]
    keys = pa.array([None, 1, 2, None, 3], pa.int64())
    return pa.table({"g": pa.array([1, 2, 3, 4, 5], pa.int64()), "k": keys, "d": days})


def right_rows() -> pa.Table:
    keys = pa.array([None, 1, 2, None, 9], pa.int64())
    return pa.table({"k": keys, "n": pa.array([1, 10, 30, 20, 5], pa.int32())})


def grow(folder: Path) -> None:
    write_deltalake(str(folder / "t"), left_rows(), mode="append")
    write_deltalake(str(folder / "u"), right_rows(), mode="append")


SIDES = ("join0.left", "join0.right")


def read_of_q(monkeypatch: MonkeyPatch, *sides: str) -> None:
    """Have the choice read these sides of `q`, and keep all else."""
    target = {"q": StateTarget(sides)}
    monkeypatch.setattr(WeighedState, "wanted", lambda _, name: target.get(name, StateTarget()))


@pytest.fixture
def again(monkeypatch: MonkeyPatch, cli_once: CliOnce) -> Cli:
    """A query, read at first and then kept again, beside one whose rows were always kept."""
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-20")

    def write(folder: Path) -> None:
        said = {"sql": SQL, "sketch": {"t": "g"}, "policy": "incremental"}
        queries = {"q": {**said, "join": "auto"}, "twin": {**said, "join": "index"}}
        workload = {"partitions": {"t": {"g": {"boundaries": [2, 3, 4, 5]}}}, "queries": queries}
        write_files(folder, workload, t=left_rows(), u=right_rows())

    def go_and_come_back(cli: Cli) -> None:
        cli.good("capture")
        for sides in (SIDES, ()):
            read_of_q(monkeypatch, *sides)
            grow(cli.folder)
            cli.good("maintain", "--disk", "0")
            assert tuple(read_pieces(cli.folder, "q")) == sides

    cli = cli_once("kept again", write, go_and_come_back)
    read_of_q(monkeypatch)
    return cli


def held(folder: Path, name: str) -> dict[str, int]:
    """How many rows the joins' sides have in the store, by their weights."""
    with Store.open(folder / ".impctl", create=False) as store:
        runs = store.load_runs(name)
        weights = {s: [table_of(run)[0].column("weight") for _, run in runs[s]] for s in SIDES}
    return {side: sum(pc.sum(each).as_py() for each in every) for side, every in weights.items()}


def test_rows_that_never_find_a_partner_do_not_come_back(again: Cli) -> None:
    folder = again.folder
    assert held(folder, "q") == held(folder, "twin") == {"join0.left": 9, "join0.right": 9}


@pytest.mark.slow
def test_a_clock_moves_what_is_kept_again(again: Cli, monkeypatch: MonkeyPatch) -> None:
    folder = again.folder
    for day in ("2026-01-25", "2026-02-05", "2026-02-15"):
        monkeypatch.setenv("IMPCTL_NOW", day)
        for result in again.good("maintain").results:
            assert result["action"] == "exact", result
        assert ranges(folder, "q") == ranges(folder, "twin"), day


@pytest.mark.slow
def test_sides_that_the_clock_moves_are_not_given_up(
    tmp_path: Path, cli_of: CliOf, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-20")
    queries = {"q": {"sql": SQL, "sketch": {"t": "g"}, "policy": "incremental"}}
    workload = {"budget": {"disk": 0}, "queries": queries}
    cli = cli_of(workload, t=left_rows(), u=right_rows()).captured()
    for day in ("2026-01-20", "2026-02-05"):
        monkeypatch.setenv("IMPCTL_NOW", day)
        grow(tmp_path)
        assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
        assert "from_files" not in stored(tmp_path, "q").state_meta


@pytest.mark.parametrize("sides", [(), ("join0.left", "join0.right")])
def test_a_table_in_place_of_another_is_not_read(
    again: Cli, monkeypatch: MonkeyPatch, sides: tuple[str, ...]
) -> None:
    """A backup of another day stands there for a while, and rows of it are in no state after."""
    folder = again.folder
    document = json.loads(again.workload.read_text())
    document["tables"]["v"] = {"path": "v"}
    sql = "SELECT t.g FROM t JOIN v ON t.k = v.k"
    document["queries"]["apart"] = {"sql": sql, "sketch": {"t": "g"}}
    again.workload.write_text(json.dumps(document))
    create_table(str(folder / "v"), right_rows())
    again.good("capture", "--query", "apart")
    read_of_q(monkeypatch, *SIDES)
    grow(folder)
    again.good("maintain", "--disk", "0")
    other = right_rows().set_column(0, "k", pa.array([2, 2, 2, 2, 2], pa.int64()))
    (folder / "u").rename(folder / "aside")
    create_table(str(folder / "u"), other)
    for table in ("u", "u", "u", "v"):
        again.append(table, other)
    read_of_q(monkeypatch, *sides)
    again.good("maintain", "--disk", "0", "--query", "apart")
    shutil.rmtree(folder / "u")
    (folder / "aside").rename(folder / "u")
    assert read_pieces(folder, "q") == list(SIDES)
    grow(folder)
    again.good("maintain")
    assert ranges(folder, "q") == ranges(folder, "twin")
    read_of_q(monkeypatch)
    grow(folder)
    again.good("maintain", "--disk", "0")
    assert held(folder, "q") == held(folder, "twin")


GROUPED = (
    "SELECT t.g, COUNT(*) n FROM t JOIN u ON t.k = u.k GROUP BY t.g HAVING MAX(t.d) < current_date"
)


def grouped_rows(first: int) -> pa.Table:
    days = [dt.date(2026, 1, first + at) for at in range(8)]
    groups = pa.array([1, 2, 3, 4, None, 1, 2, 3], pa.int64())
    return pa.table({"g": groups, "k": pa.array([0, 1, 2, None] * 2, pa.int64()), "d": days})


@pytest.mark.slow
def test_groups_stay_beside_sides(tmp_path: Path, cli_of: CliOf, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-05")
    said = {"sql": GROUPED, "sketch": {"t": "g"}, "policy": "strict"}
    queries = {"q": {**said, "join": "files"}, "twin": {**said, "join": "index"}}
    workload = {"partitions": {"t": {"g": {"boundaries": [2, 3, 4]}}}, "queries": queries}
    u = pa.table({"k": pa.array([0, 1, None], pa.int64())})
    cli = cli_of(workload, t=grouped_rows(1), u=u).captured("--disk", "0")
    match = set()
    for day, first in ((8, 3), (12, 12), (6, 1), (25, 2)):
        monkeypatch.setenv("IMPCTL_NOW", f"2026-01-{day:02}")
        cli.append("t", grouped_rows(first))
        ran = cli.good("maintain", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"exact"}
        assert read_pieces(tmp_path, "q") == list(SIDES)
        assert_alike(tmp_path, "q", "twin")
        match.add(str(ranges(tmp_path, "q")))
    assert len(match) > 1, "the clock moved something"


@pytest.fixture
def twins(tmp_path: Path, capsys: Capsys) -> Cli:
    asked = [(name, QUERIES["two"], join) for name, join in (("two", "auto"), ("twin", "index"))]
    return Cli(capsys, write_workload(tmp_path, asked))


def test_a_side_that_may_not_fit_is_read(twins: Cli) -> None:
    text = twins.workload.read_text()
    say(twins, "budget: {memory: 50MB, disk: 1GB}")
    twins.good("capture")
    # What the workload pins is kept all the same, and no choice under a budget builds the other.
    assert how_many(twins.folder, "two", "twin") == (2, 0)
    reasons = stored(twins.folder, "two").state_meta["side_reasons"]
    of_sides = {reasons[side] for side in read_pieces(twins.folder, "two")}
    assert of_sides == {"building it may need more memory than is available"}
    rng = random.Random(1)
    for turn in range(2):
        change(twins.folder, rng, turn)
        twins.good("maintain")
        assert ranges(twins.folder, "two") == ranges(twins.folder, "twin")
    assert how_many(twins.folder, "two") == (2,)
    # A flag wins over the file.
    twins.workload.write_text(text + "budget: {memory: 50MB}\n")
    twins.good("capture", "--memory", "1GB")
    assert how_many(twins.folder, "two") == (0,)


def test_what_is_no_size_is_refused_with_its_place(twins: Cli) -> None:
    """Memory may be a share of the machine's, too."""
    text = twins.workload.read_text()
    for name, right, wrong in (
        ("disk", ("0", "1GB"), ("1XB", "-1", "many", "1.5.2GB", "9" * 400 + "TB", "25%")),
        ("memory", ("2GB", "25%", "100 %", "1"), ("0", "0%", "101%", "-5%", "1XB", "25%%")),
    ):
        for given in (*right, *wrong):
            twins.workload.write_text(f"{text}budget: {{{name}: '{given}'}}\n")
            if given in right:
                load_workload(twins.workload, {})
                continue
            with pytest.raises(WorkloadError) as caught:
                load_workload(twins.workload, {})
            (problem,) = caught.value.problems
            assert f"`budget.{name}` must be a size" in problem.message
            assert problem.location.line == text.count("\n") + 1
    twins.workload.write_text(text)
    assert twins("maintain", "--disk", "many").code == 2


def test_the_run_comes_before_the_file(twins: Cli) -> None:
    file = twins.workload
    assert memory_of(Settings(file), load_workload(file, {})) is None
    say(twins, "budget: {memory: 25%}")
    said = load_workload(file, {})
    assert memory_of(Settings(file, memory=7), said) == 7
    assert memory_of(Settings(file), said) == machine_memory() // 4


def test_what_fits_takes_no_more_than_there_is() -> None:
    assert largest_side(None) is None
    for memory in (0, 1, 49_999_999, 50_000_000):
        assert largest_side(memory) == 0
    for memory in (50_000_004, 10**9, 10**12):
        assert memory - 4 <= 50_000_000 + 4 * largest_side(memory) <= memory


def kept_after(monkeypatch: MonkeyPatch, over: int, sizes: dict[str, int], order: str) -> list[str]:
    """The queries whose states are kept after these steps, the last of which is over by so much."""
    monkeypatch.setattr(state_cache, "_forms", lambda *_: ())
    held = [500] * (len(order) - 1) + [500 + over]
    kept = StateCache(memory=500, held=lambda: held.pop(0))
    for name in order:
        state = SimpleNamespace(state_bytes=partial(sizes.get, name))
        taken: Any = SimpleNamespace(stored=SimpleNamespace(query=name, pins=()), maintained=state)
        ctx: Any = SimpleNamespace(tables=None)
        kept.keep(ctx, taken)
    return sorted(kept._states)


def test_states_that_take_most_for_their_uses_are_dropped(monkeypatch: MonkeyPatch) -> None:
    sizes = {"a": 100, "b": 60, "c": 10}
    # Used once each, the largest goes; used twice as often as its neighbour, that one does.
    for over, order, kept in (
        *((0, "abc", "abc"), (1, "abc", "bc"), (1, "abac", "ac"), (100, "abc", "bc")),
        *((101, "abc", "c"), (10**9, "abc", ""), (-1, "abc", "abc")),
    ):
        assert kept_after(monkeypatch, over, sizes, order) == list(kept), (over, order)


def test_without_a_bound_nothing_is_measured() -> None:
    kept = StateCache(held=Mock(side_effect=AssertionError("asked for what the process holds")))
    kept._drop_to_memory()


def test_following_has_the_bound_of_its_run(twins: Cli, monkeypatch: MonkeyPatch) -> None:
    class Told(Exception):
        """What the states are bounded by."""

    def states(*, memory: int | None) -> StateCache:
        raise Told(memory)

    monkeypatch.setattr(follow_case, "StateCache", states)
    unused: Any = {"batch_rows": None, "reporter": SilentReporter(), "stop": None, "show": None}
    for memory in (7, None):
        settings = Settings(twins.workload, memory=memory)
        with pytest.raises(Told) as told:
            follow_case.follow(settings, None, FollowRequest(), **unused)
        assert told.value.args == (memory,)


REBUILT = {"padded", "groups", "merged", "left"}
"""Queries in which no key narrows a piece that can be left out."""


@pytest.fixture
def others(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_pairs(tmp_path, OTHERS, OTHERS))


def changed(cli: Cli, folder: Path, rng: random.Random, turn: int, *flags: str) -> None:
    change(folder, rng, turn)
    assert {result["action"] for result in cli.good("maintain", *flags).results} == {"exact"}
    assert_alike(folder, OTHERS)


def modes(cli: Cli) -> dict[str, set[str]]:
    results = cli.good("explain", *(f"--query={name}" for name in OTHERS)).results
    return {one["query"]: {x["mode"] for x in (*one["joins"], *one["groups"])} for one in results}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "each"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_sketches_stay_those_of_all_state_kept(others: Cli, turns: int, each: int) -> None:
    others.good("capture", "--disk", "1GB")
    assert all(result == {"kept"} for result in modes(others).values())
    free = others.workload.read_text()
    texts = [free.replace("auto}", f"auto, state: {way}}}") for way in ("least", "keep")]
    assert free not in texts
    rng = random.Random(5)
    for turn in range(turns):
        others.workload.write_text(texts[turn % 2])
        changed(others, others.folder, rng, each * turn, "--disk", "1GB")
        result = modes(others)
        if turn % 2 == 0:
            assert {name for name, each in result.items() if "rebuilt" in each} == REBUILT
            assert all(each & {"read", "rebuilt"} for each in result.values()), result
        else:
            assert all(each == {"kept"} for each in result.values()), result
        for more in range(1, each):
            changed(others, others.folder, rng, 2 * turn + more, "--disk", "1GB")


@pytest.mark.slow
def test_a_plan_tells_what_is_rebuilt(others: Cli) -> None:
    asked = [f"--query={name}" for name in ("merged", "groups", "own")]
    others.good("capture", "--disk", "0", *asked)
    change(others.folder, random.Random(3), 1)
    plans = others.good("plan", "--disk", "0", *asked).results
    pieces = [piece for one in plans for piece in one["state"]]
    assert {"read", "rebuilt"} <= {piece["mode"] for piece in pieces}
    reasons = [piece["reason"] for piece in pieces if piece["mode"] == "rebuilt"]
    assert any("because it is rebuilt" in reason for reason in reasons), reasons
