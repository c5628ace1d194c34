"""Recursive queries from capture to result, on real tables, compared with DuckDB and Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.sql.text import without_recursion_limits
from impctl.tables.write.maintenance import create_table
from tests.behaviour.recursive_workload import (
    BAGS,
    BARRIER,
    BEST,
    KEYED,
    MATERIALIZED,
    MATERIALIZED_OF_TENANTS,
    OF_CONSTANTS,
    PAIRS,
    QUERIES,
    REACH,
    SPARK_ONLY,
    Answer,
    actions_under_strict,
    all_by_duckdb,
    all_by_sqlite,
    all_lineage_ranges,
    all_tables,
    answers,
    by_duckdb,
    captured_in,
    change,
    change_tenants,
    check_answers,
    check_maintained,
    network,
    ranges,
    rewritten_queries,
    some_links,
    tenants,
    through_sketches,
)
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli


@random_seeds(1, 2, 12)
def test_maintained_sketches_equal_recaptures_and_give_correct_results(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Odd seeds store minimal state and reread the rest from tables."""
    if seed % 2:
        monkeypatch.setenv("IMPCTL_DISK", "0")
    queries = {**QUERIES, **OF_CONSTANTS}
    cli = network(tmp_path, capsys, [*queries])
    check_maintained(cli, change, seed, turns=2)
    expected = all_by_duckdb(cli, queries)
    assert through_sketches(cli, queries) == expected
    assert answers(cli, MATERIALIZED, "--by", "state") == expected[MATERIALIZED]
    rewritten = rewritten_queries(cli, QUERIES)
    for result in (all_by_duckdb(cli, rewritten), all_by_sqlite(cli, rewritten)):
        assert result == {name: expected[name] for name in rewritten}


def test_sketch_skips_unreachable_links(tmp_path: Path, capsys: Capsys) -> None:
    result = network(tmp_path, capsys, ["from_one"]).one("capture")
    range_ids = {range_id for one in result["sketches"] for range_id in one["ranges"]}
    assert len(range_ids) < 10, range_ids


def infinite_query(folder: Path, capsys: Capsys, name: str, more: str = "") -> Cli:
    """A query without its terminating condition."""
    cli = network(folder, capsys, [name])
    text = cli.workload.read_text().replace(" WHERE k < 3", "")
    cli.workload.write_text(text + more)
    return cli


def test_infinite_recursion_stores_nothing(tmp_path: Path, capsys: Capsys) -> None:
    cli = infinite_query(tmp_path, capsys, "levels", "limits: {rounds: 50}\n")
    # The links within a region form cycles.
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(3), 60), mode="append")
    ran = cli("capture")
    assert ran.refusal == (3, "recursion_limit")
    assert "raise `limits: {rounds: 50}` in the workload file" in ran.error["hint"]
    assert cli.one("status")["versions"] == {}
    cli.edit("rounds: 50", "rows: 7")
    assert "raise `limits: {rows: 7}` in the workload file" in cli("capture").error["hint"]


def chain_cli(tmp_path: Path, capsys: Capsys, name: str, *links: tuple[int, int]) -> Cli:
    """A query over these links only, without a depth condition."""
    cli = infinite_query(
        tmp_path, capsys, name, "limits: {rounds: 50}\n" if name == "levels" else ""
    )
    DeltaTable(str(tmp_path / "links")).delete()
    add_links(tmp_path, *links)
    return cli


def add_links(folder: Path, *links: tuple[int, int]) -> None:
    sources, targets = zip(*links, strict=True)
    rows = pa.table({"src": pa.array(sources, pa.int64()), "dst": pa.array(targets, pa.int64())})
    write_deltalake(str(folder / "links"), rows, mode="append")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "links", "closing_link"),
    [
        ("levels", [(7, 8), (8, 9), (9, 10)], (10, 7)),
        ("as_deep", [(19, 30), (30, 31), (31, 32)], (32, 30)),
    ],
)
def test_change_that_closes_a_cycle_leaves_store_unchanged(
    tmp_path: Path,
    capsys: Capsys,
    name: str,
    links: list[tuple[int, int]],
    closing_link: tuple[int, int],
) -> None:
    cli = chain_cli(tmp_path, capsys, name, *links).captured()
    before = ranges(cli)
    add_links(tmp_path, closing_link)
    assert cli("maintain").refusal == (3, "recursion_limit")
    assert ranges(cli) == before
    DeltaTable(str(tmp_path / "links")).delete(f"src = {closing_link[0]}")
    assert cli.actions() == {"exact"}
    if name == "as_deep":
        result = answers(cli, name, "--sketch", "always", "--by", "engine")
        assert result == {(1, 1): 1, (2, 1): 1, (3, 1): 1}


def test_exceeding_the_level_limit_stores_nothing(tmp_path: Path, capsys: Capsys) -> None:
    """The limit is 4."""
    links = [(19, 30), (30, 31), (31, 32), (32, 33), (33, 34)]
    cli = chain_cli(tmp_path, capsys, "as_deep", *links)
    ran = cli("capture")
    assert ran.refusal == (3, "recursion_limit")
    assert "4 levels" in ran.error["message"]
    assert cli.one("status")["versions"] == {}


def cheapest(cli: Cli, add: Callable[[int, int], int]) -> Answer:
    """The minimum cost from node 7 to each node, by Dijkstra's algorithm."""
    rows = all_tables(cli)["links"].to_pydict()
    targets: dict[object, set[int | None]] = {}
    for src, dst in zip(rows["src"], rows["dst"], strict=True):
        targets.setdefault(src, set()).add(dst)
    costs: dict[object, int] = {}
    queue = [(1, dst) for dst in targets.get(7, ())]
    while queue:
        index = min(range(len(queue)), key=lambda one: queue[one][0])
        cost, node = queue.pop(index)
        if node in costs:
            continue
        costs[node] = cost
        if node is not None:
            queue += [(add(cost, node % 3), dst) for dst in targets.get(node, ())]
    return Counter(costs.items())


@pytest.mark.slow
def test_best_rows_over_cycles(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, list(BEST))
    check_maintained(cli, change, 12, turns=3)
    result = through_sketches(cli, ("cheapest", "ways"))
    assert result["cheapest"] == cheapest(cli, lambda cost, more: cost + more)
    assert {node for node, _ in result["ways"]} == {node for node, _ in result["cheapest"]}


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_union_all_sketches_equal_recaptures(tmp_path: Path, capsys: Capsys, seed: int) -> None:
    cli = network(tmp_path, capsys, list(BAGS))
    check_maintained(cli, change, seed, turns=3)
    texts = {
        name: without_recursion_limits(sql).replace("LEFT SEMI", "SEMI")
        for name, sql in BAGS.items()
    }
    assert through_sketches(cli, BAGS) == all_by_duckdb(cli, texts)


TENANT_QUERIES = {**KEYED, **BARRIER}


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_keyed_sketches_equal_recaptures(tmp_path: Path, capsys: Capsys, seed: int) -> None:
    cli = tenants(tmp_path, capsys)
    check_maintained(cli, change_tenants, seed, turns=2)
    expected = all_by_duckdb(cli, TENANT_QUERIES)
    assert through_sketches(cli, TENANT_QUERIES) == expected
    assert (
        answers(cli, MATERIALIZED_OF_TENANTS, "--by", "state") == expected[MATERIALIZED_OF_TENANTS]
    )
    texts = {}
    for name in TENANT_QUERIES:
        result = cli.one("rewrite", "--query", name)
        assert result["runs_on_spark"] == (name == "paths")
        if not result["runs_on_spark"]:
            texts[name] = result["sql"]
    assert all_by_duckdb(cli, texts) == {name: expected[name] for name in texts}


def test_explain_names_the_key(tmp_path: Path, capsys: Capsys) -> None:
    is_keyed_by_query = {}
    for result in tenants(tmp_path, capsys).good("explain").results:
        (line,) = [one for one in result["plan"] if one["operator"] == "fixpoint"]
        is_keyed_by_query[result["query"]] = "keyed on `t`" in line["why"]
    assert {name for name, is_keyed in is_keyed_by_query.items() if is_keyed} == {*KEYED}


NARROW = {
    "reach": REACH + "SELECT n FROM r WHERE n < 9",
    "levels": QUERIES["levels"].replace("SELECT k, COUNT(*) AS c FROM r GROUP BY k", "")
    + "SELECT n, k FROM r WHERE k = 2",
    "not_reached": REACH + "SELECT s.t, r.n FROM r JOIN seeds s ON s.n = r.n + 1",
    "from_one": PAIRS + "SELECT x, COUNT(*) AS c FROM c WHERE y < 30 GROUP BY x "
    "HAVING COUNT(*) > 7",
    "by_groups": QUERIES["by_groups"] + " WHERE n < 50",
}
"""Replacements for the queries with these names."""
CLOSURE = {
    "of_seeds": "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION SELECT p.x, q.y "
    "FROM c p JOIN c q ON p.y = q.x) SELECT x, y FROM c WHERE x < 9 AND y < 7"
}
"""DuckDB returns too few rows for it."""
WALKS = {"walks_of_reached": BAGS["walks_of_reached"].replace("n > 8", "n < 9")}


def narrow(folder: Path, capsys: Capsys, *names: str) -> Cli:
    """A CLI for a workload with these queries, and a path of links from 7."""
    replacements = {**NARROW, **CLOSURE, **WALKS}
    cli = network(folder, capsys, names, "answer")
    text = cli.workload.read_text()
    for name in names:
        text = text.replace({**QUERIES, **BAGS}[name], replacements[name])
    cli.workload.write_text(text)
    links = pa.table({"src": [7, 8, 9, 10, 30], "dst": [8, 9, 10, 29, 6]})
    write_deltalake(str(folder / "links"), links, mode="append")
    return cli


def size(sketches: list[list[int]]) -> int:
    return sum(map(len, sketches))


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_answer_lineage_gives_correct_results(tmp_path: Path, capsys: Capsys, seed: int) -> None:
    queries = {**NARROW, **WALKS}
    cli = narrow(tmp_path, capsys, *queries)
    stored_ranges, full = check_answers(cli, queries, NARROW, seed)
    assert captured_in(cli, "fresh") == stored_ranges
    assert sum(size(stored_ranges[name]) < size(full[name]) for name in stored_ranges) > 1


@pytest.mark.slow
def test_dead_ends_are_skipped(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach")
    links = {"src": [7, 8, 10, 20, 40], "dst": [8, 10, 20, 40, 50]}
    write_deltalake(str(tmp_path / "links"), pa.table(links), mode="overwrite")
    cli.good("capture")
    base, step = ranges(cli)["reach"]
    # Each range has three nodes: 7 and 8 are in the range 6 to 8.
    assert (base, step) == ([2], [])
    assert all_lineage_ranges(cli)["reach"] == [[2], [2, 3, 6, 13]]
    # 50 now links to 5, so all links on that path are needed.
    more = pa.table({"src": [50], "dst": [5]})
    write_deltalake(str(tmp_path / "links"), more, mode="append")
    cli.good("maintain")
    assert ranges(cli)["reach"] == [[2], [2, 3, 6, 13, 16]]
    assert answers(cli, "reach", "--sketch", "always") == {(5,): 1, (8,): 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [("not_reached", "NOT EXISTS or NOT IN keeps rows"), ("of_seeds", "HAVING compares")],
)
def test_refusal_names_operator_that_needs_all_rows(
    tmp_path: Path, capsys: Capsys, name: str, reason: str
) -> None:
    """CE-R2, and the COUNT with an upper bound of CE-R1."""
    cli = network(tmp_path, capsys, [name], "answer")
    ran = cli("capture")
    assert ran.refusal == (3, "sketch_unsafe")
    assert reason in ran.error["message"]
    assert "`lineage: all`" in ran.error["hint"]
    cli.edit("lineage: answer", "lineage: all")
    cli.good("capture")
    assert answers(cli, name, "--sketch", "always") == by_duckdb(cli, QUERIES[name])


def check_not_reused(cli: Cli, sql: str, reason: str) -> None:
    (candidate,) = cli.one("rewrite", "--sql", sql, "--sketch", "auto")["reuse"]["candidates"]
    assert not candidate["allowed"]
    assert reason in candidate["reason"]


def operator_reasons(cli: Cli) -> dict[str, str]:
    """The reasons in `explain` of each query's operators."""
    results = cli.good("explain").results
    return {one["query"]: " | ".join(line["why"] for line in one["plan"]) for one in results}


def test_answer_lineage_not_reused(tmp_path: Path, capsys: Capsys) -> None:
    """Another constant above the recursion would need other rows."""
    cli = narrow(tmp_path, capsys, "reach").captured()
    check_not_reused(cli, NARROW["reach"].replace("n < 9", "n < 90"), "lineage: answer")


@pytest.mark.slow
def test_lineage_change_needs_recapture(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach").captured()
    before = ranges(cli)["reach"]
    cli.edit("lineage: answer", "lineage: all")
    ran = cli("maintain")
    assert ran.code != 0 or ran.results[0]["action"] not in ("exact", "none"), ran
    cli.good("capture")
    assert size(ranges(cli)["reach"]) > size(before)


def test_explain_shows_lineage(tmp_path: Path, capsys: Capsys) -> None:
    text = operator_reasons(narrow(tmp_path, capsys, "reach", "walks_of_reached"))
    assert "only the rows that the result is derived from" in text["reach"]
    assert "UNION ALL counts all derivations" in text["walks_of_reached"]


@pytest.mark.slow
def test_result_can_be_materialized(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach")
    cli.edit("answer: false", "answer: true")
    cli.good("capture")
    for seed in range(3):
        change(tmp_path, random.Random(seed))
        assert cli.actions() <= {"exact", "none"}
        assert answers(cli, "reach") == by_duckdb(cli, NARROW["reach"])
    assert size(ranges(cli)["reach"]) < size(all_lineage_ranges(cli)["reach"])


@pytest.mark.slow
def test_why_by_sketch(tmp_path: Path, capsys: Capsys) -> None:
    """The sketch covers all derivations of the result rows."""
    cli = narrow(tmp_path, capsys, "reach").captured()
    arguments = ("why", "--query", "reach", "--row", "n=8")
    result = cli.one(*arguments)
    cli.edit("lineage: answer", "lineage: all")
    full = cli.one(*arguments)
    assert (result["rows"], result["lineage"]) == (full["rows"], full["lineage"])


@pytest.mark.parametrize("lineage", ["witness", pytest.param("answer", marks=pytest.mark.slow)])
def test_policy_strict_allows_lineages(tmp_path: Path, capsys: Capsys, lineage: str) -> None:
    if lineage == "witness":
        cli = network(tmp_path, capsys, ["reach"], lineage)
    else:
        cli = narrow(tmp_path, capsys, "reach")
    assert actions_under_strict(cli) <= {"exact", "none"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_verify_computes_answer_lineage(tmp_path: Path, capsys: Capsys) -> None:
    names = ("reach", "from_one", "of_seeds", "walks_of_reached")
    cli = narrow(tmp_path, capsys, *names)
    cli.good("capture")
    change(tmp_path, random.Random(4))
    links = pa.table({"src": [7, 8, 8], "dst": [8, 5, 33]})
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    cli.good("maintain")
    cli.verified()
    stored_ranges, full = ranges(cli), all_lineage_ranges(cli)
    for name in names:
        assert 0 < size(stored_ranges[name]) <= size(full[name]), name
    assert size(stored_ranges["reach"]) < size(full["reach"])


ROUTES = "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 7 UNION SELECT l.dst FROM r "
CAPPED = ROUTES + "JOIN links l ON r.n = l.src WHERE l.dst >= {}) SELECT n FROM r WHERE n > {}"


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_witness_sketches_give_correct_results(tmp_path: Path, capsys: Capsys, seed: int) -> None:
    check_answers(network(tmp_path, capsys, list(QUERIES), "witness"), QUERIES, QUERIES, seed)


@pytest.mark.slow
def test_witness_lineage_is_smaller(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"], "witness")
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(5), 400), mode="append")
    cli.good("capture")
    stored_ranges, full = ranges(cli)["reach"], all_lineage_ranges(cli)["reach"]
    assert size(stored_ranges) < size(full), (stored_ranges, full)


@pytest.mark.slow
def test_stale_witness_sketch_is_not_used(tmp_path: Path, capsys: Capsys) -> None:
    """CE-R4: of two paths to 30, the chosen one is deleted."""
    cli = network(tmp_path, capsys, ["reach"], "witness")
    table = str(tmp_path / "links")
    links = {"src": [7, 7, 18, 24], "dst": [18, 24, 30, 30]}
    write_deltalake(table, pa.table(links), mode="overwrite")
    cli.good("capture")
    stale = cli.one("rewrite", "--query", "reach")
    DeltaTable(table).delete("src = 18")
    assert by_duckdb(cli, QUERIES["reach"]) == {(18,): 1, (24,): 1, (30,): 1}
    assert by_duckdb(cli, stale["sql"]) == {(18,): 1, (24,): 1}, "the stale sketch"
    assert answers(cli, "reach", "--sketch", "always") == {(18,): 1, (24,): 1, (30,): 1}
    assert cli.one("status")["mode"] == "exact"


@pytest.mark.slow
def test_witness_sketch_is_not_reused(tmp_path: Path, capsys: Capsys) -> None:
    """CE-R6: with a narrower inner condition, the chosen path does not exist."""
    cli = network(tmp_path, capsys, ["reach"], "witness")
    cli.edit(QUERIES["reach"], CAPPED.format(10, 3))
    links = {"src": [7, 15, 15, 18, 24], "dst": [15, 18, 24, 28, 28]}
    write_deltalake(str(tmp_path / "links"), pa.table(links), mode="overwrite")
    cli.good("capture")
    rewritten = cli.one("rewrite", "--query", "reach")
    narrower = CAPPED.format(20, 3)
    assert by_duckdb(cli, narrower) == {(15,): 1, (24,): 1, (28,): 1}
    naive = rewritten["sql"].replace(">= 10", ">= 20")
    assert naive != rewritten["sql"]
    assert by_duckdb(cli, naive) == {(15,): 1, (24,): 1}, "by the unchanged sketch"
    # Narrower inside the recursion, and above it, where reuse would be correct.
    for sql in (narrower, CAPPED.format(10, 4)):
        check_not_reused(cli, sql, "witness")


def test_explain_shows_witness_lineage(tmp_path: Path, capsys: Capsys) -> None:
    """For UNION ALL, all derivations are covered (CE-R5)."""
    cli = network(tmp_path, capsys, ["reach", "walks"], "witness")
    text = operator_reasons(cli)
    # Unchanged rows may become witnesses, so maintenance is never conservative.
    reasons = {result["query"]: result["reason"] for result in cli.good("explain").results}
    assert ["witnesses" in reasons[name] for name in ("reach", "walks")] == [True, False]
    assert "one derivation of each row" in text["reach"]
    assert "UNION ALL counts all derivations" in text["walks"]
    assert "whole lineage" in text["walks"]
    cli.good("capture")
    for name, sql in (("reach", QUERIES["reach"]), ("walks", BAGS["walks"])):
        assert answers(cli, name, "--sketch", "always", "--by", "engine") == by_duckdb(cli, sql)
    assert ranges(cli)["walks"] == all_lineage_ranges(cli)["walks"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_verify_with_witness_lineage(tmp_path: Path, capsys: Capsys) -> None:
    names = ["reach", "not_reached"]
    cli = network(tmp_path, capsys, names, "witness")
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(5), 400), mode="append")
    cli.good("capture")
    change(tmp_path, random.Random(4))
    cli.good("maintain")
    cli.verified()
    assert size(ranges(cli)["reach"]) < size(all_lineage_ranges(cli)["reach"])


NAMES = (MATERIALIZED, "from_one", "not_reached", "by_groups", "running", *BEST)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_maintained_rows_match_spark(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, NAMES).captured()
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    is_equal = {result["query"]: result["answer_equal"] for result in cli.verified()}
    assert is_equal.keys() == {*NAMES}
    assert {*is_equal.values()} in ({True}, {True, None})
    ran = cli.one("query", "--query", "running", "--sketch", "always")
    assert ran["by"] == "spark"
    assert Counter(map(tuple, ran["rows"])) == by_duckdb(cli, SPARK_ONLY["running"])


@pytest.mark.spark
@pytest.mark.parametrize(
    "names", [["walks_of_reached"], pytest.param([*BAGS], marks=pytest.mark.long)]
)
def test_spark_runs_union_all(tmp_path: Path, capsys: Capsys, names: list[str]) -> None:
    """The SQL has the sketch's ranges. Rows of a UNION recursion are derived for it."""
    cli = network(tmp_path, capsys, names).captured()
    change(tmp_path, random.Random(6))
    cli.good("maintain")
    cli.verified()
    for name in names:
        by_engine = answers(cli, name, "--sketch", "always", "--by", "engine")
        assert by_engine
        assert answers(cli, name, "--sketch", "always", "--by", "spark") == by_engine, name


@pytest.mark.spark
def test_spark_limits_infinite_recursion(tmp_path: Path, capsys: Capsys) -> None:
    """Spark stops at the LIMIT; the engine derives all rows and fails."""
    cli = network(tmp_path, capsys, ["walks"])
    without_end = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM seeds WHERE n < 9 UNION ALL SELECT "
        "CAST(n + 1 AS BIGINT) FROM r) SELECT n FROM r"
    )
    cli.edit("{links: src}", "none")
    cli.edit(BAGS["walks"], without_end)
    assert cli("query", "--query", "walks").refusal == (3, "recursion_limit")
    cli.edit(without_end, f"{without_end} LIMIT 3")
    assert answers(cli, "walks") == {(7,): 1, (8,): 1, (9,): 1}
    assert cli("query", "--query", "walks", "--by", "engine").refusal == (3, "recursion_limit")


@pytest.mark.spark
@pytest.mark.parametrize(
    "names", [["few"], pytest.param(["few", "paths", "shared"], marks=pytest.mark.long)]
)
def test_spark_finds_keys_of_used_rows(tmp_path: Path, capsys: Capsys, names: list[str]) -> None:
    cli = tenants(tmp_path, capsys, names).captured()
    rng = random.Random(4)
    for _ in range(3):
        change_tenants(tmp_path, rng)
        cli.good("maintain")
    (few, *_) = cli.good("status").results
    sketches = [sketch["ranges"] for sketch in few["sketches"]]
    assert sketches[0] == sketches[1]
    assert {result["query"] for result in cli.verified()} == {*names}


LINKS = [(1, 7), (1, 8), (7, 12), (12, 7), (12, 29)]
VERIFIED_QUERY = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 "
    "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r WHERE n = 12"
)


def rounds(links: list[tuple[int, int]]) -> list[str]:
    """The progress messages of a breadth-first search from node 1."""
    new = {dst for src, dst in links if src == 1}
    reached, lines = set(new), list[str]()
    while new:
        number = len(lines) + 1
        lines.append(f"reach: round {number} of r, rows so far: {len(reached)}, new: {len(new)}")
        new = {dst for src, dst in links if src in new} - reached
        reached |= new
    return ["reach: initial rows of r", *lines]


RANGES = [f"reach: ranges for {part}" for part in ("the query", "the base of r", "the step of r")]
BACKWARD = [
    # From 12 back to 7, and from 7 back to 12, which is known already.
    "reach: round 1 back through r, rows so far: 1, new: 1",
    "reach: round 2 back through r, rows so far: 2, new: 1",
]


def verify_messages(tmp_path: Path, capsys: Capsys, lineage: str, *flags: str) -> list[str]:
    """The progress messages of `verify`; with `-v`, only those after the recapture starts."""
    sources, targets = zip(*LINKS, strict=True)
    create_table(str(tmp_path / "links"), pa.table({"src": sources, "dst": targets}))
    query = {"sql": VERIFIED_QUERY, "sketch": {"links": "src"}, "lineage": lineage}
    partitions = {"links": {"src": {"boundaries": [7, 8, 12]}}}
    cli = Cli.asking(capsys, tmp_path, {"reach": query}, ["links"], partitions=partitions)
    lines = cli.captured().good("verify", *flags).stderr.splitlines()
    return lines[lines.index("recapturing reach") + 1 :] if "-v" in flags else lines


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_forward_and_backward_rounds_are_reported(tmp_path: Path, capsys: Capsys) -> None:
    lines = verify_messages(tmp_path, capsys, "answer", "-v")
    assert lines == [*rounds(LINKS), RANGES[0], *BACKWARD, *RANGES[1:]]


@pytest.mark.spark
def test_rounds_over_sketch_are_labeled(tmp_path: Path, capsys: Capsys) -> None:
    assert verify_messages(tmp_path, capsys, "witness", "-v") == [
        *rounds(LINKS),
        *RANGES,
        *(f"{line} (over the sketch)" for line in rounds(LINKS)),
        *(f"{line} (over the tables)" for line in rounds(LINKS)),
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["-q"]])
def test_no_progress_without_verbose(tmp_path: Path, capsys: Capsys, flags: list[str]) -> None:
    assert verify_messages(tmp_path, capsys, "all", *flags) == []
