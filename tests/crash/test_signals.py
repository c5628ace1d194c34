"""Signals while a command loads, starts Spark, runs and ends: one document, no leftovers."""

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
    apply_with_signals,
    change,
    check_store,
    end,
    ran,
    start,
    versions,
    wait_until_open,
    write_batches,
    write_workload,
)
from tests.support.run_cli import Capsys, Cli, python


def wait_for_library(process: subprocess.Popen[str], library: str) -> None:
    """Wait until the process has mapped a library that is imported early."""
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and library not in maps.read_text():
        time.sleep(0.001)


NUMBERS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


def interrupted_at(*functions: str) -> pytest.MarkDecorator:
    """Parametrizes `function` and `number`: one signal each; the long tests use all."""
    return pytest.mark.parametrize(
        ("function", "number"),
        [
            pytest.param(function, number, marks=pytest.mark.long if (index - turn) % 3 else ())
            for index, function in enumerate(functions)
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
    wait_for_library(process, library)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    document = json.loads(out)
    assert document.pop("error")["code"] == "interrupted"
    nothing = {"command": "check", "ok": False, "results": [], "warnings": []}
    assert document == {"schema_version": SCHEMA_VERSION, **nothing}


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_the_first_slow_import(number: signal.Signals) -> None:
    """The parser is imported after the signal handlers are set, so the error is plain text."""
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
@interrupted_at(
    "logging.disable",
    "impctl.cli.job.reporting",
    "impctl.cli.job.ResultReporter.__init__",
    "impctl.service.context.open_context",
    "impctl.errors.unexpected",
)
def test_signal_before_work(tmp_path: Path, number: signal.Signals, function: str) -> None:
    """The document of an interrupted run reports it."""
    owner, name = function.rsplit(".", 1)
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


def signal_program(function: str, number: signal.Signals, after: str = "pass") -> str:
    """A program that sends itself the signal as it enters a function of `impctl`."""
    module, name = function.rsplit(".", 1)
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
@interrupted_at(
    "impctl.service.context.Context:close",
    "impctl.cli.output.outcome.JsonOutput:show",
    "impctl.cli.output.outcome.JsonOutput:end",
)
def test_commits_are_always_reported(tmp_path: Path, function: str, number: signal.Signals) -> None:
    workload = write_batches(tmp_path)
    done = python("-c", signal_program(function, number), "apply", str(workload), "--all", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    results = json.loads(done.stdout)["results"]
    newest = {result["table"]: result["version"] for result in results}
    assert newest == versions(tmp_path) == {"t": 4, "u": 2}


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
def test_slow_reporting_is_abandoned(tmp_path: Path) -> None:
    """For example, if nobody reads from a full pipe."""
    workload = write_batches(tmp_path)
    program = signal_program(
        "impctl.cli.output.outcome.JsonOutput:show", signal.SIGTERM, "time.sleep(90)"
    )
    start = time.monotonic()
    done = python("-c", program, "apply", str(workload), "first", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert time.monotonic() - start < 60


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_the_interpreter_ends(number: signal.Signals) -> None:
    """Python restores its handlers before it destroys modules, which may take long."""
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
def test_waiting_command_can_be_stopped(cli: Cli, tmp_path: Path, number: signal.Signals) -> None:
    with held_lock(tmp_path / ".impctl"):
        process = start(cli.workload, "maintain", "--lock-timeout", "100", "-v")
        wait_until_open(process, tmp_path / ".impctl")
        process.send_signal(number)
        done = end(process)
    assert done.code == 130, done
    assert done.document["error"]["code"] == "interrupted"
    assert cli.actions() == {"exact"}


@pytest.mark.slow
@pytest.mark.spark
def test_stopped_bench_leaves_no_files(cli: Cli, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    arguments = ("bench", "--query", "by_g", "--repeat", "200")
    limit = time.monotonic() + 120

    def wait_for(pattern: str) -> None:
        while time.monotonic() < limit and not list(tmp_path.glob(f".impctl-bench-*/{pattern}")):
            time.sleep(0.05)

    process = start(cli.workload, *arguments, TMPDIR=str(temporary))
    wait_for("store/catalog*")
    assert list(tmp_path.glob(".impctl-bench-*"))
    process.send_signal(signal.SIGTERM)
    done = end(process)
    assert (done.code, done.document["error"]["code"]) == (130, "interrupted")
    assert list(tmp_path.glob(".impctl-*")) == []
    assert list(temporary.glob("impctl-*")) == []
    # After kill -9, which cannot be handled, `gc` removes the files.
    process = start(cli.workload, *arguments)
    wait_for("t/_delta_log")
    process.kill()
    process.communicate()
    leftovers = {str(folder) for folder in tmp_path.glob(".impctl-bench-*")}
    (result,) = ran(cli.workload, "gc").document["results"]
    assert leftovers
    assert leftovers <= {entry["name"] for entry in result["entries"]}
    assert list(tmp_path.glob(".impctl-*")) == []
    check_store(tmp_path / ".impctl", tmp_path / "t")


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_interrupted_apply_inserts_each_batch_once(tmp_path: Path, seed: int) -> None:
    assert apply_with_signals(tmp_path, seed).total() > 0


_MARK = "TEST_OF_START"
_STAGES = {"settings": b"org.apache.spark.launcher.Main", "jvm": b"org.apache.spark.deploy."}
"""The Java process that reads the settings, and the one that runs Spark."""
_MOMENTS = [
    *((signal.SIGTERM, "settings", 0.0), (signal.SIGINT, "settings", 0.2)),
    *((signal.SIGTERM, "jvm", seconds) for seconds in (0.0, 0.6, 1.2)),
    *((signal.SIGINT, "jvm", seconds) for seconds in (0.3, 0.9)),
]
"""The last ones are about when the JVM reports its port, and later."""


def marked_processes(mark: str) -> dict[int, bytes]:
    """Command lines of the processes with this mark, by process ID."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                processes[int(folder.name)] = (folder / "cmdline").read_bytes()
    return processes


def wait_for_process(condition: bytes | None, mark: str) -> bool:
    """Wait for a marked process with these words, or (None) until there is no marked process."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        result = marked_processes(mark)
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
    arguments = [sys.executable, "-P", "-m", "impctl", "query"]
    arguments += [str(write_workload(tmp_path)), "--query", "by_g", "--by", "spark"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(arguments, env=environment, text=True, **pipes)
    try:
        assert wait_for_process(_STAGES[stage], mark)
        time.sleep(seconds)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)  # a surviving JVM keeps these pipes open
        assert wait_for_process(None, mark)
    finally:
        for process_id in marked_processes(mark):
            os.kill(process_id, signal.SIGKILL)
    assert process.returncode == 130
    assert [line.split(":")[0] for line in err.splitlines()][-2:] == ["error", "hint"]
    assert not any(text in err for text in ("Exception", "properties file", "\tat "))
