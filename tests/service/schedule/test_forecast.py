"""Kinds of change out of generated histories, and the next change on real tables."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from impctl.errors import Location, StorageError
from impctl.forecast import Commit, History
from impctl.service.schedule.forecast import (
    DAY,
    TAKES_OVER,
    ChangeKind,
    Expectations,
    Expected,
    expected_of,
    kinds_of,
)
from impctl.store.store import Store
from impctl.tables import source as module
from impctl.tables.write.maintenance import create_table
from impctl.workload.models import ExpectedChanges, TableSpec
from tests.support.kept_workload import in_catalog, log_entry, set_time
from tests.support.random_cases import random_cases
from tests.support.run_cli import ROWS, Cli, MadeOnce, MonkeyPatch, Ran, spied

NOW = 2e9
HOUR = 3600.0


def forget_arrivals(root: Path) -> None:
    for table in ("arrival", "arrival_log"):
        in_catalog(root, f"DELETE FROM {table}")


def history(
    times: Iterable[float | None], rows: int | None = 10, deleted: int | None = 0, days: float = 30
) -> History:
    """Commits so many seconds before now."""
    inserted = None if rows is None else rows - (deleted or 0)
    arrivals = tuple(
        Commit(v, None if back is None else NOW - back, inserted, deleted, 1, 1, "WRITE")
        for v, back in enumerate(times, start=1)
    )
    return History("x", len(arrivals), NOW - days * DAY, arrivals)


def every(pause: float, days: float, shift: float = 0.0) -> list[float]:
    return [n * pause - shift for n in range(int(days * DAY / pause), 0, -1)]


def found(histories: dict[str, History]) -> dict[str, ChangeKind]:
    kinds = kinds_of(histories, NOW)
    named = {" ".join(sorted(kind.tables)): kind for kind in kinds}
    assert len(named) == len(kinds)
    return named


def moments(generator: random.Random) -> list[float]:
    """Up to thirty, the first one longest ago; they are not always in order."""
    back = [generator.uniform(0, 3e5) for _ in range(generator.randrange(30))]
    return sorted(back, reverse=True) if generator.random() < 0.8 else back


def test_tables_that_are_loaded_together_are_one_kind() -> None:
    lines = history(every(HOUR, 15, shift=40.0))
    kinds = found({"orders": history(every(HOUR, 15)), "lines": lines})
    assert (list(kinds), len(kinds["lines orders"].changes)) == (["lines orders"], 15 * 24)
    # Further apart than any two runs they are two.
    apart = found({"a": history(every(HOUR, 9)), "b": history(every(HOUR, 9, shift=1200.0))})
    assert sorted(apart) == ["a", "b"]
    close = {"a": history([399.0]), "b": history([100.0])}
    assert sorted(found(close)) == ["a b"]
    assert sorted(found(close | {"b": history([98.0])})) == ["a", "b"]


def alone(held: History) -> tuple[ChangeKind, Expected]:
    """The only kind of change of a table, and what is expected of it."""
    (kind,) = kinds_of({"t": held}, NOW)
    return kind, expected_of(kind, NOW)


def test_commits_of_a_busy_table_are_changes_of_their_own() -> None:
    kind, expected = alone(history(every(60.0, 0.2), days=0.2))
    assert (len(kind.changes), expected.per_day) == (288, pytest.approx(1440, rel=0.01))


def test_every_commit_is_in_one_change_and_changes_keep_their_rows() -> None:
    generator = random.Random(6)
    for _ in range(40):
        histories = {name: history(moments(generator)) for name in "abc"}
        changes = [c for kind in kinds_of(histories, NOW) for c in kind.changes]
        total = sum(len(held.arrivals) for held in histories.values())
        assert sum(change.rows or 0 for change in changes) == 10 * total


@pytest.mark.parametrize("days", [0.0, 1.0, 9.5, 365.0])
def test_what_never_changed_may_change(days: float) -> None:
    _, expected = alone(history([], days=days))
    assert expected.per_day == expected.chance == 1 / (2 * days + 2)
    assert expected.rows == {"t": None}


def test_a_table_that_nobody_looked_at_is_as_one_of_no_days() -> None:
    kind, expected = alone(History("", -1, None))
    assert (kind.days, expected.per_day) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("pause", "days"), [(600.0, 2.0), (HOUR, 15.0), (DAY, 60.0), (7 * DAY, 700.0)]
)
def test_rates_are_those_of_regular_tables(pause: float, days: float) -> None:
    _, expected = alone(history(every(pause, days), days=days))
    assert expected.per_day == pytest.approx(DAY / pause, rel=0.1)
    assert 0 < expected.chance < 1
    assert expected.rows == {"t": 10.0}


def test_a_rate_follows_what_changed_of_late() -> None:
    ceased = [40 * DAY + back for back in every(HOUR, 15)]
    _, expected = alone(history(ceased, days=60))
    # Over all sixty days it was six a day.
    assert expected.per_day < 1.1
    assert expected.chance < 0.1


def test_rates_and_rows_of_two_kinds_over_the_same_tables() -> None:
    loads = every(HOUR, 10)
    odd = [back for n, back in enumerate(loads) if n % 4 == 0]
    kinds = found({"a": history(loads, 30), "b": history(odd, 8, deleted=2)})
    assert sorted(kinds) == ["a", "a b"]
    both = expected_of(kinds["a b"], NOW)
    assert both.rows == {"a": 30.0, "b": 8.0}
    assert both.deletes == {"a": 0.0, "b": 0.25}
    assert expected_of(kinds["a"], NOW).per_day > 2 * both.per_day > 0


def test_rows_that_no_log_tells_are_not_guessed() -> None:
    kind, expected = alone(history(every(HOUR, 2), rows=None))
    assert expected.rows == {"t": None}
    assert all(change.rows is None for change in kind.changes)
    assert alone(history(every(HOUR, 2), rows=5, deleted=None))[1].rows == {"t": None}


def test_a_time_that_is_not_known_counts_for_no_days() -> None:
    held = history(every(DAY, 20), days=20)
    behind = replace(held.arrivals[10], is_after_gap=True)
    broken = History("x", 20, held.since, (*held.arrivals[:10], behind, *held.arrivals[11:]))
    days = (alone(held)[0].days, alone(broken)[0].days)
    assert days == pytest.approx((20.0, 19.0))


@pytest.mark.parametrize(
    "times",
    [
        *([], [5.0], [0.0] * 30, [-1e9] * 30, [1e6, -5.0, 2e6, 0.0, None] * 9, [None] * 9),
        *([10.0 * 2.0**n for n in range(24, 0, -1)], [1.9e9, 1.0]),
    ],
)
def test_hard_histories_have_sound_rates(times: list[float | None]) -> None:
    for kind in kinds_of({"t": history(times), "u": history(times[::2])}, NOW):
        expected = expected_of(kind, NOW)
        assert 0 < expected.per_day < math.inf
        assert 0 < expected.chance < 1
        assert all(rows is None or rows >= 0 for rows in expected.rows.values())
        assert all(0 <= share <= 1 for share in expected.deletes.values())


def spec(name: str, coming: tuple[ExpectedChanges, ...] | None = None) -> TableSpec:
    return TableSpec(name, f"/{name}", {}, Location("w.yaml", 1, 1), coming=coming)


def coming(
    pause: float | None = HOUR, rows: int | None = 200, deletes: float = 0.05, *times: float | None
) -> ExpectedChanges:
    """What the file says, from when and until when."""
    return ExpectedChanges(pause, rows, deletes, *(times or (None, None)))


Said = Mapping[str, tuple[ExpectedChanges, ...]]


def expectations(histories: dict[str, History], said: Said | None = None) -> Expectations:
    said = said or {}
    names = sorted({*histories, *said})
    return Expectations({name: spec(name, said.get(name)) for name in names}, histories, NOW)


def rates(expecteds: tuple[Expected, ...]) -> dict[str, float]:
    return {" ".join(sorted(each.tables)): each.per_day for each in expecteds}


LOADED = {"orders": history(every(HOUR, 9)), "lines": history(every(HOUR, 9, 40.0), 40)}


def test_a_query_sees_its_own_tables_only() -> None:
    known = expectations({**LOADED, "nation": history([], days=30)})
    assert list(rates(known.expected(["orders", "lines", "nation"]))) == ["lines orders", "nation"]
    assert rates(known.expected(["nation"])) == {"nation": 1 / 62}
    (alone,) = known.expected(["orders"])
    assert (alone.tables, alone.rows) == (frozenset(["orders"]), {"orders": 10.0})
    assert known.expected([]) == ()


def test_the_next_change_of_tables_that_are_loaded_together() -> None:
    result = expectations(LOADED).next_change(["orders", "lines"])
    assert (result.tables, result.in_s) == (("lines", "orders"), pytest.approx(0.0, abs=1.0))
    assert (result.rows_low, result.rows, result.rows_high) == (50, 50, 50)
    later = {name: replace_times(held, -0.5 * HOUR) for name, held in LOADED.items()}
    result = expectations(later).next_change(["orders", "lines"])
    assert result.in_s == pytest.approx(HOUR / 2)
    assert (result.in_s_low, result.in_s_high) == pytest.approx((HOUR / 2, HOUR / 2))
    assert result.by == "the last value"


def replace_times(held: History, back: float) -> History:
    """The same, so many seconds earlier; less is later."""
    moved = [replace(each, at=(each.at or 0.0) - back) for each in held.arrivals]
    kept = [each for each in moved if each.at is not None and each.at <= NOW]
    return replace(held, arrivals=tuple(kept))


@pytest.mark.parametrize("count", range(5))
def test_few_changes_are_not_forecast(count: int) -> None:
    held = history(every(HOUR, 1)[-count:] if count else [])
    change = expectations({"t": held}).next_change(["t"])
    assert (change.in_s, change.rows) == (None, None)
    assert change.unknown.endswith("a forecast needs 5")
    assert change.unknown.split()[0] == (str(count) if count else "no")


def test_five_are() -> None:
    change = expectations({"t": history(every(HOUR, 1)[-5:])}).next_change(["t"])
    assert (change.in_s, change.unknown) == (0.0, None)


def test_many_changes_of_other_tables_each_are_not_one_kind() -> None:
    held = {
        name: history([5000.0 * n, 5000.0 * (n - 0.5)]) for n, name in enumerate("abc", start=1)
    }
    change = expectations(held).next_change("abc")
    assert change.unknown == "6 changes are known, a forecast needs 5 of the same tables"


def test_a_kind_that_ceased_leaves_the_word_to_others() -> None:
    old = history([20 * DAY + back for back in every(HOUR, 9)])
    held = {"old": old, "new": history(every(2 * HOUR, 9))}
    assert expectations(held).next_change(held).tables == ("new",)
    ceased = expectations({"old": held["old"]}).next_change(["old"])
    assert (ceased.tables, ceased.in_s, ceased.in_s_high) == (("old",), 0.0, 0.0)
    older = {**held, "new": history([DAY + back for back in every(2 * HOUR, 9)])}
    assert expectations(older).next_change(older).tables == ("new",)


def test_what_is_a_little_late_is_told_before_what_is_far_off() -> None:
    weekly = history([back - 3 * DAY for back in every(7 * DAY, 90)], days=90)
    held = {"load": history([0.5 * HOUR + back for back in every(HOUR, 9)]), "week": weekly}
    assert expectations(held).next_change(held).tables == ("load",)
    held["load"] = history([1.5 * HOUR + back for back in every(HOUR, 9)])
    change = expectations(held).next_change(held)
    assert (change.tables, change.in_s) == (("week",), pytest.approx(3 * DAY))


def test_no_pause_is_counted_across_a_gap() -> None:
    times = [back + (100 * DAY if n < 6 else 0.0) for n, back in enumerate(every(HOUR, 0.5))]
    held = history(times, days=200)
    arrivals = tuple(replace(each, is_after_gap=each.version == 7) for each in held.arrivals)
    known = expectations({"t": replace(held, arrivals=arrivals)})
    assert known.next_change(["t"]).in_s_high == pytest.approx(0.0, abs=1e-3)
    unaware = expectations({"t": held})
    assert (unaware.next_change(["t"]).in_s_high or 0.0) > DAY
    assert known.expected(["t"])[0].per_day > unaware.expected(["t"])[0].per_day


def test_the_file_speaks_until_the_log_has_enough() -> None:
    said = {"t": (coming(pause=6 * HOUR),)}
    for count in (0, 1, TAKES_OVER - 1):
        held = history(every(HOUR, 9)[-count:] if count else [])
        known = expectations({"t": held}, said)
        (result,) = known.expected(["t"])
        assert (result.per_day, result.rows, result.deletes) == (4.0, {"t": 200.0}, {"t": 0.05})
        following = known.next_change(["t"])
        assert (following.by, following.rows) == ("the workload file", 200.0)
        assert following.in_s == (5 * HOUR if count else 6 * HOUR)
        assert following.in_s_low is following.in_s_high is following.rows_low is None
    known = expectations({"t": history(every(HOUR, 9)[-TAKES_OVER:])}, said)
    (result,) = known.expected(["t"])
    assert (result.rows, result.per_day > 10) == ({"t": 10.0}, True)
    assert known.next_change(["t"]).by != "the workload file"


def test_commits_before_an_expectation_do_not_take_over() -> None:
    held = history(every(HOUR, 9))
    for since, rows in ((NOW - HOUR, 200.0), (NOW - DAY, 10.0)):
        said = {"t": (coming(HOUR, 200, 0.05, since, None),)}
        (result,) = expectations({"t": held}, said).expected(["t"])
        assert result.rows == {"t": rows}


def test_tables_of_the_same_pauses_come_together() -> None:
    said = {
        "orders": (coming(HOUR, 200, 0.0),),
        "lines": (coming(HOUR, 800, 0.5),),
        "parts": (coming(DAY, 30, 0.0),),
    }
    loads, parts = expectations({}, said).expected(["orders", "lines", "parts"])
    assert loads.tables == {"orders", "lines"}
    assert (loads.per_day, loads.rows) == (24.0, {"lines": 800.0, "orders": 200.0})
    assert loads.deletes == {"lines": 0.5, "orders": 0.0}
    assert (parts.tables, parts.per_day) == ({"parts"}, 1.0)
    # Of queries over one of them the other is not spoken of.
    (alone,) = expectations({}, said).expected(["orders"])
    assert (alone.tables, alone.per_day) == ({"orders"}, 24.0)
    later = {**said, "lines": (coming(HOUR, 800, 0.5, NOW - 1, None),)}
    assert len(expectations({}, later).expected(["orders", "lines"])) == 2


def test_several_expectations_add_up() -> None:
    said = {"t": (coming(HOUR, 100, 0.0), coming(DAY / 8, 400, 1.0), coming(DAY, None, 0.0))}
    (result,) = expectations({"t": history([])}, said).expected(["t"])
    assert result.per_day == pytest.approx(33.0)
    assert result.rows == {"t": pytest.approx((24 * 100 + 8 * 400) / 32)}
    assert result.deletes == {"t": pytest.approx(3200 / 5600)}


@pytest.mark.parametrize(
    ("since", "until", "holds"),
    [
        *((None, NOW + 1, True), (None, NOW, False)),
        *((NOW, None, True), (NOW + 1, None, False), (NOW - 1, NOW + 1, True)),
    ],
)
def test_out_of_its_time_a_table_is_as_one_that_never_changed(
    since: float | None, until: float | None, holds: bool
) -> None:
    # By the log it would change every hour.
    held = history(every(HOUR, 9), days=9)
    known = expectations({"t": held}, {"t": (coming(None, None, 0.0, since, until),)})
    (result,) = known.expected(["t"])
    assert result.per_day == (pytest.approx(24, rel=0.1) if holds else 1 / 20)
    assert (known.next_change(["t"]).in_s is not None) is holds


def test_a_table_that_never_changes_is_in_no_kind() -> None:
    known = expectations(LOADED, {"lines": ()})
    assert list(rates(known.expected(["orders", "lines"]))) == ["orders"]
    assert known.next_change(["orders", "lines"]).tables == ("orders",)
    assert known.expected(["lines"]) == ()
    assert known.next_change(["lines"]).unknown is not None


def test_a_table_that_nobody_knows_may_change() -> None:
    known = expectations({}, {"t": (coming(None, None),)})
    assert rates(known.expected(["t", "u"])) == {"t": 0.5, "u": 0.5}


@random_cases(fast=30, check=120, total=120)
def test_whatever_came_is_forecast_soundly(cases: range) -> None:
    for seed in cases:
        generator, histories = random.Random(f"came {seed}"), {}
        pick = generator.choice
        for name in "abc"[: generator.randrange(1, 4)]:
            at, arrivals = NOW - pick([10.0, DAY, 1e8]), []
            for version in range(generator.randrange(0, 40)):
                at += pick([0.0, -HOUR, HOUR, generator.expovariate(1e-4), 1e7])
                time_, inserted = pick([None, at, at, at]), pick([None, 0, 7, 2**62])
                gone, is_after_gap = pick([0, 0, 3, None]), generator.random() < 0.1
                arrivals.append(Commit(version, time_, inserted, gone, 1, 1, "", is_after_gap))
            since = pick([None, NOW - 1e8])
            histories[name] = History(name, 40, since, tuple(arrivals))
        known = expectations(histories)
        change = known.next_change(histories)
        if change.in_s is None:
            assert change.unknown
        else:
            assert 0 <= change.in_s_low <= change.in_s <= change.in_s_high < 1e11
        if change.rows is not None:
            assert 0 <= change.rows_low <= change.rows <= change.rows_high
        for each in known.expected(histories):
            assert 0 < each.per_day < 1e9


STANDING_NOW = time.time()


@pytest.fixture
def still(cli: Cli, monkeypatch: MonkeyPatch) -> Cli:
    """Commits and forecasts of all tests are as of one moment, so that tables can be shared."""
    monkeypatch.setattr(time, "time", lambda: STANDING_NOW)
    return cli


def next_change(cli: Cli) -> dict[str, Any]:
    return cli.one("plan")["next_change"]


def append(table: str, back: float, rows: int = 10) -> int:
    """Add rows, and have the log say that this was `back` seconds ago; gives the version."""
    write_deltalake(table, ROWS.slice(0, rows), mode="append")
    version = DeltaTable(table).version()
    set_time(table, version, STANDING_NOW - back)
    return version


def history_of(cli: Cli) -> tuple[Commit, ...]:
    with Store.open(cli.folder / ".impctl") as store:
        held = store.arrivals(["t"]).get("t")
    return () if held is None else held.arrivals


def arrivals(cli: Cli) -> list[int]:
    return [each.version for each in history_of(cli)]


def unexpected(ran: Ran) -> list[str]:
    return [text for text in ran.document["warnings"] if "[change_unexpected]" in text]


@pytest.fixture
def hourly(still: Cli, made_once: MadeOnce) -> str:
    """The table with eight commits, an hour between them, the last one half an hour ago."""

    def write(folder: Path) -> None:
        create_table(str(folder / "t"), ROWS)
        came_hourly(str(folder / "t"), HOUR / 2)

    table = still.path("t")
    shutil.rmtree(table)
    shutil.copytree(made_once.folder("hourly", write) / "t", table)
    return table


def came_hourly(table: str, last: float) -> str:
    """The table with eight commits, an hour between them, the last one `last` seconds ago."""
    set_time(table, 0, STANDING_NOW - last - 8 * HOUR)
    for n in range(8):
        append(table, last + (7 - n) * HOUR, 4)
    return table


def test_a_plan_tells_the_next_change(still: Cli, hourly: str, monkeypatch: MonkeyPatch) -> None:
    assert next_change(still) is None
    still.good("capture")
    result = next_change(still)
    assert (result["tables"], result["unknown"]) == (["t"], None)
    for part in ("in_s_low", "in_s", "in_s_high"):
        assert result[part] == pytest.approx(HOUR / 2, abs=60)
    assert (result["rows_low"], result["rows"], result["rows_high"]) == (4, 4, 4)
    later = datetime.fromtimestamp(STANDING_NOW + HOUR / 4, UTC).isoformat()
    monkeypatch.setenv("IMPCTL_NOW", later)
    assert next_change(still)["in_s"] == pytest.approx(HOUR / 4, abs=60)


@pytest.mark.slow
def test_what_is_pending_came_already(still: Cli) -> None:
    # It comes when it was expected: who forecasts an hour does so after it, too.
    came_hourly(still.path("t"), HOUR)
    still.good("capture")
    assert next_change(still)["in_s"] == pytest.approx(0, abs=60)
    append(still.path("t"), 0.0, 4)
    result = next_change(still)
    for part in ("in_s_low", "in_s", "in_s_high"):
        assert result[part] == pytest.approx(HOUR, abs=90)


@pytest.mark.slow
def test_captures_and_runs_keep_the_commits_and_plans_do_not(still: Cli, hourly: str) -> None:
    still.good("capture")
    assert arrivals(still) == list(range(1, 9))
    append(hourly, 0.0)
    still.good("plan")
    still.good("maintain", "--dry-run")
    assert arrivals(still) == list(range(1, 9))
    still.good("maintain")
    assert arrivals(still) == list(range(1, 10))


@pytest.mark.slow
def test_a_run_reads_each_log_entry_once(still: Cli, hourly: str, monkeypatch: MonkeyPatch) -> None:
    still.good("capture")
    for rows in (2, 5, 3):
        append(hourly, 0.0, rows)
    reads = spied(monkeypatch, module, "read_entry")
    still.good("maintain")
    assert set(Counter(version for _, version in reads).values()) <= {1}
    result = [(each.version, each.inserted) for each in history_of(still)[-3:]]
    assert result == [(9, 2), (10, 5), (11, 3)]


@pytest.mark.slow
def test_a_log_that_was_cleaned_takes_nothing_away(still: Cli, hourly: str) -> None:
    still.good("capture")
    before = next_change(still)
    append(hourly, 0.0, 4)
    still.good("maintain")
    DeltaTable(hourly).create_checkpoint()
    for version in range(9):
        log_entry(hourly, version).unlink()
    after = next_change(still)
    assert (after["rows"], after["unknown"]) == (before["rows"], None)
    # Without the store nobody knows.
    assert len(history_of(still)) == 9
    forget_arrivals(still.folder / ".impctl")
    assert next_change(still)["unknown"] == "1 change is known, a forecast needs 5"


@pytest.mark.slow
def test_a_run_that_fails_for_all_keeps_nothing(still: Cli, hourly: str) -> None:
    still.good("capture")
    gone = append(hourly, 0.0)
    held = set(DeltaTable(hourly, version=gone - 1).file_uris())
    for uri in set(DeltaTable(hourly).file_uris()) - held:
        Path(uri.removeprefix("file://")).unlink()
    assert still("maintain").code == 7
    assert arrivals(still) == list(range(1, 9))


@pytest.mark.slow
def test_a_change_that_was_never_to_come_is_told_once(still: Cli) -> None:
    def told(command: str) -> str:
        (said,) = unexpected(still.good(command))
        return said

    never = "{path: t, changes: never}"
    still.edit("{path: t}", never)
    append(still.path("t"), HOUR)
    # What came before the file was written, or before anybody looked, was no surprise.
    assert unexpected(still.good("capture")) == []
    assert "never change" in next_change(still)["unknown"]
    append(still.path("t"), 0.0)
    append(still.path("t"), 0.0)
    ran = still.good("maintain")
    (said,) = unexpected(ran)
    assert "table `t` changed in versions 2 to 3" in said
    assert (ran.results[0]["action"], ran.results[0]["reason_code"]) == ("exact", "incremental")
    assert unexpected(still.good("maintain")) == []
    still.table("t").optimize.compact()
    assert unexpected(still.good("maintain")) == []
    for command, version in (("maintain", 5), ("capture", 6)):
        append(still.path("t"), 0.0)
        assert f"changed in version {version}," in told(command)
    still.edit(never, "{path: t}")
    append(still.path("t"), 0.0)
    assert unexpected(still.good("maintain")) == []


def test_without_known_commits_what_is_pending_is_told(still: Cli) -> None:
    still.edit("{path: t}", "{path: t, changes: never}")
    append(still.path("t"), HOUR)
    still.good("capture")
    forget_arrivals(still.folder / ".impctl")
    append(still.path("t"), 0.0)
    (told,) = unexpected(still.good("maintain"))
    assert "changed in version 2," in told


def test_a_failed_record_stops_nothing(still: Cli, hourly: str, monkeypatch: MonkeyPatch) -> None:
    still.good("capture")
    append(hourly, 0.0)
    refused = StorageError("the disk said no", hint="mend it")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save_arrivals", Mock(side_effect=refused))
        ran = still.good("maintain")
    assert ran.results[0]["action"] == "exact"
    assert ran.document["warnings"] == ["the disk said no; mend it"]
    append(hourly, 0.0)
    still.good("maintain")
    assert arrivals(still) == list(range(1, 11))


@pytest.mark.slow
def test_the_file_says_what_the_log_cannot_know(still: Cli) -> None:
    still.edit("{path: t}", "{path: t, changes: {every: 2h, rows: 200}}")
    still.good("capture")
    append(still.path("t"), HOUR)
    result = next_change(still)
    assert result["in_s"] == pytest.approx(HOUR, abs=60)
    assert (result["rows"], result["by"]) == (200, "the workload file")


@pytest.mark.slow
def test_tables_that_move_together_are_told_together(still: Cli, hourly: str) -> None:
    other = still.path("u")
    write_deltalake(other, pa.table({"g": [1, 2], "y": [1, 2]}))
    for n in range(8, 0, -1):
        write_deltalake(other, pa.table({"g": [1], "y": [2]}), mode="append")
        set_time(other, DeltaTable(other).version(), STANDING_NOW - (n - 0.49) * HOUR)
    still.edit("  t: {path: t}", "  t: {path: t}\n  u: {path: u}")
    still.edit("FROM t", "FROM t JOIN u USING (g)")
    still.edit("SUM(x)", "SUM(y)")
    still.good("capture")
    result = next_change(still)
    assert (result["tables"], result["rows"]) == (["t", "u"], 5)
