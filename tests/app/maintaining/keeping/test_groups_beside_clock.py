"""Groups below a constant that moves with the clock are kept, whatever the joins below them do."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.workbench.sessions import OwnSession
from impctl.tables.write.create import create_table
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli

SQL = (
    "SELECT t.g, COUNT(*) n FROM t JOIN u ON t.k = u.k GROUP BY t.g HAVING MAX(t.d) < current_date"
)


def rows(first: int) -> pa.Table:
    days = [dt.date(2026, 1, first + at) for at in range(8)]
    groups = pa.array([1, 2, 3, 4, None, 1, 2, 3], pa.int64())
    return pa.table({"g": groups, "k": pa.array([0, 1, 2, None] * 2, pa.int64()), "d": days})


def test_they_are_kept_where_sides_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)
    monkeypatch.setenv("IMPCTL_NOW", "2026-01-05")
    create_table(str(tmp_path / "t"), rows(1))
    create_table(str(tmp_path / "u"), pa.table({"k": pa.array([0, 1, None], pa.int64())}))
    lines = "".join(
        f'  {name}: {{sql: "{SQL}", sketch: {{t: g}}, join: {join}, policy: strict}}\n'
        for name, join in (("q", "files"), ("twin", "index"))
    )
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        f"partitions: {{t: {{g: {{boundaries: [2, 3, 4]}}}}}}\nqueries:\n{lines}store: .impctl\n"
    )
    cli = Cli(capsys, tmp_path / "w.yaml")
    cli.good("capture", "--disk", "0")
    found = []
    for day, first in ((8, 3), (12, 12), (6, 1), (25, 2)):
        monkeypatch.setenv("IMPCTL_NOW", f"2026-01-{day:02}")
        write_deltalake(str(tmp_path / "t"), rows(first), mode="append")
        ran = cli.good("maintain", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"exact"}
        assert stored(tmp_path, "q").state_meta["from_files"] == ["join0.left", "join0.right"]
        mine, theirs = (
            [sorted(one.fragments.ids) for one in stored(tmp_path, name).sketches]
            for name in ("q", "twin")
        )
        assert mine == theirs
        found.append(mine)
    assert len({str(one) for one in found}) > 1, "the clock moved something"
