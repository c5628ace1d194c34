"""Sequences of updates, queries and deletions: seeded, with the counts asked for; series run
several times: totals are medians, and every run is checked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.measuring.follower import AgainstRecapture
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.kinds import mixed, strategies
from impctl.app.measuring.kinds.deletion_patterns import deletions_of, pattern_of
from impctl.app.measuring.kinds.mixed_strategies import Spent
from impctl.app.measuring.kinds.old_rows import _spelled
from impctl.app.measuring.kinds.operations import Operation, Ratio, sequence
from impctl.errors import UsageError
from impctl.tables.source import open_source
from tests.support.measured_cells import ground_of


@pytest.mark.parametrize(
    ("text", "found"),
    [("1U1Q", Ratio(1, 1)), ("5U1Q", Ratio(5, 1)), ("1u5q", None), ("0U1Q", None), ("5", None)],
)
def test_a_ratio_is_read(text: str, found: Ratio | None) -> None:
    assert Ratio.read(text) == found
    assert found is None or str(found) == text


def test_a_sequence_repeats_its_block() -> None:
    found = sequence(Ratio(2, 3), 12, 4, seed=1)
    assert [each.constants is None for each in found] == [True, True, False, False, False] * 3
    asked = [each.constants for each in found if each.constants is not None]
    assert set(asked) <= set(range(4))
    assert found == sequence(Ratio(2, 3), 12, 4, seed=1)
    assert found != sequence(Ratio(2, 3), 12, 4, seed=2)


def test_one_choice_of_constants_is_always_asked() -> None:
    assert sequence(Ratio(1, 1), 2, 1, seed=1) == (Operation(None), Operation(0))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("minimal", (True,)),
        ("random", (False,)),
        ("2:1", (False, False, True)),
        ("4:1", (False, False, False, False, True)),
        ("0:1", None),
        ("least", None),
    ],
)
def test_a_pattern_is_read(text: str, found: tuple[bool, ...] | None) -> None:
    assert pattern_of(text) == found


def test_minimal_deletions_take_the_least_rows_first() -> None:
    keys = np.array([7, 3, 9, 1, 5])
    taken = [part.tolist() for part in deletions_of((True,), keys, 2, seed=1)]
    assert taken == [[7, 3], [9, 1], [5]]


def test_mixed_deletions_take_every_row_once() -> None:
    keys = np.arange(100)
    parts = [part.tolist() for part in deletions_of((False, True), keys, 8, seed=3)]
    assert sorted(key for part in parts for key in part) == keys.tolist()
    assert [len(part) for part in parts] == [8] * 12 + [4]
    left = sorted(set(range(100)) - set(parts[0]))
    assert parts[1] == left[:8]
    assert parts == [part.tolist() for part in deletions_of((False, True), keys, 8, seed=3)]
    assert parts != [part.tolist() for part in deletions_of((False, True), keys, 8, seed=4)]


def test_a_key_is_a_column_of_whole_numbers_in_any_letters(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"Number": [1, 2], "name": ["a", "b"]}))
    snapshot = open_source("t", path).snapshot()
    assert _spelled(snapshot, "number") == "Number"
    for name in ("name", "id"):
        with pytest.raises(UsageError, match=f"no column `{name}` of whole numbers"):
            _spelled(snapshot, name)


GOOD = AgainstRecapture(covers=True, slack=0)


@pytest.fixture
def ground() -> Ground:
    return ground_of(None, "mixed", "q", repeat=3)


def answers(*values: int) -> tuple[pa.Table, ...]:
    return tuple(pa.table({"a": [value]}) for value in values)


def run(total: float, found: tuple[pa.Table, ...], checked: AgainstRecapture = GOOD) -> Any:
    return mixed._Run(Spent(query_ms=total), 0.0, found, 1, checked)


def test_totals_of_a_mixed_workload(ground: Ground) -> None:
    expected = answers(1, 2)
    runs = [run(30.0, answers(1, 2)), run(10.0, answers(1, 2)), run(11.0, answers(1, 2))]
    cell = mixed._cell(ground, {}, runs, expected, 4)
    total = cell.metrics["total_ms"]
    assert (total.median, total.low, total.high, total.runs) == (11.0, 10.0, 30.0, 3)
    assert (cell.equal, cell.covers, cell.slack) == (True, True, 0)


def test_one_wrong_run_of_a_mixed_workload_is_told(ground: Ground) -> None:
    expected = answers(1, 2)
    wrong = [run(1.0, answers(1, 2)), run(1.0, answers(1, 3))]
    assert mixed._cell(ground, {}, wrong, expected, 4).equal is False
    small = [run(1.0, expected), run(1.0, expected, AgainstRecapture(covers=False, slack=2))]
    cell = mixed._cell(ground, {}, small, expected, 4)
    assert (cell.covers, cell.slack, cell.equal) == (False, 2, None)


def test_totals_of_a_strategy(ground: Ground) -> None:
    def series(*steps: float, checked: AgainstRecapture = GOOD) -> Any:
        done = SimpleNamespace(engine_ms=1.0, commit_ms=1.0)
        found = [SimpleNamespace(total_ms=step, read_ms=1.0, done=done) for step in steps]
        return strategies._Run(cast(Any, found), checked)

    options = strategies._Options(updates=4, changes=1, batches=(2,), key="id")
    runs = [
        series(1.0, 2.0),
        series(5.0, 5.0),
        series(2.0, 2.0, checked=AgainstRecapture(False, 0)),
    ]
    cell = strategies._cell(ground, options, 2, runs)
    total, step = cell.metrics["maintain_ms"], cell.metrics["step_ms"]
    assert (total.median, total.low, total.high, total.runs) == (4.0, 3.0, 10.0, 3)
    assert (step.median, step.runs) == (2.0, 6)
    assert cell.covers is False
