"""`doctor` on commits whose times cannot be; what triggers make of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS


def said(table: str, version: int, at: float) -> None:
    """Have the commit say another time."""
    path = Path(table) / "_delta_log" / f"{version:020}.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] = int(at * 1000)
    path.write_text("\n".join(map(json.dumps, lines)))


def told(cli: Cli) -> list[str]:
    results = cli.good("doctor").results
    return [one["message"] for one in results if one["check"] == "commit_times"]


def test_a_commit_from_the_future_and_one_that_goes_back(cli: Cli, table: str) -> None:
    write_deltalake(table, ROWS.slice(0, 1), mode="append")
    write_deltalake(table, ROWS.slice(0, 1), mode="append")
    assert told(cli) == []
    said(table, 2, time.time() + 10_800)
    (message,) = told(cli)
    assert "version 2" in message
    assert "3 h ahead" in message
    said(table, 1, 10_000.0)
    said(table, 2, 10_000.0)
    messages = told(cli)
    assert len(messages) == 1, "equal times are none to tell of"
    assert "version 1 says 1970-01-01 02:46:40Z" in messages[0]


@pytest.mark.parametrize("ahead", [7_200.0, 0.0])
def test_a_bound_holds_from_now_on_where_a_commit_says_later(
    cli: Cli, table: str, ahead: float
) -> None:
    text = cli.workload.read_text()
    trigger = "policy: incremental\n    trigger: {fresh_within: 1h}"
    cli.workload.write_text(text.replace("policy: incremental", trigger))
    cli.good("capture")
    write_deltalake(table, ROWS.slice(0, 1), mode="append")
    said(table, 1, time.time() + ahead)
    result: dict[str, Any]
    (result,) = cli.good("plan", "--due").results
    assert not result["due"]
    assert result["oldest_at"] <= result["start_at"] <= result["due_by"]
    (status,) = cli.good("status").results
    assert 0 <= status["fresh"]["age_s"] < 60
