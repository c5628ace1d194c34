"""Commits made ready, settings named, recorded steps put into runs, figures taken."""

from __future__ import annotations

import pytest

from impctl.app.simulating.arrived import commits_of, merged
from impctl.app.simulating.figures import quantile
from impctl.app.simulating.recorded import runs_in
from impctl.app.simulating.setting import disks_from, settings_of, trigger_from
from impctl.errors import UsageError
from impctl.forecast.arrival import Arrival
from impctl.store.records import RunRecord
from impctl.workload.trigger_models import ON_COMMIT, Trigger


def arrival(at: float | None, rows: int | None, size: int = 0) -> Arrival:
    gone = None if rows is None else 0
    return Arrival(0, at, rows, gone, 1, size, "WRITE")


def test_rows_that_a_log_does_not_tell_go_by_bytes() -> None:
    told = [arrival(1, 10, 100), arrival(2, 30, 300), arrival(3, None, 50), arrival(4, None)]
    found = commits_of(told, 0.0, 9.0)
    assert [*found.rows] == [0, 10, 40, 45, 65]
    assert (found.guessed, len(found)) == (2, 4)
    assert [*commits_of([arrival(1, None, 7)], 0.0, 9.0).rows] == [0, 100]


def test_commits_before_and_after_are_no_part_of_it() -> None:
    told = [arrival(1, 1), arrival(5, 2), arrival(4, 4), arrival(None, 8), arrival(9, 16)]
    found = commits_of(told, 5.0, 8.0)
    assert ([*found.times], [*found.rows]) == ([5.0, 5.0, 5.0], [0, 2, 6, 14])
    assert found.next_after(5.0) is None
    assert found.next_after(4.9) == 5.0
    assert len(commits_of(told, 6.0, 8.0)) == 0


def test_commits_of_several_tables_keep_their_order() -> None:
    one = commits_of([arrival(1, 1), arrival(4, 2)], 0.0, 9.0)
    other = commits_of([arrival(2, 4, 7), arrival(4, 8)], 0.0, 9.0)
    found = merged({"b": one, "a": other})
    assert ([*found.times], [*found.rows]) == ([1, 2, 4, 4], [0, 1, 5, 13, 15])
    assert [*found.bytes] == [0, 0, 7, 7, 7]


def test_every_budget_by_every_trigger_and_none_twice() -> None:
    fresh, each = Trigger(fresh_within=600.0), ON_COMMIT
    assert [one.name for one in settings_of(None, [], [])] == ["as it is"]
    found = settings_of(10**9, disks_from(["500MB, all", "500MB"]), [fresh, each, fresh])
    assert [one.name for one in found] == [
        "as it is",
        *("500 MB, fresh_within 10m", "500 MB, commit"),
        *("all kept, fresh_within 10m", "all kept, commit"),
    ]
    assert [one.name for one in settings_of(10**9, [], [fresh])] == [
        "as it is",
        "1 GB, fresh_within 10m",
    ]
    assert [one.name for one in settings_of(None, [0], [])] == ["as it is", "0 B"]
    assert settings_of(10**9, [], [])[0].disk == 10**9


def test_a_trigger_is_read_as_in_the_file() -> None:
    assert trigger_from("commit") == ON_COMMIT
    assert trigger_from("fresh_within: 10m") == Trigger(fresh_within=600.0)
    assert trigger_from("{rows: 5, every: 1h}") == Trigger(rows=5, every=3_600.0)
    with pytest.raises(UsageError) as caught:
        trigger_from("{rows: 5, evry: 1h}")
    assert str(caught.value.location) == "--trigger:1:11"
    assert "every" in (caught.value.hint or "")


def record(ended: float, took_ms: float, commit_ms: float = 0.0) -> RunRecord:
    return RunRecord(
        action="exact",
        reason_code="",
        reason="",
        started_at=ended,
        elapsed_ms=took_ms + commit_ms,
        read_ms=took_ms / 2,
        engine_ms=took_ms / 2,
        commit_ms=commit_ms,
        changes=1,
        added=0,
        removed=0,
        versions={},
    )


def test_steps_close_together_are_one_run() -> None:
    a, b = ("a", record(10.0, 500.0, 900.0)), ("b", record(13.0, 1_000.0))
    assert runs_in([], 1.0) == 0
    assert runs_in([a, b], 1.2) == 1
    assert runs_in([a, b], 1.0) == 2, "b began 1.1 s after the commit of a was over"
    assert runs_in([a, ("a", record(10.1, 50.0))], 1.2) == 2, "no query comes twice in a run"


def test_a_quantile_is_one_of_the_numbers() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    hundred = [float(at) for at in range(1, 101)]
    assert [quantile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
