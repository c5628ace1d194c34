"""Under a budget, top-k, MIN and MAX state is bounded, and changed groups are read from files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.service import capture, fill
from impctl.service.budget.costs import chance_of_refill, size_for
from impctl.store.store import Store
from impctl.tables import rows
from tests.behaviour.typed_joins import GROUPINGS, KEYS, change, write_workload
from tests.service.budget.test_keep_to import (
    assert_alike,
    describe,
    ranges,
    read_pieces,
    stored_pieces,
)
from tests.support.kept_workload import stored
from tests.support.run_cli import Capsys, Cli, CliOf, CliOnce, MonkeyPatch, write_files

QUERIES = {
    "first": "SELECT g, x FROM (SELECT g, x, row_number() OVER (PARTITION BY g ORDER BY x, k) n"
    " FROM t) q WHERE n <= 2",
    "ranked": "SELECT g, k FROM (SELECT g, k, rank() OVER (PARTITION BY g ORDER BY x DESC) r"
    " FROM t WHERE k > 20) q WHERE r <= 3",
    # A sum of doubles prevents reading the groups, so only values are dropped.
    "ends": "SELECT g, MIN(x) low, MAX(x) high, SUM(d) s FROM t GROUP BY g HAVING MIN(x) < 90000",
    "sets": "SELECT g, h, MAX(x) m, SUM(d) s FROM t GROUP BY GROUPING SETS ((g), (h), ())"
    " HAVING MAX(x) > 10",
    "of_groups": "SELECT h, n FROM (SELECT h, k % 400 p, COUNT(*) n, SUM(d) s, rank() OVER"
    " (PARTITION BY h ORDER BY COUNT(*) DESC, k % 400) r FROM t GROUP BY h, k % 400) q WHERE r < 3",
}
PIECES = {
    "first": {"top0"},
    "ranked": {"top0"},
    "ends": {"aggregate0"},
    "sets": {"aggregate0", "aggregate1", "aggregate2"},
    "of_groups": {"top0"},
}
FEW = ("first", "ends")
ROWS = 2000
NUMBERS = (None, *range(0, 100_000, 7))


def random_rows(rng: random.Random, count: int, first: int) -> pa.Table:
    def column(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([rng.choice(values) for _ in range(count)], kind)

    columns = {
        "k": pa.array(range(first, first + count), pa.int64()),
        "g": column((None, 0, 1, 2, 3, 4), pa.int32()),
        "h": column("abc", pa.string()),
        "x": column(NUMBERS, pa.int64()),
        "d": column((0.5, 1.25, 4.0), pa.float64()),
    }
    return pa.table(columns)


def change_best(folder: Path, rng: random.Random, step: int) -> None:
    """Append rows, then delete the best of either end, enough to exhaust buffers."""
    table = DeltaTable(str(folder / "t"))
    if step % 3 == 0:
        write_deltalake(str(folder / "t"), random_rows(rng, 20, 10_000 * (step + 1)), mode="append")
    elif step % 3 == 1:
        table.delete(f"x < {5_000 * (step + 1)} OR x IS NULL")
    else:
        table.delete(f"x > {97_000 - 4_000 * step}")


def write_bounded(folder: Path, names: Iterable[str], rows: int) -> Path:
    """The table and the queries, each with a twin that stores everything."""
    lines = "".join(
        f'  {name}{suffix}: {{sql: "{QUERIES[name]}", sketch: {{t: x}}, answer: true, {extra}}}\n'
        for name in names
        for suffix, extra in (("", "policy: incremental"), ("_kept", "join: index"))
    )
    head = "version: 1\ntables: {t: {path: t}}\nstore: .impctl\n"
    ranges = "partitions: {t: {x: {boundaries: [10_000, 30_000, 90_000]}}}\n"
    table = random_rows(random.Random(1), rows, 0)
    return write_files(folder, f"{head}{ranges}queries:\n{lines}", t=table)


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    return cli_once("buffers", lambda to: write_bounded(to, QUERIES, ROWS))


@pytest.fixture
def few(cli_once: CliOnce) -> Cli:
    """A top-k query and one with MIN and MAX, captured without a budget."""
    return cli_once("few buffers", lambda to: write_bounded(to, FEW, ROWS), Cli.captured)


def buffers_of(folder: Path, name: str) -> dict[str, int]:
    return stored(folder, name).state_meta.get("buffers", {})


def bytes_of(folder: Path, name: str, piece: str) -> int:
    with Store.open(folder / ".impctl", create=False) as store:
        return sum(
            run.bytes for run in store.run_refs(name) if run.arrangement.startswith(f"{piece}.")
        )


def assert_same(cli: Cli, folder: Path, names: Iterable[str]) -> None:
    assert_alike(folder, names)
    with impctl.open(cli.workload) as opened:
        for name in names:
            assert rows_of(opened, name) == rows_of(opened, f"{name}_kept")


def rows_of(opened: impctl.OpenWorkload, name: str) -> list[str]:
    return sorted(map(repr, opened.query(name).rows))


@pytest.mark.parametrize(
    ("world", "names"),
    [("few", FEW), pytest.param("cli", QUERIES, marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_buffers_change_no_sketch_or_result(
    request: pytest.FixtureRequest, world: str, names: Iterable[str]
) -> None:
    cli: Cli = request.getfixturevalue(world)
    tmp_path, rng = cli.folder, random.Random(5)
    queries = [f"--query={name}{twin}" for name in names for twin in ("", "_kept")]
    if world == "cli":
        cli.good("capture", *queries)
    assert not any(buffers_of(tmp_path, name) for name in names)
    change_best(tmp_path, rng, 0)
    full_size = {(n, p): bytes_of(tmp_path, n, p) for n in names for p in PIECES[n]}
    cli.good("maintain", "--disk", "0", *queries)
    for name in names:
        assert buffers_of(tmp_path, name).keys() >= PIECES[name], name
        for piece in PIECES[name]:
            assert bytes_of(tmp_path, name, piece) < full_size[name, piece]
        assert not buffers_of(tmp_path, f"{name}_kept")
    assert_same(cli, tmp_path, names)
    for step in (1, 2):
        change_best(tmp_path, rng, step)
    results = cli.good("maintain", "--disk", "0", *queries).results
    assert sum(r["refilled_groups"] for r in results) > 0
    assert_same(cli, tmp_path, names)
    unpinned = cli.workload.read_text()
    cli.edit("policy: incremental", "policy: incremental, state: keep")
    cli.good("maintain", "--disk", "1GB", *queries)
    assert not any(buffers_of(tmp_path, name) for name in names)
    assert_same(cli, tmp_path, names)
    if world == "few":  # restored pieces are bounded again
        cli.workload.write_text(unpinned)
        change_best(tmp_path, rng, 3)
        cli.good("maintain", "--disk", "0", *queries)
        assert all(buffers_of(tmp_path, name).keys() >= PIECES[name] for name in names)
        assert_same(cli, tmp_path, names)


@pytest.mark.slow
def test_restored_state_is_read_at_the_sketch_versions(few: Cli) -> None:
    """Another query is captured while these are three commits behind."""
    cli, tmp_path = few, few.folder

    def change_at(step: int, seed: int) -> None:
        change_best(tmp_path, random.Random(seed), step)

    change_at(0, 2)
    cli.good("maintain", "--disk", "0")
    assert all(buffers_of(tmp_path, name) for name in FEW)
    for step in (3, 1, 2):
        change_at(step, step)
    cli.edit("incremental", "incremental, state: keep")
    cli.good("capture", "--query", "first_kept", "--disk", "1GB")
    assert not any(buffers_of(tmp_path, name) for name in FEW)
    assert stored(tmp_path, "ends").versions != stored(tmp_path, "first_kept").versions
    cli.good("maintain")
    assert_same(cli, tmp_path, FEW)


@pytest.mark.slow
def test_unknown_buffers_cause_a_recapture(cli: Cli) -> None:
    """A bounded piece must never be mistaken for a complete one."""
    tmp_path = cli.folder
    names = ("--query", "ranked", "--query", "ranked_kept")
    cli.edit("policy: incremental", "policy: auto")
    cli.good("capture", "--disk", "0", *names)
    describe(tmp_path, "ranked", buffers={"top0": 8, "aggregate0": 8})
    change_best(tmp_path, random.Random(2), 1)
    assert cli.by_query("maintain", *names)["ranked"]["reason_code"] == "engine_changed"
    with impctl.open(cli.workload) as opened:
        assert rows_of(opened, "ranked") == rows_of(opened, "ranked_kept")


@pytest.mark.slow
def test_recapture_keeps_buffers_and_state_least_adds_them(few: Cli) -> None:
    cli, tmp_path = few, few.folder
    cli.good("capture", "--query", "first", "--query", "first_kept", "--disk", "0")
    before = buffers_of(tmp_path, "first")
    assert before.keys() == {"top0"}
    change_best(tmp_path, random.Random(2), 0)
    cli.good("capture", "--query", "first", "--query", "first_kept", "--disk", "1GB")
    assert buffers_of(tmp_path, "first") == before
    unpinned = cli.workload.read_text()
    cli.workload.write_text(unpinned.replace("policy: incremental", "state: least"))
    # Without a budget a capture stores everything unless the workload limits it.
    cli.good("capture")
    for name in FEW:
        assert buffers_of(tmp_path, name) == dict.fromkeys(PIECES[name], 8), name
    change_best(tmp_path, random.Random(2), 1)
    assert sum(r["refilled_groups"] for r in cli.good("maintain").results) > 0
    assert_same(cli, tmp_path, FEW)
    cli.workload.write_text(unpinned)
    cli.good("capture")
    assert not any(buffers_of(tmp_path, name) for name in FEW)


@pytest.mark.parametrize("setting", ["all", "5000"])
def test_workload_buffer_setting_is_used(cli: Cli, setting: str) -> None:
    cli.edit("policy: incremental", f"buffer: {setting}")
    cli.good("capture", "--disk", "0", "--query", "first", "--query", "of_groups")
    for name in ("first", "of_groups"):
        assert not buffers_of(cli.folder, name)
        (top,) = (
            piece
            for piece in cli.one("explain", "--query", name)["buffers"]
            if piece["name"] == "top0"
        )
        size = None if setting == "all" else 5000
        reported = (top["buffer"], top["reason"], bool(top["chosen"]))
        assert reported == (size, "as set by `buffer`", False)


def test_plan_explain_and_history_report_buffers(few: Cli) -> None:
    def explained() -> dict[str, Any]:
        (top,) = few.one("explain", "--query", "first")["buffers"]
        assert top["state_bytes"] == bytes_of(few.folder, "first", "top0")
        return top

    def planned() -> dict[str, Any]:
        (piece,) = few.one("plan", "--query", "first", "--disk", "0")["state"]
        return piece

    top = explained()
    assert (top["mode"], top["buffer"], top["tables"]) == ("kept", None, ["t"])
    assert top["reason"].startswith("all are stored unless a budget")
    piece = planned()
    assert (piece["name"], piece["mode"], piece["now"]) == ("top0", "bounded", "kept")
    assert piece["buffer"] == 8
    assert piece["bytes"] < piece["kept_bytes"] == top["state_bytes"]
    output = few.text("plan", "--query", "first", "--disk", "0")
    assert "state top0: bounded to the best 8 (now kept), " in output
    change_best(few.folder, random.Random(2), 0)
    few.good("maintain", "--disk", "0", "--query", "first")
    assert buffers_of(few.folder, "first") == {"top0": 8}
    top = explained()
    assert (top["mode"], top["buffer"], top["chosen"]) == ("bounded", 8, True)
    assert top["state_bytes"] < piece["kept_bytes"]
    assert top["reason"] == "no change exhausts it"
    output = few.text("explain", "--query", "first")
    assert "first rows and values top0 (t): bounded to the best 8, " in output
    runs = few.one("status", "--query", "first")["runs"]
    (conversion,) = (run for run in runs if run["action"] == "convert")
    assert conversion["reason"].startswith("top0 bounded to the best 8: ")
    piece = planned()
    expected = ("bounded", "bounded", top["state_bytes"])
    assert (piece["mode"], piece["now"], piece["bytes"]) == expected


@pytest.mark.slow
def test_old_top_k_state_is_unbounded_until_capture(few: Cli, monkeypatch: MonkeyPatch) -> None:
    """Their metadata has no group count for a top-k; MIN and MAX have counted groups."""
    cli, tmp_path = few, few.folder
    names = ("--query", "first", "--query", "ends")
    with monkeypatch.context() as older:
        older.setattr(capture, "buffer_groups", lambda state: {})
        cli.good("capture", *names)
    change_best(tmp_path, random.Random(2), 0)
    cli.good("maintain", "--disk", "0", *names)
    assert buffers_of(tmp_path, "ends").keys() == {"aggregate0"}
    assert not buffers_of(tmp_path, "first")
    (top,) = cli.one("explain", "--query", "first")["buffers"]
    assert top["reason"].endswith("unknown until the next capture")
    cli.good("capture", "--disk", "0", *names)
    assert buffers_of(tmp_path, "first").keys() == {"top0"}


@pytest.mark.parametrize(
    ("limit", "lost", "current", "size"),
    [
        *((1, 0.0, None, 8), (9, 0.0, None, 16)),
        # The mean of ten, plus three times its square root.
        *((1, 10.0, None, 32), (1, 1e6, None, 1000)),
        # A top-k with a larger limit gets that size.
        (5000, 1e6, None, 5000),
        # The size stays if it suffices and is not four times too large.
        *((1, 10.0, 21, 21), (1, 10.0, 20, 32), (1, 0.0, 32, 32), (1, 0.0, 33, 8)),
    ],
)
def test_buffer_size(limit: int, lost: float, current: int | None, size: int) -> None:
    assert size_for(limit, lost, current) == size


@pytest.mark.parametrize(("deleted", "spare"), [(0.5, 4), (0.5, 8), (0.8, 8), (1.0, 8)])
def test_refill_chance_matches_a_simulation(deleted: float, spare: int) -> None:
    """Simulate a buffer that gains or loses one at random, is capped at twice `spare`, and is
    refilled when empty."""
    rng, stored, refills, steps = random.Random(7), spare, 0, 50_000
    for _ in range(steps):
        stored += -1 if rng.random() < deleted else 1
        stored = min(stored, 2 * spare)
        refills += stored == 0
        stored = stored or spare
    estimate = chance_of_refill(0.01, deleted, spare) / 0.01
    assert refills / steps / 2 < estimate < refills / steps * 2
    assert chance_of_refill(1e9, deleted, spare) == 1.0
    assert chance_of_refill(1e9, 0.0, spare) == 0.0


BY_TYPE = (*(f"by_{key}" for key in KEYS), "exists", "beside")
OTHERS = ("by_two", "alone", "keyed", "once", "inside", "above", "first")
READ = {n: "distinct0" if n in ("once", "above", "exists") else "aggregate0" for n in GROUPINGS}
"""The grouping of each query that is read from files."""

Make = Callable[[Iterable[str]], Cli]


@pytest.fixture
def make(tmp_path: Path, capsys: Capsys) -> Make:
    """A workload of the named queries, each with a twin whose state is stored."""

    def make_workload(names: Iterable[str]) -> Cli:
        queries = [(name, GROUPINGS[name], "auto") for name in names]
        pinned = [(f"{name}_kept", sql, "index") for name, sql, _ in queries]
        return Cli(capsys, write_workload(tmp_path, [*queries, *pinned]))

    return make_workload


def maintained(cli: Cli, folder: Path, names: Iterable[str], *flags: str) -> None:
    assert {result["action"] for result in cli.good("maintain", *flags).results} == {"exact"}
    assert_alike(folder, names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "step_lists"),
    [
        pytest.param(BY_TYPE, [(0, 1)], id="types"),
        pytest.param(GROUPINGS, [(0,), (1,), (2,), (3,)], id="all", marks=pytest.mark.long),
    ],
)
def test_groups_of_every_key_type_are_read_from_files(
    make: Make, tmp_path: Path, names: Iterable[str], step_lists: list[tuple[int, ...]]
) -> None:
    """They are read from the first capture on, with a filter of the keys seen during the fill."""
    cli = make(names)
    assert {r["mode"] for r in cli.good("capture", "--disk", "0").results} == {"exact"}
    rng = random.Random(5)
    for name in names:
        assert READ[name] in read_pieces(tmp_path, name)
        pieces = {piece for piece in stored_pieces(tmp_path, name) if piece.startswith(READ[name])}
        assert pieces == {f"{READ[name]}.filter"}
    assert "join0.right" in {*read_pieces(tmp_path, "exists")} & {*read_pieces(tmp_path, "beside")}
    for steps in step_lists:
        for step in steps:
            change(tmp_path, rng, step)
            if step == 0:
                for table in ("t", "u"):
                    DeltaTable(str(tmp_path / table)).optimize.compact()
        maintained(cli, tmp_path, names)


@pytest.mark.parametrize(
    ("names", "steps", "repeats"),
    [
        pytest.param(("keyed", "above", "first"), [0], 1, id="few"),
        pytest.param(OTHERS, [0], 1, id="others", marks=pytest.mark.slow),
        pytest.param(GROUPINGS, [0, 2, 4], 3, id="all", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_reading_or_keeping_groups_changes_no_sketch(
    make: Make, tmp_path: Path, monkeypatch: MonkeyPatch, names: Any, steps: Any, repeats: int
) -> None:
    # Restored groups are read in small batches; no group's rows may be split between batches.
    monkeypatch.setattr(rows, "BATCH_ROWS", 3)
    monkeypatch.setattr(fill, "read_batches", partial(rows.read_batches, least=3))
    cli = make(names)
    unpinned = cli.workload.read_text()
    kept = unpinned.replace("join: auto}", "join: auto, state: keep}")
    assert unpinned != kept
    cli.good("capture")
    rng = random.Random(7)
    for step in steps:
        change(tmp_path, rng, step)
        maintained(cli, tmp_path, names, "--disk", "0")
        assert all(READ[name] in read_pieces(tmp_path, name) for name in names)
        if repeats > 1:
            change(tmp_path, rng, step + 1)
            maintained(cli, tmp_path, names)
        # With `state: keep` the groups are stored again, so the query's state matches its twin's.
        cli.workload.write_text(kept)
        cli.good("maintain", "--disk", "1GB")
        for extra in range(repeats):
            change(tmp_path, rng, 10 * step + 11 + extra)
            maintained(cli, tmp_path, names)
        cli.workload.write_text(unpinned)
        assert not any(READ[name] in read_pieces(tmp_path, name) for name in names)
        assert_alike(tmp_path, names)


def grouping_reason(explained: Any) -> str:
    (reason,) = (node["why"] for node in explained["plan"] if node["operator"] == "aggregate")
    return str(reason)


@pytest.mark.slow
def test_plan_and_explain_show_read_groups(make: Make, tmp_path: Path) -> None:
    cli = make(["by_s"])

    def planned(query: str = "by_s") -> dict[str, dict[str, Any]]:
        pieces = cli.one("plan", "--query", query, "--disk", "0")["state"]
        return {piece["name"]: piece for piece in pieces}

    before = cli.captured().one("explain", "--query", "by_s")
    assert {piece["name"]: piece["mode"] for piece in before["groups"]} == {"aggregate0": "kept"}
    first = planned()["aggregate0"]
    assert (first["mode"], first["now"]) == ("read", "kept")
    assert 0 <= first["bytes"] < first["kept_bytes"]
    change(tmp_path, random.Random(1), 0)
    maintained(cli, tmp_path, ["by_s"], "--disk", "0")
    after = cli.one("explain", "--query", "by_s")
    assert grouping_reason(before) == "stores a row per group and counts per group and range"
    assert grouping_reason(after).startswith("reads the rows of changed groups, stores a filter")
    (groups,) = after["groups"]
    assert (groups["mode"], groups["tables"]) == ("read", ["t", "u"])
    assert f"aggregate0: {groups['reason']}" in latest(cli, "by_s")["reason"]
    second = planned()["aggregate0"]
    # Their stored size is remembered for larger budgets.
    assert second["now"] == "read"
    assert first["kept_bytes"] // 2 < second["kept_bytes"] < 2 * first["kept_bytes"]
    assert {piece["mode"] for piece in planned("by_s_kept").values()} == {"kept"}


def latest(cli: Cli, query: str) -> dict[str, Any]:
    return cli.one("status", "--query", query)["runs"][0]


def test_rebalance_recaptures_queries_with_read_groups(cli_of: CliOf) -> None:
    """The state of stored groups is derived; that of read groups is recaptured."""
    sql = "SELECT x, COUNT(*) n FROM t GROUP BY x HAVING COUNT(*) > 1"
    queries = {"q": sql, "twin": {"sql": sql, "join": "index"}}
    workload = {"partitions": {"t": {"x": {"ranges": 12}}}, "queries": queries}
    cli = cli_of(workload, t=spread_rows(0, 60)).captured()
    cli.append("t", spread_rows(60, 150))
    cli.good("maintain", "--disk", "0", "--imbalance", "2")
    assert read_pieces(cli.folder, "q") == ["aggregate0"]
    reasons = {
        result["query"]: result["reason"] for result in cli.good("capture", "--rebalance").results
    }
    assert "recaptured" in reasons["q"]
    assert "derived" in reasons["twin"]
    assert read_pieces(cli.folder, "q") == ["aggregate0"]
    for low in (30, 140):
        cli.append("t", spread_rows(low, low + 20))
        cli.table("t").delete(f"x = {low + 3}")
        assert {result["action"] for result in cli.good("maintain").results} == {"exact"}
        assert ranges(cli.folder, "q") == ranges(cli.folder, "twin")


def spread_rows(low: int, high: int) -> pa.Table:
    rng = random.Random(low)
    return pa.table({"x": pa.array(rng.choices(range(low, high), k=4 * (high - low)), pa.int64())})


@pytest.mark.slow
def test_capture_fills_groups_and_then_converts_them(make: Make, tmp_path: Path) -> None:
    """Partial aggregates need stored groups, so captures of one table's groups build them."""
    cli = make(["alone", "by_s"])
    for query in ((), ("--query", "alone")):
        cli.good("capture", *query, "--disk", "0")
        assert "aggregate0" in read_pieces(tmp_path, "alone")
        assert latest(cli, "alone")["action"] == "convert"
    cli.good("capture", "--query", "by_s", "--disk", "0")
    assert latest(cli, "by_s")["action"] != "convert"


@pytest.mark.slow
def test_unreadable_groups_cause_a_recapture(make: Make, tmp_path: Path) -> None:
    """As when another release reads fewer groupings: groups without rows would look empty."""
    cli = make(["by_i"]).captured()
    describe(tmp_path, "by_i", from_files=["aggregate7"])
    change(tmp_path, random.Random(1), 0)
    result = cli.by_query("maintain")["by_i"]
    assert (result["action"], result["reason_code"]) == ("recapture", "engine_changed")
    assert "from_files" not in stored(tmp_path, "by_i").state_meta
