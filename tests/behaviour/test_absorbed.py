"""Recursive queries with `provenance: absorption`: capture, maintenance, `why` and state."""

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
    MATERIALIZED,
    QUERIES,
    SHIPS,
    Both,
    all_by_duckdb,
    answers,
    by_duckdb,
    change,
    change_counts,
    check_removals,
    fast_by,
    network,
    ranges,
    removed_by_duckdb,
    set_provenance,
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
    """Parametrizes `seed` and `ship`; the slow cases use both modes and other seeds."""
    more = [pytest.param(*pair, marks=pytest.mark.slow) for pair in ((1, "lazy"), (2, "eager"))]
    return pytest.mark.parametrize(("seed", "ship"), [(0, ship), *more])


@pytest.mark.slow
@with_diagrams
@seeds_by_ship("lazy")
def test_maintenance_matches_ranks(tmp_path: Path, capsys: Capsys, seed: int, ship: str) -> None:
    pair, rng = both(tmp_path, capsys, ship), random.Random(seed)
    pair.good("capture")
    for _ in range(3):
        change(tmp_path, rng)
        by_absorption, by_ranks = pair.good("maintain")
        for one, other in zip(by_absorption, by_ranks, strict=True):
            assert one["action"] == other["action"], one
            assert (one["added"], one["removed"]) == (other["added"], other["removed"]), one
            assert one["action"] in ("exact", "none"), one
    assert ranges(pair.cli) == ranges(pair.ranks)
    expected = all_by_duckdb(pair.cli, QUERIES)
    assert through_sketches(pair.cli, QUERIES) == expected
    assert answers(pair.cli, MATERIALIZED, "--by", "state") == expected[MATERIALIZED]


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
def test_why_reports_values_of_all_types(tmp_path: Path, capsys: Capsys) -> None:
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

    def why(*words: str) -> list[dict[str, Any]]:
        result = [one.one("why", *words) for one in (state, tables)]
        assert [one["by"] for one in result] == ["state", "engine"]
        return result

    by_state, by_engine = why("--row", "n=2026-01-04")
    assert by_state["rows"] == by_engine["rows"]
    assert len(by_state["rows"]) == 3
    for condition in (
        *("legs: price = 2.25", "legs: price < 1.5", "legs: src >= DATE '2026-01-02'"),
        *("legs: seen < TIMESTAMP '2026-01-02' AND ratio < 0", "legs: name = 'a'"),
    ):
        by_state, by_engine = why("--without", condition)
        assert change_counts(by_state) == change_counts(by_engine)
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
    counts: Counter[str] = Counter()
    for name, column in (("reach", "n"), ("from_one", "y")):
        values = sorted(answers(pair.cli, name), key=repr)
        for (value,) in rng.sample(values, min(len(values), 4 if seed else 2)):
            row = f"{column}={'NULL' if value is None else value}"
            (by_state,), (by_tables,) = pair.good("why", "--query", name, "--row", row)
            assert (by_state["by"], by_tables["by"]) == ("state", "engine")
            assert by_state["files_kept"] == 0 < by_tables["files_kept"]
            assert (by_state["files_total"], by_state["row"]) == (
                by_tables["files_total"],
                by_tables["row"],
            )
            assert by_tables["claim"] == "smallest"
            assert (by_state["claim"], by_state["row_count"]) == (
                by_tables["claim"],
                by_tables["row_count"],
            )
            assert by_state["lineage"] == by_tables["lineage"]
            counts[name] += by_state["row_count"] > 1
    assert len(counts) == 2, counts
    conditions = ("links: src = 8", "links: dst < 12", "links: src = 7 OR src IS NULL")
    for index, name in enumerate(QUERIES):
        is_stored = name != "not_reached" and name != "by_groups"
        # One condition for each query, two queries for each condition.
        condition = conditions[(index + seed) % 3]
        (by_state,), (by_tables,) = pair.good("why", "--query", name, "--without", condition)
        assert change_counts(by_state) == change_counts(by_tables), (name, condition)
        assert by_state["by"] == ("state" if is_stored else "engine"), name
        counts["gone"] += len(by_state["rows"])
    assert counts["gone"]


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize("ship", SHIPS)
def test_explain_and_status_show_provenance(tmp_path: Path, capsys: Capsys, ship: str) -> None:
    """`explain` shows it before the capture too."""
    pair = both(tmp_path, capsys, ship, [MATERIALIZED])
    for _ in range(2):
        by_absorption, by_ranks = pair.good("explain")
        for one, other in zip(by_absorption, by_ranks, strict=True):
            assert (one["provenance"], other["provenance"]) == (ship, None)
            (line,) = (line for line in one["plan"] if line["operator"] == "fixpoint")
            assert f"provenance by absorption, {ship}" in line["why"]
        pair.good("capture")
    by_absorption, by_ranks = pair.good("status")
    assert {one["provenance"] for one in by_absorption} == {ship}
    assert {one["provenance"] for one in by_ranks} == {None}


@with_diagrams
def test_too_many_nodes_at_capture(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach", "from_one"])
    links = some_links(random.Random(3), 900)
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    set_provenance(cli, "{kind: absorption, ship: eager, nodes: 200}", "strict")
    refused = cli("capture")
    assert refused.refusal == (3, "provenance_too_large")
    assert "ship: lazy" in refused.error["hint"]
    cli.edit("strict", "auto")
    assert "[provenance_too_large]" in provenance_warning(cli.good("capture"))
    for result in cli.good("status").results:
        assert (result["mode"], result["provenance"]) == ("exact", "given_up")
    for result in cli.good("explain").results:
        assert result["provenance"] == "given_up"
        assert "by ranks" in result["reason"]
    change(tmp_path, random.Random(3))
    assert cli.actions() == {"exact"}, "state by ranks is maintained as usual"
    assert answers(cli, "reach") == by_duckdb(cli, QUERIES["reach"])
    value = next(one for (one,) in answers(cli, "reach") if one is not None)
    assert cli.one("why", "--query", "reach", "--row", f"n={value}")["by"] == "engine"


def provenance_warning(ran: Ran) -> str:
    """The first warning about missing provenance."""
    warnings: list[str] = ran.document["warnings"]
    return next(one for one in warnings if "no provenance is stored for query" in one)


@with_diagrams
def test_too_many_nodes_at_change(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    set_provenance(cli, "{kind: absorption, ship: eager, nodes: 3000}", "strict")
    cli.good("capture")
    before = ranges(cli)
    links = some_links(random.Random(3), 900)
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    refused = cli("maintain")
    assert refused.code == 3, refused.document
    assert "provenance_too_large" in str(refused.document)
    assert ranges(cli) == before, "the store is unchanged"
    recaptured = cli.good("maintain", "--policy", "auto")
    outcomes = {(result["action"], result["reason_code"]) for result in recaptured.results}
    assert outcomes == {("recapture", "provenance_too_large")}
    assert provenance_warning(recaptured)
    assert answers(cli, "reach") == by_duckdb(cli, QUERIES["reach"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [("walks", "UNION ALL"), ("cheapest", "best rows"), ("plain", "no WITH RECURSIVE")],
)
def test_unsupported_is_refused(tmp_path: Path, capsys: Capsys, name: str, reason: str) -> None:
    cli = network(tmp_path, capsys, ["reach" if name == "plain" else name])
    set_provenance(cli, "absorption")
    if name == "plain":
        cli.edit(QUERIES["reach"], "SELECT src, dst FROM links WHERE src = 7")
    refused = cli("capture")
    assert refused.refusal == (3, "no_provenance")
    assert reason in refused.error["message"]


def test_missing_package_is_named(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    set_provenance(cli, "absorption")
    take_away(monkeypatch)
    explained = cli.good("explain")
    assert explained.results[0]["provenance"] == "lazy"
    refused = cli("capture")
    assert refused.refusal == (2, "extra_missing")
    # `check`, `explain` and `doctor` report the same beforehand.
    (warning,) = cli.good("check").document["warnings"]
    assert explained.document["warnings"] == [warning]
    message, hint = refused.error["message"], refused.error["hint"]
    assert warning == f"`reach` cannot be captured here: {message}; {hint} [extra_missing]"
    (result,) = (one for one in cli("doctor").results if one["check"] == "extras")
    assert (result["level"], result["exit_code"]) == ("problem", 2)
    assert (result["message"], result["fix"]) == (message, hint)


@with_diagrams
def test_no_warning_if_package_is_installed(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    assert not [one for one in cli("doctor").results if one["check"] == "extras"]
    set_provenance(cli, "absorption")
    for command in ("check", "explain"):
        assert cli.good(command).document["warnings"] == []
    (result,) = (one for one in cli("doctor").results if one["check"] == "extras")
    assert result["level"] == "ok"


def test_no_warning_if_unused(
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
def test_only_maintain_and_capture_need_package(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, ship: str
) -> None:
    cli = both(tmp_path, capsys, ship, [MATERIALIZED]).cli
    cli.good("capture")
    take_away(monkeypatch)
    assert answers(cli, MATERIALIZED) == by_duckdb(cli, QUERIES[MATERIALIZED])
    assert cli.good("status").results
    change(tmp_path, random.Random(2))
    assert cli("maintain").refusal == (2, "extra_missing")


WITH_STATE = (MATERIALIZED, "of_seeds", "from_one")
"""Queries whose state is enough for `why --without`."""
REMOVED_LINKS = "src = 7 OR src = 13 OR dst < 9"


def check(both: Both) -> None:
    """Check ranges, results and `why` at the newest versions."""
    assert ranges(both.cli) == ranges(both.ranks)
    assert {one["provenance"] for one in both.cli.good("status").results} <= {*SHIPS}
    expected = all_by_duckdb(both.cli, {name: QUERIES[name] for name in WITH_STATE})
    assert through_sketches(both.cli, WITH_STATE) == expected
    assert answers(both.cli, MATERIALIZED, "--by", "state") == expected[MATERIALIZED]
    assert check_removals(both.cli, WITH_STATE, REMOVED_LINKS)


@pytest.mark.long
@pytest.mark.slow
@fast_by("lazy")
@random_seeds(1, 1, 6)
def test_separate_processes(tmp_path: Path, capsys: Capsys, provenance: str, seed: int) -> None:
    both, rng = Both(network(tmp_path, capsys, WITH_STATE), provenance), random.Random(seed)
    assert ran(both.cli.workload, "capture").code == 0
    both.ranks.good("capture")
    for _ in range(2):
        change(tmp_path, rng)
        maintained = ran(both.cli.workload, "maintain")
        assert maintained.code == 0, maintained.document
        assert {one["action"] for one in maintained.document["results"]} <= {"exact", "none"}
        both.ranks.good("maintain")
        assert ranges(both.cli) == ranges(both.ranks)
    check(both)


@pytest.mark.slow
@fast_by("lazy")
def test_rebalance_from_the_state(tmp_path: Path, capsys: Capsys, provenance: str) -> None:
    cli = network(tmp_path, capsys, WITH_STATE)
    text = cli.workload.read_text()
    start = text.index("{boundaries")
    end = text.index("}", start) + 1
    cli.workload.write_text(text[:start] + "{ranges: 10}" + text[end:])
    both, rng = Both(cli, provenance), random.Random(8)
    both.good("capture")
    # Many links from new nodes. They end in nodes without outgoing links, because the functions
    # of cycles would be large.
    sources = [60 + rng.randrange(60) for _ in range(200)]
    targets = [1000 + rng.randrange(90) for _ in sources]
    new_links = {"src": [7, 13, 7, *sources], "dst": [61, 63, 65, *targets]}
    write_deltalake(str(tmp_path / "links"), pa.table(new_links), mode="append")
    both.good("maintain")
    rebalanced = both.good("capture", "--rebalance")
    assert [one["action"] for some in rebalanced for one in some] == ["rebalance"] * 2 * len(
        WITH_STATE
    )
    assert ranges(both.cli) == ranges(both.ranks)
    change(tmp_path, rng)
    assert {one["action"] for one in both.good("maintain")[0]} <= {"exact", "none"}
    check(both)


def check_interleaved(folder: Path, capsys: Capsys, provenance: str, *command: str) -> None:
    """Maintain twice, run the command each time, then check everything."""
    both, rng = Both(network(folder, capsys, WITH_STATE), provenance), random.Random(4)
    both.good("capture")
    for _ in range(2):
        change(folder, rng)
        both.good("maintain")
        both.cli.good(*command)
    check(both)


@fast_by("eager")
def test_with_minimal_state(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    """Provenance is not read from tables, because row numbers are only in the state."""
    monkeypatch.setenv("IMPCTL_DISK", "0")
    check_interleaved(tmp_path, capsys, provenance, "status")


@pytest.mark.slow
@fast_by("lazy")
def test_gc_keeps_provenance_state(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    check_interleaved(tmp_path, capsys, provenance, "gc", "--keep", "1")


class _Memory(Struct, dict=True):
    """A memory limit that is exceeded after some batches."""

    batches: int
    bytes: int | None = None

    def check(self, more: int = 0) -> None:
        self.batches -= 1
        if self.batches < 0:
            raise too_large(10**6)


@pytest.mark.slow
@fast_by("eager")
def test_capture_out_of_memory_falls_back_to_ranks(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, provenance: str
) -> None:
    both = Both(network(tmp_path, capsys, [MATERIALIZED]), provenance)
    limits: Iterator[_Memory] = iter([_Memory(0)])
    with monkeypatch.context() as patch:
        patch.setattr(memory_limit, "MemoryLimit", lambda _: next(limits, _Memory(10**9)))
        captured = both.cli.good("capture")
    assert "[memory_exceeded]" in provenance_warning(captured)
    status = both.cli.one("status")
    assert (status["mode"], status["provenance"]) == ("exact", "given_up")
    both.ranks.good("capture")
    change(tmp_path, random.Random(3))
    maintained, _ = both.good("maintain")
    assert {one["action"] for one in maintained} == {"exact"}
    assert ranges(both.cli) == ranges(both.ranks)
    assert answers(both.cli, MATERIALIZED, "--by", "state") == by_duckdb(
        both.cli, QUERIES[MATERIALIZED]
    )
    why = both.cli.one("why", "--query", MATERIALIZED, "--without", f"links: {REMOVED_LINKS}")
    assert why["by"] == "engine"
    assert (
        change_counts(why)
        == removed_by_duckdb(both.cli, QUERIES[MATERIALIZED], REMOVED_LINKS)
        != Counter()
    )
    both.cli.good("capture")
    check_removals(both.cli, [MATERIALIZED], REMOVED_LINKS)


# Damaged state.


def corrupt_row(store: Path, draw: random.Random) -> None:
    """Flip one bit of a state run in the catalog."""
    with sqlite3.connect(store / "catalog.sqlite") as connection:
        rows = connection.execute("SELECT arrangement, sequence, content FROM run").fetchall()
        arrangement, sequence, content = draw.choice(sorted(rows))
        connection.execute(
            "UPDATE run SET content = ? WHERE arrangement = ? AND sequence = ?",
            (flipped(content, draw), arrangement, sequence),
        )
    connection.close()


def corrupt_file(store: Path, draw: random.Random) -> None:
    """Flip one bit of a state file."""
    file = draw.choice(sorted((store / "state").iterdir()))
    file.write_bytes(flipped(file.read_bytes(), draw))


def flipped(content: bytes, draw: random.Random) -> bytes:
    result = bytearray(content)
    result[draw.randrange(len(result))] ^= 1 << draw.randrange(8)
    return bytes(result)


def is_accepted(ran_: Ran, counts: Counter[str], label: str) -> bool:
    """Whether the command succeeded; otherwise it must report damaged state."""
    counts[label] += 1
    if ran_.code == 0:
        return True
    codes = {ran_.error["code"], *(one["code"] for one in ran_.document.get("failures", []))}
    assert (ran_.code, codes) == (7, {"state_corrupt"}), (label, ran_.document)
    counts[f"{label} refused"] += 1
    return False


def check_queries(cli: Cli, counts: Counter[str]) -> None:
    """Check that `why` and `query` report correct rows or refuse."""
    arguments = ("why", "--query", MATERIALIZED, "--without", f"links: {REMOVED_LINKS}")
    if is_accepted(run := cli(*arguments), counts, "without"):
        (result,) = run.results
        assert change_counts(result) == removed_by_duckdb(cli, QUERIES[MATERIALIZED], REMOVED_LINKS)
        counts[f"without by {result['by']}"] += 1
    nodes = [node for (node,) in by_duckdb(cli, QUERIES[MATERIALIZED]) if isinstance(node, int)]
    run = cli("why", "--query", MATERIALIZED, "--row", f"n={max(nodes)}")
    if is_accepted(run, counts, "row"):
        (result,) = run.results
        links = [one["row"] for one in result["rows"]]
        columns = {end: [one[end] for one in links] for end in ("src", "dst")}
        with duckdb.connect() as connection:
            connection.register("links", pa.table(columns))
            derived = connection.execute(QUERIES[MATERIALIZED]).fetchall()
        assert (max(nodes),) in derived, "the reported rows derive the row"
        counts[f"row by {result['by']}"] += 1
    if is_accepted(run := cli("query", "--query", MATERIALIZED), counts, "query"):
        (result,) = run.results
        assert Counter(map(tuple, result["rows"])) == by_duckdb(cli, QUERIES[MATERIALIZED])


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
def test_damaged_state_is_detected(
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    provenance: str,
    cases: range,
    *,
    is_file: bool,
) -> None:
    monkeypatch.setattr(states, "BLOB_LIMIT", 0 if is_file else 1 << 30)
    cli = network(tmp_path, capsys, [MATERIALIZED])
    set_provenance(cli, provenance)
    cli.good("capture")
    for seed in range(2):
        change(tmp_path, random.Random(seed))
        cli.good("maintain")
    store, backup = tmp_path / ".impctl", tmp_path / "whole"
    shutil.copytree(store, backup)
    counts: Counter[str] = Counter()
    for is_behind in (False, True):
        if is_behind:
            more = some_links(random.Random(2), 40)
            write_deltalake(str(tmp_path / "links"), more, mode="append")
        for seed in cases:
            draw = random.Random(seed)
            shutil.rmtree(store)
            shutil.copytree(backup, store)
            (corrupt_file if is_file else corrupt_row)(store, draw)
            if is_behind:
                is_accepted(cli("maintain"), counts, "maintain")
            check_queries(cli, counts)
            if is_behind:
                cli.good("maintain", "--policy", "auto")
                check_queries(cli, counts)
    assert counts["maintain refused"] > len(cases) // 4, counts


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@with_diagrams
def test_maintained_rows_match_spark(tmp_path: Path, capsys: Capsys) -> None:
    """One query for each `ship` mode."""
    names = dict(zip((MATERIALIZED, "from_one"), SHIPS.values(), strict=True))
    cli = network(tmp_path, capsys, [*names])
    lines = cli.workload.read_text().splitlines()
    for name, provenance in names.items():
        (index,) = (index for index, line in enumerate(lines) if line.startswith(f"  {name}:"))
        lines[index] = lines[index].replace(
            "lineage: all", f"provenance: {provenance}, lineage: all"
        )
    cli.workload.write_text("\n".join(lines) + "\n")
    cli.good("capture")
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    assert {one["provenance"] for one in cli.good("status").results} == {*SHIPS}
    is_equal = {result["query"]: result["answer_equal"] for result in cli.verified()}
    assert is_equal == {name: True if name == MATERIALIZED else None for name in names}
