"""The ledger: uses are kept whole, sums exact, and nobody waits for it."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from impctl.store import ledger as ledgers
from impctl.store.ledger import AnswerRun, Ledger, Use, Uses

DAY = 86_400
USE = Use("q", 10.0 * DAY, "query", "{}", True, 2, 10, 20, 100, 200, 1000, 1.5)


def drawn(count: int, seed: int) -> list[Use]:
    rng = random.Random(seed)
    result = []
    for number in range(count):
        files, rows, size = rng.randint(0, 9), rng.randint(0, 99), rng.randint(0, 999)
        more = [rng.randint(0, 50) for _ in range(3)]
        result.append(
            Use(
                rng.choice(("q", "r")),
                DAY * (number // 10) + rng.randint(0, DAY - 1),
                "query",
                '{"t": 1}',
                rng.random() < 0.8,
                files,
                files + more[0],
                rows,
                rows + more[1],
                size,
                size + more[2],
                float(rng.randint(0, 9)),
            )
        )
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


def _record(folder: Path, count: int) -> None:
    for _ in range(count):
        assert Ledger(folder).record(USE)


def test_processes_at_once_lose_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy disk makes all of them wait for each other; how long is not what is asked here.
    monkeypatch.setattr(ledgers, "_PATIENCE", 60.0)
    started = [multiprocessing.Process(target=_record, args=(tmp_path, 25)) for _ in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0
    assert Ledger(tmp_path).sums("q").uses == 100  # noqa: PLR2004


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
    runs = ledger.runs("q", 7)
    assert [(run.by, run.rows, run.start_ms) for run in runs] == [
        (by, number, float(number)) for number in range(9, 1, -1) for by in ("spark", "engine")
    ]
    assert (ledger.runs("q", 8), ledger.runs("r", 7)) == (
        (replace(RUN, text=8),),
        (replace(RUN, query="r"),),
    )
    assert ledger.sums("q") == Uses(), "no use of a sketch"


def test_of_many_texts_the_latest_runs_are_held(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for text in range(70):
        ledger.record_run(replace(RUN, text=text))
    assert [text for text in range(70) if ledger.runs("q", text)] == list(range(6, 70))


def _record_runs(folder: Path, by: str) -> None:
    for _ in range(20):
        while not Ledger(folder).record_run(replace(RUN, by=by)):
            pass


def test_processes_at_once_lose_no_run(tmp_path: Path) -> None:
    start = multiprocessing.get_context("spawn").Process
    names = ("engine", "spark", "state")
    writers = [start(target=_record_runs, args=(tmp_path, by)) for by in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    kept = [run.by for run in Ledger(tmp_path).runs("q", 7)]
    assert {by: kept.count(by) for by in names} == dict.fromkeys(names, 8)


def test_a_damaged_ledger_has_no_runs_and_takes_none(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.record_run(RUN)
    for file in tmp_path.iterdir():
        file.write_bytes(b"no database" * 99)
    assert not ledger.record_run(RUN)
    assert ledger.runs("q", 7) == ()
