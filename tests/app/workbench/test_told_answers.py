"""Answers from kept rows come into the ledger, each once, about once a second."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from impctl.service.context import ToldAnswers
from impctl.store import ledger as ledgers
from impctl.store.ledger import Ledger


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_write_a_second_and_what_is_left_at_the_end(tmp_path: Path) -> None:
    clock = Clock()
    told, ledger = ToldAnswers(clock), Ledger(tmp_path)
    assert told.add(tmp_path, "q")
    assert ledger.sums("q").answers == 1, "a program that asks once need not close anything"
    for _ in range(5):
        assert told.add(tmp_path, "q")
    assert ledger.sums("q").answers == 1
    clock.now += 1.0
    assert told.add(tmp_path, "r")
    assert (ledger.sums("q").answers, ledger.sums("r").answers) == (6, 1)
    assert told.add(tmp_path, "r")
    assert told.write()
    assert told.write()
    assert (ledger.sums("q").answers, ledger.sums("r").answers) == (6, 2)


def test_a_write_that_fails_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    told, ledger = ToldAnswers(clock), Ledger(tmp_path)
    assert told.add(tmp_path, "q")
    monkeypatch.setattr(ledgers, "_PATIENCE", 0.05)
    holder = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    clock.now += 1.0
    assert not told.add(tmp_path, "q")
    assert told.add(tmp_path, "q"), "it is not waited for at every answer"
    holder.close()
    clock.now += 1.0
    assert told.add(tmp_path, "q")
    assert ledger.sums("q").answers == 4  # noqa: PLR2004


def test_answers_of_two_stores_are_not_mixed(tmp_path: Path) -> None:
    told = ToldAnswers(Clock())
    for store in ("one", "two"):
        (tmp_path / store).mkdir()
        assert told.add(tmp_path / store, "q")
        assert told.add(tmp_path / store, "q")
    assert told.write()
    assert Ledger(tmp_path / "one").sums("q").answers == 2  # noqa: PLR2004
    assert Ledger(tmp_path / "two").sums("q").answers == 2  # noqa: PLR2004
