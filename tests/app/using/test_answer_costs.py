"""Who is quicker than engine and Spark: DuckDB, where it clearly is, and by `auto` alone; and the
hint of a condition that cannot be read is one that can."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.app.using import answer_costs
from impctl.app.using.answer_condition import condition_on
from impctl.app.workbench.workbench import Workbench
from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    decimal,
)
from impctl.errors import UsageError
from impctl.plan.nodes import Attribute
from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli, CliOf

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
def cli(tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch) -> Cli:
    # Other tests of this process may have started Spark, which would then be the quicker one.
    monkeypatch.setattr(Workbench, "has_spark", False)
    rows = pa.table({"g": [0, 0, 3, 5], "x": [5, 15, 1, 20]})
    create_table(str(tmp_path / "t"), rows)
    return cli_of(WORKLOAD).captured()


@pytest.fixture
def slow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_costs, "_ENGINE_START_MS", 1500.0)


def test_where_nobody_is_clearly_quicker_nothing_is_said(cli: Cli) -> None:
    result = cli.one("query", "--query", "plain")
    assert (result["by"], result["quicker"]) == ("engine", "")


@pytest.mark.usefixtures("slow_engine")
def test_duckdb_is_named_with_the_command_for_it(cli: Cli) -> None:
    result = cli.one("query", "--query", "plain")
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
    assert cli.one("query", "--query", query, "--by", by, "--sketch", "auto")["quicker"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(("engine_ms", "duckdb_ms"), [(1500.0, 1100.0), (100.0, 20.0)])
def test_a_little_quicker_is_not_worth_a_word(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, engine_ms: float, duckdb_ms: float
) -> None:
    monkeypatch.setattr(answer_costs, "_ENGINE_START_MS", engine_ms)
    monkeypatch.setattr(answer_costs, "_DUCKDB_START_MS", duckdb_ms)
    assert cli.one("query", "--query", "plain")["quicker"] == ""


@pytest.mark.usefixtures("slow_engine")
def test_of_a_table_that_is_not_its_files_python_tells_what_to_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_costs, "why_not_plain", lambda snapshot: "it has deletion vectors")
    result = cli.one("query", "--query", "plain")
    assert result["quicker"].endswith("`files` of the Python interface tells it what to read")


KINDS = (LONG, DOUBLE, decimal(10, 2), STRING, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_hint_fits_the_column(kind: SqlType) -> None:
    columns = [Attribute("q.c", "c", kind)]
    with pytest.raises(UsageError) as caught:
        condition_on(columns, "c >", "UTC")
    example = str(caught.value.hint).split("such as `")[1].split("`")[0]
    assert condition_on(columns, example, "UTC") is not None
