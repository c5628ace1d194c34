"""A workload file is read once as long as neither it nor what it is read with changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.app.workbench import memory as memories
from impctl.app.workbench.memory import Memory
from impctl.errors import UsageError, WorkloadError

TEXT = 'version: 1\ntables: {t: {path: "${WHERE}"}}\nqueries: {q: {sql: "SELECT a FROM t"}}\n'


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were taken apart."""
    found: list[Path] = []
    workload_of = memories.workload_of

    def noted(path: Path, text: str, env: dict[str, str]) -> object:
        found.append(path)
        return workload_of(path, text, env)

    monkeypatch.setattr(memories, "workload_of", noted)
    return found


def test_what_changes_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[Path]
) -> None:
    file, memory = tmp_path / "w.yaml", Memory()
    file.write_text(TEXT)
    first = memory.workload(file, {"WHERE": "x"})
    assert memory.workload(file, {"WHERE": "x"}) is first
    assert len(read) == 1
    assert memory.workload(file, {"WHERE": "y"}).tables["t"].path == str(tmp_path / "y")
    file.write_text(TEXT.replace("SELECT a", "SELECT b"))
    assert memory.workload(file, {"WHERE": "y"}).queries["q"].sql == "SELECT b FROM t"
    assert len(read) == 3  # noqa: PLR2004
    # A relative path is another file elsewhere, though its text is the same.
    other = tmp_path / "other"
    other.mkdir()
    (other / "w.yaml").write_text(file.read_text())
    monkeypatch.chdir(tmp_path)
    here = memory.workload(Path("w.yaml"), {"WHERE": "y"})
    monkeypatch.chdir(other)
    there = memory.workload(Path("w.yaml"), {"WHERE": "y"})
    assert (here.tables["t"].path, there.tables["t"].path) == (
        str(tmp_path / "y"),
        str(other / "y"),
    )


def test_a_file_that_is_wrong_or_gone_is_told_each_time(tmp_path: Path) -> None:
    file, memory = tmp_path / "w.yaml", Memory()
    file.write_text(TEXT)
    memory.workload(file, {"WHERE": "x"})
    file.write_text("version: 1\n")
    for _ in range(2):
        with pytest.raises(WorkloadError):
            memory.workload(file, {"WHERE": "x"})
    file.unlink()
    with pytest.raises(UsageError, match="no file"):
        memory.workload(file, {"WHERE": "x"})
