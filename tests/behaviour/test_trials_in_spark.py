"""Random plans, tables, batches and other constants against Spark, without files between.

By hand: `IMPCTL_FUZZ=200` and `-m "slow or not slow"` for the 20,000 cases that a release is held
against.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.spark_trials import SparkTally, run_case
from tests.support.random_cases import random_cases

pytestmark = pytest.mark.spark

_TINY = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
"""Planning and compiling cost more than a few rows do."""


@pytest.fixture
def tiny(spark: Any) -> Iterator[Any]:
    """The session, made for rows that can be counted by hand."""
    before = {key: spark.conf.get(key, None) for key in _TINY}
    for key, value in _TINY.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@random_cases(9, 20, 100, all_when_long=True)
def test_a_sketch_changes_no_answer(tiny: Any, cases: range) -> None:
    tally = SparkTally()
    for seed in cases:
        run_case(tiny, seed, tally)
    assert tally.undecided == []
    assert tally.failed <= len(cases) // 20
    assert tally.judged > len(cases) // 3
    assert min(tally.reused, tally.checked, tally.barriers) > len(cases) // 20
