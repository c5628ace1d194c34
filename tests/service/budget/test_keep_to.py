"""Under a budget, join sides switch between stored and read without changing any sketch."""

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
    """The join sides and groupings that are read from the tables."""
    return stored(folder, name).state_meta.get("from_files", [])


def stored_pieces(folder: Path, name: str) -> set[str]:
    """The pieces of state with rows in the store."""
    with Store.open(folder / ".impctl", create=False) as store:
        return {run.arrangement for run in store.run_refs(name)}


def ranges(folder: Path, name: str) -> dict[str, set[int]]:
    return fragments_by_access(stored(folder, name))


def assert_alike(folder: Path, names: Iterable[str], twin_name: str = "{}_kept") -> None:
    """Each query has the same sketches at the same versions as its twin with stored state."""
    for name in names:
        sketch, twin = stored(folder, name), stored(folder, twin_name.format(name))
        assert sketch.versions == twin.versions
        assert fragments_by_access(sketch) == fragments_by_access(twin), name
        assert sketch.state_meta.get("unsure") == twin.state_meta.get("unsure")


def describe(folder: Path, name: str, **changes: Any) -> None:
    before = stored(folder, name)
    record = run_record("exact", versions=before.versions)
    meta = {**before.state_meta, **changes}
    commit = MaintainCommit(name, before.generation, before.pins, record, state_meta=meta)
    with Store.open(folder / ".impctl") as store, store.lock(10, "a test"):
        store.commit_maintain(commit)


FEW = ("l", "s", "two")
NAMES = (*FEW, "self", "computed")


def write_pairs(folder: Path, names: Iterable[str], queries: Mapping[str, str] = QUERIES) -> Path:
    automatic = [(name, queries[name], "auto") for name in names]
    pinned = [(f"{name}_kept", queries[name], "index") for name in names]
    return write_workload(folder, [*automatic, *pinned])


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    return cli_once(f"{len(FEW)} pairs", lambda to: write_pairs(to, FEW), Cli.captured)


def state_bytes(folder: Path, names: tuple[str, ...]) -> int:
    with Store.open(folder / ".impctl", create=False) as store:
        return sum(run.bytes for name in names for run in store.run_refs(name))


@pytest.mark.parametrize("names", [FEW, pytest.param(NAMES, marks=pytest.mark.slow)])
def test_reading_and_keeping_state_changes_no_sketch(
    cli_once: CliOnce, names: tuple[str, ...]
) -> None:
    cli = cli_once(f"{len(names)} pairs", lambda to: write_pairs(to, names), Cli.captured)
    folder = cli.folder
    full_size = state_bytes(folder, names)
    rng = random.Random(7)
    change(folder, rng, 0)
    (warning,) = [
        text for text in cli.warnings("maintain", "--disk", "0") if "more than its budget" in text
    ]
    assert warning.endswith("[budget_exceeded]")
    for name in names:
        read = read_pieces(folder, name)
        assert read
        assert not read_pieces(folder, f"{name}_kept")
        # Their rows are removed from the store, not only from its metadata.
        assert not set(read) & stored_pieces(folder, name)
    assert_alike(folder, names)
    change(folder, rng, 1)
    assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
    assert_alike(folder, names)
    # Without a budget the choice stays; under a large one a capture stores everything again.
    assert all(read_pieces(folder, name) for name in names)
    cli.good("capture", "--disk", "1GB")
    assert state_bytes(folder, names) > full_size // 2
    change(folder, rng, 4)
    cli.good("maintain", "--disk", "1GB")
    assert_alike(folder, names)


def append_line(cli: Cli, text: str) -> None:
    cli.workload.write_text(cli.workload.read_text() + text + "\n")


@pytest.mark.slow
def test_flag_overrides_the_budget_in_the_file(
    tmp_path: Path, capsys: Capsys, monkeypatch: MonkeyPatch
) -> None:
    """Also from the first capture on, and for queries that are some versions behind."""
    # The change rates measured here depend on the machine's speed.
    monkeypatch.setattr(choice, "is_worth", lambda *_, **__: True)
    cli = Cli(capsys, write_pairs(tmp_path, FEW))
    append_line(cli, "budget: {disk: 0}")
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


def test_conversions_are_recorded_but_are_not_maintenance(captured: Cli) -> None:
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
def test_plan_reports_state_modes_and_reasons(captured: Cli) -> None:
    def planned(query: str, *flags: str) -> list[dict[str, Any]]:
        return captured.one("plan", "--query", query, *flags)["state"]

    assert planned("two") == []
    least = planned("two", "--disk", "0")
    pieces = {piece["name"]: (piece["mode"], piece["now"]) for piece in least}
    assert pieces == dict.fromkeys(("join0.left", "join0.right", "aggregate0"), ("read", "kept"))
    for piece in least:
        assert piece["bytes"] < piece["kept_bytes"]
        assert piece["reason"]
    pinned = planned("two_kept", "--disk", "0")
    assert {(piece["mode"], piece["now"]) for piece in pinned} == {("kept", "kept")}
    assert not read_pieces(captured.folder, "two")


KEPT_SIDES = {("index", "small enough to keep")}


def explained(cli: Cli, name: str = "two") -> dict[str, tuple[str, str]]:
    """The strategy and reason of each join side of the query."""
    entry = cli.one("explain", "--query", name)
    return {side["side"]: (side["strategy"], side["reason"]) for side in entry["joins"]}


@pytest.mark.slow
def test_explain_reports_sides_and_reasons(captured: Cli) -> None:
    """It reports the stored strategy, not what a capture without a budget would choose."""
    assert set(explained(captured).values()) == KEPT_SIDES
    change(captured.folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "two")
    by_side = explained(captured)
    assert {strategy for strategy, _ in by_side.values()} == {"files"}
    (tree,) = captured.one("explain", "--query", "two")["trees"]
    assert tree["reason"].startswith("possible, not chosen: a changed row joins")
    history = captured.one("status", "--query", "two")["runs"][0]["reason"]
    for side, (_, reason) in by_side.items():
        assert f"{side}: {reason}" in history
    change(captured.folder, random.Random(2), 1)
    captured.good("maintain", "--query", "two")
    assert explained(captured) == by_side
    text = captured.workload.read_text()
    append_line(captured, "budget: {disk: 0}")
    captured.good("capture", "--query", "two")
    recaptured = explained(captured)
    assert recaptured.keys() == by_side.keys()
    assert "as captured" not in {reason for _, reason in recaptured.values()}
    captured.workload.write_text(text)
    captured.good("capture", "--query", "two")
    assert set(explained(captured).values()) == KEPT_SIDES


GONE, NO_LOG = HistoryGoneError("gone"), StorageError("no log")


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        pytest.param(
            *((session, "transfer_state"), GONE, "does not change: gone"), id="a conversion"
        ),
        pytest.param(
            *((choice, "choose_state"), NO_LOG, "whatever its budget: no log"), id="a choice"
        ),
    ],
)
def test_failure_changes_no_query(
    captured: Cli, monkeypatch: MonkeyPatch, part: Any, error: Exception, message: str
) -> None:
    folder = captured.folder
    before = state_bytes(folder, FEW)
    monkeypatch.setattr(*part, Mock(side_effect=error))
    change(folder, random.Random(1), 0)
    assert any(message in warning for warning in captured.warnings("maintain", "--disk", "0"))
    assert not any(read_pieces(folder, name) for name in FEW)
    assert state_bytes(folder, FEW) >= before // 2
    assert_alike(folder, FEW)


def with_query_over(cli: Cli, table: str, sql: str) -> None:
    """Capture one more query over one more table."""
    cli.edit("tables: {", f"tables: {{{table}: {{path: {table}}}, ")
    cli.edit("queries:\n", f'queries:\n  other: {{sql: "{sql}"}}\n')
    cli.good("capture", "--query", "other")


def test_unopenable_query_does_not_fail_other_queries(captured: Cli) -> None:
    """Its table is missing: its state counts, and the budget applies to the other queries."""
    folder = captured.folder
    create_table(str(folder / "far"), pa.table({"k": [1, 1, 2]}))
    sql = "SELECT k, COUNT(*) AS n FROM far GROUP BY k HAVING COUNT(*) > 1"
    with_query_over(captured, "far", sql)
    size = state_bytes(folder, ("other",))
    (folder / "far").rename(folder / "away")
    change(folder, random.Random(1), 0)
    ran = captured.good("maintain", "--disk", "0", "--query", "two", "--query", "two_kept")
    assert any(
        "`other` does not change: Table `far`" in warning for warning in ran.document["warnings"]
    )
    assert {result["action"] for result in ran.results} == {"exact"}
    assert read_pieces(folder, "two")
    assert state_bytes(folder, ("other",)) == size > 0


@pytest.mark.slow
def test_unreadable_query_does_not_stop_captures_of_others(captured: Cli) -> None:
    folder, path = captured.folder, captured.path("v")
    rows = captured.table("u").to_pyarrow_table()
    create_table(path, rows)
    with_query_over(captured, "v", "SELECT t.x FROM t JOIN v ON t.l = v.l")
    write_deltalake(path, rows.drop_columns(["l"]), mode="overwrite", schema_mode="overwrite")
    change(folder, random.Random(1), 0)
    captured.good("capture", "--disk", "0", "--query", "two")
    assert read_pieces(folder, "two")


@pytest.mark.parametrize("size", [0, 7, 999, 1_001, 708_400, 999_501, 1_000_000, 12_345_678_901])
def test_suggested_size_is_enough(size: int) -> None:
    text = enough_text(size)
    assert size <= size_from(text) <= size * 1.01


def test_capture_repairs_damaged_metadata(captured: Cli) -> None:
    folder = captured.folder
    describe(folder, "l", from_files=7)
    captured.good("capture", "--query", "l", "--disk", "0")
    assert read_pieces(folder, "l")


@pytest.mark.slow
def test_distant_sides_stay_distant(captured: Cli) -> None:
    folder = captured.folder
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "l", "--query", "s")
    sides = read_pieces(folder, "l")
    assert sides
    # For both kinds of side only a filter is stored.
    describe(folder, "l", from_files=[], distant=sides)
    change(folder, random.Random(1), 1)
    captured.good("maintain", "--disk", "0", "--query", "s")
    after = stored(folder, "l").state_meta
    assert (after["distant"], after.get("from_files", [])) == (sides, [])


def write_pinned(folder: Path) -> Path:
    settings = {"kept": "auto, state: keep", "least": "auto, state: least", "free": "auto"}
    settings["twin"] = "index"
    return write_workload(
        folder, [(name, QUERIES["two"], setting) for name, setting in settings.items()]
    )


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_pinned(tmp_path))


@pytest.fixture
def captured_pins(cli_once: CliOnce) -> Cli:
    return cli_once("pinned", write_pinned, Cli.captured)


def read_counts(folder: Path, *names: str) -> tuple[int, ...]:
    """How many of its two sides and one grouping each query reads."""
    return tuple(len(read_pieces(folder, name)) for name in names)


@pytest.mark.slow
def test_state_setting_applies_with_and_without_a_budget(captured_pins: Cli) -> None:
    folder = captured_pins.folder
    assert read_counts(folder, "kept", "least") == (0, 3)
    rng = random.Random(1)
    for step, (flags, free_count) in enumerate(
        (([], 0), (["--disk", "0"], 3), (["--disk", "1GB"], 0))
    ):
        change(folder, rng, step)
        ran = captured_pins.good("maintain", *flags)
        assert {result["action"] for result in ran.results} == {"exact"}
        assert read_counts(folder, "kept", "least") == (0, 3)
        if flags != ["--disk", "1GB"]:
            assert read_counts(folder, "free") == (free_count,)
        assert_alike(folder, ("kept", "least", "free"), "twin")


def test_capture_builds_the_requested_state(cli: Cli) -> None:
    cli.good("capture", "--disk", "0", "--query", "kept", "--query", "least")
    assert read_counts(cli.folder, "kept", "least") == (0, 3)
    for name in ("kept", "least"):
        runs = [run["action"] for run in cli.one("status", "--query", name)["runs"]]
        assert runs == ["capture"], "and not converted after it"


@pytest.mark.slow
def test_changed_state_setting_applies_at_the_next_budgeted_run(captured_pins: Cli) -> None:
    """Without a budget the change waits for a capture."""
    folder = captured_pins.folder
    captured_pins.edit("state: least", "state: keep")
    captured_pins.good("maintain")
    assert read_counts(folder, "least") == (3,)
    ran = captured_pins.good("maintain", "--disk", "1GB")
    assert {result["action"] for result in ran.results} == {"none"}, "no capture is needed"
    assert read_counts(folder, "least") == (0,)
    captured_pins.edit("state: keep", "state: least")
    captured_pins.good("maintain", "--disk", "1GB")
    assert read_counts(folder, "kept", "least") == (3, 3)
    change(folder, random.Random(1), 1)
    captured_pins.good("maintain")
    assert_alike(folder, ("kept", "least", "free"), "twin")
    captured_pins.edit("state: least", "state: keep")
    captured_pins.good("capture", "--query", "least")
    assert read_counts(folder, "least") == (0,)


RARE = "{path: PATH, changes: {every: 10d, rows: 10, deletes: 50%}}"


@pytest.mark.slow
def test_bound_impossible_within_the_budget_is_reported(cli: Cli) -> None:
    cli.edit("t: {path: t}", "t: " + RARE.replace("PATH", "t").replace("10d", "1h"))
    cli.edit("join: auto}", "join: auto, trigger: {fresh_within: 2ms}}")
    (warning,) = [
        text for text in cli.warnings("capture", "--disk", "0") if f"[{BOUND_IMPOSSIBLE}]" in text
    ]
    assert warning in cli.warnings("plan", "--disk", "0")
    assert warning.startswith("query `free` may miss fresh_within 2ms: when ")
    assert "of state for all queries it would take" in warning
    # Changes are too rare for stored state to pay off, but the bound requires it.
    cli.edit("every: 1h", "every: 10d")
    cli.edit("u: {path: u}", "u: " + RARE.replace("PATH", "u"))
    assert not any(BOUND_IMPOSSIBLE in line for line in cli.warnings("maintain", "--disk", "1GB"))
    assert read_counts(cli.folder, "free") == (0,)


@pytest.mark.slow
def test_unprofitable_conversion_is_not_made(cli: Cli) -> None:
    for name in ("t", "u"):
        cli.edit(f"{name}: {{path: {name}}}", f"{name}: " + RARE.replace("PATH", name))
    cli.good("capture", "--disk", "0", "--query", "free")
    cli.good("maintain", "--disk", "1GB", "--query", "free")
    assert read_counts(cli.folder, "free") == (3,)


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


def force_reading(monkeypatch: MonkeyPatch, *sides: str) -> None:
    """Make the choice read these sides of `q` and store everything else."""
    target = {"q": StateTarget(sides)}
    monkeypatch.setattr(WeighedState, "wanted", lambda _, name: target.get(name, StateTarget()))


@pytest.fixture
def kept_again(monkeypatch: MonkeyPatch, cli_once: CliOnce) -> Cli:
    """A query whose sides were read and then stored again, and a twin whose sides stayed stored."""
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-20")

    def write(folder: Path) -> None:
        settings = {"sql": SQL, "sketch": {"t": "g"}, "policy": "incremental"}
        queries = {"q": {**settings, "join": "auto"}, "twin": {**settings, "join": "index"}}
        workload = {"partitions": {"t": {"g": {"boundaries": [2, 3, 4, 5]}}}, "queries": queries}
        write_files(folder, workload, t=left_rows(), u=right_rows())

    def read_and_keep(cli: Cli) -> None:
        cli.good("capture")
        for sides in (SIDES, ()):
            force_reading(monkeypatch, *sides)
            grow(cli.folder)
            cli.good("maintain", "--disk", "0")
            assert tuple(read_pieces(cli.folder, "q")) == sides

    cli = cli_once("kept again", write, read_and_keep)
    force_reading(monkeypatch)
    return cli


def side_rows(folder: Path, name: str) -> dict[str, int]:
    """The number of stored rows per join side, counted by weight."""
    with Store.open(folder / ".impctl", create=False) as store:
        runs = store.load_runs(name)
        weights = {s: [table_of(run)[0].column("weight") for _, run in runs[s]] for s in SIDES}
    return {
        side: sum(pc.sum(column).as_py() for column in columns) for side, columns in weights.items()
    }


def test_rows_that_can_never_join_are_not_stored(kept_again: Cli) -> None:
    folder = kept_again.folder
    assert (
        side_rows(folder, "q") == side_rows(folder, "twin") == {"join0.left": 9, "join0.right": 9}
    )


@pytest.mark.slow
def test_time_moves_restored_rows(kept_again: Cli, monkeypatch: MonkeyPatch) -> None:
    folder = kept_again.folder
    for day in ("2026-01-25", "2026-02-05", "2026-02-15"):
        monkeypatch.setenv("IMPCTL_NOW", day)
        for result in kept_again.good("maintain").results:
            assert result["action"] == "exact", result
        assert ranges(folder, "q") == ranges(folder, "twin"), day


@pytest.mark.slow
def test_time_dependent_sides_stay_stored(
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
def test_replaced_table_is_not_read(
    kept_again: Cli, monkeypatch: MonkeyPatch, sides: tuple[str, ...]
) -> None:
    """A backup replaces the table for a while; none of its rows end up in any state."""
    folder = kept_again.folder
    document = json.loads(kept_again.workload.read_text())
    document["tables"]["v"] = {"path": "v"}
    sql = "SELECT t.g FROM t JOIN v ON t.k = v.k"
    document["queries"]["apart"] = {"sql": sql, "sketch": {"t": "g"}}
    kept_again.workload.write_text(json.dumps(document))
    create_table(str(folder / "v"), right_rows())
    kept_again.good("capture", "--query", "apart")
    force_reading(monkeypatch, *SIDES)
    grow(folder)
    kept_again.good("maintain", "--disk", "0")
    other = right_rows().set_column(0, "k", pa.array([2, 2, 2, 2, 2], pa.int64()))
    (folder / "u").rename(folder / "aside")
    create_table(str(folder / "u"), other)
    for table in ("u", "u", "u", "v"):
        kept_again.append(table, other)
    force_reading(monkeypatch, *sides)
    kept_again.good("maintain", "--disk", "0", "--query", "apart")
    shutil.rmtree(folder / "u")
    (folder / "aside").rename(folder / "u")
    assert read_pieces(folder, "q") == list(SIDES)
    grow(folder)
    kept_again.good("maintain")
    assert ranges(folder, "q") == ranges(folder, "twin")
    force_reading(monkeypatch)
    grow(folder)
    kept_again.good("maintain", "--disk", "0")
    assert side_rows(folder, "q") == side_rows(folder, "twin")


GROUPED = (
    "SELECT t.g, COUNT(*) n FROM t JOIN u ON t.k = u.k GROUP BY t.g HAVING MAX(t.d) < current_date"
)


def grouped_rows(first: int) -> pa.Table:
    days = [dt.date(2026, 1, first + offset) for offset in range(8)]
    groups = pa.array([1, 2, 3, 4, None, 1, 2, 3], pa.int64())
    return pa.table({"g": groups, "k": pa.array([0, 1, 2, None] * 2, pa.int64()), "d": days})


@pytest.mark.slow
def test_read_sides_keep_groups(tmp_path: Path, cli_of: CliOf, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-05")
    settings = {"sql": GROUPED, "sketch": {"t": "g"}, "policy": "strict"}
    queries = {"q": {**settings, "join": "files"}, "twin": {**settings, "join": "index"}}
    workload = {"partitions": {"t": {"g": {"boundaries": [2, 3, 4]}}}, "queries": queries}
    u = pa.table({"k": pa.array([0, 1, None], pa.int64())})
    cli = cli_of(workload, t=grouped_rows(1), u=u).captured("--disk", "0")
    sketches = set()
    for day, first in ((8, 3), (12, 12), (6, 1), (25, 2)):
        monkeypatch.setenv("IMPCTL_NOW", f"2026-01-{day:02}")
        cli.append("t", grouped_rows(first))
        ran = cli.good("maintain", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"exact"}
        assert read_pieces(tmp_path, "q") == list(SIDES)
        assert_alike(tmp_path, "q", "twin")
        sketches.add(str(ranges(tmp_path, "q")))
    assert len(sketches) > 1, "the clock moved something"


@pytest.fixture
def twins(tmp_path: Path, capsys: Capsys) -> Cli:
    queries = [(name, QUERIES["two"], join) for name, join in (("two", "auto"), ("twin", "index"))]
    return Cli(capsys, write_workload(tmp_path, queries))


def test_side_too_large_is_read(twins: Cli) -> None:
    text = twins.workload.read_text()
    append_line(twins, "budget: {memory: 50MB, disk: 1GB}")
    twins.good("capture")
    # A pinned side is stored anyway; no budget choice builds the other one.
    assert read_counts(twins.folder, "two", "twin") == (2, 0)
    reasons = stored(twins.folder, "two").state_meta["side_reasons"]
    side_reasons = {reasons[side] for side in read_pieces(twins.folder, "two")}
    assert side_reasons == {"building it may need more memory than is available"}
    rng = random.Random(1)
    for step in range(2):
        change(twins.folder, rng, step)
        twins.good("maintain")
        assert ranges(twins.folder, "two") == ranges(twins.folder, "twin")
    assert read_counts(twins.folder, "two") == (2,)
    # A flag overrides the file.
    twins.workload.write_text(text + "budget: {memory: 50MB}\n")
    twins.good("capture", "--memory", "1GB")
    assert read_counts(twins.folder, "two") == (0,)


def test_invalid_size_is_refused_with_line(twins: Cli) -> None:
    """Memory may also be a percentage of the machine's."""
    text = twins.workload.read_text()
    for name, valid, invalid in (
        ("disk", ("0", "1GB"), ("1XB", "-1", "many", "1.5.2GB", "9" * 400 + "TB", "25%")),
        ("memory", ("2GB", "25%", "100 %", "1"), ("0", "0%", "101%", "-5%", "1XB", "25%%")),
    ):
        for size in (*valid, *invalid):
            twins.workload.write_text(f"{text}budget: {{{name}: '{size}'}}\n")
            if size in valid:
                load_workload(twins.workload, {})
                continue
            with pytest.raises(WorkloadError) as caught:
                load_workload(twins.workload, {})
            (problem,) = caught.value.problems
            assert f"`budget.{name}` must be a size" in problem.message
            assert problem.location.line == text.count("\n") + 1
    twins.workload.write_text(text)
    assert twins("maintain", "--disk", "many").code == 2


def test_run_setting_overrides_file(twins: Cli) -> None:
    file = twins.workload
    assert memory_of(Settings(file), load_workload(file, {})) is None
    append_line(twins, "budget: {memory: 25%}")
    loaded = load_workload(file, {})
    assert memory_of(Settings(file, memory=7), loaded) == 7
    assert memory_of(Settings(file), loaded) == machine_memory() // 4


def test_largest_side_fits_into_memory() -> None:
    assert largest_side(None) is None
    for memory in (0, 1, 49_999_999, 50_000_000):
        assert largest_side(memory) == 0
    for memory in (50_000_004, 10**9, 10**12):
        assert memory - 4 <= 50_000_000 + 4 * largest_side(memory) <= memory


def kept_after(
    monkeypatch: MonkeyPatch, excess: int, sizes: dict[str, int], order: str
) -> list[str]:
    """The queries cached after these uses, the last of which exceeds memory by `excess`."""
    monkeypatch.setattr(state_cache, "_forms", lambda *_: ())
    memory_sizes = [500] * (len(order) - 1) + [500 + excess]
    cache = StateCache(memory=500, held=lambda: memory_sizes.pop(0))
    for name in order:
        state = SimpleNamespace(state_bytes=partial(sizes.get, name))
        entry: Any = SimpleNamespace(stored=SimpleNamespace(query=name, pins=()), maintained=state)
        ctx: Any = SimpleNamespace(tables=None)
        cache.keep(ctx, entry)
    return sorted(cache._states)


def test_largest_states_per_use_are_dropped(monkeypatch: MonkeyPatch) -> None:
    sizes = {"a": 100, "b": 60, "c": 10}
    # With one use each, the largest is dropped; more uses protect a state.
    for excess, order, expected in (
        *((0, "abc", "abc"), (1, "abc", "bc"), (1, "abac", "ac"), (100, "abc", "bc")),
        *((101, "abc", "c"), (10**9, "abc", ""), (-1, "abc", "abc")),
    ):
        assert kept_after(monkeypatch, excess, sizes, order) == list(expected), (excess, order)


def test_no_limit_measures_nothing() -> None:
    cache = StateCache(held=Mock(side_effect=AssertionError("asked for what the process holds")))
    cache._drop_to_memory()


def test_follow_uses_the_memory_limit(twins: Cli, monkeypatch: MonkeyPatch) -> None:
    class MemoryPassed(Exception):
        """Raised with the memory limit that the cache gets."""

    def record_memory(*, memory: int | None) -> StateCache:
        raise MemoryPassed(memory)

    monkeypatch.setattr(follow_case, "StateCache", record_memory)
    unused: Any = {"batch_rows": None, "reporter": SilentReporter(), "stop": None, "show": None}
    for memory in (7, None):
        settings = Settings(twins.workload, memory=memory)
        with pytest.raises(MemoryPassed) as caught:
            follow_case.follow(settings, None, FollowRequest(), **unused)
        assert caught.value.args == (memory,)


REBUILT = {"padded", "groups", "merged", "left"}
"""Queries with a removable piece that no key narrows."""


@pytest.fixture
def others(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_pairs(tmp_path, OTHERS, OTHERS))


def maintain_change(cli: Cli, folder: Path, rng: random.Random, step: int, *flags: str) -> None:
    change(folder, rng, step)
    assert {result["action"] for result in cli.good("maintain", *flags).results} == {"exact"}
    assert_alike(folder, OTHERS)


def modes(cli: Cli) -> dict[str, set[str]]:
    entries = cli.good("explain", *(f"--query={name}" for name in OTHERS)).results
    return {
        entry["query"]: {piece["mode"] for piece in (*entry["joins"], *entry["groups"])}
        for entry in entries
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "each"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_sketches_equal_those_of_kept_state(others: Cli, turns: int, each: int) -> None:
    others.good("capture", "--disk", "1GB")
    assert all(query_modes == {"kept"} for query_modes in modes(others).values())
    unpinned = others.workload.read_text()
    texts = [
        unpinned.replace("auto}", f"auto, state: {setting}}}") for setting in ("least", "keep")
    ]
    assert unpinned not in texts
    rng = random.Random(5)
    for turn in range(turns):
        others.workload.write_text(texts[turn % 2])
        maintain_change(others, others.folder, rng, each * turn, "--disk", "1GB")
        query_modes = modes(others)
        if turn % 2 == 0:
            assert {name for name, each in query_modes.items() if "rebuilt" in each} == REBUILT
            assert all(each & {"read", "rebuilt"} for each in query_modes.values()), query_modes
        else:
            assert all(each == {"kept"} for each in query_modes.values()), query_modes
        for extra in range(1, each):
            maintain_change(others, others.folder, rng, 2 * turn + extra, "--disk", "1GB")


@pytest.mark.slow
def test_plan_reports_rebuilds(others: Cli) -> None:
    queries = [f"--query={name}" for name in ("merged", "groups", "own")]
    others.good("capture", "--disk", "0", *queries)
    change(others.folder, random.Random(3), 1)
    plans = others.good("plan", "--disk", "0", *queries).results
    pieces = [piece for plan in plans for piece in plan["state"]]
    assert {"read", "rebuilt"} <= {piece["mode"] for piece in pieces}
    reasons = [piece["reason"] for piece in pieces if piece["mode"] == "rebuilt"]
    assert any("because it is rebuilt" in reason for reason in reasons), reasons
