"""Recursive queries with `provenance: absorption`, from capture to `why`, and their state."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from msgspec import Struct

from impctl.service import memory_limit
from impctl.service.memory_limit import too_large
from impctl.store import states
from tests.behaviour.recursive_workload import (
    KEPT,
    QUERIES,
    SHIPS,
    Both,
    all_by_duckdb,
    answers,
    asking,
    by_duckdb,
    change,
    changed,
    check_functions,
    fast_by,
    gone_by_duckdb,
    network,
    ranges,
    some_links,
    through_sketches,
)
from tests.crash.processes import ran
from tests.support.diagrams import take_away, with_diagrams
from tests.support.random_cases import random_cases, random_seeds
from tests.support.run_cli import Capsys, Cli, Ran


def both(folder: Path, capsys: Capsys, ship: str, names: Sequence[str] = (*QUERIES,)) -> Both:
    return Both(network(folder, capsys, names), SHIPS[ship])


def seeds_by_ship(ship: str) -> pytest.MarkDecorator:
    """Parametrizes `seed` and `ship`: this one, and in `make check` both, with other changes."""
    more = [pytest.param(*pair, marks=pytest.mark.slow) for pair in ((1, "lazy"), (2, "eager"))]
    return pytest.mark.parametrize(("seed", "ship"), [(0, ship), *more])


@pytest.mark.slow
@with_diagrams
@seeds_by_ship("lazy")
def test_all_is_the_same_as_by_ranks(tmp_path: Path, capsys: Capsys, seed: int, ship: str) -> None:
    pair, rng = both(tmp_path, capsys, ship), random.Random(seed)
    pair.good("capture")
    for _ in range(3):
        change(tmp_path, rng)
        own, by_ranks = pair.good("maintain")
        for one, other in zip(own, by_ranks, strict=True):
            assert one["action"] == other["action"], one
            assert (one["added"], one["removed"]) == (other["added"], other["removed"]), one
            assert one["action"] in ("exact", "none"), one
    assert ranges(pair.cli) == ranges(pair.ranks)
    expected = all_by_duckdb(pair.cli, QUERIES)
    assert through_sketches(pair.cli, QUERIES) == expected
    assert answers(pair.cli, KEPT, "--by", "state") == expected[KEPT]


TIMED = """\
version: 1
tables: {legs: {path: legs}}
partitions: {legs: {price: {boundaries: [1, 2, 3]}}}
store: .impctl
queries:
  days:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT dst FROM legs WHERE src = DATE '2026-01-01' UNION
      SELECT l.dst FROM r JOIN legs l ON r.n = l.src
      WHERE l.price > 0 AND l.ratio < 9 AND l.seen > TIMESTAMP '2025-01-01' AND l.name <> 'x')
      SELECT n FROM r
    sketch: {legs: price}
    provenance: absorption
"""


@with_diagrams
def test_values_are_told_as_the_table_has_them(tmp_path: Path, capsys: Capsys) -> None:
    days = [date(2026, 1, day) for day in range(1, 6)]
    schema = pa.schema(
        {
            "src": pa.date32(),
            "dst": pa.date32(),
            "price": pa.decimal128(9, 2),
            "ratio": pa.float64(),
            "seen": pa.timestamp("us", "UTC"),
            "name": pa.string(),
        }
    )
    columns = [
        [days[0], days[1], days[2], days[0]],
        [days[1], days[2], days[3], days[4]],
        [*map(Decimal, ("1.50", "2.25", "0.01", "3"))],
        [0.5, float("-inf"), 0.1, 8.0],
        [datetime(2026, 1, 1, 12, 0, 1)] * 4,
        ["a", "b", "c", None],
    ]
    write_deltalake(str(tmp_path / "legs"), pa.table(columns, schema=schema))
    state = Cli.over(capsys, tmp_path, TIMED, "state.yaml").captured()
    other = TIMED.replace("provenance: absorption", "").replace(".impctl", ".other")
    tables = Cli.over(capsys, tmp_path, other, "tables.yaml").captured()

    def told(*words: str) -> list[dict[str, Any]]:
        result = [one.one("why", *words) for one in (state, tables)]
        assert [one["by"] for one in result] == ["state", "engine"]
        return result

    by_state, by_engine = told("--row", "n=2026-01-04")
    assert by_state["rows"] == by_engine["rows"]
    assert len(by_state["rows"]) == 3
    for condition in (
        *("legs: price = 2.25", "legs: price < 1.5", "legs: src >= DATE '2026-01-02'"),
        *("legs: seen < TIMESTAMP '2026-01-02' AND ratio < 0", "legs: name = 'a'"),
    ):
        by_state, by_engine = told("--without", condition)
        assert changed(by_state) == changed(by_engine)
        assert by_state["rows"], condition


@with_diagrams
@seeds_by_ship("eager")
def test_why_by_state_equals_by_tables(
    tmp_path: Path, capsys: Capsys, seed: int, ship: str
) -> None:
    pair, rng = both(tmp_path, capsys, ship), random.Random(seed)
    write_deltalake(str(tmp_path / "links"), some_links(rng, 60), mode="append")
    pair.good("capture")
    change(tmp_path, rng)
    seen: Counter[str] = Counter()
    for name, column in (("reach", "n"), ("from_one", "y")):
        every = sorted(answers(pair.cli, name), key=repr)
        for (value,) in rng.sample(every, min(len(every), 4 if seed else 2)):
            row = f"{column}={'NULL' if value is None else value}"
            (own,), (other,) = pair.good("why", "--query", name, "--row", row)
            assert (own["by"], other["by"]) == ("state", "engine")
            assert own["files_kept"] == 0 < other["files_kept"]
            assert (own["files_total"], own["row"]) == (other["files_total"], other["row"])
            assert other["claim"] == "smallest"
            assert (own["claim"], own["row_count"]) == (other["claim"], other["row_count"])
            assert own["lineage"] == other["lineage"]
            seen[name] += own["row_count"] > 1
    assert len(seen) == 2, seen
    conditions = ("links: src = 8", "links: dst < 12", "links: src = 7 OR src IS NULL")
    for at, name in enumerate(QUERIES):
        told = name != "not_reached" and name != "by_groups"
        # Each query with one condition, each condition with two queries.
        condition = conditions[(at + seed) % 3]
        (own,), (other,) = pair.good("why", "--query", name, "--without", condition)
        assert changed(own) == changed(other), (name, condition)
        assert own["by"] == ("state" if told else "engine"), name
        seen["gone"] += len(own["rows"])
    assert seen["gone"]


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize("ship", SHIPS)
def test_explain_and_status_name_how_it_is_kept(tmp_path: Path, capsys: Capsys, ship: str) -> None:
    """Of what is captured, and explain before, too."""
    pair = both(tmp_path, capsys, ship, [KEPT])
    for _ in range(2):
        own, by_ranks = pair.good("explain")
        for one, other in zip(own, by_ranks, strict=True):
            assert (one["provenance"], other["provenance"]) == (ship, None)
            (line,) = (line for line in one["plan"] if line["operator"] == "fixpoint")
            assert f"provenance by absorption, {ship}" in line["why"]
        pair.good("capture")
    own, by_ranks = pair.good("status")
    assert {one["provenance"] for one in own} == {ship}
    assert {one["provenance"] for one in by_ranks} == {None}


@with_diagrams
def test_too_many_nodes_at_a_capture(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach", "from_one"])
    links = some_links(random.Random(3), 900)
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    asking(cli, "{kind: absorption, ship: eager, nodes: 200}", "strict")
    refused = cli("capture")
    assert refused.refusal == (3, "provenance_too_large")
    assert "ship: lazy" in refused.error["hint"]
    cli.edit("strict", "auto")
    assert "[provenance_too_large]" in warned(cli.good("capture"))
    for result in cli.good("status").results:
        assert (result["mode"], result["provenance"]) == ("exact", "given_up")
    for result in cli.good("explain").results:
        assert result["provenance"] == "given_up"
        assert "by ranks" in result["reason"]
    change(tmp_path, random.Random(3))
    assert cli.actions() == {"exact"}, "a state by ranks goes on as it is"
    assert answers(cli, "reach") == by_duckdb(cli, QUERIES["reach"])
    value = next(one for (one,) in answers(cli, "reach") if one is not None)
    assert cli.one("why", "--query", "reach", "--row", f"n={value}")["by"] == "engine"


def warned(ran: Ran) -> str:
    """The first warning that no provenance is stored."""
    warnings: list[str] = ran.document["warnings"]
    return next(one for one in warnings if "no provenance is stored for query" in one)


@with_diagrams
def test_too_many_nodes_at_a_change(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    asking(cli, "{kind: absorption, ship: eager, nodes: 3000}", "strict")
    cli.good("capture")
    before = ranges(cli)
    links = some_links(random.Random(3), 900)
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    refused = cli("maintain")
    assert refused.code == 3, refused.document
    assert "provenance_too_large" in str(refused.document)
    assert ranges(cli) == before, "the store stays as it was"
    recaptured = cli.good("maintain", "--policy", "auto")
    outcomes = {(result["action"], result["reason_code"]) for result in recaptured.results}
    assert outcomes == {("recapture", "provenance_too_large")}
    assert warned(recaptured)
    assert answers(cli, "reach") == by_duckdb(cli, QUERIES["reach"])


@pytest.mark.parametrize(
    ("name", "what"),
    [("walks", "UNION ALL"), ("cheapest", "best rows"), ("plain", "no WITH RECURSIVE")],
)
def test_what_cannot_be_is_refused(tmp_path: Path, capsys: Capsys, name: str, what: str) -> None:
    cli = network(tmp_path, capsys, ["reach" if name == "plain" else name])
    asking(cli, "absorption")
    if name == "plain":
        cli.edit(QUERIES["reach"], "SELECT src, dst FROM links WHERE src = 7")
    refused = cli("capture")
    assert refused.refusal == (3, "no_provenance")
    assert what in refused.error["message"]


def test_a_missing_package_is_named(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    asking(cli, "absorption")
    take_away(monkeypatch)
    explained = cli.good("explain")
    assert explained.results[0]["provenance"] == "lazy"
    refused = cli("capture")
    assert refused.refusal == (2, "extra_missing")
    # Who looks before hears the same.
    (warning,) = cli.good("check").document["warnings"]
    assert explained.document["warnings"] == [warning]
    message, hint = refused.error["message"], refused.error["hint"]
    assert warning == f"`reach` cannot be captured here: {message}; {hint} [extra_missing]"
    (result,) = (one for one in cli("doctor").results if one["check"] == "extras")
    assert (result["level"], result["exit_code"]) == ("problem", 2)
    assert (result["message"], result["fix"]) == (message, hint)


@with_diagrams
def test_with_the_package_nothing_is_said_of_it(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    assert not [one for one in cli("doctor").results if one["check"] == "extras"]
    asking(cli, "absorption")
    for command in ("check", "explain"):
        assert cli.good(command).document["warnings"] == []
    (result,) = (one for one in cli("doctor").results if one["check"] == "extras")
    assert result["level"] == "ok"


def test_nothing_is_said_unasked(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    take_away(monkeypatch)
    for command in ("check", "explain"):
        assert cli.good(command).document["warnings"] == []
    assert not [one for one in cli("doctor").results if one["check"] == "extras"]


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize("ship", ["lazy", "eager"])
def test_only_changes_and_captures_need_the_package(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, ship: str
) -> None:
    cli = both(tmp_path, capsys, ship, [KEPT]).cli
    cli.good("capture")
    take_away(monkeypatch)
    assert answers(cli, KEPT) == by_duckdb(cli, QUERIES[KEPT])
    assert cli.good("status").results
    change(tmp_path, random.Random(2))
    assert cli("maintain").refusal == (2, "extra_missing")


TOLD = (KEPT, "of_seeds", "from_one")
"""Of these `why` tells from the state what would go."""
LEFT_OUT = "src = 7 OR src = 13 OR dst < 9"


def check(both: Both) -> None:
    """What is stored and told of all is right, at the newest versions."""
    assert ranges(both.cli) == ranges(both.ranks)
    assert {one["provenance"] for one in both.cli.good("status").results} <= {*SHIPS}
    expected = all_by_duckdb(both.cli, {name: QUERIES[name] for name in TOLD})
    assert through_sketches(both.cli, TOLD) == expected
    assert answers(both.cli, KEPT, "--by", "state") == expected[KEPT]
    assert check_functions(both.cli, TOLD, LEFT_OUT)


@pytest.mark.long
@pytest.mark.slow
@fast_by("lazy")
@random_seeds(1, 1, 6)
def test_changes_by_own_processes(
    tmp_path: Path, capsys: Capsys, provenance: str, seed: int
) -> None:
    both, rng = Both(network(tmp_path, capsys, TOLD), provenance), random.Random(seed)
    assert ran(both.cli.workload, "capture").code == 0
    both.ranks.good("capture")
    for _ in range(2):
        change(tmp_path, rng)
        done = ran(both.cli.workload, "maintain")
        assert done.code == 0, done.document
        assert {one["action"] for one in done.document["results"]} <= {"exact", "none"}
        both.ranks.good("maintain")
        assert ranges(both.cli) == ranges(both.ranks)
    check(both)


@pytest.mark.slow
@fast_by("lazy")
def test_ranges_made_anew_from_the_state(tmp_path: Path, capsys: Capsys, provenance: str) -> None:
    cli = network(tmp_path, capsys, TOLD)
    text = cli.workload.read_text()
    start = text.index("{boundaries")
    end = text.index("}", start) + 1
    cli.workload.write_text(text[:start] + "{ranges: 10}" + text[end:])
    both, rng = Both(cli, provenance), random.Random(8)
    both.good("capture")
    # Many links of nodes that there were none of. They end in nodes that no link starts in: whole
    # functions of circles would be large.
    sources = [60 + rng.randrange(60) for _ in range(200)]
    targets = [1000 + rng.randrange(90) for _ in sources]
    ways = {"src": [7, 13, 7, *sources], "dst": [61, 63, 65, *targets]}
    write_deltalake(str(tmp_path / "links"), pa.table(ways), mode="append")
    both.good("maintain")
    rebalanced = both.good("capture", "--rebalance")
    assert [one["action"] for some in rebalanced for one in some] == ["rebalance"] * 2 * len(TOLD)
    assert ranges(both.cli) == ranges(both.ranks)
    change(tmp_path, rng)
    assert {one["action"] for one in both.good("maintain")[0]} <= {"exact", "none"}
    check(both)


def check_followed(folder: Path, capsys: Capsys, provenance: str, *then: str) -> None:
    """Captured and maintained twice, each time followed by such a command."""
    both, rng = Both(network(folder, capsys, TOLD), provenance), random.Random(4)
    both.good("capture")
    for _ in range(2):
        change(folder, rng)
        both.good("maintain")
        both.cli.good(*then)
    check(both)


@fast_by("eager")
def test_with_the_least_state(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    """Nothing of it is read from tables instead: numbers of rows are nowhere else."""
    monkeypatch.setenv("IMPCTL_DISK", "0")
    check_followed(tmp_path, capsys, provenance, "status")


@pytest.mark.slow
@fast_by("lazy")
def test_what_gc_collects_is_no_part_of_it(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    check_followed(tmp_path, capsys, provenance, "gc", "--keep", "1")


class _Memory(Struct, dict=True):
    """Enough for so many batches."""

    batches: int
    bytes: int | None = None

    def check(self, more: int = 0) -> None:
        self.batches -= 1
        if self.batches < 0:
            raise too_large(10**6)


@pytest.mark.slow
@fast_by("eager")
def test_a_capture_short_of_memory_goes_on_by_ranks_and_says_so(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    both = Both(network(tmp_path, capsys, [KEPT]), provenance)
    limits: Iterator[_Memory] = iter([_Memory(0)])
    with monkeypatch.context() as patch:
        patch.setattr(memory_limit, "MemoryLimit", lambda _: next(limits, _Memory(10**9)))
        captured = both.cli.good("capture")
    assert "[memory_exceeded]" in warned(captured)
    status = both.cli.one("status")
    assert (status["mode"], status["provenance"]) == ("exact", "given_up")
    both.ranks.good("capture")
    change(tmp_path, random.Random(3))
    own, _ = both.good("maintain")
    assert {one["action"] for one in own} == {"exact"}
    assert ranges(both.cli) == ranges(both.ranks)
    assert answers(both.cli, KEPT, "--by", "state") == by_duckdb(both.cli, QUERIES[KEPT])
    why = both.cli.one("why", "--query", KEPT, "--without", f"links: {LEFT_OUT}")
    assert why["by"] == "engine"
    assert changed(why) == gone_by_duckdb(both.cli, QUERIES[KEPT], LEFT_OUT) != Counter()
    both.cli.good("capture")
    check_functions(both.cli, [KEPT], LEFT_OUT)


# Damage.


def spoil_row(store: Path, draw: random.Random) -> None:
    """One bit of a run of state that lies in the catalog."""
    with sqlite3.connect(store / "catalog.sqlite") as connection:
        rows = connection.execute("SELECT arrangement, sequence, content FROM run").fetchall()
        arrangement, sequence, content = draw.choice(sorted(rows))
        connection.execute(
            "UPDATE run SET content = ? WHERE arrangement = ? AND sequence = ?",
            (spoiled(content, draw), arrangement, sequence),
        )
    connection.close()


def spoil_file(store: Path, draw: random.Random) -> None:
    """One bit of a run of state that is a file."""
    file = draw.choice(sorted((store / "state").iterdir()))
    file.write_bytes(spoiled(file.read_bytes(), draw))


def spoiled(content: bytes, draw: random.Random) -> bytes:
    result = bytearray(content)
    result[draw.randrange(len(result))] ^= 1 << draw.randrange(8)
    return bytes(result)


def is_right_or_refused(ran_: Ran, seen: Counter[str], what: str) -> bool:
    """Whether it went well; else it must say that the state is damaged."""
    seen[what] += 1
    if ran_.code == 0:
        return True
    codes = {ran_.error["code"], *(one["code"] for one in ran_.document.get("failures", []))}
    assert (ran_.code, codes) == (7, {"state_corrupt"}), (what, ran_.document)
    seen[f"{what} refused"] += 1
    return False


def ask(cli: Cli, seen: Counter[str]) -> None:
    """What `why` and `query` tell is right, or nothing is told."""
    words = ("why", "--query", KEPT, "--without", f"links: {LEFT_OUT}")
    if is_right_or_refused(asked := cli(*words), seen, "without"):
        (result,) = asked.results
        assert changed(result) == gone_by_duckdb(cli, QUERIES[KEPT], LEFT_OUT)
        seen[f"without by {result['by']}"] += 1
    nodes = [node for (node,) in by_duckdb(cli, QUERIES[KEPT]) if isinstance(node, int)]
    asked = cli("why", "--query", KEPT, "--row", f"n={max(nodes)}")
    if is_right_or_refused(asked, seen, "row"):
        (result,) = asked.results
        links = [one["row"] for one in result["rows"]]
        ways = {end: [one[end] for one in links] for end in ("src", "dst")}
        with duckdb.connect() as connection:
            connection.register("links", pa.table(ways))
            over = connection.execute(QUERIES[KEPT]).fetchall()
        assert (max(nodes),) in over, "what is told derives the row"
        seen[f"row by {result['by']}"] += 1
    if is_right_or_refused(asked := cli("query", "--query", KEPT), seen, "query"):
        (result,) = asked.results
        assert Counter(map(tuple, result["rows"])) == by_duckdb(cli, QUERIES[KEPT])


CASES = [
    pytest.param(
        SHIPS[ship],
        is_file,
        id=f"{ship}-{'files' if is_file else 'catalog'}",
        marks=pytest.mark.long if (ship == "lazy") == is_file else (),
    )
    for ship in SHIPS
    for is_file in (False, True)
]


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize(("provenance", "is_file"), CASES)
@random_cases(1, 2, 40)
def test_a_damaged_state_tells_nothing_wrong(
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    provenance: str,
    cases: range,
    *,
    is_file: bool,
) -> None:
    monkeypatch.setattr(states, "BLOB_LIMIT", 0 if is_file else 1 << 30)
    cli = network(tmp_path, capsys, [KEPT])
    asking(cli, provenance)
    cli.good("capture")
    for seed in range(2):
        change(tmp_path, random.Random(seed))
        cli.good("maintain")
    store, whole = tmp_path / ".impctl", tmp_path / "whole"
    shutil.copytree(store, whole)
    seen: Counter[str] = Counter()
    for is_behind in (False, True):
        if is_behind:
            more = some_links(random.Random(2), 40)
            write_deltalake(str(tmp_path / "links"), more, mode="append")
        for seed in cases:
            draw = random.Random(seed)
            shutil.rmtree(store)
            shutil.copytree(whole, store)
            (spoil_file if is_file else spoil_row)(store, draw)
            if is_behind:
                is_right_or_refused(cli("maintain"), seen, "maintain")
            ask(cli, seen)
            if is_behind:
                cli.good("maintain", "--policy", "auto")
                ask(cli, seen)
    assert seen["maintain refused"] > len(cases) // 4, seen


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@with_diagrams
def test_spark_derives_what_was_maintained(tmp_path: Path, capsys: Capsys) -> None:
    """One query of each way to ship functions."""
    names = dict(zip((KEPT, "from_one"), SHIPS.values(), strict=True))
    cli = network(tmp_path, capsys, [*names])
    lines = cli.workload.read_text().splitlines()
    for name, provenance in names.items():
        (at,) = (at for at, line in enumerate(lines) if line.startswith(f"  {name}:"))
        lines[at] = lines[at].replace("lineage: all", f"provenance: {provenance}, lineage: all")
    cli.workload.write_text("\n".join(lines) + "\n")
    cli.good("capture")
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    assert {one["provenance"] for one in cli.good("status").results} == {*SHIPS}
    match = {result["query"]: result["answer_equal"] for result in cli.verified()}
    assert match == {name: True if name == KEPT else None for name in names}
