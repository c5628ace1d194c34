"""Recursive queries verified by Spark's own rounds: sketches, answers both ways, kept rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.behaviour.recursive_workload import BEST, KEPT, change, network

pytestmark = pytest.mark.spark

NAMES = (KEPT, "from_one", "not_reached", "by_groups", *BEST)


def test_spark_derives_what_was_maintained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = network(tmp_path, capsys, NAMES)
    cli.good("capture")
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    found = cli.good("verify", "--results").results
    assert {result["query"] for result in found} == {*NAMES}
    for result in found:
        assert result["covers"], result
        assert result["slack"] == 0, result
        assert result["results_equal"], result
        assert result["answer_equal"] in (None, True), result
    assert any(result["answer_equal"] for result in found)
