"""Under a budget groups are read when they change: sketches stay those of all groups kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.service import partners
from impctl.tables import rows
from impctl.tables.write.maintenance import create_table
from tests.app.maintaining.keeping.stored_pieces import (
    assert_alike,
    describe,
    fragments,
    read_pieces,
    stored_pieces,
)
from tests.behaviour.typed_joins import GROUPINGS, KEYS, change, write_workload
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli, CliOf

BY_TYPE = (*(f"by_{key}" for key in KEYS), "exists", "beside")
OTHERS = ("by_two", "alone", "keyed", "once", "inside", "above", "first")
READ = {n: "distinct0" if n in ("once", "above", "exists") else "aggregate0" for n in GROUPINGS}
"""The grouping of each query that is read."""

Make = Callable[[Iterable[str]], Cli]


@pytest.fixture
def make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Make:
    """A workload of these queries, each with a twin whose state is kept."""

    def made(names: Iterable[str]) -> Cli:
        asked = [(name, GROUPINGS[name], "auto") for name in names]
        pinned = [(f"{name}_kept", sql, "index") for name, sql, _ in asked]
        return Cli(capsys, write_workload(tmp_path, [*asked, *pinned]))

    return made


def maintained(cli: Cli, folder: Path, names: Iterable[str], *flags: str) -> None:
    assert {result["action"] for result in cli.good("maintain", *flags).results} == {"exact"}
    assert_alike(folder, names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "turns"),
    [
        (BY_TYPE, [(0, 1)]),
        pytest.param(GROUPINGS, [(0,), (1,), (2,), (3,)], marks=pytest.mark.long),
    ],
    ids=["types", "all"],
)
def test_groups_by_every_type_of_key_are_found_in_files(
    make: Make, tmp_path: Path, names: Iterable[str], turns: list[tuple[int, ...]]
) -> None:
    """Read from the first capture on, by a filter of keys that came while it was filled."""
    cli = make(names)
    captured = cli.good("capture", "--disk", "0").results
    assert {r["mode"] for r in captured} == {"exact"}
    rng = random.Random(5)
    for name in names:
        assert READ[name] in read_pieces(tmp_path, name)
        pieces = {one for one in stored_pieces(tmp_path, name) if one.startswith(READ[name])}
        assert pieces == {f"{READ[name]}.filter"}
    assert "join0.right" in {*read_pieces(tmp_path, "exists")} & {*read_pieces(tmp_path, "beside")}
    for changes in turns:
        for turn in changes:
            change(tmp_path, rng, turn)
            if turn == 0:
                for table in ("t", "u"):
                    DeltaTable(str(tmp_path / table)).optimize.compact()
        maintained(cli, tmp_path, names)


@pytest.mark.parametrize(
    ("names", "turns", "more"),
    [
        (OTHERS, [0], 1),
        pytest.param(GROUPINGS, [0, 2, 4], 3, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids=["others", "all"],
)
def test_groups_go_and_come_back_and_no_sketch_notices(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: Iterable[str],
    turns: list[int],
    more: int,
) -> None:
    # What is kept again is read in parts, which no group's rows may be spread over.
    monkeypatch.setattr(rows, "BATCH_ROWS", 3)
    monkeypatch.setattr(partners, "read_batches", partial(rows.read_batches, least=3))
    cli = make(names)
    free = cli.workload.read_text()
    kept = free.replace("join: auto}", "join: auto, state: keep}")
    assert free != kept
    cli.good("capture")
    rng = random.Random(7)
    for turn in turns:
        change(tmp_path, rng, turn)
        maintained(cli, tmp_path, names, "--disk", "0")
        assert all(READ[name] in read_pieces(tmp_path, name) for name in names)
        if more > 1:
            change(tmp_path, rng, turn + 1)
            maintained(cli, tmp_path, names)
        # What is asked for is kept again, and so a twin's state is that of the query.
        cli.workload.write_text(kept)
        cli.good("maintain", "--disk", "1GB")
        for number in range(more):
            change(tmp_path, rng, 10 * turn + 11 + number)
            maintained(cli, tmp_path, names)
        cli.workload.write_text(free)
        assert not any(READ[name] in read_pieces(tmp_path, name) for name in names)
        assert_alike(tmp_path, names)


def how_it_groups(explained: Any) -> str:
    (why,) = (one["why"] for one in explained["plan"] if one["operator"] == "aggregate")
    return str(why)


@pytest.mark.slow
def test_plan_and_explain_tell_what_is_read(make: Make, tmp_path: Path) -> None:
    cli = make(["by_s"])
    cli.good("capture")
    before = cli.one("explain", "--query", "by_s")
    assert {one["name"]: one["mode"] for one in before["groups"]} == {"aggregate0": "kept"}
    least = cli.one("plan", "--query", "by_s", "--disk", "0")
    told = {one["name"]: one for one in least["state"]}["aggregate0"]
    assert (told["mode"], told["now"]) == ("read", "kept")
    assert 0 <= told["bytes"] < told["kept_bytes"]
    change(tmp_path, random.Random(1), 0)
    maintained(cli, tmp_path, ["by_s"], "--disk", "0")
    after = cli.one("explain", "--query", "by_s")
    assert how_it_groups(before) == "stores a row per group and counts per group and range"
    assert how_it_groups(after).startswith("reads the rows of changed groups, stores a filter")
    (groups,) = after["groups"]
    assert (groups["mode"], groups["tables"]) == ("read", ["t", "u"])
    (run,) = cli.good("status", "--query", "by_s").results[0]["runs"][:1]
    assert f"aggregate0: {groups['reason']}" in run["reason"]
    least = cli.one("plan", "--query", "by_s", "--disk", "0")
    again = {one["name"]: one for one in least["state"]}["aggregate0"]
    # What they took is remembered, for the day when there is room.
    assert again["now"] == "read"
    assert told["kept_bytes"] // 2 < again["kept_bytes"] < 2 * told["kept_bytes"]
    pinned = cli.one("plan", "--query", "by_s_kept", "--disk", "0")
    assert {one["mode"] for one in pinned["state"]} == {"kept"}


def test_ranges_of_a_query_whose_groups_are_read_are_mended(tmp_path: Path, cli_of: CliOf) -> None:
    """Of groups that are kept the state is derived; of those that are read it is made anew."""
    create_table(str(tmp_path / "t"), spread_rows(0, 60))
    sql = "SELECT x, COUNT(*) n FROM t GROUP BY x HAVING COUNT(*) > 1"
    cli = cli_of(
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {x: {ranges: 12}}}\nqueries:\n"
        f'  q: {{sql: "{sql}"}}\n  twin: {{sql: "{sql}", join: index}}\nstore: .impctl\n'
    ).captured()
    write_deltalake(str(tmp_path / "t"), spread_rows(60, 150), mode="append")
    cli.good("maintain", "--disk", "0", "--imbalance", "2")
    assert read_pieces(tmp_path, "q") == ["aggregate0"]
    mended = {r["query"]: r["reason"] for r in cli.good("capture", "--rebalance").results}
    assert "recaptured" in mended["q"]
    assert "derived" in mended["twin"]
    assert read_pieces(tmp_path, "q") == ["aggregate0"]
    for low in (30, 140):
        write_deltalake(str(tmp_path / "t"), spread_rows(low, low + 20), mode="append")
        DeltaTable(str(tmp_path / "t")).delete(f"x = {low + 3}")
        assert {r["action"] for r in cli.good("maintain").results} == {"exact"}
        assert fragments(tmp_path, "q") == fragments(tmp_path, "twin")


def spread_rows(low: int, high: int) -> pa.Table:
    rng = random.Random(low)
    return pa.table({"x": pa.array(rng.choices(range(low, high), k=4 * (high - low)), pa.int64())})


@pytest.mark.slow
def test_a_capture_fills_groups_by_a_pass_and_reads_them_again_after(
    make: Make, tmp_path: Path
) -> None:
    """Partial aggregates go into kept groups, so that captures of one table's groups keep them."""
    cli = make(["alone", "by_s"])
    cli.good("capture", "--disk", "0")
    assert "aggregate0" in read_pieces(tmp_path, "alone")
    (run,) = cli.good("status", "--query", "alone").results[0]["runs"][:1]
    assert run["action"] == "convert"
    cli.good("capture", "--query", "alone", "--disk", "0")
    assert "aggregate0" in read_pieces(tmp_path, "alone")
    (run,) = cli.good("status", "--query", "alone").results[0]["runs"][:1]
    assert run["action"] == "convert"
    cli.good("capture", "--query", "by_s", "--disk", "0")
    (run,) = cli.good("status", "--query", "by_s").results[0]["runs"][:1]
    assert run["action"] != "convert"


@pytest.mark.slow
def test_a_state_whose_groups_cannot_be_read_any_more_is_captured_anew(
    make: Make, tmp_path: Path
) -> None:
    """As where another release reads fewer groupings: without rows groups would count as empty."""
    cli = make(["by_i"])
    cli.good("capture")
    describe(tmp_path, "by_i", from_files=["aggregate7"])
    change(tmp_path, random.Random(1), 0)
    result = {r["query"]: r for r in cli.good("maintain").results}
    assert (result["by_i"]["action"], result["by_i"]["reason_code"]) == (
        "recapture",
        "engine_changed",
    )
    assert "from_files" not in stored(tmp_path, "by_i").state_meta
