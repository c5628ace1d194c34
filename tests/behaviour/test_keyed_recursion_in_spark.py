"""Keyed fixpoints verified by Spark: what the query above needs of a table of the rows derived."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.behaviour.keyed_workload import change, tenants

pytestmark = pytest.mark.spark

NAMES = ("few", "paths", "shared")


def test_spark_finds_the_keys_of_the_rows_that_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = tenants(tmp_path, capsys, NAMES)
    cli.good("capture")
    rng = random.Random(4)
    for _ in range(3):
        change(tmp_path, rng)
        cli.good("maintain")
    (few, *_) = cli.good("status").results
    sketches = [sketch["fragments"] for sketch in few["sketches"]]
    assert sketches[0] == sketches[1]
    assert {result["query"] for result in cli.verified()} == {*NAMES}
