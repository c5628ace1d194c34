"""A start that is given up ends what it started, waits for what is below it, and nothing else."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark import SparkContext, java_gateway

from impctl.spark.session import ended_with_its_start

SLEEP = ["sleep", "60"]


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)


@contextmanager
def given_up(fault: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """A start that ends with this exception after the block."""
    with suppress(fault), ended_with_its_start():
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


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_exception_ends_the_child(fault: type[BaseException]) -> None:
    with given_up(fault):
        process = started()
    assert has_ended(process)
    assert java_gateway.Popen is subprocess.Popen


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


@pytest.mark.slow
def test_those_below_the_child_are_waited_for(tmp_path: Path) -> None:
    """Spark's script has another Java read the settings: their folder must be there until then."""
    read = tmp_path / "read"
    (tmp_path / "settings").touch()
    script = f"(sleep 0.5; cat {tmp_path}/settings && touch {read}) & echo; exec sleep 60"
    with given_up():
        process = java_gateway.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
    assert has_ended(process)
    assert read.exists()


def test_one_that_ended_by_itself_is_nobodys() -> None:
    with given_up():
        process = started("true")
        assert process.wait() == 0


def test_nothing_was_started() -> None:
    with given_up():
        pass


def test_a_jvm_that_is_up_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with given_up():
        process = started()
        monkeypatch.setattr(SparkContext, "_gateway", object())
    assert not has_ended(process)


def test_a_start_that_succeeds_lives_on() -> None:
    with ended_with_its_start():
        process = started()
    assert not has_ended(process)


def test_what_another_thread_starts_lives_on() -> None:
    others: list[subprocess.Popen[bytes]] = []
    with given_up():
        thread = threading.Thread(target=lambda: others.append(started()))
        thread.start()
        thread.join()
    assert not has_ended(others[0])
