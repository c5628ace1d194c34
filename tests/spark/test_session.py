"""The session: fixed SQL settings, reuse, and cleanup of child processes after a failed start."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from impctl.errors import UsageError
from impctl.spark import session
from tests.support.run_cli import refused


@pytest.mark.parametrize("name", sorted(session.FIXED))
def test_settings_that_change_results_are_refused(name):
    with pytest.raises(UsageError) as caught:
        session.open_session(session.SparkSettings("local[1]", {name: "surely something else"}))
    assert name in caught.value.message


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4", "unknown"])
def test_an_older_spark_is_refused(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.setattr("impctl.spark.session.launch", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    message = f"This is Spark {version}, but impctl needs 4.1"
    with refused(UsageError, "spark_too_old", message) as caught:
        session.open_session(session.SparkSettings("local[1]"))
    assert "pip install 'pyspark>=4.1,<5'" in str(caught.value.hint)


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0.dev1", "4.10.2", "5.0"])
def test_a_newer_spark_is_accepted(version):
    session.require_release(version)


@pytest.mark.spark
def test_tests_use_the_jvm_options_for_short_runs(spark, request):
    """Without these options tests would only be slower, so nothing else notices."""
    if session.is_connect(spark):
        pytest.skip("the JVM is the server's")
    if any(item.get_closest_marker("alone") for item in request.session.items):
        pytest.skip("a test that measures runs in the same JVM")
    factory = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    started_with = set(factory.getRuntimeMXBean().getInputArguments())
    assert set(os.environ["SPARK_SUBMIT_OPTS"].split()) <= started_with


@pytest.mark.spark
def test_an_open_session_is_reused_with_the_fixed_settings(spark):
    for name, value in session.FIXED.items():
        assert spark.conf.get(name) == value
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert session.open_session(session.SparkSettings("local[2]")) is spark
    assert "impctl-spark-" not in os.environ.get("JAVA_HOME", "")


SLEEP = ["sleep", "60"]


@pytest.fixture
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)


@contextmanager
def failing_start(fault: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """A start that fails with this exception after the block."""
    with suppress(fault), session.ended_with_its_start():
        yield
        raise fault


def start_child(*command: str) -> subprocess.Popen[bytes]:
    return java_gateway.Popen(command or SLEEP)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it had ended. If not, it is killed now."""
    ended = process.poll() is not None
    process.kill()
    process.wait()
    return ended


@pytest.mark.usefixtures("_no_jvm")
@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, SystemExit])
def test_a_failed_start_ends_the_child(fault: type[BaseException]) -> None:
    with failing_start(fault):
        process = start_child()
    assert has_ended(process)
    assert java_gateway.Popen is subprocess.Popen


@pytest.mark.usefixtures("_no_jvm")
def test_a_child_is_ended_if_popen_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt arrives within `Popen`, after the fork."""
    children: list[subprocess.Popen[bytes]] = []

    def interrupted(*arguments: object, **options: object) -> None:
        children.append(subprocess.Popen(*arguments, **options))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr(java_gateway, "Popen", interrupted)
    with failing_start():
        start_child()
    assert has_ended(children[0])


@pytest.mark.usefixtures("_no_jvm")
@pytest.mark.slow
def test_grandchildren_are_waited_for(tmp_path: Path) -> None:
    """Spark's script starts another Java that reads the settings, so their folder must exist."""
    marker = tmp_path / "read"
    (tmp_path / "settings").touch()
    script = f"(sleep 0.5; cat {tmp_path}/settings && touch {marker}) & echo; exec sleep 60"
    with failing_start():
        process = java_gateway.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
        process.stdout.readline()
        process.stdout.close()
    assert has_ended(process)
    assert marker.exists()


@pytest.mark.usefixtures("_no_jvm")
def test_a_failed_start_without_a_running_child() -> None:
    """Nothing was started, or the child already ended."""
    with failing_start():
        pass
    with failing_start():
        assert start_child("true").wait() == 0


@pytest.mark.usefixtures("_no_jvm")
def test_successful_starts_and_running_jvms_are_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with session.ended_with_its_start():
        process = start_child()
    assert not has_ended(process)
    with failing_start():
        process = start_child()
        monkeypatch.setattr(SparkContext, "_gateway", object())
    assert not has_ended(process)


@pytest.mark.usefixtures("_no_jvm")
def test_children_of_other_threads_are_not_ended() -> None:
    others: list[subprocess.Popen[bytes]] = []
    with failing_start():
        thread = threading.Thread(target=lambda: others.append(start_child()))
        thread.start()
        thread.join()
    assert not has_ended(others[0])
