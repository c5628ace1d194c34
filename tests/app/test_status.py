"""`impctl status` and `impctl explain` on real tables: what is pending, kept, pushed down, done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.store.store import Store
from tests.support.run_cli import Cli
from tests.support.run_records import run_record
from tests.support.small_workload import ROWS


def status(cli: Cli, *words: str) -> dict[str, Any]:
    (result,) = cli.good("status", *words).results
    return result


@pytest.mark.slow
def test_pending_changes_sizes_and_runs(cli: Cli, table: str) -> None:
    cli.good("capture")
    assert status(cli)["pending"] == []
    write_deltalake(table, ROWS.slice(0, 2), mode="append")
    write_deltalake(table, ROWS.slice(0, 3), mode="append")
    (found,) = status(cli)["pending"]
    size = found.pop("bytes")
    assert found == {"table": "t", "since": 0, "versions": 2, "files": 2, "rows": 5}
    assert size > 0
    cli.good("maintain")
    result = status(cli)
    assert (result["pending"], result["stale"], result["verified"]) == ([], False, None)
    assert [entry["action"] for entry in result["runs"]] == ["exact", "capture"]
    assert result["runs"][0]["changes"] == 5
    assert result["runs"][0]["versions"] == {"t": 2}
    assert result["sketch_bytes"] == 1
    assert len(status(cli, "--runs", "1")["runs"]) == 1


def test_the_trigger_is_named_where_the_file_has_one(
    cli: Cli, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = cli.workload.read_text()
    said = "fresh_within 10m, rows 10000"
    cases: list[tuple[str, str | None]] = [
        ("", None),
        ("defaults: {trigger: {rows: 10000, fresh_within: 10m}}\n", said),
        ("defaults: {trigger: commit}\n", "commit"),
    ]
    for head, expected in cases:
        cli.workload.write_text(head + text)
        found = status(cli)
        assert (found["trigger"], found["versions"]) == (expected, {})
    cli.workload.write_text(cases[1][0] + text)
    capsys.readouterr()
    assert run(build_app(), ["status", str(cli.workload)]) == 0
    assert f"not captured (policy incremental, trigger {said});" in capsys.readouterr().out
    # Nothing is maintained of a query that is to have no sketch.
    cli.workload.write_text(cases[1][0] + text.replace("sketch: {t: g}", "sketch: none"))
    assert status(cli)["trigger"] is None
    cli.workload.write_text(text)
    cli.good("capture")
    for head, expected in cases:
        cli.workload.write_text(head + text)
        found = status(cli)
        # A trigger is no part of what was captured.
        assert (found["trigger"], found["stale"]) == (expected, False)
        capsys.readouterr()
        assert run(build_app(), ["status", str(cli.workload)]) == 0
        out = capsys.readouterr().out.splitlines()
        lines = [line for line in out if line.startswith("  trigger")]
        assert lines == ([] if expected is None else [f"  trigger  {expected}"])


def test_a_table_made_anew_has_nothing_to_count(cli: Cli, table: str) -> None:
    cli.good("capture")
    log = Path(table) / "_delta_log"
    for entry in log.iterdir():
        entry.unlink()
    write_deltalake(table, ROWS)
    write_deltalake(table, ROWS, mode="append")
    (found,) = status(cli)["pending"]
    assert (found["rows"], found["files"]) == (None, None)


def test_the_last_verification(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture")
    with Store.open(tmp_path / ".impctl") as store:
        record = run_record(
            "verify",
            reason_code="verified",
            reason="slack 2",
            started_at=5.0,
            added=2,
            versions={"t": 0},
        )
        store.add_record("q", record)
    assert status(cli)["verified"] == {
        "sound": True,
        "slack": 2,
        "at": "1970-01-01T00:00:05+00:00",
        "versions": {"t": 0},
    }


def test_explain_tells_state_and_push_downs(cli: Cli) -> None:
    (before,) = cli.good("explain").results
    assert before["state_bytes"] is None
    assert {line["state_bytes"] for line in before["plan"]} == {None}
    cli.good("capture")
    (result,) = cli.good("explain").results
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
    cli.workload.write_text(cli.workload.read_text().replace("> 2", "> 1"))
    (result,) = cli.good("explain").results
    assert result["state_bytes"] is None


def test_state_of_a_join_belongs_to_the_join(cli: Cli) -> None:
    text = cli.workload.read_text()
    old = text[text.index("      SELECT") : text.index("    sketch:")]
    joined = (
        "      SELECT a.g, COUNT(*) AS n FROM t a JOIN t b ON a.x = b.x\n"
        "      WHERE b.g > 0 GROUP BY a.g HAVING COUNT(*) > 2\n"
    )
    cli.workload.write_text(text.replace(old, joined))
    cli.good("capture")
    (result,) = cli.good("explain").results
    kept = {line["operator"]: line["state_bytes"] for line in result["plan"]}
    assert kept["join"] > 0
    assert kept["aggregate"] > 0
    assert any("pushed down to the scan" in line["pushed"] for line in result["plan"])


def test_a_window_is_told_with_its_state_or_with_what_blocks_it(cli: Cli) -> None:
    text = cli.workload.read_text()
    old = text[text.index("      SELECT") : text.index("    sketch:")]
    windowed = (
        "      SELECT g FROM (SELECT g, x, SUM(x) OVER (PARTITION BY g) AS s,\n"
        "      MAX(x) OVER (PARTITION BY g) AS m FROM t) WHERE x < s OR x < m\n"
    )
    cli.workload.write_text(text.replace(old, windowed))
    cli.good("capture")
    (result,) = cli.good("explain").results
    (line,) = (line for line in result["plan"] if line["operator"] == "window")
    assert line["state_bytes"] > 0
    assert "a value per window partition" in line["why"]
    assert result["joins"] == []
    placed = windowed.replace(
        "MAX(x) OVER (PARTITION BY g)", "LAG(x) OVER (PARTITION BY g ORDER BY x)"
    )
    cli.workload.write_text(text.replace(old, placed))
    (result,) = cli.good("explain").results
    (line,) = (line for line in result["plan"] if line["operator"] == "window")
    assert "sorts those of a window partition anew" in line["why"]
    blocked = windowed.replace(
        "MAX(x) OVER (PARTITION BY g)", "NTILE(2) OVER (PARTITION BY g ORDER BY x)"
    )
    cli.workload.write_text(text.replace(old, blocked))
    (result,) = cli.good("explain").results
    (line,) = (line for line in result["plan"] if line["operator"] == "window")
    assert line["why"].startswith("NTILE is left to Spark")


@pytest.mark.spark
def test_a_verification_is_recorded(cli: Cli, spark: Any) -> None:
    cli.good("capture")
    ran = cli.good("verify")
    assert ran.document["warnings"] == []
    result = status(cli)
    assert (result["verified"]["sound"], result["verified"]["slack"]) == (True, 0)
    assert result["runs"][0]["action"] == "verify"
