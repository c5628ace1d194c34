"""Series run several times: totals are medians, and every run is checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from impctl.app.measuring.follower import AgainstRecapture
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.kinds import mixed, strategies
from impctl.app.measuring.kinds.mixed_strategies import Spent
from tests.support.measured_cells import ground_of

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
