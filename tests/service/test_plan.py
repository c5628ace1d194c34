"""`plan` and dry runs on real tables, and estimates fitted to recorded runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.costs import line_through
from impctl.service.context import Context
from impctl.service.cost_model import (
    estimated,
    if_recapture_is_cheaper,
    reason_text,
)
from impctl.store.records import RunCost, RunKind
from impctl.store.store import Store
from impctl.tables.log import ChangeSize
from tests.support.kept_workload import run_record
from tests.support.run_cli import ROWS, Capsys, Cli, MonkeyPatch

DRY_COMMANDS = [
    *(("plan",), ("plan", "--policy", "full")),
    *(("maintain", "--dry-run"), ("maintain", "--dry-run", "--policy", "full")),
    *(("capture", "--dry-run"), ("capture", "--rebalance", "--dry-run")),
    ("apply", "--all", "--dry-run"),
]

UPDATES = """
updates:
  - {name: one, insert: {table: t, rows: [{g: 0, x: 5, note: z}, {g: 1, x: 5, note: z}]}}
  - {name: two, delete: {table: t, where: "g = 7"}}
  - {name: three, update: {table: t, set: {x: "x + 1"}, where: "g = 5"}}
"""


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    result = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in result}


@pytest.fixture
def auto(cli: Cli) -> Cli:
    cli.edit("policy: incremental", "policy: auto")
    cli.workload.write_text(cli.workload.read_text() + UPDATES)
    return cli


@pytest.fixture
def no_writer(monkeypatch: MonkeyPatch) -> None:
    refuse = Mock(side_effect=AssertionError("neither a lock nor Spark is needed here"))
    monkeypatch.setattr(Store, "lock", refuse)
    monkeypatch.setattr(Context, "spark", refuse)


@pytest.mark.usefixtures("no_writer")
def test_dry_runs_create_no_store(auto: Cli) -> None:
    before = files(auto.folder)
    for words in DRY_COMMANDS[:5] + DRY_COMMANDS[6:]:
        auto(*words)
        assert files(auto.folder) == before, words
    assert not (auto.folder / ".impctl").exists()


@pytest.mark.parametrize("is_stale", [False, True])
def test_dry_runs_write_nothing(auto: Cli, monkeypatch: MonkeyPatch, is_stale: bool) -> None:
    auto.good("capture")
    if is_stale:
        grow_table(auto)
        (planned,), (reported,) = auto.one("plan")["pending"], auto.one("status")["pending"]
        assert (planned["since"], planned["until"], planned["rows"]) == (0, 2, 12)
        assert (reported["since"], reported["versions"], reported["rows"]) == (0, 2, 12)
    before = files(auto.folder)
    monkeypatch.setattr(Context, "spark", None)
    monkeypatch.setattr(Store, "lock", None)
    for words in DRY_COMMANDS:
        auto.good(*words)
        assert files(auto.folder) == before, words


def grow_table(auto: Cli) -> None:
    auto.append("t", ROWS)
    auto.table("t").delete("g = 5")


def test_plan_does_not_wait_for_a_writer(auto: Cli) -> None:
    auto.good("capture")
    # Waiting would fail with an error after ten seconds.
    with Store.open(auto.folder / ".impctl") as store, store.lock(0.0, "another"):
        assert auto.good("plan").results[0]["action"] == "none"


def codes(cli: Cli, *words: str) -> tuple[str, str]:
    result = cli.one(*words)
    return result["action"], result["reason_code"]


def test_plan_reports_spark_grouping_without_reading(auto: Cli) -> None:
    auto.good("capture")
    auto.append("t", ROWS)
    planned = auto.one("plan", "--large-change", "0")
    assert (planned["action"], planned["by"]) == ("exact", "Spark")
    assert (planned["reason_code"], planned["pending"][0]["rows"]) == ("grouped_by_spark", 10)


@pytest.mark.slow
def test_plan_finds_a_missing_changed_file(auto: Cli) -> None:
    """A changed file is missing: the plan predicts the recapture, as the run would do."""
    auto.good("capture")
    before = set(auto.table("t").file_uris())
    auto.append("t", ROWS)
    (added,) = set(auto.table("t").file_uris()) - before
    Path(added.removeprefix("file://")).unlink()
    action, code = codes(auto, "plan")
    assert action == "recapture"
    assert codes(auto, "maintain", "--dry-run") == (action, code)
    ran = auto("plan", "--policy", "incremental")
    assert (ran.code, ran.error["code"], ran.results) == (7, code, [])
    assert auto("plan", "--policy", "strict").code == 4


@pytest.mark.slow
def test_plan_finds_a_broken_assumption(auto: Cli) -> None:
    auto.edit("HAVING COUNT(*) > 2", "HAVING SUM(x) > 20")
    auto.edit("sketch: {t: g}", "sketch: {t: x}")
    auto.good("capture")
    auto.append("t", pa.table({"g": [0], "x": [-5], "note": ["z"]}))
    assert auto("plan", "--policy", "incremental").refusal == (7, "assumption_broken")
    # A recapture is impossible too, and every command reports it.
    for words in (("plan",), ("maintain", "--dry-run"), ("maintain",)):
        assert auto(*words).refusal == (3, "sketch_unsafe"), words


@pytest.mark.slow
def test_error_overrides_the_detailed_exit_code(auto: Cli) -> None:
    auto.good("capture")
    auto.append("t", ROWS)
    auto.edit("FROM t", "FROM nope")
    for words in (("plan",), ("maintain", "--dry-run"), ("capture", "--dry-run")):
        detailed = (*words, "--detailed-exitcode")
        assert auto(*detailed).refusal == (3, "table_unknown")
        assert auto(*detailed, "--query", "nope").error["code"] == "query_unknown"


def test_dry_capture_reports_its_reads(auto: Cli) -> None:
    result = auto.one("capture", "--dry-run")
    assert (result["dry_run"], result["by"], result["stored"]) == (True, "engine", "none")
    (read,) = result["reads"]
    assert (read["table"], read["version"], read["rows"], read["files"]) == ("t", 0, 10, 1)
    paths = [Path(uri.removeprefix("file://")) for uri in auto.table("t").file_uris()]
    assert read["bytes"] == sum(path.stat().st_size for path in paths)
    assert [c["attribute"] for c in result["considered"] if c["chosen"]] == ["g"]
    auto.good("capture")
    assert auto.good("capture", "--dry-run").results[0]["stored"] == "current"


def test_dry_apply_predicts_versions(auto: Cli) -> None:
    predicted = auto.good("apply", "--all", "--dry-run").results
    done = auto.good("apply", "--all").results
    assert [r["version"] for r in predicted] == [None] * 3
    assert [r["planned_version"] for r in predicted] == [r["version"] for r in done] == [1, 2, 3]
    assert [r["inserted"] for r in predicted] == [2, 0, 0]
    assert [r["statement"] for r in predicted] == [r["statement"] for r in done]
    assert predicted[2]["statement"] == "UPDATE t SET x = x + 1 WHERE g = 5"


def test_dry_apply_fails_like_apply(auto: Cli) -> None:
    auto.edit("note: z}, ", "nope: z}, ")
    ran, dry = auto("apply", "one"), auto("apply", "one", "--dry-run")
    assert ran.code == dry.code == 2
    assert ran.error == dry.error


def record_costs(cli: Cli, *costs: RunCost) -> None:
    with Store.open(cli.folder / ".impctl") as store:
        for cost in costs:
            record = run_record("exact", changes=1, elapsed_ms=1.0, versions={"t": 0}, cost=cost)
            store.add_record("q", record)


def test_auto_recaptures_when_that_is_cheaper(auto: Cli) -> None:
    auto.good("capture")
    # Very slow, because the capture's time depends on the load of the machine.
    slow = [RunCost(RunKind.MAINTAIN, n, 100 * n, 50_000.0, moved=("t",)) for n in (5, 10, 20)]
    record_costs(auto, *slow)
    auto.append("t", ROWS)
    for policy in ("incremental", "strict"):
        assert codes(auto, "plan", "--policy", policy) == ("exact", "incremental")
    planned, cheaper = auto.one("plan"), ("recapture", "recapture_cheaper")
    assert (planned["action"], planned["reason_code"]) == cheaper
    assert planned["maintain_ms"] > 2 * planned["recapture_ms"] + 1000
    assert "50 s" in planned["reason"]
    assert codes(auto, "maintain", "--dry-run") == cheaper
    result = auto.one("maintain")
    assert (result["action"], result["reason_code"]) == cheaper
    assert "50 s" in result["reason"]
    assert auto.one("status")["last_reason"] == result["reason"]
    # After several fast runs it maintains again.
    record_costs(auto, *[RunCost(RunKind.MAINTAIN, 5, 500, 2.0, moved=("t",))] * 8)
    auto.append("t", ROWS)
    assert codes(auto, "maintain") == ("exact", "incremental")


def test_eager_query_is_not_recaptured_for_cost(auto: Cli) -> None:
    auto.edit("policy: auto", "policy: auto\n    maintain: eager")
    auto.good("capture")
    costly = [RunCost(RunKind.MAINTAIN, n, 9, 5000.0, moved=("t",)) for n in (5, 10, 20)]
    record_costs(auto, *costly)
    auto.append("t", ROWS)
    assert codes(auto, "plan") == codes(auto, "maintain") == ("exact", "incremental")


def test_runs_are_recorded(auto: Cli) -> None:
    auto.good("capture")
    auto.append("t", ROWS)
    auto.good("maintain")
    with Store.open(auto.folder / ".impctl", create=False) as store:
        runs = store.costs("q")
    recorded = [(one.kind, one.rows, one.spark, one.moved) for one in runs]
    assert recorded == [("maintain", 10, False, ("t",)), ("recapture", 10, False, ())]
    for one in runs:
        assert one.bytes > 0
        assert 0 < one.elapsed_ms < 60_000


def status(cli: Cli, *words: str) -> dict[str, Any]:
    return cli.one("status", *words)


def set_text(cli: Cli, *parts: str) -> None:
    cli.workload.write_text("".join(parts))


def test_status_shows_the_trigger(cli: Cli, capsys: Capsys) -> None:
    text = cli.workload.read_text()
    bounds = "fresh_within 10m, rows 10000"
    cases: list[tuple[str, str | None]] = [
        ("", None),
        ("defaults: {trigger: {rows: 10000, fresh_within: 10m}}\n", bounds),
        ("defaults: {trigger: commit}\n", "commit"),
    ]
    for head, expected in cases:
        set_text(cli, head, text)
        result = status(cli)
        assert (result["trigger"], result["versions"]) == (expected, {})
    set_text(cli, cases[1][0], text)
    assert f"not captured (policy incremental, trigger {bounds});" in cli.text("status")
    # A query with `sketch: none` is not maintained.
    set_text(cli, cases[1][0], text.replace("sketch: {t: g}", "sketch: none"))
    assert status(cli)["trigger"] is None
    set_text(cli, text)
    cli.good("capture")
    for head, expected in cases:
        set_text(cli, head, text)
        result = status(cli)
        # The trigger is not part of the captured definition.
        assert (result["trigger"], result["stale"]) == (expected, False)
        capsys.readouterr()
        assert run(build_app(), ["status", str(cli.workload)]) == 0
        out = capsys.readouterr().out.splitlines()
        lines = [line for line in out if line.startswith("  trigger")]
        assert lines == ([] if expected is None else [f"  trigger  {expected}"])


def test_recreated_table_has_no_pending_counts(cli: Cli) -> None:
    cli.good("capture")
    for entry in (cli.folder / "t" / "_delta_log").iterdir():
        entry.unlink()
    write_deltalake(cli.path("t"), ROWS)
    cli.append("t", ROWS)
    (result,) = status(cli)["pending"]
    assert (result["rows"], result["files"]) == (None, None)


def test_status_shows_the_last_verification(cli: Cli) -> None:
    cli.good("capture")
    verified = {"reason_code": "verified", "reason": "slack 2", "started_at": 5.0, "added": 2}
    with Store.open(cli.folder / ".impctl") as store:
        store.add_record("q", run_record("verify", **verified, versions={"t": 0}))
    time = "1970-01-01T00:00:05+00:00"
    assert status(cli)["verified"] == {"sound": True, "slack": 2, "at": time, "versions": {"t": 0}}


def test_explain_shows_state_and_push_downs(cli: Cli) -> None:
    before = cli.one("explain")
    assert before["state_bytes"] is None
    assert {line["state_bytes"] for line in before["plan"]} == {None}
    cli.good("capture")
    result = cli.one("explain")
    state_bytes = {line["operator"]: line["state_bytes"] for line in result["plan"]}
    assert state_bytes["aggregate"] > 0
    assert state_bytes["scan"] == 0
    assert sum(state_bytes.values()) < result["state_bytes"] == status(cli)["state_bytes"]
    scan = result["plan"][-1]
    assert scan["pushed"][0] == "reads 2 of 3 columns"
    assert "g < 4" in scan["pushed"][1]
    assert all(line["why"] for line in result["plan"])


def test_state_of_another_definition_is_not_shown(cli: Cli) -> None:
    cli.good("capture")
    cli.edit("> 2", "> 1")
    assert cli.one("explain")["state_bytes"] is None


def explain_query(cli: Cli, sql: str) -> dict[str, Any]:
    """Replace the workload's query, capture it and return its `explain`."""
    text = cli.workload.read_text()
    old_sql = text[text.index("      SELECT") : text.index("    sketch:")]
    cli.edit(old_sql, sql)
    cli.good("capture")
    return cli.one("explain")


def test_explain_shows_state_of_a_join(cli: Cli) -> None:
    result = explain_query(
        cli,
        "      SELECT a.g, COUNT(*) AS n FROM t a JOIN t b ON a.x = b.x\n"
        "      WHERE b.g > 0 GROUP BY a.g HAVING COUNT(*) > 2\n",
    )
    state_bytes = {line["operator"]: line["state_bytes"] for line in result["plan"]}
    assert state_bytes["join"] > 0
    assert state_bytes["aggregate"] > 0
    assert any("pushed down to the scan" in line["pushed"] for line in result["plan"])


def test_explain_shows_window_state_or_what_blocks_it(cli: Cli) -> None:
    windowed = (
        "      SELECT g FROM (SELECT g, x, SUM(x) OVER (PARTITION BY g) AS s,\n"
        "      MAX(x) OVER (PARTITION BY g) AS m FROM t) WHERE x < s OR x < m\n"
    )
    result = explain_query(cli, windowed)
    (line,) = (line for line in result["plan"] if line["operator"] == "window")
    assert line["state_bytes"] > 0
    assert "a value per window partition" in line["why"]
    assert result["joins"] == []
    sort, old_call = "PARTITION BY g ORDER BY x", "MAX(x) OVER (PARTITION BY g)"
    for call, reason in (
        (f"LAG(x) OVER ({sort})", "sorts a window partition again"),
        (f"NTILE(2) OVER ({sort})", "the engine does not support NTILE"),
    ):
        cli.edit(old_call, call)
        (line,) = (line for line in cli.one("explain")["plan"] if line["operator"] == "window")
        assert reason in line["why"]
        old_call = call
    assert line["why"].startswith(reason)


@pytest.mark.spark
def test_a_verification_is_recorded(cli: Cli, spark: Any) -> None:
    cli.good("capture")
    ran = cli.good("verify")
    assert ran.document["warnings"] == []
    result = status(cli)
    assert (result["verified"]["sound"], result["verified"]["slack"]) == (True, 0)
    assert result["runs"][0]["action"] == "verify"


def maintain_costs(*sizes: int, per_row: float = 1.0) -> list[RunCost]:
    return [RunCost(RunKind.MAINTAIN, rows, rows * 10, 5.0 + per_row * rows) for rows in sizes]


CAPTURE = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0)


def decide(costs: list[RunCost], size: ChangeSize | None, **options: Any):
    options = {"has_spark": False, "table_rows": lambda: 1_000_000, **options}
    return if_recapture_is_cheaper(costs, RunKind.MAINTAIN, lambda: size, **options)


LARGE, THREE = ChangeSize(4000, 0), maintain_costs(1000, 2000, 4000)


def test_reason_has_both_estimates() -> None:
    result = decide([*THREE, CAPTURE], LARGE)
    expected = (pytest.approx(4005), pytest.approx(1000))
    assert (result.maintain_ms, result.recapture_ms) == expected
    text = "estimate: 4 s to maintain, 1 s to recapture (from 3 and 1 recorded runs)"
    assert reason_text(result) == text


UNDECIDED: dict[str, tuple[list[RunCost], ChangeSize | None]] = {
    "too few maintained": ([*maintain_costs(1000, 2000), CAPTURE], LARGE),
    "no capture": (THREE, LARGE),
    "nothing": ([], LARGE),
    "no clear margin": ([*THREE, CAPTURE], ChangeSize(1500, 0)),
    "beyond what was seen": ([*maintain_costs(10, 20, 40), CAPTURE], LARGE),
    "size unknown": ([*THREE, CAPTURE], None),
    "less than a second to gain": (
        [*maintain_costs(100, 200, 400), RunCost(RunKind.RECAPTURE, 1, 0, 1.0)],
        ChangeSize(900, 0),
    ),
}


@pytest.mark.parametrize(("costs", "size"), UNDECIDED.values(), ids=UNDECIDED)
def test_no_recapture_without_clear_evidence(costs: list[RunCost], size: ChangeSize | None) -> None:
    assert decide(costs, size) is None


def test_fast_runs_need_no_estimate() -> None:
    """No size is computed and no line fitted, so the common case stays cheap."""
    costs = [*maintain_costs(10, 20, 40), CAPTURE]
    size = Mock(side_effect=AssertionError)
    assert (
        if_recapture_is_cheaper(
            costs, RunKind.MAINTAIN, size, has_spark=False, table_rows=lambda: 1
        )
        is None
    )


def test_uncounted_rows_are_estimated_from_bytes() -> None:
    result = decide([*THREE, CAPTURE], ChangeSize(None, 40_000))
    assert result.maintain_ms == pytest.approx(4005)


def test_spark_start_counts_unless_it_runs() -> None:
    by_spark = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0, spark=True, start_ms=6000.0)
    costs = [*THREE, by_spark]
    assert decide(costs, LARGE) is None
    assert decide(costs, LARGE, has_spark=True) is not None


def test_recapture_estimate_scales_with_table_size() -> None:
    costs = [RunCost(RunKind.RECAPTURE, 1_000_000 * n, 0, 100.0 + 1000.0 * n) for n in (1, 2)]
    result = estimated(costs, RunKind.MAINTAIN, None, has_spark=True, table_rows=lambda: 4_000_000)
    assert result.recapture_ms == pytest.approx(4100)
    assert (result.maintain_ms, result.maintain_runs, result.recapture_runs) == (None, 0, 2)


FIRST_CAPTURE = RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0)
FIRST_CHANGES: dict[str, tuple[RunCost, ChangeSize | None, bool]] = {
    "overwritten": (FIRST_CAPTURE, ChangeSize(2_000, 2_100), True),
    "overwritten, few rows net": (FIRST_CAPTURE, ChangeSize(10, 2_100), True),
    "not clearly": (FIRST_CAPTURE, ChangeSize(1_100, 1_050), False),
    "smaller than the table": (FIRST_CAPTURE, ChangeSize(10, 900), False),
    "too quick to matter": (
        replace(FIRST_CAPTURE, elapsed_ms=900.0),
        ChangeSize(2_000, 2_100),
        False,
    ),
    "captured by Spark": (replace(FIRST_CAPTURE, spark=True), ChangeSize(10, 2_100), False),
    "size of the table unknown": (replace(FIRST_CAPTURE, bytes=0), ChangeSize(2_000, 2_100), False),
    "no size": (FIRST_CAPTURE, None, False),
}


@pytest.mark.parametrize(
    ("captured", "size", "is_recaptured"), FIRST_CHANGES.values(), ids=FIRST_CHANGES
)
def test_a_first_change_larger_than_the_table_is_recaptured(
    captured: RunCost, size: ChangeSize | None, is_recaptured: bool
) -> None:
    result = decide([captured], size)
    assert (result is not None) is is_recaptured
    if result is not None:
        assert "a first guess" in reason_text(result)


def test_costs_of_one_table_do_not_affect_another() -> None:
    """Regression: after 19 s for a change of `customer`, 30 changed parts caused a recapture."""
    costly = [RunCost(RunKind.MAINTAIN, 30, 300, 19_000.0, moved=("customer",)) for _ in range(4)]
    cheap = [RunCost(RunKind.MAINTAIN, 30, 300, 500.0, moved=("part",)) for _ in range(4)]
    size = ChangeSize(30, 300)
    for costs in ([*costly, CAPTURE], [*costly, *cheap, CAPTURE]):
        assert decide(costs, size, moved=("customer",)) is not None
        assert decide(costs, size, moved=("part",)) is None
        assert decide(costs, size, moved=("part", "customer")) is None


def test_kinds_of_change_have_separate_estimates() -> None:
    costs = [
        *(RunCost(RunKind.MAINTAIN, 30, 300, 900.0, moved=("o",)) for _ in range(3)),
        *(RunCost(RunKind.MAINTAIN, 30, 300, 10.0, moved=("l", "o")) for _ in range(2)),
    ]

    def estimate(*moved: str) -> tuple[float | None, int]:
        size, options = ChangeSize(30, 300), {"has_spark": False, "table_rows": int}
        result = estimated(costs, RunKind.MAINTAIN, size, **options, moved=moved)
        return result.maintain_ms, result.maintain_runs

    assert estimate("o") == (pytest.approx(900.0), 3)
    assert estimate("o", "l") == (pytest.approx(10.0), 2)
    assert estimate("c")[1] == 5  # it has no runs, so all are used


ANY = st.floats(allow_nan=True, allow_infinity=True)
ROW_COUNTS = st.integers(0, 50_000_000)
LINES = st.tuples(st.floats(0.05, 60_000), st.floats(0, 0.05))


@given(st.lists(st.tuples(ANY, ANY), max_size=20), ROW_COUNTS)
def test_estimate_is_finite_and_nonnegative(points, rows: int) -> None:
    line = line_through(points)
    if line is None:
        assert not any(0 <= x < 1e30 and 0 <= y < 1e30 for x, y in points)
        return
    for value in (line.fixed, line.per_row, line.at(rows)):
        assert math.isfinite(value)
        assert value >= 0


@pytest.mark.slow
@given(LINES, st.lists(ROW_COUNTS, min_size=2, max_size=16, unique=True), ROW_COUNTS)
def test_line_through_recovers_a_line(line, sizes, rows: int) -> None:
    fixed, per_row = line
    result = line_through([(x, fixed + per_row * x) for x in sizes])
    assert (result.runs, result.largest) == (len(sizes), max(sizes))
    # Rounding error of a time up to an hour, divided by the distance between runs in rows.
    distance = max(sizes) - min(sizes)
    error = 1e-9 * (fixed + per_row * max(sizes)) * (1 + rows / distance)
    assert result.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-6, abs=error)


@pytest.mark.slow
@given(
    LINES,
    st.lists(st.integers(0, 500), min_size=6, max_size=16, unique=True),
    st.integers(0, 100),
    st.floats(3, 1000),
    st.booleans(),
)
def test_one_outlier_does_not_matter(line, sizes, index: int, factor: float, slower: bool) -> None:
    """One run at any position took many times longer or shorter than the others predict."""
    fixed, per_row = line
    points = [(x * 1000.0, fixed + per_row * x * 1000.0) for x in sizes]
    x, y = points[index % len(points)]
    points[index % len(points)] = (x, y * factor if slower else y / factor)
    result = line_through(points)
    for rows in (0, 1000, 500_000):
        assert result.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-5, abs=1e-5)


def test_falling_times_give_a_level_line() -> None:
    """Falling times are noise, not a negative cost per row."""
    mean, falling = (
        line_through([(1000, 2.0), (1000, 4.0)]),
        line_through([(0, 10), (1000, 9), (2000, 8)]),
    )
    assert (mean.fixed, mean.per_row, falling.per_row) == (pytest.approx(3.0), 0.0, 0.0)
    assert 8 < falling.fixed < 10


def test_no_line_without_valid_points() -> None:
    assert line_through([]) is None
    assert line_through([(float("nan"), 1.0), (1.0, -1.0)]) is None


@pytest.mark.parametrize(("spark_first", "ms"), [(True, 9_000.0), (False, 1_000.0)])
def test_recapture_estimate_uses_runs_like_the_latest(spark_first: bool, ms: float) -> None:
    """Times of the engine and of Spark do not fit one line."""
    by_both = [CAPTURE, replace(CAPTURE, elapsed_ms=9_000.0, spark=True)]
    costs = by_both[::-1] if spark_first else by_both
    result = estimated(costs, RunKind.MAINTAIN, None, has_spark=True, table_rows=lambda: 1_000_000)
    assert result.recapture_ms == pytest.approx(ms)
