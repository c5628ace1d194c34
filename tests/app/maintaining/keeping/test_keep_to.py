"""Under a budget sides of joins are read, kept again, and read: sketches stay those of all kept."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.maintaining.keeping import conversion, keep_to
from impctl.app.maintaining.keeping.enough import enough_text
from impctl.app.workbench.sessions import OwnSession
from impctl.errors import HistoryGoneError, StorageError
from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from impctl.tables.write.create import create_table
from impctl.workload.scalars import size_from
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.support.kept_workload import stored
from tests.support.made_once import MadeOnce
from tests.support.run_cli import Cli
from tests.support.run_records import run_record

NAMES = ("l", "s", "two", "self", "computed")


def write_pairs(folder: Path) -> Path:
    asked = [(name, QUERIES[name], "auto") for name in NAMES]
    pinned = [(f"{name}_kept", QUERIES[name], "index") for name in NAMES]
    return write_workload(folder, [*asked, *pinned])


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Each query with a twin whose state is kept."""
    return Cli(capsys, write_pairs(tmp_path))


@pytest.fixture
def captured(capsys: pytest.CaptureFixture[str], made_once: MadeOnce) -> Cli:
    """The same, captured without a budget."""
    made = made_once.folder("pairs", lambda to: Cli(capsys, write_pairs(to)).good("capture"))
    return Cli(capsys, made / "w.yaml")


def fragments(folder: Path, name: str) -> dict[str, set[int]]:
    return {one.access: set(one.fragments.ids) for one in stored(folder, name).sketches}


def read_sides(folder: Path, name: str) -> list[str]:
    found = stored(folder, name).state_meta.get("from_files", [])
    assert isinstance(found, list)
    return found


def assert_alike(folder: Path) -> None:
    for name in NAMES:
        assert stored(folder, name).versions == stored(folder, f"{name}_kept").versions
        assert fragments(folder, name) == fragments(folder, f"{name}_kept"), name


def state_bytes(folder: Path, names: tuple[str, ...] = NAMES) -> int:
    with Store.open(folder / ".impctl", create=False) as held:
        return sum(run.bytes for name in names for run in held.run_refs(name))


def stored_pieces(folder: Path, name: str) -> set[str]:
    with Store.open(folder / ".impctl", create=False) as held:
        return {run.arrangement for run in held.run_refs(name)}


def test_state_goes_and_comes_back_and_no_sketch_notices(captured: Cli) -> None:
    folder = captured.workload.parent
    whole = state_bytes(folder)
    rng = random.Random(7)
    change(folder, rng, 0)
    least = captured.good("maintain", "--disk", "0")
    assert all(read_sides(folder, name) for name in NAMES)
    assert not any(read_sides(folder, f"{name}_kept") for name in NAMES)
    (said,) = [one for one in least.document["warnings"] if "more than its budget" in one]
    assert said.endswith("[budget_exceeded]")
    for name in NAMES:
        # Their rows are gone from the store, not only from its description.
        assert not set(read_sides(folder, name)) & stored_pieces(folder, name)
    assert_alike(folder)
    for turn in (1, 2):
        change(folder, rng, turn)
        for result in captured.good("maintain").results:
            assert result["action"] == "exact", result
        assert_alike(folder)
    # Without a budget what was chosen stays; with one that has room, captures keep all again.
    assert all(read_sides(folder, name) for name in NAMES)
    captured.good("capture", "--disk", "1GB")
    assert state_bytes(folder) > whole // 2
    change(folder, rng, 4)
    captured.good("maintain", "--disk", "1GB")
    assert_alike(folder)


def test_sides_of_a_query_that_is_behind_are_read_at_its_versions(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another query's capture looks at the budget while this one is versions behind."""
    # How often tables change here goes by how quick the machine is.
    monkeypatch.setattr(keep_to, "is_worth", lambda *_, **__: True)
    cli.good("capture", "--disk", "0")
    assert all(read_sides(tmp_path, name) for name in NAMES)
    rng = random.Random(11)
    for turn in range(3):
        change(tmp_path, rng, turn)
    behind = stored(tmp_path, "two").versions
    cli.good("capture", "--query", "l", "--disk", "1GB")
    assert stored(tmp_path, "two").versions == behind
    assert len(read_sides(tmp_path, "two")) < 2
    for result in cli.good("maintain").results:
        assert result["action"] in ("exact", "none"), result
    assert_alike(tmp_path)


def test_what_the_budget_did_is_told_in_history(captured: Cli) -> None:
    folder = captured.workload.parent
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "two")
    (entry,) = captured.good("status", "--query", "two").results
    latest = entry["runs"][0]
    assert latest["action"] == "convert"
    assert latest["reason_code"] == conversion.CONVERTED
    assert "join0" in latest["reason"]


def test_a_plan_tells_what_would_be_kept_and_why(captured: Cli) -> None:
    folder = captured.workload.parent
    (free,) = captured.good("plan", "--query", "two").results
    assert free["state"] == []
    (least,) = captured.good("plan", "--query", "two", "--disk", "0").results
    assert {one["name"]: (one["mode"], one["now"]) for one in least["state"]} == {
        "join0.left": ("read", "kept"),
        "join0.right": ("read", "kept"),
        "aggregate0": ("read", "kept"),
    }
    for one in least["state"]:
        assert one["bytes"] < one["kept_bytes"]
        assert one["reason"]
    (pinned,) = captured.good("plan", "--query", "two_kept", "--disk", "0").results
    assert {(one["mode"], one["now"]) for one in pinned["state"]} == {("kept", "kept")}
    assert not read_sides(folder, "two")


def explained(cli: Cli, name: str, *words: str) -> dict[str, tuple[str, str]]:
    """How each side of the query's joins is found, and why."""
    (entry,) = cli.good("explain", "--query", name, *words).results
    return {side["side"]: (side["strategy"], side["reason"]) for side in entry["joins"]}


def test_explain_says_what_is_read_and_why(captured: Cli) -> None:
    """As it is stored, whatever a capture without the budget would choose; and ever after."""
    folder = captured.workload.parent
    assert set(explained(captured, "two").values()) == {("index", "small enough to keep")}
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "two")
    found = explained(captured, "two")
    assert {strategy for strategy, _ in found.values()} == {"files"}
    (entry,) = captured.good("explain", "--query", "two").results
    (tree,) = entry["trees"]
    assert tree["reason"].startswith("possible, not chosen: a changed row is joined to")
    history = captured.good("status", "--query", "two").results[0]["runs"][0]["reason"]
    for side, (_, reason) in found.items():
        assert f"{side}: {reason}" in history
    change(folder, random.Random(2), 1)
    captured.good("maintain", "--query", "two")
    assert explained(captured, "two") == found
    text = captured.workload.read_text()
    captured.workload.write_text(text + "budget: {disk: 0}\n")
    captured.good("capture", "--query", "two")
    assert explained(captured, "two").keys() == found.keys()
    assert not {reason for _, reason in explained(captured, "two").values()} & {"as captured"}
    captured.workload.write_text(text)
    captured.good("capture", "--query", "two")
    assert set(explained(captured, "two").values()) == {("index", "small enough to keep")}


def test_what_is_converted_is_no_fresher_by_it(captured: Cli) -> None:
    folder = captured.workload.parent
    before = stored(folder, "two").maintained_at
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "s")
    after = stored(folder, "two")
    assert read_sides(folder, "two")
    assert after.versions != stored(folder, "s").versions
    assert after.maintained_at == before


def test_a_conversion_that_fails_leaves_the_query_as_it_was(
    captured: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = captured.workload.parent
    before = state_bytes(folder)

    def gone(*_: Any) -> None:
        raise HistoryGoneError("a file is gone", hint="capture")

    monkeypatch.setattr(conversion, "hand_over", gone)
    change(folder, random.Random(1), 0)
    ran = captured.good("maintain", "--disk", "0")
    assert any("stays as it is: a file is gone" in one for one in ran.document["warnings"])
    assert not any(read_sides(folder, name) for name in NAMES)
    assert state_bytes(folder) >= before // 2
    assert_alike(folder)


def test_a_query_that_cannot_be_opened_fails_no_run_of_others(cli: Cli, tmp_path: Path) -> None:
    """Its table is gone: the state of the others is brought within the budget, its own counts."""
    text = cli.workload.read_text()
    lone = '  lone: {sql: "SELECT k, COUNT(*) AS n FROM far GROUP BY k HAVING COUNT(*) > 1"}\n'
    text = text.replace("tables: {", "tables: {far: {path: far}, ")
    cli.workload.write_text(text.replace("queries:\n", f"queries:\n{lone}"))
    create_table(str(tmp_path / "far"), pa.table({"k": [1, 1, 2]}))
    cli.good("capture")
    whole = state_bytes(tmp_path, ("lone",))
    (tmp_path / "far").rename(tmp_path / "away")
    change(tmp_path, random.Random(1), 0)
    ran = cli.good("maintain", "--disk", "0", "--query", "two", "--query", "two_kept")
    assert any("`lone` stays as it is: Table `far`" in one for one in ran.document["warnings"])
    assert [result["action"] for result in ran.results] == ["exact"] * len(ran.results)
    assert read_sides(tmp_path, "two")
    assert state_bytes(tmp_path, ("lone",)) == whole > 0


@pytest.mark.parametrize("size", [0, 7, 999, 1_001, 708_400, 999_501, 1_000_000, 12_345_678_901])
def test_what_is_said_to_be_enough_is(size: int) -> None:
    said = enough_text(size)
    assert size <= size_from(said) <= size * 1.01


@pytest.mark.parametrize(("command", "is_table"), [("maintain", True), ("capture", False)])
def test_a_query_that_cannot_be_read_any_more_does_not_stop_others(
    cli: Cli, tmp_path: Path, command: str, is_table: bool
) -> None:
    shutil.copytree(tmp_path / "u", tmp_path / "v")
    text = cli.workload.read_text().replace("u: {path: u}", "u: {path: u}, v: {path: v}")
    broken = '  broken: {sql: "SELECT t.x FROM t JOIN v ON t.l = v.l"}\nstore:'
    cli.workload.write_text(text.replace("store:", broken))
    cli.good("capture")
    if is_table:
        shutil.rmtree(tmp_path / "v")
    else:
        rows = DeltaTable(str(tmp_path / "v")).to_pyarrow_table().drop_columns(["l"])
        write_deltalake(str(tmp_path / "v"), rows, mode="overwrite", schema_mode="overwrite")
    change(tmp_path, random.Random(1), 0)
    cli.good(command, "--disk", "0", "--query", "two")
    assert read_sides(tmp_path, "two")


def test_what_cannot_be_chosen_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise StorageError("a log cannot be read", hint="look at it")

    cli.good("capture")
    monkeypatch.setattr(keep_to, "kept_within", unreachable)
    change(tmp_path, random.Random(1), 0)
    ran = cli.good("maintain", "--disk", "0")
    assert any("whatever its budget: a log cannot" in one for one in ran.document["warnings"])
    assert_alike(tmp_path)


def test_a_budget_in_the_file_holds_from_the_first_capture_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How often tables change here goes by how quick the machine is.
    monkeypatch.setattr(keep_to, "is_worth", lambda *_, **__: True)
    text = cli.workload.read_text()
    cli.workload.write_text(text + "budget: {disk: 0}\n")
    cli.good("capture")
    assert all(read_sides(tmp_path, name) for name in NAMES)
    assert_alike(tmp_path)
    change(tmp_path, random.Random(2), 1)
    cli.good("maintain")
    assert_alike(tmp_path)
    # A flag wins over the file.
    cli.good("capture", "--disk", "1GB")
    assert_alike(tmp_path)
    assert len(read_sides(tmp_path, "two")) < 2


@pytest.mark.parametrize("wrong", ["1XB", "-1", "many", "1.5.2GB", "9" * 400 + "TB"])
def test_what_is_no_size_is_refused_with_its_place(cli: Cli, wrong: str) -> None:
    text = cli.workload.read_text()
    cli.workload.write_text(text + f"budget: {{disk: '{wrong}'}}\n")
    ran = cli("check")
    assert ran.code == 2
    assert "`budget.disk` must be a size" in str(ran.error)
    cli.workload.write_text(text)
    assert cli("maintain", "--disk", wrong).code == 2


def describe(folder: Path, name: str, **said: Any) -> None:
    """Say something else of a stored state."""
    with Store.open(folder / ".impctl") as store, store.lock(10, "a test"):
        held = store.load(name)
        assert held is not None
        record = run_record("exact", versions=held.versions)
        meta = {**held.state_meta, **said}
        store.commit_maintain(
            MaintainCommit(name, held.generation, held.pins, record, state_meta=meta)
        )


def test_a_capture_puts_a_damaged_description_right(captured: Cli) -> None:
    folder = captured.workload.parent
    describe(folder, "l", from_files=7)
    captured.good("capture", "--query", "l", "--disk", "0")
    assert read_sides(folder, "l")


def test_sides_that_spark_reads_stay_so(captured: Cli) -> None:
    folder = captured.workload.parent
    change(folder, random.Random(1), 0)
    captured.good("maintain", "--disk", "0", "--query", "l", "--query", "s")
    sides = read_sides(folder, "l")
    assert sides
    # Of either kind of side a filter is all that is kept.
    describe(folder, "l", from_files=[], distant=sides)
    change(folder, random.Random(1), 1)
    captured.good("maintain", "--disk", "0", "--query", "s")
    after = stored(folder, "l").state_meta
    assert (after["distant"], after.get("from_files", [])) == (sides, [])
