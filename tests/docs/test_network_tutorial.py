"""The network's tutorial: its table and workload written, its commands run in order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.console_pages import ROOT, check_page


@pytest.mark.slow
def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What other tests ask for, a reader does not.
    monkeypatch.delenv("IMPCTL_SKETCH", raising=False)
    monkeypatch.delenv("IMPCTL_BY", raising=False)
    page = (ROOT / "docs" / "network-tutorial.md").read_text(encoding="utf-8")
    for language, name in (("python", "net.py"), ("yaml", "net.yaml")):
        found = re.search(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        assert found is not None
        (tmp_path / name).write_text(found[1])
    subprocess.run([sys.executable, "net.py"], cwd=tmp_path, check=True)
    check_page(page, tmp_path, columns=100)
