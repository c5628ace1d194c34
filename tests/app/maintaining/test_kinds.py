"""Kinds of change out of generated histories: who moves together, how often, how many rows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from impctl.app.maintaining.kinds import DAY, Kind, expected_of, kinds_of
from impctl.forecast.arrival import Arrival, History

NOW = 2e9
HOUR = 3600.0


def history(
    times: Iterable[float | None],
    rows: int | None = 10,
    deleted: int | None = 0,
    days: float = 30.0,
) -> History:
    """Commits so many seconds before now."""
    inserted = None if rows is None else rows - (deleted or 0)
    arrivals = [
        Arrival(v, None if back is None else NOW - back, inserted, deleted, 1, 1, "WRITE")
        for v, back in enumerate(times, start=1)
    ]
    return History("x", len(arrivals), NOW - days * DAY, tuple(arrivals))


def every(pause: float, days: float, shift: float = 0.0) -> list[float]:
    return [n * pause - shift for n in range(int(days * DAY / pause), 0, -1)]


def found(histories: dict[str, History], together: float | None = None) -> dict[str, Kind]:
    kinds = kinds_of(histories, NOW, together)
    named = {" ".join(sorted(kind.tables)): kind for kind in kinds}
    assert len(named) == len(kinds)
    return named


def moments(generator: random.Random) -> list[float]:
    """Up to thirty, the first one longest ago; they are not always in order."""
    back = [generator.uniform(0, 3e5) for _ in range(generator.randrange(30))]
    return sorted(back, reverse=True) if generator.random() < 0.8 else back


def test_tables_that_are_loaded_together_are_one_kind() -> None:
    kinds = found(
        {"orders": history(every(HOUR, 15)), "lines": history(every(HOUR, 15, shift=40.0))}
    )
    assert list(kinds) == ["lines orders"]
    assert len(kinds["lines orders"].changes) == 15 * 24
    # Further apart than any two runs they are two.
    apart = found({"a": history(every(HOUR, 9)), "b": history(every(HOUR, 9, shift=1200.0))})
    assert sorted(apart) == ["a", "b"]
    # And so they are in the eyes of who looks all the time.
    assert sorted(found({"a": history([99.0]), "b": history([90.0])}, together=5.0)) == ["a", "b"]
    assert sorted(found({"a": history([99.0]), "b": history([90.0])}, together=9.0)) == ["a b"]


def test_commits_of_a_busy_table_are_changes_of_their_own() -> None:
    (kind,) = kinds_of({"t": history(every(60.0, 0.2), days=0.2)}, NOW)
    assert len(kind.changes) == 288
    assert expected_of(kind, NOW).per_day == pytest.approx(1440, rel=0.01)


def test_every_commit_is_in_one_change_and_changes_keep_their_rows() -> None:
    generator = random.Random(6)
    for _ in range(40):
        histories = {name: history(moments(generator)) for name in "abc"}
        together = generator.choice([None, 0.0, 1000.0, 1e9])
        changes = [c for kind in kinds_of(histories, NOW, together) for c in kind.changes]
        total = sum(len(held.arrivals) for held in histories.values())
        assert sum(change.rows or 0 for change in changes) == 10 * total
        ordered = sorted(changes, key=lambda change: change.at)
        gaps = [b.at - a.at for a, b in zip(ordered, ordered[1:], strict=False)]
        assert together is None or all(gap > together for gap in gaps)


@pytest.mark.parametrize("days", [0.0, 1.0, 9.5, 365.0])
def test_what_never_changed_may_change(days: float) -> None:
    (kind,) = kinds_of({"t": history([], days=days)}, NOW)
    expected = expected_of(kind, NOW)
    assert expected.per_day == expected.chance == 1 / (2 * days + 2)
    assert expected.rows == {"t": None}


def test_a_table_that_nobody_looked_at_is_as_one_of_no_days() -> None:
    (kind,) = kinds_of({"t": History("", -1, None)}, NOW)
    assert (kind.days, expected_of(kind, NOW).per_day) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("pause", "days"), [(600.0, 2.0), (HOUR, 15.0), (DAY, 60.0), (7 * DAY, 700.0)]
)
def test_rates_are_those_of_regular_tables(pause: float, days: float) -> None:
    (kind,) = kinds_of({"t": history(every(pause, days), days=days)}, NOW)
    expected = expected_of(kind, NOW)
    assert expected.per_day == pytest.approx(DAY / pause, rel=0.1)
    assert 0 < expected.chance < 1
    assert expected.rows == {"t": 10.0}


def test_a_rate_follows_what_changed_of_late() -> None:
    ceased = [40 * DAY + back for back in every(HOUR, 15)]
    (kind,) = kinds_of({"t": history(ceased, days=60)}, NOW)
    # Over all sixty days it was six a day.
    assert expected_of(kind, NOW).per_day < 1.1
    assert expected_of(kind, NOW).chance < 0.1


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
    (kind,) = kinds_of({"t": history(every(HOUR, 2), rows=None)}, NOW)
    assert expected_of(kind, NOW).rows == {"t": None}
    assert all(change.rows is None for change in kind.changes)
    (kind,) = kinds_of({"t": history(every(HOUR, 2), rows=5, deleted=None)}, NOW)
    assert expected_of(kind, NOW).rows == {"t": None}


def test_a_time_that_is_not_known_counts_for_no_days() -> None:
    held = history(every(DAY, 20), days=20)
    gone = held.arrivals[10]
    behind = Arrival(*[getattr(gone, name) for name in Arrival.__slots__[:7]], True)
    broken = History("x", 20, held.since, (*held.arrivals[:10], behind, *held.arrivals[11:]))
    (whole,), (kind,) = kinds_of({"t": held}, NOW), kinds_of({"t": broken}, NOW)
    assert (whole.days, kind.days) == pytest.approx((20.0, 19.0))


@pytest.mark.parametrize(
    "times",
    [
        [],
        [5.0],
        [0.0] * 30,
        [-1e9] * 30,
        [1e6, -5.0, 2e6, 0.0, None] * 9,
        [None] * 9,
        [10.0 * 2.0**n for n in range(24, 0, -1)],
        [1.9e9, 1.0],
    ],
)
def test_hard_histories_have_sound_rates(times: list[float | None]) -> None:
    for together in (None, 0.0, 1e12):
        for kind in kinds_of({"t": history(times), "u": history(times[::2])}, NOW, together):
            expected = expected_of(kind, NOW)
            assert 0 < expected.per_day < math.inf
            assert 0 < expected.chance < 1
            assert all(rows is None or rows >= 0 for rows in expected.rows.values())
            assert all(0 <= share <= 1 for share in expected.deletes.values())
