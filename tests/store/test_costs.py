"""Costs of runs: bounded, gone with their definition, never in the way; older stores are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from impctl.store.catalog import sealed
from impctl.store.records import Chosen, RunCost, RunKind, RunParts, SideRead
from impctl.store.store import Store
from impctl.store.tables import KEPT, MOST, parts_in
from tests.store.builders import capture, in_catalog, maintain, record
from tests.support.older_store import as_format


def cost(number: int, kind: str = "maintain") -> RunCost:
    return RunCost(
        RunKind(kind), number, number * 10, float(number), spark=kind != "maintain", start_ms=1.5
    )


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        store.commit_capture(capture(), {}, replace(record(), cost=cost(7, "recapture")))
    return root


def test_costs_come_back_newest_first_and_bounded(store: Store) -> None:
    for number in range(KEPT + 5):
        store.add_record("q", replace(record(), cost=cost(number)))
    store.add_record("q", record())
    costs = store.costs("q")
    assert costs[:KEPT] == tuple(cost(n) for n in reversed(range(5, KEPT + 5)))
    assert costs[KEPT:] == (cost(7, "recapture"),)


def test_runs_over_other_tables_do_not_push_each_other_out(store: Store) -> None:
    for number in range(2 * KEPT):
        moved = ("a", "b") if number % 2 else ("a",)
        one = replace(cost(number), moved=moved)
        store.add_record("q", replace(record(), cost=one))
    for number in range(3 * KEPT):
        store.add_record("q", replace(record(), cost=replace(cost(number), moved=("c",))))
    kept = [result.moved for result in store.costs("q") if result.kind == "maintain"]
    assert {moved: kept.count(moved) for moved in kept} == {
        ("a",): KEPT,
        ("a", "b"): KEPT,
        ("c",): KEPT,
    }


def test_runs_over_state_kept_otherwise_do_not_push_each_other_out(store: Store) -> None:
    for number in range(3 * KEPT):
        layout = ("", "join0.left read", "aggregate0 best 8")[number % 3]
        one = replace(cost(number), moved=("a",), layout=layout)
        store.add_record("q", replace(record(), cost=one))
        assert store.costs("q")[0] == one
    kept = [result.layout for result in store.costs("q") if result.kind == "maintain"]
    assert sorted(kept) == sorted(["", "join0.left read", "aggregate0 best 8"] * KEPT)


@pytest.mark.parametrize("was_chosen", [False, True])
def test_of_runs_before_their_layout_was_told(root: Path, was_chosen: bool) -> None:
    """They are of all state kept, but where a budget may have moved it meanwhile."""
    made_by = Chosen(budget=1, rates={}, bytes=2, pins={}, least=1)
    with Store.open(root) as store:
        store.save_chosen(made_by if was_chosen else None)
    as_format(root, 9)
    with Store.open(root) as store:
        assert store.costs("q") == (() if was_chosen else (cost(7, "recapture"),))
        assert store.chosen() is None


def test_of_many_sets_of_tables_the_latest_are_kept(store: Store) -> None:
    for number in range(MOST + 10):
        one = replace(cost(number), moved=(f"t{number}",))
        store.add_record("q", replace(record(), cost=one))
    kept = [result.rows for result in store.costs("q") if result.kind == "maintain"]
    assert kept == list(reversed(range(10, MOST + 10)))


PARTS = RunParts((0.125, 0.0, 1e6), (SideRead("join0.left", 3, 2, 7, 1.5), SideRead("join1.left")))


def test_parts_of_a_run_come_back(store: Store) -> None:
    for moved in ((), ("a",)):
        given = replace(cost(1), parts=PARTS, moved=moved)
        store.add_record("q", replace(record(), cost=given))
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
    store.add_record("q", replace(record(), cost=cost(1)))
    store.amend_record("q", replace(record(), cost=cost(2)))
    assert [c for c in store.costs("q") if c.kind == "maintain"] == [cost(2)]


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
        store.add_record("q", replace(record(), cost=replace(cost(1), moved=("a",))))
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
    as_format(root, 1)
    before = (root / "catalog.sqlite").read_bytes()
    with Store.open(root, create=False) as store:
        assert store.queries() == ("q",)
        assert store.costs("q") == ()
        assert not store.is_writable
    assert (root / "catalog.sqlite").read_bytes() == before


def test_a_writer_brings_an_older_store_up(root: Path) -> None:
    as_format(root, 1)
    with Store.open(root) as store:
        store.add_record("q", replace(record(), cost=cost(1)))
        assert store.costs("q") == (cost(1),)
        assert store.load("q") is not None
