"""The commands of the pages, run in order: what they print is what the pages show, times aside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.consoles import PAGES, TUTORIAL, Page, run


def check_page(page: Page, folder: Path) -> None:
    commands = run(page, folder)
    assert len(commands) >= 3
    for shown in commands:
        assert shown.is_true, (shown.command, shown.exit_code, shown.printed)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(
    not os.environ.get("IMPCTL_CRIMES", ""),
    reason="IMPCTL_CRIMES names no Parquet file of incidents",
)
def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    check_page(TUTORIAL, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_prints_what_the_page_shows(page: Page, tmp_path: Path) -> None:
    check_page(page, tmp_path)
