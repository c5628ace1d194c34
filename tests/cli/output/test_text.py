"""Whole text outputs: stdout and stderr apart, at 80 columns, without colour or control codes."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from impctl.app.results.explanations import CheckResult
from impctl.app.results.results import Failure, Outcome, ReuseCandidate, ReuseEntry, SketchEntry
from impctl.errors import Location, Problem, QueryError, WorkloadError
from tests.cli.examples import EXAMPLES

EXPECTED = {
    "check": """\
q_top: supported, exact
  every operator is maintained
  sales.price safe, chosen: a group only grows (price > 0)
""",
    "capture": """\
q_top: captured sales.price 2 of 4 {2, 3}
  sales@0, mode exact, 1.23 s (Spark 900 ms)
  rests on: sales.price > 0
""",
    "maintain": """\
q_top: exact sales@0..1, sales.price +{1}
  1 change in 2.35 ms (read 1.5 ms, engine 0.25 ms, commit 0.5 ms)
  the change was carried through the circuit [change_feed]
""",
    "status": """\
q_top: stale, sales.price 4 of 5 {1-3, NULL}
  why      the table has newer versions
  pending  sales@1..3: 2 versions, 1,000 rows in 3 files, 2.05 kB
  pending  brands@0..1: 1 version, the log does not say how much (any more)
  stands   sales@1, mode exact, policy auto
  size     sketch 2 B, state 1.23 kB
  slack    1, verified at sales@1, 2026-01-31 12:00:30Z
  runs     2026-01-31 12:00:30Z  exact, 1 change, 2.35 ms: 1 change
           2026-01-31 12:00:30Z  capture, 1.2 s: capture was asked for
""",
    "gc": """\
removed 12 old sketch versions of q_top, 3.1 kB
removed 1 partition that no sketch uses, 812 B
removed state that no run refers to: demo/.impctl/state/3f2a.arrow, 5.2 MB
left scratch of a run that was killed: demo/.impctl-bench-x1, 1.23 kB
removed 5.2 MB in all; each query keeps its latest 8 sketch versions
""",
    "explain": """\
q_top: exact (policy auto)
  every operator is maintained
  plan, state 2.35 kB
    select SUM(price * numSold) > 5000
      - exact
      aggregate by brand
        - exact: sums of whole numbers; state 1.49 kB
        scan sales
          - exact
          - reads 3 of 5 columns
          - with the sketch: price >= 1001; Spark reads 1 of 2 files
  attributes
    sales.price safe, chosen: a group only grows (price > 0)
    sales.sid not safe: cuts groups apart
""",
    "verify": """\
q_top: sound, sales.price slack 1 at sales@1, results equal
  more than needed {0}
""",
}


@pytest.mark.parametrize("command", list(EXPECTED))
def test_a_result_on_stdout(fake, impctl, command: str) -> None:
    fake.answer = Outcome((EXAMPLES[command],))
    ran = impctl(command, "w.yaml")
    assert (ran.code, ran.stdout, ran.stderr) == (0, EXPECTED[command], "")


def test_gc_that_foresees_and_gc_with_nothing_to_do(fake, impctl) -> None:
    fake.answer = Outcome((replace(EXAMPLES["gc"], foreseen=True),))
    lines = impctl("gc", "w.yaml", "--dry-run").stdout.splitlines()
    assert all(line.startswith("would remove ") for line in lines)
    fake.answer = Outcome((replace(EXAMPLES["gc"], entries=(), bytes=0, keep=1),))
    assert impctl("gc", "w.yaml").stdout == (
        "nothing to remove; each query keeps its latest 1 sketch version\n"
    )


def test_answers_of_which_only_the_numbers_of_rows_were_compared(fake, impctl) -> None:
    fake.answer = Outcome((replace(EXAMPLES["verify"], counts_only=True),))
    (first, *_) = impctl("verify", "w.yaml").stdout.splitlines()
    assert first.endswith("sales@1, results equal (only counted: a LIMIT without ORDER BY)")


def test_apply(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["apply"],))
    ran = impctl("apply", "w.yaml", "s8")
    assert ran.stdout == "s8: sales version 1, 1 inserted, 0 deleted, 0 updated\n"


def test_generate(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["generate"],))
    ran = impctl("bench", "--generate", "demo")
    assert ran.stdout == "sales: 7 rows, version 0, demo/sales\n"


def test_what_to_run_next_is_whole_however_narrow_the_terminal(fake, impctl, monkeypatch) -> None:
    commands = ("impctl check 'my  tables/w.yaml'", f"impctl check '{'a folder/' * 20}w.yaml'")
    fake.answer = Outcome((replace(EXAMPLES["started"], next_commands=commands),))
    monkeypatch.setenv("COLUMNS", "60")
    lines = impctl("init", "t").stdout.splitlines()
    assert lines == ["w.yaml: written", *(f"  {command}" for command in commands)]


def test_rewrite_prints_sql_alone_on_stdout(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["rewrite"],))
    ran = impctl("rewrite", "w.yaml")
    assert ran.stdout == "SELECT brand FROM sales WHERE price >= 601\n"
    assert ran.stderr == (
        "q_top: sales.price 2 of 4 {2, 3}, reads 2 of 3 files, only for sales@1\n"
        "  sketch was up to date\n"
    )


def test_reuse_says_whose_sketch_and_why_not_the_others(fake, impctl) -> None:
    own = EXAMPLES["rewrite"]
    refused = ReuseCandidate("q_low", False, False, "LIMIT asks for 2 rows, the sketch holds 1")
    taken = ReuseCandidate("q_top", True, True, "it was captured for the same", own.sketches, 9)
    reuse = ReuseEntry("q_top", "it was captured for the same", (refused, taken))
    fake.answer = Outcome((replace(own, reuse=reuse),))
    ran = impctl("rewrite", "w.yaml", "--param", "a=1", "--param", "b=2")
    assert fake.calls[-1][1][1:-1] == (None, ("a=1", "b=2"), None, None, None)
    assert ran.stderr.splitlines()[1:] == [
        "  not that of `q_low`: LIMIT asks for 2 rows, the sketch holds 1",
        "  sketch of `q_top` (sales.price 2 of 4 {2, 3}): it was captured for the same",
        "  sketch was up to date",
    ]
    none = ReuseEntry(None, "no stored sketch may be used", (refused,))
    fake.answer = Outcome((replace(own, sketches=(), reuse=none),))
    ran = impctl("rewrite", "w.yaml", "--sql", "SELECT 1")
    assert fake.calls[-1][1][1:-1] == (None, (), "SELECT 1", None, None)
    assert ran.stderr.splitlines() == [
        "q_top: no sketch, reads 2 of 3 files",
        "  no sketch: no stored sketch may be used",
        "  not that of `q_low`: LIMIT asks for 2 rows, the sketch holds 1",
    ]


def test_an_older_version_is_said_to_be_one(fake, impctl) -> None:
    fake.answer = Outcome((replace(EXAMPLES["rewrite"], action="kept"),))
    ran = impctl("rewrite", "w.yaml", "--at", "a=1", "--at", "b=2")
    assert fake.calls[-1][1][1:-1] == (None, (), None, ("a=1", "b=2"), None)
    assert ran.stderr.splitlines()[1:] == [
        "  sketch stored for these versions; nothing was maintained"
    ]


def test_query_prints_rows_on_stdout_and_what_it_saved_on_stderr(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["query"],))
    ran = impctl("query", "w.yaml")
    assert ran.stdout.splitlines()[0] == "brand       rev   day          share"
    assert ran.stdout.splitlines()[2:] == [
        "Apple   5074.10   2026-01-31     NaN",
        "NULL    6194.00   NULL          -0.5",
    ]
    assert ran.stderr == (
        "q_top: 2 rows, Spark read 2 of 3 files at sales@1 in 120 ms\n"
        "  sketch maintained first (exact): 1 change\n"
    )


def test_changes_prints_rows_on_stdout_and_between_what_on_stderr(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["changes"],))
    ran = impctl("changes", "w.yaml")
    assert ran.stdout.splitlines()[0] == "_change   _copies   _sure   brand       rev"
    assert ran.stdout.splitlines()[2:] == [
        "delete          1   true    Apple   5074.10",
        "insert          2   false   NULL    6194.00",
    ]
    assert ran.stderr == (
        "q_top: changes, 2 rows, sales@1..3 in 12 ms\n"
        "  nothing is kept of these versions, so both answers were computed\n"
    )
    whole = replace(EXAMPLES["changes"], since={}, by="state")
    fake.answer = Outcome((whole,))
    ran = impctl("changes", "w.yaml", "--all", "--format", "csv")
    assert ran.stdout.startswith("_change,_copies,_sure,brand,rev\ndelete,1,true,Apple,5074.10\n")
    assert ran.stderr == "q_top: the whole answer, 2 rows, sales@3 in 12 ms\n"


def test_files_of_changes_are_named(fake, impctl) -> None:
    path = "out/q_top/000003_sales-1-3.parquet"
    fake.answer = Outcome((replace(EXAMPLES["maintain"], change_files=(path,)),))
    assert f"  changes of its answer: {path}\n" in impctl("maintain", "w.yaml").stdout


def test_quiet_leaves_results_and_errors_only(fake, impctl) -> None:
    failure = Failure("q_two", QueryError("Query `q_two` uses a window function"))
    fake.answer = Outcome((EXAMPLES["rewrite"],), ("statistics are missing",), (failure,))
    ran = impctl("rewrite", "w.yaml", "-q")
    assert ran.stdout == "SELECT brand FROM sales WHERE price >= 601\n"
    assert ran.stderr == "error: Query `q_two` uses a window function [query_unsupported]\n"


def test_no_value_is_cut_however_long(fake, impctl) -> None:
    words = "x" * 200
    result = replace(EXAMPLES["query"], answer=pa.table({"a": [words]}))
    fake.answer = Outcome((result,))
    stdout = impctl("query", "w.yaml").stdout
    assert stdout.count("x") == 200
    assert max(map(len, stdout.splitlines())) <= 80


def test_user_text_has_no_markup_and_no_control_characters(fake, impctl) -> None:
    result = replace(EXAMPLES["query"], answer=pa.table({"[bold]a": ["\x1b[31m[red]x\x07"]}))
    fake.answer = Outcome((result,))
    stdout = impctl("query", "w.yaml").stdout
    assert "[bold]a" in stdout
    assert "\\x1b[31m[red]x\\x07" in stdout
    assert "\x1b" not in stdout


def test_not_captured(fake, impctl) -> None:
    fake.answer = Outcome((replace(EXAMPLES["status"], sketches=(), versions={}),))
    assert impctl("status", "w.yaml").stdout == (
        "q_top: not captured (policy auto); `impctl check` says whether it can be\n"
    )


def test_eager_steps_are_shown_where_there_are_several(fake, impctl) -> None:
    result = EXAMPLES["maintain"]
    fake.answer = Outcome((replace(result, steps=result.steps * 2),))
    assert impctl("maintain", "w.yaml").stdout.count("  step sales@1: exact, 1 change, +1 -0") == 2


def test_a_query_of_several_sketches_is_counted_once(fake, impctl) -> None:
    result = EXAMPLES["maintain"]
    idle = replace(result, attribute="brand", action="none")
    fake.answer = Outcome((result, idle, replace(idle, query="q_idle")))
    assert "2 queries: 1 exact; 1 up to date" in impctl("maintain", "w.yaml").stderr


def test_long_sketches_fit_a_line(fake, impctl) -> None:
    sketch = SketchEntry("sales", "price", tuple(range(0, 400, 2)), 400)
    fake.answer = Outcome((replace(EXAMPLES["status"], sketches=(sketch,)),))
    first = impctl("status", "w.yaml").stdout.splitlines()[0]
    assert first == "q_top: stale, sales.price 200 of 400 {0, 2, 4, 6, 8, 10, and 194 more}"


def test_the_fragment_of_null_has_its_name_everywhere(fake, impctl) -> None:
    fake.answer = Outcome((replace(EXAMPLES["maintain"], added=(4,), removed=(1, 4)),))
    assert ", sales.price +{NULL} -{1, NULL}\n" in impctl("maintain", "w.yaml").stdout
    fake.answer = Outcome((replace(EXAMPLES["verify"], covers=False, missing=(0, 4), extra=(4,)),))
    ran = impctl("verify", "w.yaml")
    assert "  missing {0, NULL}\n  more than needed {NULL}\n" in ran.stdout
    assert "on `sales.price`, it lacks ranges: 0, NULL" in ran.stderr


def test_every_problem_of_a_workload_file_has_its_line(fake, impctl) -> None:
    fake.answer = WorkloadError(
        "File `w.yaml` has 2 problems",
        [
            Problem("Unknown key `tabels`", Location("w.yaml", 3, 1), "did you mean `tables`?"),
            Problem("`version` must be the number 1", Location("w.yaml", 1, 10)),
        ],
    )
    ran = impctl("check", "w.yaml")
    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr == (
        "error: File `w.yaml` has 2 problems [workload_invalid]\n"
        "  w.yaml:3:1: Unknown key `tabels`\n"
        "    hint: did you mean `tables`?\n"
        "  w.yaml:1:10: `version` must be the number 1\n"
    )


def test_the_place_of_an_error_comes_first(fake, impctl) -> None:
    error = QueryError(
        "Function `MEDIAN` is not supported", location=Location("w.yaml", 9, 14), hint="use AVG"
    )
    fake.answer = Outcome(failures=(Failure("q_top", error),))
    ran = impctl("explain", "w.yaml")
    assert ran.code == 3
    assert ran.stderr == (
        "error: w.yaml:9:14: `q_top`: Function `MEDIAN` is not supported [query_unsupported]\n"
        "hint: use AVG\n"
    )


def test_what_is_in_the_way_of_a_sketch_is_told_with_its_place(fake, impctl) -> None:
    place = Location("w.yaml", 9, 14)
    refused = CheckResult("q_top", False, None, "It uses RAND", hint="leave it out", place=place)
    fake.answer = Outcome((refused,))
    assert impctl("check", "w.yaml").stdout == (
        "q_top: can have no sketch\n  It uses RAND (w.yaml:9:14)\n  hint: leave it out\n"
    )


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("100", 100), (None, 175)])
def test_sentences_are_broken_for_a_stated_width_and_whole_in_a_pipe(
    fake, impctl, monkeypatch, columns: str | None, widest: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    words = "the price of what was sold " * 5
    fake.answer = Outcome((replace(EXAMPLES["rewrite"], action="exact", reason=words.strip()),))
    lines = impctl("rewrite", "w.yaml").stderr.splitlines()
    assert " ".join(line.strip() for line in lines[1:]).endswith(words.strip())
    assert widest - 12 < max(map(len, lines)) <= widest


@pytest.mark.parametrize("command", ["check", "explain", "status", "doctor"])
def test_lines_of_reasons_are_whole_in_a_pipe(fake, impctl, monkeypatch, command: str) -> None:
    monkeypatch.delenv("COLUMNS")
    words = "the price of what was sold " * 9 + "in all"
    entry = EXAMPLES["explain"].plan[0]
    fake.answer = Outcome(
        {
            "check": (replace(EXAMPLES["check"], reason=words),),
            "explain": (replace(EXAMPLES["explain"], plan=(replace(entry, why=words),)),),
            "status": (replace(EXAMPLES["status"], stale_reason=words),),
            "doctor": (replace(EXAMPLES["finding"], message=words, fix=words),),
        }[command]
    )
    told = [line for line in impctl(command, "w.yaml").stdout.splitlines() if "the price" in line]
    assert len(told) == (2 if command == "doctor" else 1)
    assert all(line.endswith(words) for line in told)


def test_a_problem_is_one_line_in_a_pipe_whatever_its_line_ends(fake, impctl, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS")
    fake.answer = Outcome((replace(EXAMPLES["finding"], level="problem", message="a\n  b  c\n"),))
    assert "  problem  a b  c\n" in impctl("doctor", "w.yaml").stdout


def test_what_several_queries_met_alike_is_told_once(fake, impctl) -> None:
    def failure(name: str, message: str, hint: str = "correct it") -> Failure:
        return Failure(name, QueryError(message, hint=hint))

    fake.answer = Outcome(
        failures=(
            failure("a", "Table `u` does not exist"),
            failure("b", "Table `u` does not exist", "create it"),
            failure("c", "Table `u` does not exist"),
            failure("d", "Query `d` was never captured"),
        )
    )
    assert impctl("maintain", "w.yaml").stderr == (
        "error: `a`, `c`: Table `u` does not exist [query_unsupported]\n"
        "hint: correct it\n"
        "error: `b`: Table `u` does not exist [query_unsupported]\n"
        "hint: create it\n"
        "error: Query `d` was never captured [query_unsupported]\n"
        "hint: correct it\n"
        "4 of 4 queries failed: `a`, `b`, `c`, `d`\n"
    )


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
)
def test_colour(fake, impctl, monkeypatch, variables: dict[str, str], coloured: bool) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    fake.answer = QueryError("no")
    assert ("\x1b[31merror\x1b[0m: no" in impctl("status", "w.yaml").stderr) is coloured


@pytest.mark.parametrize("command", ["check", "explain"])
def test_queries_that_were_told_are_counted_beside_those_that_failed(fake, impctl, command) -> None:
    failure = Failure("q_two", QueryError("Query `q_two` uses a window function"))
    fake.answer = Outcome((EXAMPLES[command],), failures=(failure,))
    assert impctl(command, "w.yaml").stderr.endswith("1 of 2 queries failed: `q_two`\n")
