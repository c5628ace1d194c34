"""The small workload of the use-case tests, opened from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.service.settings import ENVVARS
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import ROWS, WORKLOAD, made_once

__all__ = ["folder", "made_once"]

QUERIES = """\
  many:
    sql: "SELECT g, COUNT(*) AS n FROM t WHERE x >= :low AND note <> :word GROUP BY g"
    params: {low: 5, word: none}
    sketch: {t: g}
  none:
    sql: "SELECT g FROM t GROUP BY g HAVING COUNT(*) > 1000000"
    sketch: {t: g}
store: .impctl
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the table `t` and the workload `w.yaml`: queries `q`, `many` and `none`."""
    for entry in ENVVARS:
        monkeypatch.delenv(entry.name, raising=False)
    write_folder(tmp_path)
    return tmp_path


def write_folder(folder: Path) -> None:
    create_table(str(folder / "t"), ROWS)
    text = WORKLOAD.replace("POLICY", "incremental").replace("store: .impctl\n", QUERIES)
    (folder / "w.yaml").write_text(text)
