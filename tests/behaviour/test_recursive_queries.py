"""Recursive queries from capture to answer, on real tables, against DuckDB and Spark."""

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
    KEPT,
    KEPT_OF_TENANTS,
    KEYED,
    LEFT_TO_SPARK,
    OF_CONSTANTS,
    PAIRS,
    QUERIES,
    REACH,
    Answer,
    actions_by_strict,
    all_by_duckdb,
    all_by_sqlite,
    answers,
    by_duckdb,
    captured_beside,
    change,
    change_tenants,
    check_answers,
    check_maintained,
    network,
    of_all,
    ranges,
    some_links,
    tables_beside,
    tenants,
    through_sketches,
    written,
)
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli


@random_seeds(1, 2, 12)
def test_maintained_sketches_are_those_of_fresh_captures_and_give_the_answers_of_all_rows(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every second seed keeps the least state, and reads the rest from tables again."""
    if seed % 2:
        monkeypatch.setenv("IMPCTL_DISK", "0")
    queries = {**QUERIES, **OF_CONSTANTS}
    cli = network(tmp_path, capsys, [*queries])
    check_maintained(cli, change, seed, turns=2)
    expected = all_by_duckdb(cli, queries)
    assert through_sketches(cli, queries) == expected
    assert answers(cli, KEPT, "--by", "state") == expected[KEPT]
    texts = written(cli, QUERIES)
    for result in (all_by_duckdb(cli, texts), all_by_sqlite(cli, texts)):
        assert result == {name: expected[name] for name in texts}


def test_a_sketch_of_what_is_reached_skips_the_rest(tmp_path: Path, capsys: Capsys) -> None:
    result = network(tmp_path, capsys, ["from_one"]).one("capture")
    held = {range_id for one in result["sketches"] for range_id in one["ranges"]}
    assert len(held) < 10, held


def endless(folder: Path, capsys: Capsys, name: str, more: str = "") -> Cli:
    """A query without the condition that ends it."""
    cli = network(folder, capsys, [name])
    text = cli.workload.read_text().replace(" WHERE k < 3", "")
    cli.workload.write_text(text + more)
    return cli


def test_of_an_endless_recursion_nothing_is_stored(tmp_path: Path, capsys: Capsys) -> None:
    cli = endless(tmp_path, capsys, "levels", "limits: {rounds: 50}\n")
    # The links of one region lead in circles.
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(3), 60), mode="append")
    ran = cli("capture")
    assert ran.refusal == (3, "recursion_limit")
    assert "raise `limits: {rounds: 50}` in the workload file" in ran.error["hint"]
    assert cli.one("status")["versions"] == {}
    cli.edit("rounds: 50", "rows: 7")
    assert "raise `limits: {rows: 7}` in the workload file" in cli("capture").error["hint"]


def chained(tmp_path: Path, capsys: Capsys, name: str, *links: tuple[int, int]) -> Cli:
    """Over these links alone, as deep as rows lead."""
    cli = endless(tmp_path, capsys, name, "limits: {rounds: 50}\n" if name == "levels" else "")
    DeltaTable(str(tmp_path / "links")).delete()
    add_links(tmp_path, *links)
    return cli


def add_links(folder: Path, *links: tuple[int, int]) -> None:
    sources, targets = zip(*links, strict=True)
    rows = pa.table({"src": pa.array(sources, pa.int64()), "dst": pa.array(targets, pa.int64())})
    write_deltalake(str(folder / "links"), rows, mode="append")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "links", "back"),
    [
        ("levels", [(7, 8), (8, 9), (9, 10)], (10, 7)),
        ("as_deep", [(19, 30), (30, 31), (31, 32)], (32, 30)),
    ],
)
def test_a_change_that_closes_a_circle_leaves_the_store_as_it_was(
    tmp_path: Path, capsys: Capsys, name: str, links: list[tuple[int, int]], back: tuple[int, int]
) -> None:
    cli = chained(tmp_path, capsys, name, *links).captured()
    before = ranges(cli)
    add_links(tmp_path, back)
    assert cli("maintain").refusal == (3, "recursion_limit")
    assert ranges(cli) == before
    DeltaTable(str(tmp_path / "links")).delete(f"src = {back[0]}")
    assert cli.actions() == {"exact"}
    if name == "as_deep":
        match = answers(cli, name, "--sketch", "always", "--by", "engine")
        assert match == {(1, 1): 1, (2, 1): 1, (3, 1): 1}


def test_a_level_too_many_is_an_error_and_nothing_is_stored(tmp_path: Path, capsys: Capsys) -> None:
    """Of four."""
    links = [(19, 30), (30, 31), (31, 32), (32, 33), (33, 34)]
    cli = chained(tmp_path, capsys, "as_deep", *links)
    ran = cli("capture")
    assert ran.refusal == (3, "recursion_limit")
    assert "4 levels" in ran.error["message"]
    assert cli.one("status")["versions"] == {}


def cheapest(cli: Cli, add: Callable[[int, int], int]) -> Answer:
    """What it takes at least to get from 7 to each node, by Dijkstra's rule."""
    rows = tables_beside(cli)["links"].to_pydict()
    ends: dict[object, set[int | None]] = {}
    for src, dst in zip(rows["src"], rows["dst"], strict=True):
        ends.setdefault(src, set()).add(dst)
    least: dict[object, int] = {}
    waiting = [(1, dst) for dst in ends.get(7, ())]
    while waiting:
        at = min(range(len(waiting)), key=lambda one: waiting[one][0])
        cost, node = waiting.pop(at)
        if node in least:
            continue
        least[node] = cost
        if node is not None:
            waiting += [(add(cost, node % 3), dst) for dst in ends.get(node, ())]
    return Counter(least.items())


@pytest.mark.slow
def test_the_best_rows_of_circles_are_kept(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, list(BEST))
    check_maintained(cli, change, 12, turns=3)
    result = through_sketches(cli, ("cheapest", "ways"))
    assert result["cheapest"] == cheapest(cli, lambda cost, more: cost + more)
    assert {node for node, _ in result["ways"]} == {node for node, _ in result["cheapest"]}


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_maintained_union_all_sketches_are_fresh_ones(
    tmp_path: Path, capsys: Capsys, seed: int
) -> None:
    cli = network(tmp_path, capsys, list(BAGS))
    check_maintained(cli, change, seed, turns=3)
    texts = {
        name: without_recursion_limits(sql).replace("LEFT SEMI", "SEMI")
        for name, sql in BAGS.items()
    }
    assert through_sketches(cli, BAGS) == all_by_duckdb(cli, texts)


EVERY = {**KEYED, **BARRIER}


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_maintained_keyed_sketches_are_fresh_ones(
    tmp_path: Path, capsys: Capsys, seed: int
) -> None:
    cli = tenants(tmp_path, capsys)
    check_maintained(cli, change_tenants, seed, turns=2)
    expected = all_by_duckdb(cli, EVERY)
    assert through_sketches(cli, EVERY) == expected
    assert answers(cli, KEPT_OF_TENANTS, "--by", "state") == expected[KEPT_OF_TENANTS]
    texts = {}
    for name in EVERY:
        result = cli.one("rewrite", "--query", name)
        assert result["runs_on_spark"] == (name == "paths")
        if not result["runs_on_spark"]:
            texts[name] = result["sql"]
    assert all_by_duckdb(cli, texts) == {name: expected[name] for name in texts}


def test_explain_names_the_key(tmp_path: Path, capsys: Capsys) -> None:
    said = {}
    for result in tenants(tmp_path, capsys).good("explain").results:
        (line,) = [one for one in result["plan"] if one["operator"] == "fixpoint"]
        said[result["query"]] = "keyed on `t`" in line["why"]
    assert {name for name, is_keyed in said.items() if is_keyed} == {*KEYED}


NARROW = {
    "reach": REACH + "SELECT n FROM r WHERE n < 9",
    "levels": QUERIES["levels"].replace("SELECT k, COUNT(*) AS c FROM r GROUP BY k", "")
    + "SELECT n, k FROM r WHERE k = 2",
    "not_reached": REACH + "SELECT s.t, r.n FROM r JOIN seeds s ON s.n = r.n + 1",
    "from_one": PAIRS + "SELECT x, COUNT(*) AS c FROM c WHERE y < 30 GROUP BY x "
    "HAVING COUNT(*) > 7",
    "by_groups": QUERIES["by_groups"] + " WHERE n < 50",
}
"""In the place of queries of the same names."""
CLOSURE = {
    "of_seeds": "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION SELECT p.x, q.y "
    "FROM c p JOIN c q ON p.y = q.x) SELECT x, y FROM c WHERE x < 9 AND y < 7"
}
"""DuckDB finds fewer rows of it."""
WALKS = {"walks_of_reached": BAGS["walks_of_reached"].replace("n > 8", "n < 9")}


def narrow(folder: Path, capsys: Capsys, *names: str) -> Cli:
    """The command line over a workload of these queries; links from 7 lead on."""
    known = {**NARROW, **CLOSURE, **WALKS}
    cli = network(folder, capsys, names, "answer")
    text = cli.workload.read_text()
    for name in names:
        text = text.replace({**QUERIES, **BAGS}[name], known[name])
    cli.workload.write_text(text)
    links = pa.table({"src": [7, 8, 9, 10, 30], "dst": [8, 9, 10, 29, 6]})
    write_deltalake(str(folder / "links"), links, mode="append")
    return cli


def size(sketches: list[list[int]]) -> int:
    return sum(map(len, sketches))


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_answers_over_it_are_those_of_all_rows(tmp_path: Path, capsys: Capsys, seed: int) -> None:
    queries = {**NARROW, **WALKS}
    cli = narrow(tmp_path, capsys, *queries)
    held, every = check_answers(cli, queries, NARROW, seed)
    assert captured_beside(cli, "fresh") == held
    assert sum(size(held[name]) < size(every[name]) for name in held) > 1


@pytest.mark.slow
def test_it_leaves_out_what_leads_nowhere(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach")
    links = {"src": [7, 8, 10, 20, 40], "dst": [8, 10, 20, 40, 50]}
    write_deltalake(str(tmp_path / "links"), pa.table(links), mode="overwrite")
    cli.good("capture")
    base, step = ranges(cli)["reach"]
    # Ranges are of three nodes: 7 and 8 lie in that of 6 to 8.
    assert (base, step) == ([2], [])
    assert of_all(cli)["reach"] == [[2], [2, 3, 6, 13]]
    # 50 leads back to 5: all that leads there is wanted now.
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
def test_what_needs_all_rows_is_refused_with_what_does_it(
    tmp_path: Path, capsys: Capsys, name: str, reason: str
) -> None:
    """CE-R2, and CE-R1's COUNT below a bound."""
    cli = network(tmp_path, capsys, [name], "answer")
    ran = cli("capture")
    assert ran.refusal == (3, "sketch_unsafe")
    assert reason in ran.error["message"]
    assert "`lineage: all`" in ran.error["hint"]
    cli.edit("lineage: answer", "lineage: all")
    cli.good("capture")
    assert answers(cli, name, "--sketch", "always") == by_duckdb(cli, QUERIES[name])


def check_not_reused(cli: Cli, asked: str, reason: str) -> None:
    (candidate,) = cli.one("rewrite", "--sql", asked, "--sketch", "auto")["reuse"]["candidates"]
    assert not candidate["allowed"]
    assert reason in candidate["reason"]


def whys(cli: Cli) -> dict[str, str]:
    """What explain says of the operators of each query."""
    results = cli.good("explain").results
    return {one["query"]: " | ".join(line["why"] for line in one["plan"]) for one in results}


def test_it_serves_no_other_text(tmp_path: Path, capsys: Capsys) -> None:
    """With another constant above, other rows would be needed."""
    cli = narrow(tmp_path, capsys, "reach").captured()
    check_not_reused(cli, NARROW["reach"].replace("n < 9", "n < 90"), "lineage: answer")


@pytest.mark.slow
def test_another_lineage_is_another_sketch(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach").captured()
    held = ranges(cli)["reach"]
    cli.edit("lineage: answer", "lineage: all")
    ran = cli("maintain")
    assert ran.code != 0 or ran.results[0]["action"] not in ("exact", "none"), ran
    cli.good("capture")
    assert size(ranges(cli)["reach"]) > size(held)


def test_explain_says_what_is_held(tmp_path: Path, capsys: Capsys) -> None:
    text = whys(narrow(tmp_path, capsys, "reach", "walks_of_reached"))
    assert "only the rows that the result is derived from" in text["reach"]
    assert "UNION ALL counts all derivations" in text["walks_of_reached"]


@pytest.mark.slow
def test_an_answer_may_be_kept_beside(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach")
    cli.edit("answer: false", "answer: true")
    cli.good("capture")
    for seed in range(3):
        change(tmp_path, random.Random(seed))
        assert cli.actions() <= {"exact", "none"}
        assert answers(cli, "reach") == by_duckdb(cli, NARROW["reach"])
    assert size(ranges(cli)["reach"]) < size(of_all(cli)["reach"])


@pytest.mark.slow
def test_why_reads_by_it(tmp_path: Path, capsys: Capsys) -> None:
    """It holds all ways in which rows of the answer are made."""
    cli = narrow(tmp_path, capsys, "reach").captured()
    asked = ("why", "--query", "reach", "--row", "n=8")
    told = cli.one(*asked)
    cli.edit("lineage: answer", "lineage: all")
    every = cli.one(*asked)
    assert (told["rows"], told["lineage"]) == (every["rows"], every["lineage"])


@pytest.mark.parametrize("lineage", ["witness", pytest.param("answer", marks=pytest.mark.slow)])
def test_policy_strict_takes_all_lineages(tmp_path: Path, capsys: Capsys, lineage: str) -> None:
    if lineage == "witness":
        cli = network(tmp_path, capsys, ["reach"], lineage)
    else:
        cli = narrow(tmp_path, capsys, "reach")
    assert actions_by_strict(cli) <= {"exact", "none"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_verify_goes_back_from_the_answer_by_itself(tmp_path: Path, capsys: Capsys) -> None:
    names = ("reach", "from_one", "of_seeds", "walks_of_reached")
    cli = narrow(tmp_path, capsys, *names)
    cli.good("capture")
    change(tmp_path, random.Random(4))
    links = pa.table({"src": [7, 8, 8], "dst": [8, 5, 33]})
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    cli.good("maintain")
    cli.verified()
    held, every = ranges(cli), of_all(cli)
    for name in names:
        assert 0 < size(held[name]) <= size(every[name]), name
    assert size(held["reach"]) < size(every["reach"])


ROUTES = "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 7 UNION SELECT l.dst FROM r "
CAPPED = ROUTES + "JOIN links l ON r.n = l.src WHERE l.dst >= {}) SELECT n FROM r WHERE n > {}"


@pytest.mark.slow
@random_seeds(1, 2, 9)
def test_answers_by_witnesses_are_those_of_all_rows(
    tmp_path: Path, capsys: Capsys, seed: int
) -> None:
    check_answers(network(tmp_path, capsys, list(QUERIES), "witness"), QUERIES, QUERIES, seed)


@pytest.mark.slow
def test_it_is_less_where_there_are_many_ways(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"], "witness")
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(5), 400), mode="append")
    cli.good("capture")
    held, every = ranges(cli)["reach"], of_all(cli)["reach"]
    assert size(held) < size(every), (held, every)


@pytest.mark.slow
def test_a_sketch_that_would_lack_a_row_is_never_used(tmp_path: Path, capsys: Capsys) -> None:
    """CE-R4: two ways to 30, of which the one chosen goes."""
    cli = network(tmp_path, capsys, ["reach"], "witness")
    table = str(tmp_path / "links")
    links = {"src": [7, 7, 18, 24], "dst": [18, 24, 30, 30]}
    write_deltalake(table, pa.table(links), mode="overwrite")
    cli.good("capture")
    stale = cli.one("rewrite", "--query", "reach")
    DeltaTable(table).delete("src = 18")
    assert by_duckdb(cli, QUERIES["reach"]) == {(18,): 1, (24,): 1, (30,): 1}
    assert by_duckdb(cli, stale["sql"]) == {(18,): 1, (24,): 1}, "the old choice"
    assert answers(cli, "reach", "--sketch", "always") == {(18,): 1, (24,): 1, (30,): 1}
    assert cli.one("status")["mode"] == "exact"


@pytest.mark.slow
def test_a_sketch_of_witnesses_serves_no_other_text(tmp_path: Path, capsys: Capsys) -> None:
    """CE-R6: with a narrower condition inside, the way chosen is not there."""
    cli = network(tmp_path, capsys, ["reach"], "witness")
    cli.edit(QUERIES["reach"], CAPPED.format(10, 3))
    links = {"src": [7, 15, 15, 18, 24], "dst": [15, 18, 24, 28, 28]}
    write_deltalake(str(tmp_path / "links"), pa.table(links), mode="overwrite")
    cli.good("capture")
    own = cli.one("rewrite", "--query", "reach")
    narrower = CAPPED.format(20, 3)
    assert by_duckdb(cli, narrower) == {(15,): 1, (24,): 1, (28,): 1}
    naive = own["sql"].replace(">= 10", ">= 20")
    assert naive != own["sql"]
    assert by_duckdb(cli, naive) == {(15,): 1, (24,): 1}, "by the sketch as it is"
    # Inside, and above, where it would do.
    for asked in (narrower, CAPPED.format(10, 4)):
        check_not_reused(cli, asked, "witness")


def test_explain_says_which_witnesses_are_held(tmp_path: Path, capsys: Capsys) -> None:
    """Of UNION ALL all derivations (CE-R5)."""
    cli = network(tmp_path, capsys, ["reach", "walks"], "witness")
    text = whys(cli)
    # Where they are held, rows that did not change may come to be chosen: never by touch.
    reasons = {result["query"]: result["reason"] for result in cli.good("explain").results}
    assert ["witnesses" in reasons[name] for name in ("reach", "walks")] == [True, False]
    assert "one derivation of each row" in text["reach"]
    assert "UNION ALL counts all derivations" in text["walks"]
    assert "whole lineage" in text["walks"]
    cli.good("capture")
    for name, sql in (("reach", QUERIES["reach"]), ("walks", BAGS["walks"])):
        assert answers(cli, name, "--sketch", "always", "--by", "engine") == by_duckdb(cli, sql)
    assert ranges(cli)["walks"] == of_all(cli)["walks"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_verify_derives_the_rows_over_the_sketch(tmp_path: Path, capsys: Capsys) -> None:
    names = ["reach", "not_reached"]
    cli = network(tmp_path, capsys, names, "witness")
    write_deltalake(str(tmp_path / "links"), some_links(random.Random(5), 400), mode="append")
    cli.good("capture")
    change(tmp_path, random.Random(4))
    cli.good("maintain")
    cli.verified()
    assert size(ranges(cli)["reach"]) < size(of_all(cli)["reach"])


NAMES = (KEPT, "from_one", "not_reached", "by_groups", "running", *BEST)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_spark_derives_what_was_maintained(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, NAMES).captured()
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    match = {result["query"]: result["answer_equal"] for result in cli.verified()}
    assert match.keys() == {*NAMES}
    assert {*match.values()} in ({True}, {True, None})
    ran = cli.one("query", "--query", "running", "--sketch", "always")
    assert ran["by"] == "spark"
    assert Counter(map(tuple, ran["rows"])) == by_duckdb(cli, LEFT_TO_SPARK["running"])


@pytest.mark.spark
@pytest.mark.parametrize(
    "names", [["walks_of_reached"], pytest.param([*BAGS], marks=pytest.mark.long)]
)
def test_spark_runs_union_all_itself(tmp_path: Path, capsys: Capsys, names: list[str]) -> None:
    """With the ranges of the sketch in it, what is by UNION besides derived for it."""
    cli = network(tmp_path, capsys, names).captured()
    change(tmp_path, random.Random(6))
    cli.good("maintain")
    cli.verified()
    for name in names:
        by_engine = answers(cli, name, "--sketch", "always", "--by", "engine")
        assert by_engine
        assert answers(cli, name, "--sketch", "always", "--by", "spark") == by_engine, name


@pytest.mark.spark
def test_spark_gives_some_rows_of_what_has_no_end(tmp_path: Path, capsys: Capsys) -> None:
    """It derives no more than a LIMIT asks for; the engine derives all, and gives up."""
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
def test_spark_finds_the_keys_of_the_rows_that_are_used(
    tmp_path: Path, capsys: Capsys, names: list[str]
) -> None:
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
TOLD_QUERY = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 "
    "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r WHERE n = 12"
)


def rounds(links: list[tuple[int, int]]) -> list[str]:
    """One search after the other, from what 1 leads to."""
    new = {dst for src, dst in links if src == 1}
    every, told = set(new), list[str]()
    while new:
        number = len(told) + 1
        told.append(f"reach: round {number} of r, rows so far: {len(every)}, new: {len(new)}")
        new = {dst for src, dst in links if src in new} - every
        every |= new
    return ["reach: initial rows of r", *told]


RANGES = [f"reach: ranges for {part}" for part in ("the query", "the base of r", "the step of r")]
BACK = [
    # To 12 from 7, to 7 from 12, which is there already.
    "reach: round 1 back through r, rows so far: 1, new: 1",
    "reach: round 2 back through r, rows so far: 2, new: 1",
]


def lines_of_verify(tmp_path: Path, capsys: Capsys, lineage: str, *flags: str) -> list[str]:
    """The progress messages; with `-v` from the start of the recapture."""
    sources, targets = zip(*LINKS, strict=True)
    create_table(str(tmp_path / "links"), pa.table({"src": sources, "dst": targets}))
    query = {"sql": TOLD_QUERY, "sketch": {"links": "src"}, "lineage": lineage}
    partitions = {"links": {"src": {"boundaries": [7, 8, 12]}}}
    cli = Cli.asking(capsys, tmp_path, {"reach": query}, ["links"], partitions=partitions)
    told = cli.captured().good("verify", *flags).stderr.splitlines()
    return told[told.index("recapturing reach") + 1 :] if "-v" in flags else told


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_each_round_is_told_and_each_back_from_the_answer(tmp_path: Path, capsys: Capsys) -> None:
    told = lines_of_verify(tmp_path, capsys, "answer", "-v")
    assert told == [*rounds(LINKS), RANGES[0], *BACK, *RANGES[1:]]


@pytest.mark.spark
def test_rounds_over_the_sketch_are_told_apart(tmp_path: Path, capsys: Capsys) -> None:
    assert lines_of_verify(tmp_path, capsys, "witness", "-v") == [
        *rounds(LINKS),
        *RANGES,
        *(f"{line} (over the sketch)" for line in rounds(LINKS)),
        *(f"{line} (over the tables)" for line in rounds(LINKS)),
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["-q"]])
def test_who_does_not_ask_hears_nothing(tmp_path: Path, capsys: Capsys, flags: list[str]) -> None:
    assert lines_of_verify(tmp_path, capsys, "all", *flags) == []
