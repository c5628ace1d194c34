"""Recursive queries with `lineage: answer`, from capture to answer, on real tables.

Sketches hold only the rows that the result is derived from; answers are held against DuckDB over
all rows.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.behaviour.recursive_workload import (
    BAGS,
    PAIRS,
    QUERIES,
    REACH,
    actions_by_strict,
    answers,
    by_duckdb,
    captured_beside,
    change,
    check_answers,
    fragments,
    network,
    of_all,
)
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli

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
    "FROM c p JOIN c q ON p.y = q.x) SELECT x, y FROM c WHERE x < 9 AND y < 7",
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
@random_seeds(1, 3, 9)
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
    base, step = fragments(cli)["reach"]
    # Ranges are of three nodes: 7 and 8 lie in that of 6 to 8.
    assert (base, step) == ([2], [])
    assert of_all(cli)["reach"] == [[2], [2, 3, 6, 13]]
    # 50 leads back to 5: all that leads there is wanted now.
    more = pa.table({"src": [50], "dst": [5]})
    write_deltalake(str(tmp_path / "links"), more, mode="append")
    cli.good("maintain")
    assert fragments(cli)["reach"] == [[2], [2, 3, 6, 13, 16]]
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
    assert (ran.code, ran.error["code"]) == (3, "sketch_unsafe")
    assert reason in ran.error["message"]
    assert "`lineage: all`" in ran.error["hint"]
    cli.workload.write_text(cli.workload.read_text().replace("lineage: answer", "lineage: all"))
    cli.good("capture")
    assert answers(cli, name, "--sketch", "always") == by_duckdb(cli, QUERIES[name])


def test_it_serves_no_other_text(tmp_path: Path, capsys: Capsys) -> None:
    """With another constant above, other rows would be needed."""
    cli = narrow(tmp_path, capsys, "reach")
    cli.good("capture")
    asked = NARROW["reach"].replace("n < 9", "n < 90")
    (result,) = cli.good("rewrite", "--sql", asked, "--sketch", "auto").results
    (candidate,) = result["reuse"]["candidates"]
    assert not candidate["allowed"]
    assert "lineage: answer" in candidate["reason"]


@pytest.mark.slow
def test_another_lineage_is_another_sketch(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach")
    cli.good("capture")
    held = fragments(cli)["reach"]
    cli.workload.write_text(cli.workload.read_text().replace("lineage: answer", "lineage: all"))
    ran = cli("maintain")
    assert ran.code != 0 or ran.results[0]["action"] not in ("exact", "none"), ran
    cli.good("capture")
    assert size(fragments(cli)["reach"]) > size(held)


def test_explain_says_what_is_held(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach", "walks_of_reached")
    results = cli.good("explain").results
    text = {
        result["query"]: " | ".join(line["why"] for line in result["plan"]) for result in results
    }
    assert "only the rows that the result is derived from" in text["reach"]
    assert "UNION ALL counts all derivations" in text["walks_of_reached"]


@pytest.mark.slow
def test_an_answer_may_be_kept_beside(tmp_path: Path, capsys: Capsys) -> None:
    cli = narrow(tmp_path, capsys, "reach")
    cli.workload.write_text(cli.workload.read_text().replace("answer: false", "answer: true"))
    cli.good("capture")
    for seed in range(3):
        change(tmp_path, random.Random(seed))
        assert {one["action"] for one in cli.good("maintain").results} <= {"exact", "none"}
        assert answers(cli, "reach") == by_duckdb(cli, NARROW["reach"])
    assert size(fragments(cli)["reach"]) < size(of_all(cli)["reach"])


@pytest.mark.slow
def test_why_reads_by_it(tmp_path: Path, capsys: Capsys) -> None:
    """It holds all ways in which rows of the answer are made."""
    cli = narrow(tmp_path, capsys, "reach")
    cli.good("capture")
    (told,) = cli.good("why", "--query", "reach", "--row", "n=8").results
    cli.workload.write_text(cli.workload.read_text().replace("lineage: answer", "lineage: all"))
    (every,) = cli.good("why", "--query", "reach", "--row", "n=8").results
    assert told["rows"] == every["rows"]
    assert told["lineage"] == every["lineage"]


@pytest.mark.slow
def test_a_strict_policy_takes_it_since_it_is_maintained_exactly(
    tmp_path: Path, capsys: Capsys
) -> None:
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
    held, every = fragments(cli), of_all(cli)
    for name in names:
        assert 0 < size(held[name]) <= size(every[name]), name
    assert size(held["reach"]) < size(every["reach"])
