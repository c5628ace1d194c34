"""State larger than its table is told at capture, with what a bound on it would save; and so is
`lineage: answer` where all rows lead to the answer, at capture and by `explain`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.compile.buffers import KEEP_ALL
from impctl.service import advice, maintenance_plan
from impctl.tables.write.maintenance import create_table
from tests.behaviour.recursive_workload import network
from tests.support.run_cli import Cli, CliOf

ROWS = 20_000
LEAST = "SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 100"
TOP = "SELECT q.g FROM (SELECT g, x FROM t ORDER BY x DESC LIMIT 50) q WHERE q.g > 0"
SUMS = "SELECT g, SUM(y) s FROM t GROUP BY g HAVING SUM(y) > 100"


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A small table that compresses well, so that rows remembered take more than the table."""
    monkeypatch.setattr(advice, "_SMALL", 10_000)
    rows = {
        "g": np.repeat(np.arange(4), ROWS // 4),
        "x": np.arange(ROWS) * 3,
        "y": np.ones(ROWS, np.int64),
    }
    create_table(str(tmp_path / "t"), pa.table(rows))
    lines = ["version: 1", "tables: {t: {path: t}}", "queries:"]
    for name, sql in (("least", LEAST), ("top", TOP), ("sums", SUMS)):
        lines.append(f'  {name}: {{sql: "{sql}", sketch: {{t: g}}, buffer: all}}')
        if name != "sums":
            lines.append(f'  {name}_bounded: {{sql: "{sql}", sketch: {{t: g}}, buffer: 1000}}')
    lines += ["partitions: {t: {g: {boundaries: [2, 3]}}}", "store: .impctl"]
    return cli_of("\n".join(lines) + "\n")


def told(cli: Cli, query: str) -> list[str]:
    warnings = cli.good("capture", "--query", query).document["warnings"]
    return [text for text in warnings if "the state of query" in text]


def state(cli: Cli, query: str) -> int:
    return int(cli.one("status", "--query", query)["state_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize(("query", "about"), [("top", "about"), ("least", "up to")])
def test_what_a_bound_would_save_is_what_it_saves(cli: Cli, query: str, about: str) -> None:
    (text,) = told(cli, query)
    assert f"the state of query `{query}` takes " in text
    assert f"`buffer: 1000` would save {about} " in text
    assert not any("would save" in text for text in told(cli, f"{query}_bounded"))
    number, unit = text.split(f"save {about} ")[1].split(";")[0].split()
    saved = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]
    really = state(cli, query) - state(cli, f"{query}_bounded")
    # Of four groups each keeps its 1000, so that less is saved than of one.
    least = 0.9 if about == "about" else 0.5
    assert least * saved <= really <= 1.05 * saved, (text, really)


def test_a_top_k_of_all_rows_is_bounded_unless_asked(cli: Cli) -> None:
    """What nobody bounded keeps no more than twice 1000 rows, and says nothing of it."""
    cli.edit(", buffer: all", "")
    assert told(cli, "top") == told(cli, "top_bounded") == []
    assert state(cli, "top") <= 1.1 * state(cli, "top_bounded")
    assert told(cli, "least"), "of many groups everything is kept"


@pytest.mark.slow
def test_state_from_before_there_was_a_bound_is_taken_up(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.edit(", buffer: all", "")
    monkeypatch.setattr(maintenance_plan, "USUAL", KEEP_ALL)
    told(cli, "top")
    monkeypatch.undo()
    table = DeltaTable(str(cli.workload.parent / "t"))
    table.delete(f"x > {3 * (ROWS - 20)}")
    table.delete(f"x > {3 * (ROWS - 1500)}")
    assert cli.one("maintain", "--query", "top")["action"] == "exact"
    before = kept(cli, "top")
    cli.good("capture", "--query", "top")
    assert kept(cli, "top") == before


def kept(cli: Cli, query: str) -> list[int]:
    result = cli.one("rewrite", "--query", query)
    ranges: list[int] = result["sketches"][0]["fragments"]
    return ranges


def test_small_state_is_not_worth_a_word(cli: Cli) -> None:
    assert told(cli, "sums") == []


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
