"""Commands that are told to end: exit code 130, one document, the lock free, no scratch left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.behaviour.test_lock import held_lock
from tests.crash.applying import disturbed
from tests.crash.processes import end, ran, start, until_open
from tests.crash.small import change, check_store, write_workload
from tests.support.run_cli import Cli


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    result = Cli(capsys, write_workload(tmp_path))
    result.good("capture")
    change(tmp_path / "t", 2)
    return result


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_that_waits_ends_at_once(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    with held_lock(tmp_path / ".impctl"):
        process = start(cli.workload, "maintain", "--lock-timeout", "100", "-v")
        until_open(process, tmp_path / ".impctl")
        process.send_signal(number)
        done = end(process)
    assert (done.code, done.document["error"]["code"]) == (130, "interrupted")
    assert {result["action"] for result in cli.good("maintain").results} == {"exact"}


@pytest.mark.slow
@pytest.mark.spark
def test_a_measurement_ends_with_nothing_left(cli: Cli, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ("bench", "--query", "by_g", "--repeat", "200")
    process = start(cli.workload, *words, TMPDIR=str(temporary))
    limit = time.monotonic() + 120
    while time.monotonic() < limit and not list(tmp_path.glob(".impctl-bench-*/store/catalog*")):
        time.sleep(0.05)
    assert list(tmp_path.glob(".impctl-bench-*"))
    process.send_signal(signal.SIGTERM)
    done = end(process)
    assert (done.code, done.document["error"]["code"]) == (130, "interrupted")
    assert list(tmp_path.glob(".impctl-*")) == []
    assert list(temporary.glob("impctl-*")) == []
    # And kill -9, which nobody can answer, is for `gc`.
    process = start(cli.workload, *words)
    while time.monotonic() < limit and not list(tmp_path.glob(".impctl-bench-*/t/_delta_log")):
        time.sleep(0.05)
    process.kill()
    process.communicate()
    left = {str(folder) for folder in tmp_path.glob(".impctl-bench-*")}
    (result,) = ran(cli.workload, "gc").document["results"]
    assert left
    assert left <= {entry["name"] for entry in result["entries"]}
    assert list(tmp_path.glob(".impctl-*")) == []
    check_store(tmp_path / ".impctl", tmp_path / "t")


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("seed", range(4))
def test_batches_are_in_once_however_often_apply_was_stopped(tmp_path: Path, seed: int) -> None:
    assert disturbed(tmp_path, seed).total() > 0
