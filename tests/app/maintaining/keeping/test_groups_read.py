"""Under a budget groups are read when they change: sketches stay those of all groups kept."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.capturing.partners import by_files
from impctl.app.workbench.sessions import OwnSession
from impctl.store.store import Store
from impctl.tables import rows
from impctl.tables.write.create import create_table
from tests.app.maintaining.keeping.test_keep_to import describe
from tests.behaviour.typed_joins import GROUPINGS, change, write_workload
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_cli import Cli

TURNS = 5
READ = {n: "distinct0" if n in ("once", "above", "exists") else "aggregate0" for n in GROUPINGS}
"""The grouping of each query that is read."""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)
    asked = [(name, sql, "auto") for name, sql in GROUPINGS.items()]
    pinned = [(f"{name}_kept", sql, "index") for name, sql in GROUPINGS.items()]
    return Cli(capsys, write_workload(tmp_path, [*asked, *pinned]))


def read_of(folder: Path, name: str) -> set[str]:
    found = stored(folder, name).state_meta.get("from_files", [])
    assert isinstance(found, list)
    return set(found)


def stored_pieces(folder: Path, name: str) -> set[str]:
    with Store.open(folder / ".impctl", create=False) as held:
        return {run.arrangement for run in held.run_refs(name)}


def assert_alike(folder: Path) -> None:
    for name in GROUPINGS:
        one, twin = stored(folder, name), stored(folder, f"{name}_kept")
        assert one.versions == twin.versions
        mine, theirs = map(fragments_by_access, (one, twin))
        assert mine == theirs, name
        assert one.state_meta["unsure"] == twin.state_meta["unsure"]


def changed(cli: Cli, folder: Path, rng: random.Random, turn: int, *flags: str) -> None:
    change(folder, rng, turn)
    for result in cli.good("maintain", *flags).results:
        assert result["action"] == "exact", result
    assert_alike(folder)


def test_groups_by_every_type_of_key_are_found_in_files(cli: Cli, tmp_path: Path) -> None:
    """Read from the first capture on, by a filter of keys that came while it was filled."""
    captured = cli.good("capture", "--disk", "0").results
    assert {r["mode"] for r in captured} == {"exact"}
    rng = random.Random(5)
    for name, piece in READ.items():
        assert piece in read_of(tmp_path, name)
        pieces = stored_pieces(tmp_path, name)
        assert {one for one in pieces if one.startswith(piece)} == {f"{piece}.filter"}
    assert "join0.right" in read_of(tmp_path, "exists") & read_of(tmp_path, "beside")
    for turn in range(TURNS):
        changed(cli, tmp_path, rng, turn)
        if turn == 2:
            for table in ("t", "u"):
                DeltaTable(str(tmp_path / table)).optimize.compact()


def test_groups_go_and_come_back_and_no_sketch_notices(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is kept again is read in parts, which no group's rows may be spread over.
    monkeypatch.setattr(rows, "BATCH_ROWS", 3)
    monkeypatch.setattr(by_files, "read_batches", partial(rows.read_batches, least=3))
    free = cli.workload.read_text()
    kept = free.replace("join: auto}", "join: auto, state: keep}")
    assert free != kept
    cli.good("capture")
    rng = random.Random(7)
    for turn in range(0, 6, 2):
        changed(cli, tmp_path, rng, turn, "--disk", "0")
        assert all(piece in read_of(tmp_path, name) for name, piece in READ.items())
        changed(cli, tmp_path, rng, turn + 1)
        # What is asked for is kept again, and so a twin's state is that of the query.
        cli.workload.write_text(kept)
        cli.good("maintain", "--disk", "1GB")
        for more in range(3):
            changed(cli, tmp_path, rng, 10 * turn + 10 + more)
        cli.workload.write_text(free)
        assert not any(piece in read_of(tmp_path, name) for name, piece in READ.items())
        assert_alike(tmp_path)


def how_it_groups(explained: Any) -> str:
    (why,) = (one["why"] for one in explained["plan"] if one["operator"] == "aggregate")
    return str(why)


def test_plan_and_explain_tell_what_is_read(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture")
    (before,) = cli.good("explain", "--query", "by_s").results
    assert {one["name"]: one["mode"] for one in before["groups"]} == {"aggregate0": "kept"}
    (least,) = cli.good("plan", "--query", "by_s", "--disk", "0").results
    told = {one["name"]: one for one in least["state"]}["aggregate0"]
    assert (told["mode"], told["now"]) == ("read", "kept")
    assert 0 <= told["bytes"] < told["kept_bytes"]
    changed(cli, tmp_path, random.Random(1), 0, "--disk", "0")
    (after,) = cli.good("explain", "--query", "by_s").results
    assert how_it_groups(before) == "keeps a row per group and counts per group and range"
    assert how_it_groups(after).startswith("reads the rows of groups that change, keeps a filter")
    (groups,) = after["groups"]
    assert (groups["mode"], groups["tables"]) == ("read", ["t", "u"])
    (run,) = cli.good("status", "--query", "by_s").results[0]["runs"][:1]
    assert f"aggregate0: {groups['reason']}" in run["reason"]
    (least,) = cli.good("plan", "--query", "by_s", "--disk", "0").results
    again = {one["name"]: one for one in least["state"]}["aggregate0"]
    # What they took is remembered, for the day when there is room.
    assert again["now"] == "read"
    assert told["kept_bytes"] // 2 < again["kept_bytes"] < 2 * told["kept_bytes"]
    (pinned,) = cli.good("plan", "--query", "by_s_kept", "--disk", "0").results
    assert {one["mode"] for one in pinned["state"]} == {"kept"}


def test_ranges_of_a_query_whose_groups_are_read_are_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of groups that are kept the state is derived; of those that are read it is made anew."""
    create_table(str(tmp_path / "t"), spread_rows(0, 60))
    sql = "SELECT x, COUNT(*) n FROM t GROUP BY x HAVING COUNT(*) > 1"
    file = tmp_path / "w.yaml"
    file.write_text(
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {x: {fragments: 12}}}\nqueries:\n"
        f'  q: {{sql: "{sql}"}}\n  twin: {{sql: "{sql}", join: index}}\nstore: .impctl\n'
    )
    cli = Cli(capsys, file)
    cli.good("capture")
    write_deltalake(str(tmp_path / "t"), spread_rows(60, 150), mode="append")
    cli.good("maintain", "--disk", "0", "--imbalance", "2")
    assert read_of(tmp_path, "q") == {"aggregate0"}
    mended = {r["query"]: r["reason"] for r in cli.good("capture", "--rebalance").results}
    assert "captured anew" in mended["q"]
    assert "derived" in mended["twin"]
    assert read_of(tmp_path, "q") == {"aggregate0"}
    for low in (30, 140):
        write_deltalake(str(tmp_path / "t"), spread_rows(low, low + 20), mode="append")
        DeltaTable(str(tmp_path / "t")).delete(f"x = {low + 3}")
        assert {r["action"] for r in cli.good("maintain").results} == {"exact"}
        one, twin = stored(tmp_path, "q"), stored(tmp_path, "twin")
        assert [list(s.fragments.ids) for s in one.sketches] == [
            list(s.fragments.ids) for s in twin.sketches
        ]


def spread_rows(low: int, high: int) -> pa.Table:
    rng = random.Random(low)
    return pa.table({"x": pa.array(rng.choices(range(low, high), k=4 * (high - low)), pa.int64())})


def test_a_capture_fills_groups_by_a_pass_and_reads_them_again_after(
    cli: Cli, tmp_path: Path
) -> None:
    """Partial aggregates go into kept groups, so that captures of one table's groups keep them."""
    cli.good("capture", "--disk", "0")
    assert "aggregate0" in read_of(tmp_path, "alone")
    (run,) = cli.good("status", "--query", "alone").results[0]["runs"][:1]
    assert run["action"] == "convert"
    cli.good("capture", "--query", "alone", "--disk", "0")
    assert "aggregate0" in read_of(tmp_path, "alone")
    (run,) = cli.good("status", "--query", "alone").results[0]["runs"][:1]
    assert run["action"] == "convert"
    cli.good("capture", "--query", "by_s", "--disk", "0")
    (run,) = cli.good("status", "--query", "by_s").results[0]["runs"][:1]
    assert run["action"] != "convert"


def test_a_state_whose_groups_cannot_be_read_any_more_is_captured_anew(
    cli: Cli, tmp_path: Path
) -> None:
    """As where another release reads fewer groupings: without rows groups would count as empty."""
    cli.good("capture")
    describe(tmp_path, "by_i", from_files=["aggregate7"])
    change(tmp_path, random.Random(1), 0)
    found = {r["query"]: r for r in cli.good("maintain").results}
    assert (found["by_i"]["action"], found["by_i"]["reason_code"]) == (
        "recapture",
        "engine_changed",
    )
    assert "from_files" not in stored(tmp_path, "by_i").state_meta
