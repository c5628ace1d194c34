"""Costs of runs, commits of tables and uses of sketches: kept whole, bounded, never in the way."""

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


def add_cost(store: Store, given: RunCost) -> None:
    store.add_record("q", replace(record(), cost=given))


def maintained(store: Store) -> list[RunCost]:
    return [one for one in store.costs("q") if one.kind == "maintain"]


def test_costs_come_back_newest_first_and_bounded(store: Store) -> None:
    for number in range(KEPT + 5):
        add_cost(store, cost(number))
    store.add_record("q", record())
    costs = store.costs("q")
    assert costs[:KEPT] == tuple(cost(n) for n in reversed(range(5, KEPT + 5)))
    assert costs[KEPT:] == (cost(7, "recapture"),)


def test_runs_over_other_tables_do_not_push_each_other_out(store: Store) -> None:
    for number in range(2 * KEPT):
        add_cost(store, replace(cost(number), moved=("a", "b") if number % 2 else ("a",)))
    for number in range(3 * KEPT):
        add_cost(store, replace(cost(number), moved=("c",)))
    moved = Counter(one.moved for one in maintained(store))
    assert moved == {("a",): KEPT, ("a", "b"): KEPT, ("c",): KEPT}


def test_runs_over_state_kept_otherwise_do_not_push_each_other_out(store: Store) -> None:
    layouts = ("", "join0.left read", "aggregate0 best 8")
    for number in range(3 * KEPT):
        one = replace(cost(number), moved=("a",), layout=layouts[number % 3])
        add_cost(store, one)
        assert store.costs("q")[0] == one
    assert Counter(one.layout for one in maintained(store)) == dict.fromkeys(layouts, KEPT)


@pytest.mark.parametrize("was_chosen", [False, True])
def test_of_runs_before_their_layout_was_told(root: Path, was_chosen: bool) -> None:
    """They are of all state kept, but where a budget may have moved it meanwhile."""
    made_by = StateChoiceBasis(budget=1, rates=(), bytes=2, pins={}, least=1)
    with Store.open(root) as store:
        store.save_chosen(made_by if was_chosen else None)
    as_first_format(root)
    with Store.open(root) as store:
        assert store.costs("q") == (() if was_chosen else (cost(7, "recapture"),))
        assert store.chosen() is None


def test_of_many_sets_of_tables_the_latest_are_kept(store: Store) -> None:
    for number in range(MOST + 10):
        add_cost(store, replace(cost(number), moved=(f"t{number}",)))
    assert [one.rows for one in maintained(store)] == list(reversed(range(10, MOST + 10)))


PARTS = RunParts((0.125, 0.0, 1e6), (SideRead("join0.left", 3, 2, 7, 1.5), SideRead("join1.left")))


def test_parts_of_a_run_come_back(store: Store) -> None:
    for moved in ((), ("a",)):
        given = replace(cost(1), parts=PARTS, moved=moved)
        add_cost(store, given)
        assert store.costs("q")[0] == given


@pytest.mark.parametrize(
    "text",
    [
        *("7", "[]", "{", '{"times":[1]}', '{"times":[-1],"reads":{}}', '{"times":1,"reads":{}}'),
        *('{"times":[NaN],"reads":{}}', '{"times":[],"reads":{"a":[1]}}'),
        '{"times":[],"reads":{"a":[1,2,3,"x"]}}',
    ],
)
def test_parts_that_impctl_did_not_write_are_none(text: str) -> None:
    assert parts_in(text) is None


def test_an_amended_record_amends_its_cost(store: Store) -> None:
    add_cost(store, cost(1))
    store.amend_record("q", replace(record(), cost=cost(2)))
    assert maintained(store) == [cost(2)]


def test_a_maintained_commit_keeps_its_cost(store: Store) -> None:
    change = maintain(1, 1)
    store.commit_maintain(replace(change, record=replace(change.record, cost=cost(3))))
    assert store.costs("q") == (cost(3), cost(7, "recapture"))


def test_costs_go_with_the_definition_of_their_query(store: Store) -> None:
    other = replace(capture(), fingerprint="another")
    store.commit_capture(other, {}, replace(record(), cost=cost(8, "recapture")))
    assert store.costs("q") == (cost(8, "recapture"),)


@pytest.mark.parametrize("change", ["elapsed_ms = 1e9", "moved = '[\"b\"]'", "layout = 'x'"])
def test_an_altered_row_is_left_out(root: Path, change: str) -> None:
    with Store.open(root) as store:
        add_cost(store, replace(cost(1), moved=("a",)))
    in_catalog(root, f"UPDATE cost SET {change} WHERE kind = 'maintain'")
    with Store.open(root) as store:
        assert store.costs("q") == (cost(7, "recapture"),)
        assert store.load("q") is not None


def test_a_kind_that_only_another_release_knows_is_left_out(root: Path) -> None:
    (row,) = in_catalog(root, "SELECT * FROM cost WHERE kind = 'recapture'")
    later = (*sealed(row[0], "teleported", *row[2:8]), *row[9:])
    in_catalog(root, f"INSERT INTO cost VALUES ({', '.join('?' * len(later))})", later)
    with Store.open(root) as store:
        assert store.costs("q") == (cost(7, "recapture"),)


def test_a_reader_reads_an_older_store_and_leaves_it_alone(root: Path) -> None:
    as_first_format(root)
    before = (root / "catalog.sqlite").read_bytes()
    with Store.open(root, create=False) as store:
        assert store.queries() == ("q",)
        assert store.costs("q") == (cost(7, "recapture"),)
        assert not store.is_writable
    assert (root / "catalog.sqlite").read_bytes() == before


def arrival(version: int, at: float | None = None) -> Commit:
    when = version * 60.0 if at is None else at
    return Commit(version, when, version, None, 1, 10 * version, "WRITE")


def history(first: int, last: int, table_id: str = "a") -> History:
    return History(table_id, last, 60.0, tuple(arrival(v) for v in range(first, last + 1)))


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


DAY = 86_400
USE = Use("q", 10.0 * DAY, "query", "{}", True, 2, 10, 20, 100, 200, 1000, 1.5)


def drawn(count: int, seed: int) -> list[Use]:
    rng = random.Random(seed)
    result = []
    for number in range(count):
        read = [rng.randint(0, 9), rng.randint(0, 99), rng.randint(0, 999)]
        more = [rng.randint(0, 50) for _ in range(3)]
        query, at = rng.choice(("q", "r")), DAY * (number // 10) + rng.randint(0, DAY - 1)
        is_used = rng.random() < 0.8
        sizes = [size for one, other in zip(read, more, strict=True) for size in (one, one + other)]
        elapsed = float(rng.randint(0, 9))
        result.append(Use(query, at, "query", '{"t": 1}', is_used, *sizes, elapsed))
    return result


def expected(uses: list[Use], since: float) -> Uses:
    """All uses since then, added up."""
    mine = [use for use in uses if use.at >= since]
    names = ("files", "files_plain", "rows", "rows_plain", "bytes", "bytes_plain", "elapsed_ms")
    sums = {name: sum(getattr(use, name) for use in mine) for name in names}
    return Uses(uses=len(mine), used=sum(use.is_used for use in mine), **sums)


def test_without_a_ledger_there_are_no_uses(tmp_path: Path) -> None:
    assert Ledger(tmp_path).sums("q") == Uses()
    assert Ledger(tmp_path / "nowhere").uses("q") == ()
    assert not Ledger(tmp_path / "nowhere").record(USE), "there is no store"


def test_a_use_comes_back_as_it_was(tmp_path: Path) -> None:
    assert Ledger(tmp_path).record(USE)
    assert Ledger(tmp_path).uses("q") == (USE,)
    assert Ledger(tmp_path).uses("r") == ()
    mode = stat.S_IMODE(os.stat(tmp_path / "ledger.sqlite").st_mode)
    assert mode == 0o600  # noqa: PLR2004  # its owner's alone


def test_sums_stay_exact_when_uses_become_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "KEPT", 7)
    uses, ledger = drawn(200, 1), Ledger(tmp_path)
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


def test_processes_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy disk makes all of them wait for each other; how long is not what is asked here.
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


def test_a_ledger_that_cannot_be_written_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record(USE)
    monkeypatch.setattr(ledgers, "_PATIENCE", 0.05)
    holder = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    assert not ledger.record(USE)
    assert time.monotonic() - started < 1
    assert ledger.sums("q").uses == 1, "readers do not wait for it either"
    holder.close()
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 100)
    assert not ledger.record(USE)
    assert ledger.sums("q") == Uses()


def test_answers_from_kept_rows_are_counted_per_day(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record(USE)
    for at in (3.5 * DAY, 3.2 * DAY, 4.1 * DAY):
        assert ledger.record_answers({"k": 1}, at)
    assert ledger.record_answers({"r": 2, "s": 1}, 9.0 * DAY)
    assert ledger.sums("k") == Uses(answers=3, last=4.1 * DAY), "no file was read for them"
    assert ledger.sums("k", 3.9 * DAY) == Uses(answers=3, last=4.1 * DAY), "that day is whole"
    assert ledger.sums("k", 4.05 * DAY) == Uses(answers=1, last=4.1 * DAY)
    assert ledger.sums("k", 5.0 * DAY) == Uses()
    assert ledger.sums("r").answers == 2
    assert ledger.record_answers({"q": 1}, 9.0 * DAY)
    both = ledger.sums("q")
    assert (both.uses, both.answers, both.last) == (1, 1, USE.at), "the latest of either"
    assert ledger.record_answers({"q": 1}, 11.0 * DAY)
    assert ledger.sums("q").last == 11.0 * DAY


def test_a_ledger_of_before_has_no_kept_answers(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record(USE)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as older:
        older.execute("DROP TABLE answer")
    assert ledger.sums("q").answers == 0
    assert ledger.sums("q").uses == 1
    assert ledger.record_answers({"q": 1}, DAY)
    assert (ledger.sums("q").answers, ledger.sums("q").last) == (1, USE.at)


RUN = AnswerRun("q", 7, "engine", 3.0, 2, 20, 300, 1.5)


def test_runs_come_back_newest_first_of_their_text_and_bounded(tmp_path: Path) -> None:
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
    assert ledger.sums("q") == Uses(), "no use of a sketch"


def test_of_many_texts_the_latest_runs_are_held(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for text in range(70):
        ledger.record_run(replace(RUN, text=text))
    assert [text for text in range(70) if ledger.runs("q", text)] == list(range(6, 70))


def test_a_damaged_ledger_has_no_runs_and_takes_none(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record_run(RUN)
    for file in tmp_path.iterdir():
        file.write_bytes(b"no database" * 99)
    assert not ledger.record_run(RUN)
    assert ledger.runs("q", 7) == ()
