"""Costs of runs, arrivals of commits, and uses of sketches: stored intact and bounded."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
import stat
import time
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from impctl.forecast import KEPT as ARRIVALS_KEPT
from impctl.forecast import Commit, History
from impctl.store import ledger as ledgers
from impctl.store.catalog import sealed
from impctl.store.ledger import AnswerRun, Ledger, Use, Uses
from impctl.store.records import RunCost, RunKind, RunParts, SideRead, StateChoiceBasis
from impctl.store.rows import KEPT, MOST, parts_in
from impctl.store.store import Store
from tests.store.builders import capture, maintain, record
from tests.support.kept_workload import as_first_format, in_catalog


def cost(number: int, kind: str = "maintain") -> RunCost:
    return RunCost(
        RunKind(kind), number, number * 10, float(number), spark=kind != "maintain", start_ms=1.5
    )


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        store.commit_capture(capture(), {}, replace(record(), cost=cost(7, "recapture")))
    return root


def add_cost(store: Store, run_cost: RunCost) -> None:
    store.add_record("q", replace(record(), cost=run_cost))


def maintained(store: Store) -> list[RunCost]:
    return [one for one in store.costs("q") if one.kind == "maintain"]


def test_costs_are_newest_first_and_bounded(store: Store) -> None:
    for number in range(KEPT + 5):
        add_cost(store, cost(number))
    store.add_record("q", record())
    costs = store.costs("q")
    assert costs[:KEPT] == tuple(cost(n) for n in reversed(range(5, KEPT + 5)))
    assert costs[KEPT:] == (cost(7, "recapture"),)


def test_costs_are_bounded_per_set_of_tables(store: Store) -> None:
    for number in range(2 * KEPT):
        add_cost(store, replace(cost(number), moved=("a", "b") if number % 2 else ("a",)))
    for number in range(3 * KEPT):
        add_cost(store, replace(cost(number), moved=("c",)))
    moved = Counter(one.moved for one in maintained(store))
    assert moved == {("a",): KEPT, ("a", "b"): KEPT, ("c",): KEPT}


def test_costs_are_bounded_per_layout(store: Store) -> None:
    layouts = ("", "join0.left read", "aggregate0 best 8")
    for number in range(3 * KEPT):
        one = replace(cost(number), moved=("a",), layout=layouts[number % 3])
        add_cost(store, one)
        assert store.costs("q")[0] == one
    assert Counter(one.layout for one in maintained(store)) == dict.fromkeys(layouts, KEPT)


@pytest.mark.parametrize("was_chosen", [False, True])
def test_costs_from_before_layouts(root: Path, was_chosen: bool) -> None:
    """Older costs are of state kept completely, so they are dropped if a budget was set."""
    basis = StateChoiceBasis(budget=1, rates=(), bytes=2, pins={}, least=1)
    with Store.open(root) as store:
        store.save_chosen(basis if was_chosen else None)
    as_first_format(root)
    with Store.open(root) as store:
        assert store.costs("q") == (() if was_chosen else (cost(7, "recapture"),))
        assert store.chosen() is None


def test_latest_sets_of_tables_are_kept(store: Store) -> None:
    for number in range(MOST + 10):
        add_cost(store, replace(cost(number), moved=(f"t{number}",)))
    assert [one.rows for one in maintained(store)] == list(reversed(range(10, MOST + 10)))


PARTS = RunParts((0.125, 0.0, 1e6), (SideRead("join0.left", 3, 2, 7, 1.5), SideRead("join1.left")))


def test_parts_of_a_run_are_stored(store: Store) -> None:
    for moved in ((), ("a",)):
        stored_cost = replace(cost(1), parts=PARTS, moved=moved)
        add_cost(store, stored_cost)
        assert store.costs("q")[0] == stored_cost


@pytest.mark.parametrize(
    "text",
    [
        *("7", "[]", "{", '{"times":[1]}', '{"times":[-1],"reads":{}}', '{"times":1,"reads":{}}'),
        *('{"times":[NaN],"reads":{}}', '{"times":[],"reads":{"a":[1]}}'),
        '{"times":[],"reads":{"a":[1,2,3,"x"]}}',
    ],
)
def test_malformed_parts_are_ignored(text: str) -> None:
    assert parts_in(text) is None


def test_amended_record_amends_cost(store: Store) -> None:
    add_cost(store, cost(1))
    store.amend_record("q", replace(record(), cost=cost(2)))
    assert maintained(store) == [cost(2)]


def test_a_maintained_commit_keeps_its_cost(store: Store) -> None:
    change = maintain(1, 1)
    store.commit_maintain(replace(change, record=replace(change.record, cost=cost(3))))
    assert store.costs("q") == (cost(3), cost(7, "recapture"))


def test_new_definition_removes_costs(store: Store) -> None:
    other = replace(capture(), fingerprint="another")
    store.commit_capture(other, {}, replace(record(), cost=cost(8, "recapture")))
    assert store.costs("q") == (cost(8, "recapture"),)


@pytest.mark.parametrize("change", ["elapsed_ms = 1e9", "moved = '[\"b\"]'", "layout = 'x'"])
def test_altered_row_is_ignored(root: Path, change: str) -> None:
    with Store.open(root) as store:
        add_cost(store, replace(cost(1), moved=("a",)))
    in_catalog(root, f"UPDATE cost SET {change} WHERE kind = 'maintain'")
    with Store.open(root) as store:
        assert store.costs("q") == (cost(7, "recapture"),)
        assert store.load("q") is not None


def test_kind_of_a_later_release_is_ignored(root: Path) -> None:
    (row,) = in_catalog(root, "SELECT * FROM cost WHERE kind = 'recapture'")
    later = (*sealed(row[0], "teleported", *row[2:8]), *row[9:])
    in_catalog(root, f"INSERT INTO cost VALUES ({', '.join('?' * len(later))})", later)
    with Store.open(root) as store:
        assert store.costs("q") == (cost(7, "recapture"),)


def test_reader_does_not_change_an_older_store(root: Path) -> None:
    as_first_format(root)
    before = (root / "catalog.sqlite").read_bytes()
    with Store.open(root, create=False) as store:
        assert store.queries() == ("q",)
        assert store.costs("q") == (cost(7, "recapture"),)
        assert not store.is_writable
    assert (root / "catalog.sqlite").read_bytes() == before


def arrival(version: int, seconds: float | None = None) -> Commit:
    when = version * 60.0 if seconds is None else seconds
    return Commit(version, when, version, None, 1, 10 * version, "WRITE")


def history(first: int, last: int, table_id: str = "a") -> History:
    return History(table_id, last, 60.0, tuple(arrival(v) for v in range(first, last + 1)))


def save_history(root: Path, result: History) -> None:
    with Store.open(root) as store:
        store.save_arrivals({"t": result})


def test_histories_are_stored(root: Path) -> None:
    unsure = History("b", 7, None, (replace(arrival(7), at=None, inserted=None),), True)
    with Store.open(root) as store:
        assert store.arrivals(["t", "u"]) == {}
        store.save_arrivals({"t": history(1, 3), "u": unsure})
        assert store.arrivals(["u", "t", "v"]) == {"u": unsure, "t": history(1, 3)}
        assert store.arrivals(["t"]) == {"t": history(1, 3)}


def test_longer_history_writes_only_differences(root: Path) -> None:
    with Store.open(root) as store:
        store.save_arrivals({"t": history(1, 400)})
        store.save_arrivals({"u": history(1, 2)})
    statement = "UPDATE arrival SET operation = 'touched' WHERE version = 200 RETURNING version"
    assert in_catalog(root, statement) == [(200,)]
    save_history(root, replace(history(101, 410), since=None))
    rows = in_catalog(root, "SELECT version, operation FROM arrival WHERE table_name = 't'")
    assert [version for version, _ in rows] == list(range(11, 411))
    # Rows that already existed are not rewritten.
    assert [version for version, operation in rows if operation == "touched"] == [200]


def test_history_is_extended_from_its_end(store: Store) -> None:
    store.save_arrivals({"t": history(1, 5)})
    end = store.arrivals(["t"], is_whole=False)["t"]
    assert end == replace(history(1, 5), arrivals=())
    store.save_arrivals({"t": replace(end, until=7, arrivals=(arrival(6), arrival(7)))})
    assert store.arrivals(["t"])["t"] == history(1, 7)
    store.save_arrivals({"t": replace(end, until=8)})
    assert store.arrivals(["t"])["t"] == replace(history(1, 7), until=8)


@pytest.mark.parametrize("first", [1, 2])
def test_latest_arrivals_and_their_start_are_kept(store: Store, first: int) -> None:
    store.save_arrivals({"t": history(first, ARRIVALS_KEPT)})
    assert store.arrivals(["t"])["t"] == history(first, ARRIVALS_KEPT)
    end = store.arrivals(["t"], is_whole=False)["t"]
    store.save_arrivals(
        {"t": replace(end, until=ARRIVALS_KEPT + 1, arrivals=(arrival(ARRIVALS_KEPT + 1),))}
    )
    result = store.arrivals(["t"])["t"]
    assert [each.version for each in result.arrivals] == list(range(2, ARRIVALS_KEPT + 2))
    assert result.since == (60.0 if first == 2 else 120.0)


@pytest.mark.parametrize("other", [history(1, 2, "b"), history(1, 2), History("b", 0, None)])
def test_other_table_or_shorter_log_replaces_history(store: Store, other: History) -> None:
    store.save_arrivals({"t": history(1, 9)})
    store.save_arrivals({"t": other})
    assert store.arrivals(["t"]) == {"t": other}


def test_altered_arrival_leaves_a_gap(root: Path) -> None:
    save_history(root, history(1, 5))
    statement = "UPDATE arrival SET inserted = 0 WHERE version = 3 RETURNING version"
    assert in_catalog(root, statement) == [(3,)]
    with Store.open(root) as store:
        arrivals = store.arrivals(["t"])["t"].arrivals
    assert [each.version for each in arrivals] == [1, 2, 4, 5]
    assert [each.is_after_gap for each in arrivals] == [False, False, True, False]


def test_altered_log_row_removes_the_table(root: Path) -> None:
    save_history(root, history(1, 5))
    assert in_catalog(root, "UPDATE arrival_log SET until = 4 RETURNING until") == [(4,)]
    with Store.open(root) as store:
        assert store.arrivals(["t"]) == {}
        store.save_arrivals({"t": history(4, 5)})
        assert store.arrivals(["t"]) == {"t": history(4, 5)}


DAY = 86_400
USE = Use("q", 10.0 * DAY, "query", "{}", True, 2, 10, 20, 100, 200, 1000, 1.5)


def random_uses(count: int, seed: int) -> list[Use]:
    rng = random.Random(seed)
    result = []
    for number in range(count):
        read = [rng.randint(0, 9), rng.randint(0, 99), rng.randint(0, 999)]
        more = [rng.randint(0, 50) for _ in range(3)]
        query, seconds = rng.choice(("q", "r")), DAY * (number // 10) + rng.randint(0, DAY - 1)
        is_used = rng.random() < 0.8
        sizes = [size for one, other in zip(read, more, strict=True) for size in (one, one + other)]
        elapsed = float(rng.randint(0, 9))
        result.append(Use(query, seconds, "query", '{"t": 1}', is_used, *sizes, elapsed))
    return result


def expected(uses: list[Use], since: float) -> Uses:
    """The sums of all uses since this time."""
    recent = [use for use in uses if use.at >= since]
    names = ("files", "files_plain", "rows", "rows_plain", "bytes", "bytes_plain", "elapsed_ms")
    sums = {name: sum(getattr(use, name) for use in recent) for name in names}
    return Uses(uses=len(recent), used=sum(use.is_used for use in recent), **sums)


def test_without_a_ledger_there_are_no_uses(tmp_path: Path) -> None:
    assert Ledger(tmp_path).sums("q") == Uses()
    assert Ledger(tmp_path / "nowhere").uses("q") == ()
    assert not Ledger(tmp_path / "nowhere").record(USE), "no store"


def test_use_is_stored(tmp_path: Path) -> None:
    assert Ledger(tmp_path).record(USE)
    assert Ledger(tmp_path).uses("q") == (USE,)
    assert Ledger(tmp_path).uses("r") == ()
    mode = stat.S_IMODE(os.stat(tmp_path / "ledger.sqlite").st_mode)
    assert mode == 0o600  # noqa: PLR2004  # only its owner


def test_sums_per_day_stay_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "KEPT", 7)
    uses, ledger = random_uses(200, 1), Ledger(tmp_path)
    for use in uses:
        assert ledger.record(use)
    for query in ("q", "r"):
        mine = [use for use in uses if use.query == query]
        assert ledger.uses(query) == tuple(reversed(mine[-7:]))
        for day in (0, 3, 11, 19):
            assert replace(ledger.sums(query, day * DAY), last=None) == expected(mine, day * DAY)
    assert ledger.sums("q").last == max(use.at for use in uses if use.query == "q")


def _record(folder: Path, by: str) -> None:
    for _ in range(20):
        assert Ledger(folder).record(USE)
        assert Ledger(folder).record_run(replace(RUN, by=by))


def test_concurrent_processes_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy disk all wait for each other; this test does not check how long.
    monkeypatch.setattr(ledgers, "_PATIENCE", 60.0)
    names = ("engine", "spark", "state")
    started = [multiprocessing.Process(target=_record, args=(tmp_path, by)) for by in names]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0
    assert Ledger(tmp_path).sums("q").uses == 60
    assert Counter(run.by for run in Ledger(tmp_path).runs("q", 7)) == dict.fromkeys(names, 8)


def test_unwritable_ledger_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record(USE)
    monkeypatch.setattr(ledgers, "_PATIENCE", 0.05)
    blocker = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    assert not ledger.record(USE)
    assert time.monotonic() - started < 1
    assert ledger.sums("q").uses == 1, "readers do not wait"
    blocker.close()
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 100)
    assert not ledger.record(USE)
    assert ledger.sums("q") == Uses()


def test_answers_are_counted_per_day(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record(USE)
    for seconds in (3.5 * DAY, 3.2 * DAY, 4.1 * DAY):
        assert ledger.record_answers({"k": 1}, seconds)
    assert ledger.record_answers({"r": 2, "s": 1}, 9.0 * DAY)
    assert ledger.sums("k") == Uses(answers=3, last=4.1 * DAY), "without reading files"
    assert ledger.sums("k", 3.9 * DAY) == Uses(answers=3, last=4.1 * DAY), "days count as a whole"
    assert ledger.sums("k", 4.05 * DAY) == Uses(answers=1, last=4.1 * DAY)
    assert ledger.sums("k", 5.0 * DAY) == Uses()
    assert ledger.sums("r").answers == 2
    assert ledger.record_answers({"q": 1}, 9.0 * DAY)
    both = ledger.sums("q")
    assert (both.uses, both.answers, both.last) == (1, 1, USE.at), "the latest of both"
    assert ledger.record_answers({"q": 1}, 11.0 * DAY)
    assert ledger.sums("q").last == 11.0 * DAY


def test_older_ledger_has_no_answers(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record(USE)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as older:
        older.execute("DROP TABLE answer")
    assert ledger.sums("q").answers == 0
    assert ledger.sums("q").uses == 1
    assert ledger.record_answers({"q": 1}, DAY)
    assert (ledger.sums("q").answers, ledger.sums("q").last) == (1, USE.at)


RUN = AnswerRun("q", 7, "engine", 3.0, 2, 20, 300, 1.5)


def test_runs_per_text_are_newest_first_and_bounded(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.runs("q", 7) == ()
    for number in range(10):
        for by in ("engine", "spark"):
            assert ledger.record_run(replace(RUN, by=by, rows=number, start_ms=float(number)))
    assert ledger.record_run(replace(RUN, text=8))
    assert ledger.record_run(replace(RUN, query="r"))
    assert [(run.by, run.rows, run.start_ms) for run in ledger.runs("q", 7)] == [
        (by, number, float(number)) for number in range(9, 1, -1) for by in ("spark", "engine")
    ]
    assert ledger.runs("q", 8) == (replace(RUN, text=8),)
    assert ledger.runs("r", 7) == (replace(RUN, query="r"),)
    assert ledger.sums("q") == Uses(), "not a use of a sketch"


def test_runs_of_latest_texts_are_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for text in range(70):
        ledger.record_run(replace(RUN, text=text))
    assert [text for text in range(70) if ledger.runs("q", text)] == list(range(6, 70))


def test_damaged_ledger_stores_no_runs(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record_run(RUN)
    for file in tmp_path.iterdir():
        file.write_bytes(b"no database" * 99)
    assert not ledger.record_run(RUN)
    assert ledger.runs("q", 7) == ()
