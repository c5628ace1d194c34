"""Output: text at 80 columns, exactly one strict JSON document, rows in all formats."""

from __future__ import annotations

import io
import json
import os
import random
import shlex
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.bench.quantity import metric_text
from impctl.bench.record import Difference
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.cli.output import text as texts
from impctl.cli.output.outcome import to_json
from impctl.cli.output.render import render, sketch_text, versions_text
from impctl.cli.output.text import table_lines
from impctl.cli.process import Stdout
from impctl.errors import (
    HistoryGoneError,
    Location,
    LockHeldError,
    PolicyRefusedError,
    Problem,
    QueryError,
    WorkloadError,
)
from impctl.service.formats import TextColumn
from impctl.service.results import (
    ApplyResult,
    CandidateEntry,
    CaptureResult,
    ClusterResult,
    Failure,
    GainResult,
    NextChange,
    Outcome,
    PlannedChange,
    ReadEntry,
    RecordKind,
    Result,
    ReuseCandidate,
    ReuseEntry,
    SketchEntry,
)
from impctl.service.text import plain
from tests.cli.examples import EXAMPLES

EXAMPLE_TEXTS = {
    "status": """\
q_top: stale, sales.price 4 of 5 ranges
  why      the table has newer versions
  pending  sales@1..3: 2 versions, 1,000 rows in 3 files, 2.05 kB
  pending  brands@0..1: 1 version, the log no longer has its size
  at       version 1 of sales, mode exact, policy auto
  size     sketch 2 B, state 1.23 kB
  verified slack 1 at sales@1, 2026-01-31 12:00:30Z
  runs     2026-01-31 12:00:30Z  exact, 1 change, 2.35 ms: 1 change
           2026-01-31 12:00:30Z  capture, 1.2 s: capture was requested
""",
    "gc": """\
deleted 12 old sketch versions of q_top, 3.1 kB
deleted 1 partition that no sketch uses, 812 B
deleted unused state: demo/.impctl/state/3f2a.arrow, 5.2 MB
not deleted: files of an interrupted run: demo/.impctl-bench-x1, 1.23 kB
deleted 5.2 MB in total; each query keeps its latest 8 sketch versions
""",
    "verify": """\
q_top: sound, sales.price slack 1 at sales@1, results equal
  the sketch has 1 range more than needed
""",
}


def test_commands_and_statements_are_never_wrapped(show, monkeypatch) -> None:
    commands = ("impctl check 'my  tables/w.yaml'", f"impctl check '{'a folder/' * 20}w.yaml'")
    monkeypatch.setenv("COLUMNS", "60")
    ran = show(replace(EXAMPLES["started"], next_commands=commands), "init", "t")
    assert ran.stdout.splitlines() == ["w.yaml: written", *(f"  {line}" for line in commands)]
    statement = f"DELETE FROM t WHERE note = 'two  spaces, {'many words ' * 9}\x1b[0m'"
    lines = show(applied("b", statement, 5), "apply", "w.yaml", "b", "--dry-run").stdout
    assert lines.splitlines()[1:] == ["  " + statement.replace("\x1b", "\\x1b")]


def test_quiet_prints_results_and_errors_only(show) -> None:
    failure = Failure("q_two", QueryError("Query `q_two` uses a window function"))
    outcome = Outcome((EXAMPLES["rewrite"],), ("statistics are missing",), (failure,))
    ran = show(outcome, "rewrite", "w.yaml", "-q")
    assert ran.stdout == "SELECT brand FROM sales WHERE price >= 601\n"
    assert ran.stderr == "error: Query `q_two` uses a window function [query_unsupported]\n"


def test_values_are_neither_cut_nor_control_the_terminal(show) -> None:
    long = show(replace(EXAMPLES["query"], answer=pa.table({"a": ["x" * 200]})), "query", "w.yaml")
    assert long.stdout.count("x") == 200
    assert max(map(len, long.stdout.splitlines())) <= 80
    marked = pa.table({"[bold]a": ["\x1b[31m[red]x\x07"]})
    stdout = show(replace(EXAMPLES["query"], answer=marked), "query", "w.yaml").stdout
    assert "[bold]a" in stdout
    assert "\\x1b[31m[red]x\\x07" in stdout
    assert "\x1b" not in stdout


def test_a_query_of_several_sketches_is_counted_once(show) -> None:
    result = EXAMPLES["maintain"]
    idle = replace(result, attribute="brand", action="none")
    for results in ((result, idle), (idle, result)):
        ran = show(Outcome((*results, replace(idle, query="q_idle"))), "maintain", "w.yaml")
        assert "2 queries: 1 exact; 1 up to date" in ran.stderr


def test_missing_ranges_are_named_in_the_error(show) -> None:
    unsound = replace(EXAMPLES["verify"], covers=False, missing=(0, 4), extra=(4,))
    ran = show(unsound, "verify", "w.yaml")
    lines = "  the sketch lacks 2 of 5 ranges\n  the sketch has 1 range more than needed\n"
    assert lines in ran.stdout
    assert "on `sales.price`; it lacks the ranges 0, NULL" in " ".join(ran.stderr.split())


def failed(name: str, message: str, hint: str | None = "correct it") -> Failure:
    return Failure(name, QueryError(message, hint=hint))


LOCATED = QueryError(
    "Function `MEDIAN` is not supported", location=Location("w.yaml", 9, 14), hint="use AVG"
)


@pytest.mark.parametrize(
    ("answer", "code", "stderr"),
    [
        (
            Outcome(failures=(Failure("q_top", LOCATED),)),
            3,
            "error: w.yaml:9:14: `q_top`: Function `MEDIAN` is not supported\n"
            "  [query_unsupported]\n"
            "hint: use AVG\n",
        ),
        (
            Outcome(
                failures=(
                    failed("a", "Table `u` does not exist"),
                    failed("b", "Table `u` does not exist", "create it"),
                    failed("c", "Table `u` does not exist"),
                    failed("d", "Query `d` was never captured"),
                )
            ),
            3,
            "error: `a`, `c`: Table `u` does not exist [query_unsupported]\n"
            "hint: correct it\n"
            "error: `b`: Table `u` does not exist [query_unsupported]\n"
            "hint: create it\n"
            "error: Query `d` was never captured [query_unsupported]\n"
            "hint: correct it\n"
            "4 of 4 queries failed: `a`, `b`, `c`, `d`\n",
        ),
    ],
    ids=["a location", "failures of several queries"],
)
def test_failures(show, answer: Any, code: int, stderr: str) -> None:
    ran = show(answer, "maintain", "w.yaml")
    assert (ran.code, ran.stdout, ran.stderr) == (code, "", stderr)


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("100", 100), (None, 175)])
def test_sentences_are_wrapped_but_not_in_a_pipe(
    show, monkeypatch, columns: str | None, widest: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    words = ("the price of what was sold " * 5).strip()
    result = replace(EXAMPLES["rewrite"], action="exact", reason=words)
    lines = show(result, "rewrite", "w.yaml").stderr.splitlines()
    assert " ".join(line.strip() for line in lines[1:]).endswith(words)
    assert widest - 12 < max(map(len, lines)) <= widest


WORDS = "the price of what was sold " * 9 + "in all"
ENTRY = EXAMPLES["explain"].plan[0]


@pytest.mark.parametrize(
    ("command", "result", "count"),
    [
        ("check", replace(EXAMPLES["check"], reason=WORDS), 1),
        ("explain", replace(EXAMPLES["explain"], plan=(replace(ENTRY, why=WORDS),)), 1),
        ("status", replace(EXAMPLES["status"], stale_reason=WORDS), 1),
        ("doctor", replace(EXAMPLES["finding"], message=WORDS, fix=WORDS), 2),
    ],
)
def test_reasons_are_not_wrapped_in_a_pipe(show, monkeypatch, command: str, result, count) -> None:
    monkeypatch.delenv("COLUMNS")
    stdout = show(result, command, "w.yaml").stdout
    lines = [line for line in stdout.splitlines() if "the price" in line]
    assert len(lines) == count
    assert all(line.endswith(WORDS) for line in lines)


def test_a_problem_with_line_breaks_is_one_line_in_a_pipe(show, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS")
    finding = replace(EXAMPLES["finding"], level="problem", message="a\n  b  c\n")
    assert "  problem  a b  c\n" in show(finding, "doctor", "w.yaml").stdout


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
)
def test_colour(show, monkeypatch, variables: dict[str, str], coloured: bool) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stderr = show(QueryError("no"), "status", "w.yaml").stderr
    assert ("\x1b[31merror\x1b[0m: no" in stderr) is coloured


@pytest.mark.parametrize("command", ["check", "explain"])
def test_processed_and_failed_queries_are_counted(show, command: str) -> None:
    outcome = Outcome((EXAMPLES[command],), failures=(failed("q_two", "no", None),))
    assert show(outcome, command, "w.yaml").stderr.endswith("1 of 2 queries failed: `q_two`\n")


RECORD_TEXT = """\
micro: 6 cases measured for 2 figures, 6 checked, scale 0.05, 75 s, noise 4%

groups: Number of groups
   groups  changes  maintain  recapture  recapture ratio
       50    1,000    2.1 ms     812 ms             387×
       50  100,000    1.62 s     812 ms             0.5×
  500,000    1,000    2.5 ms     812 ms             325×
  500,000  100,000   81.2 ms     812 ms              10×
  break-even, 50 groups: 6.2 % (62,000 changes)
  break-even, 500,000 groups: above 100,000 changes
  papers: Up to 1,000 changed rows maintaining wins by two to three orders of
    magnitude. (section 8.3.1)

skipping: What a sketch saves
  layout      without sketch  rows share
  sorted               1.5 s      6.25 %
  not sorted           1.5 s       100 %
"""


def test_large_ratios_have_no_exponent() -> None:
    assert [metric_text("x_ratio", value) for value in (999.7, 2345.6)] == ["1,000×", "2,346×"]
    assert metric_text("rows_share", 12.0) == "1,200 %"


def test_equal_break_evens_are_one_line(show) -> None:
    record = EXAMPLES["record"]
    groups = [cell for cell in record.cells if cell.figure == "groups"]
    fast = groups[-1].metrics
    cells = tuple(replace(cell, metrics=fast) if cell in groups else cell for cell in record.cells)
    lines = show(replace(record, cells=cells), "bench", "micro").stdout.splitlines()
    break_evens = [line for line in lines if "break-even" in line]
    assert break_evens == ["  break-even, 2 equal cases: above 100,000 changes"]


NARROW = """\
8,442 commits with 659,699 rows in 58 days replayed, from 2026-01-31 12:00:30Z,
  by the histories of the tables; a check every 5 s
as it is:
  8,400 runs, 33,000 steps, 15.7 min of work, 0 late
  age 2.64 s, 99% 5.1 s, worst 10.4 s
  state 116 MB, reads 0, converts 0
10 MB, use:
  0 runs, 0 steps, 0 ms of work, 2 late
  age -, 99% -, worst 1,344 h
  state 20.2 MB, reads 77,912, converts 12
  work: 2 queries from recorded runs; 1 query from captures, because no run is
    recorded; 1 query from default times
  over budget even with the minimum of state: 10 MB, use
  recorded since 2026-01-31 12:00:30Z: 8,000 runs, 33,000 steps, 16.7 min; the
    model: 8,400 runs (+5%), 33,000 steps (+0%), 15.7 min (-6%)
"""

TABLE = """\
setting       runs    steps       work      age     99%     worst   late     state    reads   converts
RULE
as it is     8,400   33,000   15.7 min   2.64 s   5.1 s    10.4 s      0    116 MB        0          0
10 MB, use       0        0       0 ms        -       -   1,344 h      2   20.2 MB   77,912         12
"""  # noqa: E501 - as it is printed


def test_settings_are_a_table_if_it_fits(show, monkeypatch) -> None:
    result = replace(EXAMPLES["simulate"], recorded=None)
    rule = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 102
    for columns in ("102", "300", ""):
        monkeypatch.setenv("COLUMNS", columns)
        stdout = show(result, "simulate", "w.yaml").stdout
        assert TABLE.replace("RULE", rule) in stdout
        assert stdout.endswith("no recorded runs of this time to compare the model with\n")
    monkeypatch.setenv("COLUMNS", "101")
    assert "converts 12" in show(result, "simulate", "w.yaml").stdout


WHY = EXAMPLES["why"]


PLAN = EXAMPLES["plan"]
CAPTURE = CaptureResult(
    query="q_top", action="none", sketches=(SketchEntry("sales", "price", (), 4),),
    versions={"sales": 0}, mode="exact", elapsed_ms=0.0, spark_ms=0.0, engine_ms=0.0,
    considered=(CandidateEntry("sales", "sid", False, False, "it cuts groups apart"),),
    assumptions=("`sales.price` >= 0",),
    dry_run=True, by="engine", reads=(ReadEntry("sales", 0, 7, 1, 1920),), stored="stale",
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {},
            "at 2026-01-31 12:00:30Z, starts 2026-01-31 11:00:00Z: fresh_within 10m"
            " (estimate 1.23 s, 1.85 s with safety factor)",
        ),
        ({"cost_ms": None, "start_at": None}, "fresh_within 10m"),
        (
            {"due": True},
            "now, deadline 2026-01-31 12:00:30Z: fresh_within 10m"
            " (estimate 1.23 s, 1.85 s with safety factor)",
        ),
        (
            {"pending": False, "why": "w"},
            "nothing pending, next at 2026-01-31 12:00:30Z, for fresh_within 10m, rows 10000",
        ),
        ({"pending": False, "due_at": None, "why": "nothing is pending"}, "nothing is pending"),
    ],
)
def test_a_plan_shows_when_it_is_due(show, changed, line) -> None:
    result = replace(PLAN, due=replace(EXAMPLES["due"], **changed))
    stdout = " ".join(show(result, "plan", "w.yaml").stdout.split())
    assert f" due {line} estimated to maintain:" in stdout


NEXT_CHANGE = NextChange(
    tables=("lineitem", "orders"), in_s=2460.0, in_s_low=1500.0, in_s_high=4200.0,
    rows=1010.4, rows_low=760.0, rows_high=1304.2, by="the same time of day",
    rows_by="the last value",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            NEXT_CHANGE,
            "lineitem, orders: in 41 min (25 min to 1 h 10), 1,010 rows (760 to 1,300), "
            "by the same time of day",
        ),
        (NextChange(unknown="1 change is known"), "unknown: 1 change is known"),
        (replace(NEXT_CHANGE, tables=("t",), in_s=0.0), "t: any time (within 1 h 10), 1,010 rows"),
        (replace(NEXT_CHANGE, tables=("t",), in_s=0.0, in_s_high=0.0), "t: overdue, 1,010 rows"),
        (
            NextChange(tables=("t",), in_s=7200.0, rows=200.0, by="the workload file"),
            "t: in 2 h, 200 rows, by the workload file",
        ),
        (NextChange(tables=("t",), in_s=0.0, by="x"), "t: any time, unknown number of rows, by x"),
        (
            replace(NEXT_CHANGE, rows=None),
            "lineitem, orders: in 41 min (25 min to 1 h 10), unknown",
        ),
        (
            replace(NEXT_CHANGE, in_s_low=2461.0, in_s_high=2462.0, rows=1.0),
            "in 41 min (41 min), 1 row",
        ),
    ],
)
def test_text_of_the_next_change(show, change, text) -> None:
    stdout = show(replace(PLAN, next_change=change), "plan", "w.yaml").stdout
    assert stdout.count("\n  next change  ") == 1
    assert text in " ".join(stdout.split())


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (PLAN, 2),
        (replace(PLAN, action="capture"), 2),
        (replace(PLAN, action="none"), 0),
        (CAPTURE, 2),
        (replace(CAPTURE, stored="none"), 2),
        (replace(CAPTURE, stored="current"), 0),
        (replace(CAPTURE, reason="?", stored="even"), 0),
        (replace(EXAMPLES["maintain"], dry_run=True), 2),
        (replace(EXAMPLES["maintain"], dry_run=True, action="none"), 0),
    ],
)
def test_detailed_exitcode(show, result, code) -> None:
    assert show(result, "plan", "w.yaml", "--detailed-exitcode").code == code
    assert show(result, "maintain", "w.yaml", "--dry-run", "--detailed-exitcode").code == code
    assert show(result, "plan", "w.yaml").code == 0


def applied(name: str, statement: str, version: int, inserted: int = 0) -> ApplyResult:
    """A batch that a dry run would apply."""
    return ApplyResult(
        name=name, table="t", version=None, inserted=inserted, deleted=0, updated=0,
        statement=statement, planned_version=version,
    )  # fmt: skip


TIME, OTHER = EXAMPLES["comparison"].changes
UNJUDGED = replace(
    EXAMPLES["comparison"],
    changes=(replace(TIME, verdict=Difference.UNJUDGED), OTHER),
    edited=EXAMPLES["comparison"].only_old,
)
DRY_RUN = "dry run: nothing was written\n"
REFUSED = ReuseCandidate(
    "q_low", False, False, "LIMIT asks for 2 rows, but the sketch covers only 1"
)
USED = ReuseCandidate(
    "q_top", True, True, "it was captured for the same", EXAMPLES["rewrite"].sketches, 9
)
SQL = "SELECT brand FROM sales WHERE price >= 601\n"
SKETCH = "q_top: sales.price 2 of 4 ranges, reads 2 of 3 files, valid only for sales@1\n"
NOT_REUSED = (
    "  sketch of `q_low` not used: LIMIT asks for 2 rows, but the sketch covers only\n    1\n"
)
RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
OUTPUTS: dict[str, tuple[str, Any, str]] = {
    **{name: (f"{name} w.yaml", EXAMPLES[name], text) for name, text in EXAMPLE_TEXTS.items()},
    "a rewrite with the sketch of another query": (
        "rewrite w.yaml",
        replace(
            EXAMPLES["rewrite"],
            reuse=ReuseEntry("q_top", "it was captured for the same", (REFUSED, USED)),
        ),
        SQL,
    ),
    "rows": (
        "query w.yaml",
        EXAMPLES["query"],
        "brand       rev   day          share\n"
        f"{RULE * 36}\n"
        "Apple   5074.10   2026-01-31     NaN\n"
        "NULL    6194.00   NULL          -0.5\n",
    ),
    "a dry gc": (
        "gc w.yaml --dry-run",
        replace(EXAMPLES["gc"], dry_run=True),
        EXAMPLE_TEXTS["gc"]
        .replace("not deleted:", "would delete")
        .replace("deleted ", "would delete "),
    ),
    "nothing to delete": (
        "gc w.yaml",
        replace(EXAMPLES["gc"], entries=(), bytes=0, keep=1),
        "nothing to delete; each query keeps its latest 1 sketch version\n",
    ),
    "a record, a table per figure": (
        "bench micro",
        (EXAMPLES["record"], EXAMPLES["written"]),
        RECORD_TEXT,
    ),
    "a workload, without a scale": (
        "bench w.yaml",
        replace(EXAMPLES["record"], kind=RecordKind.WORKLOAD),
        RECORD_TEXT.replace("scale 0.05, ", ""),
    ),
    "a comparison with unmatched cases": (
        "bench --compare a.json b.json",
        EXAMPLES["comparison"],
        "micro: 2 metrics of 1 case compared, noise 21%\n"
        "  slower: groups, groups 50: maintain 2.1 ms, then 4.2 ms (2.00)\n"
        "  only in the old record: groups, groups 9\n"
        "  differs between the runs: cpu: x, then y\n",
    ),
    "a comparison that cannot be judged": (
        "bench --compare a.json b.json",
        UNJUDGED,
        "micro: 2 metrics of 1 case compared, noise 21%\n"
        "  not compared, the query, partition, option or data differ: groups, groups 9\n"
        "  times of different machines are not compared, only ratios and sizes\n"
        "  nothing differs beyond the noise\n"
        "  only in the old record: groups, groups 9\n"
        "  differs between the runs: cpu: x, then y\n",
    ),
    "settings in a narrow terminal, in lines": ("simulate w.yaml", EXAMPLES["simulate"], NARROW),
    "a dry capture": (
        "capture w.yaml --dry-run",
        CAPTURE,
        "q_top: would capture sales.price in 4 ranges at sales@0, mode exact by engine\n"
        "  would read sales@0: 7 rows in 1 file, 1.92 kB\n"
        "  sales.sid not safe: it cuts groups apart\n"
        "  assumes `sales.price` >= 0 (re-checked on every change)\n"
        "  replaces a sketch that is not current\n",
    ),
    "a dry rebalance": (
        "capture w.yaml --dry-run",
        replace(CAPTURE, reason="would even out `sales.price`"),
        "q_top: sales.price 0 of 4 ranges\n  would even out `sales.price`\n",
    ),
}
STDERR = {
    "a rewrite with the sketch of another query": (
        f"{SKETCH}{NOT_REUSED}"
        "  sketch of `q_top` (sales.price 2 of 4 ranges): it was captured for the same\n"
        "  sketch was up to date\n"
    ),
    "rows": (
        "q_top: 2 rows, Spark read 2 of 3 files at sales@1 in 120 ms\n"
        "  sketch maintained first (exact): 1 change\n"
    ),
    "a record, a table per figure": "measuring micro\nrecord: r.json\n",
    "a workload, without a scale": "measuring w.yaml\n",
    **dict.fromkeys(("a dry capture", "a dry rebalance", "a dry gc"), DRY_RUN),
}
"""Expected stderr where it is not empty."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_whole_outputs(show, name: str) -> None:
    command_line, results, stdout = OUTPUTS[name]
    outcome = Outcome(results if isinstance(results, tuple) else (results,))
    ran = show(outcome, *shlex.split(command_line))
    assert (ran.code, ran.stdout, ran.stderr) == (0, stdout, STDERR.get(name, ""))
    assert max(map(len, stdout.splitlines())) <= 80


MANY = SketchEntry("sales", "price", tuple(range(0, 400, 2)), 400)
OUTPUT_PARTS: dict[str, tuple[str, Any, str]] = {
    "results of which only row counts were compared": (
        "verify",
        replace(EXAMPLES["verify"], counts_only=True),
        "sales@1, results equal (only the number of\n  rows: LIMIT without ORDER BY)\n",
    ),
    "a long sketch, in one line": (
        "status",
        replace(EXAMPLES["status"], sketches=(MANY,)),
        "q_top: stale, sales.price 200 of 400 ranges\n",
    ),
    "a plan with unknown sizes": (
        "plan",
        replace(
            PLAN,
            pending=(
                PlannedChange("a", 3, 4, None, 1, 10),
                PlannedChange("b", 3, 9, None, None, None),
            ),
            maintain_ms=None,
            recapture_ms=None,
            recapture_runs=0,
        ),
        "\n  a: 1 version, unknown number of rows in 1 file, 10 B\n"
        "  b: 6 versions, unknown number of rows, the log cannot be read that far back\n"
        "  estimated to maintain: unknown, because the log lacks the size of the change\n"
        "  estimated to recapture: unknown, because no run is recorded yet\n",
    ),
    "the range of NULL": (
        "maintain",
        replace(EXAMPLES["maintain"], added=(4,), removed=(1, 4)),
        ", sales.price +1 -2 ranges\n",
    ),
}


@pytest.mark.parametrize(("command", "result", "part"), OUTPUT_PARTS.values(), ids=OUTPUT_PARTS)
def test_a_part_of_stdout(show, command: str, result: Any, part: str) -> None:
    assert part in show(result, command, "w.yaml").stdout


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"lineage": 1}, "1 row occurs in its derivations"),
        ({"claim": "minimal"}, "no row can be removed"),
        ({"claim": "group"}, "all rows of its groups"),
    ],
)
def test_only_smallest_claims_are_called_smallest(show, changed, expected: str) -> None:
    ran = show(replace(WHY, **changed), "why", "w.yaml", "--row", "n=17")
    assert expected in " ".join((ran.stderr + ran.stdout).split())
    assert ("smallest" in ran.stdout) is ("claim" not in changed)


def test_warnings_with_one_cause_are_merged(show) -> None:
    def spans(query: str, share: int) -> str:
        return f"the sketch of query `{query}` on `t.day` skips no file: each spans {share}% of 96"

    names = "abcdefg"
    outcome = Outcome(
        warnings=(
            *(spans(name, 90 + number) for number, name in enumerate(names)),
            "query `h` was recaptured: the file `p1` is gone",
            spans("a", 90),
            "query `i` was recaptured: the file `p2` is gone",
        )
    )
    assert " ".join(show(outcome, "capture", "w.yaml").stderr.split()) == (
        "warning: 7 queries (`a`, `b`, `c`, `d`, `e`, ...): the sketch of each query on `t.day` "
        "skips no file: each spans 90% to 96% of 96 "
        "warning: query `h` was recaptured: the file `p1` is gone "
        "warning: query `i` was recaptured: the file `p2` is gone"
    )
    warnings = json.loads(show(outcome, "capture", "w.yaml", "--json").stdout)["warnings"]
    assert len(warnings) == 10


def test_results_are_shown_once_when_they_finish(fake, impctl) -> None:
    first = EXAMPLES["capture"]
    second, third = replace(first, query="q_two"), replace(first, query="q_three")
    fake.finished, fake.answer = (first, second), Outcome((first, second, third))
    lines = impctl("capture", "w.yaml").stdout.splitlines()
    heads = [line.split(":")[0] for line in lines if "captured" in line]
    assert heads == ["q_top", "q_two", "q_three"]
    with_mode = [line for line in lines if "mode " in line]
    assert "; 1 of 2, about " in with_mode[0]
    assert with_mode[1].endswith("; 2 of 2")
    assert "; " not in with_mode[2]
    results = json.loads(impctl("capture", "w.yaml", "--json").stdout)["results"]
    assert [result["query"] for result in results] == ["q_top", "q_two", "q_three"]


def test_texts_of_sketches_and_versions() -> None:
    assert sketch_text(SketchEntry("t", "c", (0, 4), 4)) == "t.c 2 of 5 ranges"
    assert sketch_text(SketchEntry("t", "c", (0, 3), 4)) == "t.c 2 of 4 ranges"
    assert versions_text({"a": 3, "b": 4}, {"a": 1, "b": 4}) == "a@1..3, b@4"
    assert plain("a\tb\nc\x1b[0m\r\x9b") == "a\tb\nc\\x1b[0m\\x0d\\x9b"


TEXTS = ["", "a", "NULL", "two words", "x" * 30, " lead", "trail ", "naïve"]
TEXTS += ["語", "a\nb", "\x1b[1m"]


def drawn_by_rich(columns: list[TextColumn], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of Rich alone."""
    with monkeypatch.context() as patch:
        patch.setattr(texts, "_narrow", lambda *_: None)
        return table_lines(columns)


def random_columns(rng: random.Random) -> list[TextColumn]:
    rows, is_odd = rng.randrange(5), rng.random() < 0.3
    texts: list[str | None] = [None, "1", "-22.5", "2024-01-01 00:00:00", "abc", "a b"]
    texts += TEXTS if is_odd else []
    return [
        TextColumn(
            rng.choice(["a", "total", "n n"]), rng.random() < 0.5, rng.choices(texts, k=rows)
        )
        for _ in range(rng.randrange(1, 6))
    ]


@pytest.mark.slow
def test_tables_equal_those_of_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, count = random.Random(7), 0
    for _ in range(400):
        columns = random_columns(rng)
        texts_by_column = [
            [c.name, *("NULL" if t is None else t for t in c.texts)] for c in columns
        ]
        count += texts._narrow(texts_by_column, [c.is_number for c in columns], 80) is not None
        assert table_lines(columns) == drawn_by_rich(columns, monkeypatch), columns
    assert count > 150


def test_wide_tables_are_wrapped_by_rich() -> None:
    columns = [TextColumn("a", False, ["x " * 60]), TextColumn("b", True, ["1"])]
    lines = table_lines(columns, 100)
    assert len(lines) > 3
    assert max(map(len, lines)) <= 100
    assert sum(line.count("x") for line in lines) == 60


@pytest.mark.parametrize("text", ["x" * 500, "naïve " * 100])
def test_without_a_terminal_each_row_is_one_line(text: str) -> None:
    """Programs count lines and search for words in them."""
    lines = table_lines([TextColumn("a", False, [text] * 3), TextColumn("b", True, ["1"] * 3)])
    assert len(lines) == 5
    assert all(text.strip() in line for line in lines[2:])


def strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_of_a_result(show) -> None:
    """`tests/golden` has the documents of all other results."""
    ran = show(Outcome((EXAMPLES["query"],), ("a warning",)), "query", "w.yaml", "--json")
    document = strict(ran.stdout)
    assert (ran.code, ran.stderr) == (0, "")
    assert list(document) == ["schema_version", "command", "ok", "results", "warnings", "error"]
    assert document == {
        "schema_version": 1,
        "command": "query",
        "ok": True,
        "results": [to_json(EXAMPLES["query"])],
        "warnings": ["a warning"],
        "error": None,
    }
    assert document["results"][0]["rows"] == [
        ["Apple", "5074.10", "2026-01-31", "NaN"],
        [None, "6194.00", None, -0.5],
    ]


def test_every_result_has_a_text_and_an_example() -> None:
    kinds = set(get_args(Result))
    assert {type(result) for result in EXAMPLES.values()} == kinds - {ClusterResult, GainResult}
    assert not [kind for kind in kinds if render.dispatch(kind) is render.dispatch(object)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (Decimal("1E+3"), "1000"),
        (2**63, 2**63),
        (True, True),
        (b"\x00\xff", "00ff"),
        (datetime(2026, 1, 31, 12, 0, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
        ({1: (2, None)}, {"1": [2, None]}),
    ],
)
def test_json_of_a_value(value: object, expected: object) -> None:
    assert to_json(value) == expected


def test_a_value_of_unknown_type_is_an_error() -> None:
    with pytest.raises(TypeError, match="complex"):
        to_json(1j)


def test_json_of_invalid_unicode(show) -> None:
    result = replace(EXAMPLES["apply"], name="\ud800 ü")
    assert strict(show(result, "apply", "w.yaml", "s8", "--json").stdout)["ok"] is True


def test_json_of_one_failure_and_a_result(show) -> None:
    error = QueryError("Unknown column `x`", location=Location("w.yaml", 9, 14), hint="see tables")
    outcome = Outcome((EXAMPLES["maintain"],), (), (Failure("q_two", error),))
    ran = show(outcome, "maintain", "w.yaml", "--json")
    document = strict(ran.stdout)
    assert (ran.code, ran.stderr) == (3, "")
    assert document["ok"] is False
    assert len(document["results"]) == 1
    assert document["error"] == {
        "code": "query_unsupported",
        "message": "Unknown column `x`",
        "hint": "see tables",
        "location": {"file": "w.yaml", "line": 9, "column": 14},
        "query": "q_two",
    }


def test_json_of_failures_leads_with_the_most_severe(show) -> None:
    failures = (
        Failure("a", LockHeldError("locked")),
        Failure("b", HistoryGoneError("gone")),
        Failure("c", PolicyRefusedError("refused")),
    )
    ran = show(Outcome(failures=failures), "maintain", "w.yaml", "--json")
    error = strict(ran.stdout)["error"]
    assert ran.code == 4
    assert error["code"] == "policy_refused"
    assert [entry["query"] for entry in error["failures"]] == ["a", "b", "c"]


def test_problems_of_a_workload_file(show) -> None:
    """Most problems have a location and a hint (`bad-inputs.yaml`), but not all."""
    problems = [Problem("one", Location("w.yaml", 1, 2), "do this"), Problem("two")]
    error = WorkloadError("File has 2 problems", problems)
    reported = strict(show(error, "check", "w.yaml", "--json").stdout)["error"]["problems"]
    location = {"file": "w.yaml", "line": 1, "column": 2}
    assert reported == [
        {"message": "one", "hint": "do this", "location": location},
        {"message": "two", "hint": None, "location": None},
    ]
    lines = show(error, "check", "w.yaml").stderr.splitlines()
    assert lines[1:] == ["  w.yaml:1:2: one", "    hint: do this", "  two"]


def test_the_schema_is_a_document_or_a_result(show) -> None:
    schema = '{"type": "object"}'
    assert show(schema, "check", "--schema").stdout == f"{schema}\n"
    document = strict(show(schema, "check", "--schema", "--json").stdout)
    assert document["results"] == [{"type": "object"}]


@pytest.mark.parametrize(
    ("raised", "code", "name"),
    [
        (ValueError("boom\nsecond line"), 1, "unexpected"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(32, "of the Spark session"), 1, "unexpected"),
        (OSError(28, "No space left on device"), 1, "unexpected"),
    ],
)
def test_json_of_unexpected_errors(show, raised, code: int, name: str) -> None:
    ran = show(raised, "maintain", "w.yaml", "--json")
    document = strict(ran.stdout)
    assert (ran.code, ran.stderr) == (code, "")
    assert document["error"]["code"] == name
    assert "\n" not in document["error"]["message"]


def test_stdout_has_only_the_rows(show) -> None:
    csv = "brand,rev,day,share\nApple,5074.10,2026-01-31,NaN\n,6194.00,,-0.5\n"
    outcome = Outcome((EXAMPLES["query"],), ("statistics are missing",))
    ran = show(outcome, "query", "w.yaml", "--format", "csv")
    assert (ran.code, ran.stdout) == (0, csv)
    assert ran.stderr == STDERR["rows"] + "warning: statistics are missing\n"
    quiet = show(outcome, "query", "w.yaml", "--format", "csv", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (csv, "")


def test_a_limit_is_reported_with_the_row_count(fake, show) -> None:
    many = pa.table({"n": range(1234), "x": range(1234)}).rename_columns(["n", "n"])
    result = replace(EXAMPLES["query"], answer=many, limit=10)
    ran = show(result, "query", "w.yaml", "--limit", "10", "--format", "csv")
    assert fake.calls[-1][2]["limit"] == 10
    assert ran.stdout.splitlines() == ["n,n", *(f"{n},{n}" for n in range(10))]
    assert ran.stderr.startswith("q_top: 10 of 1,234 rows, Spark read")
    assert len(show(result, "query", "w.yaml").stdout.splitlines()) == 12
    (document,) = strict(show(result, "query", "w.yaml", "--json").stdout)["results"]
    assert document["columns"] == ["n", "n"]
    assert document["rows"] == [[n, n] for n in range(10)]
    assert (document["row_count"], document["limit"], document["written"]) == (1234, 10, None)
    whole = show(replace(result, limit=5000), "query", "w.yaml")
    assert whole.stderr.startswith("q_top: 1,234 rows, Spark read")


@pytest.mark.parametrize("limit", [3, 2**63, 10**20])
def test_a_limit_above_the_row_count_shows_all(limit: int) -> None:
    three = replace(EXAMPLES["query"], answer=pa.table({"n": range(3)}), limit=limit)
    assert len(three.shown) == 3


def test_rows_in_a_file_are_not_on_stdout(fake, show) -> None:
    result = replace(EXAMPLES["query"], limit=1, written="a.csv")
    ran = show(result, "query", "w.yaml", "--out", "a.csv")
    assert str(fake.calls[-1][2]["out"]) == "a.csv"
    assert ran.stdout == ""
    assert ran.stderr.startswith("q_top: 1 of 2 rows written to a.csv, Spark read 2 of 3 files")
    document = strict(show(result, "query", "w.yaml", "--json", "--out", "a.csv").stdout)
    (entry,) = document["results"]
    assert (entry["rows"], entry["row_count"], entry["written"]) == ([], 2, "a.csv")


@pytest.mark.parametrize("name", ["csv", "json", "jsonl", "markdown"])
def test_formats_for_programs_are_always_utf_8(fake, monkeypatch, name: str) -> None:
    fake.answer = Outcome((replace(EXAMPLES["query"], answer=pa.table({"a": ["ü\x1b"]})),))
    raw = io.BytesIO()
    stdout = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(build_app(), ["query", "w.yaml", "--format", name]) == 0
    stdout.flush()
    output = raw.getvalue().decode()
    assert "ü" in output
    assert ("\x1b" in output) is (name == "csv")


@pytest.mark.parametrize("command", ["query", "changes", "without"])
def test_formulas_are_escaped_on_request(show, command: str) -> None:
    result = replace(EXAMPLES[command], answer=pa.table({"=a": ["+1"], "_change": ["x"]}))
    name = ("why", "w.yaml", "--without", "g = 1") if command == "without" else (command, "w.yaml")
    words = (*name, "--format", "csv")
    assert show(result, *words).stdout == "=a,_change\n+1,x\n"
    assert show(result, *words, "--escape-formulas").stdout == "'=a,_change\n'+1,x\n"


def test_values_do_not_control_the_terminal(fake, monkeypatch) -> None:
    fake.answer = Outcome((replace(EXAMPLES["query"], answer=pa.table({"a": ["ü\x1b[2J"]})),))
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(build_app(), ["query", "w.yaml", "--format", "csv"]) == 0
    assert stdout.getvalue() == "a\nü\\x1b[2J\n"


@pytest.mark.parametrize("name", ["table", "csv", "json", "jsonl", "markdown"])
def test_a_closed_stdout_is_no_failure(fake, capfd, monkeypatch, name: str) -> None:
    fake.answer = Outcome((replace(EXAMPLES["query"], answer=pa.table({"a": ["x" * 99_999]})),))
    reader, writer = os.pipe()
    os.close(reader)
    with Stdout(os.fdopen(writer, "wb"), encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run(build_app(), ["query", "w.yaml", "--format", name]) == 0
    assert "rror" not in capfd.readouterr().err
