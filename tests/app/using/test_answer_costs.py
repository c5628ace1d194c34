"""Who is asked for an answer: by rates, and by what recorded answers took; DuckDB is named where it
is clearly quicker, by `auto` alone; the hint of a condition that cannot be read is one that can."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

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
from impctl.service import answer_costs
from impctl.service.context import Workbench, open_workbench
from impctl.service.prepare import prepare
from impctl.service.resolve import condition_on
from impctl.service.settings import Settings
from impctl.store.ledger import AnswerRun, Ledger
from impctl.tables.write.maintenance import create_table
from impctl.workload.load import load_workload
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


def slow(monkeypatch: pytest.MonkeyPatch, ms: float) -> None:
    """The engine takes so long for any query."""
    rates = replace(answer_costs._ENGINE, query=ms)
    monkeypatch.setattr(answer_costs, "_ENGINE", rates)


@pytest.fixture
def slow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 1500.0)


def test_where_nobody_is_clearly_quicker_nothing_is_said(cli: Cli) -> None:
    result = cli.one("query", "--query", "plain")
    assert (result["by"], result["quicker"]) == ("engine", "")


@pytest.mark.usefixtures("slow_engine")
def test_duckdb_is_named_with_the_command_for_it(cli: Cli) -> None:
    result = cli.one("query", "--query", "plain")
    assert result["by"] == "engine"
    assert result["quicker"] == (
        "DuckDB over all files, if it supports the query, would take about 20 ms instead of 1.5 s: "
        "`impctl rewrite --sketch auto --files FILE` writes its text and file list"
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
    slow(monkeypatch, engine_ms)
    monkeypatch.setattr(answer_costs, "_DUCKDB_START_MS", duckdb_ms)
    assert cli.one("query", "--query", "plain")["quicker"] == ""


@pytest.mark.usefixtures("slow_engine")
def test_of_a_table_that_is_not_its_files_python_tells_what_to_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "impctl.tables.rows.why_not_plain", lambda snapshot: "it has deletion vectors"
    )
    result = cli.one("query", "--query", "plain")
    assert result["quicker"].endswith("`files` of the Python interface lists the files to read")


KINDS = (LONG, DOUBLE, decimal(10, 2), STRING, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_hint_fits_the_column(kind: SqlType) -> None:
    columns = [Attribute("q.c", "c", kind)]
    with pytest.raises(UsageError) as caught:
        condition_on(columns, "c >", "UTC")
    example = str(caught.value.hint).split("such as `")[1].split("`")[0]
    assert condition_on(columns, example, "UTC") is not None


def text_of(cli: Cli, query: str) -> int:
    """What marks the text of a query in the ledger."""
    return zlib.crc32(load_workload(cli.workload, {}).queries[query].sql.encode())


def planted(cli: Cli, *runs: tuple[str, float, int, float]) -> None:
    """Answers of `plain` that were recorded: by whom, milliseconds, rows, Spark's start."""
    ledger, mark = Ledger(cli.workload.parent / ".impctl"), text_of(cli, "plain")
    for by, ms, rows, start in runs:
        assert ledger.record_run(AnswerRun("plain", mark, by, 1.0, 1, rows, rows * 16, ms, start))


ENGINE_SLOW = ("engine", 11_400.0, 4, 0.0)
SPARK_QUICK = ("spark", 4_300.0, 4, 0.0)


@pytest.mark.parametrize(
    ("runs", "is_up", "by", "engine_ms", "spark_ms"),
    [
        # By rates: 10 ms of the engine; Spark's start and first query.
        ([], False, "engine", 10, 6900),
        ([], True, "engine", 10, 400),
        # Measured, each by the path that it is of.
        ([ENGINE_SLOW, SPARK_QUICK], True, "spark", 11_400, 4_300),
        ([SPARK_QUICK, ("engine", 4_200.0, 4, 0.0)], True, "engine", 4_200, 4_300),
        # One by the engine is enough to try Spark, whose start counts where it is not up.
        ([ENGINE_SLOW], True, "spark", 11_400, 400),
        ([("engine", 5_000.0, 4, 0.0)], False, "engine", 5_000, 6_900),
        ([ENGINE_SLOW], False, "spark", 11_400, 6_900),
        # What was not tried has to be clearly faster by rates.
        ([("engine", 590.0, 4, 0.0)], True, "engine", 590, 400),
        ([("engine", 610.0, 4, 0.0)], True, "spark", 610, 400),
        ([("spark", 100.0, 4, 0.0)], True, "spark", 10, 100),
        ([("spark", 120.0, 4, 0.0)], True, "engine", 10, 120),
        # Ten times as many rows then: what it took is scaled, but for what any query takes.
        ([("engine", 1_010.0, 40, 0.0)], True, "engine", 110, 400),
        ([("spark", 4_400.0, 40, 0.0)], True, "engine", 10, 800),
        ([("engine", 1_010.0, 1, 0.0)], True, "spark", 4_010, 400),
        # A Spark that was started for it, and then one that is running, and the other way.
        ([("spark", 6_500.0, 4, 8_000.0)], True, "engine", 10, 4_000),
        ([("spark", 6_500.0, 4, 8_000.0)], False, "engine", 10, 14_500),
        ([("spark", 1_400.0, 4, 0.0)], False, "engine", 10, 7_900),
        ([("spark", 6_500.0, 4, 8_000.0), ("spark", 500.0, 4, 0.0)], True, "engine", 10, 500),
        # The median of the latest three.
        (
            [("engine", ms, 4, 0.0) for ms in (9_000.0, 3.0, 5.0, 4_000.0)],
            False,
            "engine",
            5,
            6_900,
        ),
        # What cannot be is none.
        ([("engine", float("inf"), 4, 0.0), ("engine", -1.0, 4, 0.0)], False, "engine", 10, 6_900),
        ([("engine", 700.0, 0, 0.0)], True, "spark", 700, 400),
    ],
)
def test_who_is_asked_goes_by_what_answers_took(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    runs: list[tuple[str, float, int, float]],
    is_up: bool,
    by: str,
    engine_ms: int,
    spark_ms: int,
) -> None:
    monkeypatch.setattr(Workbench, "has_spark", is_up)
    planted(cli, *runs)
    for command in ("check", "explain"):
        told = cli.one(command, "--query", "plain")["answered"]
        assert (told["by"], told["engine_ms"], told["spark_ms"]) == (by, engine_ms, spark_ms)


def test_the_reason_names_both_estimates(cli: Cli) -> None:
    planted(cli, ENGINE_SLOW, SPARK_QUICK)
    reason = cli.one("check", "--query", "plain")["answered"]["reason"]
    assert reason == (
        "estimate for 4 rows: engine 11.4 s (from 1 run), Spark 10.8 s (from 1 run), "
        "including 4.0 s to start"
    )
    text = cli.text("explain", "--query", "plain")
    assert "answered by Spark: estimate for 4 rows:" in text


def test_an_answer_is_recorded_by_its_text_and_who_gave_it(cli: Cli) -> None:
    assert cli.one("query", "--query", "plain")["by"] == "engine"
    text = text_of(cli, "plain")
    ledger = Ledger(cli.workload.parent / ".impctl")
    (run,) = ledger.runs("plain", text)
    assert (run.by, run.files, run.rows, run.start_ms) == ("engine", 1, 4, 0.0)
    assert not ledger.runs("kept", text)
    cli.edit("SUM(x) > 10", "SUM(x) > 11")
    assert "run" not in cli.one("check", "--query", "plain")["answered"]["reason"]


def test_kept_rows_that_take_long_are_weighed_against_reading_tables(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By recorded runs of the three; few kept rows are told without a look."""
    ledger = Ledger(cli.workload.parent / ".impctl")
    text = text_of(cli, "kept")

    def runs(*given: tuple[str, float]) -> None:
        for by, ms in given:
            ledger.record_run(AnswerRun("kept", text, by, 1.0, 1, 4, 64, ms, 0.0))

    def asked(*words: str) -> object:
        return cli.one("query", "--query", "kept", "--sketch", "auto", *words)["by"]

    assert asked() == "state"
    assert not ledger.runs("kept", text), "too few rows"
    monkeypatch.setattr(answer_costs, "_SMALL_STATE", 0)
    runs(*[("state", 1.0)] * 3)
    assert asked() == "state"
    assert [run.by for run in ledger.runs("kept", text)] == ["state"] * 4
    runs(*[("state", 5_000.0)] * 3, *[("engine", 6_000.0)] * 3)
    assert asked() == "state"
    runs(*[("state", 5_000.0)] * 3, *[("engine", 40.0)] * 3)
    assert asked() == "engine"
    assert cli.one("check", "--query", "kept")["answered"]["by"] == "engine"
    assert asked("--by", "state") == "state"
    assert asked("--where", "s > 0") == "state"


OPERATORS = {
    "scan": "SELECT g FROM t WHERE x = 3",
    "join": "SELECT a.g FROM t a JOIN t b ON a.g = b.g",
    "lag": "SELECT x - LAG(x) OVER (PARTITION BY g ORDER BY x) AS d FROM t",
    "first": "SELECT g, x FROM t ORDER BY x, g LIMIT 3",
    "groups": "SELECT g, COUNT(*) AS n FROM t GROUP BY g",
    "doubles": "SELECT g, SUM(CAST(x AS DOUBLE)) AS n FROM t GROUP BY g",
}


def test_what_a_plan_does_with_rows_counts(tmp_path: Path, cli_of: CliOf) -> None:
    """Joins and windows of many rows are Spark's, once it runs; what only reads is the engine's."""
    create_table(str(tmp_path / "t"), pa.table({"g": [0], "x": [5]}))
    queries = "".join(f'  {name}: {{sql: "{sql}"}}\n' for name, sql in OPERATORS.items())
    cli = cli_of(f"version: 1\ntables: {{t: {{path: t}}}}\nqueries:\n{queries}store: .impctl\n")
    with open_workbench(Settings(cli.workload)) as desk:
        for name, spec in desk.workload.queries.items():
            prepared = prepare(desk, spec)
            engine, spark = (
                answer_costs._by_rates(prepared, {"t": 4_000_000}, rates)
                for rates in (answer_costs._ENGINE, answer_costs._SPARK)
            )
            assert (engine < spark) == (name in ("scan",)), name
