"""Plans and dry runs as text: whole outputs, at 80 columns as far as names allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.app.results.amounts import span_text
from impctl.app.results.explanations import CandidateEntry
from impctl.app.results.foreseen import NextChange, PlannedChange, ReadEntry
from impctl.app.results.results import ApplyResult, CaptureResult, Outcome, SketchEntry
from tests.cli.examples import EXAMPLES

PLAN = EXAMPLES["plan"]
CAPTURE = CaptureResult(
    query="q_top", action="none", sketches=(SketchEntry("sales", "price", (), 4),),
    versions={"sales": 0}, mode="exact", elapsed_ms=0.0, spark_ms=0.0, engine_ms=0.0,
    considered=(CandidateEntry("sales", "sid", False, False, "it cuts groups apart"),),
    assumptions=("sales.price is nonnegative",),
    foreseen=True, by="engine", reads=(ReadEntry("sales", 0, 7, 1, 1920),), stored="stale",
)  # fmt: skip


def test_a_plan(fake, impctl) -> None:
    fake.answer = Outcome((PLAN,))
    assert impctl("plan", "w.yaml").stdout == (
        "q_top: exact by engine, sales@0..2\n"
        "  every operator is maintained [incremental]\n"
        "  sales: 2 versions, 1,000 changed rows in 3 files, 45.7 kB\n"
        "  estimated to maintain: 2.35 ms (12 runs)\n"
        "  estimated to recapture: 812 ms (1 run)\n"
        "  policy auto chooses: exact\n"
    )


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {},
            "at 2026-01-31 12:00:30Z, starts 2026-01-31 11:00:00Z: fresh_within 10m"
            " (1.23 s, 1.85 s with margin)",
        ),
        ({"cost_ms": None, "start_at": None}, "fresh_within 10m"),
        (
            {"due": True},
            "now, to be done by 2026-01-31 12:00:30Z: fresh_within 10m"
            " (1.23 s, 1.85 s with margin)",
        ),
        (
            {"pending": False, "why": "w"},
            "nothing pending, next at 2026-01-31 12:00:30Z, for fresh_within 10m, rows 10000",
        ),
        (
            {"pending": False, "due_at": None, "why": "nothing is pending"},
            "nothing is pending",
        ),
    ],
)
def test_a_plan_says_when_it_is_due(fake, impctl, changed, line) -> None:
    fake.answer = Outcome((replace(PLAN, due=replace(EXAMPLES["due"], **changed)),))
    told = " ".join(impctl("plan", "w.yaml").stdout.split())
    assert f" due {line} estimated to maintain:" in told


def test_a_plan_that_knows_little(fake, impctl) -> None:
    pending = (PlannedChange("a", 3, 4, None, 1, 10), PlannedChange("b", 3, 9, None, None, None))
    fake.answer = Outcome(
        (replace(PLAN, pending=pending, maintain_ms=None, recapture_ms=None, recapture_runs=0),)
    )
    lines = impctl("plan", "w.yaml").stdout.splitlines()
    assert lines[2:6] == [
        "  a: 1 version, rows not counted in 1 file, 10 B",
        "  b: 6 versions, rows not counted, its log cannot be read that far back",
        "  estimated to maintain: unknown, the log does not tell the change's size",
        "  estimated to recapture: unknown, no recorded run yet",
    ]


def test_nothing_to_do(fake, impctl) -> None:
    fake.answer = Outcome((replace(PLAN, action="none", by=None, reason="no new version"),))
    assert impctl("plan", "w.yaml").stdout.startswith("q_top: nothing to do, sales@0..2\n")


COMING = NextChange(
    tables=("lineitem", "orders"), in_s=2460.0, in_s_low=1500.0, in_s_high=4200.0,
    rows=1010.4, rows_low=760.0, rows_high=1304.2, by="the same time of day", rows_by="the last",
)  # fmt: skip


@pytest.mark.parametrize(
    ("coming", "text"),
    [
        (
            COMING,
            "lineitem, orders: in 41 min (25 min to 1 h 10), 1,010 rows (760 to 1,300), "
            "by the same time of day",
        ),
        (NextChange(unknown="1 change is known"), "unknown: 1 change is known"),
        (replace(COMING, tables=("t",), in_s=0.0), "t: any moment (within 1 h 10), 1,010 rows"),
        (replace(COMING, tables=("t",), in_s=0.0, in_s_high=0.0), "t: overdue, 1,010 rows"),
        (
            NextChange(tables=("t",), in_s=7200.0, rows=200.0, by="the workload file"),
            "t: in 2 h, 200 rows, by the workload file",
        ),
        (NextChange(tables=("t",), in_s=0.0, by="x"), "t: any moment, rows not known, by x"),
        (replace(COMING, rows=None), "lineitem, orders: in 41 min (25 min to 1 h 10), rows not"),
        (replace(COMING, in_s_low=2461.0, in_s_high=2462.0, rows=1.0), "in 41 min (41 min), 1 row"),
    ],
)
def test_the_next_change(fake, impctl, coming, text) -> None:
    fake.answer = Outcome((replace(PLAN, next_change=coming),))
    shown = impctl("plan", "w.yaml").stdout
    assert shown.count("\n  next change  ") == 1
    assert text in " ".join(shown.split())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (3569.0, "59 min"), (3571.0, "1 h"),
        (3600.0 + 299, "1 h 05"), (172_000.0, "47 h 47"), (172_800.0, "2 days"),
        (1e9, "11,574 days"),
    ],
)  # fmt: skip
def test_spans_of_time(seconds, text) -> None:
    assert span_text(seconds) == text


def test_a_dry_capture(fake, impctl) -> None:
    fake.answer = Outcome((CAPTURE,))
    assert impctl("capture", "w.yaml", "--dry-run").stdout == (
        "q_top: would capture sales.price in 4 ranges at sales@0, mode exact by engine\n"
        "  would read sales@0: 7 rows in 1 file, 1.92 kB\n"
        "  sales.sid not safe: it cuts groups apart\n"
        "  rests on: sales.price is nonnegative\n"
        "  replaces a sketch that is not current\n"
    )


def test_a_dry_rebalance(fake, impctl) -> None:
    fake.answer = Outcome((replace(CAPTURE, reason="would even out `sales.price`"),))
    assert impctl("capture", "w.yaml", "--dry-run").stdout == (
        "q_top: sales.price 0 of 4 {}\n  would even out `sales.price`\n"
    )


def test_a_dry_apply(fake, impctl) -> None:
    fake.answer = Outcome(
        (
            ApplyResult(
                name="a",
                table="t",
                version=None,
                inserted=2,
                deleted=0,
                updated=0,
                statement="INSERT INTO t: 2 rows",
                foreseen_version=4,
            ),
            ApplyResult(
                name="b",
                table="t",
                version=None,
                inserted=0,
                deleted=0,
                updated=0,
                statement="DELETE FROM t WHERE x = 1",
                foreseen_version=5,
            ),
        )
    )
    assert impctl("apply", "w.yaml", "--all", "--dry-run").stdout == (
        "a: would make t version 4\n  INSERT INTO t: 2 rows\n"
        "b: would make t version 5, if a row matches\n  DELETE FROM t WHERE x = 1\n"
    )


def test_a_statement_is_whole_however_narrow_the_terminal(fake, impctl, monkeypatch) -> None:
    statement = f"DELETE FROM t WHERE note = 'two  spaces, {'many words ' * 9}\x1b[0m'"
    fake.answer = Outcome(
        (
            ApplyResult(
                name="b",
                table="t",
                version=None,
                inserted=0,
                deleted=0,
                updated=0,
                statement=statement,
                foreseen_version=5,
            ),
        )
    )
    monkeypatch.setenv("COLUMNS", "60")
    lines = impctl("apply", "w.yaml", "b", "--dry-run").stdout.splitlines()
    assert lines[1:] == ["  " + statement.replace("\x1b", "\\x1b")]


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
        (replace(EXAMPLES["maintain"], foreseen=True), 2),
        (replace(EXAMPLES["maintain"], foreseen=True, action="none"), 0),
    ],
)
def test_something_to_do_is_told_by_the_exit_code_when_asked(fake, impctl, result, code) -> None:
    fake.answer = Outcome((result,))
    assert impctl("plan", "w.yaml", "--detailed-exitcode").code == code
    assert impctl("maintain", "w.yaml", "--dry-run", "--detailed-exitcode").code == code
    assert impctl("plan", "w.yaml").code == 0
