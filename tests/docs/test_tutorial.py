"""The tutorial's commands, run in order; what it prints is what they print, times aside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.docs.console_pages import ROOT, check_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif(
        not os.environ.get("IMPCTL_CRIMES", ""),
        reason="IMPCTL_CRIMES names no Parquet file of incidents",
    ),
]


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "workloads", tmp_path / "workloads")
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    check_page(page, tmp_path, columns=80)
