"""Warnings after a capture: sketches that hold too much, state too large, lineage of no use."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import impctl
from impctl.compile.buffers import KEEP_ALL
from impctl.errors import ImpctlWarning, TableError
from impctl.service import advice, capture, maintenance_plan
from impctl.tables.write import maintenance as writing
from impctl.tables.write.maintenance import create_laid_out_table, create_table
from tests.behaviour.recursive_workload import network
from tests.support.run_cli import Capsys, Cli, CliOf, MonkeyPatch

ROWS, FILES = 12_000, 8
SLOW = pytest.mark.slow
Told = Callable[..., list[str]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: MonkeyPatch) -> Told:
    """What capturing warns of; the table lies in so many files in the order of the values.

    From 10,000 rows on advice is given, which otherwise takes ten times as many.
    """
    assert advice._ROWS_WORTH_ADVICE == 100_000
    monkeypatch.setattr(advice, "_ROWS_WORTH_ADVICE", 10_000)

    def told(
        values: np.ndarray,
        having: str,
        ranges: str = "ranges: 20",
        files: int = FILES,
        small_files: int = 0,
    ) -> list[str]:
        parts = (pa.table({"g": part}) for part in np.array_split(values, files))
        create_laid_out_table(str(tmp_path / "t"), parts)
        for _ in range(small_files):
            rows = pa.table({"g": np.array([0, 500, 999])})
            write_deltalake(str(tmp_path / "t"), rows, mode="append")
        (tmp_path / "w.yaml").write_text(
            f"version: 1\ntables: {{t: {{path: t}}}}\npartitions: {{t: {{g: {{{ranges}}}}}}}\n"
            f"queries: {{q: {{sql: 'SELECT g, COUNT(*) n FROM t GROUP BY g HAVING {having}'}}}}\n"
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            impctl.open(tmp_path / "w.yaml").capture()
        assert all(warning.category is ImpctlWarning for warning in caught)
        return [str(warning.message) for warning in caught]

    return told


def groups(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows, dtype=np.int64) % 1000


FEW_PLACES = np.concatenate([groups(1000), np.zeros(ROWS, np.int64)])
SOME, MIDDLE = "g < 30 AND g > 0", "g >= 480 AND g < 520"
NOT_TOLD: dict[str, tuple[Any, ...]] = {
    "sorted": (np.sort(groups()), SOME),
    "small": (groups(ROWS - 3_200), SOME),
    f"one file of {FILES}": (FEW_PLACES, SOME),
    "an empty sketch": (groups(), "g < 0"),
    "two sorted files by boundaries": (np.sort(groups()), MIDDLE, "boundaries: [333, 666]", 2),
    "two sorted files by ranges": (np.sort(groups()), MIDDLE, "ranges: 21", 2),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=n, marks=SLOW if c[1] == SOME else ()) for n, c in NOT_TOLD.items()]
)
def test_a_table_that_no_order_would_help_is_not(told: Told, case: tuple[Any, ...]) -> None:
    assert told(*case) == []


@pytest.mark.parametrize("error", [TableError("no statistics"), ValueError("no statistics")])
def test_failed_advice_fails_no_capture(
    told: Told, tmp_path: Path, monkeypatch: MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(capture, "warnings_of", Mock(side_effect=error))
    (result,) = told(groups(1000), "g < 30")
    said = "query `q` was captured, but impctl could not estimate what its sketch saves"
    assert result.startswith(said)
    assert "no statistics" in result
    with impctl.open(tmp_path / "w.yaml") as workload:
        assert not workload.status()[0].stale


@pytest.mark.slow
def test_a_sketch_that_holds_nearly_everything_is_told_so_alone(told: Told) -> None:
    (result,) = told(groups(), "g >= 0")
    assert "skips almost nothing" in result


def test_small_files_of_many_commits_are_told(told: Told) -> None:
    (result,) = told(np.sort(groups(40_000)), "g < 30", files=10, small_files=15)
    assert "skips none of the 15 small files (of 25)" in result
    assert "OPTIMIZE" in result


def test_a_table_in_no_order_is_told_by_a_capture_and_by_doctor_at_any_time(
    told: Told, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capsys
) -> None:
    # A table this small would be one file, which no order helps.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 12)
    (told_then,) = told(groups(), "g < 30")
    for said in ("on `t.g` skips almost no files", "spans 100% of the ranges", "impctl cluster"):
        assert said in told_then
    ran = Cli(capsys, tmp_path / "w.yaml")("doctor")
    (result,) = (one for one in ran.results if one["check"] == "skips_little")
    assert (result["level"], result["subject"]) == ("warning", "q")
    assert f"{result['message']}; {result['fix']}"[1:] == told_then[1:]


MANY_ROWS = 20_000
LEAST = "SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 100"
TOP = "SELECT q.g FROM (SELECT g, x FROM t ORDER BY x DESC LIMIT 50) q WHERE q.g > 0"
SUMS = "SELECT g, SUM(y) s FROM t GROUP BY g HAVING SUM(y) > 100"


@pytest.fixture
def cli(cli_of: CliOf, monkeypatch: MonkeyPatch) -> Cli:
    """A small table that compresses well, so that rows remembered take more than the table."""
    monkeypatch.setattr(advice, "_SMALL", 10_000)
    rows = {
        "g": np.repeat(np.arange(4), MANY_ROWS // 4),
        "x": np.arange(MANY_ROWS) * 3,
        "y": np.ones(MANY_ROWS, np.int64),
    }
    lines = ["version: 1", "tables: {t: {path: t}}", "queries:"]
    for name, sql in (("least", LEAST), ("top", TOP), ("sums", SUMS)):
        lines.append(f'  {name}: {{sql: "{sql}", sketch: {{t: g}}, buffer: all}}')
        if name != "sums":
            lines.append(f'  {name}_bounded: {{sql: "{sql}", sketch: {{t: g}}, buffer: 1000}}')
    lines += ["partitions: {t: {g: {boundaries: [2, 3]}}}", "store: .impctl"]
    return cli_of("\n".join(lines) + "\n", t=pa.table(rows))


def told_of_state(cli: Cli, query: str) -> list[str]:
    warnings = cli.warnings("capture", "--query", query)
    return [text for text in warnings if "the state of query" in text]


def state(cli: Cli, *words: str) -> int:
    return int(cli.one("status", *words)["state_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize(("query", "about"), [("top", "about"), ("least", "up to")])
def test_what_a_bound_would_save_is_what_it_saves(cli: Cli, query: str, about: str) -> None:
    (text,) = told_of_state(cli, query)
    assert f"the state of query `{query}` takes " in text
    assert f"`buffer: 1000` would save {about} " in text
    assert not any("would save" in text for text in told_of_state(cli, f"{query}_bounded"))
    number, unit = text.split(f"save {about} ")[1].split(";")[0].split()
    saved = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]
    really = state(cli, "--query", query) - state(cli, "--query", f"{query}_bounded")
    # Of four groups each keeps its 1000, so that less is saved than of one.
    least = 0.9 if about == "about" else 0.5
    assert least * saved <= really <= 1.05 * saved, (text, really)


def test_a_top_k_of_all_rows_is_bounded_unless_asked(cli: Cli) -> None:
    """What nobody bounded keeps no more than twice 1000 rows, and says nothing of it."""
    cli.edit(", buffer: all", "")
    assert told_of_state(cli, "top") == told_of_state(cli, "top_bounded") == []
    assert state(cli, "--query", "top") <= 1.1 * state(cli, "--query", "top_bounded")
    assert told_of_state(cli, "least"), "of many groups everything is kept"


@pytest.mark.slow
def test_state_older_than_the_bound_is_taken_up(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    cli.edit(", buffer: all", "")
    monkeypatch.setattr(maintenance_plan, "USUAL", KEEP_ALL)
    told_of_state(cli, "top")
    monkeypatch.undo()
    table = cli.table("t")
    table.delete(f"x > {3 * (MANY_ROWS - 20)}")
    table.delete(f"x > {3 * (MANY_ROWS - 1500)}")
    assert cli.one("maintain", "--query", "top")["action"] == "exact"

    def kept() -> list[int]:
        return list(cli.one("rewrite", "--query", "top")["sketches"][0]["ranges"])

    before = kept()
    cli.good("capture", "--query", "top")
    assert kept() == before


def test_small_state_is_not_worth_a_word(cli: Cli) -> None:
    assert told_of_state(cli, "sums") == []


SIZE = 60
NARROW, WIDE = "SELECT n FROM r WHERE n < 12", "SELECT n FROM r WHERE n >= 0"


@pytest.fixture
def circle(tmp_path: Path, capsys: Capsys) -> Callable[[str], Cli]:
    """What 7 reaches in a chain, one after the other; the first five are asked for, or all."""

    def circle(above: str) -> Cli:
        cli = network(tmp_path, capsys, ["reach"], "answer")
        cli.edit("SELECT n FROM r", above)
        links = {"src": [7 + at for at in range(SIZE)], "dst": [8 + at for at in range(SIZE)]}
        write_deltalake(cli.path("links"), pa.table(links), mode="overwrite")
        return cli

    return circle


def told_of_lineage(cli: Cli) -> tuple[list[str], str]:
    """The warnings of a capture about lineage, and what `explain` says of the fixpoint."""
    warnings = cli.warnings("capture")
    (line,) = (line for line in cli.one("explain")["plan"] if line["operator"] == "fixpoint")
    return [text for text in warnings if "`lineage: answer`" in text], line["why"]


def test_all_rows_lead_to_the_answer(
    circle: Callable[[str], Cli], monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "_SMALL", 100)
    cli = circle(WIDE)
    assert not any("lead to the answer" in line["why"] for line in cli.one("explain")["plan"])
    (warning,), why = told_of_lineage(cli)
    assert "60 of 60 rows of its recursion lead to the answer" in warning
    assert "60 of its 60 rows lead to the answer, so `lineage: all` would need" in why
    with_answer, sketches = state(cli), cli.one("status")["sketches"]
    cli.edit("lineage: answer", "lineage: all")
    assert told_of_lineage(cli)[0] == []
    assert cli.one("status")["sketches"] == sketches, "the same ranges"
    saved = float(why.split("would need ")[1].split(" kB")[0]) * 1000
    assert with_answer - state(cli) >= 0.8 * saved > 0


@pytest.mark.parametrize(
    ("above", "small", "said"),
    [
        (NARROW, 100, "about 4 of its 60 rows lead to the answer;"),
        (WIDE, advice._SMALL, "60 of its 60 rows"),
    ],
    ids=["some rows", "little state"],
)
def test_what_saves_little_is_not_worth_a_warning(
    circle: Callable[[str], Cli], monkeypatch: MonkeyPatch, above: str, small: int, said: str
) -> None:
    monkeypatch.setattr(advice, "_SMALL", small)
    warnings, why = told_of_lineage(circle(above))
    assert warnings == []
    assert said in why


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
def over(tmp_path: Path, capsys: Capsys) -> Callable[..., Cli]:
    """The command line over all queries, with the lineage that is asked for.

    A path from 0 to 5, one back from 5 to 4, and nodes that it misses.
    """
    links = {"src": [0, 1, 2, 3, 4, 5], "dst": [1, 2, 3, 4, 5, 4], "t": [1, 1, 1, 2, 2, 3]}
    create_table(str(tmp_path / "links"), pa.table(links))
    create_table(str(tmp_path / "flags"), pa.table({"a": [True, False], "b": [False, True]}))
    create_table(str(tmp_path / "nodes"), pa.table({"n": [0, 3, 5, 7, 7]}))

    def over(lineage: str, *, default: bool = False) -> Cli:
        said = "" if default else f", lineage: {lineage}"
        text = [
            "version: 1",
            f"defaults: {{lineage: {lineage}}}" if default else "# no defaults",
            "tables: {links: {path: links}, nodes: {path: nodes}, flags: {path: flags}}",
            "partitions:",
            "  links: {src: {boundaries: [1, 2, 3, 4, 5]}, t: {boundaries: [2, 3]}}",
            "  nodes: {n: {boundaries: [1, 2, 3, 4, 5, 6]}}",
            "queries:",
            *(
                f'  {name}: {{sql: "{sql}", sketch: {sketch}{said}}}'
                for name, (sql, sketch, *_) in {**USED, **LOST, **UNUSED}.items()
            ),
            f"store: st_{lineage}",
        ]
        file = tmp_path / f"{lineage}.yaml"
        file.write_text("\n".join(text) + "\n")
        return Cli(capsys, file)

    return over


def warned_of_lineage(document: dict[str, Any]) -> dict[str, str]:
    result = [text for text in document["warnings"] if text.endswith("[lineage_unused]")]
    return {text.split("query `")[1].split("`")[0]: text for text in result}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "capture"])
def test_what_changes_nothing_is_told_with_its_place_and_reason(
    over: Callable[..., Cli], command: str
) -> None:
    cli = over("answer")
    result = warned_of_lineage(cli.good(command).document)
    if command == "check":
        assert warned_of_lineage(cli.good("explain").document) == result
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


def test_sketches_are_those_of_all_lineage_where_it_is_told_so(over: Callable[..., Cli]) -> None:
    """By default only losses are reported."""
    match = {}
    for lineage, lost in (("answer", LOST.keys()), ("all", set())):
        ran = over(lineage, default=True).good("capture")
        assert warned_of_lineage(ran.document).keys() == lost
        match[lineage] = {
            result["query"]: [(s["table"], set(s["ranges"])) for s in result["sketches"]]
            for result in ran.results
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
    over: Callable[..., Cli], name: str
) -> None:
    """0 and 7 are not reached; 3 and 5, which the sketch leaves out, are."""
    cli = over("answer")
    captured = cli.one("capture", "--query", name)
    assert [sketch["ranges"] for sketch in captured["sketches"]] == [[0, 6]]
    ran = cli.one("query", "--query", name, "--sketch", "always", "--by", "engine")
    assert sorted(ran["rows"]) == [[0], [7], [7]]


def test_of_a_table_that_is_sketched_in_part_the_place_is_told(over: Callable[..., Cli]) -> None:
    """The base alone is keyed on tenants: the answer keeps those of few rows."""
    cli = over("answer")
    cli.edit('COUNT(*) > 1", sketch: {links: t}', 'COUNT(*) < 3", sketch: {links: t}')
    result = warned_of_lineage(cli.good("check", "--query", "tenants").document)
    assert "leaves `links` (2nd) without a sketch: HAVING compares" in result["tenants"]
