"""The page for Python is true: its blocks run, in order, on the running example."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from impctl.measure.generate import generate
from impctl.service.context import SilentReporter
from impctl.service.settings import ENVVARS, Example, GenerateRequest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_the_blocks_of_the_page_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in ENVVARS:
        monkeypatch.delenv(entry.name, raising=False)
    (tmp_path / "workloads").mkdir()
    shutil.copy(ROOT / "workloads" / "running-example.yaml", tmp_path / "workloads")
    generate(GenerateRequest(tmp_path / "demo", Example.RUNNING), SilentReporter())
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(page)
    assert len(blocks) == page.count("```python") >= 6
    names: dict[str, Any] = {}
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), names)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
