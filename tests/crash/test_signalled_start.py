"""Signals while Spark starts: the JVM goes with the run, quietly, and before what it reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.small import write_workload

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("launched_here", "heard_signals")]

_MARK = "TEST_OF_START"
_STAGES = {"settings": b"org.apache.spark.launcher.Main", "jvm": b"org.apache.spark.deploy."}
"""The Java that reads the settings, and the one that runs Spark by them."""


_MOMENTS = [
    (signal.SIGTERM, "settings", 0.0),
    (signal.SIGINT, "settings", 0.2),
    (signal.SIGTERM, "jvm", 0.0),
    (signal.SIGINT, "jvm", 0.3),
    (signal.SIGTERM, "jvm", 0.6),
    (signal.SIGINT, "jvm", 0.9),
    (signal.SIGTERM, "jvm", 1.2),
]
"""The last ones are about when the JVM tells where it listens, and behind that."""


def below(mark: str) -> dict[int, bytes]:
    """Processes that were given this mark, with their command lines."""
    result = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                result[int(folder.name)] = (folder / "cmdline").read_bytes()
    return result


def until(condition: bytes | None, mark: str) -> bool:
    """Wait for a process with these words, or (None) for there being no process at all."""
    late = time.monotonic() + 60
    while time.monotonic() < late:
        result = below(mark)
        if not result if condition is None else any(condition in line for line in result.values()):
            return True
        time.sleep(0.005)
    return False


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
@pytest.mark.parametrize(("number", "stage", "seconds"), _MOMENTS)
def test_no_jvm_is_left(tmp_path: Path, number: int, stage: str, seconds: float) -> None:
    temporary, mark = tmp_path / "temporary", str(tmp_path)
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), _MARK: mark}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = [sys.executable, "-P", "-m", "impctl", "query"]
    process = subprocess.Popen(
        [*words, write_workload(tmp_path), "--query", "by_g", "--by", "spark"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(_STAGES[stage], mark)
        time.sleep(seconds)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)  # a JVM that lives on holds these pipes open
        assert until(None, mark)
    finally:
        for left in below(mark):
            os.kill(left, signal.SIGKILL)
    assert process.returncode == 130
    assert [line.split(":")[0] for line in err.splitlines()][-2:] == ["error", "hint"]
    assert "Exception" not in err
    assert "properties file" not in err
    assert "\tat " not in err
