"""Fixtures for all tests."""

from __future__ import annotations

import gc
import locale
import os
import pkgutil
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import typer
from hypothesis import settings

import impctl
from tests.support.random_cases import cases_wanted, seeds_wanted
from tests.support.spark_classes import class_archive

# The duration of an example depends more on the machine than on the code.
settings.register_profile("impctl", deadline=None)
settings.load_profile("impctl")

_IN_MEMORY = "/dev/shm"
if os.path.isdir(_IN_MEMORY) and shutil.disk_usage(_IN_MEMORY).free > 4 * 2**30:
    # Folders of tests are in memory, so that nothing waits for a disk.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _IN_MEMORY)


_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)
"""Code is compiled once and quickly, one thread collects garbage, and plans are interpreted.

The defaults pay off for many rows, in a long-lived JVM with its own cores.
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for mark in metafunc.definition.iter_markers("random_seeds"):
        metafunc.parametrize("seed", seeds_wanted(metafunc.definition, *mark.args))
    for mark in metafunc.definition.iter_markers("random_cases"):
        metafunc.parametrize("cases", cases_wanted(metafunc.definition, *mark.args))


def pytest_collection_finish(session: pytest.Session) -> None:
    _load_everything()
    gc.freeze()  # Later collections need not traverse all tests.
    _start_spark_from_an_archive(session)


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest collects five times at the end, 4 s per worker.


def _load_everything() -> None:
    """Load all modules. One loaded while a test has patched something would keep the patch."""
    for module in pkgutil.walk_packages(impctl.__path__, "impctl."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def _start_spark_from_an_archive(session: pytest.Session) -> None:
    """Halve the start of Spark in tests, in any process, with an archive of classes.

    Not for tests that measure, because users have the default JVM. A variable that is set is kept.
    """
    marks = {mark.name for item in session.items for mark in item.iter_markers()}
    if "spark" in marks and "alone" not in marks and "SPARK_SUBMIT_OPTS" not in os.environ:
        options = f"{_SHORT_LIVED} {class_archive(_SHORT_LIVED)}"
        os.environ["SPARK_SUBMIT_OPTS"] = options


_FOR_TESTS = ("IMPCTL_CRIMES", "IMPCTL_FIXTURES", "IMPCTL_FUZZ", "IMPCTL_SOAK")
"""Variables that tests themselves read; all others of impctl are removed for each test."""


State = tuple[dict[str, str], dict[str, object]]


def _process_state() -> State:
    """What a test could leave for the next: the environment, and other process state."""
    environment = os.environ.copy()
    environment.pop("PYTEST_CURRENT_TEST", None)
    return environment, {
        "current directory": os.getcwd(),
        "signal handlers": [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))],
        "import path": [*sys.path],
        "locale": locale.setlocale(locale.LC_ALL),
        "umask": _umask(),
    }


def _changes(before: State, after: State) -> dict[str, tuple[object, object]]:
    """Return differences, with both values, without environment variables that start with an
    underscore, which libraries set when they are loaded."""
    flat = [
        {**{f"${name}": value for name, value in environment.items() if name[0] != "_"}, **rest}
        for environment, rest in (before, after)
    ]
    names = flat[0].keys() | flat[1].keys()
    both = {name: (flat[0].get(name), flat[1].get(name)) for name in names}
    return {name: values for name, values in both.items() if values[0] != values[1]}


_SET_BY_THE_FIRST_SESSION = {
    "$SPARK_AUTH_SOCKET_TIMEOUT",
    "$SPARK_BUFFER_SIZE",
    "import path",
    "signal handlers",
}
"""State that PySpark changes for the rest of the process."""


def _has_spark() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.fixture(autouse=True)
def _surroundings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide the user's settings from tests, and use sketches however small.

    A test that changes the state of the process and does not restore it fails. Tables of tests are
    so small that a sketch would not pay off. For the same reason, tests marked `spark` make impctl
    use Spark. The session has its usual settings again, because a workload of another test may have
    changed them, such as the time zone.

    This is one fixture, because pytest takes half a millisecond for each in each of 9,000 tests.
    """
    users = [n for n in os.environ if n.startswith("IMPCTL_") and n not in _FOR_TESTS]
    user_settings = {name: os.environ.pop(name) for name in users}
    test_settings = {"IMPCTL_SKETCH": "always"}
    if request.node.get_closest_marker("spark"):
        test_settings["IMPCTL_BY"] = "spark"
    os.environ.update(test_settings)
    before, had_spark = _process_state(), _has_spark()
    if "spark" in request.fixturenames:
        _session()
    try:
        yield
        after = _process_state()
        if after != before:
            changes = _changes(before, after)
            if _has_spark() and not had_spark:
                changes = {n: c for n, c in changes.items() if n not in _SET_BY_THE_FIRST_SESSION}
            assert not changes, changes
    finally:
        for name in test_settings:
            os.environ.pop(name, None)
        os.environ.update(user_settings)


@pytest.fixture(autouse=True, scope="session")
def _commands_are_read_once() -> Iterator[None]:
    """Reuse the parser for the same commands: Typer takes 24 ms to build it in each call.

    It inspects all parameters each time, and keeps no other state between two calls.
    """
    parsers: dict[tuple[object, ...], Any] = {}
    original = typer.main.get_command

    def get_command(app: typer.Typer) -> Any:
        commands = tuple(command.callback for command in app.registered_commands)
        if commands not in parsers:
            parsers[commands] = original(app)
        parser = parsers[commands]
        for item in (parser, *getattr(parser, "commands", {}).values()):
            # The only state that click keeps between calls; it may lack -h.
            item._help_option = None
        return parser

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", get_command)
        yield


@pytest.fixture
def heard_signals() -> Iterator[None]:
    """Let processes started by a test receive Ctrl-C and hang-ups, even if this one ignores them.

    A run in the background of a script, or under `nohup`, ignores them, and children inherit that.
    """
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in defaults if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, defaults[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def launched_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make processes started by a test launch their own Spark, even if SPARK_REMOTE is set."""
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One small Spark session for all tests marked `spark` in this process.

    With SPARK_REMOTE set it is a Spark Connect session, at a server that has access to this disk.
    """
    session = _session()
    yield session
    session.stop()


def _session() -> Any:
    from impctl.spark.session import SparkSettings, master_of, open_session

    conf = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "4"}
    return open_session(SparkSettings(master_of("local[2]", os.environ, "local[2]"), conf))


@pytest.fixture
def in_zone(spark: Any) -> Iterator[Callable[[str], None]]:
    """Set the session's time zone for one test."""
    key = "spark.sql.session.timeZone"
    before = spark.conf.get(key)
    yield lambda zone: spark.conf.set(key, zone)
    spark.conf.set(key, before)
