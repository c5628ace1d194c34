"""A clone shares data files with its origin and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from impctl.errors import TableError, UsageError
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write import maintenance
from impctl.tables.write.maintenance import clone_table, create_table


def contents(path: Path) -> dict[str, bytes]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def make(path: Path) -> Path:
    create_table(str(path), pa.table({"k": ["a", "a/b"], "v": [1, 2]}), partition_by=["k"])
    DeltaTable(str(path)).update(updates={"v": "v + 1"})
    return path


@pytest.mark.parametrize("can_link", [True, False])
def test_changes_of_the_clone_never_reach_the_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no hard links here")

    if not can_link:
        monkeypatch.setattr(maintenance.os, "link", refuse)
    origin, target = make(tmp_path / "a"), tmp_path / "b"
    before = contents(origin)
    clone_table(str(origin), str(target))
    assert contents(target) == before
    shared = [os.path.samefile(origin / name, target / name) for name in before]
    assert any(shared) is can_link
    assert not any(os.path.samefile(origin / n, target / n) for n in before if "_delta_log" in n)
    table = DeltaTable(str(target))
    table.delete("v = 2")
    table.create_checkpoint()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert contents(origin) == before
    assert read_rows(open_source("t", str(target)).snapshot(), ["v"]).num_rows == 1


def test_refusals(tmp_path: Path) -> None:
    origin = make(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(UsageError, match="The path already exists"):
        clone_table(str(origin), str(tmp_path / "b"))
    with pytest.raises(UsageError, match="cloned into itself"):
        clone_table(str(origin), str(origin / "inside"))
    with pytest.raises(TableError, match="no Delta table to clone"):
        clone_table(str(tmp_path / "b"), str(tmp_path / "c"))
    with pytest.raises(UsageError, match="Only tables on the local disk"):
        clone_table("s3://bucket/t", str(tmp_path / "c"))
