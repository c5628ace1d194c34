"""Kept answers where the state that they live in is damaged, collected, moved, or of before."""

from __future__ import annotations

import sqlite3

import pytest
from deltalake import write_deltalake

from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from tests.app.using.test_kept_answer import KEPT, asked, captured, changed, rows_of
from tests.app.using.test_kept_answer import cli as cli  # noqa: PLC0414  # a fixture
from tests.app.using.test_kept_answer import held as held  # noqa: PLC0414  # a fixture
from tests.support.run_cli import Cli, Ran
from tests.support.run_records import run_record


def damage(cli: Cli, query: str, arrangement: str = "answer.rows") -> None:
    """One bit of what is kept of the query under this name."""
    own = "(SELECT id FROM query WHERE name = ?)"
    chosen = f"WHERE arrangement = ? AND query_id = {own}"
    with sqlite3.connect(cli.workload.parent / ".impctl" / "catalog.sqlite") as connection:
        sql = f"SELECT sequence, content FROM run {chosen}"
        found = connection.execute(sql, (arrangement, query)).fetchall()
        assert found
        for sequence, content in found:
            spoiled = bytearray(content)
            spoiled[len(spoiled) // 2] ^= 1
            sql = f"UPDATE run SET content = ? {chosen} AND sequence = ?"
            connection.execute(sql, (spoiled, arrangement, query, sequence))
    connection.close()


def query(cli: Cli, name: str, *words: str) -> Ran:
    return cli("query", "--query", name, "--sketch", "auto", *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "auto") for name in ("kept", "window")),
        *(pytest.param(name, "auto", marks=pytest.mark.slow) for name in ("top", "rows")),
        ("kept", "incremental"),
    ],
)
def test_damaged_rows_are_read_anew_with_a_warning(held: Cli, name: str, policy: str) -> None:
    wanted = asked(held, name, "engine")
    damage(held, name)
    ran = query(held, name, "--policy", policy)
    assert ran.code == 0, ran.document
    (result,) = ran.results
    assert (result["by"], result["action"]) == ("engine", "none")
    assert sorted(result["rows"], key=repr) == sorted(wanted, key=repr) != []
    (warning,) = ran.document["warnings"]
    assert f"the kept answer of query `{name}` is not used" in warning
    assert "checksum" in warning
    assert "`impctl capture`" in warning
    held.good("capture", "--query", name)
    assert asked(held, name, "state") == wanted


@pytest.mark.parametrize("words", [(), ("--where", "`key` = 3"), ("--where", "n > 0")])
def test_damaged_rows_are_refused_to_who_asks_for_them(held: Cli, words: tuple[str, ...]) -> None:
    damage(held, "kept")
    ran = query(held, "kept", "--by", "state", *words)
    assert (ran.code, ran.error["code"]) == (7, "state_corrupt")
    assert "impctl capture" in ran.error["hint"]
    strict = query(held, "kept", "--policy", "strict", *words)
    assert (strict.code, strict.error["code"]) == (7, "state_corrupt")


@pytest.mark.slow
def test_damaged_rows_are_captured_anew_where_tables_changed(held: Cli) -> None:
    damage(held, "kept")
    changed(held)
    ran = query(held, "kept", "--by", "state")
    (result,) = ran.results
    assert (result["by"], result["action"]) == ("state", "recapture")
    assert result["rows"] == asked(held, "kept", "engine")
    (warning,) = ran.document["warnings"]
    assert "was recaptured" in warning
    assert "checksum" in warning


def test_a_policy_without_recapture_says_why_there_is_no_state(held: Cli) -> None:
    damage(held, "kept")
    changed(held)
    ran = query(held, "kept", "--by", "state", "--policy", "incremental")
    assert (ran.code, ran.error["code"]) == (7, "state_corrupt")
    (result,) = query(held, "kept", "--policy", "incremental").results
    assert (result["by"], result["action"]) == ("engine", "no_sketch")
    assert result["rows"] == asked(held, "kept", "engine")


def test_a_query_that_was_never_captured_says_so(cli: Cli) -> None:
    ran = query(cli, "kept", "--by", "state")
    assert (ran.code, ran.error["code"]) == (7, "not_captured")
    assert "impctl capture" in ran.error["hint"]
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"


@pytest.mark.slow
def test_other_state_that_is_damaged_spoils_no_answer(cli: Cli) -> None:
    """What maintaining needs is not read to answer; the next change finds it out."""
    cli.good("capture", "--query", "kept")
    wanted = asked(cli, "kept", "state")
    catalog = cli.workload.parent / ".impctl" / "catalog.sqlite"
    with sqlite3.connect(catalog) as connection:
        sql = "SELECT DISTINCT arrangement FROM run"
        others = {name for (name,) in connection.execute(sql)} - {"answer.rows"}
    connection.close()
    for name in others:
        damage(cli, "kept", name)
    assert others
    assert asked(cli, "kept", "state") == wanted
    changed(cli)
    (result,) = query(cli, "kept", "--by", "state").results
    assert result["action"] == "recapture"
    assert result["rows"] == asked(cli, "kept", "engine")


@pytest.mark.slow
def test_what_gc_collects_is_no_part_of_an_answer(held: Cli) -> None:
    for _ in range(2):
        changed(held)
        held.good("maintain", *(f"--query={name}" for name in KEPT))
    held.good("gc", "--keep", "1")
    changed(held)
    for name in KEPT:
        assert asked(held, name, "state") == asked(held, name, "engine") != []


@pytest.mark.slow
def test_a_store_of_before_has_no_answers_and_goes_on(cli: Cli) -> None:
    """What was written before answers were kept says nothing of them."""
    cli.good("capture", "--query", "plain")
    _forget_answers(cli, "plain")
    changed(cli)
    (maintained,) = cli.good("maintain", "--query", "plain").results
    assert maintained["action"] == "exact"
    (result,) = query(cli, "plain").results
    assert result["by"] == "engine"
    (older,) = query(cli, "plain", "--at", "0").results
    assert older["rows"] != result["rows"]
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"


@pytest.mark.slow
def test_an_answer_asked_for_later_is_captured(cli: Cli) -> None:
    """So it is in a store of before, and what was kept goes where it is no longer asked for."""
    cli.good("capture", "--query", "plain")
    _forget_answers(cli, "plain")
    file = cli.workload
    without = file.read_text()
    file.write_text(without.replace("sql: *text", "sql: *text\n    answer: true"))
    changed(cli)
    (result,) = query(cli, "plain", "--by", "state").results
    assert (result["by"], result["action"]) == ("state", "recapture")
    assert sorted(result["rows"], key=repr) == asked(cli, "plain", "engine")
    file.write_text(without)
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"
    with Store.open(file.parent / ".impctl", create=False) as store:
        assert "answer.rows" not in store.load_runs("plain")


def _forget_answers(cli: Cli, name: str) -> None:
    """The stored description as it was before there were answers."""
    with Store.open(cli.workload.parent / ".impctl") as store, store.lock(10, "a test"):
        stored = store.load(name)
        assert stored is not None
        meta = dict(stored.state_meta)
        assert meta.pop("answer") is False
        record = run_record("exact", versions=stored.versions)
        store.commit_maintain(
            MaintainCommit(name, stored.generation, stored.pins, record, state_meta=meta)
        )


@pytest.mark.slow
def test_new_ranges_take_answers_along(cli: Cli) -> None:
    file = cli.workload
    file.write_text(file.read_text().replace("g: {boundaries: [2, 4, 6]}", "g: {fragments: 3}"))
    captured(cli)
    more = rows_of(*((group, 11, 1.0, 9) for group in range(10, 90) for _ in range(2)))
    write_deltalake(str(file.parent / "t"), more, mode="append")
    cli.good("maintain", *(f"--query={name}" for name in KEPT))
    before = {name: asked(cli, name, "state") for name in KEPT}
    done = cli.good("capture", "--rebalance", *(f"--query={name}" for name in KEPT)).results
    assert "rebalance" in {result["action"] for result in done}
    assert {name: asked(cli, name, "state") for name in KEPT} == before
    changed(cli)
    for name in KEPT:
        assert asked(cli, name, "state") == asked(cli, name, "engine") != []
