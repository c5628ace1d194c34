"""Under a budget sides of joins are read, kept again, and read: sketches stay those of all kept;
`state: keep` and `state: least` hold whatever the budget, and cost a query no capture."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.compile import session
from impctl.errors import HistoryGoneError, StorageError
from impctl.service.budget import choice
from impctl.service.budget.bounds import BOUND_IMPOSSIBLE, enough_text
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from impctl.workload.scalars import size_from
from tests.app.maintaining.keeping.stored_pieces import (
    assert_alike,
    describe,
    read_pieces,
    stored_pieces,
)
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.support.kept_workload import stored
from tests.support.made_once import CliOnce
from tests.support.run_cli import Cli

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
        ((session, "hand_over"), HistoryGoneError("gone"), "does not change: gone"),
        ((choice, "kept_within"), StorageError("no log"), "whatever its budget: no log"),
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
