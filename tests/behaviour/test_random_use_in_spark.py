"""Random queries over tables of many files: read through the sketch, where it pays, and without.

By hand: `IMPCTL_FUZZ=50` and `-m "slow or not slow"` for three hundred cases, two seconds each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.random_cases import random_cases
from tests.support.random_uses import arriving, random_use
from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.spark


def judge(folder: Path, seed: int, capsys: Capsys) -> dict[str, Any] | None:
    """The result through the sketch, None where none can be captured; AssertionError if wrong."""
    case = random_use(seed)
    path = folder / str(seed)
    path.mkdir()
    create_table(str(path / "t"), case.files[0])
    for file in case.files[1:]:
        write_deltalake(str(path / "t"), file, mode="append")
    ranges = {name: {"fragments": case.fragments} for name in "ghsd"}
    workload = {
        "version": 1,
        "tables": {"t": {"path": "t"}},
        "queries": {"q": {"sql": case.sql}},
        "partitions": {} if case.fragments is None else {"t": ranges},
        "store": ".impctl",
        "spark": {"master": "local[2]"},
    }
    cli = Cli.over(capsys, path, json.dumps(workload))
    if code := cli("capture").code:
        assert code == 3, "refused, and nothing else"
        return None
    for rows in arriving(seed, case.files):
        write_deltalake(str(path / "t"), rows, mode="append")
    (plain,) = cli.good("query", "--sketch", "never").results
    for choice in ("auto", "always"):
        (result,) = cli.good("query", "--sketch", choice).results
        assert sorted(map(repr, result["rows"])) == sorted(map(repr, plain["rows"])), case.sql
    return result


@random_cases(1, 1, 6, first=8)
def test_the_answer_is_the_same(tmp_path: Path, capsys: Capsys, cases: range) -> None:
    match = [judge(tmp_path, case, capsys) for case in cases]
    captured = [result for result in match if result is not None]
    assert len(captured) > len(cases) // 2
    assert any(result["files_kept"] < result["files_total"] for result in captured)
