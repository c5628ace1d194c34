"""The session: quiet, with one meaning of SQL; a start that is given up ends what it started."""

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
def test_settings_that_change_meaning_are_refused(name):
    with pytest.raises(UsageError) as caught:
        session.open_session(session.SparkSettings("local[1]", {name: "surely something else"}))
    assert name in caught.value.message


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4", "unknown"])
def test_an_older_spark_is_refused_by_name(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.setattr("impctl.spark.session.launch", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    message = f"This is Spark {version}, but impctl needs 4.1"
    with refused(UsageError, "spark_too_old", message) as caught:
        session.open_session(session.SparkSettings("local[1]"))
    assert "pip install 'pyspark>=4.1,<5'" in str(caught.value.hint)


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0.dev1", "4.10.2", "5.0"])
def test_a_newer_spark_is_taken(version):
    session.require_release(version)


@pytest.mark.spark
def test_tests_run_in_a_jvm_for_a_short_life(spark, request):
    """Nothing else would tell if it were as it comes; tests would only take longer."""
    if session.is_connect(spark):
        pytest.skip("the JVM is the server's")
    if any(item.get_closest_marker("alone") for item in request.session.items):
        pytest.skip("a test that measures runs in the same JVM")
    factory = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    started_with = set(factory.getRuntimeMXBean().getInputArguments())
    assert set(os.environ["SPARK_SUBMIT_OPTS"].split()) <= started_with


@pytest.mark.spark
def test_an_open_session_is_used_again_and_its_fixed_settings_hold(spark):
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
def given_up(fault: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """A start that ends with this exception after the block."""
    with suppress(fault), session.ended_with_its_start():
        yield
        raise fault


def started(*words: str) -> subprocess.Popen[bytes]:
    return java_gateway.Popen(words or SLEEP)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it had ended; it has now."""
    ended = process.poll() is not None
    process.kill()
    process.wait()
    return ended


@pytest.mark.usefixtures("_no_jvm")
@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_exception_ends_the_child(fault: type[BaseException]) -> None:
    with given_up(fault):
        process = started()
    assert has_ended(process)
    assert java_gateway.Popen is subprocess.Popen


@pytest.mark.usefixtures("_no_jvm")
def test_a_child_whose_number_the_parent_never_got(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes within `Popen`, behind the fork."""
    children: list[subprocess.Popen[bytes]] = []

    def interrupted(*words: object, **options: object) -> None:
        children.append(subprocess.Popen(*words, **options))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr(java_gateway, "Popen", interrupted)
    with given_up():
        started()
    assert has_ended(children[0])


@pytest.mark.usefixtures("_no_jvm")
@pytest.mark.slow
def test_those_below_the_child_are_waited_for(tmp_path: Path) -> None:
    """Spark's script has another Java read the settings: their folder must be there until then."""
    read = tmp_path / "read"
    (tmp_path / "settings").touch()
    script = f"(sleep 0.5; cat {tmp_path}/settings && touch {read}) & echo; exec sleep 60"
    with given_up():
        process = java_gateway.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
        process.stdout.readline()
        process.stdout.close()
    assert has_ended(process)
    assert read.exists()


@pytest.mark.usefixtures("_no_jvm")
def test_nothing_to_end() -> None:
    """Nothing was started, or it ended by itself."""
    with given_up():
        pass
    with given_up():
        assert started("true").wait() == 0


@pytest.mark.usefixtures("_no_jvm")
def test_what_succeeds_and_a_jvm_that_is_up_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with session.ended_with_its_start():
        process = started()
    assert not has_ended(process)
    with given_up():
        process = started()
        monkeypatch.setattr(SparkContext, "_gateway", object())
    assert not has_ended(process)


@pytest.mark.usefixtures("_no_jvm")
def test_what_another_thread_starts_lives_on() -> None:
    others: list[subprocess.Popen[bytes]] = []
    with given_up():
        thread = threading.Thread(target=lambda: others.append(started()))
        thread.start()
        thread.join()
    assert not has_ended(others[0])
