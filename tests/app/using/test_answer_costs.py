"""Who is quicker than engine and Spark: DuckDB, where it clearly is, and by `auto` alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.app.using import answer_costs
from impctl.app.workbench.workbench import Workbench
from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4, 6]}}}
queries:
  kept: {sql: &text "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10", answer: true}
  plain: {sql: *text}
store: .impctl
"""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    # Other tests of this process may have started Spark, which would then be the quicker one.
    monkeypatch.setattr(Workbench, "has_spark", False)
    rows = pa.table({"g": [0, 0, 3, 5], "x": [5, 15, 1, 20]})
    create_table(str(tmp_path / "t"), rows)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    found = Cli(capsys, tmp_path / "w.yaml")
    found.good("capture")
    return found


@pytest.fixture
def slow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_costs, "_ENGINE_START_MS", 1500.0)


def test_where_nobody_is_clearly_quicker_nothing_is_said(cli: Cli) -> None:
    (result,) = cli.good("query", "--query", "plain").results
    assert (result["by"], result["quicker"]) == ("engine", "")


@pytest.mark.usefixtures("slow_engine")
def test_duckdb_is_named_with_the_command_for_it(cli: Cli) -> None:
    (result,) = cli.good("query", "--query", "plain").results
    assert result["by"] == "engine"
    assert result["quicker"] == (
        "DuckDB over all files, where it runs the query, would take some 20 ms instead of 1.5 s: "
        "`impctl rewrite --sketch auto --files FILE` gives it text and files"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("slow_engine")
@pytest.mark.parametrize(("query", "by"), [("plain", "engine"), ("kept", "auto")])
def test_who_asked_for_the_engine_or_has_the_answer_is_not_told(
    cli: Cli, query: str, by: str
) -> None:
    (result,) = cli.good("query", "--query", query, "--by", by, "--sketch", "auto").results
    assert result["quicker"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(("engine_ms", "duckdb_ms"), [(1500.0, 1100.0), (100.0, 20.0)])
def test_a_little_quicker_is_not_worth_a_word(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, engine_ms: float, duckdb_ms: float
) -> None:
    monkeypatch.setattr(answer_costs, "_ENGINE_START_MS", engine_ms)
    monkeypatch.setattr(answer_costs, "_DUCKDB_START_MS", duckdb_ms)
    (result,) = cli.good("query", "--query", "plain").results
    assert result["quicker"] == ""


@pytest.mark.usefixtures("slow_engine")
def test_of_a_table_that_is_not_its_files_python_tells_what_to_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_costs, "why_not_plain", lambda snapshot: "it has deletion vectors")
    (result,) = cli.good("query", "--query", "plain").results
    assert result["quicker"].endswith("`files` of the Python interface tells it what to read")
