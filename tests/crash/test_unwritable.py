"""Outputs that cannot be written, in real processes: exit code 6, told where it can be told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.crash.processes import Spoken, ran, spoken
from tests.crash.small import change, write_workload


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    result = write_workload(tmp_path)
    assert run(build_app(), ["capture", str(result), "--quiet"]) == 0
    return result


def shell(workload: Path, command: str, redirected: str) -> Spoken:
    """`impctl COMMAND` with streams as a shell redirects them; `{}` stands for the workload."""
    words = command.replace("{}", f"'{workload}'")
    return spoken("bash", "-c", f"'{sys.executable}' -P -m impctl {words} {redirected}")


BAD = (">/dev/full", ">&-")
NOTHING = (">/dev/full 2>/dev/full", ">&- 2>&-")
COMMANDS = (
    "--help",
    "--version",
    "maintain --help",
    "completion bash",
    "check {}",
    "rewrite {} --query by_g",
    "status {} --json",
    "maintain {}",
    "maintain {} --json",
    "maintain {} --follow --max-runs 1",
    "maintain {} --follow --max-runs 1 --json",
)
CASES = [
    *((command, BAD[at % 2]) for at, command in enumerate(COMMANDS)),
    *(
        pytest.param(command, streams[at % 2], marks=pytest.mark.long)
        for streams in (BAD[::-1], NOTHING)
        for at, command in enumerate(COMMANDS[-5:])
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "redirected"), CASES)
def test_results_that_cannot_be_written(
    workload: Path, tmp_path: Path, command: str, redirected: str
) -> None:
    change(tmp_path / "t", 2)
    done = shell(workload, command, redirected)
    assert (done.returncode, done.stdout) == (6, "")
    told = "" if "2>" in redirected else "[output_failed]"
    assert told in done.stderr
    assert bool(done.stderr) == bool(told)
    assert done.stderr.count("error: ") == bool(told)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if command.startswith("maintain {}"):  # what it did stays done
        results = ran(workload, "status").document["results"]
        assert [result["stale"] for result in results] == [False, False]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_failure(workload: Path) -> None:
    for command in ("--help", "status {}", "status {} --json"):
        done = shell(workload, command, "| true; exit ${PIPESTATUS[0]}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_steps_that_cannot_be_written_stop_nothing(workload: Path, tmp_path: Path) -> None:
    change(tmp_path / "t", 2)
    done = shell(workload, "maintain {} -v --json", "2>/dev/full")
    document = json.loads(done.stdout)
    assert (done.returncode, document["error"]["code"]) == (6, "output_failed")
    version = DeltaTable(str(tmp_path / "t")).version()
    assert [result["versions"]["t"] for result in document["results"]] == [version, version]
    change(tmp_path / "t", 3)
    # A stream that somebody closed is one that nobody wants.
    assert shell(workload, "maintain {} -v", "2>&-").returncode == 0
    change(tmp_path / "t", 4)
    assert shell(workload, "maintain {} -v", "2>/dev/full").returncode == 6


@pytest.mark.slow
def test_the_failure_that_counts_most_gives_the_code(workload: Path) -> None:
    done = shell(workload, "status {} --query not_there --json", ">/dev/full")
    assert done.returncode == 2
    assert "[query_unknown]" in done.stderr
    assert "[output_failed]" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "code"), [(">&-", 6), ("<&- >&- 2>&-", 6), ("2>&-", 0)])
def test_no_file_of_the_store_gets_the_number_of_a_stream(
    workload: Path, closed: str, code: int
) -> None:
    """A write to a closed stdout would else land in whatever was opened first."""
    before = {
        file: file.read_bytes()
        for file in (workload.parent / ".impctl").rglob("*")
        if file.is_file() and file.suffix not in (".lock", ".sqlite-shm", ".sqlite-wal")
    }
    for command in ("status {}", "status {} -v", "maintain {}"):
        assert shell(workload, command, closed).returncode == code
    assert before == {file: file.read_bytes() for file in before}
    assert ran(workload, "status").code == 0
