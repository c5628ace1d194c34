"""`lineage: answer` where all rows lead to the answer is told at capture and by `explain`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.capturing import lineage_advice
from tests.behaviour.recursive_workload import network
from tests.support.run_cli import Cli

SIZE = 60
NARROW, WIDE = "SELECT n FROM r WHERE n < 12", "SELECT n FROM r WHERE n >= 0"


def circle(folder: Path, capsys: pytest.CaptureFixture[str], above: str, lineage: str) -> Cli:
    """What 7 reaches in a chain, one after the other; the first five are asked for, or all."""
    cli = network(folder, capsys, ["reach"], lineage)
    text = cli.workload.read_text()
    cli.workload.write_text(text.replace("SELECT n FROM r", above))
    links = {"src": [7 + at for at in range(SIZE)], "dst": [8 + at for at in range(SIZE)]}
    write_deltalake(str(folder / "links"), pa.table(links), mode="overwrite")
    return cli


def told(cli: Cli) -> tuple[list[str], str]:
    """The warnings of a capture about lineage, and what `explain` says of the fixpoint."""
    warnings = cli.good("capture").document["warnings"]
    (result,) = cli.good("explain").results
    (line,) = (line for line in result["plan"] if line["operator"] == "fixpoint")
    return [text for text in warnings if "`lineage: answer`" in text], line["why"]


def state(cli: Cli) -> int:
    (result,) = cli.good("status").results
    return int(result["state_bytes"])


def test_all_rows_lead_to_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_advice, "_SMALL", 100)
    cli = circle(tmp_path, capsys, WIDE, "answer")
    (result,) = cli.good("explain").results
    assert not any("lead to the answer" in line["why"] for line in result["plan"])
    (warning,), why = told(cli)
    assert "60 of the 60 rows of its recursion lead to the answer" in warning
    assert "60 of its 60 rows lead to the answer, so `lineage: all` would do with" in why
    with_answer, sketches = state(cli), cli.good("status").results[0]["sketches"]
    cli.workload.write_text(cli.workload.read_text().replace("lineage: answer", "lineage: all"))
    assert told(cli)[0] == []
    assert cli.good("status").results[0]["sketches"] == sketches, "the same ranges"
    saved = float(why.split("would do with ")[1].split(" kB")[0]) * 1000
    assert with_answer - state(cli) >= 0.8 * saved > 0


def test_some_rows_lead_to_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_advice, "_SMALL", 100)
    warnings, why = told(circle(tmp_path, capsys, NARROW, "answer"))
    assert warnings == []
    assert "about 4 of its 60 rows lead to the answer;" in why


def test_little_state_is_not_worth_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings, why = told(circle(tmp_path, capsys, WIDE, "answer"))
    assert warnings == []
    assert "60 of its 60 rows" in why
