"""Signals once a run is done: what it did is told, and its exit code stays."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.crash.applying import versions, write_batches
from tests.crash.processes import Spoken, spoken

NUMBERS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


def python(program: str, *words: str) -> Spoken:
    return spoken(sys.executable, "-P", "-c", program, *words)


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
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "place",
    [
        "impctl.service.context.Workbench:close",
        "impctl.cli.output.protocol.show",
        "impctl.cli.output.json.JsonOutput:end",
    ],
)
def test_what_is_in_the_tables_is_told(tmp_path: Path, place: str, number: signal.Signals) -> None:
    workload = write_batches(tmp_path)
    done = python(signalled_at(place, number), "apply", str(workload), "--all", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    results = json.loads(done.stdout)["results"]
    newest = {result["table"]: result["version"] for result in results}
    assert newest == versions(tmp_path) == {"t": 4, "u": 2}


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
def test_telling_that_takes_long_is_given_up(tmp_path: Path) -> None:
    """As where nobody reads from a pipe that is full."""
    workload = write_batches(tmp_path)
    program = signalled_at("impctl.cli.output.protocol.show", signal.SIGTERM, "time.sleep(90)")
    start = time.monotonic()
    done = python(program, "apply", str(workload), "first", "--json")
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
    done = python(program, "no-command")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
