"""Warnings after a capture: sketches that hold too much, state too large, lineage of no use."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.compile.buffers import KEEP_ALL
from impctl.errors import ImpctlWarning, TableError
from impctl.service import advice, capture, maintenance_plan
from impctl.tables.write import maintenance as writing
from impctl.tables.write.maintenance import create_table
from tests.behaviour.recursive_workload import network
from tests.support.run_cli import Cli, CliOf

ROWS = 12_000
FILES = 8


@pytest.fixture
def _a_small_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 10,000 rows on advice is given, which otherwise takes ten times as many."""
    assert advice._ROWS_WORTH_ADVICE == 100_000
    monkeypatch.setattr(advice, "_ROWS_WORTH_ADVICE", 10_000)


def told(
    folder: Path, values: np.ndarray, having: str, ranges: str = "ranges: 20", files: int = FILES
) -> list[str]:
    """What capturing warns of; the table lies in so many files in the order of the values."""
    for part in np.array_split(values, files):
        write_deltalake(str(folder / "t"), pa.table({"g": part}), mode="append")
    (folder / "w.yaml").write_text(
        f"version: 1\ntables: {{t: {{path: t}}}}\npartitions: {{t: {{g: {{"
        f"{ranges}}}}}}}\n"
        f"queries: {{q: {{sql: 'SELECT g, COUNT(*) n FROM t GROUP BY g HAVING {having}'}}}}\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        impctl.open(folder / "w.yaml").capture()
    assert all(warning.category is ImpctlWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def groups(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows, dtype=np.int64) % 1000


@pytest.mark.usefixtures("_a_small_table_is_large")
@pytest.mark.slow
def test_a_table_in_no_order_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A table this small would be one file, which no order helps.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 12)
    (result,) = told(tmp_path, groups(), "g < 30")
    assert "on `t.g` skips almost no files" in result
    assert "spans 100% of the ranges" in result
    assert "impctl cluster" in result


FEW_PLACES = np.concatenate([groups(1000), np.zeros(ROWS, np.int64)])


@pytest.mark.usefixtures("_a_small_table_is_large")
@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [np.sort(groups()), groups(ROWS - 3_200), FEW_PLACES],
    ids=["sorted", "small", f"one file of {FILES}"],
)
def test_a_table_that_no_order_would_help_is_not(tmp_path: Path, values: np.ndarray) -> None:
    assert told(tmp_path, values, "g < 30 AND g > 0") == []


@pytest.mark.usefixtures("_a_small_table_is_large")
def test_an_empty_sketch_leaves_out_every_file(tmp_path: Path) -> None:
    assert told(tmp_path, groups(), "g < 0") == []


@pytest.mark.usefixtures("_a_small_table_is_large")
@pytest.mark.parametrize("ranges", ["boundaries: [333, 666]", "ranges: 21"])
def test_a_sorted_table_of_two_files_is_sorted(tmp_path: Path, ranges: str) -> None:
    assert told(tmp_path, np.sort(groups()), "g >= 480 AND g < 520", ranges, files=2) == []


@pytest.mark.usefixtures("_a_small_table_is_large")
@pytest.mark.parametrize("error", [TableError("no statistics"), ValueError("no statistics")])
def test_advice_that_fails_is_no_failure_of_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(capture, "warnings_of", Mock(side_effect=error))
    (result,) = told(tmp_path, groups(1000), "g < 30")
    assert result.startswith(
        "query `q` was captured, but impctl could not estimate what its sketch saves"
    )
    assert "no statistics" in result
    with impctl.open(tmp_path / "w.yaml") as workload:
        assert not workload.status()[0].stale


@pytest.mark.usefixtures("_a_small_table_is_large")
@pytest.mark.slow
def test_a_sketch_that_holds_nearly_everything_is_told_so_alone(tmp_path: Path) -> None:
    (result,) = told(tmp_path, groups(), "g >= 0")
    assert "skips almost nothing" in result


@pytest.mark.usefixtures("_a_small_table_is_large")
def test_small_files_of_many_commits_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for part in np.array_split(np.sort(groups(40_000)), 10):
        write_deltalake(str(path), pa.table({"g": part}), mode="append")
    for _ in range(15):
        rows = pa.table({"g": np.array([0, 500, 999])})
        write_deltalake(str(path), rows, mode="append")
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {g: {ranges: 20}}}\n"
        "queries: {q: {sql: 'SELECT g, COUNT(*) n FROM t GROUP BY g HAVING g < 30'}}\nstore: st\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        impctl.open(tmp_path / "w.yaml").capture()
    (result,) = (str(warning.message) for warning in caught)
    assert "skips none of the 15 small files (of 25)" in result
    assert "OPTIMIZE" in result


@pytest.mark.usefixtures("_a_small_table_is_large")
def test_doctor_says_the_same_at_any_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (told_then,) = told(tmp_path, groups(), "g < 30")
    ran = Cli(capsys, tmp_path / "w.yaml")("doctor")
    (result,) = (one for one in ran.results if one["check"] == "skips_little")
    assert (result["level"], result["subject"]) == ("warning", "q")
    said = f"{result['message']}; {result['fix']}"
    assert said[1:] == told_then[1:]


MANY_ROWS = 20_000
LEAST = "SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 100"
TOP = "SELECT q.g FROM (SELECT g, x FROM t ORDER BY x DESC LIMIT 50) q WHERE q.g > 0"
SUMS = "SELECT g, SUM(y) s FROM t GROUP BY g HAVING SUM(y) > 100"


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A small table that compresses well, so that rows remembered take more than the table."""
    monkeypatch.setattr(advice, "_SMALL", 10_000)
    rows = {
        "g": np.repeat(np.arange(4), MANY_ROWS // 4),
        "x": np.arange(MANY_ROWS) * 3,
        "y": np.ones(MANY_ROWS, np.int64),
    }
    create_table(str(tmp_path / "t"), pa.table(rows))
    lines = ["version: 1", "tables: {t: {path: t}}", "queries:"]
    for name, sql in (("least", LEAST), ("top", TOP), ("sums", SUMS)):
        lines.append(f'  {name}: {{sql: "{sql}", sketch: {{t: g}}, buffer: all}}')
        if name != "sums":
            lines.append(f'  {name}_bounded: {{sql: "{sql}", sketch: {{t: g}}, buffer: 1000}}')
    lines += ["partitions: {t: {g: {boundaries: [2, 3]}}}", "store: .impctl"]
    return cli_of("\n".join(lines) + "\n")


def told_of_state(cli: Cli, query: str) -> list[str]:
    warnings = cli.good("capture", "--query", query).document["warnings"]
    return [text for text in warnings if "the state of query" in text]


def state(cli: Cli, query: str) -> int:
    return int(cli.one("status", "--query", query)["state_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize(("query", "about"), [("top", "about"), ("least", "up to")])
def test_what_a_bound_would_save_is_what_it_saves(cli: Cli, query: str, about: str) -> None:
    (text,) = told_of_state(cli, query)
    assert f"the state of query `{query}` takes " in text
    assert f"`buffer: 1000` would save {about} " in text
    assert not any("would save" in text for text in told_of_state(cli, f"{query}_bounded"))
    number, unit = text.split(f"save {about} ")[1].split(";")[0].split()
    saved = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]
    really = state(cli, query) - state(cli, f"{query}_bounded")
    # Of four groups each keeps its 1000, so that less is saved than of one.
    least = 0.9 if about == "about" else 0.5
    assert least * saved <= really <= 1.05 * saved, (text, really)


def test_a_top_k_of_all_rows_is_bounded_unless_asked(cli: Cli) -> None:
    """What nobody bounded keeps no more than twice 1000 rows, and says nothing of it."""
    cli.edit(", buffer: all", "")
    assert told_of_state(cli, "top") == told_of_state(cli, "top_bounded") == []
    assert state(cli, "top") <= 1.1 * state(cli, "top_bounded")
    assert told_of_state(cli, "least"), "of many groups everything is kept"


@pytest.mark.slow
def test_state_from_before_there_was_a_bound_is_taken_up(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.edit(", buffer: all", "")
    monkeypatch.setattr(maintenance_plan, "USUAL", KEEP_ALL)
    told_of_state(cli, "top")
    monkeypatch.undo()
    table = DeltaTable(str(cli.workload.parent / "t"))
    table.delete(f"x > {3 * (MANY_ROWS - 20)}")
    table.delete(f"x > {3 * (MANY_ROWS - 1500)}")
    assert cli.one("maintain", "--query", "top")["action"] == "exact"
    before = kept(cli, "top")
    cli.good("capture", "--query", "top")
    assert kept(cli, "top") == before


def kept(cli: Cli, query: str) -> list[int]:
    result = cli.one("rewrite", "--query", query)
    ranges: list[int] = result["sketches"][0]["ranges"]
    return ranges


def test_small_state_is_not_worth_a_word(cli: Cli) -> None:
    assert told_of_state(cli, "sums") == []


SIZE = 60
NARROW, WIDE = "SELECT n FROM r WHERE n < 12", "SELECT n FROM r WHERE n >= 0"


def circle(folder: Path, capsys: pytest.CaptureFixture[str], above: str, lineage: str) -> Cli:
    """What 7 reaches in a chain, one after the other; the first five are asked for, or all."""
    cli = network(folder, capsys, ["reach"], lineage)
    cli.edit("SELECT n FROM r", above)
    links = {"src": [7 + at for at in range(SIZE)], "dst": [8 + at for at in range(SIZE)]}
    write_deltalake(str(folder / "links"), pa.table(links), mode="overwrite")
    return cli


def told_of_lineage(cli: Cli) -> tuple[list[str], str]:
    """The warnings of a capture about lineage, and what `explain` says of the fixpoint."""
    warnings = cli.good("capture").document["warnings"]
    (line,) = (line for line in cli.one("explain")["plan"] if line["operator"] == "fixpoint")
    return [text for text in warnings if "`lineage: answer`" in text], line["why"]


def state_of(cli: Cli) -> int:
    return int(cli.one("status")["state_bytes"])


def test_all_rows_lead_to_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "_SMALL", 100)
    cli = circle(tmp_path, capsys, WIDE, "answer")
    assert not any("lead to the answer" in line["why"] for line in cli.one("explain")["plan"])
    (warning,), why = told_of_lineage(cli)
    assert "60 of 60 rows of its recursion lead to the answer" in warning
    assert "60 of its 60 rows lead to the answer, so `lineage: all` would need" in why
    with_answer, sketches = state_of(cli), cli.good("status").results[0]["sketches"]
    cli.edit("lineage: answer", "lineage: all")
    assert told_of_lineage(cli)[0] == []
    assert cli.good("status").results[0]["sketches"] == sketches, "the same ranges"
    saved = float(why.split("would need ")[1].split(" kB")[0]) * 1000
    assert with_answer - state_of(cli) >= 0.8 * saved > 0


def test_some_rows_lead_to_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "_SMALL", 100)
    warnings, why = told_of_lineage(circle(tmp_path, capsys, NARROW, "answer"))
    assert warnings == []
    assert "about 4 of its 60 rows lead to the answer;" in why


def test_little_state_is_not_worth_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings, why = told_of_lineage(circle(tmp_path, capsys, WIDE, "answer"))
    assert warnings == []
    assert "60 of its 60 rows" in why


REACH = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 0 UNION "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
)
KEYED = (
    "WITH RECURSIVE r(t, n) AS (SELECT t, dst FROM links WHERE src = 0 UNION SELECT r.t, l.dst "
    "FROM r JOIN links l ON r.t = l.t AND r.n = l.src) "
)
BAG = (
    "WITH RECURSIVE r(n, k) AS (SELECT dst, 1 FROM links WHERE src = 0 UNION ALL "
    "SELECT l.dst, k + 1 FROM r JOIN links l ON r.n = l.src WHERE k < 5) "
)
USED = {
    "narrow": (REACH + "SELECT n FROM r WHERE n < 3", "{links: src}"),
    "outer": (
        REACH[:-2] + " LEFT JOIN nodes x ON x.n = l.dst) SELECT n FROM r WHERE n < 3",
        "{links: src}",
    ),
}
"""Of these sketches are smaller; the optional side of an outer join has none in any case."""
LOST = {
    "apart": (REACH + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)", "{nodes: n}"),
    "missing": (
        REACH + "SELECT n FROM nodes WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.n = nodes.n)",
        "{nodes: n}",
    ),
}
"""Of these it leaves `links` without a sketch."""
UNUSED = {
    "flat": ("SELECT n FROM nodes GROUP BY n HAVING COUNT(*) > 1", "{nodes: n}", "has no WITH REC"),
    "walks": (BAG + "SELECT n FROM r WHERE n < 3", "{links: src}", "UNION ALL counts all"),
    "tenants": (
        KEYED + "SELECT t FROM r GROUP BY t HAVING COUNT(*) > 1",
        "{links: t}",
        "the recursion is keyed",
    ),
    "switches": (
        "WITH RECURSIVE r(b) AS (SELECT b FROM flags WHERE a UNION SELECT f.b FROM r JOIN flags f "
        "ON r.b = f.a) SELECT n FROM nodes WHERE n > 3 AND EXISTS (SELECT 1 FROM r WHERE r.b)",
        "{nodes: n}",
        "WITH RECURSIVE reads no table that has a sketch",
    ),
}
"""Of these it changes nothing, and why; flags are of no type that has ranges."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path from 0 to 5, one back from 5 to 4, and nodes that it misses."""
    links = {"src": [0, 1, 2, 3, 4, 5], "dst": [1, 2, 3, 4, 5, 4], "t": [1, 1, 1, 2, 2, 3]}
    create_table(str(tmp_path / "links"), pa.table(links))
    create_table(str(tmp_path / "flags"), pa.table({"a": [True, False], "b": [False, True]}))
    create_table(str(tmp_path / "nodes"), pa.table({"n": [0, 3, 5, 7, 7]}))
    return tmp_path


def over(
    folder: Path, capsys: pytest.CaptureFixture[str], lineage: str, *, default: bool = False
) -> Cli:
    """The command line over all queries, with this lineage."""
    said = f", lineage: {lineage}"
    lines = [
        f'  {name}: {{sql: "{sql}", sketch: {sketch}{"" if default else said}}}'
        for name, (sql, sketch, *_) in {**USED, **LOST, **UNUSED}.items()
    ]
    text = [
        "version: 1",
        f"defaults: {{lineage: {lineage}}}" if default else "# no defaults",
        "tables: {links: {path: links}, nodes: {path: nodes}, flags: {path: flags}}",
        "partitions:",
        "  links: {src: {boundaries: [1, 2, 3, 4, 5]}, t: {boundaries: [2, 3]}}",
        "  nodes: {n: {boundaries: [1, 2, 3, 4, 5, 6]}}",
        "queries:",
        *lines,
        f"store: st_{lineage}",
    ]
    file = folder / f"{lineage}.yaml"
    file.write_text("\n".join(text) + "\n")
    return Cli(capsys, file)


def warned_of_lineage(document: dict[str, Any]) -> dict[str, str]:
    """The warnings of lineage, by query."""
    result = [text for text in document["warnings"] if text.endswith("[lineage_unused]")]
    return {text.split("query `")[1].split("`")[0]: text for text in result}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "explain", "capture"])
def test_what_changes_nothing_is_told_with_its_place_and_reason(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    cli = over(folder, capsys, "answer")
    result = warned_of_lineage(cli.good(command).document)
    assert result.keys() == {**LOST, **UNUSED}.keys()
    lines = cli.workload.read_text().splitlines()
    for name, text in result.items():
        line, column = map(int, text.split(": ")[0].split(":")[-2:])
        assert lines[line - 1].startswith(f"  {name}:")
        assert lines[line - 1][column - 1 :].startswith("answer}")
        if name in UNUSED:
            assert "has no effect: " in text
            assert UNUSED[name][2] in text
        else:
            assert "leaves `links` without a sketch: NOT EXISTS or NOT IN keeps rows" in text
            assert "with `lineage: all`, a sketch on `links.src` is safe" in text


def test_by_default_only_what_is_lost_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not warned_of_lineage(over(folder, capsys, "all").good("check").document)
    assert warned_of_lineage(
        over(folder, capsys, "answer", default=True).good("check").document
    ).keys() == (LOST.keys())


def test_sketches_are_those_of_all_lineage_where_it_is_told_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    match = {}
    for lineage in ("answer", "all"):
        captured = over(folder, capsys, lineage).good("capture").results
        match[lineage] = {
            result["query"]: [(s["table"], set(s["ranges"])) for s in result["sketches"]]
            for result in captured
        }
    some, every = match["answer"], match["all"]
    for name in UNUSED:
        assert some[name] == every[name], name
    for name in LOST:
        assert [table for table, _ in some[name]] == ["nodes"]
        assert some[name] == [one for one in every[name] if one[0] == "nodes"]
        assert "links" in {table for table, _ in every[name]}
    for (_, less), (_, whole) in zip(some["narrow"], every["narrow"], strict=True):
        assert less <= whole
    assert some["narrow"] != every["narrow"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LOST))
def test_beside_a_recursion_that_is_kept_whole_another_table_is_read_in_part(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """0 and 7 are not reached; 3 and 5, which the sketch leaves out, are."""
    cli = over(folder, capsys, "answer")
    captured = cli.one("capture", "--query", name)
    assert [sketch["ranges"] for sketch in captured["sketches"]] == [[0, 6]]
    ran = cli.one("query", "--query", name, "--sketch", "always", "--by", "engine")
    assert sorted(ran["rows"]) == [[0], [7], [7]]


def test_of_a_table_that_is_sketched_in_part_the_place_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base alone is keyed on tenants: the answer keeps those of few rows."""
    cli = over(folder, capsys, "answer")
    text = cli.workload.read_text()
    few = text.replace('COUNT(*) > 1", sketch: {links: t}', 'COUNT(*) < 3", sketch: {links: t}')
    cli.workload.write_text(few)
    result = warned_of_lineage(cli.good("check", "--query", "tenants").document)
    assert "leaves `links` (2nd) without a sketch: HAVING compares" in result["tenants"]
