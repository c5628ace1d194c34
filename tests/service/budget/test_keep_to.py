"""Under a budget sides of joins are read, kept again, and read: sketches stay those of all kept."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.compile import session
from impctl.data.pages import table_of
from impctl.errors import HistoryGoneError, StorageError, WorkloadError
from impctl.service import kept_states
from impctl.service.budget import choice
from impctl.service.budget.bounds import BOUND_IMPOSSIBLE, enough_text
from impctl.service.budget.choice import StateTarget, WeighedState
from impctl.service.context import SilentReporter
from impctl.service.kept_states import StateCache
from impctl.service.memory_limit import largest_side, machine_memory, memory_of
from impctl.service.schedule import daemon as follow_case
from impctl.service.settings import FollowRequest, Settings
from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from impctl.workload.load import load_workload
from impctl.workload.scalars import size_from
from tests.behaviour.typed_joins import OTHERS, QUERIES, change, write_workload
from tests.support.kept_workload import fragments_by_access, run_record, stored
from tests.support.run_cli import Cli, CliOf, CliOnce


def read_pieces(folder: Path, name: str) -> list[str]:
    """The sides of joins and the groupings that are read from the tables."""
    result = stored(folder, name).state_meta.get("from_files", [])
    assert isinstance(result, list)
    return result


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
    """Say something else of a stored state."""
    held = stored(folder, name)
    record = run_record("exact", versions=held.versions)
    meta = {**held.state_meta, **said}
    commit = MaintainCommit(name, held.generation, held.pins, record, state_meta=meta)
    with Store.open(folder / ".impctl") as store, store.lock(10, "a test"):
        store.commit_maintain(commit)


NAMES = ("l", "s", "two", "self", "computed")
FEW = ("l", "s", "two")


def write_pairs(folder: Path, names: Iterable[str]) -> Path:
    """Each query with a twin whose state is kept."""
    asked = [(name, QUERIES[name], "auto") for name in names]
    pinned = [(f"{name}_kept", QUERIES[name], "index") for name in names]
    return write_workload(folder, [*asked, *pinned])


@pytest.fixture
def pairs(cli_once: CliOnce) -> Cli:
    """All of these queries, captured without a budget."""
    return cli_once("pairs", lambda to: write_pairs(to, NAMES), Cli.captured)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    """A few of them, captured without a budget."""
    return cli_once("few", lambda to: write_pairs(to, FEW), Cli.captured)


def state_bytes(folder: Path, names: tuple[str, ...]) -> int:
    with Store.open(folder / ".impctl", create=False) as held:
        return sum(run.bytes for name in names for run in held.run_refs(name))


def test_state_goes_and_comes_back_and_no_sketch_notices(pairs: Cli) -> None:
    folder = pairs.workload.parent
    whole = state_bytes(folder, NAMES)
    rng = random.Random(7)
    change(folder, rng, 0)
    least = pairs.good("maintain", "--disk", "0")
    assert all(read_pieces(folder, name) for name in NAMES)
    assert not any(read_pieces(folder, f"{name}_kept") for name in NAMES)
    (said,) = [one for one in least.document["warnings"] if "more than its budget" in one]
    assert said.endswith("[budget_exceeded]")
    for name in NAMES:
        # Their rows are gone from the store, not only from its description.
        assert not set(read_pieces(folder, name)) & stored_pieces(folder, name)
    assert_alike(folder, NAMES)
    change(folder, rng, 1)
    assert {result["action"] for result in pairs.good("maintain").results} == {"exact"}
    assert_alike(folder, NAMES)
    # Without a budget what was chosen stays; with one that has room, captures keep all again.
    assert all(read_pieces(folder, name) for name in NAMES)
    pairs.good("capture", "--disk", "1GB")
    assert state_bytes(folder, NAMES) > whole // 2
    change(folder, rng, 4)
    pairs.good("maintain", "--disk", "1GB")
    assert_alike(folder, NAMES)


@pytest.mark.slow
def test_a_budget_in_the_file_holds_and_a_flag_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first capture on, and for queries that are versions behind, at these versions."""
    # How often tables change here goes by how quick the machine is.
    monkeypatch.setattr(choice, "is_worth", lambda *_, **__: True)
    cli = Cli(capsys, write_pairs(tmp_path, FEW))
    cli.workload.write_text(cli.workload.read_text() + "budget: {disk: 0}\n")
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
    for result in cli.good("maintain").results:
        assert result["action"] in ("exact", "none"), result
    assert_alike(tmp_path, FEW)
    assert all(read_pieces(tmp_path, name) for name in FEW)


def test_what_the_budget_did_is_told_and_makes_nothing_fresher(captured: Cli) -> None:
    folder = captured.workload.parent
    before = stored(folder, "two").maintained_at
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "s")
    after = stored(folder, "two")
    assert read_pieces(folder, "two")
    assert after.versions != stored(folder, "s").versions
    assert after.maintained_at == before
    latest = captured.one("status", "--query", "two")["runs"][0]
    assert latest["action"] == "convert"
    assert latest["reason_code"] == choice.CONVERTED
    assert "join0" in latest["reason"]


@pytest.mark.slow
def test_a_plan_tells_what_would_be_kept_and_why(captured: Cli) -> None:
    assert captured.one("plan", "--query", "two")["state"] == []
    least = captured.one("plan", "--query", "two", "--disk", "0")
    assert {one["name"]: (one["mode"], one["now"]) for one in least["state"]} == {
        "join0.left": ("read", "kept"),
        "join0.right": ("read", "kept"),
        "aggregate0": ("read", "kept"),
    }
    for one in least["state"]:
        assert one["bytes"] < one["kept_bytes"]
        assert one["reason"]
    pinned = captured.one("plan", "--query", "two_kept", "--disk", "0")
    assert {(one["mode"], one["now"]) for one in pinned["state"]} == {("kept", "kept")}
    assert not read_pieces(captured.workload.parent, "two")


def explained(cli: Cli, name: str, *words: str) -> dict[str, tuple[str, str]]:
    """How each side of the query's joins is found, and why."""
    entry = cli.one("explain", "--query", name, *words)
    return {side["side"]: (side["strategy"], side["reason"]) for side in entry["joins"]}


@pytest.mark.slow
def test_explain_says_what_is_read_and_why(captured: Cli) -> None:
    """As it is stored, whatever a capture without the budget would choose; and ever after."""
    folder = captured.workload.parent
    assert set(explained(captured, "two").values()) == {("index", "small enough to keep")}
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "two")
    result = explained(captured, "two")
    assert {strategy for strategy, _ in result.values()} == {"files"}
    (tree,) = captured.one("explain", "--query", "two")["trees"]
    assert tree["reason"].startswith("possible, not chosen: a changed row joins")
    history = captured.good("status", "--query", "two").results[0]["runs"][0]["reason"]
    for side, (_, reason) in result.items():
        assert f"{side}: {reason}" in history
    change(folder, random.Random(2), 1)
    captured.good("maintain", "--query", "two")
    assert explained(captured, "two") == result
    text = captured.workload.read_text()
    captured.workload.write_text(text + "budget: {disk: 0}\n")
    captured.good("capture", "--query", "two")
    assert explained(captured, "two").keys() == result.keys()
    assert not {reason for _, reason in explained(captured, "two").values()} & {"as captured"}
    captured.workload.write_text(text)
    captured.good("capture", "--query", "two")
    assert set(explained(captured, "two").values()) == {("index", "small enough to keep")}


@pytest.mark.parametrize(
    ("part", "error", "told"),
    [
        ((session, "transfer_state"), HistoryGoneError("gone"), "does not change: gone"),
        ((choice, "choose_state"), StorageError("no log"), "whatever its budget: no log"),
    ],
    ids=["a conversion", "a choice"],
)
def test_what_fails_leaves_the_queries_as_they_were(
    captured: Cli, monkeypatch: pytest.MonkeyPatch, part: Any, error: Exception, told: str
) -> None:
    folder = captured.workload.parent
    before = state_bytes(folder, FEW)
    monkeypatch.setattr(*part, Mock(side_effect=error))
    change(folder, random.Random(1), 0)
    ran = captured.good("maintain", "--disk", "0")
    assert any(told in one for one in ran.document["warnings"])
    assert not any(read_pieces(folder, name) for name in FEW)
    assert state_bytes(folder, FEW) >= before // 2
    assert_alike(folder, FEW)


def with_query_over(cli: Cli, table: str, query: str) -> None:
    """Capture one more query over one more table."""
    cli.edit("tables: {", f"tables: {{{table}: {{path: {table}}}, ")
    cli.edit("queries:\n", f"queries:\n  other: {{{query}}}\n")
    cli.good("capture", "--query", "other")


def test_a_query_that_cannot_be_opened_fails_no_run_of_others(captured: Cli) -> None:
    """Its table is gone: the state of the others is brought within the budget, its own counts."""
    folder = captured.workload.parent
    create_table(str(folder / "far"), pa.table({"k": [1, 1, 2]}))
    sql = "SELECT k, COUNT(*) AS n FROM far GROUP BY k HAVING COUNT(*) > 1"
    with_query_over(captured, "far", f'sql: "{sql}"')
    whole = state_bytes(folder, ("other",))
    (folder / "far").rename(folder / "away")
    change(folder, random.Random(1), 0)
    ran = captured.good("maintain", "--disk", "0", "--query", "two", "--query", "two_kept")
    assert any("`other` does not change: Table `far`" in one for one in ran.document["warnings"])
    assert [result["action"] for result in ran.results] == ["exact"] * len(ran.results)
    assert read_pieces(folder, "two")
    assert state_bytes(folder, ("other",)) == whole > 0


@pytest.mark.slow
def test_a_query_that_cannot_be_read_any_more_stops_no_capture_of_others(captured: Cli) -> None:
    folder = captured.workload.parent
    path = str(folder / "v")
    rows = DeltaTable(str(folder / "u")).to_pyarrow_table()
    create_table(path, rows)
    with_query_over(captured, "v", 'sql: "SELECT t.x FROM t JOIN v ON t.l = v.l"')
    write_deltalake(path, rows.drop_columns(["l"]), mode="overwrite", schema_mode="overwrite")
    change(folder, random.Random(1), 0)
    captured.good("capture", "--disk", "0", "--query", "two")
    assert read_pieces(folder, "two")


@pytest.mark.parametrize("size", [0, 7, 999, 1_001, 708_400, 999_501, 1_000_000, 12_345_678_901])
def test_what_is_said_to_be_enough_is(size: int) -> None:
    said = enough_text(size)
    assert size <= size_from(said) <= size * 1.01


def test_a_capture_puts_a_damaged_description_right(captured: Cli) -> None:
    folder = captured.workload.parent
    describe(folder, "l", from_files=7)
    captured.good("capture", "--query", "l", "--disk", "0")
    assert read_pieces(folder, "l")


@pytest.mark.slow
def test_sides_that_spark_reads_stay_so(captured: Cli) -> None:
    folder = captured.workload.parent
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
    asked = [
        ("kept", QUERIES["two"], "auto, state: keep"),
        ("least", QUERIES["two"], "auto, state: least"),
        ("free", QUERIES["two"], "auto"),
        ("twin", QUERIES["two"], "index"),
    ]
    return write_workload(folder, asked)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, write_pinned(tmp_path))


@pytest.fixture
def captured_pins(cli_once: CliOnce) -> Cli:
    """The same, captured without a budget."""
    return cli_once("pinned", write_pinned, Cli.captured)


def how_many(folder: Path, *names: str) -> tuple[int, ...]:
    """How many of their two sides and one grouping these queries read."""
    return tuple(len(read_pieces(folder, name)) for name in names)


@pytest.mark.slow
def test_the_word_of_the_file_holds_with_and_without_a_budget(captured_pins: Cli) -> None:
    folder = captured_pins.workload.parent
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


def test_what_is_to_be_kept_is_built_by_the_capture(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture", "--disk", "0", "--query", "kept", "--query", "least")
    assert how_many(tmp_path, "kept", "least") == (0, 3)
    for name in ("kept", "least"):
        entry = cli.one("status", "--query", name)
        assert [run["action"] for run in entry["runs"]] == ["capture"], "and not converted after it"


@pytest.mark.slow
def test_another_word_is_carried_out_by_the_next_run_under_a_budget(captured_pins: Cli) -> None:
    """Without one it waits for a capture."""
    folder = captured_pins.workload.parent
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


@pytest.mark.slow
def test_a_bound_that_no_state_within_the_budget_holds_is_told(cli: Cli, tmp_path: Path) -> None:
    coming = "changes: {every: 1h, rows: 10, deletes: 50%}"
    cli.edit("t: {path: t}", f"t: {{path: t, {coming}}}")
    cli.edit("join: auto}", "join: auto, trigger: {fresh_within: 2ms}}")
    told = cli.good("capture", "--disk", "0").document["warnings"]
    (said,) = [one for one in told if f"[{BOUND_IMPOSSIBLE}]" in one]
    assert said in cli.good("plan", "--disk", "0").document["warnings"]
    assert said.startswith("query `free` may miss fresh_within 2ms: when ")
    assert "of state for all queries it would take" in said
    # Too seldom for it to pay, and yet it is kept again for the bound.
    cli.edit("every: 1h", "every: 10d")
    cli.edit("u: {path: u}", "u: {path: u, changes: {every: 10d, rows: 10, deletes: 50%}}")
    free = cli.good("maintain", "--disk", "1GB").document["warnings"]
    assert not any(BOUND_IMPOSSIBLE in one for one in free)
    assert how_many(tmp_path, "free") == (0,)


@pytest.mark.slow
def test_without_a_bound_what_does_not_pay_stays(cli: Cli, tmp_path: Path) -> None:
    for name in ("t", "u"):
        coming = "changes: {every: 10d, rows: 10, deletes: 50%}"
        cli.edit(f"{name}: {{path: {name}}}", f"{name}: {{path: {name}, {coming}}}")
    cli.good("capture", "--disk", "0", "--query", "free")
    cli.good("maintain", "--disk", "1GB", "--query", "free")
    assert how_many(tmp_path, "free") == (3,)


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


@pytest.fixture
def cli_kept_again(monkeypatch: pytest.MonkeyPatch, cli_once: CliOnce) -> Cli:
    """A query, read at first and then kept again, beside one whose rows were always kept."""
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-20")

    def write(folder: Path) -> None:
        create_table(str(folder / "t"), left_rows())
        create_table(str(folder / "u"), right_rows())
        lines = "".join(
            f'  {name}: {{sql: "{SQL}", sketch: {{t: g}}, join: {join}, policy: incremental}}\n'
            for name, join in (("q", "auto"), ("twin", "index"))
        )
        (folder / "w.yaml").write_text(
            "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
            "partitions: {t: {g: {boundaries: [2, 3, 4, 5]}}}\n"
            f"queries:\n{lines}store: .impctl\n"
        )

    def go_and_come_back(cli: Cli) -> None:
        cli.good("capture")
        for sides in (("join0.left", "join0.right"), ()):
            of_q = StateTarget(sides)
            monkeypatch.setattr(
                WeighedState, "wanted", lambda _, name, w=of_q: w if name == "q" else StateTarget()
            )
            grow(cli.workload.parent)
            cli.good("maintain", "--disk", "0")
            assert tuple(read_pieces(cli.workload.parent, "q")) == sides

    cli = cli_once("kept again", write, go_and_come_back)
    monkeypatch.setattr(WeighedState, "wanted", lambda *_: StateTarget())
    return cli


def held(folder: Path, name: str) -> dict[str, int]:
    """How many rows the joins' sides have in the store, by their weights."""
    with Store.open(folder / ".impctl", create=False) as store:
        runs = store.load_runs(name)
        return {
            side: sum(pc.sum(table_of(run)[0].column("weight")).as_py() for _, run in runs[side])
            for side in ("join0.left", "join0.right")
        }


def test_rows_that_never_find_a_partner_do_not_come_back(cli_kept_again: Cli) -> None:
    folder = cli_kept_again.workload.parent
    assert held(folder, "q") == held(folder, "twin") == {"join0.left": 9, "join0.right": 9}


@pytest.mark.slow
def test_a_clock_moves_what_is_kept_again(
    cli_kept_again: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cli_kept_again.workload.parent
    for day in ("2026-01-25", "2026-02-05", "2026-02-15"):
        monkeypatch.setenv("IMPCTL_NOW", day)
        for result in cli_kept_again.good("maintain").results:
            assert result["action"] == "exact", result
        assert ranges(folder, "q") == ranges(folder, "twin"), day


@pytest.mark.slow
def test_sides_that_the_clock_moves_are_not_given_up(
    tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-20")
    create_table(str(tmp_path / "t"), left_rows())
    create_table(str(tmp_path / "u"), right_rows())
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\nbudget: {disk: 0}\n"
        f'queries:\n  q: {{sql: "{SQL}", sketch: {{t: g}}, policy: incremental}}\nstore: .impctl\n'
    ).captured()
    for day in ("2026-01-20", "2026-02-05"):
        monkeypatch.setenv("IMPCTL_NOW", day)
        grow(tmp_path)
        results = cli.good("maintain").results
        assert {result["action"] for result in results} == {"exact"}
        assert "from_files" not in stored(tmp_path, "q").state_meta


@pytest.mark.parametrize("sides", [(), ("join0.left", "join0.right")])
def test_a_table_in_place_of_another_is_not_read(
    cli_kept_again: Cli, monkeypatch: pytest.MonkeyPatch, sides: tuple[str, ...]
) -> None:
    """A backup of another day stands there for a while, and rows of it are in no state after."""
    folder = cli_kept_again.workload.parent
    text = cli_kept_again.workload.read_text().replace("u: {path: u}", "u: {path: u}, v: {path: v}")
    apart = '  apart: {sql: "SELECT t.g FROM t JOIN v ON t.k = v.k", sketch: {t: g}}\nstore:'
    create_table(str(folder / "v"), right_rows())
    cli_kept_again.workload.write_text(text.replace("store:", apart))
    cli_kept_again.good("capture", "--query", "apart")
    read = ("join0.left", "join0.right")
    monkeypatch.setattr(
        WeighedState, "wanted", lambda _, name: StateTarget(read if name == "q" else ())
    )
    grow(folder)
    cli_kept_again.good("maintain", "--disk", "0")
    other = right_rows().set_column(0, "k", pa.array([2, 2, 2, 2, 2], pa.int64()))
    (folder / "u").rename(folder / "aside")
    create_table(str(folder / "u"), other)
    for _ in range(3):
        write_deltalake(str(folder / "u"), other, mode="append")
    write_deltalake(str(folder / "v"), other, mode="append")
    monkeypatch.setattr(
        WeighedState, "wanted", lambda _, name: StateTarget(sides if name == "q" else ())
    )
    cli_kept_again.good("maintain", "--disk", "0", "--query", "apart")
    shutil.rmtree(folder / "u")
    (folder / "aside").rename(folder / "u")
    assert read_pieces(folder, "q") == list(read)
    grow(folder)
    cli_kept_again.good("maintain")
    assert ranges(folder, "q") == ranges(folder, "twin")
    monkeypatch.setattr(WeighedState, "wanted", lambda *_: StateTarget())
    grow(folder)
    cli_kept_again.good("maintain", "--disk", "0")
    assert held(folder, "q") == held(folder, "twin")


GROUPED = (
    "SELECT t.g, COUNT(*) n FROM t JOIN u ON t.k = u.k GROUP BY t.g HAVING MAX(t.d) < current_date"
)


def grouped_rows(first: int) -> pa.Table:
    days = [dt.date(2026, 1, first + at) for at in range(8)]
    groups = pa.array([1, 2, 3, 4, None, 1, 2, 3], pa.int64())
    return pa.table({"g": groups, "k": pa.array([0, 1, 2, None] * 2, pa.int64()), "d": days})


@pytest.mark.slow
def test_they_are_kept_where_sides_are_read(
    tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-05")
    create_table(str(tmp_path / "t"), grouped_rows(1))
    create_table(str(tmp_path / "u"), pa.table({"k": pa.array([0, 1, None], pa.int64())}))
    lines = "".join(
        f'  {name}: {{sql: "{GROUPED}", sketch: {{t: g}}, join: {join}, policy: strict}}\n'
        for name, join in (("q", "files"), ("twin", "index"))
    )
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        f"partitions: {{t: {{g: {{boundaries: [2, 3, 4]}}}}}}\nqueries:\n{lines}store: .impctl\n"
    ).captured("--disk", "0")
    match = []
    for day, first in ((8, 3), (12, 12), (6, 1), (25, 2)):
        monkeypatch.setenv("IMPCTL_NOW", f"2026-01-{day:02}")
        write_deltalake(str(tmp_path / "t"), grouped_rows(first), mode="append")
        ran = cli.good("maintain", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"exact"}
        assert read_pieces(tmp_path, "q") == ["join0.left", "join0.right"]
        assert_alike(tmp_path, "q", "twin")
        match.append(ranges(tmp_path, "q"))
    assert len({str(one) for one in match}) > 1, "the clock moved something"


@pytest.fixture
def cli_beside_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    asked = [(name, QUERIES["two"], join) for name, join in (("two", "auto"), ("twin", "index"))]
    return Cli(capsys, write_workload(tmp_path, asked))


def test_a_side_that_may_not_fit_is_read(cli_beside_twin: Cli, tmp_path: Path) -> None:
    text = cli_beside_twin.workload.read_text()
    cli_beside_twin.workload.write_text(text + "budget: {memory: 50MB, disk: 1GB}\n")
    cli_beside_twin.good("capture")
    assert len(read_pieces(tmp_path, "two")) == 2
    # What the workload pins is kept all the same, and no choice under a budget builds the other.
    assert not read_pieces(tmp_path, "twin")
    reasons = stored(tmp_path, "two").state_meta["side_reasons"]
    of_sides = {reasons[side] for side in read_pieces(tmp_path, "two")}
    assert of_sides == {"building it may need more memory than is available"}
    rng = random.Random(1)
    for turn in range(2):
        change(tmp_path, rng, turn)
        cli_beside_twin.good("maintain")
        assert ranges(tmp_path, "two") == ranges(tmp_path, "twin")
    assert len(read_pieces(tmp_path, "two")) == 2
    # A flag wins over the file.
    cli_beside_twin.workload.write_text(text + "budget: {memory: 50MB}\n")
    cli_beside_twin.good("capture", "--memory", "1GB")
    assert not read_pieces(tmp_path, "two")


def test_what_is_no_size_is_refused_with_its_place(cli_beside_twin: Cli) -> None:
    """Memory may be a share of the machine's, too."""
    text = cli_beside_twin.workload.read_text()
    for name, right, wrong in (
        ("disk", ("0", "1GB"), ("1XB", "-1", "many", "1.5.2GB", "9" * 400 + "TB", "25%")),
        ("memory", ("2GB", "25%", "100 %", "1"), ("0", "0%", "101%", "-5%", "1XB", "25%%")),
    ):
        for given in right:
            cli_beside_twin.workload.write_text(f"{text}budget: {{{name}: '{given}'}}\n")
            load_workload(cli_beside_twin.workload, {})
        for given in wrong:
            cli_beside_twin.workload.write_text(f"{text}budget: {{{name}: '{given}'}}\n")
            with pytest.raises(WorkloadError) as caught:
                load_workload(cli_beside_twin.workload, {})
            (problem,) = caught.value.problems
            assert f"`budget.{name}` must be a size" in problem.message
            assert problem.location is not None
            assert problem.location.line == text.count("\n") + 1
    cli_beside_twin.workload.write_text(text)
    assert cli_beside_twin("maintain", "--disk", "many").code == 2


def test_the_run_comes_before_the_file(cli_beside_twin: Cli) -> None:
    text = cli_beside_twin.workload.read_text()
    plain = load_workload(cli_beside_twin.workload, {})
    assert memory_of(Settings(cli_beside_twin.workload), plain) is None
    cli_beside_twin.workload.write_text(text + "budget: {memory: 25%}\n")
    said = load_workload(cli_beside_twin.workload, {})
    assert memory_of(Settings(cli_beside_twin.workload, memory=7), said) == 7
    whole = machine_memory()
    assert whole is not None
    assert memory_of(Settings(cli_beside_twin.workload), said) == whole // 4


def test_what_fits_takes_no_more_than_there_is() -> None:
    assert largest_side(None) is None
    for memory in (0, 1, 49_999_999, 50_000_000):
        assert largest_side(memory) == 0
    for memory in (50_000_004, 10**9, 10**12):
        result = largest_side(memory)
        assert result is not None
        assert memory - 4 <= 50_000_000 + 4 * result <= memory


def kept_after(
    monkeypatch: pytest.MonkeyPatch, over: int, sizes: dict[str, int], order: str
) -> list[str]:
    """The queries whose states are kept after these steps, the last of which is over by so much."""
    monkeypatch.setattr(kept_states, "_forms", lambda *_: ())
    held = [500] * (len(order) - 1) + [500 + over]
    kept = StateCache(memory=500, held=lambda: held.pop(0))
    for name in order:
        state = SimpleNamespace(state_bytes=partial(sizes.get, name))
        taken: Any = SimpleNamespace(stored=SimpleNamespace(query=name, pins=()), state=state)
        ctx: Any = SimpleNamespace(tables=None)
        kept.keep(ctx, taken)
    return sorted(kept._kept)


def test_states_that_take_most_for_their_uses_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"a": 100, "b": 60, "c": 10}
    # Used once each, the largest goes; used twice as often as its neighbour, that one does.
    assert kept_after(monkeypatch, 0, sizes, "abc") == ["a", "b", "c"]
    assert kept_after(monkeypatch, 1, sizes, "abc") == ["b", "c"]
    assert kept_after(monkeypatch, 1, sizes, "abac") == ["a", "c"]
    assert kept_after(monkeypatch, 100, sizes, "abc") == ["b", "c"]
    assert kept_after(monkeypatch, 101, sizes, "abc") == ["c"]
    assert kept_after(monkeypatch, 10**9, sizes, "abc") == []
    assert kept_after(monkeypatch, -1, sizes, "abc") == ["a", "b", "c"]


def test_without_a_bound_nothing_is_measured() -> None:
    kept = StateCache(held=Mock(side_effect=AssertionError("asked for what the process holds")))
    kept._drop_to_memory()


def test_a_process_that_follows_has_the_bound_of_its_run(
    cli_beside_twin: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Exception):
        """What the states are bounded by."""

    def states(*, memory: int | None) -> StateCache:
        raise Told(memory)

    monkeypatch.setattr(follow_case, "StateCache", states)
    nothing: Any = None
    for settings, memory in (
        (Settings(cli_beside_twin.workload, memory=7), 7),
        (Settings(cli_beside_twin.workload), None),
    ):
        with pytest.raises(Told) as told:
            follow_case.follow(
                settings,
                None,
                FollowRequest(),
                batch_rows=None,
                reporter=SilentReporter(),
                stop=nothing,
                show=nothing,
            )
        assert told.value.args == (memory,)


REBUILT = {"padded", "groups", "merged", "left"}
"""Queries in which no key narrows a piece that can be left out."""


@pytest.fixture
def cli_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    asked = [(name, sql, "auto") for name, sql in OTHERS.items()]
    pinned = [(f"{name}_kept", sql, "index") for name, sql in OTHERS.items()]
    return Cli(capsys, write_workload(tmp_path, [*asked, *pinned]))


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
def test_sketches_stay_those_of_all_state_kept(
    cli_of_others: Cli, tmp_path: Path, turns: int, each: int
) -> None:
    cli_of_others.good("capture", "--disk", "1GB")
    assert all(result == {"kept"} for result in modes(cli_of_others).values())
    free = cli_of_others.workload.read_text()
    least = free.replace("join: auto}", "join: auto, state: least}")
    assert least != free
    rng = random.Random(5)
    for turn in range(turns):
        cli_of_others.workload.write_text(
            least if turn % 2 == 0 else free.replace("auto}", "auto, state: keep}")
        )
        changed(cli_of_others, tmp_path, rng, each * turn, "--disk", "1GB")
        result = modes(cli_of_others)
        if turn % 2 == 0:
            assert {name for name, each in result.items() if "rebuilt" in each} == REBUILT
            assert all(each & {"read", "rebuilt"} for each in result.values()), result
        else:
            assert all(each == {"kept"} for each in result.values()), result
        for more in range(1, each):
            changed(cli_of_others, tmp_path, rng, 2 * turn + more, "--disk", "1GB")


@pytest.mark.slow
def test_a_plan_tells_what_is_rebuilt(cli_of_others: Cli, tmp_path: Path) -> None:
    asked = [f"--query={name}" for name in ("merged", "groups", "own")]
    cli_of_others.good("capture", "--disk", "0", *asked)
    change(tmp_path, random.Random(3), 1)
    plans = cli_of_others.good("plan", "--disk", "0", *asked).results
    pieces = [piece for one in plans for piece in one["state"]]
    assert {"read", "rebuilt"} <= {piece["mode"] for piece in pieces}
    reasons = [piece["reason"] for piece in pieces if piece["mode"] == "rebuilt"]
    assert any("because it is rebuilt" in reason for reason in reasons), reasons
