"""Where a record or a page goes: whole files, and what is no file stays what it is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from impctl.app.measuring.keep import report_file, try_kept, write_kept
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import SuiteRequest
from impctl.bench.record_json import record_to_json
from impctl.errors import StorageError
from tests.cli.examples import RECORD


@pytest.fixture
def record(tmp_path: Path) -> Path:
    file = tmp_path / "r.json"
    file.write_text(record_to_json(RECORD))
    return file


def test_a_full_device_is_told_and_stays(record: Path, tmp_path: Path) -> None:
    """A link stands for the device: an administrator's run would put a file in its place."""
    target = tmp_path / "full"
    target.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device"):
        report_file(record, target, SilentReporter())
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert os.readlink(target) == "/dev/full"


def test_a_pipe_gets_the_page(record: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    report_file(record, pipe, SilentReporter())
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    reader.join(10)
    assert got[0].rstrip().endswith("</html>")


def test_a_link_to_a_file_stays_a_link(record: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere" / "page.html"
    there.parent.mkdir()
    there.write_text("old")
    target = tmp_path / "page.html"
    target.symlink_to(there)
    report_file(record, target, SilentReporter())
    assert target.is_symlink()
    assert there.read_text().rstrip().endswith("</html>")
    assert [path.name for path in there.parent.iterdir()] == ["page.html"]


def test_the_trial_does_not_open_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    asked = SuiteRequest("micro", out=pipe)
    try_kept(asked)
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert write_kept(SuiteRequest("micro"), RECORD) == ()
