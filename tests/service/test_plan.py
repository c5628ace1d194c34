"""`plan` and dry runs on real tables, and the line through recorded runs that decides."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.service.context import Context
from impctl.service.cost_model import MaintenanceSize, dearer, estimated, learned, reason_text
from impctl.store.records import RunCost, RunKind
from impctl.store.store import Store
from tests.support.kept_workload import run_record
from tests.support.run_cli import ROWS, Capsys, Cli, MonkeyPatch, Words

DRY = [
    ("plan",),
    ("plan", "--policy", "full"),
    ("maintain", "--dry-run"),
    ("maintain", "--dry-run", "--policy", "full"),
    ("capture", "--dry-run"),
    ("capture", "--rebalance", "--dry-run"),
    ("apply", "--all", "--dry-run"),
]

UPDATES = """
updates:
  - {name: one, insert: {table: t, rows: [{g: 0, x: 5, note: z}, {g: 1, x: 5, note: z}]}}
  - {name: two, delete: {table: t, where: "g = 7"}}
  - {name: three, update: {table: t, set: {x: "x + 1"}, where: "g = 5"}}
"""


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file below, what is in it and when it was written."""
    result = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in result}


@pytest.fixture
def auto(cli: Cli) -> Cli:
    cli.workload.write_text(
        cli.workload.read_text().replace("policy: incremental", "policy: auto") + UPDATES
    )
    return cli


@pytest.fixture
def no_writer(monkeypatch: MonkeyPatch) -> None:
    """Neither lock nor Spark is to be had."""
    refuse = Mock(side_effect=AssertionError("neither a lock nor Spark is needed here"))
    monkeypatch.setattr(Store, "lock", refuse)
    monkeypatch.setattr(Context, "spark", refuse)


@pytest.mark.usefixtures("no_writer")
def test_without_a_store_none_is_made(auto: Cli) -> None:
    before = files(auto.folder)
    for words in DRY[:5] + DRY[6:]:
        auto(words[0], *words[1:])
        assert files(auto.folder) == before, words
    assert not (auto.folder / ".impctl").exists()


@pytest.mark.parametrize("is_stale", [False, True])
def test_nothing_is_written(auto: Cli, monkeypatch: MonkeyPatch, is_stale: bool) -> None:
    auto.good("capture")
    if is_stale:
        auto.append("t", ROWS)
        auto.table("t").delete("g = 5")
    before = files(auto.folder)
    monkeypatch.setattr(Context, "spark", None)
    monkeypatch.setattr(Store, "lock", None)
    for words in DRY:
        auto.good(words[0], *words[1:])
        assert files(auto.folder) == before, words


def test_a_plan_does_not_wait_for_a_writer(auto: Cli) -> None:
    auto.good("capture")
    # It would give up after ten seconds of waiting, with an error.
    with Store.open(auto.folder / ".impctl") as store, store.lock(0.0, "another"):
        assert auto.good("plan").results[0]["action"] == "none"


def codes(cli: Cli, *words: str) -> tuple[str, str]:
    result = cli.one(words[0], *words[1:])
    return result["action"], result["reason_code"]


@pytest.mark.slow
def test_from_capture_to_current(auto: Cli) -> None:
    first = auto.one("plan")
    assert (first["action"], first["by"], first["reason_code"]) == (
        "capture", "engine", "not_captured",
    )  # fmt: skip
    auto.good("capture")
    assert codes(auto, "plan") == ("none", "up_to_date")
    auto.append("t", ROWS)
    auto.table("t").delete("g = 5")
    planned = auto.one("plan")
    assert (planned["action"], planned["by"]) == ("exact", "engine")
    assert (planned["since"], planned["versions"]) == ({"t": 0}, {"t": 2})
    (pending,) = planned["pending"]
    assert (pending["since"], pending["until"], pending["rows"]) == (0, 2, 12)
    assert pending["bytes"] > 0
    assert (planned["maintain_ms"] > 0, planned["maintain_runs"]) == (True, 0)
    assert planned["recapture_ms"] > 0
    foreseen = codes(auto, "maintain", "--dry-run")
    assert codes(auto, "maintain") == foreseen == ("exact", "incremental")
    assert codes(auto, "plan") == ("none", "up_to_date")


def test_a_change_grouped_by_spark_is_told_without_reading_it(auto: Cli) -> None:
    auto.good("capture")
    auto.append("t", ROWS)
    planned = auto.one("plan", "--large-change", "0")
    assert (planned["action"], planned["by"]) == ("exact", "Spark")
    assert (planned["reason_code"], planned["pending"][0]["rows"]) == ("grouped_by_spark", 10)


@pytest.mark.slow
def test_what_only_reading_shows_is_foreseen(auto: Cli) -> None:
    """A change whose file is gone: the plan says recapture, as the run would find out."""
    auto.good("capture")
    auto.append("t", ROWS)
    held = set(DeltaTable(auto.path("t"), version=0).file_uris())
    (added,) = set(auto.table("t").file_uris()) - held
    Path(added.removeprefix("file://")).unlink()
    action, code = codes(auto, "plan")
    assert action == "recapture"
    assert codes(auto, "maintain", "--dry-run") == (action, code)
    ran = auto("plan", "--policy", "incremental")
    assert (ran.code, ran.error["code"], ran.results) == (7, code, [])
    assert auto("plan", "--policy", "strict").code == 4


@pytest.mark.slow
def test_a_broken_assumption_is_foreseen(auto: Cli) -> None:
    auto.edit("HAVING COUNT(*) > 2", "HAVING SUM(x) > 20")
    auto.edit("sketch: {t: g}", "sketch: {t: x}")
    auto.good("capture")
    negative = pa.table({"g": [0], "x": [-5], "note": ["z"]})
    auto.append("t", negative)
    assert auto("plan", "--policy", "incremental").refusal == (7, "assumption_broken")
    # Nor can it be captured anew: every one of them says so.
    for words in (["plan"], ["maintain", "--dry-run"], ["maintain"]):
        assert auto(words[0], *words[1:]).refusal == (3, "sketch_unsafe"), words


@pytest.mark.slow
@pytest.mark.parametrize("words", [("plan",), ("maintain", "--dry-run"), ("capture", "--dry-run")])
def test_detailed_exit_codes(auto: Cli, words: Words) -> None:
    command, *options = words
    detailed = (*options, "--detailed-exitcode")
    if command != "maintain":
        assert auto(command, *detailed).code == 2
    auto.good("capture")
    assert auto(command, *detailed).code == 0
    auto.append("t", ROWS)
    assert auto(command, *options).code == 0
    ran = auto(command, *detailed)
    assert (ran.code, ran.document["ok"], ran.document["error"]) == (2, True, None)
    auto.edit("FROM t", "FROM nope")
    ran = auto(command, *detailed)
    assert (ran.code, ran.document["ok"], ran.error["code"]) == (3, False, "table_unknown")
    assert auto(command, *options, "--query", "nope", "--detailed-exitcode").error["code"] == (
        "query_unknown"
    )


def test_a_dry_capture_says_what_it_would_read(auto: Cli) -> None:
    result = auto.one("capture", "--dry-run")
    assert (result["foreseen"], result["by"], result["stored"]) == (True, "engine", "none")
    (read,) = result["reads"]
    assert (read["table"], read["version"], read["rows"], read["files"]) == ("t", 0, 10, 1)
    size = sum(Path(u.removeprefix("file://")).stat().st_size for u in auto.table("t").file_uris())
    assert read["bytes"] == size
    assert [c["attribute"] for c in result["considered"] if c["chosen"]] == ["g"]
    auto.good("capture")
    assert auto.good("capture", "--dry-run").results[0]["stored"] == "current"


def test_a_dry_apply_foresees_versions(auto: Cli) -> None:
    foreseen = auto.good("apply", "--all", "--dry-run").results
    done = auto.good("apply", "--all").results
    assert [r["version"] for r in foreseen] == [None] * 3
    assert [r["foreseen_version"] for r in foreseen] == [r["version"] for r in done] == [1, 2, 3]
    assert [r["inserted"] for r in foreseen] == [2, 0, 0]
    assert [r["statement"] for r in foreseen] == [r["statement"] for r in done]
    assert foreseen[2]["statement"] == "UPDATE t SET x = x + 1 WHERE g = 5"


def test_a_dry_apply_refuses_what_apply_refuses(auto: Cli) -> None:
    auto.edit("note: z}, ", "nope: z}, ")
    ran, dry = auto("apply", "one"), auto("apply", "one", "--dry-run")
    assert ran.code == dry.code == 2
    assert ran.error == dry.error


def remember(store: Path, *costs: RunCost) -> None:
    with Store.open(store) as held:
        for cost in costs:
            record = run_record("exact", changes=1, elapsed_ms=1.0, versions={"t": 0}, cost=cost)
            held.add_record("q", record)


def test_auto_recaptures_where_that_is_cheaper_and_learns(auto: Cli) -> None:
    auto.good("capture")
    slow = [
        # Long, since how long the capture took goes by how busy the machine is.
        RunCost(RunKind.MAINTAIN, rows, 100 * rows, 50_000.0, moved=("t",))
        for rows in (5, 10, 20)
    ]
    remember(auto.folder / ".impctl", *slow)
    auto.append("t", ROWS)
    assert codes(auto, "plan", "--policy", "incremental") == ("exact", "incremental")
    assert codes(auto, "plan", "--policy", "strict") == ("exact", "incremental")
    planned = auto.one("plan")
    assert (planned["action"], planned["reason_code"]) == ("recapture", "recapture_cheaper")
    assert planned["maintain_ms"] > 2 * planned["recapture_ms"] + 1000
    assert "50 s" in planned["reason"]
    assert codes(auto, "maintain", "--dry-run") == ("recapture", "recapture_cheaper")
    ran = auto.good("maintain")
    (result,) = ran.results
    assert (result["action"], result["reason_code"]) == ("recapture", "recapture_cheaper")
    assert "50 s" in result["reason"]
    assert auto.good("status").results[0]["last_reason"] == result["reason"]
    # Quick runs since: it maintains again.
    remember(
        auto.folder / ".impctl",
        *(RunCost(RunKind.MAINTAIN, 5, 500, 2.0, moved=("t",)) for _ in range(8)),
    )
    auto.append("t", ROWS)
    assert codes(auto, "maintain") == ("exact", "incremental")


def test_an_eager_query_is_never_recaptured_for_its_cost(auto: Cli) -> None:
    auto.edit("policy: auto", "policy: auto\n    maintain: eager")
    auto.good("capture")
    remember(
        auto.folder / ".impctl",
        *(RunCost(RunKind.MAINTAIN, n, 9, 5000.0, moved=("t",)) for n in (5, 10, 20)),
    )
    auto.append("t", ROWS)
    assert codes(auto, "plan") == codes(auto, "maintain") == ("exact", "incremental")


def test_runs_are_recorded(auto: Cli) -> None:
    auto.good("capture")
    auto.append("t", ROWS)
    auto.good("maintain")
    with Store.open(auto.folder / ".impctl", create=False) as store:
        maintained, captured = store.costs("q")
    assert (maintained.kind, maintained.rows, maintained.spark) == ("maintain", 10, False)
    assert (captured.kind, captured.rows, captured.spark) == ("recapture", 10, False)
    assert (maintained.moved, captured.moved) == (("t",), ())
    assert maintained.bytes > 0
    assert captured.bytes > 0
    assert 0 < maintained.elapsed_ms < 60_000
    assert 0 < captured.elapsed_ms < 60_000


def status(cli: Cli, *words: str) -> dict[str, Any]:
    return cli.one("status", *words)


@pytest.mark.slow
def test_pending_changes_sizes_and_runs(cli: Cli) -> None:
    cli.good("capture")
    assert status(cli)["pending"] == []
    cli.append("t", ROWS.slice(0, 2))
    cli.append("t", ROWS.slice(0, 3))
    (match,) = status(cli)["pending"]
    size = match.pop("bytes")
    assert match == {"table": "t", "since": 0, "versions": 2, "files": 2, "rows": 5}
    assert size > 0
    cli.good("maintain")
    result = status(cli)
    assert (result["pending"], result["stale"], result["verified"]) == ([], False, None)
    assert [entry["action"] for entry in result["runs"]] == ["exact", "capture"]
    assert result["runs"][0]["changes"] == 5
    assert result["runs"][0]["versions"] == {"t": 2}
    assert result["sketch_bytes"] == 1
    assert len(status(cli, "--runs", "1")["runs"]) == 1


def test_the_trigger_is_named_where_the_file_has_one(cli: Cli, capsys: Capsys) -> None:
    text = cli.workload.read_text()
    said = "fresh_within 10m, rows 10000"
    cases: list[tuple[str, str | None]] = [
        ("", None),
        ("defaults: {trigger: {rows: 10000, fresh_within: 10m}}\n", said),
        ("defaults: {trigger: commit}\n", "commit"),
    ]
    for head, expected in cases:
        cli.workload.write_text(head + text)
        result = status(cli)
        assert (result["trigger"], result["versions"]) == (expected, {})
    cli.workload.write_text(cases[1][0] + text)
    assert f"not captured (policy incremental, trigger {said});" in cli.text("status")
    # Nothing is maintained of a query that is to have no sketch.
    cli.workload.write_text(cases[1][0] + text.replace("sketch: {t: g}", "sketch: none"))
    assert status(cli)["trigger"] is None
    cli.workload.write_text(text)
    cli.good("capture")
    for head, expected in cases:
        cli.workload.write_text(head + text)
        result = status(cli)
        # A trigger is no part of what was captured.
        assert (result["trigger"], result["stale"]) == (expected, False)
        capsys.readouterr()
        assert run(build_app(), ["status", str(cli.workload)]) == 0
        out = capsys.readouterr().out.splitlines()
        lines = [line for line in out if line.startswith("  trigger")]
        assert lines == ([] if expected is None else [f"  trigger  {expected}"])


def test_a_table_made_anew_has_nothing_to_count(cli: Cli) -> None:
    cli.good("capture")
    log = Path(cli.path("t")) / "_delta_log"
    for entry in log.iterdir():
        entry.unlink()
    write_deltalake(cli.path("t"), ROWS)
    cli.append("t", ROWS)
    (result,) = status(cli)["pending"]
    assert (result["rows"], result["files"]) == (None, None)


def test_the_last_verification(cli: Cli) -> None:
    cli.good("capture")
    with Store.open(cli.folder / ".impctl") as store:
        record = run_record(
            "verify",
            reason_code="verified",
            reason="slack 2",
            started_at=5.0,
            added=2,
            versions={"t": 0},
        )
        store.add_record("q", record)
    expected = {"sound": True, "slack": 2, "at": "1970-01-01T00:00:05+00:00", "versions": {"t": 0}}
    assert status(cli)["verified"] == expected


def test_explain_tells_state_and_push_downs(cli: Cli) -> None:
    before = cli.one("explain")
    assert before["state_bytes"] is None
    assert {line["state_bytes"] for line in before["plan"]} == {None}
    cli.good("capture")
    result = cli.one("explain")
    kept = {line["operator"]: line["state_bytes"] for line in result["plan"]}
    assert kept["aggregate"] > 0
    assert kept["scan"] == 0
    assert sum(kept.values()) < result["state_bytes"] == status(cli)["state_bytes"]
    scan = result["plan"][-1]
    assert scan["pushed"][0] == "reads 2 of 3 columns"
    assert "g < 4" in scan["pushed"][1]
    assert all(line["why"] for line in result["plan"])


def test_state_of_another_definition_is_not_shown(cli: Cli) -> None:
    cli.good("capture")
    cli.edit("> 2", "> 1")
    assert cli.one("explain")["state_bytes"] is None


def sql_of(cli: Cli) -> str:
    """The lines of the workload file with the query."""
    text = cli.workload.read_text()
    return text[text.index("      SELECT") : text.index("    sketch:")]


def test_state_of_a_join_belongs_to_the_join(cli: Cli) -> None:
    joined = (
        "      SELECT a.g, COUNT(*) AS n FROM t a JOIN t b ON a.x = b.x\n"
        "      WHERE b.g > 0 GROUP BY a.g HAVING COUNT(*) > 2\n"
    )
    cli.edit(sql_of(cli), joined)
    cli.good("capture")
    result = cli.one("explain")
    kept = {line["operator"]: line["state_bytes"] for line in result["plan"]}
    assert kept["join"] > 0
    assert kept["aggregate"] > 0
    assert any("pushed down to the scan" in line["pushed"] for line in result["plan"])


def test_a_window_is_told_with_its_state_or_with_what_blocks_it(cli: Cli) -> None:
    windowed = (
        "      SELECT g FROM (SELECT g, x, SUM(x) OVER (PARTITION BY g) AS s,\n"
        "      MAX(x) OVER (PARTITION BY g) AS m FROM t) WHERE x < s OR x < m\n"
    )
    cli.edit(sql_of(cli), windowed)
    cli.good("capture")
    result = cli.one("explain")
    (line,) = (line for line in result["plan"] if line["operator"] == "window")
    assert line["state_bytes"] > 0
    assert "a value per window partition" in line["why"]
    assert result["joins"] == []
    placed = windowed.replace(
        "MAX(x) OVER (PARTITION BY g)", "LAG(x) OVER (PARTITION BY g ORDER BY x)"
    )
    cli.edit(sql_of(cli), placed)
    (line,) = (line for line in cli.one("explain")["plan"] if line["operator"] == "window")
    assert "sorts a window partition again" in line["why"]
    blocked = windowed.replace(
        "MAX(x) OVER (PARTITION BY g)", "NTILE(2) OVER (PARTITION BY g ORDER BY x)"
    )
    cli.edit(sql_of(cli), blocked)
    (line,) = (line for line in cli.one("explain")["plan"] if line["operator"] == "window")
    assert line["why"].startswith("the engine does not support NTILE")


@pytest.mark.spark
def test_a_verification_is_recorded(cli: Cli, spark: Any) -> None:
    cli.good("capture")
    ran = cli.good("verify")
    assert ran.document["warnings"] == []
    result = status(cli)
    assert (result["verified"]["sound"], result["verified"]["slack"]) == (True, 0)
    assert result["runs"][0]["action"] == "verify"


def maintained(*sizes: int, per_row: float = 1.0) -> list[RunCost]:
    return [RunCost(RunKind.MAINTAIN, rows, rows * 10, 5.0 + per_row * rows) for rows in sizes]


AGAIN = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0)


def decided(costs: list[RunCost], size: MaintenanceSize | None, *, has_spark: bool = False):
    return dearer(
        costs, RunKind.MAINTAIN, lambda: size, has_spark=has_spark, table_rows=lambda: 1_000_000
    )


def test_the_dearer_way_is_told_with_both_estimates() -> None:
    result = decided([*maintained(1000, 2000, 4000), AGAIN], MaintenanceSize(4000, 0))
    assert (result.maintain_ms, result.recapture_ms) == (pytest.approx(4005), pytest.approx(1000))
    expected = "estimate: 4 s to maintain, 1 s to recapture (from 3 and 1 recorded runs)"
    assert reason_text(result) == expected


@pytest.mark.parametrize(
    ("costs", "size"),
    [
        ([*maintained(1000, 2000), AGAIN], MaintenanceSize(4000, 0)),
        (maintained(1000, 2000, 4000), MaintenanceSize(4000, 0)),
        ([], MaintenanceSize(4000, 0)),
        ([*maintained(1000, 2000, 4000), AGAIN], MaintenanceSize(1500, 0)),
        ([*maintained(10, 20, 40), AGAIN], MaintenanceSize(4000, 0)),
        ([*maintained(1000, 2000, 4000), AGAIN], None),
        (
            [*maintained(100, 200, 400), RunCost(RunKind.RECAPTURE, 1, 0, 1.0)],
            MaintenanceSize(900, 0),
        ),
    ],
    ids=[
        "too few maintained", "no capture", "nothing", "no clear margin", "beyond what was seen",
        "size unknown", "less than a second to gain",
    ],
)  # fmt: skip
def test_else_nothing_is_decided(costs: list[RunCost], size: MaintenanceSize | None) -> None:
    assert decided(costs, size) is None


def test_quick_runs_are_not_even_looked_at() -> None:
    """What keeps the common case cheap: no size is computed, no line fitted."""
    costs = [*maintained(10, 20, 40), AGAIN]
    size = Mock(side_effect=AssertionError)
    assert dearer(costs, RunKind.MAINTAIN, size, has_spark=False, table_rows=lambda: 1) is None


def test_rows_follow_from_bytes_where_they_are_not_counted() -> None:
    result = decided([*maintained(1000, 2000, 4000), AGAIN], MaintenanceSize(None, 40_000))
    assert result.maintain_ms == pytest.approx(4005)


def test_starting_spark_counts_unless_it_runs() -> None:
    by_spark = RunCost(RunKind.RECAPTURE, 1_000_000, 0, 1000.0, spark=True, start_ms=6000.0)
    costs = [*maintained(1000, 2000, 4000), by_spark]
    assert decided(costs, MaintenanceSize(4000, 0)) is None
    assert decided(costs, MaintenanceSize(4000, 0), has_spark=True) is not None


def test_recapture_follows_the_size_of_the_table() -> None:
    costs = [RunCost(RunKind.RECAPTURE, 1_000_000 * n, 0, 100.0 + 1000.0 * n) for n in (1, 2)]
    result = estimated(costs, RunKind.MAINTAIN, None, has_spark=True, table_rows=lambda: 4_000_000)
    assert result.recapture_ms == pytest.approx(4100)
    assert (result.maintain_ms, result.maintain_runs, result.recapture_runs) == (None, 0, 2)


@pytest.mark.parametrize(
    ("captured", "size", "is_dearer"),
    [
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), MaintenanceSize(2_000, 2_100), True),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), MaintenanceSize(10, 2_100), True),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), MaintenanceSize(1_100, 1_050), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), MaintenanceSize(10, 900), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 900.0), MaintenanceSize(2_000, 2_100), False),
        (
            RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0, spark=True),
            MaintenanceSize(10, 2_100),
            False,
        ),
        (RunCost(RunKind.RECAPTURE, 1_000, 0, 3_500.0), MaintenanceSize(2_000, 2_100), False),
        (RunCost(RunKind.RECAPTURE, 1_000, 1_000, 3_500.0), None, False),
    ],
    ids=[
        "overwritten", "overwritten, few rows net", "not clearly", "smaller than the table",
        "too quick to matter", "captured by Spark", "size of the table unknown", "no size",
    ],
)  # fmt: skip
def test_a_first_change_larger_than_the_table_is_recaptured(
    captured: RunCost, size: MaintenanceSize | None, is_dearer: bool
) -> None:
    result = decided([captured], size)
    assert (result is not None) is is_dearer
    if result is not None:
        assert "a first guess" in reason_text(result)


def test_a_dear_change_of_one_table_never_makes_anothers_be_recaptured() -> None:
    """What was seen: a change of customers took 19 s, and 30 changed parts were captured anew."""
    dear = [RunCost(RunKind.MAINTAIN, 30, 300, 19_000.0, moved=("customer",)) for _ in range(4)]
    cheap = [RunCost(RunKind.MAINTAIN, 30, 300, 500.0, moved=("part",)) for _ in range(4)]
    size, rows = MaintenanceSize(30, 300), lambda: 1_000_000

    def instead(costs: list[RunCost], *moved: str) -> object:
        return dearer(
            costs, RunKind.MAINTAIN, lambda: size, has_spark=False, table_rows=rows, moved=moved
        )

    assert instead([*dear, AGAIN], "customer") is not None
    assert instead([*dear, *cheap, AGAIN], "customer") is not None
    for costs in ([*dear, AGAIN], [*dear, *cheap, AGAIN]):
        assert instead(costs, "part") is None
        assert instead(costs, "part", "customer") is None


def test_each_kind_of_change_is_estimated_by_its_own_runs() -> None:
    costs = [
        *(RunCost(RunKind.MAINTAIN, 30, 300, 900.0, moved=("o",)) for _ in range(3)),
        *(RunCost(RunKind.MAINTAIN, 30, 300, 10.0, moved=("l", "o")) for _ in range(2)),
    ]

    def told(*moved: str) -> tuple[float | None, int]:
        result = estimated(
            costs,
            RunKind.MAINTAIN,
            MaintenanceSize(30, 300),
            has_spark=False,
            table_rows=int,
            moved=moved,
        )
        return result.maintain_ms, result.maintain_runs

    assert told("o") == (pytest.approx(900.0), 3)
    assert told("o", "l") == (pytest.approx(10.0), 2)
    assert told("c")[1] == 5  # none of its own: all tell something


ANY = st.floats(allow_nan=True, allow_infinity=True)
ROW_COUNTS = st.integers(0, 50_000_000)
LINES = st.tuples(st.floats(0.05, 60_000), st.floats(0, 0.05))


@given(st.lists(st.tuples(ANY, ANY), max_size=20), ROW_COUNTS)
def test_an_estimate_is_never_negative_nor_absurd(points, rows: int) -> None:
    line = learned(points)
    if line is None:
        assert not any(0 <= x < 1e30 and 0 <= y < 1e30 for x, y in points)
        return
    for value in (line.fixed, line.per_row, line.at(rows)):
        assert math.isfinite(value)
        assert value >= 0


@pytest.mark.slow
@given(LINES, st.lists(ROW_COUNTS, min_size=2, max_size=16, unique=True), ROW_COUNTS)
def test_a_known_line_is_learned(line, sizes, rows: int) -> None:
    fixed, per_row = line
    result = learned([(x, fixed + per_row * x) for x in sizes])
    assert (result.runs, result.largest) == (len(sizes), max(sizes))
    # The rounding of a time of up to an hour, spread over as many rows as the runs lie apart.
    apart = max(sizes) - min(sizes)
    error = 1e-9 * (fixed + per_row * max(sizes)) * (1 + rows / apart)
    assert result.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-6, abs=error)


@pytest.mark.slow
@given(
    LINES,
    st.lists(st.integers(0, 500), min_size=6, max_size=16, unique=True),
    st.integers(0, 100),
    st.floats(3, 1000),
    st.booleans(),
)
def test_one_odd_run_is_forgiven(line, sizes, at: int, times: float, slower: bool) -> None:
    """Wherever it lies: a run that took many times as long or as short as the others say."""
    fixed, per_row = line
    points = [(x * 1000.0, fixed + per_row * x * 1000.0) for x in sizes]
    x, y = points[at % len(points)]
    points[at % len(points)] = (x, y * times if slower else y / times)
    result = learned(points)
    for rows in (0, 1000, 500_000):
        assert result.at(rows) == pytest.approx(fixed + per_row * rows, rel=1e-5, abs=1e-5)


def test_runs_of_one_size_give_their_mean() -> None:
    result = learned([(1000, 2.0), (1000, 4.0)])
    assert (result.fixed, result.per_row) == (pytest.approx(3.0), 0.0)


def test_falling_times_are_a_level_line() -> None:
    """More rows that took less time: noise, not a gain per row."""
    result = learned([(0, 10.0), (1000, 9.0), (2000, 8.0)])
    assert result.per_row == 0.0
    assert 8 < result.fixed < 10


def test_nothing_is_learned_from_nothing() -> None:
    assert learned([]) is None
    assert learned([(float("nan"), 1.0), (1.0, -1.0)]) is None


@pytest.mark.parametrize(("spark_first", "ms"), [(True, 9_000.0), (False, 1_000.0)])
def test_a_recapture_is_estimated_by_those_like_the_latest(spark_first: bool, ms: float) -> None:
    """The engine's and Spark's lie on no common line."""
    both = [AGAIN, replace(AGAIN, elapsed_ms=9_000.0, spark=True)]
    costs = both[::-1] if spark_first else both
    result = estimated(costs, RunKind.MAINTAIN, None, has_spark=True, table_rows=lambda: 1_000_000)
    assert result.recapture_ms == pytest.approx(ms)
