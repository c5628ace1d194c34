"""A query asked of a Spark Connect server that the test starts, by the command as users give it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from impctl.spark.session import _NEEDED, _is_there, find_java
from tests.support.running_example import write_running_example

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 240
MISSING = [name for name in _NEEDED if not _is_there(name)]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        bool(MISSING), reason=f'not installed: {MISSING}; `pip install ".[connect]"`'
    ),
]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def address(tmp_path: Path, launched_here: None) -> Iterator[str]:
    """Of a server with two cores that serves until the test ends."""
    import pyspark

    port, home = _free_port(), Path(pyspark.__file__).parent
    program = shutil.which(find_java(os.environ).program)
    assert program is not None
    java = Path(program).resolve().parent.parent
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [home / "bin" / "spark-submit", "--master", "local[2]", "--class", SERVER, *words]
            + ["spark-internal"],
            cwd=tmp_path,
            env={**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > end:
                pytest.fail((tmp_path / "server.log").read_text()[-3000:])
            time.sleep(0.5)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_a_query_is_answered_by_the_server(tmp_path: Path, address: str) -> None:
    def impctl(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "impctl", *words],
            cwd=tmp_path,
            env={**os.environ, "SPARK_REMOTE": address},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    write_running_example(tmp_path / "demo")
    impctl("capture", "demo/demo.yaml")
    query = ("query", "demo/demo.yaml", "--query", "q_top", "--json", "--sketch", "always")
    (result,) = json.loads(impctl(*query))["results"]
    assert result["rows"] == [["Apple", 5074]]
    assert "Session with userId" in (tmp_path / "server.log").read_text()
