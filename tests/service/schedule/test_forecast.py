"""Kinds of change from generated histories, and the next change of real tables."""

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
    """Commits at these numbers of seconds before now."""
    inserted = None if rows is None else rows - (deleted or 0)
    arrivals = tuple(
        Commit(version, None if ago is None else NOW - ago, inserted, deleted, 1, 1, "WRITE")
        for version, ago in enumerate(times, start=1)
    )
    return History("x", len(arrivals), NOW - days * DAY, arrivals)


def every(pause: float, days: float, shift: float = 0.0) -> list[float]:
    return [n * pause - shift for n in range(int(days * DAY / pause), 0, -1)]


def kinds_by_tables(histories: dict[str, History]) -> dict[str, ChangeKind]:
    kinds = kinds_of(histories, NOW)
    named = {" ".join(sorted(kind.tables)): kind for kind in kinds}
    assert len(named) == len(kinds)
    return named


def random_times(generator: random.Random) -> list[float]:
    """Up to thirty, usually in order, oldest first."""
    ago = [generator.uniform(0, 3e5) for _ in range(generator.randrange(30))]
    return sorted(ago, reverse=True) if generator.random() < 0.8 else ago


def test_tables_loaded_together_are_one_kind() -> None:
    lines = history(every(HOUR, 15, shift=40.0))
    kinds = kinds_by_tables({"orders": history(every(HOUR, 15)), "lines": lines})
    assert (list(kinds), len(kinds["lines orders"].changes)) == (["lines orders"], 15 * 24)
    # Far enough apart, they are two kinds.
    separate = kinds_by_tables(
        {"a": history(every(HOUR, 9)), "b": history(every(HOUR, 9, shift=1200.0))}
    )
    assert sorted(separate) == ["a", "b"]
    near = {"a": history([399.0]), "b": history([100.0])}
    assert sorted(kinds_by_tables(near)) == ["a b"]
    assert sorted(kinds_by_tables(near | {"b": history([98.0])})) == ["a", "b"]


def only_kind(commits: History) -> tuple[ChangeKind, Expected]:
    """The only kind of change of a table, and its expectation."""
    (kind,) = kinds_of({"t": commits}, NOW)
    return kind, expected_of(kind, NOW)


def test_commits_of_a_busy_table_are_separate_changes() -> None:
    kind, expected = only_kind(history(every(60.0, 0.2), days=0.2))
    assert (len(kind.changes), expected.per_day) == (288, pytest.approx(1440, rel=0.01))


def test_every_commit_is_in_exactly_one_change() -> None:
    generator = random.Random(6)
    for _ in range(40):
        histories = {name: history(random_times(generator)) for name in "abc"}
        changes = [c for kind in kinds_of(histories, NOW) for c in kind.changes]
        total = sum(len(table_history.arrivals) for table_history in histories.values())
        assert sum(change.rows or 0 for change in changes) == 10 * total


@pytest.mark.parametrize("days", [0.0, 1.0, 9.5, 365.0])
def test_unchanged_table_may_change(days: float) -> None:
    _, expected = only_kind(history([], days=days))
    assert expected.per_day == expected.chance == 1 / (2 * days + 2)
    assert expected.rows == {"t": None}


def test_unread_table_counts_as_zero_days_old() -> None:
    kind, expected = only_kind(History("", -1, None))
    assert (kind.days, expected.per_day) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("pause", "days"), [(600.0, 2.0), (HOUR, 15.0), (DAY, 60.0), (7 * DAY, 700.0)]
)
def test_rates_of_regular_tables(pause: float, days: float) -> None:
    _, expected = only_kind(history(every(pause, days), days=days))
    assert expected.per_day == pytest.approx(DAY / pause, rel=0.1)
    assert 0 < expected.chance < 1
    assert expected.rows == {"t": 10.0}


def test_rate_follows_recent_changes() -> None:
    ceased = [40 * DAY + ago for ago in every(HOUR, 15)]
    _, expected = only_kind(history(ceased, days=60))
    # The mean over all sixty days is six a day.
    assert expected.per_day < 1.1
    assert expected.chance < 0.1


def test_rates_and_rows_of_two_kinds_over_the_same_tables() -> None:
    loads = every(HOUR, 10)
    fourth = [ago for n, ago in enumerate(loads) if n % 4 == 0]
    kinds = kinds_by_tables({"a": history(loads, 30), "b": history(fourth, 8, deleted=2)})
    assert sorted(kinds) == ["a", "a b"]
    both = expected_of(kinds["a b"], NOW)
    assert both.rows == {"a": 30.0, "b": 8.0}
    assert both.deletes == {"a": 0.0, "b": 0.25}
    assert expected_of(kinds["a"], NOW).per_day > 2 * both.per_day > 0


def test_unknown_row_counts_are_not_guessed() -> None:
    kind, expected = only_kind(history(every(HOUR, 2), rows=None))
    assert expected.rows == {"t": None}
    assert all(change.rows is None for change in kind.changes)
    assert only_kind(history(every(HOUR, 2), rows=5, deleted=None))[1].rows == {"t": None}


def test_gap_in_the_log_counts_for_no_days() -> None:
    full = history(every(DAY, 20), days=20)
    after_gap = replace(full.arrivals[10], is_after_gap=True)
    with_gap = History("x", 20, full.since, (*full.arrivals[:10], after_gap, *full.arrivals[11:]))
    days = (only_kind(full)[0].days, only_kind(with_gap)[0].days)
    assert days == pytest.approx((20.0, 19.0))


@pytest.mark.parametrize(
    "times",
    [
        *([], [5.0], [0.0] * 30, [-1e9] * 30, [1e6, -5.0, 2e6, 0.0, None] * 9, [None] * 9),
        *([10.0 * 2.0**n for n in range(24, 0, -1)], [1.9e9, 1.0]),
    ],
)
def test_odd_histories_have_valid_rates(times: list[float | None]) -> None:
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
    """An expectation of the file; `times` are its start and end."""
    return ExpectedChanges(pause, rows, deletes, *(times or (None, None)))


FromFile = Mapping[str, tuple[ExpectedChanges, ...]]


def expectations(histories: dict[str, History], from_file: FromFile | None = None) -> Expectations:
    from_file = from_file or {}
    names = sorted({*histories, *from_file})
    return Expectations({name: spec(name, from_file.get(name)) for name in names}, histories, NOW)


def rates_of(kinds: tuple[Expected, ...]) -> dict[str, float]:
    return {" ".join(sorted(kind.tables)): kind.per_day for kind in kinds}


LOADED = {"orders": history(every(HOUR, 9)), "lines": history(every(HOUR, 9, 40.0), 40)}


def test_a_query_sees_its_own_tables_only() -> None:
    known = expectations({**LOADED, "nation": history([], days=30)})
    assert list(rates_of(known.expected(["orders", "lines", "nation"]))) == [
        "lines orders",
        "nation",
    ]
    assert rates_of(known.expected(["nation"])) == {"nation": 1 / 62}
    (orders,) = known.expected(["orders"])
    assert (orders.tables, orders.rows) == (frozenset(["orders"]), {"orders": 10.0})
    assert known.expected([]) == ()


def test_next_change_of_tables_loaded_together() -> None:
    result = expectations(LOADED).next_change(["orders", "lines"])
    assert (result.tables, result.in_s) == (("lines", "orders"), pytest.approx(0.0, abs=1.0))
    assert (result.rows_low, result.rows, result.rows_high) == (50, 50, 50)
    later = {name: shifted(table_history, -0.5 * HOUR) for name, table_history in LOADED.items()}
    result = expectations(later).next_change(["orders", "lines"])
    assert result.in_s == pytest.approx(HOUR / 2)
    assert (result.in_s_low, result.in_s_high) == pytest.approx((HOUR / 2, HOUR / 2))
    assert result.by == "the last value"


def shifted(table_history: History, seconds: float) -> History:
    """The same history, shifted back in time; negative seconds shift it forward."""
    moved = [replace(each, at=(each.at or 0.0) - seconds) for each in table_history.arrivals]
    past = [each for each in moved if each.at is not None and each.at <= NOW]
    return replace(table_history, arrivals=tuple(past))


@pytest.mark.parametrize("count", range(5))
def test_few_changes_are_not_forecast(count: int) -> None:
    commits = history(every(HOUR, 1)[-count:] if count else [])
    change = expectations({"t": commits}).next_change(["t"])
    assert (change.in_s, change.rows) == (None, None)
    assert change.unknown.endswith("a forecast needs 5")
    assert change.unknown.split()[0] == (str(count) if count else "no")


def test_five_suffice() -> None:
    change = expectations({"t": history(every(HOUR, 1)[-5:])}).next_change(["t"])
    assert (change.in_s, change.unknown) == (0.0, None)


def test_changes_of_different_tables_are_different_kinds() -> None:
    histories = {
        name: history([5000.0 * n, 5000.0 * (n - 0.5)]) for n, name in enumerate("abc", start=1)
    }
    change = expectations(histories).next_change("abc")
    assert change.unknown == "6 changes are known, a forecast needs 5 of the same tables"


def test_ceased_kind_gives_way_to_others() -> None:
    old = history([20 * DAY + ago for ago in every(HOUR, 9)])
    histories = {"old": old, "new": history(every(2 * HOUR, 9))}
    assert expectations(histories).next_change(histories).tables == ("new",)
    ceased = expectations({"old": histories["old"]}).next_change(["old"])
    assert (ceased.tables, ceased.in_s, ceased.in_s_high) == (("old",), 0.0, 0.0)
    older = {**histories, "new": history([DAY + ago for ago in every(2 * HOUR, 9)])}
    assert expectations(older).next_change(older).tables == ("new",)


def test_slightly_late_change_precedes_a_distant_one() -> None:
    weekly = history([ago - 3 * DAY for ago in every(7 * DAY, 90)], days=90)
    histories = {"load": history([0.5 * HOUR + ago for ago in every(HOUR, 9)]), "week": weekly}
    assert expectations(histories).next_change(histories).tables == ("load",)
    histories["load"] = history([1.5 * HOUR + ago for ago in every(HOUR, 9)])
    change = expectations(histories).next_change(histories)
    assert (change.tables, change.in_s) == (("week",), pytest.approx(3 * DAY))


def test_no_pause_is_counted_across_a_gap() -> None:
    times = [ago + (100 * DAY if n < 6 else 0.0) for n, ago in enumerate(every(HOUR, 0.5))]
    commits = history(times, days=200)
    arrivals = tuple(replace(each, is_after_gap=each.version == 7) for each in commits.arrivals)
    known = expectations({"t": replace(commits, arrivals=arrivals)})
    assert known.next_change(["t"]).in_s_high == pytest.approx(0.0, abs=1e-3)
    unaware = expectations({"t": commits})
    assert (unaware.next_change(["t"]).in_s_high or 0.0) > DAY
    assert known.expected(["t"])[0].per_day > unaware.expected(["t"])[0].per_day


def test_file_counts_until_log_has_enough() -> None:
    from_file = {"t": (coming(pause=6 * HOUR),)}
    for count in (0, 1, TAKES_OVER - 1):
        commits = history(every(HOUR, 9)[-count:] if count else [])
        known = expectations({"t": commits}, from_file)
        (result,) = known.expected(["t"])
        assert (result.per_day, result.rows, result.deletes) == (4.0, {"t": 200.0}, {"t": 0.05})
        following = known.next_change(["t"])
        assert (following.by, following.rows) == ("the workload file", 200.0)
        assert following.in_s == (5 * HOUR if count else 6 * HOUR)
        assert following.in_s_low is following.in_s_high is following.rows_low is None
    known = expectations({"t": history(every(HOUR, 9)[-TAKES_OVER:])}, from_file)
    (result,) = known.expected(["t"])
    assert (result.rows, result.per_day > 10) == ({"t": 10.0}, True)
    assert known.next_change(["t"]).by != "the workload file"


def test_commits_before_an_expectation_do_not_take_over() -> None:
    commits = history(every(HOUR, 9))
    for since, rows in ((NOW - HOUR, 200.0), (NOW - DAY, 10.0)):
        from_file = {"t": (coming(HOUR, 200, 0.05, since, None),)}
        (result,) = expectations({"t": commits}, from_file).expected(["t"])
        assert result.rows == {"t": rows}


def test_tables_with_equal_pauses_are_joined() -> None:
    from_file = {
        "orders": (coming(HOUR, 200, 0.0),),
        "lines": (coming(HOUR, 800, 0.5),),
        "parts": (coming(DAY, 30, 0.0),),
    }
    loads, parts = expectations({}, from_file).expected(["orders", "lines", "parts"])
    assert loads.tables == {"orders", "lines"}
    assert (loads.per_day, loads.rows) == (24.0, {"lines": 800.0, "orders": 200.0})
    assert loads.deletes == {"lines": 0.5, "orders": 0.0}
    assert (parts.tables, parts.per_day) == ({"parts"}, 1.0)
    # A query over one of them has no expectation of the other.
    (orders,) = expectations({}, from_file).expected(["orders"])
    assert (orders.tables, orders.per_day) == ({"orders"}, 24.0)
    later = {**from_file, "lines": (coming(HOUR, 800, 0.5, NOW - 1, None),)}
    assert len(expectations({}, later).expected(["orders", "lines"])) == 2


def test_several_expectations_add_up() -> None:
    from_file = {"t": (coming(HOUR, 100, 0.0), coming(DAY / 8, 400, 1.0), coming(DAY, None, 0.0))}
    (result,) = expectations({"t": history([])}, from_file).expected(["t"])
    assert result.per_day == pytest.approx(33.0)
    assert result.rows == {"t": pytest.approx((24 * 100 + 8 * 400) / 32)}
    assert result.deletes == {"t": pytest.approx(3200 / 5600)}


@pytest.mark.parametrize(
    ("since", "until", "is_active"),
    [
        *((None, NOW + 1, True), (None, NOW, False)),
        *((NOW, None, True), (NOW + 1, None, False), (NOW - 1, NOW + 1, True)),
    ],
)
def test_expectation_applies_only_within_its_period(
    since: float | None, until: float | None, is_active: bool
) -> None:
    # According to the log, it would change every hour.
    commits = history(every(HOUR, 9), days=9)
    known = expectations({"t": commits}, {"t": (coming(None, None, 0.0, since, until),)})
    (result,) = known.expected(["t"])
    assert result.per_day == (pytest.approx(24, rel=0.1) if is_active else 1 / 20)
    assert (known.next_change(["t"]).in_s is not None) is is_active


def test_table_that_never_changes_has_no_kind() -> None:
    known = expectations(LOADED, {"lines": ()})
    assert list(rates_of(known.expected(["orders", "lines"]))) == ["orders"]
    assert known.next_change(["orders", "lines"]).tables == ("orders",)
    assert known.expected(["lines"]) == ()
    assert known.next_change(["lines"]).unknown is not None


def test_unknown_table_may_change() -> None:
    known = expectations({}, {"t": (coming(None, None),)})
    assert rates_of(known.expected(["t", "u"])) == {"t": 0.5, "u": 0.5}


@random_cases(fast=30, check=120, total=120)
def test_random_forecasts_are_valid(cases: range) -> None:
    for seed in cases:
        generator, histories = random.Random(f"came {seed}"), {}
        pick = generator.choice
        for name in "abc"[: generator.randrange(1, 4)]:
            clock, arrivals = NOW - pick([10.0, DAY, 1e8]), []
            for version in range(generator.randrange(0, 40)):
                clock += pick([0.0, -HOUR, HOUR, generator.expovariate(1e-4), 1e7])
                known_time, inserted = pick([None, clock, clock, clock]), pick([None, 0, 7, 2**62])
                deleted, is_after_gap = pick([0, 0, 3, None]), generator.random() < 0.1
                arrivals.append(
                    Commit(version, known_time, inserted, deleted, 1, 1, "", is_after_gap)
                )
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


FROZEN_NOW = time.time()


@pytest.fixture
def frozen_cli(cli: Cli, monkeypatch: MonkeyPatch) -> Cli:
    """A command line with a fixed time, so that tests can share tables."""
    monkeypatch.setattr(time, "time", lambda: FROZEN_NOW)
    return cli


def next_change(cli: Cli) -> dict[str, Any]:
    return cli.one("plan")["next_change"]


def append(table: str, seconds: float, rows: int = 10) -> int:
    """Append rows with a commit time `seconds` ago. Return the version."""
    write_deltalake(table, ROWS.slice(0, rows), mode="append")
    version = DeltaTable(table).version()
    set_time(table, version, FROZEN_NOW - seconds)
    return version


def history_of(cli: Cli) -> tuple[Commit, ...]:
    with Store.open(cli.folder / ".impctl") as store:
        known = store.arrivals(["t"]).get("t")
    return () if known is None else known.arrivals


def arrivals(cli: Cli) -> list[int]:
    return [each.version for each in history_of(cli)]


def surprise_warnings(ran: Ran) -> list[str]:
    return [text for text in ran.document["warnings"] if "[change_unexpected]" in text]


@pytest.fixture
def hourly(frozen_cli: Cli, made_once: MadeOnce) -> str:
    """The table with eight hourly commits, the last one half an hour ago."""

    def write(folder: Path) -> None:
        create_table(str(folder / "t"), ROWS)
        append_hourly(str(folder / "t"), HOUR / 2)

    table = frozen_cli.path("t")
    shutil.rmtree(table)
    shutil.copytree(made_once.folder("hourly", write) / "t", table)
    return table


def append_hourly(table: str, last: float) -> str:
    """Append eight hourly commits, the last one `last` seconds ago. Return the table."""
    set_time(table, 0, FROZEN_NOW - last - 8 * HOUR)
    for n in range(8):
        append(table, last + (7 - n) * HOUR, 4)
    return table


def test_plan_shows_next_change(frozen_cli: Cli, hourly: str, monkeypatch: MonkeyPatch) -> None:
    assert next_change(frozen_cli) is None
    frozen_cli.good("capture")
    result = next_change(frozen_cli)
    assert (result["tables"], result["unknown"]) == (["t"], None)
    for part in ("in_s_low", "in_s", "in_s_high"):
        assert result[part] == pytest.approx(HOUR / 2, abs=60)
    assert (result["rows_low"], result["rows"], result["rows_high"]) == (4, 4, 4)
    later = datetime.fromtimestamp(FROZEN_NOW + HOUR / 4, UTC).isoformat()
    monkeypatch.setenv("IMPCTL_NOW", later)
    assert next_change(frozen_cli)["in_s"] == pytest.approx(HOUR / 4, abs=60)


@pytest.mark.slow
def test_pending_change_is_past(frozen_cli: Cli) -> None:
    # The change comes when it was expected, so the forecast is another hour.
    append_hourly(frozen_cli.path("t"), HOUR)
    frozen_cli.good("capture")
    assert next_change(frozen_cli)["in_s"] == pytest.approx(0, abs=60)
    append(frozen_cli.path("t"), 0.0, 4)
    result = next_change(frozen_cli)
    for part in ("in_s_low", "in_s", "in_s_high"):
        assert result[part] == pytest.approx(HOUR, abs=90)


@pytest.mark.slow
def test_captures_and_runs_record_commits_but_plans_do_not(frozen_cli: Cli, hourly: str) -> None:
    frozen_cli.good("capture")
    assert arrivals(frozen_cli) == list(range(1, 9))
    append(hourly, 0.0)
    frozen_cli.good("plan")
    frozen_cli.good("maintain", "--dry-run")
    assert arrivals(frozen_cli) == list(range(1, 9))
    frozen_cli.good("maintain")
    assert arrivals(frozen_cli) == list(range(1, 10))


@pytest.mark.slow
def test_a_run_reads_each_log_entry_once(
    frozen_cli: Cli, hourly: str, monkeypatch: MonkeyPatch
) -> None:
    frozen_cli.good("capture")
    for rows in (2, 5, 3):
        append(hourly, 0.0, rows)
    reads = spied(monkeypatch, module, "read_entry")
    frozen_cli.good("maintain")
    assert set(Counter(version for _, version in reads).values()) <= {1}
    result = [(each.version, each.inserted) for each in history_of(frozen_cli)[-3:]]
    assert result == [(9, 2), (10, 5), (11, 3)]


@pytest.mark.slow
def test_cleaned_log_loses_no_history(frozen_cli: Cli, hourly: str) -> None:
    frozen_cli.good("capture")
    before = next_change(frozen_cli)
    append(hourly, 0.0, 4)
    frozen_cli.good("maintain")
    DeltaTable(hourly).create_checkpoint()
    for version in range(9):
        log_entry(hourly, version).unlink()
    after = next_change(frozen_cli)
    assert (after["rows"], after["unknown"]) == (before["rows"], None)
    # Without the store the history is lost.
    assert len(history_of(frozen_cli)) == 9
    forget_arrivals(frozen_cli.folder / ".impctl")
    assert next_change(frozen_cli)["unknown"] == "1 change is known, a forecast needs 5"


@pytest.mark.slow
def test_run_that_fails_records_nothing(frozen_cli: Cli, hourly: str) -> None:
    frozen_cli.good("capture")
    version = append(hourly, 0.0)
    files_before = set(DeltaTable(hourly, version=version - 1).file_uris())
    for uri in set(DeltaTable(hourly).file_uris()) - files_before:
        Path(uri.removeprefix("file://")).unlink()
    assert frozen_cli("maintain").code == 7
    assert arrivals(frozen_cli) == list(range(1, 9))


@pytest.mark.slow
def test_unexpected_change_is_reported_once(frozen_cli: Cli) -> None:
    def warning_of(command: str) -> str:
        (warning,) = surprise_warnings(frozen_cli.good(command))
        return warning

    never = "{path: t, changes: never}"
    frozen_cli.edit("{path: t}", never)
    append(frozen_cli.path("t"), HOUR)
    # Changes before the file was written, or before the first look, are not unexpected.
    assert surprise_warnings(frozen_cli.good("capture")) == []
    assert "never change" in next_change(frozen_cli)["unknown"]
    append(frozen_cli.path("t"), 0.0)
    append(frozen_cli.path("t"), 0.0)
    ran = frozen_cli.good("maintain")
    (warning,) = surprise_warnings(ran)
    assert "table `t` changed in versions 2 to 3" in warning
    assert (ran.results[0]["action"], ran.results[0]["reason_code"]) == ("exact", "incremental")
    assert surprise_warnings(frozen_cli.good("maintain")) == []
    frozen_cli.table("t").optimize.compact()
    assert surprise_warnings(frozen_cli.good("maintain")) == []
    for command, version in (("maintain", 5), ("capture", 6)):
        append(frozen_cli.path("t"), 0.0)
        assert f"changed in version {version}," in warning_of(command)
    frozen_cli.edit(never, "{path: t}")
    append(frozen_cli.path("t"), 0.0)
    assert surprise_warnings(frozen_cli.good("maintain")) == []


def test_pending_change_is_reported_without_history(frozen_cli: Cli) -> None:
    frozen_cli.edit("{path: t}", "{path: t, changes: never}")
    append(frozen_cli.path("t"), HOUR)
    frozen_cli.good("capture")
    forget_arrivals(frozen_cli.folder / ".impctl")
    append(frozen_cli.path("t"), 0.0)
    (warning,) = surprise_warnings(frozen_cli.good("maintain"))
    assert "changed in version 2," in warning


def test_failed_record_stops_nothing(
    frozen_cli: Cli, hourly: str, monkeypatch: MonkeyPatch
) -> None:
    frozen_cli.good("capture")
    append(hourly, 0.0)
    refused = StorageError("the disk said no", hint="mend it")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save_arrivals", Mock(side_effect=refused))
        ran = frozen_cli.good("maintain")
    assert ran.results[0]["action"] == "exact"
    assert ran.document["warnings"] == ["the disk said no; mend it"]
    append(hourly, 0.0)
    frozen_cli.good("maintain")
    assert arrivals(frozen_cli) == list(range(1, 11))


@pytest.mark.slow
def test_expectation_of_the_file_is_used(frozen_cli: Cli) -> None:
    frozen_cli.edit("{path: t}", "{path: t, changes: {every: 2h, rows: 200}}")
    frozen_cli.good("capture")
    append(frozen_cli.path("t"), HOUR)
    result = next_change(frozen_cli)
    assert result["in_s"] == pytest.approx(HOUR, abs=60)
    assert (result["rows"], result["by"]) == (200, "the workload file")


@pytest.mark.slow
def test_tables_changed_together_are_one_change(frozen_cli: Cli, hourly: str) -> None:
    other = frozen_cli.path("u")
    write_deltalake(other, pa.table({"g": [1, 2], "y": [1, 2]}))
    for n in range(8, 0, -1):
        write_deltalake(other, pa.table({"g": [1], "y": [2]}), mode="append")
        set_time(other, DeltaTable(other).version(), FROZEN_NOW - (n - 0.49) * HOUR)
    frozen_cli.edit("  t: {path: t}", "  t: {path: t}\n  u: {path: u}")
    frozen_cli.edit("FROM t", "FROM t JOIN u USING (g)")
    frozen_cli.edit("SUM(x)", "SUM(y)")
    frozen_cli.good("capture")
    result = next_change(frozen_cli)
    assert (result["tables"], result["rows"]) == (["t", "u"], 5)
