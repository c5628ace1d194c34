"""Under a budget first rows, MIN and MAX are bounded, and groups are read when they change."""

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
    # A sum of doubles keeps the groups from being read: what is left out are values.
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


def some(rng: random.Random, count: int, first: int) -> pa.Table:
    def drawn(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([rng.choice(values) for _ in range(count)], kind)

    columns = {
        "k": pa.array(range(first, first + count), pa.int64()),
        "g": drawn((None, 0, 1, 2, 3, 4), pa.int32()),
        "h": drawn("abc", pa.string()),
        "x": drawn(NUMBERS, pa.int64()),
        "d": drawn((0.5, 1.25, 4.0), pa.float64()),
    }
    return pa.table(columns)


def change_best(folder: Path, rng: random.Random, turn: int) -> None:
    """Rows come; then the best of some order go, so many that buffers are used up."""
    table = DeltaTable(str(folder / "t"))
    if turn % 3 == 0:
        write_deltalake(str(folder / "t"), some(rng, 20, 10_000 * (turn + 1)), mode="append")
    elif turn % 3 == 1:
        table.delete(f"x < {5_000 * (turn + 1)} OR x IS NULL")
    else:
        table.delete(f"x > {97_000 - 4_000 * turn}")


def write_bounded(folder: Path, names: Iterable[str], rows: int) -> Path:
    """The table, and these queries beside twins of which all is kept."""
    lines = "".join(
        f'  {name}{twin}: {{sql: "{QUERIES[name]}", sketch: {{t: x}}, answer: true, {more}}}\n'
        for name in names
        for twin, more in (("", "policy: incremental"), ("_kept", "join: index"))
    )
    head = "version: 1\ntables: {t: {path: t}}\nstore: .impctl\n"
    ranges = "partitions: {t: {x: {boundaries: [10_000, 30_000, 90_000]}}}\n"
    table = some(random.Random(1), rows, 0)
    return write_files(folder, f"{head}{ranges}queries:\n{lines}", t=table)


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    return cli_once("buffers", lambda to: write_bounded(to, QUERIES, ROWS))


@pytest.fixture
def few(cli_once: CliOnce) -> Cli:
    """One query with first rows, and one with values of MIN and MAX, captured without a budget."""
    return cli_once("few buffers", lambda to: write_bounded(to, FEW, ROWS), Cli.captured)


def bounded(folder: Path, name: str) -> dict[str, int]:
    return stored(folder, name).state_meta.get("buffers", {})


def bytes_of(folder: Path, name: str, piece: str) -> int:
    with Store.open(folder / ".impctl", create=False) as held:
        return sum(r.bytes for r in held.run_refs(name) if r.arrangement.startswith(f"{piece}."))


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
def test_no_sketch_or_answer_notices_buffers(
    request: pytest.FixtureRequest, world: str, names: Iterable[str]
) -> None:
    cli: Cli = request.getfixturevalue(world)
    tmp_path, rng = cli.folder, random.Random(5)
    these = [f"--query={name}{twin}" for name in names for twin in ("", "_kept")]
    if world == "cli":
        cli.good("capture", *these)
    assert not any(bounded(tmp_path, name) for name in names)
    change_best(tmp_path, rng, 0)
    whole = {(n, p): bytes_of(tmp_path, n, p) for n in names for p in PIECES[n]}
    cli.good("maintain", "--disk", "0", *these)
    for name in names:
        assert bounded(tmp_path, name).keys() >= PIECES[name], name
        for piece in PIECES[name]:
            assert bytes_of(tmp_path, name, piece) < whole[name, piece]
        assert not bounded(tmp_path, f"{name}_kept")
    assert_same(cli, tmp_path, names)
    for turn in (1, 2):
        change_best(tmp_path, rng, turn)
    results = cli.good("maintain", "--disk", "0", *these).results
    assert sum(r["refilled_groups"] for r in results) > 0
    assert_same(cli, tmp_path, names)
    free = cli.workload.read_text()
    cli.edit("policy: incremental", "policy: incremental, state: keep")
    cli.good("maintain", "--disk", "1GB", *these)
    assert not any(bounded(tmp_path, name) for name in names)
    assert_same(cli, tmp_path, names)
    if world == "few":  # what was kept again is bounded again
        cli.workload.write_text(free)
        change_best(tmp_path, rng, 3)
        cli.good("maintain", "--disk", "0", *these)
        assert all(bounded(tmp_path, name).keys() >= PIECES[name] for name in names)
        assert_same(cli, tmp_path, names)


@pytest.mark.slow
def test_what_is_kept_again_is_read_at_the_versions_it_stands_at(few: Cli) -> None:
    """Another query is captured, where this one is three commits behind."""
    cli, tmp_path = few, few.folder

    def change_by(turn: int, seed: int) -> None:
        change_best(tmp_path, random.Random(seed), turn)

    change_by(0, 2)
    cli.good("maintain", "--disk", "0")
    assert all(bounded(tmp_path, name) for name in FEW)
    for turn in (3, 1, 2):
        change_by(turn, turn)
    cli.edit("incremental", "incremental, state: keep")
    cli.good("capture", "--query", "first_kept", "--disk", "1GB")
    assert not any(bounded(tmp_path, name) for name in FEW)
    assert stored(tmp_path, "ends").versions != stored(tmp_path, "first_kept").versions
    cli.good("maintain")
    assert_same(cli, tmp_path, FEW)


@pytest.mark.slow
def test_buffers_that_the_state_is_not_of_are_captured_anew(cli: Cli) -> None:
    """Whatever wrote that: rows that are bounded must never be taken for all."""
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
def test_a_recapture_keeps_the_choice_and_state_least_makes_it(few: Cli) -> None:
    cli, tmp_path = few, few.folder
    cli.good("capture", "--query", "first", "--query", "first_kept", "--disk", "0")
    before = bounded(tmp_path, "first")
    assert before.keys() == {"top0"}
    change_best(tmp_path, random.Random(2), 0)
    cli.good("capture", "--query", "first", "--query", "first_kept", "--disk", "1GB")
    assert bounded(tmp_path, "first") == before
    free = cli.workload.read_text()
    cli.workload.write_text(free.replace("policy: incremental", "state: least"))
    # Without a budget a capture keeps all, but where the workload says otherwise.
    cli.good("capture")
    for name in FEW:
        assert bounded(tmp_path, name) == dict.fromkeys(PIECES[name], 8), name
    change_best(tmp_path, random.Random(2), 1)
    assert sum(r["refilled_groups"] for r in cli.good("maintain").results) > 0
    assert_same(cli, tmp_path, FEW)
    cli.workload.write_text(free)
    cli.good("capture")
    assert not any(bounded(tmp_path, name) for name in FEW)


@pytest.mark.parametrize("said", ["all", "5000"])
def test_what_the_workload_says_of_buffers_holds(cli: Cli, said: str) -> None:
    cli.edit("policy: incremental", f"buffer: {said}")
    cli.good("capture", "--disk", "0", "--query", "first", "--query", "of_groups")
    for name in ("first", "of_groups"):
        assert not bounded(cli.folder, name)
        (top,) = (
            one for one in cli.one("explain", "--query", name)["buffers"] if one["name"] == "top0"
        )
        size = None if said == "all" else 5000
        told = (top["buffer"], top["reason"], bool(top["chosen"]))
        assert told == (size, "as set by `buffer`", False)


def test_plan_explain_and_history_tell_what_is_bounded(few: Cli) -> None:
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
    told = few.text("plan", "--query", "first", "--disk", "0")
    assert "state top0: bounded to the best 8 (now kept), " in told
    change_best(few.folder, random.Random(2), 0)
    few.good("maintain", "--disk", "0", "--query", "first")
    assert bounded(few.folder, "first") == {"top0": 8}
    top = explained()
    assert (top["mode"], top["buffer"], top["chosen"]) == ("bounded", 8, True)
    assert top["state_bytes"] < piece["kept_bytes"]
    assert top["reason"] == "no change exhausts it"
    told = few.text("explain", "--query", "first")
    assert "first rows and values top0 (t): bounded to the best 8, " in told
    runs = few.one("status", "--query", "first")["runs"]
    (conversion,) = (one for one in runs if one["action"] == "convert")
    assert conversion["reason"].startswith("top0 bounded to the best 8: ")
    piece = planned()
    expected = ("bounded", "bounded", top["state_bytes"])
    assert (piece["mode"], piece["now"], piece["bytes"]) == expected


@pytest.mark.slow
def test_first_rows_of_older_stores_wait_for_a_capture(few: Cli, monkeypatch: MonkeyPatch) -> None:
    """Nothing of it says how many groups they have; values of MIN and MAX have groups counted."""
    cli, tmp_path = few, few.folder
    names = ("--query", "first", "--query", "ends")
    with monkeypatch.context() as older:
        older.setattr(capture, "buffer_groups", lambda state: {})
        cli.good("capture", *names)
    change_best(tmp_path, random.Random(2), 0)
    cli.good("maintain", "--disk", "0", *names)
    assert bounded(tmp_path, "ends").keys() == {"aggregate0"}
    assert not bounded(tmp_path, "first")
    (top,) = cli.one("explain", "--query", "first")["buffers"]
    assert top["reason"].endswith("unknown until the next capture")
    cli.good("capture", "--disk", "0", *names)
    assert bounded(tmp_path, "first").keys() == {"top0"}


@pytest.mark.parametrize(
    ("wanted", "lost", "now", "size"),
    [
        *((1, 0.0, None, 8), (9, 0.0, None, 16)),
        # Ten in the mean, and three times their root.
        *((1, 10.0, None, 32), (1, 1e6, None, 1000)),
        # A top-k that wants more than that has as many, whatever is said.
        (5000, 1e6, None, 5000),
        # It stays while it is enough and not four times too much.
        *((1, 10.0, 21, 21), (1, 10.0, 20, 32), (1, 0.0, 32, 32), (1, 0.0, 33, 8)),
    ],
)
def test_how_much_is_kept(wanted: int, lost: float, now: int | None, size: int) -> None:
    assert size_for(wanted, lost, now) == size


@pytest.mark.parametrize(("deleted", "spare"), [(0.5, 4), (0.5, 8), (0.8, 8), (1.0, 8)])
def test_a_refill_is_as_likely_as_a_buffer_is_used_up(deleted: float, spare: int) -> None:
    """A buffer that loses and gains one at random, never has more than twice what is to spare, and
    is filled again when that is lost."""
    rng, held, refills, steps = random.Random(7), spare, 0, 50_000
    for _ in range(steps):
        held += -1 if rng.random() < deleted else 1
        held = min(held, 2 * spare)
        refills += held == 0
        held = held or spare
    result = chance_of_refill(0.01, deleted, spare) / 0.01
    assert refills / steps / 2 < result < refills / steps * 2
    assert chance_of_refill(1e9, deleted, spare) == 1.0
    assert chance_of_refill(1e9, 0.0, spare) == 0.0


BY_TYPE = (*(f"by_{key}" for key in KEYS), "exists", "beside")
OTHERS = ("by_two", "alone", "keyed", "once", "inside", "above", "first")
READ = {n: "distinct0" if n in ("once", "above", "exists") else "aggregate0" for n in GROUPINGS}
"""The grouping of each query that is read."""

Make = Callable[[Iterable[str]], Cli]


@pytest.fixture
def make(tmp_path: Path, capsys: Capsys) -> Make:
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
        pytest.param(BY_TYPE, [(0, 1)], id="types"),
        pytest.param(GROUPINGS, [(0,), (1,), (2,), (3,)], id="all", marks=pytest.mark.long),
    ],
)
def test_groups_by_every_type_of_key_are_found_in_files(
    make: Make, tmp_path: Path, names: Iterable[str], turns: list[tuple[int, ...]]
) -> None:
    """Read from the first capture on, by a filter of keys that came while it was filled."""
    cli = make(names)
    assert {r["mode"] for r in cli.good("capture", "--disk", "0").results} == {"exact"}
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
        pytest.param(("keyed", "above", "first"), [0], 1, id="few"),
        pytest.param(OTHERS, [0], 1, id="others", marks=pytest.mark.slow),
        pytest.param(GROUPINGS, [0, 2, 4], 3, id="all", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_groups_go_and_come_back_and_no_sketch_notices(
    make: Make, tmp_path: Path, monkeypatch: MonkeyPatch, names: Any, turns: Any, more: int
) -> None:
    # What is kept again is read in parts, which no group's rows may be spread over.
    monkeypatch.setattr(rows, "BATCH_ROWS", 3)
    monkeypatch.setattr(fill, "read_batches", partial(rows.read_batches, least=3))
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

    def planned(query: str = "by_s") -> dict[str, dict[str, Any]]:
        state = cli.one("plan", "--query", query, "--disk", "0")["state"]
        return {one["name"]: one for one in state}

    before = cli.captured().one("explain", "--query", "by_s")
    assert {one["name"]: one["mode"] for one in before["groups"]} == {"aggregate0": "kept"}
    told = planned()["aggregate0"]
    assert (told["mode"], told["now"]) == ("read", "kept")
    assert 0 <= told["bytes"] < told["kept_bytes"]
    change(tmp_path, random.Random(1), 0)
    maintained(cli, tmp_path, ["by_s"], "--disk", "0")
    after = cli.one("explain", "--query", "by_s")
    assert how_it_groups(before) == "stores a row per group and counts per group and range"
    assert how_it_groups(after).startswith("reads the rows of changed groups, stores a filter")
    (groups,) = after["groups"]
    assert (groups["mode"], groups["tables"]) == ("read", ["t", "u"])
    assert f"aggregate0: {groups['reason']}" in latest(cli, "by_s")["reason"]
    again = planned()["aggregate0"]
    # What they took is remembered, for the day when there is room.
    assert again["now"] == "read"
    assert told["kept_bytes"] // 2 < again["kept_bytes"] < 2 * told["kept_bytes"]
    assert {one["mode"] for one in planned("by_s_kept").values()} == {"kept"}


def latest(cli: Cli, query: str) -> dict[str, Any]:
    return cli.one("status", "--query", query)["runs"][0]


def test_ranges_of_a_query_whose_groups_are_read_are_mended(cli_of: CliOf) -> None:
    """Of groups that are kept the state is derived; of those that are read it is made anew."""
    sql = "SELECT x, COUNT(*) n FROM t GROUP BY x HAVING COUNT(*) > 1"
    queries = {"q": sql, "twin": {"sql": sql, "join": "index"}}
    workload = {"partitions": {"t": {"x": {"ranges": 12}}}, "queries": queries}
    cli = cli_of(workload, t=spread_rows(0, 60)).captured()
    cli.append("t", spread_rows(60, 150))
    cli.good("maintain", "--disk", "0", "--imbalance", "2")
    assert read_pieces(cli.folder, "q") == ["aggregate0"]
    mended = {r["query"]: r["reason"] for r in cli.good("capture", "--rebalance").results}
    assert "recaptured" in mended["q"]
    assert "derived" in mended["twin"]
    assert read_pieces(cli.folder, "q") == ["aggregate0"]
    for low in (30, 140):
        cli.append("t", spread_rows(low, low + 20))
        cli.table("t").delete(f"x = {low + 3}")
        assert {r["action"] for r in cli.good("maintain").results} == {"exact"}
        assert ranges(cli.folder, "q") == ranges(cli.folder, "twin")


def spread_rows(low: int, high: int) -> pa.Table:
    rng = random.Random(low)
    return pa.table({"x": pa.array(rng.choices(range(low, high), k=4 * (high - low)), pa.int64())})


@pytest.mark.slow
def test_a_capture_fills_groups_and_then_reads_them_again(make: Make, tmp_path: Path) -> None:
    """Partial aggregates go into kept groups, so that captures of one table's groups keep them."""
    cli = make(["alone", "by_s"])
    for query in ((), ("--query", "alone")):
        cli.good("capture", *query, "--disk", "0")
        assert "aggregate0" in read_pieces(tmp_path, "alone")
        assert latest(cli, "alone")["action"] == "convert"
    cli.good("capture", "--query", "by_s", "--disk", "0")
    assert latest(cli, "by_s")["action"] != "convert"


@pytest.mark.slow
def test_state_whose_groups_can_no_longer_be_read_is_recaptured(make: Make, tmp_path: Path) -> None:
    """As where another release reads fewer groupings: without rows groups would count as empty."""
    cli = make(["by_i"]).captured()
    describe(tmp_path, "by_i", from_files=["aggregate7"])
    change(tmp_path, random.Random(1), 0)
    result = cli.by_query("maintain")["by_i"]
    assert (result["action"], result["reason_code"]) == ("recapture", "engine_changed")
    assert "from_files" not in stored(tmp_path, "by_i").state_meta
