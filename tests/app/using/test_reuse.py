"""Sketches used for queries with other constants, from the command line, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.behaviour.test_lock import held_lock
from tests.support.run_cli import Cli, Ran

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {boundaries: [10, 20]}
queries:
  wide:
    sql: |
      SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t
      WHERE x >= :low AND note <> :skipped
      GROUP BY g HAVING COUNT(*) >= :few
    params: {low: 5, few: 2, skipped: none}
    sketch: {t: g}
  narrow:
    sql: "SELECT g FROM t WHERE note <> 'none' AND x >= 5 GROUP BY g HAVING COUNT(*) >= 3"
    sketch: {t: g}
  other:
    sql: "SELECT g, MAX(x) AS m FROM t GROUP BY g HAVING MAX(x) > 10"
    sketch: {t: x}
store: .impctl
"""
ROWS = {
    "g": [0, 0, 0, 1, 3, 3, 3, 5, 7, None, 5],
    "x": [5, 15, 25, 5, 5, 15, 25, 5, 15, 25, 7],
    "note": list("abcdefghijk"),
}
SCHEMA = pa.schema([("g", pa.int64()), ("x", pa.int64()), ("note", pa.string())])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_table(str(tmp_path / "t"), pa.table(ROWS, schema=SCHEMA))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    return tmp_path


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, folder / "w.yaml")


def _insert(folder: Path, *rows: tuple[int, int, str]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    write_deltalake(DeltaTable(str(folder / "t")), pa.table(columns, schema=SCHEMA), mode="append")


def _reuse(ran: Ran) -> dict[str, Any]:
    result = ran.results[0]["reuse"]
    assert isinstance(result, dict)
    return result


def _reasons(ran: Ran) -> dict[str, str]:
    return {entry["query"]: entry["reason"] for entry in _reuse(ran)["candidates"]}


IMPLIED = "the query needs only rows that the sketch was captured for"


@pytest.mark.slow
def test_the_smallest_sketch_allowed_is_taken(cli: Cli) -> None:
    cli.good("capture")
    ran = cli.good("rewrite", "--query", "wide", "--param", "few=4", "--param", "low=6")
    assert _reuse(ran)["query"] == "narrow"
    assert _reasons(ran) == {
        "wide": "also usable, but a smaller one was chosen",
        "narrow": IMPLIED,
    }
    assert ran.results[0]["sql"] == (
        "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM (SELECT * FROM t WHERE `g` < 4L) AS t\n"
        "WHERE x >= 6 AND note <> 'none'\n"
        "GROUP BY g HAVING COUNT(*) >= 4\n"
    )
    ran = cli.good("rewrite", "--query", "wide", "--param", "low=6")
    assert _reuse(ran)["query"] == "wide"
    assert _reasons(ran)["narrow"].startswith("HAVING does not imply the condition")


def test_the_values_of_the_file_use_the_querys_own_sketch(cli: Cli) -> None:
    cli.good("capture")
    ran = cli.good("rewrite", "--query", "wide", "--param", "few=2")
    assert ran.results[0]["reuse"] is None
    assert ran.results[0]["sketches"][0]["fragments"] == [0, 1, 2]


@pytest.mark.slow
def test_none_serves_and_the_whole_table_is_read(cli: Cli) -> None:
    cli.good("capture")
    ran = cli.good("rewrite", "--query", "wide", "--param", "few=1")
    assert ran.results[0]["sketches"] == []
    assert "(SELECT" not in ran.results[0]["sql"]
    assert _reuse(ran)["query"] is None
    assert _reasons(ran)["wide"] == (
        "HAVING does not imply the condition the sketch was captured for: `COUNT(*) >= 2`, but "
        "the query says `COUNT(*) >= 1`"
    )
    assert ran.document["warnings"] == [
        "query `wide` runs without a sketch, because no stored sketch can be used"
    ]
    ran = cli("rewrite", "--query", "wide", "--param", "few=1", "--policy", "strict")
    assert ran.refusal == (4, "no_sketch_to_reuse")


def test_a_query_never_captured_is_told(cli: Cli) -> None:
    ran = cli.good("rewrite", "--query", "wide", "--param", "few=3")
    assert _reasons(ran) == {"wide": "it has not been captured"}
    cli.good("capture", "--query", "narrow")
    ran = cli.good("rewrite", "--query", "wide", "--param", "few=3")
    assert _reasons(ran) == {
        "wide": "it has not been captured",
        "narrow": IMPLIED,
    }


@pytest.mark.slow
def test_sql_of_another_text_hits_the_same_query(cli: Cli) -> None:
    cli.good("capture")
    sql = "select avg(x) from t as z where note<>'none' and z.x>=5 group by g having count(*)>=3"
    ran = cli.good("rewrite", "--sql", sql)
    assert _reuse(ran)["query"] == "narrow"
    assert _reuse(ran)["reason"] == "it was captured for the same conditions and limits"
    assert "`g` < 4L) as z where" in ran.results[0]["sql"]
    ran = cli.good("rewrite", "--sql", "SELECT g FROM t GROUP BY g HAVING MAX(x) > 20")
    assert (_reuse(ran)["query"], _reuse(ran)["reason"]) == ("other", IMPLIED)
    ran = cli.good("rewrite", "--sql", "SELECT g FROM t GROUP BY g HAVING MIN(x) > 20")
    assert _reuse(ran) == {
        "query": None,
        "reason": "no captured query has the same template",
        "candidates": [],
    }


@pytest.mark.slow
def test_a_stale_sketch_is_maintained_first(cli: Cli, folder: Path) -> None:
    cli.good("capture")
    _insert(folder, (7, 15, "l"), (7, 15, "m"), (1, -9, "n"))
    ran = cli.good("rewrite", "--query", "wide", "--param", "few=3")
    assert _reuse(ran)["query"] == "narrow"
    assert ran.results[0]["action"] == "exact"
    assert ran.results[0]["versions"] == {"t": 1}
    assert ran.results[0]["sketches"][0]["fragments"] == [0, 1, 3]
    stale = {r["query"]: r["stale"] for r in cli.good("status").results}
    assert stale == {"wide": True, "narrow": False, "other": True}


def test_another_writer_is_no_reason_to_stop(cli: Cli, folder: Path) -> None:
    """Once the lock's error ended the run, although other sketches and the table were there."""
    cli.good("capture")
    _insert(folder, (7, 15, "l"))
    cli.good("maintain", "--query", "wide")
    asked = ("--query", "wide", "--param", "few=3", "--lock-timeout", "0.1")
    with held_lock(folder / ".impctl"):
        # `narrow` is stale, `wide` can be used as it stands.
        ran = cli.good("rewrite", *asked)
        assert _reuse(ran)["query"] == "wide"
        assert _reasons(ran)["narrow"].startswith("it could not be maintained: ")
        _insert(folder, (7, 15, "m"))
        ran = cli.good("rewrite", *asked)
        assert (_reuse(ran)["query"], ran.results[0]["sketches"]) == (None, [])
        assert ran.document["warnings"]
        assert cli("rewrite", *asked, "--policy", "strict").refusal == (6, "lock_held")
    assert _reuse(cli.good("rewrite", *asked))["query"] == "narrow"


def test_a_definition_that_changed_is_left_alone(cli: Cli, folder: Path) -> None:
    cli.good("capture")
    changed = WORKLOAD.replace("few: 2", "few: 3")
    (folder / "w.yaml").write_text(changed)
    ran = cli.good("rewrite", "--query", "wide", "--param", "few=4")
    assert _reasons(ran) == {"wide": "it changed since the capture", "narrow": IMPLIED}


def test_safety_is_judged_for_the_new_constants(cli: Cli, folder: Path) -> None:
    text = WORKLOAD.replace(
        "queries:\n",
        "queries:\n"
        "  sums:\n"
        "    sql: SELECT g, SUM(x) AS s FROM t WHERE x > :low GROUP BY g HAVING SUM(x) > 20\n"
        "    params: {low: 0}\n"
        "    sketch: {t: x}\n",
    )
    (folder / "w.yaml").write_text(text)
    _insert(folder, (0, -50, "neg"))
    cli.good("capture", "--query", "sums")
    ran = cli.good("rewrite", "--query", "sums", "--param", "low=1")
    assert _reuse(ran)["query"] == "sums"
    ran = cli.good("rewrite", "--query", "sums", "--param", "low=-100")
    assert _reuse(ran)["query"] is None
    assert "is never negative" in _reasons(ran)["sums"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--query", "wide", "--param", "fw=1"), "parameter_unknown"),
        (("--query", "narrow", "--param", "few=1"), "parameter_unknown"),
        (("--query", "wide", "--param", "few=1.5"), "parameter_type"),
        (("--query", "wide", "--param", "few=1 OR 1=1"), "parameter_type"),
        (("--query", "wide", "--param", "few="), "parameter_type"),
        (("--query", "wide", "--param", f"few={2**63}"), "parameter_type"),
        (("--query", "wide", "--param", "few=1", "--param", "few=2"), "parameter_syntax"),
        (("--sql", "SELECT 1", "--param", "few=1"), "sql_and_query"),
        (("--sql", "SELECT g FROM t WHERE x > :low"), "parameter_unknown"),
        (("--query", "unknown", "--param", "few=1"), "query_unknown"),
    ],
)
def test_wrong_wishes(cli: Cli, arguments: tuple[str, ...], code: str) -> None:
    ran = cli("rewrite", *arguments)
    assert ran.code == 2
    assert ran.error["code"] == code
    assert ran.error["hint"]


def test_places_in_sql_given_on_the_command_line(cli: Cli) -> None:
    ran = cli("rewrite", "--sql", "SELECT g\nFROM t WHERE nope > 1")
    assert ran.code == 3
    assert ran.error["location"] == {"file": "--sql", "line": 2, "column": 14}


@pytest.mark.slow
def test_text_given_for_a_parameter_stays_text(cli: Cli) -> None:
    cli.good("capture")
    attack = "none' OR 1=1 --"
    ran = cli.good("rewrite", "--query", "wide", "--param", f"skipped={attack}")
    assert _reuse(ran)["query"] is None
    assert "note <> 'none\\u0027 OR 1=1 --'\n" in ran.results[0]["sql"]


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("few: 2", "few: null", "`queries.wide.params.few` has no value for", 14),
        ("few: 2", "few: .nan", "`queries.wide.params.few` has no value for", 14),
        ("few: 2", "few: [2]", "`queries.wide.params.few` must be a single value", 14),
        ("few: 2", "few-er: 2", "`few-er` cannot be the name of a parameter", 14),
        ("x >= :low", "zz >= :low", "Column `zz` is unknown in query `wide`", 12),
        ("note <>", "nota <>", "Column `nota` is unknown in query `wide`", 12),
    ],
)
def test_errors_in_the_file_have_their_place(
    cli: Cli, folder: Path, old: str, new: str, message: str, line: int
) -> None:
    (folder / "w.yaml").write_text(WORKLOAD.replace(old, new, 1))
    ran = cli("check", "--query", "wide")
    assert ran.code in (2, 3)
    assert message in ran.error["message"] + str(ran.error.get("problems", ""))
    place = ran.error["location"]
    assert place["line"] == line
    if "nota" in new:
        assert place["column"] == WORKLOAD.split("\n")[11].index("note") + 1


def test_a_new_default_is_another_definition(cli: Cli, folder: Path) -> None:
    cli.good("capture", "--query", "wide")
    assert not cli.good("status", "--query", "wide").results[0]["stale"]
    (folder / "w.yaml").write_text(WORKLOAD.replace("skipped: none", "skipped: '5'"))
    ran = cli.good("status", "--query", "wide")
    assert ran.results[0]["stale"]
    ran = cli.good("maintain", "--query", "wide")
    assert ran.results[0]["reason_code"] == "definition_changed"


@pytest.mark.slow
def test_a_kept_answer_is_not_that_of_other_constants(cli: Cli, folder: Path) -> None:
    own = "    sketch: {t: g}\n  narrow"
    (folder / "w.yaml").write_text(WORKLOAD.replace(own, f"    answer: true\n{own}"))
    cli.good("capture")
    asked = ("query", "--sketch", "auto")
    kept = cli.good(*asked, "--query", "wide").results[0]
    assert (kept["by"], len(kept["rows"])) == ("state", 3)
    ran = cli.good(*asked, "--query", "wide", "--param", "low=15").results[0]
    assert ran["reuse"]["query"] == "wide"
    assert ran["rows"] == [[0, 2, 40], [3, 2, 40]]
    text = "SELECT g FROM t WHERE note <> 'none' AND x >= 15 GROUP BY g HAVING COUNT(*) >= 2"
    assert cli.good(*asked, "--sql", text).results[0]["rows"] == [[0], [3]]
