"""Warnings after a capture: sketches too large, state too large, unused lineage."""

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
CaptureWarnings = Callable[..., list[str]]


@pytest.fixture
def capture_warnings(tmp_path: Path, monkeypatch: MonkeyPatch) -> CaptureWarnings:
    """The warnings of a capture of a table whose values are split into `files` in order.

    Advice is given from 10,000 rows on instead of 100,000.
    """
    assert advice._ROWS_WORTH_ADVICE == 100_000
    monkeypatch.setattr(advice, "_ROWS_WORTH_ADVICE", 10_000)

    def capture_warnings(
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

    return capture_warnings


def groups(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows, dtype=np.int64) % 1000


ONE_FILE = np.concatenate([groups(1000), np.zeros(ROWS, np.int64)])
SOME, MIDDLE = "g < 30 AND g > 0", "g >= 480 AND g < 520"
NO_WARNING: dict[str, tuple[Any, ...]] = {
    "sorted": (np.sort(groups()), SOME),
    "small": (groups(ROWS - 3_200), SOME),
    f"one file of {FILES}": (ONE_FILE, SOME),
    "an empty sketch": (groups(), "g < 0"),
    "two sorted files by boundaries": (np.sort(groups()), MIDDLE, "boundaries: [333, 666]", 2),
    "two sorted files by ranges": (np.sort(groups()), MIDDLE, "ranges: 21", 2),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=n, marks=SLOW if c[1] == SOME else ()) for n, c in NO_WARNING.items()],
)
def test_no_advice_where_no_order_helps(
    capture_warnings: CaptureWarnings, case: tuple[Any, ...]
) -> None:
    assert capture_warnings(*case) == []


@pytest.mark.parametrize("error", [TableError("no statistics"), ValueError("no statistics")])
def test_failed_advice_fails_no_capture(
    capture_warnings: CaptureWarnings, tmp_path: Path, monkeypatch: MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(capture, "warnings_of", Mock(side_effect=error))
    (result,) = capture_warnings(groups(1000), "g < 30")
    message = "query `q` was captured, but impctl could not estimate what its sketch saves"
    assert result.startswith(message)
    assert "no statistics" in result
    with impctl.open(tmp_path / "w.yaml") as workload:
        assert not workload.status()[0].stale


@pytest.mark.slow
def test_sketch_of_nearly_everything_gives_one_warning(capture_warnings: CaptureWarnings) -> None:
    (result,) = capture_warnings(groups(), "g >= 0")
    assert "skips almost nothing" in result


def test_small_files_give_a_warning(capture_warnings: CaptureWarnings) -> None:
    (result,) = capture_warnings(np.sort(groups(40_000)), "g < 30", files=10, small_files=15)
    assert "skips none of the 15 small files (of 25)" in result
    assert "OPTIMIZE" in result


def test_capture_and_doctor_report_an_unordered_table(
    capture_warnings: CaptureWarnings, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capsys
) -> None:
    # A table this small would be one file, which no order helps.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 12)
    (warning,) = capture_warnings(groups(), "g < 30")
    for part in ("on `t.g` skips almost no files", "spans 100% of the ranges", "impctl cluster"):
        assert part in warning
    ran = Cli(capsys, tmp_path / "w.yaml")("doctor")
    (result,) = (one for one in ran.results if one["check"] == "skips_little")
    assert (result["level"], result["subject"]) == ("warning", "q")
    assert f"{result['message']}; {result['fix']}"[1:] == warning[1:]


MANY_ROWS = 20_000
LEAST = "SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 100"
TOP = "SELECT q.g FROM (SELECT g, x FROM t ORDER BY x DESC LIMIT 50) q WHERE q.g > 0"
SUMS = "SELECT g, SUM(y) s FROM t GROUP BY g HAVING SUM(y) > 100"


@pytest.fixture
def cli(cli_of: CliOf, monkeypatch: MonkeyPatch) -> Cli:
    """A small table that compresses well, so that stored rows are larger than the table."""
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


def state_warnings(cli: Cli, query: str) -> list[str]:
    warnings = cli.warnings("capture", "--query", query)
    return [text for text in warnings if "the state of query" in text]


def state(cli: Cli, *words: str) -> int:
    return int(cli.one("status", *words)["state_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize(("query", "phrase"), [("top", "about"), ("least", "up to")])
def test_estimated_savings_of_a_buffer(cli: Cli, query: str, phrase: str) -> None:
    (text,) = state_warnings(cli, query)
    assert f"the state of query `{query}` takes " in text
    assert f"`buffer: 1000` would save {phrase} " in text
    assert not any("would save" in text for text in state_warnings(cli, f"{query}_bounded"))
    amount, unit = text.split(f"save {phrase} ")[1].split(";")[0].split()
    estimate = float(amount) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]
    saved = state(cli, "--query", query) - state(cli, "--query", f"{query}_bounded")
    # Each of four groups keeps 1000 rows, so savings are smaller than for one.
    share = 0.9 if phrase == "about" else 0.5
    assert share * estimate <= saved <= 1.05 * estimate, (text, saved)


def test_top_k_of_all_rows_is_bounded_by_default(cli: Cli) -> None:
    """By default it keeps at most 2000 rows and gives no warning."""
    cli.edit(", buffer: all", "")
    assert state_warnings(cli, "top") == state_warnings(cli, "top_bounded") == []
    assert state(cli, "--query", "top") <= 1.1 * state(cli, "--query", "top_bounded")
    assert state_warnings(cli, "least"), "all rows of many groups are kept"


@pytest.mark.slow
def test_unbounded_older_state_is_usable(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    cli.edit(", buffer: all", "")
    monkeypatch.setattr(maintenance_plan, "USUAL", KEEP_ALL)
    state_warnings(cli, "top")
    monkeypatch.undo()
    table = cli.table("t")
    table.delete(f"x > {3 * (MANY_ROWS - 20)}")
    table.delete(f"x > {3 * (MANY_ROWS - 1500)}")
    assert cli.one("maintain", "--query", "top")["action"] == "exact"

    def kept_ranges() -> list[int]:
        return list(cli.one("rewrite", "--query", "top")["sketches"][0]["ranges"])

    before = kept_ranges()
    cli.good("capture", "--query", "top")
    assert kept_ranges() == before


def test_small_state_gives_no_warning(cli: Cli) -> None:
    assert state_warnings(cli, "sums") == []


SIZE = 60
NARROW, WIDE = "SELECT n FROM r WHERE n < 12", "SELECT n FROM r WHERE n >= 0"


@pytest.fixture
def chain_cli(tmp_path: Path, capsys: Capsys) -> Callable[[str], Cli]:
    """A recursion from 7 along a chain; the query selects the first five nodes or all."""

    def chain_cli(query: str) -> Cli:
        cli = network(tmp_path, capsys, ["reach"], "answer")
        cli.edit("SELECT n FROM r", query)
        links = {
            "src": [7 + number for number in range(SIZE)],
            "dst": [8 + number for number in range(SIZE)],
        }
        write_deltalake(cli.path("links"), pa.table(links), mode="overwrite")
        return cli

    return chain_cli


def lineage_warnings(cli: Cli) -> tuple[list[str], str]:
    """The lineage warnings of a capture, and the `explain` reason of the fixpoint."""
    warnings = cli.warnings("capture")
    (line,) = (line for line in cli.one("explain")["plan"] if line["operator"] == "fixpoint")
    return [text for text in warnings if "`lineage: answer`" in text], line["why"]


def test_warning_for_full_lineage(
    chain_cli: Callable[[str], Cli], monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "_SMALL", 100)
    cli = chain_cli(WIDE)
    assert not any("lead to the answer" in line["why"] for line in cli.one("explain")["plan"])
    (warning,), why = lineage_warnings(cli)
    assert "60 of 60 rows of its recursion lead to the answer" in warning
    assert "60 of its 60 rows lead to the answer, so `lineage: all` would need" in why
    with_answer, sketches = state(cli), cli.one("status")["sketches"]
    cli.edit("lineage: answer", "lineage: all")
    assert lineage_warnings(cli)[0] == []
    assert cli.one("status")["sketches"] == sketches, "the same ranges"
    saved = float(why.split("would need ")[1].split(" kB")[0]) * 1000
    assert with_answer - state(cli) >= 0.8 * saved > 0


@pytest.mark.parametrize(
    ("query", "small", "reason_part"),
    [
        (NARROW, 100, "about 4 of its 60 rows lead to the answer;"),
        (WIDE, advice._SMALL, "60 of its 60 rows"),
    ],
    ids=["some rows", "little state"],
)
def test_small_savings_give_no_warning(
    chain_cli: Callable[[str], Cli],
    monkeypatch: MonkeyPatch,
    query: str,
    small: int,
    reason_part: str,
) -> None:
    monkeypatch.setattr(advice, "_SMALL", small)
    warnings, why = lineage_warnings(chain_cli(query))
    assert warnings == []
    assert reason_part in why


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
"""Queries with smaller sketches; the optional side of an outer join never has one."""
LOSING = {
    "apart": (REACH + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)", "{nodes: n}"),
    "missing": (
        REACH + "SELECT n FROM nodes WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.n = nodes.n)",
        "{nodes: n}",
    ),
}
"""Queries where it leaves `links` without a sketch."""
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
"""Queries where it changes nothing, and the reason; booleans have no ranges."""


@pytest.fixture
def cli_with_lineage(tmp_path: Path, capsys: Capsys) -> Callable[..., Cli]:
    """The command line over all queries, with the given lineage.

    The links are a path from 0 to 5 and one from 5 to 4; it misses some nodes.
    """
    links = {"src": [0, 1, 2, 3, 4, 5], "dst": [1, 2, 3, 4, 5, 4], "t": [1, 1, 1, 2, 2, 3]}
    create_table(str(tmp_path / "links"), pa.table(links))
    create_table(str(tmp_path / "flags"), pa.table({"a": [True, False], "b": [False, True]}))
    create_table(str(tmp_path / "nodes"), pa.table({"n": [0, 3, 5, 7, 7]}))

    def cli_with_lineage(lineage: str, *, default: bool = False) -> Cli:
        setting = "" if default else f", lineage: {lineage}"
        text = [
            "version: 1",
            f"defaults: {{lineage: {lineage}}}" if default else "# no defaults",
            "tables: {links: {path: links}, nodes: {path: nodes}, flags: {path: flags}}",
            "partitions:",
            "  links: {src: {boundaries: [1, 2, 3, 4, 5]}, t: {boundaries: [2, 3]}}",
            "  nodes: {n: {boundaries: [1, 2, 3, 4, 5, 6]}}",
            "queries:",
            *(
                f'  {name}: {{sql: "{sql}", sketch: {sketch}{setting}}}'
                for name, (sql, sketch, *_) in {**USED, **LOSING, **UNUSED}.items()
            ),
            f"store: st_{lineage}",
        ]
        file = tmp_path / f"{lineage}.yaml"
        file.write_text("\n".join(text) + "\n")
        return Cli(capsys, file)

    return cli_with_lineage


def unused_lineage(document: dict[str, Any]) -> dict[str, str]:
    result = [text for text in document["warnings"] if text.endswith("[lineage_unused]")]
    return {text.split("query `")[1].split("`")[0]: text for text in result}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "capture"])
def test_unused_lineage_is_reported_with_line_and_reason(
    cli_with_lineage: Callable[..., Cli], command: str
) -> None:
    cli = cli_with_lineage("answer")
    result = unused_lineage(cli.good(command).document)
    if command == "check":
        assert unused_lineage(cli.good("explain").document) == result
    assert result.keys() == {**LOSING, **UNUSED}.keys()
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


def test_unused_lineage_leaves_sketches_unchanged(cli_with_lineage: Callable[..., Cli]) -> None:
    """By default only losses are reported."""
    sketches = {}
    for lineage, lost in (("answer", LOSING.keys()), ("all", set())):
        ran = cli_with_lineage(lineage, default=True).good("capture")
        assert unused_lineage(ran.document).keys() == lost
        sketches[lineage] = {
            result["query"]: [(s["table"], set(s["ranges"])) for s in result["sketches"]]
            for result in ran.results
        }
    narrow, full = sketches["answer"], sketches["all"]
    for name in UNUSED:
        assert narrow[name] == full[name], name
    for name in LOSING:
        assert [table for table, _ in narrow[name]] == ["nodes"]
        assert narrow[name] == [sketch for sketch in full[name] if sketch[0] == "nodes"]
        assert "links" in {table for table, _ in full[name]}
    for (_, fewer), (_, more) in zip(narrow["narrow"], full["narrow"], strict=True):
        assert fewer <= more
    assert narrow["narrow"] != full["narrow"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LOSING))
def test_other_tables_are_filtered_beside_a_full_recursion(
    cli_with_lineage: Callable[..., Cli], name: str
) -> None:
    """Nodes 0 and 7 are not reached; 3 and 5 are, and the sketch excludes them."""
    cli = cli_with_lineage("answer")
    captured = cli.one("capture", "--query", name)
    assert [sketch["ranges"] for sketch in captured["sketches"]] == [[0, 6]]
    ran = cli.one("query", "--query", name, "--sketch", "always", "--by", "engine")
    assert sorted(ran["rows"]) == [[0], [7], [7]]


def test_partly_sketched_table_is_reported_by_access(cli_with_lineage: Callable[..., Cli]) -> None:
    """Only the base is keyed on tenants: the result has those with few rows."""
    cli = cli_with_lineage("answer")
    cli.edit('COUNT(*) > 1", sketch: {links: t}', 'COUNT(*) < 3", sketch: {links: t}')
    result = unused_lineage(cli.good("check", "--query", "tenants").document)
    assert "leaves `links` (2nd) without a sketch: HAVING compares" in result["tenants"]
