"""The script that traces a batch runs, and what it counts can be true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.arch.trace_batch import as_text, trace_in_memory


def check(report: dict[str, Any]) -> None:
    assert report["files"] <= report["functions"] <= report["calls"]
    assert report["files"] <= report["switches"] <= report["calls"]
    assert 2 < report["frames"] < report["calls"]
    assert set(report["types"]) <= set(report["records"])
    assert report["types"]
    assert report["idle"] + report["files"] >= report["modules"]
    assert sum(report["calls_by_file"].values()) == report["calls"]
    assert len(report["calls_by_file"]) == report["files"]


def test_state_in_memory(tmp_path: Path) -> None:
    report = trace_in_memory(tmp_path)
    check(report)
    text = as_text({"memory": report}, with_files=True)
    assert f"{report['calls']:,}" in text
    assert report["types"][-1] in text
    assert not [file for file in report["calls_by_file"] if file not in text]


@pytest.mark.slow
def test_the_script() -> None:
    words = [sys.executable, "-m", "tests.arch.trace_batch", "--json"]
    root = Path(__file__).parents[2]
    ran = subprocess.run(words, check=True, capture_output=True, text=True, cwd=root)
    reports = json.loads(ran.stdout)
    assert reports.keys() == {"memory", "fresh"}
    for report in reports.values():
        check(report)
    assert reports["memory"]["calls"] < reports["fresh"]["calls"]
