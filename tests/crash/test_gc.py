"""`impctl gc` on a real store: what it removes, what it says, and that a dry run only says it."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest

from impctl.errors import UsageError
from impctl.store.disk import BENCH_SCRATCH, scratch_folder
from tests.crash.small import change, check_nothing_left, check_store, write_workload
from tests.support.run_cli import Cli


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return Cli(capsys, write_workload(tmp_path))


def litter(cli: Cli) -> None:
    """Four versions of each sketch, a file of state without a run, two folders without an owner."""
    cli.good("capture")
    for seed in (3, 4, 6):
        change(cli.workload.parent / "t", seed)
        cli.good("maintain")
    state = cli.workload.parent / ".impctl" / "state"
    state.mkdir(exist_ok=True)
    (state / "left.arrow").write_bytes(b"12345")
    for place in (cli.workload.parent, cli.workload.parent / "temporary"):
        folder = place / f"{BENCH_SCRATCH}dead"
        folder.mkdir()
        (folder / ".owner").touch()
        (folder / "part").write_bytes(b"1234567")


def listing(folder: Path) -> dict[str, int]:
    """Files and when they were written; SQLite's shared memory comes and goes with readers."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p): p.stat().st_mtime_ns for p in files if not p.name.endswith(("-shm", "-wal"))}


def test_all_of_it_goes_and_a_dry_run_says_so_before(cli: Cli, tmp_path: Path) -> None:
    litter(cli)
    before = listing(tmp_path)
    (would,) = cli.good("gc", "--keep", "1", "--dry-run").results
    assert listing(tmp_path) == before
    assert (would["foreseen"], {entry["removed"] for entry in would["entries"]}) == (True, {False})
    (done,) = cli.good("gc", "--keep", "1").results
    assert done["entries"] == [{**entry, "removed": True} for entry in would["entries"]]
    assert done["bytes"] == would["bytes"] == sum(entry["bytes"] for entry in done["entries"])
    assert [(e["kind"], e["count"]) for e in done["entries"]] == [
        ("versions", 3),
        ("versions", 3),
        ("file", 1),
        ("folder", 1),
        ("folder", 1),
    ]
    assert [entry["bytes"] for entry in done["entries"]][2:] == [5, 7, 7]
    check_nothing_left(tmp_path / ".impctl")
    check_store(tmp_path / ".impctl", tmp_path / "t")
    (again,) = cli.good("gc", "--keep", "1").results
    assert (again["entries"], again["bytes"]) == ([], 0)
    assert cli.good("maintain").results[0]["action"] == "none"


def test_without_a_folder_for_temporary_files(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    litter(cli)

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    (done,) = cli.good("gc", "--keep", "1").results
    assert [entry["kind"] for entry in done["entries"]].count("folder") == 1
    with pytest.raises(UsageError) as caught, scratch_folder(BENCH_SCRATCH):
        pass
    assert caught.value.code == "no_temporary_folder"


def test_a_living_owners_folder_stays(cli: Cli, tmp_path: Path) -> None:
    with scratch_folder(BENCH_SCRATCH, tmp_path) as mine:
        (mine / "x").write_text("x")
        assert cli.good("gc").results[0]["entries"] == []
        assert (mine / "x").exists()


def test_without_a_store_none_is_made(cli: Cli, tmp_path: Path) -> None:
    assert cli.good("gc").results[0]["entries"] == []
    assert not (tmp_path / ".impctl").exists()


def test_scratch_goes_even_where_the_store_is_damaged(cli: Cli, tmp_path: Path) -> None:
    litter(cli)
    (tmp_path / ".impctl" / "catalog.sqlite").write_bytes(b"no database, for sure" * 300)
    ran = cli("gc")
    assert (ran.code, ran.error["code"]) == (7, "catalog_corrupt")
    assert [entry["kind"] for entry in ran.results[0]["entries"]] == ["folder", "folder"]
    assert not (tmp_path / f"{BENCH_SCRATCH}dead").exists()
