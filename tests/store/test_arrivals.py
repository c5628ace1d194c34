"""Commits of tables as numbers: what is saved comes back, bounded, and damage opens a gap."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from impctl.forecast import KEPT, Commit, History
from impctl.store.store import Store
from tests.store.builders import capture, in_catalog, record
from tests.support.kept_workload import as_format


def arrival(version: int, at: float | None = None) -> Commit:
    when = version * 60.0 if at is None else at
    return Commit(version, when, version, None, 1, 10 * version, "WRITE")


def history(first: int, last: int, table_id: str = "a") -> History:
    return History(table_id, last, 60.0, tuple(arrival(v) for v in range(first, last + 1)))


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        store.commit_capture(capture(), {}, record())
    return root


def saved(root: Path, result: History) -> None:
    with Store.open(root) as store:
        store.save_arrivals({"t": result})


def test_histories_come_back_as_they_were_saved(root: Path) -> None:
    unsure = History("b", 7, None, (replace(arrival(7), at=None, inserted=None),), True)
    with Store.open(root) as store:
        assert store.arrivals(["t", "u"]) == {}
        store.save_arrivals({"t": history(1, 3), "u": unsure})
        assert store.arrivals(["u", "t", "v"]) == {"u": unsure, "t": history(1, 3)}
        assert store.arrivals(["t"]) == {"t": history(1, 3)}


def test_a_history_that_went_on_replaces_nothing_but_what_is_new_or_gone(root: Path) -> None:
    with Store.open(root) as store:
        store.save_arrivals({"t": history(1, 400)})
        store.save_arrivals({"u": history(1, 2)})
    statement = "UPDATE arrival SET operation = 'touched' WHERE version = 200 RETURNING version"
    assert in_catalog(root, statement) == [(200,)]
    saved(root, replace(history(101, 410), since=None))
    rows = in_catalog(root, "SELECT version, operation FROM arrival WHERE table_name = 't'")
    assert [version for version, _ in rows] == list(range(11, 411))
    # Written again it would not be touched any more.
    assert [version for version, operation in rows if operation == "touched"] == [200]


def test_what_goes_on_needs_the_end_only(store: Store) -> None:
    store.save_arrivals({"t": history(1, 5)})
    end = store.arrivals(["t"], is_whole=False)["t"]
    assert end == replace(history(1, 5), arrivals=())
    store.save_arrivals({"t": replace(end, until=7, arrivals=(arrival(6), arrival(7)))})
    assert store.arrivals(["t"])["t"] == history(1, 7)
    store.save_arrivals({"t": replace(end, until=8)})
    assert store.arrivals(["t"])["t"] == replace(history(1, 7), until=8)


@pytest.mark.parametrize("first", [1, 2])
def test_the_latest_are_kept_and_known_since_the_first_of_them(store: Store, first: int) -> None:
    store.save_arrivals({"t": history(first, KEPT)})
    assert store.arrivals(["t"])["t"] == history(first, KEPT)
    end = store.arrivals(["t"], is_whole=False)["t"]
    store.save_arrivals({"t": replace(end, until=KEPT + 1, arrivals=(arrival(KEPT + 1),))})
    result = store.arrivals(["t"])["t"]
    assert [each.version for each in result.arrivals] == list(range(2, KEPT + 2))
    assert result.since == (60.0 if first == 2 else 120.0)


@pytest.mark.parametrize("other", [history(1, 2, "b"), history(1, 2), History("b", 0, None)])
def test_another_table_or_a_log_that_went_back_takes_the_place(
    store: Store, other: History
) -> None:
    store.save_arrivals({"t": history(1, 9)})
    store.save_arrivals({"t": other})
    assert store.arrivals(["t"]) == {"t": other}


def test_an_altered_row_is_left_out_and_leaves_a_gap(root: Path) -> None:
    saved(root, history(1, 5))
    statement = "UPDATE arrival SET inserted = 0 WHERE version = 3 RETURNING version"
    assert in_catalog(root, statement) == [(3,)]
    with Store.open(root) as store:
        arrivals = store.arrivals(["t"])["t"].arrivals
    assert [each.version for each in arrivals] == [1, 2, 4, 5]
    assert [each.is_after_gap for each in arrivals] == [False, False, True, False]


def test_an_altered_log_row_makes_a_table_unknown(root: Path) -> None:
    saved(root, history(1, 5))
    assert in_catalog(root, "UPDATE arrival_log SET until = 4 RETURNING until") == [(4,)]
    with Store.open(root) as store:
        assert store.arrivals(["t"]) == {}
        store.save_arrivals({"t": history(4, 5)})
        assert store.arrivals(["t"]) == {"t": history(4, 5)}


def test_a_store_of_before_knows_none_and_takes_them(root: Path) -> None:
    saved(root, history(1, 5))
    as_format(root, 5)
    with Store.open(root, create=False) as store:
        assert store.arrivals(["t"]) == {}
        assert store.queries() == ("q",)
    with Store.open(root) as store:
        assert store.arrivals(["t"]) == {}
        store.save_arrivals({"t": history(1, 5)})
        assert store.arrivals(["t"]) == {"t": history(1, 5)}
