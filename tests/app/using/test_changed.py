"""What came and went since older versions, by two answers, whatever the clock does meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from impctl.app.workbench.workbench import Workbench
from impctl.plan.sql.clock import Clock
from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli


def test_both_answers_since_a_version_are_of_one_instant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row came or went, though it is another day whenever somebody looks at the clock."""
    days = [datetime(2026, 3, day, tzinfo=UTC) for day in range(1, 9)]
    create_table(str(tmp_path / "t"), pa.table({"day": [day.date() for day in days]}))
    file = tmp_path / "w.yaml"
    sql = "SELECT day FROM t WHERE day >= current_date"
    text = f"version: 1\ntables:\n  t: {{path: t}}\nqueries:\n  q: {{sql: {sql}, sketch: none}}\n"
    file.write_text(f"{text}store: .impctl\n")
    looks = iter(days)
    monkeypatch.setattr(Workbench, "time", lambda _: Clock(next(looks)))
    (result,) = Cli(capsys, file).good("changes", "--since", "0").results
    assert result["rows"] == []
