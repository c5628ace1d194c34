"""Answers of random plans by the engine, once and from kept rows, against Spark's.

By hand: `IMPCTL_FUZZ=25` and `-m slow` for 7,500 cases.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.answer_trials import AnswerTally, run_answers
from tests.support.random_cases import random_cases

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@random_cases(25, 25, 300)
def test_random_answers_are_sparks(spark: Any, cases: range) -> None:
    tally = AnswerTally()
    for seed in cases:
        run_answers(spark, seed, tally)
    assert tally.run > len(cases) * 3 // 4
    assert tally.kept > len(cases) // 4
    assert tally.ordered > len(cases) // 2
    # Spark may fail on a row that the engine need not look at; then there is no answer to compare.
    assert len(tally.unnoticed) <= len(cases) // 50
