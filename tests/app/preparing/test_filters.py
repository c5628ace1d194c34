"""What a query is left to read: files by the ranges of its sketch and by its own conditions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables.write.laid_out import create_laid_out_table
from tests.support.run_cli import Cli

DAYS = 80

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {day: {}, g: {}}}
queries:
  late: {sql: "SELECT g, SUM(x) s FROM t WHERE day >= 78 GROUP BY g", sketch: {t: g}}
  twice: {sql: "SELECT a.g FROM t a JOIN t b ON a.g = b.g WHERE a.day = 3", sketch: {t: g}}
store: .impctl
"""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A table sorted by day, a file a day; every other day's sum is large."""
    days = (
        pa.table({"day": [day] * 4, "g": [1, 2, 3, 4], "x": [400 if day % 2 == 0 else 1] * 4})
        for day in range(DAYS)
    )
    create_laid_out_table(str(tmp_path / "t"), days)
    file = tmp_path / "w.yaml"
    text = WORKLOAD.replace("{day: {}, g: {}}", "{day: {fragments: 100}, g: {fragments: 9}}")
    file.write_text(text)
    found = Cli(capsys, file)
    found.good("capture")
    return found


def files_left(cli: Cli, query: str) -> int:
    (result,) = cli.good("rewrite", "--query", query).results
    assert result["files_total"] == DAYS
    return int(result["files_kept"])


@pytest.mark.slow
def test_a_condition_leaves_files_out(cli: Cli) -> None:
    assert files_left(cli, "late") == 2


@pytest.mark.slow
def test_an_access_without_the_condition_needs_all_files(cli: Cli) -> None:
    assert files_left(cli, "twice") == DAYS
