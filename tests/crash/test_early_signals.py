"""Signals while a command still loads: exit code 130 and one document, as later."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from impctl.service.results import SCHEMA_VERSION
from tests.crash.processes import start
from tests.crash.small import write_workload


def until_loading(process: subprocess.Popen[str], library: str) -> None:
    """Wait until the process has mapped a library that is loaded early, behind the first line."""
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and library not in maps.read_text():
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("library", ["_json.", "numpy"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_loading(tmp_path: Path, number: signal.Signals, library: str) -> None:
    workload = write_workload(tmp_path)
    process = start(workload, "check")
    until_loading(process, library)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    document = json.loads(out)
    assert document.pop("error")["code"] == "interrupted"
    assert document == {
        "schema_version": SCHEMA_VERSION,
        "command": "check",
        "ok": False,
        "results": [],
        "warnings": [],
    }


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
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "status", "w.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("error: Interrupted [interrupted]\nhint: ")


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize(
    "place",
    [
        "logging.disable",
        "impctl.cli.job.reporting",
        "impctl.cli.job.ResultReporter.__init__",
        "impctl.service.context.open_workbench",
        "impctl.errors.unexpected",
    ],
)
def test_a_signal_at_the_beginning_of_the_work(
    tmp_path: Path, number: signal.Signals, place: str
) -> None:
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
        "    job.in_workbench = lambda *arguments: 1 / 0\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "check", str(write_workload(tmp_path)), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert json.loads(done.stdout)["error"]["code"] == "interrupted"
