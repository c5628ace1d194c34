"""`--due`, `--point` and `plan --due` on real tables: what is maintained, told, and left alone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.service.context import open_workbench
from impctl.service.schedule import due
from impctl.service.schedule.forecast import RowsToCome
from impctl.service.settings import Settings
from impctl.store.records import RunCost, RunKind
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.commit_times import set_time
from tests.support.made_once import CliOnce
from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS, WORKLOAD

# Half a day from now, so that no test has it pass unless it says so.
_HOUR = (datetime.now(UTC) + timedelta(hours=12)).hour
TRIGGERS = {
    "commit": "commit",
    "bound": "{fresh_within: 1h}",
    "short": "{fresh_within: 30s}",
    "five": "{rows: 5}",
    "daily": f'{{cron: "0 {_HOUR} * * *"}}',
    "nightly": "{point: nightly}",
    "noon": "{point: noon, ready_within: 1h}",
    "used": "use",
}


@pytest.fixture
def many(cli_once: CliOnce) -> Cli:
    """A query per trigger over the small table, captured."""

    def write(folder: Path) -> None:
        create_table(str(folder / "t"), ROWS)
        head, _, tail = WORKLOAD.replace("POLICY", "incremental").partition("store: .impctl")
        queries = "".join(
            f'  {name}: {{sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > {20 + at}", '
            f"sketch: {{t: g}}, policy: incremental, trigger: {said}}}\n"
            for at, (name, said) in enumerate(TRIGGERS.items())
        )
        (folder / "w.yaml").write_text(f"{head}{queries}store: .impctl{tail}")

    return cli_once("due", write, Cli.captured)


def table_of(cli: Cli) -> Path:
    return cli.workload.parent / "t"


def append(cli: Cli, rows: int) -> None:
    write_deltalake(table_of(cli), ROWS.slice(0, rows), mode="append")


def at(monkeypatch: pytest.MonkeyPatch, later: timedelta) -> None:
    """Have the clock of later commands say so much more than this one."""
    moment = datetime.now(UTC) + later
    monkeypatch.setenv("IMPCTL_NOW", moment.strftime("%Y-%m-%dT%H:%M:%S+00:00"))


def told(cli: Cli, *words: str) -> dict[str, dict[str, Any]]:
    return {result["query"]: result for result in cli.good(*words).results}


def done(results: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, result in results.items() if result["action"] != "none"}


@pytest.mark.slow
def test_only_what_is_due_is_maintained(many: Cli) -> None:
    append(many, 3)
    result = told(many, "maintain", "--due")
    # A bound of 30 s is shorter than the minute until the next run; `q` has no trigger.
    assert done(result) == {"q", "commit", "short"}
    left = {name: result[name]["reason_code"] for name in result.keys() - done(result)}
    assert set(left.values()) == {"not_due"}
    assert set(left) == {"bound", "five", "daily", "nightly", "noon", "used"}
    assert result["five"]["reason"] == "3 of 5 rows are pending"
    assert result["five"]["versions"] == {"t": 0}
    assert list(result) == ["q", *TRIGGERS], "in the order of the file"
    append(many, 2)
    assert done(told(many, "maintain", "--due")) == {"q", "commit", "short", "five"}
    again = told(many, "maintain", "--due")
    assert done(again) == set()
    assert again["q"]["reason_code"] == "up_to_date"
    assert again["daily"]["reason_code"] == "not_due"


@pytest.mark.slow
def test_the_clock_makes_due(many: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    append(many, 3)
    many.good("maintain", "--due")
    at(monkeypatch, timedelta(minutes=50))
    assert "bound" not in done(told(many, "maintain", "--due"))
    at(monkeypatch, timedelta(minutes=59))
    assert "bound" in done(told(many, "maintain", "--due")), "a minute ahead, and the next look"
    at(monkeypatch, timedelta(hours=25))
    result = told(many, "maintain", "--due")
    assert "daily" in done(result)
    assert {"nightly", "used"} & done(result) == set()
    assert done(told(many, "maintain")) == {"five", "nightly", "noon", "used"}, "everything stale"


def test_a_bound_begins_when_the_clock_turns(
    cli: Cli, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At midnight, and not whenever somebody looks."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    write_deltalake(str(tmp_path / "days"), pa.table({"day": [today.date()] * 3}))
    window = (
        '  window: {sql: "SELECT COUNT(*) n FROM days WHERE day >= current_date - INTERVAL 9 DAYS'
        ' GROUP BY day HAVING COUNT(*) > 2", trigger: {fresh_within: 1h}}\n'
    )
    cli.edit("  t: {path: t}\n", "  t: {path: t}\n  days: {path: days}\n")
    cli.edit("store: .impctl", f"{window}store: .impctl")
    at(monkeypatch, today + timedelta(hours=12) - datetime.now(UTC))
    cli.good("capture", "--query", "window")
    for minutes, is_due in ((-1, False), (5, False), (30, False), (59, True), (90, True)):
        at(monkeypatch, today + timedelta(days=1, minutes=minutes) - datetime.now(UTC))
        assert told(cli, "plan", "--due")["window"]["due"] is is_due


def test_how_long_until_the_next_look_decides(many: Cli) -> None:
    append(many, 1)
    assert done(told(many, "maintain", "--due", "--query", "bound")) == set()
    result = told(many, "maintain", "--due", "--interval", "2h", "--query", "bound")
    assert done(result) == {"bound"}
    assert list(result) == ["bound"]


def test_a_point_is_maintained_by_name(many: Cli) -> None:
    append(many, 1)
    result = told(many, "maintain", "--point", "nightly")
    assert list(result) == ["nightly"]
    assert done(result) == {"nightly"}
    ran = many("maintain", "--point", "nihgtly")
    assert ran.refusal == (2, "point_unknown")
    assert "`nightly`" in ran.error["hint"]
    ran = many("maintain", "--point", "x")
    assert all(f"`{name}`" in ran.error["hint"] for name in ("nightly", "noon"))


def test_nothing_due_takes_no_lock_and_writes_nothing(
    many: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(many, 1)
    many.good("maintain", "--due")
    before = (many.workload.parent / ".impctl" / "catalog.sqlite").stat().st_mtime_ns
    monkeypatch.setattr(Store, "lock", Mock(side_effect=AssertionError("no lock is needed here")))
    assert done(told(many, "maintain", "--due")) == set()
    many.good("plan", "--due")
    assert (many.workload.parent / ".impctl" / "catalog.sqlite").stat().st_mtime_ns == before


def test_a_dry_run_says_what_is_due(many: Cli) -> None:
    append(many, 1)
    ran = many("maintain", "--due", "--dry-run", "--detailed-exitcode")
    assert ran.code == 2
    assert {r["query"] for r in ran.results if r["foreseen"]} == {"q", "commit", "short"}
    ran = many("maintain", "--due", "--dry-run", "--detailed-exitcode", "--query", "daily")
    assert ran.code == 0


def test_the_plan_says_when_and_why(many: Cli) -> None:
    assert many("plan", "--due", "--detailed-exitcode").code == 0
    append(many, 3)
    committed = DeltaTable(table_of(many)).history(1)[0]["timestamp"] / 1000
    ran = many("plan", "--due", "--detailed-exitcode")
    assert (ran.code, ran.document["ok"]) == (2, True)
    match = {result["query"]: result for result in ran.results}

    def moment(name: str, field: str) -> float:
        return datetime.fromisoformat(match[name][field]).timestamp()

    assert [name for name, one in match.items() if one["due"]] == ["q", "commit", "short"]
    assert moment("bound", "due_by") == moment("bound", "due_at") == pytest.approx(committed + 3600)
    assert committed + 3300 < moment("bound", "start_at") < committed + 3540
    assert moment("q", "due_at") == pytest.approx(committed)
    assert match["q"]["due_by"] is None
    daily = datetime.fromisoformat(match["daily"]["due_at"])
    assert (daily.hour, daily.minute) == (_HOUR, 0)
    assert timedelta(0) < daily - datetime.now(UTC) <= timedelta(days=1)
    for name in ("five", "nightly", "used"):
        assert match[name]["start_at"] is match[name]["due_at"] is None
    assert match["nightly"]["why"] == "point: on `maintain --point nightly`"
    assert match["bound"]["rows"] == 3
    assert match["bound"]["trigger"] == "fresh_within 1h"
    assert any("[fresh_impossible]" in text for text in ran.document["warnings"])
    # The commit that `--due` goes by is the plan's.
    assert done(told(many, "maintain", "--due")) == {"q", "commit", "short"}


def test_a_plan_has_what_is_due_of_queries_with_a_trigger(many: Cli) -> None:
    append(many, 3)
    many.good("maintain", "--query", "bound")
    append(many, 3)
    alone = told(many, "plan", "--due")
    result = told(many, "plan")
    assert {name for name, one in result.items() if one["due"] is None} == {"q", "commit"}
    for name, one in result.items():
        assert one["due"] in (None, alone[name])
    assert result["bound"]["due"]["cost_ms"] is not None


def test_who_has_to_be_ready_starts_earlier_for_what_is_to_come(
    cli: Cli, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `changes` of the file, as long as the log knows no better; nothing else waits for that."""
    text = cli.workload.read_text()
    # A zone in which it is about noon, so that midnight is neither near nor past.
    ahead = 12 - datetime.now(UTC).hour
    zone = f"Etc/GMT{'-' if ahead > 0 else '+'}{abs(ahead)}"
    lines = [
        f'  {name}: {{sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > {at}", '
        f"sketch: {{t: g}}, trigger: {{every: 1d, timezone: {zone}{beside}}}}}\n"
        for name, at, beside in (("ready", 31, ", ready_within: 10ms"), ("plain", 32, ""))
    ]
    text = text.replace("store: .impctl", "".join(lines) + "store: .impctl")
    cli.workload.write_text(text)
    cli.good("capture")
    costs = [RunCost(RunKind.MAINTAIN, rows, rows * 10, rows + 100.0) for rows in (0, 1_000)]
    monkeypatch.setattr(Store, "costs", lambda *_: costs)
    write_deltalake(table, ROWS.slice(0, 1), mode="append")
    with open_workbench(Settings(cli.workload)) as desk:
        tables = {"ready": ["t"]}
        now = due.now_of(desk)
        rare = RowsToCome(desk, desk.reading_store(), tables, now).rows("ready", now, now + 3_600)
    at_first = told(cli, "plan", "--due")
    assert text.count("{path: t}") == 1
    said = "{path: t, changes: {every: 1m, rows: 50}}"
    cli.workload.write_text(text.replace("{path: t}", said))
    with open_workbench(Settings(cli.workload)) as desk:
        coming = RowsToCome(desk, desk.reading_store(), tables, now)
        assert coming.rows("ready", now, now + 3_600) == pytest.approx(3_000)
        assert coming.rows("ready", now + 60, now) == 0.0
        assert coming.rows("nobody", now, now + 60) is None
    assert rare is not None
    assert rare < 3_000
    result = told(cli, "plan", "--due")
    assert result["ready"]["start_at"] < at_first["ready"]["start_at"]
    assert result["plain"]["start_at"] == at_first["plain"]["start_at"]


@pytest.mark.slow
def test_status_says_how_old_what_is_pending_is(many: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(many, "status")["bound"]["fresh"] == {"bound_s": 3600, "age_s": 0, "late": False}
    append(many, 1)
    at(monkeypatch, timedelta(minutes=30))
    result = told(many, "status")
    fresh = result["bound"]["fresh"]
    assert 1795 < fresh.pop("age_s") < 1805
    assert fresh == {"bound_s": 3600, "late": False}
    assert result["short"]["fresh"]["late"]
    assert result["q"]["fresh"]["bound_s"] is None
    assert not result["q"]["fresh"]["late"]
    many.good("maintain")
    DeltaTable(table_of(many)).optimize.compact()
    # Rows that only moved make nothing old, but who runs at each commit runs.
    moved = told(many, "status")["bound"]
    assert (moved["stale"], moved["fresh"]["age_s"]) == (True, 0)
    assert done(told(many, "maintain", "--due")) == {"q", "commit"}


def test_what_the_logs_do_not_tell_is_due(many: Cli) -> None:
    for at_version in range(2):
        append(many, at_version + 1)
    DeltaTable(table_of(many)).create_checkpoint()
    (table_of(many) / "_delta_log" / f"{1:020}.json").unlink()
    match = {result["query"]: result for result in many("plan", "--due").results}
    assert match["bound"]["due"]
    assert match["daily"]["due"]
    assert "does not show it" in match["daily"]["why"]
    assert not match["nightly"]["due"]
    assert not match["used"]["due"]


def test_a_definition_that_changed_is_due(many: Cli) -> None:
    many.edit("> 24", "> 124")
    result = told(many, "plan", "--due")
    assert [name for name, one in result.items() if one["due"]] == ["daily"]
    ran = many("maintain", "--due")
    assert (ran.code, ran.error["query"]) == (7, "daily")


def test_a_query_that_was_never_captured_is_due(many: Cli) -> None:
    text = many.workload.read_text()
    new = '  new: {sql: "SELECT g, SUM(x) s FROM t GROUP BY g", trigger: {rows: 9}}\nstore:'
    many.workload.write_text(text.replace("store:", new))
    assert many("maintain", "--due").refusal == (7, "not_captured")


def test_policy_full_recaptures_only_what_is_due(many: Cli) -> None:
    ran = many("maintain", "--due", "--policy", "full")
    assert ran.code == 0
    assert done({result["query"]: result for result in ran.results}) == set()


def test_commits_are_read_once_and_forgotten_when_nobody_needs_them(
    many: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that follows looks again and again at what is pending."""
    append(many, 3)
    many.good("maintain", "--query", "five")
    append(many, 1)
    log = due.CommitLog()
    with open_workbench(Settings(many.workload)) as desk:
        specs = desk.queries(["bound", "five"])
        first = due.looked_at(desk, specs, 5.0, log)
        with monkeypatch.context() as patch:
            patch.setattr("impctl.tables.log.read_commits", lambda *_: pytest.fail("read again"))
            again = due.looked_at(desk, specs, 5.0, log)
        assert [one.pending for one in again] == [one.pending for one in first]
        assert [one.pending.rows for one in first] == [4, 1]
        assert abs(first[0].pending.changes[0].at - time.time()) < 60
        many.good("maintain", "--query", "bound")
        assert due.looked_at(desk, specs, 5.0, log)[0].pending.rows == 0
        assert len(log) == 1, "what `five` lacks"
        many.good("maintain")
        due.looked_at(desk, specs, 5.0, log)
        assert len(log) == 0


@pytest.mark.slow
def test_another_table_at_the_path_is_due(many: Cli) -> None:
    for entry in (table_of(many) / "_delta_log").iterdir():
        entry.unlink()
    write_deltalake(table_of(many), ROWS)
    match = {result["query"]: result["due"] for result in many("plan", "--due").results}
    assert {name for name, is_due in match.items() if not is_due} == {"nightly", "noon", "used"}


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(days=3_650)])
def test_a_bound_ends_for_a_commit_from_the_future(
    many: Cli, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    append(many, 3)
    set_time(table_of(many), 1, time.time() + ahead.total_seconds())
    for minutes in (1, 30):
        at(monkeypatch, timedelta(minutes=minutes))
        assert not told(many, "plan", "--due")["bound"]["due"]
    at(monkeypatch, timedelta(minutes=61))
    assert told(many, "plan", "--due")["bound"]["due"]


def test_a_clock_put_back_leaves_nothing_waiting(
    many: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(many, 3)
    at(monkeypatch, timedelta(days=-1))
    result = told(many, "plan", "--due")
    assert {name for name, one in result.items() if one["due"]} >= {"bound", "daily", "commit"}
    assert not result["used"]["due"]
    assert not result["nightly"]["due"]
