"""Answers of random plans by the engine, once and from kept rows, against Spark's.

By hand: `IMPCTL_FUZZ=100` and `-m slow` for 7,500 cases.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from impctl.engine.batch import Batch
from impctl.engine.operators.kept import KeptRows
from tests.behaviour.answer_trials import AnswerTally, WrongAnswerError, run_answers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CASES = 75 * int(os.environ.get("IMPCTL_FUZZ", "1"))


def test_random_answers_are_sparks(spark: Any) -> None:
    tally = many_answers(spark, CASES)
    assert tally.run > CASES * 3 // 4
    assert tally.kept > CASES // 4
    assert tally.ordered > CASES // 2
    # Spark may fail on a row that the engine need not look at; then there is no answer to compare.
    assert len(tally.unnoticed) <= CASES // 50


def test_a_lost_row_would_be_noticed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: rows that are all told but the first."""
    whole = KeptRows.whole

    def short(self: KeptRows) -> Batch:
        found = whole(self)
        return found.take(np.arange(1, len(found), dtype=np.int64)) if len(found) else found

    monkeypatch.setattr(KeptRows, "whole", short)
    with pytest.raises(WrongAnswerError):
        many_answers(spark, 150)


def many_answers(spark: Any, cases: int) -> AnswerTally:
    tally = AnswerTally()
    for seed in range(cases):
        run_answers(spark, seed, tally)
    return tally
