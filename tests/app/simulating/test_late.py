"""Rows that come late: none lost, none twice, in shares of what is left; and what is no such."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest

from impctl.errors import UsageError
from impctl.forecast import Arrival, History
from impctl.service.schedule import replay as late_rows
from impctl.service.schedule.replay import Late, late_from, late_histories, spread
from tests.support.random_cases import random_seeds

FOREVER = 1e12


def arrival(
    at: float, inserted: int | None, deleted: int | None = 0, size: int = 0, version: int = 0
) -> Arrival:
    return Arrival(version, at, inserted, deleted, 1, size, "WRITE", is_after_gap=True)


def amounts(rows: int, p: Fraction) -> list[int]:
    """The rows that come turn by turn, the obvious way."""
    result = []
    while sum(result) < rows:
        result.append(ceil(p * (rows - sum(result))))
    return result


def test_nine_in_ten_and_of_the_rest_again() -> None:
    late = late_from("p: 0.9, every: 60s")
    (parts,) = spread({"t": [arrival(100.0, 10_000, size=10_000)]}, late, FOREVER).values()
    assert [part.inserted for part in parts] == [9_000, 900, 90, 9, 1]
    assert [part.at for part in parts] == [100.0, 160.0, 220.0, 280.0, 340.0]
    assert [part.bytes for part in parts] == [9_000, 900, 90, 9, 1]
    assert [part.is_after_gap for part in parts] == [True, False, False, False, False]


@random_seeds(2, 16, 30)
def test_no_row_is_lost_and_none_comes_twice(seed: int) -> None:
    rng = random.Random(seed)
    p = Fraction(rng.choice(["0.9", "1", "0.5", "0.05", "0.333333", "0.999999", "1.0", ".25"]))
    late = Late(p, rng.choice([0.5, 60.0, 3_600.0]))
    commits = [
        arrival(rng.uniform(0, 500), *rng.choices([0, 1, 2, 9, 10, 11, 1_000, 10**12], k=2), 7, at)
        for at in range(rng.randrange(1, 6))
    ]
    (parts,) = spread({"t": commits}, late, FOREVER).values()
    assert [part.at for part in parts] == sorted(part.at or 0.0 for part in parts)
    for commit in commits:
        mine = [part for part in parts if part.version == commit.version]
        assert commit.at is not None
        assert [part.at for part in mine] == [
            commit.at + at * late.every for at in range(len(mine))
        ]
        assert sum(part.bytes for part in mine) == commit.bytes
        for name in ("inserted", "deleted"):
            told = [getattr(part, name) for part in mine]
            expected = amounts(getattr(commit, name), p)
            assert told == expected + [0] * (len(told) - len(expected))
        # None but of a commit that changes nothing is without a row.
        assert all(part.rows for part in mine) or (len(mine), commit.rows) == (1, 0)


def test_what_a_log_does_not_tell_comes_whole() -> None:
    told = [arrival(0.0, None, None, 50), arrival(5.0, 3, None, 60), arrival(9.0, 0, 0, 70)]
    (parts,) = spread({"t": told}, Late(Fraction(1, 2), 1.0), FOREVER).values()
    assert parts == told


def test_all_at_once_changes_nothing() -> None:
    told = [arrival(5.0, 3, 9, 60), arrival(7.0, 10**12, 0, 3)]
    assert spread({"t": told, "u": []}, late_from("p: 1, every: 7d"), 8.0) == {"t": told, "u": []}


def test_more_commits_than_can_be_replayed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late(Fraction(1, 2), 1.0)
    told = {"t": [arrival(0.0, 8), arrival(1.0, 8)], "u": [arrival(0.0, 8)]}
    counts = Counter({name: len(parts) for name, parts in spread(told, late, FOREVER).items()})
    assert counts == {"t": 8, "u": 4}
    assert late_rows.MOST_COMMITS == 1_000_000
    monkeypatch.setattr(late_rows, "MOST_COMMITS", 12)
    spread(told, late, FOREVER)
    monkeypatch.setattr(late_rows, "MOST_COMMITS", 11)
    with pytest.raises(UsageError, match="more than 11 commits"):
        spread(told, late, FOREVER)
    # Of a share so small a single commit would come in more parts than memory holds.
    monkeypatch.setattr(late_rows, "MOST_COMMITS", 10_000)
    with pytest.raises(UsageError, match="more than 10,000 commits"):
        spread({"t": [arrival(0.0, 10**12)]}, late_from("p: 0.0000001, every: 1s"), FOREVER)


def test_times_are_those_that_a_history_is_replayed_by() -> None:
    """Of commits without a time, before the one before them, and in the future."""
    commits = (arrival(50.0, 2), arrival(10.0, 2), replace(arrival(0.0, 2), at=None))
    held = History("t", 4, 50.0, (*commits, arrival(900.0, 2)))
    result = late_histories({"t": held}, Late(Fraction(1, 2), 5.0), 100.0)["t"]
    assert [part.at for part in result.arrivals] == [50.0] * 4 + [55.0] * 4
    assert (result.until, result.since) == (4, 50.0)


@pytest.mark.parametrize(
    ("text", "p", "every"),
    [
        ("p: 0.9, every: 60s", Fraction(9, 10), 60.0),
        ("{p: 0.9, every: 60s}", Fraction(9, 10), 60.0),
        ("every: 500ms, p: 1", Fraction(1), 0.5),
        ("p: .25, every: 2 h", Fraction(1, 4), 7_200.0),
        ("p: 0.1, every: 1m", Fraction(1, 10), 60.0),
    ],
)
def test_it_is_read_with_braces_and_without(text: str, p: Fraction, every: float) -> None:
    assert late_from(text) == Late(p, every)


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        ("p: 0, every: 60s", "must be a share", "--late:1:4"),
        ("p: nan, every: 60s", "must be a share", "--late:1:4"),
        ("p: , every: 60s", "", "--late:1:4"),
        ("p: 0.9, every: 60", "must be a duration", "--late:1:16"),
        ("p: 0.9", "every", "--late:1:1"),
        ("every: 1s", "`p`", "--late:1:1"),
        ("p: 0.9, evry: 60s", "evry", "--late:1:9"),
        ("p: [0.9], every: 60s", "", "--late:1:4"),
        ("", "", "--late:1:1"),
        ("p: 0.9, every: 60s}, {", "cannot be read", "--late:1:20"),
        ("{p: 0.9", "cannot be read", "--late:1:8"),
    ],
)
def test_what_is_none_has_a_place_and_a_hint(text: str, said: str, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        late_from(text)
    assert said in caught.value.message
    assert str(caught.value.location) == place
    assert caught.value.hint
    assert caught.value.exit_code == 2
