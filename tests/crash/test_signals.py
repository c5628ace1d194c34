"""Signals while a command loads, starts Spark, runs and ends: one document, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from impctl.service.results import SCHEMA_VERSION
from tests.behaviour.test_bad_input import held_lock
from tests.crash.processes import (
    change,
    check_store,
    disturbed,
    end,
    ran,
    start,
    until_open,
    versions,
    write_batches,
    write_workload,
)
from tests.support.run_cli import Capsys, Cli, python


def until_loading(process: subprocess.Popen[str], library: str) -> None:
    """Wait until the process has mapped a library that is loaded early, behind the first line."""
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and library not in maps.read_text():
        time.sleep(0.001)


NUMBERS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


def at_places(*places: str) -> pytest.MarkDecorator:
    """Parametrizes `place` and `number`: each place with one signal, with all of them when long."""
    return pytest.mark.parametrize(
        ("place", "number"),
        [
            pytest.param(place, number, marks=pytest.mark.long if (at - turn) % 3 else ())
            for at, place in enumerate(places)
            for turn, number in enumerate(NUMBERS)
        ],
    )


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("library", ["_json.", "numpy"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_during_loading(tmp_path: Path, number: signal.Signals, library: str) -> None:
    workload = write_workload(tmp_path)
    process = start(workload, "check")
    until_loading(process, library)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    document = json.loads(out)
    assert document.pop("error")["code"] == "interrupted"
    nothing = {"command": "check", "ok": False, "results": [], "warnings": []}
    assert document == {"schema_version": SCHEMA_VERSION, **nothing}


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_import_that_takes_long(number: signal.Signals) -> None:
    """The parser is loaded after signals are taken: it is told to end there, in text."""
    program = (
        "import os, sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from impctl.cli.main import main\n"
        "main()\n"
    )
    done = python("-c", program, "status", "w.yaml")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("error: Interrupted [interrupted]\nhint: ")


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@at_places(
    "logging.disable",
    "impctl.cli.job.reporting",
    "impctl.cli.job.ResultReporter.__init__",
    "impctl.service.context.open_context",
    "impctl.errors.unexpected",
)
def test_a_signal_as_the_work_begins(tmp_path: Path, number: signal.Signals, place: str) -> None:
    """Wherever a run is interrupted, its document says so."""
    owner, name = place.rsplit(".", 1)
    program = (
        "import os, pkgutil, sys\n"
        "from impctl.cli import boundary, job\n"
        "from impctl.cli.main import main\n"
        f"owner = pkgutil.resolve_name({owner!r})\n"
        f"original = getattr(owner, {name!r})\n"
        "def signalled(*arguments, **options):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return original(*arguments, **options)\n"
        f"setattr(owner, {name!r}, signalled)\n"
        "boundary.unexpected = sys.modules['impctl.errors'].unexpected\n"
        f"if {name!r} == 'unexpected':\n"
        "    job.in_context = lambda *arguments: 1 / 0\n"
        "main()\n"
    )
    done = python("-c", program, "check", str(write_workload(tmp_path)), "--json")
    assert (done.returncode, done.stderr) == (130, "")
    assert json.loads(done.stdout)["error"]["code"] == "interrupted"


def signalled_at(place: str, number: signal.Signals, after: str = "pass") -> str:
    """A program that gets the signal as it enters a function of `impctl`."""
    module, name = place.rsplit(".", 1)
    owner, _, method = name.partition(":")
    target = f"found.{owner}" if method else "found"
    attribute = method or owner
    return (
        "import importlib, os, time\n"
        "from impctl.cli.main import main\n"
        f"found = importlib.import_module({module!r})\n"
        f"inner = {target}.{attribute}\n"
        "def shot(*a, **k):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        f"    {after}\n"
        "    return inner(*a, **k)\n"
        f"{target}.{attribute} = shot\n"
        "main()\n"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@at_places(
    "impctl.service.context.Context:close",
    "impctl.cli.output.outcome.JsonOutput:show",
    "impctl.cli.output.outcome.JsonOutput:end",
)
def test_what_is_in_the_tables_is_told(tmp_path: Path, place: str, number: signal.Signals) -> None:
    workload = write_batches(tmp_path)
    done = python("-c", signalled_at(place, number), "apply", str(workload), "--all", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    results = json.loads(done.stdout)["results"]
    newest = {result["table"]: result["version"] for result in results}
    assert newest == versions(tmp_path) == {"t": 4, "u": 2}


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
def test_telling_that_takes_long_is_given_up(tmp_path: Path) -> None:
    """As where nobody reads from a pipe that is full."""
    workload = write_batches(tmp_path)
    program = signalled_at(
        "impctl.cli.output.outcome.JsonOutput:show", signal.SIGTERM, "time.sleep(90)"
    )
    start = time.monotonic()
    done = python("-c", program, "apply", str(workload), "first", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert time.monotonic() - start < 60


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_the_interpreter_ends(number: signal.Signals) -> None:
    """Python puts its handlers back before it takes modules apart, which may take long."""
    program = (
        "import os\n"
        "class Late:\n"
        f"    def __del__(self, kill=os.kill, own=os.getpid()):\n        kill(own, {int(number)})\n"
        "late = Late()\n"
        "from impctl.cli.main import main\n"
        "main()\n"
    )
    done = python("-c", program, "no-command")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    result = Cli(capsys, write_workload(tmp_path)).captured()
    change(tmp_path / "t", 2)
    return result


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_waiting_command_ends_at_once(cli: Cli, tmp_path: Path, number: signal.Signals) -> None:
    with held_lock(tmp_path / ".impctl"):
        process = start(cli.workload, "maintain", "--lock-timeout", "100", "-v")
        until_open(process, tmp_path / ".impctl")
        process.send_signal(number)
        done = end(process)
    assert (done.code, done.document["error"]["code"]) == (130, "interrupted")
    assert cli.actions() == {"exact"}


@pytest.mark.slow
@pytest.mark.spark
def test_a_measurement_ends_with_nothing_left(cli: Cli, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ("bench", "--query", "by_g", "--repeat", "200")
    limit = time.monotonic() + 120

    def until_there(what: str) -> None:
        while time.monotonic() < limit and not list(tmp_path.glob(f".impctl-bench-*/{what}")):
            time.sleep(0.05)

    process = start(cli.workload, *words, TMPDIR=str(temporary))
    until_there("store/catalog*")
    assert list(tmp_path.glob(".impctl-bench-*"))
    process.send_signal(signal.SIGTERM)
    done = end(process)
    assert (done.code, done.document["error"]["code"]) == (130, "interrupted")
    assert list(tmp_path.glob(".impctl-*")) == []
    assert list(temporary.glob("impctl-*")) == []
    # And kill -9, which nobody can answer, is for `gc`.
    process = start(cli.workload, *words)
    until_there("t/_delta_log")
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
@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_batches_are_in_once_however_often_apply_was_stopped(tmp_path: Path, seed: int) -> None:
    assert disturbed(tmp_path, seed).total() > 0


_MARK = "TEST_OF_START"
_STAGES = {"settings": b"org.apache.spark.launcher.Main", "jvm": b"org.apache.spark.deploy."}
"""The Java that reads the settings, and the one that runs Spark by them."""
_MOMENTS = [
    *((signal.SIGTERM, "settings", 0.0), (signal.SIGINT, "settings", 0.2)),
    *((signal.SIGTERM, "jvm", seconds) for seconds in (0.0, 0.6, 1.2)),
    *((signal.SIGINT, "jvm", seconds) for seconds in (0.3, 0.9)),
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


@pytest.mark.spark
@pytest.mark.usefixtures("launched_here", "heard_signals")
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
    words += [str(write_workload(tmp_path)), "--query", "by_g", "--by", "spark"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, env=environment, text=True, **pipes)
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
    assert not any(text in err for text in ("Exception", "properties file", "\tat "))
