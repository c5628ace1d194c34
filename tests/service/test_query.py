"""Queries with and without a sketch, the choice of engine, and equality of results."""

from __future__ import annotations

import math
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.data import schema
from impctl.errors import UsageError
from impctl.plan.nodes import Attribute
from impctl.service import cost_model
from impctl.service.context import Context, open_context
from impctl.service.parameters import condition_on
from impctl.service.prepare import prepare
from impctl.service.results import RowValue
from impctl.service.settings import Settings
from impctl.service.verify import CutOrder, Rows, cut_order, same_rows
from impctl.sql.statement import parse_query
from impctl.store.ledger import AnswerRun, Ledger
from impctl.workload.load import load_workload
from tests.support.run_cli import Cli, CliOf, CliOnce, MonkeyPatch, write_files

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
queries:
  good:
    sql: SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 2
    sketch: {t: g}
  total:
    sql: &total SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20
    sketch: {t: x}
  strict:
    sql: *total
    sketch: {t: x}
    policy: strict
  drawn:
    sql: SELECT g, COUNT(*) AS n FROM t WHERE rand() < 2 GROUP BY g
  ties:
    sql: SELECT g FROM t GROUP BY g HAVING percentile_approx(x, 0.5) > 1
  unread:
    sql: SELECT g FROM t WHERE x > :low SORT BY g
    params: {low: 5}
  whole:
    sql: SELECT COUNT(*) AS n FROM t
    sketch: none
updates:
  - {name: dear, insert: {table: t, rows: [{g: 3, x: -5}]}}
  - {name: mended, delete: {table: t, where: x < 0}}
store: .impctl
"""


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    rows = pa.table({"g": [0, 0, 0, 1, 3, 3, 3, 5], "x": [5, 15, 25, 5, 5, 15, 25, 5]})
    return cli_once("queries", partial(write_files, workload=WORKLOAD, t=rows, u=rows))


TEXTS = {
    "good": "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 2",
    "total": "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20",
    "whole": "SELECT COUNT(*) AS n FROM t",
}


def rewrite(cli: Cli, query: str, *more: str) -> tuple[str, str, str]:
    ran = cli.good("rewrite", "--query", query, *more)
    (result,), (warning,) = ran.results, ran.document["warnings"]
    assert result["sketches"] == []
    return result["sql"], result["action"], warning


def test_uncaptured_query_is_rewritten_with_a_warning(cli: Cli) -> None:
    sql, action, warning = rewrite(cli, "good")
    assert (sql, action) == (TEXTS["good"], "no_sketch")
    assert "not been captured" in warning
    assert "run `impctl capture" in warning
    assert not (cli.folder / ".impctl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["maintain", "verify"])
def test_hint_does_not_suggest_impossible_capture(cli: Cli, command: str) -> None:
    assert cli(command, "--query", "good").error["code"] == "not_captured"
    strict = ("--strict",) if command == "maintain" else ()
    for query in ("ties", "unread"):
        ran = cli(command, "--query", query, *strict)
        assert ran.code == 3
        assert "`sketch: none`" in ran.error["hint"]
        assert ran.error["code"] == cli("capture", "--query", query).error["code"]


def test_require_sketch_fails_without_one(cli: Cli) -> None:
    for query, refusal in (
        ("good", (7, "not_captured")),
        ("unread", (3, "query_unsupported")),
        ("whole", (3, "sketch_required")),
    ):
        assert cli("rewrite", "--query", query, "--require-sketch").refusal == refusal
    other = cli("rewrite", "--sql", "SELECT g FROM u GROUP BY g", "--require-sketch")
    assert other.refusal == (3, "sketch_required")
    cli.good("capture", "--query", "good")
    assert cli.one("rewrite", "--query", "good", "--require-sketch")["sketches"]


@pytest.mark.parametrize(
    ("query", "reason", "hint"),
    [
        ("drawn", "`rand` returns a different result", "remove it from the query"),
        ("ties", "`percentile_approx` has several correct results", "use `percentile`"),
        ("unread", "uses SORT BY", "`sketch: none`"),
    ],
)
def test_warning_says_why_there_is_no_sketch(cli: Cli, query: str, reason: str, hint: str) -> None:
    _, action, warning = rewrite(cli, query)
    assert action == "no_sketch"
    assert reason in warning
    assert hint in warning


def test_parameters_reach_an_unsupported_query(cli: Cli) -> None:
    sql, _, _ = rewrite(cli, "unread", "--param", "low=12")
    assert sql == "SELECT g FROM t WHERE x > 12 SORT BY g"


MOVING_QUERY = """\
  moving:
    sql: SELECT g FROM t WHERE :day > DATE '2020-01-01' SORT BY g
    params: {day: {moves: daily}}
updates:
"""


def test_moving_parameters_reach_an_unsupported_query(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-03-01")
    cli.edit("updates:\n", MOVING_QUERY)
    for words, day in (((), "2026-03-01"), (("--param", "day=2026-04-01"), "2026-04-01")):
        sql, _, _ = rewrite(cli, "moving", *words)
        assert sql == f"SELECT g FROM t WHERE DATE '{day}' > DATE '2020-01-01' SORT BY g"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT reflect('java.lang.System', 'exit', 1) FROM t SORT BY 1",
        "SELECT `reflect`('java.lang.System', 'exit', 1) FROM t SORT BY 1",
        "SELECT f(g) FROM t SORT BY 1",
        "SELECT db.abs(g) FROM t SORT BY 1",
        "SELECT g FROM (WITH c AS (DROP TABLE t) SELECT g FROM t) SORT BY g",
        "SELECT g FROM t VERSION AS OF 0 SORT BY g",
        "SELECT g FROM t WHERE x = ? SORT BY g",
        "SELECT TRANSFORM(g) USING 'sh' AS (b) FROM t",
        "SELECT g INTO v FROM t SORT BY g",
        "SELECT g FROM t JOIN secret SORT BY g",
        "SELECT g FROM parquet.`/etc` SORT BY g",
        "SELECT * FROM IDENTIFIER('secret') JOIN t SORT BY g",
        "DELETE FROM t",
        "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
        "SELECT gg FROM t",
    ],
)
def test_statements_beyond_reading_tables_are_refused(cli: Cli, sql: str) -> None:
    assert cli("rewrite", "--sql", sql).code == 3


def test_sketch_returns_once_its_assumption_holds(cli: Cli) -> None:
    """A partial sum is a lower bound of the sum only if no value is negative."""
    cli.good("capture", "--query", "total")
    cli.good("apply", "dear")
    maintained = cli("maintain", "--query", "total")
    assert (maintained.code, maintained.document["warnings"]) == (3, [])
    sql, action, warning = rewrite(cli, "total")
    assert (sql, action) == (TEXTS["total"], "no_sketch")
    assert "x" in warning
    cli.good("apply", "mended")
    assert cli.one("maintain", "--query", "total")["action"] == "exact"
    assert cli.one("rewrite", "--query", "total")["sketches"]


@pytest.mark.slow
def test_policy_strict_fails_as_documented(cli: Cli) -> None:
    codes = [cli("rewrite", "--query", "strict").code]
    cli.good("capture", "--query", "strict")
    cli.good("apply", "dear")
    for words in (("strict",), ("unread", "--policy", "strict")):
        codes.append(cli("rewrite", "--query", *words).code)
    assert codes == [7, 4, 7]


def test_query_with_sketch_none_needs_nothing(cli: Cli) -> None:
    for words, expected in (
        (("check",), {"supported": False, "mode": "sketch_none"}),
        (("capture",), {"action": "none", "sketches": []}),
        (("maintain",), {"action": "none", "reason_code": "sketch_none"}),
        (("plan", "--detailed-exitcode"), {"action": "none", "reason_code": "sketch_none"}),
        (("status",), {"stale": False, "mode": "sketch_none"}),
    ):
        assert expected.items() <= cli.one(*words, "--query", "whole").items(), words
    ran = cli.good("rewrite", "--query", "whole")
    assert (ran.results[0]["sql"], ran.document["warnings"]) == (TEXTS["whole"], [])


def test_invalid_sketch_setting_is_refused(cli: Cli) -> None:
    cli.edit("sketch: none", "sketch: nothing")
    ran = cli("check")
    assert ran.code == 2
    assert "none" in str(ran.error)


def test_invalid_query_with_sketch_none_is_refused(cli: Cli) -> None:
    cli.edit("COUNT(*) AS n FROM t\n", "COUNT(*) AS n FROM v\n")
    assert cli("rewrite", "--query", "whole").error["code"] == "table_unknown"
    assert cli("check", "--query", "whole").code == 3


@pytest.mark.spark
def test_queries_without_a_sketch_are_answered(cli: Cli) -> None:
    unread = cli.one("query", "--query", "unread")
    assert sorted(unread["rows"]) == [[0], [0], [3], [3]]
    assert unread["action"] == "no_sketch"
    assert sorted(cli.one("query", "--query", "total")["rows"]) == [[0, 45], [3, 45]]


def test_verify_reports_skipped_queries(cli: Cli) -> None:
    ran = cli.captured("--query", "good").good("verify", "--query", "whole")
    assert ran.results == []
    [warning] = ran.document["warnings"]
    assert warning == "`whole` is not verified: the workload file sets `sketch: none`"


COSTED_WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4, 6]}}}
queries:
  kept: {sql: &text "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10", answer: true}
  plain: {sql: *text}
store: .impctl
"""


@pytest.fixture
def costed(cli_once: CliOnce, monkeypatch: MonkeyPatch) -> Cli:
    # Other tests in this process may have started Spark, which would then be faster.
    monkeypatch.setattr(Context, "has_spark", False)
    rows = pa.table({"g": [0, 0, 3, 5], "x": [5, 15, 1, 20]})
    write = partial(write_files, workload=COSTED_WORKLOAD, t=rows)
    return cli_once("costs of answers", write, Cli.captured)


def set_engine_ms(monkeypatch: MonkeyPatch, ms: float) -> None:
    monkeypatch.setattr(cost_model, "ENGINE", replace(cost_model.ENGINE, query=ms))


@pytest.fixture
def slow_engine(monkeypatch: MonkeyPatch) -> None:
    set_engine_ms(monkeypatch, 1500.0)


def answer_source(cli: Cli, *words: str) -> tuple[str, str]:
    """Who answers `plain`, and the advice on a faster engine."""
    result = cli.one("query", "--query", "plain", *words)
    return result["by"], result["quicker"]


def test_no_advice_if_nothing_is_clearly_faster(costed: Cli) -> None:
    assert answer_source(costed) == ("engine", "")


@pytest.mark.usefixtures("slow_engine")
def test_advice_names_duckdb_and_the_command(costed: Cli) -> None:
    assert answer_source(costed) == (
        "engine",
        "DuckDB over all files, if it supports the query, would take about 20 ms instead of 1.5 s: "
        "`impctl rewrite --sketch auto --files FILE` writes its text and file list",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("slow_engine")
@pytest.mark.parametrize(("query", "by"), [("plain", "engine"), ("kept", "auto")])
def test_no_advice_against_an_explicit_choice(costed: Cli, query: str, by: str) -> None:
    result = costed.one("query", "--query", query, "--by", by, "--sketch", "auto")
    assert result["quicker"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(("engine_ms", "duckdb_ms"), [(1500.0, 1100.0), (100.0, 20.0)])
def test_no_advice_if_slightly_faster(
    costed: Cli, monkeypatch: MonkeyPatch, engine_ms: float, duckdb_ms: float
) -> None:
    set_engine_ms(monkeypatch, engine_ms)
    monkeypatch.setattr(cost_model, "DUCKDB", replace(cost_model.DUCKDB, query=duckdb_ms))
    assert answer_source(costed)[1] == ""


@pytest.mark.usefixtures("slow_engine")
def test_advice_for_special_files_names_python(costed: Cli, monkeypatch: MonkeyPatch) -> None:
    reason = "it has deletion vectors"
    monkeypatch.setattr("impctl.tables.files.why_not_plain", lambda snapshot: reason)
    hint = "`files` of the Python interface lists the files to read"
    assert answer_source(costed)[1].endswith(hint)


KINDS = (
    schema.LONG,
    schema.DOUBLE,
    schema.decimal(10, 2),
    schema.STRING,
    schema.BOOLEAN,
    schema.DATE,
    schema.TIMESTAMP,
    schema.TIMESTAMP_NTZ,
    schema.BINARY,
)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_hint_example_fits_the_column(kind: schema.SqlType) -> None:
    columns = [Attribute("q.c", "c", kind)]
    with pytest.raises(UsageError) as error:
        condition_on(columns, "c >", "UTC")
    example = str(error.value.hint).split("such as `")[1].split("`")[0]
    assert condition_on(columns, example, "UTC") is not None


def text_of(cli: Cli, query: str) -> int:
    """The mark of a query's text in the ledger."""
    return zlib.crc32(load_workload(cli.workload, {}).queries[query].sql.encode())


def record_runs(cli: Cli, *runs: RecordedRun, query: str = "plain") -> None:
    ledger, mark = Ledger(cli.folder / ".impctl"), text_of(cli, query)
    for by, ms, rows, start in runs:
        assert ledger.record_run(AnswerRun(query, mark, by, 1.0, 1, rows, rows * 16, ms, start))


RecordedRun = tuple[str, float, int, float]
"""Engine, milliseconds, rows, Spark's start time in milliseconds."""


def engine(ms: float, rows: int = 4) -> RecordedRun:
    return ("engine", ms, rows, 0.0)


def spark(ms: float, rows: int = 4, start: float = 0.0) -> RecordedRun:
    return ("spark", ms, rows, start)


ENGINE_SLOW, SPARK_QUICK = engine(11_400.0), spark(4_300.0)
STARTED = spark(6_500.0, start=8_000.0)


@pytest.mark.parametrize(
    ("runs", "spark_runs", "expected"),
    [
        # Default rates: 10 ms for the engine; start and first query for Spark.
        ([], False, ("engine", 10, 6900)),
        ([], True, ("engine", 10, 400)),
        # Measured runs of both.
        ([ENGINE_SLOW, SPARK_QUICK], True, ("spark", 11_400, 4_300)),
        ([SPARK_QUICK, engine(4_200.0)], True, ("engine", 4_200, 4_300)),
        # One engine run is enough to try Spark. Its start counts if it is not running.
        ([ENGINE_SLOW], True, ("spark", 11_400, 400)),
        ([engine(5_000.0)], False, ("engine", 5_000, 6_900)),
        ([ENGINE_SLOW], False, ("spark", 11_400, 6_900)),
        # An untried engine must be clearly faster by default rates.
        ([engine(590.0)], True, ("engine", 590, 400)),
        ([engine(610.0)], True, ("spark", 610, 400)),
        ([spark(100.0)], True, ("spark", 10, 100)),
        ([spark(120.0)], True, ("engine", 10, 120)),
        # A run with ten times as many rows is scaled, except for the fixed cost.
        ([engine(1_010.0, 40)], True, ("engine", 110, 400)),
        ([spark(4_400.0, 40)], True, ("engine", 10, 800)),
        ([engine(1_010.0, 1)], True, ("spark", 4_010, 400)),
        # A run that started Spark predicts one with Spark running, and vice versa.
        ([STARTED], True, ("engine", 10, 4_000)),
        ([STARTED], False, ("engine", 10, 14_500)),
        ([spark(1_400.0)], False, ("engine", 10, 7_900)),
        ([STARTED, spark(500.0)], True, ("engine", 10, 500)),
        # The median of the latest three runs.
        ([engine(ms) for ms in (9_000.0, 3.0, 5.0, 4_000.0)], False, ("engine", 5, 6_900)),
        # Impossible values are ignored.
        ([engine(float("inf")), engine(-1.0)], False, ("engine", 10, 6_900)),
        ([engine(700.0, 0)], True, ("spark", 700, 400)),
    ],
)
def test_recorded_runs_choose_the_engine(
    costed: Cli, monkeypatch: MonkeyPatch, runs: Any, spark_runs: bool, expected: Any
) -> None:
    monkeypatch.setattr(Context, "has_spark", spark_runs)
    record_runs(costed, *runs)
    choice = costed.one("check", "--query", "plain")["answered"]
    assert (choice["by"], choice["engine_ms"], choice["spark_ms"]) == expected


def test_the_reason_names_both_estimates(costed: Cli) -> None:
    record_runs(costed, ENGINE_SLOW, SPARK_QUICK)
    choice = costed.one("check", "--query", "plain")["answered"]
    assert costed.one("explain", "--query", "plain")["answered"] == choice
    assert choice["reason"] == (
        "estimate for 4 rows: engine 11.4 s (from 1 run), Spark 10.8 s (from 1 run), "
        "including 4.0 s to start Spark"
    )
    text = costed.text("explain", "--query", "plain")
    assert "answered by Spark: estimate for 4 rows:" in text


def test_runs_are_recorded_by_text_and_engine(costed: Cli) -> None:
    assert costed.one("query", "--query", "plain")["by"] == "engine"
    text = text_of(costed, "plain")
    ledger = Ledger(costed.folder / ".impctl")
    (run,) = ledger.runs("plain", text)
    assert (run.by, run.files, run.rows, run.start_ms) == ("engine", 1, 4, 0.0)
    assert not ledger.runs("kept", text)
    costed.edit("SUM(x) > 10", "SUM(x) > 11")
    assert "run" not in costed.one("check", "--query", "plain")["answered"]["reason"]


def test_slow_materialized_rows_may_not_be_used(costed: Cli, monkeypatch: MonkeyPatch) -> None:
    """Recorded runs decide; a small result is always answered from the state."""
    ledger, text = Ledger(costed.folder / ".impctl"), text_of(costed, "kept")

    def record(*timings: tuple[str, float]) -> None:
        record_runs(costed, *((by, ms, 4, 0.0) for by, ms in timings), query="kept")

    def source(*words: str) -> object:
        return costed.one("query", "--query", "kept", "--sketch", "auto", *words)["by"]

    assert source() == "state"
    assert not ledger.runs("kept", text), "too few rows"
    monkeypatch.setattr(cost_model, "_SMALL_STATE", 0)
    record(*[("state", 1.0)] * 3)
    assert source() == "state"
    assert [run.by for run in ledger.runs("kept", text)] == ["state"] * 4
    record(*[("state", 5_000.0)] * 3, *[("engine", 6_000.0)] * 3)
    assert source() == "state"
    record(*[("state", 5_000.0)] * 3, *[("engine", 40.0)] * 3)
    assert source() == "engine"
    assert costed.one("check", "--query", "kept")["answered"]["by"] == "engine"
    assert source("--by", "state") == "state"
    assert source("--where", "s > 0") == "state"


OPERATORS = {
    "scan": "SELECT g FROM t WHERE x = 3",
    "join": "SELECT a.g FROM t a JOIN t b ON a.g = b.g",
    "lag": "SELECT x - LAG(x) OVER (PARTITION BY g ORDER BY x) AS d FROM t",
    "first": "SELECT g, x FROM t ORDER BY x, g LIMIT 3",
    "groups": "SELECT g, COUNT(*) AS n FROM t GROUP BY g",
    "doubles": "SELECT g, SUM(CAST(x AS DOUBLE)) AS n FROM t GROUP BY g",
}


def test_default_estimates_depend_on_operators(cli_of: CliOf) -> None:
    """For many rows, running Spark is faster at joins and windows, the engine at scans."""
    cli = cli_of({"queries": OPERATORS}, t=pa.table({"g": [0], "x": [5]}))
    with open_context(Settings(cli.workload)) as ctx:
        for name, spec in ctx.workload.queries.items():
            prepared = prepare(ctx, spec)
            engine, spark = (
                cost_model.prior_ms(prepared, {"t": 4_000_000}, times)
                for times in (cost_model.ENGINE, cost_model.SPARK)
            )
            assert (engine < spark) == (name in ("scan",)), name


RowValues = list[tuple[RowValue, ...]]
ROWS: RowValues = [
    (1, "a", 0.1 + 0.2, None),
    (1, "a", 0.1 + 0.2, None),
    (2, None, math.nan, date(2022, 1, 17)),
    (None, "", -math.inf, datetime(2022, 1, 17, tzinfo=UTC)),
]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        *((ROWS, ROWS[1:]), (ROWS, [*ROWS, ROWS[0]]), ([], [()])),
        # Duplicates count.
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)]),
        ([(0.5,), (0.5,), (1.5,)], [(0.5,), (1.5,), (1.5,)]),
        # A close double does not excuse a difference in another column.
        ([("a", 0.1 + 0.2)], [("b", 0.3)]),
        ([("a", 0.1 + 0.2, 1.0)], [("a", 0.3, 2.0)]),
        ([(1.0, 5.0), (1.0, 2.0)], [(1.0, 2.0), (1.0, 2.0)]),
        ([(k, 0.1 * k) for k in range(20)], [(k, 0.1 * k if k != 3 else 100.0) for k in range(20)]),
    ],
)
def test_different_rows_differ(left: RowValues, right: RowValues) -> None:
    assert not same_rows(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        *((1, 2), (None, 0), (None, ""), (None, math.nan)),
        *(("a", "A"), (b"a", "a"), (Decimal("1.10"), Decimal("1.11"))),
        *((Decimal("1e-30"), Decimal("2e-30")), (date(2022, 1, 17), date(2022, 1, 18))),
        (datetime(2022, 1, 17, microsecond=1), datetime(2022, 1, 17)),
        *((2**60, 2**60 + 1), (math.inf, -math.inf), (math.inf, 1e308), (math.nan, 0.0)),
        *((1.0, 1.0 + 1e-6), (1e15, 1e15 + 1e8), (0.0, 1e-9), (True, False)),
    ],
)
def test_different_values_differ(left: RowValue, right: RowValue) -> None:
    assert not same_rows([(left,)], [(right,)])
    assert not same_rows([(7, left), (8, right)], [(7, right), (8, left)])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        *((0.1 + 0.2, 0.3), (1e300, 1e300 * (1 + 1e-12)), (0.0, -0.0), (0.0, 1e-17)),
        *((math.nan, -math.nan), (math.inf, math.inf), (Decimal("1.0"), Decimal("1.00"))),
        (date(2022, 1, 17), date(2022, 1, 17)),
    ],
)
def test_rounding_differences_of_sums_are_equal(left: RowValue, right: RowValue) -> None:
    assert same_rows([("k", left)], [("k", right)])
    assert same_rows([("k", left), ("l", right)], [("l", left), ("k", right)])


SUMS: RowValues = [(k, 0.1 * k) for k in range(20)]
CLOSE = 1.0000001 * (1 + 1e-15)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([], []),
        *((ROWS, rows) for rows in permutations(ROWS)),
        # Each group's sum is compared.
        (SUMS, [(k, value * (1 + 1e-14)) for k, value in reversed(SUMS)]),
        # Close doubles are matched.
        ([(1.0000001,), (1.0000002,)], [(1.0000002,), (CLOSE,)]),
        ([(0.0,), (0.05,)], [(7e-17,), (0.05,)]),
        ([(1.0, 5.0), (1.0 + 1e-15, 2.0)], [(1.0, 2.0), (1.0, 5.0)]),
    ],
)
def test_row_order_does_not_matter(left: RowValues, right: RowValues) -> None:
    assert same_rows(left, right)


SCHEMA = {"t": schema.Schema((schema.Column("g", schema.LONG), schema.Column("x", schema.LONG)))}
TOP = CutOrder((1,), 3, False)
LEFT_ROWS: Rows = [["a", 9], ["b", 7], ["c", 5]]
NOT_CUT = (
    "SELECT g FROM t ORDER BY x LIMIT 2",
    "SELECT g FROM t ORDER BY g",
    "SELECT g FROM t LIMIT 2",
    "SELECT g FROM (SELECT g FROM t ORDER BY g LIMIT 2) GROUP BY g",
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT g, SUM(x) AS s FROM t GROUP BY g ORDER BY s DESC LIMIT 3", TOP),
        ("SELECT x, g FROM t ORDER BY g, x LIMIT 2 OFFSET 4", CutOrder((1, 0), 2, True)),
        *((sql, None) for sql in NOT_CUT),
    ],
)
def test_cut_order_of_queries(sql: str, expected: CutOrder | None) -> None:
    assert cut_order(parse_query(sql, SCHEMA).root) == expected


TIED_LAST, OTHER_FIRST = [["a", 9], ["b", 7], ["d", 5]], [["z", 9], ["b", 7], ["c", 5]]


@pytest.mark.parametrize(
    ("order", "right_rows", "expected"),
    [
        *((TOP, TIED_LAST, True), (TOP, [["a", 9], ["b", 7], ["d", 4]], False)),
        *((TOP, [["a", 9], ["e", 7], ["c", 5]], False), (TOP, [["a", 9], ["b", 7]], False)),
        (TOP, [["a", 9], ["c", 5], ["d", 5]], False),
        # With fewer rows than the limit, nothing was cut.
        (CutOrder((1,), 4, False), TIED_LAST, False),
        # An offset cuts at the front, too.
        (TOP, OTHER_FIRST, False),
        (CutOrder((1,), 3, True), OTHER_FIRST, True),
    ],
)
def test_only_rows_at_the_cut_may_differ(order: CutOrder, right_rows: Rows, expected: bool) -> None:
    assert order.are_both_right(LEFT_ROWS, right_rows) is expected
