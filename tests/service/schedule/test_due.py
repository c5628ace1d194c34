"""When queries are due: trigger keys, moments, `--due`, `--point` and `plan --due`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from impctl.service.context import open_context
from impctl.service.schedule import due
from impctl.service.schedule.daemon import FinishedRun, Scheduler
from impctl.service.schedule.due import (
    FIRST_MARGIN,
    LEAST_MARGIN,
    UNKNOWN_S,
    Costs,
    Due,
    Margin,
    Pace,
    PendingChange,
    PendingChanges,
    Waiting,
    chosen_for_run,
    costs_of,
    dues,
    in_order,
    last_moment,
    next_moment,
    shortest_bounds,
)
from impctl.service.schedule.forecast import expectations
from impctl.service.settings import Settings
from impctl.store.records import RunCost, RunKind
from impctl.store.store import Store
from impctl.tables.source import DeltaSource
from impctl.workload.models import ON_COMMIT, SimpleTrigger, Trigger
from impctl.workload.scalars import read_cron
from tests.support.kept_workload import log_entry, set_time
from tests.support.random_cases import FEW, random_seeds
from tests.support.run_cli import ROWS, WORKLOAD, Cli, CliOnce, MonkeyPatch, write_files

# Half a day from now, so that it passes only in tests that move the clock.
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
    def write(folder: Path) -> None:
        head, _, tail = WORKLOAD.replace("POLICY", "incremental").partition("store: .impctl")
        queries = "".join(
            f'  {name}: {{sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > {20 + n}", '
            f"sketch: {{t: g}}, policy: incremental, trigger: {trigger}}}\n"
            for n, (name, trigger) in enumerate(TRIGGERS.items())
        )
        write_files(folder, f"{head}{queries}store: .impctl{tail}", t=ROWS)

    return cli_once("due", write, Cli.captured)


def append(cli: Cli, rows: int) -> None:
    cli.append("t", ROWS.slice(0, rows))


@pytest.fixture
def set_clock(monkeypatch: MonkeyPatch) -> Callable[[timedelta], None]:
    """A function that sets the clock of later commands ahead of now."""

    def set_clock(later: timedelta) -> None:
        moment = datetime.now(UTC) + later
        monkeypatch.setenv("IMPCTL_NOW", moment.strftime("%Y-%m-%dT%H:%M:%S+00:00"))

    return set_clock


SetClock = Callable[[timedelta], None]


def names_maintained(results: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, result in results.items() if result["action"] != "none"}


def maintained(cli: Cli, *words: str) -> set[str]:
    """The queries that `maintain --due` maintains."""
    return names_maintained(cli.by_query("maintain", "--due", *words))


def planned(cli: Cli) -> dict[str, dict[str, Any]]:
    return {result["query"]: result for result in cli("plan", "--due").results}


@pytest.mark.slow
def test_only_what_is_due_is_maintained(many: Cli) -> None:
    append(many, 3)
    result = many.by_query("maintain", "--due")
    # A bound of 30 s is shorter than the minute until the next run; `q` has no trigger.
    assert names_maintained(result) == {"q", "commit", "short"}
    reasons = {
        name: result[name]["reason_code"] for name in result.keys() - names_maintained(result)
    }
    assert reasons == dict.fromkeys(
        ("bound", "five", "daily", "nightly", "noon", "used"), "not_due"
    )
    assert result["five"]["reason"] == "3 of 5 rows are pending"
    assert result["five"]["versions"] == {"t": 0}
    assert list(result) == ["q", *TRIGGERS], "in the order of the file"
    append(many, 2)
    assert maintained(many) == {"q", "commit", "short", "five"}
    second = many.by_query("maintain", "--due")
    assert names_maintained(second) == set()
    codes = (second["q"]["reason_code"], second["daily"]["reason_code"])
    assert codes == ("up_to_date", "not_due")


@pytest.mark.slow
def test_time_makes_due(many: Cli, set_clock: SetClock) -> None:
    append(many, 3)
    many.good("maintain", "--due")
    set_clock(timedelta(minutes=50))
    assert "bound" not in maintained(many)
    set_clock(timedelta(minutes=59))
    assert "bound" in maintained(many), "a minute ahead, and the next look"
    set_clock(timedelta(hours=25))
    result = maintained(many)
    assert "daily" in result
    assert {"nightly", "used"} & result == set()
    everything = names_maintained(many.by_query("maintain"))
    assert everything == {"five", "nightly", "noon", "used"}, "everything stale"


def test_bound_starts_when_the_day_changes(cli: Cli, set_clock: SetClock) -> None:
    """It starts at midnight, not at the first look."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    write_deltalake(cli.path("days"), pa.table({"day": [today.date()] * 3}))
    window = (
        '  window: {sql: "SELECT COUNT(*) n FROM days WHERE day >= current_date - INTERVAL 9 DAYS'
        ' GROUP BY day HAVING COUNT(*) > 2", trigger: {fresh_within: 1h}}\n'
    )
    cli.edit("  t: {path: t}\n", "  t: {path: t}\n  days: {path: days}\n")
    cli.edit("store: .impctl", f"{window}store: .impctl")
    set_clock(today + timedelta(hours=12) - datetime.now(UTC))
    cli.good("capture", "--query", "window")
    for minutes, is_due in ((-1, False), (5, False), (30, False), (59, True), (90, True)):
        set_clock(today + timedelta(days=1, minutes=minutes) - datetime.now(UTC))
        assert cli.by_query("plan", "--due")["window"]["due"] is is_due


def test_interval_until_next_look_counts(many: Cli) -> None:
    append(many, 1)
    assert maintained(many, "--query", "bound") == set()
    result = many.by_query("maintain", "--due", "--interval", "2h", "--query", "bound")
    assert (names_maintained(result), list(result)) == ({"bound"}, ["bound"])


def test_point_selects_its_queries(many: Cli) -> None:
    append(many, 1)
    result = many.by_query("maintain", "--point", "nightly")
    assert (names_maintained(result), list(result)) == ({"nightly"}, ["nightly"])
    for point, suggested in (("nihgtly", ["nightly"]), ("x", ["nightly", "noon"])):
        ran = many("maintain", "--point", point)
        assert ran.refusal == (2, "point_unknown")
        assert all(f"`{name}`" in ran.error["hint"] for name in suggested)


def test_nothing_due_takes_no_lock_or_writes(many: Cli, monkeypatch: MonkeyPatch) -> None:
    append(many, 1)
    many.good("maintain", "--due")
    catalog = many.folder / ".impctl" / "catalog.sqlite"
    before = catalog.stat().st_mtime_ns
    monkeypatch.setattr(Store, "lock", Mock(side_effect=AssertionError("no lock is needed here")))
    assert maintained(many) == set()
    many.good("plan", "--due")
    assert catalog.stat().st_mtime_ns == before


def test_dry_run_reports_due_ones(many: Cli) -> None:
    append(many, 1)
    words = ("maintain", "--due", "--dry-run", "--detailed-exitcode")
    ran = many(*words)
    planned_names = {r["query"] for r in ran.results if r["dry_run"]}
    assert (ran.code, planned_names) == (2, {"q", "commit", "short"})
    assert many(*words, "--query", "daily").code == 0


def test_plan_reports_when_and_why(many: Cli) -> None:
    assert many("plan", "--due", "--detailed-exitcode").code == 0
    append(many, 3)
    committed = many.table("t").history(1)[0]["timestamp"] / 1000
    ran = many("plan", "--due", "--detailed-exitcode")
    assert (ran.code, ran.document["ok"]) == (2, True)
    by_query = {result["query"]: result for result in ran.results}

    def moment(name: str, field: str) -> float:
        return datetime.fromisoformat(by_query[name][field]).timestamp()

    assert [name for name, entry in by_query.items() if entry["due"]] == ["q", "commit", "short"]
    deadline = moment("bound", "due_by")
    assert deadline == moment("bound", "due_at") == pytest.approx(committed + 3600)
    assert committed + 3300 < moment("bound", "start_at") < committed + 3540
    assert moment("q", "due_at") == pytest.approx(committed)
    assert by_query["q"]["due_by"] is None
    daily = datetime.fromisoformat(by_query["daily"]["due_at"])
    assert (daily.hour, daily.minute) == (_HOUR, 0)
    assert timedelta(0) < daily - datetime.now(UTC) <= timedelta(days=1)
    for name in ("five", "nightly", "used"):
        assert by_query[name]["start_at"] is by_query[name]["due_at"] is None
    assert by_query["nightly"]["why"] == "point: on `maintain --point nightly`"
    assert (by_query["bound"]["rows"], by_query["bound"]["trigger"]) == (3, "fresh_within 1h")
    assert any("[fresh_impossible]" in text for text in ran.document["warnings"])
    # `--due` uses the same commit as the plan.
    assert maintained(many) == {"q", "commit", "short"}


def test_plain_plan_has_due_only_for_triggers(many: Cli) -> None:
    append(many, 3)
    many.good("maintain", "--query", "bound")
    append(many, 3)
    due_plan, result = many.by_query("plan", "--due"), many.by_query("plan")
    assert {name for name, entry in result.items() if entry["due"] is None} == {"q", "commit"}
    for name, entry in result.items():
        assert entry["due"] in (None, due_plan[name])
    assert result["bound"]["due"]["cost_ms"] is not None


def test_ready_within_counts_expected_changes(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    """They come from `changes` of the file while the log is short. Other triggers ignore them."""
    text = cli.workload.read_text()
    # A zone in which it is about noon, so that midnight is far away.
    ahead = 12 - datetime.now(UTC).hour
    zone = f"Etc/GMT{'-' if ahead > 0 else '+'}{abs(ahead)}"
    lines = [
        f'  {name}: {{sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > {limit}", '
        f"sketch: {{t: g}}, trigger: {{every: 1d, timezone: {zone}{bound}}}}}\n"
        for name, limit, bound in (("ready", 31, ", ready_within: 10ms"), ("plain", 32, ""))
    ]
    text = text.replace("store: .impctl", "".join(lines) + "store: .impctl")
    cli.workload.write_text(text)
    cli.good("capture")
    costs = [RunCost(RunKind.MAINTAIN, rows, rows * 10, rows + 100.0) for rows in (0, 1_000)]
    monkeypatch.setattr(Store, "costs", lambda *_: costs)
    cli.append("t", ROWS.slice(0, 1))
    with open_context(Settings(cli.workload)) as ctx:
        now = ctx.now()
        hour = (["t"], now, now + 3_600)
        rare = expectations(ctx, ctx.reading_store(), ["t"], now=now).rows(*hour)
    at_first = cli.by_query("plan", "--due")
    assert text.count("{path: t}") == 1
    settings = "{path: t, changes: {every: 1m, rows: 50}}"
    cli.workload.write_text(text.replace("{path: t}", settings))
    with open_context(Settings(cli.workload)) as ctx:
        expected = expectations(ctx, ctx.reading_store(), ["t"], now=now)
        assert expected.rows(*hour) == pytest.approx(3_000)
        assert expected.rows(["t"], now + 60, now) == 0.0
        assert expected.rows([], now, now + 60) is None
    assert rare < 3_000
    result = cli.by_query("plan", "--due")
    assert result["ready"]["start_at"] < at_first["ready"]["start_at"]
    assert result["plain"]["start_at"] == at_first["plain"]["start_at"]


@pytest.mark.slow
def test_status_reports_age_of_changes(many: Cli, set_clock: SetClock) -> None:
    fresh = {"bound_s": 3600, "age_s": 0, "late": False}
    assert many.by_query("status")["bound"]["fresh"] == fresh
    append(many, 1)
    set_clock(timedelta(minutes=30))
    result = {name: one["fresh"] for name, one in many.by_query("status").items()}
    assert 1795 < result["bound"].pop("age_s") < 1805
    assert result["bound"] == {"bound_s": 3600, "late": False}
    assert result["short"]["late"]
    assert (result["q"]["bound_s"], bool(result["q"]["late"])) == (None, False)
    many.good("maintain")
    many.table("t").optimize.compact()
    # A compaction makes nothing stale, but on-commit queries run.
    compacted = many.by_query("status")["bound"]
    assert (compacted["stale"], compacted["fresh"]["age_s"]) == (True, 0)
    assert maintained(many) == {"q", "commit"}


def test_missing_log_entries_are_due(many: Cli) -> None:
    for rows in (1, 2):
        append(many, rows)
    many.table("t").create_checkpoint()
    log_entry(many.path("t"), 1).unlink()
    plans = planned(many)
    is_due = {name: bool(plans[name]["due"]) for name in ("bound", "daily", "nightly", "used")}
    assert is_due == {"bound": True, "daily": True, "nightly": False, "used": False}
    assert "does not show it" in plans["daily"]["why"]


def test_changed_definition_is_due(many: Cli) -> None:
    many.edit("> 24", "> 124")
    assert [name for name, one in many.by_query("plan", "--due").items() if one["due"]] == ["daily"]
    ran = many("maintain", "--due")
    assert (ran.code, ran.error["query"]) == (7, "daily")


def test_uncaptured_query_is_due(many: Cli) -> None:
    new = '  new: {sql: "SELECT g, SUM(x) s FROM t GROUP BY g", trigger: {rows: 9}}\nstore:'
    many.edit("store:", new)
    assert many("maintain", "--due").refusal == (7, "not_captured")


def test_policy_full_recaptures_only_what_is_due(many: Cli) -> None:
    assert maintained(many, "--policy", "full") == set()


def test_commits_are_read_once_then_forgotten(many: Cli, monkeypatch: MonkeyPatch) -> None:
    """A following process checks pending changes repeatedly."""
    append(many, 3)
    many.good("maintain", "--query", "five")
    append(many, 1)
    log = due.CommitLog()
    with open_context(Settings(many.workload)) as ctx:
        specs = ctx.queries(["bound", "five"])
        first = due.waiting_queries(ctx, specs, 5.0, log)
        with monkeypatch.context() as patch:
            patch.setattr(DeltaSource, "entries", lambda *_: pytest.fail("read again"))
            second = due.waiting_queries(ctx, specs, 5.0, log)
        assert [waits.pending for waits in second] == [waits.pending for waits in first]
        assert [waits.pending.rows for waits in first] == [4, 1]
        assert abs(first[0].pending.changes[0].at - time.time()) < 60
        many.good("maintain", "--query", "bound")
        assert due.waiting_queries(ctx, specs, 5.0, log)[0].pending.rows == 0
        assert len(log) == 1, "the commit pending for `five`"
        many.good("maintain")
        due.waiting_queries(ctx, specs, 5.0, log)
        assert len(log) == 0


@pytest.mark.slow
def test_replaced_table_is_due(many: Cli) -> None:
    for entry in (many.folder / "t" / "_delta_log").iterdir():
        entry.unlink()
    write_deltalake(many.path("t"), ROWS)
    plans = planned(many)
    assert {name for name in plans if not plans[name]["due"]} == {"nightly", "noon", "used"}


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(days=3_650)])
def test_bound_ends_for_a_future_commit(many: Cli, set_clock: SetClock, ahead: timedelta) -> None:
    append(many, 1)
    many.good("maintain")  # The bound counts from this run; the capture may be older.
    append(many, 3)
    set_time(many.path("t"), 2, time.time() + ahead.total_seconds())
    for minutes, is_due in ((1, False), (30, False), (61, True)):
        set_clock(timedelta(minutes=minutes))
        assert bool(many.by_query("plan", "--due")["bound"]["due"]) is is_due


def test_clock_set_back_delays_nothing(many: Cli, set_clock: SetClock) -> None:
    append(many, 3)
    set_clock(timedelta(days=-1))
    due = {name for name, one in many.by_query("plan", "--due").items() if one["due"]}
    assert due >= {"bound", "daily", "commit"}
    assert due.isdisjoint({"used", "nightly"})


VIENNA = "Europe/Vienna"


def moments_after(trigger: Trigger, since: str, count: int) -> list[str]:
    """The next `count` moments, in UTC."""
    instant, result = datetime.fromisoformat(since).timestamp(), []
    for _ in range(count):
        moment = next_moment(trigger, instant)
        result.append(datetime.fromtimestamp(moment, UTC).strftime("%m-%d %H:%M"))
        instant = moment + 1e-3
    return result


def cron(text: str, zone: str | None = None) -> Trigger:
    return Trigger(cron=read_cron(text), timezone=zone)


def every(seconds: float, zone: str | None = None) -> Trigger:
    return Trigger(every=seconds, timezone=zone)


LORD_HOWE, SAMOA, MARCH = "Australia/Lord_Howe", "Pacific/Apia", "2026-03-28T12:00"
CASES: dict[str, list[tuple[Trigger, str, str]]] = {
    "times of a crontab": [
        (cron("0 6 * * 1-5"), "2026-11-27T06:00", "11-27 06:00, 11-30 06:00, 12-01 06:00"),
        (cron("0 6 * * 1-5"), "2026-11-27T06:00:01", "11-30 06:00"),
        (cron("*/20 9-10 * * *"), "2026-11-27T09:21", "11-27 09:40, 11-27 10:00, 11-27 10:20"),
        (cron("15 10 1,15 * *"), "2026-12-20T00:00", "01-01 10:15, 01-15 10:15"),
        (cron("0 0 13 * 5"), "2026-11-27T00:00:01", "12-04 00:00, 12-11 00:00, 12-13 00:00"),
        (cron("0 0 29 2 *"), "2026-11-27T00:00", "02-29 00:00"),
        (cron("59 23 31 12 *"), "2026-12-31T23:59", "12-31 23:59, 12-31 23:59"),
        (cron("@hourly"), "2026-12-31T23:30", "01-01 00:00, 01-01 01:00"),
    ],
    "a zone has its own hours": [
        (cron("0 6 * * *", VIENNA), "2026-07-01T00:00", "07-01 04:00"),
        (cron("0 6 * * *", VIENNA), "2026-12-01T00:00", "12-01 05:00"),
        (cron("0 6 * * *", "Asia/Kolkata"), "2026-12-01T01:00", "12-02 00:30"),
    ],
    "a skipped time is when the clock is set forward": [
        # In Vienna 2026-03-29 02:00 to 03:00 is skipped, at 01:00 UTC.
        (cron("30 2 * * *", VIENNA), MARCH, "03-29 01:00, 03-30 00:30, 03-31 00:30"),
        (cron("0,20,40 2 * * *", VIENNA), MARCH, "03-29 01:00, 03-30 00:00"),
        (
            cron("*/30 1-3 * * *", VIENNA),
            *(MARCH, "03-29 00:00, 03-29 00:30, 03-29 01:00, 03-29 01:30"),
        ),
        # Lord Howe moves by half an hour: no 02:00 to 02:30 on 2026-10-04, at 15:30 UTC before it.
        (cron("15 2 * * *", LORD_HOWE), "2026-10-03T00:00", "10-03 15:30"),
        # Samoa skipped the whole of 2011-12-30.
        (cron("0 12 30 12 *", SAMOA), "2011-12-01T00:00", "12-30 10:00"),
    ],
    "a repeated time counts once": [
        # In Vienna 2026-10-25 02:00 to 03:00 comes twice, from 00:00 and from 01:00 UTC.
        (cron("30 2 * * *", VIENNA), "2026-10-24T12:00", "10-25 00:30, 10-26 01:30"),
        (cron("30 2 * * *", VIENNA), "2026-10-25T00:45", "10-26 01:30"),
        (cron("0 * * * *", VIENNA), "2026-10-24T23:30", "10-25 00:00, 10-25 02:00"),
    ],
    "multiples count from midnight": [
        (every(900), "2026-11-27T11:46", "11-27 12:00, 11-27 12:15"),
        (every(900), "2026-11-27T12:00", "11-27 12:00"),
        (every(86_400), "2026-11-27T00:00:01", "11-28 00:00, 11-29 00:00"),
        # Intervals that do not divide a day restart at midnight.
        (
            every(7 * 3600),
            *("2026-11-27T10:00", "11-27 14:00, 11-27 21:00, 11-28 00:00, 11-28 07:00"),
        ),
        (every(6 * 3600, "Asia/Kolkata"), "2026-11-27T10:00", "11-27 12:30, 11-27 18:30"),
    ],
    "multiples keep their pace when the clock changes": [
        (every(3600, VIENNA), "2026-03-29T00:30", "03-29 01:00, 03-29 02:00, 03-29 03:00"),
        (every(3600, VIENNA), "2026-10-24T23:30", "10-25 00:00, 10-25 01:00, 10-25 02:00"),
        # The day has 23 hours, then 25.
        (every(12 * 3600, VIENNA), "2026-03-28T23:00", "03-28 23:00, 03-29 11:00, 03-29 22:00"),
        (
            every(12 * 3600, VIENNA),
            *("2026-10-24T22:00", "10-24 22:00, 10-25 10:00, 10-25 22:00, 10-25 23:00"),
        ),
        # In Santiago midnight of 2026-09-06 is skipped.
        (every(86_400, "America/Santiago"), "2026-09-05T12:00", "09-06 04:00, 09-07 03:00"),
    ],
}
"""By rule: a trigger, an instant in UTC, and the moments from then on."""


@pytest.mark.parametrize("rule", CASES)
def test_moments_match_the_listed_ones(rule: str) -> None:
    for trigger, since, moments in CASES[rule]:
        expected = moments.split(", ")
        assert moments_after(trigger, f"{since}+00:00", len(expected)) == expected, (
            trigger.text,
            since,
        )


ZONES = (VIENNA, "America/St_Johns", LORD_HOWE, "America/Santiago", "UTC", "Asia/Tehran")


def values_of(field: str, count: int) -> set[int]:
    """The values of a crontab field, out of 0 to `count` - 1."""
    values: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.replace("*", f"0-{count - 1}").partition("-")
        values.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return values


def by_minutes(trigger: Trigger, since: datetime) -> datetime:
    """The first minute from `since` on whose local time is new and matches the crontab."""
    assert trigger.cron is not None
    minutes, hours = map(values_of, trigger.cron.written.split()[:2], (60, 24))
    zone = ZoneInfo(trigger.timezone or "UTC")
    instant = since - timedelta(hours=26)
    latest = (instant - timedelta(minutes=1)).astimezone(zone).replace(tzinfo=None)
    while True:
        local = instant.astimezone(zone).replace(tzinfo=None)
        passed = latest + timedelta(minutes=1)
        is_due = False
        while passed <= local:
            is_due |= passed.hour in hours and passed.minute in minutes
            passed += timedelta(minutes=1)
        latest = max(latest, local)
        if is_due and instant >= since:
            return instant
        instant += timedelta(minutes=1)


@pytest.mark.slow
@random_seeds(2, 4, 12)
def test_moments_match_minute_search(seed: int) -> None:
    rng = random.Random(seed)
    starts = [datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]
    starts += [datetime(2026, 9, 5, 12, tzinfo=UTC), datetime(2026, 4, 4, tzinfo=UTC)]
    for _ in range(12):
        minute = rng.choice(["0", "*/30", "15,45", "5-50/9", "*"])
        hour = rng.choice(["*", "0", "1-3", "*/2", "2", "23"])
        trigger = cron(f"{minute} {hour} * * *", rng.choice(ZONES))
        since = rng.choice(starts) + timedelta(minutes=rng.randrange(60 * 48))
        moment = next_moment(trigger, since.timestamp())
        assert moment == by_minutes(trigger, since).timestamp(), (trigger.text, since)


CRONS = ["@daily", "*/7 2 * * *", "0 */3 29 2 *", "30 1-3 * * 0"]
RANDOM_TRIGGERS = st.builds(
    Trigger, every=st.integers(1, 86_400).map(float), timezone=st.sampled_from(ZONES)
) | st.builds(Trigger, cron=st.sampled_from(CRONS).map(read_cron), timezone=st.sampled_from(ZONES))


@FEW
@given(RANDOM_TRIGGERS, st.floats(1.6e9, 2.0e9))
def test_next_moment_is_the_first_from_then(trigger: Trigger, since: float) -> None:
    moment = next_moment(trigger, since)
    assert moment >= since - 1e-6, "seconds are not exact to a microsecond"
    assert next_moment(trigger, moment) == moment
    before = next_moment(trigger, since + (moment - since) * 0.5)
    assert before == moment, "none lies between"


@random_seeds(8, 24, 40)
def test_last_moment_matches_stepping(seed: int) -> None:
    rng = random.Random(seed)
    zone = rng.choice([None, VIENNA, "Asia/Kolkata"])
    clocks = [every(70.0, zone), every(86_400.0, zone), every(1.5, zone)]
    clocks += [cron("*/7 1-3,22 * * *", zone), cron("30 2 * * *", zone), cron("0 0 1 * *", zone)]
    trigger = rng.choice(clocks)
    spans = {1.5: 400.0}
    # Near a clock change, where the zone has one.
    since = datetime(2026, 3, 28, tzinfo=UTC).timestamp() + rng.uniform(0, 86_400 * 2)
    before = since + rng.uniform(0, spans.get(trigger.every or 0.0, 86_400.0 * 3))
    if rng.random() < 0.5:
        # Neither end counts.
        since = next_moment(trigger, since) or since
        before = next_moment(trigger, before) or before
    expected, position = None, since
    while (moment := next_moment(trigger, position + 1e-5)) is not None and moment < before:
        expected = position = moment
    assert last_moment(trigger, since, before) == expected


def test_row_trigger_has_no_moment() -> None:
    assert last_moment(Trigger(rows=5), 0.0, 1e9) is None


NOON = 1_795_780_800.0  # 2026-11-27 12:00 UTC
PACE = Pace(opening=1.0, margin=2.0, look=5.0)
NOTHING = PendingChanges(mark=0)


def pending(*changes: tuple[float, int | None]) -> PendingChanges:
    result = tuple(PendingChange(NOON + offset, rows) for offset, rows in changes)
    return PendingChanges(result, None, result[0].at, changes)


def waiting(
    trigger: Trigger, changes: PendingChanges, cost: float = 1.0, name: str = "q"
) -> Waiting:
    return Waiting(name, trigger, changes, Costs(cost, each_look=0.1, longest=cost))


def due_of(trigger: Trigger, changes: PendingChanges, now: float = 100.0) -> Due:
    (result,) = dues([waiting(trigger, changes)], PACE, NOON + now)
    return result


Times = tuple[float | None, float | None, float | None]
"""`due_at`, `due_by` and `start_at` of a query, in seconds after noon."""


def times_of(result: Due) -> Times:
    times = (result.due_at, result.due_by, result.start_at)
    due_at, due_by, start = (None if value is None else value - NOON for value in times)
    return due_at, due_by, start


ONE, NEVER = pending((10.0, 7), (20.0, 4)), (None, None, None)


@pytest.mark.parametrize(
    ("trigger", "times"),
    [
        (ON_COMMIT, (10.0, None, 10.0)),
        (Trigger(alone=SimpleTrigger.USE), (None, None, None)),
        (Trigger(point="p"), (None, None, None)),
        (Trigger(rows=7), (10.0, None, 10.0)),
        (Trigger(rows=8), (20.0, None, 20.0)),
        (Trigger(rows=11), (20.0, None, 20.0)),
        (Trigger(rows=12), (None, None, None)),
        (Trigger(every=60.0), (60.0, None, 60.0)),
        (Trigger(cron=read_cron("30 12 * * *")), (1_800.0, None, 1_800.0)),
        # 2 * (1 s to open + 1 s of work), plus the look.
        (Trigger(fresh_within=600.0), (610.0, 610.0, 601.0)),
        (Trigger(every=3_600.0, ready_within=5.0), (3_600.0, 3_605.0, 3_600.0)),
        (Trigger(every=3_600.0, ready_within=3.0), (3_600.0, 3_603.0, 3_596.0)),
        # The earliest of several conditions counts.
        (Trigger(fresh_within=600.0, rows=11), (20.0, None, 20.0)),
        (Trigger(fresh_within=600.0, rows=12), (610.0, 610.0, 601.0)),
        (Trigger(fresh_within=600.0, every=60.0), (60.0, None, 60.0)),
        (Trigger(fresh_within=30.0, every=60.0), (40.0, 40.0, 31.0)),
        (Trigger(point="p", rows=7), (10.0, None, 10.0)),
    ],
)
def test_pending_change_is_due(trigger: Trigger, times: Times) -> None:
    result = due_of(trigger, ONE)
    assert (times_of(result), result.is_pending) == (times, True)
    assert result.is_now(NOON + 100) == (times[2] is not None and times[2] <= 100)


@pytest.mark.parametrize(
    ("trigger", "times"),
    [
        *((t, NEVER) for t in (ON_COMMIT, Trigger(rows=1), Trigger(fresh_within=1.0))),
        (Trigger(every=60.0), (120.0, None, 120.0)),
        (Trigger(every=60.0, ready_within=1e-3), (120.0, 120.001, 120.0)),
    ],
)
def test_nothing_is_due_without_pending_changes(trigger: Trigger, times: Times) -> None:
    result = due_of(trigger, NOTHING)
    assert result.due_by is None or result.due_by == pytest.approx(NOON + 120.001)
    assert (times_of(result)[0], times_of(result)[2]) == (times[0], times[2])
    assert not result.is_pending
    assert not result.is_now(NOON + 1e9)


def test_unknown_row_counts_are_enough() -> None:
    assert times_of(due_of(Trigger(rows=10**9), pending((1.0, 5), (3.0, None))))[0] == 3.0


def test_commits_that_only_move_rows_are_due_on_commit_only() -> None:
    moved = PendingChanges((), None, NOON + 4.0, 1)
    assert times_of(due_of(ON_COMMIT, moved))[2] == 4.0
    assert due_of(ON_COMMIT, moved).is_now(NOON + 4)
    for trigger in (Trigger(fresh_within=1.0), Trigger(rows=1), Trigger(every=1.0)):
        assert not due_of(trigger, moved).is_now(NOON + 100)


@pytest.mark.parametrize(
    ("trigger", "is_due"),
    [
        (ON_COMMIT, True),
        (Trigger(fresh_within=1e6), True),
        (Trigger(rows=10**6), True),
        (Trigger(cron=read_cron("@yearly")), True),
        (Trigger(point="p", rows=10**6), True),
        (Trigger(alone=SimpleTrigger.USE), False),
        (Trigger(point="p"), False),
    ],
)
def test_unsure_queries_are_due(trigger: Trigger, is_due: bool) -> None:
    result = due_of(trigger, PendingChanges(unsure="the log does not show it", mark=1))
    assert result.is_now(NOON + 100) == is_due


def test_run_ahead_is_not_repeated() -> None:
    first = waiting(Trigger(every=3_600.0, ready_within=3.0), ONE)

    def start_at(waits: Waiting, now: float) -> float | None:
        (result,) = dues([waits], PACE, NOON + now)
        return times_of(result)[2]

    assert start_at(first, 3_595) == 3_596.0
    assert start_at(replace(first, last=NOON + 3_596.5), 3_597) == 3_600.0
    # The remaining work is shorter now: start as late as possible again.
    cheaper = replace(first, last=NOON + 3_590, costs=Costs(0.6))
    assert start_at(cheaper, 3_597) == pytest.approx(3_600 - 2 * 1.6)
    # Expected changes count ahead of a moment.
    loose = waiting(Trigger(every=3_600.0, ready_within=10.0), ONE)
    assert start_at(loose, 0) == 3_600.0
    costly = replace(loose, costs=Costs(1.0, expected=4.0))
    assert start_at(costly, 0) == 3_600.0 - 2 * (1 + 1 + 4)


def test_point_with_a_bound_is_kept_ready() -> None:
    trigger = Trigger(point="p", ready_within=3.0)
    for cost, is_now in ((1.0, True), (0.4, False)):
        (result,) = dues([waiting(trigger, ONE, cost=cost)], PACE, NOON + 50)
        assert result.is_now(NOON + 50) is is_now


@random_seeds(6, 13, 20)
def test_starts_follow_the_formula(seed: int) -> None:
    rng = random.Random(seed)
    pace = Pace(rng.uniform(0, 2), rng.uniform(1.5, 4), rng.uniform(0, 60))
    entries = [
        waiting(
            Trigger(fresh_within=rng.choice([60.0, 600.0, 3_600.0, rng.uniform(1, 1e4)])),
            NOTHING if rng.random() < 0.2 else pending((rng.choice([0.0, 5.0, 77.0]), 1)),
            rng.uniform(0, 9),
            f"q{number}",
        )
        for number in range(rng.randrange(1, 9))
    ]

    def deadline(entry: Waiting) -> float:
        return entry.pending.oldest + entry.trigger.fresh_within

    for entry, result in zip(entries, dues(entries, pace, NOON + 80), strict=True):
        if not entry.pending.is_some:
            assert result.start_at is None
            continue
        before = [
            other
            for other in entries
            if other.pending.is_some and deadline(other) <= deadline(entry)
        ]
        work = pace.opening + sum(other.costs.pending for other in before)
        assert result.due_by == deadline(entry)
        assert result.start_at == pytest.approx(deadline(entry) - pace.margin * work - pace.look)


def chosen(*entries: Waiting) -> list[str]:
    """The queries in a run 100 s after noon."""
    due = dues(entries, PACE, NOON + 100)
    return [item.query for item in chosen_for_run(due, entries, NOON + 100)]


def test_run_takes_due_queries_in_deadline_order() -> None:
    entries = [
        waiting(Trigger(fresh_within=50.0), ONE, name="c"),
        waiting(Trigger(rows=1), ONE, name="a"),
        waiting(Trigger(fresh_within=40.0), ONE, name="b"),
        waiting(Trigger(fresh_within=5_000.0), ONE, name="far"),
        waiting(Trigger(point="p"), ONE, name="point"),
    ]
    assert chosen(*entries) == ["a", "b", "c"]
    assert chosen(*entries[3:]) == []


def test_cheap_queries_wait_for_idle_time_and_known_cost() -> None:
    cheap = Trigger(fresh_within=5_000.0, cheap=True)
    entries = [waiting(cheap, ONE, 0.9, "cheap"), waiting(cheap, ONE, 1.0, "costly")]
    unknown = replace(waiting(cheap, ONE, 0.1, "unknown"), costs=Costs(0.1, is_known=False))
    entries += [unknown, waiting(cheap, NOTHING, 0.1, "nothing")]
    assert chosen(*entries) == ["cheap"]
    assert chosen(*entries, waiting(Trigger(rows=1), ONE, name="due")) == ["due"]


def test_impossible_bounds_are_reported_with_the_shortest() -> None:
    def messages(trigger: Trigger, costs: Costs) -> list[tuple[str, str]]:
        return shortest_bounds(Waiting("q", trigger, ONE, costs), PACE)

    step = Costs(1.0, each_look=0.5, longest=8.0)
    assert messages(Trigger(fresh_within=8.0), step) == []
    ((code, text),) = messages(Trigger(fresh_within=7.0), step)
    assert code == "fresh_impossible"
    # The look, plus twice (1 s to open + 8 s of work).
    assert "23 s" in text
    ((code, _),) = messages(Trigger(fresh_within=4.0), Costs(0.1))
    assert code == "fresh_impossible", "shorter than a look"
    assert messages(Trigger(every=60.0, ready_within=3.0), step) == []
    ((code, text),) = messages(Trigger(every=60.0, ready_within=2.9), step)
    assert code == "ready_impossible"
    assert "3 s" in text


@pytest.mark.parametrize(
    ("times", "ordered"),
    [
        ([5.0, 9.0], [5.0, 9.0]),
        ([9.0, 5.0, 7.0, 11.0], [9.0, 9.0, 9.0, 11.0]),
        ([5.0, 5.0], [5.0, 5.0]),
        ([5.0, 500.0, 7.0], [5.0, 5.0, 7.0]),
        ([500.0, 7.0, 500.0], [3.0, 7.0, 7.0]),
        ([104.0, 106.0], [100.0, 100.0]),
        ([None, 7.0, None], [3.0, 7.0, 7.0]),
        ([2.0, None], [2.0, 2.0]),
        ([], []),
    ],
)
def test_commit_times_are_put_in_order(times: list[float | None], ordered: list[float]) -> None:
    assert in_order(times, since=3.0, now=100.0) == ordered


def test_the_margin_learns_from_the_latest_runs() -> None:
    margin = Margin()

    def moments_after(count: int, estimate: float, elapsed: float) -> float:
        for _ in range(count):
            margin.ran(estimate, elapsed)
        return margin.value

    assert margin.value == FIRST_MARGIN
    assert moments_after(19, 1.0, 1.0) == FIRST_MARGIN, "fewer than twenty"
    assert moments_after(1, 2.0, 2.0) == LEAST_MARGIN
    assert moments_after(3, 1.0, 5.0) == 5.0
    assert moments_after(198, 1.0, 1.0) == LEAST_MARGIN, "two of two hundred are left"
    assert moments_after(1, 0.0, 7.0) == LEAST_MARGIN, "that run had no estimate"


def run_of(rows: int, ms: float) -> RunCost:
    return RunCost(RunKind.MAINTAIN, rows, rows * 10, ms)


class Forecast:
    """One row per second."""

    def rows(self, tables: list[str], since: float, until: float) -> float:
        return until - since

    def moved(self, tables: list[str], since: float, until: float) -> tuple[str, ...]:
        return () if until - since < 1_500 else ("s",)


def test_costs_follow_recorded_runs() -> None:
    changes = pending((0.0, 3_000))
    assert costs_of(ON_COMMIT, changes, (), (0, 5)) == Costs(UNKNOWN_S, is_known=False)
    runs = [run_of(1_000, 200.0), run_of(2_000, 300.0), run_of(0, 100.0)]
    costs = costs_of(ON_COMMIT, changes, runs, (0, 5))
    assert (costs.is_known, costs.longest) == (True, 0.3)
    assert (costs.pending, costs.each_look) == (pytest.approx(0.4), pytest.approx(0.1))
    assert costs_of(ON_COMMIT, NOTHING, runs, (0, 5)).pending == 0.0
    hourly = Trigger(every=3_600.0)
    ahead = costs_of(hourly, changes, runs, (NOON + 1_600, NOON + 2_600), ["s"], Forecast())
    assert ahead.each_look == pytest.approx(0.2)
    assert ahead.expected == pytest.approx(0.2), "2,000 rows until the hour"


def test_costs_use_runs_over_the_same_tables() -> None:
    def run_over(table: str, rows: int, ms: float) -> RunCost:
        return replace(run_of(rows, ms), moved=(table,))

    runs = [run_over("r", 1_000, 200.0), run_over("r", 2_000, 300.0), run_over("s", 1_000, 5_000.0)]
    cheap = replace(pending((0.0, 1_000)), moved=frozenset("r"))
    expensive = replace(cheap, moved=frozenset("s"))
    assert costs_of(ON_COMMIT, cheap, runs, (0, 5)).pending == pytest.approx(0.2)
    assert costs_of(ON_COMMIT, expensive, runs, (0, 5)).pending == pytest.approx(5.0)
    # `s` is expected before the moment: no run covers both tables, so all runs are used.
    hourly = Trigger(every=3_600.0)
    ahead = costs_of(hourly, expensive, runs, (NOON + 1_600, NOON + 3_500), ["s"], Forecast())
    assert ahead.each_look == pytest.approx(5.0)


def test_failed_work_is_retried_after_the_clock_is_set_back() -> None:
    now, trigger = NOON, Trigger(rows=1)
    source = Mock(**{"waiting.return_value": [waiting(trigger, pending((-9_000.0, 7)))]})

    def clock() -> float:
        return now

    scheduler = Scheduler({"q": trigger}, 5.0, clock, source, lambda *_: FinishedRun(now, 1.0))
    ready, due = scheduler.due()
    assert (ready, [one.query for one in due]) == ([], ["q"])
    scheduler.run(ready, due)
    for later, is_due in ((1, False), (600, True), (-3_600, True)):
        now = NOON + later
        assert bool(scheduler.due()[1]) is is_due
